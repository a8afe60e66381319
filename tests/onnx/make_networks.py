"""Whole networks from torch through coremltools and milblob to onnxruntime: what they compute against torch itself.

    python tests/onnx/make_networks.py [name ...]

Needs torch, coremltools and onnxruntime. Nothing is kept. Prints for each network the worst difference as a share of the range of
torch's output, in single precision (2e-5 at most) and in half precision (8e-3), without optimisations and with them (ten times
that), and the size of the .onnx file. What has loops, branches, states, labels, several shapes or several functions is in CASES.
"""

import logging
import os
import pathlib
import sys
import tempfile
import warnings
from functools import partial

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


class Language(nn.Module):
    """A language model of which each layer keeps the keys and values of the tokens so far in two states."""

    LAYERS, HEADS, WIDTH, LENGTH = 3, 4, 64, 40

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, self.WIDTH)
        self.places = nn.Parameter(torch.randn(self.LENGTH, self.WIDTH) * 0.1)
        self.layers = nn.ModuleList(Layer(self.WIDTH, self.HEADS) for _ in range(self.LAYERS))
        self.norm = nn.LayerNorm(self.WIDTH)
        for name in self.state_names():
            self.register_buffer(name, torch.zeros(self.state_shape()))

    @classmethod
    def state_names(cls):
        return [f"{kind}{layer}" for layer in range(cls.LAYERS) for kind in ("keys", "values")]

    @classmethod
    def state_shape(cls):
        return 1, cls.HEADS, cls.LENGTH, cls.WIDTH // cls.HEADS

    def forward(self, token, place):
        end = place.shape[-1]
        x = self.words(token) + self.places[end - 1 : end]
        for number, layer in enumerate(self.layers):
            attention = layer.attention
            q, k, v = attention.qkv(layer.one(x)).reshape(1, 1, 3, self.HEADS, -1).permute(2, 0, 3, 1, 4)
            keys, values = getattr(self, f"keys{number}"), getattr(self, f"values{number}")
            keys[:, :, end - 1 : end] = k
            values[:, :, end - 1 : end] = v
            found = (q @ keys[:, :, :end].transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ values[:, :, :end]
            x = x + attention.out(found.transpose(1, 2).reshape(1, 1, self.WIDTH))
            x = x + layer.mlp(layer.two(x))
        return self.norm(x) @ self.words.weight.T


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cells, self.head = kind(20, 32, 2, batch_first=True, **options), nn.LazyLinear(10)

    def forward(self, x):
        found, _ = self.cells(x)
        return self.head(found)


class While(nn.Module):
    """As many passes as the values ask for."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        while x.abs().sum() < 500.0:
            x = x * 1.5 + torch.tanh(self.linear(x))
        return x


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        if x.sum() > 0:  # noqa: SIM108 - scripted: both are branches of the network
            found = torch.sigmoid(self.one(x))
        else:
            found = torch.tanh(self.two(x)) - 1.0
        return found


class Convolutions(nn.Sequential):
    """Takes images of any size."""

    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Tokens(nn.Module):
    """Takes any number of tokens up to 16."""

    def __init__(self):
        super().__init__()
        self.inner = Bert()

    def forward(self, tokens):
        x = self.inner.words(tokens) + self.inner.places[: tokens.shape[1]]
        for layer in self.inner.layers[:2]:
            x = layer(x)
        return self.inner.head(x)


IMAGE = torch.randn(1, 3, 32, 32)
TOKENS = torch.randint(0, 100, (1, 16), dtype=torch.int32)
NETWORKS = {
    "cnn": (Cnn, IMAGE), "resnet": (ResNet, IMAGE), "mobilenet": (MobileNet, IMAGE), "unet": (UNet, IMAGE),
    "bert": (Bert, TOKENS), "whisper": (Whisper, torch.randn(1, 20, 40)), "gpt": (Gpt, TOKENS), "vit": (Vit, IMAGE),
}  # fmt: skip


def convert(network, inputs, path, opset, precision, script=False, **options):
    """Convert a network of torch to a package: `inputs` are (name, tensor, shape)."""
    import coremltools as ct

    traced = torch.jit.script(network) if script else torch.jit.trace(network, tuple(tensor for _, tensor, _ in inputs))
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


def compare(path, network, feeds):
    """Return (worst difference, worst with optimisations, size) of a network of one input x."""
    from onnx_models import run

    found = [
        max(worst(next(iter(run(path, {"x": x.numpy()}, best).values())), network(x)) for x in feeds)
        for best in (False, True)
    ]
    return *found, path.stat().st_size


def judge(kind, feeds, opset, precision, folder, shape=None, script=False):
    """Make a network, convert it twice, and compare what it computes for all feeds."""
    import milblob.onnx

    torch.manual_seed(0)
    network = kind().eval()
    network(feeds[0])
    package, path = folder / "network.mlpackage", folder / "network.onnx"
    convert(network, [("x", feeds[0], shape or tuple(feeds[0].shape))], package, opset, precision, script)
    milblob.onnx.convert(package, path, force=True)
    return compare(path, network, feeds)


def judge_language(opset, precision, folder):
    """32 steps with states; torch is fed with the same tokens."""
    import coremltools as ct

    import milblob.onnx
    from onnx_models import session

    torch.manual_seed(0)
    network = Language().eval()
    token, place = torch.zeros((1, 1), dtype=torch.int32), torch.zeros((1, 3), dtype=torch.int32)
    names, shape = Language.state_names(), Language.state_shape()
    kinds = [ct.StateType(wrapped_type=ct.TensorType(shape=shape, dtype=np.float16), name=name) for name in names]
    inputs = [("token", token, (1, 1)), ("place", place, (1, ct.RangeDim(1, Language.LENGTH, 3)))]
    package, path = folder / "language.mlpackage", folder / "language.onnx"
    convert(network, inputs, package, opset, precision, states=kinds)
    milblob.onnx.convert(package, path, force=True)
    differences = []
    for best in (False, True):
        opened = session(path, best)
        outputs = [one.name for one in opened.get_outputs()]
        for name in names:
            getattr(network, name).zero_()
        states, difference = {name: np.zeros(shape, np.float16) for name in names}, 0.0
        for step in range(1, 33):
            token = torch.tensor([[step * 7 % 100]], dtype=torch.int32)
            place = torch.zeros((1, step), dtype=torch.int32)
            values = opened.run(None, {"token": token.numpy(), "place": place.numpy(), **states})
            found = dict(zip(outputs, values, strict=True))
            states = {name: found.pop(f"{name}_out") for name in names}
            difference = max(difference, worst(next(iter(found.values())), network(token, place)))
        differences.append(difference)
    return *differences, path.stat().st_size


def judge_functions(opset, precision, folder):
    """Two functions of one package: each .onnx file refers to the one weight file, and no other file appears."""
    import coremltools as ct
    import onnx

    import milblob.onnx

    torch.manual_seed(0)
    x = torch.randn(1, 64)
    body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    networks = {"large": nn.Sequential(body, nn.Linear(64, 50)).eval(), "small": nn.Sequential(body, nn.ReLU()).eval()}
    package, functions = folder / "both.mlpackage", ct.utils.MultiFunctionDescriptor()
    for name, network in networks.items():
        convert(network, [("x", x, (1, 64))], folder / f"{name}.mlpackage", opset, precision)
        functions.add_function(str(folder / f"{name}.mlpackage"), "main", name)
    functions.default_function_name = "large"
    ct.utils.save_multifunction(functions, str(package))
    results, files = [], []
    for name, network in networks.items():
        path = folder / f"{name}.onnx"
        milblob.onnx.convert(package, path, function=name, force=True)
        results.append(compare(path, network, [x]))
        tensors = onnx.load(path, load_external_data=False).graph.initializer
        places = [{e.key: e.value for e in tensor.external_data} for tensor in tensors]
        files.append({(place["location"], place["offset"]) for place in places if place})
    locations = {location for found in files for location, _ in found}
    if len(locations) != 1 or not files[0] & files[1] or list(folder.glob("*.bin")):
        raise ValueError(f"weights: expected one weight file and shared weights in it, got {files}")
    return tuple(max(values) for values in zip(*results, strict=True))


def judge_labels(labels, opset, precision, folder):
    """A classifier: the label is that of torch's most probable class."""
    import coremltools as ct

    import milblob.onnx
    from onnx_models import run

    torch.manual_seed(0)
    network = Cnn().eval()
    package, path = folder / "labels.mlpackage", folder / "labels.onnx"
    convert(
        network,
        [("x", IMAGE, (1, 3, 32, 32))],
        package,
        opset,
        precision,
        classifier_config=ct.ClassifierConfig(labels),
    )
    milblob.onnx.convert(package, path, force=True)
    differences = [0.0, 0.0]
    for x in (IMAGE, IMAGE * 3 - 1, -IMAGE):
        expected = network(x)
        for number, best in enumerate((False, True)):
            found = run(path, {"x": x.numpy()}, best)
            label = next(value for value in found.values() if value.dtype.kind in "OUi")
            if label.reshape(-1)[0] != labels[int(expected.argmax())]:
                raise ValueError(f"label: expected {labels[int(expected.argmax())]!r}, got {label!r}")
            probabilities = next(value for value in found.values() if value.dtype.kind == "f")
            differences[number] = max(differences[number], worst(probabilities.reshape(1, -1), expected))
    return *differences, path.stat().st_size


def judge_shapes(kind, feeds, shape, opset, precision, folder):
    return judge(kind, feeds, opset, precision, folder, shape(feeds))


def any_of(feeds):
    import coremltools as ct

    return ct.EnumeratedShapes([tuple(x.shape) for x in feeds], default=tuple(feeds[0].shape))


def tokens_between(feeds):
    import coremltools as ct

    return 1, ct.RangeDim(min(x.shape[1] for x in feeds), max(x.shape[1] for x in feeds), feeds[0].shape[1])


SEQUENCE = torch.randn(2, 12, 20)
SIZES = [torch.randn(1, 3, 32, 32), torch.randn(1, 3, 48, 24), torch.randn(1, 3, 64, 96)]
LENGTHS = [torch.randint(0, 100, (1, count), dtype=torch.int32) for count in (5, 1, 16)]
SIGNED = [torch.rand(2, 8), -torch.rand(2, 8)]
STRINGS, NUMBERS = [f"klasse {number}" for number in "aäbcdefghi"], [4000000000 + number * 7 for number in range(10)]
RECURRENT = ("iOS15", "fp32"), ("iOS17", "fp16"), ("iOS18", "fp32")
STATES = ("iOS18", "fp16"), ("iOS18", "fp32")
# What it is, the opsets and precisions, and what judges it.
CASES = {
    "lstm": (RECURRENT, partial(judge, partial(Recurrent, nn.LSTM, bidirectional=True), [SEQUENCE])),
    "gru": (RECURRENT, partial(judge, partial(Recurrent, nn.GRU), [SEQUENCE])),
    "while": (RECURRENT, partial(judge, While, SIGNED, script=True)),
    "cond": (RECURRENT, partial(judge, Branches, SIGNED, script=True)),
    "language": (STATES, judge_language),
    "enumerated": (RECURRENT, partial(judge_shapes, Convolutions, SIZES, any_of)),
    "range": (RECURRENT, partial(judge_shapes, Tokens, LENGTHS, tokens_between)),
    "functions": (STATES, judge_functions),
    "strings": (RECURRENT, partial(judge_labels, STRINGS)),
    "numbers": (RECURRENT, partial(judge_labels, NUMBERS)),
}  # fmt: skip
USUAL = ("iOS15", "fp32"), ("iOS16", "fp16"), ("iOS17", "fp32"), ("iOS18", "fp16"), ("iOS18", "fp32")
CASES = {name: (USUAL, partial(judge, kind, [x])) for name, (kind, x) in NETWORKS.items()} | CASES


def main():
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ["TQDM_DISABLE"] = "1"
    torch.set_num_threads(1)
    bad = 0
    for name in sys.argv[1:] or CASES:
        kinds, judge_case = CASES[name]
        for opset, precision in kinds:
            with tempfile.TemporaryDirectory() as place:
                plain, best, nbytes = judge_case(opset=opset, precision=precision, folder=pathlib.Path(place))
            # States are half precision whatever else is.
            limit = LIMITS["fp16" if name == "language" else precision]
            is_large = nbytes > MAX_ONNX_NBYTES and name != "lstm"  # whose weights have another order in ONNX
            is_bad = not plain <= limit or not best <= 10 * limit or is_large
            bad += is_bad
            print(
                f"{name:11} {opset} {precision}  {plain:.1e}  {best:.1e}  {nbytes:>6} B{'  BAD' * is_bad}", flush=True
            )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
