"""Whole networks from torch through coremltools and milblob to onnxruntime: what they compute against torch itself.

    python tests/onnx/make_networks.py [name ...]

Needs torch, coremltools and onnxruntime. Nothing is kept. Prints for each network the worst difference as a share of the range of
torch's output, in single precision (2e-5 at most) and in half precision (8e-3), without optimisations and with them (ten times
that), and the size of the .onnx file.
"""

import logging
import os
import pathlib
import sys
import tempfile
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

LIMITS = {"fp32": 2e-5, "fp16": 8e-3}
MAX_ONNX_NBYTES = 65536


class Cnn(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, stride=2), nn.LeakyReLU(0.1),
            nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.GELU(), nn.Linear(64, 10), nn.Softmax(-1),
        )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.short = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x):
        return functional.relu(self.second(self.first(x)) + self.short(x))


class ResNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1), Residual(16, 16, 1),
            Residual(16, 32, 2), Residual(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip


class Inverted(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        wide = inner * 4
        self.path = nn.Sequential(
            nn.Conv2d(inner, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(), nn.Conv2d(wide, wide, 3, stride, 1, groups=wide),
            nn.BatchNorm2d(wide), nn.Hardswish(), nn.Conv2d(wide, outer, 1),
        )  # fmt: skip
        self.same = inner == outer and stride == 1

    def forward(self, x):
        return self.path(x) + x if self.same else self.path(x)


class MobileNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.norm, self.middle = nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 3, 1, 1)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(48, 3, 3, 1, 1)

    def forward(self, x):
        one = functional.silu(self.down1(x))
        two = functional.silu(self.norm(self.down2(one)))
        two = two + self.middle(two)
        up = functional.interpolate(two, scale_factor=2, mode="bilinear", align_corners=False)[:, :16]
        return torch.tanh(self.last(torch.cat([one, self.up(two), up], 1)))


class Attention(nn.Module):
    def __init__(self, width, heads, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        if self.causal:
            score = q @ k.transpose(-1, -2) * (w // self.heads) ** -0.5
            mask = torch.triu(torch.full((n, n), -1e4), 1)
            found = (score + mask).softmax(-1) @ v
        else:
            found = functional.scaled_dot_product_attention(q, k, v)
        return self.out(found.transpose(1, 2).reshape(b, n, w))


class Layer(nn.Module):
    def __init__(self, width=64, heads=4, causal=False):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 64), nn.Parameter(torch.randn(16, 64) * 0.1)
        self.layers, self.head = nn.Sequential(*(Layer() for _ in range(6))), nn.Linear(64, 100)

    def forward(self, tokens):
        return self.head(self.layers(self.words(tokens) + self.places))


class Whisper(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv1d(20, 64, 3, 1, 1), nn.Conv1d(64, 64, 3, 2, 1)
        self.layers = nn.Sequential(*(Layer() for _ in range(4)), nn.LayerNorm(64))

    def forward(self, mel):
        x = functional.gelu(self.two(functional.gelu(self.one(mel))))
        return self.layers(x.permute(0, 2, 1))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.layers = nn.Sequential(*(Layer(causal=True) for _ in range(4)), nn.LayerNorm(64))

    def forward(self, tokens):
        return self.layers(self.words(tokens)) @ self.words.weight.T


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 64, 8, 8), nn.Parameter(torch.randn(1, 1, 64))
        self.layers, self.head = nn.Sequential(*(Layer() for _ in range(4))), nn.Linear(64, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.layers(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))[:, 0])


class Cache(nn.Module):
    """One layer with a state: the keys and values of the tokens so far."""

    def __init__(self):
        super().__init__()
        self.words, self.q, self.kv = nn.Embedding(100, 32), nn.Linear(32, 32), nn.Linear(32, 64)
        self.register_buffer("cache", torch.zeros(1, 16, 64))

    def forward(self, token, place):
        x = self.words(token)
        end = place.shape[-1]
        self.cache[:, end - 1 : end] = self.kv(x)
        k, v = self.cache[:, :end].chunk(2, -1)
        return (self.q(x) @ k.transpose(-1, -2) * 32**-0.5).softmax(-1) @ v


IMAGE = torch.randn(1, 3, 32, 32)
TOKENS = torch.randint(0, 100, (1, 16), dtype=torch.int32)
NETWORKS = {
    "cnn": (Cnn, IMAGE), "resnet": (ResNet, IMAGE), "mobilenet": (MobileNet, IMAGE), "unet": (UNet, IMAGE),
    "bert": (Bert, TOKENS), "whisper": (Whisper, torch.randn(1, 20, 40)), "gpt": (Gpt, TOKENS), "vit": (Vit, IMAGE),
}  # fmt: skip


def convert(network, inputs, path, opset, precision, **options):
    import coremltools as ct

    traced = torch.jit.trace(network, tuple(tensor for _, tensor, _ in inputs))
    kinds = [
        ct.TensorType(name=name, shape=shape, dtype=np.int32 if tensor.dtype == torch.int32 else np.float32)
        for name, tensor, shape in inputs
    ]
    model = ct.convert(
        traced, inputs=kinds, minimum_deployment_target=getattr(ct.target, opset), skip_model_load=True,
        compute_precision=ct.precision.FLOAT32 if precision == "fp32" else ct.precision.FLOAT16, **options,
    )  # fmt: skip
    model.save(str(path))


def worst(found, expected):
    expected = expected.detach().numpy()
    return float(np.abs(found.astype(np.float64) - expected).max() / np.ptp(expected))


def judge(name, opset, precision, folder):
    """Return (worst difference, worst with optimisations, size)."""
    import milblob.onnx
    from onnx_models import run

    torch.manual_seed(0)
    kind, x = NETWORKS[name]
    network = kind().eval()
    package, path = folder / f"{name}.mlpackage", folder / f"{name}.onnx"
    convert(network, [("x", x, tuple(x.shape))], package, opset, precision)
    milblob.onnx.convert(package, path, force=True)
    expected = network(x)
    found = [worst(next(iter(run(path, {"x": x.numpy()}, best).values())), expected) for best in (False, True)]
    return *found, path.stat().st_size


def judge_cache(folder, precision):
    """A state, and a length that grows with each step: the worst difference over ten steps."""
    import coremltools as ct

    import milblob.onnx
    from onnx_models import session

    torch.manual_seed(0)
    network = Cache().eval()
    token, place = torch.zeros((1, 1), dtype=torch.int32), torch.zeros((1, 3), dtype=torch.int32)
    kind = ct.StateType(wrapped_type=ct.TensorType(shape=(1, 16, 64), dtype=np.float16), name="cache")
    inputs = [("token", token, (1, 1)), ("place", place, (1, ct.RangeDim(1, 16, 3)))]
    convert(network, inputs, folder / "cache.mlpackage", "iOS18", precision, states=[kind])
    milblob.onnx.convert(folder / "cache.mlpackage", folder / "cache.onnx", force=True)
    opened = session(folder / "cache.onnx")
    network.cache.zero_()
    state, difference = np.zeros((1, 16, 64), np.float16), 0.0
    names = [one.name for one in opened.get_outputs()]
    for step in range(1, 11):
        token = torch.tensor([[step * 7 % 100]], dtype=torch.int32)
        place = torch.zeros((1, step), dtype=torch.int32)
        found = dict(
            zip(names, opened.run(None, {"token": token.numpy(), "place": place.numpy(), "cache": state}), strict=True)
        )
        state = found.pop("cache_out")
        difference = max(difference, worst(next(iter(found.values())), network(token, place)))
    return difference, (folder / "cache.onnx").stat().st_size


def main():
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ["TQDM_DISABLE"] = "1"
    torch.set_num_threads(1)
    bad = 0
    with tempfile.TemporaryDirectory() as place:
        for name in sys.argv[1:] or [*NETWORKS, "cache"]:
            if name == "cache":
                difference, nbytes = judge_cache(pathlib.Path(place), "fp16")
                bad += difference > LIMITS["fp16"]
                print(f"cache       iOS18 fp16  {difference:.1e}           {nbytes:>6} B", flush=True)
                continue
            for opset, precision in (
                ("iOS15", "fp32"),
                ("iOS16", "fp16"),
                ("iOS17", "fp32"),
                ("iOS18", "fp16"),
                ("iOS18", "fp32"),
            ):
                plain, best, nbytes = judge(name, opset, precision, pathlib.Path(place))
                limit = LIMITS[precision]
                is_bad = plain > limit or best > 10 * limit or nbytes > MAX_ONNX_NBYTES
                bad += is_bad
                words = "  BAD" if is_bad else ""
                print(f"{name:11} {opset} {precision}  {plain:.1e}  {best:.1e}  {nbytes:>6} B{words}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
