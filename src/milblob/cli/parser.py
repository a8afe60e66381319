"""The list of commands, and the parser that imports only the module of the requested command."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..version import VERSION
from .terminal.width import terminal_columns

COMMANDS = {
    "ls": "list the tensors of a model or weight file",
    "show": "show a model, or one of its tensors",
    "text": "print the Program as MIL text, or the surroundings of one operation",
    "stats": "print statistics of every tensor: extremes, mean, zeros, NaNs",
    "report": "write one HTML file about a model, or about two",
    "hash": "print hashes of the contents, equal for equal models",
    "diff": "compare two models, or a model and a file of arrays",
    "match": "find which training tensor became which weight",
    "convert": "write tensors to npz, safetensors, .params, npy or weight files",
    "check": "report every problem of models and weight files",
    "refit": "give weights new values, in place, all or nothing",
    "repack": "rewrite a model: cast, deduplicate, split, merge, align",
    "compress": "quantize, palettize or prune weights, and report the loss",
    "merge-functions": "merge several packages into one, equal weights stored once",
    "chunk": "cut a model into packages that run one after another",
    "join": "make one package of packages that run one after another",
    "delta": "write a patch that makes a new model from an old one",
    "apply": "make the new model of a patch, beside the old one or in place",
    "to-onnx": "convert a model to ONNX, its weights by reference",
    "batch": "run one command for each of many models, and resume",
    "run": "compute a model's outputs, by onnxruntime",
    "verify": "check whether two models predict the same",
    "tvm": "archives in TVM's Model Library Format",
    "recover": "complete a change in place that was interrupted",
    "info": "print versions, build, kernels and threads",
}
"""Each command with one line about it: what `milblob --help` prints without importing the commands themselves.

The module of a command has its name with `_` for `-` and space. It has `add_arguments(parser)`, which adds its options;
`run(arguments)`, which returns the exit status; and EXAMPLES, which end its help. A module that only has further
commands, such as `tvm`, has neither `run` nor EXAMPLES.
"""


_OTHER_WORDS = {
    "completion": ("--completion",),
    "version": ("--version",),
    "help": ("--help",),
    **dict.fromkeys(("list", "tensors", "weights"), ("ls",)),
    **dict.fromkeys(("inspect", "view", "cat", "print", "summary", "describe", "metadata"), ("show",)),
    **dict.fromkeys(("extract", "export", "save", "dump", "pack", "unpack"), ("convert",)),
    **dict.fromkeys(("onnx", "toonnx"), ("to-onnx",)),
    **dict.fromkeys(("quantize", "palettize", "prune"), ("compress",)),
    **dict.fromkeys(("compare", "cmp"), ("diff", "verify")),
    **dict.fromkeys(("statistics", "histogram"), ("stats",)),
    **dict.fromkeys(("validate", "lint", "test"), ("check", "verify")),
    **dict.fromkeys(("predict", "infer", "exec"), ("run",)),
    **dict.fromkeys(("split", "cut"), ("chunk", "repack --split")),
    **dict.fromkeys(("merge", "concat"), ("join", "merge-functions", "repack --merge")),
    **dict.fromkeys(("set", "replace", "load"), ("refit",)),
    **dict.fromkeys(("update", "patch", "bsdiff", "bspatch"), ("delta", "apply")),
    **dict.fromkeys(("copy", "cp", "cast", "dedupe", "decompress"), ("repack",)),
    **dict.fromkeys(("html",), ("report",)),
    **dict.fromkeys(("all", "map", "many"), ("batch",)),
    **dict.fromkeys(("download", "fetch"), ("ls URL --download DIR",)),
}
"""Words that people type for a command, and what they mean."""

SHELLS = ("bash", "zsh", "fish")
"""Those that `--completion` knows."""


def _formatter(
    prog: str, kind: type[argparse.HelpFormatter] = argparse.RawDescriptionHelpFormatter
) -> argparse.HelpFormatter:
    """Return what prints the help, with the width for which argparse would import shutil."""
    return kind(prog, width=terminal_columns() - 2)


class CommandParser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line, like every other error."""

    names: tuple[str, ...] = ()  # its commands; empty if it has none

    def load(self) -> None:
        """Add the options of a command that has none yet."""

    def error(self, message: str) -> NoReturn:
        """Print the error and the command for help; exit status 2."""
        self.exit(2, f"milblob: {message}; see {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print the help or the version, as argparse does. Raises: OSError: it cannot be written, unlike there."""
        (file or sys.stderr).write(message or "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Look for the name of a command, then parse. Without any argument, print the help."""
        if self.names and not (sys.argv[1:] if args is None else args):
            self.print_help()
            self.exit()
        first = next(iter(sys.argv[1:] if args is None else args), "-")
        if self.names and not first.startswith("-") and first not in self.names:
            from difflib import get_close_matches

            close = get_close_matches(first, self.names, n=2, cutoff=0.5)
            if first in _OTHER_WORDS and _OTHER_WORDS[first][0].partition(" ")[0] in (*self.names, "--completion"):
                close = list(_OTHER_WORDS[first])
            hint = f"; did you mean {' or '.join(close)}?" if close else f", one of {', '.join(self.names)}"
            self.error(f"expected a command, got {first!r}{hint}")
        return super().parse_known_args(args, namespace)


class _Command(CommandParser):
    """The parser of one command. Its options are added when it is used, because its module is imported only then."""

    def __init__(self, *, module: str, **options: Any) -> None:
        super().__init__(formatter_class=_formatter, allow_abbrev=False, **options)
        self._module: str | None = module

    def load(self) -> None:
        """Add the options, unless they are there."""
        if self._module is not None:
            module = import_module(f".commands.{self._module}", __package__)
            self._module = None
            module.add_arguments(self)
            if hasattr(module, "run"):
                self.set_defaults(run=module.run)
                self.epilog = "\n".join(["examples:", *(f"  milblob {example}" for example in module.EXAMPLES)])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the options, then parse."""
        self.load()
        return super().parse_known_args(args, namespace)


def whole_parser() -> CommandParser:
    """Return the parser with the options of all commands, for what describes them: completion, manual, documents."""
    parser = _parser()
    commands_of(parser)
    return parser


def commands_of(parser: argparse.ArgumentParser) -> list[tuple[str, CommandParser]]:
    """Return every command of a parser by its name, such as "tvm ls", in order; its options are loaded."""
    found: list[tuple[str, CommandParser]] = []
    for action in _subcommands(parser):
        for name, command in action.choices.items():
            command.load()
            found.append((name, command))
            found += [(f"{name} {inner}", one) for inner, one in commands_of(command)]
    return found


def parser_of(name: str) -> CommandParser:
    """Return the parser of one command, with its options; no other command is imported."""
    found: CommandParser = _subcommands(_parser(name))[0].choices[name]
    found.load()
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; `run` in the result is the command's function.

    Raises: SystemExit: --help, --version or wrong usage.
    """
    words = sys.argv[1:] if argv is None else argv
    parser = _parser(*words[:1])
    arguments: argparse.Namespace
    arguments, unknown = parser.parse_known_args(words)
    if unknown and not _fill(_command_of(parser, words), arguments, unknown):
        _refuse(parser, words, unknown)
    if not hasattr(arguments, "run"):  # only "--" was given
        parser.error("expected a command, got none")
    return arguments


def _command_of(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command that words begin with."""
    for word in words:
        inner = [action.choices[word] for action in _subcommands(parser) if word in action.choices]
        if not inner:
            break
        parser = inner[0]
    return parser


def _fill(parser: argparse.ArgumentParser, arguments: argparse.Namespace, unknown: Sequence[str]) -> bool:
    """Take a word after options as the argument that may be left out: `argparse` looks for it before them only.

    Returns: Whether nothing else is unknown.
    """
    for action in parser._actions:
        is_left = not action.option_strings and action.nargs == "?" and getattr(arguments, action.dest, None) is None
        if is_left and len(unknown) == 1 and not unknown[0].startswith("-"):
            setattr(arguments, action.dest, unknown[0])
            return True
    return False


def _refuse(parser: CommandParser, words: Sequence[str], unknown: Sequence[str]) -> NoReturn:
    """Report arguments that a command does not have, with what may be meant by the first one."""
    command = _command_of(parser, words)
    first, options = unknown[0], _options(command)
    meant = f"--{first.lstrip('-').partition('=')[0]}"
    bare = meant.rstrip("0123456789")
    if meant != first and meant in options:
        found = [meant]
    elif bare != meant and bare in options:
        found = [f"{bare} {meant[len(bare) :]}"]
    elif first.startswith("-"):
        from difflib import get_close_matches

        found = get_close_matches(meant, options, n=2, cutoff=0.8)
    else:
        found = [f"-o {first}"] if "-o" in options and "-o" not in words and "--output" not in words else []
    hint = f"; did you mean {' or '.join(found)}?" if found else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions for name in action.option_strings]


def _subcommands(parser: argparse.ArgumentParser) -> list[Any]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _parser(first: str | None = None) -> CommandParser:
    """Return the parser of the program; if the first argument is a command, without the parsers of the others."""
    parser = CommandParser(
        prog="milblob",
        formatter_class=lambda prog: _formatter(prog, argparse.HelpFormatter),
        description="Inspect and change Core ML models, weight files and TVM's files of parameters.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"milblob {VERSION}", help="print the version and exit")
    description = "print a script that completes commands, options, files and names of tensors, and exit"
    parser.add_argument("--completion", action=_Completion, choices=SHELLS, help=description)
    add_commands(parser, {first: COMMANDS[first]} if first in COMMANDS else COMMANDS)
    return parser


def add_commands(parser: CommandParser, summaries: Mapping[str, str], prefix: str = "") -> None:
    """Add commands to a parser.

    Args:
        parser: of the program, or of a command that has further commands.
        summaries: names, each with one line about the command.
        prefix: what the names of their modules begin with.
    """
    parser.names = tuple(summaries)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Command)
    for name, summary in summaries.items():
        module = prefix + name.replace("-", "_")
        commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", module=module)


class _Completion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, __: Any = None) -> NoReturn:
        from .shells import script

        print(script(whole_parser(), shell))
        parser.exit()
