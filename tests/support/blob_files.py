"""Weight files: by tests/support/reference.py, and by BlobWriter."""

import struct

import numpy as np

import milblob
import reference
from dtype_values import NUMPY, numbers

BLOB_DTYPES = [name for name, row in reference.DTYPES.items() if row[0] is not None]
RANDOM = np.random.default_rng(5)


def blob_file(*records):
    """A blob file of (dtype, array) pairs by tests/support/reference.py: (bytes, metadata offsets)."""
    bits = [("UINT32" if dtype == "FLOAT32" else dtype, array) for dtype, array in records]
    data, offsets = reference.write_blobs(
        [(dtype, numbers(array.view("<u4") if array.dtype == "<f4" else array, dtype)) for dtype, array in bits]
    )
    data = bytearray(data)
    for (dtype, _), offset in zip(records, offsets, strict=True):
        struct.pack_into("<I", data, offset + 4, reference.DTYPES[dtype][0])
    return bytes(data), offsets


def values_of(dtype, count, random=RANDOM):
    """Random elements of a dtype as milblob has them; all bit patterns."""
    nbits = reference.DTYPES[dtype][2]
    if nbits < 8:
        return random.integers(0, 1 << nbits, count, np.uint8).view(NUMPY[dtype])
    return np.frombuffer(random.bytes(count * nbits // 8), np.uint8).view(NUMPY[dtype])


def written(path, *calls, **options):
    """The bytes of a new file, and what each call on its writer returned."""
    with milblob.BlobWriter(path, sync=False, **options) as blobs:
        results = [call(blobs) for call in calls]
    return path.read_bytes(), results
