"""TVM's numbers for element types. The meaning of some of them depends on the version of TVM."""

import re
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..arguments import require
from ..errors import UnsupportedError

_WHOLE = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
}  # fmt: skip
_NIBBLES = {"int4": (0, 4)}
_DLPACK = {
    "bool": (6, 8), "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8), "float4_e2m1fn": (17, 4),
}  # fmt: skip
_LEGACY = {"bool": (1, 1), "float8_e4m3fn": (6, 8), "float8_e5m2": (7, 8)}
_OLD_BOOL = (1, 1)
_FIRST_DLPACK, _FIRST_BOOL = (0, 21), (0, 23)
_KINDS = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 15: "float6_e2m3fn", 16: "float6_e3m2fn"}

PACKED = ("int4", "float4_e2m1fn")
"""Two elements to a byte, the first one in the high bits. The other half of the bytes of a record means nothing."""


class Codes(NamedTuple):
    """What the numbers mean to one span of versions of TVM."""

    names: dict[tuple[int, int], str]  # (code, bits) -> name
    numbers: dict[str, tuple[int, int]]  # name -> (code, bits), as these versions write it


def _codes(own: dict[str, tuple[int, int]], bool_number: tuple[int, int]) -> Codes:
    numbers = _WHOLE | own | {"bool": bool_number}
    names = {number: name for name, number in (numbers | _NIBBLES).items()}
    names.setdefault(_OLD_BOOL, "bool")
    for name, number in own.items():  # if bool is written as (1, 1), then (6, 8) keeps its own meaning
        names.setdefault(number, name)
    return Codes(names, numbers)


ARCHIVED = _codes(_LEGACY, _OLD_BOOL)
"""TVM up to 0.20, and with it every writer of Model Library Format archives: (6, 8) and (7, 8) are fp8."""
_BETWEEN = _codes(_DLPACK, _OLD_BOOL)
CURRENT = _codes(_DLPACK, (6, 8))
"""TVM from 0.23 on: (6, 8) is bool."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:[.+a-z-].*)?")


def codes_of(tvm: str | None, default: Codes = CURRENT) -> Codes:
    """Return what numbers mean to a version of TVM, such as "0.14" or "0.27.0"; None: the default.

    Raises: TypeError: no string. ValueError: no version.
    """
    if tvm is None:
        return default
    require("tvm", tvm, str, 'a version of TVM, such as "0.14"')
    match = _VERSION.fullmatch(tvm.strip())
    if match is None:
        raise ValueError(f'tvm: expected a version of TVM, such as "0.14", got {tvm!r:.100}')
    version = (int(match[1]), int(match[2]))
    if version < _FIRST_DLPACK:
        return ARCHIVED
    return _BETWEEN if version < _FIRST_BOOL else CURRENT


def dtype_text(codes: Codes, code: int, bits: int, lanes: int) -> str:
    """Return TVM's name for an element type, as its versions spell it now; of one that is unknown, its numbers."""
    name = codes.names.get((code, bits))
    if name is None:
        kind = _KINDS.get(code)
        name = f"code {code} with {bits} bits" if kind is None else kind if code > 4 else f"{kind}{bits}"
    return name if lanes == 1 else f"{name}x{lanes}"


_NUMPY = {name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in {**_WHOLE, **_NIBBLES, **_DLPACK}}
_TEXTS = {dtype: name for name, dtype in _NUMPY.items()}
_WIDER = {"int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8", "uint1": "uint8"}


def numpy_dtype(text: str) -> np.dtype[np.generic] | None:
    """Return the NumPy dtype of elements by TVM's name; None where milblob cannot read them. Little-endian."""
    found = _NUMPY.get(text)
    if found is None or found.isbuiltin == 2:
        return found
    return np.dtype(found.newbyteorder("<").str)  # NumPy's own where it is one, not an equal one


def written_dtype(dtype: np.dtype[np.generic]) -> str:
    """Return TVM's name for what an array of a dtype is written as.

    Integers of less than a byte, which TVM does not take from NumPy, become int8 or uint8.

    Raises: UnsupportedError: TVM has no such dtype.
    """
    name = _TEXTS.get(dtype.newbyteorder("=") if dtype.isbuiltin != 2 else dtype)
    name = _WIDER.get(str(dtype), name)
    if name is None:
        raise UnsupportedError(f"dtype: expected one that TVM has, got {dtype}")
    return name
