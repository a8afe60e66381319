"""One call at a time: what two threads would mix up without a word refuses the second one."""

import threading


class Turn:
    """The turn to write, of one object: `with turn:` around every call.

    Args:
        what: what it is of, as messages call it.

    Raises:
        RuntimeError: another thread's call has not ended, or one of this thread's, from inside of which this one comes.
    """

    __slots__ = ("_is_busy", "lock", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.lock = threading.RLock()
        """To be held by who must wait for a call of another thread to end, instead of being refused."""
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
