"""milblob.refit with a base: functions of arrays that were transposed where their shape does not show it."""

import numpy as np
import pytest

import milblob
from finetuning import NETWORKS, constants, converted, random_arrays
from peers import WITHOUT

pytestmark = pytest.mark.usefixtures("unsynced")

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])


def decays(mb, x, w):
    """`-exp(w)` of Mamba: in a product, which coremltools makes a linear of, and alone."""
    x = mb.relu(x=mb.matmul(x=x, y=np.ascontiguousarray(-np.exp(w["w"]).T)))
    return mb.relu(x=mb.add(x=x, y=np.ascontiguousarray(-np.exp(w["v"]).T)))


def heads(mb, x, w):
    """Of each of eight matrices; and the inputs and outputs of a convolution, by a gate."""
    x = mb.add(x=x, y=np.ascontiguousarray(np.tanh(w["w"]).transpose(0, 2, 1))[None])
    return mb.relu(x=mb.conv(x=mb.relu(x=x), weight=np.ascontiguousarray(np.tanh(w["v"]).transpose(1, 0, 2, 3))))


def weight_norm(mb, x, w):
    """Along the other axis than in the model."""
    norm = mb.reduce_l2_norm(x=w["v"], axes=[1], keep_dims=True)
    weight = mb.mul(x=w["g"], y=mb.real_div(x=w["v"], y=norm)).val
    return mb.relu(x=mb.add(x=x, y=np.ascontiguousarray(weight.T)))


def sums(mb, x, w):
    x = mb.relu(x=mb.add(x=x, y=np.ascontiguousarray((w["a"] + w["b"]).T)))
    x = mb.reshape(x=mb.slice_by_size(x=x, begin=[0, 0, 0, 0], size=[1, 5, 6, 2]), shape=(1, 6, 10))
    return mb.relu(x=mb.add(x=x, y=np.ascontiguousarray((w["c"] + w["d"]).T)))


TURNED = {
    "decays": ({"w": (6, 6), "v": (1, 6, 6)}, lambda mb, x, w: decays(mb, x, w | {"v": w["v"][0]})),
    "heads": ({"w": (8, 6, 6), "v": (8, 8, 3, 3)}, heads),
    "sums": ({"a": (6, 6), "b": (6, 6), "c": (10, 6), "d": (10, 6)}, sums),
    "weight_norm": ({"v": (6, 6), "g": (6, 1)}, weight_norm),
}


def refitted(name, base, tmp_path, precision="FLOAT32"):
    """Return the constants of a refitted model, and of a new conversion with the same arrays."""
    new = random_arrays(NETWORKS[name][0], 2)
    model = converted(name, base, tmp_path / "m.mlpackage", precision)
    assert milblob.refit(model, new, base=base).unused == ()
    return constants(model), constants(converted(name, new, tmp_path / "new.mlpackage", precision))


@pytest.mark.parametrize("name", TURNED)
def test_equal_axes_that_changed_places(name, monkeypatch, tmp_path):
    """Only unequal axes were tried: the shape of a square matrix tells nothing."""
    monkeypatch.setitem(NETWORKS, name, TURNED[name])
    got, wanted = refitted(name, random_arrays(TURNED[name][0], 1), tmp_path)
    assert got == wanted


def test_a_symmetric_matrix_does_not_show_how_it_was_turned(monkeypatch, tmp_path):
    """Both ways give its values: new values that differ are refused, and those that are symmetric too are taken."""
    shapes = {"w": (6, 6)}
    monkeypatch.setitem(NETWORKS, "plain", (shapes, lambda mb, x, w: mb.relu(x=mb.add(x=x, y=-np.exp(w["w"])))))
    base, new = ({"w": w["w"] + w["w"].T} for w in (random_arrays(shapes, 1), random_arrays(shapes, 2)))
    model = converted("plain", base, tmp_path / "m.mlpackage", "FLOAT32")
    before = constants(model)
    with pytest.raises(
        ValueError, match=r"shared by exp\(w\) \* -1 and exp\(w: transpose \(1, 0\)\) .*, whose new values differ"
    ):
        milblob.refit(model, random_arrays(shapes, 2), base=base)
    assert constants(model) == before
    milblob.refit(model, new, base=base)
    assert constants(model) == constants(converted("plain", new, tmp_path / "new.mlpackage", "FLOAT32"))
