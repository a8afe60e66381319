"""The options of a repack, and its actions on each tensor."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..arguments import as_float, require_flags
from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from ..results import plain
from ..values.strided import ranges
from .tasks import Item

_MIN_SQNR = 60.0  # dB: a relative error of 0.001

WEIGHT_COUNT = 10
"""The ecosystem's threshold: constants of this many elements are kept in the weight file."""


def is_counted(tensor: Tensor, is_part: bool) -> bool:
    """Whether a constant is one of the weights whose bytes a report adds up. `is_part`: of a compressed weight."""
    if tensor.constant.storage == _codec.BLOB or is_part:
        return True
    return tensor.mil_dtype not in (DType.STRING, DType.BOOL) and tensor.size >= WEIGHT_COUNT


class Sharing(NamedTuple):
    """Which weights share the form of one of them."""

    min_sqnr: float | None = None  # of nearly equal weights, in dB; None: only equal values
    # the weights that a model was made from: those nearest to them are the reference. None for the smallest.
    base: Any = None


def as_sharing(dedupe: bool | str, min_sqnr: float | None, base: Any) -> Sharing | None:
    """Return what `dedupe` asks for beyond equal records, checked; None for nothing.

    Raises: ValueError: an unknown word, or an option that has no effect. TypeError: something else.
    """
    if isinstance(dedupe, str):
        if dedupe not in ("values", "near"):
            raise ValueError(f"dedupe: expected True, False, 'values' or 'near', got {dedupe!r}")
    else:
        require_flags(dedupe=dedupe)
    if dedupe != "near":
        for name in (name for name, value in (("min_sqnr", min_sqnr), ("base", base)) if value is not None):
            got = repr(dedupe) if isinstance(dedupe, str) else "that of equal records" if dedupe else "none"
            raise ValueError(f"{name}: expected dedupe='near' (--dedupe=near), which it is about, got {got}")
        return Sharing() if dedupe == "values" else None
    least = _MIN_SQNR if min_sqnr is None else as_float("min_sqnr", min_sqnr)
    if not 0 < least < math.inf:
        raise ValueError(f"min_sqnr: expected a number of dB above 0, got {least}")
    return Sharing(least, base)


class Options(NamedTuple):
    """The options of `repack`; see there."""

    cast: dict[DType, DType]
    dedupe: bool = False
    gc: bool = False
    externalize: int | None = None
    inline: int | None = None
    split: str | int | None = None
    merge: bool = False
    align: int = 64
    canonical: bool = False
    select: Callable[[str], bool] | None = None
    functions: tuple[str, ...] | None = None
    overflow: str = "error"
    nan: str = "keep"
    decompress: bool = False
    compress: bool = False  # whether weights are compressed: `arrange` is given their parts
    share: Sharing | None = None  # with `dedupe`: which weights share beyond equal records

    def is_skipped(self, tensor: LazyTensor) -> bool:
        """Whether a cast leaves a tensor as it is because it has NaN."""
        return self.nan == "skip" and any(np.isnan(piece).any() for _, piece in ranges(tensor.read()))

    @property
    def cast_nan(self) -> str:
        """What a cast does with NaN in a tensor that is not skipped."""
        return "keep" if self.nan == "skip" else self.nan

    @property
    def moves(self) -> bool:
        """Whether anything may change; if not, the result is a plain copy."""
        plain = Options({}, select=self.select, overflow=self.overflow, nan=self.nan)
        return self != plain


class TensorChange:
    """What happens to one tensor.

    Attributes:
        name: of the tensor; for a record that nothing refers to, the name of its file and "#n".
        actions: "cast", "externalize", "inline", "deduplicate", "drop", "decompress", "compress", "share"; none for
            a tensor that is kept. A compressed weight that becomes dense, or that shares, has a row after all tensors;
            its parts, which have rows of their own, are dropped.
        dtype, dtype_after, nbytes, nbytes_after: of the stored values. nbytes_after is 0 for a tensor that shares its
            record with an earlier one.
        file, offset, file_after, offset_after: of the record, by name in the model; None for immediates.
        overflow, nan, underflow: counts of a cast, see `cast.CastCounts`. Known when the cast is done.
    """

    __slots__ = (
        "actions", "dtype", "dtype_after", "file", "file_after", "item", "name", "nan", "nbytes", "nbytes_after",
        "offset", "offset_after", "overflow", "underflow",
    )  # fmt: skip

    def __init__(self, name: str, dtype: DType, nbytes: int, file: str | None, offset: int | None) -> None:
        self.name = name
        self.actions: list[str] = []
        self.dtype = self.dtype_after = dtype
        self.nbytes = self.nbytes_after = nbytes
        self.file = self.file_after = file
        self.offset = self.offset_after = offset
        self.overflow = self.nan = self.underflow = 0
        self.item: Item | None = None

    def drop(self) -> None:
        """Mark the tensor as dropped."""
        self.actions.append("drop")
        self.nbytes_after, self.file_after, self.offset_after = 0, None, None

    def to_dict(self, is_done: bool = True) -> dict[str, Any]:
        """Return the row as JSON can hold it; with the counts of a cast if that is done."""
        row: dict[str, Any] = {"name": self.name, "actions": self.actions}
        for key in ("dtype", "nbytes", "file", "offset", "dtype_after", "nbytes_after", "file_after", "offset_after"):
            row[key] = plain(getattr(self, key))
        if "cast" in self.actions and is_done:
            row |= {"overflow": self.overflow, "nan": self.nan, "underflow": self.underflow}
        return row

    def __repr__(self) -> str:
        return f"<TensorChange {self.name!r}: {', '.join(self.actions) or 'keep'}>"


def set_places(changes: Iterable[TensorChange], is_laid_out: bool) -> None:
    """Set the place and size of the value in the result in each row."""
    counted: set[int] = set()
    for change in changes:
        item = change.item
        if item is None:
            continue
        first = item.first
        if first is not item:
            change.actions.append("deduplicate")
        if is_laid_out:
            change.file_after, change.offset_after = first.file, first.offset
        change.nbytes_after = 0 if id(first) in counted else first.target_nbytes
        counted.add(id(first))
