"""Hostile files of other kinds than models in packages, as bytes decide: archives of TVM, caches, ONNX, listings, compiled models.

Like model_damage.py: equal bytes give equal files.
"""

import contextlib
import functools
import json
import pathlib
import tempfile

import numpy as np

import milblob
import milblob.onnx
import tvm_archives
from model_damage import change_field
from paths import DATA, DEMO

_VALUES = (
    None, True, -1, 0, 1, 2, 2**31, 2**63, 2**64, 10**40, 1e308, 0.5, "", "x", "../x", "/etc/passwd", "float32", "\u202e\x1b[2J", "x" * 5000,
    [], {}, [[]], [1, 2, 3], {"a": {}}, ["x", 1], [-1], "NaN", "\ud800",
)  # fmt: skip
_BYTES = (
    b"\0",
    b"\xff",
    b"\0\0\0\0\0\0\0\0",
    b"\xff" * 8,
    b"\x80" * 11,
    b"\n",
    b'"',
    b"\x01\x00\x00\x00",
    b"-1",
    b"(",
    b"0" * 50,
)


def _files(path):
    """Names below a directory, or that of a file -> contents."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def _made(make):
    with tempfile.TemporaryDirectory() as folder:
        make(pathlib.Path(folder))
        return _files(pathlib.Path(folder))


ARRAYS = {"w": np.arange(16, dtype="<f4").reshape(4, 4), "b": np.ones(4, "<f2"), "c/d": np.zeros((0, 3), "i1")}


def _indexed(folder):
    import safetensors.numpy

    safetensors.numpy.save_file(ARRAYS, folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {"total_size": 72}, "weight_map": dict.fromkeys(ARRAYS, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


SOURCES = {
    "archive": ("", lambda: tvm_archives.files_of()),
    "archive of operators": ("", lambda: tvm_archives.operator_files()),
    "archive, packed": ("a.tar", lambda: {"a.tar": tvm_archives.tar_of(tvm_archives.files_of())}),
    "parameters": ("p.params", lambda: {"p.params": tvm_archives.params_of({"a": ARRAYS["w"], "b": ARRAYS["b"]})}),
    "cache": ("", lambda: _files(DATA / "tvm" / "cache")),
    "onnx": ("m.onnx", lambda: _made(lambda folder: milblob.onnx.convert(DEMO, folder / "m.onnx", weights="embed"))),
    "onnx with weights": ("m.onnx", lambda: _made(lambda folder: milblob.onnx.convert(DEMO, folder / "m.onnx", weights="copy"))),
    "listing": ("w.json", lambda: _made(lambda folder: milblob.write_weights(ARRAYS, folder / "w.bin", listing=folder / "w.json"))),
    "index": ("model.safetensors.index.json", lambda: _made(_indexed)),
    "compiled": ("m.mlmodelc", lambda: {f"m.mlmodelc/{name}": data for name, data in _files(DATA / "opset_ios16_fp16" / "model.mlmodelc").items()}),
    "weights": ("w.bin", lambda: {"w.bin": (DATA / "blob_all_dtypes" / "weight.bin").read_bytes()}),
}  # fmt: skip
"""Kind -> the path that is opened, below a directory, and a function that returns the files in it."""


@functools.cache
def _sound(kind):
    return SOURCES[kind][1]()


def write_files(kind, folder, choices=None):
    """Write the files of one kind, with a few changes if there are choices; returns the path that is opened."""
    files = dict(_sound(kind))
    for _ in range(choices.below(3) + 1 if choices else 0):
        name = choices.one(sorted(files))
        if choices.below(16) == 15 and len(files) > 1:
            del files[name]
        else:
            files[name] = _changed(name, files[name], choices)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder / SOURCES[kind][0]


def _changed(name, data, choices):
    with contextlib.suppress(ValueError):  # what an earlier change has broken
        if name.endswith(".json") and choices.below(4):
            document = json.loads(data)
            _change_json(document, choices)
            return json.dumps(document).encode()
    if name.endswith(".onnx") and choices.below(4):
        import onnx
        from google.protobuf.message import DecodeError

        model = onnx.ModelProto()
        with contextlib.suppress(DecodeError):
            model.ParseFromString(data)
            change_field(model, choices)
            return model.SerializeToString(deterministic=True)
    at, new = choices.below(max(len(data), 1)), choices.one(_BYTES)
    kind = choices.below(4)
    if kind == 3:
        return data[:at]
    return data[:at] + new + data[at + (len(new) if kind else 0) :]


def _change_json(document, choices):
    """Replace, remove or add a value anywhere in a document."""
    places = []

    def walk(node):
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            walk(value)

    walk(document)
    if not places:
        return
    node, key = choices.one(places)
    kind = choices.below(8)
    if kind == 0:
        del node[key]
    elif kind == 1:
        other = choices.one(places)
        node[key] = json.loads(json.dumps(other[0][other[1]]))
    elif kind == 2 and isinstance(node, dict):
        node[choices.one(("", "x", "../x", "\x1b", "shape", "dtype"))] = node.pop(key)
    else:
        node[key] = choices.one(_VALUES)
