"""Plots: what is drawn is what NumPy and the reports say; each takes axes and returns them."""

import importlib
import io
import sys

import numpy as np
import pytest

import milblob
from children import run_child
from paths import DEMO
from peers import WITHOUT

pytest.importorskip("matplotlib", reason=WITHOUT["matplotlib"]).use("agg")
figure = importlib.import_module("matplotlib.figure")


@pytest.fixture
def ax():
    return figure.Figure().subplots()


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    small = tmp_path_factory.mktemp("plot") / "Small.mlpackage"
    return milblob.compress(DEMO, small, milblob.Goal(size=60_000), scope=milblob.Scope(min_size=64))


def test_histogram_of_an_array(ax):
    values = np.random.default_rng(3).normal(size=5000)
    assert milblob.plot.histogram(values, ax=ax) is ax
    (stairs,) = ax.patches
    counts, edges = np.histogram(values, 12)
    drawn = stairs.get_data()
    assert drawn.values.tolist() == counts.tolist() and drawn.edges == pytest.approx(edges)


def test_histogram_of_integers_constants_and_nothing(ax):
    milblob.plot.histogram(np.array([1, 1, 3], np.int8), ax=ax, log=True)
    assert ax.patches[0].get_data().edges.tolist() == [1, 2, 3, 4]
    milblob.plot.histogram(np.full(4, 2.5), ax=ax)
    milblob.plot.histogram(np.array([np.nan]), ax=ax)
    assert len(ax.patches) == 2
    with pytest.raises(ValueError, match="histogram=True"):
        milblob.plot.histogram(milblob.statistics(np.arange(3)), ax=ax)


def test_a_histogram_is_of_one_tensor(ax, tmp_path):
    np.savez(tmp_path / "w.npz", a=np.arange(3.0))
    report = milblob.statistics(tmp_path / "w.npz", histogram=True)
    with milblob.open_arrays(tmp_path / "w.npz") as arrays:
        for source in (tmp_path / "w.npz", str(tmp_path / "w.npz"), arrays, report):
            with pytest.raises(
                TypeError, match=r"^source: expected one tensor, such as model\[name\], an array or Stat"
            ):
                milblob.plot.histogram(source, ax=ax)
        assert milblob.plot.histogram(arrays["a"], ax=ax) is milblob.plot.histogram(report["a"], ax=ax) is ax


def test_histogram_of_a_tensor_has_its_name(ax):
    with milblob.open(DEMO) as model:
        milblob.plot.histogram(model["embedding_weight"], ax=ax)
    assert ax.get_title() == "embedding_weight"
    milblob.plot.histogram(milblob.statistics(np.arange(3), histogram=True), ax=ax)


def test_sizes_are_those_of_the_model(ax):
    assert milblob.plot.sizes(DEMO, max_weights=5, ax=ax) is ax
    with milblob.open(DEMO) as model:
        nbytes = sorted((tensor.nbytes for tensor in model.values()), reverse=True)
    drawn = [bar.get_width() * (1 << 20) for bar in ax.patches]
    assert drawn == pytest.approx([*nbytes[:5], sum(nbytes[5:])])
    assert ax.get_yticklabels()[-1].get_text() == f"{len(nbytes) - 5:,} others"


def test_a_hostile_name_is_drawn_as_text(ax):
    milblob.plot.sizes({"$\\frac{": np.ones(3), "a\nb": np.ones(2), "x" * 500: np.ones(1)}, ax=ax)
    ax.figure.savefig(io.BytesIO())
    assert all(len(label.get_text()) <= 60 for label in ax.get_yticklabels())


def test_errors_of_a_compression_and_of_a_comparison(compressed, ax):
    assert milblob.plot.errors(compressed, ax=ax) is ax
    drawn = ax.containers[0].markerline.get_ydata()
    assert list(drawn) == [row.sqnr for row in compressed.weights if np.isfinite(row.sqnr)]
    other = figure.Figure().subplots()
    found = milblob.diff(DEMO, compressed.output)
    milblob.plot.errors(found, ax=other)
    positions = other.containers[0].markerline.get_xdata()
    assert [found.rows[at].figures.sqnr for at in positions] == list(other.containers[0].markerline.get_ydata())
    with pytest.raises(ValueError, match="names only"):
        milblob.plot.errors(milblob.diff(DEMO, DEMO, names_only=True))
    with pytest.raises(TypeError):
        milblob.plot.errors(DEMO)


def test_the_frontier_and_what_was_chosen(compressed, ax):
    found = milblob.compress_frontier(DEMO, scope=milblob.Scope(min_size=64))
    assert milblob.plot.frontier(found, chosen=compressed, ax=ax) is ax
    curve = ax.lines[0]
    assert len(curve.get_xdata()) == sum(point.error > 0 for point in found.points)
    assert ax.lines[-1].get_xdata()[0] * (1 << 20) == pytest.approx(compressed.nbytes_after)
    with pytest.raises(TypeError):
        milblob.plot.frontier(found, chosen="small", ax=ax)


def test_new_axes_are_made(compressed):
    pyplot = importlib.import_module("matplotlib.pyplot")
    for made in (milblob.plot.histogram(np.arange(9.0)), milblob.plot.sizes(DEMO), milblob.plot.errors(compressed)):
        assert made.figure is not None
    pyplot.close("all")


def test_matplotlib_is_imported_when_it_draws_and_named_when_it_is_missing():
    program = """
import sys, milblob, milblob.plot
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    milblob.plot.sizes({})
except ImportError as error:
    assert "matplotlib is not installed" in str(error) and "extra plot" in str(error), error
else:
    raise SystemExit("no error")
"""
    run_child(program)
    assert sys.modules["matplotlib"]
