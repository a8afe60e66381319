"""Inputs and outputs of a session: names, dtypes, shapes, images, labels; and values on their way in and out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from ..arguments import array_of
from ..errors import FormatError, UnsupportedError
from ..extras import explained
from ..jsontext import as_shape, parse_json
from ..values.tensorvalue import MAX_RANK
from ..wording import escape

_DTYPES = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(bool)": "bool",
    "tensor(string)": "object",
} | {f"tensor({sign}int{n})": f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64)}  # fmt: skip
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAYSCALE": 1, "GRAYSCALE_FLOAT16": 1}
MODES = {"RGB": "RGB", "BGR": "RGB", "GRAYSCALE": "L", "GRAYSCALE_FLOAT16": "F"}
"""Colour space -> the mode of its PIL image."""


@dataclass(frozen=True, slots=True)
class SessionInput:
    """An input of a session. `str(input)` is its type in one line.

    Attributes:
        name: as the model calls it.
        dtype: of the array that the model takes.
        shape: of that array; None for an axis that may vary.
        enumerated: the only shapes that are allowed; empty: any that `ranges` and `shape` allow.
        ranges: (least, most) of each axis, None for no upper bound; empty if nothing is known beyond `shape`.
        color_space: of an image, "RGB", "BGR", "GRAYSCALE" or "GRAYSCALE_FLOAT16"; "" for other features.
        is_optional: it may be left out, and has its default then.

    Examples:
        >>> [tokens] = milblob.Session("demo.mlpackage").inputs.values()
        >>> tokens.name, tokens.dtype, tokens.shape
        ('tokens', dtype('int32'), (1, 16))
        >>> print(tokens)
        int32 [1, 16]
    """

    name: str
    dtype: "np.dtype[Any]"
    shape: tuple[int | None, ...]
    enumerated: tuple[tuple[int, ...], ...] = ()
    ranges: tuple[tuple[int, int | None], ...] = ()
    color_space: str = ""
    is_optional: bool = False

    def __str__(self) -> str:
        if self.enumerated:
            words = " or ".join(str(list(shape)) for shape in self.enumerated)
        else:
            bounds = self.ranges or ((0, None),) * len(self.shape)
            words = f"[{', '.join(map(_axis, self.shape, bounds))}]"
        image = f"{self.color_space} image, " if self.color_space else ""
        return f"{image}{self.dtype} {words}{' optional' if self.is_optional else ''}"

    def require_shape(self, shape: tuple[int, ...], what: str = "input") -> None:
        """Refuse a shape that the model does not take.

        Raises:
            ValueError: it is none of them.
        """
        if not _fits(self.shape, self.enumerated, self.ranges, tuple(shape)):
            message = f"{what} {self.name}: expected {self}, got the shape {list(shape)}"
            raise ValueError(escape(f"{message}{_other_batch(self.shape, shape) if what == 'input' else ''}"))

    def convert(self, value: Any, what: str = "input") -> "np.ndarray[Any, Any]":
        """Return a value as the model takes it.

        Args:
            value: an array or what NumPy makes one of; a PIL image for an image.
            what: "input", "state" or "weight", for messages.

        Raises:
            ValueError: a shape, a dtype, a size or a mode that does not fit; a number that the dtype cannot hold.
        """
        is_array = type(value) is np.ndarray and value.dtype == self.dtype
        if is_array and _fits(self.shape, self.enumerated, self.ranges, value.shape):
            return value  # type: ignore[no-any-return]
        if hasattr(value, "getbands"):
            value = self._pixels(value)
        array = array_of(value)
        self.require_shape(array.shape, what)
        return array if array.dtype == self.dtype else _cast(array, self.dtype, f"{what} {self.name}: expected {self}")

    def _pixels(self, image: Any) -> "np.ndarray[Any, Any]":
        """A PIL image as [1, channels, height, width], 0 to 255."""
        if not self.color_space:
            raise ValueError(escape(f"input {self.name}: expected {self}, got an image"))
        mode = MODES[self.color_space]
        if image.mode != mode and (image.mode, mode) != ("RGBA", "RGB"):
            message = (
                f"an image of mode {mode} for {self.color_space}, got {image.mode}; image.convert({mode!r}) makes one"
            )
            raise ValueError(escape(f"input {self.name}: expected {message}"))
        pixels = np.asarray(image)
        try:
            self.require_shape((1, _CHANNELS[self.color_space], *pixels.shape[:2]))
        except ValueError:
            width, height = image.size
            message = f"expected {self}, got an image {width} wide and {height} high; resize it first"
            raise ValueError(escape(f"input {self.name}: {message}")) from None
        if mode != "RGB":
            return pixels[None, None]
        pixels = pixels[..., 2::-1] if self.color_space == "BGR" else pixels[..., :3]  # RGBA loses its alpha
        return pixels.transpose(2, 0, 1)[None]


@dataclass(frozen=True, slots=True)
class SessionOutput:
    """An output of a session. `str(output)` is its type in one line.

    Attributes:
        name: as the model calls it.
        dtype: of the array that the model gives; object for texts.
        shape: of that array; None for an axis that may vary.
        color_space: of an image; "" for other features.
        is_label: it is the label of a classifier, one text or number.
        classes: labels of a classifier, if the output gives their probabilities.
        is_zipped: the .onnx file itself gives a list of one dictionary of these.

    Examples:
        >>> [logits] = milblob.Session("demo.mlpackage").outputs.values()
        >>> logits.name, logits.dtype, logits.shape
        ('logits', dtype('float32'), (1, 16, 96))
        >>> print(logits)
        float32 [1, 16, 96]
    """

    name: str
    dtype: "np.dtype[Any]"
    shape: tuple[int | None, ...]
    color_space: str = ""
    is_label: bool = False
    classes: tuple[Any, ...] = field(default=(), repr=False)
    is_zipped: bool = False

    def __str__(self) -> str:
        if self.is_label:
            return f"label, {'text' if self.dtype == object else self.dtype}"
        if self.classes:
            return f"probabilities of {len(self.classes)} classes, {self.dtype}"
        image = f"{self.color_space} image, " if self.color_space else ""
        return f"{image}{self.dtype} [{', '.join('?' if n is None else str(n) for n in self.shape)}]"

    def convert(self, array: Any) -> Any:
        """Return what the model computed as a user takes it: an array, a PIL image, a label, {label: probability}."""
        if self.is_label:
            found = np.asarray(array).reshape(-1)[0]
            return str(found) if isinstance(found, str | bytes) else int(found)
        if self.classes and array.size == len(self.classes):
            return dict(zip(self.classes, array.reshape(-1).tolist(), strict=True))
        return _image(array, self) if self.color_space else array


def _image(array: "np.ndarray[Any, Any]", output: SessionOutput) -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        message = f"output {output.name} is an image: {explained(error)}, or use `predict(..., raw=True)`"
        raise ImportError(message) from error
    pixels = array.reshape(array.shape[-3:])
    if output.color_space == "GRAYSCALE_FLOAT16":
        return Image.fromarray(np.ascontiguousarray(pixels[0], np.float32))
    bytes_ = np.clip(np.rint(np.nan_to_num(pixels.astype(np.float32))), 0, 255).astype(np.uint8)
    if output.color_space == "GRAYSCALE":
        return Image.fromarray(bytes_[0])
    return Image.fromarray(
        np.ascontiguousarray((bytes_[::-1] if output.color_space == "BGR" else bytes_).transpose(1, 2, 0))
    )


@lru_cache(maxsize=256)  # the next prediction has inputs of the same shapes, as a rule
def _fits(
    own: tuple[int | None, ...],
    enumerated: tuple[tuple[int, ...], ...],
    ranges: tuple[tuple[int, int | None], ...],
    shape: tuple[int, ...],
) -> bool:
    """Whether an input takes a shape; the others are its `shape`, `enumerated` and `ranges`."""
    if len(shape) != len(own) or any(size not in (None, n) for size, n in zip(own, shape, strict=True)):
        return False
    if enumerated:
        return shape in enumerated
    return not ranges or all(
        low <= n and (high is None or n <= high) for n, (low, high) in zip(shape, ranges, strict=True)
    )


def _other_batch(own: tuple[int | None, ...], shape: tuple[int, ...]) -> str:
    """Return what to do about a shape that differs in its first axis alone; "" of another."""
    if len(own) != len(shape) or len(own) < 2 or own[0] in (None, shape[0]):
        return ""
    if any(n not in (None, given) for n, given in zip(own[1:], shape[1:], strict=True)):
        return ""
    kind = f"ct.RangeDim(1, {max(shape[0], 1)})"
    message = f"for other batch sizes, convert with ct.TensorType(shape=({kind}, ...))"
    return f"; {message}, or predict one part after another"


def _axis(size: int | None, bounds: tuple[int, int | None]) -> str:
    if size is not None:
        return str(size)
    low, high = bounds
    return "?" if (low, high) == (0, None) else f"{low} or more" if high is None else f"{low} to {high}"


def _cast(array: "np.ndarray[Any, Any]", dtype: "np.dtype[Any]", expected: str) -> "np.ndarray[Any, Any]":
    """Cast as Core ML does where no harm is done: floats are rounded, integers keep their values.

    Raises: ValueError: another kind of dtype, or a value that `dtype` cannot hold.
    """
    kinds = {"f": "fiub", "i": "iub", "u": "iub", "b": "b", "O": "OUS"}[dtype.kind]
    if array.dtype.kind not in kinds and not (dtype.kind == "f" and array.dtype.name == "bfloat16"):
        raise ValueError(escape(f"{expected}, got {array.dtype}"))
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f":
        lost = np.isinf(cast) & np.isfinite(array)
    elif dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        lost = (array < bounds.min) | (array > bounds.max) if array.dtype.kind != "b" else np.zeros(1, bool)
    else:
        return cast
    if lost.any():
        raise ValueError(
            escape(f"{expected}, got {array.dtype} with {array[lost].reshape(-1)[0]}, which {dtype} cannot hold")
        )
    return cast


# ------------------------------------------------------------------------------------- from the runtime's descriptions


def read_json(metadata: Mapping[str, str], key: str, file: str | None) -> Any:
    """Return an entry of metadata_props that milblob wrote, {} if there is none.

    Raises: UnsupportedError: it is not a JSON object.
    """
    found = _document(metadata.get(key, "{}"), key, file)
    if not isinstance(found, dict):
        raise UnsupportedError(f"{key} in metadata_props: expected a JSON object, got something else", file=file)
    return found


def _document(text: str, key: str, file: str | None) -> Any:
    """Parse an entry of metadata_props; None if it is not JSON, or exceeds the limits of size or depth."""
    try:
        return parse_json(text, key, file)
    except FormatError:
        return None


def _sizes(given: Any) -> tuple[int, ...]:
    """Return the sizes of a shape that an ONNX model's metadata name; ValueError if they are none."""
    found = as_shape(given)
    if found is None:
        raise ValueError(f"a shape, got {given!r:.60}")
    return found


def _range(given: Any) -> tuple[int, int | None]:
    """Return the least and the most of an axis, as `_sizes`; None for no upper bound."""
    low, high = given
    (least,) = _sizes([low])
    if high is None:
        return least, None
    (most,) = _sizes([high])
    return least, most


def input_of(argument: Any, metadata: Mapping[str, str], file: str | None, is_optional: bool = False) -> SessionInput:
    """Return the input that an argument of an onnxruntime session is. Raises: UnsupportedError: no tensor."""
    name, shape = argument.name, _shape(argument, file)
    flexible = read_json(metadata, "milblob.shapes", file).get(name, {})
    color_space = _color_space(name, shape, metadata, file)
    enumerated = tuple(_full(_sizes(one), shape) for one in flexible.get("enumerated", ()))
    ranges = tuple(_range(one) for one in flexible.get("ranges", ()))
    if ranges and len(ranges) != len(shape):  # of an image: height and width
        fixed = [(n, n) if n is not None else (0, None) for n in shape[: len(shape) - len(ranges)]]
        ranges = (*fixed, *ranges)
    if len(ranges) != len(shape):
        ranges = ()
    dtype = _dtype(argument, f"input {name}", file)
    return SessionInput(name, dtype, shape, enumerated, ranges, color_space, is_optional)


def output_of(argument: Any, metadata: Mapping[str, str], file: str | None) -> SessionOutput:
    """Return the output that an argument of an onnxruntime session is. Raises: UnsupportedError: no tensor."""
    name = argument.name
    roles = read_json(metadata, "milblob.classifier", file)
    classes: tuple[Any, ...] = ()
    if roles.get("probabilities") == name:
        found = _document(metadata.get("milblob.classes", "[]"), "milblob.classes", file)
        if isinstance(found, list) and all(isinstance(label, str | int) for label in found):
            classes = tuple(found)
    if classes and argument.type.startswith("seq(map("):
        return SessionOutput(name, np.dtype(np.float32), (1, len(classes)), "", False, classes, True)
    dtype, shape = _dtype(argument, f"output {name}", file), _shape(argument, file)
    if None not in shape and prod(n or 0 for n in shape) != len(classes):
        classes = ()
    color_space = _color_space(name, shape, metadata, file)
    return SessionOutput(name, dtype, shape, color_space, roles.get("label") == name, classes)


def _color_space(name: str, shape: tuple[int | None, ...], metadata: Mapping[str, str], file: str | None) -> str:
    """The colour space of a value that is an image: [1, channels, height, width]."""
    found = read_json(metadata, "milblob.images", file).get(name, {}).get("colorSpace")
    is_image = found in _CHANNELS and len(shape) == 4 and shape[1] in (None, _CHANNELS[found])
    return str(found) if is_image else ""


def _full(sizes: Sequence[int], shape: tuple[int | None, ...]) -> tuple[int, ...]:
    """Sizes of all axes, where those of an image are height and width only."""
    return (*(n or 1 for n in shape[: len(shape) - len(sizes)]), *sizes)


def _shape(argument: Any, file: str | None) -> tuple[int | None, ...]:
    if len(argument.shape) > MAX_RANK:
        message = f"{argument.name}: expected at most {MAX_RANK} dimensions, which NumPy has, got {len(argument.shape)}"
        raise UnsupportedError(message, file=file)
    return tuple(size if isinstance(size, int) else None for size in argument.shape)


def _dtype(argument: Any, what: str, file: str | None) -> "np.dtype[Any]":
    name = _DTYPES.get(argument.type)
    if name is None:
        message = f"{what}: expected a tensor of {', '.join(sorted(set(_DTYPES.values())))}, got {argument.type}"
        raise UnsupportedError(message, file=file)
    return np.dtype(name)
