"""What `refit` reports: one row per weight, and what it did not use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..dtypes import DType
from ..values.cast import CastCounts


class Refitted(NamedTuple):
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


class RefitReport(NamedTuple):
    """What a refit changes, or changed.

    Attributes:
        source, output: paths; equal for a change in place.
        changes: one row per weight, in the order of the weights that were given.
        done: False for a dry run.
        unused: names in the weights that were given of which nothing was taken, as the mapping or `select` says.
        constant: with a base: weights that do not follow from it -> what they are, such as positions.
        without_effect: with a base: arrays that differ from it and that no constant of the model depends on.
        left: with a base: weights that stay as they are, as `leave` says.
        note: with a base: what was done to the names of the arrays, in words; "" if they are those of the base.
        unchanged: of an ONNX model: initializers that hold what the model holds, or what the conversion gave them.
    """

    source: str
    output: str
    changes: list[Refitted]
    done: bool
    unused: tuple[str, ...] = ()
    constant: Mapping[str, str] = MappingProxyType({})
    without_effect: tuple[str, ...] = ()
    note: str = ""
    left: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all changed weights, as stored."""
        return sum(change.nbytes for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        rows = []
        for c in self.changes:
            row = {"name": c.name, "given": c.given, "dtype": str(c.dtype), "shape": list(c.shape), "nbytes": c.nbytes}
            row |= {"file": c.file, "in_place": c.in_place, "cast_from": None}
            if c.requantized:
                sqnr = c.sqnr if c.sqnr is None or c.sqnr < float("inf") else "Infinity"
                row |= {"requantized": c.requantized, "sqnr": sqnr}
            elif c.given_dtype is not c.dtype:
                row |= {"cast_from": str(c.given_dtype), **c.counts._asdict()}
            if c.unshared:
                row["unshared"] = c.unshared
            rows.append(row)
        document = {"source": self.source, "output": self.output, "done": self.done, "nbytes": self.nbytes}
        names = {"unused": self.unused, "without_effect": self.without_effect, "left": self.left}
        names["unchanged"] = self.unchanged
        lists = {key: list(found) for key, found in names.items()}
        return {**document, "tensors": rows, "note": self.note, "constant": dict(self.constant), **lists}

    def without(self, given: Mapping[str, Any], unchanged: tuple[str, ...] = ()) -> "RefitReport":
        """Note which of the weights that were given are not used, and which there was no need to use."""
        used = {change.given for change in self.changes}.union(unchanged)
        return self._replace(unused=tuple(name for name in given if name not in used), unchanged=unchanged)
