"""The operations of a Program for comparison: the inputs of each, across nested blocks. No values are read."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..model.metadata import Metadata
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor, make_tensor
from ..program.fields import repeated
from ..program.types import TensorType
from ..program.value import type_at
from ..program.view import Function, Operation
from ..progress import ProgressCounter

WEIGHT_COUNT = 10
_MAX_SHOWN = 8
_INPUTS = 1  # the field of a Function
_OPSETS = {f"coreml{number}": f"ios{number + 10}" for number in range(5, 9)}

Key = tuple[str, Any]
"""Which constant or compressed weight of a model it is: prefix of the Program, and where in the Program it is."""


def key_of(tensor: Tensor) -> Key | None:
    """Return the key of a tensor of a model; None of one in a bare weight file."""
    if tensor.program is None:
        return None
    group = tensor.chain
    return tensor.program.prefix, tensor.constant.value if group is None else (group.op.block, group.op.name)


class ConstantArgument(NamedTuple):
    """The place of a constant that an operation reads. Small ones are compared by value, not by serialization."""

    program: OpenProgram
    rows: tuple[Any, ...]

    def keys(self) -> list[Key]:
        """The constants that it consists of; several form a list."""
        return [(self.program.prefix, row.value) for row in self.rows]

    @property
    def shape(self) -> Any:
        """The declared dimensions; of a list, the number of its constants."""
        return self.rows[0].shape if len(self.rows) == 1 else len(self.rows)

    def is_weight(self) -> bool:
        """Whether the comparison of tensors handles it."""
        return any(map(is_large, self.rows))

    def data(self, number: int) -> bytes | None:
        """Return a row's Value message as stored; None if the values are not in it."""
        offset, nbytes = self.rows[number].value
        is_blob = self.rows[number].storage == _codec.BLOB
        return None if is_blob else bytes(memoryview(self.program.scan.buffer)[offset : offset + nbytes])

    def read(self, number: int) -> tuple[Any, Any]:
        """Return (DType, array) of a row."""
        row = self.rows[number]
        tensor = make_tensor(self.program, row.key, row)
        return tensor.mil_dtype, tensor.read()

    def words(self) -> str:
        """Return a readable description."""
        if self.is_weight():
            op = self.rows[0].op
            return f"weight {op.name!r}" if op.type == "const" else "a weight"
        return " and ".join(_value_words(*self.read(number)) for number in range(len(self.rows)))


class CompressedArgument(NamedTuple):
    """A compressed weight that an operation reads."""

    key: Key
    shape: Any

    def keys(self) -> list[Key]:
        """The key of the weight."""
        return [self.key]

    def is_weight(self) -> bool:
        """Whether the comparison of tensors handles it."""
        return True

    def words(self) -> str:
        """Return a readable description."""
        return f"weight {self.key[1][1]!r}"


class ComparedOperation:
    """An operation that reads something, and is neither a constant nor a part of a compressed weight.

    Attributes:
        type: such as "conv".
        name: that of its first output, with the blocks around it; "#1", "#2", ... without outputs.
        key: where it is: prefix of the Program, and place of its message.
        dtype: of the first output, None if that is not a tensor; shape: likewise.
        output_count: number of outputs.
        arguments: parameter -> what is read: ConstantArgument, CompressedArgument, OperationOutput, Input, or a str: a
            name that nothing known has.
        source: of a cast that changes only the precision: what it casts, seen through others. None otherwise.
    """

    __slots__ = ("arguments", "dtype", "key", "name", "output_count", "shape", "source", "type")

    def __init__(self, op: Operation, key: Key, name: str, declared: TensorType | None) -> None:
        self.type: str = op.type
        self.name = name
        self.key = key
        self.dtype: Any = None if declared is None else declared.dtype
        self.shape: tuple[int | None, ...] | None = None if declared is None else declared.shape
        self.output_count: int = op.output_rows[1]
        self.arguments: dict[str, list[Any]] = {}
        self.source: Any = None

    @property
    def output(self) -> str:
        """The type of what it gives."""
        more = f" and {self.output_count - 1} more" if self.output_count > 1 else ""
        if self.shape is None:
            return f"no tensor{more}" if self.output_count else "nothing"
        return f"{self.dtype} [{', '.join('?' if n is None else str(n) for n in self.shape)}]{more}"

    def is_cast(self) -> bool:
        """Whether it changes only the precision: from float to float, or from integer to integer."""
        read = self.arguments.get("x", ())
        if self.type != "cast" or len(read) != 1 or not isinstance(read[0], OperationOutput | Input):
            return False
        return _kind(read[0].dtype) == _kind(self.dtype) != ""


class OperationOutput(NamedTuple):
    """An output of an operation that another one reads. `dtype` and `rank` are None if it is not a tensor."""

    op: ComparedOperation
    number: int
    name: str
    dtype: Any
    rank: int | None


class Input(NamedTuple):
    """An input of a function, or of a nested block (then `op` holds that block), as something that is read."""

    op: ComparedOperation | None
    block: int
    number: int
    name: str
    dtype: Any
    rank: int | None


class ComparedFunction(NamedTuple):
    """A function with the parts that are compared."""

    opset: str  # such as "ios17"
    inputs: dict[str, str]  # name -> type in words
    # what its blocks return: the path of the block ("" for its own), the name, and what is read
    returns: list[tuple[str, str, Any]]
    ops: list[ComparedOperation]  # in Program order


def origin(argument: Any) -> Any:
    """Return what is read, seen through casts that change only the precision."""
    if isinstance(argument, OperationOutput) and argument.op.source is not None:
        return argument.op.source
    return argument


def is_large(row: Any) -> bool:
    """Whether a constant counts as a weight wherever it is stored."""
    return bool(row.count >= WEIGHT_COUNT and BY_MIL_CODE.get(row.mil_code) not in (DType.BOOL, DType.STRING))


def argument_words(arguments: Iterable[Any]) -> str:
    """Return a description of what is read."""
    return ", ".join(
        x if isinstance(x, str) else x.name if isinstance(x, OperationOutput | Input) else x.words() for x in arguments
    )


def _value_words(dtype: Any, array: Any) -> str:
    values = array.reshape(-1)[: _MAX_SHOWN + 1].tolist()
    shown = ", ".join(
        f"{v!r:.60}" if isinstance(v, str) else f"{v:.9g}" if isinstance(v, float) else str(v)
        for v in values[:_MAX_SHOWN]
    )
    more = ", ..." if len(values) > _MAX_SHOWN else ""
    return f"{dtype} [{shown}{more}]" if array.shape else f"{dtype} {shown}"


def _kind(dtype: Any) -> str:
    return "" if not isinstance(dtype, DType) else "float" if dtype.is_float else "integer" if dtype.is_integer else ""


# ------------------------------------------------------------------------------------------------------------ reading


def functions(model: Model, counter: ProgressCounter) -> Iterator[tuple[str, ComparedFunction]]:
    """Yield (name, ComparedFunction) of every function of a model; `counter` notes each operation.

    Raises: FormatError, UnsupportedError: as reading the model does.
    """
    for program in model.parts:
        reading = _Reading(program, counter)
        for name, function in program.view.functions.items():
            yield name, reading.compared(function)


class _Reading:
    """Turns the view of a Program into what is compared."""

    def __init__(self, program: OpenProgram, counter: ProgressCounter) -> None:
        program.require_same_rows()
        self._program, self._view, self._counter = program, program.view, counter
        self._buffer, self._graph = self._view.held()[0], self._view.graph
        self._ops: dict[int, ComparedOperation] = {}  # by row of the graph
        self._meanings: dict[int, Any] = {}  # row of names -> its meaning
        self._paths: dict[int, str] = {}
        self._nchars = 0
        self._constants: defaultdict[int, list[Any]] = defaultdict(list)  # by offset of the operation
        for row in program.scan.scan_again(_codec.SCAN_ALL).constants:
            if row.op is not None and row.storage != _codec.NAME:
                self._constants[row.op.message[0]].append(row)

    def compared(self, function: Function) -> ComparedFunction:
        """Return a function with all that is compared."""
        _, opset, span, _, _ = self._graph.function(function.row)
        features = Metadata.from_function(self._inputs(span))
        inputs = {feature.name: str(feature) for feature in (*features.inputs, *features.states)}
        found = ComparedFunction(_OPSETS.get(opset.lower(), opset.lower()), inputs, [], [])
        operations = []
        unnamed: Counter[tuple[str, str]] = Counter()
        for block in function.blocks.values():
            for operation in self._counter.noting(block.walk()):
                if self._is_compared(operation):
                    operations.append(operation)
                    found.ops.append(self._add(operation, unnamed))
        for operation, op in zip(self._counter.noting(operations), found.ops, strict=True):
            op.arguments = self._arguments(operation)
            if op.is_cast():
                op.source = origin(op.arguments["x"][0])
        for row in range(self._graph.counts[1]):
            _, _, number, _, _, _, (first, count) = self._graph.block(row)
            for i in range(first, first + count) if number == function.row else ():
                ((name, _, _),) = self._graph.names(i, 1)
                path = self._path(row)
                found.returns.append((path, name, self._meaning(self._graph.definer(-1 - i), name)))
                self._count(len(path) + len(name))
        return found

    def _inputs(self, span: tuple[int, int]) -> list[Any]:
        """Return the inputs of a Function as NamedValueType messages."""
        from ..program import schema

        view = memoryview(self._buffer)
        return [
            schema.parse("NamedValueType", view[start : start + size], file=self._buffer.name)
            for _, (start, size) in repeated(self._buffer, span, {_INPUTS: 2}, "named type")
        ]

    def _is_compared(self, operation: Operation) -> bool:
        """Whether an operation reads something, and is neither a constant nor a part of a compressed weight."""
        if operation.type == "const" or operation.type.startswith("constexpr_"):
            return False
        is_reading = any(not binding.is_value for bindings in operation.inputs.values() for binding in bindings)
        return is_reading or any(map(_is_argument, self._constants.get(operation.message[0], ())))

    def _add(self, operation: Operation, unnamed: Counter[tuple[str, str]]) -> ComparedOperation:
        path, name = self._path(operation.block_row), operation.name
        if not name:
            unnamed[path, operation.type] += 1
            name = f"#{unnamed[path, operation.type]}"
        first, count = operation.output_rows
        declared = self._named(first)[1] if count else None
        op = ComparedOperation(operation, (self._program.prefix, operation.message), path + name, declared)
        self._ops[operation.row] = op
        self._count(len(path) + len(name))  # each repeats the names of the blocks around it
        return op

    def _arguments(self, operation: Operation) -> dict[str, list[Any]]:
        """Return what an operation reads: parameters with names first, then those with values only, and attributes."""
        found: dict[str, list[tuple[int, Any]]] = {}
        for key, bindings in operation.inputs.items():
            for i, binding in enumerate(bindings):
                if (name := binding.name) is not None:
                    found.setdefault(key, []).append((i, self._meaning(self._graph.definer(binding.row), name)))
        for row in self._constants.get(operation.message[0], ()):
            if _is_argument(row):
                found.setdefault(row.key, []).append((row.binding[0], ConstantArgument(self._program, (row,))))
        return {key: [read for _, read in sorted(reads, key=itemgetter(0))] for key, reads in found.items()}

    def _meaning(self, row: int, name: str) -> Any:
        """Return the meaning of a name that is read; row: of names, which defines it, or -1."""
        if row < 0:
            return name
        found = self._meanings.get(row)
        if found is None:
            found = self._meanings[row] = self._defined(row)
        return found

    def _defined(self, row: int) -> Any:
        kind, owner = self._graph.owner(row)
        name, declared = self._named(row)
        dtype, rank = (None, None) if declared is None else (declared.dtype, len(declared.shape))
        if kind == _codec.GRAPH_PARAMETER:
            return Input(None, 0, row - self._graph.function(owner)[4][0], name, dtype, rank)
        if kind == _codec.GRAPH_INPUT:
            _, _, _, operation, number, (first, _), _ = self._graph.block(owner)
            op = self._ops.get(operation)
            return name if op is None else Input(op, number, row - first, name, dtype, rank)
        definer = self._view.operation(owner)
        if owner in self._ops:
            return OperationOutput(self._ops[owner], row - definer.output_rows[0], name, dtype, rank)
        if definer.type.startswith("constexpr_"):
            key = self._program.prefix, (definer.block_row, name)
            return CompressedArgument(key, None if declared is None else declared.shape)
        rows = self._constants.get(definer.message[0], ()) if definer.type == "const" else ()
        values = tuple(constant for constant in rows if constant.key == "val")
        return ConstantArgument(self._program, values) if values else name

    def _named(self, row: int) -> tuple[str, TensorType | None]:
        """The name in a row of names, and its type if that is a tensor."""
        ((name, offset, nbytes),) = self._graph.names(row, 1)
        declared = type_at(self._buffer, (offset, nbytes)) if offset else None
        return name, declared if isinstance(declared, TensorType) else None

    def _count(self, nchars: int) -> None:
        self._nchars += nchars
        self._program.scan.require_texts(self._nchars)

    def _path(self, block: int) -> str:
        """Return the blocks around an operation, "" in a function's own block."""
        found = self._paths.get(block)
        if found is None:
            function = self._program.scan.table.blocks[block][1]
            name = self._program.scan.table.functions[function][0]
            found = self._program.scan.scope(function, block)[len(name) :].removeprefix("/")
            self._paths[block] = found
        return found


def _is_argument(row: Any) -> bool:
    """Whether a constant of an operation is something that it reads, and not its name."""
    return not (row.owner == _codec.ATTRIBUTE and row.key == "name")
