"""Branches and loops: blocks become subgraphs. What they read from around them they read there too."""

from typing import Any

import onnx_ir as ir

from ...errors import UnsupportedError
from ...program.types import ListType
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


def _require_blocks(operator: Operator, count: int) -> None:
    if len(operator.scopes) != count:
        words = f"{operator.type}: expected {count} blocks, got {len(operator.scopes)}"
        raise UnsupportedError(words, where=operator.path)


@builtin("cond", onnx="If")
def _cond(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    _require_blocks(operator, 2)
    pred = g.cast(operator.input("pred"), _BOOL)
    branches: list[ir.Graph] = []
    kinds: list[ir.DataType] = []
    for branch in operator.scopes:
        with g.subgraph():
            found = g.convert_block(branch)
            kinds = kinds or [g.dtype(value) for value in found]
            found = [g.cast(value, kind) for value, kind in zip(found, kinds, strict=True)]
            branches.append(g.graph(branch.name, [], found, operator.outputs))
    count = len(operator.outputs)
    made = g.node("If", pred, outputs=count, then_branch=branches[0], else_branch=branches[1])
    _bind_all(operator, g, made, kinds)


def _bind_all(operator: Operator, g: ModelComponentContainer, made: Any, kinds: list[ir.DataType]) -> None:
    values = [made] if len(kinds) == 1 else made
    for variable, value, kind in zip(operator.outputs, values, kinds, strict=True):
        g.set_dtype(value, kind)
        if isinstance(variable.type, ListType):
            g.let(variable, value)
        else:
            g.bind(variable, value)


@builtin("while_loop", onnx="Loop")
def _while_loop(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """The condition is computed before the loop, and at the end of each pass with the new values."""
    _require_blocks(operator, 2)
    condition, body = operator.scopes
    start = [g.value(variable) for variable in operator.inputs.get("loop_vars", ())]
    if len(start) != len(operator.outputs) or len(body.inputs) != len(start):
        raise UnsupportedError("while_loop: expected as many outputs as loop_vars", where=operator.path)

    def proceeds(values: list[ir.Value]) -> ir.Value:
        for variable, value in zip(condition.inputs, values, strict=True):
            g.let(variable, value)
        return g.cast(g.convert_block(condition)[0], _BOOL)

    first = proceeds(start)
    with g.subgraph():
        inputs = [g.block_input("iteration", _INT64, 0), g.block_input("proceed", _BOOL, None)]
        for variable, value in zip(body.inputs, start, strict=True):
            rank = None if variable.shape is None else len(variable.shape)
            inputs.append(g.block_input(variable.name, g.dtype(value), rank))
            g.let(variable, inputs[-1])
        returned = [g.cast(v, g.dtype(out)) for v, out in zip(g.convert_block(body), start, strict=True)]
        again = proceeds(returned)
        types = [condition.outputs[0], *operator.outputs]
        graph = g.graph(body.name, inputs, [again, *returned], types)
    count = len(start)
    made = g.node("Loop", None, first, *start, outputs=count, body=graph)
    _bind_all(operator, g, made, [g.dtype(value) for value in start])
