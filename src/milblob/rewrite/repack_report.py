"""What `milblob.repack` reports."""

from typing import Any, NamedTuple

from ..dtypes import DType
from .changes import TensorChange


class RepackReport(NamedTuple):
    """What a repacking changes, or changed.

    Attributes:
        source, output: paths.
        changes: one row per tensor, in Program order, then one per record that nothing refers to.
        files: rewritten weight files of the result: (name, records, bytes).
        nbytes, nbytes_after: of all weights as stored: every record and every listed immediate.
        done: False for a dry run.
        stale: what another file of a compiled model, which is copied, still says of the model before; such as
            "metadata.json: storagePrecision".
    """

    source: str
    output: str
    changes: list[TensorChange]
    files: list[tuple[str, int, int]]
    nbytes: int
    nbytes_after: int
    done: bool
    stale: tuple[str, ...] = ()

    @property
    def changed(self) -> list[TensorChange]:
        """The rows of tensors that are not merely kept or moved."""
        return [change for change in self.changes if change.actions]

    def counts(self) -> dict[str, int]:
        """The number of tensors per action."""
        result: dict[str, int] = {}
        for change in self.changes:
            for action in change.actions:
                result[action] = result.get(action, 0) + 1
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        rows = []
        for c in self.changes:
            row: dict[str, Any] = {"name": c.name, "actions": c.actions}
            for key in ("dtype", "nbytes", "file", "offset"):
                before, after = getattr(c, key), getattr(c, f"{key}_after")
                row[key] = str(before) if isinstance(before, DType) else before
                row[f"{key}_after"] = str(after) if isinstance(after, DType) else after
            if "cast" in c.actions and self.done:
                row |= {"overflow": c.overflow, "nan": c.nan, "underflow": c.underflow}
            rows.append(row)
        return {
            "source": self.source, "output": self.output, "done": self.done, "nbytes": self.nbytes,
            "nbytes_after": self.nbytes_after, "actions": self.counts(),
            "files": [{"file": name, "records": count, "nbytes": nbytes} for name, count, nbytes in self.files],
            "stale": list(self.stale), "tensors": rows,
        }  # fmt: skip
