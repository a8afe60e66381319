"""Random slices, pads, reshapes, convolutions, gathers and scatters: what the converted model computes is what NumPy does."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milblob.onnx
from onnx_models import run, save
from thorough import sized

SETTINGS = settings(max_examples=sized(6, 60), deadline=None, suppress_health_check=list(HealthCheck))
F = np.float32


def computed(build, feeds):
    with tempfile.TemporaryDirectory() as place:
        package, path = Path(place) / "m.mlpackage", Path(place) / "m.onnx"
        save(package, build, feeds)
        milblob.onnx.convert(package, path)
        return list(run(path, feeds).values())


def values(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(F)


@st.composite
def slices(draw):
    size = draw(st.integers(1, 6))
    stride = draw(st.sampled_from([1, 2, 3, -1, -2]))
    first, last = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    begin, end = (min(first, last), max(first, last) + 1) if stride > 0 else (max(first, last), min(first, last) - 1)
    masks = draw(st.tuples(st.booleans(), st.booleans()))
    squeeze = draw(st.booleans())
    if end < 0 and not masks[1]:
        masks = masks[0], True  # -1 would be the last element
    negative = draw(st.booleans())
    return size, begin - size if negative else begin, end, stride, *masks, squeeze


@SETTINGS
@given(st.lists(st.lists(slices(), min_size=1, max_size=3), min_size=4, max_size=4))
def test_slices(cases):
    """Four to a model, for a model takes long to make."""
    from coremltools.converters.mil.mil import Builder as mb

    feeds, expected = {}, []
    for number, axes in enumerate(cases):
        x = feeds[f"x{number}"] = values([axis[0] for axis in axes], number)
        where = tuple(
            begin if squeeze else slice(None if no_begin else begin, None if no_end else end, stride)
            for _, begin, end, stride, no_begin, no_end, squeeze in (
                (s, 0 if nb and q else b, e, t, nb, ne, q) for s, b, e, t, nb, ne, q in axes
            )
        )
        expected.append(x[where])

    def build(**inputs):
        made = []
        for number, axes in enumerate(cases):
            _, begin, end, stride, no_begin, no_end, squeeze = (list(row) for row in zip(*axes, strict=True))
            made.append(
                mb.slice_by_index(
                    x=inputs[f"x{number}"], begin=begin, end=end, stride=stride, begin_mask=no_begin, end_mask=no_end,
                    squeeze_mask=squeeze,
                )
            )  # fmt: skip
        return made

    for ours, theirs in zip(computed(build, feeds), expected, strict=True):
        np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)


@SETTINGS
@given(
    st.lists(st.tuples(st.integers(2, 4), st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=4),
    st.integers(1, 2),
    st.sampled_from(["constant", "reflect", "replicate"]),
)
def test_pads(axes, count, mode):
    from coremltools.converters.mil.mil import Builder as mb

    x = values([size for size, _, _ in axes])
    pairs = [(a, b) for _, a, b in axes[-count:]]
    flat = [n for pair in pairs for n in pair]
    whole = [(0, 0)] * (len(axes) - count) + pairs
    how = {"replicate": "edge"}.get(mode, mode)
    (found,) = computed(lambda x: mb.pad(x=x, pad=flat, mode=mode), {"x": x})
    np.testing.assert_array_equal(found, np.pad(x, whole, how))


@SETTINGS
@given(st.permutations([2, 3, 4]), st.integers(0, 2), st.integers(0, 2))
def test_reshapes(sizes, rest, copied):
    from coremltools.converters.mil.mil import Builder as mb

    x = values((2, 3, 4))
    shape = list(sizes)
    shape[rest] = -1
    more = [[-1, 0], [0, 0, -1, 0], [0, -1, 0]][copied]  # zeros count from the last dimension
    one, two = computed(lambda x: [mb.reshape(x=x, shape=shape), mb.reshape(x=x, shape=more)], {"x": x})
    np.testing.assert_array_equal(one, x.reshape(sizes))
    np.testing.assert_array_equal(two, x.reshape([[6, 4], [1, 2, 3, 4], [2, 3, 4]][copied]))


@SETTINGS
@given(
    st.tuples(*[st.integers(0, 2)] * 4), st.tuples(*[st.integers(1, 3)] * 2), st.tuples(*[st.integers(1, 2)] * 2),
    st.sampled_from(["custom", "same", "same_lower", "valid"]), st.integers(5, 8),
)  # fmt: skip
def test_convolutions(pads, strides, dilations, pad_type, size):
    """Against sums of shifted planes."""
    from coremltools.converters.mil.mil import Builder as mb

    x, w = values((1, 2, size, size)), values((3, 2, 3, 2), 1)
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    if pad_type == "custom":
        around = [pads[:2], pads[2:]]
    elif pad_type == "valid":
        around = [(0, 0), (0, 0)]
    else:
        totals = [max(0, (-(-size // s) - 1) * s + r - size) for s, r in zip(strides, reach, strict=True)]
        around = [(t // 2, t - t // 2) if pad_type == "same" else (t - t // 2, t // 2) for t in totals]
    padded = np.pad(x, [(0, 0), (0, 0), *around])
    rows, columns = ((padded.shape[2 + i] - reach[i]) // strides[i] + 1 for i in (0, 1))
    expected = np.zeros((1, 3, rows, columns))
    for i in range(3):
        for j in range(2):
            a, b = i * dilations[0], j * dilations[1]
            part = padded[:, :, a : a + rows * strides[0] : strides[0], b : b + columns * strides[1] : strides[1]]
            expected += np.einsum("nchw,oc->nohw", part[:, :, :rows, :columns], w[:, :, i, j])
    options = {"pad": list(pads)} if pad_type == "custom" else {}
    (found,) = computed(
        lambda x: mb.conv(x=x, weight=w, strides=strides, dilations=dilations, pad_type=pad_type, **options), {"x": x}
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


@SETTINGS
@given(
    st.integers(-3, 2),
    st.lists(st.integers(-2, 1), min_size=1, max_size=4),
    st.sampled_from(["add", "mul", "max", "update"]),
)
def test_gathers_and_scatters(axis, indices, mode):
    """Of an update with equal indices, no order is promised: there they differ."""
    from coremltools.converters.mil.mil import Builder as mb

    x, size = values((2, 3, 4)), 2
    at = np.array(indices, np.int32)
    size = x.shape[axis]
    at = np.where(at < 0, at + size, at).astype(np.int32)
    if mode == "update":
        at = np.unique(at).astype(np.int32)
    updates = values([*x.shape[: axis % 3], len(at), *x.shape[axis % 3 + 1 :]], 1)
    expected = np.moveaxis(x.copy(), axis, 0)
    apply = {"add": np.add, "mul": np.multiply, "max": np.maximum, "update": lambda a, b: b}[mode]
    for number, index in enumerate(at):
        expected[index] = apply(expected[index], np.moveaxis(updates, axis, 0)[number])

    def build(x, at, updates):
        return [
            mb.gather(x=x, indices=at, axis=axis),
            mb.scatter(data=x, indices=at, updates=updates, axis=axis, mode=mode),
        ]

    taken, scattered = computed(build, {"x": x, "at": at, "updates": updates})
    np.testing.assert_array_equal(taken, np.take(x, at, axis))
    np.testing.assert_allclose(scattered, np.moveaxis(expected, 0, axis), rtol=1e-5, atol=1e-6)
