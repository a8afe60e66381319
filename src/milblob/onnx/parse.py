"""From a function of a Program to a Topology."""

from itertools import islice

from ..errors import ProgramError
from ..program.types import StateType
from ..program.value import Value, variables_at
from ..program.view import Block, Function, Operation
from .topology import Operator, Scope, Topology, Variable

_MAX_NESTING = 100
_Owner = Function | Block | Operation


def parse_mil(function: Function) -> Topology:
    """Return the Topology of a function.

    Constants are Variables, and no Operators: those of `const` operations and those that stand in an operation. Of
    operations that keep their parts in attributes (iOS16's constexpr ones), these are inputs as well.

    Raises:
        ProgramError: a name is read before it is defined, or is defined twice in a block.
        FormatError: malformed.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     topology = milblob.onnx.parse_mil(model.functions["main"])
        >>> [variable.name for variable in topology.scope.inputs]
        ['tokens']
    """
    topology = Topology(function)
    block = function.block
    scope = topology.scope
    for name, type in function.inputs:
        variable = _define(topology, scope, name, Variable(name, name, type), function)
        scope.inputs.append(variable)
        if isinstance(type, StateType):
            topology.states.append(variable)
    for name in block.outputs:  # these keep their names; others of the same name are renamed
        if name not in scope.variables:
            topology.unique_name(name)
    _fill(topology, scope, block, set(block.outputs) - set(scope.variables), 1)
    return topology


def _define(
    topology: Topology, scope: Scope, raw_name: str, variable: Variable, owner: _Owner, kept: bool = False
) -> Variable:
    if raw_name in scope.variables:
        message = f"name: expected one that is defined once, got {raw_name!r:.120} again"
        where = owner.name if isinstance(owner, Function) else owner.path
        raise ProgramError(message, where=where, code="MIL002")
    variable.name = raw_name if kept else topology.unique_name(raw_name)
    scope.variables[raw_name] = variable
    return variable


def _fill(topology: Topology, scope: Scope, block: Block, kept: set[str], depth: int) -> None:
    if depth > _MAX_NESTING:
        message = f"blocks: expected at most {_MAX_NESTING} levels of nesting, got more"
        raise ProgramError(message, where=block.path)
    outputs = iter(variables_at(block.view.held()[0], block.view.graph.outputs(block.row)))
    for operation, statement in zip(block.operations, block.statements(), strict=True):
        defined = [Variable(name, name, type) for name, type in islice(outputs, len(statement.outputs))]
        if statement.type == "const":
            _constant(topology, scope, operation, defined, kept)
            continue
        operator = Operator(statement.type, scope, operation)
        for parameter, names in statement.inputs.items():
            operator.inputs[parameter] = [
                _immediate(operation.inputs[parameter][number].value)
                if name is None
                else _resolve(scope, name, operation, parameter)
                for number, name in enumerate(names)
            ]
        if statement.type.startswith("constexpr_"):
            for parameter, value in operation.attributes.items():
                if parameter != "name":
                    operator.inputs.setdefault(parameter, [_immediate(value)])
        for inner in operation.blocks:
            child = topology.new_scope(scope)
            for name, type in inner.inputs:
                child.inputs.append(_define(topology, child, name, Variable(name, name, type), inner))
            _fill(topology, child, inner, set(), depth + 1)
            operator.scopes.append(child)
        for variable in defined:
            variable.producer = operator
            _define(topology, scope, variable.name, variable, operation, variable.name in kept)
        operator.outputs = defined
        scope.operators.append(operator)
    for name in block.outputs:
        scope.outputs.append(_resolve(scope, name, block, ""))


def _constant(topology: Topology, scope: Scope, operation: Operation, defined: list[Variable], kept: set[str]) -> None:
    value = operation.view.constant(operation)
    if value is None:
        bound = operation.inputs.get("val", ())
        value = bound[0].value if bound else None
    if value is None or not defined:
        raise ProgramError("const: expected the attribute val and an output, got none", where=operation.path)
    variable = defined[0]
    variable.constant = value
    _define(topology, scope, variable.name, variable, operation, variable.name in kept)


def _immediate(value: Value | None) -> Variable:
    return Variable("", "", None if value is None else value.type, value)


def _resolve(scope: Scope, name: str, reader: Operation | Block, parameter: str) -> Variable:
    found = scope.find(name)
    if found is None:
        where = f"{reader.path}.{parameter}" if parameter else reader.path
        message = f"name: expected one that is defined before it is read, got {name!r:.120}"
        raise ProgramError(message, where=where, code="MIL003")
    return found
