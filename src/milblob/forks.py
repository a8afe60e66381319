"""Which process an object belongs to. A forked one has a copy of it, and leaves what that has open to the original."""

import os


class Process:
    """A process, as its objects keep it.

    Attributes:
        was_forked: whether a forked process runs now. Quick, while to ask the system takes as long as to write a small
            array; but False while Python sets up the forked process, and destroys what its other threads had.
    """

    def __init__(self) -> None:
        self._number = os.getpid()
        self.was_forked = False

    @property
    def is_here(self) -> bool:
        """Whether it runs now."""
        return not self.was_forked and self._number == os.getpid()


_here = Process()


def here() -> Process:
    """Return the process that runs now."""
    global _here
    if not _here.is_here:
        _here.was_forked = True
        _here = Process()
    return _here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=here)
