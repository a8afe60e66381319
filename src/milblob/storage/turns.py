"""One call at a time: a second thread that would corrupt an object's state gets an error instead."""

import threading


class Turn:
    """The right to write to one object: `with turn:` around every call.

    `what`: name of the object in messages.
    Raises: RuntimeError: a call of another thread is still running, or an outer call of this thread.
    """

    __slots__ = ("_is_busy", "lock", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.lock = threading.RLock()
        """Held by a caller that must wait for another thread's call to end, instead of being refused."""
        self._is_busy = False

    def __enter__(self) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError(f"{self.what}: expected one thread at a time, got another before a call ended")
        if self._is_busy:
            self.lock.release()
            raise RuntimeError(f"{self.what}: expected one call at a time, got another inside of it")
        self._is_busy = True

    def __exit__(self, *_: object) -> None:
        self._is_busy = False
        self.lock.release()
