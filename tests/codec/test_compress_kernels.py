"""The codec's compressing functions by themselves: what they refuse, and sources that hold anything."""

import numpy as np
import pytest

from milblob import _codec
from milblob.errors import FormatError

HALF = np.arange(64, dtype=np.float16)
FLOAT = np.arange(64, dtype=np.float32)
SRC16, SRC32 = _codec.Buffer(HALF.view(np.uint8)), _codec.Buffer(FLOAT.view(np.uint8))
GRID = _codec.Grid((4, 16), (1, 0))
ONES = _codec.Buffer(np.ones(4, np.float32).view(np.uint8))


INT8 = _codec.Integers(-127, 127, 8, False)
UINT4 = _codec.Integers(0, 15, 4, True)


def quantize(out, is_packed=False, src=SRC32, offset=0, is_f16=False, begin=0, count=64, grid=GRID, scale=ONES, zero=ONES,
             to=INT8):  # fmt: skip
    return _codec.quantize(out, is_packed, src, offset, is_f16, begin, count, grid, scale, zero, to)


def test_quantize_refuses_what_does_not_fit():
    out = np.empty(64, np.uint8)
    quantize(out)
    quantize(out[:32], True, to=UINT4)
    quantize(out[:2], True, count=3, to=UINT4)
    quantize(out, True)  # bytes stay bytes
    for wrong in ({"offset": 1}, {"src": SRC16}, {"scale": _codec.Buffer(b"123")}):
        with pytest.raises((FormatError, ValueError)):
            quantize(out, **wrong)
    for wrong in ({"count": 63}, {"begin": 1}, {"is_packed": True, "to": UINT4}):
        with pytest.raises(ValueError, match="expected"):
            quantize(out, **wrong)
    with pytest.raises(ValueError, match="expected"):
        quantize(out[:31], True, to=UINT4)
    with pytest.raises(ValueError, match="weights: expected aligned"):
        quantize(out, scale=_codec.Buffer(np.zeros(20, np.uint8)[1:]))
    for wrong in ((-129, 127, 8), (0, 256, 8), (5, 4, 8), (-8, 8, 4), (0, 16, 4), (0, 7, 3), (-1, 255, 8)):
        with pytest.raises(ValueError, match="expected"):
            _codec.Integers(*wrong, True)


def test_errors_ranges_and_scales_refuse_what_does_not_fit():
    errors = np.zeros(4)
    _codec.quantize_errors(errors, SRC32, 0, False, 0, 64, GRID, ONES, ONES, INT8)
    for wrong in ((np.zeros(3), SRC32, None), (np.zeros(4, np.float32), SRC32, None), (None, SRC32, None),
                  (np.zeros(33, np.uint8)[1:], SRC32, None), (errors, SRC16, None), (errors, SRC32, ONES)):  # fmt: skip
        with pytest.raises((FormatError, ValueError)):
            _codec.quantize_errors(wrong[0], wrong[1], 0, False, 0, 64, GRID, ONES, ONES, INT8, wrong[2])
    least, most = np.full(4, -0.0, np.float32), np.zeros(4, np.float32)
    _codec.quantize_ranges(SRC32, 0, False, 0, 64, GRID, least, most)
    assert (least.tolist(), most.tolist()) == ([0, 0, 0, 0], [15, 31, 47, 63])
    for wrong in ((SRC32, 1, False, 0, 64, GRID, least, most), (SRC32, 0, False, 1, 64, GRID, least, most),
                  (SRC32, 0, False, 0, 64, GRID, least[:3], most), (SRC32, 0, False, 0, 64, GRID, None, most)):  # fmt: skip
        with pytest.raises((FormatError, ValueError)):
            _codec.quantize_ranges(*wrong)
    scale, zero = np.empty(4, np.float32), np.empty(4, np.float32)
    ranges = _codec.Buffer(least), _codec.Buffer(most)
    assert _codec.quantize_scales(scale, zero, *ranges, 4, False, UINT4)
    for wrong in ((scale[1:], zero, *ranges, 4), (scale, None, *ranges, 4), (scale, zero, ranges[0], ONES, 5)):
        with pytest.raises((FormatError, ValueError)):
            _codec.quantize_scales(*wrong, False, UINT4)
    assert _codec.not_finite(SRC32, 0, False, 64) == 0
    with pytest.raises(FormatError):
        _codec.not_finite(SRC32, 0, False, 65)


def test_blocks_refuse_what_does_not_fit():
    def blocks(out, scale, zero, is_packed=True, src=SRC32, begin=0, count=64, unit=16, parameters=1):
        return _codec.quantize_blocks(
            out, scale, zero, is_packed, src, 0, False, begin, count, unit, parameters, GRID, UINT4
        )

    out, scale, zero = np.empty(32, np.uint8), np.empty(4, np.float32), np.empty(2, np.uint8)
    assert blocks(out, scale, zero) is not None
    assert blocks(out, scale, None) is not None
    assert scale.tolist() == [np.float32(x) / np.float32(15) for x in (15, 31, 47, 63)]
    for wrong in ((out[1:], scale, zero), (out, scale[1:], zero), (out, scale, zero[1:]), (out, None, zero)):
        with pytest.raises((FormatError, ValueError), match="expected"):
            blocks(*wrong)
    for options in ({"unit": 0}, {"unit": 15}, {"parameters": 2}, {"begin": 8}, {"count": 60}, {"unit": 128}, {"src": SRC16},
                    {"is_packed": False}, {"unit": 32}):  # fmt: skip
        with pytest.raises((FormatError, ValueError), match="expected"):
            blocks(out, scale, zero, **options)
    assert blocks(out, scale, zero, unit=32, parameters=2) is not None
    broken = FLOAT.copy()
    broken[63] = np.nan
    assert blocks(out, scale, zero, src=_codec.Buffer(broken.view(np.uint8))) is None


def test_palettes_refuse_what_does_not_fit():
    fit = _codec.PaletteFit()
    for call in (lambda: fit.count(SRC16, 0, 65), lambda: fit.count_distinct(SRC32, 4, 64), lambda: fit.count_tops(SRC32, 0, 65),
                 lambda: fit.count(SRC16, 0, 64, ONES), lambda: _codec.palette_range(SRC32, 0, 1 << 62)):  # fmt: skip
        with pytest.raises(FormatError):
            call()
    for call in (lambda: fit.fit_16(False, 0), lambda: fit.fit_16(False, 257), lambda: fit.fit_16(False, 2, [1.0] * 3),
                 lambda: fit.fit_16(False, 2, []), lambda: fit.fit_32(0), lambda: fit.divide(0), lambda: fit.divide(1 << 17),
                 lambda: fit.fill(SRC32, 0, 64), lambda: fit.merge(_codec.PaletteFit()),
                 lambda: _codec.palette_indices_16(np.empty(63, np.uint8), SRC16, 0, 64, bytes(65536)),
                 lambda: _codec.palette_indices_16(np.empty(64, np.uint8), SRC16, 0, 64, bytes(65535)),
                 lambda: _codec.palette_indices_32(np.empty(63, np.uint8), SRC32, 0, 64, [1.0]),
                 lambda: _codec.palette_indices_32(np.empty(64, np.uint8), SRC32, 0, 64, []),
                 lambda: _codec.palette_indices_32(np.empty(64, np.uint8), SRC32, 0, 64, [1.0] * 257)):  # fmt: skip
        with pytest.raises(ValueError, match="expected"):
            call()
    fit.count(SRC16, 0, 64)
    assert fit.fit_16(False, 256)[1] == 64
    assert fit.fit_16(False, 256) is None  # nothing is counted any more


def test_pruning_refuses_what_does_not_fit():
    mask, kept, counts = np.empty(8, np.uint8), np.empty(64, np.float32), np.zeros(_codec.MAGNITUDES, np.uint32)
    assert _codec.prune_split(mask, kept, SRC32, 0, 64, False, 0) == (63, (0, 85344, 0))
    for call in (lambda: _codec.prune_split(mask[:7], kept, SRC32, 0, 64, False, 0),
                 lambda: _codec.prune_split(mask, kept[:63], SRC32, 0, 64, False, 0),
                 lambda: _codec.prune_split(None, kept, SRC32, 0, 64, False, 0),
                 lambda: _codec.prune_split(mask, kept, SRC32, 4, 64, False, 0),
                 lambda: _codec.prune_count(counts[1:], SRC32, 0, 64, False),
                 lambda: _codec.prune_count(counts, SRC32, 0, 65, False),
                 lambda: _codec.prune_count(np.zeros(_codec.MAGNITUDES, np.uint64), SRC32, 0, 64, False),
                 lambda: _codec.prune_count_below(np.zeros(65535, np.uint64), SRC32, 0, 64, 0),
                 lambda: _codec.prune_count_below(None, SRC32, 0, 64, 0),
                 lambda: _codec.prune_count_below(np.zeros(65536, np.uint64), SRC32, 0, 65, 0)):  # fmt: skip
        with pytest.raises((FormatError, ValueError)):
            call()
    with pytest.raises(ValueError, match="count: expected fewer"):  # more than a counter holds
        _codec.prune_count(counts, SRC32, 0, 1 << 32, False)
    below = np.zeros(65536, np.uint64)
    _codec.prune_count_below(below, SRC32, 0, 64, 0x41A0)  # 20
    assert np.flatnonzero(below).tolist() == [0]
    assert below[0] == 1


def test_counts_are_those_of_numpy():
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1003, np.uint32)
    for is_f16, elements in ((True, bits.view(np.uint16)), (False, bits)):
        source, size = _codec.Buffer(elements.view(np.uint8)), elements.dtype.itemsize
        for begin in range(5):
            for count in (0, 1, 2, 3, 4, 5, 6, 7, 990):
                counts = np.ones(_codec.MAGNITUDES, np.uint32)
                _codec.prune_count(counts, source, begin * size, count, is_f16)
                tops = (elements[begin : begin + count] >> (8 * size - 16)) & 0x7FFF
                assert np.array_equal(counts - 1, np.bincount(tops, minlength=_codec.MAGNITUDES))


def test_neighbours_refuse_what_does_not_fit():
    mask, ties = np.empty(8, np.uint8), np.empty(16, np.uint64)
    good = {"mask": mask, "ties": ties, "src": SRC32, "offset": 0, "outer": 2, "channels": 16, "inner": 2, "is_f16": False,
            "n": 2, "m": 4}  # fmt: skip
    assert _codec.prune_neighbours(*good.values()) == (32, 0, True)
    for change in (
        {"mask": mask[:7]}, {"mask": None}, {"ties": ties[:15]}, {"ties": None}, {"n": 5}, {"m": 0}, {"m": 33}, {"outer": 3},
        {"channels": 1 << 62}, {"outer": 1 << 39, "channels": 1 << 39}, {"offset": 4}, {"m": 8}, {"inner": 0},
    ):  # fmt: skip
        with pytest.raises((FormatError, ValueError)):
            _codec.prune_neighbours(*{**good, **change}.values())


@pytest.mark.parametrize(
    "sizes", [(1 << 39, 0, 5), (1 << 39, 5, 0), (5, 0, 1 << 39), (5, 1 << 39, 0), (0, 1 << 39, 1 << 39)]
)
@pytest.mark.parametrize("is_f16", [False, True])
def test_no_elements_in_many_rows_take_no_time(sizes, is_f16):
    """A loop over the rows would last for hours."""
    nothing = np.empty(0, np.uint8)
    held = _codec.Buffer(nothing)
    assert _codec.prune_neighbours(nothing, np.empty(0, np.uint64), held, 0, *sizes, is_f16, 2, 4) == (0, 0, True)
    blocks = _codec.PruneBlocks(*sizes, 4, is_f16)
    tops = np.zeros(_codec.MAGNITUDES, np.uint64)
    assert blocks.sums(nothing, held, 0) == 0 and blocks.choose(nothing, held, 0, held, 5) == 0
    blocks.tally(tops, held)
    assert not tops.any()


@pytest.mark.parametrize("m", [1 << 40, 1 << 63, (1 << 64) - 1])
def test_blocks_longer_than_the_channels_take_no_time(m):
    """Their sum is that of the elements that are there."""
    found = []
    for size in (256, m):
        blocks, sums = _codec.PruneBlocks(2, 32, 1, size, False), np.empty(2, np.float32)
        assert blocks.sums_count == 2
        blocks.sums(sums, SRC32, 0)
        found.append(sums.tolist())
    assert found[0] == found[1] and min(found[0]) > 0


def test_pruned_blocks_refuse_what_does_not_fit():
    for sizes in ((2, 16, 2, 0), (1 << 40, 1, 1, 1), (1 << 39, 1 << 39, 1, 4)):
        with pytest.raises(ValueError, match="expected"):
            _codec.PruneBlocks(*sizes, False)
    blocks, sums = _codec.PruneBlocks(2, 16, 2, 3, False), np.empty(24, np.float32)
    assert (blocks.count, blocks.sums_count) == (64, 24)
    blocks.sums(sums, SRC32, 0)
    held, mask, kept = _codec.Buffer(sums.view(np.uint8)), np.empty(8, np.uint8), np.empty(64, np.float32)
    chosen = _codec.Buffer(mask)
    tops, lows = np.zeros(_codec.MAGNITUDES, np.uint64), np.zeros(1 << 16, np.uint64)
    short = _codec.Buffer(np.zeros(4, np.uint8))
    for call, good in (
        (blocks.sums, (sums, SRC32, 0)), (blocks.tally, (tops, held)), (blocks.tally, (lows, held, 5)),
        (blocks.choose, (mask, SRC32, 0, held, 5)), (_codec.prune_chosen, (mask, kept, chosen, SRC32, 0, 64, False)),
    ):  # fmt: skip
        call(*good)
        for k, value in enumerate(good):
            for bad in (
                (value[1:], None)
                if isinstance(value, np.ndarray)
                else (short,)
                if isinstance(value, _codec.Buffer)
                else ()
            ):
                with pytest.raises((FormatError, ValueError)):
                    call(*good[:k], bad, *good[k + 1 :])
    with pytest.raises(FormatError):
        blocks.sums(sums, SRC32, SRC32.nbytes)
    with pytest.raises(ValueError, match="top: expected None for float16"):
        _codec.PruneBlocks(1, 8, 1, 4, True).tally(lows, held, 5)


def test_sources_that_hold_anything():
    """A source may change between two passes: whatever bits the second one meets, nothing is written elsewhere."""
    rng = np.random.default_rng(11)
    for number in range(30):
        noise = rng.integers(0, 256, 40000, np.uint8)
        source, out = _codec.Buffer(noise), np.empty(10000, np.uint8)
        fit = _codec.PaletteFit()
        fit.count_tops(SRC32, 0, 64)
        if number % 2:
            fit.count_distinct(source, 0, 10000)
        else:
            fit.divide(1 + number * 100)
            fit.fill(source, 0, 10000)  # none of them counted
        entries, used, _, _, _ = fit.fit_32(1 + number * 8)
        finite = sorted(x for x in entries[:used] if np.isfinite(x)) or [0.0]
        _codec.palette_indices_32(out, source, 0, 10000, finite)
        assert out.max() < len(finite)
        grid = _codec.Grid((100, 100), (1, 0))
        scale = _codec.Buffer(rng.integers(0, 256, 400, np.uint8).copy())
        zero = _codec.Buffer(np.zeros(100, np.float32).view(np.uint8))
        quantize(out, False, source, 0, False, 0, 10000, grid, scale, zero, _codec.Integers(-7, 7, 4, False))
        assert np.isin(out, [x & 15 for x in range(-7, 8)]).all()
        quantize(out, False, source, 0, True, 0, 10000, grid, scale, zero, _codec.Integers(0, 254, 8, False))
        assert out.max() < 255


def test_vectors_begin_refuses_what_does_not_fit():
    columns, points = _codec.Buffer(np.zeros((2, 5), np.float32).reshape(-1).view(np.uint8)), np.zeros(4)
    assert _codec.vectors_begin(columns, None, 5, 2, False, 2, 3, points) == [0]  # all alike: there is no second one
    wrong = [
        (0, 2, 2, 3),
        (5, 0, 2, 3),
        (5, 2, 0, 3),
        (5, 2, 257, 1),
        (5, 2, 2, 0),
        (5, 2, 2, 1025),
        (1 << 40, 1, 1, 1),
    ]
    for count, dims, k, tries in wrong:
        with pytest.raises(ValueError, match="expected"):
            _codec.vectors_begin(columns, None, count, dims, True, k, tries, points)
    for count, dims, k, tries in ((6, 2, 2, 3), (5, 3, 2, 3), (5, 2, 3, 3), (5, 2, 2, 4), (1 << 39, 2, 2, 3)):
        with pytest.raises(FormatError):
            _codec.vectors_begin(columns, None, count, dims, True, k, tries, points)
    with pytest.raises(FormatError):
        _codec.vectors_begin(columns, _codec.Buffer(b"1234"), 5, 2, False, 2, 3, points)
    with pytest.raises(ValueError, match="aligned"):
        _codec.vectors_begin(columns, None, 5, 2, False, 2, 3, np.zeros(33, np.uint8)[1:])


def test_vectors_merges_refuses_what_does_not_fit():
    entries, counts = np.array([[0, 0], [1, 0], [3, 0]], np.float32), np.ones(3)
    assert _codec.vectors_merges(entries, counts, 3, 2) == [(0, 1), (1, 2), (0, 2)]
    assert _codec.vectors_merges(entries, counts, 1, 2) == []
    for k, dims in ((0, 2), (3, 0), (257, 1), (1, (1 << 20) + 1)):
        with pytest.raises(ValueError, match="expected"):
            _codec.vectors_merges(entries, counts, k, dims)
    for k, dims in ((4, 2), (3, 3)):
        with pytest.raises(FormatError):
            _codec.vectors_merges(entries, counts, k, dims)
