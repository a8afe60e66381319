"""Networks that coremltools converts, made from arrays with the names of a torch checkpoint; and what becomes of them.

A network is a function from arrays to a MIL program, and the shapes of the arrays. coremltools' passes do to it what they
do to a network of torch: they fold, transpose, concatenate, split, cast, and store equal constants once.
"""

import numpy as np

import milblob
from consumers import uses

NETWORKS = {}
"""Name -> (shapes of the arrays by name, builder)."""


def network(**shapes):
    """Register a builder: a function of (mb, x, w), where x is float32 [1, 8, 6, 6] and w has the arrays by name."""

    def add(build):
        NETWORKS[build.__name__] = {name.replace("__", "."): shape for name, shape in shapes.items()}, build
        return build

    return add


def norm(prefix, count):
    return {f"{prefix}__{name}": (count,) for name in ("weight", "bias", "running_mean", "running_var")}


def batch_norm(mb, x, w, prefix, epsilon=1e-5, name=None):
    return mb.batch_norm(
        x=x, mean=w[f"{prefix}.running_mean"], variance=w[f"{prefix}.running_var"], gamma=w[f"{prefix}.weight"],
        beta=w[f"{prefix}.bias"], epsilon=np.float32(epsilon), **({} if name is None else {"name": name}),
    )  # fmt: skip


@network(c__weight=(12, 8, 3, 3), **norm("b", 12))
def conv_norm(mb, x, w):
    return mb.relu(x=batch_norm(mb, mb.conv(x=x, weight=w["c.weight"]), w, "b"))


@network(
    c__weight=(12, 8, 1, 1), c__bias=(12,), d__weight=(12, 12, 1, 1), d__bias=(12,), **norm("b", 12), **norm("e", 12)
)
def two_conv_norms(mb, x, w):
    x = mb.relu(x=batch_norm(mb, mb.conv(x=x, weight=w["c.weight"], bias=w["c.bias"]), w, "b"))
    return mb.relu(x=batch_norm(mb, mb.conv(x=x, weight=w["d.weight"], bias=w["d.bias"]), w, "e", 1e-3))


@network(c__weight=(8, 1, 3, 3), d__weight=(12, 4, 1, 1), d__bias=(12,), **norm("b", 8), **norm("e", 12))
def depthwise_and_grouped(mb, x, w):
    x = mb.relu(x=batch_norm(mb, mb.conv(x=x, weight=w["c.weight"], groups=8, pad_type="same"), w, "b"))
    return mb.relu(x=batch_norm(mb, mb.conv(x=x, weight=w["d.weight"], bias=w["d.bias"], groups=2), w, "e", 2.5e-4))


@network(t__weight=(8, 6, 2, 2), t__bias=(6,), u__weight=(6, 1, 2, 2), v__weight=(6, 4, 2, 2), **norm("b", 6), **norm("d", 6), **norm("e", 8))  # fmt: skip
def transposed_convs(mb, x, w):
    x = mb.relu(x=batch_norm(mb, mb.conv_transpose(x=x, weight=w["t.weight"], bias=w["t.bias"]), w, "b"))
    x = mb.relu(x=batch_norm(mb, mb.conv_transpose(x=x, weight=w["u.weight"], groups=6), w, "d"))
    return mb.relu(x=batch_norm(mb, mb.conv_transpose(x=x, weight=w["v.weight"], groups=2), w, "e"))


@network(c__weight=(10, 8, 3), c__bias=(10,), **norm("b", 10))
def conv_of_lines(mb, x, w):
    x = mb.reshape(x=x, shape=(1, 8, 36))
    return mb.relu(x=batch_norm(mb, mb.conv(x=x, weight=w["c.weight"], bias=w["c.bias"]), w, "b"))


@network(c__weight=(12, 8, 3, 3), **norm("b", 12))
def frozen_norm(mb, x, w):
    """As torchvision's FrozenBatchNorm2d: a scale and a shift, computed by constants."""
    x = mb.conv(x=x, weight=w["c.weight"])
    root = mb.rsqrt(x=mb.add(x=w["b.running_var"].reshape(1, 12, 1, 1), y=np.float32(1e-5)), epsilon=np.float32(0))
    scale = mb.mul(x=w["b.weight"].reshape(1, 12, 1, 1), y=root)
    shift = mb.sub(x=w["b.bias"].reshape(1, 12, 1, 1), y=mb.mul(x=w["b.running_mean"].reshape(1, 12, 1, 1), y=scale))
    return mb.relu(x=mb.add(x=mb.mul(x=x, y=scale), y=shift))


@network(c__weight=(12, 8, 3, 3), c__bias=(12,), gamma=(12,), d__weight=(12, 12, 1, 1), shift=(12,))
def scaled_and_shifted(mb, x, w):
    x = mb.mul(x=mb.conv(x=x, weight=w["c.weight"], bias=w["c.bias"]), y=w["gamma"].reshape(1, 12, 1, 1))
    return mb.relu(x=mb.add(x=mb.conv(x=mb.relu(x=x), weight=w["d.weight"]), y=w["shift"].reshape(1, 12, 1, 1)))


@network(l__weight=(16, 6), l__bias=(16,), extra=(16,), p=(16, 16), q=(16,))
def linears(mb, x, w):
    x = mb.linear(x=x, weight=w["l.weight"], bias=w["l.bias"])
    x = mb.relu(x=mb.add(x=x, y=w["extra"]))
    return mb.relu(x=mb.add(x=mb.matmul(x=x, y=w["p"]), y=w["q"]))


def named(mb, w, name):
    """A constant with the name of its array, as those of torch's parameters have."""
    return mb.const(val=w[name], name=name)


@network(l__weight=(12, 12), p=(12, 12), bias=(12,))
def product_and_dropped_bias(mb, x, w):
    """A product that becomes a linear, square; and a vector, called after what coremltools calls its own constants."""
    x = mb.matmul(x=mb.reshape(x=mb.relu(x=x), shape=(24, 12)), y=named(mb, w, "p"))
    x = mb.linear(x=mb.relu(x=x), weight=w["l.weight"], name="linear")
    return mb.relu(x=mb.add(x=mb.relu(x=x), y=named(mb, w, "bias")))


@network(p=(12, 12), q=(12, 12))
def products_of_each_other(mb, x, w):
    """Two products; `transposed_arrays` makes one array the transposed other one."""
    x = mb.matmul(x=mb.reshape(x=mb.relu(x=x), shape=(24, 12)), y=named(mb, w, "p"))
    return mb.matmul(x=mb.relu(x=x), y=named(mb, w, "q"))


@network(m__weight=(128, 6), shift=(128,))
def dropped_shift(mb, x, w):
    """A vector whose zeros are left out, and then share a constant with a layer that has no bias."""
    shift = named(mb, w, "shift")
    x = mb.relu(x=mb.linear(x=x, weight=named(mb, w, "m.weight")))
    return mb.relu(x=mb.add(x=x, y=shift))


@network(a__in_proj_weight=(18, 6), a__in_proj_bias=(18,), a__out_proj__weight=(6, 6), a__out_proj__bias=(6,))
def split_attention(mb, x, w):
    q, k, v = (
        mb.linear(x=x, weight=w["a.in_proj_weight"][at : at + 6].copy(), bias=w["a.in_proj_bias"][at : at + 6].copy())
        for at in (0, 6, 12)
    )
    return mb.linear(x=mb.add(x=mb.mul(x=q, y=k), y=v), weight=w["a.out_proj.weight"], bias=w["a.out_proj.bias"])


@network(q__weight=(6, 6), q__bias=(6,), k__weight=(6, 6), k__bias=(6,), v__weight=(6, 6), v__bias=(6,))
def joined_attention(mb, x, w):
    weight = mb.concat(values=[w["q.weight"], w["k.weight"], w["v.weight"]], axis=0)
    bias = mb.concat(values=[w["q.bias"], w["k.bias"], w["v.bias"]], axis=0)
    return mb.relu(x=mb.linear(x=x, weight=weight, bias=bias))


@network(w__weight=(24, 6))
def reordered(mb, x, w):
    """The rows of one array in two orders, which begin in the same way."""
    first = [row for pair in zip(range(12), range(12, 24), strict=True) for row in pair]
    second = [*first[:16], *reversed(first[16:])]
    a, b = (mb.linear(x=x, weight=w["w.weight"][order]) for order in (first, second))
    return mb.mul(x=a, y=mb.relu(x=b))


@network(emb__weight=(30, 6), head__weight=(30, 6), head__bias=(30,))
def untied_embedding(mb, x, w):
    return embedding(mb, x, w["emb.weight"], w["head.weight"], w["head.bias"])


@network(emb__weight=(30, 6))
def tied_embedding(mb, x, w):
    return embedding(mb, x, w["emb.weight"], w["emb.weight"].copy(), None)


def embedding(mb, x, table, head, bias):
    y = mb.gather(x=table, indices=mb.reduce_argmax(x=x, axis=-1), axis=0)
    return mb.linear(x=mb.add(x=x, y=y), weight=head, **({} if bias is None else {"bias": bias}))


@network(l__weight=(128, 6), l__bias=(128,), n__weight=(128,), n__bias=(128,), m__weight=(128, 128), o__weight=(128,), o__bias=(128,))  # fmt: skip
def shared_norms(mb, x, w):
    """Vectors of 128 elements, which coremltools stores once where they are equal; `m` has no bias of its own."""
    x = mb.linear(x=x, weight=w["l.weight"], bias=w["l.bias"])
    x = mb.layer_norm(x=x, axes=[-1], gamma=w["n.weight"], beta=w["n.bias"], epsilon=np.float32(1e-5))
    x = mb.linear(x=mb.relu(x=x), weight=w["m.weight"])
    return mb.layer_norm(x=x, axes=[-1], gamma=w["o.weight"], beta=w["o.bias"], epsilon=np.float32(1e-5))


@network(l__weight_ih_l0=(16, 6), l__weight_hh_l0=(16, 4), l__bias_ih_l0=(16,), l__bias_hh_l0=(16,))
def lstm(mb, x, w):
    def turned(array):
        i, f, g, o = np.split(array, 4)
        return np.concatenate([i, f, o, g])

    x = mb.reshape(x=x, shape=(48, 1, 6))
    bias = mb.add(x=turned(w["l.bias_ih_l0"]), y=turned(w["l.bias_hh_l0"]))
    zeros = np.zeros((1, 4), np.float32)
    found = mb.lstm(
        x=x, initial_h=zeros, initial_c=zeros, weight_ih=turned(w["l.weight_ih_l0"]),
        weight_hh=turned(w["l.weight_hh_l0"]), bias=bias, output_sequence=True,
    )  # fmt: skip
    return mb.relu(x=found[0])


@network(**norm("b", 8), n__weight=(6,), alpha=(8,))
def norms_alone(mb, x, w):
    x = batch_norm(mb, mb.relu(x=x), w, "b")
    x = mb.mul(x=mb.prelu(x=x, alpha=w["alpha"]), y=w["n.weight"])
    return mb.relu(x=x)


@network(l__weight=(6, 6))
def masked(mb, x, w):
    """With a mask of attention, which is no function of the arrays."""
    mask = np.where(np.tri(6, dtype=bool), 0, -30000).astype(np.float32)
    return mb.softmax(x=mb.add(x=mb.linear(x=x, weight=w["l.weight"]), y=mask), axis=-1)


# Weights that are computed from arrays.


@network(c__weight=(12, 8, 3, 3), c__bias=(12,), gamma=(12,), d__weight=(12, 12, 1, 1), delta=(12,), **norm("b", 12), **norm("e", 12))  # fmt: skip
def layer_scales(mb, x, w):
    """A batch norm and then a layer scale after each convolution, as in FastViT and EfficientFormer."""
    for conv, prefix, scale in (("c", "b", "gamma"), ("d", "e", "delta")):
        bias = {"bias": w["c.bias"]} if conv == "c" else {}
        x = batch_norm(mb, mb.conv(x=x, weight=w[f"{conv}.weight"], **bias), w, prefix)
        x = mb.relu(x=mb.mul(x=x, y=w[scale].reshape(12, 1, 1)))
    return x


@network(c__weight_g=(12, 1, 1, 1), c__weight_v=(12, 8, 3, 3), d__original0=(1, 1, 3), d__original1=(6, 12, 3))
def weight_norms(mb, x, w):
    norm = mb.reduce_l2_norm(x=w["c.weight_v"], axes=[1, 2, 3], keep_dims=True)
    x = mb.relu(x=mb.conv(x=x, weight=mb.mul(x=w["c.weight_g"], y=mb.real_div(x=w["c.weight_v"], y=norm)).val))
    norm = mb.reduce_l2_norm(x=w["d.original1"], axes=[0, 1], keep_dims=True)
    weight = mb.mul(x=w["d.original0"], y=mb.real_div(x=w["d.original1"], y=norm)).val
    return mb.relu(x=mb.conv(x=mb.reshape(x=x, shape=(1, 12, 16)), weight=weight))


def standardized(mb, weight, epsilon):
    x = mb.reshape(x=weight, shape=(1, weight.shape[0], -1))
    away = mb.sub(x=x, y=mb.reduce_mean(x=x, axes=[0, 2], keep_dims=True))
    variance = mb.reduce_mean(x=mb.mul(x=away, y=away), axes=[0, 2], keep_dims=True)
    return mb.real_div(x=away, y=mb.sqrt(x=mb.add(x=variance, y=np.float32(epsilon))))


@network(c__weight=(12, 8, 3, 3), c__gain=(12, 1, 1, 1), d__weight=(16, 12, 1, 1), e__weight=(16, 16, 1, 1), e__gain=(16, 1, 1, 1))  # fmt: skip
def weight_standardization(mb, x, w):
    """With a gain and the scale of ReLU, as in normalizer-free networks; and plain, as in BiT."""
    for name in "cde":
        weight = w[f"{name}.weight"]
        x_hat = standardized(mb, weight, 1e-6 if name == "d" else 1e-5)
        if name != "d":
            gain = w[f"{name}.gain"] * np.float32(1.7139588594436646 * weight[0].size ** -0.5)
            x_hat = mb.mul(x=x_hat, y=gain.reshape(1, -1, 1))
        x = mb.relu(x=mb.conv(x=x, weight=mb.reshape(x=x_hat, shape=weight.shape).val))
    return mb.mul(x=x, y=np.float32(0.2))


@network(l__weight=(12, 6), n__weight=(12,), A_log=(12, 8), emb__weight=(30, 12), b__gamma=(12,), b__bias=(12,))
def plain_arithmetic(mb, x, w):
    """`1 + w` of Gemma, `-exp(w)` of Mamba, an embedding times the root of its width, a bias times a layer scale."""
    x = mb.mul(x=mb.linear(x=x, weight=w["l.weight"]), y=mb.add(x=np.float32(1), y=w["n.weight"]))
    rows = mb.gather(x=mb.mul(x=w["emb.weight"], y=np.float32(12**0.5)), indices=mb.reduce_argmax(x=x, axis=-1), axis=0)
    x = mb.add(x=mb.add(x=x, y=rows), y=mb.mul(x=w["b.bias"], y=w["b.gamma"]))
    return mb.matmul(x=x, y=mb.mul(x=mb.exp(x=w["A_log"]), y=np.float32(-1)))


@network(l__weight=(6, 6), table=(121, 8), biases=(8, 36), every=(8, 11, 11), heads=(2, 30), head=(30,))
def gathered_tables(mb, x, w):
    """The bias of attention by relative positions, as in Swin and T5; by columns, as in LeViT; of a picture; of one head."""
    at = np.arange(6)
    index = (at[:, None] - at + 5) * 11 + (at[:, None] * 2 - at) % 11
    bias = mb.transpose(x=mb.gather(x=w["table"], indices=index.reshape(-1).astype(np.int32), axis=0), perm=[1, 0])
    x = mb.add(x=mb.linear(x=x, weight=w["l.weight"]), y=mb.reshape(x=bias, shape=(1, 8, 6, 6)))
    x = mb.add(x=mb.relu(x=x), y=w["biases"][:, np.abs(at[:, None] - at) * 6 + at][None])
    x = mb.add(x=mb.relu(x=x), y=w["every"].reshape(8, 121)[:, index])
    for bias in (*w["heads"], w["head"]):
        x = mb.mul(x=mb.relu(x=x), y=bias[(at[:, None] * 7 + at * 2) % 30])
    return x


@network(qkv__weight=(54, 6), q_bias=(18,), v_bias=(18,), cls_token=(1, 1, 54), pos_embed=(1, 5, 54))
def joined_with_zeros(mb, x, w):
    """The bias of BEiT's attention, whose keys have none; a token to which its position was added."""
    bias = mb.concat(values=[w["q_bias"], np.zeros(18, np.float32), w["v_bias"]], axis=0)
    x = mb.relu(x=mb.linear(x=x, weight=w["qkv.weight"], bias=bias))
    return mb.mul(x=x, y=mb.add(x=w["cls_token"], y=w["pos_embed"][:, :1]))


@network(l__weight=(64, 6), divided=(64,))
def divided_by_three(mb, x, w):
    return mb.add(x=mb.relu(x=mb.linear(x=x, weight=w["l.weight"])), y=mb.real_div(x=w["divided"], y=np.float32(3)))


@network(l__weight=(64, 6), token=(64,))
def added_token(mb, x, w):
    return mb.add(x=mb.relu(x=mb.linear(x=x, weight=w["l.weight"])), y=w["token"])


# Numbers that are computed from arrays and are too small to count as weights.


def layer(mb, x, w):
    return mb.relu(x=mb.linear(x=x, weight=w["l.weight"], bias=w["l.bias"]))


LAYER = {"l__weight": (6, 6), "l__bias": (6,)}


@network(**LAYER, pool__p_var=(1,))
def generalized_mean(mb, x, w):
    p = w["pool.p_var"]
    x = mb.pow(x=mb.clip(x=layer(mb, x, w), alpha=np.float32(1e-6), beta=np.float32(3e4)), y=p[0])
    return mb.pow(x=mb.reduce_mean(x=x, axes=[2, 3], keep_dims=True), y=np.float32(1) / p[0])


@network(**LAYER, emb__weight=(30, 6))
def centred_embedding(mb, x, w):
    rows = mb.gather(x=w["emb.weight"], indices=np.arange(6, dtype=np.int32) * 5, axis=0)
    return mb.add(x=layer(mb, x, w), y=mb.sub(x=mb.mul(x=rows, y=layer(mb, x, w)), y=w["emb.weight"].mean()))


@network(**LAYER, s_var=(1,))
def quantized_by_learnt_steps(mb, x, w):
    s = w["s_var"][0]
    x = mb.clip(x=layer(mb, x, w), alpha=np.float32(-128) * s, beta=np.float32(127) * s)
    return mb.mul(x=mb.round(x=mb.real_div(x=x, y=s)), y=s)


@network(**LAYER, t_var=(1,))
def temperature(mb, x, w):
    t = w["t_var"][0]
    return mb.mul(x=mb.softmax(x=mb.real_div(x=layer(mb, x, w), y=t), axis=-1), y=t)


@network(**LAYER, t=(1,))
def gate(mb, x, w):
    t = w["t"]
    x = layer(mb, x, w)
    return mb.add(x=mb.mul(x=x, y=(1 / (1 + np.exp(-t)))[0]), y=mb.mul(x=mb.tanh(x=x), y=t[0]))


@network(**LAYER, alpha_var=(4,))
def snake(mb, x, w):
    alpha = w["alpha_var"].reshape(1, 4, 1, 1)
    x = mb.slice_by_size(x=layer(mb, x, w), begin=[0, 0, 0, 0], size=[1, 4, 6, 6])
    wave = mb.sin(x=mb.mul(x=x, y=alpha))
    return mb.add(x=x, y=mb.mul(x=mb.mul(x=wave, y=wave), y=np.float32(1) / (alpha + np.float32(1e-9))))


@network(l__weight=(6, 6), l__bias=(6,))
def divided_by_its_norm(mb, x, w):
    norm = np.sqrt(np.square(w["l.weight"]).sum())
    return mb.real_div(x=mb.linear(x=x, weight=w["l.weight"], bias=w["l.bias"]), y=norm)


@network(**LAYER, m__weight=(6, 6), logit_scale=(1,))
def contrast(mb, x, w):
    x = mb.mul(x=layer(mb, x, w), y=np.exp(w["logit_scale"])[0])
    return mb.linear(x=x, weight=w["m.weight"])


@network(**LAYER, act__weight=(8,), few__weight=(3,), beta=(1,))
def activations(mb, x, w):
    x = mb.prelu(x=layer(mb, x, w), alpha=w["act.weight"])
    x = mb.mul(x=x, y=mb.sigmoid(x=mb.mul(x=x, y=w["beta"][0])))
    return mb.prelu(x=mb.slice_by_size(x=x, begin=[0, 0, 0, 0], size=[1, 3, 6, 6]), alpha=w["few.weight"])


@network(**LAYER, t=(1,))
def gate_of_all_channels(mb, x, w):
    return mb.mul(x=layer(mb, x, w), y=np.full((1, 8, 6, 6), 1 / (1 + np.exp(-w["t"][0])), np.float32))


@network(**LAYER, first__alpha=(1,), second__alpha=(1,), third__alpha=(1,))
def learnt_residuals(mb, x, w):
    for name in ("first", "second", "third"):
        x = mb.add(x=x, y=mb.mul(x=layer(mb, x, w), y=w[f"{name}.alpha"][0]))
    return x


NUMBERS = (
    "generalized_mean", "centred_embedding", "quantized_by_learnt_steps", "temperature", "gate", "snake",
    "divided_by_its_norm", "contrast", "activations", "gate_of_all_channels", "learnt_residuals",
)  # fmt: skip


def random_arrays(shapes, seed):
    """Return arrays as training leaves them."""
    rng = np.random.default_rng(seed)
    found = {name: (rng.standard_normal(shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}
    return {name: np.abs(array) + np.float32(0.2) if name.endswith("var") else array for name, array in found.items()}


def initial_arrays(shapes, seed):
    """Return arrays as a new network has them: vectors are all zeros or all ones."""
    found = random_arrays(shapes, seed)
    for name, array in found.items():
        if array.ndim == 1:
            is_one = name.endswith(("var", "weight", "gamma"))
            found[name] = np.full_like(array, 1 if is_one else 0)
    return found


def twin_arrays(shapes, seed):
    """Return arrays of which those of one shape are equal."""
    found, first = random_arrays(shapes, seed), {}
    return {name: np.abs(first.setdefault(array.shape, array)) for name, array in found.items()}


def symmetric_arrays(shapes, seed):
    """Return arrays that are zero, or the identity where they are square: their layouts look the same."""
    found = random_arrays(shapes, seed)
    for name, shape in shapes.items():
        if len(shape) == 2:
            found[name] = np.eye(*shape, dtype=np.float32) * (shape[0] == shape[1])
    return found


def transposed_arrays(shapes, seed):
    """Return arrays of which square ones are each other's transposed, and vectors are zeros."""
    found, first = random_arrays(shapes, seed), {}
    for number, (name, array) in enumerate(found.items()):
        if array.ndim == 1:
            found[name] = np.zeros_like(array)
        elif array.shape[0] == array.shape[-1]:
            array = first.setdefault(array.shape, array)
            found[name] = np.ascontiguousarray(array.T if number % 2 else array)
    return found


_CONVERTED: dict = {}  # what was converted -> the model: many tests begin or end with the same one


def converted(name, arrays, path, precision="FLOAT16"):
    """Save what coremltools makes of a network with these arrays."""
    key = name, precision, *((key, array.dtype.str, array.shape, array.tobytes()) for key, array in arrays.items())
    if key not in _CONVERTED:
        _CONVERTED[key] = _convert(name, arrays, precision)
    _CONVERTED[key].save(str(path))
    return path


def _convert(name, arrays, precision):
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    _, build = NETWORKS[name]
    mb.name_count.clear()  # coremltools does so after a conversion, but not where a Program is only built

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 8, 6, 6))], opset_version=ct.target.iOS16)
    def program(x):
        return build(mb, x, {key: array.copy() for key, array in arrays.items()})

    return ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS16, skip_model_load=True,
        compute_precision=getattr(ct.precision, precision),
    )  # fmt: skip


def constants(path, is_signed=True):
    """Return all constants of a model by where they are read, so that two conversions can be compared.

    Whether zeros have a sign can depend on the values: coremltools leaves out an addition of zeros.
    """

    def data(tensor):
        values = np.asarray(tensor.read())
        return (values if is_signed or values.dtype.kind != "f" else values + np.float16(0)).tobytes()

    with milblob.open(path, constants=True) as model:
        return {
            use: (str(tensor.mil_dtype), tensor.shape, data(tensor))
            for tensor in model.values()
            if str(tensor.mil_dtype) != "string"
            for use in uses(tensor)
        }
