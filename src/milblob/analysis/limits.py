"""Limits for the errors in a comparison: the weights that exceed them, and why."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from ..arguments import require
from ..results import Result
from .tensor_diff import TensorDiff


@dataclass(frozen=True, repr=False)
class Failure(Result):
    """A weight that is beyond a limit.

    Attributes:
        row: its TensorDiff.
        message: what is beyond, such as "SQNR 31.2 dB, below 40".

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "palette2")
        >>> failures = milblob.diff("demo.mlpackage", "small.mlpackage").failing(min_sqnr=12)
        >>> print(failures[0].row.name, failures[0].message)
        layers_1_attention_out_weight SQNR 9.09846 dB, below 12
    """

    row: TensorDiff
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return names and message as JSON can hold them."""
        return {"name": self.row.name, "other": self.row.other, "message": self.message}


class Limits(NamedTuple):
    """What each pair of weights must reach; None sets no limit.

    Equal values are within any limit. A weight without a counterpart, or with one of another shape, is within none, and
    neither is one that is NaN or infinite on one side only.
    """

    min_sqnr: float | None = None  # least signal-to-noise ratio, in dB
    min_cosine: float | None = None  # least cosine
    max_abs: float | None = None  # largest |b - a|

    def require(self) -> None:
        """Refuse limits that are none.

        Raises: TypeError: a limit is not a number. ValueError: a limit is NaN or out of range, or none is given.
        """
        for name, value in self._asdict().items():
            if value is not None:
                require(name, value, Real, "a number")
                if math.isnan(value):
                    raise ValueError(f"{name}: expected a number, got NaN")
        if self.min_cosine is not None and not -1 <= self.min_cosine <= 1:
            raise ValueError(f"min_cosine: expected a number from -1 to 1, got {self.min_cosine}")
        if self.max_abs is not None and self.max_abs < 0:
            raise ValueError(f"max_abs: expected 0 or more, got {self.max_abs}")
        if self == (None, None, None):
            raise ValueError("limits: expected at least one of min_sqnr, min_cosine and max_abs, got none")

    def judge(self, row: TensorDiff) -> Failure | None:
        """Return why a weight is beyond the limits; None if it is within."""
        violations = self._violations(row)
        return Failure(row, ", ".join(violations)) if violations else None

    def _violations(self, row: TensorDiff) -> list[str]:
        if row.kind in ("only_a", "only_b"):
            return [f"only in {row.kind[-1].upper()}"]
        if row.kind == "shape":
            return ["other shape"]
        figures = row.figures
        if figures is None:
            return ["other values"] if row.kind == "different" else []
        if not figures.unequal:
            return []
        if figures.mismatched:
            return [f"{figures.mismatched:,} NaN or infinite on one side"]
        found = []
        for name, value, least, unit in (
            ("SQNR", figures.sqnr, self.min_sqnr, " dB"),
            ("cosine", figures.cosine, self.min_cosine, ""),
        ):
            if least is not None and value is None:
                found.append(f"no {name}: one side is zero, or float64 cannot hold the sums")
            elif least is not None and value is not None and value < least:
                found.append(f"{name} {value:.6g}{unit}, below {least:g}")
        if self.max_abs is not None and (figures.max_abs is None or figures.max_abs > self.max_abs):
            most = "of unknown size" if figures.max_abs is None else f"{figures.max_abs:.6g}"
            found.append(f"max {most}, above {self.max_abs:g}")
        return found

    def __str__(self) -> str:
        words = []
        if self.min_sqnr is not None:
            words.append(f"SQNR {self.min_sqnr:g} dB or more")
        if self.min_cosine is not None:
            words.append(f"cosine {self.min_cosine:g} or more")
        if self.max_abs is not None:
            words.append(f"max {self.max_abs:g} or less")
        return ", ".join(words)
