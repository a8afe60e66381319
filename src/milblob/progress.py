"""Progress of long work, for every function that has `progress`."""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from .arguments import require_calls

_T = TypeVar("_T")
Progress = Callable[[str, int, int], None]
"""Called as `progress(name, done_nbytes, total_nbytes)` in the thread of the caller.

`name`: the tensor, operation or file that was examined or done last; at the very start, before anything is read, an
empty string. `done_nbytes`: the bytes done so far, as stored; while work is planned it does not grow. `total_nbytes`:
those of all; 0 while that is not known. Its exception ends the work like any other error.
"""


def start_progress(progress: Progress | None) -> None:
    """Call `progress` for the first time. Raises: TypeError: it is not a function."""
    require_calls(progress=progress)
    ProgressCounter(progress).note("")


class Sized(Protocol):
    """Anything with a size in bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes, as stored."""


class ProgressCounter:
    """Adds up the work done, and calls `progress`.

    `progress`: the callback; None: no calls. Then sizes are not computed, because that may read values. `tensors`: all
    that will be done. `error`: what the callback raised; code that turns errors into findings must raise it.
    """

    def __init__(self, progress: Progress | None, tensors: Iterable[Sized] = ()) -> None:
        self._progress = progress
        self._done_nbytes = 0
        self.total_nbytes = 0  # bytes of everything to do; may grow until the first of them are done
        self.error: BaseException | None = None
        self.expect(tensors)

    def expect(self, tensors: Iterable[Sized]) -> None:
        """Add tensors to what will be done."""
        if self._progress is not None:
            self.total_nbytes += sum(tensor.nbytes for tensor in tensors)

    def note(self, name: str) -> None:
        """Report a tensor, an operation or a file that was examined; no bytes are done by that."""
        self.add(name, 0)

    def noting(self, items: Iterable[_T], name: Callable[[Any], str] = attrgetter("name")) -> Iterator[_T]:
        """Yield items, each after it was noted."""
        for item in items:
            if self._progress is not None:
                self.note(name(item))
            yield item

    @property
    def notes(self) -> Progress | None:
        """A callback for a call that is a part of this work, which notes what that has done; None for no calls."""
        return None if self._progress is None else lambda name, done, total: self.note(name)

    def add(self, name: str, nbytes: int) -> None:
        """Count bytes of a tensor or file as done."""
        self._done_nbytes += nbytes
        if self._progress is not None:
            try:
                self._progress(name, self._done_nbytes, max(self.total_nbytes, self._done_nbytes))
            except BaseException as error:
                self.error = error
                raise

    def add_tensor(self, name: str, tensor: Sized) -> None:
        """Count a whole tensor as done."""
        if self._progress is not None:
            self.add(name, tensor.nbytes)


NO_PROGRESS = ProgressCounter(None)
"""Reports nothing."""
