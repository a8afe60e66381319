"""Compressed weights, decoded when the model is converted."""

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope


@builtin(
    "constexpr_affine_dequantize",
    "constexpr_blockwise_shift_scale",
    "constexpr_cast",
    "constexpr_lut_to_dense",
    "constexpr_lut_to_sparse",
    "constexpr_sparse_blockwise_shift_scale",
    "constexpr_sparse_to_dense",
    onnx="an initializer with the decoded weight",
)
def _dense(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.bind_weight(operator)
