"""milblob.compress: what it writes, what it shares, what it refuses, and that the destination is whole or untouched."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil

import numpy as np
import pytest

import milblob
from compress_models import with_config
from compress_options import grouped
from milblob import Joint, Linear, Palette, Prune
from milblob.cli import main
from milblob.compressing.frontier_svg import short
from milblob.compressing.parse_recipe import NAMED, as_recipe
from milblob.compressing.parse_recipe import RECIPES as RECIPES_BY_NAME
from milblob.compressing.weight import Weight
from milblob.errors import UnsupportedError
from milblob.lossy.unfit import UnfitError
from milblob.program import schema
from paths import DATA, ROOT
from progress_rows import steps
from repacking import tree

pytestmark = pytest.mark.usefixtures("unsynced")
DEMO = ROOT / "examples" / "demo.mlpackage"
FUNCTIONS = DATA / "functions" / "model.mlpackage"
RECIPES = [Linear(), Linear("uint8", "linear", "per_tensor"), Palette(4), Palette(2), Palette(8, "uniform"), Prune(0.5)]

WHOLE = Linear(granularity="per_tensor")


def values(path):
    with milblob.open(path) as opened:
        return {name: tensor.read().copy() for name, tensor in opened.items()}


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_what_is_written_is_what_is_reported(recipe, tmp_path):
    before = values(DEMO)
    dry = milblob.compress(DEMO, tmp_path / "a.mlpackage", recipe, dry_run=True)
    assert list(tmp_path.iterdir()) == []
    report = milblob.compress(DEMO, tmp_path / "a.mlpackage", recipe)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mlpackage"]
    assert (dry.weights, dry.skipped, dry.nbytes_after) == (report.weights, report.skipped, report.nbytes_after)
    assert (dry.done, report.done) == (False, True)
    after = values(tmp_path / "a.mlpackage")
    compressed = {weight.name: weight for weight in report.weights}
    assert len(compressed) == 26
    with milblob.open(tmp_path / "a.mlpackage") as opened:
        for name, old in before.items():
            assert (after[name].dtype, after[name].shape) == (old.dtype, old.shape)
            if name not in compressed:
                assert after[name].tobytes() == old.tobytes()
                continue
            difference = after[name].astype(np.float64) - old
            assert compressed[name].squared == pytest.approx(float(np.sum(difference**2)), rel=1e-5)
            assert compressed[name].largest == pytest.approx(float(np.abs(difference).max()), rel=1e-5)
            assert compressed[name].op == opened[name].op
            stored = sum(part.mil_dtype.nbytes(part.size) for part in opened[name].parts.values())
            assert compressed[name].nbytes_after == stored
    assert report.nbytes_after < report.nbytes
    assert list(milblob.check(tmp_path / "a.mlpackage")) == []
    assert json.loads(json.dumps(report.to_dict()))["weights"][0]["name"] == report.weights[0].name


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_decompressing_gives_the_measured_values(recipe, tmp_path):
    milblob.compress(DEMO, tmp_path / "a.mlpackage", recipe)
    milblob.repack(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", decompress=True)
    one, other = values(tmp_path / "a.mlpackage"), values(tmp_path / "b.mlpackage")
    assert {name: array.tobytes() for name, array in one.items()} == {n: array.tobytes() for n, array in other.items()}


def test_a_compressed_weight_is_not_compressed_again(tmp_path):
    milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear())
    report = milblob.compress(
        tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", Palette(2), scope=milblob.Scope(min_size=0)
    )
    reasons = dict(report.skipped)
    assert report.weights == []
    assert len(reasons) == len(report.skipped)
    with milblob.open(tmp_path / "a.mlpackage") as opened:
        assert set(reasons) == set(opened)  # one row for a weight, none for its parts
        compressed = {name for name, tensor in opened.items() if tensor.parts}
    words = f"expected a dense weight for {Palette(2)}, or recompress, got a compressed one"
    words += " (constexpr_affine_dequantize)"
    assert {name for name, reason in reasons.items() if reason == words} == compressed
    with pytest.raises(ValueError, match="got one for head_weight: expected a dense weight for Linear"):
        milblob.compress(tmp_path / "a.mlpackage", tmp_path / "c.mlpackage", {
            "milblob": "compress plan", "version": 1, "weights": {"head_weight": {"recipe": Linear().to_dict()}},
        })  # fmt: skip


@pytest.mark.parametrize(
    "case", ["constexpr_ios16", "constexpr_ios18", "matrix_chains", "optimize_ios18", "palette_quantized"]
)
def test_parts_of_compressed_weights_are_no_weights(case, tmp_path):
    """Chains too: each weight that stays is named once, by its own name."""
    report = milblob.compress(
        DATA / case / "model.mlpackage",
        tmp_path / "a.mlpackage",
        Linear(),
        dry_run=True,
        scope=milblob.Scope(min_size=0),
    )
    names = [name for name, _ in report.skipped] + [weight.name for weight in report.weights]
    with milblob.open(DATA / case / "model.mlpackage") as opened, milblob.open(
        DATA / case / "model.mlpackage", constants=True
    ) as everything:  # fmt: skip
        compressed = {name for name, tensor in opened.items() if tensor.parts}
        assert compressed and compressed <= set(names)
        assert set(names) <= set(everything)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("options", [[], ["-q"], ["--json"], ["-n"]])
def test_a_command_that_compresses_nothing_reports_it(options, tmp_path, capsys):
    milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear())
    assert (
        main(
            ["compress", str(tmp_path / "a.mlpackage"), "-o", str(tmp_path / "b.mlpackage"), "--palette", "4", *options]
        )
        == 1
    )
    assert (
        f"no weight compressed: 43 of 69: expected two dimensions or more; 26 of 69: expected a dense weight for "
        f"{Palette(4)}, or recompress\n"
    ) in capsys.readouterr().err
    assert (
        main(["compress", str(DEMO), "-o", str(tmp_path / "c.mlpackage"), "--int8", "--min-size", "99999", *options])
        == 1
    )
    assert "no weight compressed: 43 of 69: expected" in capsys.readouterr().err
    assert (
        main(["compress", str(DEMO), "-o", str(tmp_path / "d.mlpackage"), "--size", "1M", *options]) == 0
    )  # as it should be


def test_only_what_is_asked_for_changes(tmp_path):
    report = milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear(), scope=milblob.Scope(select="layers_[01]*", per_name={"*_mlp_*": Palette(4), "layers_0_*": None}))  # fmt: skip
    recipes = {weight.name: weight.recipe for weight in report.weights}
    assert recipes["layers_0_mlp_up_weight"] == Palette(4)
    assert recipes["layers_1_attention_key_weight"] == Linear()
    assert "layers_0_attention_key_weight" not in recipes
    assert ("layers_0_attention_key_weight", "expected a recipe for it, got none") in report.skipped
    assert not any(name.startswith("layers_2") for name, _ in report.skipped)
    by_type = milblob.compress(DEMO, tmp_path / "b.mlpackage", scope=milblob.Scope(op_types={"gather": Linear()}))
    assert [weight.name for weight in by_type.weights] == ["embedding_weight"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"select": "haed_weight"}, "select: no weight in .* matches"),
        ({"select": "nothing*", "size": 90_000, "recipe": None}, "select: no weight in "),
        ({"per_name": {"haed_weight": Palette(2)}}, "per_name: expected names of weights .*, got 'haed_weight'; did you mean head_weight"),
        ({"per_name": {"haed_weight": None}}, "per_name: expected names of weights"),
        ({"per_name": {"head*": None}, "select": "layers*"}, "per_name: expected names of weights that are selected"),
        ({"op_types": {"linaer": Palette(2)}}, "op_types: expected types of operations .*, got 'linaer'; did you mean linear"),
        ({"op_types": {"conv_transpose": None}}, "op_types: expected types of operations that read weights"),
        ({"op_types": {"gather": None}, "select": "layers*"}, "op_types: expected types of operations .*, got 'gather'"),
    ],
)  # fmt: skip
def test_names_that_fit_nothing_are_refused(options, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        milblob.compress(DEMO, tmp_path / "a.mlpackage", **grouped(**{"recipe": Linear(), **options}))
    assert list(tmp_path.iterdir()) == []
    milblob.compress(
        DEMO, tmp_path / "a.mlpackage", Linear(), scope=milblob.Scope(per_name={"head_bias": None, "head*": Palette(2)})
    )


@pytest.mark.parametrize("path", [DEMO, FUNCTIONS], ids=["demo", "functions"])
def test_naming_an_operation_selects_the_weights_that_it_reads(path, tmp_path):
    """As keys of coremltools' op_name_configs; a weight's own name comes first, and no glob means an operation."""
    with milblob.open(path) as opened:
        weights = {name: tensor.consumers for name, tensor in opened.items() if len(tensor.shape) > 1}
        lead = {name: name.removesuffix(opened[name].op_row.name) for name in weights}
        readers = {}
        for name, uses in weights.items():
            for use in uses:
                readers.setdefault(f"{lead[name]}{use.reader.name}", []).append(name)
    readers = {reader: names for reader, names in readers.items() if reader not in weights}
    assert len(readers) >= 2

    def compress(**options):
        report = milblob.compress(path, tmp_path / "a.mlpackage", **grouped(min_size=0, dry_run=True, **options))
        return {weight.name: weight.recipe for weight in report.weights}

    for reader, names in readers.items():
        assert compress(per_name={reader: Linear()}) == {name: Linear() for name in names}
        assert compress(per_name={reader: Linear(), names[0]: Palette(2)})[names[0]] == Palette(2)
        with pytest.raises(ValueError, match="per_name: expected names of weights .*, or of operations that read them"):
            compress(per_name={reader[:-1] + "[" + reader[-1] + "]": Linear()})
    reader, names = next(iter(readers.items()))
    everything = compress(recipe=Linear())
    assert compress(recipe=Linear(), per_name={reader: None}) == {
        name: recipe for name, recipe in everything.items() if name not in names
    }


def edited(path, edit):
    """DEMO at a path, with its operations as `edit` leaves them; it gets them by name of output."""
    shutil.copytree(DEMO, path)
    file = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model = schema.Model.FromString(file.read_bytes())
    (block,) = model.mlProgram.functions["main"].block_specializations.values()
    edit({op.outputs[0].name: op for op in block.operations})
    file.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("named", ["query", "key"])
def test_an_operation_whose_name_is_a_type_does_not_hide_others_of_this_type(named, tmp_path):
    def edit(ops):
        query, key = (ops[f"layers_0_attention_{name}"] for name in ("query", "key"))
        key.inputs["weight"].CopyFrom(query.inputs["weight"])
        one = query if named == "query" else key
        one.attributes["name"].immediateValue.tensor.strings.values[:] = ["linear"]

    path = edited(tmp_path / "m.mlpackage", edit)
    words = "per_name: expected one recipe for layers_0_attention_query_weight, got several, by linear, type linear"
    for recipe in (Linear("uint8"), None):
        with pytest.raises(ValueError, match=words):
            milblob.compress(
                path, tmp_path / "a.mlpackage", Linear(), dry_run=True, scope=milblob.Scope(per_name={"linear": recipe})
            )
    report = milblob.compress(
        path, tmp_path / "a.mlpackage", Linear(), dry_run=True, scope=milblob.Scope(per_name={"linear": Linear()})
    )
    assert {weight.recipe for weight in report.weights} == {Linear()}


def test_what_reads_the_output_of_an_operation_reads_none_of_its_attributes(tmp_path):
    def edit(ops):
        reader = next(op for op in ops.values() if op.type == "softmax")
        holder = ops[reader.inputs["x"].arguments[0].name]
        holder.attributes["table"].CopyFrom(ops["head_weight"].attributes["val"])
        found.append(reader.outputs[0].name)

    found = []
    path = edited(tmp_path / "m.mlpackage", edit)
    for options in ({"op_types": {"softmax": None}}, {"per_name": {found[0]: None}}):
        with pytest.raises(ValueError, match=next(iter(options)) + ": expected .* that read"):
            milblob.compress(path, tmp_path / "a.mlpackage", Linear(), **grouped(dry_run=True, **options))


def test_neighbours_of_a_named_weight_are_pruned_for_every_reader(tmp_path):
    """As in coremltools, which skips them where only a general configuration asks for it."""
    recipe, words = Prune(n_m=(2, 4)), "expected only weights of conv and linear for blocks and n_m, got gather.x"
    for options in ({"recipe": recipe, "select": "embedding*"}, {"per_name": {"embedding*": recipe}}):
        report = milblob.compress(DEMO, tmp_path / "a.mlpackage", **grouped(dry_run=True, **options))
        assert dict(report.skipped)["embedding_weight"] == words
    report = milblob.compress(
        DEMO, tmp_path / "a.mlpackage", scope=milblob.Scope(per_name={"embedding_weight": recipe})
    )
    assert [weight.name for weight in report.weights] == ["embedding_weight"]
    milblob.compress(DEMO, tmp_path / "b.mlpackage", report.plan)
    with milblob.open(tmp_path / "a.mlpackage") as one, milblob.open(tmp_path / "b.mlpackage") as other:
        values = one["embedding_weight"].read()
        assert values.tobytes() == other["embedding_weight"].read().tobytes()
    assert np.all(np.count_nonzero(values.reshape(-1, 4), axis=1) <= 2)


def test_shared_records_are_kept_shared(tmp_path):
    """Functions that read one record read the same parts afterwards."""
    with milblob.open(FUNCTIONS) as opened:
        places = {}
        for name, tensor in opened.items():
            if tensor.is_blob and len(tensor.shape) > 1:
                places.setdefault(tensor.constant.blob_offset, []).append(name)
    shared = [names for names in places.values() if len(names) > 1]
    assert shared
    report = milblob.compress(FUNCTIONS, tmp_path / "a.mlpackage", Linear(), scope=milblob.Scope(min_size=0))
    assert len(report.weights) >= 2
    with milblob.open(tmp_path / "a.mlpackage") as opened:
        for names in shared:
            if names[0] in {weight.name for weight in report.weights}:
                keys = next(iter(opened[name].parts for name in names[:1]))
                for key in keys:
                    rows = {opened[name].parts[key].constant.blob_offset for name in names}
                    assert len(rows) == 1
    assert list(milblob.check(tmp_path / "a.mlpackage")) == []


def test_equal_weights_are_computed_once(tmp_path, monkeypatch):
    shutil.copytree(DEMO, tmp_path / "a.mlpackage")
    first, second = "layers_0_attention_key_weight", "layers_1_attention_key_weight"
    with milblob.open(tmp_path / "a.mlpackage", "r+") as opened:
        opened[second] = opened[first].read()
    calls = []
    real = Linear.streamed
    monkeypatch.setattr(Linear, "streamed", lambda self, weight: calls.append(1) or real(self, weight))
    report = milblob.compress(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", Linear())
    assert (len(report.weights), len(calls)) == (26, 25)
    with milblob.open(tmp_path / "b.mlpackage") as opened:
        assert np.array_equal(opened[first].read(), opened[second].read())
        for key in ("quantized_data", "scale", "zero_point"):
            one, other = (opened[name].parts[key].constant.blob_offset for name in (first, second))
            assert one == other
    calls.clear()  # with another recipe they are not alike
    milblob.compress(
        tmp_path / "a.mlpackage",
        tmp_path / "c.mlpackage",
        Linear(),
        scope=milblob.Scope(per_name={first: Linear("uint8")}),
    )
    assert len(calls) == 26


def test_in_place_and_replacing(tmp_path):
    shutil.copytree(DEMO, tmp_path / "a.mlpackage")
    before = tree(tmp_path / "a.mlpackage")
    shutil.copytree(DEMO, tmp_path / "b.mlpackage")
    with pytest.raises(FileExistsError):
        milblob.compress(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", Linear())
    assert tree(tmp_path / "b.mlpackage") == before
    milblob.compress(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", Linear(), force=True)
    milblob.compress(tmp_path / "a.mlpackage", tmp_path / "a.mlpackage", Linear())
    one, other = values(tmp_path / "a.mlpackage"), values(tmp_path / "b.mlpackage")
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert sorted(os.listdir(tmp_path)) == ["a.mlpackage", "b.mlpackage"]


def test_an_error_leaves_nothing(tmp_path, monkeypatch):
    calls = []

    def fail(self, weight):
        calls.append(weight)
        if len(calls) == 5:
            raise OSError("disk")
        return real(self, weight)

    real = Linear.streamed
    monkeypatch.setattr(Linear, "streamed", fail)
    monkeypatch.setenv("MILBLOB_THREADS", "1")
    with pytest.raises(OSError, match="disk"):
        milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear())
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_skipped(tmp_path):
    shutil.copytree(DEMO, tmp_path / "a.mlpackage")
    with milblob.open(tmp_path / "a.mlpackage", "r+") as opened:
        broken = opened["head_weight"].read().copy()
        broken[0, 0] = np.inf
        opened["head_weight"] = broken
    for number, recipe in enumerate(RECIPES):
        target = tmp_path / f"{number}.mlpackage"
        report = milblob.compress(tmp_path / "a.mlpackage", target, recipe, dry_run=True)
        reason = dict(report.skipped)["head_weight"]
        assert reason == "array: expected finite elements, got 1 that are NaN or infinite"
        assert len(report.weights) == 25
        written = milblob.compress(tmp_path / "a.mlpackage", target, recipe)
        assert dataclasses.replace(written, done=False) == report
        with milblob.open(target) as opened:
            assert opened["head_weight"].read().tobytes() == broken.tobytes()


def test_progress_counts_the_weights(tmp_path):
    rows = []
    milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear(), progress=lambda *row: rows.append(row))
    rows = steps(rows)
    assert len(rows) == 26
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    assert len({row[2] for row in rows}) == 1
    assert rows[-1][1] == rows[-1][2]


def test_what_cannot_be_held_is_refused(tmp_path):
    for recipe in (
        Linear("int4"),
        Linear(granularity="per_block"),
        Palette(3),
        Palette(granularity="per_grouped_channel"),
        Prune(0.5) + Palette(4),
    ):
        with pytest.raises(UnsupportedError, match=r"expected a model for iOS 18 or later, got one for iOS 1[67]"):
            milblob.compress(DEMO, tmp_path / "a.mlpackage", recipe)
    with pytest.raises(UnsupportedError, match="expected a model for iOS 16 or later, got one for iOS 15"):
        milblob.compress(
            DATA / "opset_ios15_fp16" / "model.mlpackage",
            tmp_path / "a.mlpackage",
            Linear(),
            scope=milblob.Scope(min_size=0),
        )
    with pytest.raises(UnsupportedError, match=r"compress: expected a \.mlpackage or \.mlmodelc, got a file"):
        milblob.compress(DATA / "blob_all_dtypes" / "weight.bin", tmp_path / "a.bin", Linear())
    with pytest.raises(ValueError, match="recipe: expected one"):
        milblob.compress(DEMO, tmp_path / "a.mlpackage")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", [*RECIPES, Linear("int4", granularity="per_block", block=(1, 32)), Prune(n_m=(1, 2)),
                                    Palette(None, "unique"), Prune(threshold=0.1, min_sparsity=0.2),
                                    Prune(0.5) + Palette(4), Prune(0.5) + (Palette(4) + WHOLE), Linear() + Palette(2)], ids=str)  # fmt: skip
def test_recipes_go_to_json_and_back(recipe):
    assert as_recipe(recipe.to_json()) == recipe
    assert as_recipe(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert eval(repr(recipe)) == recipe
    assert hash(as_recipe(recipe.to_dict())) == hash(recipe)


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Linear("int16"), "dtype: expected int8, uint8, int4 or uint4, got"),
        (lambda: Linear(mode="affine"), "mode: expected one of linear_symmetric, linear, got 'affine'"),
        (lambda: Linear(granularity="per_row"), "granularity: expected one of per_tensor, per_channel, per_block"),
        (lambda: Linear(block=0), "block: expected a size of 1 or more, or sizes of 0 or more, got 0"),
        (lambda: Linear(block=(1, -1)), "block: expected a size of 1 or more, or sizes of 0 or more, got (1, -1)"),
        (lambda: Palette(5), "bits: expected one of 1, 2, 3, 4, 6, 8, got 5"),
        (lambda: Palette(4, "best"), "mode: expected one of kmeans, uniform, unique, custom, got 'best'"),
        (lambda: Linear(block=16), "block: expected it with granularity 'per_block', got it with 'per_channel'"),
        (lambda: Linear(granularity="per_tensor", block=(1, 8)), "block: expected it with granularity 'per_block'"),
        (lambda: Palette(4, group_size=8), "group_size: expected it with granularity 'per_grouped_channel', got it with"),
        (lambda: Palette(2, "unique"), "bits: expected None in the mode 'unique', which takes as many as it needs, got 2"),
        (lambda: Palette(8, "custom", lut_function=print), "bits: expected None in the mode 'custom'"),
        (lambda: Palette(4, group_size=0), "group_size: expected 1 or more, got 0"),
        (lambda: Palette(4, channel_axis=1), "channel_axis: expected None with one palette per tensor, got 1"),
        (lambda: Prune(), "prune: expected exactly one of sparsity, threshold and n_m, got none"),
        (lambda: Prune(0.5, n_m=(1, 2)), "prune: expected exactly one of sparsity, threshold and n_m, got sparsity and n_m"),
        (lambda: Prune(1.5), "sparsity: expected 0 to 1, got 1.5"),
        (lambda: Prune(n_m=(3, 2)), "n_m: expected (n, m) with n at most m, got (3, 2)"),
        (lambda: Prune(0.5, block=1), "block: expected 2 or more, got 1"),
        (lambda: Prune(threshold=0.5, block=4), "block: expected it with a sparsity, got it without"),
        (lambda: Prune(n_m=(1, 2), block=4), "block: expected it with a sparsity, got it without"),
        (lambda: Prune(0.5, dim=1), "dim: expected it with block or n_m, got it without"),
        (lambda: Prune(0.5, block=2, dim=2), "dim: expected one of 0, 1, got 2"),
        (lambda: Prune(0.5, min_sparsity=0.2), "min_sparsity: expected it with a threshold, got it without"),
        (lambda: Prune(n_m=(1, 2), min_sparsity=0.2), "min_sparsity: expected it with a threshold, got it without"),
        (lambda: Palette(4) + Linear(), "Linear after Palette: expected granularity 'per_tensor', got 'per_channel'"),
        (lambda: Linear() + Linear(), "recipes: expected one of Linear + Palette, Linear + Prune, Palette + Linear"),
        (lambda: Palette(4) + WHOLE + Prune(0.5), "recipes: expected one of"),
        (lambda: Joint(()), "recipes: expected one of"),
        (lambda: as_recipe({"recipe": "Round"}), "recipe: expected one of Linear, Palette, Prune, Joint, got 'Round'"),
        (lambda: as_recipe({"recipe": "Linear", "nbits": 4}), "Linear: expected its options dtype, mode, granularity, block, search, got 'nbits'"),
        (lambda: as_recipe("int3"), "recipe: expected a Linear, Palette or Prune, one as JSON, or one of int8, uint8, int4, uint4, palette1, palette2, palette3, palette4, palette6, palette8, unique, got 'int3'"),
        (
            lambda: as_recipe('{"recipe": "Palette", "bits": 4, "bits": 2}'),
            """recipe: expected a Linear, Palette or Prune, or one as JSON, got '{"recipe": "Palette", "bits": 4, "bits": 2}' """
            "(JSON: expected every key once, got 'bits' twice)",
        ),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("make", [Linear, lambda dtype: Palette(4, lut_dtype=dtype)])
def test_a_dtype_that_is_none_is_refused_with_those_that_are(make):
    with pytest.raises(TypeError, match="^dtype: expected int8, uint8, int4 or uint4, got 'int3'$"):
        make("int3")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("int-8", "; did you mean int8?"),
        ("INT8", "; did you mean int8?"),
        ("4bit", "; did you mean palette4?"),
        ("palettize6", "; did you mean palette6?"),
        ("prune50", "; a part of the elements becomes zero with Prune(0.5)"),
        ("60KB", "; a size is Goal(size='60KB')"),
        ("fp16", '; repack(..., cast="float16") changes the dtype'),
        ("plan.json", " (CompressPlan.load reads a plan)"),
        ("zzz", ""),
    ],
)
def test_names_that_are_no_recipes_get_advice(name, advice):
    with pytest.raises(ValueError) as caught:
        as_recipe(name)
    assert str(caught.value).endswith(f"unique, got {name!r}{advice}")


def test_each_recipe_has_a_short_label_and_knows_whether_it_can_keep_nan():
    """A weight with NaN and `nan="keep"` is compressed or refused, as the recipe has it."""
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    array[3, 3] = np.nan
    weight = Weight(array, (1, 0), 18, (("linear", "weight"),), nan="keep")
    labels = {
        Linear(): "int8", Palette(4): "palette 4", Prune(0.5): "50% zeros", Prune(n_m=(1, 2)): "prune n_m (1, 2)",
        Prune(threshold=40): "prune threshold 40", Prune(0.5) + Palette(4): "50% zeros + palette 4",
    }  # fmt: skip
    assert {type(recipe) for recipe in labels} == set(RECIPES_BY_NAME.values())
    for recipe, label in labels.items():
        assert short(recipe) == label
        with contextlib.nullcontext() if recipe.can_keep_nan else pytest.raises(UnfitError):
            recipe.parts(weight)


def test_the_page_has_the_short_names_of_recipes():
    page = " ".join((ROOT / "docs" / "cli.md").read_text("utf-8").split())
    assert f"A recipe is a short name ({', '.join(f'`{name}`' for name in NAMED)}), a table" in page


@pytest.mark.parametrize("kind", [kind for kind in RECIPES_BY_NAME if kind != "Joint"])
def test_options_of_any_type_are_refused_or_taken(kind):
    """Whatever JSON says an option is: a recipe that can be applied, or an error that says what was expected."""
    values = [
        None,
        True,
        False,
        0,
        1,
        -1,
        4,
        4.0,
        2.5,
        math.nan,
        1e308,
        10**30,
        "",
        "int4",
        "x",
        [],
        [1],
        [1, 2],
        [0.5, 1],
        {},
        {"a": 1},
        [[1]],
    ]
    weight = Weight(np.arange(64, dtype=np.float32).reshape(8, 8), (1, 0), 18, (("linear", "weight"),))
    taken = 0
    needed = {
        "Linear": [{}, {"granularity": "per_block"}],
        "Palette": [{}, {"granularity": "per_grouped_channel", "group_size": 2}, {"mode": "unique"}],
        "Prune": [{"sparsity": 0.5}, {"threshold": 0.1}, {"n_m": [1, 2]}],
    }.get(kind, [{}])
    for (name, value), start in itertools.product(
        itertools.product(RECIPES_BY_NAME[kind].__dataclass_fields__, values), needed
    ):
        try:
            recipe = as_recipe({"recipe": kind, **start, name: value})
        except (ValueError, TypeError) as error:
            assert ": expected " in str(error), (name, value, error)
            continue
        taken += 1
        assert as_recipe(json.loads(recipe.to_json())) == recipe
        with contextlib.suppress(UnfitError):
            recipe.parts(weight)
    assert taken > 5


@pytest.mark.parametrize("value", [None, 5, "x", {}, [], [5], [None], [["x"]], [{}]])
def test_recipes_of_a_joint_one(value):
    with pytest.raises((ValueError, TypeError), match=": expected "):
        as_recipe({"recipe": "Joint", "recipes": value})


def test_a_joint_recipe_in_another_at_any_depth():
    nested = {"recipe": "Palette", "bits": 4}
    for _ in range(5000):
        nested = {"recipe": "Joint", "recipes": [nested]}
    with pytest.raises(ValueError, match="recipes: expected Linear, Palette and Prune, got a Joint"):
        as_recipe(nested)


@pytest.mark.parametrize("recipe", [
    Palette(np.int64(4)), Prune(np.float32(0.5)), Prune(np.float32(0.5), block=np.int64(2), dim=np.int8(1)),
    Prune(threshold=np.float16(0.5), min_sparsity=np.float64(0.25)), Prune(n_m=(np.uint8(2), np.int64(4))),
    Linear("int4", granularity="per_block", block=np.int64(4)), Palette(4, "kmeans", "per_grouped_channel", np.int32(8), np.int64(0)),
], ids=str)  # fmt: skip
def test_numbers_of_numpy_go_to_json_too(recipe):
    assert as_recipe(recipe.to_json()) == recipe
    assert eval(repr(recipe)) == recipe


@pytest.mark.parametrize("text", ["[" * 100_000, '{"recipe": ["Linear"]}', '{"recipe": {}}', "{}", "7"])
def test_invalid_json_of_a_recipe_is_refused(text):
    with pytest.raises((ValueError, TypeError), match="recipe: expected "):
        as_recipe(text)


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        (["--int8"], Linear()),
        (["--uint8", "--zero-point", "--per-tensor"], Linear("uint8", "linear", "per_tensor")),
        (["--int8", "--search"], Linear(search=True)),
        (["--palette", "4"], Palette(4)),
        (["--palette", "2", "--uniform"], Palette(2, "uniform")),
        (["--sparsity", "0.5"], Prune(0.5)),
        (["--n-m", "2:4"], Prune(n_m=(2, 4))),
        (["--threshold", "0.1"], Prune(threshold=0.1)),
        (["--config", {"recipe": Palette(6).to_dict()}], Palette(6)),
        (["--config", {"recipe": "palette6"}], Palette(6)),
        (["--config", {"recipe": "uint8"}], Linear("uint8")),
        (["--config", {"recipe": ["uint8"]}], Linear("uint8")),
        (["--config", {"recipe": "int8", "size": "60K"}, "--palette", "4"], Palette(4)),  # the command line wins
        (["--threshold", "0.01", "--min-sparsity", "0.01"], Prune(threshold=0.01, min_sparsity=0.01)),
        (["--n-m", "1:2", "--dim", "0"], Prune(n_m=(1, 2), dim=0)),
        (["--sparsity", "0.5", "--block", "2", "--dim", "1"], Prune(0.5, block=2, dim=1)),
    ],
)
def test_command(options, recipe, tmp_path, capsys):
    options = with_config(options, tmp_path)
    assert main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), *options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = milblob.compress(DEMO, tmp_path / "b.mlpackage", recipe)
    expected = report.to_dict() | {"output": printed["output"]}
    assert printed == json.loads(json.dumps(expected))
    assert tree(tmp_path / "a.mlpackage") == tree(tmp_path / "b.mlpackage")


def test_command_takes_recipes_of_some_weights(tmp_path, capsys):
    """By name and by type, beside a recipe or a goal and alone; what `compress` does with the same arguments."""
    of_type, by_name = (
        {"gather": Palette(4)},
        {"layers_0_*": None, "logits": Linear(), "layers_1_mlp_up_weight": Palette(4)},
    )
    config = tmp_path / "some.toml"
    config.write_text(
        'op_types = {gather = "palette4"}\n[per_name]\n"layers_0_*" = "none"\nlogits = {recipe = "Linear"}\n'
        'layers_1_mlp_up_weight = {recipe = "Palette", bits = 4}\n'
    )
    options = ["--config", str(config)]
    frontier = ["--frontier", str(tmp_path / "a.svg")]
    for words, more in (([], {}), (["--palette", "2"], {"recipe": Palette(2)}), (["--bits", "5"], {"bits": 5.0})):
        place = ["-o", str(tmp_path / "a.mlpackage"), "-n", "--json"]
        assert main(["compress", str(DEMO), *words, *options, *place]) == 0
        found = json.loads(capsys.readouterr().out)
        report = milblob.compress(
            DEMO, tmp_path / "a.mlpackage", **grouped(op_types=of_type, per_name=by_name, dry_run=True, **more)
        )
        assert found == report.to_dict()
        assert len(found["weights"]) >= 3
    assert main(["compress", str(DEMO), *frontier, *options, "--json"]) == 0
    frontier = milblob.compress_frontier(DEMO, scope=milblob.Scope(op_types=of_type, per_name=by_name))
    assert json.loads(capsys.readouterr().out) == frontier.to_dict()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--config", {"per_name": {"head*": None}}], "compress: expected one of --size"),  # nothing would be compressed
        (["--int8", "--config", {"per_name": ["head*"]}], "per_name: expected a table, got list"),
        (["--config", {"bits": 10**400}], "bits: expected a number in the range of float64"),
        (["--bits", "3", "--config", {"sensitivity": {"*": 10**400}}], "sensitivity: *: expected a number in the range of float64"),
        (["--int8", "--config", {"op_types": {"gather": {"recipe": "Nope"}}}], "op_types: gather: recipe: expected one of Linear, Palette, Prune, Joint, got 'Nope'"),
        (["--int8", "--config", {"op_types": {"conv": None}}], "op_types: expected types of operations that read weights"),
        (["--plan", "p.json", "--config", {"per_name": {"head*": "none"}}], "per_name of --config: expected none with --plan"),
        (["--keep-nan", "--config", {"op_types": {"gather": "int8"}}], "--keep-nan: expected it with palettes or pruning"),
        (["--group", "4", "--config", {"op_types": {"gather": "int8"}}], "--group: expected it only with --palette or --unique"),
        (["--int8", "--config", {"per_nam": {}}], "'per_nam' is not a key of a configuration; did you mean per_name?"),
        (["--int8", "--config", "{}.txt"], "expected a .toml or .json file, got .txt"),
        (["--int8", "--config", "missing.toml"], "No such file or directory: missing.toml"),
    ],
)  # fmt: skip
def test_command_refuses_recipes_of_some_weights(options, words, tmp_path, capsys):
    try:
        code = main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), *with_config(options, tmp_path)])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_command_prints_a_table_and_a_summary(tmp_path, capsys):
    assert main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), "--palette", "4", "-n"]) == 0
    printed = capsys.readouterr()
    assert "head_weight" in printed.out
    assert "26 weights compressed, 43 unchanged, least SQNR 20." in printed.err
    assert "would go to" in printed.err
    assert not (tmp_path / "a.mlpackage").exists()
    assert main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), "--int8", "--group", "4"]) == 2
    assert "--group: expected it only with --palette or --unique, got it with --int8" in capsys.readouterr().err
    for wrong in ([], ["--int8", "--int4"], ["--config", {"recipe": "int8", "size": 9}]):
        assert main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), *with_config(wrong, tmp_path)]) == 2
        assert ", or one of --sparsity, --threshold, --n-m; --palette, --unique; --int8, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        (["--sparsity", "0.5", "--palette", "4"], Prune(0.5) + Palette(4)),
        (["--palette", "4", "--int8", "--sparsity", "0.5"], Prune(0.5) + Palette(4) + WHOLE),
        (["--n-m", "2:4", "--int4", "--block", "1,32"], Prune(n_m=(2, 4)) + Linear("int4", granularity="per_block", block=(1, 32))),
        (["--palette", "2", "--vector", "4", "--group", "8", "--axis", "1"],
         Palette(2, granularity="per_grouped_channel", group_size=8, vector=4, channel_axis=1)),
        (["--palette", "4", "--scale"], Palette(4, scale=True)),
        (["--config", {"recipe": [{"recipe": "Prune", "sparsity": 0.5}, "palette4"]}], Prune(0.5) + Palette(4)),
        (["--unique", "--group", "8"], Palette(None, "unique", "per_grouped_channel", 8)),
    ],
)  # fmt: skip
def test_command_refuses_by_name_what_the_opset_cannot_hold(options, recipe, tmp_path, capsys):
    """And so says which recipe the options mean."""
    assert main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), *with_config(options, tmp_path)]) == 2
    assert f"{recipe}: expected a model for iOS 18 or later, got one for iOS 17" in capsys.readouterr().err


def test_command_takes_importance_and_what_is_compressed(tmp_path, capsys):
    name = "layers_0_mlp_up_weight"
    heavy = np.linspace(0, 1, values(DEMO)[name].shape[1]).astype(np.float32)
    np.savez(tmp_path / "heavy.npz", **{name: heavy})
    command = ["compress", str(DEMO), "-k", name, "--palette", "2", "--json"]
    assert main([*command, "-o", str(tmp_path / "a.mlpackage"), "--importance", str(tmp_path / "heavy.npz")]) == 0
    milblob.compress(
        DEMO,
        tmp_path / "b.mlpackage",
        Palette(2),
        scope=milblob.Scope(select=name),
        guidance=milblob.Guidance(importance={name: heavy}),
    )
    assert tree(tmp_path / "a.mlpackage") == tree(tmp_path / "b.mlpackage")
    command = ["compress", str(tmp_path / "a.mlpackage"), "-o", str(tmp_path / "c.mlpackage"), "--int8", "--json"]
    capsys.readouterr()
    for more, is_compressed in (["--dry-run"], False), (["--recompress"], True):
        assert main([*command, *more]) == 0
        names = {row["name"] for row in json.loads(capsys.readouterr().out)["weights"]}
        assert len(names) == 25 + is_compressed
        assert (name in names) == is_compressed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--int8", "--vector", "2"], "--vector: expected it only with --palette or --unique, got it with --int8"),
        (
            ["--sparsity", "0.5", "--int8", "--block", "2"],
            "--block: expected it with pruning or integers, got it with both",
        ),
        (["--palette", "4", "--int8", "--block", "2"], "--block: expected it without --palette, got both"),
        (["--sparsity", "0.5", "--block", "2,2"], "--block: expected one number with --sparsity, got 2,2"),
        (
            ["--int8", "--dim", "1"],
            "--dim: expected it only with --n-m, or --sparsity with --block, got it with --int8",
        ),
        (
            ["--sparsity", "0.5", "--dim", "1"],
            "--dim: expected it only with --n-m, or --sparsity with --block, got it with --sparsity",
        ),
        (
            ["--palette", "4", "--axis", "1"],
            "--axis: expected it only with --palette or --unique with --group, --vector",
        ),
        (["--config", {"per_name": {"head*": None}}], "; or --weights; or --config with a recipe, got none"),
        (["--config", {"recipe": "int8"}, "--search"], "--search: expected it only with --int8"),
        (["--config", {"recipe": "int9"}], "recipe: expected a recipe such as int8, uint8, int4, "),
        (["--config", {"recipe": 4}], "recipe: recipe: expected a Linear, Palette or Prune, its name, or one as JSON"),
        (["--config", {"recipe": []}], "recipe: expected a list of recipes, got an empty or a nested one"),
        (["--config", {"recipe": {"recipe": "Palette", "bits": 5}}], "recipe: bits: expected one of 1, 2, 3, 4"),
        (
            ["--bits", "4", "--config", {"recipes": [{"recipe": "Linear", "axis": 1}]}],
            "recipes: Linear: expected its options",
        ),
    ],
)
def test_command_refuses_options_that_do_not_belong(options, words, tmp_path, capsys):
    try:
        status = main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), *with_config(options, tmp_path)])
    except SystemExit as stopped:  # argparse
        status = stopped.code
    assert status == 2
    assert words in capsys.readouterr().err


def test_a_table_without_rows_is_not_printed(tmp_path, capsys):
    assert main(["compress", str(DEMO), "-o", str(tmp_path / "a.mlpackage"), "--unique", "--dry-run"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        "no weight compressed: 43 of 69: expected two dimensions or more; 26 of 69: mode 'unique': expected at " in err
    )


def test_what_is_wrong_with_a_model_that_takes_new_weights_names_the_model(tmp_path):
    """It is a copy of it that takes them and is compressed; nobody has heard of its place."""
    source = DATA / "opset_ios16_fp16" / "model.mlpackage"
    new = {"weights": {"fc_weight": milblob.load(source)["fc_weight"]}, "min_size": 0}
    for error, options in (
        (milblob.UnsupportedError, {"recipe": Linear("int4")}),
        (ValueError, {"recipe": Linear(), "select": "nosuch"}),
        (ValueError, {"recipe": Linear(), "per_name": {"nosuch": None}}),
        (ValueError, {"recipe": Linear(), "importance": {"nosuch": [1]}}),
        (KeyError, {"plan": milblob.CompressPlan({"nosuch": milblob.PlannedWeight(Linear())})}),
    ):
        for dry_run in (True, False):
            given = {name: value for name, value in new.items() if name == "weights" or "plan" not in options}
            with pytest.raises(error) as caught:
                milblob.compress(source, tmp_path / "new.mlpackage", **grouped(**given, **options, dry_run=dry_run))
            assert str(source) in str(caught.value) and ".milblob-" not in str(caught.value), caught.value
            assert str(caught.value).count(source.name) == 1 and not list(tmp_path.iterdir())


def test_a_const_with_two_outputs_is_skipped(tmp_path):
    """No operation that computes a weight has two: it would be no weight any more."""
    path, out = tmp_path / "m.mlpackage", tmp_path / "out.mlpackage"
    shutil.copytree(DEMO, path)
    file = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model = schema.Model.FromString(file.read_bytes())
    (block,) = model.mlProgram.functions["main"].block_specializations.values()
    (const,) = (op for op in block.operations if op.outputs[0].name == "head_weight")
    const.outputs.add(name="more").type.CopyFrom(const.outputs[0].type)
    file.write_bytes(model.SerializeToString())
    report = milblob.compress(path, out, Linear())
    assert ("head_weight", "expected an operation with one output, got one with 2") in report.skipped
    assert set(milblob.load(out)) == set(milblob.load(path))
    assert [one.code for one in milblob.check(path)] == ["MIL022"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("recipe", [Linear(), Palette(4)], ids=["written at once", "computed before"])
def test_a_file_that_appears_at_the_destination_is_not_replaced(recipe, force, tmp_path):
    """Computing may take long; what is there then is somebody's, and was removed with everything in it."""
    out = tmp_path / "out.mlpackage"

    def select(name):
        out.mkdir(exist_ok=True)
        (out / "thesis.txt").write_text("mine")
        return True

    with pytest.raises(FileExistsError, match=r"out\.mlpackage: expected "):
        milblob.compress(DEMO, out, recipe, force=force, scope=milblob.Scope(select=select))
    assert [path.name for path in tmp_path.rglob("*")] == ["out.mlpackage", "thesis.txt"]
    assert (out / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("file", ["model.mlmodel", "weights/weight.bin"])
def test_a_source_that_changes_while_its_weights_are_measured_is_refused(file, tmp_path):
    """What was measured, and what is written, would be of two models."""
    path, out = shutil.copytree(DEMO, tmp_path / "m.mlpackage"), tmp_path / "out.mlpackage"
    changed = []

    def errors(name, before, after):
        if not changed:
            with open(path / "Data" / "com.apple.CoreML" / file, "r+b") as opened:
                opened.seek(-1, os.SEEK_END)
                last = opened.read(1)
                opened.seek(-1, os.SEEK_END)
                opened.write(last)
            changed.append(name)
        return 0.1

    with pytest.raises(
        milblob.FormatError, match="expected the one that was planned for, unchanged, got another or a changed"
    ):
        milblob.compress(path, out, milblob.Goal(bits=9, errors=errors))
    assert [one.name for one in tmp_path.iterdir()] == ["m.mlpackage"]


def test_min_size_of_the_command_wins_over_the_configuration(tmp_path, capsys):
    """Also where it is the default."""
    config = tmp_path / "some.json"
    config.write_text(json.dumps({"recipe": "int8", "min_size": 0}))
    place = [str(DEMO), "-o", str(tmp_path / "a.mlpackage"), "--config", str(config), "-n", "--json"]
    for options, min_size in (([], 0), (["--min-size", "2048"], 2048), (["--min-size", "4000"], 4000)):
        assert main(["compress", *place, *options]) == 0
        expected = milblob.compress(
            DEMO, tmp_path / "a.mlpackage", Linear(), scope=milblob.Scope(min_size=min_size), dry_run=True
        )
        assert json.loads(capsys.readouterr().out) == expected.to_dict()


def test_min_size_is_refused_with_a_plan_also_where_it_is_the_default(tmp_path, capsys):
    place = [str(DEMO), "-o", str(tmp_path / "a.mlpackage"), "--plan", "p.json", "--min-size", "2048"]
    assert main(["compress", *place]) == 2
    assert "--min-size: expected none with --plan" in capsys.readouterr().err
