"""What a remote directory and a remote file can do: the same for HTTP, for fsspec's file systems, and for archives."""

import contextlib
import datetime
import email.utils
import time
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, Protocol

from ..arguments import as_mapping
from ..errors import FormatError

DOWNLOAD = "--download DIR (milblob.download) fetches whole files"

_MIN_AGE_S = 60.0

MAX_FILES = 1 << 17
"""Files of a directory or an archive; one of TVM with its own runtime in it has 127."""


class Version(NamedTuple):
    """The identity of a version of a file."""

    nbytes: int  # its size
    etag: str = ""  # as the server states them; "" where it does not
    changed: str = ""

    @property
    def is_lasting(self) -> bool:
        """Whether it identifies these bytes for ever: a strong ETag, or a time of change that is not just now.

        A file may change twice within the second that a time has.
        """
        if self.etag:
            return not self.etag.startswith("W/")
        return bool(self.changed) and _age(self.changed) > _MIN_AGE_S

    def require_same(self, other: "Version", name: str) -> None:
        """Refuse bytes of another version of the file.

        `other`: that came with them. `name`: of the file, for messages.
        Raises: FormatError: it is another version.
        """
        if self != other:
            what = "size" if self.nbytes != other.nbytes else "ETag" if self.etag != other.etag else "time of change"
            expected, got = (
                (self.nbytes, other.nbytes) if what == "size" else
                (self.etag, other.etag) if what == "ETag" else (self.changed, other.changed)
            )  # fmt: skip
            message = f"remote file: expected the version that was opened ({what} {expected!r:.100}), got {got!r:.100}"
            raise FormatError(f"{message}: it changed; open it again", file=name, code="changed-file")


def _age(changed: str) -> float:
    """Return the seconds since a time as a server or a file system states it; -1 if it cannot be read."""
    for parse in (float, _seconds_of_mail, _seconds_of_iso):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return time.time() - parse(changed)
    return -1.0


def _seconds_of_mail(text: str) -> float:
    return email.utils.parsedate_to_datetime(text).timestamp()


def _seconds_of_iso(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


class RemoteFile(Protocol):
    """A file somewhere else."""

    name: str  # what messages call it: without credentials
    version: Version  # its version and size
    address: tuple[str, str]  # what identifies the file: a part that may be shown, and a part that may hold credentials
    head: bytes  # its first bytes, which came with the answer that it exists; b"" if none did

    def current(self) -> Version:
        """Return the version that `read` reads. Raises: OSError: its server cannot be asked."""

    def read(self, offset: int, nbytes: int) -> Any:
        """Return a range of this version, as bytes; for several threads at once.

        Raises: OSError: it cannot be read. FormatError: the file is another version now.
        """

    def save(self, fd: int, begin: int, version: Version | None, progress: Callable[[int, int], None]) -> Version:
        """Write the whole file to a local one, from where it ended before.

        Args:
            fd: of the local file, which holds the first `begin` bytes of `version`.
            begin, version: what is there; 0 and None: nothing.
            progress: called with the bytes that are there, and with all there are; `self.version` is known then.

        Returns:
            The version that the local file is of now.

        Raises:
            As `read`.
        """


class RemoteDirectory(Protocol):
    """A directory somewhere else."""

    name: str  # what messages call it
    can_list: bool  # whether `files` lists what is in it

    def file(self, relative: str) -> RemoteFile | None:
        """Return a file, by its path with "/"; None if there is none. Raises: OSError: its server cannot be asked."""

    def files(self, relative: str) -> Mapping[str, Any]:
        """Return every file below a path, or the file at it, by its path from the directory.

        Raises: OSError: it cannot be listed. FormatError: names that no file can have, or too many.
        """

    def close(self) -> None:
        """Close connections. Files can be read all the same."""


def require_names(names: list[str], where: str, folders: Container[str] = ()) -> None:
    """Refuse paths of a listing or an archive that no model has, or that lead out of it.

    `names`: with "/". `where`: what has them, for messages. `folders`: those of the names that are folders.
    Raises: FormatError: there is one, or there are too many.
    """
    if len(names) > MAX_FILES:
        raise FormatError(f"files: expected at most {MAX_FILES}, got {len(names)}", file=where)
    seen: set[str] = set()
    for name in names:
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\0" in part or "\\" in part or part[1:2] == ":" for part in parts):
            message = f"name of a file: expected a path inside the directory, got {name!r:.200}"
            raise FormatError(message, file=where, code="escaping-file")
        if name in seen:
            raise FormatError(f"names of files: expected each once, got {name!r:.200} twice", file=where)
        seen.add(name)
    for name in names:
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in seen and name not in folders:
                raise FormatError(f"name {name!r:.200}: expected a file or a directory, got both", file=where)


def as_options(given: Any) -> dict[str, Any]:
    """Return `storage_options`, checked. Raises: TypeError: no mapping, or one with other keys than text."""
    return dict(as_mapping("storage_options", given, "a mapping from names of options to their values"))
