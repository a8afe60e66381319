"""Round what each operation computes in float16.

onnxruntime has few CPU kernels for float16. It computes in float32, and leaves out the casts between two operations: a
value is rounded only where the graph returns it. So a model that is cut into two differs from the whole in last bits.
Casts that are in the graph remain. With these, each operation is rounded by itself, and chunks compute what the whole
model does.
"""

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ..errors import UnsupportedError

_OF_WEIGHTS = frozenset(("Gather", "DequantizeLinear"))
"""Give the same elements in float16 and in float32; if their floats are weights they need no casts of those."""
_SET_BY_ATTRIBUTES = frozenset(("Cast", "CastLike", "ConstantOfShape", "EyeLike", "If", "Loop", "Scan"))
"""Operations whose inputs do not decide the dtypes of their outputs."""


def round_each(model: ir.Model) -> None:
    """Compute in float32 what is float16, and cast each result; changes the model.

    Raises:
        UnsupportedError: an operation whose dtypes ONNX does not know.
    """
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name and value.type is None:
                message = (
                    f"round_each: expected operations of ONNX, got {node.op_type} with the output {value.name!r:.100}"
                )
                raise UnsupportedError(message)
    for number, graph in enumerate(list(model.graphs())):
        _round_graph(graph, f"float32/{number}")


def _round_graph(graph: ir.Graph, ending: str) -> None:
    """Change one graph; `ending` makes names of values that no other graph has."""
    wide: dict[ir.Value, ir.Node] = {}
    for node in list(graph):
        halves = [value for value in node.inputs if value is not None and _is_half(value)]
        if not halves or node.op_type in _SET_BY_ATTRIBUTES or any(_is_sequence(value) for value in node.outputs):
            continue
        if node.op_type in _OF_WEIGHTS and all(value.is_initializer() for value in halves):
            continue
        for number, value in enumerate(node.inputs):
            if value is not None and _is_half(value):
                if value not in wide:
                    wide[value] = _cast(value, ir.DataType.FLOAT, f"{value.name}/wide/{ending}")
                    graph.insert_before(node, wide[value])
                node.replace_input_with(number, wide[value].outputs[0])
        for value in node.outputs:
            if _is_half(value):
                _round(graph, node, value, ending)


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value, ending: str) -> None:
    """Cast an output of a node, now in float32, to float16; the result has its name and its readers."""
    name, value.name = value.name, f"{value.name}/{ending}"
    cast = _cast(value, ir.DataType.FLOAT16, name)
    (rounded,) = cast.outputs
    rounded.shape, value.dtype = value.shape, ir.DataType.FLOAT
    graph.insert_after(node, cast)
    for reader, number in list(value.uses()):
        if reader is not cast:
            reader.replace_input_with(number, rounded)
    for number, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[number] = rounded


def _cast(value: ir.Value, dtype: ir.DataType, name: str | None) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)])
    (made,) = node.outputs
    made.name, made.dtype = name, dtype
    return node


def _is_half(value: ir.Value) -> bool:
    dtype = value.dtype if value.const_value is None else value.const_value.dtype
    return dtype == ir.DataType.FLOAT16 and not _is_sequence(value)


def _is_sequence(value: ir.Value) -> bool:
    return isinstance(value.type, ir.SequenceType | ir.OptionalType)
