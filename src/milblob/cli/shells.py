"""Completion for shells: the script that `milblob --completion` prints, and the tensor names for it."""

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise

from ..extras import require

NAMES = "--names-of"
"""A completion script calls milblob with this option, followed by the words of the command line, to get names."""
_SAFE = frozenset("_./:@%+,=-")  # with letters and digits: what a shell takes as it is
_FUNCTIONS = {
    "bash": f"""_milblob_names() {{
  milblob {NAMES} "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" "$1" 2>/dev/null
}}""",
    "zsh": f"""_milblob_names() {{
  local -a names
  names=(${{(f)"$(milblob {NAMES} "${{(@Q)words[1,CURRENT-1]}}" "$PREFIX" 2>/dev/null)"}})
  compadd -a names
}}""",
    "fish": f"""function _milblob_names
  set -l given (commandline -opc)
  set -l begin (commandline -ct | string replace -r '^--[^=]*=' '')
  milblob {NAMES} $given[2..-1] "$begin" 2>/dev/null
end""",
}
_TENSORS = {"bash": "_milblob_names", "zsh": "_milblob_names", "fish": "(_milblob_names)", "preamble": _FUNCTIONS}
_FILES = {
    "A", "ARCHIVE", "B", "BASE", "FILE", "INPUT", "MODEL", "NEW", "OUT", "SOURCE", "SVG", "WEIGHTS",
}  # fmt: skip
"""Metavars of arguments that are files or directories."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion script of a shell: commands, options, choices, files and names of tensors.

    `parser`: of the program, with the options of all commands. `shell`: bash, zsh or fish.
    Raises: ImportError: shtab is not installed.
    """
    shtab = require("shtab")
    _mark(parser, shtab.FILE)
    return str(shtab.complete(parser, shell=shell))


def _mark(parser: argparse.ArgumentParser, file: object) -> None:
    """Set for each argument how it is completed."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark(command, file)
        elif action.dest == "select" or (action.dest == "name" and not action.option_strings):
            action.complete = _TENSORS  # type: ignore[attr-defined]
        elif action.metavar in _FILES:
            action.complete = file  # type: ignore[attr-defined]


def print_names(words: Sequence[str]) -> None:
    """Print the tensors of the model on a command line whose names begin as its last word does, one on each line.

    Names that a shell would not take as they are are left out: a file may have any, and none of them may become a
    command. Nothing is printed without a model, or of one that cannot be read.

    `words`: of the command line after the program's name, up to the one to complete.
    """
    from ..errors import MilblobError
    from ..storage import paths

    *given, begin = words or ("",)
    files = (word for before, word in pairwise(given) if before not in ("-o", "--output") and not word.startswith("-"))
    path = next(filter(paths.is_there, files), None)
    if path is None:
        return
    try:
        names = [name for name in _names_of(path) if name.startswith(begin) and _is_plain(name)]
    except (MilblobError, OSError, ValueError):
        return
    sys.stdout.write("".join(f"{name}\n" for name in names))


def _names_of(path: str) -> list[str]:
    from ..errors import UnsupportedError
    from ..model.open import open_model

    try:
        with open_model(path) as model:
            return list(model)
    except UnsupportedError:
        from ..formats.read import open_arrays

        with open_arrays(path) as arrays:
            return list(arrays)


def _is_plain(name: str) -> bool:
    if name.isidentifier():  # nearly all
        return True
    return name[:1] not in ("", "-", "=", "%") and all(c.isalnum() or c in _SAFE for c in name)
