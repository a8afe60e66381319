"""How palettes are made for a weight in pieces: of elements, of what pruning has left, of quantized integers."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from ..dtypes import as_dtype
from ..lossy import custom_palette, palettize, vectors
from ..lossy.palettize import Palettized
from ..lossy.quantize import Quantized
from ..values.strided import PIECE_COUNT, Empty, boxes, computed, is_finite, range_of
from .not_finite import palettize_all, require_finite
from .pieces import NotCompressibleError, Pieces

Array = np.ndarray[Any, Any]


class PaletteOptions(NamedTuple):
    """The options of a Palette, for one weight.

    Attributes:
        axis: of its channels.
        group_size: so many share a palette; None: all.
        weights: of the elements in the fit, or None.
        is_kept: whether NaN and infinity get entries of their own.
    """

    nbits: int | None
    mode: str
    axis: int
    group_size: int | None
    vector: int
    function: Callable[..., Any] | None
    weights: Array | None
    is_kept: bool = False


def palettized(pieces: Pieces, choice: PaletteOptions) -> Pieces:
    """Make palettes of the values that the pieces stand for.

    Raises:
        ValueError: as the functions of `values`. NotCompressibleError: vectors that are pruned in part.
    """
    if pieces.coded is not None:
        return _of_integers(pieces, choice)
    made = _fitted(pieces.values(), choice, pieces.empty)
    figures = None if pieces.steps or choice.is_kept else (made.squared, made.power, made.largest)
    found = pieces._replace(table=made, nonzero=None, figures=figures)
    if choice.vector > 1:
        found = found._replace(axis=choice.axis)
        require_whole_vectors(found)
    return found


def scaled(pieces: Pieces, choice: PaletteOptions) -> Pieces:
    """As `palettized`, of the elements divided by the greatest magnitude along the channels, as coremltools does."""
    array, empty = pieces.array, pieces.empty
    require_finite(array)  # before it is divided, which makes NaN of infinity
    by = _greatest(array, choice.axis)
    require_finite(by)  # another thread may have changed the array since
    by[by == 0] = 1
    if choice.mode == "kmeans":
        choice = choice._replace(weights=_weighed(np.asarray(by, np.float64) ** 2, array.shape, choice, empty))
    wide_by = np.broadcast_to(by, array.shape)
    divided = computed(array.shape, array.dtype, lambda box: array[box] / wide_by[box], empty)
    made = _fitted(divided, choice, empty)
    wide = (*by.shape, 1, 1)
    lut = Quantized(_repeated(made.palettes, by.shape), by.reshape(wide), None, as_dtype(array.dtype), 0.0, 0.0, 0.0)
    table = made._replace(palettes=lut.data, gap=float("nan"))
    axis = choice.axis if choice.vector > 1 else None
    return pieces._replace(table=table, lut=lut, axis=axis, figures=None)


def _greatest(array: Array, axis: int) -> Array:
    """The greatest magnitude along a dimension, which stays with the length 1."""
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


def require_whole_vectors(pieces: Pieces) -> None:
    """Refuse a mask that has only some elements of a vector: an index stands for all of them.

    Raises:
        NotCompressibleError: it does.
    """
    if pieces.bits is None or pieces.axis is None:
        return
    length = cast(Palettized, pieces.table).palettes.shape[-1]
    mask = np.moveaxis(pieces.mask, pieces.axis, -1)
    mask = mask.reshape(*mask.shape[:-1], -1, length)
    step = max(PIECE_COUNT // length, 1)
    for first in range(0, mask.size // length, step):
        count = min(step, mask.size // length - first)
        some = range_of(mask, first * length, count * length).reshape(count, length)
        if (some.any(-1) != some.all(-1)).any():
            words = f"expected vectors that are pruned as a whole (Prune with block={length}, dim={pieces.axis})"
            raise NotCompressibleError(f"{words}, got some that are pruned in part")


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
    """Palettes of quantized integers. The scales then are those of palettes, which are repeated for each."""
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
    return pieces._replace(coded=None, lut=lut, table=table, figures=None)


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
    """Palettes, one for each scale at least: those that several scales share are repeated."""
    for dim, (count, own) in enumerate(zip(counts, palettes.shape[: len(counts)], strict=True)):
        if count > own:
            if count % own:
                groups = palettes.shape[: len(counts)]
                raise NotCompressibleError(
                    f"expected scales that palettes can be repeated for, got {counts} and {groups}"
                )
            palettes = np.repeat(palettes, count // own, dim)
    return palettes
