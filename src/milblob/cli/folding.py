"""Names shortened in the middle, so that they fit a column and stay distinct."""

import os
import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

_TOKEN = re.compile(r"[._/]*[^._/]+|[._/]+$")
_NUMBERS = re.compile(r"\{[^{}…]*\}")
_MAX_TRIES = 24
_MAX_NCHARS = 1000
_LEAST_NCHARS = 3  # of a part of a name that tells it from others, where not even those fit


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
    """Shorten names, so that each takes at most `width` columns and no two distinct ones become the same.

    First all names lose a stretch at one place, as near to the middle as keeps them distinct. If there is no such
    place, those that would look the same keep the parts between `.`, `_` and `/` in which they differ. If these do not
    fit either, a number tells the names apart.

    Args:
        names: any; a name may occur several times.
        width: columns.
        mark: what stands for what is left out, such as "…".

    Returns:
        name -> name, or its short form.
    """
    distinct = list(dict.fromkeys(names))
    room = max(width - len(mark), 2)
    middle = (room + 1) // 2
    tries = sorted(range(1, room), key=lambda head: abs(head - middle))
    step = max(1, len(tries) // _MAX_TRIES)
    widths = {name: width_of(name) for name in distinct}
    has_numbers = any("{" in name for name in distinct)
    best: dict[str, str] = {}
    best_score = (-1, 0)
    for head in tries[::step]:
        found = {name: _cut(name, head, room, mark) if widths[name] > width else name for name in distinct}
        # Numbers in braces, which stand for many names, stay whole where that is possible.
        score = (len(set(found.values())), sum(len(_NUMBERS.findall(form)) for form in found.values()))
        if score > best_score:
            best, best_score = found, score
        if score[0] == len(distinct) and not has_numbers:
            break
    return best if best_score[0] == len(distinct) else _separated(best, width, mark)


def _cut(name: str, head: int, room: int, mark: str) -> str:
    start = head_of(name, head)
    return start + mark + _tail_of(name, room - width_of(start))


def _separated(folded: dict[str, str], width: int, mark: str) -> dict[str, str]:
    """Tell those names apart that `folded` makes equal."""
    by_form: dict[str, list[str]] = {}
    for name, form in folded.items():
        by_form.setdefault(form, []).append(name)
    alike = [name for names in by_form.values() if len(names) > 1 for name in names]
    taken = {form for form, names in by_form.items() if len(names) == 1}
    result = dict(folded)
    # Names that only a hostile file has are told apart by numbers: the parts of long ones take long to compare.
    result.update(_by_parts([name for name in alike if len(name) <= _MAX_NCHARS], width, mark))
    numbers: dict[str, int] = {}
    for name in alike:
        form = result[name]
        while form in taken:
            number = numbers[result[name]] = numbers.get(result[name], 1) + 1
            suffix = f"~{number}"
            form = head_of(result[name], width - len(suffix)) + suffix
        taken.add(form)
        result[name] = form
    return result


def _by_parts(names: list[str], width: int, mark: str) -> dict[str, str]:
    """Shorten names to the parts in which they differ from each other, and others as far as there is room."""
    parts = {name: _TOKEN.findall(name) for name in names}
    following: dict[tuple[str, ...], set[str]] = {}  # what comes after a beginning, in any name
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
    """For each part the length of its shortest beginning that no other has; more than its own if there is none."""
    ordered = sorted(parts)
    shared = [len(os.path.commonprefix(pair)) for pair in pairwise(ordered)]  # noqa: RUF071  # they are no paths
    return {
        part: max(before, after) + 1 for part, before, after in zip(ordered, [0, *shared], [*shared, 0], strict=True)
    }


def _least(part: str, length: int, mark: str) -> str:
    """The shortest beginning of a part that tells it from others, and a mark; the part itself if that is no shorter."""
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
