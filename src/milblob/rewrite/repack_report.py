"""The report of `milblob.repack`."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..results import Result, least
from .changes import TensorChange
from .share import SharedWeight


class RewrittenFile(NamedTuple):
    """A weight file of a result: its name, how many records it has, and its size."""

    file: str
    records: int
    nbytes: int


@dataclass(frozen=True, repr=False)
class RepackReport(Result):
    """What a repacking changes, or changed.

    Attributes:
        source, output: paths.
        changes: one row per tensor, in Program order, then one per record that nothing refers to.
        files: rewritten weight files of the result: (file, records, nbytes).
        nbytes, nbytes_after: of all weights as stored: every record and every listed immediate.
        done: False for a dry run.
        stale: entries of copied files of a compiled model that still describe the model before the change, such as
            "metadata.json: storagePrecision".
        shared: with dedupe of values: the weights that take the form of another one.

    Examples:
        >>> report = milblob.repack("demo.mlpackage", "half.mlpackage", cast="float16")
        >>> report.nbytes, report.nbytes_after, report.counts()
        (179904, 170688, {'cast': 1})
    """

    source: str
    output: str
    changes: list[TensorChange]
    files: list[RewrittenFile]
    nbytes: int
    nbytes_after: int
    done: bool
    stale: tuple[str, ...] = ()
    shared: tuple[SharedWeight, ...] = ()

    _keys: ClassVar = {"changes": "tensors"}

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
        """Return everything as JSON can hold it; the counts of casts only if they were done."""
        tensors = [change.to_dict(self.done) for change in self.changes]
        return super().to_dict() | {"actions": self.counts(), "tensors": tensors}

    def _worst(self) -> list[str]:
        rows = least((row for row in self.changes if row.overflow), lambda row: -row.overflow)
        return [f"{row.name}: {row.overflow:,} overflow" for row in rows]
