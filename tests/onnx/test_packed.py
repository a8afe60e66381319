"""Compressed weights that stay compressed: the same bits as decoded ones, by reference to the bytes in the weight file."""

import collections
import json
import shutil

import ml_dtypes
import numpy as np
import onnx_ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milblob
import milblob.onnx
import onnx_compressed
from milblob.onnx.packed import layout, repeat
from once import once
from onnx_models import run, save
from thorough import some

ELEMENTS = {"int8": np.int8, "uint8": np.uint8, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}
COMPUTED = ("DequantizeLinear", "GatherElements", "Gather", "Mul")


def converted(package, name="m.onnx", **options):
    """Convert; return (path, model, count of nodes by kind, {name: why} of what was decoded or made)."""
    path = package.parent / name
    model = milblob.onnx.convert(package, path, force=True, **options)
    kinds = collections.Counter(node.op_type for node in model.graph)
    copied = {row["name"]: row["why"] for row in json.loads(model.metadata_props.get("milblob.copied", "[]"))}
    return path, model, kinds, copied


def bits(array):
    """What is compared: NaN is NaN, whatever its bits."""
    array = np.asarray(array).copy()
    array[np.isnan(array)] = np.nan
    return array.tobytes()


def weights_of(package):
    """Name -> dense values of the compressed weights, as milblob decodes them."""
    with milblob.open(package) as model:
        return {name: tensor.read() for name, tensor in model.items() if tensor.parts}


def package_with(path, build, opset="iOS18"):
    """Write a package whose outputs are compressed weights; all of them go to the weight file that can."""
    return save(path, build, {"x": np.zeros(1, np.float32)}, opset=opset)


def require_equal(package, **options):
    """Convert, run, and compare every output with the weight of that name; return what `converted` does."""
    expected = weights_of(package)
    made = converted(package, **options)
    found = run(made[0], {"x": np.zeros(1, np.float32)})
    for name, values in expected.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape, name
        assert bits(found[name]) == bits(values), name
    return made


def scales(dtype, count):
    """Scales with every kind of bits: subnormal, infinite, NaN, both zeros; the same each time."""
    unsigned = {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
    found = (
        np.random.default_rng(1).integers(0, 1 << (8 * np.dtype(dtype).itemsize), count).astype(unsigned).view(dtype)
    )
    with np.errstate(over="ignore"):
        found[:8] = np.array([0, -0.0, np.inf, -np.inf, np.nan, 6e-8, 65504, 1], np.float64).astype(dtype)
    return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_every_element_times_every_kind_of_scale_is_what_milblob_decodes(tmp_path, kind, dtype):
    """And what NumPy computes as coremltools does: in the type of the scale."""
    from coremltools.converters.mil.mil import Builder as mb

    element, count = ELEMENTS[kind], 512
    info = ml_dtypes.iinfo(element)
    low, high = info.min, info.max
    every = np.arange(low, high + 1)
    narrow = {"int4": np.int8, "uint4": np.uint8}.get(kind, element)
    data = np.repeat(every[None], count, 0).astype(narrow)
    zeros = np.random.default_rng(2).integers(low, high + 1, (count, 1)).astype(narrow)
    scale = scales(dtype, count)[:, None]

    def build(x):
        from coremltools.converters.mil.mil import types

        numbers = {"int4": types.int4, "uint4": types.uint4}
        as_type = (lambda a: a.astype(types.nptype_from_builtin(numbers[kind]))) if kind in numbers else (lambda a: a)
        return [
            mb.constexpr_blockwise_shift_scale(data=as_type(data), scale=scale, name="plain"),
            mb.constexpr_blockwise_shift_scale(data=as_type(data), scale=scale, offset=as_type(zeros), name="shifted"),
        ]

    package = package_with(tmp_path / "m.mlpackage", build)
    _, _, kinds, copied = require_equal(package)
    assert (kinds["DequantizeLinear"], copied) == (2, {})
    with np.errstate(all="ignore"):
        expected = (data.astype(np.int32) - zeros).astype(dtype) * scale
    assert bits(weights_of(package)["shifted"]) == bits(expected)


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 23])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_affine_dequantize_in_every_opset(tmp_path, dtype, opset):
    """Scale and zero point each a number or a vector, along any axis."""
    from coremltools.converters.mil.mil import Builder as mb

    random = np.random.default_rng(3)
    data = random.integers(0, 256, (6, 40, 10)).astype(np.uint8)

    def build(x):
        made = []
        for axis, size in enumerate(data.shape):
            scale = random.standard_normal(size).astype(dtype)
            for number, (one, zero) in enumerate(
                [
                    (scale, random.integers(0, 256, size).astype(np.uint8)),
                    (scale, np.uint8(7)),
                    (scale[0], random.integers(0, 256, size).astype(np.uint8)),
                    (scale[0], np.uint8(200)),
                ]
            ):
                made.append(
                    mb.constexpr_affine_dequantize(
                        quantized_data=data, scale=one, zero_point=zero, axis=np.int32(axis), name=f"w_{axis}_{number}"
                    )
                )
        return made

    package = package_with(tmp_path / "m.mlpackage", build, "iOS16")
    _, _, kinds, copied = require_equal(package, opset=opset)
    assert kinds["DequantizeLinear"] == 12
    assert copied == {}


# ------------------------------------------------------------------------------------------------------------- layouts


@st.composite
def grids(draw):
    """(shape, how many scales along each axis)."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=5))
    return tuple(shape), tuple(
        draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])) for size in shape
    )


def expanded(scales, axis, block, view):
    """What DequantizeLinear makes of scales."""
    if scales.ndim == 0:
        return np.broadcast_to(scales, view)
    if not block:
        return np.broadcast_to(scales.reshape([-1 if i == axis else 1 for i in range(len(view))]), view)
    return np.repeat(scales, block, axis)


@given(grids(), st.booleans())
def test_a_layout_gives_every_element_its_scale(grid, has_blocks):
    shape, counts = grid
    numbers = np.arange(np.prod(counts)).reshape(counts)
    expected = repeat(numbers, shape)
    found = layout(shape, counts, has_blocks)
    if found is None:
        assert not has_blocks
        return
    made = repeat(numbers, found.counts).reshape(found.scales)
    np.testing.assert_array_equal(expanded(made, found.axis, found.block, found.view).reshape(shape), expected)
    if not has_blocks:
        assert not found.block
        assert found.counts == counts


GRIDS = [
    ((8, 64), (8, 2)), ((8, 64), (1, 4)), ((8, 64), (2, 4)), ((64, 8), (4, 8)), ((64, 8), (4, 1)), ((16, 8, 3, 3), (16, 2, 1, 1)),
    ((16, 8, 3, 3), (16, 8, 1, 1)), ((16, 8, 3, 3), (1, 8, 1, 1)), ((16, 8, 3, 3), (4, 2, 1, 1)), ((16, 8, 3, 3), (1, 8, 3, 3)),
    ((16, 8, 3, 3), (16, 8, 3, 3)), ((7, 5), (7, 1)), ((7, 5), (1, 1)), ((5,), (5,)), ((12,), (3,)), ((16, 32, 1, 1), (16, 4, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("kind", ["int8", "uint4"])
def test_scales_in_blocks_of_every_kind(tmp_path, kind, dtype):
    """An odd number of half bytes, too; blocks that are as small as their scales are not worth it."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    random = np.random.default_rng(4)
    element = types.nptype_from_builtin(types.uint4) if kind == "uint4" else np.int8
    low, high = (0, 16) if kind == "uint4" else (-128, 128)

    def build(x):
        return [
            mb.constexpr_blockwise_shift_scale(
                data=random.integers(low, high, shape).astype(np.int16).astype(element),
                scale=random.standard_normal(counts).astype(dtype),
                offset=random.integers(low, high, counts).astype(np.int16).astype(element),
                name=f"w_{number}",
            )
            for number, (shape, counts) in enumerate(GRIDS)
        ]

    _, _, kinds, copied = require_equal(package_with(tmp_path / "m.mlpackage", build))
    assert kinds["DequantizeLinear"] >= len(GRIDS) - 3
    assert all("as small as" in why or why in ("scales", "zero points") for why in copied.values())


def test_offsets_of_another_type_become_zero_points_if_they_are_whole_numbers(tmp_path):
    """Whole numbers become zero points; others have no place in DequantizeLinear, and the weight is decoded."""
    from coremltools.converters.mil.mil import Builder as mb

    random = np.random.default_rng(5)
    data, scale = random.integers(-128, 128, (8, 32)).astype(np.int8), random.standard_normal((8, 1)).astype(np.float16)
    offsets = {
        "whole": np.arange(8), "fraction": np.arange(8) + 0.5, "far": np.arange(8) * 100, "odd": np.full(8, np.nan),
    }  # fmt: skip

    def build(x):
        return [
            mb.constexpr_blockwise_shift_scale(
                data=data, scale=scale, offset=one[:, None].astype(np.float16), name=name
            )
            for name, one in offsets.items()
        ]

    _, _, kinds, copied = require_equal(package_with(tmp_path / "m.mlpackage", build))
    assert kinds["DequantizeLinear"] == 1
    words = "constexpr_blockwise_shift_scale: float16 offsets that are no int8"
    assert copied == dict.fromkeys(("fraction", "far", "odd"), words)


# ------------------------------------------------------------------------------------------------------------ palettes


def palette(mb, random, name, nbits, shape, groups, dtype, vector=1, axis=None):
    """A weight with random palettes."""
    from coremltools.converters.mil.mil import types

    kind = {1: types.uint1, 2: types.uint2, 3: types.uint3, 4: types.uint4, 6: types.uint6, 8: types.uint8}[nbits]
    indices = random.integers(0, 1 << nbits, shape).astype(types.nptype_from_builtin(kind))
    lut = random.standard_normal((*groups, 1 << nbits, vector)).astype(dtype)
    options = {} if axis is None else {"vector_axis": axis}
    return mb.constexpr_lut_to_dense(indices=indices, lut=lut, name=name, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("nbits", [1, 2, 3, 4, 6, 8])
def test_palettes_of_every_size(tmp_path, nbits, dtype):
    """One for all, and groups along each axis; and vectors along each axis."""
    from coremltools.converters.mil.mil import Builder as mb

    random = np.random.default_rng(6)
    side = 128 if nbits == 8 else 32

    def build(x):
        return [
            palette(mb, random, "one", nbits, (side, 32), (1, 1), dtype),
            palette(mb, random, "rows", nbits, (side, 32), (4, 1), dtype),
            palette(mb, random, "columns", nbits, (side, 64), (1, 4), dtype),
            palette(mb, random, "middle", nbits, (4, 16, 8, 8), (1, 2, 1, 1), dtype),
            palette(mb, random, "both", nbits, (side, 64), (2, 2), dtype),
            palette(mb, random, "odd", nbits, (43, 43), (1, 1), dtype),
            palette(mb, random, "first", nbits, (32, 32), (1, 1), dtype, 2, 0),
            palette(mb, random, "last", nbits, (32, 32), (1, 1), dtype, 4, 1),
            palette(mb, random, "inner", nbits, (8, 32, 8), (2, 1, 1), dtype, 2, 1),
        ]

    package = package_with(tmp_path / "m.mlpackage", build)
    _, _, kinds, copied = require_equal(package)
    assert kinds["Cast"] == 9 - len(copied)
    if nbits in (3, 6):
        assert set(copied.values()) == {f"constexpr_lut_to_dense: {nbits}-bit indices"}
        assert len(copied) == 9
    else:
        assert set(copied) == ({"both"} if nbits == 8 else {"both", "odd"})
        assert kinds["GatherElements"] == 9 - len(copied)
    dense = converted(package, "dense.onnx", compressed="dense")
    assert not set(dense[2]) & set(COMPUTED)
    assert len(dense[3]) == 9


# ----------------------------------------------------------------------------------------- what coremltools.optimize makes

SAMPLE = (
    "iOS16 float16 linear mode=linear dtype=uint8", "iOS16 float32 palettize mode=uniform nbits=4",
    "iOS18 float16 linear mode=linear dtype=uint4 granularity=per_block block_size=8",
    "iOS18 float16 palettize mode=uniform nbits=8 granularity=per_grouped_channel group_size=8 channel_axis=0",
    "iOS18 float32 palettize mode=uniform nbits=4 enable_per_channel_scale=True",
    "iOS18 float16 prune target_sparsity=0.5, linear dtype=int8",
    "iOS18 float16 palettize mode=uniform nbits=8, linear dtype=int8 granularity=per_tensor",
)  # fmt: skip


@pytest.mark.parametrize(
    "case",
    some(map(pytest.param, onnx_compressed.CASES), named=[pytest.param(case) for case in onnx_compressed.CASES if onnx_compressed.name(case) in SAMPLE]),
    ids=onnx_compressed.name,
)  # fmt: skip
def test_what_coremltools_makes_computes_as_its_decompressed_form(case, tmp_path_factory, tmp_path):
    """`make onnx` and `make thorough` compare all; nothing is optimised, and no weight packed."""
    opset, dtype, _ = case

    def make(folder):
        folder.mkdir()
        onnx_compressed.save_base(folder / "base.mlpackage", opset, dtype)

    base = once(tmp_path_factory, f"onnx-{opset}-{dtype}", make) / "base.mlpackage"
    different, _, _ = onnx_compressed.compare(case, base, tmp_path)
    assert different == []


def test_the_sample_is_of_the_cases():
    assert set(SAMPLE) <= set(map(onnx_compressed.name, onnx_compressed.CASES))


# -------------------------------------------------------------------------------------------- references, and consumers


def linear_model(path, build, feeds, recipe, opset="iOS18"):
    """A model whose weights milblob compresses."""
    whole = save(path.with_name(f"{path.stem}-whole.mlpackage"), build, feeds, opset=opset, precision="fp32")
    milblob.compress(whole, path, recipe, scope=milblob.Scope(min_size=16))
    return path


WEIGHT = np.random.default_rng(7).standard_normal((128, 128)).astype(np.float32)
X = np.random.default_rng(8).standard_normal((2, 128)).astype(np.float32)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """Two products with one weight, whose int4 blocks share scales."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        weight = mb.const(val=WEIGHT, name="w")
        return mb.linear(x=mb.linear(x=x, weight=weight), weight=weight, name="y")

    recipe = milblob.Linear("int4", granularity="per_block", block=32)
    return linear_model(tmp_path_factory.mktemp("blocks") / "m.mlpackage", build, {"x": X}, recipe)


@pytest.mark.parametrize("mode", ["reference", "copy", "embed"])
def test_stored_bytes_are_referred_to_where_they_stand(blocks, tmp_path, mode):
    """And a weight that several operations read is computed once."""
    package = shutil.copytree(blocks, tmp_path / "m.mlpackage")
    weight = next(package.rglob("weight.bin"))
    before = weight.read_bytes(), weight.stat().st_mtime_ns
    path, model, kinds, copied = converted(package, weights=mode)
    assert (weight.read_bytes(), weight.stat().st_mtime_ns) == before
    assert (kinds["DequantizeLinear"], copied) == (1, {})
    with milblob.open(package) as opened:
        (tensor,) = (one for one in opened.values() if one.parts)
        for key in ("data", "scale"):
            part = tensor.parts[key]
            (held,) = (v.const_value for v in model.graph.initializers.values() if v.const_value.nbytes == part.nbytes)
            if mode == "embed":
                assert not isinstance(held, onnx_ir.ExternalTensor)
            else:
                assert (held.offset, held.length) == (part.data_offset, part.nbytes)
        expected = tensor.read()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(
        ["m.mlpackage", "m.onnx", *(["m.bin"] if mode == "copy" else [])]
    )
    dense = converted(package, "dense.onnx", compressed="dense")[0]
    y, other = (run(one, {"x": X}, prepacked=False)["y"] for one in (path, dense))
    assert y.tobytes() == other.tobytes()
    np.testing.assert_allclose(y, (X @ expected.T) @ expected.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("opset", [18, 19, 23])
def test_half_precision_is_rounded_where_a_kernel_wants_single(tmp_path, opset):
    """onnxruntime removes a Cast together with one back; a weight must not lose its rounding by that."""
    from coremltools.converters.mil.mil import Builder as mb

    feeds = {"x": X.astype(np.float16)}

    def build(x):
        return mb.linear(x=x, weight=WEIGHT.astype(np.float16), name="y")

    whole = save(tmp_path / "whole.mlpackage", build, feeds, precision="fp16")
    milblob.compress(whole, tmp_path / "m.mlpackage", milblob.Linear("int8"))
    made = [
        converted(tmp_path / "m.mlpackage", f"{one}.onnx", compressed=one, opset=opset) for one in ("keep", "dense")
    ]
    assert [kinds["DequantizeLinear"] for _, _, kinds, _ in made] == [1, 0]
    for optimised in (False, True):
        y, dense = (run(path, feeds, optimised)["y"] for path, _, _, _ in made)
        assert y.tobytes() == dense.tobytes()


@pytest.mark.parametrize("opset", [18, 19, 20])
def test_opsets_without_4_bit_types_report_that_weights_are_decoded(blocks, opset):
    with pytest.warns(UserWarning, match=r"^1 weight had to be decoded, which opset 21 keeps"):
        path, _, kinds, copied = converted(blocks, f"{opset}.onnx", opset=opset)
    assert kinds["DequantizeLinear"] == 0
    assert list(copied.values()) == ["constexpr_blockwise_shift_scale: int4 elements, before opset 21"]
    newest = converted(blocks, "newest.onnx")[0]
    assert run(path, {"x": X}, prepacked=False)["y"].tobytes() == run(newest, {"x": X}, prepacked=False)["y"].tobytes()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_optimisation_changes_no_results(tmp_path, precision):
    """onnxruntime makes a MatMul behind DequantizeLinear one of 8 bits, if nothing stands between them."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        return mb.matmul(x=mb.linear(x=x, weight=WEIGHT), y=mb.const(val=WEIGHT + 1, name="w"), name="y")

    whole = save(tmp_path / "whole.mlpackage", build, {"x": X}, opset="iOS18", precision=precision)
    for number, recipe in enumerate(
        [
            milblob.Linear("int8"), milblob.Linear("uint8", "linear", "per_tensor"), milblob.Palette(8), milblob.Palette(4),
            milblob.Linear("int4", granularity="per_block", block=32),
        ]
    ):  # fmt: skip
        package = tmp_path / f"{number}.mlpackage"
        milblob.compress(whole, package, recipe)
        path, _, _, copied = converted(package, f"{number}.onnx")
        assert copied == {}
        y, fast = (run(path, {"x": X}, optimised)["y"].astype(np.float64) for optimised in (False, True))
        assert np.abs(y - fast).max() <= (1e-6 if precision == "fp32" else 1e-3) * np.abs(y).max()


def test_weights_of_recurrent_networks_are_decoded(tmp_path):
    """Gates have another order in ONNX: those weights are decoded, and nothing is computed for nobody."""
    from coremltools.converters.mil.mil import Builder as mb

    random = np.random.default_rng(9)
    ih, hh, w = (random.standard_normal(shape).astype(np.float32) for shape in ((64, 8), (64, 16), (16, 16)))
    zero = np.zeros((1, 16), np.float32)

    def build(x):
        y = mb.lstm(
            x=x, initial_h=zero, initial_c=zero, weight_ih=mb.const(val=ih, name="ih"), weight_hh=mb.const(val=hh, name="hh")
        )[0]  # fmt: skip
        y = mb.reshape(x=y, shape=[1, 16])
        outer = mb.const(val=w, name="outer")

        def body(i, v):
            inner = mb.const(val=w + 1, name="inner")
            return mb.add(x=i, y=1), mb.tanh(x=mb.linear(x=mb.linear(x=v, weight=outer), weight=inner))

        _, y = mb.while_loop(_cond=lambda i, v: mb.less(x=i, y=3), _body=body, loop_vars=(0, y))
        return mb.linear(x=y, weight=outer, name="y")

    feeds = {"x": random.standard_normal((3, 1, 8)).astype(np.float32)}
    package = linear_model(tmp_path / "m.mlpackage", build, feeds, milblob.Linear("int8"))
    path, model, kinds, copied = converted(package)
    dense = converted(package, "dense.onnx", compressed="dense")[0]
    a, b = (run(one, feeds, prepacked=False)["y"] for one in (path, dense))
    assert a.tobytes() == b.tobytes()
    assert kinds["DequantizeLinear"] == 1  # of `outer`, which the loop reads as well; `inner` is computed in it
    (loop,) = (node for node in model.graph if node.op_type == "Loop")
    inside = collections.Counter(node.op_type for node in loop.attributes["body"].value)
    assert inside["DequantizeLinear"] == 1
    assert set(copied.values()) == {"gates of lstm"}
    for node in (one for one in model.graph if one.op_type in COMPUTED):
        assert any(value.uses() or value.is_graph_output() for value in node.outputs), node


TABLES = {
    "int8": milblob.Linear("int8"), "uint8": milblob.Linear("uint8", "linear"), "tensor": milblob.Linear("uint8", "linear", "per_tensor"),
    "int4": milblob.Linear("int4", granularity="per_block", block=8), "uint4": milblob.Linear("uint4", "linear", "per_block", 8),
    "channel": milblob.Linear("int4", "linear"), "pal1": milblob.Palette(1), "pal4": milblob.Palette(4), "pal8": milblob.Palette(8),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_of_a_table_are_computed_alone(tmp_path, precision):
    """Unless somebody reads all of it; for places of any rank, and for none."""
    from coremltools.converters.mil.mil import Builder as mb

    dtype = {"fp32": np.float32, "fp16": np.float16}[precision]
    table, x = np.random.default_rng(10).standard_normal((200, 64)).astype(dtype), X[:, :64].astype(dtype)

    def build(one, two, x):
        alone = mb.const(val=table, name="alone")
        shared = mb.const(val=table + 1, name="shared")
        tall = mb.gather(x=alone, indices=one, axis=0)
        wide = mb.gather(x=alone, indices=two, axis=0, name="wide")
        both = mb.add(x=mb.gather(x=shared, indices=one, axis=0), y=mb.reduce_sum(x=mb.linear(x=x, weight=shared)))
        return mb.identity(x=tall, name="tall"), wide, mb.identity(x=both, name="both")

    given = {"one": ((None,), np.int32), "two": ((2, None), np.int32), "x": x}
    whole = save(tmp_path / "whole.mlpackage", build, given, opset="iOS18", precision=precision)
    for name, recipe in TABLES.items():
        package = tmp_path / f"{name}.mlpackage"
        milblob.compress(whole, package, recipe)
        path, _, kinds, copied = converted(package)
        assert copied == {}
        assert kinds["DequantizeLinear"] == (0 if name.startswith("pal") else 1)  # of the shared one
        dense = converted(package, "dense.onnx", compressed="dense")[0]
        for one, two in ((np.array([3, 0, 199]), np.arange(8).reshape(2, 4)), (np.zeros(0), np.zeros((2, 0)))):
            feeds = {"one": one.astype(np.int32), "two": two.astype(np.int32), "x": x}
            found, expected = (run(each, feeds, prepacked=False) for each in (path, dense))
            assert {key: value.tobytes() for key, value in found.items()} == {
                key: value.tobytes() for key, value in expected.items()
            }, name
            assert found["wide"].shape == (*two.shape, 64)


def test_functions_share_the_stored_bytes(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    builders = {
        "prefill": lambda x: mb.linear(x=x, weight=WEIGHT),
        "decode": lambda x: mb.relu(x=mb.linear(x=x, weight=WEIGHT)),
    }
    sources = [
        (linear_model(tmp_path / f"{name}.mlpackage", build, {"x": X}, milblob.Palette(8)), name)
        for name, build in builders.items()
    ]
    both = tmp_path / "both.mlpackage"
    milblob.merge_functions(sources, both, default="decode")
    found = {name: converted(both, f"{name}.onnx", function=name) for name in builders}
    places = {
        (tensor.location, tensor.offset)
        for _, model, _, _ in found.values()
        for tensor in (value.const_value for value in model.graph.initializers.values())
        if isinstance(tensor, onnx_ir.ExternalTensor)
    }
    assert len(places) == 2  # the indices, and the palette of 1 KiB
    prefill, decode = (next(iter(run(found[name][0], {"x": X}).values())) for name in builders)
    assert np.maximum(prefill, 0).tobytes() == decode.tobytes()


def test_compressed_dense_decodes_and_decoded_gives_the_reason(blocks, cli, tmp_path):
    with pytest.raises(ValueError, match="compressed: expected one of keep, dense, onnxruntime, got 'some'"):
        milblob.onnx.convert(blocks, compressed="some")
    package = shutil.copytree(blocks, tmp_path / "m.mlpackage")
    assert milblob.onnx.decoded(package) == {}
    (name,) = weights_of(package)
    why = "constexpr_blockwise_shift_scale: int4 elements, before opset 21"
    assert milblob.onnx.decoded(package, opset=18) == {name: why}
    status, _, words = cli("to-onnx", package, "-o", tmp_path / "a.onnx", "--compressed", "dense", "--json")
    assert (status, words) == (0, "")
    status, _, words = cli("to-onnx", package, "-o", tmp_path / "a.onnx", "--compressed", "dense", "--force")
    assert status == 0 and "1 weight decoded, 64.0 KiB" in words
    status, _, words = cli("to-onnx", package, "-o", tmp_path / "a.onnx", "--force")
    assert status == 0 and "decoded" not in words
    status, out, words = cli("to-onnx", package, "--coverage", "--opset", "18")
    assert status == 0 and "1 weight cannot be kept compressed and is decoded" in words
    status, out, _ = cli("to-onnx", package, "--coverage", "--opset", "18", "--json")
    assert json.loads(out)["decoded"] == {name: why}
