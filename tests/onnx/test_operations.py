"""Each operation by itself, with the traps between MIL and ONNX: what the converted model computes is what coremltools' own
value inference says, or a formula in NumPy where it has none."""

import pathlib
import re
import sys
import warnings
from math import erf
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

import milblob
import milblob.onnx
import onnx_boxes
import onnx_options
import onnx_sampling
import onnx_structures
from children import run_fork
from draws import restarts
from milblob import UnsupportedError
from milblob.dtypes import DType
from milblob.onnx import registry
from milblob.onnx.conversion import DecodedWarning
from milblob.onnx.lower import FROM, lower, onnx_version
from milblob.rules.operation_rules import table
from onnx_models import run, save
from thorough import sized

each_test_draws_the_same = restarts(onnx_options.random, onnx_structures.random)

F, INT = np.float32, np.int32
random = np.random.default_rng(7)
X = random.normal(size=(2, 3, 4)).astype(F)
POSITIVE = np.abs(X) + F(0.5)
UNIT = np.clip(X / 3, -0.9, 0.9).astype(F)
N = random.integers(-9, 10, (2, 3, 4)).astype(INT)
ENDS = np.array([-(2**31), 1 - 2**31, 2**31 - 1, 2**24 + 1, -3 - 2**24, 0, 7, -7], INT)
LARGE = np.array([[2**24 + 1, 2**24 + 1, 2**24 + 1], [3, 2**24 + 5, 7]], INT)
DIVISORS = np.array([3, 5, -3, 2, 7, 4, -2, 3], INT)
IMAGE = random.normal(size=(1, 4, 6, 6)).astype(F)
Z = np.array([[0, -0.0, 1, -1, 2.5, -2.5, 3.5, 0.5]], F)


class Case(NamedTuple):
    """A function that builds it, its inputs, the formula of what it computes (None: coremltools' value inference), the
    opsets that it is for, and whether it may be of half precision as well."""

    build: Any
    arrays: tuple
    expected: Any = None
    since: str = "iOS15"
    until: str = "iOS18"
    halves: bool = True


def op(name, *arrays, keys=("x", "y", "z"), expected=None, since="iOS15", until="iOS18", halves=True, **parameters):
    """A case: an operation of these inputs; `expected` is a function of them, None for coremltools' value inference."""

    def build(mb, *values):
        return getattr(mb, name)(**dict(zip(keys, values, strict=False)), **parameters)

    return Case(build, arrays, expected, since, until, halves)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normalized(x, axes, epsilon=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def conv2d(x, w, pads=(0, 0, 0, 0), strides=(1, 1), dilations=(1, 1), groups=1):
    """Convolution by its definition; pads are (top, bottom, left, right)."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), pads[:2], pads[2:]))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    sizes = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    per, inner = w.shape[0] // groups, w.shape[1]
    for o in range(w.shape[0]):
        first = o // per * inner
        for i in range(sizes[0]):
            for j in range(sizes[1]):
                a, b = i * strides[0], j * strides[1]
                part = x[:, first : first + inner, a : a + reach[0] : dilations[0], b : b + reach[1] : dilations[1]]
                out[:, o, i, j] = (part * w[o]).sum((1, 2, 3))
    return out.astype(F)


def conv_transpose2d(x, w, stride):
    """Transposed convolution without padding; w is [in, out, height, width]."""
    size = [(n - 1) * stride + k for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    out = np.zeros((x.shape[0], w.shape[1], *size))
    for i in range(x.shape[2]):
        for j in range(x.shape[3]):
            piece = np.einsum("nc,cokl->nokl", x[:, :, i, j].astype(np.float64), w.astype(np.float64))
            out[:, :, i * stride : i * stride + w.shape[2], j * stride : j * stride + w.shape[3]] += piece
    return out.astype(F)


def pool(x, size, stride, how):
    rows = (x.shape[2] - size) // stride + 1
    out = np.zeros((*x.shape[:2], rows, rows), F)
    for i in range(rows):
        for j in range(rows):
            out[:, :, i, j] = how(x[:, :, i * stride : i * stride + size, j * stride : j * stride + size])
    return out


def scattered(data, indices, updates, axis, apply):
    out = np.moveaxis(data.copy(), axis, 0)
    for number, index in enumerate(indices):
        out[index] = apply(out[index], np.moveaxis(updates, axis, 0)[number])
    return np.moveaxis(out, 0, axis)


def unary(name, x=X, expected=None, **parameters):
    return op(name, x, expected=expected, **parameters)


W = random.normal(size=(5, 4, 3, 3)).astype(F)
WG = random.normal(size=(6, 2, 3, 3)).astype(F)
WT = random.normal(size=(4, 5, 3, 3)).astype(F)
V = random.normal(size=(6, 4)).astype(F)
B = random.normal(size=6).astype(F)
A, BETA = np.array([1, 2, 0.5], F), np.array([0.5, 1, 2], F)
IDX = np.array([1, 0, 1], INT)
R4 = random.normal(size=(2, 4, 5)).astype(F)

CASES = {
    **{name: [unary(name)] for name in ("abs", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp2", "floor", "sin", "sinh", "square", "tan", "tanh")},
    **{name: [unary(name, UNIT)] for name in ("acos", "asin", "atanh")},
    **{name: [unary(name, POSITIVE)] for name in ("sqrt", "log", "rsqrt", "inverse")},
    "round": [unary("round", Z)],
    "sign": [unary("sign", Z)],
    "identity": [unary("identity")],
    "logical_not": [unary("logical_not", N > 0)],
    "threshold": [unary("threshold", alpha=F(0.2))],
    "clip": [unary("clip", alpha=F(-0.5), beta=F(0.7))],
    "cast": [unary("cast", Z * 3, dtype="int32"), unary("cast", N, dtype="fp32"), unary("cast", Z, dtype="bool"), unary("cast", N, dtype="bool")],
    "add": [op("add", X, X[:1]), op("add", N, N[0])], "sub": [op("sub", X, POSITIVE)], "mul": [op("mul", X, POSITIVE[0])],
    "real_div": [op("real_div", X, POSITIVE), op("real_div", ENDS, DIVISORS, halves=False)],
    "floor_div": [op("floor_div", N, np.array([3, -3, 2, -5], INT)), op("floor_div", X, np.array([0.3, -0.3, 1, -1], F)),
                   op("floor_div", ENDS, DIVISORS, halves=False)],
    "mod": [op("mod", N, np.array([3, -3, 2, -5], INT)), op("mod", X, np.array([0.3, -0.3, 1, -1], F)),
             op("mod", ENDS, DIVISORS, halves=False)],
    "pow": [op("pow", POSITIVE, X)],
    "maximum": [op("maximum", X, UNIT), op("maximum", N, N[1])], "minimum": [op("minimum", X, UNIT)],
    **{name: [op(name, N, N[:, ::-1].copy()), op(name, X, X[:1])] for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")},
    **{name: [op(name, N > 0, X > 0)] for name in ("logical_and", "logical_or", "logical_xor")},
    "select": [op("select", N > 0, X, UNIT, keys=("cond", "a", "b"))],
    "relu": [unary("relu")], "relu6": [unary("relu6", X * 5)], "sigmoid": [unary("sigmoid")], "softsign": [unary("softsign")],
    "silu": [unary("silu", expected=lambda x: x * sigmoid(x))],
    "softplus": [unary("softplus")], "elu": [unary("elu", alpha=F(0.7))], "leaky_relu": [unary("leaky_relu", alpha=F(0.2))],
    "gelu": [unary("gelu", expected=lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2),
             unary("gelu", mode="SIGMOID_APPROXIMATION", expected=lambda x: x * sigmoid(1.702 * x)),
             unary("gelu", mode="TANH_APPROXIMATION", expected=lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))))],
    "prelu": [unary("prelu", IMAGE, alpha=B[:4])], "softplus_parametric": [unary("softplus_parametric", alpha=A, beta=BETA)],
    "sigmoid_hard": [unary("sigmoid_hard", X * 4, alpha=F(0.3), beta=F(0.4))], "scaled_tanh": [unary("scaled_tanh", alpha=F(1.5), beta=F(0.7))],
    "clamped_relu": [unary("clamped_relu", X * 4, alpha=F(0.3), beta=F(2))],
    "linear_activation": [unary("linear_activation", alpha=F(0.3), beta=F(2))],
    "thresholded_relu": [unary("thresholded_relu", Z, alpha=F(0.5)), unary("thresholded_relu", Z, alpha=F(1)), unary("thresholded_relu", Z, alpha=F(-np.inf))],
    "softmax": [unary("softmax", axis=1), unary("softmax", axis=-1, expected=lambda x: softmax(x, -1))],
    "linear": [unary("linear", weight=V, bias=B), unary("linear", X[0], weight=V), unary("linear", X[0, 0], weight=V, bias=B, expected=lambda x: V @ x + B)],
    "matmul": [op("matmul", X, R4, expected=np.matmul), op("matmul", X, X, transpose_y=True), op("matmul", X, X, transpose_x=True), op("matmul", X, y=V, transpose_y=True, expected=lambda x: x @ V.T)],
    "einsum": [(lambda mb, x, y: mb.einsum(values=(x, y), equation="chw,whu->chu"), (X, random.normal(size=(4, 3, 5)).astype(F)), lambda x, y: np.einsum("chw,whu->chu", x, y)),
               (lambda mb, x, y: mb.einsum(values=(x, y), equation="nchw,nwhu->nchu"), (X[None], random.normal(size=(2, 4, 3, 5)).astype(F)), lambda x, y: np.einsum("chw,nwhu->nchu", x[0], y))],
    "scaled_dot_product_attention": [
        op("scaled_dot_product_attention", X, R4[:, :, :4], R4[:, :, 1:], keys=("query", "key", "value"), expected=lambda q, k, v: softmax(q @ k.swapaxes(1, 2) / 2, -1) @ v),
        op("scaled_dot_product_attention", X, R4[:, :, :4], R4[:, :, 1:], N[:, :, :4] > -5, keys=("query", "key", "value", "attn_mask"),
           expected=lambda q, k, v, m: softmax(np.where(m, q @ k.swapaxes(1, 2) / 2, -np.inf), -1) @ v)],
    "conv": [op("conv", IMAGE, weight=W, expected=lambda x: conv2d(x, W)),
             op("conv", IMAGE, weight=W, pad_type="custom", pad=[1, 2, 0, 3], expected=lambda x: conv2d(x, W, (1, 2, 0, 3))),
             op("conv", IMAGE, weight=W, pad_type="same", strides=[2, 2], expected=lambda x: conv2d(x, W, (0, 1, 0, 1), (2, 2))),
             op("conv", IMAGE, weight=W, pad_type="same_lower", strides=[2, 2], since="iOS17", expected=lambda x: conv2d(x, W, (1, 0, 1, 0), (2, 2))),
             op("conv", IMAGE, weight=W, pad_type="same", dilations=[2, 1], expected=lambda x: conv2d(x, W, (2, 2, 1, 1), dilations=(2, 1))),
             op("conv", IMAGE, weight=WG, groups=2, bias=B, expected=lambda x: conv2d(x, WG, groups=2) + B[:, None, None]),
             op("conv", IMAGE, W, keys=("x", "weight"), expected=conv2d),
             op("conv", X, weight=W[:, :3, 0], expected=lambda x: conv2d(x[:, :, None], W[:, :3, :1])[:, :, 0])],
    "conv_transpose": [op("conv_transpose", IMAGE, weight=WT, expected=lambda x: conv_transpose2d(x, WT, 1)),
                       op("conv_transpose", IMAGE, weight=WT, strides=[2, 2], expected=lambda x: conv_transpose2d(x, WT, 2)),
                       op("conv_transpose", IMAGE, weight=WT, strides=[2, 2], pad_type="same", expected=lambda x: conv_transpose2d(x, WT, 2)[:, :, :12, :12]),
                       op("conv_transpose", IMAGE, weight=WT, strides=[2, 2], pad_type="custom", pad=[1, 0, 0, 2], expected=lambda x: conv_transpose2d(x, WT, 2)[:, :, 1:, :-2]),
                       op("conv_transpose", IMAGE, weight=WT, strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1], output_shape=[1, 5, 12, 12], expected=lambda x: conv_transpose2d(x, WT, 2)[:, :, 1:, 1:])],
    "max_pool": [op("max_pool", IMAGE, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid", expected=lambda x: pool(x, 2, 2, lambda p: p.max((2, 3)))),
                 op("max_pool", IMAGE, kernel_sizes=[3, 3], strides=[2, 2], pad_type="valid", ceil_mode=True,
                    expected=lambda x: pool(np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-np.inf), 3, 2, lambda p: p.max((2, 3))))],
    "avg_pool": [op("avg_pool", IMAGE, kernel_sizes=[3, 3], strides=[1, 1], pad_type="same", expected=lambda x: pool(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), 3, 1, lambda p: p.mean((2, 3)))),
                 op("avg_pool", IMAGE, kernel_sizes=[3, 3], strides=[1, 1], pad_type="same", exclude_padding_from_average=True,
                    expected=lambda x: pool(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.nan), 3, 1, lambda p: np.nanmean(p, (2, 3))))],
    "l2_pool": [op("l2_pool", IMAGE, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid", expected=lambda x: pool(x, 2, 2, lambda p: np.sqrt((p**2).sum((2, 3)))))],
    "batch_norm": [op("batch_norm", X, mean=A, variance=BETA, expected=lambda x: (x - A[:, None]) / np.sqrt(BETA[:, None] + 1e-5)),
                   op("batch_norm", X, mean=A, variance=BETA, gamma=BETA, beta=A, epsilon=F(0.1), expected=lambda x: (x - A[:, None]) / np.sqrt(BETA[:, None] + 0.1) * BETA[:, None] + A[:, None])],
    "instance_norm": [op("instance_norm", IMAGE, expected=lambda x: normalized(x, (2, 3))),
                      op("instance_norm", X, gamma=A, beta=BETA, expected=lambda x: normalized(x, 2) * A[:, None] + BETA[:, None])],
    "layer_norm": [op("layer_norm", X, axes=[-1], expected=lambda x: normalized(x, 2)),
                   op("layer_norm", X, axes=[1], gamma=A, beta=BETA, expected=lambda x: normalized(x, 1) * A[:, None] + BETA[:, None]),
                   op("layer_norm", X, axes=[0, 2], expected=lambda x: normalized(x, (0, 2))),
                   op("layer_norm", X, axes=[-2, -1], gamma=X[0], epsilon=F(0.1), expected=lambda x: normalized(x, (1, 2), 0.1) * X[0])],
    "l2_norm": [op("l2_norm", IMAGE, epsilon=F(0.1), expected=lambda x: x / np.sqrt((x**2).sum((1, 2, 3), keepdims=True) + 0.1))],
    "local_response_norm": [op("local_response_norm", IMAGE, size=3, alpha=F(0.5), expected=lambda x: x / (1 + 0.5 / 3 * sum(np.pad(x**2, ((0, 0), (1, 1), (0, 0), (0, 0)))[:, i : i + 4] for i in range(3))) ** 0.75),
                            op("local_response_norm", IMAGE, size=2, alpha=F(0.5), expected=lambda x: x / (1 + 0.5 / 2 * sum(np.pad(x**2, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, i : i + 4] for i in range(2))) ** 0.75)],
    **{name: [unary(name, POSITIVE, axes=[1], keep_dims=True), unary(name, POSITIVE), unary(name, POSITIVE, axes=[-1, 0]),
              *([unary(name, LARGE, axes=[1], halves=False)] if name in ("reduce_mean", "reduce_log_sum_exp") else [])]
       for name in ("reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square")},
    **{name: [unary(name, N % 3, axis=1), unary(name, X, axis=-1, keep_dims=True)] for name in ("reduce_argmax", "reduce_argmin")},
    "reshape": [unary("reshape", shape=[0, -1, 2], expected=lambda x: x.reshape(2, 6, 2)), unary("reshape", shape=[24])],
    "reshape_like": [(lambda mb, x, y: mb.reshape_like(x=x, ref_tensors=(y, y), begins=(0, 1), ends=(1, 0), end_masks=(False, True)), (X, np.zeros((4, 6), F)), lambda x, y: x.reshape(4, 6))],
    "expand_dims": [unary("expand_dims", axes=[0, -1])],
    "squeeze": [unary("squeeze", X[:, :1, None], axes=[1]), unary("squeeze", X[:1, :, None])],
    "flatten2d": [unary("flatten2d", axis=2), unary("flatten2d", axis=-1, expected=lambda x: x.reshape(6, 4))],
    "transpose": [unary("transpose", perm=[-1, 0, 1])],
    "concat": [(lambda mb, x, y: mb.concat(values=(x, y), axis=-1), (X, R4[:, :3]), None),
               (lambda mb, x, y: mb.concat(values=(x, y), axis=1, interleave=True), (X, UNIT), lambda x, y: np.stack([x, y], 2).reshape(2, 6, 4))],
    "stack": [(lambda mb, x, y: mb.stack(values=(x, y), axis=-1), (X, UNIT), lambda x, y: np.stack([x, y], -1))],
    "split": [op("split", X, num_splits=2, axis=-1), op("split", X, split_sizes=[1, 2], axis=1)],
    "tile": [unary("tile", reps=[2, 1, 3])],
    "pad": [unary("pad", pad=[1, 2], mode="constant", constant_val=F(9)), unary("pad", pad=[1, 0, 2, 3], mode="reflect"),
            unary("pad", pad=[1, 0, 2, 3], mode="replicate", expected=lambda x: np.pad(x, ((0, 0), (1, 0), (2, 3)), "edge"))],
    "reverse": [unary("reverse", axes=[-1, 0]), unary("reverse")],
    "fill": [(lambda mb, x: mb.fill(shape=x, value=F(3)), (np.array([2, 3], INT),), lambda x: np.full((2, 3), 3, F))],
    "fill_like": [op("fill_like", X, keys=("ref_tensor",), value=INT(4), expected=lambda x: np.full(x.shape, 4, INT))],
    "range_1d": [(lambda mb, x: mb.range_1d(start=INT(1), end=mb.squeeze(x=x, axes=[0]), step=INT(3)), (np.array([11], INT),), lambda x: np.arange(1, x[0], 3, dtype=INT)),
                 (lambda mb, x: mb.range_1d(start=mb.squeeze(x=x, axes=[0]), end=F(-1), step=F(-0.5)), (np.array([1], F),), lambda x: np.arange(1, -1, -0.5, dtype=F))],
    "cumsum": [unary("cumsum", axis=1, expected=lambda x: x.cumsum(1)), unary("cumsum", X, axis=-1, exclusive=True, reverse=True, expected=lambda x: x[..., ::-1].cumsum(-1)[..., ::-1] - x)],
    "topk": [op("topk", X, k=2, axis=1), op("topk", N, k=2, axis=-1, ascending=True, halves=False)],
    "argsort": [unary("argsort", axis=1), unary("argsort", axis=-1, ascending=True)],
    "non_zero": [unary("non_zero", np.array([[1, 0, 2], [0, 3, 0]], F))],
    "one_hot": [op("one_hot", IDX, keys=("indices",), one_hot_vector_size=4, expected=lambda i: np.eye(4, dtype=INT)[i]), op("one_hot", IDX, keys=("indices",), one_hot_vector_size=3, axis=0, on_value=F(5), off_value=F(-1), expected=lambda i: np.eye(3, dtype=F)[i].T * 6 - 1)],
    "band_part": [unary("band_part", lower=1, upper=0), unary("band_part", N, lower=-1, upper=1)],
    "slice_by_index": [
        unary("slice_by_index", begin=[1, 0, -1], end=[2, 3, -4], stride=[1, 2, -2]),
        unary("slice_by_index", begin=[0, 1, 3], end=[9, 9, 0], stride=[1, 1, -1], begin_mask=[True, False, False], end_mask=[False, True, True]),
        unary("slice_by_index", begin=[-1, 0, 2], end=[0, 2, 3], squeeze_mask=[True, False, True]),
        (lambda mb, x, b: mb.slice_by_index(x=x, begin=b, end=[2, 3, 4], end_mask=[False, False, True]), (X, np.array([1, 0, 2], INT)), lambda x, b: x[1:2, 0:3, 2:])],
    "slice_by_size": [unary("slice_by_size", begin=[0, 1, 1], size=[2, -1, 2]),
                      (lambda mb, x, b: mb.slice_by_size(x=x, begin=b, size=[1, 2, -1]), (X, np.array([1, 0, 2], INT)), lambda x, b: x[1:2, 0:2, 2:])],
    "slice_update": [op("slice_update", X, X[:, :2, :2] * 9, keys=("x", "update"), begin=[0, 0, 0], end=[2, 3, 4], stride=[1, 2, 2], expected=lambda x, u: updated(x, u, np.s_[:, ::2, ::2])),
                     op("slice_update", X, X[1, :, :2] * 9, keys=("x", "update"), begin=[-1, 0, 3], end=[0, 3, 0], stride=[1, 1, -2], squeeze_mask=[True, False, False], expected=lambda x, u: updated(x, u, np.s_[-1, :, 3:0:-2])),
                     (lambda mb, x, u, b: mb.slice_update(x=x, update=u, begin=mb.concat(values=[np.array([0], INT), b, np.array([0], INT)], axis=0), end=[0, 3, 0], begin_mask=[True, False, True], end_mask=[True, False, True]), (X, X[:, :2] * 9, np.array([-2], INT)), lambda x, u, b: updated(x, u, np.s_[:, 1:])),
                     op("slice_update", X, X[0] * 9, keys=("x", "update"), begin=[1, 0, 0], end=[0, 0, 0], begin_mask=[False, True, True], end_mask=[False, True, True], squeeze_mask=[True, False, False], expected=lambda x, u: updated(x, u, np.s_[1])),
                     op("slice_update", X, X * 9, keys=("x", "update"), begin=[0, 0, 0], end=[0, 0, 0], begin_mask=[True] * 3, end_mask=[True] * 3, expected=lambda x, u: u)],
    "gather": [op("gather", X, IDX, keys=("x", "indices"), axis=1), op("gather", X, np.array([[-1, 0]], INT), keys=("x", "indices"), axis=-1, halves=False, expected=lambda x, i: x[:, :, [[-1, 0]]]),
               op("gather", X, np.array([[0, 2], [3, 1]], INT), keys=("x", "indices"), axis=2, batch_dims=1, since="iOS16", expected=lambda x, i: np.stack([x[0][:, i[0]], x[1][:, i[1]]]))],
    "gather_along_axis": [op("gather_along_axis", X, np.abs(N) % 3, keys=("x", "indices"), axis=1)],
    "gather_nd": [op("gather_nd", X, np.array([[1, 2], [0, -1]], INT), keys=("x", "indices"), expected=lambda x, i: x[[1, 0], [2, -1]]),
                  op("gather_nd", X, np.array([[1], [2]], INT), keys=("x", "indices"), batch_dims=1, since="iOS16", expected=lambda x, i: x[[0, 1], [1, 2]])],
    "scatter": [op("scatter", X, np.array([2, 0], INT), POSITIVE[:, :2], keys=("data", "indices", "updates"), axis=1, mode=mode, expected=lambda d, i, u, f=f: scattered(d, i, u, 1, f))
                for mode, f in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum, "update": lambda a, b: b}.items()],
    "scatter_along_axis": [op("scatter_along_axis", X, np.array([[[2, 0, 1, 1]], [[0, 0, 2, 1]]], INT), X[:, :1] * 3, keys=("data", "indices", "updates"), axis=1, mode=mode, expected=lambda d, i, u, f=f: along(d, i, u, f))
                           for mode, f in {"add": np.add, "sub": np.subtract, "update": lambda a, b: b}.items()],
    "scatter_nd": [op("scatter_nd", X, np.array([[1, 2], [0, 1]], INT), X[0, :2], keys=("data", "indices", "updates"), mode="update", expected=lambda d, i, u: updated(updated(d, u[0], np.s_[1, 2]), u[1], np.s_[0, 1]))],
    "upsample_nearest_neighbor": [op("upsample_nearest_neighbor", IMAGE, scale_factor_height=2, scale_factor_width=3, expected=lambda x: x.repeat(2, 2).repeat(3, 3))],
    "upsample_bilinear": [op("upsample_bilinear", np.array([[[[0, 1]]]], F), scale_factor_width=3, scale_factor_height=1, align_corners=False, expected=lambda x: np.array([[[[0, 0, 1 / 3, 2 / 3, 1, 1]]]], F)),
                          op("upsample_bilinear", np.array([[[[0, 1]]]], F), scale_factor_width=3, scale_factor_height=1, expected=lambda x: np.array([[[[0, 0.2, 0.4, 0.6, 0.8, 1]]]], F))],
    "resize_nearest_neighbor": [op("resize_nearest_neighbor", IMAGE, target_size_height=12, target_size_width=3, expected=lambda x: x.repeat(2, 2)[..., ::2])],
    "resize_bilinear": [op("resize_bilinear", np.array([[[[0, 1]]]], F), target_size_height=1, target_size_width=5, sampling_mode=mode, expected=lambda x, e=e: np.array([[[e]]], F))
                        for mode, e in {"STRICT_ALIGN_CORNERS": [0, 0.25, 0.5, 0.75, 1], "DEFAULT": [0, 0.4, 0.8, 1, 1], "UNALIGN_CORNERS": [0, 0.1, 0.5, 0.9, 1], "OFFSET_CORNERS": [0.1, 0.3, 0.5, 0.7, 0.9]}.items()],
    "resize": [
        op("resize", IMAGE, shape=np.array([9, 0, 12], INT), resized_dims=np.uint32(2), interpolation_mode="NEAREST_NEIGHBOR", sampling_mode="DEFAULT", expected=lambda x: x.repeat(2, 3)),
        op("resize", IMAGE[..., :2, :2], shape=np.array([3, 3], INT), resized_dims=np.uint32(2), interpolation_mode="NEAREST_NEIGHBOR", sampling_mode="DEFAULT", expected=lambda x: x[:, :, [0, 1, 1]][..., [0, 1, 1]]),
        op("resize", np.array([[[[0, 1]]]], F), shape=np.array([1, 6], INT), resized_dims=np.uint32(2), sampling_mode="UNALIGN_CORNERS", expected=lambda x: np.array([[[[0, 0, 1 / 3, 2 / 3, 1, 1]]]], F)),
    ],
    "depth_to_space": [op("depth_to_space", IMAGE, block_size=2, expected=lambda x: x.reshape(1, 2, 2, 1, 6, 6).transpose(0, 3, 4, 1, 5, 2).reshape(1, 1, 12, 12))],
    "pixel_shuffle": [op("pixel_shuffle", IMAGE, upscale_factor=2, expected=lambda x: x.reshape(1, 1, 2, 2, 6, 6).transpose(0, 1, 4, 2, 5, 3).reshape(1, 1, 12, 12))],
    "space_to_depth": [op("space_to_depth", IMAGE, block_size=2, expected=lambda x: x.reshape(1, 4, 3, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 16, 3, 3))],
    "pixel_unshuffle": [op("pixel_unshuffle", IMAGE, downscale_factor=np.uint32(2), expected=lambda x: x.reshape(1, 4, 3, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 16, 3, 3))],
    "space_to_batch": [op("space_to_batch", IMAGE, block_shape=[2, 2], paddings=[[0, 0], [0, 0]], expected=lambda x: np.stack([x[0, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]))],
    "batch_to_space": [op("batch_to_space", IMAGE.reshape(4, 1, 6, 6), block_shape=[2, 2], crops=[[1, 0], [0, 2]], expected=lambda x: interleaved(x)[:, :, 1:, :-2])],
    "crop": [op("crop", IMAGE, crop_height=[1, 0], crop_width=[2, 1], expected=lambda x: x[:, :, 1:, 2:-1])],
    "sliding_windows": [op("sliding_windows", R4, axis=-1, size=2, stride=2, expected=lambda x: np.stack([x[..., 0:2], x[..., 2:4]], 2))],
    "reverse_sequence": [op("reverse_sequence", R4, np.array([1, 2, 5, 3], INT), keys=("x", "lengths"), seq_axis=2, batch_axis=1,
                            expected=lambda x, n: np.stack([np.concatenate([x[:, b, :k][:, ::-1], x[:, b, k:]], 1) for b, k in enumerate(n)], 1))],
    "quantize": [op("quantize", Z, keys=("input",), scale=F(0.5), zero_point=np.int8(3), output_dtype="int8", expected=lambda x: np.clip(np.rint(x / F(0.5)) + 3, -128, 127).astype(np.int8).astype(INT))],
    "dequantize": [(lambda mb, x: mb.dequantize(input=mb.quantize(input=x, scale=F(0.5), output_dtype="int8"), scale=F(0.25)), (Z,), lambda x: np.rint(x / F(0.5)) * F(0.25))],
    "cond": [(lambda mb, x: mb.cond(pred=mb.greater(x=mb.reduce_sum(x=x), y=F(0)), _true_fn=lambda: mb.add(x=x, y=F(1)), _false_fn=lambda: mb.mul(x=x, y=F(2))), (np.abs(X),), lambda x: x + 1),
             (lambda mb, x: mb.cond(pred=mb.greater(x=mb.reduce_sum(x=x), y=F(0)), _true_fn=lambda: mb.add(x=x, y=F(1)), _false_fn=lambda: mb.identity(x=x)), (-np.abs(X),), lambda x: x)],
    "while_loop": [(lambda mb, x: mb.while_loop(_cond=lambda i, y: mb.less(x=i, y=F(3)), _body=lambda i, y: (mb.add(x=i, y=F(1)), mb.add(x=y, y=x)), loop_vars=(F(0), mb.mul(x=x, y=F(2)))), (X,), lambda x: (np.float32(3), 5 * x))],
    "list_scatter": [(lambda mb, x: scattered_list(mb, x, 3, True), (X,), lambda x: (np.stack([x[1], np.zeros_like(x[0]), x[0]]), INT(3))),
                     (lambda mb, x: scattered_list(mb, x, 1, True), (X,), lambda x: (np.stack([x[1], np.zeros_like(x[0]), x[0]]), INT(3)))],
    "list_write": [(lambda mb, x: lists(mb, x), (X,), lambda x: (x, np.stack([x, x + 1]), INT(2)))],
    "rnn": [op("rnn", random.normal(size=(3, 1, 4)).astype(F), np.zeros((1, 6), F), keys=("x", "initial_h"), weight_ih=V, weight_hh=np.eye(6, dtype=F), bias=B, output_sequence=True, direction=d,
               expected=lambda x, h, d=d: recurrent(x, h, d)) for d in ("forward", "reverse")],
    "gru": [], "lstm": [],
}  # fmt: skip
CASES["gru"] = [
    op("gru", random.normal(size=(3, 1, 4)).astype(F), np.ones((1, 2), F), keys=("x", "initial_h"), weight_ih=V, weight_hh=V[:, :2],
       bias=B, output_sequence=sequence, direction=d, expected=lambda x, h, d=d, s=sequence: gru(x, h, d, s))
    for d in ("forward", "reverse") for sequence in (True, False)
]  # fmt: skip
LIH, LHH, LB, LP = (random.normal(size=size).astype(F) for size in ((8, 4), (8, 2), (8,), (6,)))
CASES["lstm"] = [
    op("lstm", random.normal(size=(3, 1, 4)).astype(F), np.ones((1, 2), F), np.ones((1, 2), F), keys=("x", "initial_h", "initial_c"), weight_ih=LIH, weight_hh=LHH, bias=LB, output_sequence=True,
       direction=d, expected=lambda x, h, c, d=d, more=more: lstm(x, h, c, d, **more), **more)
    for d in ("forward", "reverse") for more in ({}, {"peephole": LP}, {"clip": F(0.3)})
]  # fmt: skip
WQ = random.integers(0, 256, (6, 2, 3, 3)).astype(np.uint8)
SCALES, OFFSETS = np.linspace(0.005, 0.02, 6).astype(F), np.linspace(-1, 0.5, 6).astype(F)


def dequantized(scale, offset):
    """The weight of conv_quantized."""
    return WQ.astype(F) * np.reshape(scale, (-1, 1, 1, 1)) + np.reshape(offset, (-1, 1, 1, 1))


CASES["conv_quantized"] = [
    op("conv_quantized", IMAGE, weight=WQ, groups=2, quantization_type="linear", quant_scale=scale, quant_bias=offset,
       **more, expected=lambda x, s=scale, o=offset, m=more: quantized_conv2d(x, s, o, **m))
    for scale, offset, more in (
        (F(0.0078125), F(-1), {}), (SCALES, OFFSETS, {"bias": np.array([0, 1, 2, 3, 4, 255], np.uint8)}),
        (SCALES.reshape(6, 1, 1, 1), F(0.5), {"nbits": INT(4), "strides": [2, 2]}),
        (F(0.015625), OFFSETS, {"pad_type": "custom", "pad": [1, 2, 0, 3]}),
    )
]  # fmt: skip
CASES |= {
    "non_maximum_suppression": onnx_boxes.cases(Case),
    "resample": onnx_sampling.resample_cases(Case),
    "affine": onnx_sampling.affine_cases(Case),
    "crop_resize": onnx_sampling.crop_resize_cases(Case),
}


def quantized_conv2d(x, scale, offset, bias=None, pad=(0, 0, 0, 0), strides=(1, 1), **options):
    """Convolution with the weight that conv_quantized means; the bias is a number for each channel as it is."""
    found = conv2d(x, dequantized(scale, offset), pad, strides, groups=2)
    return found if bias is None else found + bias.astype(F)[:, None, None]


def lists(mb, x):
    ls = mb.make_list(init_length=2, elem_shape=(2, 3, 4), dtype="fp32")
    ls = mb.list_write(ls=ls, index=0, value=x)
    ls = mb.list_write(ls=ls, index=1, value=mb.add(x=x, y=F(1)))
    return mb.list_read(ls=ls, index=0), mb.list_gather(ls=ls, indices=[0, 1]), mb.list_length(ls=ls)


def scattered_list(mb, x, length, is_dynamic):
    """The two parts of x as number 2 and 0 of a list that has `length` elements at first."""
    ls = mb.make_list(init_length=length, dynamic_length=is_dynamic, elem_shape=(3, 4), dtype="fp32")
    ls = mb.list_scatter(ls=ls, indices=[2, 0], value=x)
    return mb.list_gather(ls=ls, indices=[0, 1, 2]), mb.list_length(ls=ls)


def updated(x, value, where):
    out = x.copy()
    out[where] = value
    return out


def along(data, indices, updates, apply):
    out = data.copy()
    for i in range(2):
        for k in range(4):
            out[i, indices[i, 0, k], k] = apply(out[i, indices[i, 0, k], k], updates[i, 0, k])
    return out


def interleaved(x):
    out = np.zeros((1, 1, 12, 12), x.dtype)
    for n, (i, j) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        out[:, :, i::2, j::2] = x[n : n + 1]
    return out


def recurrent(x, h, direction):
    found = []
    for step in x if direction == "forward" else x[::-1]:
        h = np.tanh(step @ V.T + h + B)
        found.append(h)
    return np.stack(found), h


def gru(x, h, direction, sequence):
    found = []
    for step in x if direction == "forward" else x[::-1]:
        r, o, z = (step @ part.T + bias for part, bias in zip(np.split(V, 3), np.split(B, 3), strict=True))
        rr, ro, rz = np.split(V[:, :2], 3)
        r, z = sigmoid(r + h @ rr.T), sigmoid(z + h @ rz.T)
        h = (1 - z) * np.tanh(o + (r * h) @ ro.T) + z * h
        found.append(h)
    return np.stack(found) if sequence else h[None], h


def lstm(x, h, c, direction, peephole=None, clip=None):
    found, p = [], np.zeros((3, 2), F) if peephole is None else peephole.reshape(3, 2)
    for step in x if direction == "forward" else x[::-1]:
        i, f, o, z = np.split(step @ LIH.T + h @ LHH.T + LB, 4, axis=1)
        c = sigmoid(f + p[1] * c) * c + sigmoid(i + p[0] * c) * np.tanh(z)
        c = c if clip is None else np.clip(c, -clip, clip)
        h = sigmoid(o + p[2] * c) * np.tanh(c)
        found.append(h)
    return np.stack(found), h, c


for _name, _cases in (*onnx_options.cases(op).items(), *onnx_structures.cases(Case).items()):
    CASES.setdefault(_name, []).extend(_cases)

ELSEWHERE = {
    "classify": "test_classifier.py", "const": "test_conversion.py", "read_state": "test_conversion.py",
    "write_state": "test_conversion.py", "coreml_update_state": "test_conversion.py", "shape": "test_operations.py",
    **dict.fromkeys(("random_normal", "random_uniform", "random_bernoulli", "random_categorical"), "test_operations.py"),
}  # fmt: skip
"""Operations whose tests are not in the table, and where these are."""


def changes():
    """Operation -> the opsets in which coremltools has it anew."""
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    found = {}
    for name, by_opset in SSAOpRegistry.core_ops.items():
        classes = {target.name: by_opset[target] for target in by_opset}
        present = [opset for opset in OPSETS if opset in classes]
        found[name] = [
            opset for at, opset in enumerate(present) if not at or classes[opset] is not classes[present[at - 1]]
        ]
    del found["_const_symbolic"]  # coremltools' own, which no Program has
    return found


def test_every_operation_has_cases_in_every_opset_that_changed_it():
    """An operation that coremltools has, or that is supported besides, cannot be added without a case."""
    opsets = changes()
    assert set(opsets) | {"write_state", "coreml_update_state"} == milblob.onnx.supported()
    assert set(CASES) | set(ELSEWHERE) == milblob.onnx.supported()
    for name, file in ELSEWHERE.items():
        assert name in pathlib.Path(__file__).with_name(file).read_text("utf-8"), f"{name}: no test in {file}"
    lacking = [
        (name, opset)
        for name, changed in opsets.items()
        for opset in changed
        if name not in ELSEWHERE and not (opset in opsets_of(name) and cases_of(name, opset, "fp32"))
    ]
    assert lacking == []


def given_parameters(block, found):
    """Add (operation, parameter) of what has another value than the default one."""
    for operation in block.operations:
        for inner in operation.blocks:
            given_parameters(inner, found)
        defaults = dict(operation.default_inputs()._default_inputs)
        for key, value in operation.inputs.items():
            known = getattr(value, "val", None)
            usual = defaults.get(key)
            if value is not None and (known is None or usual is None or not np.array_equal(known, usual)):
                found.add((operation.op_type, key))


def test_every_parameter_of_every_operation_has_a_case():
    """With another value than its default: an option that a converter leaves out gives wrong values."""
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, types

    found = set()
    for name in CASES:
        for opset in opsets_of(name):
            for case in cases_of(name, opset, "fp32"):
                kinds = [F if array.dtype == bool else array.dtype.type for array in case.arrays]
                inputs = {
                    f"v{i}": mb.placeholder(shape=array.shape, dtype=types.numpy_type_to_builtin_type(kind))
                    for i, (array, kind) in enumerate(zip(case.arrays, kinds, strict=True))
                }
                with Function(inputs, opset_version=getattr(ct.target, opset)) as function:
                    values = [
                        mb.cast(x=value, dtype="bool") if array.dtype == bool else value
                        for value, array in zip(function.inputs.values(), case.arrays, strict=True)
                    ]
                    case.build(mb, *values)
                given_parameters(function, found)
    known = {(name, key) for name in CASES for _, arguments in table().versions[name] for key in arguments}
    assert known - found == set()


def inferred(build, arrays):
    """What coremltools' value inference says."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function

    with Function({}), np.errstate(all="ignore"):
        found = build(mb, *arrays)
    return [one.val for one in found] if isinstance(found, list | tuple) else [found.val]


OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18")
SAME_SIGNATURE = {"clip": {"iOS17"}, "constexpr_cast": {"iOS18"}}
"""Opsets in which coremltools has an operation anew, but with the parameters that it had."""
KEPT = {"cast", "list_scatter"}
KEPT_IN_IOS15 = {"rnn", "gru", "lstm"}
"""What coremltools keeps in single precision."""


def cases_of(name, opset, precision):
    """The cases of an operation that an opset and a precision can have."""
    found = [Case(*case) for case in CASES[name]]
    return [case for case in found if case.since <= opset <= case.until and (case.halves or precision == "fp32")]


def opsets_of(name):
    """Every opset in which the operation is another one, the newest first."""
    return sorted({OPSETS[first] for first, _ in table().versions[name]} | SAME_SIGNATURE.get(name, set()))[::-1]


def takes_halves(name, opset):
    """Whether one of the operation's inputs may be of half precision, and its cases have numbers that can be."""
    if name in KEPT or (name in KEPT_IN_IOS15 and opset == "iOS15"):
        return False
    arguments = table().versions[name][-1][1].values()
    is_float = any(array.dtype == F for case in cases_of(name, opset, "fp16") for array in case.arrays)
    return is_float and any(one.kind == "tuple" or DType.FLOAT16 in one.dtypes for one in arguments)


MAX_QUICK = 2
"""Of an operation with more cases, `make test` takes so many, and `make thorough` all."""


def variants():
    """Operation, opset, precision, which cases; `make test` takes the newest signature in single precision."""
    for name in CASES:
        for number, opset in enumerate(opsets_of(name)):
            precisions = ("fp32", "fp16") if takes_halves(name, opset) else ("fp32",)
            for precision in precisions:
                count = len(cases_of(name, opset, precision))
                step = -(-count // MAX_QUICK)
                is_usual = number == 0 and precision == "fp32"
                if is_usual:
                    yield pytest.param(name, opset, precision, step, id=f"{name}-{opset}-{precision}-{step}")
                if step > 1 or not is_usual:
                    yield pytest.param(
                        name, opset, precision, 1, id=f"{name}-{opset}-{precision}-all", marks=pytest.mark.thorough
                    )


class Read(dict):
    """The inputs of an Operator, and which of them its converter has looked at."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.keys_read = set()

    def get(self, key, default=None):
        self.keys_read.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.keys_read.add(key)
        return super().__getitem__(key)


UNREAD = {
    ("conv_quantized", "nbits"),  # elements have a byte each
    ("quantize", "output_dtype"), ("reduce_argmax", "output_dtype"), ("reduce_argmin", "output_dtype"),
    ("topk", "output_indices_dtype"), ("topk", "return_indices"), ("split", "num_splits"),  # as the outputs say
    ("topk", "sort"),  # if it is not set, any order will do
    ("make_list", "dynamic_length"),  # of one that is not, elements behind the end have no meaning
}  # fmt: skip
"""Parameters that no converter needs."""
UNREAD_PADS = {
    (name, "pad") for name in ("avg_pool", "conv", "conv_quantized", "conv_transpose", "l2_pool", "max_pool")
}
"""Read where pad_type is custom: the cases of these operations have one each, which their results need."""


def recording(path, read, bound):
    """Converters of what a model has that note which parameters operations have, and which are read: (operation, parameter)."""

    def of(name):
        def convert(scope, operator, container):
            operator.inputs = inputs = Read(operator.inputs)
            registry.find(name, container.opset)(scope, operator, container)
            read.update((name, key) for key in inputs.keys_read)
            bound.update((name, key) for key in inputs)

        return convert

    with milblob.open(path) as model:
        types = {operation.type for operation in model.find()}
    return {name: of(name) for name in types if name in milblob.onnx.supported() and not name.startswith("const")}


@pytest.mark.sample(32)
@pytest.mark.parametrize(("name", "opset", "precision", "step"), list(variants()))
def test_operation(name, opset, precision, step, tmp_path):
    """The cases of an operation in one model, in each opset in which it has another signature, in both precisions."""
    from coremltools.converters.mil.mil import Builder as mb

    cases, feeds, expected = cases_of(name, opset, precision)[::step], {}, []
    for number, (build, arrays, formula, *_) in enumerate(cases):
        if precision == "fp16":  # the same numbers for both
            arrays = [array.astype(np.float16).astype(F) if array.dtype == F else array for array in arrays]
        feeds |= {f"v{number}_{i}": array for i, array in enumerate(arrays)}
        found = inferred(build, arrays) if formula is None else formula(*arrays)
        assert found is not None and all(one is not None for one in found), "no value inference: a formula is needed"
        expected += list(found) if isinstance(found, list | tuple) else [found]

    def whole(**values):
        made = []
        for number, (build, arrays, *_) in enumerate(cases):
            result = build(mb, *(values[f"v{number}_{i}"] for i in range(len(arrays))))
            made += list(result) if isinstance(result, list | tuple) else [result]
        return [mb.cast(x=one, dtype="fp32") if one.dtype.__name__ == "bool" else one for one in made]

    given = {key: (array.shape, np.float32 if array.dtype == bool else array.dtype) for key, array in feeds.items()}
    bools = {key for key, array in feeds.items() if array.dtype == bool}

    def from_floats(**values):
        return whole(**{k: mb.cast(x=v, dtype="bool") if k in bools else v for k, v in values.items()})

    path = save(tmp_path / "m.mlpackage", from_floats, given, opset=opset, precision=precision)
    read, bound = set(), set()
    milblob.onnx.convert(path, tmp_path / "m.onnx", converters=recording(path, read, bound))
    assert step > 1 or bound - read - UNREAD - UNREAD_PADS == set(), "parameters that the converter leaves out"
    with milblob.open(path) as model:
        assert model.find(type=name), "coremltools has optimised the operation away"
        if precision == "fp16":
            dtypes = {getattr(one.type, "dtype", None) for op in model.find() for one in op.outputs}
            assert DType.FLOAT16 in dtypes, "coremltools has kept all of it in single precision"
    feeds = {key: array.astype(F) if key in bools else array for key, array in feeds.items()}
    require_equal(list(run(tmp_path / "m.onnx", feeds).values()), expected, precision)
    if precision == "fp32" and opset == opsets_of(name)[0]:
        require_equal_in_opset_15(path, feeds, expected, tmp_path)


def require_equal_in_opset_15(path, feeds, expected, folder):
    """What is lowered computes the same; only what opset 15 lacks altogether may be refused: operators, one attribute."""
    with warnings.catch_warnings():  # that a later opset keeps more weights compressed is no news
        warnings.simplefilter("ignore", DecodedWarning)
        model = milblob.onnx.convert(path, weights="embed", opset=FROM)
    try:
        ir.save(lower(model, 15), folder / "old.onnx")
    except UnsupportedError as error:
        if re.match(r"LpPool \w+: expected no ceil_mode, as this opset has it, got 1$", str(error)):
            return
        (kind,) = re.findall(
            r"operators: expected those of ONNX opset 15, got (\w+) x\d+ \(first [^)]*\); ", str(error)
        )
        assert not onnx_version(kind, 15), kind
        return
    require_equal(list(run(folder / "old.onnx", feeds).values()), expected, "fp32")


def require_equal(found, expected, precision):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        if theirs.dtype.kind in "iub":
            np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))
        elif precision == "fp32":
            np.testing.assert_allclose(ours, theirs.astype(ours.dtype), rtol=2e-5, atol=2e-5)
        else:
            np.testing.assert_allclose(
                ours, theirs, rtol=0, atol=8e-3 * max(float(np.ptp(theirs)), float(np.abs(theirs).max()))
            )


RANDOM = {
    "random_normal": ({"mean": F(2), "stddev": F(3)}, 2, 3, -np.inf, np.inf),
    "random_uniform": ({"low": F(-1), "high": F(3)}, 1, 4 / 12**0.5, -1, 3),
    "random_bernoulli": ({"prob": F(0.3)}, 0.3, (0.3 * 0.7) ** 0.5, 0, 1),
}
"""Operation -> parameters, and of the numbers the mean, the deviation, and the bounds."""


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_random_numbers_have_their_distribution(tmp_path, precision):
    """Mean, deviation and range, of shapes that are constants and computed, with a seed and without."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        made = []
        for name, (parameters, *_) in RANDOM.items():
            for shape, more in (([200, 200], {}), ([200, 200], {"seed": INT(7)}), (mb.cast(x=x, dtype="int32"), {})):
                made.append(getattr(mb, name)(shape=shape, **parameters, **more))
        return made

    x = np.array([300, 1, 130], F)
    path = save(tmp_path / "m.mlpackage", build, {"x": x}, precision=precision)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    found = iter(run(tmp_path / "m.onnx", {"x": x}).values())
    again = iter(run(tmp_path / "m.onnx", {"x": x}).values())
    for _, mean, deviation, low, high in RANDOM.values():
        for shape in ((200, 200), (200, 200), (300, 1, 130)):
            numbers, others = (next(one).astype(np.float64) for one in (found, again))
            assert numbers.shape == shape
            np.testing.assert_allclose([numbers.mean(), numbers.std()], [mean, deviation], atol=0.02 * deviation)
            assert numbers.min() >= low and numbers.max() <= high
            np.testing.assert_allclose([others.mean(), others.std()], [mean, deviation], atol=0.02 * deviation)


def test_a_seed_gives_the_same_numbers_each_time(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        shape = mb.shape(x=x)
        return [mb.random_uniform(shape=shape, seed=INT(seed)) for seed in (1, 1, 2)] + [mb.random_normal(shape=shape)]

    x = np.zeros((3, 4), F)
    path = save(tmp_path / "m.mlpackage", build, {"x": x})
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    first, second = (list(run(tmp_path / "m.onnx", {"x": x}).values()) for _ in range(2))
    for number in (0, 1, 2):
        np.testing.assert_array_equal(first[number], second[number])
    assert not np.array_equal(first[0], first[2])
    np.testing.assert_array_equal(first[0], first[1])


def test_categories_are_drawn_as_often_as_they_are_probable(tmp_path):
    """From logits and from probabilities, of one distribution and of several."""
    from coremltools.converters.mil.mil import Builder as mb

    size = 20000
    shares = np.array([[0.2, 0.5, 0.3], [0.9, 0, 0.1]], F)

    def build(x):
        return (
            mb.random_categorical(x=mb.log(x=x, epsilon=F(1e-30)), size=size),
            mb.random_categorical(x=x, size=size, mode="probs", seed=INT(3)),
            mb.random_categorical(x=mb.slice_by_index(x=x, begin=[0, 0], end=[1, 3], squeeze_mask=[True, False]), size=5, mode="probs"),
        )  # fmt: skip

    path = save(tmp_path / "m.mlpackage", build, {"x": shares})
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    logits, probabilities, few = run(tmp_path / "m.onnx", {"x": shares}).values()
    assert few.shape == (5,) and set(few.astype(int)) <= {0, 1, 2}
    for drawn in (logits, probabilities):
        assert drawn.shape == (2, size)
        for row, expected in zip(drawn.astype(int), shares, strict=True):
            np.testing.assert_allclose(np.bincount(row, minlength=3) / size, expected, atol=0.02)


def test_shapes_of_open_dimensions(tmp_path):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        shape = mb.shape(x=x)
        tiled = mb.fill(shape=shape, value=F(2))
        last = mb.slice_by_index(x=shape, begin=[-1], end=[0], squeeze_mask=[True])
        return shape, tiled, mb.range_1d(start=INT(0), end=last, step=INT(2)), mb.argsort(x=x, axis=1)

    kind = ct.TensorType(name="x", shape=(2, ct.RangeDim(1, 9, 4)))
    path = save(tmp_path / "m.mlpackage", build, {"x": ((2, None), F)}, inputs=[kind])
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    for size in (1, 4, 9):
        x = np.random.default_rng(0).normal(size=(2, size)).astype(F)
        shape, tiled, numbers, order = run(tmp_path / "m.onnx", {"x": x}).values()
        np.testing.assert_array_equal(shape, [2, size])
        np.testing.assert_array_equal(tiled, np.full((2, size), 2, F))
        np.testing.assert_array_equal(numbers, np.arange(0, size, 2))
        np.testing.assert_array_equal(order, np.argsort(-x, axis=1))
        assert shape.dtype == numbers.dtype == order.dtype == INT


SCATTERS = {
    "scatter": (np.array([-1, 0], INT), np.array([9, 0], INT), np.array([[5, 6, 7], [8, 9, 10]], F)),
    "scatter_along_axis": (
        np.array([[-1, 0, 1], [1, 1, 0]], INT),
        np.array([[1, 9, 1], [1, 1, 0]], INT),
        np.array([[5, 6, 7], [8, 9, 10]], F),
    ),
    "scatter_nd": (np.array([[1, 0], [0, -1]], INT), np.array([[1, 0], [0, 3]], INT), np.array([5, 10], F)),
}
"""Operation -> indices with a negative one, indices behind the end, updates; of a tensor [2, 3]."""


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("validate", [False, True])
def test_indices_outside_of_the_tensor(tmp_path, name, validate):
    """They are errors when the model runs if they are validated; if not, anything but an error or a crash."""
    from coremltools.converters.mil.mil import Builder as mb

    *bad, updates = SCATTERS[name]
    data = np.array([[1, 2, 3], [4, 5, 6]], F)

    def build(data, indices, updates):
        return getattr(mb, name)(data=data, indices=indices, updates=updates, validate_indices=validate)

    path = save(tmp_path / "m.mlpackage", build, {"data": data, "indices": bad[0], "updates": updates})
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    for indices in bad:
        feeds = {"data": data, "indices": indices, "updates": updates}
        if validate:
            with pytest.raises(Exception, match="indic"):
                run(tmp_path / "m.onnx", feeds)
        else:
            (found,) = run(tmp_path / "m.onnx", feeds).values()
            np.testing.assert_allclose(found.sum(), data.sum() + updates.sum())


@pytest.mark.parametrize("name", ["gather", "gather_along_axis", "gather_nd"])
def test_indices_of_gathers_are_validated(tmp_path, name):
    """coremltools itself adds the size to negative indices."""
    from coremltools.converters.mil.mil import Builder as mb

    x = np.arange(6, dtype=F).reshape(2, 3)
    good = np.array([[1, 0, 1]], INT) if name == "gather_along_axis" else np.array([[1, 0]], INT)

    def build(x, indices):
        return getattr(mb, name)(x=x, indices=indices, validate_indices=True)

    path = save(tmp_path / "m.mlpackage", build, {"x": x, "indices": good})
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    run(tmp_path / "m.onnx", {"x": x, "indices": good})
    for number in (-9, 7):
        with pytest.raises(Exception, match="indic|index"):
            run(tmp_path / "m.onnx", {"x": x, "indices": np.where(good == 0, number, good).astype(INT)})


def test_a_scatter_into_nothing_does_not_divide_by_zero(tmp_path):
    """The indices are wrapped by the number of rows, which is open here, and 0."""
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    kinds = [ct.TensorType(name="data", shape=(ct.RangeDim(1, 9, 2), 3)), ct.TensorType(name="n", shape=(ct.RangeDim(1, 9, 2),))]  # fmt: skip

    def build(data, n):
        rows = mb.slice_by_index(x=data, begin=[1, 0], end=[0, 0], end_mask=[True, True])
        indices = mb.cast(x=mb.slice_by_index(x=n, begin=[1], end=[0], end_mask=[True]), dtype="int32")
        updates = mb.mul(x=rows, y=F(2))
        return mb.scatter(data=rows, indices=indices, updates=updates, mode="update")

    path = save(tmp_path / "m.mlpackage", build, {"data": ((None, 3), F), "n": ((None,), F)}, inputs=kinds)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    for count in (1, 2, 4):
        data = np.arange(3 * count, dtype=F).reshape(count, 3)
        (found,) = run(tmp_path / "m.onnx", {"data": data, "n": np.arange(count, dtype=F) - 1}).values()
        np.testing.assert_array_equal(found, 2 * data[1:])


def test_windows_of_an_open_length_and_of_a_large_one(tmp_path):
    """Their indices are computed; those of a short known length are a constant."""
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    def build(x, y):
        return mb.sliding_windows(x=x, axis=1, size=3, stride=2), mb.sliding_windows(x=y, axis=0, size=30, stride=1)

    kinds = [ct.TensorType(name="x", shape=(2, ct.RangeDim(3, 9, 5))), ct.TensorType(name="y", shape=(4000,))]
    path = save(tmp_path / "m.mlpackage", build, {"x": ((2, None), F), "y": ((4000,), F)}, inputs=kinds)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 10000
    y = np.arange(4000, dtype=F)
    for length in (3, 4, 5, 9):
        x = np.arange(2 * length, dtype=F).reshape(2, length)
        found = list(run(tmp_path / "m.onnx", {"x": x, "y": y}).values())
        view = np.lib.stride_tricks.sliding_window_view
        np.testing.assert_array_equal(found[0], view(x, 3, axis=1)[:, ::2])
        np.testing.assert_array_equal(found[1], view(y, 30))


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has RLIMIT_AS and /proc: memory that hostile input takes is not limited here",
)
def test_enormous_numbers_take_little_memory_and_time(tmp_path):
    """Of each operation (`make test`: each third), in every size that is declared and every integer: a refusal, or a model; no crash and no hang."""
    from coremltools.converters.mil.mil import Builder as mb

    names = list(CASES)[:: sized(3, 1)]
    for name in names:
        build, arrays, *_ = cases_of(name, opsets_of(name)[0], "fp32")[0]
        feeds = {f"v{number}": array for number, array in enumerate(arrays)}

        def one(build=build, **values):
            return build(mb, *values.values())

        save(tmp_path / f"{name}.mlpackage", one, feeds, opset=opsets_of(name)[0])
    code = """
        import pathlib
        import hostile_numbers
        hostile_numbers.convert_all(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
    """
    step = sized(60, 1)
    *problems, counts = run_fork(code, tmp_path, step, memory_nbytes=2560 << 20, timeout=900).splitlines()
    assert problems == []
    tried, peak = map(int, counts.split())
    assert tried > 20 * len(names) // step
    assert peak < 1000, f"{peak} MiB"
