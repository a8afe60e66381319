"""What resample, affine and crop_resize compute, as their specification in coremltools says it: for the tests of
milblob.onnx. Nothing here is written for speed."""

import functools
import itertools

import numpy as np

F = np.float32
_MARGIN = 40
_PADS = {"constant": "constant", "border": "edge", "reflection": "reflect", "symmetric": "symmetric"}
CORNERS = ("CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_HEIGHT_FIRST", "CENTER_SIZE_WIDTH_FIRST")
GRIDS = ("STRICT_ALIGN_CORNERS", "ALIGN_CORNERS", "DEFAULT", "OFFSET_CORNERS", "UNALIGN_CORNERS")


def padded(image, mode, value=0.0):
    """An image [C, H, W] with a wide margin, as NumPy pads it."""
    if mode == "reflection" and 1 in image.shape[1:]:
        raise ValueError("NumPy reflects no single row")
    extra = {"constant_values": value} if mode == "constant" else {}
    return np.pad(image.astype(np.float64), ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)), _PADS[mode], **extra)


def pixel(at, size, coordinates, align):
    """A coordinate as a number of pixels."""
    if coordinates == "unnormalized":
        return at
    share = at if coordinates == "normalized_zero_to_one" else (at + 1) / 2
    return share * (size - 1) if align else -0.5 + share * size


def between(whole, y, x):
    """The value of a padded image at a place between its pixels."""
    y, x = y + _MARGIN, x + _MARGIN
    top, left = int(np.floor(y)), int(np.floor(x))
    down, right = y - top, x - left
    above = whole[:, top, left] * (1 - right) + whole[:, top, left + 1] * right
    below = whole[:, top + 1, left] * (1 - right) + whole[:, top + 1, left + 1] * right
    return above * (1 - down) + below * down


def resample(x, coordinates, *, sampling, padding, value, mode, align):
    batch, channels, height, width = x.shape
    out = np.zeros((batch, channels, *coordinates.shape[1:3]))
    images = [padded(image, padding, value) for image in x]
    for b, i, j in np.ndindex(batch, *coordinates.shape[1:3]):
        column, row = (float(v) for v in coordinates[b, i, j])
        column, row = pixel(column, width, mode, align), pixel(row, height, mode, align)
        whole = images[b]
        if sampling == "nearest":
            out[b, :, i, j] = whole[:, round(row) + _MARGIN, round(column) + _MARGIN]
        else:
            out[b, :, i, j] = between(whole, row, column)
    return out.astype(F)


def affine(x, matrix, height, width, align):
    """The output's own coordinates, from -1 to 1, times the matrix are those in x; zeros outside."""
    out = np.zeros((*x.shape[:2], height, width))
    images = [padded(image, "constant") for image in x]
    for b, i, j in np.ndindex(x.shape[0], height, width):
        a = matrix[b if len(matrix) > 1 else 0].astype(np.float64)
        if align:
            # A single row or column is in the middle, as torch has it.
            column = -1 + 2 * j / (width - 1) if width > 1 else 0
            row = -1 + 2 * i / (height - 1) if height > 1 else 0
        else:
            column, row = (2 * j + 1) / width - 1, (2 * i + 1) / height - 1
        places = a[0] * column + a[1] * row + a[2], a[3] * column + a[4] * row + a[5]
        places = [
            pixel(at, size, "normalized_minus_one_to_one", align)
            for at, size in zip(places, x.shape[:1:-1], strict=True)
        ]
        out[b, :, i, j] = between(images[b], places[1], places[0])
    return out.astype(F)


def grid(count, target, mode):
    """The places that resize_bilinear samples in an image of `count` pixels, by the notes of its documentation."""
    found = []
    for i in range(target):
        if mode == "UNALIGN_CORNERS":
            spacing = count / target
            at = i * spacing + 0.5 * spacing - 0.5
        elif mode == "OFFSET_CORNERS":
            delta = max(1, count - 1) / target
            at = 0.5 * delta + i * delta
        elif target == 1:
            at = (count - 1) / 2 if mode == "ALIGN_CORNERS" else 0
        elif mode == "DEFAULT":
            at = i * (count - count / target) / (target - 1)
        else:
            at = i * (count - 1) / (target - 1)
        found.append(min(count - 1, max(0, at)))
    return found


def crop(image, box, height, width, *, corners, mode, normalized, scale, pad):
    """One box out of an image [C, H, W]; it reaches from the centre of a pixel to that of another."""
    a, b, c, d = (float(v) for v in box)
    if "WIDTH" in corners:
        a, b, c, d = b, a, d, c
    if "CENTER" in corners:
        a, b, c, d = a - c / 2, b - d / 2, a + c / 2, b + d / 2
    places = []
    for start, end, size, target in ((a, c, image.shape[1], height), (b, d, image.shape[2], width)):
        start, end = ((v * (size - 1) if normalized else v) * scale for v in (start, end))
        steps = grid(abs(end - start) + 1, target, mode)
        places.append([start + step if end >= start else start - step for step in steps])
    out = np.full((len(image), height, width), pad, np.float64)
    whole = padded(image, "border")
    for i, j in np.ndindex(height, width):
        row, column = places[0][i], places[1][j]
        if 0 <= row <= image.shape[1] - 1 and 0 <= column <= image.shape[2] - 1:
            out[:, i, j] = between(whole, row, column)
    return out.astype(F)


def crops(x, boxes, numbers, height, width, **options):
    return np.stack([crop(x[n], box, height, width, **options) for n, box in zip(numbers, boxes, strict=True)])


random = np.random.default_rng(11)
X = random.normal(size=(2, 3, 4, 5)).astype(F)
PLACES = random.uniform(-2.2, 2.2, (2, 3, 4, 2)).astype(np.float16).astype(F)
BOXES = np.array([[0.5, 1, 2.5, 3.75], [2.5, 3.5, 0.25, 0.75], [-1, 0.5, 5, 2], [1, 2, 1, 2]], F)
CENTRES = np.array([[1.5, 2, 2, 3.5], [1, 1.5, 3, 1], [2, 2, 5, 0.5], [1, 2, 0, 0]], F)
NUMBERS = [1, 0, 1, 0]
MATRIX = np.array([[0.5, 0.25, 0.125, -0.375, 1, 0.25], [-1, -2, 0.5, -1, 1.5, 1.25]], F)


TORCH_X = np.arange(1, 13, dtype=F).reshape(1, 1, 3, 4)
TORCH_PLACES = np.array([[[-3.5, -0.5], [0.25, 1.5], [1, -1], [0, 2.25]]], F)[:, None]
TORCH = {
    ("bilinear", "zeros", False): [0.0, 0.0, 1.0, 0.0],
    ("bilinear", "zeros", True): [0.0, 5.4375, 4.0, 0.0],
    ("bilinear", "border", False): [2.0, 11.0, 4.0, 10.5],
    ("bilinear", "border", True): [3.0, 10.875, 4.0, 10.5],
    ("bilinear", "reflection", False): [4.5, 10.0, 4.0, 5.0],
    ("bilinear", "reflection", True): [5.25, 8.875, 4.0, 5.5],
    ("nearest", "zeros", False): [0.0, 0.0, 0.0, 0.0],
    ("nearest", "zeros", True): [0.0, 11.0, 4.0, 0.0],
    ("nearest", "border", False): [1.0, 11.0, 4.0, 11.0],
    ("nearest", "border", True): [1.0, 11.0, 4.0, 11.0],
    ("nearest", "reflection", False): [3.0, 11.0, 4.0, 7.0],
    ("nearest", "reflection", True): [3.0, 11.0, 4.0, 7.0],
}
"""What torch.nn.functional.grid_sample gives for these, places halfway between pixels among them."""


def _constant(values, *arrays):
    return np.array(values, F).reshape(1, 1, 1, 4)


def _as_torch(sampling, padding, align):
    """What coremltools makes of grid_sample."""
    mode = {"zeros": "constant", "border": "border", "reflection": "reflection" if align else "symmetric"}[padding]

    def build(mb, x, places):
        return mb.resample(
            x=x, coordinates=places, sampling_mode=sampling, padding_mode=mode, padding_value=F(0),
            coordinates_mode="normalized_minus_one_to_one", align_corners=align,
        )  # fmt: skip

    return build


def resample_cases(case):
    """Every padding, coordinates, sampling and alignment; integer places as well."""
    found = []
    for sampling, padding, mode, align in itertools.product(
        ("bilinear", "nearest"),
        _PADS,
        ("unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one"),
        (False, True),
    ):
        options = {"sampling_mode": sampling, "padding_mode": padding, "coordinates_mode": mode, "align_corners": align}

        def build(mb, x, places, options=options):
            return mb.resample(x=x, coordinates=places, padding_value=F(0.5), **options)

        def formula(x, places, s=sampling, p=padding, m=mode, a=align):
            return resample(x, places, sampling=s, padding=p, value=0.5, mode=m, align=a)

        found.append(case(build, (X, PLACES), formula))
    zero = {"sampling": "bilinear", "padding": "constant", "value": 0.0, "mode": "normalized_zero_to_one"}
    for align in (False, True):

        def build(mb, x, places, align=align):
            return mb.resample(
                x=x, coordinates=places, sampling_mode="bilinear", padding_mode="constant", padding_value=F(0),
                coordinates_mode="normalized_zero_to_one", align_corners=align,
            )  # fmt: skip

        found.append(case(build, (X, PLACES), lambda x, places, a=align: resample(x, places, align=a, **zero)))
    found += [case(_as_torch(*one), (TORCH_X, TORCH_PLACES), functools.partial(_constant, TORCH[one])) for one in TORCH]
    whole = np.array([[[[-1, 0], [4, 1]]], [[[2, 7], [-3, 2]]]], np.int32)

    def of_integers(mb, x, places, dtype="int32"):
        places = mb.cast(x=places, dtype=dtype) if dtype != "int32" else places
        return mb.resample(
            x=x, coordinates=places, sampling_mode="bilinear", padding_mode="constant", padding_value=F(-1),
            coordinates_mode="unnormalized", align_corners=True,
        )  # fmt: skip

    options = {"sampling": "bilinear", "padding": "constant", "value": -1.0, "mode": "unnormalized", "align": True}
    found.append(case(of_integers, (X, whole), lambda x, places: resample(x, places, **options)))
    for dtype in ("int8", "int16"):
        narrow = functools.partial(of_integers, dtype=dtype)
        found.append(case(narrow, (X, whole), lambda x, places: resample(x, places, **options), "iOS17"))
    return found


def affine_cases(case):
    """Aligned and not, one matrix for all images and one for each, sizes of 1."""
    found = []
    for align, count, (height, width) in (
        (True, 2, (3, 4)), (True, 1, (5, 2)), (False, 2, (4, 4)), (False, 1, (1, 6)), (True, 1, (1, 1)),
    ):  # fmt: skip

        def build(mb, x, matrix, align=align, height=height, width=width):
            return mb.affine(
                x=x, transform_matrix=matrix, output_height=height, output_width=width, sampling_mode="bilinear",
                padding_mode="constant", padding_value=F(0), coordinates_mode="normalized_minus_one_to_one",
                align_corners=align,
            )  # fmt: skip

        def formula(x, matrix, align=align, height=height, width=width):
            return affine(x, matrix, height, width, align)

        found.append(case(build, (X, MATRIX[:count]), formula))
    return found


def _crop_case(case, corners, mode, target, extra, since, until):
    boxes = CENTRES if "CENTER" in corners else BOXES
    if mode == "UNALIGN_CORNERS":  # of boxes that are turned round, only what coremltools' own test says is known
        boxes = boxes[[0, 2, 3]]
    numbers = NUMBERS[: len(boxes)]
    height, width = target
    options = {"corners": corners, "mode": mode, "normalized": False, "scale": 1.0, "pad": 0.0} | extra
    given = {"normalized_coordinates": options["normalized"], "spatial_scale": F(options["scale"])}
    if options["normalized"]:
        boxes = (boxes / 4).astype(F)
    if options["pad"]:
        given["pad_value"] = F(options["pad"])
    given |= {"target_height": height, "target_width": width, "box_coordinate_mode": corners, "sampling_mode": mode}

    def by_boxes(mb, x, boxes):
        return mb.crop_resize(x=x, boxes=boxes, box_indices=np.array(numbers, np.int32), **given)

    def by_roi(mb, x, boxes):
        return mb.crop_resize(x=x, roi=mb.reshape(x=boxes, shape=[-1, 1, 4, 1, 1]), **given)

    def of_all(x, boxes):
        every = [crops(x[i : i + 1], boxes, [0] * len(boxes), height, width, **options) for i in range(len(x))]
        return np.stack(every, 1)

    if until != "iOS18":
        return case(by_roi, (X, boxes), of_all, since, until)
    return case(by_boxes, (X, boxes), lambda x, b: crops(x, b, numbers, height, width, **options), since, until)


def crop_resize_cases(case):
    """Both signatures: every mode of boxes and of sampling, targets of 1, normalized, scaled, padded."""
    found = []
    variants = [
        *((corners, "ALIGN_CORNERS", (2, 3), {}) for corners in CORNERS),
        *((CORNERS[0], mode, target, {}) for mode in GRIDS for target in ((3, 2), (1, 1))),
        (CORNERS[1], "DEFAULT", (3, 3), {"normalized": True}),
        (CORNERS[0], "OFFSET_CORNERS", (2, 2), {"scale": 0.5}),
    ]
    for corners, mode, target, extra in variants:
        found.append(_crop_case(case, corners, mode, target, extra, "iOS15", "iOS16"))
        found.append(_crop_case(case, corners, mode, target, extra, "iOS17", "iOS18"))
    padded_ones = (CORNERS[0], "ALIGN_CORNERS", (4, 2), {"pad": 7.0})
    found += [_crop_case(case, *padded_ones, "iOS16", "iOS16"), _crop_case(case, *padded_ones, "iOS17", "iOS18")]

    plain = {"corners": CORNERS[0], "mode": "ALIGN_CORNERS", "normalized": False, "scale": 1.0, "pad": 0.0}
    rows = np.concatenate([np.zeros((4, 1), F), BOXES], 1)
    found.append(
        case(
            lambda mb, x, roi: mb.crop_resize(
                x=x, roi=mb.reshape(x=roi, shape=[-1, 1, 5, 1, 1]), target_height=2, target_width=2,
                sampling_mode="ALIGN_CORNERS",
            ),
            (X[:1], rows),
            lambda x, roi: crops(x, roi[:, 1:], [0] * 4, 2, 2, **plain)[:, None],
            "iOS15",
            "iOS16",
        )
    )  # fmt: skip
    found.append(  # without numbers, each box has its own image
        case(
            lambda mb, x, boxes: mb.crop_resize(
                x=x, boxes=boxes, target_height=2, target_width=2, sampling_mode="ALIGN_CORNERS"
            ),
            (X, BOXES[:2]),
            lambda x, boxes: crops(x, boxes, [0, 1], 2, 2, **plain),
            "iOS17",
        )
    )
    found.append(  # a box that ends before it starts is the whole image, in this mode alone
        case(
            lambda mb, x, boxes: mb.crop_resize(
                x=x, boxes=boxes, target_height=2, target_width=2, normalized_coordinates=True,
                sampling_mode="UNALIGN_CORNERS",
            ),
            (np.arange(1, 17, dtype=F).reshape(1, 1, 4, 4), np.array([[2, 2, 1, 1]], F)),
            lambda x, boxes: np.array([[[[3.5, 5.5], [11.5, 13.5]]]], F),
            "iOS17",
        )
    )  # fmt: skip
    found.append(
        case(
            lambda mb, x, boxes: mb.crop_resize(
                x=x, boxes=mb.cast(x=boxes, dtype="uint16"), box_indices=mb.cast(x=np.array([0, 1], np.int32), dtype="uint16"),
                target_height=2, target_width=2, sampling_mode="ALIGN_CORNERS",
            ),
            (X, np.array([[0, 1, 2, 3], [1, 0, 3, 4]], np.int32)),
            lambda x, boxes: crops(x, boxes, [0, 1], 2, 2, **plain),
            "iOS17",
        )
    )  # fmt: skip
    return found
