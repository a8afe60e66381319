"""The report of `refit`: one row per weight, and the unused input."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..dtypes import DType
from ..results import Result, least
from ..values.cast import CastCounts


@dataclass(frozen=True, repr=False)
class Refitted(Result):
    """One weight that gets new values.

    Attributes:
        name: of the tensor in the result; where it was unshared as a new constant, the name of that.
        given: name in the weights that were given; of an assignment, the same name.
        dtype, shape: of the tensor.
        nbytes: as stored.
        given_dtype: of the given values; differs from `dtype` if they were cast or requantized.
        counts: the cast's counts.
        file: path of the file that holds the values.
        in_place: whether the new bytes are as many as the old ones; otherwise the model file is rewritten.
        sqnr: of a requantized weight, the signal-to-quantization-noise ratio of its values in dB: those that were given
            are the signal. None for other weights, and for zeros that are not met exactly.
        requantized: "keep" or "fit" for a compressed weight, else "".
        unshared: the weight that it was the same stored values with before, and no longer is; else "".

    Examples:
        >>> [row] = milblob.refit("demo.mlpackage", {"head_bias": np.zeros(96)}, cast=True).changes
        >>> row.name, str(row.given_dtype), str(row.dtype), row.in_place
        ('head_bias', 'float64', 'float32', True)
    """

    name: str
    given: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    given_dtype: DType
    counts: CastCounts
    file: str
    in_place: bool
    sqnr: float | None = None
    requantized: str = ""
    unshared: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what applies to the weight as JSON can hold it: the counts of a cast only where there was one."""
        row: dict[str, Any] = {
            "name": self.name,
            "given": self.given,
            "dtype": str(self.dtype),
            "shape": list(self.shape),
        }
        row |= {"nbytes": self.nbytes, "file": self.file, "in_place": self.in_place, "cast_from": None}
        if self.requantized:
            sqnr = self.sqnr if self.sqnr is None or self.sqnr < float("inf") else "Infinity"
            row |= {"requantized": self.requantized, "sqnr": sqnr}
        elif self.given_dtype is not self.dtype:
            row |= {"cast_from": str(self.given_dtype), **self.counts._asdict()}
        return row | {"unshared": self.unshared} if self.unshared else row


@dataclass(frozen=True, repr=False)
class RefitReport(Result):
    """What a refit changes, or changed.

    Attributes:
        source, output: paths; equal for a change in place.
        changes: one row per weight, in the order of the weights that were given.
        done: False for a dry run.
        unused: names in the given weights that the mapping or `select` leaves out.
        constant: with a base: weights that do not follow from it -> what they are, such as positions.
        without_effect: with a base: arrays that differ from it and that no constant of the model depends on.
        left: with a base: weights left as they are because of `leave`.
        note: with a base: a text that describes how the names of the arrays were changed; "" if they were not.
        unchanged: of an ONNX model: initializers that hold what the model holds, or what the conversion gave them.

    Examples:
        >>> report = milblob.refit("demo.mlpackage", {"head_bias": np.zeros(96, np.float32)})
        >>> report.done, len(report.changes), report.nbytes
        (True, 1, 384)
    """

    source: str
    output: str
    changes: list[Refitted]
    done: bool
    unused: tuple[str, ...] = ()
    constant: Mapping[str, str] = field(default_factory=dict)
    without_effect: tuple[str, ...] = ()
    note: str = ""
    left: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    _keys: ClassVar = {"changes": "tensors", "nbytes": "nbytes"}

    @property
    def nbytes(self) -> int:
        """Bytes of all changed weights, as stored."""
        return sum(change.nbytes for change in self.changes)

    def _worst(self) -> list[str]:
        rows = least((row for row in self.changes if row.sqnr is not None), lambda row: row.sqnr)
        return [f"{row.name}: SQNR {row.sqnr:.3g} dB" for row in rows]

    def without(self, given: Mapping[str, Any], unchanged: tuple[str, ...] = ()) -> "RefitReport":
        """Note which of the weights that were given are not used, and which there was no need to use."""
        used = {change.given for change in self.changes}.union(unchanged)
        return replace(self, unused=tuple(name for name in given if name not in used), unchanged=unchanged)
