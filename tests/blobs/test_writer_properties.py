"""BlobWriter, by hypothesis: any records in any layout, written in any way, are the bytes of tests/support/reference.py."""

import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import milblob
import reference
from blob_files import BLOB_DTYPES, blob_file
from dtype_values import NUMPY
from thorough import PROFILE


def spread(array, step):
    out = np.zeros(array.size * step + 1, array.dtype)
    out[1::step] = array
    return out[1::step]


def unaligned(array):
    out = np.empty(array.nbytes + 1, np.uint8)
    out[1:] = array.view(np.uint8)
    return out[1:].view(array.dtype)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def matrix(array):
    columns = next(n for n in (6, 5, 4, 3, 2, 1) if array.size % n == 0)
    return array.reshape(-1, columns)


LAYOUTS = {
    "as it is": lambda a: a,
    "strided": lambda a: spread(a, 2),
    "wide strides": lambda a: spread(a, 7),
    "reversed": lambda a: a[::-1].copy()[::-1],
    "byte-swapped": lambda a: a.astype(a.dtype.newbyteorder(">")) if a.dtype.kind in "fiu" else a,
    "swapped and strided": lambda a: spread(a.astype(a.dtype.newbyteorder(">")) if a.dtype.kind in "fiu" else a, 3),
    "read-only": read_only,
    "unaligned": unaligned,
    "Fortran": lambda a: np.asfortranarray(matrix(a)),
    "three axes": lambda a: np.ascontiguousarray(matrix(a)[:, None, :].transpose(2, 1, 0)).transpose(2, 1, 0),
    "0-d": lambda a: a.reshape(()) if a.size == 1 else a,
    "memoryview": lambda a: memoryview(a) if a.dtype.isbuiltin == 1 else a,
    "list": lambda a: a.tolist() if a.dtype.kind in "iu" else a,
    "wider": lambda a: a.astype(np.int64) if a.dtype.kind in "iu" or a.dtype == ml_dtypes.int4 else a,
    "subclass": lambda a: a.view(np.matrix) if a.dtype.isbuiltin == 1 else a,
}  # fmt: skip


@st.composite
def records(draw):
    dtype = draw(st.sampled_from(BLOB_DTYPES))
    nbits = reference.DTYPES[dtype][2]
    count = draw(st.sampled_from([0, 1, 2, 3, 6, 8, 9, 60]))
    if nbits < 8:
        array = draw(hnp.arrays(np.uint8, count, elements=st.integers(0, (1 << nbits) - 1)))
    else:
        array = np.frombuffer(draw(st.binary(min_size=count * nbits // 8, max_size=count * nbits // 8)), np.uint8)
    ways = ["write", "write", "write_packed", "reserve", "copy"] + ["write_many"] * (dtype not in ("UINT3", "UINT6"))
    return dtype, array.view(NUMPY[dtype]), draw(st.sampled_from(list(LAYOUTS))), draw(st.sampled_from(ways))


def put(blobs, dtype, array, layout, way):
    """Write one record the given way; return its offset."""
    if way == "write":
        return blobs.write(LAYOUTS[layout](array), dtype)
    if way == "write_many":
        plain = layout in ("memoryview", "list", "wider")
        return blobs.write_many([array if plain else LAYOUTS[layout](array)])[0]
    file, (offset,) = blob_file((dtype, array))
    with milblob.BlobReader(file) as source:
        if way == "copy":
            return blobs.copy(source, offset)
        data = source.read_packed(offset)
    if way == "write_packed":
        return blobs.write_packed(data, dtype, array.size)
    offset = blobs.reserve(data.nbytes, dtype, array.size)
    cut = data.nbytes // 3
    blobs.fill(offset, data[cut:], cut)
    blobs.fill(offset, data[:cut])
    return offset


@PROFILE
@given(st.lists(records(), max_size=8), st.lists(records(), max_size=3))
def test_however_it_comes(tmp_path_factory, first, second):
    """Any records in any layout, written any way and appended to: the bytes of the reference."""
    path = tmp_path_factory.mktemp("any") / "weight.bin"
    expected, offsets = blob_file(*((dtype, array) for dtype, array, _, _ in first + second))
    with milblob.BlobWriter(path, sync=False) as blobs:
        found = [put(blobs, *record) for record in first]
    with milblob.BlobWriter(path, "a", sync=False) as blobs:
        found += [put(blobs, *record) for record in second]
    assert path.read_bytes() == expected and found == offsets
