"""The operations of a Program as a graph: what each reads, across nested blocks. Reads no values of weights."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..model.metadata import Metadata
from ..model.model import Model
from ..model.package import Source
from ..model.tensor import Tensor, make_tensor
from ..program.scan import Program
from ..program.types import repeated

WEIGHT_COUNT = 10
_MAX_SHOWN = 8
_BLOCKS = 4  # the field of an Operation
_INPUTS = 1  # of a Block, a Function
_OUTPUTS = 3  # of an Operation
_FLOATS = frozenset(dtype for dtype in DType if "FLOAT" in dtype.name)
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
    """A constant that an operation reads: where it is. Small ones are compared by value, not by serialization."""

    source: Source
    program: Program
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
        return None if is_blob else bytes(memoryview(self.program.buffer)[offset : offset + nbytes])

    def read(self, model: Model, number: int) -> tuple[Any, Any]:
        """Return (DType, array) of a row."""
        row = self.rows[number]
        tensor = make_tensor(model.package, self.source, self.program, row.key, row)
        return tensor.mil_dtype, tensor.read()

    def words(self, model: Model) -> str:
        """Return a readable description."""
        if self.is_weight():
            op = self.rows[0].op
            return f"weight {op.name!r}" if op.type == "const" else "a weight"
        return " and ".join(_value_words(*self.read(model, number)) for number in range(len(self.rows)))


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

    def words(self, model: Model) -> str:
        """Return a readable description."""
        return f"weight {self.key[1][1]!r}"


class ComparedOperation:
    """An operation that reads something, and is neither a constant nor a part of a compressed weight.

    Attributes:
        type: such as "conv".
        name: that of its first output, with the blocks around it; "#1", "#2", ... without outputs.
        key: where it is: prefix of the Program, and place of its message.
        dtype: of the first output, None if that is no tensor; shape: likewise.
        output_count: number of outputs.
        arguments: parameter -> what is read: ConstantArgument, CompressedArgument, Result, Input, or a str, a name that
            nothing known has.
        source: of a cast that changes only the precision: what it casts, seen through others. None otherwise.
    """

    __slots__ = ("arguments", "dtype", "key", "name", "output_count", "shape", "source", "type")

    def __init__(self, op: Any, key: Key, name: str) -> None:
        self.type: str = op.type
        self.name = name
        self.key = key
        self.dtype: Any = BY_MIL_CODE[op.mil_code] if op.shape is not None else None
        self.shape: tuple[int | None, ...] | None = op.shape
        self.output_count: int = op.output_count
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
        if self.type != "cast" or len(read) != 1 or not isinstance(read[0], Result | Input):
            return False
        return _kind(read[0].dtype) == _kind(self.dtype) != ""


class Result(NamedTuple):
    """An output of an operation, as something that is read. `dtype` and `rank` are None if it is no tensor."""

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
    """A function with the parts that are compared.

    Attributes:
        opset: such as "ios17".
        inputs: name -> type in words.
        returns: what its blocks return: the path of the block ("" for its own), the name, and what is read.
        ops: in Program order.
    """

    opset: str
    inputs: dict[str, str]
    returns: list[tuple[str, str, Any]]
    ops: list[ComparedOperation]


def origin(argument: Any) -> Any:
    """Return what is read, seen through casts that change only the precision."""
    if isinstance(argument, Result) and argument.op.source is not None:
        return argument.op.source
    return argument


def is_large(row: Any) -> bool:
    """Whether a constant counts as a weight wherever it is stored."""
    return bool(row.count >= WEIGHT_COUNT and BY_MIL_CODE.get(row.mil_code) not in (DType.BOOL, DType.STRING))


def argument_words(model: Model, arguments: Iterable[Any]) -> str:
    """Return a description of what is read."""
    return ", ".join(
        x if isinstance(x, str) else x.name if isinstance(x, Result | Input) else x.words(model) for x in arguments
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
    return "" if dtype is None else "float" if dtype in _FLOATS else "integer" if dtype.is_integer else ""


# ------------------------------------------------------------------------------------------------------------ reading


def functions(model: Model) -> Iterator[tuple[str, ComparedFunction]]:
    """Yield (name, ComparedFunction) of every function of a model.

    Raises:
        FormatError, UnsupportedError: as reading the model does.
    """
    for source, program in model.scans:
        source.mapping.check_size()
        graph = _Graph(source, program)
        graph.collect()
        for function, (name, _, _) in zip(graph.functions, graph.every.functions, strict=True):
            yield program.prefix + name, function


class _Graph:
    """Resolves the names in a Program while its operations are collected."""

    def __init__(self, source: Source, program: Program) -> None:
        self.every = program.scan_again(_codec.SCAN_ALL)
        self._uses = program.scan_again(_codec.SCAN_USES)
        self._source, self._program = source, program
        self.functions: list[ComparedFunction] = []
        self._by_message: dict[tuple[int, int], ComparedOperation] = {}
        self._tops = Counter(row[1] for row in self.every.blocks if row[2] < 0)
        self._defined: dict[tuple[int, str], Any] = {}  # (block, name) -> what it stands for
        self._paths: dict[tuple[int, int], str] = {}
        self._nchars = 0
        self._unnamed: Counter[tuple[int, str, str]] = Counter()

    def collect(self) -> None:
        """Fill `functions`."""
        self._collect_functions()
        self._collect_constants()
        rows = [*self._uses.constants, *self.every.constants]
        for row in rows:
            self._add_operation(row)
        self._collect_inputs_of_blocks()
        for row in rows:
            self._add_argument(row)
        for function in self.functions:
            function.ops.sort(key=lambda op: op.key[1])
            for op in function.ops:
                if op.is_cast():
                    op.source = origin(op.arguments["x"][0])

    def _collect_functions(self) -> None:
        inputs: list[list[Input]] = []
        for _, opset, span in self.every.functions:
            messages = self._named_types(span)
            features = Metadata.from_function(messages)
            words = {feature.name: str(feature) for feature in (*features.inputs, *features.states)}
            self.functions.append(ComparedFunction(_OPSETS.get(opset.lower(), opset.lower()), words, [], []))
            inputs.append([Input(None, 0, i, given.name, *_type(given)) for i, given in enumerate(messages)])
        for number, (_, function, parent, _, _) in enumerate(self.every.blocks):
            if parent < 0:
                self._defined |= {(number, found.name): found for found in inputs[function]}

    def _collect_constants(self) -> None:
        for op in self.every.ops:
            if op.type.startswith("constexpr_"):
                self._defined[op.block, op.name] = CompressedArgument(
                    (self._program.prefix, (op.block, op.name)), op.shape
                )
        rows: dict[tuple[int, str], list[Any]] = {}
        for c in self.every.constants:
            if c.op is not None and c.op.type == "const" and c.key == "val":
                rows.setdefault((c.block, c.op.name), []).append(c)
        for key, constants in rows.items():
            self._defined.setdefault(key, ConstantArgument(self._source, self._program, tuple(constants)))

    def _add_operation(self, row: Any) -> None:
        """Add the operation that a row of the scan belongs to, with its outputs and the inputs of its blocks."""
        op = row.op
        if op is None or not _is_argument(row) or op.message in self._by_message:
            return
        path = self._path(row.function, row.block)
        name = op.name
        if not (op.output_count and name):
            key = (row.function, path, op.type)
            self._unnamed[key] += 1
            name = f"#{self._unnamed[key]}"
        known = ComparedOperation(op, (self._program.prefix, op.message), path + name)
        self._by_message[op.message] = known
        self.functions[row.function].ops.append(known)
        self._count(len(path) + len(name))  # each repeats the names of the blocks around it
        outputs = [(op.name, known.dtype, None if op.shape is None else len(op.shape))]
        if op.output_count > 1:  # the scan has only the first
            outputs = [(given.name, *_type(given)) for given in self._named_types(op.message, _OUTPUTS)]
        for index, (output, dtype, rank) in enumerate(outputs):
            self._defined.setdefault((row.block, output), Result(known, index, output, dtype, rank))

    def _collect_inputs_of_blocks(self) -> None:
        """Define the inputs of nested blocks."""
        owners: dict[tuple[int, int], ComparedOperation] = {}
        for row in [*self._uses.ops, *self.every.ops]:
            if row.message in self._by_message:
                owners[row.block, row.index] = self._by_message[row.message]
        spans: dict[ComparedOperation, list[tuple[int, int]]] = {}
        buffer = self._program.buffer
        for number, (_, _, parent, block, index) in enumerate(self.every.blocks):
            op = owners.get((parent, index))
            if parent < 0 or op is None:
                continue
            if op not in spans:
                spans[op] = [at for _, at in repeated(buffer, op.key[1], {_BLOCKS: 2}, "block")]
            for i, given in enumerate(self._named_types(spans[op][block])):
                self._defined.setdefault((number, given.name), Input(op, block, i, given.name, *_type(given)))

    def _add_argument(self, row: Any) -> None:
        """Add what a row of the scan says is read."""
        if row.owner == _codec.RETURN:
            path = self._path(row.function, row.block)
            self.functions[row.function].returns.append((path, row.text, self._meaning(row.block, row.text)))
            self._count(len(path) + len(row.text))
        elif row.op is not None and _is_argument(row):
            read = self._by_message[row.op.message].arguments.setdefault(row.key, [])
            if row.storage == _codec.NAME:
                read.append(self._meaning(row.block, row.text))
            else:
                read.append(ConstantArgument(self._source, self._program, (row,)))

    def _meaning(self, block: int, name: str) -> Any:
        at = block
        while at >= 0:
            found = self._defined.get((at, name))
            if found is not None:
                return found
            at = self.every.blocks[at][2]
        return name

    def _named_types(self, span: tuple[int, int], field: int = _INPUTS) -> list[Any]:
        """Return the inputs of a Function or a Block, or the outputs of an Operation, as NamedValueType messages."""
        from ..program import schema

        view = memoryview(self._program.buffer)
        return [
            schema.parse("NamedValueType", view[start : start + size], file=self._program.buffer.name)
            for _, (start, size) in repeated(self._program.buffer, span, {field: 2}, "named type")
        ]

    def _count(self, nchars: int) -> None:
        self._nchars += nchars
        self._program.require_texts(self._nchars)

    def _path(self, function: int, block: int) -> str:
        """Return the blocks around an operation, "" in a function's own block."""
        found = self._paths.get((function, block))
        if found is None:
            name = self.every.functions[function][0]
            found = self._program.scope(function, block, self._tops[function] > 1)[len(name) :].removeprefix("/")
            self._paths[function, block] = found
        return found


def _type(message: Any) -> tuple[Any, int | None]:
    """Return DType and rank of a NamedValueType; None and None if it is no tensor."""
    if not message.type.HasField("tensorType"):
        return None, None
    tensor = message.type.tensorType
    return BY_MIL_CODE.get(tensor.dataType), len(tensor.dimensions)


def _is_argument(row: Any) -> bool:
    """Whether a row of the scan is something that an operation of the graph reads."""
    op = row.op
    if row.owner == _codec.RETURN or op is None or op.type == "const" or op.type.startswith("constexpr_"):
        return False
    return not (row.storage != _codec.NAME and row.owner == _codec.ATTRIBUTE and row.key == "name")
