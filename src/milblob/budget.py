"""Limits on the values made from a file: a small file could otherwise ask for any amount of memory and time."""

import contextlib
import os
import threading
from collections.abc import Hashable

from .arguments import as_count, in_unit_of
from .errors import LimitError

MIN_NBYTES = 1 << 30
"""This many bytes are always allowed."""

MAX_GROWTH = 256
"""Bytes that each byte of the files may become. One-bit palettes of float16 make 16 of one, masks of float32 at most
32, and functions that share their weights make them again for each; nothing that Core ML's tools write comes near."""


class Budget:
    """A limit on the bytes that may be made of the files of one model, or of one file of arrays.

    It includes bytes that are decoded, unpacked, decompressed, searched or written elsewhere, but not views of a mapped
    file that nothing searches. Each tensor is included once, however often its values are read: repetition is the
    caller's choice, but a file can hold one value under a thousand names.

    `max_nbytes`: the most; None for MAX_GROWTH times the bytes of the files, and MIN_NBYTES at least.
    Raises: TypeError, ValueError: `max_nbytes` is not a number of bytes.
    """

    __slots__ = ("_files", "_known", "_lock", "_spent", "_unit", "file", "given_nbytes", "max_nbytes", "stored_nbytes")

    def __init__(self, max_nbytes: int | None = None, file: str | None = None) -> None:
        self._unit = 0 if max_nbytes is None else max_nbytes  # as given: messages are in its unit
        if max_nbytes is not None:
            max_nbytes = as_count("max_nbytes", max_nbytes, expected="a number of bytes, or None for the default")
        self.given_nbytes = max_nbytes  # the `max_nbytes` that was asked for, or None
        # the most that may be made, as these files allow
        self.max_nbytes = MIN_NBYTES if max_nbytes is None else max_nbytes
        self.file = file  # what messages call them
        self.stored_nbytes = 0  # of the files that were opened so far
        self._files: set[Hashable] = set()
        self._spent = 0
        self._known: set[Hashable] = set()
        self._lock = threading.Lock()

    def add_file(self, name: str | None, nbytes: int, identity: Hashable = None) -> None:
        """Count the bytes of a file once, for all names and links that lead to it; without a name, of a buffer.

        `identity`: device and inode where they are known, so that nobody asks for them again.
        """
        key: Hashable = identity or name
        if identity is None and name is not None:
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(name)
                key = status.st_dev, status.st_ino
        with self._lock:
            if key is None or key not in self._files:
                self._files.add(key)
                self.stored_nbytes += nbytes
                if self.given_nbytes is None:
                    self.max_nbytes = max(MIN_NBYTES, MAX_GROWTH * self.stored_nbytes)

    def require(self, nbytes: int) -> None:
        """Check that the limit allows `nbytes` more, before they take memory or time.

        Raises: LimitError: more than are left.
        """
        if self._spent + nbytes > self.max_nbytes:
            most, stored, got = (
                in_unit_of(self._unit, count) for count in (self.max_nbytes, self.stored_nbytes, self._spent + nbytes)
            )
            message = f"values in all: expected at most {most} made of {stored} stored"
            message += f", got {got} or more; max_nbytes (--max-nbytes) allows more"
            raise LimitError(message, file=self.file)

    def spend(self, key: Hashable, nbytes: int) -> None:
        """Count the bytes that are made of something, unless they were counted before.

        `key`: identifies it among everything in the files.
        Raises: LimitError: more than are left; nothing is counted then.
        """
        if key in self._known:
            return
        with self._lock:
            if key not in self._known:
                if self._spent + nbytes > self.max_nbytes:  # before the call, which most tensors do not need
                    self.require(nbytes)
                self._known.add(key)
                self._spent += nbytes
