"""Bare blob v2 files: written by coremltools' storage writer where it can, by tests/support/reference.py where it cannot."""

import os
import struct
import sys

import numpy as np
from coremltools.libmilstoragepython import _BlobStorageWriter

import record

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import reference

# dtype name -> (writer method, array type it takes). All 14 that coremltools 9.0 has.
WRITABLE = {
    "FLOAT16": ("fp16", np.uint16), "FLOAT32": ("float", np.float32), "INT8": ("int8", np.int8),
    "INT16": ("int16", np.int16), "INT32": ("int32", np.int32), "UINT8": ("uint8", np.uint8),
    "UINT16": ("uint16", np.uint16), "UINT32": ("uint32", np.uint32), "INT4": ("int4", np.int8),
    "UINT1": ("uint1", np.uint8), "UINT2": ("uint2", np.uint8), "UINT3": ("uint3", np.uint8),
    "UINT4": ("uint4", np.uint8), "UINT6": ("uint6", np.uint8),
}  # fmt: skip
SUB_BYTE = ["UINT1", "UINT2", "UINT3", "UINT4", "INT4", "UINT6"]


def random_values(rng, dtype, count):
    """Random elements over the whole range of a dtype: for floats all bit patterns, NaN and infinities included."""
    _, _, nbits, kind = reference.DTYPES[dtype]
    if kind == "f":
        return rng.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    low = -(1 << nbits - 1) if kind == "i" else 0
    return rng.integers(low, low + (1 << nbits), count).astype(WRITABLE[dtype][1])


def write_all(path, records, append=False):
    """Writes (dtype, array) records with coremltools; returns their offsets."""
    writer = _BlobStorageWriter(path, not append)
    return [getattr(writer, f"write_{WRITABLE[dtype][0]}_data")(array) for dtype, array in records]


def describe(path, offsets, source):
    """Reads the metadata of each record with struct; values come from coremltools' reader where it has one."""
    with open(path, "rb") as file:
        data = file.read()
    rows, arrays = [], []
    for offset in offsets:
        _, code, nbytes, data_offset, padding = struct.unpack_from("<IIQQQ", data, offset)
        dtype = reference.BLOB_CODES[code]
        nbits = reference.DTYPES[dtype][2]
        count = (8 * nbytes - (padding if nbits < 8 else 0)) // nbits
        if dtype in WRITABLE and nbytes:
            values, reader = record.read_blob(path, offset, dtype), "coremltools"
        else:  # coremltools cannot read an empty record ("index out of bounds"), nor bfloat16 and fp8
            values, reader = np.array(reference.read_blob(data, offset)[1], record.STORED[dtype]), "reference"
        rows.append({
            "offset": offset, "dtype": dtype, "code": code, "nbytes": nbytes, "data_offset": data_offset,
            "padding_nbits": padding if nbits < 8 else 0, "count": count, "writer": source, "reader": reader,
        })  # fmt: skip
        arrays.append(values)
    return rows, arrays


def make_all_dtypes(folder):
    """Every dtype the writer has, at odd counts; the file ends off a 64 boundary."""
    rng = np.random.default_rng(1)
    records = [(dtype, random_values(rng, dtype, n)) for n in (1, 3, 17, 64, 65, 257) for dtype in WRITABLE]
    path = os.path.join(folder, "weight.bin")
    offsets = write_all(path, records)
    note = "every dtype coremltools can write, at counts 1 3 17 64 65 257; whole value range, NaN included"
    record.record_blobs(folder, ["weight.bin"], note, *describe(path, offsets, "coremltools"))


def make_sub_byte(folder):
    """Counts 1 to 20 of every sub-byte dtype."""
    rng = np.random.default_rng(2)
    records = [(dtype, random_values(rng, dtype, n)) for dtype in SUB_BYTE for n in range(1, 21)]
    path = os.path.join(folder, "weight.bin")
    offsets = write_all(path, records)
    note = "counts 1..20 of each sub-byte dtype"
    record.record_blobs(folder, ["weight.bin"], note, *describe(path, offsets, "coremltools"))


def make_empty(folder):
    """Records of no elements: the writer makes them, the reader refuses them."""
    records = [(dtype, np.zeros(0, WRITABLE[dtype][1])) for dtype in WRITABLE]
    records += [("INT8", np.arange(5, dtype=np.int8)), ("UINT3", np.zeros(0, np.uint8))]
    path = os.path.join(folder, "weight.bin")
    offsets = write_all(path, records)
    note = "empty records of every dtype, one 5-byte record, an empty record last"
    record.record_blobs(folder, ["weight.bin"], note, *describe(path, offsets, "coremltools"))


def make_appended(folder):
    """A file that a second writer continued."""
    path = os.path.join(folder, "weight.bin")
    offsets = write_all(path, [("FLOAT32", np.arange(5, dtype=np.float32)), ("INT8", np.arange(3, dtype=np.int8))])
    offsets += write_all(
        path, [("UINT3", np.arange(7, dtype=np.uint8)), ("FLOAT16", np.arange(3, dtype=np.uint16))], True
    )
    note = "two records, then two more by a writer opened with truncate_file=False"
    record.record_blobs(folder, ["weight.bin"], note, *describe(path, offsets, "coremltools"))


def make_handmade(folder):
    """Dtypes coremltools has no writer for, by tests/support/reference.py: every fp8 byte, many bfloat16 patterns."""
    rng = np.random.default_rng(3)
    records = [
        ("BFLOAT16", rng.integers(0, 1 << 16, 300).tolist()),
        ("FLOAT8E4M3FN", list(range(256))),
        ("FLOAT8E5M2", list(range(256))),
        ("BFLOAT16", [0x3F80]),
        ("BFLOAT16", []),
        ("FLOAT8E4M3FN", [0x38, 0x7F, 0x80]),
        ("FLOAT8E5M2", [0x7C, 0xFC, 0x7F, 0x01, 0x00]),
    ]
    data, offsets = reference.write_blobs(records)
    path = os.path.join(folder, "weight.bin")
    with open(path, "wb") as file:
        file.write(data)
    note = "bfloat16 and fp8, which coremltools 9.0 can neither write nor read; made by tests/support/reference.py"
    record.record_blobs(folder, ["weight.bin"], note, *describe(path, offsets, "reference"))


def make_garbage(folder):
    """What coremltools before 8.0 wrote: noise in bytes 24..63 of byte-sized records."""
    rng = np.random.default_rng(4)
    dtypes = [dtype for dtype in WRITABLE if reference.DTYPES[dtype][2] >= 8]
    records = [(dtype, random_values(rng, dtype, n)) for n in (1, 13, 32) for dtype in dtypes]
    path = os.path.join(folder, "weight.bin")
    offsets = write_all(path, records)
    with open(path, "rb") as file:
        data = bytearray(file.read())
    for offset in offsets:
        data[offset + 24 : offset + 64] = rng.bytes(40)
    with open(path, "wb") as file:
        file.write(data)
    note = "bytes 24..63 of every (byte-sized) record are noise, as coremltools < 8.0 left them"
    record.record_blobs(folder, ["weight.bin"], note, *describe(path, offsets, "coremltools, patched"))


def make_none(folder):
    """A file of no records: the header alone."""
    path = os.path.join(folder, "weight.bin")
    with open(path, "wb") as file:
        file.write(reference.write_blobs([])[0])
    record.record_blobs(folder, ["weight.bin"], "no record: 64 bytes of header, by tests/support/reference.py", [], [])


CASES = {
    "blob_all_dtypes": make_all_dtypes,
    "blob_sub_byte": make_sub_byte,
    "blob_empty": make_empty,
    "blob_appended": make_appended,
    "blob_handmade": make_handmade,
    "blob_garbage": make_garbage,
    "blob_none": make_none,
}
