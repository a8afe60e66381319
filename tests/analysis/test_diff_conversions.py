"""milblob.diff of two conversions of one network by coremltools: float32 and float16, dense and compressed."""

import numpy as np
import pytest

import milblob
from peers import WITHOUT

ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools.converters.mil import Builder as mb  # noqa: E402

SIZE, HEADS, LAYERS = 32, 4, 3


def values(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 8


def attention(x, seed):
    def heads(number):
        y = mb.linear(x=x, weight=values(seed + number, SIZE, SIZE), bias=values(seed + number + 50, SIZE))
        return mb.transpose(x=mb.reshape(x=y, shape=[1, -1, HEADS, SIZE // HEADS]), perm=[0, 2, 1, 3])

    query, key, value = (heads(number) for number in range(3))
    scores = mb.softmax(x=mb.matmul(x=query, y=key, transpose_y=True), axis=-1)
    y = mb.reshape(x=mb.transpose(x=mb.matmul(x=scores, y=value), perm=[0, 2, 1, 3]), shape=[1, -1, SIZE])
    return mb.add(x=x, y=mb.linear(x=y, weight=values(seed + 3, SIZE, SIZE), bias=values(seed + 53, SIZE)))


@mb.program(input_specs=[mb.TensorSpec(shape=(1, 6), dtype=ct.converters.mil.mil.types.int32)])
def transformer(ids):
    x = mb.gather(x=values(1, 40, SIZE), indices=ids, axis=0)
    for layer in range(LAYERS):
        seed = 100 * (layer + 1)
        norm = {"gamma": values(seed + 9, SIZE), "beta": np.zeros(SIZE, np.float32), "axes": [-1]}
        x = attention(mb.layer_norm(x=x, epsilon=1e-5, **norm), seed)
        inner = mb.gelu(x=mb.linear(x=x, weight=values(seed + 20, 64, SIZE), bias=values(seed + 21, 64)))
        x = mb.add(x=x, y=mb.linear(x=inner, weight=values(seed + 22, SIZE, 64), bias=values(seed + 23, SIZE)))
    return mb.linear(x=x, weight=values(2, 40, SIZE), bias=values(3, 40))


@mb.program(input_specs=[mb.TensorSpec(shape=(1, 3, 16, 16))])
def convolutional(x):
    for layer, (before, after) in enumerate(((3, 16), (16, 16), (16, 24))):
        x = mb.conv(x=x, weight=values(layer, after, before, 3, 3), pad_type="same")
        statistics = {name: values(10 * layer + n, after) for n, name in enumerate(("mean", "gamma", "beta"))}
        x = mb.batch_norm(x=x, variance=np.abs(values(99 + layer, after)) + 1, **statistics)
        x = mb.relu(x=x)
    first, second = mb.split(x=x, num_splits=2, axis=1)
    return mb.mul(x=first, y=mb.sigmoid(x=second))


@mb.program(input_specs=[mb.TensorSpec(shape=(5, 1, 12))])
def recurrent(x):
    hidden = np.zeros((1, 16), np.float32)
    for layer, size in enumerate((12, 16)):
        x, _, _ = mb.lstm(
            x=x,
            initial_h=hidden,
            initial_c=hidden,
            weight_ih=values(layer, 64, size),
            weight_hh=values(layer + 10, 64, 16),
            bias=values(layer + 20, 64),
            output_sequence=True,
        )

    def body(count, state):
        return mb.add(x=count, y=1), mb.tanh(x=mb.linear(x=state, weight=values(5, 16, 16), bias=values(6, 16)))

    state = mb.squeeze(x=mb.slice_by_index(x=x, begin=[4, 0, 0], end=[5, 1, 16]), axes=[0])
    return mb.while_loop(_cond=lambda count, _: mb.less(x=count, y=3), _body=body, loop_vars=(0, state))[1]


NETWORKS = {"transformer": transformer, "convolutional": convolutional, "recurrent": recurrent}


@pytest.fixture(scope="module", params=NETWORKS)
def conversions(request, tmp_path_factory):
    """The float32 and the float16 conversion of a network."""
    folder = tmp_path_factory.mktemp("conversions")
    paths = []
    for precision in (ct.precision.FLOAT32, ct.precision.FLOAT16):
        converted = ct.convert(
            NETWORKS[request.param],
            compute_precision=precision,
            minimum_deployment_target=ct.target.iOS17,
            skip_model_load=True,
        )
        paths.append(folder / f"{precision.name}.mlpackage")
        converted.save(str(paths[-1]))
    return paths


def test_every_weight_of_two_precisions_is_compared(conversions):
    """The values tell whether the right ones are: they differ by rounding only."""
    for a, b in (conversions, conversions[::-1]):
        found = milblob.diff(a, b)
        totals = found.totals
        assert len(found.rows) >= 6 and not totals["only_a"] + totals["only_b"] + totals["shape"], str(found)
        assert found.failing(min_sqnr=60, min_cosine=0.9999, max_abs=0.01) == []
        assert found.failing(min_sqnr=120)
        assert len(found.structure) <= 8, "\n".join(change.message for change in found.structure)
        wide = milblob.load(a)
        narrow = milblob.load(b)
        for row in found.rows:
            ours, theirs = wide[row.name], narrow[row.other]
            assert (ours.astype(np.float16) == theirs.astype(np.float16)).all(), row.name


def test_the_command_is_a_gate(conversions, cli):
    status, out, _ = cli("diff", *conversions, "--min-sqnr", "60", "--max-abs", "0.01")
    assert status == 0 and out.endswith(
        "passes: every weight is within the limits (SQNR 60 dB or more, max 0.01 or less)\n"
    )
    status, out, _ = cli("diff", *conversions, "--min-sqnr", "120")
    assert status == 1 and " beyond a limit (SQNR 120 dB or more)\n" in out
    assert cli("diff", *conversions)[0] == 1


@pytest.mark.sample(1)
def test_compressed_after_conversion_to_float16(conversions, tmp_path):
    """Names with both marks, such as "w_to_fp16_palettized"."""
    import coremltools.optimize.coreml as cto

    model = ct.models.MLModel(str(conversions[1]), skip_model_load=True)
    config = cto.OptimizationConfig(cto.OpPalettizerConfig(mode="uniform", nbits=6, weight_threshold=100))
    cto.palettize_weights(model, config).save(str(tmp_path / "small.mlpackage"))
    found = milblob.diff(conversions[0], tmp_path / "small.mlpackage")
    totals = found.totals
    assert not totals["only_a"] + totals["only_b"] + totals["shape"], str(found)
    assert any(row.compressions[1] for row in found.rows) and not found.failing(min_sqnr=8)
    # The parts of compressed weights are paired between two compressed models, whatever their names.
    other = ct.models.MLModel(str(conversions[0]), skip_model_load=True)
    cto.palettize_weights(other, config).save(str(tmp_path / "other.mlpackage"))
    found = milblob.diff(tmp_path / "other.mlpackage", tmp_path / "small.mlpackage", stored=True)
    totals = found.totals
    assert not totals["only_a"] + totals["only_b"], str(found)
