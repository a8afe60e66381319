"""Networks of torch as packages and as torch's own export: what `bench_session.py` runs."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, LENGTH, TOKENS = 4, 4, 256, 128, 1000
PRECISIONS = ("float32", "float16", "int8", "palette4")


class Residual(nn.Module):
    """Two convolutions and a shorter way, with batch norms."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        first = (nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.path = nn.Sequential(*first, nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Any) -> Any:
        return functional.relu(self.path(x) + self.short(x))


class Cnn(nn.Sequential):
    """Begins with a batch norm that no convolution comes before."""

    def __init__(self) -> None:
        begin = (nn.BatchNorm2d(3), nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        middle = (Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2), nn.Conv2d(128, 256, 1))
        end = (nn.BatchNorm2d(256), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
        super().__init__(*begin, *middle, *end)
        for norm in (module for module in self.modules() if isinstance(module, nn.BatchNorm2d)):
            for values, low, high in (
                (norm.running_mean, -0.2, 0.2),
                (norm.running_var, 0.5, 2),
                (norm.weight, 0.5, 2),
            ):
                nn.init.uniform_(values, low, high)


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.shape = 3, heads, width // heads

    def heads(self, x: Any) -> Any:
        return self.qkv(self.one(x)).reshape(1, x.shape[1], *self.shape).permute(2, 0, 3, 1, 4)

    def rest(self, x: Any, found: Any) -> Any:
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.two(x))

    def forward(self, x: Any) -> Any:
        return self.rest(x, functional.scaled_dot_product_attention(*self.heads(x)))


class Transformer(nn.Sequential):
    """Of 64 tokens."""

    def __init__(self) -> None:
        layers = (Layer() for _ in range(LAYERS))
        super().__init__(nn.Embedding(TOKENS, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))


class Lstm(nn.Module):
    """Two layers, 32 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 50)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0])


class Language(nn.Module):
    """One step of a language model, with keys and values of the tokens so far in caches: states, or inputs and outputs."""

    def __init__(self, has_states: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(TOKENS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.has_states = has_states
        for name in cache_names() if has_states else ():
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, token: Any, place: Any, *caches: Any) -> Any:
        end = place.shape[-1]
        x = self.words(token) + self.places[end - 1 : end]
        held = [getattr(self, name) for name in cache_names()] if self.has_states else [one.clone() for one in caches]
        for layer, keys, values in zip(self.layers, held[::2], held[1::2], strict=True):
            q, keys[:, :, end - 1 : end], values[:, :, end - 1 : end] = layer.heads(x)  # type: ignore[attr-defined]
            found = functional.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end])
            x = layer.rest(x, found)  # type: ignore[attr-defined]
        found = self.norm(x) @ self.words.weight.T
        return found if self.has_states else (found, *held)


def cache_names() -> list[str]:
    """The caches of `Language`."""
    return [f"{kind}{layer}" for layer in range(LAYERS) for kind in ("keys", "values")]


NETWORKS = {
    "cnn": (Cnn, (1, 3, 96, 96)), "transformer": (Transformer, (1, 64)), "lstm": (Lstm, (1, 32, 64)),
    "language": (Language, ()),
}  # fmt: skip


def write_package(path: Path, name: str, precision: str) -> None:
    """Convert a network by coremltools, and compress it by milblob."""
    import coremltools as ct

    import milblob

    if precision in ("int8", "palette4"):
        dense = path.with_name(f"dense-{path.name}")
        write_package(dense, name, "float32")
        milblob.compress(dense, path, precision)
        return
    kind, shape = NETWORKS[name]
    torch.manual_seed(0)
    options: dict[str, Any] = {"minimum_deployment_target": ct.target.iOS17}
    if kind is Language:
        net, args = kind(True).eval(), (torch.zeros((1, 1), dtype=torch.int32), torch.zeros((1, 3), dtype=torch.int32))
        place = ct.TensorType(name="place", shape=(1, ct.RangeDim(1, LENGTH, 3)), dtype=np.int32)
        options["inputs"] = [ct.TensorType(name="token", shape=(1, 1), dtype=np.int32), place]
        cache = ct.TensorType(shape=(1, HEADS, LENGTH, WIDTH // HEADS), dtype=np.float16)
        options["states"] = [ct.StateType(wrapped_type=cache, name=one) for one in cache_names()]
        options["minimum_deployment_target"] = ct.target.iOS18
    else:
        net, args = kind().eval(), (_zeros(shape),)
        options["inputs"] = [ct.TensorType(name="x", shape=shape, dtype=np.int32 if len(shape) == 2 else np.float32)]
    options["compute_precision"] = ct.precision.FLOAT16 if precision == "float16" else ct.precision.FLOAT32
    convert(path, net, args, **options)


def write_products(path: Path) -> None:
    """Eight products with int4 weights of 2048 x 2048 in blocks of 32, of 1 to 64 tokens."""
    import coremltools as ct

    import milblob

    torch.manual_seed(0)
    net, dense = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).eval(), path.with_name(f"dense-{path.name}")
    tokens = ct.TensorType(name="x", shape=(ct.RangeDim(1, 64, 1), 2048), dtype=np.float32)
    options = {"minimum_deployment_target": ct.target.iOS18, "compute_precision": ct.precision.FLOAT32}
    convert(dense, net, (torch.zeros(1, 2048),), inputs=[tokens], **options)
    milblob.compress(dense, path, milblob.Linear("int4", block=32))


def write_products_onnx(path: Path, package: Path, compressed: str) -> None:
    """Convert them: "dense", or "bytes": as MatMulNBits that rounds its operands to 8 bits."""
    import onnx

    import milblob.onnx

    kept = "onnxruntime" if compressed == "bytes" else compressed
    milblob.onnx.convert(package, path, weights="embed", compressed=kept)
    model = onnx.load(path)
    for node in model.graph.node if compressed == "bytes" else ():
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 4
    onnx.save(model, path)


def convert(path: Path, net: Any, args: tuple[Any, ...], **options: Any) -> None:
    """Trace a network and write it as a package, by coremltools."""
    import coremltools as ct

    logging.getLogger("coremltools").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ct.convert(torch.jit.trace(net, args), skip_model_load=True, **options).save(str(path))


def write_export(path: Path, name: str, precision: str) -> None:
    """Export a network by torch itself, in half precision or in single precision: it has no compressed ones."""
    kind, shape = NETWORKS[name]
    torch.manual_seed(0)
    options: dict[str, Any] = {"input_names": ["x"]}
    if kind is Language:
        net = kind(False).eval()
        caches = [torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS) for _ in cache_names()]
        args = (torch.zeros((1, 1), dtype=torch.int32), torch.zeros((1, 3), dtype=torch.int32), *caches)
        options = {"input_names": ["token", "place", *cache_names()], "dynamic_axes": {"place": {1: "length"}}}
    else:
        net, args = kind().eval(), (_zeros(shape),)
    if precision == "float16":
        net, args = net.half(), tuple(one.half() if one.is_floating_point() else one for one in args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, args, str(path), dynamo=False, **options)  # dynamo refuses the growing caches


def _zeros(shape: tuple[int, ...]) -> Any:
    return torch.zeros(shape, dtype=torch.int32 if len(shape) == 2 else torch.float32)
