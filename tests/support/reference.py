"""The slow, obvious codec: every byte rule of blob v2, TensorValue and protobuf wire, in plain loops. The test oracle.

Imports neither milblob nor coremltools. Elements are Python numbers, except float16, bfloat16 and the fp8 types,
which stay raw bits (unsigned integers): there is no Python number for them, and NaN payloads must survive.
"""

import struct

SENTINEL = 0xDEADBEEF
# name: (blob code or None, MIL DataType, bits, kind); kind: i signed, u unsigned, f float, r raw bits, b bool, s string
DTYPES = {
    "BOOL": (None, 1, 8, "b"), "STRING": (None, 2, 0, "s"),
    "FLOAT16": (1, 10, 16, "r"), "FLOAT32": (2, 11, 32, "f"), "FLOAT64": (None, 12, 64, "f"),
    "INT8": (4, 21, 8, "i"), "INT16": (6, 22, 16, "i"), "INT32": (14, 23, 32, "i"), "INT64": (None, 24, 64, "i"),
    "INT4": (8, 25, 4, "i"), "BFLOAT16": (5, 13, 16, "r"),
    "UINT8": (3, 31, 8, "u"), "UINT16": (7, 32, 16, "u"), "UINT32": (15, 33, 32, "u"), "UINT64": (None, 34, 64, "u"),
    "UINT4": (11, 35, 4, "u"), "UINT2": (10, 36, 2, "u"), "UINT1": (9, 37, 1, "u"), "UINT6": (13, 38, 6, "u"),
    "UINT3": (12, 39, 3, "u"),
    "FLOAT8E4M3FN": (16, 40, 8, "r"), "FLOAT8E5M2": (17, 41, 8, "r"),
}  # fmt: skip
BLOB_CODES = {row[0]: name for name, row in DTYPES.items() if row[0] is not None}
FIELDS = {1: "floats", 2: "ints", 3: "bools", 4: "strings", 5: "longInts", 6: "doubles", 7: "bytes"}


def align64(n):
    """Rounds up to a multiple of 64."""
    return (n + 63) // 64 * 64


def pack_elements(values, dtype):
    """Packs numbers into bytes: one bit stream, least significant bit first, little-endian, unused high bits zero."""
    _, _, nbits, kind = DTYPES[dtype]
    if kind == "f":
        return b"".join(struct.pack("<f" if nbits == 32 else "<d", value) for value in values)
    low = -(1 << nbits - 1) if kind == "i" else 0
    for i, value in enumerate(values):
        if not low <= value < low + (1 << nbits):
            raise ValueError(f"element {i}: {value} does not fit {dtype}")
    bits = "".join(f"{value & (1 << nbits) - 1:0{nbits}b}" for value in reversed(values))
    return int(bits or "0", 2).to_bytes((len(bits) + 7) // 8, "little")


def unpack_elements(data, dtype, count):
    """Unpacks `count` numbers from bytes; the inverse of pack_elements."""
    _, _, nbits, kind = DTYPES[dtype]
    if len(data) != (count * nbits + 7) // 8:
        raise ValueError(f"{count} x {dtype} is {(count * nbits + 7) // 8} bytes, got {len(data)}")
    if kind == "f":
        size = nbits // 8
        return [struct.unpack("<f" if size == 4 else "<d", data[i * size : (i + 1) * size])[0] for i in range(count)]
    bits = f"{int.from_bytes(data, 'little'):0{8 * len(data)}b}"
    values = [int(bits[len(bits) - (i + 1) * nbits : len(bits) - i * nbits], 2) for i in range(count)]
    return [v - (1 << nbits) if kind == "i" and v >> nbits - 1 else v for v in values]


def write_blobs(records):
    """Returns (blob v2 file bytes, metadata offset of each record) for (dtype name, elements) pairs."""
    out, offsets = bytearray(64), []
    for dtype, values in records:
        data = pack_elements(values, dtype)
        out += bytes(align64(len(out)) - len(out))
        offsets.append(len(out))
        padding_nbits = 8 * len(data) - len(values) * DTYPES[dtype][2]
        out += struct.pack("<IIQQQ32x", SENTINEL, DTYPES[dtype][0], len(data), len(out) + 64, padding_nbits) + data
    struct.pack_into("<II", out, 0, len(records), 2)
    return bytes(out), offsets


def read_blob(file, offset):
    """Returns (dtype name, elements, data offset, nbytes) of the record whose metadata is at `offset`."""
    sentinel, code, nbytes, data_offset, padding_nbits = struct.unpack_from("<IIQQQ", file, offset)
    if sentinel != SENTINEL or code not in BLOB_CODES or data_offset + nbytes > len(file):
        raise ValueError(f"no good record at {offset}")
    dtype = BLOB_CODES[code]
    nbits = DTYPES[dtype][2]
    if nbits >= 8:
        padding_nbits = 0  # meaningful for sub-byte dtypes only; old writers left garbage here
    if (8 * nbytes - padding_nbits) % nbits or not 0 <= padding_nbits < 8 or padding_nbits > 8 * nbytes:
        raise ValueError(f"no whole number of elements at {offset}")
    count = (8 * nbytes - padding_nbits) // nbits
    return dtype, unpack_elements(file[data_offset : data_offset + nbytes], dtype, count), data_offset, nbytes


def walk_blobs(file):
    """Yields the metadata offset of every record, in file order."""
    count, version = struct.unpack_from("<II", file, 0)
    if version != 2:
        raise ValueError(f"version {version}")
    offset = 64
    for _ in range(count):
        yield offset
        nbytes, data_offset = struct.unpack_from("<QQ", file, offset + 8)
        offset = align64(data_offset + nbytes)


_SHORT = [bytes([value]) for value in range(0x80)]


def write_varint(value):
    """Encodes an int32, int64, uint64 or bool; a negative number is its 64-bit two's complement, so always 10 bytes."""
    if 0 <= value <= 0x7F:  # most are
        return _SHORT[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def read_varint(data, at):
    """Decodes one varint as an unsigned 64-bit number (bits past 64 are dropped, as protobuf does); 10 bytes at most.

    Returns:
        (value, offset after it).
    """
    value = 0
    for i in range(10):
        if at + i >= len(data):
            raise ValueError(f"varint cut off at {at}")
        value |= (data[at + i] & 0x7F) << 7 * i
        if data[at + i] < 0x80:
            return value & (1 << 64) - 1, at + i + 1
    raise ValueError(f"varint of more than 10 bytes at {at}")


def as_int(value, nbits):
    """Takes the low `nbits` as two's complement: what int32 (32) and int64 (64) fields do with a varint."""
    value &= (1 << nbits) - 1
    return value - (1 << nbits) if value >> nbits - 1 else value


def write_field(number, value):
    """Encodes one field: int or bool as varint, float as fixed32, bytes or str length-delimited."""
    if isinstance(value, int):
        return write_varint(number << 3) + write_varint(value)
    if isinstance(value, float):
        return write_varint(number << 3 | 5) + struct.pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return write_varint(number << 3 | 2) + write_varint(len(value)) + value


def read_fields(data):
    """Splits message bytes into a list of (number, wire type, value): int for wire 0, bytes for 1, 2 and 5."""
    fields, at = [], 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = read_varint(data, at)
        elif wire in (1, 2, 5):
            size, at = read_varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            if size > len(data) - at:
                raise ValueError(f"field {number} runs past the end at {at}")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire} at {at}")
        if not 0 < number < 1 << 29:
            raise ValueError(f"field number {number}")
        fields.append((number, wire, value))
    return fields


def unpack_tensor_value(data):
    """Decodes a TensorValue: the last oneof member wins, pieces of that same member merge.

    Returns:
        (field name or None, values); `bytes` gives one bytes object.
    """
    field, values = None, []
    for number, wire, message in read_fields(data):
        if number not in FIELDS or wire != 2:
            continue
        if FIELDS[number] != field:
            field, values = FIELDS[number], b"" if number == 7 else []
        for inner, inner_wire, value in read_fields(message):
            if inner == 1 and field == "bytes" and inner_wire == 2:
                values = value  # a singular field: the last one wins
            elif inner == 1 and field == "strings" and inner_wire == 2:
                values.append(value.decode())
            elif inner == 1 and field in ("floats", "doubles") and inner_wire in (2, 5 if field == "floats" else 1):
                code, size = ("<f", 4) if field == "floats" else ("<d", 8)
                values += [struct.unpack_from(code, value, i)[0] for i in range(0, len(value), size)]
            elif inner == 1 and field in ("ints", "longInts", "bools") and inner_wire in (0, 2):
                at, raw = 0, [value] if inner_wire == 0 else []
                while inner_wire == 2 and at < len(value):
                    number64, at = read_varint(value, at)
                    raw.append(number64)
                values += [bool(v) if field == "bools" else as_int(v, 32 if field == "ints" else 64) for v in raw]
    return field, values


def pack_tensor_value(field, values):
    """Encodes a TensorValue as protobuf does: packed, but strings one field each; no values give no field 1."""
    number = next(n for n, name in FIELDS.items() if name == field)
    if field == "strings":
        return write_field(number, b"".join(write_field(1, value) for value in values))
    if field in ("floats", "doubles"):
        values = b"".join(struct.pack("<f" if field == "floats" else "<d", value) for value in values)
    elif field != "bytes":
        values = b"".join(write_varint(value) for value in values)
    return write_field(number, write_field(1, values) if values else b"")
