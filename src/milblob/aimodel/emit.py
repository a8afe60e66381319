"""Writes bytecode from its parts: unchanged sections keep their bytes, changed sections may have other sizes.

Nothing in a file states an absolute offset, so a section may grow. Padding depends on where it is: sections and
resources are aligned to their place in the file.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count, groupby
from typing import Any, NamedTuple

from ..errors import UnsupportedError
from ..storage.journal_format import Later
from ..storage.mapped import MappedFile
from ..storage.transfer import copy_range, write_at
from . import bytecode as sections
from .bytecode import Bytecode, Section

_PADDING = b"\xcb"
_ALIGNED = 0x80
ALIGNMENT = 16
"""Of the Resource section and its values, as Apple writes it: small files with more are refused by its reader."""

_PIECE_NBYTES = 1 << 24


class Span(NamedTuple):
    """Bytes of the old file."""

    offset: int
    nbytes: int


Piece = bytes | Span | Later | Any
"""Bytes, a stretch of the old file, a buffer, or what is made when it is written."""


class NewResource(NamedTuple):
    """A resource to be written: its key as a string's number, its alignment, and its bytes."""

    key: int
    alignment: int
    data: Piece


def varint(number: int) -> bytes:
    """Return a number as a PrefixVarInt, the shortest."""
    for more in range(8):
        if number < 1 << 7 * (more + 1):
            return (number << more + 1 | 1 << more).to_bytes(more + 1, "little")
    return b"\0" + number.to_bytes(8, "little")


def size_of(piece: Piece) -> int:
    """Return the number of bytes of a piece."""
    return piece.nbytes if isinstance(piece, Span | Later) else memoryview(piece).nbytes


class Emitter:
    """The parts of a file, some of them changed."""

    def __init__(self, bytecode: Bytecode) -> None:
        self._code = bytecode
        self.attributes: dict[int, bytes] = {}
        self._new: dict[str, list[bytes]] = {"attributes": [], "types": [], "strings": [], "properties": []}
        self._numbers: dict[int, int] = {}  # offset in the IR section -> the varint that it gets
        # to be written, in order; a resource is referred to by its place in this list
        self.resources = [
            NewResource(int(row["key"]), int(row["alignment"]), Span(int(row["data_offset"]), int(row["nbytes"])))
            for row in bytecode.resources
        ]

    @property
    def has_resources(self) -> bool:
        """Whether the file has sections of resources."""
        return self._code.section(sections.RESOURCES) is not None

    # --------------------------------------------------------------------------------------------------------- changes

    def add_resource(self, resource: NewResource) -> int:
        """Add a resource; return its number."""
        self.resources.append(resource)
        return len(self.resources) - 1

    def new_key(self) -> int:
        """Add a key that no resource has yet; return the number of its string."""
        known = {
            self._code.string(resource.key) for resource in self.resources if resource.key < len(self._code.strings)
        }
        known |= {text.decode() for text in self._new["strings"]}
        key = next(key for key in map("resource_milblob_{}".format, count()) if key not in known)
        return self.add("strings", key.encode())

    def add(self, table: str, data: bytes) -> int:
        """Add a row to the "attributes", "types", "strings" or "properties" of the file; return its number."""
        self._new[table].append(data)
        return len(getattr(self._code, table)) + len(self._new[table]) - 1

    def _described(self) -> Iterator[tuple[list[Any], dict[int, bytes], list[bytes]]]:
        """Yield the old rows of attributes, then of types, with those that change, by number, and the new ones."""
        yield self._code.attributes.tolist(), self.attributes, self._new["attributes"]
        yield self._code.types.tolist(), {}, self._new["types"]

    def set_properties(self, op: int, number: int) -> None:
        """Give an operation other properties."""
        row = self._code.ops[op]
        self._numbers[int(row["offset"]) + int(row["properties_at"])] = number

    def set_type(self, op: int, number: int) -> None:
        """Give the first result of an operation another type."""
        row = self._code.ops[op]
        self._numbers[int(row["offset"]) + int(row["type_at"])] = number

    # -------------------------------------------------------------------------------------------------------- emitting

    def pieces(self) -> list[Piece]:
        """Return the file, piece by piece.

        Raises: UnsupportedError: resources that are not all blobs of one dialect.
        """
        out = _Output()
        out.add(Span(0, self._code.sections[0].offset))
        for section in self._code.sections:
            if section.id == sections.RESOURCES:
                self._add_resources(out, section)
            else:
                out.add_section(section.id, section.alignment, self._payload(section))
        return out.pieces

    def _payload(self, section: Section) -> list[Piece]:
        if section.id == sections.ATTR_TYPE_OFFSET:
            return [self._offsets()]
        if section.id == sections.ATTR_TYPE:
            return self._entries()
        if section.id == sections.IR:
            return [self._operations()]
        if section.id == sections.STRINGS and self._new["strings"]:
            return [self._strings()]
        if section.id == sections.RESOURCE_OFFSET:
            return [self._resource_offsets()]
        if section.id == sections.PROPERTIES:
            rows = [bytes(self._data(Span(*row))) for row in self._code.properties.tolist()]
            rows += self._new["properties"]
            return [varint(len(rows)) + b"".join(varint(len(row)) + row for row in rows)]
        return [Span(section.data_offset, section.nbytes)]

    def _strings(self) -> bytes:
        rows = [bytes(self._data(Span(*row))) + b"\0" for row in self._code.strings.tolist()]
        rows += [text + b"\0" for text in self._new["strings"]]
        return varint(len(rows)) + b"".join(varint(len(row)) for row in reversed(rows)) + b"".join(rows)

    def _data(self, span: Span) -> memoryview:
        return memoryview(self._code.mapping.live())[span.offset : span.offset + span.nbytes]

    def _offsets(self) -> bytes:
        out = b"".join(varint(len(old) + len(new)) for old, _, new in self._described())
        for old, changed, new in self._described():
            rows = [
                (dialect, len(changed[number]) if number in changed else nbytes, is_custom)
                for number, (_, nbytes, dialect, is_custom) in enumerate(old)
            ]
            rows += [(0, len(data), 1) for data in new]
            for dialect, group in groupby(rows, key=lambda row: row[0]):
                members = list(group)
                out += varint(dialect) + varint(len(members))
                out += b"".join(varint(nbytes << 1 | is_custom) for _, nbytes, is_custom in members)
        return out

    def _entries(self) -> list[Piece]:
        pieces: list[Piece] = []
        for old, changed, new in self._described():
            pieces += [changed.get(number, Span(row[0], row[1])) for number, row in enumerate(old)]
            pieces += new
        return pieces

    def _operations(self) -> bytes:
        """Return the IR section, made from the innermost sections outwards."""
        rows = self._code.ir_sections.tolist()  # id, alignment, offset, data_offset, nbytes in the order of the dtype
        names = self._code.ir_sections.dtype.names or ()
        places = [dict(zip(names, row, strict=True)) for row in rows]
        changes: list[list[tuple[int, int, bytes]]] = [[] for _ in places]  # start, end, new bytes
        section_of = {int(row["offset"]): int(row["section"]) for row in self._code.ops}
        starts = sorted(section_of)
        for offset, number in self._numbers.items():
            owner = section_of[starts[bisect_right(starts, offset) - 1]]
            changes[owner].append((offset, _end_of_varint(self._code.mapping, offset), varint(number)))
        payload = b""
        for row in range(len(places) - 1, -1, -1):
            place = places[row]
            start, end = place["data_offset"], place["data_offset"] + place["nbytes"]
            payload = _spliced(self._data(Span(start, end - start)), start, changes[row])
            if row:
                if place["alignment"]:
                    message = (
                        f"section of operations: expected none that is aligned, got alignment {place['alignment']}"
                    )
                    raise UnsupportedError(message, offset=place["offset"], file=self._code.mapping.name)
                head = bytes([place["id"]]) + varint(len(payload))
                changes[int(self._code.owners[row])].append((place["offset"], end, head + payload))
        return payload

    def _resource_offsets(self) -> bytes:
        kinds = {(int(row["kind"]), int(row["dialect"])) for row in self._code.resources}
        if len(kinds) > 1 or any(kind for kind, _ in kinds):
            raise UnsupportedError("resources: expected blobs of one dialect, got others", file=self._code.mapping.name)
        out = varint(0)
        if self.resources:
            dialect = next(iter(kinds))[1] if kinds else 0
            out += varint(dialect) + varint(len(self.resources))
            sizes = [size for _, _, size in self._placed()]
            for resource, size in zip(self.resources, sizes, strict=True):
                out += varint(resource.key) + varint(size) + b"\0"
        return out

    def _placed(self) -> Iterator[tuple[NewResource, bytes, int]]:
        """Yield each resource with the bytes before its data, and the size of both."""
        at = 0
        for resource in self.resources:
            head = varint(resource.alignment) + varint(size_of(resource.data))
            head += _PADDING * (-(at + len(head)) % resource.alignment)
            size = len(head) + size_of(resource.data)
            yield resource, head, size
            at += size

    def _add_resources(self, out: "_Output", section: Section) -> None:
        pieces: list[Piece] = []
        for resource, head, _ in self._placed():
            pieces += [head, resource.data]
        out.add_section(section.id, max((resource.alignment for resource in self.resources), default=1), pieces)


class _Output:
    """Pieces of a file, and how long they are."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.nbytes = 0

    def add(self, piece: Piece) -> None:
        nbytes = size_of(piece)
        last = self.pieces[-1] if self.pieces else None
        if isinstance(piece, Span) and isinstance(last, Span) and last.offset + last.nbytes == piece.offset:
            self.pieces[-1] = Span(last.offset, last.nbytes + nbytes)
        elif nbytes:
            self.pieces.append(piece)
        self.nbytes += nbytes

    def add_section(self, number: int, alignment: int, payload: list[Piece]) -> None:
        length = varint(sum(map(size_of, payload)))
        head = bytes([number]) + length
        if alignment > 1 and (self.nbytes + len(head)) % alignment:  # stated only if it causes padding
            head = bytes([number | _ALIGNED]) + length + varint(alignment)
            head += _PADDING * (-(self.nbytes + len(head)) % alignment)
        self.add(head)
        for piece in payload:
            self.add(piece)


def _end_of_varint(mapping: MappedFile, offset: int) -> int:
    first = memoryview(mapping.live())[offset]
    return offset + 1 + ((first & -first).bit_length() - 1 if first else 8)


def _spliced(data: memoryview, start: int, changes: list[tuple[int, int, bytes]]) -> bytes:
    parts, at = [], start
    for begin, end, new in sorted(changes):
        parts += [bytes(data[at - start : begin - start]), new]
        at = end
    return b"".join([*parts, bytes(data[at - start :])])


# ------------------------------------------------------------------------------------------------------------- writing


def views(mapping: MappedFile, pieces: list[Piece]) -> Iterator[memoryview]:
    """Yield the bytes of the pieces, some MiB at a time."""
    for piece in pieces:
        if isinstance(piece, Span):
            whole = memoryview(mapping.check_size())[piece.offset : piece.offset + piece.nbytes]
        else:
            whole = memoryview(piece.make() if isinstance(piece, Later) else piece).cast("B")
        for start in range(0, whole.nbytes, _PIECE_NBYTES):
            yield whole[start : start + _PIECE_NBYTES]


def sha256(mapping: MappedFile, pieces: list[Piece]) -> bytes:
    """Return the hash of a file that consists of these pieces."""
    found = hashlib.sha256()
    for view in views(mapping, pieces):
        found.update(view)
    return found.digest()


def write(mapping: MappedFile, pieces: list[Piece], fd: int) -> None:
    """Write the pieces to an empty file; the system copies stretches of the old one."""
    at = 0
    for piece in pieces:
        if isinstance(piece, Span):
            copy_range(mapping, piece.offset, piece.nbytes, fd, at)
        else:
            write_at(fd, [piece.make() if isinstance(piece, Later) else piece], at)
        at += size_of(piece)
