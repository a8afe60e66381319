"""Merged packages in coremltools: it loads them, finds every value, and sees what its own save_multifunction makes."""

import re
import shutil

import numpy as np
import pytest

import milblob
from milblob.model.manifest import new_manifest
from paths import DATA
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.milproto import load as milproto
from coremltools.libmilstoragepython import _BlobStorageReader


def convert(folder, name, seed, half, change=0.0):
    """A package of two linear layers by coremltools' converter; the second weight depends on `change`."""
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal((24, 24)).astype(np.float32) for _ in range(2)]

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 24))], opset_version=ct.target.iOS18)
    def program(x):
        y = mb.relu(x=mb.linear(x=x, weight=weights[0], bias=np.arange(24, dtype=np.float32), name="first"))
        return mb.linear(x=y, weight=weights[1] + np.float32(change), name="second")

    precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    model = ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18, compute_precision=precision, skip_model_load=True,
    )  # fmt: skip
    model.author = "the author"
    model.save(str(folder / name))
    return folder / name


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return [
        convert(folder, "same.mlpackage", 1, half=False),
        convert(folder, "changed.mlpackage", 1, half=False, change=1.0),
        convert(folder, "half.mlpackage", 1, half=True),
        *(  # copies: coremltools rewrites the manifest of what it opens
            shutil.copytree(DATA / name / "model.mlpackage", folder / f"{name}.mlpackage")
            for name in ("functions", "states", "palette_scaled")
        ),
    ]


NAMES = ["same", "changed", "half", {}, "stateful", "palette"]
FUNCTIONS = ["same", "changed", "half", "alpha", "beta", "stateful", "palette"]


def by_coremltools(sources, path):
    descriptor = ct.utils.MultiFunctionDescriptor()
    for source, name in zip(sources, NAMES, strict=True):
        if isinstance(name, str):
            descriptor.add_function(str(source), "main", name)
        else:
            descriptor.add_model(str(source))
    descriptor.default_function_name = "half"
    ct.utils.save_multifunction(descriptor, str(path))
    return path


@pytest.fixture(scope="module")
def merged(sources, tmp_path_factory):
    """(ours, coremltools')."""
    folder = tmp_path_factory.mktemp("merged")
    milblob.merge_functions(list(zip(sources, NAMES, strict=True)), folder / "ours.mlpackage", default="half")
    return folder / "ours.mlpackage", by_coremltools(sources, folder / "theirs.mlpackage")


def pymil(package):
    """PyMIL program by coremltools' loader; all constants are read from the weight file."""
    spec = ct.utils.load_spec(str(package))
    return milproto.load(spec, spec.specificationVersion, str(package / "Data/com.apple.CoreML/weights"))


def operations(function):
    """[(operation type, output names, values of its constants)] of a PyMIL function, nested blocks included."""

    def walk(block):
        for op in block.operations:
            values = [o.val for o in op.outputs] if op.op_type == "const" else []
            yield op.op_type, [o.name for o in op.outputs], values
            for inner in op.blocks:
                yield from walk(inner)

    return list(walk(function))


def assert_equal_operations(a, b):
    def names(rows):  # what the loader names itself ends in a running number
        return [(kind, [re.sub(r"_\d+$", "", name) for name in outputs]) for kind, outputs, _ in rows]

    assert names(a) == names(b)
    for (_, names, x), (_, _, y) in zip(a, b, strict=True):
        for left, right in zip(x, y, strict=True):
            assert np.asarray(left).dtype == np.asarray(right).dtype, names
            assert np.array_equal(left, right), names


def test_spec_loads_and_describes_the_functions_as_theirs(merged):
    ours, theirs = (ct.models.MLModel(str(path), skip_model_load=True).get_spec() for path in merged)
    assert ours.specificationVersion == theirs.specificationVersion
    assert ours.description.defaultFunctionName == theirs.description.defaultFunctionName == "half"
    assert [f.name for f in ours.description.functions] == FUNCTIONS
    assert {f.name: f for f in ours.description.functions} == {f.name: f for f in theirs.description.functions}
    for field in ("input", "output", "state"):
        assert not getattr(ours.description, field) and not getattr(theirs.description, field)
    assert ours.description.metadata.author == "the author"
    for function in ours.mlProgram.functions.values():
        assert function.opset == "CoreML8" and list(function.block_specializations) == ["CoreML8"]


def test_every_function_is_the_one_of_its_source(merged, sources):
    program = pymil(merged[0])
    assert sorted(program.functions) == sorted(FUNCTIONS)
    for source, name in zip(sources, NAMES, strict=True):
        for old, function in pymil(source).functions.items():
            new = name if isinstance(name, str) else old
            assert_equal_operations(operations(program.functions[new]), operations(function))


def test_values_are_those_that_their_merge_has(merged):
    """Their passes rename constants and drop equal ones, so only the values of all large constants are compared."""
    found = []
    for path in merged:
        functions = pymil(path).functions
        found.append({
            name: sorted(
                (str(np.asarray(v).dtype), np.shape(v), np.ascontiguousarray(v).tobytes())
                for kind, _, values in operations(function) if kind == "const" for v in values if np.size(v) >= 10
            )
            for name, function in functions.items()
        })  # fmt: skip
    ours, theirs = ({name: sorted(set(rows)) for name, rows in one.items()} for one in found)
    assert ours == theirs
    assert sum(map(len, ours.values())) > 10


def test_weights_are_shared_as_theirs_are(merged):
    """Their blob reader finds every record that our references lead to; no distinct blob is there twice."""
    ours, theirs = ([*milblob.BlobReader(path / "Data/com.apple.CoreML/weights/weight.bin")] for path in merged)
    file = merged[0] / "Data/com.apple.CoreML/weights/weight.bin"
    reader, blobs = _BlobStorageReader(str(file)), milblob.BlobReader(file)
    data = {(r.dtype, blobs.read_packed(r).tobytes()) for r in blobs}
    assert len(data) == len(ours) <= len(theirs)
    floats = 0
    with milblob.open(merged[0], stored=True) as opened:
        for tensor in opened.values():
            if tensor.offset is not None and str(tensor.mil_dtype) == "float32":
                floats += 1
                assert np.array_equal(np.asarray(reader.read_float_data(tensor.offset)), tensor.read().reshape(-1))
        assert floats > 3
        places = [
            {t.name.partition("/")[2]: t.offset for t in opened.values() if t.function == f} for f in FUNCTIONS[:2]
        ]
        shared = {name for name in places[0] if places[0][name] == places[1][name]}
        assert shared == {"first_weight_0", "first_bias_0", "second_bias_0"} == places[0].keys() - {"second_weight_0"}
    assert list(milblob.check(merged[0])) == []


def test_coremltools_leaves_the_manifest_alone(merged):
    """It rewrites the manifest of what it opens; ours is as it would write it."""
    before = (merged[0] / "Manifest.json").read_bytes()
    ct.utils.load_spec(str(merged[0]))
    assert (merged[0] / "Manifest.json").read_bytes() == before == new_manifest()


def test_a_merged_package_merges_again(merged, tmp_path):
    """Of both makers; nothing is stored twice."""
    milblob.merge_functions([merged[0]], tmp_path / "again.mlpackage")
    for name in ("Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin", "Manifest.json"):
        assert (tmp_path / "again.mlpackage" / name).read_bytes() == (merged[0] / name).read_bytes()
    renamed = {name: f"their_{name}" for name in FUNCTIONS}
    both = milblob.merge_functions([merged[0], (merged[1], renamed)], tmp_path / "both.mlpackage")
    assert both.blob_count == len(milblob.BlobReader(merged[0] / "Data/com.apple.CoreML/weights/weight.bin"))
    assert sorted(pymil(tmp_path / "both.mlpackage").functions) == sorted([*FUNCTIONS, *renamed.values()])
