"""The results of a batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..results import Result


@dataclass(frozen=True, repr=False)
class BatchFailure(Result):
    """A model that failed.

    Attributes:
        source: its path. error: why, in one line.

    Examples:
        >>> milblob.batch(milblob.check, "no.mlpackage").failures[0].error
        'No such file or directory: no.mlpackage'
    """

    source: str
    error: str


@dataclass(frozen=True, repr=False)
class BatchItem(Result):
    """What became of one model; `batch(..., each=)` is called with it.

    Attributes:
        source: its path. destination: path of its output; None without one.
        status: "done"; "skipped": the journal has it, and source and output are as they were; or "failed".
        nbytes: size of the source.
        error: of a failure, one line; else "".
        result: what the function returned; None if it was not called.

    Examples:
        >>> found = []
        >>> milblob.batch(milblob.content_hash, "demo.mlpackage", each=found.append).done
        1
        >>> found[0].status, len(found[0].result.tensors)
        ('done', 151)
    """

    source: str
    destination: str | None
    status: str
    nbytes: int = 0
    error: str = ""
    result: Any = None


@dataclass(frozen=True, repr=False)
class BatchReport(Result):
    """What became of all models of a batch.

    Attributes:
        count: of all models. done, skipped, failed: of those with each status. With `fail_fast`, further ones may have
            none.
        nbytes: size of the sources that are done or skipped.
        failures: those that failed, in the order in which they did.
        journal: path of the journal; None without one.

    Examples:
        >>> milblob.batch(milblob.check, ["demo.mlpackage", "no.mlpackage"])
        BatchReport(count=2, done=1, failed=1, nbytes=224738, failures=(1 BatchFailure), is_complete=False, worst=...)
    """

    count: int
    done: int = 0
    skipped: int = 0
    failed: int = 0
    nbytes: int = 0
    failures: tuple[BatchFailure, ...] = ()
    journal: str | None = None

    _keys: ClassVar[dict[str, str | None]] = {"is_complete": "is_complete"}

    @property
    def is_complete(self) -> bool:
        """Whether every model is done or skipped."""
        return self.done + self.skipped == self.count

    def _worst(self) -> Iterable[str]:
        return (f"{one.source}: {one.error}" for one in self.failures)
