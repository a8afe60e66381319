"""Reductions."""

from typing import Any

import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from .elementwise import is_float, wide

_KINDS = {
    "reduce_l1_norm": "ReduceL1", "reduce_l2_norm": "ReduceL2", "reduce_log_sum": "ReduceLogSum",
    "reduce_log_sum_exp": "ReduceLogSumExp", "reduce_max": "ReduceMax", "reduce_mean": "ReduceMean",
    "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_sum": "ReduceSum",
    "reduce_sum_square": "ReduceSumSquare",
}  # fmt: skip
_REAL = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean")


def _reduce(kind: str) -> Any:
    def convert(operator: Operator, g: ModelComponentContainer) -> None:
        x = wide(g, operator.input("x"))
        if kind in _REAL and not is_float(g, x):
            x = g.cast(x, ir.DataType.DOUBLE)  # float32 holds integers to 2^24 only
        axes = operator.integers("axes") if operator.has("axes") else None
        if axes == []:
            g.bind(operator.output, x)
            return
        keep = int(bool(operator.number("keep_dims", False)))
        made = g.node(kind, x, None if axes is None else g.ints(axes), keepdims=keep)
        g.bind(operator.output, made, convert=kind in _REAL)

    return convert


def _arg(kind: str) -> Any:
    def convert(operator: Operator, g: ModelComponentContainer) -> ir.Value:
        keep = int(bool(operator.number("keep_dims", False)))
        axis = int(operator.number("axis", -1))
        return g.node(kind, wide(g, operator.input("x")), axis=axis, keepdims=keep)

    return convert


for _type, _kind in _KINDS.items():
    builtin(_type, onnx=_kind)(_reduce(_kind))
for _type, _kind in (("reduce_argmax", "ArgMax"), ("reduce_argmin", "ArgMin")):
    builtin(_type, onnx=f"{_kind}, Cast")(_arg(_kind))
