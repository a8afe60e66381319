"""Reads many tensors at once: one C call looks up the records of a weight file, and maps none of its pages."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _codec
from ..blobs.reader import BlobReader
from ..dtypes import BY_BLOB_CODE
from ..errors import MilblobError
from ..mirrored import FILES
from ..values.tensorvalue import MAX_RANK
from .fetching import fetch
from .open_program import OpenProgram
from .tensor import Tensor

if TYPE_CHECKING:
    from .model import Model

Array = np.ndarray[Any, Any]


def read_all(model: "Model") -> dict[str, Array]:
    """Read every tensor of an open model. Raises: As `Tensor.read`."""
    blobs = model.package.blobs
    if blobs is not None and not blobs.mapping.is_partial and not model.package.assigned:
        return _read_weight_file(model, blobs)
    if FILES:  # of remote models
        fetch(model.values())
    return read_each(model.values(), lambda reader: memoryview(reader.mapping.check_range(0, 0)), Tensor.read)


def _read_weight_file(model: "Model", reader: BlobReader) -> dict[str, Array]:
    """As `read_all`, of a bare weight file, whose index is its tensors."""
    index = reader.index
    view = memoryview(reader.mapping.check_size())
    columns = (index[name].tolist() for name in ("data_offset", "count", "blob_code"))
    return {
        name: np.ndarray((count,), dtype.numpy, view, start)
        if (dtype := BY_BLOB_CODE[code]).nbits >= 8
        else model[name].read()
        for name, start, count, code in zip(model, *columns, strict=True)
    }


def read_each(
    tensors: Iterable[Tensor], buffer_of: Callable[[BlobReader], Any], read: Callable[[Tensor], Array]
) -> dict[str, Array]:
    """Return the values of tensors of open models by name, in their order.

    Args:
        tensors: remote ones are fetched.
        buffer_of: returns the bytes that arrays of a weight file are to be views of, at the same offsets; None: call
            `read` for each.
        read: reads a tensor whose values are not the aligned bytes of a record.

    Raises:
        As `Tensor.read`.
    """
    result: dict[str, Any] = {}
    by_file: dict[int, tuple[BlobReader, list[Tensor]]] = {}
    readers: dict[tuple[OpenProgram, str], BlobReader] = {}
    for tensor in tensors:
        constant = tensor.constant
        if constant is None or constant.storage != _codec.BLOB or tensor.package.assigned:
            result[tensor.name] = read(tensor)
            continue
        result[tensor.name] = None  # keeps the order while files are read one after another
        program = cast(OpenProgram, tensor.program)
        key = (program, constant.text)
        reader = readers.get(key)
        if reader is None:
            try:
                tensor.package.require_open()
                reader = readers[key] = tensor.package.reader(program.source, constant.text)
            except MilblobError as error:
                error.where = error.where or tensor.where
                raise
        by_file.setdefault(id(reader), (reader, []))[1].append(tensor)
    for reader, some in by_file.values():
        buffer = buffer_of(reader)
        if buffer is None:
            result.update((tensor.name, read(tensor)) for tensor in some)
        else:
            _read_records(reader, buffer, some, read, result)
    return result


def _read_records(
    reader: BlobReader, buffer: Any, tensors: list[Tensor], read: Callable[[Tensor], Array], result: dict[str, Any]
) -> None:
    records, good, error = reader.records_at([cast(int, t.offset) for t in tensors])
    if error is not None:
        error.where = tensors[good].where
        raise error
    starts, counts, codes = (records[name].tolist() for name in ("data_offset", "count", "blob_code"))
    for tensor, start, count, code in zip(tensors, starts, counts, codes, strict=True):
        dtype = tensor.mil_dtype
        # The common case costs one comparison: the record matches what the Program declares. NumPy accepts any shape
        # with as many elements as a file can hold, unless it is empty or has too many dimensions.
        if (
            code == dtype.blob_code
            and 0 < count == tensor.constant.count
            and dtype.nbits >= 8
            and start % dtype.numpy.itemsize == 0
            and tensor.ndim <= MAX_RANK
        ):
            result[tensor.name] = np.ndarray(tensor.declared_shape, dtype.numpy, buffer, start)  # type: ignore[arg-type]
        else:
            result[tensor.name] = read(tensor)
