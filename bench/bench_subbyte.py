"""64M elements of 1, 2, 3, 4 and 6 bits: one byte each from packed bits, and packed again with every element checked.

milblob and coremltools unpack from a mapped weight file, NumPy from an array in memory. coremltools packs on its way to a
file, which lies in memory here if the system has /dev/shm. What cannot be beaten is filling a fresh array of the result's
size, where the kernel clears its pages first, and memcpy where the memory is there already.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import milblob
from conftest import Made, scaled
from milblob import _codec

COUNT = scaled(1 << 26, 1 << 12) // 8 * 8
RANGES = {"uint1": (0, 1), "uint2": (0, 3), "uint3": (0, 7), "uint4": (0, 15), "uint6": (0, 63), "int4": (-8, 7)}
FILL, COPY, FRESH = "fill of a fresh array", "memcpy", "copy to a fresh array"
CTOOLS_READER, CTOOLS_WRITER = "coremltools: _BlobStorageReader", "coremltools: _BlobStorageWriter"
AT = 64
"""Offset of the first record of a file."""

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """Elements of one dtype, one byte each and packed, and a weight file of them that coremltools wrote.

    Attributes:
        values: uint8, or int8 for int4.
        packed: the bytes that the file holds.
        there: uint8, memory of the size of the values that is resident already.
    """

    dtype: str
    nbits: int
    values: Array
    packed: Array
    path: Path
    there: Array

    def job(self, verb: str) -> str:
        return f"{verb} {COUNT / 2**20:.3g}M elements of {self.dtype}"

    def check(self, result: Array) -> None:
        """Compare every element; int4 may be sign-extended or not."""
        mask = (1 << self.nbits) - 1
        assert result.size == COUNT
        assert np.array_equal(result.reshape(-1).view(np.uint8) & mask, self.values.view(np.uint8) & mask)

    def check_packed(self, result: Any) -> None:
        assert np.array_equal(np.frombuffer(result, np.uint8), self.packed)


@pytest.fixture(scope="module", params=list(RANGES))
def case(request: Any, made: Made) -> Case:
    from coremltools.libmilstoragepython import _BlobStorageWriter

    dtype = request.param
    low, high = RANGES[dtype]
    values = np.random.default_rng(6).integers(low, high + 1, COUNT, np.int8 if low else np.uint8)

    def write(path: Path) -> None:
        getattr(_BlobStorageWriter(str(path)), f"write_{dtype}_data")(values)

    path = made(f"subbyte-{dtype}.bin", write)
    with milblob.BlobReader(path) as blobs:
        packed = blobs.read_packed(AT).copy()
    return Case(dtype, int(dtype[-1]), values, packed, path, np.ones(COUNT, np.uint8))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory where the system has one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


# --------------------------------------------------------------------------------------------------------- NumPy's ways


def table_of(nbits: int, index_nbits: int) -> Array:
    """Elements of nbits, one byte each, for every pattern of index_nbits; together one integer."""
    patterns = np.arange(1 << index_nbits)[:, None] >> np.arange(0, index_nbits, nbits) & (1 << nbits) - 1
    return np.ascontiguousarray(patterns.astype(np.uint8)).view(f"<u{index_nbits // nbits}").reshape(-1)


def numpy_unpack(packed: Array, nbits: int) -> Array:
    """The fastest ways found: unpackbits; a table for each byte; a table for twelve bits of three bytes."""
    if nbits == 1:
        return np.unpackbits(packed, bitorder="little")
    if 8 % nbits == 0:
        return table_of(nbits, 8)[packed].view(np.uint8)
    table, threes = table_of(nbits, 12), packed.reshape(-1, 3)
    out = np.empty((len(threes), 2), table.dtype)
    middle = threes[:, 1].astype(np.uint16)
    out[:, 0] = table[threes[:, 0] | (middle & 15) << 8]
    out[:, 1] = table[middle >> 4 | threes[:, 2].astype(np.uint16) << 4]
    return out.reshape(-1).view(np.uint8)


def numpy_pack(values: Array, nbits: int) -> Array:
    """Neighbours joined in wide integers; every element is checked."""
    low = -(1 << nbits - 1) if values.dtype == np.int8 else 0
    if values.min() < low or values.max() >= low + (1 << nbits):
        raise OverflowError
    elements = values.view(np.uint8)
    if low:
        elements = elements & (1 << nbits) - 1
    if nbits == 1:
        return np.packbits(elements, bitorder="little")
    if nbits == 4:
        pairs = elements.view("<u2")
        return (pairs | pairs >> 4).astype(np.uint8)
    if nbits == 2:
        fours = elements.view("<u4")
        return (fours | fours >> 6 | fours >> 12 | fours >> 18).astype(np.uint8)
    word = elements.view("<u8")
    for width, places in ((8, 0x0001000100010001), (16, 0x0000000100000001), (32, 1)):
        used = nbits * width // 8
        ones = ((1 << used) - 1) * places
        word = (word & ones) | (word >> (width - used) & ones << used)
    return np.ascontiguousarray(word.view(np.uint8).reshape(-1, 8)[:, :nbits]).reshape(-1)


# --------------------------------------------------------------------------------------------------------------- unpack


def bench_unpack(row: Any, case: Case) -> None:
    with milblob.BlobReader(case.path) as blobs:
        targets = {FILL: 1.25, CTOOLS_READER: 1 / 20}
        options = {"role": "milblob", "targets": targets, "nbytes": COUNT}
        row(case.job("unpack"), "milblob: read", lambda: blobs.read(AT), check=case.check, **options)


def bench_unpack_out(row: Any, case: Case) -> None:
    dtype = milblob.DType[case.dtype.upper()].numpy
    with milblob.BlobReader(case.path) as blobs:
        options = {"role": "milblob", "targets": {COPY: 1.25}, "nbytes": COUNT}
        out = case.there.view(dtype)
        row(case.job("unpack"), "milblob: read(out=)", lambda: blobs.read(AT, out=out), check=case.check, **options)


def bench_unpack_fill(row: Any, case: Case) -> None:
    def fill() -> Array:
        out = np.empty(COUNT, np.uint8)
        out.fill(1)
        return out

    row(case.job("unpack"), FILL, fill, check=lambda out: None, role="limit", nbytes=COUNT)


def bench_unpack_copy(row: Any, case: Case) -> None:
    def copy() -> Array:
        np.copyto(case.there, case.values.view(np.uint8))
        return case.there

    row(case.job("unpack"), COPY, copy, check=case.check, role="limit", nbytes=COUNT)


def bench_unpack_coremltools(row: Any, case: Case) -> None:
    from coremltools.libmilstoragepython import _BlobStorageReader

    read = getattr(_BlobStorageReader(str(case.path)), f"read_{case.dtype}_data")
    row(case.job("unpack"), CTOOLS_READER, lambda: np.asarray(read(AT)), check=case.check, nbytes=COUNT)


def bench_unpack_numpy(row: Any, case: Case) -> None:
    run = lambda: numpy_unpack(case.packed, case.nbits)  # noqa: E731
    row(case.job("unpack"), "NumPy", run, check=case.check, nbytes=COUNT)


def bench_unpack_ml_dtypes(row: Any, case: Case) -> None:
    if case.dtype != "int4":
        return  # it unpacks nothing; to int8 is the nearest that it does
    nibbles = case.values.astype(ml_dtypes.int4)
    options = {"check": case.check, "role": "aside", "note": "from one byte each", "nbytes": COUNT}
    row(case.job("unpack"), "ml_dtypes: astype(int8)", lambda: nibbles.astype(np.int8), **options)


# ----------------------------------------------------------------------------------------------------------------- pack


def bench_pack(row: Any, case: Case) -> None:
    """What `BlobWriter.write` and `pack_tensor` call, into memory that is there."""
    out = np.ones(case.packed.size, np.uint8)
    low, high = RANGES[case.dtype]

    def run() -> Array:
        _codec.pack_bits(case.values, out, case.nbits, low, high)
        return out

    options = {"role": "milblob", "targets": {COPY: 1.5, CTOOLS_WRITER: 1 / 10}, "nbytes": COUNT}
    row(case.job("pack"), "milblob: the kernel", run, check=case.check_packed, **options)


def bench_pack_tensor(row: Any, case: Case) -> None:
    options = {"role": "milblob", "targets": {FRESH: 1.5}, "nbytes": COUNT}

    def check(result: bytes) -> None:
        case.check_packed(result[-case.packed.size :])

    run = lambda: milblob.pack_tensor(case.values, case.dtype)  # noqa: E731
    row(case.job("pack"), "milblob: pack_tensor", run, check=check, **options)


def bench_pack_copy(row: Any, case: Case) -> None:
    def copy() -> Array:
        np.copyto(case.there, case.values.view(np.uint8))
        return case.there

    row(case.job("pack"), COPY, copy, check=case.check, role="limit", nbytes=COUNT, note="of the unpacked elements")


def bench_pack_fresh(row: Any, case: Case) -> None:
    row(case.job("pack"), FRESH, lambda: case.values.copy(), check=case.check, role="limit", nbytes=COUNT)


def bench_pack_coremltools(row: Any, case: Case, scratch: Path) -> None:
    from coremltools.libmilstoragepython import _BlobStorageWriter

    path = scratch / "weight.bin"

    def write() -> Path:
        path.unlink(missing_ok=True)
        getattr(_BlobStorageWriter(str(path)), f"write_{case.dtype}_data")(case.values)
        return path

    def check(_: Path) -> None:
        with milblob.BlobReader(path) as blobs:
            case.check_packed(blobs.read_packed(AT))

    row(case.job("pack"), CTOOLS_WRITER, write, check=check, nbytes=COUNT, note="writes a file")


def bench_pack_numpy(row: Any, case: Case) -> None:
    run = lambda: numpy_pack(case.values, case.nbits)  # noqa: E731
    row(case.job("pack"), "NumPy", run, check=case.check_packed, nbytes=COUNT)
