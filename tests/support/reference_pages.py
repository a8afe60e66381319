"""What is written from the parser of the command: the tables of docs/cli.md, and docs/milblob.1, the page that `man milblob` shows.

As a program it writes both, and the screens of the documents:

    PYTHONPATH=tests/support .venv/bin/python tests/support/reference_pages.py
"""

import argparse
import os
import re
from unittest import mock

import screens
from milblob.cli.commands import tvm
from milblob.cli.parser import COMMANDS, commands_of, whole_parser
from milblob.version import VERSION
from paths import ROOT

CLI = ROOT / "docs" / "cli.md"
MANUAL = ROOT / "docs" / "milblob.1"
_BLOCK = re.compile(r"(<!-- (commands|options of ([\w -]+)) -->\n).*?(?=<!-- end -->)", re.S)


def whole():
    """The parser with all options, whose usage is as wide on any terminal."""
    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        return whole_parser()


def command_list():
    """Every command with one line about it, as a block of text."""
    names = {**COMMANDS, **{f"tvm {name}": words for name, words in tvm.COMMANDS.items()}}
    del names["tvm"]
    width = max(map(len, names))
    return "\n".join(["```", *(f"milblob {name:{width}}  {words}" for name, words in names.items()), "```", ""])


def options_of(parser):
    """A table of the arguments and options of a command, in the order of its help."""
    rows = ["| argument or option | what it is |", "|---|---|"]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        value = _value(action)
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        head = f"{names}{f' `{value}`' if value else ''}" if names else f"`{value}`"
        rows.append(f"| {_cell(head)} | {_cell(action.help % vars(action) if action.help else '')} |")
    return "\n".join([*rows, ""])


def _value(action):
    if action.nargs == 0:
        return ""
    text = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())
    return {"?": f"[{text}]", "*": f"[{text} ...]", "+": f"{text} ..."}.get(action.nargs, text)


def _cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def with_tables(text):
    """A page with its tables as the parser has them."""
    parsers = dict(commands_of(whole()))

    def renewed(found):
        begin, _, name = found.groups()
        return begin + (options_of(parsers[name]) if name else command_list())

    return _BLOCK.sub(renewed, text)


def commands_with_tables(text):
    """The commands whose options a page has."""
    return [found[3] for found in _BLOCK.finditer(text) if found[3]]


def manual():
    """The manual page."""
    from argparse_manpage.manpage import Manpage

    with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
        page = Manpage(whole_parser())
        page.date, page.manual, page.source = "", "milblob", f"milblob {VERSION}"
        page.description = "inspect and change the weights of Core ML models"
        # A line of a help that begins with a dot, such as ".npz or", would be a macro.
        text = re.sub(r"^(?=\.(?!(?:TH|SH|TP|B|PP|RS|RE|SS|nf|fi)\b)|')", r"\\&", f"{page}", flags=re.M)
        return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    screens.write_screens()
    CLI.write_text(with_tables(CLI.read_text("utf-8")), "utf-8")
    MANUAL.write_text(manual(), "utf-8")
