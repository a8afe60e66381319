"""Matrix products: linear, matmul, einsum, attention."""

from math import prod, sqrt

import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..packed import product_block
from ..registry import builtin
from ..topology import Operator, Variable
from ..unpacking import product
from .elementwise import is_float, wide


def dense(
    g: ModelComponentContainer, operator: Operator, x: Variable, weight: Variable, bias: Variable | None
) -> ir.Value:
    """Return x @ weight.T + bias. Gemm reads the weight as it is stored, so that nothing is copied for it.

    If x does not have two dimensions, it is reshaped to two and back, if one constant can hold the shape.
    """
    shape, packed = x.shape, g.products.get(weight)
    if packed is not None and is_float(g, x) and shape is not None and len(shape) > 1:
        found: ir.Value = product(g, x, packed, product_block(packed))
        return found if bias is None else g.node("Add", found, g.cast(bias, g.dtype(found)))
    columns = weight.shape[0] if weight.shape is not None and len(weight.shape) == 2 else None
    if is_float(g, x) and shape is not None and columns is not None:
        if len(shape) == 2:
            return _gemm(g, x, weight, bias)
        if sum(size is None for size in shape[:-1]) <= 1 and shape[-1] is not None and 0 not in shape:
            flat = g.node("Reshape", x, g.ints([-1, shape[-1]]))
            sizes = [*(-1 if size is None else size for size in shape[:-1]), columns]
            return g.node("Reshape", _gemm(g, flat, weight, bias), g.ints(sizes))
    found = g.node("MatMul", x, g.node("Transpose", weight, perm=[1, 0]))
    if bias is not None:
        found = g.node("Add", found, g.cast(bias, g.dtype(found)))
    return found


def _gemm(g: ModelComponentContainer, x: "ir.Value | Variable", weight: Variable, bias: Variable | None) -> ir.Value:
    like = g.dtype(x)
    return g.node("Gemm", x, g.cast(weight, like), None if bias is None else g.cast(bias, like), transB=1)


@builtin(
    "linear",
    onnx="Gemm, Reshape where x has not two dimensions; MatMul where several are open; MatMulNBits for onnxruntime",
    convert=True,
)
def _linear(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x = operator.input("x")
    if x.shape is not None:
        g.rank(x, 1)
    bias = operator.input("bias") if operator.has("bias") else None
    if bias is not None and bias.is_known and bias.shape is not None and not prod(s or 1 for s in bias.shape):
        bias = None
    return dense(g, operator, x, operator.input("weight"), bias)


@builtin(
    "matmul",
    onnx="MatMul, Transpose; Gemm or MatMulNBits for a constant y of two dimensions that is transposed",
    convert=True,
)
def _matmul(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    x, y = operator.input("x"), operator.input("y")
    flips = [bool(operator.number(key, False)) for key in ("transpose_x", "transpose_y")]
    if not flips[0] and flips[1] and y.is_known and g.rank(y) == 2 and g.rank(x) > 1 and is_float(g, x):
        return dense(g, operator, x, y, None)
    sides = []
    for variable, flip in zip((x, y), flips, strict=True):
        value = wide(g, variable)
        rank = g.rank(variable)
        if flip and rank > 1:
            value = g.node("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])
        sides.append(value)
    kinds = [g.dtype(side) for side in sides]
    if kinds[0] != kinds[1]:  # from iOS 17 on, MIL lets them differ
        common = next((kind for kind in kinds if kind == ir.DataType.FLOAT), ir.DataType.FLOAT)
        sides = [g.cast(side, common) for side in sides]
    return g.node("MatMul", *sides)


@builtin("einsum", onnx="Einsum", limits="equations with ->")
def _einsum(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """An axis of size 1 is repeated in MIL where another operand has more there; ONNX's inference refuses that."""
    variables = operator.inputs.get("values", ())
    equation = str(operator.number("equation")).replace(" ", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(variables) or not right:
        operator.refuse(f"an equation with -> for {len(variables)} values", f"{equation!r:.80}")
    sizes: dict[str, set[int | None]] = {}
    for term, variable in zip(terms, variables, strict=True):
        for label, size in zip(term, g.dimensions(variable), strict=False):
            sizes.setdefault(label, set()).add(size)
    values, kept = [], []
    for term, variable in zip(terms, variables, strict=True):
        value = wide(g, variable)
        one = [
            axis
            for axis, (label, size) in enumerate(zip(term, g.dimensions(variable), strict=False))
            if size == 1 and len(sizes[label]) > 1
        ]
        if one:
            value = g.node("Squeeze", value, g.ints(one))
        values.append(value)
        kept.append("".join(label for axis, label in enumerate(term) if axis not in one))
    return g.node("Einsum", *values, equation=f"{','.join(kept)}->{right}")


@builtin(
    "scaled_dot_product_attention",
    onnx="Mul, MatMul, Add or Where, Softmax, MatMul",
    limits="a known size of the last axis",
)
def _attention(operator: Operator, g: ModelComponentContainer) -> ir.Value:
    """The query is scaled before the product: in half precision the score alone may overflow."""
    query, key = operator.input("query"), operator.input("key")
    width, rank = g.dimensions(query, 2)[-1], g.rank(key, 2)
    if not width:
        operator.refuse("a known size of the last axis", query.type)
    scaled = g.node("Mul", query, g.scalar(1 / sqrt(width), query))
    score = g.node("MatMul", scaled, g.node("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2]))
    if operator.has("attn_mask"):
        mask = operator.input("attn_mask")
        if g.dtype(mask) == ir.DataType.BOOL:
            score = g.node("Where", mask, score, g.scalar(float("-inf"), score), dtype=g.dtype(query))
        else:
            score = g.node("Add", score, g.cast(mask, g.dtype(score)))  # M may differ from T
    return g.node("MatMul", g.node("Softmax", score, axis=-1), operator.input("value"))
