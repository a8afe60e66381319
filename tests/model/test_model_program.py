"""model.program, model.functions and model.metadata: of every kind of source, beside google's parser."""

import shutil

import pytest

import milblob
from cases import MODEL_CASES, load_case, model_directory
from milblob import _codec
from milblob.program import schema
from paths import DATA
from peers import WITHOUT
from protobuf_programs import LONG, add_const, add_op, as_model, new_program

pytestmark = pytest.mark.wheel


@pytest.mark.parametrize("name", MODEL_CASES)
@pytest.mark.sample(5)
def test_program_is_the_message(name):
    """model.program and model.programs are what google's parser makes of the file, by our table and by coremltools'."""
    case = load_case(name)
    path = case.path()
    data = path.read_bytes() if path.is_file() else next(model_directory(path).glob("*.mlmodel")).read_bytes()
    message = schema.parse("Model", data)
    with milblob.open(path) as model:
        if message.WhichOneof("Type") == "mlProgram":
            assert model.program.SerializeToString(deterministic=True) == message.mlProgram.SerializeToString(
                deterministic=True
            )  # to older protobufs, messages with a NaN are unequal
            assert list(model.programs) == [""] and model.programs[""] is model.program
            assert model.program is model.program
            names = list(model)
            model.program.Clear()  # yours to change: the tensors do not follow
            assert list(model) == names
            assert all(model[name].function in model.functions for name in names if model[name].function)
        else:
            with pytest.raises(milblob.UnsupportedError, match="expected a model with one Program, got a pipeline of"):
                _ = model.program
            assert sorted(model.programs) == sorted({f"{row['model']}/" for row in case.rows})
    proto = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"]).proto
    theirs = proto.Model_pb2.Model.FromString(data)
    if message.WhichOneof("Type") == "mlProgram":
        with milblob.open(path) as model:
            ours = model.program.SerializeToString(deterministic=True)
        assert ours == theirs.mlProgram.SerializeToString(deterministic=True)


def test_program_of_text_equals_the_one_of_protobuf():
    for name in ("opset_ios18_fp16", "states", "lists", "immediates", "containers"):
        paths = load_case(name).expected["paths"]
        with milblob.open(DATA / name / paths[0]) as model:
            protobuf = model.program
        for path in paths[1:]:
            with milblob.open(DATA / name / path) as model:
                text = model.program
            assert set(text.functions) == set(protobuf.functions)
            for key, function in protobuf.functions.items():
                for opset, block in function.block_specializations.items():
                    ours = text.functions[key].block_specializations[opset]
                    assert len(ours.operations) == len(block.operations)
                    for a, b in zip(ours.operations, block.operations, strict=True):
                        assert (a.type, [o.name for o in a.outputs]) == (b.type, [o.name for o in b.outputs])
                        assert set(a.inputs) == set(b.inputs)
                        assert set(a.attributes) == set(b.attributes)


def test_weight_files_have_no_program():
    with milblob.open(DATA / "blob_sub_byte" / "weight.bin") as model:
        with pytest.raises(milblob.UnsupportedError, match="expected a model with one Program, got a weight file"):
            _ = model.program
        assert model.programs == {}
        assert list(model.functions) == []
        assert model.metadata == type(model.metadata)()


def test_metadata_of_every_kind_of_source():
    with milblob.open(DATA / "flexible" / "model.mlpackage") as model:
        package = model.metadata
    assert (package.spec_version, package.opset, package.producer) == (7, "CoreML6", "coremltools 9.0")
    (x,), (out,) = package.inputs, package.outputs
    assert (x.name, x.shape, x.dtype) == ("x", (1, None, 12), "float32")
    assert (out.name, out.shape, out.dtype) == ("out", (1, 12), "float32")
    with milblob.open(DATA / "flexible" / "model.mlpackage" / "Data/com.apple.CoreML/model.mlmodel") as model:
        assert model.metadata == package
    with milblob.open(
        (DATA / "flexible" / "model.mlpackage" / "Data/com.apple.CoreML/model.mlmodel").read_bytes()
    ) as model:
        assert model.metadata == package
    with milblob.open(DATA / "flexible" / "model.mlmodelc") as model:
        compiled = model.metadata
        assert (compiled.spec_version, compiled.opset, compiled.producer) == (7, "CoreML6", "coremltools 9.0")
        assert [feature.name for feature in compiled.inputs + compiled.outputs] == ["x", "out"]
    for source in (
        DATA / "flexible" / "model.mlmodelc" / "model.mil",
        (DATA / "flexible" / "model.mlmodelc" / "model.mil").read_bytes(),
    ):
        with milblob.open(source) as model:
            bare = model.metadata
            assert (bare.spec_version, bare.opset, bare.producer) == (0, "CoreML6", "coremltools 9.0")
            assert [(f.name, f.shape, f.dtype) for f in bare.inputs] == [("x", (1, None, 12), "float32")]
    with milblob.open(DATA / "functions" / "model.mlpackage") as model:
        assert model.metadata.opsets == {"alpha": "CoreML8", "beta": "CoreML8"}
        assert model.metadata.default_function == "alpha"
        assert set(model.metadata.functions) == {"alpha", "beta"}
    with milblob.open(DATA / "functions" / "model.mlmodelc" / "model.mil") as model:
        assert model.metadata.opsets == {"alpha": "CoreML8", "beta": "CoreML8"}
    with milblob.open(DATA / "pipeline" / "model.mlpackage") as model:
        assert model.metadata.opsets == {"model0/main": "CoreML6", "model1/main": "CoreML6"}
        assert [f.name for f in model.metadata.inputs] == ["x"]


def test_metadata_of_a_compiled_model_without_its_json(tmp_path):
    path = shutil.copytree(DATA / "flexible" / "model.mlmodelc", tmp_path / "m.mlmodelc")
    (path / "metadata.json").unlink()
    with milblob.open(path) as model:
        assert (model.metadata.spec_version, [f.name for f in model.metadata.inputs]) == (0, ["x"])


def test_metadata_without_functions_or_build_info():
    with milblob.open(as_model(schema.Program(version=1))) as model:
        assert (model.metadata.opset, model.metadata.producer, len(model.functions), len(model)) == ("", "", 0, 0)
    program, block = new_program()
    add_const(block, "w", LONG)
    with milblob.open(as_model(program)) as model:
        assert (model.metadata.opset, model.metadata.producer) == ("CoreML8", "")


def test_why_a_program_cannot_be_walked_is_found_out_once(tmp_path, cli, monkeypatch):
    """Each tensor asks who reads it, and the answer takes as long as the Program is: minutes, for many tensors."""
    program, block = new_program()
    for number in range(50):
        add_const(block, f"w{number}", LONG)
    add_op(block, "relu", "yyy", x="w0")
    data = as_model(program)
    assert data.count(b"\x0a\x03yyy") == 1
    path = tmp_path / "model.mlmodel"
    path.write_bytes(data.replace(b"\x0a\x03yyy", b"\x0f\x03yyy"))  # no wire type; the scan for constants skips it
    asked = []
    graph_program = _codec.graph_program
    monkeypatch.setattr(_codec, "graph_program", lambda *args: asked.append(args) or graph_program(*args))
    with milblob.open(path) as model:
        words = set()
        for tensor in model.values():
            with pytest.raises(milblob.FormatError) as caught:
                _ = tensor.consumers
            words.add(str(caught.value))
        assert len(model) == 50 and len(words) == 1
    assert len(asked) == 1
    status, out, _ = cli("ls", path)
    assert status == 0 and out.count("?") >= 50
    assert len(asked) == 2
