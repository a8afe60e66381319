"""An ML Program as one operator of ONNXMLTools' framework: its shape calculator, its converter, and a Topology of it.

ONNXMLTools' own parser makes one operator, "mlProgram", of such a model, and knows neither half precision nor integers
nor states nor most ranks. `functions` serves it as it is; `convert_coreml` makes the Topology itself.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import onnx
import onnx_ir as ir
from onnxmltools.convert.common import _container, _topology
from onnxmltools.convert.common._container import RawModelContainer
from onnxmltools.convert.common._topology import convert_topology
from onnxmltools.convert.common.data_types import TensorType
from onnxmltools.convert.common.onnx_ex import get_maximum_opset_supported

from ..arguments import as_integer, require
from ..errors import UnsupportedError
from ..onnx.conversion import DecodedWarning, convert
from ..onnx.lower import FROM, OPSETS, lower
from ..onnx.packed import NIBBLES_SINCE
from ..onnx.registry import Converter

Topology: Any = getattr(_container, "Topology", None) or _topology.Topology  # where 1.14 and later have it, and 1.13

KIND = "mlProgram"
"""What ONNXMLTools calls an operator that is a whole ML Program."""

Source = Any  # a path, an open Model, or an MLModel of coremltools


class MilTensorType(TensorType):  # type: ignore[misc,unused-ignore]
    """A tensor type of any element type that ONNX has, and of any rank."""

    def __init__(self, value: ir.Value) -> None:
        if value.dtype is None or value.shape is None:
            raise UnsupportedError(f"{value.name}: expected a tensor of known rank, got {value.type}")
        super().__init__([size if isinstance(size, int) else size.value for size in value.shape])
        self._code = int(value.dtype)

    def _get_element_onnx_type(self) -> int:
        return self._code


class _Converted:
    """The ONNX models of one function by requested opset; each is made once."""

    def __init__(self, model: Source, function: str | None, converters: Mapping[str, Converter] | None) -> None:
        self._model = model
        self._function = function
        self._converters = converters
        self._made: dict[int, ir.Model] = {}

    def at(self, opset: int) -> ir.Model:
        """Return it in an opset. Raises: as `milblob.onnx.convert` and `lower`."""
        if opset not in self._made:
            path = getattr(self._model, "package_path", None) or self._model  # an MLModel has one
            options: dict[str, Any] = {"function": self._function, "converters": self._converters}
            with warnings.catch_warnings():
                if get_maximum_opset_supported() < NIBBLES_SINCE:  # no advice that cannot be followed
                    warnings.simplefilter("ignore", DecodedWarning)
                made = convert(path, weights="embed", opset=FROM if opset in OPSETS else opset, **options)
            self._made[opset] = lower(made, opset) if opset in OPSETS else made
        return self._made[opset]


class _Raw(RawModelContainer):  # type: ignore[misc,unused-ignore]
    """The names of all inputs and outputs, in order; states are among them."""

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [str(value.name) for value in self.raw_model.graph.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [str(value.name) for value in self.raw_model.graph.outputs]


def functions(
    model: Source, *, function: str | None = None, converters: Mapping[str, Converter] | None = None
) -> tuple[dict[str, Callable[..., None]], dict[str, Callable[..., None]]]:
    """Return what `onnxmltools.convert_coreml` takes as `custom_conversion_functions` and `custom_shape_calculators`.

    Its own parser refuses inputs and outputs in half precision, and has no states; `convert_coreml` of this module
    takes both. The metadata of the conversion has no way through it.

    Args:
        model: the path of the model whose spec onnxmltools gets, an open Model, or an MLModel that has a path.
        function: its name; default: the model's default function.
        converters: as `milblob.onnx.convert`.
    """
    made = _Converted(model, function, converters)
    return {KIND: partial(_convert_operator, made)}, {KIND: partial(_calculate_shapes, made)}


def convert_coreml(
    model: Source,
    name: str | None = None,
    *,
    function: str | None = None,
    doc_string: str = "",
    target_opset: int | None = None,
    converters: Mapping[str, Converter] | None = None,
) -> onnx.ModelProto:
    """Convert an ML Program with any inputs and outputs through ONNXMLTools' framework.

    Args:
        model: a path, an open Model, or an MLModel of coremltools that has a path.
        name: of the graph; default: the function's name.
        function: its name; default: the model's default function.
        doc_string: of the ONNX model.
        target_opset: of ONNX, 15 to what the installed onnxmltools allows; default: that.
        converters: operation -> converter, as `milblob.onnx.convert`.

    Returns:
        The model, with its weights in it.

    Raises:
        UnsupportedError: operations without a converter, or without an equivalent in that opset.
        ValueError: another opset. Otherwise as `milblob.onnx.convert`.
    """
    most = int(get_maximum_opset_supported())
    opset = most if target_opset is None else as_integer("target_opset", target_opset)
    if not OPSETS[0] <= opset <= most:
        known = OPSETS[0] if most == OPSETS[0] else f"{OPSETS[0]} to {most}"
        raise ValueError(f"target_opset: expected {known}, which this version of onnxmltools knows, got {opset}")
    require("doc_string", doc_string, str, "a text")
    converted = _Converted(model, function, converters)
    made = converted.at(opset)
    names = {str(value.name) for value in (*made.graph.inputs, *made.graph.outputs)}
    topology = Topology(
        _Raw(made), "None", None, names, target_opset=opset,
        custom_conversion_functions={KIND: partial(_convert_operator, converted)},
        custom_shape_calculators={KIND: partial(_calculate_shapes, converted)},
        metadata_props=dict(made.metadata_props),
    )  # fmt: skip
    scope = topology.declare_scope("__root__")
    operator = scope.declare_local_operator(KIND, made)
    for values, variables in ((made.graph.inputs, operator.inputs), (made.graph.outputs, operator.outputs)):
        for value in values:
            variables.append(scope.declare_local_variable(str(value.name), MilTensorType(value)))
    topology.compile()
    for variable in topology.find_root_and_sink_variables():
        if variable.onnx_name != variable.raw_name:
            topology.rename_variable(variable.onnx_name, variable.raw_name)
    found: onnx.ModelProto = convert_topology(topology, name or made.graph.name, doc_string, opset)
    return found


def _calculate_shapes(made: _Converted, operator: Any) -> None:
    """The shape calculator: types as the ONNX model has them, for they are those that the Program declares."""
    graph = made.at(int(operator.target_opset)).graph
    for variables, values in ((operator.inputs, graph.inputs), (operator.outputs, graph.outputs)):
        for variable, value in zip(variables, _in_order(variables, values), strict=True):
            variable.type = MilTensorType(value)


def _convert_operator(made: _Converted, scope: Any, operator: Any, container: Any) -> None:
    """The converter: the nodes and weights of the ONNX model, between the operator's inputs and outputs."""
    opset = int(container.target_opset)
    model = made.at(opset)
    names: dict[str, str] = {}
    for variables, values in ((operator.inputs, model.graph.inputs), (operator.outputs, model.graph.outputs)):
        for variable, value in zip(variables, _in_order(variables, values), strict=True):
            names[str(value.name)] = variable.full_name
    proto = ir.serde.serialize_model(model).graph
    for own in _names_in(proto):
        if own not in names:
            names[own] = own if own not in scope.onnx_variable_names else scope.get_unique_variable_name(own)
            scope.onnx_variable_names.add(names[own])
    _rename(proto, names)
    container.initializers.extend(proto.initializer)
    container.nodes.extend(proto.node)
    container.node_domain_version_pair_sets.add(("", opset))


def _in_order(variables: list[Any], values: Any) -> list[ir.Value]:
    """Return the values of variables, which are in the order of the model's description.

    Raises:
        UnsupportedError: others, such as states, which ONNXMLTools' own parser does not see.
    """
    by_name = {str(value.name): value for value in values}
    wanted = [str(variable.raw_name) for variable in variables]
    if set(wanted) != set(by_name):
        more = sorted(set(by_name) ^ set(wanted))
        message = (
            f"inputs and outputs: expected {', '.join(by_name)}, got {', '.join(wanted)} ({', '.join(more)} differ)"
        )
        raise UnsupportedError(f"{message}; milblob.onnxmltools.convert_coreml takes states and other functions")
    return [by_name[name] for name in wanted]


def _names_in(graph: onnx.GraphProto) -> list[str]:
    """Return the names of all that a graph, and the graphs in it, make or hold."""
    found = [tensor.name for tensor in graph.initializer]
    for node in graph.node:
        found += node.output
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += [value.name for value in attribute.g.input] + _names_in(attribute.g)
    return [name for name in found if name]


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for value in (*attribute.g.input, *attribute.g.output):
                    value.name = names.get(value.name, value.name)
                _rename(attribute.g, names)


__all__ = ["convert_coreml", "functions"]
