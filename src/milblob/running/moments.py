"""Mean squares of the activations that the weights of an ONNX graph multiply, computed in the graph itself.

If W changes by dW in y = W x, the mean square of y changes by about the mean of E[x_i^2] dW_oi^2: roundings of elements
do not depend on each other. It is the diagonal of the Hessian that OBQ (and GPTQ, AWQ) use.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import onnx
import onnx_ir as ir

from ..onnx.declared import message_of, without_weights

Array = np.ndarray[Any, Any]

_LAYOUTS = frozenset(["Cast", "Identity", "Transpose"])  # of a weight, on the way to what reads it
_CONVOLUTIONS = frozenset(["Conv", "ConvTranspose"])


class _Product(NamedTuple):
    """A node that multiplies values with a weight."""

    node: ir.Node
    places: tuple[int, ...]  # for each dimension of the weight, as stored, the one in which the node reads it
    axis: int  # of the input channels of the weight, as the node reads it
    output: str  # of the graph: the mean square of the values in each input channel


class InputMoments:
    """Asks a graph for mean squares, and takes them from its outputs."""

    def __init__(self, weights: Iterable[str]) -> None:
        self._weights = list(weights)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._products: dict[str, list[_Product | None]] = {}
        self._sums: dict[str, Array] = {}

    def attach(self, model: ir.Model) -> frozenset[str]:
        """Give a graph an output for the values that each weight is multiplied by. No weight becomes replaceable."""
        inferred = onnx.shape_inference.infer_shapes(without_weights(message_of(model))).graph
        kinds = (*inferred.value_info, *inferred.input)
        ranks = {kind.name: len(kind.type.tensor_type.shape.dim) for kind in kinds}
        asked: dict[tuple[ir.Value, int], str] = {}
        for name in self._weights:
            value = model.graph.initializers[name]
            shape = self._shapes[name] = cast(Any, value.const_value).shape.numpy()
            reads = list(_reads(value, len(shape)))
            self._products[name] = [self._product(model.graph, ranks, asked, *read) for read in reads]
        return frozenset()

    def _product(
        self,
        graph: ir.Graph,
        ranks: Mapping[str, int],
        asked: dict[tuple[ir.Value, int], str],
        node: ir.Node,
        index: int,
        places: tuple[int, ...],
    ) -> _Product | None:
        """What a node that reads a weight multiplies it with; None if it does something else with it."""
        rank = len(places)
        if node.op_type in _CONVOLUTIONS and index == 1:
            values, along, axis = node.inputs[0], 1, 1 if node.op_type == "Conv" else 0
        elif node.op_type in ("Gemm", "MatMul") and index < 2 and rank > 1:
            values = node.inputs[1 - index]
            # Without transposes, the last axis of the first operand meets the last but one of the second.
            along, axis = (-1, rank - 2) if index == 1 else (-2, rank - 1)
            along = -3 - along if _flag(node, "transB" if index == 0 else "transA") else along
            axis = 2 * rank - 3 - axis if _flag(node, "transA" if index == 0 else "transB") else axis
        else:
            return None
        size = ranks.get("" if values is None else values.name or "", 0)
        if values is None or size < 2 or node.graph is not graph:
            return None
        key = values, along % size
        if key not in asked:
            asked[key] = f"milblob.moment{len(asked)}"
            _add_mean_square(graph, *key, size, asked[key])
        return _Product(node, places, axis, asked[key])

    def take(self, outputs: dict[str, Array]) -> None:
        """Take the mean squares out of the outputs of a run."""
        for name in {one.output for found in self._products.values() for one in found if one is not None}:
            self._sums[name] = self._sums.get(name, 0.0) + outputs.pop(name).astype(np.float64)

    def importance(self, name: str) -> Array:
        """Return how much the squared changes of the elements of a weight count, one by one: their mean is 1.

        A node that multiplies nothing with the weight, such as a Gather of its rows, counts all elements alike; where
        several read it, they count alike.
        """
        shape = self._shapes[name]
        total = np.reshape(0.0, [1] * len(shape))
        for product in self._products[name]:
            found = np.reshape(1.0, [1] * len(shape)) if product is None else self._spread(product, shape)
            mean = float(found.mean())
            total = total + (found / mean if 0 < mean < np.inf else np.ones_like(total))
        mean = float(total.mean())
        return np.broadcast_to((total / mean if mean else total + 1).astype(np.float32), shape)

    def _spread(self, product: _Product, shape: tuple[int, ...]) -> Array:
        """The mean squares of the input channels, in the dimensions of a weight."""
        moments, node = self._sums[product.output], product.node
        read = [size for _, size in sorted(zip(product.places, shape, strict=True))]
        wide = [1] * len(read)
        wide[product.axis] = read[product.axis]
        if node.op_type == "Conv":  # each group of output channels has input channels of its own
            wide[0] = read[0]
            groups = len(moments) // read[1]
            moments = moments.reshape(groups, 1, read[1]).repeat(read[0] // groups, 1)
        return moments.reshape(wide).transpose(product.places)


def _reads(weight: ir.Value, rank: int) -> Iterator[tuple[ir.Node, int, tuple[int, ...]]]:
    """Yield (node, input index, axes) of each node that reads a weight, directly or through a change of layout."""
    waiting = [(weight, tuple(range(rank)))]
    while waiting:
        value, places = waiting.pop()
        for node, index in value.uses():
            if node.op_type not in _LAYOUTS:
                yield node, index, places
                continue
            order = list(range(rank))
            if node.op_type == "Transpose":
                order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else order[::-1]
            waiting.append((node.outputs[0], tuple(order.index(place) for place in places)))


def _flag(node: ir.Node, name: str) -> bool:
    return name in node.attributes and bool(node.attributes[name].as_int())


def _add_mean_square(graph: ir.Graph, value: ir.Value, axis: int, rank: int, name: str) -> None:
    """Add an output: the mean squares of a value along all axes but one, in single precision."""
    axes = ir.Value(name=f"{name}.axes")
    axes.const_value = ir.Tensor(np.array([one for one in range(rank) if one != axis], np.int64), name=axes.name)
    graph.initializers[f"{name}.axes"] = axes
    wide = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(ir.DataType.FLOAT))], num_outputs=1)
    square = ir.Node("", "Mul", [wide.outputs[0], wide.outputs[0]], num_outputs=1)
    mean = ir.Node("", "ReduceMean", [square.outputs[0], axes], [ir.AttrInt64("keepdims", 0)], num_outputs=1)
    for node, part in ((wide, "wide"), (square, "square")):
        node.outputs[0].name = f"{name}.{part}"
    result = mean.outputs[0]
    result.name, result.type, result.shape = name, ir.TensorType(ir.DataType.FLOAT), ir.Shape([None])
    graph.extend([wide, square, mean])
    graph.outputs.append(result)
