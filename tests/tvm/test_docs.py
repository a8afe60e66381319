"""docs/tvm.md and the package `milblob.tvm` as others meet them."""

import os
import re
import runpy

import numpy as np
import pytest
import safetensors.numpy

import milblob
import tvm_archives as made
from children import run_child
from milblob import tvm
from milblob.tvm.findings import CODES
from paths import ROOT

PAGE = (ROOT / "docs" / "tvm.md").read_text(encoding="utf-8")


def test_the_findings_of_the_page():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE[PAGE.index("### Findings") :], re.M))
    assert rows == CODES


EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def test_the_other_example_runs(tmp_path, monkeypatch):
    assert len(EXAMPLES) == 2
    made.make(tmp_path / "model.tar", made.files_of())
    (tmp_path / "model.params").write_bytes(made.params_of({"p0": made.C}))
    safetensors.numpy.save_file({"p0": made.C}, tmp_path / "checkpoint.safetensors")
    np.savez(tmp_path / "compiled.npz", weight=made.C)
    np.savez(tmp_path / "retrained.npz", weight=made.C * 3)
    (tmp_path / "example.py").write_text(EXAMPLES[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(os.fspath(tmp_path / "example.py"))
    assert tvm.open("retrained.tar").modules["default"].params["p0"].read().tolist() == [[6, 12]]


def test_the_worked_example_runs(tmp_path, monkeypatch, capsys):
    code = EXAMPLES[0]
    made.make(tmp_path / "model.tar", made.files_of())
    (tmp_path / "model.params").write_bytes(made.params_of({"p0": made.C}))
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(os.fspath(tmp_path / "example.py"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "(1, 2) float32",
        "7 full-model 2021-11-25 16:50:12",
        "default ('graph',) ['c -keys=cpu -model=host']",
    ]
    assert (
        lines[3] == "[(1, 0, 8, 18)]"
        and "'p0': ['tvmgen_default_fused_cast_multiply_add']" in lines[5]
        and len(lines) == 6
    )
    assert tvm.open("louder.tar").modules["default"].params["p0"].read().tolist() == [[4, 8]]


def test_the_golden_bytes_of_the_page():
    (block,) = re.findall(r"^```\n(b79c.*?)^```", PAGE, re.M | re.S)
    data = bytes.fromhex(
        "".join("".join(re.findall(r"\b(?:[0-9a-f]{2})+\b", line[:52])) for line in block.splitlines())
    )
    assert data == made.params_of({"p0": made.C}) and len(data) == 106


def test_it_is_imported_when_it_is_first_used():
    code = """
        import milblob
        print([name for name in sys.modules if name.startswith("milblob.tvm")])
        milblob.tvm.read_params
        print("milblob.tvm.library" in sys.modules, "coremltools" in sys.modules, "google.protobuf" in sys.modules)
    """
    assert run_child(code).splitlines() == ["[]", "True False False"]


def test_everything_public_is_documented():
    api = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in tvm.__all__:
        assert f"\n## tvm.{name}\n" in api, name
        assert getattr(tvm, name).__doc__
    for kind in (tvm.Library, tvm.Module, tvm.Parameter):
        for name in vars(kind):
            if not name.startswith("_") and name not in (
                "info",
                "archive",
                "budget",
                "codes",
                "place",
                "reload",
                "path",
            ):
                assert re.search(rf"[`.]{name}\b", api), f"{kind.__name__}.{name}"


def test_an_unknown_name_is_still_an_attribute_error():
    with pytest.raises(AttributeError):
        milblob.tvmm  # noqa: B018
