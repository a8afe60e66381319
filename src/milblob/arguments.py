"""Checks of the arguments of public functions, with milblob's own messages."""

import math
import operator
import os
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from .mirrored import is_url, shown_url

if TYPE_CHECKING:  # a function imports it; the help of a command needs none of it
    import numpy as np


def require(what: str, value: object, kind: Any, expected: str) -> None:
    """Refuse an argument that is not a `kind`; `expected` describes what is expected.

    Raises: TypeError: it is something else.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what}: expected {expected}, got {type(value).__name__}")


def require_flags(**flags: object) -> None:
    """Refuse options that are neither True nor False: "no" would be taken for True, and None for False.

    Raises: TypeError: one is something else.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            import numpy as np

            if not isinstance(value, np.bool_):
                raise TypeError(f"{name}: expected True or False, got {value!r}")


def require_calls(**functions: object) -> None:
    """Refuse callbacks that are not callable; None: no callback. Raises: TypeError: one is something else."""
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{name}: expected a function, got {type(function).__name__}")


def as_integer(what: str, value: Any, expected: str = "an integer") -> int:
    """Return a number of any integer type as an int.

    Raises: TypeError: it is something else, for example a float, even a whole one, or True.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{what}: expected {expected}, got {type(value).__name__}")


def as_count(what: str, value: Any, least: int = 0, *, nbits: int | None = None, expected: str = "an integer") -> int:
    """Return a number of any integer type as an int that is not below `least`.

    `what`, `value`, `expected`: as for `as_integer`. `least`: the smallest number that is allowed. `nbits`: how many
    bits it may have; None: any number of them.
    Raises: ValueError: it is too small, or too large. TypeError: it is something else.
    """
    count = as_integer(what, value, expected)
    if count < least:
        raise ValueError(f"{what}: expected {least} or more, got {count}")
    if nbits is not None and count >> nbits:
        raise ValueError(f"{what}: expected less than 2^{nbits}, got {count}")
    return count


def as_source(value: str | os.PathLike[Any]) -> str:
    """Return a path or a URL as plain text.

    A path that is a `numpy.str_`, as those in an array are, would not do: `os.listdir` and `os.scandir` answer it with
    bytes.

    Raises: TypeError: no path. ValueError: it has a NUL, which no path and no URL has.
    """
    text = os.fsdecode(os.fspath(value))
    if "\0" in text:
        raise ValueError(f"path: expected one without a NUL, got {shown_url(text)!r:.200}")
    return text if type(text) is str else str.__str__(text)


def as_path(value: str | os.PathLike[Any]) -> str:
    """Return a path of a local file or directory as plain text.

    Raises: TypeError, ValueError: as `as_source`; a URL.
    """
    text = os.fspath(value)
    if type(text) is not str or "\0" in text:
        text = as_source(text)
    if "://" in text and is_url(text):
        how = "`milblob ls URL --download DIR`, or milblob.download, makes a local copy of a model"
        raise ValueError(f"expected a local path, got the URL {shown_url(text)} ({how})")
    return text


def source_of(source: Any) -> Any:
    """Return what to read for a source: of an MLModel of coremltools the path of its package, else the source itself.

    Raises: TypeError: an MLModel without a package, which has no weights in files.
    """
    if isinstance(source, str):
        return source
    if str(type(source).__module__).partition(".")[0] != "coremltools" or not hasattr(source, "get_spec"):
        return source
    path = getattr(source, "package_path", None)
    if path is None:
        message = "an ML Program, which has a package, got an MLModel of another type, in memory only"
        raise TypeError(f"source: expected {message}; its `save` writes a file")
    return path


def array_of(values: Any) -> "np.ndarray[Any, Any]":
    """Convert the caller's values to an array with NumPy.

    Raises: TypeError: a masked array with masked elements: NumPy would take the values under the mask. A path: NumPy
    would make one object of it.
    """
    import numpy as np

    if isinstance(values, os.PathLike):
        raise TypeError(f"array: expected values, got the path {os.fspath(values)!r:.200}; milblob.load reads a file")
    if hasattr(values, "detach") and hasattr(values, "untyped_storage"):
        values = _of_torch(values)
    if isinstance(values, np.ndarray) and type(values) is not np.ndarray:
        count = int(np.count_nonzero(getattr(values, "mask", False)))
        if count:
            message = f"a masked array with {count} of {values.size} masked (its `filled` gives them values)"
            raise TypeError(f"array: expected a value for each element, got {message}")
    return np.asarray(values)


def _of_torch(tensor: Any) -> Any:
    """Return a torch tensor as NumPy takes it: without gradients, on the CPU, in a dtype of ml_dtypes if need be.

    A view of conjugate or negative values, whose memory has others, becomes these values.
    Raises: TypeError: torch cannot negate values of this dtype.
    """
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        tensor = tensor.resolve_conj().resolve_neg()
    except NotImplementedError as error:
        raise TypeError(f"array: expected a tensor with its values, got a negative view of {name} ({error})") from error
    tensor = tensor.contiguous()
    own = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}.get(name)
    if own is None:
        return tensor.numpy()
    import ml_dtypes

    torch = sys.modules["torch"]  # which made the tensor
    return tensor.view(getattr(torch, own)).numpy().view(getattr(ml_dtypes, name))


def as_mapping(what: str, value: Any, expected: str) -> Mapping[str, Any]:
    """Return a mapping with names as keys; an empty one for None.

    Raises: TypeError: it is something else, or has other keys.
    """
    if value is None:
        return {}
    require(what, value, Mapping, expected)
    for name in value:
        require(what, name, str, f"{expected}, with text as keys")
    found: Mapping[str, Any] = value
    return found


NAN_POLICIES = ("keep", "skip", "error")
"""What is done with a weight that has NaN: `keep` its NaN, `skip` the weight, or refuse it."""


def require_nan(nan: object) -> None:
    """Refuse an argument `nan` that is not one of `NAN_POLICIES`.

    Raises: TypeError: it is not a text. ValueError: another word.
    """
    policies = ", ".join(NAN_POLICIES)
    require("nan", nan, str, f"one of {policies}")
    if nan not in NAN_POLICIES:
        raise ValueError(f"nan: expected one of {policies}, got {nan!r}")


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class Nbytes(int):
    """A number of bytes that was given as text, with the unit in which messages about it are."""

    unit: str  # "K", "M", "G", "T", or "" for bytes
    text: str


def in_unit_of(given: int, nbytes: int) -> str:
    """Return a number of bytes in the unit in which another one was given, rounded up: "25.36K", "25960 bytes"."""
    if not isinstance(given, Nbytes) or not given.unit:
        return f"{nbytes} bytes"
    if nbytes == given:
        return given.text
    return f"{-(-nbytes * 100 >> _UNITS[given.unit]) / 100:.15g}{given.unit}"


def require_number(name: str, value: Any) -> None:
    """Refuse a value that is not a number. Raises: TypeError."""
    if isinstance(value, bool) or not isinstance(value, Real):  # NumPy registers its numbers as such
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")


def as_float(name: str, value: Any) -> float:
    """Return a number as a float; an integer beyond all floats is infinite. Raises: TypeError: no number."""
    require_number(name, value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def parse_nbytes(text: str) -> Nbytes:
    """Return the number of bytes in a text: "1000000", "64K", "16MiB", "2G".

    Raises: ValueError: it is something else.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        found = Nbytes(float(number.removesuffix(unit)) * (1 << _UNITS[unit]))
    except (ValueError, OverflowError):
        raise ValueError(f"size: expected bytes, such as 64M or 2G, got {text!r:.40}") from None
    found.unit, found.text = unit, text.strip()
    return found


Names = str | Sequence[str] | None


def names_in(value: object) -> list[str]:
    """Return the names in an entry of a mapping: a name, a sequence of names, or None for no name.

    Raises: TypeError: it is something else.
    """
    if value is None or isinstance(value, str):
        return [] if value is None else [value]
    if isinstance(value, Sequence) and all(isinstance(name, str) for name in value):
        return list(value)
    raise TypeError(f"mapping: expected a name, a list of names or None, got {value!r:.100}")
