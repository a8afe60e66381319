"""The container that converters add nodes to, and that becomes the ONNX graph."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import onnx_ir as ir

from ..errors import ProgramError, UnsupportedError
from ..hashing import hash_bytes
from ..program.types import TensorType
from ..values.tensorvalue import MAX_RANK
from ..wording import some
from .topology import Operator, Scope, Topology, Variable
from .types import NUMPY, onnx_dtype, onnx_shape, tensor_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model.tensor import Tensor
    from .weights import Weights

Input = ir.Value | Variable | None

# The element types of outputs that are not those of the first input.
_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
_RESULTS = dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "NonMaxSuppression"), _INT64)
_RESULTS |= dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "Not"), _BOOL)
_PLAIN_NBYTES = 64  # larger constants are compared by their hashes
_NODE_NBYTES = 4096  # that a node with its output takes: in Python, in messages, and in the checker of ONNX
_INTEGERS = frozenset(kind for kind in NUMPY if kind.name.startswith(("INT", "UINT")))
_WHOLE = (int, np.integer, np.bool_)
_LIKE = {"Where": 1, "DequantizeLinear": 1}  # which input has the element type of the result


class ModelComponentContainer:
    """The container that converters add nodes to.

    Attributes:
        opset: of ONNX.
        topology: that is converted.
        graph_nodes: nodes of the graph, or of the subgraph that is being made.
        initializers: values of constants, in the order of their first use.
        homes: initializer -> the weight of the model whose values it holds, as the model calls it.
        purposes: initializer that is not a weight of the model -> the operation that it was made for.
        states: state -> its present value, in Program order.
        classes: labels of a classifier.
        zipmap: whether its probabilities become a dictionary.
        weights: where constants are.
        maps: outputs that are lists of dictionaries -> the element type of the keys.
        gathered: Variables that are read only by rows -> the plan for those that are computed by rows.
        products: Variables -> the plan, of weights that onnxruntime multiplies by as they are stored.
        convert_all: runs the converters of operators.

    Examples:
        >>> def convert_gelu(scope, operator, container):  # by its sigmoid approximation
        ...     x = container.value(operator.input("x"))
        ...     gate = container.node("Sigmoid", container.node("Mul", x, container.scalar(1.702, x)))
        ...     container.bind(operator.output, container.node("Mul", x, gate))
        >>> model = milblob.onnx.convert("demo.mlpackage", converters={"gelu": convert_gelu})
        >>> sum(node.op_type == "Sigmoid" for node in model.graph)
        4
    """

    def __init__(
        self,
        topology: Topology,
        opset: int,
        weights: "Weights",
        convert_all: Callable[[Sequence[Operator]], None] = lambda operators: None,
    ) -> None:
        self.convert_all = convert_all
        self.topology = topology
        self.opset = opset
        self.graph_nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.homes: dict[str, str] = {}
        self.purposes: dict[str, str] = {}
        self.purpose = "the graph"
        self.states: dict[Variable, ir.Value] = {}
        self.classes: list[Any] = []
        self.zipmap: bool = False
        self.maps: dict[str, ir.DataType] = {}
        self.gathered: dict[Variable, Any] = {}
        self.products: dict[Variable, Any] = {}
        self.weights = weights
        self._values: dict[Variable, ir.Value] = {}
        self._dtypes: dict[ir.Value, ir.DataType] = {}
        self._shared: dict[Any, ir.Value] = {}
        self._fresh: dict[ir.Value, list[ir.Node]] = {}
        self._returned = frozenset(topology.scope.outputs)

    # ------------------------------------------------------------------------------------------------------- constants

    def constant(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """Return an initializer; equal ones are one. A Python number needs a `dtype`.

        Computed values come from `filled` or `numbers`, which check the size before they make them.
        """
        array = np.asarray(array, None if dtype is None else NUMPY.get(dtype))
        is_text = array.dtype.kind == "O"
        if is_text:
            self.weights.spend_values(sum(map(len, map(str, array.reshape(-1)))), 1)
            kind, content = ir.DataType.STRING, hash_bytes("\0".join(map(str, array.reshape(-1))).encode())
        else:
            kind = dtype or ir.DataType.from_numpy(array.dtype)
            content = array.tobytes() if array.nbytes <= _PLAIN_NBYTES else hash_bytes(array)
        key = (kind, array.shape, content)
        found = self._shared.get(key)
        if found is None:
            tensor = _texts(array) if is_text else self.weights.held(array, kind)
            found = self._shared[key] = self.add_initializer("constant", tensor)
        return found

    def filled(self, shape: Sequence[int], number: float, dtype: Any) -> "np.ndarray[Any, Any]":
        """Return an array of one value, in a NumPy dtype.

        Raises:
            LimitError: more than the budget of the model has left.
        """
        self.weights.spend(prod(max(size, 1) for size in shape) * np.dtype(dtype).itemsize)
        return np.full(list(shape), number, dtype)

    def numbers(self, count: int, step: int = 1, dtype: Any = np.int64) -> "np.ndarray[Any, Any]":
        """Return `count` numbers from 0 on; as `filled`."""
        self.weights.spend(count * np.dtype(dtype).itemsize)
        return np.arange(0, count * step, step, dtype)

    def ints(self, values: Iterable[int]) -> ir.Value:
        """Return a 1-dimensional int64 initializer: axes, sizes.

        Raises:
            UnsupportedError: an integer computed from values of the Program has more than 64 bits.
        """
        found = list(values)
        large = [value for value in found if not -(1 << 63) <= value < 1 << 63]
        if large:
            raise UnsupportedError(f"sizes: expected integers of 64 bits, got {large[0]}")
        return self.constant(np.array(found, np.int64))

    def full(self, shape: Sequence[int], number: float, dtype: ir.DataType) -> ir.Value:
        """Return an initializer of one value; as `filled`."""
        return self.constant(self.filled(shape, number, dtype.numpy()), dtype)

    def scalar(self, number: Any, like: "Input | ir.DataType") -> ir.Value:
        """Return an initializer of rank 0 with the element type of a value."""
        dtype = like if isinstance(like, ir.DataType) else self.dtype(like)
        if dtype not in NUMPY:
            return self.constant(np.array(number, np.float32).astype(dtype.numpy()), dtype)
        with np.errstate(over="ignore"):
            return self.constant(np.array(number).astype(NUMPY[dtype]), dtype)

    def add_initializer(self, name: str, tensor: Any) -> ir.Value:
        """Add a constant under a name of its own."""
        return self._add(self.topology.unique_name(name), tensor)

    def _add(self, name: str, tensor: Any) -> ir.Value:
        self.weights.spend(_NODE_NBYTES)
        self.weights.spend_values(len(name) + len(self.purpose), 1)
        value = ir.Value(name=name, const_value=tensor)
        tensor.name = name
        self.initializers[name] = value
        self.purposes[name] = self.purpose
        self._dtypes[value] = tensor.dtype
        return value

    # ---------------------------------------------------------------------------------------------------------- values

    def value(self, variable: Variable) -> ir.Value:
        """Return the value of a Variable: an initializer for a constant, and for a weight that is decoded.

        Raises:
            UnsupportedError: no value yet: a list, or a state that is not read.
        """
        found = self._values.get(variable)
        if found is not None:
            return found
        if not variable.is_known:
            raise UnsupportedError(f"value: expected one that a converter made, got none for {variable.name}")
        home = self.weights.home(variable, self.topology.function.name)
        small = self._small(variable) if home is None else None
        if small is not None:
            found = self.constant(*small)
        else:
            tensor, is_shared = self.weights.tensor(variable)
            if is_shared and home is None:
                found = self.constant(tensor.numpy() if tensor.dtype != ir.DataType.STRING else variable.read())
            else:
                found = self._named(variable, tensor, home)
        self._values[variable] = found
        return found

    def _small(self, variable: Variable) -> "tuple[np.ndarray[Any, Any], ir.DataType] | None":
        """Return the values of a small constant of numbers in the Program, with their element type; None for others."""
        value, declared = variable.constant, variable.type
        if value is None or value.kind != "tensor" or not isinstance(declared, TensorType):
            return None
        dtype, array = onnx_dtype(declared.dtype), variable.read()
        return (array, dtype) if dtype != ir.DataType.STRING and self.weights.is_small(array.nbytes) else None

    def _named(self, variable: Variable, tensor: Any, home: str | None) -> ir.Value:
        """Add a constant under the name of its Variable; if it is an output too, the output gets the name.

        Args:
            variable: the constant.
            tensor: its values.
            home: the weight of the model that has them, for the metadata; None: not a weight.
        """
        if variable.name and variable not in self._returned:
            made = self._add(variable.name, tensor)
        else:
            made = self.add_initializer(f"{variable.name}.value" if variable.name else home or "constant", tensor)
        if home is not None and made.name is not None:
            self.homes[made.name] = home
        return made

    def input(self, name: str, variable: Variable) -> ir.Value:
        """Add an input of the graph: return its value, with the type of the Variable."""
        declared = tensor_type(variable.type)
        dtype = onnx_dtype(declared.dtype)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=onnx_shape(declared, name))
        self._values[variable] = value
        self._dtypes[value] = dtype
        return value

    def dtype(self, value: Input) -> ir.DataType:
        """Return the element type of a value."""
        if isinstance(value, Variable):
            if value not in self._values:
                return onnx_dtype(tensor_type(value.type).dtype)
            value = self._values[value]
        if value is None:
            raise UnsupportedError("element type: expected a value, got none")
        return self._dtypes[value]

    def bind(self, variable: Variable, value: Input, *, convert: bool = False) -> ir.Value:
        """Set the value that is the output of an Operator: it gets the name of the Variable.

        Args:
            variable: the output.
            value: the new value.
            convert: it was computed in another element type on purpose, and is cast to the declared one. Without it,
                only integers are cast to other integers: ONNX counts in int64.

        Raises:
            ProgramError: the Program declares another type.
        """
        declared = onnx_dtype(tensor_type(variable.type).dtype)
        got = self.dtype(value)
        if got != declared and not convert and not (got in _INTEGERS and declared in _INTEGERS):
            message = (
                f"type of {variable.name}: expected {variable.type} as the Program declares, got {got.name.lower()}"
            )
            raise ProgramError(message)
        made = self.cast(self._as_value(value), declared)
        nodes = self._fresh.pop(made, None)
        if nodes is not self.graph_nodes:  # an input, a constant, or another output
            made = self.node("Identity", made)
            self._fresh.pop(made)
        # A block that is converted twice, such as the condition of a loop, makes its values twice.
        self.weights.spend_values(len(variable.name), 1)
        made.name = variable.name if variable not in self._values else self.topology.unique_name(variable.name)
        self._values[variable] = made
        return made

    def stored(self, part: "Tensor", dtype: ir.DataType, shape: tuple[int, ...]) -> ir.Value:
        """Return an initializer with the stored bytes of a part of a compressed weight.

        Parts that are stored once have one each, as dense weights do: each is changed, and goes home, by itself.

        Args:
            part: of a model.
            dtype, shape: the view of the bytes. An element type of another size than the part's own is UINT8.
        """
        key = (part.name, dtype, shape)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self.add_initializer(part.name, self.weights.stored(part, dtype, shape))
            self.homes[str(found.name)] = part.name
        return found

    def made(self, name: str, array: "np.ndarray[Any, Any]", why: str) -> ir.Value:
        """Return an initializer with values made of parts of a compressed weight; large ones are noted as copies."""
        if self.weights.is_small(array.nbytes):
            return self.constant(array, ir.DataType.from_numpy(array.dtype))
        return self.held_weight(name, array, why)

    # ----------------------------------------------------------------------------------------------------------- nodes

    @overload
    def node(self, kind: str, *inputs: Input, outputs: int, **attributes: Any) -> Any: ...
    @overload
    def node(
        self, kind: str, *inputs: Input, dtype: ir.DataType | None = None, domain: str = "", **attributes: Any
    ) -> ir.Value: ...
    def node(
        self,
        kind: str,
        *inputs: Input,
        outputs: int = 1,
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Add a node.

        Args:
            kind: the ONNX operator.
            inputs: values or Variables; None for one that is left out.
            outputs: how many it has.
            dtype: element type of the outputs; default: that of the first input, or the fixed one of the operator.
            domain: of the operator.
            attributes: Python numbers, texts, lists of them, tensors or graphs; None for one that is left out.

        Returns:
            The output, or a tuple of several.

        Raises:
            LimitError: more nodes than the budget of the model has left: blocks in blocks may be converted many times.
        """
        self.weights.spend(_NODE_NBYTES * outputs + sum(map(_nbytes, attributes.values())))
        values = [None if value is None else self._as_value(value) for value in inputs]
        while values and values[-1] is None:
            values.pop()
        made = ir.Node(
            domain,
            kind,
            values,
            [_attribute(k, v) for k, v in attributes.items() if v is not None],
            num_outputs=outputs,
        )
        self.graph_nodes.append(made)
        if dtype is None:
            dtype = _RESULTS.get(kind)
        if dtype is None and values:
            first = values[_LIKE.get(kind, 0)]
            dtype = None if first is None else self._dtypes[first]
        found = made.outputs
        for output in found:
            if dtype is not None:
                self._dtypes[output] = dtype
            self._fresh[output] = self.graph_nodes
        return found[0] if outputs == 1 else found

    def set_dtype(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Set the element type of a node's output, where it is not the common one."""
        self._dtypes[value] = dtype
        return value

    def cast(self, value: Input, dtype: ir.DataType) -> ir.Value:
        """Return a value as another element type."""
        made = self._as_value(value)
        if self._dtypes[made] == dtype:
            return made
        return self.node("Cast", made, to=dtype, dtype=dtype)

    def _as_value(self, value: Input) -> ir.Value:
        if isinstance(value, Variable):
            return self.value(value)
        if value is None:
            raise UnsupportedError("value: expected one, got none")
        return value

    @contextmanager
    def subgraph(self) -> "Iterator[list[ir.Node]]":
        """Collect the nodes of a subgraph; constants go to the graph around all."""
        outer, self.graph_nodes = self.graph_nodes, []
        try:
            yield self.graph_nodes
        finally:
            self.graph_nodes = outer

    def graph(
        self, name: str, inputs: Sequence[ir.Value], outputs: Sequence[Input], types: Sequence[Variable]
    ) -> ir.Graph:
        """Return the subgraph of the nodes that are collected now.

        Args:
            name: of the graph.
            inputs: made by `block_input`.
            outputs: its results; a value from outside passes through an Identity.
            types: Variables with the element types of the outputs.
        """
        returned: list[ir.Value] = []
        for output, variable in zip(outputs, types, strict=True):
            value = self._as_value(output)
            node = value.producer()
            if (
                node is None
                or not any(node is one for one in self.graph_nodes)
                or any(value is one for one in returned)
            ):
                value = self.node("Identity", value)
            value.type = ir.TensorType(self._dtypes[value])
            if variable.shape is not None:
                value.shape = ir.Shape([None] * len(variable.shape))
            returned.append(value)
        self.name_all(self.graph_nodes)
        return ir.Graph(inputs, returned, nodes=list(self.graph_nodes), name=name)

    def block_input(self, name: str, dtype: ir.DataType, rank: int | None) -> ir.Value:
        """Return an input of a subgraph, whose sizes may differ from one pass to the next."""
        self.weights.spend_values(len(name), 1)
        shape = None if rank is None else ir.Shape([None] * rank)
        value = ir.Value(name=self.topology.unique_name(name), type=ir.TensorType(dtype), shape=shape)
        self._dtypes[value] = dtype
        return value

    def let(self, variable: Variable, value: ir.Value) -> None:
        """Bind a Variable, an input of a block, to a value from now on."""
        self._values[variable] = value

    def convert_block(self, scope: Scope) -> list[ir.Value]:
        """Convert the operators of a block; return its results."""
        self.convert_all(scope.operators)
        return [self.value(variable) for variable in scope.outputs]

    def held_weight(self, name: str, array: "np.ndarray[Any, Any]", why: str) -> ir.Value:
        """Return an initializer with values that are made of weights, and note that they are copies."""
        self.weights.note(name, why, array.nbytes)
        dtype = ir.DataType.from_numpy(array.dtype)
        return self.add_initializer(name, self.weights.held(array, dtype))

    # ------------------------------------------------------------------------------------------ what many converters do

    def shape(self, value: Input) -> ir.Value:
        """Return the sizes of a value, int64."""
        return self.node("Shape", value)

    def dimensions(self, variable: Variable, least: int = 0, most: int = MAX_RANK) -> tuple[int | None, ...]:
        """Return the declared shape, whose rank must be known.

        Args:
            variable: a tensor.
            least, most: how many dimensions it may have.

        Raises:
            UnsupportedError: the rank is open, or another one.
        """
        shape = variable.shape
        if shape is None:
            raise UnsupportedError(f"{variable.name}: expected a tensor of known rank, got {variable.type}")
        if not least <= len(shape) <= most:
            message = f"{least} to {most}" if least < most else f"{least}"
            raise UnsupportedError(f"{variable.name}: expected {message} dimensions, got {variable.type}")
        return shape

    def rank(self, variable: Variable, least: int = 0, most: int = MAX_RANK) -> int:
        """Return the declared rank; as `dimensions`."""
        return len(self.dimensions(variable, least, most))

    def axis(self, operator: Operator, parameter: str, rank: int, default: int | None = None) -> int:
        """Return a constant axis, counted from the first.

        Raises:
            UnsupportedError: computed, or outside of the rank.
        """
        given = operator.number(parameter, default) if default is not None else operator.number(parameter)
        if not -rank <= given < rank:
            operator.refuse(f"an axis of {rank} dimensions", given)
        return int(given) % rank

    def axes(self, operator: Operator, parameter: str, rank: int) -> list[int]:
        """Return constant axes, counted from the first; all of them where the parameter is left out.

        Raises:
            UnsupportedError: computed, outside of the rank, or one of them twice.
        """
        given = operator.integers(parameter, list(range(rank)))
        found = [axis % rank for axis in given if -rank <= axis < rank]
        if len(set(found)) != len(given):
            operator.refuse(f"different axes of {rank} dimensions", some(map(str, given)))
        return found

    def finish(self) -> None:
        """Give names to values that have none yet."""
        self.name_all(self.graph_nodes)

    def name_all(self, nodes: Sequence[ir.Node]) -> None:
        """Give names to those outputs of nodes that have none."""
        for node in nodes:
            for output in node.outputs:
                if output.name is None:
                    output.name = self.topology.unique_name(f"_{len(self._dtypes)}")


def _texts(array: Any) -> ir.StringTensor:
    return ir.StringTensor([str(v).encode() for v in array.reshape(-1)], shape=ir.Shape(array.shape))


def _nbytes(value: Any) -> int:
    """The memory of an attribute that may be long."""
    return sum(8 + len(item) if isinstance(item, str) else 8 for item in value) if isinstance(value, list) else 0


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, _WHOLE):  # bool and ir.DataType among them
        return ir.AttrInt64(name, int(value))
    if isinstance(value, float | np.floating):
        return ir.AttrFloat32(name, float(value))
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, ir.Graph):
        return ir.AttrGraph(name, value)
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], str):
            return ir.AttrStrings(name, list(value))
        if value and isinstance(value[0], float):
            return ir.AttrFloat32s(name, value)
        return ir.AttrInt64s(name, value)
    return ir.AttrTensor(name, value)
