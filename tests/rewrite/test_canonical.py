"""repack --canonical: whatever was written of a model, in whatever order, gives the same bytes in every file."""

import itertools
import json
import shutil

import pytest

import milblob
from cases import model_directory
from children import run_child
from milblob.program import schema
from milblob.rewrite.canonical import DATE
from paths import DATA, DEMO
from peers import WITHOUT
from protobuf_programs import reverse_maps
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")


def tree(package):
    return {str(path.relative_to(package)): path.read_bytes() for path in sorted(package.rglob("*")) if path.is_file()}


def canonical(source, target, **options):
    milblob.repack(source, target, canonical=True, force=True, **options)
    return tree(target) if target.is_dir() else target.read_bytes()


def rewritten(source, target):
    """A copy of a package as another process might have written it: other identifiers, order of maps, and date."""
    shutil.copytree(source, target)
    manifest = json.loads((target / "Manifest.json").read_text())
    names = {key: f"0000-{number}" for number, key in enumerate(reversed(manifest["itemInfoEntries"]))}
    manifest["itemInfoEntries"] = {names[key]: item for key, item in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    (target / "Manifest.json").write_text(json.dumps(manifest))
    file = next(model_directory(target).glob("*.mlmodel"))
    message = schema.parse("Model", file.read_bytes())
    if message.description.metadata.userDefined:
        message.description.metadata.userDefined[DATE] = "2001-01-01"
    data = message.SerializeToString(deterministic=True)
    other = reverse_maps(message.DESCRIPTOR, data)
    assert other != data and schema.parse("Model", other) == message
    file.write_bytes(other)
    return target


def sources():
    return [DEMO, *sorted({*DATA.glob("*/model.mlpackage")} - {DATA / "neural_network" / "model.mlpackage"})]


@pytest.mark.parametrize("source", some(sources(), 10), ids=lambda path: path.parent.name)
def test_another_order_gives_the_same_bytes(source, tmp_path):
    other = rewritten(source, tmp_path / "other.mlpackage")
    found = canonical(source, tmp_path / "a.mlpackage")
    assert found != tree(source)
    assert canonical(other, tmp_path / "b.mlpackage") == found
    assert canonical(tmp_path / "b.mlpackage", tmp_path / "b.mlpackage") == found  # in place, and once is enough
    assert milblob.diff(source, tmp_path / "a.mlpackage").is_same
    errors = [f for f in milblob.check(tmp_path / "a.mlpackage") if f.severity == "error"]
    assert errors == [f for f in milblob.check(source) if f.severity == "error"]
    with milblob.open(source) as one, milblob.open(tmp_path / "a.mlpackage") as two:
        user_defined = dict(one.metadata.user_defined)
        user_defined.pop(DATE, None)
        assert two.metadata.user_defined == user_defined  # all but the date is kept


@pytest.mark.parametrize(
    "case", some(["constexpr_ios16", "functions", "sparse_quantized", "pipeline", "opset_ios18_fp16"], 6)
)
@pytest.mark.parametrize(
    "options", [{"dedupe": True, "gc": True}, {"decompress": True}, {"externalize": 1}, {"split": 500}, {"align": 4096}]
)
def test_with_other_options(case, options, tmp_path):
    source = DATA / case / "model.mlpackage"
    found = canonical(source, tmp_path / "a.mlpackage", **options)
    assert canonical(rewritten(source, tmp_path / "other.mlpackage"), tmp_path / "b.mlpackage", **options) == found


@pytest.mark.parametrize("case", ["constexpr_ios18", "sparse_quantized"])
def test_records_of_weights_that_become_dense_are_in_the_order_of_the_program(case, tmp_path):
    found = canonical(DATA / case / "model.mlpackage", tmp_path / "a.mlpackage", decompress=True)
    assert canonical(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage") == found


@pytest.mark.parametrize("name", ["reversed", "padded_lengths", "padded_tags", "padded_values"])
def test_other_wire_forms_give_the_same_bytes(name, tmp_path):
    plain, other = (next((DATA / "wire" / case).rglob("*.mlmodel")) for case in ("plain", name))
    assert plain.read_bytes() != other.read_bytes()
    found = canonical(plain, tmp_path / "a.mlmodel")
    assert canonical(other, tmp_path / "b.mlmodel") == found
    assert milblob.diff(plain, tmp_path / "a.mlmodel").is_same


@pytest.mark.parametrize("name", ["unknown_fields", "unknown_groups", "unknown_in_entry"])
def test_unknown_fields_are_kept(name, tmp_path):
    source = next((DATA / "wire" / name).rglob("*.mlmodel"))
    canonical(source, tmp_path / "a.mlmodel")
    before, after = (schema.parse("Model", path.read_bytes()) for path in (source, tmp_path / "a.mlmodel"))
    assert before == after and before.SerializeToString(deterministic=True) == (tmp_path / "a.mlmodel").read_bytes()


def test_identifiers_follow_from_the_contents(tmp_path):
    def identifiers(source, **options):
        found = json.loads(canonical(source, tmp_path / "out.mlpackage", **options)["Manifest.json"])
        return list(found["itemInfoEntries"]), found["rootModelIdentifier"]

    keys, root = identifiers(DEMO)
    assert len(set(keys)) == 2 and root in keys and keys == sorted(keys)
    others, _ = identifiers(DEMO, align=4096)
    assert not {*keys} & {*others}
    twice = rewritten(DEMO, tmp_path / "twice.mlpackage")  # two items that are equal still have names of their own
    manifest = json.loads((twice / "Manifest.json").read_text())
    manifest["itemInfoEntries"]["again"] = dict(next(iter(manifest["itemInfoEntries"].values())))
    (twice / "Manifest.json").write_text(json.dumps(manifest))
    assert len(set(identifiers(twice)[0])) == 3


def test_nothing_happens_to_identifiers_otherwise(tmp_path):
    milblob.repack(DEMO, tmp_path / "out.mlpackage", align=4096)
    assert (tmp_path / "out.mlpackage" / "Manifest.json").read_bytes() == (DEMO / "Manifest.json").read_bytes()


CONVERSIONS = """
import sys
import numpy as np
import coremltools as ct
import coremltools.optimize.coreml as cto
from coremltools.converters.mil import Builder as mb

random = np.random.default_rng(0)
shapes = [(64, 32), (64, 64), (32, 64)]
weights = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
configs = {
    "palette": (cto.palettize_weights, cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=10)),
    "int8": (cto.linear_quantize_weights, cto.OpLinearQuantizerConfig(weight_threshold=10)),
    "sparse": (cto.prune_weights, cto.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=10)),
}
for target in ("iOS16", "iOS18"):
    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 32))])
    def network(x):
        for weight in weights:
            x = mb.relu(x=mb.linear(x=x, weight=weight, bias=np.arange(len(weight)).astype(np.float32)))
        return x

    opset = getattr(ct.target, target)
    model = ct.convert(network, minimum_deployment_target=opset, skip_model_load=True)
    model.save(f"{sys.argv[1]}/{target} dense.mlpackage")
    for name, (function, config) in configs.items():
        compressed = function(model, cto.OptimizationConfig(global_config=config))
        compressed.save(f"{sys.argv[1]}/{target} {name}.mlpackage")
"""


@pytest.mark.thorough
def test_conversions_by_two_processes(tmp_path):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        run_child(CONVERSIONS, tmp_path / str(number))
    for target, name in itertools.product(("iOS16", "iOS18"), ("dense", "palette", "int8", "sparse")):
        one, other = (tmp_path / str(number) / f"{target} {name}.mlpackage" for number in range(2))
        assert tree(one) != tree(other)
        assert canonical(one, tmp_path / "a.mlpackage") == canonical(other, tmp_path / "b.mlpackage")
