"""Merged packages: every function as it was, every distinct blob once, and refusals by name."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

import milblob
import reference
from hostile_bytes import FLOATS, blob_value, const, field, immediate, tensor_type, write_package
from merging import FILE, UNKNOWN, function, package_of, weights_of
from milblob.cli import main
from milblob.program import schema
from paths import DATA
from progress_rows import steps
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

IOS18 = [
    "constexpr_ios18", "functions", "opset_ios18_fp16", "opset_ios18_fp32", "palette_grouped", "palette_scaled",
    "quant_int4_block", "sparse_palette", "sparse_quantized", "sparse_uint1", "states", "wide_integers",
]  # fmt: skip


def spec_of(package):
    return schema.parse("Model", (package / "Data/com.apple.CoreML/model.mlmodel").read_bytes())


def blob_of(package):
    return (package / "Data/com.apple.CoreML/weights/weight.bin").read_bytes()


A = [("FLOAT32", [1.0] * 20), ("FLOAT16", list(range(30))), ("INT4", [1, -2, 3] * 5)]
B = [("FLOAT16", list(range(30))), ("FLOAT32", [2.0] * 20), ("INT4", [1, -2, 3] * 5)]


@pytest.fixture
def pair(tmp_path):
    return package_of(tmp_path / "first", A), package_of(tmp_path / "second", B)


# --------------------------------------------------------------------------------------------------------------- result


def test_two_functions_share_what_is_equal(pair, tmp_path):
    target = tmp_path / "m.mlpackage"
    merged = milblob.merge_functions(pair, target)
    assert merged.functions == (
        milblob.MergedFunction("first", str(pair[0]), "main"),
        milblob.MergedFunction("second", str(pair[1]), "main"),
    )
    assert (merged.path, merged.default, merged.blob_count) == (str(target), "first", 4)
    assert (merged.nbytes, merged.shared_nbytes) == (80 + 60 + 8 + 80, 60 + 8)
    assert blob_of(target) == reference.write_blobs([*A, B[1]])[0]
    with milblob.open(target) as opened:
        for name, path in (("first", pair[0]), ("second", pair[1])):
            for tensor_name, values in milblob.load(path).items():
                assert np.array_equal(opened[f"{name}/{tensor_name}"].read(), values)
        assert opened["first/w1"].offset == opened["second/w0"].offset
        assert opened["first/w2"].offset == opened["second/w2"].offset
    assert list(milblob.check(target)) == []
    assert sorted(os.listdir(tmp_path)) == ["first", "first.mlpackage", "m.mlpackage", "second", "second.mlpackage"]


def expected_spec(package, names, merged):
    """The source's functions and descriptions under their new names, its references led to the merged weight file."""
    model = spec_of(package)
    places = {t.name: t.offset for t in merged.values()}
    functions = {}
    for name, new in names.items():
        function = functions[new] = schema.message_class("Function")()
        function.CopyFrom(model.mlProgram.functions[name])
        for op in function.block_specializations["CoreML8"].operations:
            for value in op.attributes.values():
                if value.HasField("blobFileValue"):
                    value.blobFileValue.offset = places[f"{new}/{op.outputs[0].name}"]
    return functions


def test_functions_are_taken_over_as_they_are(pair, tmp_path):
    """Unknown fields, immediates and everything else; only names and places change."""
    target = tmp_path / "m.mlpackage"
    both = package_of(
        tmp_path / "both", B, const(immediate(11, [10], FLOATS), "inline"), functions=("beta", "alpha"),
        description=field(20, field(1, "alpha") + field(2, field(1, "xa")) + field(9, "kept")) + field(20, field(1, "beta"))
        + field(21, "beta"),
    )  # fmt: skip
    merged = milblob.merge_functions([pair[0], (both, {"alpha": "prefill"})], target, default="prefill")
    assert [f.name for f in merged.functions] == ["main", "beta", "prefill"]
    found = spec_of(target)
    with milblob.open(target) as opened:
        expected = expected_spec(pair[0], {"main": "main"}, opened)
        expected |= expected_spec(both, {"beta": "beta", "alpha": "prefill"}, opened)
    assert dict(found.mlProgram.functions) == expected
    text = (target / "Data/com.apple.CoreML/model.mlmodel").read_bytes()
    assert text.count(UNKNOWN) == 3 + 3 * 3  # of every function, and of every reference in them
    assert found.specificationVersion == 9 and found.mlProgram.version == 1
    assert found.description.defaultFunctionName == "prefill"
    assert [f.name for f in found.description.functions] == ["main", "prefill", "beta"]
    main, prefill, _ = found.description.functions
    assert [f.name for f in main.input] == ["x"] and [f.name for f in main.output] == ["y"]
    assert [f.name for f in prefill.input] == ["xa"]
    assert field(9, "kept") in text
    assert not found.description.input and not found.description.output


def test_description_of_a_single_function(tmp_path):
    """Its own fields move to that of the function: inputs, outputs, states, and what a classifier predicts."""
    description = (
        field(1, field(1, "x")) + field(1, field(1, "x2")) + field(10, field(1, "y")) + field(11, "label")
        + field(12, "probabilities") + field(13, field(1, "state")) + field(100, field(3, "author"))
    )  # fmt: skip
    first = package_of(tmp_path / "first", A, description=description, spec_version=10)
    second = package_of(tmp_path / "second", A, description=field(100, field(3, "somebody else")))
    milblob.merge_functions([second, first], tmp_path / "m.mlpackage")
    found = spec_of(tmp_path / "m.mlpackage")
    assert found.specificationVersion == 10
    assert found.description.metadata.author == "somebody else"
    assert found.description.defaultFunctionName == "second"
    (_, described) = found.description.functions
    assert described.name == "first" and [f.name for f in described.input] == ["x", "x2"]
    assert [f.name for f in described.output] == ["y"] and [f.name for f in described.state] == ["state"]
    assert (described.predictedFeatureName, described.predictedProbabilitiesName) == ("label", "probabilities")


def test_attributes_and_text_of_the_program(tmp_path):
    """Of each name the first; a value in a weight file among them moves too."""

    def attribute(key, value):
        return field(4, field(1, key) + field(2, value))

    text = immediate(2, [], field(4, field(1, "9.0")))
    first = package_of(tmp_path / "first", A, more=attribute("buildInfo", text))
    more = (
        attribute("buildInfo", blob_value(11, [20], FILE, 64))
        + attribute("other", blob_value(11, [20], FILE, 64))
        + field(3, "doc")
    )
    second = package_of(tmp_path / "second", A, more=more)
    milblob.merge_functions([first, second], tmp_path / "m.mlpackage")
    program = spec_of(tmp_path / "m.mlpackage").mlProgram
    assert sorted(program.attributes) == ["buildInfo", "other"] and program.docString == "doc"
    assert program.attributes["buildInfo"].immediateValue.tensor.strings.values[:] == ["9.0"]
    with milblob.open(tmp_path / "m.mlpackage", constants=True) as opened:
        assert opened["@program.other"].read().tolist() == [1.0] * 20


def test_equality_is_exact(tmp_path):
    """One bit apart, another dtype, another count: other blobs. Bytes that have no meaning make no difference."""
    base = list(range(64))
    records = [
        ("UINT8", base),
        ("UINT8", [*base[:-1], 62]),
        ("INT8", base),
        ("UINT4", [1, 2, 3]),
        ("UINT4", [1, 2, 3, 0]),
    ]
    first = package_of(tmp_path / "first", records)
    second = package_of(tmp_path / "second", [("UINT8", base)] * 5 + [("UINT8", [*base[:20], 0, *base[21:]])])
    weights = second / "Data/com.apple.CoreML/weights/weight.bin"
    data = bytearray(weights.read_bytes())
    data[64 + 24 : 128] = b"\xaa" * 40  # padding and reserved fields of the first record
    weights.write_bytes(data)
    merged = milblob.merge_functions([first, second], tmp_path / "m.mlpackage")
    assert merged.blob_count == 6
    assert (
        blob_of(tmp_path / "m.mlpackage")
        == reference.write_blobs([*records, ("UINT8", [*base[:20], 0, *base[21:]])])[0]
    )
    for name, path in (("first", first), ("second", second)):
        with milblob.open(tmp_path / "m.mlpackage") as opened:
            for tensor_name, values in milblob.load(path).items():
                assert np.array_equal(opened[f"{name}/{tensor_name}"].read(), values)


def test_unreferenced_blobs_are_left_out(tmp_path):
    first = package_of(tmp_path / "first", A)
    weights = first / "Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(reference.write_blobs([*A, ("FLOAT32", [7.0] * 1000)])[0])
    merged = milblob.merge_functions([first], tmp_path / "m.mlpackage")
    assert blob_of(tmp_path / "m.mlpackage") == reference.write_blobs(A)[0]
    assert (merged.blob_count, merged.shared_nbytes, merged.default) == (3, 0, "main")


def test_without_blobs(tmp_path):
    first = package_of(tmp_path / "first", [], const(immediate(11, [10], FLOATS), "inline", tensor_type(11, [10])))
    merged = milblob.merge_functions([(first, "one"), (first, "two")], tmp_path / "m.mlpackage")
    assert (merged.blob_count, merged.nbytes) == (0, 0)
    assert list(milblob.load(tmp_path / "m.mlpackage")) == ["one/inline", "two/inline"]
    assert [f.severity for f in milblob.check(tmp_path / "m.mlpackage")] == ["note"]  # an empty weight file


def test_same_bytes_every_time(pair, tmp_path):
    """Also from another place, and in another process."""
    milblob.merge_functions(pair, tmp_path / "m.mlpackage")
    moved = [shutil.copytree(path, tmp_path / "elsewhere" / path.name) for path in pair]
    code = "import sys, milblob; milblob.merge_functions(sys.argv[1:-1], sys.argv[-1])"
    search = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run(
        [sys.executable, "-c", code, *moved, tmp_path / "n.mlpackage"],
        check=True,
        env={**os.environ, "PYTHONPATH": search},
    )

    def content(root):
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}

    assert content(tmp_path / "m.mlpackage") == content(tmp_path / "n.mlpackage")
    assert len(content(tmp_path / "m.mlpackage")) == 3


@pytest.mark.parametrize("name", IOS18)
@pytest.mark.sample(4)
def test_fixtures(name, tmp_path):
    """Models that coremltools made, merged with one that has all kinds of constants."""
    path, other = DATA / name / "model.mlpackage", DATA / "constexpr_ios18/model.mlpackage"
    renamed = {f: f"of_{f}" for f in milblob.open(path).functions}
    milblob.merge_functions([(path, renamed), (other, "other")], tmp_path / "m.mlpackage")
    findings = [f for f in milblob.check(tmp_path / "m.mlpackage") if f.severity != "note"]
    assert findings == [f for f in milblob.check(path) if f.severity != "note"] == []
    with milblob.open(tmp_path / "m.mlpackage", constants=True, stored=True) as merged:
        for source, names in ((path, renamed), (other, {"main": "other"})):
            with milblob.open(source, constants=True, stored=True) as opened:
                for old, new in names.items():
                    before, after = (
                        [t for t in m.values() if t.function == f] for m, f in ((opened, old), (merged, new))
                    )
                    assert len(before) == len(after) > 5
                    for a, b in zip(before, after, strict=True):
                        assert (b.mil_dtype, b.shape, b.op) == (a.mil_dtype, a.shape, a.op)
                        x, y = a.read(), b.read()
                        assert x.dtype == y.dtype and (x.tolist() if x.dtype == object else x.tobytes()) == (
                            y.tolist() if y.dtype == object else y.tobytes()
                        )


# ---------------------------------------------------------------------------------------------------------------- names


def names_of(sources, tmp_path, **options):
    merged = milblob.merge_functions(sources, tmp_path / "m.mlpackage", force=True, **options)
    assert [f.name for f in spec_of(tmp_path / "m.mlpackage").description.functions]
    return [f.name for f in merged.functions], merged.default


def test_names(tmp_path):
    odd = package_of(tmp_path / "2nd model-v1.0", A)
    several = package_of(tmp_path / "several", A, functions=("main", "prefill"))
    plain = package_of(tmp_path / "plain", A)
    assert names_of([plain], tmp_path) == (["main"], "main")
    assert names_of([plain, odd], tmp_path) == (["plain", "_2nd_model_v1_0"], "plain")
    assert names_of([several, plain], tmp_path) == (["several_main", "prefill", "plain"], "several_main")
    assert names_of([(plain, "prefill"), (several, {"prefill": "decode"})], tmp_path) == (
        ["prefill", "main", "decode"],
        "prefill",
    )
    assert names_of([(plain, "prefill"), several], tmp_path) == (["prefill", "main", "several_prefill"], "prefill")
    assert names_of([(plain, "a"), (plain, {"main": "b"})], tmp_path, default="b") == (["a", "b"], "b")


def refused(error, words, sources, tmp_path, **options):
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(error, match=words):
        milblob.merge_functions(sources, options.pop("target", tmp_path / "m.mlpackage"), **options)
    assert sorted(os.listdir(tmp_path)) == before


def test_names_that_cannot_be(pair, tmp_path):
    refused(milblob.ProgramError, "name of a function: expected another than 'x', which one of .*first.mlpackage has, got it again in .*second", [(pair[0], "x"), (pair[1], "x")], tmp_path)  # fmt: skip
    refused(milblob.ProgramError, "got it again", [pair[0], pair[0]], tmp_path)
    refused(
        milblob.ProgramError,
        "name of a function: expected letters, digits and _, got 'a/b'",
        [(pair[0], "a/b")],
        tmp_path,
    )
    refused(milblob.ProgramError, "expected letters, digits and _, got ''", [(pair[0], "")], tmp_path)
    refused(milblob.ProgramError, "function: expected one of main, got 'other'", [(pair[0], {"other": "x"})], tmp_path)
    refused(
        milblob.ProgramError,
        "default function: expected one of first, second, got 'main'",
        pair,
        tmp_path,
        default="main",
    )
    several = package_of(tmp_path / "several", A, functions=("main", "prefill"))
    refused(
        milblob.ProgramError,
        "name 'x': expected a model of one function, got main, prefill",
        [(several, "x")],
        tmp_path,
    )
    refused(ValueError, "sources: expected at least one model, got none", [], tmp_path)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_other_kinds_are_refused_by_name(pair, tmp_path):
    def other(words, path):
        refused(milblob.UnsupportedError, words, [pair[0], path], tmp_path)

    other("source: expected a single ML Program, got a pipeline in .*pipeline", DATA / "pipeline/model.mlpackage")
    other("source: expected a single ML Program, got a pipeline", DATA / "nested_pipeline/model.mlmodel")
    other("source: expected a .mlpackage, got a compiled model in .*mlmodelc", DATA / "functions/model.mlmodelc")
    other("source: expected a .mlpackage, got MIL text", DATA / "functions/model.mlmodelc/model.mil")
    other("source: expected a .mlpackage, got a weight file", pair[1] / "Data/com.apple.CoreML/weights/weight.bin")
    other("expected an ML Program or a pipeline of them, got a neuralNetwork", DATA / "neural_network/model.mlpackage")
    other("one piece, got one that was put together", DATA / "wire/split/model.mlmodel")
    other("one piece, got one that was put together", DATA / "wire/split_program/model.mlmodel")
    refused(FileNotFoundError, "nothing_here", [tmp_path / "nothing_here.mlpackage"], tmp_path)


def test_opsets(pair, tmp_path):
    old = DATA / "opset_ios17_fp16/model.mlpackage"
    words = r"opset of function 'main': expected CoreML8 \(iOS 18\) or later, .* got CoreML7; convert it for that target first in "
    refused(milblob.UnsupportedError, words, [pair[0], old], tmp_path)
    refused(
        milblob.UnsupportedError, "or later, .* got ios18", [package_of(tmp_path / "odd", A, opset="ios18")], tmp_path
    )
    new = package_of(tmp_path / "new", A, opset="CoreML9", spec_version=10)
    refused(
        milblob.UnsupportedError,
        "expected CoreML8 as in .*first.mlpackage, got CoreML9 in .*new",
        [*pair, new],
        tmp_path,
    )
    milblob.merge_functions([new], tmp_path / "m.mlpackage")
    assert spec_of(tmp_path / "m.mlpackage").specificationVersion == 10


def test_versions_of_programs(pair, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    path = write_package(folder, field(1, 9) + field(502, field(1, 2) + function("main")))
    refused(milblob.UnsupportedError, "version of the Programs: expected one, got 1, 2", [pair[0], path], tmp_path)


def test_functions_without_description(tmp_path):
    path = package_of(tmp_path / "p", A, functions=("a", "b"), description=field(20, field(1, "a")))
    refused(
        milblob.ProgramError,
        "description: expected one of every function, got none of b in .*p.mlpackage",
        [path],
        tmp_path,
    )
    path = package_of(tmp_path / "q", A, functions=())
    refused(milblob.ProgramError, "description: expected one of every function, got none of any", [path], tmp_path)


def test_broken_sources(pair, tmp_path):
    weights = pair[1] / "Data/com.apple.CoreML/weights/weight.bin"
    data = weights.read_bytes()
    weights.write_bytes(data[:100])
    refused(milblob.FormatError, "expected", pair, tmp_path)
    weights.unlink()
    refused(milblob.ResolveError, "expected at .* got no such file", pair, tmp_path)


# --------------------------------------------------------------------------------------------------------------- output


def test_where_the_output_may_go(pair, tmp_path):
    refused(ValueError, "expected a name that ends in .mlpackage", pair, tmp_path, target=tmp_path / "m.mlmodel")
    outside = "expected a place outside (of|the) models, got one (in|that holds|of them)"
    around = tmp_path / "around.mlpackage"
    shutil.copytree(pair[0], around / "inner.mlpackage")
    for place in (pair[1], pair[0] / "Data/x.mlpackage", around):
        refused(ValueError, outside, [*pair, around / "inner.mlpackage"], tmp_path, target=place, force=True)
    shutil.rmtree(around)
    (tmp_path / "link.mlpackage").symlink_to(pair[0])
    refused(
        ValueError,
        "expected a place outside the models",
        pair,
        tmp_path,
        target=tmp_path / "link.mlpackage",
        force=True,
    )
    (tmp_path / "notes.mlpackage").mkdir()
    (tmp_path / "notes.mlpackage/thesis.txt").write_text("mine")
    (tmp_path / "file.mlpackage").write_text("mine")
    for name in ("notes.mlpackage", "file.mlpackage"):
        refused(
            FileExistsError,
            "a .mlpackage to replace, got",
            pair,
            tmp_path,
            target=tmp_path / name,
            force=True,
        )
    assert (tmp_path / "notes.mlpackage/thesis.txt").read_text() == (tmp_path / "file.mlpackage").read_text() == "mine"
    refused(FileNotFoundError, "no/such, got none", pair, tmp_path, target=tmp_path / "no/such/m.mlpackage")


def test_progress(pair, tmp_path):
    """Each weight that is written, as its bytes are, and then the model file; the sum is what was announced."""
    rows = []
    target = tmp_path / "m.mlpackage"
    merged = milblob.merge_functions(pair, target, progress=lambda *row: rows.append(row))
    rows = steps(rows)
    assert [name for name, _, _ in rows][:4] == ["w0", "w1", "w2", "w1"]
    assert {name for name, _, _ in rows[4:]} == {"model.mlmodel"}
    spec = (target / "Data/com.apple.CoreML/model.mlmodel").stat().st_size
    assert {total for _, _, total in rows} == {merged.nbytes + spec} == {rows[-1][1]}
    assert [done for _, done, _ in rows] == sorted(done for _, done, _ in rows)

    def stop(*_):
        raise RuntimeError("enough")

    before = sorted(os.listdir(tmp_path))
    with pytest.raises(RuntimeError, match="enough"):
        milblob.merge_functions(pair, target, force=True, progress=stop)
    assert sorted(os.listdir(tmp_path)) == before and list(milblob.check(target)) == []


@pytest.mark.parametrize("changed", ["weights/weight.bin", "model.mlmodel"])
def test_a_source_that_changes_during_the_call(pair, tmp_path, changed):
    """Old and new would be mixed: nothing appears."""
    source = pair[1] / "Data/com.apple.CoreML" / changed

    def touch(name, done, total):
        if not done:  # it is planned
            return
        status = source.stat()
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))

    with pytest.raises(milblob.FormatError, match="expected the one that was planned for, unchanged"):
        milblob.merge_functions(pair, tmp_path / "m.mlpackage", progress=touch)
    assert not (tmp_path / "m.mlpackage").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_appears_at_the_destination_is_not_replaced(pair, force, tmp_path):
    """Finding equal weights may take long; what is there then is somebody's."""
    target = tmp_path / "merged.mlpackage"

    def appear(name, done, total):
        if name and not target.exists():
            target.mkdir()
            (target / "thesis.txt").write_text("mine")

    with pytest.raises(FileExistsError, match=r"merged\.mlpackage: expected "):
        milblob.merge_functions(pair, target, force=force, progress=appear)
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]


def test_force_replaces_a_package(pair, tmp_path):
    target = tmp_path / "m.mlpackage"
    milblob.merge_functions([pair[0]], target)
    refused(FileExistsError, r"already exists \(use force=True to replace it\)", pair, tmp_path)
    old = milblob.load(target)
    milblob.merge_functions(pair, target, force=True)
    assert old["w0"].tolist() == [1.0] * 20  # a view of what was replaced
    assert len(milblob.load(target)) == 6


@pytest.mark.parametrize("name", some(["pwritev", "pwrite", "fsync", "rename", "copy_file_range"], 5))
@pytest.mark.parametrize("nth", [1, 2, 3, 5])
def test_a_failure_leaves_nothing(name, nth, tmp_path, monkeypatch):
    """Each call that fails, at several places: no new package, no temporary name; a package that was there stays."""
    pair = package_of(tmp_path / "first", A), package_of(tmp_path / "second", B)
    with milblob.BlobWriter(
        pair[0] / "Data/com.apple.CoreML/weights/weight.bin"
    ) as weights:  # large enough to be copied
        weights.write_many([np.zeros(20, np.float32), np.zeros(30, np.float16)])
        large = weights.write(np.zeros(3_000_000, np.uint8))
    path = pair[0] / "Data/com.apple.CoreML/model.mlmodel"
    more = const(blob_value(31, [3_000_000], FILE, large), "large")
    path.write_bytes(field(1, 9) + field(502, field(1, 1) + function("main", *weights_of(A[:2])[1], more)))
    target = tmp_path / "m.mlpackage"
    milblob.merge_functions([pair[1]], target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    real, calls = getattr(os, name, None), []

    def fail(*arguments, **options):
        calls.append(arguments)
        if len(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, fail, raising=False)
    failed = False
    try:
        milblob.merge_functions(pair, target, force=True)
    except OSError as error:
        assert error.errno == errno.ENOSPC
        failed = True
    monkeypatch.undo()
    assert failed == (len(calls) >= nth)
    if failed:
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    else:
        assert len(milblob.load(target)) == 6
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith(".milblob")]


# --------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def cli(capsys):
    def run(*argv):
        status = main(["merge-functions", *map(str, argv)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_command(cli, pair, tmp_path):
    target = tmp_path / "m.mlpackage"
    status, out, err = cli(*pair, "-o", target)
    assert (status, out) == (0, "")
    assert err == f"milblob: 2 functions, 228 B of weights, 68 B shared, to {target}\n"
    assert cli(*pair, "-o", target) == (
        2,
        "",
        f"milblob: {target} already exists (use --force to replace it)\n",
    )
    status, out, err = cli(*pair, "-o", target, "--force", "-v", "--as", f"{pair[0]}=prefill", "--as", f"{pair[1]}:main=decode", "--default", "decode")  # fmt: skip
    assert (status, out) == (0, "")
    assert err.splitlines()[:2] == [
        f"milblob: prefill: main of {pair[0]}",
        f"milblob: decode (default): main of {pair[1]}",
    ]
    assert cli(*pair, "-o", target, "--force", "-q") == (0, "", "")
    status, out, err = cli(*pair, "-o", target, "--force", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "path": str(target),
        "functions": [{"name": p.stem, "source": str(p), "function": "main"} for p in pair],
        "default": "first", "blobs": 4, "nbytes": 228, "shared_nbytes": 68, "shared": [], "done": True,
    }  # fmt: skip
    assert milblob.merge_functions(pair, target, force=True).to_dict() == json.loads(out)
    assert cli(pair[0], "-o", target, "--force", "--as", "main=only")[0] == 0
    assert list(milblob.open(target).functions) == ["only"]


def test_command_of_wrong_names(cli, pair, tmp_path):
    def fails(words, *options):
        status, out, err = cli(*pair, "-o", tmp_path / "m.mlpackage", *options)
        assert (status, out) == (2, "") and err.count("\n") == 1
        assert err.startswith("milblob: ") and words in err, err

    fails("--as main: expected MODEL=NAME or [MODEL:]FUNCTION=NAME", "--as", "main")
    fails("--as =x: expected MODEL=NAME or [MODEL:]FUNCTION=NAME", "--as", "=x")
    words = f"--as main=x: expected MODEL=x, or MODEL:FUNCTION=x, with one of the models {pair[0]}, {pair[1]}, got main"
    fails(words, "--as", "main=x")
    fails(
        f"--as other.mlpackage:main=x: expected one of the models {pair[0]}, {pair[1]}, got other.mlpackage",
        "--as",
        "other.mlpackage:main=x",
    )
    fails("expected one name for each function, got another", "--as", f"{pair[0]}=x", "--as", f"{pair[0]}:main=y")
    fails("expected one name for each function, got another", "--as", f"{pair[0]}:main=x", "--as", f"{pair[0]}:main=y")
    fails("function: expected one of main, got 'other'", "--as", f"{pair[0]}:other=y")
    assert not (tmp_path / "m.mlpackage").exists()
    status, _, err = cli(DATA / "functions/model.mlmodelc", pair[0], "-o", tmp_path / "m.mlpackage")
    assert status == 2 and "expected a .mlpackage, got a compiled model" in err
    status, _, err = cli(pair[0], pair[0], "-o", tmp_path / "m.mlpackage", "--as", f"{pair[0]}=x")
    assert status == 2 and "expected a model that is given once, got 2" in err


@pytest.mark.parametrize("part", range(4))
def test_mutated_sources(part, pair, tmp_path):
    """A broken model merges to a package that opens, or ends in MilblobError; nothing is left behind."""
    rng = random.Random(part)
    path = pair[1] / "Data/com.apple.CoreML/model.mlmodel"
    good = path.read_bytes()
    done = 0
    for _ in range(sized(90, 150)):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 8, 10, 0x12, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        path.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(1, len(data))])])
        try:
            milblob.merge_functions([(pair[0], "one"), pair[1]], tmp_path / "m.mlpackage", force=True)
        except milblob.MilblobError:
            continue
        done += 1
        with milblob.open(tmp_path / "m.mlpackage") as opened:
            assert opened["one/w0"].read().tolist() == [1.0] * 20
            assert len(opened.functions) == 2
    assert done > 2
    assert sorted(os.listdir(tmp_path)) == ["first", "first.mlpackage", "m.mlpackage", "second", "second.mlpackage"]
