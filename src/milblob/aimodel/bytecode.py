"""One open file of MLIR bytecode: its tables as arrays, and its strings, attributes and types decoded."""

from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..errors import FormatError, UnsupportedError
from ..storage.mapped import MappedFile
from . import codes
from .codes import DIALECT, Element

MAGIC, VERSION = b"ML\xefR", 6
STRINGS, DIALECTS, ATTR_TYPE, ATTR_TYPE_OFFSET, IR, RESOURCES, RESOURCE_OFFSET, _, PROPERTIES = range(9)
"""Ids of sections."""

NONE = 0xFFFFFFFF
_OTHERS = ("builtin",)
"""Dialects beside aicode: the first release wrote locations in MLIR's own."""

BUILTIN_RESOURCE = 16
"""Code of the attribute of MLIR's own dialect that names a resource: DenseResourceElementsAttr."""

_MAX_NUMBERS = 1 << 16  # of one attribute or type


def _rows(*names: str, **wide: None) -> np.dtype[Any]:
    fields = [(name, np.uint64) for name in wide] + [(name, np.uint32) for name in names]
    return np.dtype(fields, align=True)


# The structures of include/milblob/mlir.
_SPAN = _rows(offset=None, nbytes=None)
_ENTRY = _rows("dialect", "is_custom", offset=None, nbytes=None)
_TABLES = {
    "strings": _SPAN,
    "dialects": _rows("name", offset=None, nbytes=None),
    "op_names": _rows("name", "dialect"),
    "attributes": _ENTRY,
    "types": _ENTRY,
    "resources": _rows(
        "key", "alignment", "kind", "dialect",
        offset=None, encoded_nbytes=None, data_offset=None, nbytes=None, size_offset=None,
    ),
    "properties": _SPAN,
    "ops": _rows(
        "properties_at", "type_at", "name", "parent", "depth", "location", "attributes", "properties", "first_result",
        "result_count", "first_operand", "operand_count", "section", offset=None,
    ),
    "values": _rows("type", "op", "number", "is_argument", "first_use"),
    "operands": _rows("value", "op", "next_use"),
    "ir_sections": _rows("id", "alignment", offset=None, data_offset=None, nbytes=None),
}  # fmt: skip


class Section(NamedTuple):
    """A section of the file: its head is at `offset`; `alignment` is 0 where none is stated."""

    id: int
    offset: int
    data_offset: int
    nbytes: int
    alignment: int


class TensorKind(NamedTuple):
    """The type of a tensor."""

    code: int  # of its element type
    element: Element | None  # None if the code is not known
    shape: tuple[int | None, ...]  # sizes; None for one that is open
    is_sparse: bool  # whether it has the form that `build_sparse_with_bitmask` makes

    @property
    def text(self) -> str:
        """Name of the element type; "code 99" of one that is not known."""
        return self.element.text if self.element is not None else codes.NO_NUMPY.get(self.code, f"code {self.code}")


class Bytecode:
    """The tables of a file; each is an array of rows, which refer to the file by offset and to each other by number."""

    def __init__(self, mapping: MappedFile) -> None:
        """Read the tables.

        Raises: FormatError: broken bytes. UnsupportedError: another version of the container; another dialect.
        """
        self.mapping = mapping  # the file
        buffer = mapping.check_size()
        head = bytes(memoryview(buffer)[:4])
        if head != MAGIC:
            message = f"content: expected MLIR bytecode, which begins with {MAGIC.hex()}, got {head.hex() or 'nothing'}"
            raise FormatError(message, offset=0, file=mapping.name, code="bytecode")
        version = _codec.mlir_varints(buffer, 4, buffer.nbytes - 4, 1)[0]
        if version and version[0] != VERSION:
            message = f"version of MLIR bytecode: expected {VERSION}, got {version[0]}"
            raise UnsupportedError(message, offset=4, file=mapping.name, code="container-version")
        try:
            found = _codec.mlir_read(buffer)
        except FormatError as error:
            error.code = "bytecode"
            raise
        self.producer: str = found["producer"].decode("utf-8", "replace")
        self.sections = [Section(*row) for row in found["sections"]]  # in the order of the file
        tables = {name: np.frombuffer(found[name], dtype) for name, dtype in _TABLES.items()}
        # strings, dialects, op_names, attributes, types, resources, properties: the tables
        self.strings, self.dialects, self.op_names = (tables[n] for n in ("strings", "dialects", "op_names"))
        self.attributes, self.types, self.resources = (tables[n] for n in ("attributes", "types", "resources"))
        # ops, values, operands: of all regions; parents come before children
        self.properties, self.ops, self.values = (tables[n] for n in ("properties", "ops", "values"))
        # ir_sections: the IR section, and those of isolated regions; `owners` are the sections around them
        self.operands, self.ir_sections = tables["operands"], tables["ir_sections"]
        self.owners = np.frombuffer(found["owners"], np.uint32)
        self.refusal = self._require_dialect()  # why no tensor can be read, or "": another version of the dialect
        self._kinds: dict[int, TensorKind | None] = {}
        self._name_of: list[int] = self.ops["name"].tolist()
        self._names: list[str] = [self.string(int(row["name"])) for row in self.op_names]

    def _require_dialect(self) -> str:
        names = [self.string(int(row["name"])) for row in self.dialects]
        if names.count(DIALECT) != 1 or not {*names} <= {DIALECT, *_OTHERS}:
            message = (
                f"dialects: expected {DIALECT}, and none but {', '.join(_OTHERS)}, got {', '.join(names[:8]) or 'none'}"
            )
            raise UnsupportedError(message, file=self.mapping.name, code="dialect")
        self._dialect = names.index(DIALECT)
        row = self.dialects[self._dialect]
        numbers, _ = _codec.mlir_varints(self.mapping.live(), int(row["offset"]), int(row["nbytes"]))
        if numbers == [codes.DIALECT_VERSION]:
            return ""
        got = ".".join(map(str, numbers)) or "none"
        return f"version of the dialect {DIALECT}: expected {codes.DIALECT_VERSION}, got {got}"

    def section(self, number: int) -> Section | None:
        """Return the section with an id, or None."""
        return next((section for section in self.sections if section.id == number), None)

    def string(self, number: int) -> str:
        """Return a string; bytes that are not UTF-8 come as lone surrogates. Raises: FormatError: no such string."""
        if number >= len(self.strings):
            raise self._wrong(f"string: expected a number below {len(self.strings)}, got {number}")
        offset, nbytes = self.strings[number].tolist()
        return bytes(memoryview(self.mapping.live())[offset : offset + nbytes]).decode("utf-8", "surrogateescape")

    def op_name(self, row: int) -> str:
        """Return the name of an operation, such as "primitive.conv2d_v1"."""
        return self._names[self._name_of[row]]

    def ops_named(self, wanted: Any) -> np.ndarray[Any, Any]:
        """Return the rows of all operations whose name `wanted`, a predicate, accepts."""
        numbers = [number for number, name in enumerate(self._names) if wanted(name)]
        return np.flatnonzero(np.isin(self.ops["name"], numbers))

    def attribute(self, number: int) -> list[int]:
        """Return the numbers of an attribute: its code and what follows.

        Raises: FormatError: no such attribute, or a broken one. UnsupportedError: another encoding.
        """
        return self._numbers(self.attributes, number, "attribute")

    def dense_bytes(self, number: int) -> tuple[bool, int, int]:
        """Return where the bytes of a DENSE attribute are: (whether they are one element for all, offset, nbytes)."""
        offset, nbytes = self._entry(self.attributes, number, "attribute")
        buffer, end = self.mapping.live(), offset + nbytes
        at = _codec.mlir_varints(buffer, offset, nbytes, 1)[1] + 1
        sizes, start = _codec.mlir_varints(buffer, at, end - at, 1) if at < end else ([], end)
        if sizes != [end - start]:
            raise self._wrong(f"attribute {number}: expected {end - start} bytes of a value, got {sizes}", offset)
        return bool(memoryview(buffer)[at - 1]), start, end - start

    def code_of(self, number: int) -> int:
        """Return the code of an attribute. Raises as `attribute`."""
        offset, nbytes = self._entry(self.attributes, number, "attribute")
        numbers, _ = _codec.mlir_varints(self.mapping.live(), offset, nbytes, 1)
        return numbers[0] if numbers else -1

    def _numbers(self, table: Any, number: int, what: str) -> list[int]:
        offset, nbytes = self._entry(table, number, what)
        numbers, end = _codec.mlir_varints(self.mapping.live(), offset, nbytes, _MAX_NUMBERS)
        if end != offset + nbytes or not numbers:
            raise self._wrong(f"{what} {number}: expected up to {_MAX_NUMBERS} numbers, got {nbytes} bytes", offset)
        return numbers

    def _entry(self, table: Any, number: int, what: str) -> tuple[int, int]:
        if number >= len(table):
            raise self._wrong(f"{what}: expected a number below {len(table)}, got {number}")
        offset, nbytes, dialect, is_custom = table[number].tolist()
        if not is_custom or dialect != self._dialect:
            message = f"{what} {number}: expected one in the encoding of {DIALECT}, got another"
            raise UnsupportedError(message, offset=offset, file=self.mapping.name)
        return offset, nbytes

    def resource_of(self, number: int) -> int:
        """Return the number of the resource that a codes.RESOURCE attribute names.

        Raises: FormatError: no such resource, or it is not a blob.
        """
        numbers = self.attribute(number)
        if len(numbers) != 2 or numbers[1] >= len(self.resources) or self.resources["kind"][numbers[1]] != 0:
            most = len(self.resources)
            raise self._wrong(
                f"attribute {number}: expected the number of a blob among {most} resources, got {numbers[1:]}"
            )
        return numbers[1]

    def resource_references(self) -> dict[int, int]:
        """Return attribute -> the resource that it names, of all attributes of aicode that name one.

        Raises: UnsupportedError: an attribute of MLIR's own names a resource, in a way that milblob does not change.
        FormatError: as `resource_of`.
        """
        found = {}
        for number, entry in enumerate(self.attributes):
            if not entry["is_custom"]:
                continue
            if entry["dialect"] == self._dialect:
                if self.code_of(number) == codes.RESOURCE:
                    found[number] = self.resource_of(number)
                continue
            offset = int(entry["offset"])
            code, _ = _codec.mlir_varints(self.mapping.live(), offset, int(entry["nbytes"]), 1)
            if code == [BUILTIN_RESOURCE]:
                message = f"attribute {number}: expected a resource named by {DIALECT}, got one named by builtin"
                raise UnsupportedError(message, offset=offset, file=self.mapping.name)
        return found

    def property_numbers(self, op: int, most: int = _MAX_NUMBERS) -> list[int]:
        """Return the numbers of an operation's properties; [] if it has none."""
        number = int(self.ops["properties"][op])
        if number == NONE:
            return []
        offset, nbytes = self.properties[number].tolist()
        return _codec.mlir_varints(self.mapping.live(), offset, nbytes, most)[0]

    def text_of(self, number: int) -> str | None:
        """Return the string that an attribute is; None of another one."""
        numbers = self.attribute(number)
        return self.string(numbers[1]) if numbers[0] == codes.STRING and len(numbers) == 2 else None

    def type_numbers(self, number: int) -> list[int]:
        """Return the numbers of a type: its code and what follows. Raises as `attribute`."""
        return self._numbers(self.types, number, "type")

    def tensor_kind(self, number: int) -> TensorKind | None:
        """Return the tensor that a type is; None of another type. Raises: FormatError: it is broken."""
        if number not in self._kinds:
            self._kinds[number] = self._read_kind(number)
        return self._kinds[number]

    def _read_kind(self, number: int) -> TensorKind | None:
        if number < len(self.types) and self.types["dialect"][number] != self._dialect:
            return None
        numbers = self.type_numbers(number)
        if numbers[0] not in (codes.TENSOR, codes.SPARSE_TENSOR):
            return None
        is_sparse = numbers[0] == codes.SPARSE_TENSOR
        rank = numbers[1] if len(numbers) > 1 else -1
        if len(numbers) != 3 + rank + is_sparse:
            raise self._wrong(f"type {number}: expected a rank, sizes and an element type, got {len(numbers)} numbers")
        sizes = [size >> 1 ^ -(size & 1) for size in numbers[2 : 2 + rank]]
        if any(size < 0 and size != codes.OPEN_SIZE for size in sizes):
            raise self._wrong(f"type {number}: expected sizes of 0 or more, got {min(sizes)}")
        code = self.type_numbers(numbers[2 + rank])[0]
        shape = tuple(None if size == codes.OPEN_SIZE else size for size in sizes)
        return TensorKind(code, codes.ELEMENTS.get(code), shape, is_sparse)

    def _wrong(self, message: str, offset: int | None = None) -> FormatError:
        return FormatError(message, offset=offset, file=self.mapping.name, code="bytecode")
