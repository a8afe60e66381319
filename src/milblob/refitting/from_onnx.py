"""The values that a refit takes from an ONNX model: initializers whose values differ from those of the model.

A converted model has every weight under its own name, most of them as they are in the model, and constants that the
conversion made. Only what was changed goes back; what was changed and cannot go back is an error.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from ..arguments import names_in
from ..blobs.reader import BlobReader, BlobRecord
from ..dtypes import DType
from ..errors import UnsupportedError
from ..formats.onnx import OnnxArray, OnnxArrays
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.places import RecordPlace
from ..model.sharing import have_equal_bytes
from ..model.stored import StoredArray
from ..model.tensor import Tensor
from .pairs import How, WeightsByName
from .problems import ERRORS, Problems

_RECORD_NBYTES = 64  # of the metadata before the data of a record
_Referred = dict[tuple[int, int], list[tuple[Tensor, BlobRecord]]]


class Changed(NamedTuple):
    """What goes back."""

    # those that differ from the model, and those that are not in it, which the refit reports
    arrays: dict[str, LazyTensor]
    mapping: Mapping[str, Any]  # as for `refit`, with the weights of arrays that are known by their reference only
    unchanged: tuple[str, ...]  # names of the others


def changed(model: Model, given: OnnxArrays, how: How) -> Changed:
    """Find the initializers of an ONNX model that differ from a model.

    An array goes to the weight of its name. One whose name the model lacks goes to the weights of the record that it
    refers to, in the weight file or in a copy of it: tools rename what they optimise. What the mapping names is kept.

    `model`: opened with `constants=True, stored=True`.
    Raises: UnsupportedError, ValueError: initializers that a conversion made, with other values than it gave them; all
    of them are named. As reading either model.
    """
    weights, problems = WeightsByName(model), Problems()
    mapping: dict[str, Any] = dict(how.mapping)
    kept: dict[str, LazyTensor] = {}
    same: dict[str, tuple[OnnxArray, set[Any]]] = {}  # unchanged, with the stored bytes that they are
    touched: set[Any] = set()
    records: _Referred | None = None
    for name in given:
        array = given[name]
        if name in given.made and name not in how.mapping:
            if not given.is_as_made(name) and how.is_selected(name):
                message = f"{name}: expected the values that the conversion to ONNX gave it, got others; "
                error = UnsupportedError(f"{message}it was {given.made[name]}, and no weight has these elements")
                remedy = "change the weights that it is made of in another way"
                problems.add_kind("changed initializers that are no weights as they stand", remedy, name, error)
            else:
                same[name] = (array, set())
            continue
        found = _weights_of(weights, names_in(mapping.get(name, name)))
        if not found and name not in how.mapping and array.offset is not None:
            records = _records(model) if records is None else records
            found = _referred(array, records)
            if found:
                mapping[name] = [tensor.name for tensor in found]
        keys = {tensor.name if tensor.chain is not None else tensor.place.key() for tensor in found}
        if found and all(_is_equal(tensor, array) for tensor in found):
            same[name] = (array, keys)
        else:
            kept[name] = _in_shape(array, found)
            touched |= keys
    problems.raise_any()
    # Values that are stored once: a change of one is refused with the names that would change too.
    for name, (array, keys) in list(same.items()):
        if not keys.isdisjoint(touched):
            kept[name] = _in_shape(array, _weights_of(weights, names_in(mapping.get(name, name))))
            del same[name]
    return Changed(kept, {name: to for name, to in mapping.items() if name not in same}, tuple(same))


def _weights_of(weights: WeightsByName, names: tuple[str, ...] | list[str]) -> list[Tensor]:
    """Return the weights of names, if each has one; a weight where one operation reads it is left to the refit."""
    found = []
    for name in names:
        try:
            tensor, rows = weights.find(name)
        except ERRORS:
            return []
        if rows is not None:
            return []
        found.append(tensor)
    return found


def _in_shape(array: OnnxArray, weights: list[Tensor]) -> LazyTensor:
    """Return an array in the shape of its weights, if only axes of one element are different, as ONNX needs them.

    Parts of compressed weights have any shape that the arithmetic in ONNX needs: blocks are an axis there.
    """
    shapes = {tensor.shape for tensor in weights}
    if len(shapes) != 1 or shapes == {array.shape}:
        return array
    (shape,) = shapes
    if [size for size in shape if size != 1] != [size for size in array.shape if size != 1]:
        is_part = all(
            tensor.chain is None
            and tensor.mil_dtype is array.mil_dtype
            and any(consumer.type.startswith("constexpr_") for consumer in tensor.consumers)
            for tensor in weights
        )
        if not is_part or prod(shape) != prod(array.shape):
            return array
    return StoredArray(array.name, array.mil_dtype, shape, lambda: array.read().reshape(shape), "memory", array.file)


def _is_equal(tensor: Tensor, array: OnnxArray) -> bool:
    """Whether a weight has the values of an array, bit for bit: in another shape too, or as plain bytes."""
    if array.dtype_text == "string" or array.mil_dtype not in (tensor.mil_dtype, DType.UINT8):
        return False
    if tensor.chain is None and _is_in_place(tensor, array):
        return True
    return have_equal_bytes(tensor.read_packed(), array.read_packed())


def _is_in_place(tensor: Tensor, array: OnnxArray) -> bool:
    """Whether an array refers to the weight itself, so that nothing needs to be read."""
    place = tensor.place
    if not isinstance(place, RecordPlace) or array.offset is None:
        return False
    reader, record = place.record()
    is_whole = array.stored_nbytes == record.nbytes  # fewer rows begin there as well
    return is_whole and array.offset == record.data_offset and _refers_to(array, reader)


def _refers_to(array: OnnxArray, reader: BlobReader) -> bool:
    """Whether an array lies in an open weight file: by what was opened, not by names."""
    mapping = None if array.external is None else array.external.mapping
    return mapping is not None and mapping.identity == reader.mapping.identity is not None


def _records(model: Model) -> _Referred:
    """Return the weights of every record: (offset, bytes) of its data -> weights."""
    found: _Referred = {}
    for tensor in model.values():
        if tensor.chain is None and isinstance(tensor.place, RecordPlace):
            _, record = tensor.place.record()
            found.setdefault((record.data_offset, record.nbytes), []).append((tensor, record))
    return found


def _referred(array: OnnxArray, records: _Referred) -> list[Tensor]:
    """Return the weights of the record that an array refers to, in their file or a copy of it."""
    found = []
    for tensor, record in records.get((array.offset or 0, array.stored_nbytes), []):
        place = tensor.place
        if not isinstance(place, RecordPlace):
            continue
        reader, _ = place.record()
        if _refers_to(array, reader):
            found.append(tensor)
        elif array.external is not None:
            data, other = memoryview(reader.mapping.live()), memoryview(array.external.checked().live())
            metadata = slice(record.offset, record.offset + _RECORD_NBYTES)
            if data[metadata] == other[metadata]:
                found.append(tensor)
    return found
