"""Decompressing the members of a zip in bounded pieces, however large the result would be."""

import zipfile
import zlib
from collections.abc import Callable
from typing import Any

_SMALL_NBYTES = 1 << 16  # compressed bytes passed to a decompressor at a time
_LZMA_HEAD = 4  # bytes before the properties: two of a version, two with their length
_LZMA_PROPERTIES = 5
_MIN_DICTIONARY = 4096


def unpacker(info: zipfile.ZipInfo, data: memoryview) -> Callable[[int], bytes]:
    """Return a function that returns the next bytes of a member.

    `info`: has its compression method and its decompressed size. `data`: the compressed bytes.
    Returns: A function that takes the largest number of bytes wanted and returns them; fewer only at the end, or if the
    data ends too soon.
    Raises: NotImplementedError: another compression method. The function raises the decompressor's errors.
    """
    method = info.compress_type
    if method == zipfile.ZIP_DEFLATED:
        return _of_deflate(data)
    if method == zipfile.ZIP_BZIP2:
        import bz2

        return _of(bz2.BZ2Decompressor(), data)
    if method == zipfile.ZIP_LZMA:
        return _of_lzma(info, data)
    raise NotImplementedError(f"compression {method}")


def _of_deflate(data: memoryview) -> Callable[[int], bytes]:
    decompressor = zlib.decompressobj(-15)
    rest = data

    def unpack(count: int) -> bytes:
        nonlocal rest
        result = b""
        while len(result) < count and not decompressor.eof and (rest or decompressor.unconsumed_tail):
            given = decompressor.unconsumed_tail
            if not given:
                given, rest = bytes(rest[:_SMALL_NBYTES]), rest[_SMALL_NBYTES:]
            result += decompressor.decompress(given, count - len(result))
        return result

    return unpack


def _of(decompressor: Any, data: memoryview) -> Callable[[int], bytes]:
    """Return such a function for a decompressor of bz2 or lzma."""
    rest = data

    def unpack(count: int) -> bytes:
        nonlocal rest
        result = b""
        while len(result) < count and not decompressor.eof:
            given = b""
            if decompressor.needs_input:
                if not rest:
                    break
                given, rest = bytes(rest[:_SMALL_NBYTES]), rest[_SMALL_NBYTES:]
            result += decompressor.decompress(given, count - len(result))
        return result

    return unpack


def _of_lzma(info: zipfile.ZipInfo, data: memoryview) -> Callable[[int], bytes]:
    """Return such a function for LZMA1. Its properties come first: lc, lp and pb in one byte, then the dictionary size.

    The whole dictionary is allocated at once, so its size is limited to that of the member, which needs no more.
    """
    import lzma

    nbytes = int.from_bytes(data[2:_LZMA_HEAD], "little")
    properties = data[_LZMA_HEAD : _LZMA_HEAD + nbytes]
    if nbytes != _LZMA_PROPERTIES or len(properties) != nbytes or properties[0] >= 9 * 5 * 5:
        raise lzma.LZMAError(f"LZMA properties of {len(properties)} bytes")
    rest, lc = divmod(properties[0], 9)
    pb, lp = divmod(rest, 5)
    dictionary = min(int.from_bytes(properties[1:], "little"), max(info.file_size, _MIN_DICTIONARY))
    kind = {"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": max(dictionary, _MIN_DICTIONARY)}
    return _of(lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[kind]), data[_LZMA_HEAD + nbytes :])
