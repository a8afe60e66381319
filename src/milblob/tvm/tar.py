"""The members of a tar: names, kinds, and where their bytes lie. Nothing is extracted, and no name is followed.

It reads what TVM's exporter and everyday tar programs write: ustar, PAX, GNU long names. Where two readers could see
two different archives (a PAX size that contradicts the header, a sparse file, records that overlap) it does not guess.
"""

import contextlib
from typing import NamedTuple, NoReturn

from .findings import Report

BLOCK = 512
MAX_MEMBERS = 1 << 17  # an archive with TVM's own runtime in it has 127
_MAX_RECORD_NBYTES = 1 << 20
_ZEROS = bytes(BLOCK)
_REGULAR, _DIRECTORY = b"0\0007", b"5"
_KINDS = {b"1": "link", b"2": "link", b"3": "device", b"4": "device", b"6": "pipe", b"S": "sparse"}


class Member(NamedTuple):
    """One member of an archive."""

    name: str  # without "./" before and "/" after; "" for the root. As it is, if it leads out of the archive.
    raw: str  # as the archive has it
    kind: str  # "file", "directory", or one of the others: "link", "device", "pipe", "sparse", "unknown"
    header: int  # byte offset of its header; in a directory 0
    offset: int  # of its bytes in the archive, or in the file of its own
    nbytes: int
    is_inside: bool = True  # whether its name is inside the archive


def plain_name(raw: str) -> tuple[str, bool]:
    """Return (name without "./" and trailing "/", whether it is inside the archive)."""
    if raw.startswith("./") and raw.isascii() and ".." not in raw and "\\" not in raw and "\0" not in raw:
        name = raw[2:].rstrip("/")
        if "//" not in name and "/./" not in name and not name.startswith(("/", "./")):
            return name, True
    parts = raw.split("/")
    is_inside = not (
        raw.startswith("/") or ".." in parts or "\\" in raw or "\0" in raw or raw == "" or parts[0].endswith(":")
    )
    return "/".join(part for part in parts if part not in ("", ".")) if is_inside else raw, is_inside


def _number(field: bytes) -> int:
    """Return the number of a header field: octal, or GNU's base 256.

    Raises: ValueError: neither; or one below 0, which no field read here can have.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip()
    if not digits.isdigit():
        if digits == b"":
            return 0
        raise ValueError(f"expected an octal number, got {field!r}")
    return int(digits, 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


class _BrokenError(Exception):
    """The archive cannot be followed further; the fault has been reported."""


class _Walk:
    """A walk over the headers of a tar."""

    def __init__(self, data: memoryview, report: Report) -> None:
        self.members: list[Member] = []  # those found
        self.end = 0  # offset of the block of zeros that ends the archive, or where the walk stopped
        self._data, self._report = data, report

    def run(self) -> None:
        data, nbytes, at = self._data, len(self._data), 0
        extra: dict[str, str] = {}
        while True:
            self.end = at
            if extra and (nbytes - at < BLOCK or data[at : at + BLOCK] == _ZEROS):
                self._refuse("extended tar header: expected a member after it, got the end", at)
            if nbytes - at < BLOCK:
                if nbytes > at:
                    self._refuse(f"tar header: expected {BLOCK} bytes, got {nbytes - at}", at)
                self._report.note("warning", "tar-end", "end of tar: expected two blocks of zeros, got none", offset=at)
                return
            block = bytes(data[at : at + BLOCK])
            if block == _ZEROS:
                return
            kind = block[156:157]
            try:
                stated, total = _number(block[148:156]), sum(block) - sum(block[148:156]) + 256  # its own are spaces
                size = _number(block[124:136])
            except ValueError as error:
                self._refuse(f"tar header: {error}", at)
            if stated != total and stated != _signed(block, total):
                self._refuse(f"checksum of tar header: expected {total}, got {stated}", at)
            if kind in b"xgXLK":
                at = self._read_extra(kind, at, size, extra)
                continue
            at = self._add(block, kind, at, size, extra)
            extra = {}

    def _add(self, block: bytes, kind: bytes, at: int, size: int, extra: dict[str, str]) -> int:
        """Add a member; return the offset of the next header."""
        raw = _text(block[:100])
        if block[257:263] == b"ustar\0" and block[345] != 0:
            raw = f"{_text(block[345:500])}/{raw}"
        if extra:
            raw = extra.get("path", raw)
            size = self._size(extra, size, at)
        what = "file" if kind in _REGULAR else "directory" if kind == _DIRECTORY else _KINDS.get(kind, "unknown")
        if what == "sparse":
            self._refuse(f"member {raw!r:.200}: expected a plain file, got a sparse one", at, "member-kind")
        if what == "file" and raw.endswith("/") and kind != b"7":  # as tar programs before ustar wrote directories
            what = "directory"
        if any(key.startswith("GNU.sparse.") for key in extra):
            what = "sparse"
        start = at + BLOCK
        if what in ("directory", "link", "device", "pipe"):
            if size:
                message = f"size of {raw!r:.200}: expected 0 for a {what}, got {size}"
                self._report.note("warning", "tar", message, offset=at)
            size = 0
        if size > len(self._data) - start:
            self._refuse(f"member {raw!r:.200}: expected {size} bytes, got {len(self._data) - start}", at)
        name, is_inside = plain_name(raw)
        self.members.append(Member(name, raw, what, at, start, size, is_inside))
        if len(self.members) > MAX_MEMBERS:
            self._refuse(f"members: expected at most {MAX_MEMBERS}, got more", at)
        return start + size + -size % BLOCK

    def _size(self, extra: dict[str, str], size: int, at: int) -> int:
        text = extra.get("size")
        if text is None:
            return size
        if not (text.isascii() and text.isdigit()) or len(text) > 20:
            self._refuse(f"size in PAX header: expected a number, got {text!r:.100}", at)
        if size not in (0, int(text)):
            self._refuse(f"size of member: expected {int(text)} as in its PAX header, got {size} in its own", at)
        return int(text)

    def _read_extra(self, kind: bytes, at: int, size: int, extra: dict[str, str]) -> int:
        """Read a header for the next one; return the offset after it."""
        start = at + BLOCK
        if size > _MAX_RECORD_NBYTES:
            self._refuse(f"extended tar header: expected at most {_MAX_RECORD_NBYTES} bytes, got {size}", at)
        if size > len(self._data) - start:
            self._refuse(f"extended tar header: expected {size} bytes, got {len(self._data) - start}", at)
        data = bytes(self._data[start : start + size])
        if kind == b"L":
            extra["path"] = _text(data)
        elif kind in b"xXg":
            found = self._records(data, start)
            if kind == b"g":
                wrong = [key for key in found if key in ("path", "size", "linkpath") or key.startswith("GNU.sparse.")]
                if wrong:
                    self._refuse(f"global PAX header: expected nothing about one member, got {wrong[0]}", at)
            else:
                extra.update(found)
        return start + size + -size % BLOCK

    def _records(self, data: bytes, start: int) -> dict[str, str]:
        """Parse the records of a PAX header: "<length> <key>=<value>\\n"."""
        found: dict[str, str] = {}
        at = 0
        while at < len(data):
            space = data.find(b" ", at, at + 10)
            digits = data[at:space] if space > at else b""
            length = int(digits) if digits.isdigit() else 0
            end = at + length
            record = data[space + 1 : end]
            key, equals, value = record[:-1].partition(b"=")
            if not length or end > len(data) or end <= space + 1 or not record.endswith(b"\n") or not equals:
                self._refuse("record of PAX header: expected '<length> <key>=<value>', got something else", start + at)
            text = key.decode("utf-8", "surrogateescape")
            if text in found and text in ("path", "size"):
                self._refuse(f"PAX header: expected {text} once, got it twice", start + at)
            found[text] = value.decode("utf-8", "surrogateescape")
            at = end
        return found

    def _refuse(self, message: str, offset: int, code: str = "tar") -> NoReturn:
        self._report.refuse(code, message, offset=offset)
        raise _BrokenError


def _signed(block: bytes, total: int) -> int:
    """The checksum as some old programs made it, of signed bytes."""
    return total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def walk_tar(data: memoryview, report: Report) -> tuple[list[Member], int]:
    """Return the members of a tar, and the offset at which it ends.

    Raises: FormatError: it cannot be followed. If `report` gathers, the members found before that are returned instead.
    """
    walk = _Walk(data, report)
    with contextlib.suppress(_BrokenError):
        walk.run()
    return walk.members, walk.end
