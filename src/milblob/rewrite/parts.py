"""Compressed weights as data: their parts, with the stored bytes or the function that computes them during writing.

Where the sizes of all parts are known in advance, the layout gives every part its place, and only then values are
computed: memory holds a stretch of a weight at a time, and nothing is kept in between.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import FormatError
from ..lossy.loss import Loss
from ..lossy.unfit import UnfitError
from ..model.tensor import Tensor
from ..program.compress_edits import Links
from ..storage.source_file import SourceFile
from ..threads import ALONE_COUNT, sized

Array = np.ndarray[Any, Any]
Put = Callable[[str, int, Any], None]
"""Called as `put(key, offset, data)`: bytes of a part, from the offset in bytes on."""


class StoredBytes(NamedTuple):
    """The stored bytes of a part in a file, which a worker wrote."""

    file: SourceFile
    offset: int


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a compressed weight. Compared and hashed as an object, not by its values."""

    key: str  # its parameter; "lut.scale" for a part of what computes `lut`
    dtype: Any
    shape: tuple[int, ...]
    array: Array | None = None  # the values, if they go into the Program: a part of few elements; else None
    data: Any = None  # the stored bytes, or their place in a file of a worker; None while they are not computed

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return int(self.dtype.nbytes(prod(self.shape)))

    @property
    def mil_code(self) -> int:
        """The number of the MIL data type, under the name that constants have."""
        return int(self.dtype.mil_code)

    def small_copy(self) -> "Part":
        """Return the part with values of its own, which may be a view of more, and without stored bytes."""
        return replace(self, array=None if self.array is None else self.array.copy(), data=None)


@dataclass(eq=False)
class WeightParts:
    """What is stored for a weight; equal weights may share one object."""

    op: str  # type of the operation that computes the weight
    parts: tuple[Part, ...]  # those that are stored
    size: int  # elements of the weight
    links: Links  # the parts that are not stored: which operations compute them
    loss: Loss | None = None  # None while it is not known
    # computes the parts that have neither array nor data, gives every byte of them to a `Put` once, in the caller's
    # thread, and returns the loss; None if there are no such parts
    compute: Callable[[Put], Loss] | None = None
    is_sure: bool = False  # whether `compute` is known to refuse no value

    @property
    def nbytes(self) -> int:
        """Bytes of all parts as stored."""
        return sum(part.nbytes for part in self.parts)

    def write(self, put: Put) -> None:
        """Compute the parts that are not there, once, and the loss.

        Raises: FormatError: values that were checked before, and cannot be compressed any more.
        """
        compute, self.compute = self.compute, None  # it holds values of the source, which is closed early
        if compute is None:
            raise RuntimeError("parts: expected one call, got another")
        try:
            self.loss = compute(put)
        except UnfitError as error:
            raise FormatError(f"weight: expected no change while it is read, got other values ({error})") from None


class CompressedWeight(NamedTuple):
    """A weight of a model, and what is stored for it in the result."""

    tensor: Tensor
    parts: WeightParts


Done = Callable[[WeightParts], None]
"""Called with parts that were computed while they were written, once all of them are; in the caller's thread."""


def write_all(computed: Iterable[WeightParts], put_of: Callable[[WeightParts], Put], done: Done) -> None:
    """Compute and write parts, in order: of a large weight with all threads, of several small ones at a time.

    `computed`: those to compute. `put_of`: returns where the bytes of some parts go.
    """
    parts = list(computed)

    def work(one: WeightParts) -> list[tuple[str, int, Any]] | None:
        if one.size >= ALONE_COUNT:
            one.write(put_of(one))
            return None
        rows: list[tuple[str, int, Any]] = []
        one.write(lambda *row: rows.append(row))
        return rows

    for one, rows in zip(parts, sized(work, parts, lambda one: one.size), strict=True):
        if rows is not None:
            put = put_of(one)
            for row in rows:
                put(*row)
        done(one)
