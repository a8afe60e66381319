"""Element types: MIL's enum, built from the one table in include/milblob/dtype.h."""

import enum
import functools
from typing import Any

import numpy as np

from . import _codec

# NumPy has no 3- or 6-bit type: these arrive as uint8. The other names are NumPy's or ml_dtypes' own.
_UNNAMED = {"STRING": np.dtype(object), "UINT3": np.dtype(np.uint8), "UINT6": np.dtype(np.uint8)}
_OF_ML_DTYPES = {
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E5M2": "float8_e5m2",
    "INT4": "int4",
    "UINT4": "uint4",
    "UINT2": "uint2",
    "UINT1": "uint1",
}


class _DTypeBase(enum.Enum):
    """The attributes of every member of DType; see DType."""

    mil_code: int
    blob_code: int | None
    nbits: int
    mil_text: str
    field: int

    __hash__ = object.__hash__  # members are alone of their value; Enum would hash the name, in Python

    def __init__(self, mil_text: str, mil_code: int, blob_code: int, nbits: int, field: int) -> None:
        self.mil_text = mil_text
        self.mil_code = mil_code
        self.blob_code = blob_code or None
        self.nbits = nbits
        self.field = field

    @classmethod
    def _missing_(cls, value: object) -> Any:
        """Find a member by all that `as_dtype` takes."""
        try:
            return as_dtype(value)
        except TypeError:
            return None  # Enum raises ValueError

    @functools.cached_property
    def numpy(self) -> np.dtype[Any]:
        """See DType."""
        if self.name in _OF_ML_DTYPES:
            import ml_dtypes  # a twentieth of what a script waits for that reads one tensor of another type

            return np.dtype(getattr(ml_dtypes, _OF_ML_DTYPES[self.name]))
        # Stored bytes are little-endian on every host; on a little-endian one this is the native dtype.
        return _UNNAMED.get(self.name) or np.dtype(np.dtype(self.name.lower()).str.replace(">", "<"))

    def __str__(self) -> str:
        return self.name.lower()

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    @property
    def is_sub_byte(self) -> bool:
        """Whether several elements share a byte when stored."""
        return 0 < self.nbits < 8

    @functools.cached_property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers, of any width."""
        return "FLOAT" in self.name

    @functools.cached_property
    def is_integer(self) -> bool:
        """Whether the elements are integers, signed or not; False for BOOL."""
        return "INT" in self.name

    @functools.cached_property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type or BOOL."""
        if self.name == "BOOL":
            return 0, 1
        if not self.is_integer:
            raise TypeError(f"range: expected an integer dtype, got {self}")
        if self.name.startswith("U"):
            return 0, (1 << self.nbits) - 1
        return -(1 << (self.nbits - 1)), (1 << (self.nbits - 1)) - 1

    def nbytes(self, count: int) -> int:
        """Return the bytes that `count` elements take when stored; sub-byte elements are packed."""
        return (count * self.nbits + 7) // 8


def _build() -> Any:
    rows = {name: (text, mil, blob, nbits, field) for name, text, mil, blob, nbits, field in _codec.dtype_table()}
    return _DTypeBase("DType", rows, module=__name__)  # type: ignore[call-overload,unused-ignore]


DType = _build()
DType.__doc__ = """MIL's element types (MIL.proto, enum DataType).

Attributes:
    mil_code: the number in a Program (FLOAT16 is 10).
    blob_code: the number in a blob file (FLOAT16 is 1), None where blob files cannot hold the type.
    nbits: bits per stored element; 0 for STRING.
    numpy: the dtype of arrays: NumPy's, else ml_dtypes', else uint8 (UINT3, UINT6); object for STRING.
    mil_text: the name in MIL text ("fp16").
    field: the TensorValue field that coremltools writes for it.

Examples:
    >>> milblob.DType("float16").nbits, milblob.DType.INT4.numpy
    (16, dtype(int4))
    >>> milblob.DType(np.int8), str(milblob.DType.UINT3)
    (DType.INT8, 'uint3')
"""

BY_MIL_CODE: dict[int, Any] = {member.mil_code: member for member in DType}
BY_BLOB_CODE: dict[int, Any] = {member.blob_code: member for member in DType if member.blob_code}
# What PyTorch, safetensors and others call them. Names that NumPy has for other types, such as "i8", are NumPy's.
_ALIASES = {
    "f16": "FLOAT16", "fp16": "FLOAT16", "f32": "FLOAT32", "fp32": "FLOAT32", "f64": "FLOAT64", "fp64": "FLOAT64",
    "bf16": "BFLOAT16", "f8_e4m3": "FLOAT8E4M3FN", "fp8_e4m3": "FLOAT8E4M3FN", "float8_e4m3fn": "FLOAT8E4M3FN",
    "f8_e5m2": "FLOAT8E5M2", "fp8_e5m2": "FLOAT8E5M2", "float8_e5m2": "FLOAT8E5M2",
}  # fmt: skip
_BY_NAME: dict[str, Any] = {name.lower(): m for m in DType for name in (m.name, m.mil_text)}
_BY_NAME |= {alias: DType[name] for alias, name in _ALIASES.items()}
_BY_NUMPY: dict[Any, Any] = {m.numpy: m for m in DType if m.name not in _UNNAMED and m.name not in _OF_ML_DTYPES}


def as_dtype(value: Any) -> Any:
    """Return the DType of a DType, a name ("float16", "FLOAT16", "fp16", "f16") or a NumPy dtype.

    Raises: TypeError: nothing in the table corresponds.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value.lower() in _BY_NAME:
        return _BY_NAME[value.lower()]
    try:
        if value is None:  # which NumPy takes for float64
            raise TypeError
        if isinstance(value, str):
            import ml_dtypes  # noqa: F401  which gives NumPy more names, some of them of types that MIL has not
        dtype = np.dtype(value)
    except (TypeError, ValueError, SyntaxError):
        raise TypeError(f"dtype: expected a DType, a NumPy dtype or a name such as 'float16', got {value!r}") from None
    if dtype.kind in "USOT":
        return DType.STRING
    found = _BY_NUMPY.get(dtype) or _BY_NUMPY.get(dtype.newbyteorder("<"))
    if found is None:
        forms = (dtype, dtype.newbyteorder("<"))
        found = next((member for name in _OF_ML_DTYPES if (member := DType[name]).numpy in forms), None)
    if found is None:
        raise TypeError(f"dtype: expected one that MIL has, got {dtype}")
    return found


def dtype_of(array: np.ndarray[Any, Any], what: str = "array") -> Any:
    """Return the DType of the elements of an array; every element of an object array is checked.

    Raises: TypeError: nothing in the table corresponds, or an object is not text.
    """
    if array.dtype.kind == "O":
        for element in array.flat:
            if not isinstance(element, str | bytes):
                raise TypeError(f"{what}: expected numbers or text, got {type(element).__name__}")
    return as_dtype(array.dtype)
