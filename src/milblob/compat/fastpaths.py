"""Functions of coremltools that are slow for large arrays, and faster equivalents.

Each of them handles the slow case, and calls the function that it replaces for everything else: small arrays, odd
dtypes, and calls that raise an error there. Results are equal in dtype, shape and every bit
(tests/compat/test_fastpaths.py). Nothing here imports coremltools: the modules are passed in.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..errors import MilblobError
from ..values.dense import LookedUp, Packed, pack, read
from ..values.tensorvalue import pack_tensor, stored_bytes, unpack_tensor
from .storage import _BlobStorageReader, _BlobStorageWriter, read_array, write_array

LARGE_COUNT = 64
"""Arrays with fewer elements are left to coremltools."""

_Function = Callable[..., Any]
_FP16_MAX = 65504.0  # the same number as in coremltools' fp16_overflow
_SUB_BYTE = {"int4": DType.INT4} | {f"uint{n}": DType[f"UINT{n}"] for n in (1, 2, 3, 4, 6)}
_UNSIGNED = {n: DType[f"UINT{n}"] for n in (1, 2, 3, 4, 6, 8)}
# Dtypes of arrays that the writer's method takes as they are; kind and size decide what it writes.
_PLAIN = {
    ("f", 4): DType.FLOAT32, ("f", 2): DType.FLOAT16, ("u", 1): DType.UINT8, ("i", 1): DType.INT8,
    ("u", 2): DType.UINT16, ("i", 2): DType.INT16, ("i", 4): DType.INT32, ("u", 4): DType.UINT32,
}  # fmt: skip
# Dtypes of immediates that coremltools converts element by element although protobuf's field holds the same numbers.
_IMMEDIATE = {np.bool_, np.int16, np.uint16, np.int32, np.int64, np.float32, np.float64}


class FastPath(NamedTuple):
    """A function to replace.

    Attributes:
        module: the one that has it.
        name: its name in the module; "Class.method" for a static method.
        parameters: names of its parameters, as they must be for the replacement to fit.
        make: called with the replaced function and its module; returns the replacement.
        needs: names in the module, some of them with dots, that the replacement uses.
    """

    module: str
    name: str
    parameters: tuple[str, ...]
    make: Callable[[_Function, Any], _Function]
    needs: tuple[str, ...] = ()


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and value.size >= LARGE_COUNT and value.dtype.isnative


def _has_nan(array: np.ndarray[Any, Any]) -> bool:
    """Whether an intermediate Python float would have changed the bits of an element."""
    return bool(array.dtype == np.float32 and np.isnan(array).any())


# ------------------------------------------------------------------------------------------------ backend/mil/helper.py


def _create_tensor_value(original: _Function, helper: Any) -> _Function:
    """Serialize all elements at once, where coremltools appends each one and protobuf parses them again."""

    def create_tensor_value(np_tensor: Any) -> Any:
        if not _is_array(np_tensor) or np_tensor.dtype.type not in _IMMEDIATE or _has_nan(np_tensor):
            return original(np_tensor)
        primitive = helper.types_to_proto_primitive(helper.types.numpy_type_to_builtin_type(np_tensor.dtype))
        value = helper.proto.MIL_pb2.Value(type=helper.create_valuetype_tensor(np_tensor.shape, primitive))
        value.immediateValue.tensor.MergeFromString(pack_tensor(np_tensor))
        return value

    return create_tensor_value


def _get_offset_by_writing_data(original: _Function, helper: Any) -> _Function:
    """Write without copies: coremltools flattens, converts float16 to bytes, and these to an array."""

    def _get_offset_by_writing_data(output_var: Any, blob_writer: Any) -> Any:
        array = output_var.val
        if not isinstance(blob_writer, _BlobStorageWriter) or not _is_array(array):
            return original(output_var, blob_writer)
        for name, sub_byte in _SUB_BYTE.items():
            if output_var.dtype == getattr(helper.types, name):
                dtype = sub_byte if array.dtype == np.dtype("i1" if name == "int4" else "u1") else None
                break
        else:
            dtype = _PLAIN.get((array.dtype.kind, array.dtype.itemsize))
        return original(output_var, blob_writer) if dtype is None else write_array(blob_writer, dtype, array)

    return _get_offset_by_writing_data


# -------------------------------------------------------------------------------------------- frontend/milproto/load.py


def _load_file_value(original: _Function, load: Any) -> _Function:
    """Read a float16 weight once, where coremltools converts it to bytes, and these to an array."""

    def _load_file_value(context: Any, filevalue_spec: Any, dtype: Any) -> Any:
        if dtype != load.types.fp16 or load.BlobReader is not _BlobStorageReader:
            return original(context, filevalue_spec, dtype)
        filename = os.path.join(context.weights_dir, filevalue_spec.fileName.split("/")[-1])
        reader = context.blob_reader_from_filename.get(filename)
        if reader is None:
            reader = context.blob_reader_from_filename[filename] = _BlobStorageReader(filename)
        elif not isinstance(reader, _BlobStorageReader):
            return original(context, filevalue_spec, dtype)
        return read_array(reader, DType.FLOAT16, filevalue_spec.offset).view(np.float16)

    return _load_file_value


def _load_value(original: _Function, load: Any) -> _Function:
    """Return the array as read, or unpack a large immediate at once, where coremltools makes two more copies."""

    def _load_value(context: Any, value_spec: Any) -> Any:
        value = quick(context, value_spec)
        return original(context, value_spec) if value is None else value

    def quick(context: Any, spec: Any) -> Any:
        if not isinstance(spec, load.proto.MIL_pb2.Value) or spec.docString:
            return None
        if spec.type.WhichOneof("type") != "tensorType":
            return None
        is_file = spec.WhichOneof("value") == "blobFileValue"
        if is_file and load.BlobReader is not _BlobStorageReader:
            return None
        if not is_file and not is_large(spec.immediateValue):
            return None
        declared = load.proto_to_types(spec.type)
        if not load.types.is_tensor(declared):
            return None
        dtype, shape = declared.get_primitive(), declared.get_shape()
        if not all(isinstance(size, int) for size in shape):
            return None
        if is_file:
            if dtype not in load.types.IMMEDIATE_VALUE_TYPES_IN_BYTES and dtype not in by_builtin:
                return None
            array = load._load_file_value(context, spec.blobFileValue, dtype)
            return array.view(load.types.nptype_from_builtin(dtype)).reshape(shape)
        own = by_builtin.get(dtype)
        if own is None:
            return None
        try:
            array = unpack_tensor(spec.immediateValue.tensor.SerializeToString(), own, shape)
        except MilblobError:
            return None  # coremltools has its own message for it, or accepts it
        return None if _has_nan(array) else np.array(array, load.types.nptype_from_builtin(dtype))

    def is_large(value: Any) -> bool:
        field = value.tensor.WhichOneof("value") if value.WhichOneof("value") == "tensor" else None
        if field not in ("floats", "ints", "bools", "longInts"):
            return False
        return len(getattr(value.tensor, field).values) >= LARGE_COUNT

    types = load.types
    by_builtin = {
        types.fp32: DType.FLOAT32, types.bool: DType.BOOL, types.int16: DType.INT16, types.uint16: DType.UINT16,
        types.int32: DType.INT32, types.int64: DType.INT64,
    }  # fmt: skip
    return _load_value


# -------------------------------------------------------------------------------- passes/defs/quantization.py, optimize


def _fp16_overflow(original: _Function, _module: Any) -> _Function:
    """Find the largest and smallest value in two passes, where coremltools makes four arrays of the weight's size."""

    def fp16_overflow(op: Any) -> Any:
        for inputs in op.inputs.values():
            for var in inputs if isinstance(inputs, list | tuple) else [inputs]:
                if var.op is None or var.op.op_type != "const" or not var.is_tensor_or_scalar_of(dtype="fp32"):
                    continue
                value = np.asarray(var.op.val.val)
                if value.size and not (value.min() >= -_FP16_MAX and value.max() <= _FP16_MAX):  # or a NaN
                    return original(op)
        return False

    return fp16_overflow


def _pack_elements_into_bits(original: _Function, _module: Any) -> _Function:
    """One pass, where coremltools makes eight bytes of each element."""

    def pack_elements_into_bits(elements: Any, nbits: int) -> Any:
        if _is_array(elements):
            dtype = _UNSIGNED.get(nbits) if elements.dtype == np.uint8 else None
            dtype = DType.INT4 if elements.dtype == np.int8 and nbits == 4 else dtype
            if dtype is not None and dtype is not DType.UINT8:
                try:
                    return np.asarray(stored_bytes(elements, dtype))
                except OverflowError:
                    pass  # coremltools' message names the largest or the smallest
        return original(elements, nbits)

    return pack_elements_into_bits


def _restore_elements_from_packed_bits(original: _Function, _module: Any) -> _Function:
    """One pass, where coremltools makes eight bytes of each element."""

    def restore_elements_from_packed_bits(
        packed_values: Any, nbits: int, element_num: int, are_packed_values_signed: bool = False
    ) -> Any:
        dtype = _UNSIGNED.get(nbits)
        if (
            dtype is None
            or dtype is DType.UINT8
            or (are_packed_values_signed and nbits != 4)
            or not _is_array(packed_values)
            or packed_values.ndim != 1
            or packed_values.dtype not in (np.int8, np.uint8)
            or not LARGE_COUNT <= element_num <= packed_values.size * 8 // nbits
        ):
            return original(packed_values, nbits, element_num, are_packed_values_signed)
        out = np.empty(element_num, np.uint8)
        _codec.unpack_bits(_codec.Buffer(np.ascontiguousarray(packed_values)), 0, out.size, nbits, out)
        if not are_packed_values_signed:
            return out
        out ^= 8
        out -= 8
        return out.view(np.int8)

    return restore_elements_from_packed_bits


def _lut_to_dense(original: _Function, _module: Any) -> _Function:
    """Look entries up in the palette, where coremltools repeats the palette for every element."""

    def lut_to_dense(indices: Any, lut: Any, vector_axis: int | None = None) -> Any:
        if (
            _is_array(indices)
            and type(lut) is np.ndarray
            and lut.dtype in (np.float16, np.float32)
            and lut.dtype.isnative
            and lut.ndim == indices.ndim + 2
            and lut.shape[-1] == 1
            and lut.shape[-2].bit_length() - 1 in _UNSIGNED
            and lut.shape[-2].bit_count() == 1
            and all(count and size % count == 0 for size, count in zip(indices.shape, lut.shape[:-2], strict=True))
        ):
            dtype = _UNSIGNED[lut.shape[-2].bit_length() - 1]
            table = Packed(_codec.Buffer(np.ascontiguousarray(lut)), 0, as_dtype(lut.dtype), lut.shape)
            try:
                packed = pack(indices.astype(np.uint8, copy=False), dtype)
            except OverflowError:
                return original(indices, lut, vector_axis)  # an index outside the palette
            return read(LookedUp(packed, indices.shape, table, 1, 0))
        return original(indices, lut, vector_axis)

    return lut_to_dense


_HELPER = "coremltools.converters.mil.backend.mil.helper"
_LOAD = "coremltools.converters.mil.frontend.milproto.load"
_PASSES = "coremltools.converters.mil.mil.passes.defs.quantization"
_UTILS = "coremltools.optimize._utils"
_TYPES = tuple(f"types.{name}" for name in ("fp16", "fp32", "bool", "int16", "uint16", "int32", "int64"))

FAST_PATHS = (
    FastPath(
        _HELPER, "create_tensor_value", ("np_tensor",), _create_tensor_value,
        ("types.numpy_type_to_builtin_type", "types_to_proto_primitive", "create_valuetype_tensor",
         "proto.MIL_pb2.Value"),
    ),
    FastPath(
        _HELPER, "_get_offset_by_writing_data", ("output_var", "blob_writer"), _get_offset_by_writing_data,
        tuple(f"types.{name}" for name in _SUB_BYTE),
    ),
    FastPath(
        _LOAD, "_load_file_value", ("context", "filevalue_spec", "dtype"), _load_file_value, ("BlobReader", *_TYPES),
    ),
    FastPath(
        _LOAD, "_load_value", ("context", "value_spec"), _load_value,
        ("proto_to_types", "types.is_tensor", "types.nptype_from_builtin", "types.IMMEDIATE_VALUE_TYPES_IN_BYTES",
         *_TYPES),
    ),
    FastPath(_PASSES, "FP16ComputePrecision.fp16_overflow", ("op",), _fp16_overflow),
    FastPath(_UTILS, "pack_elements_into_bits", ("elements", "nbits"), _pack_elements_into_bits),
    FastPath(
        _UTILS, "restore_elements_from_packed_bits",
        ("packed_values", "nbits", "element_num", "are_packed_values_signed"), _restore_elements_from_packed_bits,
    ),
    FastPath(_UTILS, "lut_to_dense", ("indices", "lut", "vector_axis"), _lut_to_dense),
)  # fmt: skip


def replacement(path: FastPath, original: _Function, module: Any) -> _Function:
    """Return the replacement of `original`, with its signature, name and documentation."""
    return functools.update_wrapper(path.make(original, module), original)
