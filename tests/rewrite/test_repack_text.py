"""Compiled models are rewritten as packages are: the text says what the Program of the package does."""

import pathlib
import shutil

import numpy as np
import pytest

import milblob
from matrix import every
from milblob.cli import main
from paths import DATA, SAMPLES
from repacking import copy_of, findings, fixture_path, references, tree, values, weight_file_names
from text_models import FEATURES, compiled_of, differences, package_of, records_of
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

TWINS = sorted(path.parent for path in DATA.glob("*/model.mlmodelc") if (path.parent / "model.mlpackage").is_dir())
OPTIONS = {
    "cast down": {"cast": "float16", "overflow": "inf"},
    "cast up": {"cast": "float32"},
    "cast one": {"cast": "bfloat16", "select": lambda name: name.endswith("1")},
    "externalize": {"externalize": 1},
    "externalize and cast": {"externalize": True, "cast": "float16", "overflow": "inf", "dedupe": True},
    "inline": {"inline": 1 << 40},
    "inline some and cast": {"inline": 100, "cast": {"float16": "float32"}},
    "decompress": {"decompress": True},
    "decompress and inline": {"decompress": True, "inline": 1 << 40},
    "layout": {"dedupe": True, "gc": True, "align": 4096, "split": "function"},
    "merge": {"merge": True},
}


def outcome(function, *arguments, **options):
    """What a call raises, or None."""
    try:
        function(*arguments, **options)
    except (milblob.MilblobError, ValueError, OverflowError) as error:
        return type(error), str(error).split(" in ")[0].split(" (file")[0]
    return None


@pytest.mark.parametrize("case", some(TWINS, 5), ids=lambda path: path.name)
def test_a_package_and_its_compiled_model_become_the_same(tmp_path, case):
    before = differences(case / "model.mlpackage", case / "model.mlmodelc")  # in `states` the order of inputs
    assert before == ([("Program", "")] if case.name == "states" else [])

    def same(name):
        package, compiled = tmp_path / f"{name}.mlpackage", tmp_path / f"{name}.mlmodelc"
        first = outcome(milblob.repack, case / "model.mlpackage", package, **OPTIONS[name])
        second = outcome(milblob.repack, case / "model.mlmodelc", compiled, **OPTIONS[name])
        assert (first is None) == (second is None) and (first or [None])[0] == (second or [None])[0]
        if first is not None:
            return
        found = differences(package, compiled)
        if case.name == "pipeline" and name == "merge":  # each model of a compiled one has a weight file of its own
            assert {kind for kind, _ in found} == {"Program"}
        else:
            assert found == before and records_of(package) == records_of(compiled)

    every(same, OPTIONS)


@pytest.mark.parametrize(
    "name", ["control_flow", "lists", "functions", "wide_integers", "constexpr_ios18", "quant_int8"]
)
def test_texts_that_milblob_wrote(tmp_path, name):
    source = fixture_path(name, "model.mlpackage")
    compiled = compiled_of(source, tmp_path)

    def same(option):
        package, target = tmp_path / f"{option}.mlpackage", tmp_path / f"{option}.mlmodelc"
        first = outcome(milblob.repack, source, package, **OPTIONS[option])
        assert first == outcome(milblob.repack, compiled, target, **OPTIONS[option])
        assert first is not None or differences(package, target) == []

    every(same, OPTIONS)


@pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no models by other people beside the repository: only our own are tested"
)
@pytest.mark.parametrize("sample", [
    "tmasolo0+MacOS_Voice_Input/silero_vad.mlmodelc",
    "FluidInference+FluidAudio/TokenDurationPrediction.mlmodelc",
    "apple+coremltools/add_model.mlmodelc",
])  # fmt: skip
def test_samples(tmp_path, sample):
    """What Apple's compiler wrote, rewritten, is what the package with the same Program becomes."""
    package = package_of(SAMPLES / sample, tmp_path)

    def same(option):
        first, second = tmp_path / f"{option}.mlpackage", tmp_path / f"{option}.mlmodelc"
        failed = outcome(milblob.repack, package, first, **OPTIONS[option])
        assert failed == outcome(milblob.repack, SAMPLES / sample, second, **OPTIONS[option])
        if failed is not None and option == "cast one":  # no name of these ends so
            assert "select: no tensor" in failed[1]
            return
        if failed is not None:  # the LSTM of a model for iOS 15 wants its weights of one dtype
            assert "silero" in sample and "cast" in option and "which its type follows from" in failed[1]
            return
        assert differences(first, second) == [] and records_of(first) == records_of(second)
        before, after = ((path / "model.mil").read_bytes() for path in (SAMPLES / sample, second))
        assert lines_that_stay(before, after)

    every(same, OPTIONS)


@pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no models by other people beside the repository: only our own are tested"
)
def test_values_of_a_large_sample(tmp_path):
    """No weights are beside this text of 2,971 operations: what stands in it goes to a weight file."""
    sample = SAMPLES / "FluidInference+FluidAudio/streaming_encoder.mlmodelc"
    text = (sample / "model.mil").read_text()
    compiled = tmp_path / "m.mlmodelc"
    compiled.mkdir()
    path = compiled / "model.mil"
    lines = [line for line in text.splitlines(keepends=True) if "BLOBFILE" not in line]
    path.write_text("".join(lines))
    target, package = tmp_path / "out.mlmodelc", tmp_path / "out.mlpackage"
    milblob.repack(compiled, target, externalize=1)
    milblob.repack(package_of(compiled, tmp_path), package, externalize=1)
    assert differences(target, package) == [] and records_of(target) == records_of(package) != []
    assert lines_that_stay(path.read_bytes(), (target / "model.mil").read_bytes())


def lines_that_stay(before, after):
    """Whether the lines with no constant in them are the same, in the same order."""

    def others(text):
        return [line for line in text.split(b"\n") if b"= const" not in line]

    return others(before) == others(after)


# ----------------------------------------------------------------------------------------------------- what stays


def test_only_changed_parts_are_rewritten(tmp_path):
    """One weight of a text that is laid out by hand."""
    source, target = tmp_path / "m.mlmodelc", tmp_path / "out.mlmodelc"
    source.mkdir()
    text = (
        b'program(1.3)\r\n[note=string("a")]{func   main<ios18>( tensor<fp32,[2]>x ) {\r\n'
        b'\ttensor<fp32,[2, 1]>w=const ( )[name=string("w"),val=tensor<fp32,[2,1]>([[1.5],[0x1p-2]])];\r\n'
        b'\ttensor<fp32,[2, 1]>v=const ( )[name=string("v"),val=tensor<fp32,[2,1]>([[1.5],[0x1p-2]])];\r\n'
        b'tensor<fp32,[2,2]> y = mul(x=x,\r\n  y=w ) [ name = string ( "y" ) ] ;}->( y,v );} '
    )
    (source / "model.mil").write_bytes(text)
    milblob.repack(source, target, externalize=1, select="v")
    v = (
        b'tensor<fp32, [2, 1]> v = const()[name = string("v"), val = tensor<fp32, [2, 1]>('
        b'BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];'
    )
    old = text[text.index(b"tensor<fp32,[2, 1]>v") : text.index(b"\r\ntensor<fp32,[2,2]> y")]
    assert (target / "model.mil").read_bytes() == text.replace(old, v)


@pytest.mark.parametrize("version", ["1.0", "1.3"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_references_move(tmp_path, line_end, version):
    source, target = tmp_path / "m.mlmodelc", tmp_path / "out.mlmodelc"
    (source / "weights").mkdir(parents=True)
    with milblob.BlobWriter(source / "weights/weight.bin") as blobs:
        offsets = [blobs.write(np.array(values, np.float32)) for values in ([1, 2], [3, 4], [1, 2])]
    string, number = ("tensor<string, []>", "tensor<uint64, []>") if version == "1.0" else ("string", "uint64")

    def line(name, at):
        blob = f'BLOBFILE(path = {string}("@model_path/weights/weight.bin"), offset = {number}({at}))'
        name_value = f'{string}("{name}")'
        return (
            f"            tensor<fp32, [2]> {name} = const()[name = {name_value}, val = tensor<fp32, [2]>({blob})];\n"
        )

    note = f'            {string} s = const()[name = {string}("s"), val = {string}("BLOBFILE(path = x")];\n'
    lines = "".join(line(f"w{i}", at) for i, at in enumerate([*offsets, offsets[1]]))
    head = f"program({version})\n{{\n    func main<ios17>() {{\n"
    text = f"{head}{note}{lines}        }} -> (w0);\n}}\n".replace("\n", line_end)
    (source / "model.mil").write_bytes(text.encode())
    (source / FEATURES).write_bytes(b"compiled")
    milblob.repack(source, target, dedupe=True, align=4096)
    assert values(target) == values(source) and (target / FEATURES).read_bytes() == b"compiled"
    assert len(set(references(target).values())) == 2 and references(target)["w2"] == references(target)["w0"]
    moved = (target / "model.mil").read_bytes().decode()
    for name, (_, at) in references(target).items():
        before = {f"w{i}": offset for i, offset in enumerate([*offsets, offsets[1]])}[name]
        text = text.replace(line(name, before)[:-1], line(name, at)[:-1])
    assert moved == text
    milblob.repack(source, source, split="function")
    assert weight_file_names(source) == [FEATURES, "weights/main-weight.bin"] and values(source) == values(target)


def test_a_path_that_needs_escapes(tmp_path):
    """Weight files with any name are read, and their references move."""
    source, target = tmp_path / "m.mlmodelc", tmp_path / "out.mlmodelc"
    (source / "weights").mkdir(parents=True)
    file = 'größe "1" BLOBFILE.bin'
    try:
        with milblob.BlobWriter(source / "weights" / file) as blobs:
            first, second = blobs.write(np.float32([1, 2])), blobs.write(np.float32([3, 4]))
    except OSError:
        pytest.skip("this file system refuses such names: text of that kind is not rewritten")
    quoted = file.replace('"', '\\"')
    constants = "".join(
        f"tensor<fp32, [2]> {name} = const()[val = tensor<fp32, [2]>(BLOBFILE("
        f'path = string("@model_path/weights/{quoted}"), offset = uint64({at})))];'
        for name, at in (("v", first), ("w", second))
    )
    (source / "model.mil").write_text(f"program(1.3){{func main<ios17>(){{{constants}}}->(v);}}", encoding="utf-8")
    milblob.repack(source, target, align=16384)
    assert values(target) == values(source) and {place[1] for place in references(target).values()} != {first, second}
    assert f"weights/{quoted}" in (target / "model.mil").read_text(encoding="utf-8")


def test_compiled_pipeline(tmp_path):
    source = fixture_path("pipeline", "model.mlmodelc")
    options = (
        {"split": "function"}, {"merge": True, "align": 16384}, {"split": 500, "canonical": True, "gc": True},
        {"inline": 1 << 40}, {"cast": {"float32": "float16"}, "externalize": 1},
    )  # fmt: skip
    for number, one in enumerate(options):
        target = tmp_path / f"{number}.mlmodelc"
        milblob.repack(source, target, **one)
        if "cast" not in one:
            assert values(target) == values(source)
        inside = {name.split("/")[0] for name in weight_file_names(target)}
        assert inside == (set() if "inline" in one else {"model0", "model1"})
        other = copy_of(target, tmp_path, f"copy-{number}.mlmodelc")
        milblob.repack(target, target, **one)
        if "cast" not in one:
            assert tree(target) == tree(other)
        assert findings(target) == findings(source)


def test_a_text_alone(tmp_path):
    """A model.mil that needs no weight file becomes one."""
    source, target = fixture_path("immediates", "model_1.0.mlmodelc/model.mil"), tmp_path / "out.mil"
    milblob.repack(source, target)
    assert target.read_bytes() == source.read_bytes()
    milblob.repack(source, target, cast={"float32": "float16"}, overflow="inf", force=True)
    package = tmp_path / "m.mlpackage"
    milblob.repack(
        package_of(source.parent, tmp_path, "s.mlpackage"), package, cast={"float32": "float16"}, overflow="inf"
    )
    assert differences(target, package) == []
    with pytest.raises(milblob.UnsupportedError, match=r"no place beside the result.*a \.mlmodelc has room for both"):
        milblob.repack(source, tmp_path / "more.mil", externalize=1)
    assert not (tmp_path / "more.mil").exists()


def test_a_listing_is_refused_as_a_model_to_rewrite(tmp_path):
    file, listing = tmp_path / "w.bin", tmp_path / "w.json"
    milblob.write_weights({"a": np.ones(3, np.float32)}, file, listing=listing)
    with pytest.raises(milblob.UnsupportedError, match="got a listing of one"):
        milblob.repack(listing, tmp_path / "out.json", align=4096)


def test_functions_of_a_compiled_text_are_not_reduced(tmp_path):
    """coremldata.bin names them too, and nobody but Apple's compiler can write it."""
    with pytest.raises(milblob.UnsupportedError, match=r"whose coremldata\.bin names its functions too"):
        milblob.repack(DATA / "functions/model.mlmodelc", tmp_path / "out.mlmodelc", functions="add")
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """What goes wrong while the text is put together is found before anything appears."""
    from milblob.program import text_edits

    source = copy_of(DATA / "opset_ios16_fp32/model.mlmodelc", tmp_path)
    before = tree(source)
    write_operations = text_edits.write_operations

    def wrong(view, operations, write, **options):
        write_operations(view, operations, lambda text: write(text.replace(b" = ", b"_ = ", 1)), **options)

    monkeypatch.setattr(text_edits, "write_operations", wrong)
    for target in (tmp_path / "out.mlmodelc", source):
        with pytest.raises(milblob.FormatError, match="expected the edited Program, got another one"):
            milblob.repack(source, target, cast="float16", overflow="inf")
    assert tree(source) == before and [path.name for path in tmp_path.iterdir()] == [source.name]


# --------------------------------------------------------------------------------------------------------- compress


@pytest.mark.parametrize("case", ["opset_ios16_fp16", "opset_ios17_fp32", "opset_ios18_fp16"])
@pytest.mark.parametrize("recipe", [milblob.Linear(), milblob.Palette(4), milblob.Prune(0.5)], ids=str)
def test_compress(tmp_path, case, recipe):
    package, compiled = tmp_path / "a.mlpackage", tmp_path / "a.mlmodelc"
    first = milblob.compress(DATA / case / "model.mlpackage", package, recipe, scope=milblob.Scope(min_size=0))
    second = milblob.compress(DATA / case / "model.mlmodelc", compiled, recipe, scope=milblob.Scope(min_size=0))
    assert [row.name for row in first.weights] == [row.name for row in second.weights] != []
    assert differences(package, compiled) == [] and records_of(package) == records_of(compiled)


# ------------------------------------------------------------------------------------------------------------ refit


def rolled(path):
    """New values for every immediate of a model that is no part of a compressed weight."""
    with milblob.open(path, constants=True) as model:
        found = {
            name: t.read()
            for name, t in model.items()
            if not (t.is_blob or t.compression) and t.mil_dtype is not milblob.DType.STRING
        }
    return {name: np.roll(array.reshape(-1), 1).reshape(array.shape).copy() for name, array in found.items()}


@pytest.mark.parametrize(
    "case", some([case for case in TWINS if rolled(case / "model.mlmodelc")], 5), ids=lambda path: path.name
)
def test_values_in_text_are_replaced(tmp_path, case):
    package, compiled = (copy_of(case / f"model.{kind}", tmp_path) for kind in ("mlpackage", "mlmodelc"))
    new, before = rolled(package), differences(package, compiled)
    for change in (assigned, milblob.refit):
        change(package, new)
        change(compiled, new)
        assert differences(package, compiled) == before
        with milblob.open(compiled, constants=True, stored=True) as model:
            assert all(model[name].read().tobytes() == array.tobytes() for name, array in new.items())
        new = rolled(package)


def assigned(path, new):
    with milblob.open(path, "r+", constants=True, stored=True) as model:
        for name, array in new.items():
            model[name] = array


def test_refit_of_text_to_another_place(tmp_path):
    source, target = DATA / "immediates/model_1.0.mlmodelc", tmp_path / "out.mlmodelc"
    new, before = rolled(source), tree(source)
    report = milblob.refit(source, new, destination=target)
    assert not any(change.in_place for change in report.changes) and tree(source) == before
    with milblob.open(target, constants=True) as model:
        assert all(model[name].read().tobytes() == array.tobytes() for name, array in new.items())
    same = pathlib.Path(shutil.copytree(source, tmp_path / "same.mlmodelc"))
    milblob.refit(same, new)
    assert tree(same) == tree(target)


@pytest.mark.parametrize("case", ["quant_int8", "palette_4bit", "sparse", "constexpr_ios18"])
def test_compressed_weights_take_floats(tmp_path, case):
    """Parts that stand in the text get new values too."""
    inline = {kind: tmp_path / f"m.{kind}" for kind in ("mlpackage", "mlmodelc")}
    with milblob.open(DATA / case / "model.mlpackage") as model:
        new = {
            name: t.read() * 0.5
            for name, t in model.items()
            if t.compression and t.mil_dtype.name in ("FLOAT16", "FLOAT32")
        }
    assert new
    done = []
    for kind, path in inline.items():
        milblob.repack(DATA / case / f"model.{kind}", path, inline=1 << 40)
        done += [outcome(milblob.refit, path, new, requantize=requantize) for requantize in ("keep", "fit")]
    assert done[:2] == done[2:] and differences(*inline.values()) == []


def test_the_metadata_of_metadata_json(tmp_path, capsys):
    """It is copied, and what it says of dtypes and operations may be of the model before: that is said."""
    source = copy_of(DATA / "opset_ios16_fp32/model.mlmodelc", tmp_path, "m.mlmodelc")
    described = b'[{"storagePrecision": "Float32", "mlProgramOperationTypeHistogram": {"Ios16.conv": 2}}]'
    (source / "metadata.json").write_bytes(described)
    target, options = tmp_path / "out.mlmodelc", {"force": True}
    report = milblob.repack(source, target, cast="float16", **options)
    both = ("metadata.json: storagePrecision", "metadata.json: mlProgramOperationTypeHistogram")
    assert report.stale == both and report.to_dict()["stale"] == list(both)
    assert (target / "metadata.json").read_bytes() == described
    assert milblob.repack(source, target, dedupe=True, externalize=1, **options).stale == ()
    for other in (b"{}", b"[3]", b"not JSON", b'[{"storagePrecision": null}]'):
        (source / "metadata.json").write_bytes(other)
        stale = milblob.repack(source, target, cast="float16", **options).stale
        assert stale == (both[:1] if b"storage" in other else ())
    assert main(["repack", str(source), "-o", str(target), "--cast", "float16", "--force"]) == 0
    assert "copied, and of the model before: metadata.json: storagePrecision" in capsys.readouterr().err
    (source / "metadata.json").write_bytes(described)
    assert main(["compress", str(source), "-o", str(target), "--int8", "--min-size", "0", "--force"]) == 0
    assert f"copied, and of the model before: {', '.join(both)}" in capsys.readouterr().err
    compressed = tmp_path / "compressed.mlmodelc"
    report = milblob.compress(source, compressed, milblob.Linear(), scope=milblob.Scope(min_size=0))
    assert report.stale == both and report.to_dict()["stale"] == list(both)
    assert milblob.repack(compressed, target, decompress=True, **options).stale == both
