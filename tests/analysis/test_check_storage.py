"""milblob.check: what is valid and yet costs room or readers, each with a model that has it and one that has not."""

import os
import shutil
import stat

import numpy as np
import pytest

import milblob
from constexpr_bytes import constexpr, value
from hostile_bytes import const, model, program
from paths import DEMO
from peers import WITHOUT

POSIX = pytest.mark.skipif(
    os.name != "posix", reason="modes are POSIX's: files that others cannot read are not found on Windows"
)


def codes(source):
    return [(finding.severity, finding.code) for finding in milblob.check(source)]


# -------------------------------------------------------------------------------------------------- compressed weights


def sparse(zeros, size=64, names=("w",), is_shared=False):
    """A Model with weights of size x size float16, a share of whose elements is left out, each with its parts."""
    count = size * size
    mask = np.arange(count) >= zeros * count
    parts = {
        "mask": ("UINT8", np.packbits(mask, bitorder="little")),
        "nonzero_data": ("FLOAT16", np.ones(int(mask.sum()), np.float16)),
        "shape": ("UINT32", np.array([size, size], np.uint32)),
    }
    shared = [const(value(*part), key) for key, part in parts.items()] if is_shared else []
    given = dict.fromkeys(parts) if is_shared else parts
    given = {key: key if part is None else part for key, part in given.items()}
    weights = [constexpr("sparse_to_dense", [(name, "FLOAT16", (size, size))], given) for name in names]
    return model(program(*shared, *weights))


@pytest.mark.parametrize(("zeros", "found"), [(0, True), (0.03, True), (0.1, False), (0.5, False), (1, False)])
def test_a_compressed_weight_larger_than_a_dense_one(zeros, found):
    source = sparse(zeros)
    with milblob.open(source) as opened:
        weight = opened["w"]
        stored = sum(part.nbytes for part in weight.parts.values())
        assert (stored > weight.size * 2) is found
    assert codes(source) == ([("warning", "compressed-larger")] if found else [])


def test_finding_names_the_weight_and_both_sizes():
    (finding,) = milblob.check(sparse(0))
    assert finding.message == (
        "constexpr_sparse_to_dense weight [64, 64]: expected fewer bytes than 8192, which a dense one takes, got 8712"
    )
    assert finding.where == "main.block['CoreML7'].op[0] 'w'"


def test_small_compressed_weights_are_not_judged():
    assert codes(sparse(0, size=40)) == [] and len(codes(sparse(0, size=46))) == 1


def test_parts_of_several_weights_are_counted_once():
    assert len(codes(sparse(0, names=("v", "w"), is_shared=False))) == 2
    assert codes(sparse(0, names=("v", "w"), is_shared=True)) == []
    assert len(codes(sparse(0, names=("w",), is_shared=True))) == 1


def test_a_weight_that_coremltools_prunes_or_not(tmp_path):
    """coremltools 9.0 with NumPy 2.3 computes NaN as the threshold of large float16 weights: see docs/cli.md."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder as mb

    values = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 512))])
    def network(x):
        return mb.linear(x=x, weight=values)

    dense = ct.convert(network, minimum_deployment_target=ct.target.iOS17, skip_model_load=True)
    config = cto.OptimizationConfig(global_config=cto.OpMagnitudePrunerConfig(target_sparsity=0.5))
    with np.errstate(all="ignore"):
        cto.prune_weights(dense, config).save(str(tmp_path / "pruned.mlpackage"))
        is_pruned = not np.isnan(np.percentile(np.abs(values).astype(np.float16), 50.0))
    with milblob.open(tmp_path / "pruned.mlpackage") as opened:
        (weight,) = (tensor for tensor in opened.values() if tensor.size == values.size)
        assert weight.compression.scheme == "sparse_to_dense"
        zeros = milblob.statistics(weight).zeros
    assert zeros == pytest.approx(values.size / 2 if is_pruned else 0, rel=0.01)
    found = [code for _, code in codes(tmp_path / "pruned.mlpackage")]
    assert ("compressed-larger" in found) is (not is_pruned)


# ------------------------------------------------------------------------------------------------------- inline values


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.ones(16384, np.float32), False),
        (np.ones(16500, np.float32), True),
        (np.ones(40000, np.float16), True),
        (np.ones(70000, np.int8), True),
        (np.ones(40000, np.int32), False),  # no weight file holds it before iOS 18
    ],
)
def test_large_values_in_the_program(array, found):
    source = model(program(const(value(array.dtype.name.upper(), array))))
    assert codes(source) == ([("warning", "inline-large")] if found else [])


def test_finding_about_a_large_value_in_the_program():
    (finding,) = milblob.check(model(program(const(value("FLOAT32", np.ones(20000, np.float32))))))
    assert finding.message == (
        "value in the Program: expected 65536 bytes at most, and larger ones in a weight file, got 80000 bytes"
    )
    assert finding.where == "main.block['CoreML7'].op[0] 'w'.val"


# --------------------------------------------------------------------------------------------------------------- files


@pytest.fixture
def package(tmp_path):
    """A copy of a package that others can read, whatever the umask."""
    target = tmp_path / "model.mlpackage"
    shutil.copytree(DEMO, target)
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


@POSIX
def test_files_that_only_their_owner_can_read(package):
    assert codes(package) == []
    model_file, weights = next(package.rglob("*.mlmodel")), next(package.rglob("weights"))
    model_file.chmod(0o600)
    weights.chmod(0o700)
    assert codes(package) == []  # as coremltools leaves every package
    model_file.chmod(0o400)
    weights.chmod(0o500)
    found = milblob.check(package)
    assert [(f.severity, f.code, f.file) for f in found] == [
        ("note", "owner-only", str(weights)),
        ("note", "owner-only", str(model_file)),
    ]
    assert found[0].message == "permissions of a folder: expected others than its owner to be able to read it, got 0500"
    assert codes(model_file)[0] == ("note", "owner-only")
    for mode in (0o640, 0o604):
        model_file.chmod(mode)
        weights.chmod(0o755)
        assert codes(package) == []
        assert stat.S_IMODE(model_file.stat().st_mode) == mode  # a check changes nothing


def test_files_that_belong_to_no_item(package):
    stray = [
        package / "README.md",
        package / "Data" / "notes.txt",
        package / "Data" / "com.apple.CoreML" / "old.mlmodel",
    ]
    for path in stray:
        path.write_text("x")
    (package / ".DS_Store").write_text("x")
    (package / "Data" / "com.apple.CoreML" / "weights" / "notes.txt").write_text("x")  # within the item
    found = [f for f in milblob.check(package) if f.code != "owner-only"]
    assert sorted(f.file for f in found) == sorted(map(str, stray))
    assert {(f.severity, f.code, f.message) for f in found} == {
        ("note", "unreferenced", "file: expected an item of the manifest that it belongs to, got none")
    }


def test_status_of_the_command(tmp_path, cli):
    for zeros, status in ((0, 1), (0.5, 0)):
        path = tmp_path / f"{zeros}.mlmodel"
        path.write_bytes(sparse(zeros))
        path.chmod(0o600)  # a note does not count
        assert cli("check", path)[0] == status
