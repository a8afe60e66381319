"""milblob.diff of a model and its compressed versions, made by coremltools now; figures against NumPy."""

import sys

import pytest

import milblob
from diffing import check_figures
from paths import DATA
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

sys.path.insert(0, str(DATA))  # the makers of the fixtures

import coremltools as ct

import make_compressed as make
import packages

STEPS = {
    "palettized": (make.palettize(4),),
    "grouped": (make.palettize(3, "per_grouped_channel", group_size=8),),
    "quantized": (make.quantize("linear_symmetric", "int8"),),
    "blockwise": (make.quantize("linear", "uint4", "per_block", block_size=8),),
    "sparsified": (make.prune(0.5),),
    "sparse_palette": (make.prune(0.5), make.palettize(4)),
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A float16 model, its path and its weights by who reads them."""
    folder = tmp_path_factory.mktemp("dense")
    model = make.base_model(ct.target.iOS18, half=True)
    return model, packages.save(model, str(folder))


def readers(path):
    with milblob.open(path) as model:
        return {
            (t.consumers[0].reader.name, t.consumers[0].parameter): name for name, t in model.items() if t.consumers
        }


@pytest.mark.parametrize("name", STEPS)
def test_a_model_and_its_compressed_version(dense, name, tmp_path):
    model, path = dense
    import coremltools.optimize.coreml as cto

    for number, (function, config) in enumerate(STEPS[name]):
        options = {"joint_compression": True} if number else {}
        model = function(model, cto.OptimizationConfig(global_config=config), **options)
    other = packages.save(model, str(tmp_path))
    rows, arrays = make.dense_values(other)  # by coremltools' own decompress()
    decompressed = {row["output"]: arrays[row["npz"]] for row in rows}
    plain, compressed = readers(path), readers(other)
    expected = {plain[key]: decompressed[new] for key, new in compressed.items() if new in decompressed}
    assert len(expected) >= 2  # blocks of 8 do not fit the convolution

    found = milblob.diff(path, other)
    originals = milblob.load(path)
    compared = {row.name: row for row in found.rows if row.name in expected}
    assert set(compared) == set(expected)
    for key, row in compared.items():
        assert (row.kind, row.other in decompressed) == ("different", True)
        assert row.compressions[0] is None and row.compressions[1]
        check_figures(row.figures, originals[key], expected[key])
        assert row.figures.sqnr > 3
    assert {row.kind for row in found.rows if row.name not in expected} <= {"same"}
    assert found.structure == [], found.structure  # the same operations read them
    assert not found.is_same

    # The decompressed weights themselves: the same values, stored otherwise.
    rows = milblob.diff(other, decompressed, select=decompressed.__contains__).rows
    assert {row.kind for row in rows} == {"stored"}
    again = milblob.diff(other, other)
    assert again.is_same and {row.kind for row in again.rows} == {"same"}
