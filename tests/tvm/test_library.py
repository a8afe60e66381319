"""milblob.tvm.open on archives of every version, style, executor and kind."""

import datetime
import io
import json
import tarfile

import numpy as np
import pytest

import tvm_archives as made
from milblob import FormatError, UnsupportedError, tvm

KINDS = ("tar", "tar.gz", "directory")
FULL = [(version, executor, ("default",)) for version in range(1, 8) for executor in ("graph", "aot")]
FULL += [(7, executor, ("mod1", "mod2")) for executor in ("graph", "aot")]


def names(count_or_names):
    return "+".join(count_or_names) if isinstance(count_or_names, tuple) else str(count_or_names)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("version", "executor", "modules"), FULL, ids=names)
@pytest.mark.sample(8)
def test_full_models(tmp_path, version, executor, modules, kind):
    files = made.files_of(version, executor, modules)
    path = made.make(tmp_path / "model", files, kind)
    with tvm.open(path) as library:
        assert (library.version, library.kind, library.style) == (version, kind, "full-model")
        assert library.created == datetime.datetime(2021, 11, 25, 16, 50, 12)
        assert list(library.modules) == list(modules)
        assert {file.name for file in library.files} == set(files)
        for name, module in library.modules.items():
            assert (module.name, module.model_name, module.executors, module.style) == (
                name,
                name,
                (executor,),
                "full-model",
            )
            assert [target.text for target in module.targets] == ["c -keys=cpu -model=host"]
            assert module.targets[0].device == (1 if version < 6 else None)
            check_parameters(module, executor)
            check_memory(module, version, executor, name)
            roles = {file.role for file in module.files}
            assert {"source", "object", "parameters", "model_source"} <= roles
            assert ("header" in roles) == (version >= 5) and ("executor_config" in roles) == (executor == "graph")
        assert bytes(library.read_file("./metadata.json")) == files["metadata.json"]
        assert {file.role for file in library.files if file.module is None} == ({"metadata", "runtime", "templates"} if executor == "aot" and version >= 5 else {"metadata"})  # fmt: skip
        assert list(library.validate()) == []


def check_parameters(module, executor):
    if executor == "aot":
        assert dict(module.params) == {} and module.graph is None and module.storage.keys() == set()
        return
    assert list(module.params) == ["p0"]
    array = module.params["p0"].read()
    assert array.dtype == np.float32 and array.tolist() == [[2, 4]] and not array.flags.writeable
    graph = module.graph
    assert list(graph.arguments) == ["a", "b", "p0"] and graph.arguments["p0"].shape == (1, 2)
    call = f"tvmgen_{module.name}_fused_cast_multiply_add"
    assert graph.feeds() == {"a": [call], "b": [call], "p0": [call]} and [n.name for n in graph.consumers("p0")] == [
        call
    ]
    assert graph.heads == ((3, 0),)


def check_memory(module, version, executor, name):
    """The golden constants of TVM's own test."""
    memory = module.memory
    if executor == "graph":
        assert [tuple(row) for row in memory.storage_ids] == [(0, 2, "a"), (1, 8, "b"), (2, 8, "p0"), (3, 8, None)]
        assert module.storage == {0: (2, 2), 1: (8, 8), 2: (8, 8), 3: (8, 8)}
    else:
        assert memory.storage_ids is None
    if version == 1:
        assert memory.main == () and memory.functions == ()
        return
    (main,) = memory.main
    assert (main.device, main.workspace_nbytes, main.io_nbytes) == (1, 0, 18)
    assert main.constants_nbytes == (8 if executor == "graph" else 0)
    if version == 7:
        assert main.inputs == {"a": (2, "uint8"), "b": (8, "float32")} and main.outputs == {"output": (8, "float32")}
    else:
        assert main.inputs is None and main.outputs is None
    (function,) = memory.functions
    assert function == (f"tvmgen_{name}_fused_cast_multiply_add", ((1, 0),))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", range(4, 8))
def test_operator_style(tmp_path, version, kind):
    with tvm.open(made.make(tmp_path / "model", made.operator_files(version), kind)) as library:
        assert (library.version, library.style) == (version, "operator")
        module = library.modules["add"]
        assert module.executors == () and module.graph is None and dict(module.params) == {}
        rows = module.memory.operators["add"]
        assert [row.nbytes for row in rows] == [2, 1, 2] and [row.shape for row in rows] == [(2,), (1,), (2,)]
        assert {row.dtype for row in rows} == {"int8"} and [row.input_binding for row in rows] == ["A", "B", "C"]
        assert list(library.validate()) == []


def test_parameters_lie_in_the_mapped_tar(tmp_path):
    path = made.make(tmp_path / "m.tar", made.files_of())
    data = path.read_bytes()
    with tvm.open(path) as library:
        tensor = library.modules["default"].params["p0"]
        array = tensor.read()
        assert data[tensor.offset : tensor.offset + 8] == array.tobytes() and tensor.file == str(path)
        assert not array.flags.owndata
        with tarfile.open(path) as tar:
            assert tensor.offset == tar.getmember("./parameters/default.params").offset_data + 98
    assert array.tolist() == [[2, 4]]
    with pytest.raises(ValueError, match="closed"):
        tensor.read()
    with pytest.raises(ValueError, match="closed"):
        library.read_file("metadata.json")


def test_buffers_and_file_objects(tmp_path):
    data = made.tar_of(made.files_of())
    for source in (data, made.gzip_of(data), io.BytesIO(data), bytearray(data)):
        with tvm.open(source) as library:
            assert library.modules["default"].params["p0"].read().tolist() == [[2, 4]]
            assert library.path is None and list(library.validate()) == []


def test_two_modules_have_parameters_of_their_own(tmp_path):
    files = made.files_of(modules=("mod1", "mod2"))
    files["parameters/mod2.params"] = made.params_of({"p0": made.C * 3})
    with tvm.open(made.make(tmp_path / "m.tar", files)) as library:
        assert library.modules["mod1"].params["p0"].read().tolist() == [[2, 4]]
        assert library.modules["mod2"].params["p0"].read().tolist() == [[6, 12]]
        assert library.modules["mod2"].graph.nodes[3].name == "tvmgen_mod2_fused_cast_multiply_add"


def test_storage_that_is_used_again_is_reported_wrongly():
    """TVM's bug, in all versions: sizes are looked up by storage id. Both are given, and nothing is mended."""
    files = made.files_of()
    calls = [("one", "float32", (1, 216), 3), ("two", "float32", (1, 108), 4), ("three", "float32", (1, 160), 3), ("four", "float32", (1, 5), 4)]  # fmt: skip
    graph = made.graph_of([("a", "uint8", (1, 2)), ("b", "float32", (1, 2)), ("p0", "float32", (1, 2))], calls)
    files["executor-config/graph/default.graph"] = json.dumps(graph).encode()
    document = json.loads(files["metadata.json"])
    document["modules"]["default"]["memory"]["sids"] = made.sids_of(graph)
    files["metadata.json"] = json.dumps(document).encode()
    with tvm.open(made.tar_of(files)) as library:
        assert library.modules["default"].storage == {0: (2, 2), 1: (8, 8), 2: (8, 8), 3: (864, 864), 4: (432, 432)}
    calls[0], calls[3] = ("one", "float32", (1, 64), 3), ("four", "float32", (1, 300), 4)
    graph = made.graph_of([("a", "uint8", (1, 2)), ("b", "float32", (1, 2)), ("p0", "float32", (1, 2))], calls)
    files["executor-config/graph/default.graph"] = json.dumps(graph).encode()
    document["modules"]["default"]["memory"]["sids"] = made.sids_of(graph)
    files["metadata.json"] = json.dumps(document).encode()
    with tvm.open(made.tar_of(files)) as library:
        assert library.modules["default"].storage == {0: (2, 2), 1: (8, 8), 2: (8, 8), 3: (256, 640), 4: (432, 1200)}
        (found,) = (finding for finding in library.validate() if finding.code != "io-size")
        assert (found.severity, found.code, found.where) == ("note", "storage", "metadata.json")
        assert "3: 640 for 256, 4: 1200 for 432" in found.message


def test_the_workspace_of_a_larger_model():
    """Golden constants of qnn_conv2d in TVM's own test."""
    files = made.files_of(executor="aot")
    document = json.loads(files["metadata.json"])
    ports = {
        "p0": {"size": 802816, "dtype": "int8"},
        "p1": {"size": 2304, "dtype": "int8"},
        "p2": {"size": 512, "dtype": "int32"},
    }
    main = {"device": 1, "io_size_bytes": 1207040, "workspace_size_bytes": 2466816, "constants_size_bytes": 0, "inputs": ports, "outputs": {"output": {"size": 401408, "dtype": "uint8"}}}  # fmt: skip
    document["modules"]["default"]["memory"]["functions"]["main"] = [main]
    files["metadata.json"] = json.dumps(document).encode()
    (row,) = tvm.open(made.tar_of(files)).modules["default"].memory.main
    assert (row.io_nbytes, row.workspace_nbytes) == (1207040, 2466816)
    assert {name: tuple(port) for name, port in row.inputs.items()} == {"p0": (802816, "int8"), "p1": (2304, "int8"), "p2": (512, "int32")}  # fmt: skip
    assert row.io_nbytes == sum(port.nbytes for port in [*row.inputs.values(), *row.outputs.values()])


# ------------------------------------------------------------------------------------------------------ tolerated forms


def test_the_published_draft_is_understood():
    files = made.files_of(5)

    def draft(document):
        document["runtimes"] = document.pop("executors")
        functions = document["memory"]["functions"]
        functions["operator_functions"] = {
            row["function_name"]: row["workspace"] for row in functions["operator_functions"]
        }

    files = made.changed(files, draft)
    files["runtime-config/graph/graph.json"] = files.pop("executor-config/graph/graph.json")
    with tvm.open(made.tar_of(files)) as library:
        module = library.modules["default"]
        assert module.executors == ("graph",) and module.graph is not None
        assert module.memory.functions == (("tvmgen_default_fused_cast_multiply_add", ((1, 0),)),)
        found = library.validate()
        assert {finding.code for finding in found} == {"form", "missing-member"}
        assert sum(finding.code == "form" for finding in found) == 3


@pytest.mark.parametrize("version", [5, 6])
def test_both_shapes_of_target(version):
    files = made.changed(made.files_of(version), lambda d: d.update(target=["llvm"] if version == 5 else {"2": "cuda"}))
    with tvm.open(made.tar_of(files)) as library:
        assert library.modules["default"].targets == ((("llvm", None),) if version == 5 else (("cuda", 2),))
        assert [finding.code for finding in library.validate()] == ["form"]


def test_names_without_a_dot_in_front():
    """As tar makes them of an unpacked archive: tar cf model.tar *."""
    with tvm.open(made.tar_of(made.files_of(), prefix="")) as library:
        assert list(library.modules["default"].params) == ["p0"]
        assert {(finding.severity, finding.code) for finding in library.validate()} == {("note", "member-name")}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_tar_format_and_long_names(format):
    files = made.files_of(executor="aot")
    for length in (90, 101, 150, 300):
        if format != tarfile.USTAR_FORMAT or length < 101:
            files["runtime/" + "d" * 40 + "/" + "x" * length] = b"1"
            files["runtime/" + "é" * 30 + "/" + "y" * length] = b"22"
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with tvm.open(stream.getvalue()) as library:
        assert {file.name: file.nbytes for file in library.files} == {name: len(data) for name, data in files.items()}
        assert list(library.validate()) == []


def test_members_are_those_that_tarfile_finds(tmp_path):
    path = made.make(tmp_path / "m.tar", made.files_of(modules=("mod1", "mod2")))
    with tvm.open(path) as library, tarfile.open(path) as tar:
        rows = [(m.name, m.isdir(), m.offset, m.offset_data if m.isreg() else 0, m.size) for m in tar.getmembers()]
        # tarfile's offset of a member with a PAX header is that of the PAX header; ours is of the member's own.
        mine = [(m.raw.rstrip("/") or ".", m.kind == "directory", m.header, m.offset if m.kind == "file" else 0, m.nbytes) for m in library.archive.members]  # fmt: skip
        assert [(a, b, d, e) for a, b, _, d, e in mine] == [(a, b, d, e) for a, b, _, d, e in rows]


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(version=8), "version: expected 1 to 7, got 8"), (lambda d: d.update(version=0), "version: expected 1 to 7, got 0"),
        (lambda d: d.update(version="7"), "version: expected a number"), (lambda d: d.pop("version"), "version: expected a number"), (lambda d: d.update(version=True), "version: expected a number"),
        (lambda d: d.update(modules=[1]), "modules: expected an object of objects"), (lambda d: d.update(modules={"default": 5}), "modules: expected an object of objects"),
        (lambda d: d["modules"]["default"].update(memory=5), "memory: expected a list or an object, got 5"),
        (lambda d: d["modules"]["default"].update(executors="graph"), "executors: expected a list"),
        (lambda d: d["modules"]["default"].update(executors=[1]), "executors: expected a list of strings"),
        (lambda d: d["modules"]["default"].update(model_name=5), "model_name: expected a string"),
        (lambda d: d["modules"]["default"].update(target=5), "target: expected a list or an object"),
        (lambda d: d["modules"]["default"].update(target={"x": "c"}), "target: expected descriptions"),
        (lambda d: d["modules"]["default"].update(style="other"), "style: expected full-model or operator"),
        (lambda d: d["modules"]["default"].update(external_dependencies=[5]), "external_dependencies: expected a list of objects"),
        (lambda d: d["modules"]["default"]["memory"].update(sids=[{"storage_id": -1, "size_bytes": 1}]), "storage_id in sids: expected a number from 0 on, got -1"),
        (lambda d: d["modules"]["default"]["memory"].update(sids=[{"storage_id": 1, "size_bytes": 1.5}]), "size_bytes in sids: expected a number"),
        (lambda d: d["modules"]["default"]["memory"].update(sids=[{"storage_id": 1, "size_bytes": 1 << 70}]), "size_bytes in sids: expected a number"),
        (lambda d: d["modules"]["default"]["memory"].update(sids={}), "sids: expected a list of objects"),
        (lambda d: d["modules"]["default"]["memory"].update(functions=[]), "functions: expected an object"),
        (lambda d: d["modules"]["default"]["memory"]["functions"].update(main=[5]), "memory.functions.main: expected a list of objects"),
        (lambda d: d["modules"]["default"]["memory"]["functions"]["main"][0].pop("device"), "device in memory.functions.main: expected a number"),
        (lambda d: d["modules"]["default"]["memory"]["functions"]["main"][0].update(inputs=[]), "inputs: expected an object"),
        (lambda d: d["modules"]["default"]["memory"]["functions"]["main"][0].update(inputs={"a": 1}), "inputs of main: expected an object of objects"),
        (lambda d: d["modules"]["default"]["memory"]["functions"].update(operator_functions=[{}]), "function_name in operator_functions: expected a string"),
        (lambda d: d["modules"]["default"]["memory"]["functions"].update(operator_functions=[{"function_name": "f"}]), "workspace in operator_functions: expected a list"),
        (lambda d: d["modules"]["default"].update(export_datetime=5), "export_datetime: expected a string"),
    ],
)  # fmt: skip
@pytest.mark.sample(8)
def test_metadata_of_the_wrong_shape(change, words):
    data = made.tar_of(made.changed(made.files_of(), change))
    with pytest.raises((FormatError, UnsupportedError), match=words) as caught:
        tvm.open(data)
    assert caught.value.where == "metadata.json" and caught.value.offset > 512
    found = tvm.check_archive(data)
    assert any(words in finding.message for finding in found if finding.severity == "error")


def test_what_is_missing_is_empty():
    files = {"metadata.json": b'{"version": 7, "modules": {"m": {}}}'}
    with tvm.open(made.tar_of(files)) as library:
        module = library.modules["m"]
        assert (module.model_name, module.executors, module.targets, module.created) == ("m", (), (), None)
        assert dict(module.params) == {} and module.graph is None
        assert {finding.code for finding in library.validate()} == {"metadata", "missing-member"}
    files = {"metadata.json": b'{"version": 3}'}
    assert list(tvm.open(made.tar_of(files)).modules) == ["default"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"a":1,"a":2}',
        b"[" * 100_000,
        b"\xff",
        b'{"version": 1e999}',
        b'{"version": ' + b"9" * 5000 + b"}",
    ],
)
def test_metadata_that_is_none(text):
    data = made.tar_of({"metadata.json": text})
    with pytest.raises(FormatError):
        tvm.open(data)
    assert any(finding.severity == "error" for finding in tvm.check_archive(data))


def test_no_archive(tmp_path):
    for data in (
        b"",
        b"BZh91",
        b"x" * 2000,
        bytes(2000),
        b"PK\3\4" + bytes(600),
        b"\x1f\x8b",
        b"\x1f\x8b" + bytes(100),
    ):
        with pytest.raises((FormatError, UnsupportedError)):
            tvm.open(data)
        assert [finding.severity for finding in tvm.check_archive(data)] == ["error"]
    with pytest.raises(UnsupportedError, match="got a .params file"):
        tvm.open(made.params_of({"p" * 600: made.C}))
    with pytest.raises(FormatError, match=r"expected a file metadata\.json, got none"):
        tvm.open(tmp_path)
    with pytest.raises(FileNotFoundError):
        tvm.open(tmp_path / "none")
    with pytest.raises(TypeError, match="expected a path, a buffer or a file object"):
        tvm.open(5)


def test_errors_in_a_broken_graph_and_parameters_name_the_place():
    files = made.files_of()
    files["executor-config/graph/default.graph"] = b'{"nodes": 5}'
    files["parameters/default.params"] = files["parameters/default.params"][:-1]
    library = tvm.open(made.tar_of(files))
    with pytest.raises(
        FormatError, match="nodes of graph: expected a list, got int - at executor-config/graph/default.graph"
    ):
        library.modules["default"].graph  # noqa: B018
    with pytest.raises(
        FormatError,
        match="elements of tensor: expected 8 more bytes, got 7 .*- at parameters/default.params: tensor p0",
    ):
        library.modules["default"].params  # noqa: B018


BROKEN_GRAPHS = [
    (lambda g: g.pop("nodes"), "nodes of graph: expected a list"), (lambda g: g["nodes"].append(5), "node 4: expected an object"), (lambda g: g["nodes"][0].pop("name"), "expected an op, a name"),
    (lambda g: g["nodes"][0].update(inputs=[5]), "inputs of node 0: expected lists of three numbers"), (lambda g: g["nodes"][0].update(inputs=[[0, 0, 0]]), "expected outputs of nodes before it"),
    (lambda g: g["nodes"][3].update(inputs=[[9, 0, 0]]), "expected outputs of nodes before it"), (lambda g: g["nodes"][3].update(inputs=[[0, 1, 0]]), "expected outputs of nodes before it"),
    (lambda g: g["nodes"][3].update(inputs=[[-1, 0, 0]]), "expected lists of three numbers"),
    (lambda g: g.update(node_row_ptr=[0, 1, 2, 3]), "node_row_ptr: expected 5 entries, got 4"), (lambda g: g.update(node_row_ptr=[0, 1, 1, 3, 4]), "node_row_ptr: expected 0 and then larger"),
    (lambda g: g.update(node_row_ptr=[0, 1, 2, 3, 1 << 60]), "expected 1152921504606846976 entries, got 4"), (lambda g: g.update(node_row_ptr=[0, 1, 2, 3, "x"]), "node_row_ptr: expected numbers"),
    (lambda g: g.update(arg_nodes=[0, 9]), "arg_nodes: expected indices"), (lambda g: g.update(arg_nodes=[0, 0]), "arg_nodes: expected indices"), (lambda g: g.update(arg_nodes=[3]), "arg_nodes: expected null nodes"),
    (lambda g: g["nodes"][1].update(name="a"), "names of arguments: expected each once"), (lambda g: g.update(heads=[[9, 0, 0]]), "heads: expected outputs of nodes"), (lambda g: g.update(heads=[5]), "heads: expected lists"),
    (lambda g: g.pop("attrs"), "attrs of graph: expected an object"), (lambda g: g["attrs"].pop("shape"), "expected shape as"), (lambda g: g["attrs"].update(shape=["list_int", []]), "expected shape as"),
    (lambda g: g["attrs"]["shape"][1].pop(), "shape: expected 4 entries, got 3"), (lambda g: g["attrs"]["dltype"][1].append("x"), "dltype: expected 4 entries, got 5"),
    (lambda g: g["attrs"]["shape"][1].__setitem__(0, [-1]), "shape: expected sizes"), (lambda g: g["attrs"]["shape"][1].__setitem__(0, [1] * 65), "shape: expected sizes"),
    (lambda g: g["attrs"]["shape"][1].__setitem__(0, [1 << 60, 1 << 60]), "expected less than 2\\^63 bytes"), (lambda g: g["attrs"]["dltype"][1].__setitem__(0, "what?"), "dltype of 'a': expected a dtype"),
    (lambda g: g["attrs"]["dltype"][1].__setitem__(0, 5), "dltype: expected strings"), (lambda g: g["attrs"]["storage_id"][1].__setitem__(0, -1), "storage_id: expected numbers from 0 on"),
]  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize(("change", "words"), BROKEN_GRAPHS)
def test_graphs_that_contradict_themselves(change, words):
    files = made.files_of() | {"executor-config/graph/default.graph": made.graph_with(change)}
    with pytest.raises(FormatError, match=words):
        tvm.open(made.tar_of(files)).modules["default"].graph  # noqa: B018
    found = [finding for finding in tvm.check_archive(made.tar_of(files)) if finding.code == "graph"]
    assert len(found) == 1 and found[0].where == "executor-config/graph/default.graph" and found[0].offset > 0


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("float32", 4), ("int8", 1), ("bool", 1), ("uint1", 1), ("float32x4", 16), ("int4", 1), ("handle", 8), ("e4m3_float8", 1), ("float8_e4m3fn", 1), ("float8_e4m3fnx4", 4), ("bfloat16", 2)],
)  # fmt: skip
def test_bytes_of_dtypes(text, nbytes):
    from milblob.tvm.graph import dtype_nbytes

    assert dtype_nbytes(text) == nbytes


def test_a_version_of_tvm_defines_the_meaning_of_codes():
    files = made.files_of()
    fp8 = bytearray(made.params_of({"p0": np.array([[1, 0]], np.int8)}))
    at = fp8.index(bytes([0, 8, 1, 0]), 60)
    fp8[at : at + 2] = 6, 8
    files["parameters/default.params"] = bytes(fp8)
    data = made.tar_of(files)
    assert tvm.open(data).modules["default"].params["p0"].dtype_text == "float8_e4m3fn"
    assert tvm.open(data, tvm="0.27").modules["default"].params["p0"].dtype_text == "bool"
