"""repack(dedupe="values"): weights of equal values in different forms take the smallest form that all readers accept."""

import os
import shutil
import sys

import numpy as np
import pytest

import milblob
from cases import DENSE_CASES, dense_rows
from dtype_values import assert_same
from paths import DATA
from peers import WITHOUT
from repacking import FILE, findings, measured_repack, record_values, tree
from text_models import compiled_of
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
from coremltools.converters.mil import Builder as mb  # noqa: E402

import equal_forms as forms  # noqa: E402
from compress_coremltools import decompressed, theirs  # noqa: E402
from coremltools_view import load_pymil, weights_of  # noqa: E402
from language_models import transformer  # noqa: E402


def shared_copy(source, target, **options):
    """Share; require a sound model of the same values, names and dense content hash."""
    report = milblob.repack(source, target, dedupe="values", **options)
    before, after = milblob.load(source), milblob.load(target)
    assert list(before) == list(after)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert all(before[name].dtype == after[name].dtype and before[name].shape == after[name].shape for name in before)
    assert findings(target) == []
    assert milblob.content_hash(source, dense=True).model == milblob.content_hash(target, dense=True).model
    return report


def ops(path):
    with milblob.open(path) as model:
        return {name: tensor.op for name, tensor in model.items()}


def file_nbytes(path):
    with milblob.BlobReader(path / FILE) as reader:
        return sum(record.nbytes for record in reader)


def assert_same_outputs(a, b, *functions):
    pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
    for function in functions or (None,):
        found = milblob.verify(a, b, function=function, runs=2, max_error=0)
        assert found.is_same and not any(one.differing for one in found.outputs)


# ------------------------------------------------------------------------------------------------------ forms of one matrix


@pytest.mark.parametrize(("zeros", "half", "smallest"), [
    (0.1, True, "constexpr_blockwise_shift_scale"), (0.8, True, "constexpr_sparse_to_dense"),
    pytest.param(0.1, False, "constexpr_blockwise_shift_scale", marks=pytest.mark.thorough),
    pytest.param(0.8, False, "constexpr_sparse_to_dense", marks=pytest.mark.thorough),
])  # fmt: skip
def test_all_forms_of_ios18_become_the_smallest(tmp_path, zeros, half, smallest):
    made = forms.ios18(forms.codes(zeros), half)
    source = forms.save_forms(tmp_path / "a.mlpackage", [made], half=half)
    expected = forms.dense(forms.codes(zeros), half)
    assert all(array.tobytes() == expected.tobytes() for array in milblob.load(source).values())
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert len(report.shared) == len(made) - 1
    assert {row.sqnr for row in report.shared} == {float("inf")} and {row.max_abs for row in report.shared} == {0.0}
    assert set(ops(tmp_path / "b.mlpackage").values()) == {smallest}
    with milblob.open(source) as model:
        least = min(tensor.nbytes for tensor in model.values())
        assert file_nbytes(tmp_path / "b.mlpackage") <= least  # a scale is in the Program
    assert_same_outputs(source, tmp_path / "b.mlpackage")
    loaded = ct.models.MLModel(
        str(shutil.copytree(tmp_path / "b.mlpackage", tmp_path / "c.mlpackage")), skip_model_load=True
    )
    assert loaded.get_spec().specificationVersion == 9


@pytest.mark.parametrize(("first", "second"), some(
    [("dense", b) for b in forms.ios18(forms.codes(0.5)) if b != "dense"]
    + [("quantized palette", "sparse palette"), ("sparse integers", "sparse palette")],
    named=[("dense", "quantized palette")],
))  # fmt: skip
def test_two_forms(tmp_path, first, second):
    """In each order; the other one's records are gone."""
    made = forms.ios18(forms.codes(0.5))
    for number, order in enumerate(((first, second), (second, first))):
        source = forms.save_forms(tmp_path / f"a{number}.mlpackage", [{form: made[form] for form in order}])
        target = tmp_path / f"b{number}.mlpackage"
        [row] = shared_copy(source, target).shared
        with milblob.open(source) as model:
            sizes = {tensor.name: tensor.nbytes for tensor in model.values()}
            assert sizes[row.reference] == min(sizes.values())
        assert file_nbytes(target) <= min(sizes.values())
        assert len(set(ops(target).values())) == 1
        assert_same_outputs(source, target)


@pytest.mark.parametrize("half", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("target", ["iOS16", pytest.param("iOS17", marks=pytest.mark.thorough)])
def test_forms_of_ios16(tmp_path, target, half):
    made = forms.ios16(forms.codes(0.3), half)
    source = forms.save_forms(tmp_path / "a.mlpackage", [made], target=getattr(ct.target, target), half=half)
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert len(report.shared) == len(made) - 1
    assert set(ops(tmp_path / "b.mlpackage").values()) == {"constexpr_lut_to_dense"}
    assert_same_outputs(source, tmp_path / "b.mlpackage")
    ct.models.MLModel(str(shutil.copytree(tmp_path / "b.mlpackage", tmp_path / "c.mlpackage")), skip_model_load=True)


@pytest.mark.parametrize("target", ["iOS16", pytest.param("iOS17", marks=pytest.mark.thorough), "iOS18"])
@pytest.mark.parametrize("order", [("dense", "float16"), ("float16", "dense")])
def test_dense_weights_take_the_form_of_a_constexpr_cast(tmp_path, target, order):
    values = forms.dense(forms.codes(0.3), False)
    made = {
        "dense": lambda name: mb.const(val=values, name=name),
        "float16": lambda name: mb.constexpr_cast(source_val=values.astype(np.float16), output_dtype="fp32", name=name),
    }
    some = [{form: made[form] for form in order}]
    source = forms.save_forms(tmp_path / "a.mlpackage", some, target=getattr(ct.target, target), half=False)
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert len(report.shared) == 1 and set(ops(tmp_path / "b.mlpackage").values()) == {"constexpr_cast"}
    assert_same_outputs(source, tmp_path / "b.mlpackage")
    weights = weights_of(load_pymil(tmp_path / "b.mlpackage"))
    found = [values for op, _, values in weights.values() if op == "constexpr_cast"]
    assert len(found) == 2 and all(np.array_equal(array, values) for array in found)


def test_other_matrices_are_kept(tmp_path):
    """Several matrices of one shape, one of which differs from another one in its last element."""
    first, third = forms.codes(0.2), forms.codes(0.2, seed=1)
    second = first.copy()
    second[-1, -1] += 1 if second[-1, -1] < 7 else -1
    matrices = [
        {name: forms.ios18(found)[name] for name in ("palette", "dense", "int8")} for found in (first, second, third)
    ]
    source = forms.save_forms(tmp_path / "a.mlpackage", matrices)
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert sorted((row.name[:2], row.reference[:2]) for row in report.shared) == [
        (f"w{i}",) * 2 for i in (0, 0, 1, 1, 2, 2)
    ]


# ------------------------------------------------------------------------------------------------------------------ readers


def test_an_operation_that_needs_a_const_keeps_the_dense_form(tmp_path):
    """non_zero infers its output from the values, which a constexpr operation has at run time only."""

    def reader(x, weight, number):
        if number:
            return forms.product(x, weight, number)
        return mb.cast(x=mb.non_zero(x=weight), dtype="fp16")

    made = forms.ios18(forms.codes(0.3))
    matrices = [{"dense": made["dense"]}, {"palette": made["palette"], "int8": made["int8"]}]
    source = forms.save_forms(tmp_path / "a.mlpackage", matrices, reader=reader)
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert {row.reference for row in report.shared} == {forms.label("dense")}
    assert set(ops(tmp_path / "b.mlpackage").values()) == {"const"}
    assert len(record_values(tmp_path / "b.mlpackage" / FILE)) == 1


def test_weights_in_nested_blocks(tmp_path):
    made = forms.ios18(forms.codes(0.3))

    def reader(x, weight, number):
        big = mb.greater(x=mb.reduce_sum(x=x, axes=[0, 1], keep_dims=False), y=np.float16(0))
        inner = made["dense" if number else "int8 in blocks"]
        return mb.cond(
            pred=big, _true_fn=lambda: forms.product(x, weight, number),
            _false_fn=lambda: mb.mul(x=forms.product(x, inner(f"inner{number}"), number), y=np.float16(2)),
        )  # fmt: skip

    source = forms.save_forms(
        tmp_path / "a.mlpackage", [{"palette": made["palette"]}, {"int8": made["int8"]}], reader=reader
    )
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert len(report.shared) == 3
    assert_same_outputs(source, tmp_path / "b.mlpackage")


def test_part_that_another_weight_reads_is_kept(tmp_path):
    """A weight that shares gives up its operations, but not a const that is a part of a weight that does not."""
    found = forms.codes(0.3)
    matrices = [forms.ios18(found), {"palette": forms.ios18(forms.codes(0.3, seed=3))["palette"]}]
    matrices[0] = {name: matrices[0][name] for name in ("palette", "int4")}
    source = forms.save_forms(tmp_path / "a.mlpackage", matrices)
    report = shared_copy(source, tmp_path / "b.mlpackage")
    assert len(report.shared) == 1 and len(milblob.load(tmp_path / "b.mlpackage")) == 3


# ------------------------------------------------------------------------------------------------- fixtures, kinds of models


@pytest.mark.parametrize("case", some([case for case in DENSE_CASES if "ios16" not in case], 1))
def test_each_compressed_fixture_beside_its_dense_copy(case, tmp_path):
    """The functions of a merged model; and merge_functions does the same at once."""
    small, dense = tmp_path / "small.mlpackage", tmp_path / "dense.mlpackage"
    shutil.copytree(DATA / case / "model.mlpackage", small)
    milblob.repack(small, dense, decompress=True)
    sources = [(dense, "dense"), (small, "small")]
    milblob.merge_functions(sources, tmp_path / "both.mlpackage")
    report = shared_copy(tmp_path / "both.mlpackage", tmp_path / "out.mlpackage")
    merged = milblob.merge_functions(sources, tmp_path / "merged.mlpackage", dedupe="values")
    assert len(report.shared) == len(merged.shared) > 0
    found = milblob.load(tmp_path / "merged.mlpackage")
    assert milblob.diff(tmp_path / "out.mlpackage", tmp_path / "merged.mlpackage").is_same
    assert findings(tmp_path / "merged.mlpackage") == []
    for name, (row, array) in dense_rows(case).items():  # coremltools' values
        assert_same(found[f"small/{name}"], array, row["dtype"])
        assert_same(found[f"dense/{name}"], array, row["dtype"])


@pytest.mark.thorough
@pytest.mark.parametrize("case", [
    pytest.param(path, id=path.parent.name)
    for path in sorted(DATA.glob("*/*.ml*")) if path.parent.name != "neural_network"  # which has no Program
])  # fmt: skip
def test_every_fixture(case, tmp_path):
    source = tmp_path / f"in{case.suffix}"
    shutil.copytree(case, source) if case.is_dir() else shutil.copy(case, source)
    target = tmp_path / f"out{case.suffix}"
    before = len(milblob.check(source))
    report = milblob.repack(source, target, dedupe="values")
    assert milblob.content_hash(source, dense=True).model == milblob.content_hash(target, dense=True).model
    assert len(milblob.check(target)) <= before
    assert milblob.repack(target, tmp_path / f"again{case.suffix}", dedupe="values").shared == ()
    assert isinstance(report.shared, tuple)


def test_compiled_model(tmp_path):
    """MIL text."""
    made = forms.ios18(forms.codes(0.3))
    made = {name: made[name] for name in ("dense", "sparse palette", "palette")}
    source = compiled_of(forms.save_forms(tmp_path / "a.mlpackage", [made]), tmp_path)
    report = milblob.repack(source, tmp_path / "out.mlmodelc", dedupe="values")
    assert len(report.shared) == 2
    before, after = milblob.load(source), milblob.load(tmp_path / "out.mlmodelc")
    assert list(before) == list(after) and all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert len(set(ops(tmp_path / "out.mlmodelc").values())) == 1


def both_forms(folder, first=("dense",), second=("palette",), shape=forms.SHAPE):
    """Two packages with one matrix each, for functions of one model."""
    made = forms.ios18(forms.codes(0.3, shape=shape))
    return [
        (forms.save_forms(folder / f"{name}.mlpackage", [{form: made[form] for form in which}]), name)
        for name, which in (("one", first), ("two", second))
    ]


def test_functions_share(tmp_path):
    """Records of a weight that both functions read are in the file of both."""
    milblob.merge_functions(both_forms(tmp_path), tmp_path / "both.mlpackage")
    report = shared_copy(tmp_path / "both.mlpackage", tmp_path / "out.mlpackage")
    [row] = report.shared
    assert (row.name, row.reference) == (f"one/{forms.label('dense')}", f"two/{forms.label('palette')}")
    assert_same_outputs(tmp_path / "both.mlpackage", tmp_path / "out.mlpackage", "one", "two")
    split = milblob.repack(tmp_path / "both.mlpackage", tmp_path / "split.mlpackage", dedupe="values", split="function")
    assert [file.file.rpartition("/")[2] for file in split.files] == ["weight.bin"]
    kept = milblob.repack(tmp_path / "both.mlpackage", tmp_path / "kept.mlpackage", dedupe="values", functions="one")
    assert kept.shared == () and set(ops(tmp_path / "kept.mlpackage").values()) == {"const"}


def test_merge_functions(tmp_path):
    sources = both_forms(tmp_path)
    plan = milblob.merge_functions(sources, tmp_path / "m.mlpackage", dedupe="values", dry_run=True)
    assert not plan.done and not (tmp_path / "m.mlpackage").exists()
    report = milblob.merge_functions(sources, tmp_path / "m.mlpackage", dedupe="values")
    assert report.done and report.shared == plan.shared
    [row] = report.shared
    assert (row.name, row.reference) == (f"one/{forms.label('dense')}", f"two/{forms.label('palette')}")
    milblob.merge_functions(sources, tmp_path / "plain.mlpackage")
    assert milblob.diff(tmp_path / "plain.mlpackage", tmp_path / "m.mlpackage").is_same
    assert file_nbytes(tmp_path / "m.mlpackage") == file_nbytes(sources[1][0])
    assert_same_outputs(tmp_path / "plain.mlpackage", tmp_path / "m.mlpackage", "one", "two")
    ct.models.MLModel(
        str(shutil.copytree(tmp_path / "m.mlpackage", tmp_path / "c.mlpackage")),
        function_name="two",
        skip_model_load=True,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("half", [False, True])
def test_prefill_and_decode_of_a_language_model(tmp_path, half):
    """With caches as states: coremltools quantizes one graph, and stores the same values dense in the other one."""
    decode = transformer(tmp_path / "whole.mlpackage", length=1, states=True, half=half)
    prefill = transformer(tmp_path / "prefill_whole.mlpackage", length=6, states=True, half=half)
    for name, path in (("decode", decode), ("prefill_small", prefill)):
        assert theirs(path, [("linear", {"weight_threshold": 0})], tmp_path / f"{name}.mlpackage") is None
    decompressed(tmp_path / "prefill_small.mlpackage", tmp_path / "prefill.mlpackage")
    sources = [(tmp_path / f"{name}.mlpackage", name) for name in ("prefill", "decode")]
    milblob.merge_functions(sources, tmp_path / "both.mlpackage")
    report = milblob.merge_functions(sources, tmp_path / "out.mlpackage", dedupe="values")
    assert len(report.shared) >= 4 * 4 and findings(tmp_path / "out.mlpackage") == []
    assert file_nbytes(tmp_path / "out.mlpackage") < 1.2 * file_nbytes(tmp_path / "decode.mlpackage")
    hashes = [milblob.content_hash(tmp_path / name, dense=True).model for name in ("both.mlpackage", "out.mlpackage")]
    assert hashes[0] == hashes[1]
    assert_same_outputs(tmp_path / "both.mlpackage", tmp_path / "out.mlpackage", "prefill", "decode")


@pytest.mark.thorough
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is measured on Linux only: that of sharing is not tested"
)
def test_memory_does_not_grow_with_the_weights(tmp_path):
    """64 MiB dense beside 16 MiB of a palette: a few pieces are in memory at a time."""
    milblob.merge_functions(both_forms(tmp_path, shape=(1 << 20, forms.SHAPE[1])), tmp_path / "both.mlpackage")
    for how in ("values", "near"):
        found = measured_repack(tmp_path / "both.mlpackage", tmp_path / f"{how}.mlpackage", dedupe=how)
        assert found["share"] == 1


# ------------------------------------------------------------------------------------------------------- options, bad input


def test_select_limits_which_weights_share(tmp_path):
    made = forms.ios18(forms.codes(0.3))
    made = {name: made[name] for name in ("dense", "palette", "int8")}
    source = forms.save_forms(tmp_path / "a.mlpackage", [made])
    report = shared_copy(source, tmp_path / "b.mlpackage", select=["*dense", "*int8"])
    assert [(row.name, row.reference) for row in report.shared] == [(forms.label("dense"), forms.label("int8"))]
    assert ops(tmp_path / "b.mlpackage")[forms.label("palette")] == "constexpr_lut_to_dense"


def test_other_options_apply_too(tmp_path):
    made = {name: make for name, make in forms.ios18(forms.codes(0.3)).items() if name in ("dense", "palette")}
    source = forms.save_forms(tmp_path / "a.mlpackage", [made])
    report = shared_copy(source, tmp_path / "b.mlpackage", canonical=True, align=4096, gc=True)
    assert len(report.shared) == 1
    assert shared_copy(source, source, force=True).shared == report.shared  # in place
    assert milblob.repack(source, tmp_path / "c.mlpackage", dedupe="values").shared == ()


def test_canonical_records_are_in_the_order_of_the_new_program(tmp_path):
    """The first weight takes a form whose records came after those of others."""
    first, second = forms.ios18(forms.codes(0.3)), forms.ios18(forms.codes(0.3, 1))
    matrices = [{"dense": first["dense"]}, {"int8": second["int8"]}, {"sparse palette": first["sparse palette"]}]
    source = forms.save_forms(tmp_path / "a.mlpackage", matrices)
    assert len(shared_copy(source, tmp_path / "b.mlpackage", canonical=True).shared) == 1
    milblob.repack(tmp_path / "b.mlpackage", tmp_path / "c.mlpackage", canonical=True)
    assert tree(tmp_path / "b.mlpackage") == tree(tmp_path / "c.mlpackage")


def test_nothing_to_share_is_the_same_bytes(tmp_path):
    source = forms.save_forms(tmp_path / "a.mlpackage", [{"palette": forms.ios18(forms.codes(0.3))["palette"]}])
    report = milblob.repack(source, tmp_path / "b.mlpackage", dedupe="values")
    assert report.shared == () and report.changed == []
    assert tree(source) == tree(tmp_path / "b.mlpackage")


@pytest.mark.parametrize(("options", "error"), [
    ({"dedupe": "value"}, ValueError("dedupe: expected True, False, 'values' or 'near', got 'value'")),
    ({"dedupe": 1}, TypeError("dedupe: ")),
    ({"dedupe": "near", "min_sqnr": float("nan")}, ValueError("min_sqnr: expected a number of dB above 0, got nan")),
    ({"dedupe": "near", "min_sqnr": -3}, ValueError("min_sqnr: ")),
    ({"dedupe": "near", "min_sqnr": 0}, ValueError("min_sqnr: ")),
    ({"dedupe": "near", "min_sqnr": float("inf")}, ValueError("min_sqnr: ")),
    ({"dedupe": "near", "min_sqnr": "60"}, TypeError("min_sqnr: expected a number, got str")),
    ({"dedupe": "values", "min_sqnr": 60}, ValueError("min_sqnr: expected dedupe='near' (--dedupe=near), which it is about")),
    ({"min_sqnr": 60}, ValueError("min_sqnr: ")),
    ({"dedupe": True, "base": {}}, ValueError("base: expected dedupe='near'")),
    ({"dedupe": "values", "cast": "float16"}, ValueError("cast: expected it without dedupe of values")),
    ({"dedupe": "values", "decompress": True}, ValueError("decompress: ")),
    ({"dedupe": "near", "inline": True}, ValueError("inline: ")),
    ({"dedupe": "near", "externalize": True}, ValueError("externalize: ")),
    ({"dedupe": "near", "base": "nowhere.safetensors"}, FileNotFoundError("")),
], ids=str)  # fmt: skip
def test_bad_options(tmp_path, options, error):
    source = shutil.copytree(DATA / "functions" / "model.mlpackage", tmp_path / "a.mlpackage")
    with pytest.raises(type(error)) as caught:
        milblob.repack(source, tmp_path / "b.mlpackage", **options)
    assert str(error) in str(caught.value)
    assert not (tmp_path / "b.mlpackage").exists()


def test_weight_files_and_existing_destinations_are_refused(tmp_path):
    weights = shutil.copy(DATA / "blob_sub_byte" / "weight.bin", tmp_path / "weight.bin")
    with pytest.raises(milblob.UnsupportedError, match="dedupe of values: expected a model, got a weight file alone"):
        milblob.repack(weights, tmp_path / "b.bin", dedupe="values")
    source = shutil.copytree(DATA / "functions" / "model.mlpackage", tmp_path / "a.mlpackage")
    (tmp_path / "b.mlpackage").mkdir()
    (tmp_path / "b.mlpackage" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        milblob.repack(source, tmp_path / "b.mlpackage", dedupe="values")
    with pytest.raises(ValueError, match=r"dedupe: expected True, 'values' or 'near', got False"):
        milblob.merge_functions([source], tmp_path / "c.mlpackage", dedupe=False)
    assert os.listdir(tmp_path / "b.mlpackage") == ["notes.txt"] and not (tmp_path / "c.mlpackage").exists()


@pytest.mark.thorough
def test_models_of_a_pipeline_share(tmp_path):
    """Products one after another, cut into a pipeline of three models with one form of the matrix each."""
    made = forms.ios18(forms.codes(0.3))
    made = {name: made[name] for name in ("dense", "palette", "int8 in blocks")}
    source = forms.save_chain(tmp_path / "a.mlpackage", made)
    milblob.chunk(source, tmp_path / "parts", parts=3, pipeline=True)
    pipeline = tmp_path / "parts" / "a_pipeline.mlpackage"
    report = shared_copy(pipeline, tmp_path / "b.mlpackage")
    assert {row.reference for row in report.shared} == {f"model1/{forms.label('palette')}"}
    assert len(report.shared) == 2 and set(ops(tmp_path / "b.mlpackage").values()) == {"constexpr_lut_to_dense"}
