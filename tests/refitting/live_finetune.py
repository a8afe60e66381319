"""What `refit --base` does to models that coremltools made of torch networks; prints the table of docs/fine-tuning.md.

Each network is converted with the weights of a base and with those of a tuned network, both random. The model of the base
is refitted with the tuned checkpoint, and compared with the other one: bit for bit, or, where weights are compressed, by
the signal-to-quantization-noise ratio of both against the dense weights.

    make finetune        # in an environment of its own, with torch
"""

import contextlib
import io
import math
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import torch
from torch import nn

import milblob

warnings.filterwarnings("ignore")
torch.backends.mha.set_fastpath_enabled(False)

_MAX_GAP = 6.0
"""dB that a requantized weight may be worse than in a new conversion; what was computed wrongly has less than 10 dB."""

NETWORKS = {}


def network(words, *shape, tokens=0):
    """Register a class of networks: what it has, and the shape of its input, floats or numbers of tokens."""

    def add(make):
        NETWORKS[words] = make, shape, tokens
        return make

    return add


@network("conv + batch norm", 1, 16, 12, 12)
class ConvNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(16, 48, 3, bias=False), nn.BatchNorm2d(48)
        self.d, self.e = nn.Conv2d(48, 32, 3), nn.BatchNorm2d(32, eps=1e-3)
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, x):
        return self.last(self.e(self.d(self.b(self.c(x)).relu())).relu())


@network("depthwise, grouped + batch norm", 1, 32, 12, 12)
class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(32, 32, 3, groups=32, bias=False), nn.BatchNorm2d(32)
        self.p, self.e = nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.g, self.f = nn.Conv2d(64, 64, 3, groups=4), nn.BatchNorm2d(64)
        self.plain = nn.Conv2d(64, 64, 3, groups=64)

    def forward(self, x):
        return self.plain(self.f(self.g(self.e(self.p(self.b(self.c(x)).relu())).relu())).relu())


@network("conv_transpose + batch norm", 1, 24, 6, 6)
class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.b = nn.ConvTranspose2d(24, 32, 4, stride=2), nn.BatchNorm2d(32)
        self.u, self.c = nn.ConvTranspose2d(32, 32, 2, groups=32, bias=False), nn.BatchNorm2d(32)
        self.v, self.d = nn.ConvTranspose2d(32, 16, 2, groups=2), nn.BatchNorm2d(16)
        self.plain = nn.ConvTranspose2d(16, 8, 2)

    def forward(self, x):
        return self.plain(self.d(self.v(self.c(self.u(self.b(self.t(x)).relu())).relu())).relu())


@network("conv 1d and 3d + batch norm", 1, 8, 20)
class Dimensions(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv1d(8, 24, 3), nn.BatchNorm1d(24)
        self.d, self.e = nn.Conv3d(24, 16, (3, 1, 1)), nn.BatchNorm3d(16)

    def forward(self, x):
        return self.e(self.d(self.b(self.c(x)).relu()[..., None, None])).relu()


@network("batch norm without gamma, frozen, alone", 1, 16, 8, 8)
class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.b = nn.Conv2d(16, 24, 3), nn.BatchNorm2d(24, affine=False)
        self.d = nn.Conv2d(24, 32, 3, bias=False)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(f"frozen_{name}", torch.ones(32))
        self.alone = nn.BatchNorm2d(32)
        self.prelu = nn.PReLU(32)

    def forward(self, x):
        x = self.d(self.b(self.c(x)).relu())
        scale = self.frozen_weight.reshape(1, -1, 1, 1) * (self.frozen_running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        shift = self.frozen_bias.reshape(1, -1, 1, 1) - self.frozen_running_mean.reshape(1, -1, 1, 1) * scale
        return self.alone(self.prelu(x * scale + shift))


@network("transposed linear, learnt scale", 1, 8, 48)
class Linears(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.free = nn.Linear(48, 96), nn.Linear(96, 64, bias=False)
        self.w, self.shift = nn.Parameter(torch.ones(64, 48)), nn.Parameter(torch.ones(48))
        self.scale = nn.Parameter(torch.ones(48))

    def forward(self, x):
        return (self.free(self.l(x).relu()) @ self.w + self.shift).relu() * self.scale


@network("attention, fused", 1, 10, 48)
class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n = nn.MultiheadAttention(48, 4, batch_first=True), nn.LayerNorm(48)

    def forward(self, x):
        y = self.n(x)
        return x + self.a(y, y, y, need_weights=False)[0]


@network("attention, separate", 1, 10, 48)
class Separate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.m = nn.MultiheadAttention(48, 4, batch_first=True), nn.LayerNorm(48), nn.LayerNorm(48)

    def forward(self, x):
        return self.m(self.a(self.n(x), x, x, need_weights=False)[0])


@network("q, k and v joined in forward", 1, 10, 48)
class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 48)

    def forward(self, x):
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        bias = torch.cat([self.q.bias, self.k.bias, self.v.bias])
        q, k, v = nn.functional.linear(x, weight, bias).split(48, -1)
        return (q * k).softmax(-1) * v


@network("tied embedding, layer norms, RMS norm", 1, 10, tokens=300)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.up, self.down = nn.Embedding(300, 48), nn.Linear(48, 192), nn.Linear(192, 48)
        self.norms = nn.ModuleList([nn.LayerNorm(192), nn.LayerNorm(192)])
        self.rms, self.head = nn.RMSNorm(48), nn.Linear(48, 300, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        x = self.norms[1](self.norms[0](self.up(self.emb(x))).relu())
        return self.head(self.rms(self.down(x)))


@network("LSTM, both directions, two layers", 1, 10, 32)
class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LSTM(32, 24, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.l(x)[0]


@network("GRU and RNN", 1, 10, 32)
class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.g, self.r = nn.GRU(32, 24, batch_first=True), nn.RNN(24, 16, batch_first=True)

    def forward(self, x):
        return self.r(self.g(x)[0])[0]


@network("weight norm", 1, 16, 12, 12)
class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 24, 3))

    def forward(self, x):
        return self.c(x)


COMPRESSIONS = {
    "int8": lambda m: cto.linear_quantize_weights(m, op(cto.OpLinearQuantizerConfig(mode="linear_symmetric"))),
    "int8, with offsets": lambda m: cto.linear_quantize_weights(m, op(cto.OpLinearQuantizerConfig(mode="linear"))),
    "int4 by blocks": lambda m: cto.linear_quantize_weights(
        m,
        op(cto.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=16)),
    ),
    "palette of 16": lambda m: cto.palettize_weights(m, op(cto.OpPalettizerConfig(mode="kmeans", nbits=4))),
    "palette of 64": lambda m: cto.palettize_weights(m, op(cto.OpPalettizerConfig(mode="kmeans", nbits=6))),
    "palettes of 16 for 8 channels": lambda m: cto.palettize_weights(
        m, op(cto.OpPalettizerConfig(mode="kmeans", nbits=4, granularity="per_grouped_channel", group_size=8))
    ),
    "half of it pruned": lambda m: cto.prune_weights(m, op(cto.OpMagnitudePrunerConfig(target_sparsity=0.5))),
}
"""Of models for iOS 18; each takes weights of 512 elements or more."""

COMPRESSED = ("conv + batch norm", "depthwise, grouped + batch norm", "transposed linear, learnt scale", "attention, fused",
              "attention, separate", "tied embedding, layer norms, RMS norm")  # fmt: skip


def op(config):
    config.weight_threshold = 512
    return cto.OptimizationConfig(global_config=config)


def fill(net, seed):
    """Give a network random weights, as if it had been trained."""
    generator = torch.Generator().manual_seed(seed)
    for name, array in net.state_dict().items():
        if name.endswith("running_var"):
            array.copy_(torch.rand(array.shape, generator=generator) + 0.2)
        elif array.is_floating_point():
            array.copy_(torch.randn(array.shape, generator=generator) * 0.3)
        else:
            array.fill_(seed)


def example(words):
    _, shape, tokens = NETWORKS[words]
    return torch.randint(0, tokens, shape, dtype=torch.int32) if tokens else torch.rand(shape)


def convert(words, net, path, precision, compress=None):
    x = example(words)
    dtype = np.int32 if NETWORKS[words][2] else np.float32
    with contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
        model = ct.convert(
            torch.jit.trace(net, x, check_trace=False), inputs=[ct.TensorType("x", x.shape, dtype=dtype)],
            compute_precision=precision, skip_model_load=True,
            minimum_deployment_target=ct.target.iOS18 if compress else ct.target.iOS16,
        )  # fmt: skip
        model = model if compress is None else compress(model)
    shutil.rmtree(path, ignore_errors=True)
    model.save(str(path))
    return path


def made(words, seed):
    """Return a network and its checkpoint."""
    net = NETWORKS[words][0]().eval()
    fill(net, seed)
    return net, {name: array.detach().numpy().copy() for name, array in net.state_dict().items()}


def constants(path):
    with milblob.open(path, constants=True) as model:
        return {
            (use.reader.name, use.parameter): (np.asarray(tensor.read()), bool(tensor.compression))
            for tensor in model.values()
            if str(tensor.mil_dtype) != "string"
            for use in tensor.consumers
        }


def sqnr(dense, values):
    dense, values = dense.astype(np.float64), values.astype(np.float64)
    noise = float(((dense - values) ** 2).sum())
    return math.inf if noise == 0 else 10 * math.log10(float((dense**2).sum()) / noise)


def row(words, precision, folder, kind=None):
    """Refit, compare; return what the table says."""
    compress = COMPRESSIONS[kind] if kind else None
    base_net, base = made(words, 1)
    new_net, new = made(words, 2)
    model = convert(words, base_net, folder / "base.mlpackage", precision, compress)
    fresh = constants(convert(words, new_net, folder / "fresh.mlpackage", precision, compress))
    options = {"requantize": "fit"} if kind else {}
    try:
        report = milblob.refit(model, new, base=base, **options)
    except (ValueError, milblob.MilblobError) as error:
        return "refused", str(error)
    unused = [name for name in report.unused if not name.endswith("num_batches_tracked")]
    assert not unused, unused
    got = constants(model)
    assert got.keys() == fresh.keys(), got.keys() ^ fresh.keys()
    different = [
        key for key, (values, coded) in fresh.items() if not coded and values.tobytes() != got[key][0].tobytes()
    ]
    assert not different, different
    plain = sum(not coded for _, coded in fresh.values())
    if not kind:
        return "equal", f"{len(report.changes)} weights, every bit"
    dense = constants(convert(words, new_net, folder / "dense.mlpackage", precision))
    figures = [
        (sqnr(dense[key][0], got[key][0]), sqnr(dense[key][0], values))
        for key, (values, coded) in fresh.items()
        if coded and key in dense
    ]
    worst, least = (min(figure[side] for figure in figures) for side in (0, 1))
    gap = max(theirs - ours for ours, theirs in figures)
    assert gap < _MAX_GAP, figures
    return "equal", (
        f"{len(figures)} compressed: {worst:.1f} dB at least, {least:.1f} dB in a new conversion"
        f"{f' (one has {gap:.1f} dB less)' if gap > 0.5 else ''}; {plain} others, every bit"
    )


def main():
    """Print the table; the exit status is 1 if anything is neither equal nor refused."""
    failures = 0
    print("| network | weights | result |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        rows = [(words, kind) for words in NETWORKS for kind in ("float16", "float32")]
        rows += [(words, kind) for words in COMPRESSED for kind in COMPRESSIONS]
        for words, kind in rows:
            precision = ct.precision.FLOAT32 if kind == "float32" else ct.precision.FLOAT16
            try:
                result, more = row(words, precision, Path(folder), kind if kind in COMPRESSIONS else None)
            except AssertionError as error:
                failures += 1
                result, more = "WRONG", str(error)
            print(f"| {words} | {kind} | {result}: {more[:300]} |", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
