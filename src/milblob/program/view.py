"""The view of a Program: functions, blocks, operations, values, to walk and to ask.

A view is a table of rows (`_codec.Graph`), made in one pass over the Program's bytes at the first access. Everything
else is read from the bytes on request. Objects refer to their view, which refers to none of them: each access makes new
ones, and two are equal if they are the same row of the same view.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np

from .. import _codec
from ..errors import FormatError, ResolveError, program_path
from ..selection import Select, selector
from ..wording import some
from .fields import InPieces, repeated, singular
from .plain import rewrite
from .value import Span, Value, merged, text_at, variables_at

if TYPE_CHECKING:
    from .types import Variable


class ProgramView:
    """One Program as functions, blocks and operations. Without a model, its weight files cannot be read.

    Args:
        buffer, span: held bytes, and (offset, nbytes) of the serialized Program in them.
        prefix: put before names of functions: "" or, in a pipeline, "model0/".
        is_plain: protobuf itself wrote these bytes.

    Attributes:
        graph: the table of functions, blocks and operations.
        is_merged: whether protobuf had to merge pieces of messages first: the graph is of other bytes then.
        version: the Program's version.

    Raises:
        FormatError: malformed. UnsupportedError: messages in pieces that protobuf cannot merge.
    """

    operation_class: type["Operation"]
    binding_class: type["Binding"]

    def __init__(self, buffer: _codec.Buffer, span: Span, prefix: str = "", is_plain: bool = False) -> None:
        graph = _codec.graph_program(buffer, *span, _codec.SCAN_PLAIN if is_plain else 0)
        self.is_merged = graph is None
        if graph is None:
            buffer, span = rewrite(buffer, span)
            graph = _codec.graph_program(buffer, *span, _codec.SCAN_PLAIN)
        if graph is None:
            message = "Program: expected messages in one piece after protobuf merged them, got pieces"
            raise FormatError(message, file=buffer.name)
        self.graph: _codec.Graph = graph
        self.prefix = prefix
        self._buffer = buffer
        self._span = span
        self._definitions: dict[tuple[int, str], int] | None = None

    @property
    def version(self) -> int:
        """Program.version."""
        return self.graph.version

    @property
    def attributes(self) -> dict[str, Value]:
        """The attributes of the Program, such as buildInfo."""
        return self.values(self.held()[1], 4, "program")

    @property
    def doc_string(self) -> str:
        """Program.docString."""
        found = dict(repeated(*(held := self.held()), {3: 2}, "docString"))  # as protobuf: the last one stands
        return text_at(held[0], found[3]) if 3 in found else ""

    @property
    def functions(self) -> dict[str, "Function"]:
        """The functions by their names, prefix included, in Program order."""
        self.require()
        return {one.name: one for one in (Function(self, row) for row in range(self.graph.counts[0]))}

    def operations(self) -> Iterator["Operation"]:
        """Yield every operation of every function in Program order, those of nested blocks too."""
        for function in self.functions.values():
            for block in function.blocks.values():
                yield from block.walk()

    def find(self, select: Select = None, *, type: Select = None) -> list["Operation"]:
        """Return the operations whose name, and whose type, are selected; in Program order."""
        named, typed = selector(select), selector(type)
        return [op for op in self.operations() if typed(op.type) and (select is None or named(op.name))]

    # ------------------------------------------------------------------------------------- for the objects of the view

    def require(self) -> None:
        """Raise if the Program's bytes cannot be read any more."""

    def held(self) -> tuple[_codec.Buffer, Span]:
        """Return the bytes that the graph is of, and the Program's place in them."""
        self.require()
        return self._buffer, self._span

    def release(self) -> None:
        """Release the bytes."""
        self.graph.release()
        self._buffer, self._span = _codec.Buffer(b""), (0, 0)

    def values(self, span: Span, number: int, where: str, only: str | None = None) -> dict[str, Value]:
        """Return the map<string, Value> in a field of the message at `span`; only one key, if that is given."""
        buffer, _ = self.held()
        found = {}
        for _, entry in repeated(buffer, span, {number: 2}, "attribute"):
            try:
                pair = singular(buffer, entry, {1: 2, 2: 2}, "attribute")
                value: tuple[_codec.Buffer, Span] = buffer, pair.get(2, (entry[0], 0))
            except InPieces:  # keys do not merge: the last one stands; values do
                pair = dict(repeated(buffer, entry, {1: 2}, "attribute"))
                value = merged(buffer, [at for _, at in repeated(buffer, entry, {2: 2}, "attribute")])
            key = text_at(buffer, pair[1]) if 1 in pair else ""
            if only is None or key == only:
                found[key] = Value(self, *value, f"{where}.{key}")
        return found

    def constant(self, const: "Operation") -> Value | None:
        """Return the attribute `val` of a const operation, or None."""
        buffer, _ = self.held()
        if (span := self.graph.constant(const.row)) is not None:
            return Value(self, buffer, span, const, ".val")
        return self.values(const.message, 5, const.path, "val").get("val")

    def variables(self, first: int, count: int) -> "tuple[Variable, ...]":
        """Return rows of names with their types."""
        return variables_at(self.held()[0], self.graph.names(first, count))

    def defining(self, function: int, block: int, name: str) -> int | None:
        """Return the row of names that defines `name` as a block sees it, or None."""
        found = self._definitions
        if found is None:
            self.require()
            found = self._definitions = self.graph.definitions()
        while block >= 0:
            row = found.get((block, name))
            if row is not None:
                return row
            operation = self.graph.block(block)[3]
            block = self.operation(operation).block_row if operation >= 0 else -1
        return found.get((-1 - function, name))

    def definer(self, row: int | None) -> "Operation | Block | Function | None":
        """Return the owner of the definition in a row of names; None if the row is -1 or None."""
        if row is None or row < 0:
            return None
        kind, owner = self.graph.owner(row)
        if kind == _codec.GRAPH_OUTPUT:
            return self.operation(owner)
        return Block(self, owner) if kind == _codec.GRAPH_INPUT else Function(self, owner)

    def consumers(self, first: int, count: int) -> tuple["Consumer", ...]:
        """Return the readers of rows of names, in Program order of each."""
        self.require()
        return tuple(
            [
                Consumer(self.operation(owner) if owner >= 0 else Block(self, -1 - owner), key, name)
                for owner, key, name in self.graph.consumers(first, count)
            ]
        )

    def operation(self, row: int) -> "Operation":
        """Return the operation in a row of the table."""
        return cast(Operation, _codec.graph_operation(self.graph, self, row))

    def read(self, value: Value) -> "np.ndarray[Any, Any]":
        """Return the array of a Value that is in a weight file."""
        return cast("np.ndarray[Any, Any]", self.place(value).read())

    def decode(self, operation: "Operation", number: int) -> "np.ndarray[Any, Any]":
        """Return the dense values of an output of a constexpr operation."""
        raise ResolveError(
            f"{operation.type}: expected a model to decode it, got a Program alone", where=operation.path
        )

    def place(self, value: Value) -> Any:
        """Return where a Value is in a weight file, as a place of a model; for milblob's own modules."""
        message = "value in a weight file: expected a model to find the file, got a Program alone"
        raise ResolveError(message, where=value.path)


class Consumer(NamedTuple):
    """One place where a value is read.

    Attributes:
        reader: the operation that reads it, or the block that returns it.
        parameter: the operation's input or attribute; "" for a block.
        name: the name that is read: an output; "" for a value that stands in the operation itself.

    Examples:
        >>> milblob.open("demo.mlpackage")["head_weight"].consumers
        (Consumer(reader=<Operation 'logits': linear>, parameter='weight', name='head_weight'),)
    """

    reader: "Operation | Block"
    parameter: str
    name: str

    @property
    def type(self) -> str:
        """Type of the operation that reads it; "" for a block."""
        return self.reader.type if isinstance(self.reader, Operation) else ""

    @property
    def label(self) -> str:
        """The operation and the parameter, as `refit` takes them after WEIGHT@; the path of a block."""
        return f"{self.reader.label}.{self.parameter}" if isinstance(self.reader, Operation) else self.reader.path


class _Row:
    """A row of a view's table."""

    __slots__ = ("row", "view")

    def __init__(self, view: ProgramView, row: int) -> None:
        self.view = view
        self.row = row

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.view is self.view and other.row == self.row

    def __hash__(self) -> int:
        return hash((id(self.view), self.row))


class Function(_Row):
    """A function of a Program.

    Examples:
        >>> main = milblob.open("demo.mlpackage").functions["main"]
        >>> main.opset, main.inputs[0].name, len(main.block.operations)
        ('CoreML7', 'tokens', 247)
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """As it is listed in `Model.functions`: "main", or "model0/main" in a pipeline."""
        return self.view.prefix + self.view.graph.function(self.row)[0]

    @property
    def opset(self) -> str:
        """The operator set, such as "CoreML8"; also the key of the block that is used."""
        return self.view.graph.function(self.row)[1]

    @property
    def inputs(self) -> "tuple[Variable, ...]":
        """Names and types of the inputs, states among them."""
        self.view.require()
        return self.view.variables(*self.view.graph.function(self.row)[4])

    @property
    def attributes(self) -> dict[str, Value]:
        """Attributes by name."""
        self.view.require()
        return self.view.values(self.view.graph.function(self.row)[2], 4, self.name)

    @property
    def consumers(self) -> tuple["Consumer", ...]:
        """Who reads its inputs, in all of its blocks."""
        return self.view.consumers(*self.view.graph.function(self.row)[4])

    @property
    def blocks(self) -> dict[str, "Block"]:
        """The block specializations by operator set, in Program order."""
        self.view.require()
        return {one.name: one for one in (Block(self.view, row) for row in self.view.graph.function(self.row)[3])}

    @property
    def block(self) -> "Block":
        """The block of the function's own opset.

        Raises:
            FormatError: there is none.
        """
        blocks, opset = self.blocks, self.opset
        if opset not in blocks:
            have = ", ".join(blocks) or "none"
            raise FormatError(f"block specializations: expected one for the opset {opset}, got {have}", where=self.name)
        return blocks[opset]

    def walk(self) -> Iterator["Operation"]:
        """Yield every operation of `block` in Program order, each followed by those of its blocks."""
        return self.block.walk()

    def statements(self) -> list[_codec.Statement]:
        """Return type, outputs and inputs of every operation of `walk` as plain text; see `Block.statements`."""
        return self.block.statements(nested=True)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Function {self.name!r}: {self.opset}>"


class Block(_Row):
    """A list of operations: a block specialization of a function, or a block of an operation such as cond.

    Examples:
        >>> milblob.open("demo.mlpackage").functions["main"].block.operations[-1]
        <Operation 'logits': linear>
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The operator set that it is for; "" for a block of an operation."""
        return self.view.graph.block(self.row)[0]

    @property
    def function(self) -> Function:
        """The function around it."""
        return Function(self.view, self.view.graph.block(self.row)[2])

    @property
    def operation(self) -> "Operation | None":
        """The operation that holds it; None for a block of a function."""
        row = self.view.graph.block(self.row)[3]
        return self.view.operation(row) if row >= 0 else None

    @property
    def parent(self) -> "Block | None":
        """The block around it; None for a block of a function."""
        operation = self.operation
        return None if operation is None else operation.block

    @property
    def number(self) -> int:
        """Which of its operation's, or its function's, blocks it is."""
        return self.view.graph.block(self.row)[4]

    @property
    def inputs(self) -> "tuple[Variable, ...]":
        """Names and types of its own inputs, such as the variables of a loop."""
        self.view.require()
        return self.view.variables(*self.view.graph.block(self.row)[5])

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names that it returns."""
        self.view.require()
        return tuple(name for name, _, _ in self.view.graph.names(*self.view.graph.block(self.row)[6]))

    @property
    def operations(self) -> "Operations":
        """Its operations, those of nested blocks left out."""
        return Operations(self)

    @property
    def attributes(self) -> dict[str, Value]:
        """Attributes by name."""
        self.view.require()
        return self.view.values(self.view.graph.block(self.row)[1], 4, self.path)

    def walk(self) -> Iterator["Operation"]:
        """Yield its operations in Program order, each followed by those of its blocks."""
        self.view.require()
        return _codec.GraphOperations(self.view.graph, self.view, self.row, True)

    def statements(self, *, nested: bool = False) -> list[_codec.Statement]:
        """Return its operations as plain text, without objects of the view: the fastest way to list a Program.

        Args:
            nested: also those of its operations' blocks.

        Returns:
            In Program order, each with `type`, `outputs` (their names) and `inputs` (parameter -> the names that it
            reads; None for a value).
        """
        self.view.require()
        return self.view.graph.statements(self.row, nested)

    def defining(self, name: str) -> "Operation | Block | Function | None":
        """Return the definer of a name that is read in this block: an operation, or a block or function by its inputs.

        A name may be defined in this block or around it, in the nearest block that does. None: it is not defined.
        """
        self.view.require()
        return self.view.definer(self.view.defining(self.view.graph.block(self.row)[2], self.row, name))

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The readers of its inputs."""
        return self.view.consumers(*self.view.graph.block(self.row)[5])

    @property
    def path(self) -> str:
        """Path in the Program, such as ``main.block['CoreML7']``."""
        return self.view.prefix + _path(self)

    def __repr__(self) -> str:
        return f"<Block {self.path}: {len(self.operations)} operations>"


class Operations(Sequence["Operation"]):
    """The operations of one block, in Program order; each is made when it is asked for."""

    __slots__ = ("_block", "_count")

    def __init__(self, block: Block) -> None:
        self._block = block
        self._count = block.view.graph.count(block.row)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator["Operation"]:
        self._block.view.require()
        return _codec.GraphOperations(self._block.view.graph, self._block.view, self._block.row)

    @overload
    def __getitem__(self, index: int) -> "Operation": ...
    @overload
    def __getitem__(self, index: slice) -> list["Operation"]: ...
    def __getitem__(self, index: int | slice) -> "Operation | list[Operation]":
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        at = range(self._count)[index]  # IndexError beyond either end
        view = self._block.view
        return view.operation(view.graph.operation(self._block.row, at))


class Operation(_codec.GraphOperation):
    """One operation.

    Attributes:
        type: such as "conv" or "const".
        name: of its first output; "" if it has none.
        output_names: of all outputs.
        inputs: parameter -> its bindings: names, or values that stand in the operation itself.
        index: its number in its block.

    Examples:
        >>> [logits] = milblob.open("demo.mlpackage").find("logits")
        >>> print(logits.type, list(logits.inputs))
        linear ['bias', 'weight', 'x']
    """

    __slots__ = ()

    view: ProgramView
    inputs: dict[str, tuple["Binding", ...]]

    def __getitem__(self, parameter: str) -> "Binding":
        """Return what an input is bound to: `operation["weight"].array()`.

        Raises:
            KeyError: it has no such input. ValueError: the input has several bindings, or none: use `inputs`.
        """
        found = self.inputs.get(parameter)
        if found is None:
            raise KeyError(f"input of {self.label}: expected one of {some(self.inputs) or 'none'}, got {parameter!r}")
        if len(found) != 1:
            raise ValueError(f"input {parameter} of {self.label}: expected one binding, got {len(found)} (use inputs)")
        return found[0]

    @property
    def label(self) -> str:
        """Its name in messages: its first output, or its type if it has none."""
        return self.name if self.output_rows[1] else self.type

    @property
    def outputs(self) -> "tuple[Variable, ...]":
        """Names and types of the outputs."""
        return self.view.variables(*self.output_rows)

    @property
    def attributes(self) -> dict[str, Value]:
        """Attributes by name: of a const, `val` is the constant."""
        return self.view.values(self.message, 5, self.path)

    @property
    def block(self) -> Block:
        """The block that it stands in."""
        return Block(self.view, self.block_row)

    @property
    def function(self) -> Function:
        """The function that it belongs to."""
        return self.block.function

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Its own blocks, such as the two of a cond."""
        return tuple(Block(self.view, row) for row in self.block_rows)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The readers of its outputs, by output and then in Program order; blocks that return them are among them."""
        return self.view.consumers(*self.output_rows)

    @property
    def path(self) -> str:
        """Path in the Program, such as ``main.block['CoreML7'].op[12] 'conv_3'``."""
        return str(self.view.prefix + _path(self.block, self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and other.view is self.view and other.row == self.row

    def __hash__(self) -> int:
        return hash((id(self.view), self.row))

    def __repr__(self) -> str:
        return f"<Operation {self.name!r}: {self.type}>"


class Binding(_codec.GraphBinding):
    """The binding of an input of an operation: a name, or a value written there.

    Attributes:
        name: the name that is read; None for a value.

    Examples:
        >>> [logits] = milblob.open("demo.mlpackage").find("logits")
        >>> logits["weight"].name, logits["weight"].array().shape
        ('head_weight', (96, 48))
    """

    __slots__ = ()

    view: ProgramView

    @property
    def value(self) -> Value | None:
        """The value; None for a name."""
        return Value(self.view, self.view.held()[0], self.span, self) if self.is_value else None

    @property
    def constant(self) -> Value | None:
        """The value, or that of the const operation whose name is read; None for a computed one."""
        if self.is_value:
            return self.value
        found = self.definition
        return self.view.constant(found) if isinstance(found, Operation) and found.type == "const" else None

    def array(self) -> "np.ndarray[Any, Any]":
        """Return the values of a constant, as `Tensor.read` would: those of a compressed weight are decoded.

        Raises:
            ValueError: it is computed when the model runs, or an input of the function. As `Tensor.read`.
        """
        constant = self.constant
        if constant is not None:
            return constant.array()
        found = self.definition
        if isinstance(found, Operation) and found.type.startswith("constexpr_"):
            return self.view.decode(found, self.view.graph.definer(self.row) - found.output_rows[0])
        words = found.type if isinstance(found, Operation) else "an input" if found is not None else "nothing"
        raise ValueError(f"{self.path}: expected a constant, got {words}")

    @property
    def definition(self) -> "Operation | Block | Function | None":
        """The definer of the name: an operation, or a block or function by its inputs; None for a value too."""
        if self.is_value:
            return None
        self.view.require()
        return self.view.definer(self.view.graph.definer(self.row))

    @property
    def operation(self) -> Operation:
        """The operation that reads it."""
        return self.view.operation(self.view.graph.reader(self.row)[0])

    @property
    def path(self) -> str:
        """Path in the Program: that of the operation, and the parameter."""
        return f"{self.operation.path}.{self.view.graph.reader(self.row)[1]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and other.view is self.view and other.row == self.row

    def __hash__(self) -> int:
        return hash((id(self.view), self.row))

    def __repr__(self) -> str:
        return f"<Binding {'of a value' if self.is_value else repr(self.name)}>"


ProgramView.operation_class = Operation
ProgramView.binding_class = Binding


def _path(block: Block, operation: Operation | None = None) -> str:
    """The path of a block or operation, without the prefix."""
    nesting = []
    op = None if operation is None else (operation.index, operation.label)
    while (outer := block.operation) is not None:
        nesting.append((outer.index, outer.label, block.number))
        block = outer.block
    graph = block.view.graph
    return program_path(graph.function(graph.block(block.row)[2])[0], block.name, nesting[::-1], op)
