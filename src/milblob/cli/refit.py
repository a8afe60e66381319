"""milblob refit: new values for weights of a model."""

import json
import os
from argparse import Namespace
from collections.abc import Callable
from fnmatch import fnmatchcase

from ..errors import FormatError
from ..refitting import RefitReport, refit
from . import output


def run(arguments: Namespace) -> int:
    """Run the command."""
    report = refit(
        arguments.model,
        arguments.weights,
        mapping=_mapping(arguments),
        cast=arguments.cast,
        overflow=arguments.overflow,
        select=_matcher(arguments.keep) if arguments.keep else None,
        output=arguments.output,
        force=arguments.force,
        dry_run=arguments.dry_run,
    )
    if arguments.verbose:
        for change in report.changes:
            cast = "" if change.given_dtype is change.dtype else f" from {change.given_dtype}"
            given = "" if change.given == change.name else f" <- {change.given}"
            output.say(f"{change.name}{given} {change.dtype} {output.shape_text(change.shape)}{cast}")
    if arguments.json:
        output.print_json(report.as_dict())
    elif not arguments.quiet:
        output.say(_summary(report))
    return 0


def _matcher(globs: list[str]) -> Callable[[str], bool]:
    return lambda name: any(name == glob or fnmatchcase(name, glob) for glob in globs)


def _summary(report: RefitReport) -> str:
    words = f"{output.plural(len(report.changes), 'weight')}, {output.size(report.nbytes)}"
    if report.output != report.source:
        words += f", to {report.output}"
    elif all(change.in_place for change in report.changes):
        words += ", in place"
    else:
        words += ", the model file anew"
    for kind, verb in (("overflow", "too large"), ("underflow", "became zero"), ("nan", "not a number")):
        count = sum(getattr(change.counts, kind) for change in report.changes)
        if count:
            words += f"; {output.plural(count, 'element')} {verb}"
    return words if report.done else f"{words}; nothing written (--dry-run)"


def _mapping(arguments: Namespace) -> dict[str, str]:
    """Put --mapping and --map together; the latter wins.

    Raises:
        ValueError: not OLD=NEW. FormatError: the file is no such mapping.
    """
    found: dict[str, str] = {}
    path = arguments.mapping
    if path is not None:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            try:
                text = file.read()
            except UnicodeDecodeError as error:
                raise FormatError(f"mapping: expected UTF-8, got {error.reason}", file=path) from None
        found = _from_json(text, path) if os.path.splitext(path)[1].lower() == ".json" else _from_lines(text, path)
    for pair in arguments.map:
        old, separator, new = pair.partition("=")
        if not (separator and old and new):
            raise ValueError(f"--map: expected OLD=NEW, got {pair!r}")
        found[old] = new
    return found


def _from_json(text: str, path: str) -> dict[str, str]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"mapping: expected JSON, got {error}", file=path) from None
    if not isinstance(document, dict) or not all(isinstance(new, str) for new in document.values()):
        raise FormatError("mapping: expected an object of names, got something else", file=path)
    return document


def _from_lines(text: str, path: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        old, separator, new = (part.strip() for part in words.partition("="))
        if not (separator and old and new):
            raise FormatError(f"mapping, line {number}: expected OLD=NEW, got {words!r:.100}", file=path)
        found[old] = new
    return found
