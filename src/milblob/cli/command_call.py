"""A command as a function of one model, for batches: it can be pickled, and prints nothing."""

import functools
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import MilblobError
from .parser import parse, parser_of
from .sources import local_source
from .terminal.failures import message_of

COMMANDS = {
    "repack": None, "compress": None, "convert": ".npz", "to-onnx": ".onnx", "check": None, "stats": None, "hash": None,
}  # fmt: skip
"""The commands of a batch, and the suffix of their outputs; None: that of the source."""

_WRITERS = ("repack", "compress", "convert", "to-onnx")
_MODEL = "MODEL"  # in the place of each model, while options are parsed
_NOT_HERE = (
    "json", "json_lines", "sarif", "fail_fast", "recursive", "files_from", "force", "executor", "memory",
    "storage_options", "download", "cache", "cache_size",
)  # fmt: skip


class CommandCall:
    """A command with its options, called with each model.

    `words`: name of the command, and its options. `has_document`: whether to return the document of --json, for which a
    process sends it to the coordinator.
    Raises: ValueError: not a command of batches, or an option that is not for many models. SystemExit: options that the
    command does not have; --help.
    """

    def __init__(self, words: Sequence[str], *, has_document: bool = False) -> None:
        if not words or words[0] not in COMMANDS:
            got = repr(words[0]) if words else "none"
            raise ValueError(f"batch: expected one of {', '.join(COMMANDS)}, got {got}")
        self.words, self._has_document = tuple(words), has_document
        self.command = words[0]  # its name
        arguments = _parsed(self.words)
        is_read = getattr(arguments, "coverage", False) or getattr(arguments, "dry_run", False)
        self.is_writer = self.command in _WRITERS and not is_read  # whether it writes an output
        self.suffix = COMMANDS[self.command] if self.is_writer else None  # of outputs; None: that of the source

    def __repr__(self) -> str:
        """The words: what the journal calls it."""
        return " ".join(("milblob", *self.words))

    def __call__(self, source: str, destination: str | None = None, force: bool = False) -> tuple[int, Any]:
        """Run the command for one model, and return its exit status and document.

        Raises: MilblobError: with the message that the command prints.
        """
        module: Any = import_module(f".commands.{self.command.replace('-', '_')}", __package__)
        arguments = Namespace(**vars(_parsed(self.words)))
        arguments.json = arguments.quiet = True
        if self.is_writer:
            arguments.output, arguments.force = destination, force
        elif self.command in _WRITERS and arguments.output is not None:
            arguments.output = source  # of a dry run: no path that may be there
        try:
            with local_source(source, arguments) as path:
                status, document = module.run_one(path, arguments)
        except Exception as error:
            message = message_of(error)
            if message is None:
                raise
            raise MilblobError(message) from error
        if destination is not None and not self.is_writer:
            from ..batching.work import write_json

            write_json(destination, document, force=force)
        return status, document if self._has_document else None


@functools.lru_cache(maxsize=4)
def _parsed(words: tuple[str, ...]) -> Namespace:
    """Parse the options of a command, once in each process.

    Raises: ValueError: an option for a file that the models would share, or one that batch has for all.
    """
    command = words[0]
    output = ["-o", _MODEL] if command in _WRITERS and "--coverage" not in words else []
    arguments = parse([command, *output, _MODEL, *words[1:]])
    given = next(getattr(arguments, name) for name in ("models", "sources", "model") if hasattr(arguments, name))
    if given not in (_MODEL, [_MODEL]):
        raise ValueError(f"batch: expected models after --, got {' '.join([*given][1:])} before")
    parser = parser_of(command)
    for action in parser._actions:
        value = getattr(arguments, action.dest, None)
        is_output = getattr(action, "is_output", False) and value != _MODEL
        if (is_output or action.dest in _NOT_HERE) and value not in (None, False, [], action.default):
            option = action.option_strings[-1]
            raise ValueError(f"batch: expected no {option} of {command} (see milblob batch --help), got one")
    return arguments
