"""An archive as its files: a tar that is mapped, a gzipped one, or the directory that it was unpacked to."""

import os
import stat
from typing import Any

from ..errors import FormatError, UnsupportedError
from ..formats.params import MAGIC as PARAMS_MAGIC
from ..mirrored import shown
from ..storage.beneath import Location
from ..storage.journal_format import STAGED
from ..storage.mapped import MappedFile
from ..storage.pending import JOURNAL, map_settled
from ..storage.temporary import PREFIX
from .findings import Report
from .tar import BLOCK, MAX_MEMBERS, Member, walk_tar
from .unzip import MAGIC, decompress, header_of, most_nbytes

METADATA = "metadata.json"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\3\4": "zip"}
_TAIL_NBYTES = 1 << 20


class Archive:
    """The files of an archive by name.

    Attributes:
        kind: "tar", "tar.gz" or "directory".
        path: as given; None for a buffer.
        root: the directory; None for a tar.
        members: all of them, in order.
        files: the files whose names are inside the archive; of a repeated name, the last one.
        twice: names of files that are there twice: these are not read.
        header: of a gzip file, the bytes before its deflated bytes; else b"".
    """

    def __init__(self, source: Any, report: Report, max_nbytes: int | None = None) -> None:
        """Open one, and find its members. Nothing is extracted.

        Args:
            source: path of a tar, of a gzipped tar, or of a directory; or a buffer or file object of the former two.
            report: where problems go; one that gathers lets everything pass that can be passed.
            max_nbytes: the limit for decompressing a gzipped one; default: 64 times its size, at least 256 MiB.

        Raises:
            OSError: it cannot be opened.
            FormatError: a tar that cannot be followed. UnsupportedError: no tar; compressed in another way.
        """
        self.path, self.root, self.header = report.path, None, b""
        self.members: list[Member] = []
        self.files: dict[str, Member] = {}
        self.twice: set[str] = set()
        self._report = report
        self._opened: dict[str, MappedFile] = {}
        self._mapping: MappedFile | None = None
        self._packed: MappedFile | None = None
        if self.path is not None and stat.S_ISDIR(os.stat(self.path).st_mode):
            self.kind, self.root = "directory", self.path
            self._walk_directory(self.path)
        else:
            self._open_tar(source, max_nbytes)
        try:
            self._sort()
        except BaseException:
            self.close()
            raise

    def _open_tar(self, source: Any, max_nbytes: int | None) -> None:
        mapping = MappedFile(source)
        try:
            head = bytes(memoryview(mapping.live())[:BLOCK])
            self.kind = "tar"
            if head.startswith(MAGIC):
                self.kind = "tar.gz"
                limit = max_nbytes if max_nbytes is not None else most_nbytes(mapping.nbytes)
                self._packed = mapping
                mapping = decompress(self._packed, limit)
                self.header = header_of(memoryview(self._packed.live()))
                head = bytes(memoryview(mapping.live())[:BLOCK])
            self._require_tar(head, mapping.name)
            data = memoryview(mapping.live())
            self.members, end = walk_tar(data, self._report)
            # If anything but zeros comes next, the walk has stopped there and reported it.
            ends = bytes(data[end : end + BLOCK]) == bytes(BLOCK)
            if self._report.is_gathering and ends and any(data[end : end + _TAIL_NBYTES]):
                message = "end of tar: expected nothing but zeros after it, got something"
                self._report.note("warning", "tar-end", message, offset=end)
            self._mapping = mapping
        except BaseException:
            mapping.close()
            self.close()
            raise

    def _require_tar(self, head: bytes, name: str | None) -> None:
        if head.startswith(PARAMS_MAGIC):
            message = "archive: expected a tar, a gzipped one or a directory, got a .params file"
            message += " (milblob ls lists it, tvm.read_params reads it)"
            raise UnsupportedError(message, offset=0, file=name)
        other = next((message for magic, message in _OTHERS.items() if head.startswith(magic)), None)
        if other is not None:
            raise UnsupportedError(f"archive: expected a tar or a gzipped one, got {other}", offset=0, file=name)
        if len(head) < BLOCK or (head[257:262] != b"ustar" and not _is_old_tar(head)):
            raise UnsupportedError(
                "archive: expected a tar, a gzipped one or a directory, got something else", offset=0, file=name
            )

    def _walk_directory(self, root: str) -> None:
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            try:
                with os.scandir(os.path.join(root, inside)) as entries:
                    rows = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                if not inside:
                    raise
                self._report.error("tar", error, inside)
                continue
            for entry in rows:
                if entry.name.startswith(PREFIX) or entry.name.endswith((JOURNAL, STAGED)):
                    continue
                name = f"{inside}/{entry.name}" if inside else entry.name
                status = entry.stat(follow_symlinks=False)
                kind, nbytes = _kind(status), status.st_size if stat.S_ISREG(status.st_mode) else 0
                self.members.append(Member(name, f"./{name}", kind, 0, 0, nbytes))
                if kind == "directory":
                    waiting.append(name)
                if len(self.members) > MAX_MEMBERS:
                    self._report.refuse("tar", f"members: expected at most {MAX_MEMBERS}, got more")
                    return

    def _sort(self) -> None:
        seen: set[str] = set()
        for member in self.members:
            if not member.is_inside:
                message = f"name of member: expected one inside of the archive, got {member.raw!r:.200}"
                self._report.note("error", "member-name", message, offset=member.header)
            elif not member.raw.startswith("./") and member.raw != ".":
                message = f"name of member: expected one that begins with ./, got {member.raw!r:.200}"
                self._report.note("note", "member-name", message, offset=member.header)
            if member.kind not in ("file", "directory"):
                message = f"member {member.raw!r:.200}: expected a file or a directory, got a {member.kind}"
                file = self.file_of(member.name)
                self._report.note("error", "member-kind", message, member.name, member.header, file)
            if not member.is_inside:
                continue
            if member.name in seen and member.kind != "directory":
                message = f"member {member.raw!r:.200}: expected once, got again"
                self._report.note("error", "member-twice", message, member.name, member.header)
                self.twice.add(member.name)
            seen.add(member.name)
            self.files[member.name] = member
        self.files = {name: member for name, member in self.files.items() if member.kind != "directory"}

    def file_of(self, name: str) -> str | None:
        """Return the path of the file that a member's bytes are in."""
        return self._report.file(name, self.root)

    def place(self, name: str) -> tuple[MappedFile, int, int]:
        """Return (mapped file, offset, nbytes) of a file of the archive.

        Raises:
            FormatError: the member is missing, occurs twice, or is a link or something else that is not a plain file.
        """
        member = self.files.get(name)
        if member is None:
            advice = (
                " (no archive in Model Library Format: unpack one of another kind first)" if name == METADATA else ""
            )
            raise FormatError(f"archive: expected a file {name}, got none{advice}", file=self.path)
        if name in self.twice:
            raise FormatError(f"member {name}: expected once, got it twice", offset=member.header, file=self.path)
        if member.kind != "file":
            message = f"member {name}: expected a plain file, got a {member.kind}"
            raise FormatError(message, offset=member.header, file=self.file_of(name))
        if self._mapping is not None:
            return self._mapping, member.offset, member.nbytes
        if self.root is None:
            raise ValueError("I/O operation on closed archive" + (f" {shown(self.path)}" if self.path else ""))
        if name not in self._opened:
            self._opened[name] = map_settled(Location(self.root).entry(name, links=False))
        return self._opened[name], 0, self._opened[name].nbytes

    def read(self, name: str) -> memoryview:
        """Return the bytes of a file: a view of the mapped archive.

        Raises: As `place`; FormatError: the archive has shrunk.
        """
        mapping, offset, nbytes = self.place(name)
        return memoryview(mapping.check_size())[offset : offset + nbytes]

    @property
    def mapping(self) -> MappedFile:
        """The mapped tar, decompressed. Raises: ValueError: it is closed, or a directory."""
        if self._mapping is None:
            raise ValueError("I/O operation on closed archive" + (f" {shown(self.path)}" if self.path else ""))
        return self._mapping

    @property
    def packed(self) -> MappedFile | None:
        """The mapped gzip file, not decompressed; None if it is not gzipped."""
        return self._packed

    def forget(self, name: str) -> None:
        """Release a file of a directory that has been replaced."""
        opened = self._opened.pop(name, None)
        if opened is not None:
            opened.close()

    def close(self) -> None:
        """Release all files."""
        held = [self._mapping, self._packed, *self._opened.values()]
        self._mapping = self._packed = self.root = None
        self._opened = {}
        for mapping in held:
            if mapping is not None:
                mapping.close()


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "file"
    if stat.S_ISDIR(status.st_mode):
        return "directory"
    return "link" if stat.S_ISLNK(status.st_mode) else "pipe" if stat.S_ISFIFO(status.st_mode) else "device"


def _is_old_tar(head: bytes) -> bool:
    """Whether a first block without a tar magic is a tar header, by its checksum."""
    digits = head[148:156].strip(b"\0 ")
    return (
        digits.isdigit()
        and all(48 <= d < 56 for d in digits)
        and int(digits, 8) == sum(head) - sum(head[148:156]) + 256
    )
