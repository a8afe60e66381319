"""Progress of long work, for every function that has `progress`."""

from collections.abc import Callable, Iterable
from typing import Protocol

Progress = Callable[[str, int, int], None]
"""Called as `progress(name, done_nbytes, total_nbytes)` in the thread of the caller: the tensor or file that was done
last, the bytes done so far, as stored, and those of all. Its exception ends the work like any other error."""


class Sized(Protocol):
    """Anything with a size in bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes, as stored."""


class ProgressCounter:
    """Adds up the work done, and calls `progress`.

    `progress`: the callback; None: no calls. Then sizes are not computed, because that may read values. `tensors`: all
    that will be done.
    """

    def __init__(self, progress: Progress | None, tensors: Iterable[Sized] = ()) -> None:
        self._progress = progress
        self._done_nbytes = 0
        # bytes of everything to do; may grow until the first call
        self.total_nbytes = 0 if progress is None else sum(tensor.nbytes for tensor in tensors)

    def add(self, name: str, nbytes: int) -> None:
        """Count bytes of a tensor or file as done."""
        self._done_nbytes += nbytes
        if self._progress is not None:
            self._progress(name, self._done_nbytes, max(self.total_nbytes, self._done_nbytes))

    def add_tensor(self, name: str, tensor: Sized) -> None:
        """Count a whole tensor as done."""
        if self._progress is not None:
            self.add(name, tensor.nbytes)
