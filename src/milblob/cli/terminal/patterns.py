"""Folding of names that differ only in numbers, and grouping of names by their first component."""

import re
from collections.abc import Iterable, Sequence
from math import prod

_NUMBER = re.compile(r"(?<![^._/])\d{1,9}(?![^._/])")
_SEPARATOR = re.compile(r"[._/]")
_MAX_BOXES = 4
_MAX_LISTED = 4


def fold(names: Sequence[str], kinds: Sequence[object]) -> list[tuple[str, list[int]]]:
    """Fold names that differ only in numbers between separators, and have the same kind.

    `kinds`: for each name a key, such as dtype and shape; only names with equal keys are folded.
    Returns: Groups in the order of their first members, each with the indices of its members in order: a pattern such
    as "layers_{0..31}_fc_weight", for all combinations of its numbers, where "*" matches any number; the name itself
    for one member.
    """
    alike: dict[tuple[tuple[str, ...], object], list[int]] = {}
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        alike.setdefault((tuple(_NUMBER.split(name)), kind), []).append(index)
    groups = []
    for (texts, _), members in alike.items():
        numbers = [tuple(_NUMBER.findall(names[i])) for i in members]
        groups += [(_pattern(texts, box), [members[i] for i in inside]) for box, inside in _boxes(numbers)]
    return sorted(groups, key=lambda group: group[1][0])


_Box = tuple[frozenset[str] | None, ...]
"""The numbers at each position; None for "any". A box represents all their combinations."""


def _boxes(rows: list[tuple[str, ...]]) -> list[tuple[_Box, list[int]]]:
    """Divide rows of numbers into boxes that hold all combinations of their numbers: "0..1, 4..5" are four rows.

    Where that takes too many boxes, as for layers that are numbered and whose operations are too, there is one: it has
    "any" at the position with the most numbers, and so on, until the other positions have all combinations.

    Returns: Each box with the indices of its rows.
    """
    boxes: dict[_Box, list[int]] = {}
    for index, row in enumerate(rows):
        boxes.setdefault(tuple(frozenset((number,)) for number in row), []).append(index)
    for at in reversed(range(len(rows[0]))):
        alike: dict[_Box, list[tuple[frozenset[str], list[int]]]] = {}
        for box, indices in boxes.items():
            alike.setdefault((*box[:at], None, *box[at + 1 :]), []).append((box[at] or frozenset(), indices))
        boxes = {
            (*key[:at], frozenset().union(*(numbers for numbers, _ in found)), *key[at + 1 :]): sorted(
                index for _, indices in found for index in indices
            )
            for key, found in alike.items()
        }
    if len(boxes) <= _MAX_BOXES:
        return list(boxes.items())
    columns = [frozenset(column) for column in zip(*rows, strict=True)]
    chosen = sorted(range(len(columns)), key=lambda at: len(columns[at]))
    while len({tuple(row[at] for at in chosen) for row in rows}) < prod(len(columns[at]) for at in chosen):
        chosen.pop()
    whole = tuple(column if at in chosen else None for at, column in enumerate(columns))
    return [(whole, list(range(len(rows))))]


def _pattern(texts: Sequence[str], box: _Box) -> str:
    result = texts[0]
    for numbers, text in zip(box, texts[1:], strict=True):
        result += ("*" if numbers is None else _range(numbers)) + text
    return result


def _range(texts: frozenset[str]) -> str:
    """Format the numbers at one position: "7", "{0..31}", "{00..31}", "{1,5,9}", or "{1..90: 12 of them}"."""
    numbers = sorted(texts, key=lambda text: (int(text), text))
    if len(numbers) == 1:
        return numbers[0]
    first, last = numbers[0], numbers[-1]
    is_padded = any(text[0] == "0" and text != "0" for text in numbers)
    is_regular = not is_padded or len({len(text) for text in numbers}) == 1
    if is_regular and int(last) - int(first) == len(numbers) - 1:
        return f"{{{first}..{last}}}"
    if len(numbers) <= _MAX_LISTED:
        return f"{{{','.join(numbers)}}}"
    return f"{{{first}..{last}: {len(numbers)} of them}}"


def scopes(names: Iterable[str]) -> list[str]:
    """Return the top-level scope of each name: its first component after those that all names share.

    "encoder_layers_0_weight" and "decoder_bias" are in "encoder" and "decoder"; if all names begin with "model_", that
    is passed over: "model_encoder", "model_decoder".
    """
    names = list(names)
    parts = [_SEPARATOR.split(name) for name in names]
    shared = 0
    if len(parts) > 1:
        most = min(len(row) for row in parts) - 1
        while shared < most and all(row[shared] == parts[0][shared] for row in parts):
            shared += 1
    result = []
    for name, row in zip(names, parts, strict=True):
        depth = min(shared, len(row) - 1)
        end = sum(len(part) + 1 for part in row[: depth + 1]) - 1
        result.append(name[:end] or name)
    return result
