"""From opset 19 to 15: newer operators are written as older ones, and those without an older form are refused by name.

Converters are written for opset 18 and later; 19 has `quantize`. This runs after them, for programs that still use
opset 15; ONNX's own version converter cannot convert most of these operators down.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from ..errors import UnsupportedError

OPSETS = range(15, 18)
"""The opset that `lower` lowers to."""

FROM = 19
"""The opset that it starts from."""

_IR_VERSION = 8
_ALL = np.iinfo(np.int64).max
_REDUCED = ("Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
_COMBINED = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


def lower(model: ir.Model, opset: int) -> ir.Model:
    """Rewrite a model of opset FROM, in place, so that it is one of an older opset.

    `model`: of opset FROM, as `milblob.onnx.convert` makes it. `opset`: 15 to 17.
    Returns: The model.
    Raises: UnsupportedError: operators that the older opset cannot express: all of them, with counts and the first use.
    ValueError: another opset.
    """
    if opset not in OPSETS:
        raise ValueError(f"opset: expected {OPSETS[0]} to {OPSETS[-1]}, got {opset}")
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    taken = {value.name for node in model.graph.all_nodes() for value in node.outputs} | set(model.graph.initializers)
    for graph in [model.graph, *model.graph.subgraphs()]:
        for node in list(graph):
            change = _CHANGES.get(node.op_type)
            is_newer = onnx_version(node.op_type, opset) != onnx_version(node.op_type, FROM)
            if change is not None and is_newer and not node.domain:
                change(_Rewrite(graph, node, taken))
    model.graph.opset_imports[""] = opset
    model.ir_version = _IR_VERSION
    _require_legal(model, opset)
    return model


def onnx_version(kind: str, opset: int) -> int:
    """Return the opset in which an operator got the form that it has in another one; 0 if it is newer."""
    try:
        return int(onnx.defs.get_schema(kind, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


class _Rewrite:
    """One node that becomes several: they are put before it, and then in its place."""

    def __init__(self, graph: ir.Graph, node: ir.Node, taken: set[str | None]) -> None:
        self.graph = graph
        self._taken = taken
        self.node = node
        self._count = 0

    def input(self, number: int) -> ir.Value | None:
        """Return an input; None if it is left out."""
        return self.node.inputs[number] if number < len(self.node.inputs) else None

    def data(self, number: int = 0) -> ir.Value:
        """Return an input that must be there."""
        value = self.input(number)
        return self.refuse(f"input {number}", "none") if value is None else value

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.value

    def constant(self, number: int, what: str) -> list[int] | None:
        """Return an input that must be a constant, as integers; None if it is left out."""
        value = self.input(number)
        if value is None:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is None:
            self.refuse(f"constant {what}", "computed ones")
        return [int(v) for v in tensor.numpy().reshape(-1)]

    def refuse(self, expected: str, got: str) -> NoReturn:
        """Raise UnsupportedError about the node."""
        name = self.node.outputs[0].name
        raise UnsupportedError(f"{self.node.op_type} {name}: expected {expected}, as this opset has it, got {got}")

    def ints(self, *values: int) -> ir.Value:
        """Return a 1-dimensional int64 constant."""
        return self.add("Constant", value=ir.AttrTensor("value", ir.Tensor(np.array(values, np.int64))))

    def number(self, value: float) -> ir.Value:
        """Return a float constant of rank 0."""
        return self.add("Constant", value=ir.AttrTensor("value", ir.Tensor(np.array(value, np.float32))))

    def add(self, kind: str, *inputs: ir.Value | None, **attributes: ir.Attr) -> ir.Value:
        """Add a node before the one that is rewritten; return its output."""
        made = self.make(kind, inputs, attributes)
        self.graph.insert_before(self.node, made)
        return made.outputs[0]

    def make(self, kind: str, inputs: Sequence[ir.Value | None], attributes: dict[str, ir.Attr]) -> ir.Node:
        """Return a node whose output has a name of its own."""
        made = ir.Node("", kind, inputs, list(attributes.values()))
        made.outputs[0].name = self.name("")
        return made

    def name(self, what: str) -> str:
        """Return a name that nothing has, after that of the node's output."""
        found = self.node.outputs[0].name
        while found in self._taken:
            self._count += 1
            found = f"{self.node.outputs[0].name}.{what}{self._count}"
        self._taken.add(found)
        return str(found)

    def replace(self, value: ir.Value) -> None:
        """Put a value in the place of the node's output, under its name; the node goes."""
        old = self.node.outputs[0]
        for number, output in enumerate(self.graph.outputs):
            if output is old:
                self.graph.outputs[number] = value
        value.type, value.shape = old.type, old.shape
        old.replace_all_uses_with(value)
        name, old.name = old.name, f"{old.name}.old"
        value.name = name
        self.graph.remove(self.node, safe=True)


# ----------------------------------------------------------------------------------------------------------- attributes


def _reduce(g: _Rewrite) -> None:
    """The axes are an attribute."""
    axes = g.constant(1, "axes")
    attributes: dict[str, ir.Attr] = {"keepdims": ir.AttrInt64("keepdims", g.attribute("keepdims", 1))}
    if not axes and g.attribute("noop_with_empty_axes", 0):
        g.replace(g.add("Identity", g.data()))
        return
    if axes:
        attributes["axes"] = ir.AttrInt64s("axes", axes)
    g.replace(g.add(g.node.op_type, g.data(), **attributes))


def _without(**defaults: Any) -> Callable[[_Rewrite], None]:
    """Return a rewrite that drops attributes with their default value."""

    def change(g: _Rewrite) -> None:
        for name, default in defaults.items():
            found = g.attribute(name, None)
            if found is None:
                continue
            is_default = all(v == 1 for v in found) if default == [1] else found == default
            if not is_default:
                g.refuse(f"no {name}", f"{found!r:.60}")
            g.node.attributes.pop(name)

    return change


def _split(g: _Rewrite) -> None:
    """Without sizes, all outputs are of one size."""
    g.node.attributes.pop("num_outputs", None)


def _pad(g: _Rewrite) -> None:
    """Sizes for all axes, and not for those that are named."""
    axes, shape = g.constant(3, "axes"), g.data().shape
    if axes is None:
        return
    if shape is None:
        g.refuse("data of known rank", "an open one")
    rank = len(shape)
    places = [axis % rank for axis in axes]
    none = g.ints(*[0] * (2 * rank))
    ends = g.ints(*places, *(place + rank for place in places))
    pads = g.add("ScatterElements", none, ends, g.data(1), axis=ir.AttrInt64("axis", 0))
    mode = ir.AttrString("mode", g.attribute("mode", "constant"))
    g.replace(g.add("Pad", g.data(), pads, g.input(2), mode=mode))


def _quantize(g: _Rewrite) -> None:
    """Make the scale single precision, and the quantized value too."""
    to = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    axis = {"axis": ir.AttrInt64("axis", g.attribute("axis", 1))}
    scale = g.add("Cast", g.data(1), to=to)
    if g.node.op_type == "QuantizeLinear":
        g.replace(g.add("QuantizeLinear", g.add("Cast", g.data(), to=to), scale, g.input(2), **axis))
    else:
        g.replace(g.add("CastLike", g.add("DequantizeLinear", g.data(), scale, g.input(2), **axis), g.data(1)))


# ------------------------------------------------------------------------------------------------------- decompositions


def _layer_normalization(g: _Rewrite) -> None:
    """Computed in single precision, as the operator itself does it."""
    x, scale, bias = g.data(), g.data(1), g.input(2)
    axis = g.attribute("axis", -1)
    shape = scale.shape
    if axis >= 0:
        if shape is None:
            g.refuse("a scale of known rank", "an open one")
        axis = -len(shape)
    axes = ir.AttrInt64s("axes", list(range(axis, 0)))
    wide = g.add("Cast", x, to=ir.AttrInt64("to", int(ir.DataType.FLOAT)))
    centred = g.add("Sub", wide, g.add("ReduceMean", wide, axes=axes))
    variance = g.add("ReduceMean", g.add("Mul", centred, centred), axes=axes)
    deviation = g.add("Sqrt", g.add("Add", variance, g.number(g.attribute("epsilon", 1e-5))))
    found = g.add("Mul", g.add("CastLike", g.add("Div", centred, deviation), x), scale)
    g.replace(found if bias is None else g.add("Add", found, bias))


def _scatter_nd(g: _Rewrite) -> None:
    """A Loop over the updates, one by one: several may be for one place."""
    how = _reduction(g)
    if how is None:
        return
    data, indices, updates = g.data(), g.data(1), g.data(2)
    zero, last, all = g.ints(0), g.ints(-1), g.ints(_ALL)
    depth = g.add("Slice", g.add("Shape", indices), last, all, zero)
    rows = g.add("Reshape", indices, g.add("Concat", last, depth, axis=ir.AttrInt64("axis", 0)))
    count = g.add("Slice", g.add("Shape", rows), zero, g.ints(1), zero)
    inner = g.add("Slice", g.add("Shape", data), depth, all, zero)
    allowed = ir.AttrInt64("allowzero", 1)
    sizes = g.add("Concat", count, inner, axis=ir.AttrInt64("axis", 0))
    parts = g.add("Reshape", updates, sizes, allowzero=allowed)

    def body(b: "_Body") -> ir.Value:
        index = b.add("Unsqueeze", b.add("Gather", rows, b.number), zero)
        part = b.add("Unsqueeze", b.add("Gather", parts, b.number), zero)
        return b.add("ScatterND", b.state, index, b.add(how, b.add("GatherND", b.state, index), part))

    _loop(g, count, data, body)


def _scatter_elements(g: _Rewrite) -> None:
    """A Loop along the axis: at one place of it no two updates are for one element."""
    how = _reduction(g)
    if how is None:
        return
    data, indices, updates = g.data(), g.data(1), g.data(2)
    along = g.attribute("axis", 0)
    axis = ir.AttrInt64("axis", along)
    place = g.ints(along)
    count = g.add("Gather", g.add("Shape", indices), place, axis=ir.AttrInt64("axis", 0))

    def body(b: "_Body") -> ir.Value:
        index = b.add("Unsqueeze", b.add("Gather", indices, b.number, axis=axis), place)
        part = b.add("Unsqueeze", b.add("Gather", updates, b.number, axis=axis), place)
        found = b.add(how, b.add("GatherElements", b.state, index, axis=axis), part)
        return b.add("ScatterElements", b.state, index, found, axis=axis)

    _loop(g, count, data, body)


def _reduction(g: _Rewrite) -> str | None:
    """Return the operator that a reduction is; None if there is none, and nothing to rewrite."""
    how = g.attribute("reduction", "none")
    g.node.attributes.pop("reduction", None)
    if how == "none":
        return None
    return _COMBINED.get(how) or g.refuse("a known reduction", repr(how))


class _Body:
    """The body of a Loop.

    Attributes:
        number: of the pass, int64 of rank 0.
        state: the result of the pass before.
    """

    def __init__(self, g: _Rewrite, dtype: ir.DataType, rank: int | None) -> None:
        self._rewrite = g
        shape = None if rank is None else ir.Shape([None] * rank)
        self.nodes: list[ir.Node] = []
        self.number = ir.Value(name=g.name("pass"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        self.go_on = ir.Value(name=g.name("go_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        self.state = ir.Value(name=g.name("state"), type=ir.TensorType(dtype), shape=shape)

    def add(self, kind: str, *inputs: ir.Value | None, **attributes: ir.Attr) -> ir.Value:
        """Add a node to the body; return its output."""
        made = self._rewrite.make(kind, inputs, attributes)
        self.nodes.append(made)
        return made.outputs[0]


def _loop(g: _Rewrite, count: ir.Value, first: ir.Value, make: Callable[[_Body], ir.Value]) -> None:
    """Replace the node by a Loop that begins with a value, and returns the result of its last pass."""
    if first.dtype is None:
        g.refuse("data of known element type", "others")
    body = _Body(g, first.dtype, None if first.shape is None else len(first.shape))
    made = make(body)
    again = body.add("Identity", body.go_on)
    again.type, again.shape = body.go_on.type, ir.Shape([])
    made.type, made.shape = body.state.type, body.state.shape
    inputs = [body.number, body.go_on, body.state]
    graph = ir.Graph(inputs, [again, made], nodes=body.nodes, name=f"{g.node.outputs[0].name}.body")
    passes = g.add("Reshape", count, g.add("Constant", value=ir.AttrTensor("value", ir.Tensor(np.empty(0, np.int64)))))
    g.replace(g.add("Loop", passes, None, first, body=ir.AttrGraph("body", graph)))


_CHANGES: dict[str, Callable[[_Rewrite], None]] = {
    **{f"Reduce{name}": _reduce for name in _REDUCED},
    "Split": _split,
    "Resize": _without(antialias=0, keep_aspect_ratio_policy="stretch"),
    "LpPool": _without(ceil_mode=0, dilations=[1]),
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _quantize,
    "LayerNormalization": _layer_normalization,
    "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements,
}


# --------------------------------------------------------------------------------------------------------- what is left


def _require_legal(model: ir.Model, opset: int) -> None:
    """Refuse operators, attributes and inputs that an opset does not have.

    Raises: UnsupportedError: all of them, with counts and the first use of each.
    """
    found: dict[str, list[str]] = {}
    for node in model.graph.all_nodes():
        what = None if node.domain else _illegal(node, opset)
        if what is not None:
            found.setdefault(what, []).append(node.outputs[0].name or "")
    if found:
        listed = ", ".join(f"{what} x{len(names)} (first {names[0]})" for what, names in found.items())
        message = f"operators: expected those of ONNX opset {opset}, got {listed}"
        raise UnsupportedError(f"{message}; milblob.onnx.convert has opset 18 and later", code="operations")


def _illegal(node: ir.Node, opset: int) -> str | None:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return node.op_type
    for name in node.attributes:
        if name not in schema.attributes:
            return f"{node.op_type} with {name}"
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return f"{node.op_type} with {len(inputs)} inputs" if len(inputs) > schema.max_input else None
