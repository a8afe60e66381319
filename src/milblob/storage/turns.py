"""One call at a time: a second thread that would corrupt an object's state gets an error instead."""

import _thread
from collections.abc import Callable
from typing import Self


class Turn(_thread.RLock):  # type: ignore[misc]
    """The right to write to one object: `with turn:` around every call.

    A lock of C, so that Ctrl-C cannot come between the end of a call and the release; every later call would be
    refused. A caller that must wait for another thread's call to end uses `acquire` and `release`.

    `what`: name of the object in messages.
    Raises: RuntimeError: a call of another thread is still running, or an outer call of this thread.
    """

    __slots__ = ("what",)
    what: str
    _is_owned: Callable[[], bool]  # of RLock: whether this thread has it

    def __new__(cls, what: str) -> Self:  # noqa: D102
        self = super().__new__(cls)
        self.what = what
        return self

    def __enter__(self) -> bool:  # type: ignore[override]
        if self._is_owned():
            raise RuntimeError(f"{self.what}: expected one call at a time, got another inside of it")
        try:
            is_taken = self.acquire(blocking=False)
        except BaseException:  # Ctrl-C, after it was taken
            if self._is_owned():
                self.release()
            raise
        if not is_taken:
            raise RuntimeError(f"{self.what}: expected one thread at a time, got another before a call ended")
        return True
