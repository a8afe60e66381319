"""An initializer without bytes of its own: a range of an open weight file, wherever the name of that file leads now."""

from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from ..formats.onnx_external import REFERENCE, hash_of, note_of
from ..storage.mapped import MappedFile


def refer(tensor: Any, location: str, offset: int, nbytes: int) -> None:
    """Make the message of a tensor refer to bytes elsewhere."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = 1
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(nbytes))):
        tensor.external_data.add(key=key, value=value)


def fill(tensor: Any, held: Any) -> None:
    """Give the message of a tensor its values instead of a reference."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = held.tobytes()


def external(tensor: Any, location: str, offset: int, base: str = "") -> ir.ExternalTensor:
    """Return a tensor of the same name, type and shape whose bytes are elsewhere."""
    shape = ir.Shape(tensor.shape)
    return ir.ExternalTensor(
        location, offset, tensor.nbytes, tensor.dtype, shape=shape, name=tensor.name, base_dir=base
    )


class WeightReference(ir.ExternalTensor):
    """External data whose values come from the file that milblob opened and checked.

    onnx-ir would open the file by its name when the values are asked for. This object maps the bytes while it lives.

    Attributes:
        mapping: the weight file.
        start: offset of the bytes in it; `offset` is that in the file that `location` names, which may be a copy.
    """

    __slots__ = ("_buffer", "mapping", "start")

    def __init__(
        self,
        mapping: MappedFile,
        start: int,
        nbytes: int,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        location: str,
        offset: int,
        base: str,
    ) -> None:
        super().__init__(location, offset, nbytes, dtype, shape=ir.Shape(shape), name="", base_dir=base)
        self.mapping, self.start = mapping, start
        self._buffer: Any = mapping.live()

    def held(self) -> "ir.Tensor[Any] | ir.PackedTensor[Any]":
        """Return the tensor as one in memory: a view of the mapped bytes. Raises: FormatError: the file has shrunk."""
        if self.mapping.buffer is not None:  # else its model is closed
            self.mapping.check_size()
        data = np.frombuffer(self._buffer, np.uint8, self.nbytes, self.start)
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(data, self.dtype, shape=self.shape, name=self.name)
        return ir.Tensor(data.view(self.dtype.numpy()).reshape(self.shape.numpy()), self.dtype, name=self.name)

    def note(self) -> tuple[str, str]:
        """Return the key and value in the initializer's metadata for the bytes that it refers to."""
        hash = hash_of(self.mapping, self._buffer, self.start, self.nbytes)
        return REFERENCE, note_of(self.offset or 0, self.nbytes, hash)

    def __reduce__(self) -> Any:
        """A copy, or one unpickled in another process, opens the file by its name."""
        plain = partial(ir.ExternalTensor, shape=self.shape, name=self.name, base_dir=self.base_dir)
        return plain, (self.location, self.offset, self.length, self.dtype)

    def __array__(self, dtype: Any = None) -> "np.ndarray[Any, Any]":
        return self.numpy().__array__(dtype)

    def numpy(self) -> "np.ndarray[Any, Any]":
        """Return the values; a view of the mapped bytes where elements are bytes."""
        return self.held().numpy()

    def tobytes(self) -> bytes:
        """Return a copy of the bytes."""
        return self.held().tobytes()

    def tofile(self, file: Any) -> None:
        """Write the bytes to a file object."""
        self.held().tofile(file)
