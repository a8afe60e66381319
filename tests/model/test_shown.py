"""What models, tensors and files of arrays show of themselves in notebooks: short, escaped, without reading a weight."""

import shutil

import numpy as np
import pytest

import milblob
from constexpr_bytes import constexpr
from hostile_bytes import model as model_bytes
from hostile_bytes import program
from milblob.formats.read import open_arrays
from milblob.model.places import Place
from milblob.results import Result
from milblob.shown import Shown
from paths import DEMO
from thorough import sized

pytestmark = pytest.mark.wheel

HOSTILE = ["<script>alert(1)</script>", "\x1b[31m", "a\u202eb\u2066c", "x" * 10_000, '"><img onerror=alert(1)>', "&lt;"]


@pytest.fixture
def no_reading(monkeypatch):
    """Reading the values of any place is an error, but for single numbers, such as the axis of a compressed weight."""
    for cls in [Place, *subclasses(Place)]:
        for name in ("read", "read_packed", "packed", "dense", "read_key"):
            if name in vars(cls):
                monkeypatch.setattr(cls, name, refusing(vars(cls)[name]))


def refusing(method):
    def call(self, *arguments):
        assert self.shape == (), f"{self.where} is read"
        return method(self, *arguments)

    return call


def subclasses(cls):
    return [found for one in cls.__subclasses__() for found in (one, *subclasses(one))]


def compressed(names):
    """A model of compressed weights."""
    parts = {
        "quantized_data": ("INT8", np.zeros((4, 2), np.int8)),
        "scale": ("FLOAT16", np.ones(4, np.float16)),
        "zero_point": ("INT8", np.zeros(4, np.int8)),
        "axis": ("INT32", np.array(0, np.int32)),
    }
    operations = [constexpr("affine_dequantize", [(name, "FLOAT16", (4, 2))], parts) for name in names]
    return milblob.open(model_bytes(program(*operations)))


def is_safe(shown):
    """Whether a text holds no markup but that of a table, nothing unprintable, and is short."""
    html = shown._repr_html_()
    bundle = shown._repr_mimebundle_()
    assert bundle == {"text/plain": repr(shown), "text/html": html}
    for tag in ("table", "caption", "tr", "th", "td"):
        html = html.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    return "<" not in html and ">" not in html and html.isprintable() and len(html) < 3000


def test_a_model_and_its_tensors(no_reading):
    with milblob.open(DEMO) as model:
        html = model._repr_html_()
        for text in (
            "Model",
            "demo.mlpackage",
            "69",
            f"{sum(t.nbytes for t in model.values()):,}",
            "67 float16, 2 float32",
        ):
            assert text in html
        assert "head_weight&#x27;: float32 [96, 48], 18,432 bytes" in html
        tensor = model["head_weight"]
        for text in (
            "Tensor",
            "head_weight",
            "float32",
            "[96, 48]",
            "18,432",
            "main",
            "const",
            "weight.bin",
            str(tensor.offset),
        ):
            assert text in tensor._repr_html_()
        assert is_safe(model) and all(map(is_safe, model.values()))
    assert "closed" in model._repr_html_() and is_safe(model)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_escaped_and_cut(name, tmp_path, no_reading):
    model = compressed([name])
    assert is_safe(model) and is_safe(model[name]) and len(repr(model[name])) < 200
    assert "int8 /ch" in model._repr_html_() and "int8 /ch" in model[name]._repr_html_()
    np.savez(tmp_path / "w.npz", **{name.replace("/", "_"): np.arange(3.0)})
    with open_arrays(tmp_path / "w.npz") as arrays:
        assert is_safe(arrays) and all(map(is_safe, arrays.values()))


def test_a_model_of_many_weights_shows_as_much_as_a_small_one(no_reading):
    count = sized(2000, 20_000)
    large, small = (compressed([f"w{at}" for at in range(n)]) for n in (count, 9))
    assert f"{count:,}" in large._repr_html_()
    assert len(large._repr_html_()) < len(small._repr_html_()) + 50 < 2000


def test_a_weight_file_is_not_needed(tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    (package / "Data/com.apple.CoreML/weights/weight.bin").unlink()
    with milblob.open(package) as model:
        assert "69" in model._repr_html_() and "96, 48" in model["head_weight"]._repr_html_()


def test_models_tensors_arrays_and_results_show_themselves_by_one_implementation():
    names = ["Model", "Tensor", "Statistics", "Diff", "CompressReport", "RepackReport", "Frontier"]
    for cls in [Result, *(getattr(milblob, name) for name in names)]:
        assert cls._repr_html_ is Shown._repr_html_ and cls._repr_mimebundle_ is Shown._repr_mimebundle_
