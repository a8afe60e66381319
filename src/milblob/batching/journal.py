"""The journal of a batch: one JSON object on each line, which is on disk before the batch continues."""

import contextlib
import errno
import json
import os
import time
from typing import Any, NamedTuple

from ..errors import FormatError
from ..storage.disk import sync, sync_directory
from ..storage.locks import lock
from .files import beside, signature

VERSION = 1
_WAIT_S = 10.0


class BatchEntry(NamedTuple):
    """What a journal has about one model."""

    is_done: bool  # False: its work was started
    # BLAKE3 of its files; of work that was started: of their names, sizes and times (see `files.signature`)
    source: bytes
    # BLAKE3 of what was written, and the files beside it; or, of work that was started, of the file or directory to be
    # replaced; None for nothing
    output: bytes | None
    is_clear: bool = False  # when work was started, none of the files that an output may have beside it was there


class BatchJournal:
    """An open journal, and its lock.

    `call`: a text that is equal for equal calls. `resume`: continue a journal that exists.
    Raises: FileExistsError: there is one, and `resume` is False. FormatError: it is not a journal of a batch, or
    damaged. ValueError: it is of another call. BlockingIOError: another process continues the same batch. OSError: from
    the system.
    """

    def __init__(self, path: str, call: str, *, resume: bool) -> None:
        self.path = path
        # name of an output -> what the journal had about it when it was opened
        self.entries: dict[str, BatchEntry] = {}
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._fd = os.open(path, flags, 0o666)
        try:
            self._lock()
            if not resume:
                self._require_unused()
            if not self._read(call):
                self._write(_head(call))
                sync_directory(os.path.dirname(path))
        except BaseException:
            os.close(self._fd)
            raise

    def begin(self, name: str, source: str, destination: str | None, earlier: BatchEntry | None = None) -> BatchEntry:
        """Record that the work on a model begins.

        `earlier`: what the journal has about it; its output, if there is one, is to be replaced.
        """
        found = b""
        with contextlib.suppress(OSError):  # working on it reports that
            found = signature(source)
        is_clear = destination is None or not beside(destination) or (earlier is not None and earlier.is_clear)
        entry = BatchEntry(False, found, None if earlier is None else earlier.output, is_clear)
        replaced = None if entry.output is None else entry.output.hex()
        more = {"signature": found.hex(), "replaces": replaced, "is_clear": is_clear}
        self._append({"name": name, "state": "started", "source": source, **more})
        return entry

    def finish(self, name: str, source: bytes, output: bytes | None, nbytes: int) -> None:
        """Record that a model is done."""
        hashes = {"source_hash": source.hex(), "output_hash": None if output is None else output.hex()}
        self._append({"name": name, "state": "done", **hashes, "nbytes": nbytes})

    def fail(self, name: str, message: str) -> None:
        """Record that a model failed."""
        self._append({"name": name, "state": "failed", "error": message})

    def close(self) -> None:
        """Close the file, which releases its lock."""
        os.close(self._fd)

    def _lock(self) -> None:
        """Take the lock. Workers of a coordinator that was killed may hold it until they have ended."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                lock(self._fd, self.path)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _require_unused(self) -> None:
        """Clear a journal of a batch that ended before any model. Raises: FileExistsError: it is not one."""
        head, _, rest = os.read(self._fd, 1 << 16).partition(b"\n")
        try:
            is_unused = not (head or rest) or (not rest and "milblob_batch" in json.loads(head))
        except (ValueError, TypeError, RecursionError):
            is_unused = False
        if not is_unused:
            message = "expected no journal, got one (--resume, resume=True: continue its batch)"
            raise FileExistsError(errno.EEXIST, message, self.path)
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def _append(self, entry: dict[str, Any]) -> None:
        self._write(_line(entry))

    def _write(self, line: bytes) -> None:
        data = memoryview(line)
        while data:
            data = data[os.write(self._fd, data) :]
        sync(self._fd)

    def _read(self, call: str) -> bool:
        """Read the entries, and cut off a line that was not written whole; return whether there was a first one."""
        at = 0
        with open(self._fd, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and (number > 1 or _head(call).startswith(line)):
                    break  # the coordinator was killed while it wrote
                try:
                    entry = json.loads(line)
                    if number > 1:
                        self._take(entry)
                    elif entry["milblob_batch"] != VERSION or "call" not in entry:
                        raise ValueError
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    message = f"journal, line {number}: expected an entry of a batch, got {line[:60]!r}"
                    raise FormatError(message, offset=at, file=self.path) from None
                if number == 1 and entry["call"] != call:
                    raise ValueError(f"{self.path}: expected a journal of {call}, got one of {entry['call']}")
                at += len(line)
        os.ftruncate(self._fd, at)
        os.lseek(self._fd, at, os.SEEK_SET)
        return at > 0

    def _take(self, entry: dict[str, Any]) -> None:
        name, state = entry["name"], entry["state"]
        if state == "done":
            self.entries[name] = BatchEntry(True, bytes.fromhex(entry["source_hash"]), _hash_in(entry["output_hash"]))
        elif state == "started":
            signed, replaced = bytes.fromhex(entry["signature"]), _hash_in(entry["replaces"])
            self.entries[name] = BatchEntry(False, signed, replaced, bool(entry["is_clear"]))
        elif state == "failed":
            if name in self.entries and self.entries[name].output is None:
                del self.entries[name]  # it is tried again; an older output, if there is one, is to be replaced
        else:
            raise ValueError


def _line(entry: dict[str, Any]) -> bytes:
    return f"{json.dumps(entry)}\n".encode()


def _head(call: str) -> bytes:
    return _line({"milblob_batch": VERSION, "call": call})


def _hash_in(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
