"""Files as workers open them again: by path, and only if they have not changed since."""

import os
from typing import NamedTuple, cast

from ..errors import FormatError
from .mapped import MappedFile, closed_on_error


class SourceFile(NamedTuple):
    """A source file of bytes, and its state, which shows whether it has changed.

    The number of its device is not part of it: machines number their mounts of one file system differently.
    """

    path: str
    inode: int
    nbytes: int
    changed_ns: int

    @classmethod
    def of(cls, mapping: MappedFile) -> "SourceFile":
        """Describe a file as it was when it was mapped, so that later changes are detected."""
        _, inode = cast(tuple[int, int], mapping.identity)
        return cls(os.path.abspath(str(mapping.name)), inode, mapping.nbytes, cast(int, mapping.changed_ns))

    @classmethod
    def at(cls, path: str) -> "SourceFile":
        """Describe the file that a path names now."""
        status = os.stat(path)
        return cls(os.path.abspath(path), status.st_ino, status.st_size, status.st_mtime_ns)

    def open(self) -> MappedFile:
        """Map it. Raises: FormatError: the file was replaced or written to."""
        mapping = MappedFile(self.path)
        with closed_on_error(mapping):
            self.require_same(mapping.fd)
        return mapping

    def require_same(self, file: int | str) -> None:
        """Refuse another file, or one that has changed since it was opened.

        `file`: its descriptor, or its path.
        Raises: FormatError.
        """
        status = os.stat(file)
        if (status.st_ino, status.st_size, status.st_mtime_ns) != self[1:]:
            message = "file: expected the one that was planned for, unchanged, got another or a changed one"
            raise FormatError(message, file=self.path)
