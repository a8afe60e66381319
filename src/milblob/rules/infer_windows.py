"""Types of outputs that follow plainly from those of the inputs: convolutions, pools, images and recurrent layers."""

from collections.abc import Callable, Sequence

from ..program.types import TensorType
from ..wording import sizes as spelled
from .known_arguments import Given, Unsure, typed
from .misfits import Misfit, require_like, require_multiple

_Maker = Callable[[Given], TensorType | tuple[TensorType, ...]]
_Sizes = list[int | None]


def _conv(given: Given) -> TensorType:
    x, weight = given.ranked("x", 3), given.ranked("weight", 3)
    if len(weight.shape) != len(x.shape):
        raise Misfit("weight", f"{len(x.shape)} dimensions, as x has", spelled(weight.shape))
    channels, groups = x.shape[1], given.integers_or_none("groups") if "groups" in given else (1,)
    if channels is not None and groups and groups[0] > 0:
        require_multiple("channels of x", channels, groups[0])
        require_like("channels of weight", (channels // groups[0],), weight.shape[1:2])
    area = _or_open(len(x.shape) - 2, lambda: _windows(given, x, weight.shape[2:]))
    return typed(x, (x.shape[0], weight.shape[0], *area))


def _conv_transpose(given: Given) -> TensorType:
    x, weight = _windowed(given)
    area = _or_open(len(x.shape) - 2, lambda: _spread(given, x, weight.shape[2:]))
    channels = weight.shape[1]
    groups = given.integer("groups", 1)
    return typed(x, (x.shape[0], None if channels is None else channels * groups, *area))


def _spread(given: Given, x: TensorType, kernel: Sequence[int | None]) -> _Sizes:
    """Height, width and depth that a transposed convolution makes."""
    count = len(kernel)
    if "output_shape" in given:
        wanted = given.integers("output_shape")
        if len(wanted) != len(x.shape):
            raise Unsure
        return list(wanted[2:])
    kind, strides, dilations, pads = _layout(given, count)
    if kind == "same_lower":
        raise Unsure
    made: _Sizes = []
    for i, (size, width) in enumerate(zip(x.shape[2:], kernel, strict=True)):
        if size is None or width is None:
            made.append(None)
        elif kind == "same":
            made.append(size * strides[i])
        else:
            made.append(strides[i] * (size - 1) + (width - 1) * dilations[i] + 1 - pads[2 * i] - pads[2 * i + 1])
    return made


def _pool(given: Given) -> TensorType:
    x = given.ranked("x", 3)
    count = len(x.shape) - 2
    area = _or_open(count, lambda: _windows(given, x, given.sizes("kernel_sizes", count, 1)))
    return typed(x, (*x.shape[:2], *area))


def _windows(given: Given, x: TensorType, kernel: Sequence[int | None]) -> _Sizes:
    """How many places windows have along height, width and depth."""
    count = len(kernel)
    kind, strides, dilations, pads = _layout(given, count)
    rounds_up = bool(given.integer("ceil_mode", 0))
    if min(strides) < 1:
        raise Unsure
    made: _Sizes = []
    for i, (size, width) in enumerate(zip(x.shape[2:], kernel, strict=True)):
        if size is None or width is None:
            made.append(None)
            continue
        if kind in ("same", "same_lower"):
            # Windows narrower than their stride need no padding: coremltools rounds up twice then.
            is_sure = not rounds_up or width >= strides[i]
            made.append(-(-size // strides[i]) if is_sure else None)
            continue
        around = pads[2 * i] + pads[2 * i + 1]
        room = size + around - ((width - 1) * dilations[i] + 1)
        places = (room + (strides[i] - 1 if rounds_up else 0)) // strides[i] + 1
        # A window that would begin in the padding at the end is left out.
        if rounds_up and around and (places - 1) * strides[i] >= size + around / 2:
            places -= 1
        if places < 1 and not rounds_up:
            raise Misfit("x", f"at least {size - room} along dimension {i + 2}", spelled(x.shape))
        made.append(places if places > 0 else None)
    return made


def _layout(given: Given, count: int) -> tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the kind of padding, strides, dilations and pads of windows with `count` dimensions."""
    kind = given.word("pad_type", "valid").lower()
    if kind not in ("custom", "same", "same_lower", "valid"):
        raise Unsure
    pads = given.sizes("pad", 2 * count, 0) if kind == "custom" else (0,) * (2 * count)
    return kind, given.sizes("strides", count, 1), given.sizes("dilations", count, 1), pads


def _windowed(given: Given) -> tuple[TensorType, TensorType]:
    """Return the types of x and of the weight that goes over it."""
    x = given.ranked("x", 3)
    return x, given.ranked("weight", len(x.shape), len(x.shape))


def _or_open(count: int, make: Callable[[], _Sizes]) -> _Sizes:
    """Return the sizes that `make` computes, or `count` open ones if they are not known."""
    try:
        return make()
    except Unsure:
        return [None] * count


def _resized(height: str, width: str, default: int | None = None) -> Callable[[Given], TensorType]:
    """Return the type of an image with the height and width that two arguments give."""

    def make(given: Given) -> TensorType:
        x = given.ranked("x", 3)
        area = _or_open(2, lambda: [given.integer(height, default), given.integer(width, default)])
        return typed(x, (*x.shape[:-2], *area))

    return make


def _upsampled(given: Given) -> TensorType:
    """Leave height and width open: the factors may be fractions, and no document defines their rounding."""
    x = given.ranked("x", 3)
    return typed(x, (*x.shape[:-2], None, None))


def _resize(given: Given) -> TensorType:
    x = given.ranked("x")
    count = given.integer("resized_dims")
    if not 0 <= count <= len(x.shape):
        raise Unsure
    kept = len(x.shape) - count
    wanted = given.integers_or_none("shape")
    area: _Sizes = [None] * count
    if wanted is not None and len(wanted) >= count:
        sizes = wanted[len(wanted) - count :]
        area = [x.shape[kept + i] if size == 0 else size for i, size in enumerate(sizes)]
    return typed(x, (*x.shape[:kept], *area))


def _crop(given: Given) -> TensorType:
    x = given.ranked("x", 3)
    cuts = [sum(given.sizes(key, 2, 0)) for key in ("crop_height", "crop_width")]
    area = [None if size is None else size - cut for size, cut in zip(x.shape[-2:], cuts, strict=True)]
    return typed(x, (*x.shape[:-2], *area))


def _crop_resize(given: Given) -> TensorType:
    x = given.ranked("x", 4, 4)
    area = given.integer("target_height", 1), given.integer("target_width", 1)
    if "boxes" in given:  # since CoreML7
        boxes = given.ranked("boxes").shape
        return typed(x, (boxes[0] if boxes else None, x.shape[1], *area))
    boxes = given.ranked("roi").shape
    return typed(x, (boxes[0] if boxes else None, *x.shape[:2], *area))


def _resample(given: Given) -> TensorType:
    x, coordinates = given.ranked("x", 4, 4), given.ranked("coordinates", 4, 4)
    return typed(x, (*x.shape[:2], *coordinates.shape[1:3]))


def _recurrent(outputs: int) -> Callable[[Given], tuple[TensorType, ...]]:
    """A layer over sequences: its output at each step, or the last one only, and its state at the end."""

    def make(given: Given) -> tuple[TensorType, ...]:
        x, weight = given.ranked("x", 3, 3), given.ranked("weight_hh", 2, 2)
        size = weight.shape[1]
        if given.word("direction", "forward") == "bidirectional":
            size = None if size is None else 2 * size
        steps, batch, _ = x.shape
        state = typed(x, (batch, size))
        every = typed(x, (steps if given.integer("output_sequence", 0) else 1, batch, size))
        return (every, *(state,) * (outputs - 1))

    return make


MAKERS: dict[str, _Maker] = {
    "affine": _resized("output_height", "output_width"),
    "avg_pool": _pool,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "crop": _crop,
    "crop_resize": _crop_resize,
    "gru": _recurrent(2),
    "l2_pool": _pool,
    "lstm": _recurrent(3),
    "max_pool": _pool,
    "resample": _resample,
    "resize": _resize,
    "resize_bilinear": _resized("target_size_height", "target_size_width", 1),
    "resize_nearest_neighbor": _resized("target_size_height", "target_size_width"),
    "rnn": _recurrent(2),
    "upsample_bilinear": _upsampled,
    "upsample_nearest_neighbor": _upsampled,
}
