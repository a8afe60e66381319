"""milblob.info and `milblob info`."""

import importlib.metadata
import json
import os
import sys
import sysconfig

import ml_dtypes
import numpy as np
import pytest

import milblob
from milblob import _codec


def test_version_and_public_names():
    """`dir(milblob)` lists what is public, and only that; all of it is there."""
    listed = dir(milblob)
    assert listed == sorted(
        [*milblob.__all__, "__version__", "aimodel", "executors", "jax", "mlx", "onnx", "plot", "torch", "tvm"]
    )
    assert all(getattr(milblob, name) is not None for name in listed)
    assert milblob.__version__ == milblob.info().version == importlib.metadata.version("milblob")


def test_info(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MILBLOB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MILBLOB_THREADS", "3")
    monkeypatch.setenv("MILBLOB_TREADS", "4")
    found = milblob.info()
    assert found.python.startswith("{}.{}.{}".format(*sys.version_info[:3]))
    assert found.packages["numpy"] == np.__version__ and found.packages["ml_dtypes"] == ml_dtypes.__version__
    assert found.packages["protobuf"] is not None
    assert (list(found.tiers), found.tier) == _codec.tiers() and found.tiers[0] == "plain"
    assert found.threads == 3 and found.processors >= 1
    assert found.variables == {"MILBLOB_THREADS": "3", "MILBLOB_TREADS": "4"}
    assert found.is_free_threaded == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert found.has_gil == (not found.is_free_threaded or sys._is_gil_enabled())
    is_stable = ".abi3." in _codec.__file__ or (os.name == "nt" and "cp3" not in os.path.basename(_codec.__file__))
    assert found.abi == ("abi3 from 3.11 on" if is_stable else sys.implementation.cache_tag)
    assert not (found.is_free_threaded and is_stable)
    assert found.compiler.split()[0] in ("gcc", "clang", "MSVC") and len(found.compiler.split()) > 1
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()


def test_info_as_text(monkeypatch, tier):
    monkeypatch.setenv("MILBLOB_TREADS", "4")
    lines = str(milblob.info()).splitlines()
    words = {line.split()[0]: line.split(None, 1)[1] for line in lines}
    assert list(words)[:5] == ["milblob", "python", "numpy", "ml_dtypes", "protobuf"]
    assert words["kernels"] == f"{tier} (of {', '.join(_codec.tiers()[0])})"
    assert words["MILBLOB_TREADS"] == "4 (not one that milblob reads)"
    assert len({line.index(line.split(None, 1)[1]) for line in lines}) == 1  # a column


def test_command(cli, monkeypatch):
    monkeypatch.setenv("MILBLOB_THREADS", "5")
    status, out, err = cli("info")
    assert (status, err) == (0, "") and out == f"{milblob.info()}\n"
    assert "MILBLOB_THREADS" in out
    status, out, err = cli("info", "--json")
    assert (status, err) == (0, "") and json.loads(out) == milblob.info().to_dict()
    monkeypatch.setenv("MILBLOB_THREADS", "many")
    status, out, err = cli("info")
    assert (status, out) == (2, "") and "MILBLOB_THREADS: expected a number of threads" in err


def test_what_is_not_installed(monkeypatch):
    from milblob import about

    monkeypatch.setattr(about, "_version", lambda name: None)
    found = milblob.info()
    assert found.version == milblob.__version__ and set(found.packages.values()) == {None}
    assert "numpy" in str(found) and "not installed" in str(found)


@pytest.mark.parametrize(
    ("free", "gil", "words"),
    [(True, True, " free-threaded, with the global lock"), (True, False, " free-threaded"), (False, True, "")],
)
def test_kinds_of_python(free, gil, words):
    import dataclasses

    found = dataclasses.replace(milblob.info(), is_free_threaded=free, has_gil=gil)
    assert dict(found.lines())["python"] == found.python + words
