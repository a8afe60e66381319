"""NumPy's .npy: arrays over the bytes of a file."""

import io
from collections.abc import Callable
from contextlib import closing
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..jsontext import as_shape
from ..storage.beneath import Location
from ..storage.foreign import foreign, refusal
from ..storage.mapped import MappedFile
from ..values.tensorvalue import require_shape

HEAD_NBYTES = 10240
"""Enough for any header that is read: NumPy stops at 10,000 characters too, as long ones can exhaust its parser."""

_SMALL_NBYTES = 1 << 18


class Header(NamedTuple):
    """The header of an .npy."""

    dtype: np.dtype[Any]  # of the elements, as stored
    shape: tuple[int, ...]  # dimensions
    is_fortran: bool  # whether the first dimension varies fastest
    nbytes: int  # of the header: the offset where the elements begin

    def array_over(self, buffer: Any, offset: int) -> np.ndarray[Any, Any]:
        """Return the array whose .npy begins at `offset` of a buffer; zero-copy."""
        if not prod(self.shape):
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, buffer, offset + self.nbytes, order="F" if self.is_fortran else "C")


def read_header(head: bytes, nbytes: int, what: str, file: str) -> Header:
    """Read the header of an .npy.

    `head`: its first HEAD_NBYTES bytes, or all. `nbytes`: of the whole .npy.
    Raises: FormatError: not an .npy, or its size differs from the size in its header. UnsupportedError: objects
    (pickles are never loaded), fields, byte strings; a version above 2.
    """
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call,unused-ignore]
        if version not in ((1, 0), (2, 0)):
            raise UnsupportedError(f"{what}: expected version 1.0 or 2.0 of .npy, got {version}", file=file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)  # type: ignore[no-untyped-call,unused-ignore]
    except UnsupportedError:
        raise
    except Exception as error:  # the header is a Python literal: its parser raises many things
        if (found := foreign(head, file)) is not None and found.name != "npy":
            raise refusal(found, f"{what}: expected an .npy file", file) from None
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(f"{what}: expected an .npy file, got {reason:.200}", file=file) from None
    if dtype.hasobject:
        message = (
            f"{what}: expected numbers or text, got Python objects, which only a pickle holds; none is ever loaded"
        )
        raise UnsupportedError(message, file=file)
    if dtype.kind not in "?biufU":
        raise UnsupportedError(f"{what}: expected a dtype that MIL has, got {dtype}", file=file)
    if as_shape(list(shape)) is None:  # Python prints no numbers of more than 4300 digits, unless hexadecimal
        sizes = ", ".join(str(size) if abs(size) >> 64 == 0 else f"{size:#x}"[:20] for size in shape[:80])
        raise FormatError(f"{what}: expected at most 64 sizes of 0 to 2^63 - 1, got {sizes}", file=file)
    require_shape(shape, 0, file)
    expected = stream.tell() + prod(shape) * dtype.itemsize
    if expected != nbytes:
        message = f"{what}: expected {expected} bytes for {dtype} {list(shape)}, got {nbytes}"
        raise FormatError(message, file=file)
    return Header(dtype, shape, is_fortran, stream.tell())


def open_array(place: Location) -> tuple[Header, Callable[[], np.ndarray[Any, Any]]]:
    """Open an .npy file and read its header.

    Returns: The header, and a function that returns the array: mapped if it is large enough to justify an open
    descriptor, else read.
    Raises: OSError, ResolveError: it cannot be opened; otherwise as `read_header`.
    """
    path = place.path

    def load() -> np.ndarray[Any, Any]:
        with closing(MappedFile(place)) as mapping:
            buffer: Any = mapping.live()
            if buffer.nbytes != nbytes:
                message = f"size: expected {nbytes} bytes as when it was opened, got {buffer.nbytes}"
                raise FormatError(message, file=path)
            if read_header(bytes(memoryview(buffer)[:HEAD_NBYTES]), nbytes, "array", path) != header:
                raise FormatError("header: expected the one that was there when it was opened, got another", file=path)
            return header.array_over(bytes(buffer) if nbytes <= _SMALL_NBYTES else buffer, 0)

    with closing(MappedFile(place)) as mapping:
        nbytes = mapping.nbytes
        header = read_header(bytes(memoryview(mapping.live())[:HEAD_NBYTES]), nbytes, "array", path)
    return header, load
