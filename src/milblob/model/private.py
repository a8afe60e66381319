"""Values in memory that nothing else uses: over private mappings of weight files, or just computed."""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

from ..storage.mapped import MappedFile
from .places import Place, RecordPlace

Array = np.ndarray[Any, Any]
MapBytes = Callable[[MappedFile, int, int], tuple[mmap.mmap | None, int]]
"""Maps bytes of a file, from a first one and as many, privately; returns the mapping and where in it they begin."""


def view_of_own(place: Place) -> Array | None:
    """Return the values of a place in memory that nothing else uses, without a copy; None where there must be one.

    Of a record: a read-only array over a private, copy-on-write mapping of its pages alone. A consumer that
    writes to it all the same changes neither the file nor another array, and does not end the process.

    Raises: As `Tensor.read`.
    """
    values = mapped_values(place, _map_part)
    if values is None:
        return computed_values(place)
    values.flags.writeable = False
    return values


def _map_part(mapping: MappedFile, begin: int, nbytes: int) -> tuple[mmap.mmap | None, int]:
    try:
        return mapping.map_private(begin, nbytes), begin % mmap.ALLOCATIONGRANULARITY
    except OSError:  # a process may have only some 65,000 mappings
        return None, 0


def mapped_values(place: Place, map_bytes: MapBytes) -> Array | None:
    """Return stored values over a private mapping: C-contiguous, aligned and writable. None if they are not stored."""
    if not isinstance(place, RecordPlace) or place.dtype.is_sub_byte:
        return None
    with place.naming():
        reader, record = place.record()
        dtype = place.dtype.numpy
        if not record.count or record.data_offset % dtype.itemsize:
            return None
        mapped, begin = map_bytes(reader.mapping, record.data_offset, record.nbytes)
        return None if mapped is None else np.ndarray(place.shape, dtype, mapped, begin)  # type: ignore[arg-type]


def computed_values(place: Place) -> Array | None:
    """Return values that are computed when they are read: C-contiguous and writable. None if they are not computed."""
    if not place.is_computed and not place.dtype.is_sub_byte:
        return None
    values = place.read()
    return values if values.flags.carray else None
