"""Checks a converted model before it is written: ONNX's own full check, and inferred types against declared ones."""

import re
from typing import Any

import onnx
import onnx_ir as ir
from onnx import shape_inference

from ..errors import ProgramError
from ..program.types import TensorType
from .reference import external
from .topology import Topology, Variable
from .types import onnx_dtype

_LARGE_NBYTES = 1 << 16
_PREFIXES = re.compile(r"\[\w+Error\]|Inference error\(s\):")


def plain_words(text: str) -> str:
    """Return a message of ONNX in one line, without the names of its exceptions, which it repeats."""
    return " ".join(_PREFIXES.sub("", text).split())


def check_declared(model: ir.Model, topology: Topology, precision: str = "keep") -> Any:
    """Return the message of a model that passes ONNX's full check, and whose types are those that the Program declares.

    It is as `message_of` makes it. With the precision "float32" it is float32 where the Program declares float16. Large
    weights take no part: they are inputs of the checked model.

    Raises: ProgramError: not a valid model: for example, a node that ONNX does not have, from a converter of the user;
    or a value that cannot have the type that the Program declares.
    """
    proto = message_of(model)
    light = without_weights(proto).SerializeToString()
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, ValueError) as error:
        message = f"model: expected one that the checker of ONNX accepts, got {' '.join(str(error).split()):.400}"
        raise ProgramError(message, where=topology.function.name) from None
    try:  # with data_prop, ONNX would make a dimension for each element of integer vectors of any declared size
        inferred = shape_inference.infer_shapes(light, check_type=True, strict_mode=True, data_prop=False)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError) as error:
        message = plain_words(str(error))
        raise ProgramError(
            f"types: expected values as the Program declares them, got {message:.400}", where=topology.function.name
        ) from None
    variables = {
        variable.name: variable
        for operator in topology.topological_operator_iterator()
        for variable in operator.outputs
    }
    alike = set()  # what was found to fit: most values have one of few types
    for info in inferred.graph.value_info:
        variable = variables.get(info.name)
        if variable is not None and (key := (info.type.SerializeToString(), variable.type)) not in alike:
            _compare(info.type.tensor_type, variable, precision)
            alike.add(key)
    return proto


MAPS = "milblob.maps"
"""Where a model keeps which of its outputs are lists of dictionaries: name -> the element type of the keys."""


def message_of(model: ir.Model) -> Any:
    """Return the message of a model in which large tensors have no values: external data without a place."""
    held = [(value, value.const_value) for value in model.graph.initializers.values()]
    large = [(value, tensor) for value, tensor in held if type(tensor) is ir.Tensor and tensor.nbytes >= _LARGE_NBYTES]
    try:
        for value, tensor in large:
            value.const_value = external(tensor, "", 0)
        proto = ir.serde.serialize_model(model)
    finally:
        for value, tensor in large:
            value.const_value = tensor
    _describe_maps(proto, model.meta.get(MAPS, {}))
    return proto


def _describe_maps(proto: Any, maps: dict[str, ir.DataType]) -> None:
    """Write the types that onnx-ir does not have."""
    for output in proto.graph.output:
        if output.name in maps:
            described = output.type.sequence_type.elem_type.map_type
            described.key_type = int(maps[output.name])
            described.value_type.tensor_type.elem_type = int(ir.DataType.FLOAT)
            described.value_type.tensor_type.shape.SetInParent()


def without_weights(proto: Any) -> Any:
    """Return a copy of a message whose large initializers are inputs, and those in other files."""
    light = onnx.ModelProto()
    light.ir_version = proto.ir_version
    light.opset_import.extend(proto.opset_import)
    graph = light.graph
    graph.name = proto.graph.name
    graph.input.extend(proto.graph.input)
    graph.output.extend(proto.graph.output)
    graph.node.extend(proto.graph.node)
    inputs = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name in inputs:  # an optional one, and its default
            continue
        if len(tensor.raw_data) < _LARGE_NBYTES and not tensor.external_data:
            graph.initializer.append(tensor)
        else:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return light


def _compare(found: Any, variable: Variable, precision: str) -> None:
    declared = variable.type
    if not isinstance(declared, TensorType):
        return
    expected = onnx_dtype(declared.dtype)
    if precision == "float32" and expected == ir.DataType.FLOAT16:
        expected = ir.DataType.FLOAT
    shape = variable.shape
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in found.shape.dim]
    fits = found.elem_type in (0, int(expected))
    if fits and shape is not None and found.HasField("shape"):
        fits = len(sizes) == len(shape) and all(
            a is None or b is None or a == b for a, b in zip(sizes, shape, strict=True)
        )
    if not fits:
        got = f"{ir.DataType(found.elem_type).name.lower()} {sizes}"
        producer = variable.producer
        what = f"{producer.type} {variable.name}" if producer is not None else variable.name
        where = producer.path if producer is not None else ""
        raise ProgramError(f"type of {what}: expected {declared} as the Program declares, got {got}", where=where)
