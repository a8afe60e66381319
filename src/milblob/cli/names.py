"""Renames given by the user: --map OLD=NEW and --mapping FILE."""

import os
from argparse import Namespace

from ..arguments import Names, names_in
from ..errors import FormatError
from ..jsontext import parse_json


def mapping(arguments: Namespace) -> dict[str, Names]:
    """Combine --mapping and --map; the latter wins. None leaves the array out; an array named twice goes to both.

    Raises: ValueError: not OLD=NEW. FormatError: the file is not such a mapping.
    """
    found: dict[str, Names] = {}
    path = arguments.mapping
    if path is not None:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            try:
                text = file.read()
            except UnicodeDecodeError as error:
                raise FormatError(f"mapping: expected UTF-8, got {error.reason}", file=path) from None
        found |= _from_json(text, path) if os.path.splitext(path)[1].lower() == ".json" else _from_lines(text, path)
    given: dict[str, list[str]] = {}
    for pair in arguments.map:
        old, separator, new = pair.partition("=")
        if not (separator and old and new):
            raise ValueError(f"--map: expected OLD=NEW, got {pair!r}")
        given.setdefault(old, []).append(new)
    return found | given


def _from_json(text: str, path: str) -> dict[str, Names]:
    document = parse_json(text, "mapping", path, unique=True)
    try:
        if isinstance(document, dict):
            return {old: names_in(new) for old, new in document.items()}
    except TypeError:
        pass
    raise FormatError("mapping: expected an object of names, got something else", file=path)


def _from_lines(text: str, path: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        old, separator, new = (part.strip() for part in words.partition("="))
        if not (separator and old and new):
            raise FormatError(f"mapping, line {number}: expected OLD=NEW, got {words!r:.100}", file=path)
        found.setdefault(old, []).append(new)
    return found
