"""From half to single precision: a graph that computes in float32, with its stored weights as they are.

For runtimes that compute no half precision. Stored float16 values are kept, by reference too, and a Cast reads them.
"""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

PRECISIONS = ("keep", "float32")
_HALF, _SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT
_TYPES = ("to", "dtype", "output_dtype", "output_datatype")
"""The attributes of ONNX's operators that hold an element type."""


def widen(graph: ir.Graph, unique_name: Callable[[str], str]) -> None:
    """Make every half-precision value of a graph one of single precision, in place: inputs and outputs too.

    `graph`: with its subgraphs; constants are in the outermost one. `unique_name`: makes a name that no value has.
    """
    inputs = frozenset(graph.inputs)
    casts = []
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != _HALF:
            continue
        if value in inputs:  # an optional input, and its default
            value.const_value = _widened(tensor)
            continue
        readers = tuple(value.uses())
        made = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(_SINGLE))], num_outputs=1)
        made.outputs[0].name = unique_name(f"{value.name}.float32")
        for node, index in readers:
            node.replace_input_with(index, made.outputs[0])
        casts.append(made)
    for inner in (graph, *graph.subgraphs()):
        for value in (*inner.inputs, *inner.outputs):
            _retype(value)
        for node in inner:
            for output in node.outputs:
                _retype(output)
            for attribute in list(node.attributes.values()):
                _change(node, attribute)
    first = next(iter(graph), None)
    if first is None:
        graph.extend(casts)
    else:
        graph.insert_before(first, casts)


def _retype(value: ir.Value) -> None:
    if isinstance(value.type, ir.TensorType) and value.type.dtype == _HALF:
        value.type = ir.TensorType(_SINGLE)


def _change(node: ir.Node, attribute: ir.Attr) -> None:
    if attribute.type == ir.AttributeType.INT and attribute.name in _TYPES and attribute.value == _HALF:
        node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(_SINGLE))
    elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == _HALF:
        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _widened(attribute.value))


def _widened(tensor: ir.TensorProtocol) -> "ir.Tensor[Any]":
    return ir.Tensor(tensor.numpy().astype(_SINGLE.numpy()), _SINGLE, name=tensor.name)
