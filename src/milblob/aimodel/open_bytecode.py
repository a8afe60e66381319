"""An open file of bytecode: its program, and the values of its constants."""

from math import prod
from typing import Any, cast

import numpy as np

from .. import _codec
from ..budget import Budget
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..storage.mapped import MappedFile
from ..values.dense import Packed, pack
from ..values.tensorvalue import MAX_RANK
from .bytecode import Bytecode
from .program import AssetProgram, is_packed, type_text

Array = np.ndarray[Any, Any]


class OpenBytecode:
    """What the tensors of a bundle share."""

    def __init__(self, mapping: MappedFile, budget: Budget) -> None:
        """Read the tables and the operations of an open file; no values.

        Raises: FormatError: the bytecode breaks its format.
        """
        # mapping: the file. file: its path, None for a buffer. budget: of the values that are made
        self.mapping, self.file, self.budget = mapping, mapping.name, budget
        self.program = AssetProgram(Bytecode(mapping))  # the contents of the bytecode

    def require_readable(self) -> None:
        """Refuse values of another version of the dialect, whose codes may mean something else."""
        if self.program.bytecode.refusal:
            raise UnsupportedError(self.program.bytecode.refusal, file=self.file, code="dialect-version")

    def constant(self, op: int) -> Array:
        """Return the values of a constant: a view of the file where its bytes are the values.

        Raises: FormatError: the size does not fit dtype and shape. UnsupportedError: an element type that is not known.
        """
        element, shape, stored = self._located(op)
        count = prod(shape)
        buffer = self.mapping.check_size()
        if is_packed(element.dtype, element.nbits):
            self.budget.spend(op, count)
            raw = np.empty(1 if stored.is_splat else count, np.uint8)
            if raw.size:
                _codec.unpack_bits(buffer, stored.offset, raw.size, element.nbits, raw)
            values = raw.view(element.numpy)
            return np.full(shape, values[0]) if stored.is_splat else values.reshape(shape)
        if stored.is_splat:
            self.budget.spend(op, count * element.numpy.itemsize)
            one: Array = np.ndarray((1,), element.numpy, buffer, stored.offset)  # type: ignore[arg-type]
            values = np.full(shape, one[0], element.numpy)
        elif not count:
            return np.empty(shape, element.numpy)
        else:
            values = np.ndarray(shape, element.numpy, buffer, stored.offset)  # type: ignore[arg-type]
        if element.dtype is DType.BOOL and values.size and int(values.view(np.uint8).max()) > 1:
            message = f"elements of a bool: expected 0 or 1 in each byte, got {values.view(np.uint8).max()}"
            raise FormatError(message, offset=stored.offset, file=self.file)
        return values

    def packed_constant(self, op: int) -> Packed:
        """Return the stored elements of a constant. Raises as `constant`; UnsupportedError: MIL lacks the type."""
        element, shape, stored = self._located(op)
        if element.dtype is None:
            message = f"element type: expected one that MIL has, got {element.text}"
            raise UnsupportedError(message, file=self.file, code="element-type")
        if stored.is_splat:
            return pack(self.constant(op), element.dtype)
        return Packed(self.mapping.check_size(), stored.offset, element.dtype, shape)

    def _located(self, op: int) -> tuple[Any, tuple[int, ...], Any]:
        self.require_readable()
        kind, stored = self.program.kind(op), self.program.stored(op)
        if kind.element is None:
            message = f"element type: expected one that is known, got {kind.text}"
            raise UnsupportedError(message, file=self.file, code="element-type")
        if None in kind.shape or len(kind.shape) > MAX_RANK:
            raise UnsupportedError(f"shape: expected {MAX_RANK} known sizes at most, got {kind.shape}", file=self.file)
        shape = cast("tuple[int, ...]", kind.shape)
        expected = expected_nbytes(kind.element, prod(shape), stored.is_splat)
        if stored.nbytes != expected:
            raise FormatError(
                size_message(kind, stored, expected), offset=stored.offset, file=self.file, code="constant-size"
            )
        return kind.element, shape, stored


def expected_nbytes(element: Any, count: int, is_splat: bool) -> int:
    """Return how many bytes a constant should have."""
    return -(-(1 if is_splat else count) * int(element.nbits) // 8)


def size_message(kind: Any, stored: Any, expected: int) -> str:
    """Return the message for a constant whose size does not match its type."""
    message = f"bytes of a constant of {type_text(kind)}: expected {expected}, got {stored.nbytes}"
    if kind.element.nbits < 8 and stored.nbytes == prod(kind.shape):
        message += " (one byte for each value; Apple's library crashes on this, or computes with wrong values)"
    return message
