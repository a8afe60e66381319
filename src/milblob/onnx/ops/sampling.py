"""Samples of images at computed places: resample, affine, crop_resize."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable

_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT
_EDGE = 1e-3  # of a pixel: a place that rounding puts this far past the last one is still inside


def _size(g: ModelComponentContainer, x: Variable, axis: int) -> Any:
    """Return a size of x as a float of rank 0."""
    known = g.dimensions(x)[axis]
    if known is not None:
        return g.scalar(known, _FLOAT)
    return g.cast(g.node("Squeeze", g.node("Shape", x, start=axis, end=axis + 1), g.ints([0])), _FLOAT)


def _modulo(g: ModelComponentContainer, value: Any, divisor: Any) -> Any:
    return g.node("Sub", value, g.node("Mul", divisor, g.node("Floor", g.node("Div", value, divisor))))


def _folded(g: ModelComponentContainer, at: Any, size: Any, padding: str) -> Any:
    """Return positions inside of the image that have the values of those outside.

    "reflection" mirrors at the centres of the outermost pixels, "symmetric" at their outer edges.
    """
    zero, one, two, half = (g.scalar(number, _FLOAT) for number in (0, 1, 2, 0.5))
    last = g.node("Sub", size, one)
    if padding == "reflection":
        period = g.node("Max", g.node("Mul", last, two), one)
        at = _modulo(g, g.node("Abs", at), period)
        at = g.node("Min", at, g.node("Sub", period, at))
    elif padding == "symmetric":
        period = g.node("Mul", size, two)
        at = _modulo(g, g.node("Add", at, half), period)
        at = g.node("Sub", g.node("Min", at, g.node("Sub", period, at)), half)
    return g.node("Min", g.node("Max", at, zero), last)


def _inside(g: ModelComponentContainer, at: Any, size: Any, slack: float = 0.0) -> Any:
    last = g.node("Sub", size, g.scalar(1 - slack, _FLOAT))
    return g.node("And", g.node("GreaterOrEqual", at, g.scalar(-slack, _FLOAT)), g.node("LessOrEqual", at, last))


class _Image:
    """An image whose pixels are gathered: x as [batch * height * width, channels]."""

    def __init__(self, g: ModelComponentContainer, x: Variable, number: Any) -> None:
        self.g = g
        channels = g.dimensions(x, 4, 4)[1]
        self.height, self.width = _size(g, x, 2), _size(g, x, 3)
        count = g.node("Shape", x, start=1, end=2) if channels is None else g.ints([channels])
        rows = g.node("Concat", g.ints([-1]), count, axis=0)
        self.pixels = g.cast(g.node("Reshape", g.node("Transpose", x, perm=[0, 2, 3, 1]), rows), _FLOAT)
        height, width = g.cast(self.height, _INT64), g.cast(self.width, _INT64)
        self.row_length = width
        self.first = g.node("Mul", g.cast(number, _INT64), g.node("Mul", height, width))

    def at(self, y: Any, x: Any) -> Any:
        """Return the pixels [..., channels] of whole positions, which are moved into the image."""
        g = self.g
        zero, one = g.scalar(0, _FLOAT), g.scalar(1, _FLOAT)
        y, x = (
            g.cast(g.node("Min", g.node("Max", at, zero), g.node("Sub", size, one)), _INT64)
            for at, size in ((y, self.height), (x, self.width))
        )
        index = g.node("Add", self.first, g.node("Add", g.node("Mul", y, self.row_length), x))
        return g.node("Gather", self.pixels, index, axis=0)

    def bilinear(self, y: Any, x: Any, outside: Any = None) -> Any:
        """Return values between pixels; those outside have the value `outside`, or that of the edge."""
        g = self.g
        one, last = g.scalar(1, _FLOAT), g.ints([-1])
        corners = []
        for at in (y, x):
            low = g.node("Floor", at)
            share = g.node("Sub", at, low)
            corners.append(((low, g.node("Sub", one, share)), (g.node("Add", low, one), share)))
        total = None
        for row, height in corners[0]:
            for column, width in corners[1]:
                pixels = self.at(row, column)
                if outside is not None:
                    inner = g.node("And", _inside(g, row, self.height), _inside(g, column, self.width))
                    pixels = g.node("Where", g.node("Unsqueeze", inner, last), pixels, outside)
                part = g.node("Mul", pixels, g.node("Unsqueeze", g.node("Mul", height, width), last))
                total = part if total is None else g.node("Add", total, part)
        return total

    def nearest(self, y: Any, x: Any, outside: Any = None) -> Any:
        """As `bilinear`, with the nearest pixel; of two the even one."""
        g = self.g
        row, column = g.node("Round", y), g.node("Round", x)
        pixels = self.at(row, column)
        if outside is not None:
            inner = g.node("And", _inside(g, row, self.height), _inside(g, column, self.width))
            pixels = g.node("Where", g.node("Unsqueeze", inner, g.ints([-1])), pixels, outside)
        return pixels


_PADDINGS = ("constant", "border", "reflection", "symmetric")
_COORDINATES = ("unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one")
_GRID_PADDINGS = {
    ("constant", True): "zeros", ("constant", False): "zeros", ("border", True): "border",
    ("border", False): "border", ("reflection", True): "reflection", ("symmetric", False): "reflection",
}  # fmt: skip


def _sample(operator: Operator, g: ModelComponentContainer, grid: Sequence[ir.Value], coordinates: str) -> ir.Value:
    """Return samples of x at (columns, rows) of `grid`, each [batch, height, width].

    ONNX's GridSample has coordinates of -1 to 1, zeros outside, and mirrors at the pixels' centres only if these are
    the alignment of the coordinates.
    """
    x = operator.input("x")
    g.rank(x, 4, 4)
    sampling = operator.text("sampling_mode", ("bilinear", "nearest"))
    padding = operator.text("padding_mode", _PADDINGS)
    align = bool(operator.number("align_corners"))
    value = float(operator.number("padding_value")) if padding == "constant" else 0.0
    known = _GRID_PADDINGS.get((padding, align))
    if known == "reflection" and sampling == "nearest":  # which rounds before it mirrors, and chooses another of two
        known = None
    if known is not None and value == 0 and coordinates != "unnormalized":
        last = g.ints([-1])
        if coordinates == "normalized_zero_to_one":
            two, one = g.scalar(2, _FLOAT), g.scalar(1, _FLOAT)
            grid = [g.node("Sub", g.node("Mul", part, two), one) for part in grid]
        places = g.node("Concat", *(g.node("Unsqueeze", part, last) for part in grid), axis=-1)
        mode = sampling if g.opset < 20 or sampling == "nearest" else "linear"
        whole, corners = g.cast(x, _FLOAT), int(align)
        return g.node("GridSample", whole, places, mode=mode, padding_mode=known, align_corners=corners)
    columns, rows = (
        _pixels(g, part, _size(g, x, axis), coordinates, align) for part, axis in zip(grid, (3, 2), strict=True)
    )
    batch = g.node("Squeeze", g.node("Shape", x, start=0, end=1), g.ints([0]))
    numbers = g.node("Range", g.scalar(0, _INT64), batch, g.scalar(1, _INT64))
    image = _Image(g, x, g.node("Reshape", numbers, g.ints([-1, 1, 1])))
    outside = g.scalar(value, _FLOAT) if padding == "constant" else None
    if outside is None:
        rows, columns = _folded(g, rows, image.height, padding), _folded(g, columns, image.width, padding)
    found = (image.nearest if sampling == "nearest" else image.bilinear)(rows, columns, outside)
    return g.node("Transpose", found, perm=[0, 3, 1, 2])


def _pixels(g: ModelComponentContainer, at: Any, size: Any, coordinates: str, align: bool) -> Any:
    """Return coordinates as numbers of pixels. Aligned ones are of the pixels' centres, others of the outer edges."""
    if coordinates == "unnormalized":
        return at
    one, half = g.scalar(1, _FLOAT), g.scalar(0.5, _FLOAT)
    if coordinates == "normalized_minus_one_to_one":
        at = g.node("Mul", g.node("Add", at, one), half)
    if align:
        return g.node("Mul", at, g.node("Sub", size, one))
    return g.node("Sub", g.node("Mul", at, size), half)


@builtin("resample", onnx="GridSample; Gather with arithmetic for what it lacks", convert=True)
def _resample(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    places = g.cast(operator.input("coordinates"), _FLOAT)
    grid = [g.node("Gather", places, g.scalar(i, _INT64), axis=3) for i in (0, 1)]
    return _sample(operator, g, grid, operator.text("coordinates_mode", _COORDINATES))


@builtin("affine", onnx="Mul, Add, GridSample", convert=True)
def _affine(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """The places of the result, from -1 to 1, times the matrix are places in x."""
    coordinates = operator.text("coordinates_mode", _COORDINATES[1:2])
    align = bool(operator.number("align_corners"))
    x, matrix = operator.input("x"), g.cast(operator.input("transform_matrix"), _FLOAT)
    height, width = (operator.integer(f"output_{key}", least=1) for key in ("height", "width"))
    across = g.constant(_between_ends(g, width, align)[None, None, :])
    down = g.constant(_between_ends(g, height, align)[None, :, None])
    first = g.node("Shape", x, start=0, end=1)
    shape = g.node("Concat", first, g.ints([height, width]), axis=0)
    grid = []
    for row in (0, 3):
        a, b, c = (
            g.node("Unsqueeze", g.node("Slice", matrix, g.ints([i]), g.ints([i + 1]), g.ints([1])), g.ints([2]))
            for i in range(row, row + 3)
        )
        place = g.node("Add", g.node("Add", g.node("Mul", a, across), g.node("Mul", b, down)), c)
        grid.append(g.node("Expand", place, shape))  # one matrix may be for all images
    return _sample(operator, g, grid, coordinates)


def _between_ends(g: ModelComponentContainer, count: int, align: bool) -> "np.ndarray[Any, Any]":
    """Return `count` places from -1 to 1: of the outermost pixels' centres, or of their outer edges."""
    at = g.numbers(count, dtype=np.float64)
    if not align:
        return ((2 * at + 1) / count - 1).astype(np.float32)
    return (2 * at / (count - 1) - 1 if count > 1 else at).astype(np.float32)


_BOXES = ("CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST")
_GRIDS = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "UNALIGN_CORNERS")


@builtin(
    "crop_resize",
    onnx="Gather with arithmetic",
    limits="before iOS 17: boxes with numbers of images only where x is one image",
    convert=True,
)
def _crop_resize(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """Boxes begin and end in the centres of pixels; places outside of the image are `pad_value`.

    Before iOS 17 the boxes are [N, 1, 4 or 5, 1, 1], and the first of five numbers is that of the image;
    without it each box is cut out of all images.
    """
    x = operator.input("x")
    if operator.has("roi"):
        number, box = _from_roi(operator, g, x)
        ranks = 4
    else:
        box = g.cast(operator.input("boxes"), _FLOAT)
        count = g.node("Squeeze", g.node("Shape", box, start=0, end=1), g.ints([0]))
        ordinal = (
            g.cast(operator.input("box_indices"), _INT64)
            if operator.has("box_indices")
            else g.node("Range", g.scalar(0, _INT64), count, g.scalar(1, _INT64))
        )
        number, ranks = g.node("Reshape", ordinal, g.ints([-1, 1, 1])), 3
    image = _Image(g, x, number)
    places, inside = [], []
    ends = _ends(operator, g, box, image)
    sizes = [operator.integer(f"target_{key}", 1, least=1) for key in ("height", "width")]
    for (start, end), size, target, axis in zip(ends, (image.height, image.width), sizes, (-2, -1), strict=True):
        grid = _grid(operator, g, start, end, size, target)
        shape = [-1, *[1] * (ranks - 1)]
        shape[axis] = target
        places.append(g.node("Reshape", grid, g.ints(shape)))
        inside.append(_inside(g, places[-1], size, _EDGE))
    rows, columns = (
        _folded(g, at, size, "border") for at, size in zip(places, (image.height, image.width), strict=True)
    )
    kept = g.node("Unsqueeze", g.node("And", *inside), g.ints([-1]))
    pad = g.scalar(float(operator.number("pad_value", 0)), _FLOAT)
    found = g.node("Where", kept, image.bilinear(rows, columns), pad)
    axes = list(range(ranks))
    return g.node("Transpose", found, perm=[*axes[:-2], ranks, *axes[-2:]])


def _from_roi(operator: Operator, g: ModelComponentContainer, x: Variable) -> tuple[Any, Any]:
    """Return the numbers of the images, as they apply to [boxes, images, height, width], and the boxes [N, 4]."""
    roi = operator.input("roi")
    numbers = g.dimensions(roi, 5, 5)[2]
    if numbers not in (4, 5):
        operator.refuse("a roi of [N, 1, 4, 1, 1] or [N, 1, 5, 1, 1]", roi.type)
    flat = g.node("Reshape", g.cast(roi, _FLOAT), g.ints([-1, numbers]))
    if numbers == 4:
        batch = g.node("Squeeze", g.node("Shape", x, start=0, end=1), g.ints([0]))
        every = g.node("Range", g.scalar(0, _INT64), batch, g.scalar(1, _INT64))
        return g.node("Reshape", every, g.ints([1, -1, 1, 1])), flat
    declared = operator.output.shape
    if declared is not None and len(declared) > 1 and declared[1] not in (1, None):
        operator.refuse("one image for boxes with numbers of images", f"an output {operator.output.type}")
    first = g.node("Slice", flat, g.ints([0]), g.ints([1]), g.ints([1]))
    number = g.cast(g.node("Reshape", first, g.ints([-1, 1, 1, 1])), _INT64)
    return number, g.node("Slice", flat, g.ints([1]), g.ints([5]), g.ints([1]))


def _ends(operator: Operator, g: ModelComponentContainer, box: Any, image: _Image) -> list[tuple[Any, Any]]:
    """Return (start, end) of the rows and of the columns of boxes, each [N, 1], in pixels."""
    mode = operator.text("box_coordinate_mode", _BOXES, _BOXES[0])
    parts = [g.node("Slice", box, g.ints([i]), g.ints([i + 1]), g.ints([1])) for i in range(4)]
    if mode.endswith("WIDTH_FIRST"):
        parts = [parts[i] for i in (1, 0, 3, 2)]
    found = []
    for (a, b), size in zip(((parts[0], parts[2]), (parts[1], parts[3])), (image.height, image.width), strict=True):
        if mode.startswith("CENTER"):
            half = g.node("Mul", b, g.scalar(0.5, _FLOAT))
            a, b = g.node("Sub", a, half), g.node("Add", a, half)
        factor: Any = g.scalar(float(operator.number("spatial_scale", 1)), _FLOAT)
        if operator.number("normalized_coordinates", False):
            factor = g.node("Mul", g.node("Sub", size, g.scalar(1, _FLOAT)), factor)
        found.append((g.node("Mul", a, factor), g.node("Mul", b, factor)))
    return found


def _grid(operator: Operator, g: ModelComponentContainer, start: Any, end: Any, size: Any, count: int) -> Any:
    """Return `count` places between the ends of each box: [N, count].

    As resize_bilinear does for an image with the pixels of the box; a box that ends before it starts is reversed. With
    UNALIGN_CORNERS such a box is the whole image, as in coremltools' own test, which has values from Core ML.
    """
    mode = operator.text("sampling_mode", _GRIDS, "DEFAULT")
    at = g.numbers(count, dtype=np.float64)
    zero, one = g.scalar(0, _FLOAT), g.scalar(1, _FLOAT)
    if mode.endswith("ALIGN_CORNERS") and mode != "UNALIGN_CORNERS":
        alone = 0.5 if mode == "ALIGN_CORNERS" else 0.0
        shares = g.constant((at / (count - 1) if count > 1 else at + alone).astype(np.float32)[None])
        return g.node("Add", start, g.node("Mul", g.node("Sub", end, start), shares))
    if mode == "UNALIGN_CORNERS":
        turned = g.node("Less", end, start)
        start = g.node("Where", turned, zero, start)
        end = g.node("Where", turned, g.node("Sub", size, one), end)
    reach = g.node("Sub", end, start)
    length = g.node("Abs", reach)
    shares = g.constant((at / count if mode == "DEFAULT" else (at + 0.5) / count).astype(np.float32)[None])
    if mode == "OFFSET_CORNERS":
        steps = g.node("Mul", g.node("Max", length, one), shares)
    else:
        steps = g.node("Mul", g.node("Add", length, one), shares)
        if mode == "UNALIGN_CORNERS":
            steps = g.node("Sub", steps, g.scalar(0.5, _FLOAT))
    steps = g.node("Min", g.node("Max", steps, zero), length)
    return g.node("Add", start, g.node("Mul", g.node("Sign", reach), steps))
