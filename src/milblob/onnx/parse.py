"""From a function of a Program to a Topology."""

from ..errors import ProgramError
from ..program.types import StateType
from ..program.value import Value
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
    for operation in block.operations:
        if operation.type == "const":
            _constant(topology, scope, operation, kept)
            continue
        operator = Operator(operation.type, scope, operation)
        for parameter, bindings in operation.inputs.items():
            operator.inputs[parameter] = [
                _resolve(scope, binding.name, operation, parameter)
                if not binding.is_value
                else _immediate(binding.value)
                for binding in bindings
            ]
        if operation.type.startswith("constexpr_"):
            for parameter, value in operation.attributes.items():
                if parameter != "name":
                    operator.inputs.setdefault(parameter, [_immediate(value)])
        for inner in operation.blocks:
            child = topology.new_scope(scope)
            for name, type in inner.inputs:
                child.inputs.append(_define(topology, child, name, Variable(name, name, type), inner))
            _fill(topology, child, inner, set(), depth + 1)
            operator.scopes.append(child)
        for name, type in operation.outputs:
            variable = Variable(name, name, type)
            variable.producer = operator
            operator.outputs.append(_define(topology, scope, name, variable, operation, name in kept))
        scope.operators.append(operator)
    for name in block.outputs:
        scope.outputs.append(_resolve(scope, name, block, ""))


def _constant(topology: Topology, scope: Scope, operation: Operation, kept: set[str]) -> None:
    value = operation.view.constant(operation)
    if value is None:
        bound = operation.inputs.get("val", ())
        value = bound[0].value if bound else None
    if value is None or not operation.output_rows[1]:
        raise ProgramError("const: expected the attribute val and an output, got none", where=operation.path)
    ((name, type), *_) = operation.outputs
    _define(topology, scope, name, Variable(name, name, type, value), operation, name in kept)


def _immediate(value: Value | None) -> Variable:
    return Variable("", "", None if value is None else value.type, value)


def _resolve(scope: Scope, name: str | None, reader: Operation | Block, parameter: str) -> Variable:
    found = scope.find(name or "")
    if found is None:
        where = f"{reader.path}.{parameter}" if parameter else reader.path
        message = f"name: expected one that is defined before it is read, got {name!r:.120}"
        raise ProgramError(message, where=where, code="MIL003")
    return found
