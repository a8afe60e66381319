"""Whether compressed values are seen as a rendering of dense ones, however coarse, and nothing else is."""

import numpy as np
import pytest

from finetuning import NETWORKS, converted, random_arrays
from milblob.formats.read import open_arrays
from milblob.matching.search import find_lineage
from milblob.matching.steps.renderings import sqnr_of
from peers import WITHOUT

import milblob  # isort: skip
from draws import restarts
from thorough import some

RNG = np.random.default_rng(3)
each_test_draws_the_same = restarts(RNG)


def by_rows(values, nbits):
    return rounded(values, nbits, axis=1)


def rounded(values, nbits, axis=None):
    scale = np.abs(values).max(axis=axis, keepdims=True) / (2 ** (nbits - 1) - 1)
    return np.round(values / scale) * scale


def palettized(values, nbits):
    """As k-means does: each value becomes the nearest entry, each entry is the mean of its values."""
    entries = np.quantile(values, (np.arange(2**nbits) + 0.5) / 2**nbits)
    for _ in range(60):
        codes = np.digitize(values, (entries[1:] + entries[:-1]) / 2)
        entries = np.array(
            [values[codes == code].mean() if (codes == code).any() else e for code, e in enumerate(entries)]
        )
    return entries[np.digitize(values, (entries[1:] + entries[:-1]) / 2)]


def pruned(values, share):
    return np.where(np.abs(values) < np.quantile(np.abs(values), share), 0, values)


RENDERINGS = {
    "int8": lambda values: rounded(values, 8),
    "int4": lambda values: rounded(values, 4),
    "int8 by rows": lambda values: by_rows(values, 8),
    "int4 by rows": lambda values: by_rows(values, 4),
    "palette of 64": lambda values: palettized(values, 6),
    "palette of 16": lambda values: palettized(values, 4),
    "palette of 4": lambda values: palettized(values, 2),
    "half of it pruned": lambda values: pruned(values, 0.5),
    "pruned and palettized": lambda values: palettized(pruned(values, 0.3), 4),
}


@pytest.mark.parametrize("shape", [(64, 144), (32, 16), (8, 512)])
@pytest.mark.parametrize("name", RENDERINGS)
def test_a_rendering_and_what_is_none(name, shape):
    values = RNG.standard_normal(shape)
    values *= np.exp(RNG.standard_normal((shape[0], 1)))  # channels of very different sizes
    rendered, block = RENDERINGS[name](values), (1, shape[1]) if "rows" in name else None
    found = sqnr_of(values, rendered, block)
    assert found is not None and found == pytest.approx(
        10 * np.log10((values**2).sum() / ((values - rendered) ** 2).sum())
    )
    # Each channel times a factor, as a batch norm that was folded in between.
    factors = np.exp(RNG.standard_normal((shape[0], 1)) * 0.4)
    assert sqnr_of(values, RENDERINGS[name](values * factors), block) is None
    assert sqnr_of(RNG.standard_normal(shape), rendered, block) is None
    assert sqnr_of(values, values) == np.inf


def test_values_without_a_ratio():
    assert sqnr_of(np.zeros((4, 8)), np.ones((4, 8))) is None
    assert sqnr_of(np.full((4, 8), np.nan), np.ones((4, 8))) is None
    assert sqnr_of(np.ones(16), np.ones(16)) == np.inf


@pytest.mark.parametrize("mode", some(["int8", "palette"], 1))
@pytest.mark.parametrize(
    "name", ["conv_norm", "two_conv_norms", "transposed_convs", "linears", "split_attention", "joined_attention"]
)
def test_compressed_weights_are_learnt(name, mode, tmp_path):
    """coremltools compresses after it has folded, split and joined: the same derivations are found."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    import coremltools.optimize.coreml as cto
    from safetensors.numpy import save_file

    arrays = random_arrays(NETWORKS[name][0], 1)
    save_file(arrays, tmp_path / "base.safetensors")
    plain = converted(name, arrays, tmp_path / "m.mlpackage")
    loaded = ct.models.MLModel(str(plain), skip_model_load=True)
    if mode == "int8":
        config = cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=30)
        coded = cto.linear_quantize_weights(loaded, cto.OptimizationConfig(global_config=config))
    else:
        config = cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=30)
        coded = cto.palettize_weights(loaded, cto.OptimizationConfig(global_config=config))
    coded.save(str(tmp_path / "coded.mlpackage"))

    def found(path):
        with milblob.open(path, constants=True) as model, open_arrays(tmp_path / "base.safetensors") as base:
            lineage = find_lineage(dict(base.items()), dict(model))
            assert not lineage.unknown and not lineage.unused
            count = sum(bool(model[name].compression) for name in lineage.origins)
            assert count == sum(origin.sqnr is not None for origin in lineage.origins.values())
            assert all(origin.sqnr is None or origin.sqnr > 15 for origin in lineage.origins.values())
            return sorted(str(claim.derivation) for o in lineage.origins.values() for claim in o.claims), count

    (wanted, none), (derivations, count) = found(plain), found(tmp_path / "coded.mlpackage")
    assert derivations == wanted and count > 0 == none
