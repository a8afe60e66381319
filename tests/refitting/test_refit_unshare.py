"""refit where weights are stored once: equal values stay one, different ones are refused or stored apart."""

import json

import numpy as np
import pytest

import milblob
from cases import model_directory
from draws import restarts
from editable_packages import files_of, left
from hostile_bytes import write_package
from milblob.cli import main
from peers import WITHOUT
from protobuf_programs import add_const, add_op, as_model, new_program, set_type

pytestmark = pytest.mark.usefixtures("unsynced")

RANDOM = np.random.default_rng(5)
each_test_draws_the_same = restarts(RANDOM)
COUNT = 24


def norms(folder, *, nested=False, blob=True):
    """A package of three layer norms: all read one gamma, and one beta; `beta` is a record, or stands in the Program."""
    program, block = new_program()
    set_type(program.functions["main"].inputs.add(name="x").type, 11, (COUNT,))
    zeros = np.zeros(COUNT, np.float32)
    add_const(block, "gamma", zeros + 1)
    op = add_const(block, "beta", zeros)
    op.attributes["name"].type.tensorType.dataType = 2
    op.attributes["name"].immediateValue.tensor.strings.values.append("beta")
    data = None
    if blob:
        path = folder / "made.bin"
        with milblob.BlobWriter(path) as blobs:
            offset = blobs.write(zeros)
        data = path.read_bytes()
        path.unlink()
        op.attributes["val"].blobFileValue.fileName = "@model_path/weights/weight.bin"
        op.attributes["val"].blobFileValue.offset = offset
    x = "x"
    for number in range(3):
        add_op(block, "layer_norm", f"ln{number}", (COUNT,), x=x, gamma="gamma", beta="beta")
        x = f"ln{number}"
    if nested:
        cond = add_op(block, "cond", "c", (COUNT,), pred="x")
        inner = cond.blocks.add()
        add_op(inner, "layer_norm", "ln3", (COUNT,), x="x", gamma="gamma", beta="beta")
        inner.outputs.append("ln3")
    block.outputs.append(x)
    return write_package(folder, as_model(program), {} if data is None else {"weight.bin": data})


def read_by(path, names=("ln0", "ln1", "ln2"), parameter="beta"):
    """The values that each operation reads, by the consumers of the constants of the model."""
    found = {}
    with milblob.open(path, constants=True) as model:
        for tensor in model.values():
            for use in tensor.consumers:
                if use.parameter == parameter and use.reader.name in names:
                    assert use.reader.name not in found
                    found[use.reader.name] = tensor.read().copy()
    return [found[name] for name in names]


def betas(count=3):
    return [RANDOM.normal(size=COUNT).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("blob", [True, False])
@pytest.mark.parametrize("output", [True, False])
def test_one_constant_becomes_three(tmp_path, blob, output):
    package, new = norms(tmp_path, blob=blob), betas()
    given = {f"ln.{i}.bias": values for i, values in enumerate(new)}
    mapping = {f"ln.{i}.bias": f"beta@ln{i}" for i in range(3)}
    before = files_of(package)
    with pytest.raises(
        ValueError,
        match="beta: expected equal arrays for it, got different ones: ln.0.bias, ln.1.bias, ln.2.bias; unshare",
    ):
        milblob.refit(package, given, mapping=mapping)
    assert files_of(package) == before
    target = tmp_path / "out.mlpackage" if output else package
    report = milblob.refit(package, given, mapping=mapping, unshare=True, destination=target if output else None)
    assert [a.tobytes() for a in read_by(target)] == [a.tobytes() for a in new]
    assert [(c.name, c.given, c.unshared) for c in report.changes] == [
        ("beta", "ln.0.bias", ""), ("beta_2", "ln.1.bias", "beta"), ("beta_3", "ln.2.bias", "beta"),
    ]  # fmt: skip
    assert [c.nbytes >= COUNT * 4 for c in report.changes] == [True] * 3 and report.unused == ()
    assert [f for f in milblob.check(target) if f.severity == "error"] == []
    assert left(tmp_path) == []
    values = milblob.load(target, constants=True)
    assert values["gamma"].tolist() == [1.0] * COUNT
    if output:
        assert files_of(package) == before
    with milblob.open(target) as model:  # protobuf reads the new Program, and finds the operations in order
        ops = [
            (op.type, op.outputs[0].name)
            for op in model.program.functions["main"].block_specializations["CoreML8"].operations
        ]
    assert [name for kind, name in ops if kind == "const"] == ["gamma", "beta", "beta_2", "beta_3"]
    milblob.refit(target, {"beta_3": new[0]})  # and it can be refitted again
    assert [a.tobytes() for a in read_by(target)] == [new[0].tobytes(), new[1].tobytes(), new[0].tobytes()]


def test_equal_arrays_for_one_constant_are_stored_once(tmp_path):
    package = norms(tmp_path)
    values = betas(1)[0]
    given = {"a": values, "b": values.copy(), "c": values.copy()}
    for unshare in (False, True):
        for mapping in (
            {"a": "beta@ln0", "b": "beta@ln1.beta", "c": "beta@ln2"},
            {"a": "beta", "b": "beta@ln1", "c": None},
            {"a": ["beta@ln0", "beta@ln1", "beta@ln2"], "b": None, "c": None},
        ):
            report = milblob.refit(package, given, mapping=mapping, unshare=unshare)
            assert all(c.name == "beta" and not c.unshared for c in report.changes)
            assert set(given) == {c.given for c in report.changes} | set(report.unused)
    assert [a.tobytes() for a in read_by(package)] == [values.tobytes()] * 3
    with milblob.open(package, constants=True) as model:
        assert sum(t.op == "const" and t.mil_dtype is milblob.DType.FLOAT32 for t in model.values()) == 2


def test_some_readers(tmp_path):
    """One operation gets its own values, the others keep the old ones; or one array is for all that are not named."""
    package, (new, rest) = norms(tmp_path, nested=True), betas(2)
    names = ("ln0", "ln1", "ln2", "ln3")
    with pytest.raises(
        ValueError, match=r"beta: expected an array for all that read it, ln0 \(layer_norm, beta\), .* got one for some"
    ):
        milblob.refit(package, {"b": new}, mapping={"b": "beta@ln3"})
    milblob.refit(package, {"b": new}, mapping={"b": "beta@ln3"}, unshare=True)
    zeros = np.zeros(COUNT, np.float32).tobytes()
    assert [a.tobytes() for a in read_by(package, names)] == [zeros, zeros, zeros, new.tobytes()]
    milblob.refit(package, {"b": new, "r": rest}, mapping={"b": "beta@ln1", "r": "beta"}, unshare=True)
    expected = [rest.tobytes(), new.tobytes(), rest.tobytes(), new.tobytes()]
    assert [a.tobytes() for a in read_by(package, names)] == expected


@pytest.mark.parametrize(
    "mapping, words",
    [
        ({"a": "beta", "b": "beta"}, r"beta: expected to know which operation reads which of a, b; map each to beta@OPERATION, which is read by ln0 \(layer_norm, beta\)"),
        ({"a": "beta@ln0", "b": "beta@ln0"}, "beta: expected one array for .*, got a, b"),
        ({"a": "beta@none", "b": None}, r"operation that reads beta: expected one of ln0 \(layer_norm, beta\), .*, got 'none'"),
        ({"a": "beta@ln0.gamma", "b": None}, "operation that reads beta: expected one of .*, got 'ln0.gamma'"),
        ({"a": "bet@ln0", "b": None}, ".* has no weight 'bet@ln0'"),
    ],
)  # fmt: skip
def test_an_ambiguous_mapping_is_refused(tmp_path, mapping, words):
    package, (a, b) = norms(tmp_path), betas(2)
    before = files_of(package)
    with pytest.raises((ValueError, KeyError), match=words):
        milblob.refit(package, {"a": a, "b": b}, mapping=mapping, unshare=True)
    assert files_of(package) == before and left(tmp_path) == []


def test_an_array_that_no_operation_would_read_is_refused(tmp_path):
    package, new = norms(tmp_path), betas(4)
    given = dict(zip("abcd", new, strict=True))
    mapping = {"a": "beta@ln0", "b": "beta@ln1", "c": "beta@ln2", "d": "beta"}
    with pytest.raises(ValueError, match="beta: expected an operation to read d, got another array for each"):
        milblob.refit(package, given, mapping=mapping, unshare=True)


def test_records_of_two_functions(tmp_path):
    """Tied weights: two functions refer to the same records."""
    package = functions_package(tmp_path)
    old = milblob.load(package)
    new = {name: RANDOM.normal(size=values.shape).astype(values.dtype) for name, values in old.items()}
    before = files_of(package)
    with pytest.raises(
        ValueError, match=r"first/w: expected new values for second/w too, .*; unshare=True \(--unshare\)"
    ):
        milblob.refit(package, {"first/w": new["first/w"]})
    with pytest.raises(
        ValueError, match="first/w: expected equal values for second/w, which is the same blob, got others; unshare"
    ):
        milblob.refit(package, new)
    assert files_of(package) == before
    report = milblob.refit(package, {"first/w": new["first/w"]}, unshare=True)
    assert [(c.name, c.unshared) for c in report.changes] == [("first/w", "second/w")]
    after = milblob.load(package)
    assert after["first/w"].tobytes() == new["first/w"].tobytes()
    assert after["second/w"].tobytes() == old["second/w"].tobytes()
    milblob.refit(package, new, unshare=True)
    assert {n: v.tobytes() for n, v in milblob.load(package).items()} == {n: v.tobytes() for n, v in new.items()}
    (file,) = model_directory(package).rglob("weight.bin")
    with milblob.BlobReader(file) as blobs:  # the second time each had a record of its own
        assert len(blobs) == 2
    assert [f for f in milblob.check(package) if f.severity == "error"] == []


def test_an_array_that_does_not_fit_is_one_problem(tmp_path):
    """Where its bytes are needed twice: of a value in the Program for its length, of a shared record for comparison."""
    package = norms(tmp_path / "a", blob=False)
    with pytest.raises(OverflowError, match="^beta: element 0: expected at most"):
        milblob.refit(package, {"beta": np.full(COUNT, 1e300)}, cast=True)
    package = functions_package(tmp_path)
    new = {name: values.astype(np.float64) for name, values in milblob.load(package).items()}
    new["second/w"] = new["second/w"] + 1e300
    with pytest.raises(OverflowError, match="^second/w: element 0: expected at most"):
        milblob.refit(package, new, cast=True, unshare=True)


def functions_package(folder):
    path = folder / "made.bin"
    with milblob.BlobWriter(path) as blobs:
        offset = blobs.write(RANDOM.normal(size=(4, 30)).astype(np.float16))
    data = path.read_bytes()
    path.unlink()
    program, blocks = new_program("first", "second")
    for name, block in zip(("first", "second"), blocks, strict=True):
        set_type(program.functions[name].inputs.add(name="x").type, 10, (30,))
        op = block.operations.add(type="const")
        value = op.attributes["val"]
        set_type(value.type, 10, (4, 30))
        set_type(op.outputs.add(name="w").type, 10, (4, 30))
        value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/weights/weight.bin", offset
        made = add_op(block, "linear", "y", shape=(4,), x="x", weight="w")
        made.outputs[0].type.tensorType.dataType = 10
    return write_package(folder, as_model(program), {"weight.bin": data})


def test_command(tmp_path, capsys):
    package, new = norms(tmp_path), betas()
    np.savez(tmp_path / "w.npz", a=new[0], b=new[1], c=new[2], d=new[2])
    (tmp_path / "m.txt").write_text("a=beta@ln0\nb=beta@ln1\n")
    argv = ["refit", str(package), str(tmp_path / "w.npz"), "--mapping", str(tmp_path / "m.txt"), "--map", "c=beta@ln2"]
    argv += ["-k", "beta"]
    assert main(argv) == 2
    assert "(--unshare) makes a constant of its own for each" in capsys.readouterr().err
    assert main([*argv, "--unshare", "-v"]) == 0
    err = capsys.readouterr().err
    assert "milblob: beta_2 float32 [24] <- b, apart from beta\n" in err
    assert "3 weights, 288 B, the model file and its weights rewritten; 2 weights stored apart\n" in err
    assert err.endswith("milblob: 1 array not used: d\n")
    assert [a.tobytes() for a in read_by(package)] == [a.tobytes() for a in new]
    argv = [
        "refit",
        str(package),
        str(tmp_path / "w.npz"),
        "--map",
        "a=beta",
        "--map",
        "a=gamma",
        "-k",
        "beta",
        "-k",
        "gamma",
    ]
    assert main([*argv, "--json"]) == 0  # an array that is named twice goes to both
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [row["name"] for row in document["tensors"]] == ["beta", "gamma"] and document["unused"] == ["b", "c", "d"]
    assert err == ""
    assert main([*argv, "-q"]) == 0
    assert capsys.readouterr() == ("", "milblob: 3 arrays not used\n")


# ----------------------------------------------------------------------------------------------------------- coremltools


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_layer_norms_of_coremltools(tmp_path, precision):
    """After `--unshare` every layer norm reads what a fresh conversion of the fine-tuned network gives it."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil import Builder as mb

    from coremltools_view import load_pymil

    count, layers = 256, 4

    def save(path, gammas, betas):
        @mb.program(input_specs=[mb.TensorSpec(shape=(1, 4, count))], opset_version=ct.target.iOS17)
        def network(x):
            for number, (gamma, beta) in enumerate(zip(gammas, betas, strict=True)):
                x = mb.layer_norm(x=x, axes=[-1], gamma=gamma, beta=beta, epsilon=1e-5, name=f"ln{number}")
            return x

        exact = ct.precision.FLOAT32 if precision == "float32" else ct.precision.FLOAT16
        ct.convert(network, compute_precision=exact, minimum_deployment_target=ct.target.iOS17).save(str(path))

    def read(path):
        found = []
        for function in load_pymil(path).functions.values():
            found += [(op.gamma.val, op.beta.val) for op in function.operations if op.op_type == "layer_norm"]
        assert len(found) == layers
        return [tuple(values.tobytes() for values in pair) for pair in found]

    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    package, fresh = tmp_path / "base.mlpackage", tmp_path / "fresh.mlpackage"
    save(package, [ones] * layers, [zeros] * layers)
    gammas = [1 + RANDOM.normal(size=count).astype(np.float32) / 8 for _ in range(layers)]
    new = [RANDOM.normal(size=count).astype(np.float32) for _ in range(layers)]
    save(fresh, gammas, new)
    given, mapping = {}, {}
    with milblob.open(package) as model:
        assert len(model) == 2  # coremltools stores each once
        for name, tensor in model.items():
            arrays = gammas if tensor.consumers[0].parameter == "gamma" else new
            for number, use in enumerate(tensor.consumers):
                given[f"{number}.{use.parameter}"] = arrays[number]
                mapping[f"{number}.{use.parameter}"] = f"{name}@{use.reader.name}"
    with pytest.raises(ValueError, match="unshare"):
        milblob.refit(package, given, mapping=mapping, cast=True)
    report = milblob.refit(package, given, mapping=mapping, cast=True, unshare=True)
    assert len(report.changes) == 2 * layers and sum(bool(c.unshared) for c in report.changes) == 2 * layers - 2
    assert read(package) == read(fresh)
    assert [f for f in milblob.check(package) if f.severity == "error"] == []


@pytest.mark.parametrize("case", ["functions", "opset_ios16_fp16"])
def test_compiled_models(tmp_path, case):
    """Their text refers to the new records, as a package does."""
    import shutil

    from paths import DATA
    from text_models import differences

    package = shutil.copytree(DATA / case / "model.mlpackage", tmp_path / "m.mlpackage")

    path = shutil.copytree(DATA / case / "model.mlmodelc", tmp_path / "m.mlmodelc")
    values = milblob.load(path)
    name = next(n for n, v in values.items() if v.dtype.kind == "f")
    with milblob.open(path) as model:
        users = [n for n, t in model.items() if t.is_blob and t.offset == model[name].offset]
        use = model[name].consumers[0].reader.name
    new = values[name] + 1
    for model in (path, package):
        milblob.refit(model, {"a": new}, mapping={"a": f"{name}@{use}"}, unshare=True)
    assert differences(path, package) == [] and left(tmp_path) == []
    with milblob.open(path) as model:
        shared = [n for n in users if model[n].offset == model[name].offset]
    assert milblob.load(path)[name].tobytes() == new.tobytes() and shared == [name]
    assert all(milblob.load(path)[n].tobytes() == values[n].tobytes() for n in users if n != name)
    milblob.refit(path, dict.fromkeys(users, new), unshare=True)
    assert all(milblob.load(path)[n].tobytes() == new.tobytes() for n in users)
