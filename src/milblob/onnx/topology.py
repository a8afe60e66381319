"""The parsed form of a function: a Topology of Scopes, Operators and Variables, to look at and to convert.

A Scope is a block, an Operator an operation, a Variable a value. The names of Variables are unique in the whole
Topology, as ONNX wants them: blocks in MIL may give a name again that a block around them has.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import UnsupportedError
from ..program.types import TensorType, ValueType
from ..program.value import Value
from ..program.view import Function, Operation
from ..wording import escape

if TYPE_CHECKING:
    from ..model.tensor import Tensor

_MISSING = object()
_MAX_NCHARS = 100  # of a function's name in those of its blocks


class Variable:
    """A value.

    Attributes:
        raw_name: its name in the Program; "" for a value that stands in an operation.
        name: its name in the ONNX graph, unique in its Topology.
        type: the declared type; shape calculators may replace it.
        constant: the Value of a constant; None for computed values and for inputs.
        producer: the Operator whose output it is; None for inputs and constants.
        weight: the compressed weight that a constexpr operation computes; None for others, and before the conversion.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     topology = milblob.onnx.parse_mil(model.functions["main"])
        >>> logits = topology.scope.find("logits")
        >>> logits.shape, logits.is_known, logits.producer.type
        ((1, 16, 96), False, 'linear')
    """

    __slots__ = ("_array", "constant", "name", "producer", "raw_name", "type", "weight")

    def __init__(self, raw_name: str, name: str, type: ValueType | None, constant: Value | None = None) -> None:
        self.raw_name = raw_name
        self.name = name
        self.type = type
        self.constant = constant
        self.producer: Operator | None = None
        self.weight: Tensor | None = None
        self._array: Any = None

    @property
    def is_known(self) -> bool:
        """Whether the values are known when the model is converted: a constant, or a compressed weight."""
        return self.constant is not None or self.weight is not None

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """The dimensions, None for an open one; None if the rank is open, or for values that are not tensors."""
        declared = self.type
        if not isinstance(declared, TensorType) or declared.rank < 0 or declared.variadic:
            return None
        return declared.shape

    def read(self) -> Any:
        """Return the value of a constant: an array (0-dimensional for rank 0), or a list or tuple. Read once.

        That of a compressed weight is decoded.

        Raises:
            ValueError: no constant. As `Value.read`.
        """
        if self._array is None:
            value = self.constant
            if self.weight is not None:
                self._array = np.asarray(self.weight.read())
            elif value is None:
                raise ValueError(escape(f"{self.name}: expected a constant, got a value that is computed"))
            else:
                self._array = value.array() if value.kind in ("tensor", "blob") else value.read()
        return self._array

    def __repr__(self) -> str:
        return f"<Variable {self.name}: {self.type}{' constant' if self.constant is not None else ''}>"


class Operator:
    """An operation.

    Attributes:
        type: such as "conv".
        scope: the Scope that it stands in.
        inputs: parameter -> Variables. Parameters that are left out are not there.
        outputs: Variables.
        scopes: those of its own blocks.
        operation: of the Program.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     topology = milblob.onnx.parse_mil(model.functions["main"])
        >>> operator = list(topology.topological_operator_iterator())[-1]
        >>> operator.type, operator.name, operator.input("weight").name
        ('linear', 'logits', 'head_weight')
    """

    __slots__ = ("inputs", "operation", "outputs", "scope", "scopes", "type")

    def __init__(self, type: str, scope: "Scope", operation: Operation) -> None:
        self.type = type
        self.scope = scope
        self.operation = operation
        self.inputs: dict[str, list[Variable]] = {}
        self.outputs: list[Variable] = []
        self.scopes: list[Scope] = []

    @property
    def name(self) -> str:
        """The name of its first output, or its type if it has none."""
        return self.outputs[0].name if self.outputs else self.type

    @property
    def output(self) -> Variable:
        """Its first output.

        Raises:
            UnsupportedError: there is none.
        """
        if not self.outputs:
            self.refuse("an output", "none")
        return self.outputs[0]

    @property
    def path(self) -> str:
        """Where the operation is in the Program."""
        return self.operation.path

    def refuse(self, expected: str, got: object) -> NoReturn:
        """Raise UnsupportedError about the operation: what a converter expected, and what it got."""
        raise UnsupportedError(f"{self.type}: expected {expected}, got {got}", where=self.path)

    def has(self, parameter: str) -> bool:
        """Whether a parameter is given."""
        return bool(self.inputs.get(parameter))

    def input(self, parameter: str) -> Variable:
        """Return the Variable of a parameter.

        Raises:
            UnsupportedError: there is none.
        """
        bound = self.inputs.get(parameter)
        if not bound:
            self.refuse(f"the parameter {parameter}", "none")
        return bound[0]

    def is_constant(self, parameter: str) -> bool:
        """Whether a parameter is left out or all that it is bound to are constants."""
        return all(variable.is_known for variable in self.inputs.get(parameter, ()))

    def constant(self, parameter: str, default: Any = _MISSING) -> Any:
        """Return the value of a parameter that must be a constant: an array, or a list.

        Args:
            parameter: its name.
            default: returned if the parameter is left out.

        Raises:
            UnsupportedError: it is computed, or missing without a default.
        """
        if default is not _MISSING and not self.has(parameter):
            return default
        variable = self.input(parameter)
        if not variable.is_known:
            self.refuse(f"a constant {parameter}", f"the computed {variable.raw_name}")
        return variable.read()

    def number(self, parameter: str, default: Any = _MISSING) -> Any:
        """Return a constant parameter as a Python number, bool or text; as `constant`."""
        value = self.constant(parameter, default)
        if isinstance(value, np.ndarray):
            if value.size != 1:
                self.refuse(f"one {parameter}", value.size)
            return value.item()
        return value

    def integer(self, parameter: str, default: Any = _MISSING, *, least: int) -> int:
        """Return a constant parameter as an int that is not smaller than `least`; as `integers`."""
        found = int(self.number(parameter, default))
        if found < least:
            self.refuse(f"{least} or more for {parameter}", found)
        return found

    def text(self, parameter: str, allowed: Iterable[str], default: Any = _MISSING) -> str:
        """Return a constant parameter that is one of several texts; as `constant`.

        Raises:
            UnsupportedError: another text.
        """
        given = self.number(parameter, default)
        if given not in allowed:
            self.refuse(f"one of {', '.join(allowed)} for {parameter}", f"{given!r:.40}")
        return str(given)

    def integers(
        self, parameter: str, default: Any = _MISSING, *, count: int | None = None, least: int | None = None
    ) -> Any:
        """Return a constant parameter as a list of int, one that is bound to several scalars too; as `constant`.

        Args:
            parameter: its name.
            default: returned if the parameter is left out.
            count: how many integers there must be; None for any number.
            least: the smallest that each of them may be.

        Raises:
            UnsupportedError: another number of integers, or a smaller one.
        """
        bound = self.inputs.get(parameter, ())
        if len(bound) > 1 and self.is_constant(parameter):
            found = [int(element) for variable in bound for element in np.asarray(variable.read()).reshape(-1)]
        else:
            value = self.constant(parameter, default)
            found = [int(v) for v in value.reshape(-1).tolist()] if isinstance(value, np.ndarray) else value
        if count is not None and len(found) != count:
            self.refuse(f"{count} numbers in {parameter}", len(found))
        if least is not None and min(found, default=least) < least:
            self.refuse(f"{least} or more for {parameter}", min(found))
        return found

    def __repr__(self) -> str:
        return f"<Operator {self.name}: {self.type}>"


class Scope:
    """A block: its Variables, and its Operators in Program order.

    Attributes:
        name: unique in its Topology.
        parent: the Scope around it; None for that of the function.
        inputs, outputs: Variables.
        operators: in Program order.
        variables: the Variables that the block itself defines, by the names in the Program.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     scope = milblob.onnx.parse_mil(model.functions["main"]).scope
        >>> [variable.name for variable in scope.inputs], scope.find("logits").shape
        (['tokens'], (1, 16, 96))
    """

    __slots__ = ("inputs", "name", "operators", "outputs", "parent", "variables")

    def __init__(self, name: str, parent: "Scope | None" = None) -> None:
        self.name = name
        self.parent = parent
        self.inputs: list[Variable] = []
        self.outputs: list[Variable] = []
        self.operators: list[Operator] = []
        self.variables: dict[str, Variable] = {}

    def find(self, raw_name: str) -> Variable | None:
        """Return the Variable that a name means in this block, or None."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.variables.get(raw_name)
            if found is not None:
                return found
            scope = scope.parent
        return None

    def __repr__(self) -> str:
        return f"<Scope {self.name}: {len(self.operators)} operators>"


class Topology:
    """A function as a graph of Operators and Variables.

    Attributes:
        function: of the Program.
        scope: that of the function's block.
        scopes: all of them, the function's first.
        states: the inputs of the function that are states, in order.

    Examples:
        >>> model = milblob.open("demo.mlpackage")
        >>> topology = milblob.onnx.parse_mil(model.functions["main"])
        >>> topology.opset, len(topology.scopes), topology.unique_name("logits")
        ('CoreML7', 1, 'logits.1')
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.scope: Scope = Scope(function.name)
        self.scopes: list[Scope] = [self.scope]
        self.states: list[Variable] = []
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    @property
    def opset(self) -> str:
        """The operator set of MIL, such as "CoreML7"."""
        return self.function.opset

    def unique_name(self, wanted: str) -> str:
        """Return a name that no Variable has: the wanted one, or it with a number appended."""
        name = wanted
        while name in self._taken or not name:
            number = self._next.get(wanted, 0) + 1
            self._next[wanted] = number
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name

    def new_scope(self, parent: Scope) -> Scope:
        """Add the Scope of a block inside another."""
        scope = Scope(f"{self.scope.name[:_MAX_NCHARS]}.{len(self.scopes)}", parent)
        self.scopes.append(scope)
        return scope

    @cached_property
    def stored(self) -> dict[str, Value]:
        """The first constant in each weight file, by the name that the Program has for the file."""
        found: dict[str, Value] = {}
        for scope in self.scopes:
            for variable in scope.variables.values():
                value = variable.constant
                if value is not None and (blob := value.blob) is not None:
                    found.setdefault(blob.file_name, value)
        return found

    def topological_operator_iterator(self, select: Callable[[Operator], bool] = lambda _: True) -> Iterator[Operator]:
        """Yield every Operator in an order in which values are made before they are read: Program order.

        Those of an Operator's own blocks follow it.
        """
        pending = [iter(self.scope.operators)]
        while pending:
            operator = next(pending[-1], None)
            if operator is None:
                pending.pop()
                continue
            if select(operator):
                yield operator
            if operator.scopes:
                pending.extend(iter(scope.operators) for scope in reversed(operator.scopes))

    def __str__(self) -> str:
        lines = [f"{self.function.name} ({self.opset})"]
        lines += [f"  input {v.name}: {v.type}" for v in self.scope.inputs]
        for operator in self.topological_operator_iterator():
            inputs = ", ".join(
                f"{key}={', '.join(v.name or 'value' for v in bound)}" for key, bound in operator.inputs.items()
            )
            lines.append(f"  {', '.join(v.name for v in operator.outputs)} = {operator.type}({inputs})")
        lines += [f"  output {v.name}: {v.type}" for v in self.scope.outputs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Topology of {self.function.name}: {sum(len(s.operators) for s in self.scopes)} operators>"
