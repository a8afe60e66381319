"""Pooling."""

from typing import Any

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope
from .conv import SAME, custom_pads, same_pads


def _pool(kind: str, **fixed: Any) -> Any:
    def convert(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
        x = operator.input("x")
        sizes = list(g.dimensions(x, 3, 5)[2:])
        count = len(sizes)
        kernel = operator.integers("kernel_sizes", count=count, least=1)
        strides = operator.integers("strides", [1] * count, count=count, least=1)
        pad_type = operator.number("pad_type", "valid")
        attributes: dict[str, Any] = dict(fixed)
        if pad_type == "custom":
            attributes["pads"] = custom_pads(operator, count)
        elif pad_type in SAME:
            pads = same_pads(operator, sizes, kernel, strides, [1] * count, pad_type == "same_lower")
            attributes |= {"auto_pad": SAME[pad_type]} if pads is None else {"pads": pads}
        elif pad_type != "valid":
            operator.refuse("a known pad_type", f"{pad_type!r:.40}")
        if operator.number("ceil_mode", False):
            attributes["ceil_mode"] = 1
        if kind == "AveragePool" and not operator.number("exclude_padding_from_average", False):
            attributes["count_include_pad"] = 1
        g.bind(operator.output, g.node(kind, x, kernel_shape=kernel, strides=strides, **attributes))

    return convert


for _type, _kind, _fixed in (
    ("max_pool", "MaxPool", {}),
    ("avg_pool", "AveragePool", {}),
    ("l2_pool", "LpPool", {"p": 2}),
):
    builtin(_type, onnx=_kind)(_pool(_kind, **_fixed))
