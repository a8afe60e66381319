"""Functions that take local paths refuse a URL and a path with a NUL by themselves, before they do anything."""

import inspect

import numpy as np
import pytest

import milblob
import milblob.onnx
import milblob.tvm
from paths import DEMO

URL = "https://user:s3cr3t@example.org/m.mlpackage"
ARRAYS = {"a": np.ones(4, np.float32)}
RECIPE = milblob.Linear(8)

READING = {
    "compress": lambda path, out: milblob.compress(path, out, RECIPE),
    "compress_frontier": lambda path, out: milblob.compress_frontier(path),
    "repack": lambda path, out: milblob.repack(path, out),
    "merge_functions": lambda path, out: milblob.merge_functions([(path, "a"), (path, "b")], out),
    "refit": lambda path, out: milblob.refit(path, ARRAYS, destination=out),
    "refit with weights": lambda path, out: milblob.refit(DEMO, path, destination=out),
    "refit with a base": lambda path, out: milblob.refit(DEMO, ARRAYS, base=path, destination=out),
    "verify": lambda path, out: milblob.verify(path, DEMO),
    "Session": lambda path, out: milblob.Session(path),
    "Session of several": lambda path, out: milblob.Session([path, path]),
    "chunk": lambda path, out: milblob.chunk(path, out, parts=2),
    "join": lambda path, out: milblob.join([path, path], out),
    "recover": lambda path, out: milblob.recover(path),
    "delta": lambda path, out: milblob.delta(path, DEMO, out),
    "delta to a new model": lambda path, out: milblob.delta(DEMO, path, out),
    "apply": lambda path, out: milblob.apply(path, DEMO, out),
    "apply of a patch": lambda path, out: milblob.apply(DEMO, path, out),
    "refit with an adapter": lambda path, out: milblob.refit(DEMO, [path], base=ARRAYS, destination=out),
    "open_arrays": lambda path, out: milblob.open_arrays(path),
    "BlobReader": lambda path, out: milblob.BlobReader(path),
    "Model": lambda path, out: milblob.Model(path),
    "EditableModel": lambda path, out: milblob.EditableModel(path),
    "CompressPlan.load": lambda path, out: milblob.CompressPlan.load(path),
    "onnx.decoded": lambda path, out: milblob.onnx.decoded(path),
    "onnx.coverage": lambda path, out: milblob.onnx.coverage(path),
    "tvm.open": lambda path, out: milblob.tvm.open(path),
    "tvm.open_params": lambda path, out: milblob.tvm.open_params(path),
    "tvm.read_params": lambda path, out: milblob.tvm.read_params(path),
    "tvm.read_cache": lambda path, out: milblob.tvm.read_cache(path),
    "tvm.check_archive": lambda path, out: milblob.tvm.check_archive(path),
    "tvm.check_params": lambda path, out: milblob.tvm.check_params(path),
}
WRITING = {
    "compress": lambda path: milblob.compress(DEMO, path, RECIPE),
    "compress with a plan": lambda path: milblob.compress(DEMO, "out.mlpackage", RECIPE, save_plan=path),
    "repack": lambda path: milblob.repack(DEMO, path),
    "merge_functions": lambda path: milblob.merge_functions([(DEMO, "a"), (DEMO, "b")], path),
    "refit": lambda path: milblob.refit(DEMO, ARRAYS, destination=path),
    "chunk": lambda path: milblob.chunk(DEMO, path, parts=2),
    "join": lambda path: milblob.join([DEMO, DEMO], path),
    "delta": lambda path: milblob.delta(DEMO, DEMO, path),
    "apply": lambda path: milblob.apply(DEMO, DEMO, path),
    "batch": lambda path: milblob.batch("hash", [DEMO], into=path),
    "BlobWriter": lambda path: milblob.BlobWriter(path),
    "write_weights": lambda path: milblob.write_weights(ARRAYS, path),
    "write_weights with a listing": lambda path: milblob.write_weights(ARRAYS, "out.bin", listing=path),
    "save": lambda path: milblob.save(ARRAYS, path),
    "convert": lambda path: milblob.convert(DEMO, path),
    "report": lambda path: milblob.report(DEMO, destination=path),
    "onnx.convert": lambda path: milblob.onnx.convert(DEMO, path),
    "tvm.write_params": lambda path: milblob.tvm.write_params(ARRAYS, path),
    "download": lambda path: milblob.download("http://127.0.0.1:1/m.mlpackage", path),
}
CASES = [
    *((f"read {name}", lambda path, out, call=call: call(path, out)) for name, call in READING.items()),
    *((f"write {name}", lambda path, out, call=call: call(path)) for name, call in WRITING.items()),
]


@pytest.mark.sample(21)
@pytest.mark.parametrize(("name", "call"), CASES, ids=[name for name, _ in CASES])
def test_url_where_a_local_path_is_expected_is_refused(name, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="expected a local path, got the URL") as caught:
        call(URL, tmp_path / "out.mlpackage")
    assert "https://example.org/m.mlpackage" in str(caught.value) and "s3cr3t" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample(10)
@pytest.mark.parametrize(("name", "call"), CASES, ids=[name for name, _ in CASES])
def test_path_with_a_nul_is_refused(name, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="path: expected one without a NUL, got 'a"):
        call("a\0b", tmp_path / "out.mlpackage")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["a\0b", "a\0b.zip", "http://host/a\0b", "memory://a\0b", "file:///a\0b"])
@pytest.mark.parametrize(
    "call", [milblob.open, milblob.load, milblob.check, milblob.content_hash, milblob.to_text, milblob.statistics]
)
def test_source_with_a_nul_is_refused(source, call):
    with pytest.raises(ValueError, match="path: expected one without a NUL"):
        call(source)


def test_every_function_with_a_path_is_in_a_table():
    """Those with `storage_options` take URLs as sources."""
    known = {name.partition(" ")[0] for name in [*READING, *WRITING]}
    for module, prefix in ((milblob, ""), (milblob.onnx, "onnx."), (milblob.tvm, "tvm.")):
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function) or name == "to_text":  # which writes to a file object
                continue
            parameters = inspect.signature(function).parameters
            paths = {"destination", "into"} & set(parameters)
            paths |= (
                set() if "storage_options" in parameters else {"source", "sources", "model", "path"} & set(parameters)
            )
            assert not paths or f"{prefix}{name}" in known, (name, paths)
