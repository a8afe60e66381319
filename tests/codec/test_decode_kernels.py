"""The codec's decoding functions by themselves: what they refuse, and packages with bytes changed."""

import shutil

import numpy as np
import pytest

import milblob
from cases import model_directory
from milblob import _codec
from milblob.errors import FormatError
from paths import DATA
from thorough import sized

U8 = np.uint8
BYTES = _codec.Buffer(bytes(range(64)))
PLAIN = _codec.PackedElements(BYTES, 0, 64, 8)
NIBBLES = _codec.PackedElements(BYTES, 0, 128, 4)
SPARSE = _codec.PackedElements(BYTES, 0, 3, 8, False, _codec.Buffer(b"\x15\xff"), 0, 6)  # 1, 0, 1, 0, 1, 0
ONE = _codec.Grid((128,), (0,))


def scale(
    out,
    begin,
    count,
    elements=PLAIN,
    rank=0,
    grid=ONE,
    numbers=(BYTES, 0, _codec.FROM_F32),
    kinds=(_codec.FROM_U8, _codec.TO_F16),
):
    _codec.decode_scale(out, begin, count, elements, rank, grid, *numbers, None, 0, 0, *kinds)


def palette(out, begin, count, elements=NIBBLES, grid=ONE, entries=16, nbytes=2, vector=1, inner=1, buffer=BYTES, at=0):
    _codec.decode_palette(out, begin, count, elements, 0, grid, buffer, at, entries, nbytes, vector, inner)


def test_elements_must_be_there():
    for count, nbits in ((65, 8), (129, 4), (33, 16), (1 << 62, 64), ((1 << 64) - 1, 1), (1 << 63, 3)):
        with pytest.raises(FormatError, match="^(elements|bytes)"):
            _codec.PackedElements(BYTES, 0, count, nbits)
    for offset in (1, 64, 1 << 63, (1 << 64) - 8):
        with pytest.raises(FormatError, match="expected to lie inside the buffer"):
            _codec.PackedElements(BYTES, offset, 64, 8)
    with pytest.raises(FormatError, match="expected to lie inside"):
        _codec.PackedElements(BYTES, 0, 3, 8, False, BYTES, 60, 33)
    for nbits in (0, 9, 12, 128):
        with pytest.raises(ValueError, match="^nbits: expected 1 to 8, 16, 32 or 64, got"):
            _codec.PackedElements(BYTES, 0, 1, nbits)


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [((), ()), ((1,) * 161, (0,) * 161), ((2, 3), (1,)), ((0,), (0,)), ((2,), (-1,)), ((2,), (2,)), ((1 << 62, 2), (1, 1)),
     ((1 << 62, 1), (4, 1))],
)  # fmt: skip
def test_wrong_grids(sizes, strides):
    with pytest.raises(ValueError, match="expected"):
        _codec.Grid(sizes, strides)


def test_grids():
    grid = _codec.Grid((4, 3, 5), (3, 1, 0))
    assert (grid.count, grid.parameter_count) == (60, 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 65}, "^range: expected one inside 64 elements, got 65 at 0"),
        ({"begin": 60, "count": 5}, "^range: expected one inside 64 elements, got 5 at 60"),
        ({"begin": (1 << 64) - 1, "count": 4}, "^range: "),
        ({"elements": SPARSE, "count": 7}, "^range: expected one inside 6 elements, got 7 at 0"),
        ({"elements": SPARSE, "rank": 4}, "^rank: expected at most 3, got 4"),
        ({"grid": _codec.Grid((3,), (0,))}, "^range: expected one inside the grid's 3 elements, got 4 at 0"),
        ({"grid": _codec.Grid((17, 2), (1, 0))}, "^elements: expected at most 16, which the buffer holds, got 17"),
        ({"numbers": (BYTES, 61, _codec.FROM_F32)}, "expected to lie inside the buffer"),
        ({"numbers": (BYTES, 0, 4)}, r"^kind: expected FROM_\*, got 4"),
        ({"kinds": (_codec.FROM_F16, _codec.TO_F16)}, "^elements: expected those of kind 2, got 8 bits"),
        ({"kinds": (_codec.FROM_F32, _codec.TO_F16)}, "^elements: expected those of kind 3, got 8 bits"),
        ({"kinds": (4, 0)}, r"^kinds: expected FROM_\* and TO_\*, got 4 and 0"),
        ({"kinds": (0, 3)}, r"^kinds: expected FROM_\* and TO_\*, got 0 and 3"),
        ({"kinds": (0, _codec.TO_F32)}, "^out: expected 4 elements of 4 bytes, got 8 bytes"),
    ],
)
def test_what_decode_scale_refuses(options, words):
    arguments = {"begin": 0, "count": 4, **options}
    with pytest.raises(ValueError, match=words):
        scale(np.zeros(8, U8), **arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"entries": 15}, "^palette: expected indices of at most 8 bits, entries for all of them"),
        ({"elements": _codec.PackedElements(BYTES, 0, 32, 4, True)}, "^palette: expected indices without a sign"),
        ({"entries": 257}, "^palette: expected"),
        ({"nbytes": 3}, "^palette: expected"),
        ({"elements": _codec.PackedElements(BYTES, 0, 32, 16)}, "^palette: expected"),
        ({"vector": 0}, "^inner: expected a divisor of the range"),
        ({"inner": 0}, "^inner: "),
        ({"inner": 2}, "^inner: "),
        ({"vector": 2, "inner": 3}, "^inner: "),
        ({"vector": 65}, "^palette: expected vectors of 65 elements, got 64 bytes"),
        ({"vector": 1 << 63}, "^palette: expected vectors of"),
        ({"vector": 3}, "^elements: expected at most 10, which the buffer holds, got 16"),
        ({"at": 40}, "expected to lie inside the buffer"),
        ({"grid": _codec.Grid((3, 4), (1, 0))}, "^elements: expected at most 2, which the buffer holds, got 3"),
        ({"grid": _codec.Grid((3,), (0,))}, "^range: expected one inside the grid's 3 elements"),
        ({"count": 5}, "^out: expected 5 elements of 2 bytes, got 8 bytes"),
    ],
)
def test_what_decode_palette_refuses(options, words):
    arguments = {"begin": 0, "count": 4, **options}
    with pytest.raises(ValueError, match=words):
        palette(np.zeros(8, U8), **arguments)


def test_what_decode_sparse_refuses():
    out = np.zeros(6, U8)
    _codec.decode_sparse(out, 0, 6, SPARSE, 0)
    assert out.tolist() == [0, 0, 1, 0, 2, 0]
    with pytest.raises(ValueError, match="^elements: expected a mask, got none"):
        _codec.decode_sparse(out, 0, 6, PLAIN, 0)
    with pytest.raises(ValueError, match="^out: expected 5 elements of 1 bytes, got 6 bytes"):
        _codec.decode_sparse(out, 0, 5, SPARSE, 0)
    with pytest.raises((BufferError, ValueError)):
        _codec.decode_sparse(bytes(6), 0, 6, SPARSE, 0)


def test_a_mask_that_changes_is_noticed(tier):
    """Counted when the weight was opened, and again while it is read: a mapped file may change in between."""
    mask = np.array([0x15], U8)
    elements = _codec.PackedElements(BYTES, 0, 3, 8, False, _codec.Buffer(mask), 0, 6)
    mask[0] = 0x1F
    words = "^set bits of the mask: expected 3, got 5"
    with pytest.raises(FormatError, match=words):
        _codec.decode_sparse(np.zeros(6, U8), 0, 6, elements, 0)
    with pytest.raises(FormatError, match=words):
        scale(np.zeros(12, U8), 0, 6, elements)
    with pytest.raises(FormatError, match=words):
        palette(np.zeros(6, U8), 0, 6, elements, entries=256, nbytes=1, buffer=_codec.Buffer(bytes(256)))


def test_count_ones(tier):
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, 300, U8)
    bits = np.unpackbits(data, bitorder="little")
    buffer = _codec.Buffer(data)
    for begin, count in [(0, 0), (0, 2400), (2400, 0), *rng.integers(0, 1200, (200, 2)).tolist()]:
        assert _codec.count_ones(buffer, 0, begin, count) == bits[begin : begin + count].sum()
    assert _codec.count_ones(buffer, 10, 3, 100) == bits[83:183].sum()
    for begin, count in ((0, 2401), (2401, 0), ((1 << 64) - 1, 0), (1 << 63, 1)):
        with pytest.raises(FormatError):
            _codec.count_ones(buffer, 0, begin, count)
    with pytest.raises(ValueError, match=r"^bits: expected fewer than 2\^64"):
        _codec.count_ones(buffer, 0, (1 << 64) - 1, 1)


@pytest.mark.parametrize("case", ["matrix_ios16", "matrix_blockwise", "matrix_palettes", "matrix_chains"])
def test_changed_bytes(case, tmp_path):
    """Bytes of the Program or of the weights are changed at random: values, or an error of ours."""
    path = shutil.copytree(DATA / case / "model.mlpackage", tmp_path / "m.mlpackage")
    folder = model_directory(path)
    rng = np.random.default_rng(12)
    outcomes = {"values": 0, "errors": 0}
    for file in (folder / "model.mlmodel", folder / "weights" / "weight.bin"):
        good = np.frombuffer(file.read_bytes(), U8)
        for _ in range(sized(10, 40)):
            bad = good.copy()
            bad[rng.integers(0, len(bad), 20)] = rng.integers(0, 256, 20)
            file.write_bytes(bad.tobytes())
            try:
                with milblob.open(path) as model:
                    for tensor in model.values():
                        try:
                            assert tensor.read().shape == tensor.shape
                            tensor[-1:]
                            outcomes["values"] += 1
                        except milblob.MilblobError as error:
                            assert "\n" not in str(error)
                            outcomes["errors"] += 1
                        assert isinstance(tensor.compression.to_dict(), dict)
            except milblob.MilblobError:
                outcomes["errors"] += 1
        file.write_bytes(good.tobytes())
    assert min(outcomes.values()) > sized(5, 20)
