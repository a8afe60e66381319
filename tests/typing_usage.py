"""The public API as README.md and docs/api.md use it. Checked by mypy (`make lint`), never run."""

from typing import Any, assert_type

import numpy as np

import milblob
from milblob.formats.read import open_arrays
from milblob.model.metadata import Feature, Metadata

Array = np.ndarray[Any, Any]


def whole_model(path: str) -> None:
    weights = milblob.load(path)
    assert_type(weights, dict[str, Array])


def lazy(path: str) -> None:
    with milblob.open(path, constants=True, stored=True) as model:
        assert_type(model, milblob.Model)
        assert_type(list(model), list[str])
        assert_type(list(model.functions), list[str])
        assert_type(model.metadata, Metadata)
        assert_type(model.metadata.inputs, tuple[Feature, ...])
        tensor = model["w"]
        assert_type(tensor, milblob.Tensor)
        assert_type(tensor.mil_dtype, milblob.DType)
        assert_type(tensor.dtype, np.dtype[Any])
        assert_type(tensor.shape, tuple[int, ...])
        assert_type(tensor.file, str | None)
        assert_type(tensor.consumers, tuple[milblob.Consumer, ...])
        assert_type(tensor.parts["lut"], milblob.Tensor)
        assert_type(tensor.read(out=np.empty((2, 3), np.float16)), Array)
        np.asarray(tensor)


def graph(path: str) -> None:
    with milblob.open(path) as model:
        main = model.functions["main"]
        assert_type(main, milblob.Function)
        assert_type(main.block.operations[0], milblob.Operation)
        assert_type(main.block.operations[1:], list[milblob.Operation])
        for op in main.walk():
            assert_type(op.inputs["x"][0].name, str | None)
            assert_type(op.inputs["x"][0].value, milblob.Value | None)
            assert_type(op["x"], milblob.Binding)
            assert_type(op["x"].array(), Array)
            assert_type(op.outputs[0].name, str)
            assert_type(op.attributes["val"].array(), Array)
        for found in model.find("conv_*", type=["conv", "linear"]):
            assert_type(found.consumers, tuple[milblob.Consumer, ...])
        assert_type(model["w"].operation, milblob.Operation | None)
        assert_type(main.statements()[0].outputs, tuple[str, ...])


def blobs(path: str) -> None:
    with milblob.BlobReader(path) as reader:
        for record in reader:
            assert_type(record, milblob.BlobRecord)
            assert_type(record.dtype, milblob.DType)
            assert_type(record.count, int)
        assert_type(reader.index, Array)
        assert_type(reader.read(64), Array)
        assert_type(reader.read_packed(64), Array)
    with milblob.BlobReader(memoryview(b"")) as reader:
        assert_type(reader.name, str | None)


def editing(path: str) -> None:
    with milblob.open(path, "r+", stored=True) as model:
        assert_type(model, milblob.EditableModel)
        model["w"] = np.zeros((2, 3), np.float16)
        model.flush()
    report = milblob.refit(path, {"w": np.zeros(3)}, mapping={"w": "v"}, cast=True, destination="copy", dry_run=True)
    assert_type(report, milblob.RefitReport)
    assert_type(report.changes[0].name, str)
    milblob.refit(path, {}, select=["a", "b*"], progress=print_progress)


def print_progress(name: str, done_nbytes: int, total_nbytes: int) -> None:
    print(name, done_nbytes, total_nbytes)


def selected(path: str) -> None:
    assert_type(milblob.diff(path, path, select="*.weight", progress=print_progress), milblob.Diff)
    assert_type(milblob.match(path, path, select=lambda name: name != "w", progress=print_progress), milblob.Matching)
    assert_type(milblob.repack(path, "out", select=str.isidentifier, progress=print_progress), milblob.RepackReport)
    assert_type(milblob.write_weights({}, "w.bin", progress=print_progress), dict[str, int])


def compressed(path: str) -> None:
    goal = milblob.Goal(size="40MB", recipes=["int8", milblob.Palette(bits=4)])
    scope, guidance = milblob.Scope(select="a*", min_size=0), milblob.Guidance(importance={"a": np.ones(3)})
    assert_type(milblob.compress(path, "out", goal, scope=scope, guidance=guidance), milblob.CompressReport)
    assert_type(milblob.compress(path, "out", "int8", recompress=True), milblob.CompressReport)
    assert_type(milblob.compress(path, "out", milblob.CompressPlan.load("plan.json")), milblob.CompressReport)
    assert_type(milblob.compress_frontier(path, recipes=[milblob.Linear(8)], scope=scope), milblob.Frontier)


def arrays_of_files(path: str) -> None:
    assert_type(milblob.convert(path, "w.npz", select="a*"), milblob.ConvertReport)
    assert_type(milblob.convert([path, "a.npz"], "w.bin", dtypes={"w*": "uint4"}).tensors[0].dtype, str)
    with milblob.open_arrays("w.npz") as arrays:
        assert_type(arrays["w"].read(), Array)
        milblob.save(arrays, "w.safetensors")


def values() -> None:
    assert_type(milblob.pack_tensor(np.arange(3), "int32"), bytes)
    assert_type(milblob.unpack_tensor(b"", milblob.DType.FLOAT16, (0,)), Array)
    assert_type(milblob.DType.INT4.blob_code, int | None)
    assert_type(milblob.DType.INT4.nbits, int)


def written(model: milblob.Model) -> None:
    assert_type(milblob.write_weights({"a": np.zeros(3, np.float16)}, "w.bin", dtypes={"a": "uint3"}), dict[str, int])
    assert_type(milblob.write_weights(model, "w.bin", listing="w.json", align=4096), dict[str, int])
    assert_type(model["w"].read_packed(), Array)
    with open_arrays("w.npz") as arrays:
        assert_type(arrays["w"].read(), Array)
        assert_type(arrays["w"].mil_dtype, milblob.DType)


def params(path: str) -> None:
    with milblob.tvm.read_params(path, tvm="0.14") as read:
        assert_type(read["p0"], Array)
        assert_type(read.tensors["p0"], milblob.tvm.Parameter)
    with milblob.tvm.open(path) as library:
        assert_type(library.modules["default"].params["p0"].read(), Array)
        assert_type(library.validate(), milblob.CheckReport)


def reports(path: str) -> None:
    checked = milblob.check(path)
    assert_type(checked, milblob.CheckReport)
    assert_type(checked.is_sound, bool)
    assert_type(checked.errors, tuple[milblob.Finding, ...])
    assert_type(checked[0], milblob.Finding)
    found = milblob.diff(path, path)
    assert_type(found.is_same, bool)
    assert_type(found.rows[0].message, str)
    assert_type(found.to_dict(), dict[str, Any])
    assert_type(milblob.verify(path, path).outputs, list[milblob.OutputDifference])
    assert_type(milblob.statistics(path, max_nbytes=1 << 30), milblob.StatisticsReport)
    assert_type(milblob.statistics({"a": np.zeros(3)}, select="a")["a"], milblob.Statistics)
    assert_type(milblob.statistics(np.zeros(3)).std, float | None)
    with milblob.open(path) as model:
        assert_type(milblob.statistics(model).total.max, float | int | None)
        assert_type(model["w"].compression, milblob.Compression | None)


def errors(error: milblob.MilblobError) -> None:
    assert_type(error.offset, int | None)
    assert_type(error.where, str)
    assert_type(error.file, str | None)
