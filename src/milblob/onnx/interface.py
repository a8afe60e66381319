"""Inputs, outputs and states of the ONNX graph, and the metadata for what ONNX cannot express."""

import json
from typing import Any

import onnx_ir as ir

from ..errors import UnsupportedError
from ..formats.onnx import MADE, WEIGHTS
from ..formats.onnx_external import HASH_DIGITS
from ..hashing import hash_bytes
from .containers import MilProgramContainer, Port
from .emit import ModelComponentContainer
from .topology import Topology, Variable
from .types import onnx_dtype, onnx_shape, tensor_type


def make_inputs(raw: MilProgramContainer, topology: Topology, container: ModelComponentContainer) -> list[ir.Value]:
    """Make the inputs of the graph in the order of the description, states last.

    Raises: UnsupportedError: an input that is not a tensor, or an optional one whose shape is open. LimitError:
    defaults of optional inputs that are larger than the budget of the model.
    """
    by_name = {variable.raw_name: variable for variable in topology.scope.inputs}
    made = []
    for port in raw.inputs:
        variable = by_name[port.name]
        value = container.input(port.name, variable)
        value.shape = _fixed(value.shape, port)
        made.append(value)
        if port.default is not None:
            _default(port, value, container)
    for port in raw.states:
        variable = by_name[port.name]
        value = container.input(port.name, variable)
        container.states[variable] = value
        made.append(value)
    return made


def make_outputs(raw: MilProgramContainer, topology: Topology, container: ModelComponentContainer) -> list[ir.Value]:
    """Return the outputs of the graph in the order of the description, the new values of states last."""
    by_name = {variable.raw_name: variable for variable in topology.scope.outputs}
    made = [_output(by_name[port.name], port, container) for port in raw.outputs]
    for port in raw.states:
        variable = next(state for state in topology.states if state.raw_name == port.name)
        out = Variable(port.name, topology.unique_name(f"{port.name}_out"), tensor_type(variable.type))
        value = container.states[variable]
        if value.producer() is None or any(value is one for one in made):
            value = container.bind(out, value)
        value.name = out.name  # an Identity would copy the state at each run
        _describe(value, out, None)
        made.append(value)
    return made


def _output(variable: Variable, port: Port, container: ModelComponentContainer) -> ir.Value:
    value = container.value(variable)
    if value.name != port.name:  # a constant, an input, or a state
        out = Variable(port.name, port.name, variable.type)
        value = container.bind(out, value)
    if not value.is_graph_input() and value.name not in container.maps:
        _describe(value, variable, port)
    return value


def _describe(value: ir.Value, variable: Variable, port: Port | None) -> None:
    declared = tensor_type(variable.type)
    value.type = ir.TensorType(onnx_dtype(declared.dtype))
    shape = onnx_shape(declared, value.name or "")
    if shape is None:
        message = f"output {value.name}: expected a known number of dimensions, as ONNX demands, got {declared}"
        raise UnsupportedError(message)
    value.shape = shape


def _fixed(shape: ir.Shape | None, port: Port) -> ir.Shape | None:
    """Fix the axes of an input that its description fixes."""
    if shape is None:
        return None
    sizes: list[Any] = list(shape)
    for axis, size in port.fixed.items():
        if -len(sizes) <= axis < len(sizes) and not isinstance(sizes[axis], int) and size > 0:
            sizes[axis] = size
    return ir.Shape(sizes)


def _default(port: Port, value: ir.Value, container: ModelComponentContainer) -> None:
    """Give an optional input its default: an initializer of the same name."""
    shape = [size if isinstance(size, int) else None for size in value.shape or ()]
    if len(port.default_shape) == len(shape):
        shape = [own if size is None else size for own, size in zip(port.default_shape, shape, strict=True)]
    dtype = value.dtype or ir.DataType.FLOAT
    if any(size is None for size in shape):
        message = f"input {port.name}: expected an optional input of known shape, got {value.shape}"
        raise UnsupportedError(message)
    array = container.filled([size or 0 for size in shape], port.default or 0, dtype.numpy())
    value.const_value = container.weights.held(array, dtype)
    value.const_value.name = port.name
    container.initializers[port.name] = value
    container.purposes[port.name] = "an optional input, as its default"


def metadata(
    raw: MilProgramContainer, topology: Topology, container: ModelComponentContainer, made: list[dict[str, Any]]
) -> dict[str, str]:
    """Return the metadata that ONNX has no place for: JSON texts by key.

    Args:
        raw, topology: the model to convert.
        container: that it was converted in, with all its initializers.
        made: the list `Weights.made`.
    """
    found: dict[str, Any] = {"milblob.source": {"opset": topology.opset, "function": raw.name}}
    if raw.states:
        found["milblob.states"] = {p.name: {"input": p.name, "output": f"{p.name}_out"} for p in raw.states}
    images = {port.name: port.image for port in (*raw.inputs, *raw.outputs) if port.image}
    if images:
        found["milblob.images"] = images
    shapes = {port.name: port.flexible for port in raw.inputs if port.flexible}
    if shapes:
        found["milblob.shapes"] = shapes
    if container.classes:
        found["milblob.classes"] = container.classes
    outputs = {variable.raw_name for variable in topology.scope.outputs}
    for operator in topology.scope.operators:
        if operator.type == "classify" and operator.outputs[0].raw_name in outputs:
            names = [variable.raw_name for variable in operator.outputs]
            found["milblob.classifier"] = dict(zip(("label", "probabilities"), names, strict=False))
    if made:
        found["milblob.copied"] = made
    found |= _homes(container)
    return {key: json.dumps(value, ensure_ascii=False, separators=(",", ":")) for key, value in sorted(found.items())}


def _homes(container: ModelComponentContainer) -> dict[str, Any]:
    """Return which weights the initializers hold, as `formats.onnx` reads it to bring them back into the model.

    Initializers that are not weights get the hash of their bytes, so that `refit` can detect changes to them.
    """
    renamed = {name: home for name, home in container.homes.items() if name != home}
    made = {}
    for name, why in container.purposes.items():
        value = container.initializers[name]
        if name in container.homes or value.const_value is None:
            continue
        is_text = value.const_value.dtype == ir.DataType.STRING
        hash = "" if is_text else hash_bytes(value.const_value.tobytes())[:HASH_DIGITS]
        made[name] = {"why": f"made for {why}", "hash": hash}
    return {key: value for key, value in ((WEIGHTS, renamed), (MADE, made)) if value}
