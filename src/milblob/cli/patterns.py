"""Folding of names that differ only in numbers, and grouping of names by their first component."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_NUMBER = re.compile(r"(?<![^._/])\d{1,9}(?![^._/])")
_SEPARATOR = re.compile(r"[._/]")


class Group(NamedTuple):
    """Several names as one pattern.

    Attributes:
        pattern: such as "layers_{0..31}_fc_weight"; the name itself if it stands alone.
        members: indices of the names, in order.
    """

    pattern: str
    members: list[int]


def fold(names: Sequence[str], kinds: Sequence[object]) -> list[Group]:
    """Fold names that differ only in numbers between separators, and have the same kind.

    Args:
        names: any.
        kinds: for each name a key, such as dtype and shape; only names with equal keys are folded.

    Returns:
        Groups, in the order of their first members.
    """
    alike: dict[tuple[tuple[str, ...], object], list[int]] = {}
    for index, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        alike.setdefault((tuple(_NUMBER.split(name)), kind), []).append(index)
    return [Group(_pattern([names[i] for i in members]), members) for members in alike.values()]


def _pattern(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    texts = _NUMBER.split(names[0])
    columns = zip(*[_NUMBER.findall(name) for name in names], strict=True)
    result = texts[0]
    for column, text in zip(columns, texts[1:], strict=True):
        result += _range(column) + text
    return result


def _range(column: Sequence[str]) -> str:
    """Format the numbers at one position: "7", "{0..31}", "{1,5,9}", or "{1..90: 12 of them}"."""
    numbers = sorted({int(text) for text in column})
    if len(numbers) == 1:
        return column[0]
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    if len(numbers) <= 4:
        return f"{{{','.join(map(str, numbers))}}}"
    return f"{{{numbers[0]}..{numbers[-1]}: {len(numbers)} of them}}"


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
