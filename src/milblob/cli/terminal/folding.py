"""Names shortened in the middle, so that they fit a column and remain distinct."""

import os
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

_TOKEN = re.compile(r"[._/]*[^._/]+|[._/]+$")
_NUMBERS = re.compile(r"\{[^{}…]*\}")
_MAX_TRIES = 24
_MAX_CANDIDATES = 2000  # names with one beginning that are compared with a form
_MAX_NCHARS = 1000
_LEAST_NCHARS = 3  # of a part of a name that distinguishes it, where not even these parts fit


def width_of(text: str) -> int:
    """Return the columns of a terminal that a line of printable text takes."""
    if text.isascii():
        return len(text)
    return sum(_cell_width(character) for character in text)


def _cell_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def head_of(text: str, width: int) -> str:
    """Return the longest beginning of a text that takes at most `width` columns."""
    taken = 0
    for end, character in enumerate(text):
        taken += _cell_width(character)
        if taken > width:
            return text[:end]
    return text


def _tail_of(text: str, width: int) -> str:
    taken = 0
    for count, character in enumerate(reversed(text)):
        taken += _cell_width(character)
        if taken > width:
            return text[len(text) - count :]
    return text


def fold_names(names: Iterable[str], width: int, mark: str) -> dict[str, str]:
    """Shorten names to at most `width` columns, so that each short form matches one name only.

    Read as a pattern in which the mark matches any text, a short form must not match another name. First all names are
    cut at one place, as near to the middle as possible. If some forms are ambiguous at every place, those names keep
    the parts between `.`, `_` and `/` in which they differ. If these parts do not fit, the names are numbered.

    `names`: any; a name may occur several times. `mark`: replaces the text that is left out, such as "…".
    Returns: name -> name, or its short form.
    """
    distinct = list(dict.fromkeys(names))
    room = max(width - len(mark), 2)
    middle = (room + 1) // 2
    tries = sorted(range(1, room), key=lambda head: abs(head - middle))
    step = max(1, len(tries) // _MAX_TRIES)
    widths = {name: width_of(name) for name in distinct}
    has_numbers = any("{" in name for name in distinct)
    best: dict[str, str] = {}
    best_score, unclear = (-1, 0), set(distinct)
    for head in tries[::step]:
        found = {name: _cut(name, head, room, mark) if widths[name] > width else name for name in distinct}
        several = _standing_for_several(found, mark)
        # Numbers in braces, which represent many names, are kept whole where possible.
        score = (-len(several), sum(len(_NUMBERS.findall(form)) for form in found.values()))
        if not best or score > best_score:
            best, best_score, unclear = found, score, several
        if not several and not has_numbers:
            break
    return _separated(best, unclear, width, mark) if unclear else best


def _standing_for_several(forms: dict[str, str], mark: str) -> set[str]:
    """Return the names whose form another name fits too, with anything at the marks; or fits that of many others."""
    ordered = sorted(forms)
    found = set()
    for name, form in forms.items():
        first, last = form.find(mark), form.rfind(mark)
        if first < 0:
            continue
        # A dot beside "..." may be of the name or of the mark: only what is certain counts.
        head, tail = form[:first], form[last + len(mark) :]
        inner = [part.strip(mark) for part in form[first + len(mark) : last].split(mark)]
        for count, at in enumerate(range(bisect_left(ordered, head), len(ordered))):
            other = ordered[at]
            if not other.startswith(head):
                break
            is_fitting = other.endswith(tail) and len(other) >= len(head) + len(tail) and other != name
            if count >= _MAX_CANDIDATES or (
                is_fitting and _has_in_order(other, len(head), len(other) - len(tail), inner)
            ):
                found.add(name)
                break
    return found


def _has_in_order(text: str, begin: int, end: int, parts: list[str]) -> bool:
    for part in parts:
        at = text.find(part, begin, end)
        if at < 0:
            return False
        begin = at + len(part)
    return True


def _cut(name: str, head: int, room: int, mark: str) -> str:
    start = head_of(name, head)
    return start + mark + _tail_of(name, room - width_of(start))


def _separated(folded: dict[str, str], unclear: set[str], width: int, mark: str) -> dict[str, str]:
    """Return distinct forms for the names whose forms in `folded` match several names."""
    result = dict(folded)
    # Very long names, which only a hostile file has, are numbered: their parts take long to compare.
    if all(len(name) <= _MAX_NCHARS for name in folded):
        parts = _by_parts([*folded], width, mark)
        result.update((name, parts[name]) for name in folded if name in unclear)
    left = _standing_for_several(result, mark)
    taken = {form for name, form in result.items() if name not in left}
    numbers: dict[str, int] = {}
    for name in result:
        form = result[name]
        while name in left and (form == result[name] or form in taken):
            number = numbers[result[name]] = numbers.get(result[name], 0) + 1
            suffix = f"~{number}"
            form = head_of(result[name], width - len(suffix)) + suffix
        taken.add(form)
        result[name] = form
    return result


def _by_parts(names: list[str], width: int, mark: str) -> dict[str, str]:
    """Shorten names to the parts in which they differ, and add other parts while they fit."""
    parts = {name: _TOKEN.findall(name) for name in names}
    following: dict[tuple[str, ...], set[str]] = {}  # beginning -> the parts that follow it in any name
    for row in parts.values():
        for end in range(len(row) + 1):
            following.setdefault(tuple(row[:end]), set()).add(row[end] if end < len(row) else "")
    known: dict[tuple[str, ...], dict[str, int]] = {}

    def lengths(beginning: tuple[str, ...]) -> dict[str, int]:
        if beginning not in known:
            known[beginning] = _distinct_lengths(following[beginning])
        return known[beginning]

    result = {}
    for name, row in parts.items():
        needed = [len(following[tuple(row[:at])]) > 1 for at in range(len(row))]
        if width_of(_joined(row, needed, mark)) > width:
            row = [_least(part, lengths(tuple(row[:at])).get(part, 0), mark) for at, part in enumerate(row)]
            if width_of(_joined(row, needed, mark)) > width:
                result[name] = _cut(name, (width - len(mark) + 1) // 2, width - len(mark), mark)
                continue
        others = [at for at in range(len(row)) if not needed[at]]
        others = [at for pair in zip(others, reversed(others), strict=True) for at in pair][: len(others)]
        for at in others:  # from both ends
            needed[at] = True
            if width_of(_joined(row, needed, mark)) > width:
                needed[at] = False
        result[name] = _joined(row, needed, mark)
    return result


def _distinct_lengths(parts: set[str]) -> dict[str, int]:
    """Return for each part the length of its shortest unique beginning; more than its own length if none is unique."""
    ordered = sorted(parts)
    shared = [len(os.path.commonprefix(pair)) for pair in pairwise(ordered)]  # noqa: RUF071  # they are no paths
    return {
        part: max(before, after) + 1 for part, before, after in zip(ordered, [0, *shared], [*shared, 0], strict=True)
    }


def _least(part: str, length: int, mark: str) -> str:
    """Return the shortest distinct beginning of a part and a mark, or the part itself if that is not longer."""
    end = max(length, _LEAST_NCHARS)
    return part[:end] + mark if end + len(mark) < len(part) else part


def _joined(row: list[str], needed: list[bool], mark: str) -> str:
    text = ""
    for part, is_needed in zip(row, needed, strict=True):
        if is_needed:
            text += part
        elif not text.endswith(mark):
            text += mark
    return text
