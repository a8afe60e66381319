"""Compressed weights: computed from the stored bytes where ONNX can, decoded where it cannot."""

from ..emit import ModelComponentContainer
from ..packed import has_rows, plan, product_block
from ..registry import builtin
from ..topology import Operator
from ..unpacking import unpack

_DENSE = "an initializer with the decoded weight"
_KEPT = "or an initializer with the decoded weight"


@builtin("constexpr_affine_dequantize", onnx=f"DequantizeLinear, Cast, Reshape; {_KEPT}")
@builtin("constexpr_blockwise_shift_scale", onnx=f"DequantizeLinear, Cast, Reshape; Mul of a palette; {_KEPT}")
@builtin("constexpr_lut_to_dense", onnx=f"Cast, Expand, GatherElements, Transpose, Reshape; {_KEPT}")
@builtin(
    "constexpr_cast",
    "constexpr_lut_to_sparse",
    "constexpr_sparse_blockwise_shift_scale",
    "constexpr_sparse_to_dense",
    onnx=_DENSE,
)
def _compressed(operator: Operator, g: ModelComponentContainer) -> None:
    """Bind the weights with a plan; the converter that reads any other weight decodes it."""
    for variable in operator.outputs:
        weight = variable.weight
        if weight is None:
            operator.refuse("a weight that the model lists", "a part of one")
        if g.weights.compressed == "dense":
            continue
        found = plan(weight, g.opset)
        if isinstance(found, str):
            g.weights.why_dense[variable] = found
        elif variable in g.gathered and has_rows(found):
            g.gathered[variable] = found
        elif g.weights.compressed == "onnxruntime":
            if product_block(found):
                g.products[variable] = found
        else:
            g.bind(variable, unpack(g, found))
