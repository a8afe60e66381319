"""The pass between parsing and converting: prune, calculate shapes, see that everything can be converted."""

from collections.abc import Mapping

from ..errors import UnsupportedError
from . import registry
from .registry import Converter
from .topology import Operator, Topology, Variable

_WRITES = frozenset({"write_state", "coreml_update_state"})
_MAX_LISTED = 12
READERS = frozenset({"lstm", "gru", "rnn"})
"""Operations whose converters read the values of weights: their gates have another order in ONNX."""


def compile(topology: Topology, converters: Mapping[str, Converter] | None = None, opset: int = 21) -> None:
    """Prepare a Topology for its conversion, in place.

    Operators that no output and no state needs are removed, then those whose results only constexpr operations read:
    they are parts of a compressed weight. Then shape calculators run.

    Args:
        topology: from `parse_mil`.
        converters: of this call only, over the registered ones.
        opset: of ONNX.

    Raises:
        UnsupportedError: operations without a converter: all of them, with counts and the first use of each.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     topology = milblob.onnx.parse_mil(model.functions["main"])
        ...     milblob.onnx.compile(topology)
        >>> list(topology.topological_operator_iterator())[-1].type
        'linear'
    """
    prune(topology)
    require_converters(topology, converters, opset)
    for operator in topology.topological_operator_iterator():
        calculate = registry.calculator(operator.type)
        if calculate is not None:
            calculate(operator)


def coverage(topology: Topology, converters: Mapping[str, Converter] | None = None, opset: int = 21) -> dict[str, int]:
    """Return the operations without a converter with their counts, the most frequent first."""
    counts: dict[str, int] = {}
    for operator in topology.topological_operator_iterator():
        counts[operator.type] = counts.get(operator.type, 0) + 1
    lacking = registry.missing(counts, dict(converters or {}), opset)
    return {type: counts[type] for type in sorted(lacking, key=lambda type: (-counts[type], type))}


def require_converters(topology: Topology, converters: Mapping[str, Converter] | None, opset: int) -> None:
    """Refuse a Topology with operations that have no converter: all of them, with counts and the first use of each."""
    lacking = coverage(topology, converters, opset)
    if not lacking:
        return
    first: dict[str, str] = {}
    for operator in topology.topological_operator_iterator(lambda one: one.type in lacking):
        first.setdefault(operator.type, operator.name)
    listed = [f"{type} x{count} (first {first[type]})" for type, count in list(lacking.items())[:_MAX_LISTED]]
    more = f" and {len(lacking) - _MAX_LISTED} more types" if len(lacking) > _MAX_LISTED else ""
    message = f"operations: expected a converter for each, got none for {', '.join(listed)}{more}"
    hint = "milblob.onnx.register_converter adds one"
    raise UnsupportedError(f"{message}; {hint}", where=topology.function.name, code="operations")


def prune(topology: Topology) -> None:
    """Remove the Operators whose results are not used."""
    keep: set[Operator] = set()
    pending: list[Operator] = []

    def want(variable: Variable) -> None:
        if variable.producer is not None and variable.producer not in keep:
            keep.add(variable.producer)
            pending.append(variable.producer)

    for operator in topology.topological_operator_iterator(lambda one: bool(written_states(one))):
        keep.add(operator)
        pending.append(operator)
    for variable in topology.scope.outputs:
        want(variable)
    while pending:
        operator = pending.pop()
        for bound in operator.inputs.values():
            for variable in bound:
                want(variable)
        for scope in operator.scopes:
            for inner in scope.operators:
                if inner not in keep:
                    keep.add(inner)
                    pending.append(inner)
            for variable in scope.outputs:
                want(variable)
    for scope in topology.scopes:
        scope.operators = [operator for operator in scope.operators if operator in keep]
    _prune_parts(topology)


def written_states(operator: Operator) -> list[Variable]:
    """Return the states that an operation writes, or operations in its blocks do."""
    found: dict[Variable, None] = {}
    pending = [operator] if operator.scopes or operator.type in _WRITES else []
    while pending:
        one = pending.pop()
        if one.type in _WRITES:
            found[one.input("input" if one.type == "write_state" else "state")] = None
        pending.extend(inner for scope in one.scopes for inner in scope.operators)
    return list(found)


def gathered(topology: Topology) -> set[Variable]:
    """Return the Variables that operations read only by rows, with `gather`."""
    found: set[Variable] = set()
    other = {variable for scope in topology.scopes for variable in scope.outputs}
    for operator in topology.topological_operator_iterator():
        by_rows = operator.type == "gather" and operator.is_constant("axis") and operator.is_constant("batch_dims")
        by_rows = by_rows and operator.number("axis", 0) == 0 and operator.number("batch_dims", 0) == 0
        for parameter, bound in operator.inputs.items():
            (found if by_rows and parameter == "x" else other).update(bound)
    return found - other


def _prune_parts(topology: Topology) -> None:
    """Remove constexpr operations whose results only constexpr operations read, or those that need their values."""
    read: set[Variable] = {variable for scope in topology.scopes for variable in scope.outputs}
    for operator in topology.topological_operator_iterator(lambda one: not one.type.startswith("constexpr_")):
        for parameter, bound in operator.inputs.items():
            if operator.type not in READERS or not parameter.startswith(("weight", "bias", "input_bias", "peephole")):
                read.update(bound)
    for scope in topology.scopes:
        scope.operators = [
            operator
            for operator in scope.operators
            if not operator.type.startswith("constexpr_") or not read.isdisjoint(operator.outputs)
        ]
