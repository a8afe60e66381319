"""The functions of an open model: their names, and the views of its Programs behind them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, overload

import numpy as np

from ..errors import FormatError, MilblobError
from ..program.scan import Program
from ..program.types import TensorType
from ..program.value import Value
from ..program.view import Block, Function, Operation, ProgramView
from .package import Package, Source
from .places import RecordPlace

if TYPE_CHECKING:
    from .model import Model


class Functions(tuple[str, ...]):
    """The names of all functions of a model, in Program order. Indexed by a name, it gives the `Function`.

    It is a tuple of str in every other respect: `model.functions[0]` is the first name.
    """

    _model: "Model"

    def __new__(cls, model: "Model", names: Iterator[str]) -> "Functions":
        """Make the functions of an open model."""
        self = super().__new__(cls, names)
        self._model = model
        return self

    @overload
    def __getitem__(self, key: str) -> Function: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[str, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the function of a name, or the name at an index.

        Raises:
            KeyError: no function has that name. ValueError: the model is closed. As opening the model.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key in self:
            for view in self._model.views:
                if (function := view.functions.get(key)) is not None:
                    return function
        raise KeyError(f"function: expected one of {', '.join(self[:8]) or 'none'}, got {key!r}")

    def values(self) -> tuple[Function, ...]:
        """Return every function, in Program order."""
        return tuple(self[name] for name in self)

    def items(self) -> tuple[tuple[str, Function], ...]:
        """Return every name with its function, in Program order."""
        return tuple((name, self[name]) for name in self)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)  # the model stays behind


class _File(NamedTuple):
    """Names a weight file, as a row of a scan does."""

    text: str


class ModelFiles:
    """What views of a model's Programs need of it: see `program.view.Files`."""

    __slots__ = ("_package", "_source")

    def __init__(self, package: Package, source: Source) -> None:
        self._package = package
        self._source = source

    def require(self) -> None:
        """Raise ValueError if the model is closed, FormatError if its file has shrunk."""
        self._package.require_open()
        self._source.mapping.check_size()

    def read(self, value: Value) -> "np.ndarray[Any, Any]":
        """Return the array that a Value has in a weight file, as `Tensor.read`."""
        return self.place(value).read()

    def place(self, value: Value) -> RecordPlace:
        """Return where a Value is in a weight file; its record is not looked at yet."""
        blob, declared = value.blob, value.type
        try:
            if blob is None or not isinstance(declared, TensorType) or isinstance(declared.dtype, int):
                words = f"type of a value in a weight file: expected a tensor type that is known, got {declared}"
                raise FormatError(words, file=self._source.mapping.name)
            dtype, shape = declared.dtype, declared.shape
            constant = _File(blob.file_name)
            return RecordPlace(self._package, value.path, dtype, shape, blob.offset, self._source, None, constant)
        except MilblobError as error:
            error.where = error.where or value.path
            raise


def view_of(package: Package, source: Source, program: Program) -> ProgramView:
    """Return the view of one Program of an open model, made on the first call."""
    if program.view is None:
        files = ModelFiles(package, source)
        files.require()
        program.view = ProgramView(program.buffer, program.span, source.prefix, files, program.rewritten)
    return program.view


def operation_of(package: Package, source: Source, program: Program, op: Any) -> Operation:
    """Return the operation in the view of a Program that a `_codec.Op` of its scan stands for."""
    view, blocks = view_of(package, source, program), program.scan.blocks

    def block_of(row: int) -> Block:
        name, function, parent, number, index = blocks[row]
        if parent < 0:
            return view.functions[view.prefix + program.scan.functions[function][0]].blocks[name]
        return block_of(parent).operations[index].blocks[number]

    index: int = op.index
    return block_of(op.block).operations[index]
