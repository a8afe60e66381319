"""Bytes of a patch as frames of zstd, as differences from older bytes and in planes where that is smaller."""

import os
from importlib import import_module
from typing import Any

import numpy as np

from .. import extras
from ..errors import FormatError
from ..storage.mapped import MappedFile

PIECE_NBYTES = 4 << 20
"""The most that one frame holds, so that memory is bounded and several frames can be worked on at a time."""

MAX_PREFIX_NBYTES = 16 << 20
"""The most bytes of an older file that a frame may refer to."""


def zstd() -> Any:
    """Return Python's module for Zstandard, or the package that has the same functions before Python 3.14.

    Raises: ImportError: the package is not installed.
    """
    try:
        return import_module("compression.zstd")
    except ModuleNotFoundError:
        return extras.require("backports.zstd")


def max_frame_nbytes(nbytes: int) -> int:
    """Return the size of the largest frame that zstd makes of `nbytes` bytes (ZSTD_COMPRESSBOUND, and a header)."""
    return nbytes + (nbytes >> 8) + 1024


def compress(data: Any, level: int, prefix: bytes = b"") -> bytes:
    """Return a frame of zstd. `prefix`: bytes that the data may resemble; `decompress` needs them too."""
    module = zstd()
    if not prefix:
        return bytes(module.compress(data, level))
    parameter = module.CompressionParameter
    window = max(len(prefix) + memoryview(data).nbytes - 1, 1 << 10).bit_length()
    options = {parameter.compression_level: level, parameter.window_log: window}
    return bytes(module.compress(data, options=options, zstd_dict=module.ZstdDict(prefix, is_raw=True).as_prefix))


def decompress(data: Any, nbytes: int, prefix: bytes = b"") -> bytes:
    """Return the contents of a frame. It may declare any size: no more than `nbytes` bytes are made.

    Raises: FormatError: not a sound frame, or one of another size.
    """
    module = zstd()
    parameter = module.DecompressionParameter
    options = {parameter.window_log_max: 25}
    try:
        given = module.ZstdDict(prefix, is_raw=True).as_prefix if prefix else None
        decompressor = module.ZstdDecompressor(given, options)
        found = decompressor.decompress(data, max_length=nbytes + 1)
    except (module.ZstdError, MemoryError) as error:
        raise FormatError(f"patch: expected a frame of zstd, got a broken one ({error})") from None
    if len(found) != nbytes or not decompressor.eof or decompressor.unused_data:
        raise FormatError(f"patch: expected a frame of {nbytes} bytes, got one of another size")
    return bytes(found)


def difference(new: bytes, old: bytes, width: int) -> np.ndarray[Any, Any]:
    """Return the differences of elements from older ones, as small numbers where they differ little.

    Of elements of whole bytes, the difference as integers: 2k for k up, 2k - 1 for k down (zigzag). For floats of one
    sign that is the number of floats between them, a tenth smaller after zstd than the XOR; for int8 much smaller.

    `new`, `old`: as many bytes, a multiple of `width`. `width`: of an element, in bytes: 1, 2, 4 or 8; 0 of packed
    elements and of anything else: the XOR.
    """
    a: np.ndarray[Any, Any] = np.frombuffer(new, f"<u{width or 1}")
    b: np.ndarray[Any, Any] = np.frombuffer(old, f"<u{width or 1}")
    if not width:
        found: np.ndarray[Any, Any] = a ^ b
        return found
    change = a - b
    sign = (change.view(f"<i{width}") >> (8 * width - 1)).view(a.dtype)
    found = (change << 1) ^ sign
    return found.view(np.uint8)


def restored(data: np.ndarray[Any, Any], old: bytes, width: int) -> np.ndarray[Any, Any]:
    """Undo `difference`: return the new bytes."""
    bits: np.ndarray[Any, Any] = data.view(f"<u{width or 1}")
    b: np.ndarray[Any, Any] = np.frombuffer(old, f"<u{width or 1}")
    if not width:
        found: np.ndarray[Any, Any] = bits ^ b
        return found
    change = (bits >> 1) ^ (-(bits & 1).view(f"<i{width}")).view(b.dtype)
    found = change + b
    return found.view(np.uint8)


def planes(data: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Return bytes of elements of `width` bytes in planes: the first byte of each, then the second and so on.

    Low bytes of changed floats are noise and high bytes hardly differ: apart, each compresses as well as it can.
    """
    return data if width < 2 else np.ascontiguousarray(data.reshape(-1, width).T).reshape(-1)


def from_planes(data: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Undo `planes`."""
    return data if width < 2 else np.ascontiguousarray(data.reshape(width, -1).T).reshape(-1)


def read(mapping: MappedFile, offset: int, nbytes: int) -> bytes:
    """Return bytes of a file, by a positioned read where there is one: no page of the mapping becomes resident.

    Raises: FormatError: the file has shrunk. OSError: it cannot be read.
    """
    with mapping.held() as fd:
        if fd >= 0 and hasattr(os, "pread"):
            data = os.pread(fd, nbytes, offset)
            if len(data) == nbytes:
                return data
    return bytes(memoryview(mapping.check_size())[offset : offset + nbytes])
