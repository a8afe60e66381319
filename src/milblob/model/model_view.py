"""The functions, blocks and operations of one Program of an open model, with its weights."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _codec
from ..errors import FormatError, MilblobError
from ..program.value import Span, Value
from ..program.view import Operation, ProgramView
from .package import Package, Source
from .places import RecordPlace


class ModelView(ProgramView):
    """A view whose values in weight files can be read, as long as the model is open.

    It does not refer to the OpenProgram that holds it: without the garbage collector, a model that is no longer used
    lets go of its files.

    `buffer`, `span`, `is_plain`: as for ProgramView. `decode`: see `program_places.decoder`; None: compressed weights
    are not decoded.
    """

    def __init__(
        self,
        package: Package,
        source: Source,
        buffer: _codec.Buffer,
        span: Span,
        is_plain: bool = False,
        decode: Callable[[ProgramView, Operation, int], "np.ndarray[Any, Any]"] | None = None,
    ) -> None:
        self._package = package
        self._source = source
        self._decode = decode
        self.require()
        super().__init__(buffer, span, source.prefix, is_plain)

    def require(self) -> None:
        """Raise ValueError if the model is closed, FormatError if its file has shrunk."""
        if self._package.closed or self._package.unsound:
            self._package.require_open()
        self._source.mapping.check_size()

    def release(self) -> None:
        """Release the bytes, also those for decoding."""
        super().release()
        self._decode = None

    def decode(self, operation: Operation, number: int) -> "np.ndarray[Any, Any]":
        """Return the dense values of an output of a constexpr operation; see `ProgramView.decode`."""
        self.require()
        return super().decode(operation, number) if self._decode is None else self._decode(self, operation, number)

    def place(self, value: Value) -> RecordPlace:
        """Return where a Value is in a weight file; its record is not looked at yet."""
        from ..program.types import TensorType

        blob, declared = value.blob, value.type
        try:
            if blob is None or not isinstance(declared, TensorType) or isinstance(declared.dtype, int):
                message = f"type of a value in a weight file: expected a tensor type that is known, got {declared}"
                raise FormatError(message, file=self._source.mapping.name)
            kind = declared.dtype, declared.shape
            return RecordPlace(self._package, value.path, *kind, blob.offset, self._source, blob.file_name)
        except MilblobError as error:
            error.where = error.where or value.path
            raise
