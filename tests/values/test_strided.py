"""Arrays of any strides, a piece at a time: the same elements as NumPy's copies have."""

import numpy as np
import pytest

from milblob.values import strided

RNG = np.random.default_rng(5)
WHOLE = RNG.standard_normal((6, 5, 4, 7)).astype(np.float32)
ARRAYS = {
    "contiguous": WHOLE, "one axis less": WHOLE[:, 2:4], "every second": WHOLE[::2, :, 1::2], "turned": WHOLE.T,
    "last axis in part": WHOLE[..., 3:5], "broadcast": np.broadcast_to(WHOLE[:, :1], WHOLE.shape),
    "vectors": np.moveaxis(WHOLE.reshape(3, 2, 5, 4, 7), 1, -1), "backwards": WHOLE[::-1, ::-1], "a vector": WHOLE[1, 1, :, 3],
    "anywhere in memory": np.frombuffer(b"." + WHOLE.tobytes(), np.float32, offset=1).reshape(WHOLE.shape),
    "half": WHOLE.astype(np.float16)[:, 1:], "a number": WHOLE[0, 0, 0, 0, ...],
}  # fmt: skip


@pytest.fixture(params=ARRAYS)
def array(request):
    return ARRAYS[request.param]


@pytest.mark.sample(4)
def test_ranges(array, monkeypatch):
    flat = np.ascontiguousarray(array).reshape(-1)
    for begin in range(0, flat.size, 3):
        for count in (0, 1, 2, 11, 60, flat.size - begin):
            count = min(count, flat.size - begin)
            for dtype in (None, np.float64, np.float16):
                found = strided.range_of(array, begin, count, dtype)
                wanted = flat[begin : begin + count]
                assert found.flags.c_contiguous and found.flags.aligned
                assert found.dtype == (array.dtype if dtype is None else dtype)
                assert np.array_equal(found, wanted if dtype is None else wanted.astype(dtype))
    monkeypatch.setattr(strided, "PIECE_COUNT", 64)
    assert np.array_equal(np.concatenate([piece for _, piece in strided.ranges(array)]), flat)
    for dtype in (np.float64, array.dtype):
        vector = strided.vector_of(array, dtype, np.empty)
        assert np.array_equal(vector, flat.astype(dtype)) and vector.flags.aligned


@pytest.mark.parametrize("most", [1, 3, 7, 30, 200, 10_000])
@pytest.mark.sample(6)
def test_boxes(array, most):
    seen = np.zeros(array.shape, int)
    for box in strided.boxes(array.shape, most):
        assert seen[box].size <= most
        seen[box] += 1
    assert (seen == 1).all()
    doubled = strided.computed(array.shape, np.float64, lambda box: 2.0 * array[box], np.empty)
    assert np.array_equal(doubled, 2.0 * array)


@pytest.mark.sample(4)
def test_masks(array, monkeypatch):
    monkeypatch.setattr(strided, "PIECE_COUNT", 64)
    mask = array > 0
    some = strided.selected(array, mask, np.empty)
    assert np.array_equal(some, array[mask])
    bits = strided.packed_mask(mask, np.empty)
    assert np.array_equal(bits, np.packbits(mask, bitorder="little"))
    assert np.array_equal(strided.unpacked_mask(bits, mask.shape, np.empty), mask)


@pytest.mark.sample(4)
def test_finite(array, monkeypatch):
    monkeypatch.setattr(strided, "PIECE_COUNT", 64)
    assert strided.is_finite(array) and strided.not_finite(array) == 0
    bad = array.copy()
    bad[(-1,) * bad.ndim] = np.inf
    bad[(0,) * bad.ndim] = np.nan
    assert not strided.is_finite(bad) and strided.not_finite(bad) == min(2, bad.size)


@pytest.mark.sample(4)
def test_places(array):
    target = np.zeros(array.shape, np.uint8).T
    assert strided.fill_places(target, lambda out: out.__setitem__(..., np.arange(out.size) % 200) or 7, np.empty) == 7
    assert np.array_equal(target.reshape(-1), np.arange(target.size) % 200)
