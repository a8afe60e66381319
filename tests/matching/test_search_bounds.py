"""The search for how weights follow from a base takes bounded time for any values, and what is left out is refused."""

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from hostile_bytes import blob_value, const, model, program, write_package
from milblob.dtypes import DType
from milblob.matching import checkpoint, search
from milblob.matching.steps import conv_folds
from milblob.model.stored import StoredArray
from peers import WITHOUT
from progress_rows import steps
from thorough import sized

FILE = "@model_path/weights/weight.bin"


def package_of(folder, weights):
    code = DType.FLOAT32.mil_code
    data, offsets = blob_file(*(("FLOAT32", array.reshape(-1)) for array in weights.values()))
    rows = [
        const(blob_value(code, list(array.shape), FILE, at), name)
        for (name, array), at in zip(weights.items(), offsets, strict=True)
    ]
    return write_package(folder, model(program(*rows)), {"weight.bin": data})


def lineage_of(package, base):
    given = {
        name: StoredArray(name, DType.FLOAT32, array.shape, lambda array=array: array, "memory")
        for name, array in base.items()
    }
    with milblob.open(package, constants=True) as opened:
        return search.find_lineage(given, dict(opened))


HOSTILE = {
    "equal vectors": {f"{i}": np.zeros(64, np.float32) for i in range(100)},
    "equal matrices": {f"{i}": np.arange(12, dtype=np.float32).reshape(3, 4) % 5 for i in range(100)},
    "rows that repeat": {"w": np.tile(np.array([[1, 2], [1, 2], [3, 4]], np.float32), (4000, 1))},
    "symmetric in all ways": {f"{i}": np.ones((2, 2, 2, 2, 2), np.float32) for i in range(20)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_search_has_an_end(name, tmp_path):
    weights = HOSTILE[name]
    package = package_of(tmp_path, {f"w{key}": array for key, array in weights.items()})
    base = {
        f"given{key}": np.concatenate([array, array[:1]]) if name.startswith("rows") else array
        for key, array in weights.items()
    }
    lineage = lineage_of(package, base)
    for origin in lineage.origins.values():
        known = [claim.derivation for claim in origin.claims if claim.derivation is not None]
        assert len({source for derivation in known for source in derivation.sources()}) <= search._MAX_CLAIMS
        assert len(known) <= search._MAX_CLAIMS * (1 + search._MAX_LAYOUTS)
    # Whatever was left out is not lost: a change of any array is noticed.
    for changed in list(base)[:: max(len(base) // sized(2, 3), 1)]:
        new = {**base, changed: base[changed] + 1}
        with pytest.raises(ValueError, match="differ"):
            milblob.refit(package, new, base=base, dry_run=True)


def test_without_work_everything_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(checkpoint, "_MIN_WORK", 0)
    monkeypatch.setattr(checkpoint, "_WORK_PER_ELEMENT", 0)
    array = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    package = package_of(tmp_path, {"w": array})
    with pytest.raises(ValueError, match="1 constant of the model that milblob cannot compute from the base: w"):
        milblob.refit(package, {"w": array + 1}, base={"w": array})


def test_compressed_convolutions_take_time_in_proportion(monkeypatch, tmp_path):
    """Each was once rendered with the batch norm of each other one; and the bar stood still meanwhile."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder as mb

    from finetuning import batch_norm, norm, random_arrays

    count = 6
    shapes = {f"c{at}.weight": (8, 8, 3, 3) for at in range(count)}
    shapes |= {name.replace("__", "."): shape for at in range(count) for name, shape in norm(f"b{at}", 8).items()}
    base = random_arrays(shapes, 1)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 8, 6, 6))], opset_version=ct.target.iOS16)
    def network(x):
        for at in range(count):
            x = mb.conv(x=x, weight=base[f"c{at}.weight"], pad_type="same")
            x = mb.relu(x=batch_norm(mb, x, base, f"b{at}"))
        return x

    model = ct.convert(network, minimum_deployment_target=ct.target.iOS16, skip_model_load=True)
    config = cto.OptimizationConfig(global_config=cto.OpLinearQuantizerConfig(weight_threshold=16))
    cto.linear_quantize_weights(model, config).save(str(tmp_path / "m.mlpackage"))
    calls, told, compared = [], [], conv_folds.sqnr_of
    monkeypatch.setattr(conv_folds, "sqnr_of", lambda *args: calls.append(1) or compared(*args))
    new = random_arrays(shapes, 2)
    report = milblob.refit(
        tmp_path / "m.mlpackage", new, base=base, requantize="fit", progress=lambda *row: told.append(row)
    )
    assert len(report.changes) == 2 * count and len(calls) == count
    explained = [done / total for name, done, total in steps(told) if name.endswith("_quantized") and done < total / 2]
    assert len(set(explained)) == count  # each convolution moves the bar while its origin is looked for
