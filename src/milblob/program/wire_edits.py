"""Edits of a model file that change a reference, a value, a type, an operation or the set of functions.

Every function returns `Edit`s for `splice`, as small as they can be, and none where nothing changes; `buffer` is the
scanned bytes. Edits of different parts of one Value (its type, its content) do not overlap; `combined` merges edits
safely.
"""

import re
from collections.abc import Collection, Container, Iterable
from itertools import count
from typing import Any, NamedTuple

from .. import _codec
from ..dtypes import DType
from ..errors import ProgramError, UnsupportedError
from ..values.tensorvalue import pack_tensor
from .scan import ProgramScan
from .splice import Edit, splice

# Field numbers of MIL.proto and Model.proto; schema.py has their names.
_VALUE_TYPE, _VALUE_IMMEDIATE, _VALUE_BLOB = 2, 3, 5
_FILE_NAME, _OFFSET = 1, 2
_PROGRAM_FUNCTIONS = 2
_OPERATION_TYPE, _OPERATION_OUTPUTS = 1, 3
_BLOCK_OPERATIONS = 3
_DESCRIPTION_FUNCTIONS, _DESCRIPTION_DEFAULT = 20, 21
_VARINT, _BYTES = 0, 2

INPUTS, ATTRIBUTES = 2, 5
"""Fields of an Operation that are maps of parameters."""

Span = tuple[int, int]


class Field(NamedTuple):
    """One field of a message: see `_codec.wire_fields`."""

    number: int  # of its tag
    wire: int
    value: int  # the number it holds, where wire is 0
    start: int  # offset of its tag
    offset: int  # its payload
    nbytes: int

    @property
    def end(self) -> int:
        """Offset of what follows."""
        return self.offset + self.nbytes

    @property
    def span(self) -> Span:
        """(offset, nbytes) of the payload."""
        return self.offset, self.nbytes

    def replaced(self, data: Any) -> Edit:
        """The edit that puts other bytes in place of the whole field, tag included."""
        return Edit(self.start, self.end - self.start, data)


def fields_of(buffer: _codec.Buffer, span: Span) -> list[Field]:
    """List the fields of one message, without looking inside them.

    Raises: FormatError: a broken message, or more than 100,000 fields.
    """
    fields, start = [], span[0]
    for number, wire, value, offset, nbytes in _codec.wire_fields(buffer, *span):
        fields.append(Field(number, wire, value, start, offset, nbytes))
        start = offset + nbytes
    return fields


def members_of(buffer: _codec.Buffer, span: Span, number: int) -> list[Field]:
    """List the fields of one message that have a number and are length-delimited: messages, strings."""
    return [f for f in fields_of(buffer, span) if f.number == number and f.wire == _BYTES]


# ------------------------------------------------------------------------------------------------------------ encoding


_SMALL = tuple(bytes([value]) for value in range(0x80))


def varint(value: int) -> bytes:
    """Encode a number below 2^64 as a minimal varint; a negative one as its 64-bit two's complement.

    Raises: OverflowError: it does not fit 64 bits.
    """
    if 0 <= value < 0x80:
        return _SMALL[value]
    if 0 < value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if not -(1 << 63) <= value < 1 << 64:
        raise OverflowError(f"varint: expected a number of 64 bits, got {value}")
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: Any) -> bytes:
    """Encode one field: an int as varint, a str or a bytes-like object length-delimited."""
    if isinstance(value, bytes):
        return varint(number << 3 | _BYTES) + varint(len(value)) + value
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    if isinstance(value, str):
        return field(number, value.encode())
    view = _view(value)
    return b"".join((varint(number << 3 | _BYTES), varint(view.nbytes), view))


def tensor_type(dtype: DType, shape: Collection[int | None]) -> bytes:
    """Encode a ValueType of a tensor, as coremltools does; a dimension of None is open."""
    dims = b"".join(field(3, field(2, b"") if n is None else field(1, field(1, n) if n else b"")) for n in shape)
    rank = field(2, len(shape)) if shape else b""
    return field(1, field(1, dtype.mil_code) + rank + dims)


def blob_reference(file_name: str, offset: int) -> bytes:
    """Encode a BlobFileValue; `offset` is that of the record's metadata."""
    return field(_FILE_NAME, file_name) + field(_OFFSET, offset)


def blob_value(type_bytes: bytes, file_name: str, offset: int) -> bytes:
    """Encode a Value that refers to a record of a weight file; `type_bytes` is a ValueType."""
    return field(_VALUE_TYPE, type_bytes) + field(_VALUE_BLOB, blob_reference(file_name, offset))


def stored_value(dtype: DType, shape: Collection[int | None], value: Any) -> bytes:
    """Encode a Value of a tensor; `value` is (file name, metadata offset) of a record, or a serialized TensorValue."""
    type_bytes = tensor_type(dtype, shape)
    return blob_value(type_bytes, *value) if isinstance(value, tuple) else immediate_value(type_bytes, value)


def immediate_value(type_bytes: bytes, tensor_bytes: Any) -> bytes:
    """Encode a Value that holds its elements; `tensor_bytes` is a TensorValue (pack_tensor)."""
    return field(_VALUE_TYPE, type_bytes) + field(_VALUE_IMMEDIATE, field(1, tensor_bytes))


def text_value(text: str) -> bytes:
    """Encode a Value that holds a string."""
    return immediate_value(tensor_type(DType.STRING, ()), pack_tensor(text))


# -------------------------------------------------------------------------------------------------------------- values


def reference_edit(buffer: _codec.Buffer, constant: _codec.Constant, file_name: str, offset: int) -> Edit | None:
    """Point a reference to a weight file elsewhere.

    Only the fields of the BlobFileValue that change are written; its unknown fields are kept.

    `constant`: with storage BLOB. `offset`: of the record's metadata.
    Returns: None if the reference already points there.
    Raises: ProgramError: the constant is not a reference.
    """
    if constant.storage != _codec.BLOB:
        raise ProgramError(f"reference: expected a value in a weight file, got {_kind(constant)}")
    if constant.text == file_name and constant.blob_offset == offset:
        return None
    message = _member(buffer, constant.value, _VALUE_BLOB)
    data = bytes(memoryview(buffer)[message.offset : message.end])
    if constant.blob_offset != offset:
        data = _with_field(data, _OFFSET, field(_OFFSET, offset))
    if constant.text != file_name:
        data = _with_field(data, _FILE_NAME, field(_FILE_NAME, file_name))
    return _payload_edit(message, data)


def value_edit(
    buffer: _codec.Buffer, constant: _codec.Constant, *, reference: tuple[str, int] | None = None, tensor: Any = None
) -> Edit | None:
    """Replace the content of a Value: a reference by elements, elements by a reference, or one of them by another.

    Its type, docString and unknown fields are kept.

    `reference`: (file name, offset of the metadata). `tensor`: a serialized TensorValue instead, any buffer.
    Returns: None where nothing changes.
    Raises: ProgramError: a row that only reads a name. TypeError: not one of `reference` and `tensor`.
    """
    if (reference is None) == (tensor is None):
        raise TypeError("value: expected either a reference or a tensor")
    if reference is not None and constant.storage == _codec.BLOB:
        return reference_edit(buffer, constant, *reference)
    if constant.storage == _codec.BLOB:
        member = _member(buffer, constant.value, _VALUE_BLOB)
        return member.replaced(field(_VALUE_IMMEDIATE, field(1, tensor)))
    if constant.storage != _codec.IMMEDIATE:
        raise ProgramError(f"value: expected a constant, got {_kind(constant)}")
    member = _member(buffer, constant.value, _VALUE_IMMEDIATE)
    if reference is not None:
        return member.replaced(field(_VALUE_BLOB, blob_reference(*reference)))
    inner = _member(buffer, member.span, 1)
    view = _view(tensor)
    if memoryview(buffer)[inner.offset : inner.end] == view:
        return None
    return _payload_edit(inner, view)


# --------------------------------------------------------------------------------------------------------------- types


def type_edits(buffer: _codec.Buffer, target: _codec.Constant | _codec.Op, dtype: DType) -> list[Edit]:
    """Declare another dtype: of a constant's Value, and of the output of the `const` operation that yields it.

    `target`: a constant; or an operation, for the output that its row is about.
    Raises: ProgramError: it is not a tensor, or its type is not a tensor type.
    """
    if isinstance(target, _codec.Op):
        return _output_edits(buffer, target, dtype)
    edits = _dtype_edits(buffer, _type_of(buffer, target.value, _VALUE_TYPE), dtype)
    op = target.op
    if op is not None and op.mil_code and op.type == "const" and target.key == "val" and not target.steps:
        edits += _output_edits(buffer, op, dtype)
    return edits


def _output_edits(buffer: _codec.Buffer, op: _codec.Op, dtype: DType) -> list[Edit]:
    """Of the output that a row of operations is about: NamedValueType {1 name, 2 type}."""
    name = op.name.encode()
    for output in members_of(buffer, op.message, _OPERATION_OUTPUTS):
        names = members_of(buffer, output.span, 1)
        own = bytes(memoryview(buffer)[names[-1].offset : names[-1].end]) if names else b""
        if own == name:
            return _dtype_edits(buffer, _type_of(buffer, output.span, 2), dtype)
    raise ProgramError(f"operation {op.name!r}: expected an output of that name, got none")


def _type_of(buffer: _codec.Buffer, span: Span, number: int) -> Field:
    """Return the ValueType.tensorType inside a message whose field `number` is a ValueType."""
    outer = members_of(buffer, span, number)
    inner = [f for o in outer for f in members_of(buffer, o.span, 1)]
    if len(inner) != 1:
        message = f"type: expected one of a tensor, got {len(inner)}"
        raise ProgramError(message, offset=span[0], file=buffer.name)
    return inner[0]


def _dtype_edits(buffer: _codec.Buffer, tensor: Field, dtype: DType) -> list[Edit]:
    """TensorType {1 dataType}."""
    fields = fields_of(buffer, tensor.span)
    own = [f for f in fields if f.number == 1 and f.wire == _VARINT]
    new = field(1, dtype.mil_code)
    if own:  # the last one of several counts
        return [] if own[-1].value == dtype.mil_code else [own[-1].replaced(new)]
    if fields:  # beside the existing field, so that it does not overlap an edit of a dimension
        first = fields[0]
        return [first.replaced(new + _bytes(buffer, first))]
    return [tensor.replaced(field(tensor.number, new))]


# ----------------------------------------------------------------------------------------------- operations, functions


def rewritten_operation(
    buffer: _codec.Buffer, op: _codec.Op, op_type: str, gone: Collection[str], new: Collection[tuple[int, bytes]]
) -> Edit:
    """Give an operation another type and other parameters; its name, its outputs and everything else are kept.

    `gone`: keys of inputs and attributes to remove. `new`: (INPUTS or ATTRIBUTES, map entry) of each to add.
    """
    rows: list[tuple[int, Any]] = [(_OPERATION_TYPE, field(_OPERATION_TYPE, op_type))]
    for entry in fields_of(buffer, op.message):
        is_parameter = entry.number in (INPUTS, ATTRIBUTES)
        if entry.number != _OPERATION_TYPE and not (is_parameter and key_of(buffer, entry) in gone):
            rows.append((entry.number, _bytes(buffer, entry)))
    rows += [(number, field(number, entry)) for number, entry in new]
    # Not to be combined with edits inside the operation: they would be lost.
    return Edit(*op.message, b"".join(data for _, data in sorted(rows, key=lambda row: row[0])))


def removed_operation(buffer: _codec.Buffer, op: _codec.Op | _codec.GraphOperation) -> Edit:
    """Remove an operation from its block.

    Raises: UnsupportedError: its field is not encoded minimally, which no known writer does.
    """
    start = field_start(buffer, _BLOCK_OPERATIONS, op.message, f"operation {op.name!r}")
    return Edit(start, sum(op.message) - start, b"")


def removed_operations(buffer: _codec.Buffer, ops: Iterable[_codec.Op | _codec.GraphOperation]) -> list[Edit]:
    """Remove operations from their blocks; those that follow each other directly in one edit.

    `ops`: in the order of the Program.
    Raises: As `removed_operation`.
    """
    found: list[Edit] = []
    start = end = -1
    for op in ops:
        offset, nbytes = op.message
        # A field right after the last one begins with a tag of one byte and a length: nothing else fits between.
        if offset - 1 - ((nbytes.bit_length() + 6) // 7 or 1) != end:
            if end >= 0:
                found.append(Edit(start, end - start, b""))
            start = removed_operation(buffer, op).offset
        end = offset + nbytes
    if end >= 0:
        found.append(Edit(start, end - start, b""))
    return found


def followed_operation(
    buffer: _codec.Buffer, op: _codec.Op | _codec.GraphOperation, inside: Iterable[Edit], new: Iterable[bytes]
) -> Edit:
    """Insert new operations after one of a block.

    `inside`: edits inside that operation; this edit replaces them. `new`: serialized operations.
    Raises: UnsupportedError: as `removed_operation`.
    """
    start = field_start(buffer, _BLOCK_OPERATIONS, op.message, f"operation {op.name!r}")
    own = splice(buffer, op.message, combined(inside)).tobytes()
    data = b"".join(field(_BLOCK_OPERATIONS, message) for message in (own, *new))
    return Edit(start, sum(op.message) - start, data)


def preceded_operation(buffer: _codec.Buffer, op: _codec.Op, edit: Edit, new: Iterable[bytes]) -> Edit:
    """Put new operations before one of a block, which changes too.

    `edit`: replaces the whole operation. `new`: serialized operations, in order.
    Raises: UnsupportedError: as `removed_operation`.
    """
    start = field_start(buffer, _BLOCK_OPERATIONS, op.message, f"operation {op.name!r}")
    data = b"".join(field(_BLOCK_OPERATIONS, message) for message in (*new, edit.data))
    return Edit(start, sum(op.message) - start, data)


def new_operation(
    op_type: str,
    name: str,
    outputs: Iterable[tuple[str, DType, Collection[int | None]]],
    parameters: Iterable[tuple[int, bytes]],
) -> bytes:
    """Serialize an operation.

    `outputs`: (name, dtype, shape) of each. `parameters`: (INPUTS or ATTRIBUTES, map entry) of each.
    """
    rows = [(_OPERATION_TYPE, field(_OPERATION_TYPE, op_type))]
    for output, dtype, shape in outputs:
        rows.append(
            (_OPERATION_OUTPUTS, field(_OPERATION_OUTPUTS, field(1, output) + field(2, tensor_type(dtype, shape))))
        )
    rows += [(number, field(number, entry)) for number, entry in parameters]
    rows.append((ATTRIBUTES, field(ATTRIBUTES, field(1, "name") + field(2, text_value(name)))))
    return b"".join(data for _, data in sorted(rows, key=lambda row: row[0]))


def unused_name(program: ProgramScan, name: str, taken: Container[str] = (), first: int = 1) -> str:
    """Return a name that occurs nowhere in a Program: `name` (number 1), or with a number, `name_2`.

    `taken`: other names in use. `first`: number to begin with.
    """
    offset, nbytes = program.span
    view = memoryview(program.buffer)[offset : offset + nbytes]
    for number in count(first):
        new = name if number == 1 else f"{name}_{number}"
        if new not in taken and re.search(re.escape(new.encode()), view) is None:
            return new
    raise RuntimeError  # pragma: no cover  # numbers do not end


def copied_constant(
    buffer: _codec.Buffer,
    constant: _codec.Constant,
    name: str,
    *,
    reference: tuple[str, int] | None = None,
    tensor: Any = None,
) -> bytes:
    """Return a copy of a `const` operation, serialized, with another name and other values of the same type.

    `constant`: the operation's `val`. `reference`, `tensor`: the values, as for `value_edit`.
    Raises: ProgramError: the constant is not the `val` of a const operation.
    """
    op = constant.op
    if op is None or op.type != "const" or constant.key != "val" or op.output_count != 1:
        raise ProgramError(f"constant: expected a const operation of its own, got {op.type if op else 'none'}")
    edits = [value_edit(buffer, constant, reference=reference, tensor=tensor)]
    for entry in fields_of(buffer, op.message):
        if entry.number == _OPERATION_OUTPUTS and entry.wire == _BYTES:
            edits.append(text_edit(buffer, entry.span, 1, name))
        elif entry.number == ATTRIBUTES and entry.wire == _BYTES and key_of(buffer, entry) == "name":
            edits.append(_payload_edit(entry, field(1, "name") + field(2, text_value(name))))
    return splice(buffer, op.message, combined(edits)).tobytes()


def field_start(buffer: _codec.Buffer, number: int, span: Span, what: str) -> int:
    """Return where a length-delimited field begins whose payload is at `span`; `what` names it in messages.

    Raises: UnsupportedError: it is not encoded minimally.
    """
    offset, nbytes = span
    head = varint(number << 3 | _BYTES) + varint(nbytes)
    start = offset - len(head)
    if start < 0 or bytes(memoryview(buffer)[start:offset]) != head:
        message = f"{what}: expected its length in {len(head) - 1} bytes after its tag, got another form"
        raise UnsupportedError(message, offset=offset, file=buffer.name)
    return start


def function_edits(buffer: _codec.Buffer, program: Span, description: Span | None, keep: Collection[str]) -> list[Edit]:
    """Drop functions of a Program, and their entries in the ModelDescription. One that is left alone is the default.

    Raises: ProgramError: a name in `keep` is not a function, `keep` is empty, or several without the default function.
    """
    wanted, found = set(keep), []
    edits = []
    for entry in members_of(buffer, program, _PROGRAM_FUNCTIONS):
        found.append(text_of(buffer, entry.span, 1))
        if found[-1] not in wanted:
            edits.append(entry.replaced(b""))
    missing = sorted(wanted - set(found))
    if missing or not wanted:
        message = f"functions to keep: expected some of {', '.join(found)}, got {', '.join(missing) or 'none'}"
        raise ProgramError(message, file=buffer.name)
    described = fields_of(buffer, description) if description is not None else []
    listed = [f for f in described if f.number == _DESCRIPTION_FUNCTIONS and f.wire == _BYTES]
    if not listed:  # a model of one function
        return edits
    edits += [f.replaced(b"") for f in listed if text_of(buffer, f.span, 1) not in wanted]
    defaults = [f for f in described if f.number == _DESCRIPTION_DEFAULT and f.wire == _BYTES]
    old = text_of(buffer, description, _DESCRIPTION_DEFAULT) if description is not None else ""
    if old not in wanted and len(wanted) > 1:
        message = f"functions to keep: expected one, or several with the default function {old!r}"
        raise ProgramError(f"{message}, got {', '.join(sorted(wanted))}", file=buffer.name)
    new = old if old in wanted else next(iter(wanted))
    if new != old and defaults:
        edits.append(defaults[-1].replaced(field(_DESCRIPTION_DEFAULT, new)))
    elif new != old:  # after the description of a kept function
        last = next(f for f in reversed(listed) if text_of(buffer, f.span, 1) in wanted)
        data = _bytes(buffer, last) + field(_DESCRIPTION_DEFAULT, new)
        edits.append(last.replaced(data))
    return edits


def combined(edits: Iterable[Edit | None]) -> list[Edit]:
    """Merge edits: in order, without repetitions, and without those inside a range that another one removes.

    Raises: ProgramError: two edits conflict.
    """
    result: list[Edit] = []
    ordered = sorted(  # removals before others of the same range
        (e for e in edits if e is not None), key=lambda e: (e.offset, -e.nbytes, _view(e.data).nbytes > 0)
    )
    for edit in ordered:
        last = result[-1] if result else None
        if last is None or edit.offset >= last.offset + last.nbytes:
            result.append(edit)
            continue
        same = edit[:2] == last[:2] and _view(edit.data) == _view(last.data)
        if not same and (_view(last.data).nbytes or edit.offset + edit.nbytes > last.offset + last.nbytes):
            message = f"edits: expected one of bytes {last.offset} to {last.offset + last.nbytes}, got another inside"
            raise ProgramError(message, offset=edit.offset)
    return result


def key_of(buffer: _codec.Buffer, entry: Field) -> str:
    """Return the key of a map entry whose keys are strings."""
    return text_of(buffer, entry.span, 1)


def text_of(buffer: _codec.Buffer, span: Span, number: int) -> str:
    """Return a string field of a message, "" if it is absent; the last one of several counts."""
    fields = members_of(buffer, span, number)
    return str(memoryview(buffer)[fields[-1].offset : fields[-1].end], "utf-8", "replace") if fields else ""


def text_edit(buffer: _codec.Buffer, span: Span, number: int, text: str) -> Edit | None:
    """Set a string field of a message, which may be absent if the message has another.

    Returns: None if it already has that value.
    Raises: ProgramError: the message has no fields, so there is nothing to put the new one beside.
    """
    if text_of(buffer, span, number) == text:
        return None
    fields = fields_of(buffer, span)
    own = [f for f in fields if f.number == number and f.wire == _BYTES]
    if own:
        return _payload_edit(own[-1], text.encode())
    if not fields:
        raise ProgramError(f"field {number}: expected a message with others, got an empty one", file=buffer.name)
    return fields[0].replaced(field(number, text) + _bytes(buffer, fields[0]))


# ------------------------------------------------------------------------------------------------------------- helpers


def _member(buffer: _codec.Buffer, span: Span, number: int) -> Field:
    """Return the one field of a message that holds a sub-message; the scan has found it before."""
    fields = members_of(buffer, span, number)
    if len(fields) != 1:
        message = f"field {number}: expected one, got {len(fields)}"
        raise ProgramError(message, offset=span[0], file=buffer.name)
    return fields[0]


def _with_field(data: bytes, number: int, new: bytes) -> bytes:
    """Replace the last field of that number, which is the valid one, or append it; all others are kept."""
    fields = [f for f in fields_of(_codec.Buffer(data), (0, len(data))) if f.number == number]
    if not fields:
        return new + data if number == 1 else data + new
    return data[: fields[-1].start] + new + data[fields[-1].end :]


def _payload_edit(message: Field, data: Any) -> Edit:
    """Replace the payload of a length-delimited field; if that is empty, the whole field, as no range is empty."""
    if message.nbytes:
        return Edit(message.offset, message.nbytes, data)
    return message.replaced(field(message.number, data))


def _bytes(buffer: _codec.Buffer, entry: Field) -> bytes:
    """A whole field, tag included."""
    return bytes(memoryview(buffer)[entry.start : entry.end])


def _view(data: Any) -> memoryview:
    """A bytes-like object as a memoryview of bytes."""
    return memoryview(_codec.Buffer(data))


def _kind(constant: _codec.Constant) -> str:
    return {_codec.IMMEDIATE: "an immediate", _codec.NAME: "a name that is read"}.get(constant.storage, "another")
