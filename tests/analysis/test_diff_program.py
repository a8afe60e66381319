"""milblob.diff of Programs and metadata: what is said of them; and `milblob diff`."""

import json
import shutil

import numpy as np
import pytest

import milblob
from cases import model_directory
from diffing import listed, noise
from milblob.program import schema
from paths import DATA

SOURCE = DATA / "opset_ios17_fp32" / "model.mlpackage"


def blocks(model):
    for function in model.mlProgram.functions.values():
        yield from function.block_specializations.values()


def edited(folder, change, source=SOURCE):
    """A copy of a package whose Model message went through change()."""
    path = folder / f"edited{len(list(folder.iterdir()))}.mlpackage"
    shutil.copytree(source, path)
    file = next(model_directory(path).glob("*.mlmodel"))
    model = schema.parse("Model", file.read_bytes())
    change(model)
    file.write_bytes(model.SerializeToString())
    return path


def changes(folder, change, source=SOURCE):
    found = milblob.diff(source, edited(folder, change, source))
    assert {row.kind for row in found.rows} <= {"same"}
    assert found.is_same == (not found.structure and not found.metadata)
    return [(row.kind, row.message) for row in found.structure], [row.message for row in found.metadata]


def op(model):
    """The last operation that is no constant."""
    return [op for block in blocks(model) for op in block.operations if op.type != "const"][-1]


def kinds_of_operations():
    model = schema.parse("Model", next(model_directory(SOURCE).glob("*.mlmodel")).read_bytes())
    return [(op.type, op.outputs[0].name) for block in blocks(model) for op in block.operations if op.type != "const"]


OPERATIONS = kinds_of_operations()


def test_another_serialization_is_the_same(tmp_path):
    """protobuf writes maps in an order of its own."""
    path = edited(tmp_path, lambda model: None)
    assert milblob.diff(SOURCE, path).is_same


@pytest.mark.parametrize(
    "name",
    ["reversed", "padded_lengths", "padded_tags", "padded_values", "unknown_fields", "unknown_groups", "unknown_in_entry",
     "value_before_key"],
)  # fmt: skip
def test_other_wire_forms_are_the_same(name):
    """One Program, spelled otherwise: another order of maps and fields, fields that nobody knows, padded varints."""
    plain, other = (next((DATA / "wire" / case).rglob("*.mlmodel")) for case in ("plain", name))
    assert plain.read_bytes() != other.read_bytes()
    found = milblob.diff(plain, other)
    assert found.is_same and len(found.rows) == 3, str(found)


def test_operations(tmp_path):
    kind, name = OPERATIONS[-1]
    assert len(OPERATIONS) > 1

    def other_type(model):
        op(model).type = "gelu"

    def removed(model):
        for block in blocks(model):
            block.operations.remove(op(model))

    def added(model):
        for block in blocks(model):
            copy = op(model)
            new = block.operations.add()
            new.CopyFrom(copy)
            new.outputs[0].name = "new\x1b"

    def other_output(model):
        op(model).outputs[0].type.tensorType.dataType = 10

    programs, _ = changes(tmp_path, other_type)
    assert programs == [("changed", f"operation {name!r}: {kind} in A, gelu in B")]
    programs, _ = changes(tmp_path, removed)
    assert programs == [("removed", f"operation {kind} {name!r}: only in A")]
    programs, _ = changes(tmp_path, added)
    assert programs == [("added", f"operation {kind} 'new\\x1b': only in B")]
    programs, _ = changes(tmp_path, other_output)
    ((how, words),) = programs
    assert how == "changed" and words.startswith(f"operation {kind} {name!r}: gives float32 [") and " in B" in words
    assert "float16 [" in words


def test_what_operations_read(tmp_path):
    kind, name = OPERATIONS[-1]

    def first_input(model):
        return next(a for a in op(model).inputs.values() if a.arguments[0].name)

    def other_name(model):
        first_input(model).arguments[0].name = "elsewhere"

    def more(model):
        argument = first_input(model)  # before the next line adds one without any
        op(model).inputs["extra"].CopyFrom(argument)

    def constant(model):
        for block in blocks(model):
            new = block.operations.add(type="const")
            new.CopyFrom(next(o for o in block.operations if o.type == "const"))
            new.outputs[0].name = "small"
            value = new.attributes["val"]
            value.Clear()
            value.type.tensorType.dataType, value.type.tensorType.rank = 23, 1
            value.type.tensorType.dimensions.add().constant.size = 2
            value.immediateValue.tensor.ints.values.extend([1, -2])
            op(model).inputs["extra"].arguments.add().name = "small"

    def other_constant(model):
        constant(model)
        for block in blocks(model):
            small = next(o for o in block.operations if o.outputs and o.outputs[0].name == "small")
            small.attributes["val"].immediateValue.tensor.ints.values[1] = 7

    def inline(model):
        constant(model)
        for block in blocks(model):
            small = next(o for o in block.operations if o.outputs and o.outputs[0].name == "small")
            binding = op(model).inputs["extra"].arguments[0]
            binding.value.CopyFrom(small.attributes["val"])
            block.operations.remove(small)

    programs, _ = changes(tmp_path, other_name)
    assert len(programs) == 1 and programs[0][1].endswith("elsewhere in B")
    programs, _ = changes(tmp_path, more)
    assert programs == [("added", f"operation {kind} {name!r}, extra: only in B")]
    first, second, third = (edited(tmp_path, change) for change in (constant, other_constant, inline))
    (change,) = milblob.diff(first, second).structure
    assert change.message == f"operation {kind} {name!r}, extra: int32 [1, -2] in A, int32 [1, 7] in B"
    assert milblob.diff(first, third).is_same  # the same value, named or written inline


def test_functions(tmp_path):
    def renamed(model):
        functions = model.mlProgram.functions
        functions["other"].CopyFrom(functions["main"])
        del functions["main"]

    def opset(model):
        for function in model.mlProgram.functions.values():
            function.opset = "CoreML8"

    def other_input(model):
        for function in model.mlProgram.functions.values():
            function.inputs[0].type.tensorType.dataType = 10
            function.inputs.add().CopyFrom(function.inputs[0])
            function.inputs[1].name = "second"

    def outputs(model):
        for block in blocks(model):
            block.outputs.append(OPERATIONS[0][1])

    programs, _ = changes(tmp_path, renamed)
    assert programs == [("changed", "function: 'main' in A, 'other' in B")]
    programs, _ = changes(tmp_path, opset)
    assert programs == [("changed", "opset: ios17 in A, ios18 in B")]
    programs, _ = changes(tmp_path, other_input)
    assert [words for _, words in programs][-1] == "input 'second': only in B"
    assert programs[0][1].startswith("input ") and "multiArray float32 [" in programs[0][1]
    programs, _ = changes(tmp_path, outputs)
    assert len(programs) == 1 and programs[0][1].startswith("outputs: ")
    several = DATA / "functions" / "model.mlpackage"

    def dropped(model):
        names = sorted(model.mlProgram.functions)
        del model.mlProgram.functions[names[-1]]

    found = milblob.diff(several, edited(tmp_path, dropped, several))
    assert any(change.kind == "removed" and change.message.startswith("function ") for change in found.structure)


def test_metadata(tmp_path):
    def about(model):
        metadata = model.description.metadata
        metadata.author, metadata.userDefined["my.key"] = "Ann\x1b", "1"

    def tools(model):
        user_defined = model.description.metadata.userDefined
        user_defined["com.github.apple.coremltools.conversion_date"] = "2020-01-01"
        user_defined["com.github.apple.coremltools.version"] = "0.1"

    def interface(model):
        model.description.input[0].shortDescription = "audio"
        model.specificationVersion += 1

    programs, words = changes(tmp_path, about)
    assert (programs, words) == ([], ["author: 'milblob' in A, 'Ann\\x1b' in B", "user-defined 'my.key': only in B"])
    _, words = changes(tmp_path, interface)
    assert words[0].startswith("specification version: '") and words[1].endswith("(audio) in B")
    found = milblob.diff(SOURCE, edited(tmp_path, tools))
    assert found.is_same and len(found.tools) >= 2
    assert found.tools[0].message.startswith("producer: coremltools ")
    assert not milblob.diff(SOURCE, edited(tmp_path, about), select=lambda name: True).metadata


def test_broken_models(tmp_path):
    path = tmp_path / "broken.mlpackage"
    shutil.copytree(SOURCE, path)
    weights = next(path.rglob("weight.bin"))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(milblob.FormatError, match=r"weight\.bin"):
        milblob.diff(SOURCE, path)
    weights.unlink()
    with pytest.raises(milblob.ResolveError):
        milblob.diff(SOURCE, path)
    assert milblob.diff(SOURCE, path, names_only=True).is_same
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(milblob.FormatError):
        milblob.diff(SOURCE, tmp_path / "x.safetensors")


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def files(tmp_path):
    return (
        listed(tmp_path, "a", same=noise(), w=noise(seed=1), x=noise(seed=2), gone=noise(4)),
        listed(tmp_path, "b", same=noise(), w=noise(seed=1) + 1, x=noise(seed=2) * 1.001),
    )


def test_diff_command(files, cli):
    status, out, err = cli("diff", *files)
    lines = out.splitlines()
    assert (status, err) == (1, "")
    assert lines[0].split() == [
        "name",
        "what",
        "dtype",
        "shape",
        "differ",
        "max",
        "mean",
        "relative",
        "cosine",
        "SQNR",
        "dB",
    ]
    assert [line.split()[0] for line in lines[1:4]] == ["w", "x", "gone"]
    assert lines[-1] == "different: 4 tensors: 1 the same, 2 with other values, 1 only in A"
    status, out, _ = cli("diff", files[0], files[0])
    assert (status, out) == (0, "same: 4 tensors: 4 the same\n")
    assert cli("diff", "-q", *files) == (1, "", "")
    assert cli("diff", "-q", files[0], files[0]) == (0, "", "")
    assert "same  " in cli("diff", "-v", files[0], files[0])[1]


def test_diff_options(files, cli, tmp_path):
    assert cli("diff", *files, "-k", "s*", "-k", "same")[0] == 0
    assert cli("diff", *files, "-k", "x", "--rtol", "0.01")[:2] == (
        0,
        cli("diff", *files, "-k", "x", "--rtol", "0.01")[1],
    )
    assert cli("diff", *files, "-k", "x", "--rtol", "0.0001")[0] == 1
    assert cli("diff", *files, "-k", "w", "--atol", "1.01")[0] == 0
    out = cli("diff", *files, "--top", "1")[1].splitlines()
    assert out[1].startswith("gone ") and out[2] == "... and 2 tensors that differ less"
    out = cli("diff", *files, "--top", "2")[1].splitlines()
    assert out[2].startswith("w ")
    status, out, _ = cli("diff", *files, "--names-only")
    assert status == 1 and out.splitlines()[-1] == "different: 4 tensors: 3 in both, 1 only in A"
    assert cli("diff", *files, "--map", "gone=x", "-k", "gone")[1].splitlines()[1].startswith("gone  x     other shape")
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"gone": null, "w": "x", "x": "w"}')
    status, out, _ = cli("diff", *files, "--mapping", mapping, "--json")
    document = json.loads(out)
    assert [(row["name"], row["other"]) for row in document["tensors"]] == [("same", "same"), ("w", "x"), ("x", "w")]
    assert document["is_same"] is False and document["totals"]["different"] == 2
    status, out, err = cli("diff", *files, "-k", "nothing")
    assert (status, out) == (2, "") and err.startswith("milblob: -k nothing: no tensor in ")


def test_diff_of_functions_and_parts(cli):
    path = DATA / "functions" / "model.mlpackage"
    with milblob.open(path) as model:
        name = next(iter(model.functions))
    assert cli("diff", path, path, "-f", name)[0] == 0
    assert cli("diff", path, path, "-f", "none")[0] == 2
    path = DATA / "palette_4bit" / "model.mlpackage"
    document = json.loads(cli("diff", path, path, "--stored", "--json")[1])
    assert any(row["name"].endswith(".lut") for row in document["tensors"])


def test_diff_of_programs(cli, tmp_path):
    path = edited(tmp_path, lambda model: setattr(op(model), "type", "gelu"))
    status, out, _ = cli("diff", SOURCE, path)
    assert status == 1 and f"operation {OPERATIONS[-1][1]!r}: {OPERATIONS[-1][0]} in A, gelu in B" in out
    assert json.loads(cli("diff", SOURCE, path, "--json")[1])["structure"][0]["kind"] == "changed"


@pytest.mark.parametrize(
    "options",
    [["nowhere.bin"], ["--map", "x"], ["--map", "nope=x"], ["--mapping", "nowhere.json"], ["--atol", "-1"],
     ["--rtol", "nan"], ["--top", "x"]],
)  # fmt: skip
def test_diff_errors(files, cli, options):
    status, out, err = cli("diff", *files, *options) if options != ["nowhere.bin"] else cli("diff", files[0], *options)
    assert (status, out) == (2, "") and err.startswith("milblob: ")


def test_names_cannot_harm_a_terminal(cli, tmp_path):
    a = listed(tmp_path, "a", **{"w\x1b[2J": np.ones(12, "f4")})
    b = listed(tmp_path, "b", **{"w\x1b[2J": np.zeros(12, "f4")})
    assert "\x1b" not in cli("diff", a, b)[1]
    assert "\x1b" not in str(milblob.diff(a, b))
