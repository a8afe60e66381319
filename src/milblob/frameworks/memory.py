"""The values of tensors in memory that a framework may write to, without a copy where the file can be mapped."""

import mmap
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..formats.opening import Tensors
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..model.places import RecordPlace
from ..selection import Select, choose
from ..storage.mapped import MappedFile

Array = np.ndarray[Any, Any]


class WritableArrays:
    """Arrays that can be written, of tensors of open files.

    Where a weight file is mapped and holds the values, an array is a view of a second mapping of that file, private and
    copy-on-write: its pages are those of the file until one is written, which makes a copy of that page for this
    process alone. There is one such mapping for each file, so two arrays of one tensor share their memory. All others
    are copies.
    """

    def __init__(self) -> None:
        """Begin without any mapping."""
        self._maps: dict[int, tuple[MappedFile, mmap.mmap | None]] = {}

    def array(self, tensor: LazyTensor) -> Array:
        """Return the values of a tensor: C-contiguous, aligned and writable; never memory that milblob reads from.

        Raises:
            As `Tensor.read`.
        """
        place = tensor.place
        if isinstance(place, RecordPlace) and not place.dtype.is_sub_byte:
            with place.naming():
                reader, record = place.record()
                mapped = self._map(reader.mapping)
                dtype = place.dtype.numpy
                if mapped is not None and record.count and record.data_offset % dtype.itemsize == 0:
                    return np.ndarray(tensor.shape, dtype, mapped, record.data_offset)
        values = tensor.read()
        is_own = (place.is_computed or place.dtype.is_sub_byte) and values.flags.carray
        return values if is_own else np.array(values, order="C")

    def _map(self, mapping: MappedFile) -> mmap.mmap | None:
        found = self._maps.get(id(mapping))
        if found is None:  # with the mapping itself, so that no other object gets its id
            found = self._maps[id(mapping)] = mapping, mapping.map_private()
        else:
            mapping.check_size()
        return found[1]


def chosen(tensors: Tensors, select: Select) -> dict[str, LazyTensor]:
    """Return the tensors that are selected, in the order of the file; those of a remote model are fetched at once.

    Raises:
        SelectionError: nothing is selected. As `open_arrays`.
    """
    names, _ = choose(tensors, select, getattr(tensors, "path", None) or "the source")
    found: dict[str, LazyTensor] = {name: tensors[name] for name in names}
    fetch(found.values())
    return found


def bytes_as_integers(array: Array) -> Array:
    """Return an array of a type below a byte, as ml_dtypes has them, as int8 or uint8; others as they are."""
    if array.dtype.isbuiltin == 1:  # NumPy's own; to ask for a name takes longer than all else here
        return array
    if array.dtype.name in ("int2", "int4"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if array.dtype.name in ("uint1", "uint2", "uint4") else array


def refuse(tensor: LazyTensor, framework: str, advice: str = "") -> UnsupportedError:
    """Return the error about a tensor of a dtype that a framework lacks."""
    message = f"dtype: expected one that {framework} has, got {tensor.mil_dtype}{advice}; select= leaves the tensor out"
    return UnsupportedError(message, where=tensor.place.where, file=tensor.place.file)
