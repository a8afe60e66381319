"""Branches and loops: blocks become subgraphs, which read outer values as the blocks do."""

from typing import Any

import onnx_ir as ir

from ...errors import UnsupportedError
from ...program.types import ListType
from ..compiling import written_states
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Variable

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


def _require_blocks(operator: Operator, count: int) -> None:
    if len(operator.scopes) != count:
        operator.refuse(f"{count} blocks", len(operator.scopes))


@builtin("cond", onnx="If")
def _cond(operator: Operator, g: ModelComponentContainer) -> None:
    """States that a branch writes are outputs as well."""
    _require_blocks(operator, 2)
    pred = g.cast(operator.input("pred"), _BOOL)
    states, before = written_states(operator), g.states
    branches: list[ir.Graph] = []
    kinds: list[ir.DataType] = []
    for branch in operator.scopes:
        g.states = dict(before)
        with g.subgraph():
            found = [*g.convert_block(branch), *(g.states[state] for state in states)]
            kinds = kinds or [g.dtype(value) for value in found]
            found = [g.cast(value, kind) for value, kind in zip(found, kinds, strict=True)]
            branches.append(g.graph(branch.name, [], found, [*operator.outputs, *states]))
    g.states = before
    made = g.node("If", pred, outputs=len(kinds), then_branch=branches[0], else_branch=branches[1])
    _bind_all(operator, g, made, kinds, states)


def _bind_all(
    operator: Operator, g: ModelComponentContainer, made: Any, kinds: list[ir.DataType], states: list[Variable]
) -> None:
    values = [made] if len(kinds) == 1 else made
    for variable, value, kind in zip([*operator.outputs, *states], values, kinds, strict=True):
        g.set_dtype(value, kind)
        if variable in states:
            g.states[variable] = value
        elif isinstance(variable.type, ListType):
            g.let(variable, value)
        else:
            g.bind(variable, value)


@builtin("while_loop", onnx="Loop")
def _while_loop(operator: Operator, g: ModelComponentContainer) -> None:
    """The condition is computed before the loop, and at the end of each pass with the new values.

    States that the body writes go from pass to pass as the variables do.
    """
    _require_blocks(operator, 2)
    condition, body = operator.scopes
    start = [g.value(variable) for variable in operator.inputs.get("loop_vars", ())]
    if len(start) != len(operator.outputs) or len(body.inputs) != len(start):
        raise UnsupportedError("while_loop: expected as many outputs as loop_vars", where=operator.path)
    states, before = written_states(operator), g.states

    def proceeds(values: list[ir.Value]) -> ir.Value:
        for variable, value in zip(condition.inputs, values, strict=True):
            g.let(variable, value)
        return g.cast(g.convert_block(condition)[0], _BOOL)

    first = proceeds(start)
    count = len(start)
    start += [g.states[state] for state in states]
    with g.subgraph():
        inputs = [g.block_input("iteration", _INT64, 0), g.block_input("proceed", _BOOL, None)]
        for variable, value in zip([*body.inputs, *states], start, strict=True):
            rank = None if variable.shape is None else len(variable.shape)
            inputs.append(g.block_input(variable.name, g.dtype(value), rank))
            if variable not in states:
                g.let(variable, inputs[-1])
        g.states = before | dict(zip(states, inputs[2 + count :], strict=True))
        found = [*g.convert_block(body), *(g.states[state] for state in states)]
        returned = [g.cast(value, g.dtype(given)) for value, given in zip(found, start, strict=True)]
        again = proceeds(returned[:count])
        types = [condition.outputs[0], *operator.outputs, *states]
        graph = g.graph(body.name, inputs, [again, *returned], types)
    g.states = before
    made = g.node("Loop", None, first, *start, outputs=len(start), body=graph)
    _bind_all(operator, g, made, [g.dtype(value) for value in start], states)


@builtin("read_state", onnx="the graph's input, or what was written last")
def _read_state(operator: Operator, g: ModelComponentContainer) -> None:
    g.let(operator.output, g.states[operator.input("input")])


@builtin("write_state", onnx="the graph's output")
def _write_state(operator: Operator, g: ModelComponentContainer) -> None:
    g.states[operator.input("input")] = g.value(operator.input("data"))


@builtin("coreml_update_state", onnx="the graph's output")
def _update_state(operator: Operator, g: ModelComponentContainer) -> None:
    state = operator.input("state")
    g.states[state] = g.value(operator.input("value"))
    if operator.outputs:
        g.let(operator.output, g.states[state])
