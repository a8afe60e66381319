"""The values of tensors in memory that others may write to, without a copy where the file can be mapped."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..blobs.reader import BlobReader
from ..storage.mapped import MappedFile
from .lazy import LazyTensor
from .places import RecordPlace
from .reading import read_each
from .tensor import Tensor

Array = np.ndarray[Any, Any]
_Map = Callable[[MappedFile, int, int], tuple[mmap.mmap | None, int]]
"""Maps bytes of a file, from a first one and as many, privately; returns the mapping and where in it they begin."""


def view_of_own(tensor: LazyTensor) -> Array | None:
    """Return the values of a tensor in memory that nothing else uses, without a copy; None where there must be one.

    Of a stored tensor: a read-only array over a private, copy-on-write mapping of its pages alone. A consumer that
    writes to it all the same changes neither the file nor another array, and does not end the process.

    Raises:
        As `Tensor.read`.
    """
    values = _mapped(tensor, _map_part)
    if values is None:
        return _computed(tensor)
    values.flags.writeable = False
    return values


def _map_part(mapping: MappedFile, begin: int, nbytes: int) -> tuple[mmap.mmap | None, int]:
    try:
        return mapping.map_private(begin, nbytes), begin % mmap.ALLOCATIONGRANULARITY
    except OSError:  # a process may have only some 65,000 mappings
        return None, 0


def _mapped(tensor: LazyTensor, map_bytes: _Map) -> Array | None:
    """Return stored values over a private mapping: C-contiguous, aligned and writable. None if they are not stored."""
    place = tensor.place
    if not isinstance(place, RecordPlace) or place.dtype.is_sub_byte:
        return None
    with place.naming():
        reader, record = place.record()
        dtype = place.dtype.numpy
        if not record.count or record.data_offset % dtype.itemsize:
            return None
        mapped, begin = map_bytes(reader.mapping, record.data_offset, record.nbytes)
        return None if mapped is None else np.ndarray(tensor.shape, dtype, mapped, begin)


def _computed(tensor: LazyTensor) -> Array | None:
    """Return values that are computed when they are read: C-contiguous and writable. None if they are not computed."""
    if not tensor.place.is_computed and not tensor.place.dtype.is_sub_byte:
        return None
    values = tensor.read()
    return values if values.flags.carray else None


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
        found = _mapped(tensor, lambda mapping, begin, _: (self._map(mapping), begin))
        if found is None:
            found = _computed(tensor)
        return np.array(tensor.read(), order="C") if found is None else found

    def arrays(self, tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, Array]]:
        """Yield the name and the values of each tensor, as `array` returns them; those of weight files are found first.

        Raises:
            As `Tensor.read`.
        """
        stored = [one for one in tensors.values() if isinstance(one, Tensor) and one.is_blob]
        views = read_each([one for one in stored if not one.mil_dtype.is_sub_byte], self._buffer, self.array)
        for name, tensor in tensors.items():
            yield name, views[name] if name in views else self.array(tensor)

    def _buffer(self, reader: BlobReader) -> mmap.mmap | None:
        return self._map(reader.mapping)

    def _map(self, mapping: MappedFile) -> mmap.mmap | None:
        """Return the private mapping of a file, whose size was checked when the record was read."""
        found = self._maps.get(id(mapping))
        if found is None:  # with the mapping itself, so that no other object gets its id
            found = self._maps[id(mapping)] = mapping, mapping.map_private()
        return found[1]
