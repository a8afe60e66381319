"""The values of tensors in memory that others may write to, without a copy where the file can be mapped."""

import mmap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..blobs.reader import BlobReader
from ..storage.mapped import MappedFile
from .lazy import LazyTensor
from .private import computed_values, mapped_values
from .reading import read_each
from .tensor import Tensor

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

        Raises: As `Tensor.read`.
        """
        found = mapped_values(tensor.place, lambda mapping, begin, _: (self._map(mapping), begin))
        if found is None:
            found = computed_values(tensor.place)
        return np.array(tensor.read(), order="C") if found is None else found

    def arrays(self, tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, Array]]:
        """Yield the name and the values of each tensor, as `array` returns them; those of weight files are found first.

        Raises: As `Tensor.read`.
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
