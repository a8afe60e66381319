"""Further cases for the tests of milblob.onnx: every option of an operation, and values at the edges.

`cases` returns {operation: cases}; its argument makes a case of an operation, its inputs and its parameters.
"""

import itertools
from math import pi

import numpy as np

from onnx_sampling import GRIDS, grid

F, INT = np.float32, np.int32
INF, NAN = np.inf, np.nan
random = np.random.default_rng(23)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "sigmoid": sigmoid, "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "linear": lambda x: x,
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
}  # fmt: skip


def steps(x, direction):
    return x[::-1] if direction == "reverse" else x


def lstm(x, h, c, w, *, direction="forward", sequence=True, clip=None, names=("sigmoid", "tanh", "tanh")):
    """One direction; w holds weight_ih, weight_hh, bias and peephole, whose gates are i, f, o, z."""
    gate, cell, out = (ACTIVATIONS[name] for name in names)
    size, found = h.shape[1], []
    peephole = np.reshape(w.get("peephole", np.zeros(3 * size)), (3, size))
    for step in steps(x, direction):
        i, f, o, z = np.split(step @ w["weight_ih"].T + h @ w["weight_hh"].T + w.get("bias", 0), 4, axis=1)
        c = gate(f + peephole[1] * c) * c + gate(i + peephole[0] * c) * cell(z)
        c = c if clip is None else np.clip(c, -clip, clip)
        h = gate(o + peephole[2] * c) * out(c)
        found.append(h)
    return (np.stack(found) if sequence else h[None]), h, c


def both(x, h, c, w, back, **options):
    """Both directions: their results side by side, the steps of the second one in the order of the sequence."""
    size = h.shape[1] // 2
    first = lstm(x, h[:, :size], c[:, :size], w, **options)
    second = lstm(x[::-1], h[:, size:], c[:, size:], back, **options)
    turned = second[0][::-1] if options.get("sequence", True) else second[0]
    return tuple(np.concatenate(pair, -1) for pair in zip(first, (turned, *second[1:]), strict=True))


def gru(x, h, w, *, direction="forward", sequence=True, after=False, names=("sigmoid", "tanh")):
    """The gates are r, o, z; `after`: what the reset gate multiplies has been through the recurrent weight."""
    gate, out = (ACTIVATIONS[name] for name in names)
    found, size = [], h.shape[1]
    inner = np.split(np.asarray(w.get("input_bias", np.zeros(3 * size))), 3)
    outer = np.split(np.asarray(w.get("bias", np.zeros(3 * size))), 3)
    for step in steps(x, direction):
        r, o, z = (step @ part.T + bias for part, bias in zip(np.split(w["weight_ih"], 3), inner, strict=True))
        rr, ro, rz = np.split(w["weight_hh"], 3)
        r, z = gate(r + h @ rr.T + outer[0]), gate(z + h @ rz.T + outer[2])
        new = o + (r * (h @ ro.T + outer[1]) if after else (r * h) @ ro.T + outer[1])
        h = (1 - z) * out(new) + z * h
        found.append(h)
    return (np.stack(found) if sequence else h[None]), h


def rnn(x, h, w, *, direction="forward", sequence=True, name="tanh"):
    found = []
    for step in steps(x, direction):
        h = ACTIVATIONS[name](step @ w["weight_ih"].T + h @ w["weight_hh"].T + w.get("bias", 0))
        found.append(h)
    return (np.stack(found) if sequence else h[None]), h


def normal(*shape):
    return (random.normal(size=shape) / 2).astype(F)


def recurrent_cases(op):
    x, size = normal(4, 2, 3), 2  # 4 steps of 2 sequences

    def weights(gates, more=(), end=""):
        shapes = {"weight_ih": (gates * size, 3), "weight_hh": (gates * size, size), "bias": (gates * size,)}
        shapes |= {"input_bias": (gates * size,), "peephole": (3 * size,)}
        return {key: normal(*shapes[key]) for key in ("weight_ih", "weight_hh", *more)}

    lstms, grus, rnns = [], [], []
    keys = ("recurrent_activation", "cell_activation", "activation")
    for direction, sequence, (more, clip, names) in itertools.product(
        ("forward", "reverse", "bidirectional"),
        (True, False),
        (
            ((), None, ("sigmoid", "tanh", "tanh")),
            (("bias", "peephole"), None, ("hard_sigmoid", "relu", "linear")),
            (("bias", "peephole"), F(0.25), ("tanh", "linear", "sigmoid")),
            (("bias",), F(0.5), ("sigmoid", "tanh", "relu")),
        ),
    ):
        w = weights(4, more)
        given = w | {"direction": direction, "output_sequence": sequence} | dict(zip(keys, names, strict=True))
        given |= {} if clip is None else {"clip": clip}
        options = {"sequence": sequence, "clip": clip, "names": names}
        states = 2 * size if direction == "bidirectional" else size
        if direction == "bidirectional":
            back = weights(4, more)
            given |= {f"{key}_back": value for key, value in back.items()}

            def formula(x, h, c, w=w, back=back, options=options):
                return both(x, h, c, w, back, **options)
        else:

            def formula(x, h, c, w=w, options=options, direction=direction):
                return lstm(x, h, c, w, direction=direction, **options)

        inputs = ("x", "initial_h", "initial_c")
        lstms.append(op("lstm", x, normal(2, states), normal(2, states), keys=inputs, expected=formula, **given))
    for direction, sequence, (more, names) in itertools.product(
        ("forward", "reverse"), (True, False), (((), ("sigmoid", "tanh")), (("bias",), ("hard_sigmoid", "relu")))
    ):
        w = weights(3, more)
        given = w | {"direction": direction, "output_sequence": sequence} | dict(zip(keys[::2], names, strict=True))
        options = {"direction": direction, "sequence": sequence, "names": names}
        grus.append(
            op("gru", x, normal(2, size), keys=("x", "initial_h"), expected=lambda x, h, w=w, o=options: gru(x, h, w, **o), **given)
        )  # fmt: skip
        later = weights(3, ("bias", "input_bias"))
        grus += [
            op("gru", x, normal(2, size), keys=("x", "initial_h"), since="iOS18", **(given | later), reset_after=after,
               expected=lambda x, h, w=later, o=options, a=after: gru(x, h, w, after=a, **o))
            for after in (False, True)
        ]  # fmt: skip
    for direction, sequence, (more, name) in itertools.product(
        ("forward", "reverse"), (True, False), (((), "relu"), (("bias",), "sigmoid"), (("bias",), "linear"))
    ):
        w = weights(1, more)
        given = w | {"direction": direction, "output_sequence": sequence, "activation": name}
        options = {"direction": direction, "sequence": sequence, "name": name}
        rnns.append(
            op("rnn", x, normal(2, size), keys=("x", "initial_h"), expected=lambda x, h, w=w, o=options: rnn(x, h, w, **o), **given)
        )  # fmt: skip
    return {"lstm": lstms, "gru": grus, "rnn": rnns}


ROUNDED = np.array([[0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -7.9999995, 8388609, INF, -INF, NAN]], F)
ANGLES = np.array([[0, -0.0, pi / 2, -pi, 1e4, -12345.678, 1e-20, NAN]], F)


def edge_cases(op):
    """Values at the edges: signs of zero, halves, infinities, what is no number, what overflows."""
    whole = {"halves": False}
    logical = [np.array([[[True, False, True, False]]]), np.array([[True], [False], [True]])]
    found = {name: [op(name, ROUNDED, **whole)] for name in ("ceil", "floor", "round", "abs", "sign", "square")}
    found |= {name: [op(name, ANGLES, **whole)] for name in ("sin", "cos", "tan")}
    found |= {name: [op(name, *logical)] for name in ("logical_and", "logical_or", "logical_xor")}
    found |= {
        "asin": [op("asin", np.array([1, -1, 0, -0.0, 1.5, -2, NAN, 1e-20], F), **whole)],
        "acos": [op("acos", np.array([1, -1, 0, -0.0, 1.5, -2, NAN], F), **whole)],
        "atanh": [op("atanh", np.array([1, -1, 0, -0.0, 1.5, NAN, 1e-20], F), **whole)],
        "atan": [op("atan", np.array([INF, -INF, 0, 1e30, NAN], F), **whole)],
        "exp2": [op("exp2", np.array([0, 1, -1, 10.5, 127, 128, -126, -200, INF, -INF, NAN], F), **whole)],
        "exp": [op("exp", np.array([0, 88, 89, -104, INF, -INF, NAN], F), **whole)],
        "sinh": [op("sinh", np.array([0, -0.0, 1e-10, 88, 90, -90, INF, -INF, NAN], F), **whole)],
        "cosh": [op("cosh", np.array([0, 88, 90, -90, INF, NAN], F), **whole)],
        "tanh": [op("tanh", np.array([0, -0.0, 1e-10, 20, -100, INF, NAN], F), **whole)],
        "sqrt": [op("sqrt", np.array([0, -0.0, -1, INF, NAN, 1e-40], F), **whole)],
        "log": [
            op("log", np.array([0, 1, INF, NAN], F), epsilon=F(1e-20), **whole),
            op("log", np.array([0, 0.5, 3], F), epsilon=F(0.25)),
        ],
        "rsqrt": [op("rsqrt", np.array([0, 1, 4, INF], F), epsilon=F(0.25), expected=lambda x: 1 / np.sqrt(x + 0.25), **whole)],
        "inverse": [op("inverse", np.array([0, -2, 4, INF], F), epsilon=F(0.5), expected=lambda x: 1 / (x + 0.5), **whole)],
        "clip": [
            op("clip", np.array([-INF, INF, NAN, -0.5, 0.7, 0.70000005, 0], F), alpha=F(-0.5), beta=F(0.7), **whole),
            op("clip", np.array([-1, 0, 1], F), alpha=F(0), beta=F(0), until="iOS16"),
        ],
        "threshold": [op("threshold", np.array([-INF, INF, 0.2, 0.1], F), alpha=F(0.2), **whole)],
        "erf": [op("erf", np.array([0, -0.0, 5, -5, INF, -INF, NAN], F), **whole)],
        "maximum": [op("maximum", np.array([NAN, 1, -INF], F), np.array([0, NAN, INF], F), **whole)],
        "minimum": [op("minimum", np.array([NAN, 1, -INF], F), np.array([0, NAN, INF], F), **whole)],
        "pow": [op("pow", np.array([2, -2, 0, 0, 4], F), np.array([-1, 3, 0, 2, 0.5], F))],
        "cast": [op("cast", np.array([2.9, -2.9, 0.99999, -0.5, 1e9], F), dtype="int32"), op("cast", np.array([NAN, -0.0, 1e-45, 0], F), dtype="bool")],
        "relu": [op("relu", np.array([-INF, INF, -0.0, 0, -1], F), **whole)],
        "softmax": [op("softmax", np.array([[1000, 1000, -1000], [0, -INF, 1]], F), axis=-1, **whole, expected=lambda x: np.array([[0.5, 0.5, 0], [1 / (1 + np.e), 0, np.e / (1 + np.e)]], F))],
    }  # fmt: skip
    positive = np.abs(normal(2, 3, 4)) + F(0.1)
    signed, integers = normal(2, 3, 4), random.integers(-5, 6, (2, 3, 4)).astype(INT)
    for name in ("l1_norm", "l2_norm", "log_sum", "log_sum_exp", "max", "mean", "min", "prod", "sum", "sum_square"):
        key, data = f"reduce_{name}", positive if name == "log_sum" else signed
        found[key] = [
            op(key, data, keep_dims=True),
            op(key, data, axes=[0, 1, 2]),
            op(key, data, axes=[-1], keep_dims=True),
            op(key, data[:, :1], axes=[1]),
        ]
    for name in ("l1_norm", "max", "min", "prod", "sum", "sum_square"):
        found[f"reduce_{name}"].append(op(f"reduce_{name}", integers, axes=[1]))
    found["reduce_l2_norm"].append(op("reduce_l2_norm", np.zeros((2, 3), F), axes=[-1]))
    found["reduce_log_sum"].append(op("reduce_log_sum", np.zeros((2, 3), F), axes=[0], **whole))
    big = np.array([[1000, 999], [-1000, -1000]], F)
    found["reduce_log_sum_exp"].append(
        op("reduce_log_sum_exp", big, axes=[1], **whole, expected=lambda x: np.array([1000 + np.log1p(np.exp(-1)), -1000 + np.log(2)], F))
    )  # fmt: skip
    return found


def windows(x, size, strides, pads, how, fill=0.0):
    """Pooling of an image by its definition; pads are (top, bottom, left, right)."""
    x = np.pad(x, ((0, 0), (0, 0), pads[:2], pads[2:]), constant_values=fill)
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(x.shape[2:], size, strides, strict=True))
    out = np.zeros((*x.shape[:2], rows, columns), F)
    for i, j in np.ndindex(rows, columns):
        a, b = i * strides[0], j * strides[1]
        out[:, :, i, j] = how(x[:, :, a : a + size[0], b : b + size[1]])
    return out


def option_cases(op):
    """Parameters that the first cases leave out."""
    image, x = normal(1, 4, 6, 6), normal(2, 3, 4)
    size, strides, pads = (2, 3), (2, 1), (1, 0, 2, 1)
    ceiled = {"kernel_sizes": [3, 3], "strides": [2, 2], "pad_type": "valid", "ceil_mode": True}
    given = {"kernel_sizes": list(size), "strides": list(strides), "pad_type": "custom", "pad": list(pads)}

    def beyond(how):  # the last windows reach one row and one column behind the image, which do not count
        return lambda v: windows(v, (3, 3), (2, 2), (0, 1, 0, 1), how, NAN)

    squares = np.pad(image**2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    near = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    found = {
        "max_pool": [op("max_pool", image, **given, expected=lambda v: windows(v, size, strides, pads, lambda p: p.max((2, 3)), -INF))],
        "avg_pool": [
            op("avg_pool", image, **given, expected=lambda v: windows(v, size, strides, pads, lambda p: p.mean((2, 3)))),
            op("avg_pool", image, **given, exclude_padding_from_average=True, expected=lambda v: windows(v, size, strides, pads, lambda p: np.nanmean(p, (2, 3)), NAN)),
        ],
        "l2_pool": [op("l2_pool", image, **given, expected=lambda v: windows(v, size, strides, pads, lambda p: np.sqrt((p**2).sum((2, 3)))))],
        "conv_transpose": [
            op("conv_transpose", normal(1, 2, 3, 3), weight=np.ones((2, 1, 1, 1), F), bias=np.array([2], F), expected=lambda v: v.sum(1, keepdims=True) + 2),
            op("conv_transpose", normal(1, 4, 3), weight=np.ones((4, 1, 1), F), groups=2, expected=lambda v: np.stack([v[:, :2].sum(1), v[:, 2:].sum(1)], 1)),
        ],
        "slice_update": [
            op("slice_update", x, x[:, 1:, :2] * 9, keys=("x", "update"), begin=[1, 1, 2], end=[1, 9, 2], begin_mask=[True, False, True],
               end_mask=[True, True, False], expected=lambda v, u: np.concatenate([v[:, :1], np.concatenate([u, v[:, 1:, 2:]], 2)], 1)),
        ],
        "upsample_bilinear": [
            op("upsample_bilinear", np.array([[[[0, 1]]]], F), scale_factor_width=3, scale_factor_height=1, align_corners=False,
               half_pixel_centers=half, since="iOS16", expected=lambda v, r=row: np.array([[[r]]], F))
            for half, row in ((True, [0, 0, 1 / 3, 2 / 3, 1, 1]), (False, [0, 1 / 3, 2 / 3, 1, 1, 1]))
        ],
        "topk": [
            op("topk", x, k=3, axis=0 + 1, sort=False, return_indices=False, since="iOS16", expected=lambda v: -np.sort(-v, 1)),
            op("topk", x, k=2, axis=2, output_indices_dtype="uint16", since="iOS17", expected=lambda v: (-np.sort(-v, 2)[..., :2], np.argsort(-v, 2)[..., :2].astype(INT))),
        ],
        "reduce_argmax": [op("reduce_argmax", np.array([[1, 3, 3], [2, 2, 2]], F), axis=1, expected=lambda v: np.array([1, 0], INT)),
                          op("reduce_argmax", x, axis=0, output_dtype="uint16", since="iOS17", expected=lambda v: v.argmax(0).astype(INT))],
        "reduce_argmin": [op("reduce_argmin", np.array([[3, 1, 1], [2, 2, 2]], F), axis=1, expected=lambda v: np.array([1, 0], INT)),
                          op("reduce_argmin", x, axis=0, output_dtype="uint16", since="iOS17", expected=lambda v: v.argmin(0).astype(INT))],
        "sliding_windows": [
            op("sliding_windows", x, axis=0, size=1, stride=1, expected=lambda v: v[:, None]),
            op("sliding_windows", x, axis=1, size=2, expected=lambda v: np.stack([v[:, 0:2], v[:, 1:3]], 1)),
            op("sliding_windows", x, axis=-1, size=3, stride=2, expected=lambda v: v[:, :, None, :3]),
        ],
        "reverse_sequence": [
            op("reverse_sequence", normal(3, 2, 4, 2), np.array(lengths, INT), keys=("x", "lengths"), seq_axis=seq, batch_axis=batch,
               expected=lambda v, n, s=seq, b=batch: reversed_parts(v, n, s, b))
            for seq, batch, lengths in ((0, 1, [3, 1]), (1, 0, [2, 0, 1]), (2, 3, [4, 2]), (-1, 0, [2, 1, 2]), (0, -2, [0, 1, 2, 3]))
        ],
        "cumsum": [op("cumsum", x, axis=2, exclusive=e, reverse=r, expected=lambda v, e=e, r=r: summed(v, e, r)) for e, r in itertools.product((False, True), repeat=2)],
        "band_part": [op("band_part", x, lower=a, upper=b) for a, b in ((0, 0), (-1, 0), (0, -1), (-1, -1), (2, 1))],
        "one_hot": [op("one_hot", np.array([[0, 2], [1, 5]], INT), keys=("indices",), one_hot_vector_size=3, axis=1, expected=lambda v: np.stack([v == i for i in range(3)], 1).astype(INT))],
    }  # fmt: skip
    found["avg_pool"].append(op("avg_pool", image, **ceiled, expected=beyond(lambda p: np.nanmean(p, (2, 3)))))
    found["l2_pool"].append(op("l2_pool", image, **ceiled, expected=beyond(lambda p: np.sqrt(np.nansum(p**2, (2, 3))))))
    found["max_pool"].append(op("max_pool", image, **ceiled, expected=beyond(lambda p: np.nanmax(p, (2, 3)))))
    found["conv_transpose"].append(
        op("conv_transpose", image[:, :1, :2, :2], weight=np.array([[[[1, 2], [3, 4]]]], F), dilations=[2, 1],
           expected=lambda v: transposed(v, np.array([[1, 2], [3, 4]], F), 2))
    )  # fmt: skip
    weight = random.integers(0, 256, (1, 4, 2, 2)).astype(np.uint8)
    found["conv_quantized"] = [
        op("conv_quantized", image, weight=weight, quantization_type="linear", quant_scale=F(0.015625), quant_bias=F(-2), dilations=[2, 1],
           expected=lambda v: dilated(v, weight * F(0.015625) - F(2), 2)),
    ]  # fmt: skip
    found["local_response_norm"] = [
        op("local_response_norm", image, size=3, alpha=F(0.3), beta=F(0.5), k=F(2), expected=lambda v: v / np.sqrt(2 + 0.1 * near)),
    ]  # fmt: skip
    found["gather_nd"] = [
        op("gather_nd", x, np.array([[1, 2], [0, 0]], INT), keys=("x", "indices"), validate_indices=True, since="iOS17", expected=lambda v, i: v[[1, 0], [2, 0]])
    ]  # fmt: skip
    line = np.array([[[[0], [1]]]], F)
    found["resize_bilinear"] = [
        op("resize_bilinear", line, target_size_height=5, target_size_width=1, sampling_mode="STRICT_ALIGN_CORNERS", expected=lambda v: np.array([[[[0], [0.25], [0.5], [0.75], [1]]]], F)),
        op("resize_bilinear", line, target_size_height=5, target_size_width=2, sampling_mode="OFFSET_CORNERS", expected=lambda v: np.array([[[[i, i] for i in (0.1, 0.3, 0.5, 0.7, 0.9)]]], F)),
        op("resize_bilinear", line, target_size_height=1, target_size_width=1, sampling_mode="ALIGN_CORNERS", expected=lambda v: np.array([[[[0.5]]]], F)),
        op("resize_bilinear", line, target_size_height=1, target_size_width=1, sampling_mode="STRICT_ALIGN_CORNERS", expected=lambda v: np.array([[[[0]]]], F)),
    ]  # fmt: skip
    found["resize"] = resize_cases(op)
    found["upsample_bilinear"].append(op("upsample_bilinear", line, scale_factor_height=3, scale_factor_width=1, expected=lambda v: np.array([[[[0], [0.2], [0.4], [0.6], [0.8], [1]]]], F)))  # fmt: skip
    quantized = np.array([[0, 1, -1, 300], [2.5, 3.5, -200, 0.3]], F)
    scale, point = np.array([0.5, 2], F), np.array([3, -4], np.int8)

    def stored(v):
        return np.clip(np.rint(v / scale[:, None]) + point[:, None], -128, 127)

    found["quantize"] = [
        op("quantize", quantized, keys=("input",), scale=scale, zero_point=point, axis=0, output_dtype="int8", expected=lambda v: stored(v).astype(INT)),
        op("quantize", quantized, keys=("input",), scale=F(0.25), output_dtype="uint8", expected=lambda v: np.clip(np.rint(v / 0.25), 0, 255).astype(INT)),
    ]  # fmt: skip
    found["dequantize"] = [
        (lambda mb, v: mb.dequantize(input=mb.quantize(input=v, scale=scale, zero_point=point, axis=0, output_dtype="int8"), scale=scale, zero_point=point, axis=0),
         (quantized,), lambda v: ((stored(v) - point[:, None]) * scale[:, None]).astype(F)),
        (lambda mb, v: mb.dequantize(input=mb.quantize(input=v, scale=F(0.5), zero_point=np.uint8(100), output_dtype="uint8"), scale=F(0.5), zero_point=np.uint8(100)),
         (quantized,), lambda v: ((np.clip(np.rint(v / 0.5) + 100, 0, 255) - 100) * 0.5).astype(F)),
    ]  # fmt: skip
    for name, keys in (("gather", ("x", "indices")), ("gather_along_axis", ("x", "indices"))):
        at = np.array([[0, 2], [1, 1]], INT)
        apply = (lambda v, i: v[i]) if name == "gather" else (lambda v, i: np.take_along_axis(v, i, 0))
        found[name] = [
            op(name, normal(3, 2), at, keys=keys, axis=0, validate_indices=True, since="iOS17", expected=apply)
        ]
    return found


def resize_cases(op):
    """Every way of sampling, linear and of the nearest neighbour, of one to three axes, sizes that are computed."""
    image = normal(1, 2, 3, 4)
    found = []
    for mode, nearest, sizes in itertools.product(GRIDS, (False, True), ([5, 7], [2, 1], [1, 3, 6])):
        given = {
            "interpolation_mode": "NEAREST_NEIGHBOR" if nearest else "LINEAR",
            "sampling_mode": mode,
            "resized_dims": np.uint32(len(sizes)),
        }
        if nearest and mode != "UNALIGN_CORNERS" and sizes == [5, 7]:
            sizes = [4, 6]  # no place is halfway between two
        if nearest and mode == "UNALIGN_CORNERS":
            sizes = [*sizes[:-2], 9, 12]

        def formula(v, *_, mode=mode, nearest=nearest, sizes=sizes):
            for axis, size in zip(range(4 - len(sizes), 4), sizes, strict=True):
                places = grid(v.shape[axis], size, mode)
                v = np.stack([at_place(np.moveaxis(v, axis, 0), at, nearest) for at in places], axis)
            return v.astype(F)

        found.append(op("resize", image, shape=np.array(sizes, INT), expected=formula, **given))
        if len(sizes) == 2:
            found.append(op("resize", image, np.array(sizes, INT), keys=("x", "shape"), expected=formula, **given))
    kept = {"resized_dims": np.uint32(2), "sampling_mode": "ALIGN_CORNERS"}
    found.append(op("resize", image, shape=np.array([0, 4], INT), expected=lambda v: v, **kept))
    return found


def at_place(v, at, nearest):
    """The element of the first axis at a place between its elements; of two nearest ones the first."""
    if nearest:
        return v[int(np.ceil(round(at, 6) - 0.5))]
    low = min(int(at), len(v) - 2) if len(v) > 1 else 0
    return v[low] * (1 - (at - low)) + v[min(low + 1, len(v) - 1)] * (at - low)


def transposed(v, kernel, dilation):
    """A transposed convolution of one channel with a dilation of the rows."""
    rows, columns = v.shape[2:]
    out = np.zeros((1, 1, rows + (len(kernel) - 1) * dilation, columns + kernel.shape[1] - 1))
    for i, j in np.ndindex(*kernel.shape):
        out[:, :, i * dilation : i * dilation + rows, j : j + columns] += v * kernel[i, j]
    return out.astype(F)


def dilated(v, kernel, dilation):
    """A convolution with a dilation of the rows."""
    rows, columns = v.shape[2] - (kernel.shape[2] - 1) * dilation, v.shape[3] - kernel.shape[3] + 1
    out = np.zeros((1, len(kernel), rows, columns))
    for i, j in np.ndindex(*kernel.shape[2:]):
        out += np.einsum("nchw,oc->nohw", v[:, :, i * dilation :, j:][:, :, :rows, :columns], kernel[:, :, i, j])
    return out.astype(F)


def reversed_parts(v, lengths, seq, batch):
    out = np.moveaxis(v.copy(), (batch % v.ndim, seq % v.ndim), (0, 1))
    for row, length in zip(out, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.moveaxis(out, (0, 1), (batch % v.ndim, seq % v.ndim))


def summed(v, exclusive, reverse):
    w = v[..., ::-1] if reverse else v
    total = w.cumsum(-1) - (w if exclusive else 0)
    return total[..., ::-1] if reverse else total


def cases(op):
    """All of them, by operation."""
    found = {}
    for group in (recurrent_cases(op), edge_cases(op), option_cases(op)):
        for name, ones in group.items():
            found.setdefault(name, []).extend(ones)
    return found
