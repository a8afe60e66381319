"""What Apple's own library makes of bundles: `make aimodel-oracle` runs this where coreai-core and its converters are installed.

    python make_aimodel_oracle.py record FOLDER     writes small bundles and oracle.json, which tests compare with
    python make_aimodel_oracle.py build FOLDER      only the bundles, and all of them
    python make_aimodel_oracle.py old PATH          one bundle, with whatever release PYTHONPATH leads to
    python make_aimodel_oracle.py describe PATH...  prints what the library says of each: one line of JSON
    python make_aimodel_oracle.py run PATH IN OUT   runs a function on the arrays of an .npz, writes its outputs to another

It imports nothing of milblob. The library aborts on damaged files, so each command is a process of its own.
"""

import argparse
import asyncio
import contextlib
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent

DTYPES = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f4E2M1FN": ml_dtypes.float4_e2m1fn, "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "i1": np.bool_, "complex<f32>": np.complex64,
    **{f"{sign}i{n}": np.dtype(f"{'u' if sign == 'u' else ''}int{n}") for sign in "su" for n in (8, 16, 32, 64)},
    **{f"ui{n}": np.uint8 for n in (1, 2, 3, 4, 6)}, "si2": np.int8, "si4": np.int8,
}  # fmt: skip
NBITS = {"ui1": 1, "ui2": 2, "ui3": 3, "ui4": 4, "ui6": 6, "si2": 2, "si4": 4, "f4E2M1FN": 4}


# ------------------------------------------------------------------------------------------------------- what it prints


def numbers(text, dtype):
    """The values of `dense<...>`, one element each."""
    words = re.findall(r"true|false|0x[0-9A-Fa-f]+|-?[0-9.]+(?:[eE][-+]?\d+)?|-?inf|nan", text)
    if dtype == "i1":
        return np.array([word == "true" for word in words])
    kind = np.dtype(DTYPES[dtype])
    if kind.kind in "iu":
        return np.array([int(word, 0) for word in words], np.int64 if kind.kind == "i" else np.uint64).astype(kind)
    bits = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[kind.itemsize]
    return np.array(
        [np.array(int(w, 16), bits).view(kind)[()] if w.startswith("0x") else kind.type(float(w)) for w in words], kind
    )


def unpacked(raw, dtype, count):
    """Elements of packed bytes, the lowest bits first, across bytes."""
    nbits = NBITS[dtype]
    bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[: count * nbits].reshape(count, nbits)
    values = (bits.astype(np.int64) << np.arange(nbits)).sum(1)
    if dtype.startswith("si"):
        values = np.where(values >= 1 << (nbits - 1), values - (1 << nbits), values)
    return values.astype(np.uint8).view(DTYPES[dtype]) if dtype.startswith("f") else values.astype(DTYPES[dtype])


def constants(text):
    """Every constant that is printed: function, dtype, shape, and the hash of its elements, one byte each below 8 bits."""
    blobs = dict(re.findall(r'^\s+([\w$.-]+): "0x([0-9A-Fa-f]*)"', text, re.M))
    function, found = "", []
    for line in text.splitlines():
        graph = re.match(r"\s+coreai\.graph (?:\w+ )*@\"?([^\"( ]+)", line)
        function = graph.group(1) if graph else function
        row = re.match(
            r"    %\S+ = coreai\.constant (dense(?:_resource)?)<(.*)> : tensor<((?:\d+x)*)(.+?)>(?: loc.*)?$", line
        )
        if row is None:
            continue
        kind, value, sizes, dtype = row.groups()
        shape = [int(size) for size in sizes.split("x") if size]
        count = int(np.prod(shape, dtype=np.int64))
        if kind == "dense_resource":
            raw = bytes.fromhex(blobs[value])[4:]
        elif value.startswith('"0x'):
            raw = bytes.fromhex(value[3:-1])
        else:
            raw = None
        if dtype not in DTYPES:
            digest = None
        else:
            if raw is None:
                values = numbers(value, dtype)
                values = np.broadcast_to(values, count) if values.size == 1 and count != 1 else values
            elif dtype in NBITS and len(raw) != count:
                values = unpacked(raw, dtype, count)
            else:
                values = np.frombuffer(raw, DTYPES[dtype])
            digest = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
        found.append({"function": function, "dtype": dtype, "shape": shape, "sha256": digest})
    return found


def ports(text):
    """Function -> names of its inputs and outputs, states among them, as the library prints them."""
    found = {}
    for name, rest in re.findall(r"coreai\.graph (?:\w+ )*@\"?([^\"( ]+)\"?\((.*)$", text, re.M):
        inputs, _, outputs = rest.partition(") -> ")
        names = [re.findall(r'coreai\.name = "([^"]*)"', part) for part in (inputs, outputs)]
        found[name] = {"inputs": names[0], "outputs": names[1]}
    return found


def describe(path):
    """All that tests compare with."""
    from coreai.authoring.asset import AIModelAsset

    text = str(AIModelAsset.load(path).program)
    return {"functions": ports(text), "constants": constants(text)}


# ------------------------------------------------------------------------------------------------------------ running


def run(path, arrays, function="main"):
    """Run a function of a bundle on the CPU: name -> array."""
    from coreai.authoring.asset import AIModelAsset
    from coreai.runtime import NDArray

    async def call():
        async with AIModelAsset.load(path).executable() as model:
            outputs = await model.load_function(function)({name: NDArray(array) for name, array in arrays.items()})
            return {name: np.array(value.numpy()) for name, value in outputs.items()}

    return asyncio.run(call())


# ----------------------------------------------------------------------------------------------------------- networks


def networks(torch):
    """Name -> (modules by function, inputs, dtype): what is converted."""
    nn = torch.nn
    generator = torch.Generator().manual_seed(7)

    def random(*shape, dtype=torch.float32):
        return torch.randn(*shape, generator=generator).to(dtype)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(24, 32), nn.Linear(32, 16)

        def forward(self, x):
            return self.fc2(torch.relu(self.fc1(x)))

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3, groups=2)
            self.norm.running_mean.uniform_(-1, 1)

        def forward(self, x):
            return self.out(torch.relu(self.norm(self.conv(x))))

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(40, 16), nn.LayerNorm(16)
            self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
            self.head = nn.Linear(16, 40, bias=False)
            self.head.weight = self.embed.weight  # tied

        def forward(self, ids):
            x = self.norm(self.embed(ids))
            x = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
            return self.head(x)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(12, 8, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0]

    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 16)
            self.register_buffer("cache", torch.zeros(1, 16))

        def forward(self, x):
            self.cache.add_(self.fc(x))
            return torch.relu(self.cache) * 2

    class Odd(nn.Module):
        """Constants of other types: integers, bools, a splat, one element, none."""

        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.arange(24).remainder(3).eq(0))
            self.register_buffer("table", torch.arange(40))
            self.register_buffer("ones", torch.ones(24))

        def forward(self, x):
            x = torch.where(self.mask, x, self.ones) + self.table[:24].to(x.dtype)
            return x * 3.0

    class Branches(nn.Module):
        """Constants inside a branch."""

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 24)

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.a, self.b, (x,))

    class Bare(nn.Module):
        def __init__(self, columns=64, rows=32):
            super().__init__()
            self.fc = nn.Linear(columns, rows, bias=False)

        def forward(self, x):
            return self.fc(x)

    torch.manual_seed(7)
    two, bare = Two().eval(), Bare().eval()
    for name, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        yield f"linear_{name}", {"main": Two().to(dtype).eval()}, (random(1, 24, dtype=dtype),)
    yield "conv_f32", {"main": Conv().eval()}, (random(1, 3, 8, 8),)
    yield "conv_f16", {"main": Conv().half().eval()}, (random(1, 3, 8, 8, dtype=torch.float16),)
    yield "attention_f32", {"main": Attention().eval()}, (torch.arange(6)[None] % 40,)
    yield "lstm_f32", {"main": Recurrent().eval()}, (random(1, 4, 12),)
    yield "states_f32", {"main": Cache().eval()}, (random(1, 16),)
    yield "odd_f32", {"main": Odd().eval()}, (random(1, 24),)
    second = Two().eval()
    second.fc1 = two.fc1
    yield "functions_f32", {"main": two, "second": second}, (random(1, 24),)
    yield "branches_f32", {"main": Branches().eval()}, (random(1, 24),)
    yield "bare_f32", {"main": bare}, (torch.eye(64),)
    yield "bare_f16", {"main": Bare().half().eval()}, (torch.eye(64, dtype=torch.float16),)


def convert(modules, inputs, mode):
    """A program of torch modules."""
    import torch
    from coreai_torch import TorchConverter, get_decomp_table

    converter = TorchConverter(**({"mode": TorchConverter.Mode[mode]} if hasattr(TorchConverter, "Mode") else {}))
    for name, module in modules.items():
        exported = torch.export.export(module, args=inputs).run_decompositions(get_decomp_table())
        converter.add_exported_program(exported, entrypoint_name=name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        program = converter.to_coreai()
        if not hasattr(TorchConverter, "Mode") and hasattr(
            program, "optimize"
        ):  # the first release leaves it to the caller
            program.optimize()
        return program


def compressions():
    """Name -> what coreai-opt does to a program."""
    from coreai_opt.coreai_utils import CompressionGranularity as By
    from coreai_opt.coreai_utils import DType, QScheme, palettize_weights, quantize_weights, sparsify_weights

    few = {"weight_num_threshold": 64}
    for dtype in ("INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2"):
        for scheme in (QScheme.SYMMETRIC, QScheme.ASYMMETRIC):
            for by in (By.PER_TENSOR, By.PER_CHANNEL, By.PER_BLOCK):
                name = f"{dtype}_{scheme.name[:4]}_{by.name}".lower()
                yield name, quantize_weights, {"dtype": DType[dtype], "qscheme": scheme, "granularity": by, **few}
    for dtype in ("FP8_E4M3FN", "FP8_E5M2"):
        yield dtype.lower(), quantize_weights, {"dtype": DType[dtype], **few}
        scaled = {"scale_dtype": DType.FP8_E8M0FNU, "granularity": By.PER_BLOCK}
        yield f"{dtype.lower()}_mx", quantize_weights, {"dtype": DType[dtype], **scaled, **few}
    yield "fp4_mx", quantize_weights, {"dtype": DType.FP4_E2M1FN, "granularity": By.PER_BLOCK, **few}
    for nbits in (1, 2, 3, 4, 6, 8):
        yield f"palette{nbits}", palettize_weights, {"lut_dtype": None, "n_bits": nbits, **few}
    grouped = {"granularity": By.PER_GROUPED_CHANNEL, "group_size": 16}
    for dtype in ("INT8", "UINT8", "FP8_E4M3FN", "FP8_E5M2"):
        yield f"palette4_{dtype.lower()}", palettize_weights, {"lut_dtype": DType[dtype], **grouped, **few}
    yield "palette4_channel", palettize_weights, {"lut_dtype": None, "granularity": By.PER_CHANNEL, "n_bits": 2, **few}
    yield "palette4_scaled", palettize_weights, {"lut_dtype": None, "enable_per_channel_scale": True, **few}
    yield "palette4_vectors", palettize_weights, {"lut_dtype": None, "cluster_dim": 2, **few}
    yield "sparse", sparsify_weights, {"target_sparsity": 0.7, **few}
    yield "sparse_nm", sparsify_weights, {"target_sparsity": None, "n_m_ratio": (2, 4), **few}
    for dtype in ("INT8", "UINT8", "FP8_E4M3FN", "FP8_E5M2"):
        yield f"sparse_{dtype.lower()}", sparsify_weights, {"quantize_dtype": DType[dtype], **few}
    yield "sparse_palette4", sparsify_weights, {"palettize_nbits": 4, **few}


def authored():
    """Name -> a program without torch: what the other producers do not make."""
    import onnx
    from coreai_onnx import convert as from_onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)

    def model(nodes, weights, shape, out):
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    weights = {
        "w": random.standard_normal((24, 16)).astype(np.float32),
        "b": random.standard_normal(16).astype(np.float32),
    }
    yield (
        "onnx_gemm",
        lambda: from_onnx(model([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], weights, [1, 24], [1, 16])),
    )
    coded = {
        "q": random.integers(-128, 128, (24, 16)).astype(np.int8),
        "s": random.uniform(0.01, 0.1, 16).astype(np.float32),
        "z": random.integers(-4, 4, 16).astype(np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    yield "onnx_int8", lambda: from_onnx(model(nodes, coded, [24, 24], [24, 16]))
    assert onnx.__version__


# ----------------------------------------------------------------------------------------------------------- recording


def save(program, path):
    """Write a bundle without the time and without the paths of this machine."""
    program = getattr(program, "program", program)
    program.save_asset(path)
    place = path / "main.mlirb"
    data = place.read_bytes()
    for root in sorted(
        {sys.prefix, str(HERE), str(HERE.parents[1])}, key=len, reverse=True
    ):  # of a conversion for debugging
        data = data.replace(root.encode(), b"/example".ljust(len(root), b"x"))
    if data != place.read_bytes():
        place.write_bytes(data)
        (path / "main.hash").write_bytes(hashlib.sha256(data).digest())
    metadata = path / "metadata.json"
    if not metadata.exists():
        return
    metadata.write_text(
        re.sub(r'"creationDate" : "[^"]*"', '"creationDate" : "20261126T000000Z"', metadata.read_text("utf-8")), "utf-8"
    )


def bundles(folder):
    """Make every bundle; yields (name, path, inputs or None)."""
    import torch

    for name, modules, inputs in networks(torch):
        for mode in ("RELEASE", "DEBUG"):
            if mode == "DEBUG" and not name.startswith(("linear_f32", "conv_f32")):
                continue
            path = folder / f"{name}{'_debug' if mode == 'DEBUG' else ''}.aimodel"
            program = convert(modules, inputs, mode)
            save(program, path)
            yield path, inputs
            if name in ("bare_f32", "bare_f16") and mode == "RELEASE":
                for scheme, work, options in compressions():
                    other = folder / f"{name}_{scheme}.aimodel"
                    try:
                        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                            save(work(program, **options), other)
                    except Exception as error:
                        print(f"{other.stem}: {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)
                        continue
                    yield other, inputs
    for name, make in authored():
        path = folder / f"{name}.aimodel"
        try:
            save(make(), path)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        yield path, None


RECORDED = re.compile(
    r"(linear_\w+|conv_f\d+|attention_f32|lstm_f32|states_f32|odd_f32|functions_f32|branches_f32|onnx_\w+|bare_f32|bare_f16"
    r"|bare_f16_(u?int(8|4|2)_(symm|asym)_per_(channel|block)|fp8_\w+|fp4_mx|palette\w+|sparse\w*)|bare_f32_(int8_asym_per_block|palette4|sparse))"
)
"""Bundles that are kept in the repository."""


def record(folder):
    """Write the bundles that are kept, and what the library says of each: each in a process of its own."""
    kept, answers = [], {}
    for path, inputs in bundles(folder):
        if not RECORDED.fullmatch(path.stem):
            shutil.rmtree(path)
        else:
            kept.append((path, inputs is not None and path.stem.startswith("bare")))
    for version, place in sorted(OLD.items()):
        path = folder / f"linear_f32_{version}.aimodel"
        command = [sys.executable, __file__, "old", path]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(place)}, check=True, stdout=subprocess.DEVNULL)
        kept.append((path, False))
    again = folder / "linear_f32_again.aimodel"  # in another process: the hash that is the key of a resource has a salt
    subprocess.run([sys.executable, __file__, "old", again], check=True, stdout=subprocess.DEVNULL)
    kept.append((again, False))
    for path, is_bare in kept:
        own = [
            str(place) for version, place in OLD.items() if path.stem.endswith(f"_{version}")
        ]  # newer ones may not read it
        said = subprocess.run(
            [sys.executable, __file__, "describe", path], env={**os.environ, "PYTHONPATH": "".join(own)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        answer = json.loads(said.stdout)
        answer.pop("path")
        if is_bare:
            answer["runtime"] = decoded(path)
        answers[path.stem] = answer
        print(path.stem, flush=True)
    versions = {
        name: importlib.metadata.version(name)
        for name in ("coreai-core", "coreai-torch", "coreai-opt", "coreai-onnx", "torch")
    }
    (folder / "oracle.json").write_text(
        json.dumps({"versions": versions, "bundles": answers}, indent=1, sort_keys=True) + "\n", "utf-8"
    )


def decoded(path):
    """The hash of the weight that the runtime computes with: its product with the identity; None if it crashes.

    Zeros have no sign there: a product that is -0 is added to 0.
    """
    dtype = np.float32 if "f32" in path.stem else np.float16
    with tempfile.TemporaryDirectory() as folder:
        given, made = pathlib.Path(folder, "in.npz"), pathlib.Path(folder, "out.npz")
        np.savez(given, x=np.eye(64, dtype=dtype))
        for _ in range(3):  # it fails now and then while it shuts down
            done = subprocess.run(
                [sys.executable, __file__, "run", path, given, made], capture_output=True, check=False
            )
            if done.returncode == 0:
                with np.load(made) as arrays:
                    values = next(iter(arrays.values())).T + dtype(0)
                return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
    return None


OLD = {}  # version of coreai-core -> folder that it is installed to, with the converter that goes with it


def record_sums(folder):
    """Write sha256.json: the sha256 of every other file in the folder, as versions.json has them for the other fixtures."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "sha256.json")
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "sha256.json").write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "build", "old", "describe", "run"))
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--old", nargs="*", default=[], metavar="VERSION=FOLDER", help="older releases, for record")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.command == "describe":
        for path in arguments.paths:
            print(json.dumps({"path": str(path), **describe(path)}), flush=True)
    elif arguments.command == "run":
        path, source, target = arguments.paths
        with np.load(source) as arrays:
            np.savez(target, **run(path, dict(arrays)))
    elif arguments.command == "old":
        import torch

        _, modules, inputs = next(iter(networks(torch)))
        save(convert(modules, inputs, "RELEASE"), arguments.paths[0])
    elif arguments.command == "record":
        (folder,) = arguments.paths
        OLD.update(text.split("=") for text in arguments.old)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        record(folder)
        record_sums(folder)
    else:
        (folder,) = arguments.paths
        folder.mkdir(parents=True, exist_ok=True)
        for path, _ in bundles(folder):
            print(path.name, flush=True)


if __name__ == "__main__":
    main()
