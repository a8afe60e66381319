"""Reading ONNX models as files of arrays: values as ONNX's own library has them; broken and hostile files refused."""

import json
import os
import random
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import milblob
from children import run_child
from draws import restarts
from milblob import DType, FormatError, MilblobError, ResolveError, UnsupportedError
from milblob.cli import main
from milblob.formats.read import is_array_file, open_arrays
from paths import ROOT

DEMO = ROOT / "examples" / "demo.mlpackage"
RNG = np.random.default_rng(11)
each_test_draws_the_same = restarts(RNG)
READ = (
    "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16", "DOUBLE", "UINT32", "UINT64",
    "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "UINT4", "INT4", "UINT2",
)  # fmt: skip
OTHERS = (
    "COMPLEX64", "COMPLEX128", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "FLOAT8E8M0", "INT2", "FLOAT6E2M3", "FLOAT6E3M2",
)  # fmt: skip


def values_of(kind):
    """15 values that the element type has, none of them the same in another order."""
    if kind == "STRING":
        return np.array([f"ä{i}" for i in range(15)], object).reshape(3, 5)
    if kind == "BOOL":
        return (np.arange(15) % 3 == 0).reshape(3, 5)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(kind)))
    numbers = np.arange(15) % 4 if kind.startswith(("INT", "UINT")) else np.arange(15) / 4 - 1
    if kind in ("INT4", "INT2"):
        numbers = numbers % 2 - 1
    elif kind.startswith("INT"):
        numbers = numbers * 31 - 60
    elif kind in ("UINT16", "UINT32", "UINT64"):
        numbers = np.iinfo(dtype).max - numbers.astype(object)
        return np.array(numbers, dtype).reshape(3, 5)
    return numbers.astype(np.float32 if dtype.kind != "c" else dtype).astype(dtype).reshape(3, 5)


def typed(name, array, kind):
    """The tensor with its elements in a field of their own type, and not in raw_data."""
    code = TensorProto.DataType.Value(kind)
    raw = numpy_helper.from_array(array, name)
    assert raw.data_type == code
    if kind == "STRING":
        return raw
    tensor = TensorProto(name=name, dims=array.shape, data_type=code)
    bits = np.frombuffer(raw.raw_data, {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<u8"}[max(array.itemsize, 1)])
    if kind in ("INT8", "INT16", "INT32"):
        tensor.int32_data.extend(int(v) for v in bits.view(array.dtype))
    elif kind == "INT64":
        tensor.int64_data.extend(int(v) for v in bits.view(array.dtype))
    elif kind in ("UINT32", "UINT64"):
        tensor.uint64_data.extend(int(v) for v in bits)
    elif kind in ("FLOAT", "COMPLEX64"):
        tensor.float_data.extend(array.reshape(-1).view(np.float32).tolist())
    elif kind in ("DOUBLE", "COMPLEX128"):
        tensor.double_data.extend(array.reshape(-1).view(np.float64).tolist())
    else:
        tensor.int32_data.extend(int(v) for v in bits)
    return tensor


def model_of(tensors, path, *, nodes=(), sparse=(), functions=(), metadata=None):
    graph = helper.make_graph(list(nodes), "g", [], [], initializer=list(tensors), sparse_initializer=list(sparse))
    model = helper.make_model(graph, functions=list(functions), opset_imports=[helper.make_opsetid("", 21)])
    for key, value in (metadata or {}).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    return path


def same(a, b):
    """Whether two arrays have the same dtype, shape and bits."""
    return (a.dtype, a.shape) == (b.dtype, b.shape) and (
        a.tolist() == b.tolist() if a.dtype.kind == "O" else a.tobytes() == b.tobytes()
    )


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_elements_of_every_type(kind, form, tmp_path):
    array = values_of(kind)
    tensors = [
        (numpy_helper.from_array if form == "raw" else lambda a, n: typed(n, a, kind))(values, name)
        for name, values in (("w", array), ("scalar", array[1:2, 1:2].reshape(())), ("none", array[:0]))
    ]
    path = model_of(tensors, tmp_path / "w.onnx")
    with open_arrays(path) as arrays:
        assert list(arrays) == ["w", "scalar", "none"]
        for tensor in tensors:
            found = arrays[tensor.name]
            expected = numpy_helper.to_array(tensor)
            expected = expected.astype(object) if expected.dtype.kind in "OSU" else expected
            assert same(np.asarray(found.read()), expected), tensor.name
            assert found.dtype_text.upper() == kind and str(found.mil_dtype) != ""
        values = arrays["w"].read()
    if form == "raw" and kind not in ("STRING", "UINT4", "INT4", "UINT2"):
        assert not values.flags.owndata and not values.flags.writeable  # over the mapped file


@pytest.mark.parametrize("kind", OTHERS)
def test_types_that_mil_lacks_are_listed_and_refused_by_name(kind, tmp_path, capsys):
    tensor = typed("odd", values_of(kind), kind)
    path = model_of([tensor, numpy_helper.from_array(np.ones(3, np.float32), "fine")], tmp_path / "w.onnx")
    with open_arrays(path) as arrays:
        assert arrays["odd"].shape == (3, 5) and arrays["fine"].read().tolist() == [1, 1, 1]
        assert arrays["odd"].dtype_text.upper() == kind
        with pytest.raises(
            UnsupportedError, match=rf"element type of odd: expected one that MIL has, got {kind.lower()}"
        ):
            arrays["odd"].read()
    assert main(["ls", str(path), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["tensors"]}
    assert (rows["odd"]["dtype"], rows["odd"]["shape"]) == (kind.lower(), [3, 5])
    assert rows["odd"]["nbytes"] == len(numpy_helper.from_array(values_of(kind)).raw_data)
    for command in (["convert", str(path), "-o", str(tmp_path / "w.npz")], ["show", str(path), "odd"]):
        assert main(command) == 2
        assert f"got {kind.lower()}" in capsys.readouterr().err


def test_elements_in_several_protobuf_runs_are_joined(tmp_path):
    """Protobuf allows a repeated field in several runs, packed or not; hardly anybody writes that."""
    pieces = b"\x08\x06\x10\x01\x42\x01w" + b"".join(
        b"\x22" + bytes([4 * n]) + np.arange(at, at + n, dtype="<f4").tobytes() for at, n in ((0, 2), (2, 3))
    )
    loose = b"\x25" + np.array([5], "<f4").tobytes()
    ints = b"\x0a\x01\x04\x10\x06\x42\x01i" + b"\x2a\x02\x01\x02" + b"\x28\x03" + b"\x2a\x01\x04"
    graph = b"".join(b"\x2a" + bytes([len(t)]) + t for t in (pieces + loose, ints))
    (tmp_path / "w.onnx").write_bytes(b"\x08\x08\x3a" + bytes([len(graph)]) + graph)
    expected = onnx.load(tmp_path / "w.onnx").graph.initializer
    with open_arrays(tmp_path / "w.onnx") as arrays:
        assert arrays["w"].read().tolist() == numpy_helper.to_array(expected[0]).tolist() == [0, 1, 2, 3, 4, 5]
        assert arrays["i"].read().tolist() == numpy_helper.to_array(expected[1]).tolist() == [1, 2, 3, 4]


def test_sparse_initializers(tmp_path):
    values = np.array([1.5, -2, 3], np.float16)
    flat = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "flat"), numpy_helper.from_array(np.array([1, 4, 11]), "i"), [3, 4]
    )
    pairs = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "pairs"),
        numpy_helper.from_array(np.array([[0, 1], [1, 0], [2, 3]]), "j"), [3, 4],
    )  # fmt: skip
    expected = np.zeros((3, 4), np.float16)
    expected.reshape(-1)[[1, 4, 11]] = values
    path = model_of([], tmp_path / "w.onnx", sparse=[flat, pairs])
    with open_arrays(path) as arrays:
        assert same(arrays["flat"].read(), expected) and same(arrays["pairs"].read(), expected)
        assert arrays["flat"].stored_nbytes == 6
    for indices, dims in (([1, 4, 12], [3, 4]), ([-1, 4, 5], [3, 4]), ([1, 4], [3, 4])):
        wrong = helper.make_sparse_tensor(
            numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.array(indices), "i"), dims
        )
        with open_arrays(model_of([], path, sparse=[wrong])) as arrays, pytest.raises(FormatError):
            arrays["w"].read()
    huge = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(np.array([1, 4, 5]), "i"), [1 << 40]
    )
    with open_arrays(model_of([], path, sparse=[huge])) as arrays, pytest.raises(UnsupportedError, match="max_nbytes"):
        arrays["w"].read()


def test_graphs_inside_of_nodes_functions_and_constants(tmp_path):
    def tensor(name, first, count=3):
        return numpy_helper.from_array(np.arange(first, first + count, dtype=np.float32), name)

    def branch(first):
        return helper.make_graph([], "b", [], [], initializer=[tensor("w", first), tensor(f"own{first}", first)])

    def constant(name, count):
        return helper.make_node("Constant", [], [name], value=tensor("", 9, count))

    nodes = [
        helper.make_node("If", ["c"], ["out"], then_branch=branch(10), else_branch=branch(20)),
        constant("large", 10), constant("small", 9),
    ]  # fmt: skip
    function = helper.make_function("mine", "f", [], ["o"], [constant("inside", 12)], [helper.make_opsetid("", 21)])
    path = model_of([tensor("w", 0)], tmp_path / "w.onnx", nodes=nodes, functions=[function])
    with open_arrays(path) as arrays:
        found = {name: arrays[name].read()[0] for name in arrays}
    assert found == {
        "w": 0, "out.then_branch/w": 10, "own10": 10, "out.else_branch/w": 20, "own20": 20, "large": 9, "inside": 9,
    }  # fmt: skip


@pytest.fixture
def apart(tmp_path):
    """A model whose values are in another file, as onnx-ir writes it."""
    arrays = {"a": RNG.standard_normal((30, 40)).astype(np.float32), "b": RNG.integers(-8, 8, 33, np.int8)}
    values = [ir.Value(name=name, const_value=ir.Tensor(array, name=name)) for name, array in arrays.items()]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 21}, name="g")
    (tmp_path / "data").mkdir()
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", external_data="data/w.bin", size_threshold_bytes=0)
    return tmp_path / "m.onnx", arrays


def test_external_data_are_views_of_the_other_file(apart):
    path, expected = apart
    with open_arrays(path) as arrays:
        for name, array in expected.items():
            values = arrays[name].read()
            assert same(values, array) and not values.flags.owndata
            assert arrays[name].file.endswith("w.bin") and arrays[name].offset is not None
    (path.parent / "data" / "w.bin").unlink()
    with open_arrays(path) as arrays:
        assert arrays["a"].shape == (30, 40)  # to list them needs no values
        with pytest.raises(ResolveError, match=r"external data of 'a': expected at 'data/w.bin', got No such file"):
            arrays["a"].read()


@pytest.mark.every
@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../w.bin", "path inside"), ("data/../data/w.bin", "path inside"), ("/etc/passwd", "path inside"),
        ("..\\w.bin", "path inside"), ("C:\\w.bin", "path inside"), ("link.bin", "symbolic link"),
        ("folder/w.bin", "symbolic link"), ("outside.bin", "symbolic link"), ("data", "regular file"), ("", "location"),
        ("a\0b", "path inside"),
    ],
)  # fmt: skip
def test_external_data_never_leave_the_folder(apart, location, words, tmp_path):
    path, _ = apart
    shutil.copy(path.parent / "data" / "w.bin", tmp_path / "w.bin")
    os.symlink("data/w.bin", path.parent / "link.bin")
    os.symlink("data", path.parent / "folder")
    os.symlink("/etc/passwd", path.parent / "outside.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    with open_arrays(path) as arrays, pytest.raises(MilblobError, match=words):
        arrays["a"].read()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "1"), ("offset", "-4"), ("offset", "1e3"), ("offset", "9" * 19), ("offset", "9" * 30), ("length", "4801"),
        ("length", "-1"), ("length", "0"), ("offset", "４"), ("length", str(1 << 62)),
    ],
)  # fmt: skip
def test_external_data_outside_of_their_file_are_refused(apart, key, value):
    """Of the last tensor in the other file: any other place is outside of it."""
    path, _ = apart
    model = onnx.load(path, load_external_data=False)
    last = max(model.graph.initializer, key=lambda t: int(next(e.value for e in t.external_data if e.key == "offset")))
    (path.parent / "data" / "w.bin").open("r+b").truncate(
        sum(int(next(e.value for e in last.external_data if e.key == name)) for name in ("offset", "length"))
    )
    entry = next(entry for entry in last.external_data if entry.key == key)
    entry.value = str(int(entry.value) + 1) if (key, value) == ("offset", "1") else value
    path.write_bytes(model.SerializeToString())
    with open_arrays(path) as arrays, pytest.raises(FormatError, match="external data"):
        arrays[last.name].read()


def test_weights_in_a_package_by_reference(tmp_path):
    shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    milblob.onnx.convert(tmp_path / "m.mlpackage", tmp_path / "m.onnx")
    expected = milblob.load(DEMO)
    with open_arrays(tmp_path / "m.onnx") as arrays:
        assert all(same(arrays[name].read(), array) for name, array in expected.items())
        assert arrays["head_weight"].file.endswith("weight.bin")


# ---------------------------------------------------------------------------------------------------------- the commands


def test_commands_take_onnx(tmp_path, capsys):
    path = tmp_path / "m.onnx"
    milblob.onnx.convert(DEMO, path, weights="embed")
    assert is_array_file(str(path))

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        return status, capsys.readouterr()

    status, found = run("ls", path, "--json")
    assert status == 0 and json.loads(found.out)["kind"] == "onnx"
    assert {row["name"] for row in json.loads(found.out)["tensors"]} >= set(milblob.load(DEMO))
    assert run("show", path, "head_weight")[0] == run("stats", path)[0] == run("show", path)[0] == 0
    assert run("convert", path, "-o", tmp_path / "w.safetensors")[0] == 0
    assert run("hash", path, "-k", "head*")[0] == 0
    status, found = run("diff", DEMO, path)
    assert status == 0 and "69 the same" in found.out
    status, found = run("match", DEMO, path)
    assert status == 0, found.err
    assert "75 tensors: 75 the same" in run("diff", path, path)[1].out  # beside another of its kind, all is compared
    with open_arrays(tmp_path / "w.safetensors") as arrays, open_arrays(path) as own:
        assert all(same(arrays[name].read(), own[name].read()) for name in own)


def test_what_is_called_onnx_and_is_something_else(tmp_path):
    for data, words in (
        (b"<!doctype html><p>", "an HTML page"),
        (b"GGUF" + bytes(80), "a GGUF file"),
        (b"", "empty file"),
    ):
        (tmp_path / "m.onnx").write_bytes(data)
        with pytest.raises(MilblobError, match=words):
            open_arrays(tmp_path / "m.onnx")
    shutil.copy(DEMO / "Data/com.apple.CoreML/model.mlmodel", tmp_path / "m.onnx")
    with pytest.raises(FormatError, match="expected an ONNX model, got a message with the fields 1, 2, 502"):
        open_arrays(tmp_path / "m.onnx")
    model_of([numpy_helper.from_array(np.ones(3), "w")], tmp_path / "net.bin")
    with pytest.raises(UnsupportedError, match=r"got an ONNX model \(if its name ends in .onnx, milblob ls"):
        milblob.open(tmp_path / "net.bin")


def test_names_that_the_metadata_give(tmp_path):
    one, two = (numpy_helper.from_array(np.full(3, n, np.float32), name) for n, name in ((1, "w"), (2, "w.1")))
    path = model_of(
        [one, two], tmp_path / "m.onnx", metadata={"milblob.weights": json.dumps({"w": "main/w", "w.1": "loop/w"})}
    )
    with open_arrays(path) as arrays:
        assert list(arrays) == ["main/w", "loop/w"] and arrays["loop/w"].initializer == "w.1"
    for key, text in (
        ("milblob.weights", "[]"), ("milblob.weights", '{"w": 1}'), ("milblob.weights", "{"), ("milblob.made", "[1]"),
        ("milblob.weights", '{"w": "x", "w.1": "x"}'), ("milblob.made", '{"w": {"why": 1}}'), ("milblob.made", '{"w": []}'),
    ):  # fmt: skip
        with pytest.raises(FormatError):
            open_arrays(model_of([one, two], path, metadata={key: text}))


# ---------------------------------------------------------------------------------------------------------- hostile files


def changed_tensor(**fields):
    tensor = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    for name, value in fields.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        else:
            setattr(tensor, name, value)
    return tensor


def _varint(number):
    return number.to_bytes(1, "little") if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


HOSTILE = {
    "negative": changed_tensor(dims=[-2, -3]), "giant": changed_tensor(dims=[1 << 62, 1 << 62]), "more": changed_tensor(dims=[7]),
    "short": changed_tensor(raw_data=b"x"), "kind": changed_tensor(data_type=99), "none": changed_tensor(data_type=0),
    "unnamed": changed_tensor(name=""), "rank": changed_tensor(dims=[1] * 65 + [6]), "ranks": changed_tensor(dims=[1] * 2000),
    "text": changed_tensor(dims=[1], data_type=8), "texts": changed_tensor(dims=[2], data_type=8, raw_data=b""),
    "many": changed_tensor(dims=[0] + [1 << 62] * 3, raw_data=b""),
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tensors(name, tmp_path):
    path = model_of([HOSTILE[name]], tmp_path / "m.onnx")
    with pytest.raises(MilblobError), open_arrays(path) as arrays:
        arrays["w"].read()
    assert main(["ls", str(path)]) in (0, 2)


def test_hostile_models(tmp_path):
    path = tmp_path / "m.onnx"
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    with pytest.raises(FormatError, match="each once in a graph, got 'w' twice"):
        open_arrays(model_of([tensor, tensor], path))
    both = numpy_helper.from_array(np.ones(3, np.float32), "w")
    both.float_data.extend([1, 2, 3])
    with open_arrays(model_of([both], path)) as arrays, pytest.raises(FormatError, match="one field"):
        arrays["w"].read()
    segment = numpy_helper.from_array(np.ones(3, np.float32), "w")
    segment.segment.begin = 1
    with pytest.raises(UnsupportedError, match="segment"):
        open_arrays(model_of([segment], path))
    graph = b""
    for number in (0x32, 0x2A, 0x0A) * 40:  # a graph, the attribute that holds it, the node of that
        graph = bytes([number]) + _varint(len(graph)) + graph
    path.write_bytes(b"\x08\x08\x3a" + _varint(len(graph)) + graph)
    with pytest.raises(FormatError, match="graphs in each other: expected at most 32"):
        open_arrays(path)
    path.write_bytes(b"\x08\x08" + b"\x3a\x00" * 2)
    with pytest.raises(FormatError, match="graph of ONNX model: expected one, got 2"):
        open_arrays(path)


def test_no_file_asks_for_much_memory(tmp_path):
    """Five million empty nodes take 10 MB, and would take gigabytes as objects."""
    nodes = b"\x0a\x00" * 5_000_000
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\x3a" + _varint(len(nodes)) + nodes)
    code = """
import sys
from children import peak_rss_nbytes
from milblob import MilblobError
from milblob.formats.read import open_arrays
try:
    open_arrays(sys.argv[1])
except MilblobError:
    print(peak_rss_nbytes())
"""
    assert int(run_child(code, str(tmp_path / "m.onnx"))) < 1300 << 20


def test_damaged_files_end_in_our_errors(tmp_path):
    """Cut at every length, and with bytes changed: arrays, or one of milblob's own errors."""
    milblob.onnx.convert(ROOT / "tests/data/control_flow/model.mlpackage", tmp_path / "s.onnx", weights="embed")
    sound = (tmp_path / "s.onnx").read_bytes()
    chance, path = random.Random(3), tmp_path / "m.onnx"

    def use(data):
        path.write_bytes(data)
        try:
            with open_arrays(path) as arrays:
                for name in arrays:
                    array = arrays[name]
                    array.nbytes, array.shape, array.read(), array.read_packed(), arrays.is_as_made(name)
        except (MilblobError, TypeError) as error:
            assert isinstance(error, MilblobError) or "string" in str(error)

    for length in range(0, len(sound), 19):
        use(sound[:length])
    for _ in range(150):
        data = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        use(bytes(data))


def test_onnx_needs_no_library(tmp_path):
    model_of([numpy_helper.from_array(np.arange(3.0), "w")], tmp_path / "m.onnx")
    code = """
import sys
sys.modules["onnx"] = sys.modules["onnx_ir"] = sys.modules["google.protobuf"] = None
from milblob.formats.read import open_arrays
with open_arrays(sys.argv[1]) as arrays:
    print(arrays["w"].read().tolist())
"""
    assert run_child(code, str(tmp_path / "m.onnx")).strip() == "[0.0, 1.0, 2.0]"


def test_every_dtype_that_onnx_has_is_read():
    """Every dtype of milblob that ONNX has too is read; a new one must be added to the table."""
    names = {"FLOAT32": "FLOAT", "FLOAT64": "DOUBLE"}
    assert {names.get(d.name, d.name) for d in DType} - set(READ) == {"UINT1", "UINT3", "UINT6"}
    assert set(READ) | set(OTHERS) == set(TensorProto.DataType.keys()) - {"UNDEFINED"}


def test_a_model_whose_weight_file_was_rewritten_is_refused(tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    milblob.onnx.convert(package, tmp_path / "m.onnx")
    milblob.compress(package, package, milblob.Linear("int8"), force=True)
    with open_arrays(tmp_path / "m.onnx") as arrays, pytest.raises(FormatError, match="convert again if that file was"):
        arrays["head_weight"].read()
