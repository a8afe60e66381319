"""Every recipe on weights that are unusual: what is refused is refused by name, what is made is what a reader reads."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from matrix import every
from milblob import FormatError, Joint, Linear, Palette, Prune
from milblob.compressing import palette_recipe
from milblob.compressing.parse_recipe import as_recipe
from milblob.compressing.pieces import Pieces
from milblob.compressing.weight import Weight, placed
from milblob.lossy import palettize as palettizing
from milblob.lossy import prune as pruning
from milblob.lossy import quantize as quantizing
from milblob.lossy.palettize import palettize
from milblob.lossy.quantize import quantize
from milblob.lossy.unfit import UnfitError
from milblob.values.tensorvalue import stored_bytes
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
WHOLE = Linear(granularity="per_tensor")
GROUPED = Palette(2, granularity="per_grouped_channel", group_size=2)
USES = (("conv", "weight"),)
RECIPES = [
    Linear(), Linear("uint8", "linear"), Linear("int4", granularity="per_block", block=1), Linear("uint4", "linear", search=True),
    Linear(granularity="per_block", block=(1, 0)), Palette(1), Palette(3), Palette(8), GROUPED, Palette(6, "uniform"),
    Palette(None, "unique"), Palette(2, vector=2), Palette(4, scale=True), Palette(2, vector=2, scale=True), Prune(0.5), Prune(1.0),
    Prune(0.0), Prune(threshold=1e-3, min_sparsity=0), Prune(n_m=(1, 2)), Prune(0.5, block=2),
    Prune(0.5) + Palette(4), Prune(0.5) + Linear(), Palette(4) + WHOLE, Palette(4) + Prune(0.5), Linear() + Prune(0.5),
    Linear("int4", "linear") + Palette(4), Prune(0.5) + Palette(4) + WHOLE, Prune(0.5, block=2) + Palette(2, vector=2),
]  # fmt: skip
SHAPES = [(4, 6), (2, 2), (8, 1), (4, 4, 3), (4, 2, 3, 3), (2, 4, 1, 2, 3)]
KINDS = ["random", "constant", "negative", "zeros", "subnormal", "few", "huge", "one"]


def make(kind, shape, dtype):
    rng = np.random.default_rng(3)
    limits = np.finfo(dtype)
    array = (rng.standard_normal(shape) * 0.1).astype(dtype)
    if kind == "constant":
        array[...] = 0.3
    elif kind == "negative":
        array[...] = -2
    elif kind == "zeros":
        array[...] = 0
    elif kind == "subnormal":
        array = (rng.integers(-8, 9, shape) * np.float64(limits.smallest_subnormal)).astype(dtype)
    elif kind == "few":
        array = rng.choice([-1, 0, 0.5], shape).astype(dtype)
    elif kind == "huge":
        array = rng.choice([-1, 0.5, 1], shape).astype(dtype) * limits.max
    elif kind == "one":
        array[...] = 0
        array.reshape(-1)[-1] = 1
    return array


def now(recipe, weight):
    parts = recipe.parts(weight)
    if parts.compute is None:
        return parts

    def put(place, offset, data):
        place[offset : offset + memoryview(data).nbytes] = memoryview(data).cast("B")

    made = placed(parts, bytearray, put)
    data = [part.data if part.array is None else stored_bytes(part.array, part.dtype) for part in made.parts]
    return replace(made, parts=tuple(replace(part, data=one) for part, one in zip(made.parts, data, strict=True)))


def stored(recipe, array, **options):
    pieces = recipe.step(Pieces(array), Weight(array, (1, 0), 18, USES, **options))
    return pieces.parts(18), pieces.values()


@pytest.mark.parametrize("dtype", some([np.float16, np.float32], 1))
def test_what_is_measured_is_what_is_read(dtype):
    """Each recipe with each shape and with each kind; `make thorough`: with all pairs of these."""
    made = []

    def check(recipe, shape, kind):
        if (RECIPES.index(recipe) + SHAPES.index(shape) + KINDS.index(kind)) % sized(3, 1):
            return
        array = make(kind, shape, dtype)
        before = array.copy()
        try:
            parts, values = stored(recipe, array)
        except UnfitError as error:
            assert "expected" in str(error)
            return
        made.append((recipe, kind))
        assert np.array_equal(array, before)
        assert (values.dtype, values.shape) == (array.dtype, array.shape)
        assert np.isfinite(values).all()
        lost = values.astype(np.float64) - array
        tiny = float(np.finfo(dtype).tiny) ** 2
        assert parts.loss.squared == pytest.approx(float(np.sum(lost**2)), rel=1e-4, abs=tiny)
        assert parts.loss.power == pytest.approx(float(np.sum(array.astype(np.float64) ** 2)), rel=1e-4, abs=tiny)
        assert parts.loss.largest == pytest.approx(float(np.abs(lost).max()), rel=1e-4, abs=tiny)
        assert (
            parts.loss.squared
            <= parts.loss.power * 1.0001 * (4 if isinstance(recipe, Palette) and recipe.mode == "uniform" else 1.5)
            + tiny
        )
        for part in parts.parts:
            assert memoryview(part.data).nbytes == part.dtype.nbytes(int(np.prod(part.shape)))

    every(check, RECIPES, SHAPES, KINDS)
    assert {recipe for recipe, _ in made} == set(RECIPES)
    assert {kind for _, kind in made} == set(KINDS)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("kind", ["constant", "negative", "zeros", "few"])
def test_fewer_numbers_than_entries_lose_nothing(kind, dtype):
    for recipe in (Palette(2), Palette(8), Palette(2, scale=True), Palette(2, granularity="per_grouped_channel", group_size=1), Palette(None, "unique"),
                   Palette(4, vector=2), Palette(None, "unique", vector=2), Prune(0.0), Prune(0.0) + Palette(2)):  # fmt: skip
        array = make(kind, (4, 6), dtype)
        parts, values = stored(recipe, array)
        assert np.array_equal(values, array), recipe
        assert (parts.loss.squared, parts.loss.largest) == (0, 0)


@pytest.mark.parametrize(
    ("recipe", "shape", "words"),
    [
        (Linear("int4", granularity="per_block", block=4), (4, 6), "expected sizes that divide the shape (4, 6)"),
        (Linear(granularity="per_block", block=(1, 2, 3)), (4, 6), "expected 3 dimensions, as block has, got 2"),
        (
            Palette(2, granularity="per_grouped_channel", group_size=3),
            (4, 6),
            "expected a divisor of 4, the channels of axis 0",
        ),
        (
            Palette(2, granularity="per_grouped_channel", group_size=32),
            (4, 6),
            "expected a divisor of 4, the channels of axis 0",
        ),
        (
            Palette(2, granularity="per_grouped_channel", group_size=2, channel_axis=2),
            (4, 6),
            "expected a dimension of 2, got 2",
        ),
        (Palette(2, vector=3), (4, 6), "expected 2 or more that divide the 4 channels of a palette, got 3"),
        (
            Palette(2, vector=4, granularity="per_grouped_channel", group_size=2),
            (4, 6),
            "that divide the 2 channels of a palette",
        ),
        (Palette(None, "unique"), (40, 60), "mode 'unique': expected at most 256 different numbers"),
        (Prune(n_m=(2, 4)), (4, 6), "expected at most half of the 6 of dimension 1, got 4"),
        (Prune(0.5, block=3), (4, 6), "expected at most half of the 4 of dimension 0, got 3"),
        (Prune(threshold=0.0), (4, 6), "expected a sparsity of 0.5 or more"),
        (
            Prune(0.5) + Palette(2, vector=2),
            (4, 6),
            "expected vectors that are pruned as a whole (Prune with block=2, dim=0)",
        ),
        (Palette(3, vector=2) + Prune(0.5), (4, 6), "expected vectors that are pruned as a whole"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(recipe, shape, words):
    with pytest.raises(UnfitError) as caught:
        stored(recipe, make("random", shape, np.float32))
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("nan", ["skip", "keep"])
@pytest.mark.parametrize("is_weighed", [False, True])
def test_what_is_not_finite_is_kept_or_refused_without_a_warning(nan, is_weighed, dtype):
    """A signalling NaN too: NumPy warns of any arithmetic on it, which whoever reads warnings as errors has to pay for."""
    bits, signalling = (np.uint16, 0x7D01) if dtype == np.float16 else (np.uint32, 0x7FA00001)
    odd = {
        "signalling": signalling,
        "nan": np.array(np.nan, dtype).view(bits),
        "inf": np.array(-np.inf, dtype).view(bits),
    }

    def check(recipe, kind):
        array = make("random", (8, 8), dtype)
        array.view(bits)[1, 2] = odd[kind]
        importance = np.arange(64, dtype=np.float32).reshape(8, 8) % 3 if is_weighed else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                _, found = stored(recipe, array, nan=nan, importance=importance)
        except UnfitError as error:
            assert "expected" in str(error)
        else:
            assert nan == "keep" and np.array_equal(array[1, 2], found[1, 2], equal_nan=True)

    every(check, RECIPES, odd)


@pytest.mark.parametrize("recipe", [Palette(3), Palette(None, "unique"), GROUPED], ids=str)
def test_nan_and_infinity_are_kept_for_every_unit(recipe):
    """They have places far beyond all other elements in the fit, however large these are."""
    array = make("random", (8, 8), np.float32)
    array[1, 2], array[4, 4], array[7, 0] = np.inf, np.nan, -np.inf
    _, found = stored(recipe, array, nan="keep")
    assert np.array_equal(found[~np.isfinite(array)], array[~np.isfinite(array)], equal_nan=True)
    assert np.isfinite(found).sum() == 61
    for unit in (np.float32(2.0**-90), np.float32(2.0**90)):
        _, other = stored(recipe, array * unit, nan="keep")
        assert np.array_equal(other, found * unit, equal_nan=True)


def test_every_kind_of_what_is_not_finite_needs_an_entry():
    array = make("random", (8, 8), np.float32)
    kinds = [np.nan, np.inf, -np.inf]
    for count in (1, 2, 3):
        array.reshape(-1)[:count] = kinds[:count]
        assert np.isfinite(stored(Palette(2), array, nan="keep")[1]).sum() == 64 - count
        if count > 1:
            with pytest.raises(
                UnfitError, match=f"more entries than the {count} kinds of NaN and infinity need, got 2"
            ):
                stored(Palette(1), array, nan="keep")


def test_options_at_the_ends_of_their_ranges():
    array = make("random", (4, 6), np.float32)
    one, other = (
        [stored(replace(GROUPED, channel_axis=axis), array)[1].tobytes() for axis in axes]
        for axes in ((0, 1), (-2, -1))
    )
    assert one == other and one[0] != one[1]
    with pytest.raises(UnfitError, match="channel_axis: expected a dimension of 2, got -3"):
        stored(replace(GROUPED, channel_axis=-3), array)
    assert np.array_equal(stored(Prune(n_m=(0, 2)), array)[1], array)
    assert not stored(Prune(n_m=(2, 2)), array)[1].any()
    _, values = stored(Linear(granularity="per_block", block=1), array)
    assert np.allclose(values, array, rtol=1e-6)


def test_vectors_divide_the_groups_of_a_convolution():
    array = make("random", (8, 2, 3, 3), np.float16)
    stored(Palette(2, vector=4), array, groups=2)
    with pytest.raises(UnfitError, match="divide the 2 output channels of a group of the convolution, got 4"):
        stored(Palette(2, vector=4), array, groups=4)
    stored(Palette(2, vector=2, channel_axis=1), array, groups=8)


def test_vectors_that_are_pruned_whole_remain_zero():
    array = make("random", (16, 12), np.float32)
    recipe = Prune(0.5, block=2, dim=0) + Palette(4, vector=2)
    parts, values = stored(recipe, array)
    _, pruned = stored(Prune(0.5, block=2, dim=0), array)
    assert np.array_equal(values == 0, pruned == 0)
    assert {part.key: part.shape for part in parts.parts}["nonzero_data.indices_mask"] == (8, 12)
    assert parts.op == "constexpr_sparse_to_dense"


def test_a_palette_of_what_is_pruned_spends_no_entry_on_zero():
    """Four numbers beside zero fit two bits."""
    array = np.random.default_rng(0).choice([-2, -1, 1, 2], (8, 8)).astype(np.float16)
    array[::2] = 0
    _, values = stored(Prune(0.0) + Palette(2), array)
    assert np.array_equal(values, array)


def test_a_function_chooses_the_palette():
    """The example of coremltools' documentation: the largest numbers, and zero for all others."""

    def largest(weight):
        weight = weight.flatten()
        top = np.unique(weight)[-15:]
        entries = [0.0, *top.tolist()]
        where = {value: index for index, value in enumerate(entries)}
        return entries, [where.get(value, 0) for value in weight]

    array = np.abs(make("random", (8, 6), np.float32))
    for axis, size, shape in ((0, None, (1, 1, 16, 1)), (0, 4, (2, 1, 16, 1)), (1, 3, (1, 2, 16, 1))):
        kind = {} if size is None else {"granularity": "per_grouped_channel", "group_size": size, "channel_axis": axis}
        parts, values = stored(Palette(None, "custom", lut_function=largest, **kind), array)
        assert {part.key: part.shape for part in parts.parts} == {"indices": (8, 6), "lut": shape}
        for first in range(0, array.shape[axis], size or 8):
            group = np.take(array, range(first, first + (size or 8)), axis)
            found = np.take(values, range(first, first + (size or 8)), axis)
            assert np.array_equal(found, np.where(group >= np.unique(group)[-15], group, 0))
    assert Palette(None, "custom", lut_function=largest).to_dict()["lut_function"].endswith("largest")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "expected (entries, indices) from it, got something else"),
        (([], []), "expected 1 to 256 entries from it, got shape (0, 1)"),
        ((np.zeros(257), np.zeros(24, int)), "expected 1 to 256 entries from it"),
        (([1.0], np.zeros(23, int)), "expected 24 integers as indices from it, got 23"),
        (([1.0], np.ones(24, int)), "expected indices of its 1 entries, got 1 to 1"),
        (([1.0], np.zeros(24)), "expected 24 integers as indices from it, got 24 of float64"),
        (
            (np.ma.masked_array([0.0, 1.0], [False, True]), np.zeros(24, int)),
            "got something else (array: expected a value for each",
        ),
        (
            ([0.0], np.ma.masked_array(np.zeros(24, int), True)),
            "got something else (array: expected a value for each element",
        ),
        (([0.0, None], np.zeros(24, int)), "got something else (expected real numbers as entries, got object)"),
        (
            (np.array([1 + 2j]), np.zeros(24, int)),
            "got something else (expected real numbers as entries, got complex128)",
        ),
    ],
)
def test_what_a_function_returns_is_checked(returned, words):
    with pytest.raises(ValueError) as caught:  # a mistake in the function, and no property of the weight
        stored(Palette(None, "custom", lut_function=lambda weight: returned), make("random", (4, 6), np.float32))
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("before", [(), (Prune(0.5),)], ids=["alone", "pruned"])
def test_entries_of_a_dtype_are_those_that_linear_makes(dtype, before):
    array = make("random", (16, 12), np.float16)
    for one in (Palette(4), Palette(6, "uniform"), Palette(4, vector=2), GROUPED, Palette(1)):
        if before and one.vector > 1:
            continue
        short = sum(before[1:], before[0]) + replace(one, lut_dtype=dtype) if before else replace(one, lut_dtype=dtype)
        long = Joint((*before, one, Linear(dtype, granularity="per_tensor")))
        (first, values), (second, others) = stored(short, array), stored(long, array)
        assert np.array_equal(values, others)
        assert [(p.key, p.dtype, p.shape, bytes(p.data)) for p in first.parts] == [
            (p.key, p.dtype, p.shape, bytes(p.data)) for p in second.parts
        ]
        assert (first.op, first.links, first.loss) == (second.op, second.links, second.loss)
        assert short.opset == 18 and as_recipe(short.to_json()) == short


def test_entries_of_a_dtype_go_where_linear_after_a_palette_goes():
    for wrong, words in (
        (lambda: Palette(4, lut_dtype="float16"), "dtype: expected int8, uint8, int4 or uint4, got"),
        (lambda: Palette(4, lut_dtype="int8", scale=True), "lut_dtype: expected None with scale"),
        (lambda: Palette(4, lut_dtype="int8") + Prune(0.5), "got Palette \\+ Linear \\+ Prune"),
        (lambda: Palette(4, lut_dtype="int8") + WHOLE, "got Palette \\+ Linear \\+ Linear"),
        (lambda: Linear() + Palette(4, lut_dtype="int8"), "got Linear \\+ Palette \\+ Linear"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()


def test_importance_and_pruned_elements_of_a_search():
    """Scales that are searched count only what is not zero, and count it by importance."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal((4, 64)).astype(np.float32)
    array[:, 0] *= 20
    heavy = np.ones(array.shape, np.float32)
    heavy[:, 0] = 0
    errors = []
    for importance in (None, heavy):
        _, values = stored(Prune(0.5) + Linear("int4", search=True), array, importance=importance)
        kept = values != 0
        errors.append(float(np.sum(heavy * kept * (values.astype(np.float64) - array) ** 2)))
    assert errors[1] < errors[0] / 2


GRIDS = {"channels": (None, (8, 1)), "blocks": (4, (8, 3)), "one": (None, (1, 1))}


@pytest.mark.parametrize("is_weighed", [False, True], ids=["alike", "weighed"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("factor", [2.0**-100, 1, 2.0**100])
def test_integers_count_for_the_square_of_their_scale(grid, factor, is_weighed):
    """And of their importance: the palette is the one that NumPy's weights of single elements give."""
    block, counts = GRIDS[grid]
    granularity = "per_tensor" if grid == "one" else "per_channel" if block is None else "per_block"
    first = Linear("int8", granularity=granularity, **({} if block is None else {"block": block}))
    rng = np.random.default_rng(4)
    sizes = rng.uniform(0.05, 1, counts) * factor
    array = (rng.standard_normal((8, 12)) * np.repeat(np.repeat(sizes, 8 // counts[0], 0), 12 // counts[1], 1)).astype(
        "f4"
    )
    heavy = rng.integers(0, 9, array.shape).astype(np.float32) if is_weighed else None
    coded = quantize(array, "int8", blocks=tuple(n // m for n, m in zip(array.shape, counts, strict=True)))
    assert coded.scale.shape == counts
    worth = (
        np.repeat(np.repeat(coded.scale, 8 // counts[0], 0), 12 // counts[1], 1).astype(np.float64) / coded.scale.max()
    ) ** 2
    due = palettize(coded.data.astype(np.float32), 2, importance=worth if heavy is None else worth * heavy)
    alike = palettize(coded.data.astype(np.float32), 2)
    assert (np.rint(due.palettes) == np.rint(alike.palettes)).all() == (grid == "one" and not is_weighed)
    found = (first + Palette(2)).step(Pieces(array), Weight(array, (1, 0), 18, USES, importance=heavy)).lut
    for entries in found.data.reshape(-1, 4):  # repeated for each scale
        assert np.array_equal(entries, np.rint(due.palettes).reshape(-1).astype(np.int8))


@pytest.mark.parametrize(
    "recipe", [Palette(2, scale=True), replace(GROUPED, scale=True), Palette(2, vector=2, scale=True)], ids=str
)
def test_importance_of_elements_that_are_divided_by_their_scale(recipe):
    """What alone counts is exact where there are as many entries. The unit of the weights and of importance does not matter."""
    rng = np.random.default_rng(6)
    array = rng.standard_normal((8, 12)).astype(np.float32)
    heavy = np.zeros(array.shape, np.float32)
    heavy[[0, 1, 4, 5], [3, 3, 7, 7]] = [1, 3, 2, 1]
    _, counted = stored(recipe, array, importance=heavy)
    _, alike = stored(recipe, array)
    assert np.allclose(counted[heavy > 0], array[heavy > 0], rtol=1e-6, atol=0)
    assert not np.allclose(alike[heavy > 0], array[heavy > 0], rtol=1e-2, atol=0)
    for unit in (np.float32(2.0**-100), np.float32(2.0**100)):  # their squares are no numbers of float32
        assert np.array_equal(stored(recipe, array * unit)[1], alike * unit)
        assert np.array_equal(stored(recipe, array * unit, importance=heavy * unit)[1], counted * unit)
    _, values = stored(recipe, array, importance=np.zeros_like(heavy))  # nothing counts: any entries will do
    assert np.isfinite(values).all()


@pytest.mark.parametrize("is_weighed", [False, True], ids=["alike", "weighed"])
@pytest.mark.parametrize("axes", [(1, 0), (0, 1)])
def test_divided_elements_count_for_the_square_of_their_scale(axes, is_weighed):
    """And of their importance: as NumPy divides and weighs them, so that the squared error of the weight is the least."""
    rng = np.random.default_rng(5)
    array = (rng.standard_normal((8, 12)) * rng.uniform(0.02, 1, 12) * rng.uniform(0.02, 1, (8, 1))).astype(np.float32)
    by = np.abs(array).max(axes[1], keepdims=True)
    worth = np.broadcast_to(by.astype(np.float64) ** 2, array.shape)
    heavy = rng.integers(0, 9, array.shape).astype(np.float32) if is_weighed else None
    due = palettize(array / by, 2, importance=worth if heavy is None else worth * heavy)
    found = Palette(2, scale=True).step(Pieces(array), Weight(array, axes, 18, USES, importance=heavy))
    assert np.array_equal(found.values(), due.palettes.reshape(-1)[due.indices] * by)
    assert not np.array_equal(due.palettes, palettize(array / by, 2, importance=heavy).palettes)


def test_palettes_of_few_entries_remain_floats_as_in_coremltools():
    array = make("random", (16, 16), np.float16)
    for nbits in (1, 2, 3, 4, 6):
        parts = {part.key: part for part in stored(Palette(nbits) + WHOLE, array)[0].parts}
        assert ("lut.scale" in parts) == (nbits > 3), nbits


PLANNED = [
    Linear(), Linear("uint8"), Linear("int8", "linear"), Linear("int4", granularity="per_block", block=4),
    Linear("uint4", "linear", "per_block", 4), Linear("uint4", "linear", "per_tensor"), Linear("int4", "linear", search=True),
    Linear("uint4", "linear", "per_block", 8, search=True), Linear("uint4", granularity="per_block", block=(12, 0), search=True),
    Palette(4), Palette(1), Palette(8), Palette(3, "uniform"), replace(GROUPED, group_size=1), replace(GROUPED, group_size=4, bits=3),
    Prune(0.5), Prune(0.9), Prune(n_m=(2, 4)), Prune(0.5, block=4), Prune(threshold=0.05, min_sparsity=0),
]  # fmt: skip


@pytest.mark.parametrize("groups_count", [1, 1 << 12], ids=["groups in parts", "whole groups"])
@pytest.mark.parametrize("opset", some([16, 18], 1))
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_is_planned_is_what_is_made_at_once(dtype, opset, groups_count, monkeypatch):
    """Each of many small parts is written to its place: bytes of integers, scales, zero points, indices, palettes, masks."""
    monkeypatch.setattr(quantizing, "_PART_COUNT", 1 << 7)
    monkeypatch.setattr(palettizing, "_PART_NBYTES", 1 << 8)
    monkeypatch.setattr(palettizing, "_GROUPS_COUNT", groups_count)
    monkeypatch.setattr(palettizing, "_TABLE_NBYTES", 0)  # or small ones would be made at once
    monkeypatch.setattr(pruning, "_PART_NBYTES", 1 << 8)
    array = (np.random.default_rng(7).standard_normal((24, 64)) * 0.1).astype(dtype)
    weight = Weight(array, (1, 0), opset, USES)
    made = []

    def check(recipe):
        is_new = isinstance(recipe, Palette) and (recipe.bits == 3 or recipe.granularity != "per_tensor")
        if opset < (18 if is_new else recipe.opset):
            return
        assert recipe.streamed(weight) is not None
        planned, whole = now(recipe, weight), recipe.step(weight.first_pieces, weight).parts(opset)
        assert planned.op == whole.op
        assert {p.key: (p.dtype, p.shape, bytes(p.data)) for p in planned.parts} == {
            p.key: (p.dtype, p.shape, bytes(p.data)) for p in whole.parts
        }
        for name in ("squared", "power", "largest"):
            assert getattr(planned.loss, name) == pytest.approx(getattr(whole.loss, name), rel=1e-6)
        made.append(recipe)

    every(check, PLANNED)
    assert len(made) >= (len(PLANNED) if opset == 18 else 8)


@pytest.mark.parametrize("groups_count", [1, 64, 200, 1 << 12])
@pytest.mark.parametrize("length", [63, 64])
def test_planned_palettes_of_groups(length, groups_count, monkeypatch):
    """Groups that end within a byte, too, are written one after another, however many are done at a time."""
    monkeypatch.setattr(palettizing, "_PART_NBYTES", 1 << 8)
    monkeypatch.setattr(palettizing, "_TABLE_NBYTES", 0)  # or small ones would be made at once
    monkeypatch.setattr(palettizing, "_GROUPS_COUNT", groups_count)
    array = make("random", (24, length), np.float16)
    weight = Weight(array, (1, 0), 18, USES)

    def check(nbits, size):
        recipe = Palette(nbits, granularity="per_grouped_channel", group_size=size)
        assert recipe.streamed(weight) is not None
        planned, whole = now(recipe, weight), stored(recipe, array)[0]
        assert [bytes(part.data) for part in planned.parts] == [bytes(part.data) for part in whole.parts]
        assert planned.loss[:3] == pytest.approx(whole.loss[:3], rel=1e-6)

    every(check, [1, 2, 3, 4, 8], [1, 2, 3, 24])


@pytest.mark.parametrize("is_planned", [True, False], ids=["planned", "at once"])
@pytest.mark.parametrize(
    ("recipe", "function"),
    [
        (Linear("int8"), "quantize.Quantizer"),
        (Linear("int8", granularity="per_block", block=4) + Prune(0.5), "quantize.Quantizer"),
        (Palette(4), "palettize.Palettizer palettize.palettize"),
        (Palette(4) + Prune(0.5), "palettize.palettize"),
        (Palette(2, vector=2), "vectors.palettize_vectors"),
        (Prune(0.5), "prune.Pruner"),
        (Prune(0.5) + Palette(4), "prune.prune"),
    ],
    ids=str,
)
def test_mistakes_are_not_taken_for_weights_that_cannot_be_compressed(recipe, function, is_planned, monkeypatch):
    """A wrong option of ours, or a source that changes, must not read as a weight that stays for a good reason."""
    array = make("random", (16, 16), np.float16)
    for error in (ValueError("a mistake"), FormatError("array: it changed while it was read")):

        def fail(*args, error=error, **options):
            raise error

        with monkeypatch.context() as patch:
            for name in function.split():
                patch.setattr(f"milblob.lossy.{name}", fail)
            with pytest.raises(type(error), match="mistake|changed") as caught:
                now(recipe, Weight(array, (1, 0), 18, USES)) if is_planned else stored(recipe, array)
        assert not isinstance(caught.value, UnfitError)


def test_what_a_weight_is_to_blame_for_is_a_reason_to_skip_it():
    array = make("random", (6, 10), np.float32)
    bad = array.copy()
    bad[0, 0] = np.nan
    flat = array.reshape(-1)
    for recipe, given, words in (
        (Linear(), bad, "finite"), (Palette(4), bad, "finite"), (Prune(0.5), bad, "finite"),
        (Palette(4, vector=2), bad, "finite"), (Linear(granularity="per_block", block=4), array, "divide"),
        (Palette(4, granularity="per_grouped_channel", group_size=4), array, "divisor"),
        (Palette(None, "unique"), np.arange(300, dtype=np.float32).reshape(6, 50), "different"),
        (Palette(None, "unique", vector=2), np.arange(1200, dtype=np.float32).reshape(6, 200), "different"),
        (Palette(4, vector=4), array, "divide"), (Prune(n_m=(2, 7)), array, "at most half"),
        (Prune(block=2, sparsity=0.5), flat, "2 to 5 dimensions"),
        (Palette(None, "custom", granularity="per_grouped_channel", group_size=4, lut_function=print), array, "divisor"),
    ):  # fmt: skip
        with pytest.raises(UnfitError, match=words):
            stored(recipe, given)


@pytest.mark.parametrize("dtype", some([np.float16, np.float32], 1))
def test_the_byte_order_of_an_array_makes_no_difference(dtype):
    def stored_parts(recipe, array):
        try:
            found = now(recipe, Weight(array, (1, 0), 18, USES))
        except UnfitError as error:
            return str(error)
        figures = found.loss[:3]
        return [(part.key, part.dtype, part.shape, bytes(part.data)) for part in found.parts], figures

    def check(recipe, kind):
        array = make(kind, (4, 6, 3), dtype)
        turned = array.astype(array.dtype.newbyteorder())
        assert stored_parts(recipe, turned) == stored_parts(recipe, array)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        every(check, [*RECIPES, Palette(2, vector=2, lut_dtype="int8")], KINDS)


OTHER_RECIPES = [
    WHOLE, Palette(4), Linear(granularity="per_block", block=2), Palette(2, vector=2, channel_axis=1), Prune(n_m=(1, 2), dim=0),
    Palette(2, granularity="per_grouped_channel", group_size=2, channel_axis=1), Linear("int4") + Prune(n_m=(2, 4)),
    Palette(None, "custom", lut_function=lambda some: (np.sort(some.reshape(-1))[:4], np.arange(some.size) % 4)),
]  # fmt: skip


@pytest.mark.parametrize("recipe", some(RECIPES + OTHER_RECIPES, 6), ids=lambda recipe: f"{recipe}"[:80])
def test_what_uses_have_in_common_is_all_that_a_result_depends_on(recipe):
    """Weights that different operations read share their parts by that."""
    array, found = make("random", (4, 6, 3), np.float32), {}
    uses = [(("conv", "weight"),), (("linear", "weight"),), (("gather", "x"),), (("gather", "x"), ("conv", "weight"))]
    for axes in ((1, 0), (0, 1), (2, 1)):
        for consumers in uses:
            for groups in (1, 2, 4):
                try:
                    made = now(recipe, Weight(array, axes, 18, consumers, groups=groups))
                    result = [(part.key, part.shape, bytes(part.data)) for part in made.parts]
                except UnfitError as error:
                    result = str(error)
                common = recipe.depends_on(axes, consumers, groups)
                assert found.setdefault(common, result) == result
    assert len(found) <= 18  # of 36: only groups and axes, or only consumers and axes, make a difference


@pytest.mark.parametrize("recipe", some([one for one in RECIPES if one.weighs], 6), ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_arrays_may_begin_anywhere_in_memory(recipe, dtype):
    """Those of an uncompressed .npz do, which is mapped."""

    def moved(array):
        room = np.empty(array.nbytes + 1, np.uint8)
        found = room[1:].view(array.dtype).reshape(array.shape)
        found[...] = array
        assert not found.flags.aligned
        return found

    def parts_of(array, weights):
        found = now(recipe, Weight(array, (1, 0), 18, USES, weights))
        return [(part.key, part.shape, bytes(part.data)) for part in found.parts], found.loss.squared

    array = make("random", (8, 6, 4), dtype)
    for kind in (np.float32, np.float16, np.float64, np.int32):
        weights = np.random.default_rng(1).integers(0, 5, array.shape).astype(kind)
        expected = parts_of(array, weights)
        assert parts_of(moved(array), weights) == expected
        assert parts_of(array, moved(weights)) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_array_that_changes_while_its_scales_are_computed_is_refused(value, monkeypatch):
    array = make("random", (4, 6), np.float32)

    found = palette_recipe.require_finite

    def changing(checked):
        found(checked)
        array[1, 1] = value

    monkeypatch.setattr(palette_recipe, "require_finite", changing)
    with pytest.raises(UnfitError, match="expected finite elements"):
        stored(Palette(2, scale=True), array)
