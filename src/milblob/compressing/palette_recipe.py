"""The recipe Palette: indices into palettes of elements, of unpruned elements, or of quantized integers."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from ..arguments import as_count, as_integer, require
from ..dtypes import as_dtype
from ..lossy import custom_palette, palettize, vectors
from ..lossy.loss import Loss
from ..lossy.palettize import Palettized
from ..lossy.quantize import Quantized
from ..lossy.unfit import UnfitError
from ..rewrite.changes import WEIGHT_COUNT
from ..rewrite.parts import Put, WeightParts
from ..values.strided import Empty, boxes, computed, is_finite
from .linear_recipe import Linear
from .not_finite import palettize_all, require_finite
from .pieces import LINKED_OPSET, Pieces, coming
from .recipe import BLOCKS_OPSET, FIRST_OPSET, Recipe, require_one_of, set_options
from .weight import Weight, heavy_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Palette(Recipe):
    """Palettes: an index of a few bits for each element.

    Attributes:
        bits: of an index: 1, 2, 3, 4, 6 or 8; None in the modes "unique" and "custom", which take as few as they need.
        mode: "kmeans" (the least squared error), "uniform", "unique" (nothing is lost, or the weight is skipped) or
            "custom".
        granularity: "per_tensor" or "per_grouped_channel".
        group_size: with "per_grouped_channel": how many channels share a palette.
        channel_axis: of those channels, of vectors and of scales; None: the output channels.
        vector: elements of an entry: how many neighbours along the channels share an index.
        scale: whether elements are divided by the greatest magnitude along the channels before.
        lut_dtype: "int8", "uint8", "int4" or "uint4": the entries become such integers with one scale, as by
            `+ Linear(lut_dtype, granularity="per_tensor")`; None: they are floats.
        lut_function: in the mode "custom": called with the elements that share a palette, their channels first; returns
            (entries, indices).

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", milblob.Palette(bits=4))
        >>> with milblob.open("small.mlpackage", stored=True) as model:
        ...     print(model["head_weight.lut"].shape, model["head_weight.indices"].mil_dtype)
        (16,) uint8
    """

    bits: int | None = 4
    mode: str = "kmeans"
    granularity: str = "per_tensor"
    group_size: int = 32
    channel_axis: int | None = None
    vector: int = 1
    scale: bool = False
    lut_dtype: str | None = None
    lut_function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        require_one_of("mode", self.mode, (*palettize.MODES, "custom"))
        if not (callable(self.lut_function) if self.mode == "custom" else self.lut_function is None):
            message = "a function" if self.mode == "custom" else "None, except in the mode 'custom'"
            raise ValueError(f"lut_function: expected {message}, got {self.lut_function!r}")
        set_options(self, vector=as_integer("vector", self.vector))
        if self.vector < 1 or (self.vector > 1 and self.mode == "uniform"):
            message = "1" if self.mode == "uniform" else "1 or more"
            raise ValueError(f"vector: expected {message} in the mode {self.mode!r}, got {self.vector}")
        require("scale", self.scale, bool, "True or False")
        if self.lut_dtype is not None:
            set_options(self, lut_dtype=self._of_entries.dtype)
            if self.scale:
                raise ValueError("lut_dtype: expected None with scale, whose scales are those of the entries, got both")
        if self.mode in ("unique", "custom"):
            if self.bits not in (None, Palette.bits):  # not the default: it was given
                message = f"None in the mode {self.mode!r}, which takes as many as it needs"
                raise ValueError(f"bits: expected {message}, got {self.bits}")
            set_options(self, bits=None)
        else:
            require_one_of("bits", self.bits, palettize.NBITS)
            set_options(self, bits=int(self.bits))  # type: ignore[arg-type]
        require_one_of("granularity", self.granularity, ("per_tensor", "per_grouped_channel"))
        set_options(self, group_size=as_count("group_size", self.group_size, 1))
        if self.granularity == "per_tensor" and self.group_size != Palette.group_size:
            raise ValueError("group_size: expected it with granularity 'per_grouped_channel', got it with 'per_tensor'")
        if self.channel_axis is not None:
            set_options(self, channel_axis=as_integer("channel_axis", self.channel_axis))
            if self.granularity == "per_tensor" and self.vector == 1 and not self.scale:
                raise ValueError(f"channel_axis: expected None with one palette per tensor, got {self.channel_axis}")

    @property
    def opset(self) -> int:
        is_late = self.granularity != "per_tensor" or self.bits == 3 or self.vector > 1 or self.scale
        is_late = is_late or self.lut_dtype is not None
        return BLOCKS_OPSET if is_late else FIRST_OPSET

    def depends_on(self, axes: tuple[int, int], consumers: tuple[tuple[str, str], ...], groups: int) -> Hashable:
        is_whole = self.granularity == "per_tensor" and self.vector == 1 and not self.scale and self.mode != "custom"
        return None if is_whole else (axes if self.channel_axis is None else None, groups if self.vector > 1 else 1)

    @property
    def weighs(self) -> bool:
        return self.mode == "kmeans"

    @property
    def can_keep_nan(self) -> bool:
        return True

    @property
    def names(self) -> tuple[str, ...]:
        return ("Palette",) if self.lut_dtype is None else ("Palette", "Linear")

    @property
    def is_data(self) -> bool:
        return self.lut_function is None

    def objection(self, before: tuple[str, ...]) -> str | None:
        if self.vector > 1 and before[-1:] == ("Linear",):
            return f"Palette after Linear: expected vector=1: Core ML has no operation for others, got {self.vector}"
        return (self.objection_to_others() if before else None) or super().objection(before)

    def objection_to_others(self) -> str | None:
        if self.scale:
            return "Palette with others: expected scale=False: Core ML has no operation for it, got True"
        return None

    def streamed(self, weight: Weight) -> WeightParts | None:
        nbits, array = self.bits, weight.array
        if nbits is None or self.vector > 1 or self.scale or self.lut_dtype:
            return None
        axis, size = self._groups(weight)
        if array.size < 8 * WEIGHT_COUNT:
            return None
        if nbits == 3 and weight.opset < LINKED_OPSET:
            raise UnfitError("expected an opset of iOS18 for 3 bits, got an earlier one")
        along = None if size is None else axis
        work = palettize.Palettizer(array, nbits, mode=self.mode, axis=along, group_size=size, empty=weight.persistent)
        if not work.is_apart:
            return None
        shape = (*work.counts, 1 << nbits, 1)
        is_few = prod(shape) < WEIGHT_COUNT
        if is_few and array.size * nbits // 8 < work.kept_nbytes:
            return None  # the indices themselves are shorter than what is kept to compute them later
        palettes = work.fit().reshape(shape) if is_few else coming(shape, as_dtype(array.dtype).numpy)
        table = Palettized(coming(array.shape, np.uint8), palettes, nbits)
        is_sure = is_few and bool(np.isfinite(palettes).all())  # all elements have been looked at
        pieces = Pieces(array, ("Palette",), table=table)
        return pieces.parts_to_come(weight.opset, partial(_write_palettized, work), is_sure)

    def step(self, pieces: Pieces, weight: Weight) -> Pieces:
        axis, size = self._groups(weight)
        per_group = weight.array.shape[0] // weight.groups
        if self.vector > 1 and axis == 0 and weight.groups > 1 and per_group % self.vector:
            message = f"expected vectors that divide the {per_group} output channels of a group of the convolution"
            raise UnfitError(f"{message}, got {self.vector}")
        weights = heavy_of(pieces, weight) if self.mode == "kmeans" else None
        is_kept = weight.nan == "keep" and self.vector == 1 and self.mode in ("kmeans", "unique")
        choice = PaletteOptions(self.bits, self.mode, axis, size, self.vector, self.lut_function, weights, is_kept)
        made = (_scaled if self.scale else _palettized)(pieces, choice)
        found: Pieces = made._replace(steps=(*pieces.steps, "Palette"))
        return found if self.lut_dtype is None else self._of_entries.step(found, weight)

    def to_dict(self) -> dict[str, Any]:
        """See Recipe. A function is only named: JSON cannot hold it, so it does not come back."""
        function = self.lut_function
        name = None if function is None else getattr(function, "__qualname__", repr(function))
        return super().to_dict() | {"lut_function": name}

    @property
    def _of_entries(self) -> Linear:
        """How the entries are quantized."""
        return Linear(cast(str, self.lut_dtype), granularity="per_tensor")

    def _groups(self, weight: Weight) -> tuple[int, int | None]:
        """(axis of the channels, how many share a palette; None: all)."""
        rank = weight.array.ndim
        axis = weight.axes[1] if self.channel_axis is None else self.channel_axis
        if not -rank <= axis < rank:
            raise UnfitError(f"channel_axis: expected a dimension of {rank}, got {axis}")
        return axis % rank, self.group_size if self.granularity == "per_grouped_channel" else None


def _write_palettized(work: palettize.Palettizer, stored: set[str], put: Put) -> Loss:
    """Write the indices, and the palettes if they are `stored`; see WeightParts."""
    for begin, indices, group, palettes in work.stretches():
        put("indices", begin * work.nbits // 8, indices)
        if "lut" in stored and palettes.size:
            put("lut", group * (palettes.itemsize << work.nbits), palettes)
    return work.loss._replace(gap=None if np.isnan(work.gap) else work.gap)


# --------------------------------------------------------------------------------------------------------------- pieces


class PaletteOptions(NamedTuple):
    """The options of a Palette, for one weight."""

    nbits: int | None
    mode: str
    axis: int  # of its channels
    group_size: int | None  # how many share a palette; None: all
    vector: int
    function: Callable[..., Any] | None
    weights: Array | None  # of the elements in the fit, or None
    is_kept: bool = False  # whether NaN and infinity get entries of their own


def _palettized(pieces: Pieces, choice: PaletteOptions) -> Pieces:
    """Palettize the values that the pieces represent.

    Raises: ValueError: as the functions of `values`. UnfitError: vectors that are pruned in part.
    """
    if pieces.coded is not None:
        return _of_integers(pieces, choice)
    made = _fitted(pieces.values(), choice, pieces.empty)
    loss = None if pieces.steps or choice.is_kept else made.loss
    found = pieces._replace(table=made, nonzero=None, loss=loss)
    if choice.vector > 1:
        found = found._replace(axis=choice.axis)
        found.require_whole_vectors()
    return found


def _scaled(pieces: Pieces, choice: PaletteOptions) -> Pieces:
    """As `_palettized`, of the elements divided by the greatest magnitude along the channels, as coremltools does."""
    array, empty = pieces.array, pieces.empty
    require_finite(array)  # before the division, which turns infinity into NaN
    by = _greatest(array, choice.axis)
    require_finite(by)  # another thread may have changed the array since
    by[by == 0] = 1
    if choice.mode == "kmeans":
        choice = choice._replace(weights=_weighed(np.asarray(by, np.float64) ** 2, array.shape, choice, empty))
    wide_by = np.broadcast_to(by, array.shape)
    divided = computed(array.shape, array.dtype, lambda box: array[box] / wide_by[box], empty)
    made = _fitted(divided, choice, empty)
    wide = (*by.shape, 1, 1)
    lut = Quantized(_repeated(made.palettes, by.shape), by.reshape(wide), None, as_dtype(array.dtype))
    table = made._replace(palettes=lut.data, gap=float("nan"))
    axis = choice.axis if choice.vector > 1 else None
    return pieces._replace(table=table, lut=lut, axis=axis, loss=None)


def _greatest(array: Array, axis: int) -> Array:
    """Return the greatest magnitude along a dimension, which is kept with length 1."""
    found = np.zeros((*array.shape[:axis], 1, *array.shape[axis + 1 :]), array.dtype)
    for box in boxes(array.shape):
        into = found[(*box[:axis], slice(None), *box[axis + 1 :])]
        np.maximum(into, np.abs(array[box]).max(axis=axis, keepdims=True), out=into)
    return found


def _weighed(by: Array, shape: tuple[int, ...], choice: PaletteOptions, empty: Empty) -> Array:
    """What elements count in a fit, float32 with 1 for the most; `by`, float64, broadcasts to their shape."""
    if choice.weights is None:
        most = float(by.max())
        return np.broadcast_to((by / most if most > 0 else by).astype(np.float32), shape)
    wide, weights = np.broadcast_to(by, shape), choice.weights
    most = max(float((wide[box] * weights[box].astype(np.float32)).max()) for box in boxes(shape))

    def work(box: tuple[slice, ...]) -> Array:
        heavy = wide[box] * weights[box].astype(np.float32)
        return heavy / most if most > 0 else heavy

    return computed(shape, np.float32, work, empty)


def _fitted(array: Array, choice: PaletteOptions, empty: Empty) -> Palettized:
    nbits, mode, axis, size, length, function, weights, is_kept = choice
    if function is not None:
        return custom_palette.custom_palettes(array, function, axis=axis, group_size=size, vector=length, empty=empty)
    if length > 1:
        return vectors.palettize_vectors(
            array, nbits, vector=length, axis=axis, mode=mode, group_size=size, importance=weights, empty=empty
        )
    along = None if size is None else axis

    def fit(elements: Array) -> Palettized:
        return palettize.palettize(
            elements, nbits, mode=mode, axis=along, group_size=size, importance=weights, empty=empty
        )

    if is_kept and not is_finite(array):
        found: Palettized = palettize_all(array, fit, empty)
        return found
    return fit(array)


def _of_integers(pieces: Pieces, choice: PaletteOptions) -> Pieces:
    """Make palettes of quantized integers; palettes are repeated so that there is one for each scale."""
    coded = cast(Quantized, pieces.coded)
    data, empty = coded.data, pieces.empty
    if choice.mode == "kmeans":  # an integer counts for as much as it is worth
        choice = choice._replace(weights=_worth(coded, choice, empty))
    integers = computed(data.shape, np.float32, lambda box: data[box].astype(np.float32), empty)
    made = _fitted(integers, choice, empty)
    counts = coded.scale.shape
    entries = _repeated(np.rint(made.palettes).astype(coded.data.dtype), counts)
    wide = (*counts, 1, 1)
    point = None if coded.zero_point is None else coded.zero_point.reshape(wide)
    lut = coded._replace(data=entries, scale=coded.scale.reshape(wide), zero_point=point)
    table = made._replace(palettes=entries, gap=float("nan"))
    return pieces._replace(coded=None, lut=lut, table=table, loss=None)


def _worth(coded: Quantized, choice: PaletteOptions, empty: Empty) -> Array:
    """What integers count in a fit: the square of their scale, relative to the greatest one."""
    shape, by, weights = coded.data.shape, np.asarray(coded.scale, np.float64), choice.weights
    most = float(by.max())
    by = (by / most) ** 2 if most > 0 else by
    if weights is None and all(count in (1, length) for count, length in zip(by.shape, shape, strict=True)):
        return np.broadcast_to(by.astype(np.float32), shape)

    def work(box: tuple[slice, ...]) -> Array:
        steps = (length // count for length, count in zip(shape, by.shape, strict=True))
        at = (np.arange(along.start, along.stop) // step for along, step in zip(box, steps, strict=True))
        heavy = by[np.ix_(*at)]
        return heavy if weights is None else heavy * weights[box].astype(np.float32)

    return computed(shape, np.float32, work, empty)


def _repeated(palettes: Array, counts: tuple[int, ...]) -> Array:
    """Return palettes, at least one for each scale: a palette that several scales share is repeated."""
    for dim, (count, own) in enumerate(zip(counts, palettes.shape[: len(counts)], strict=True)):
        if count > own:
            if count % own:
                groups = palettes.shape[: len(counts)]
                raise UnfitError(f"expected scales that palettes can be repeated for, got {counts} and {groups}")
            palettes = np.repeat(palettes, count // own, dim)
    return palettes
