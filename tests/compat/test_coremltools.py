"""Installing milblob into coremltools, undoing it, and what coremltools then writes and reads."""

import inspect
import os
import pathlib
import shutil
import sys
import threading
import types
import warnings
import zlib

import numpy as np
import pytest

from children import run_child
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

import coremltools as ct
import coremltools.optimize as cto
from coremltools import libmilstoragepython as native
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.backend.mil import load as backend
from coremltools.converters.mil.frontend.milproto import load as frontend

import milblob
from milblob.compat import coremltools as compat
from milblob.compat import fastpaths
from thorough import some


@pytest.fixture(autouse=True)
def nothing_left():
    assert compat.installed() is None
    before = state()
    yield
    compat.uninstall()
    assert state() == before


def state():
    """What could have been replaced, by identity: functions, classes and modules that coremltools' modules have names for."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "coremltools" and module is not None and name != "coremltools.libcoremlpython":
            for key, value in list(vars(module).items()):
                if callable(value) or isinstance(value, types.ModuleType):
                    found[name, key] = id(value)
    for path in fastpaths.FAST_PATHS:
        owner, dot, name = path.name.rpartition(".")
        if dot:
            found[path.name] = id(vars(getattr(sys.modules[path.module], owner, object)).get(name))
    return found


def make_program(count=4096, target=None):
    """A small model whose Program has a weight of each kind: large immediates of int32 and bool, float weights."""
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    mask = rng.integers(0, 2, (64, count // 64)).astype(bool)
    gather = rng.integers(0, 64, count).astype(np.int32)

    @mb.program(input_specs=[mb.TensorSpec((64, 64))], opset_version=target or ct.target.iOS16)
    def prog(x):
        y = mb.linear(x=x, weight=weight, bias=np.arange(64, dtype=np.float32), name="linear")
        z = mb.gather(x=y, indices=gather, axis=0, name="gather")
        s = mb.slice_by_index(x=z, begin=[0, 0], end=[64, count // 64], name="part")
        return mb.select(cond=mask, a=s, b=np.float32(0.5), name="out")

    return prog


def convert(target=None, **kwargs):
    return ct.convert(
        make_program(target=target), convert_to="mlprogram", minimum_deployment_target=target or ct.target.iOS16,
        skip_model_load=True, **kwargs,
    )  # fmt: skip


def bytes_of(package):
    """Name -> contents of the files of a package; its manifest has new identifiers every time."""
    root = pathlib.Path(package)
    return {
        str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "Manifest.json"
    }


def test_importing_milblob_does_not_import_coremltools():
    code = "import sys, milblob, milblob.compat; assert 'coremltools' not in sys.modules; import milblob.compat.coremltools; print('coremltools' in sys.modules)"
    assert run_child(code).strip() == "False"


def test_install_replaces_and_uninstall_restores():
    before = state()
    installation = compat.install()
    assert compat.installed() is installation and installation.has_fast_paths and installation.version == ct.__version__
    assert native._BlobStorageReader is frontend.BlobReader is compat._BlobStorageReader
    assert native._BlobStorageWriter is backend.BlobWriter is compat._BlobStorageWriter
    changed = {key for key, value in state().items() if before[key] != value}
    assert len(changed) == len(installation.places) == 12
    for place in installation.places:
        assert place.found() is place.new is not place.old
        assert str(place).startswith("coremltools.")
    assert "12 names" in repr(installation)
    again = compat.install()
    assert again.places == installation.places and compat.installed() is installation
    compat.uninstall()
    assert state() == before and compat.installed() is None
    compat.uninstall()
    assert state() == before


def test_replaced_functions_look_like_the_old_ones():
    with compat.install() as installation:
        functions = [(place.old, place.new) for place in installation.places if not isinstance(place.old, type)]
        assert len(functions) == len(fastpaths.FAST_PATHS) == 8
        for old, new in functions:
            old, new = (getattr(f, "__func__", f) for f in (old, new))
            assert inspect.signature(new) == inspect.signature(old)
            assert (new.__name__, new.__module__, new.__doc__) == (old.__name__, old.__module__, old.__doc__)
            own = inspect.signature(new, follow_wrapped=False)
            assert list(own.parameters) == list(inspect.signature(old).parameters)
            assert [p.default for p in own.parameters.values()] == [
                p.default for p in inspect.signature(old).parameters.values()
            ]


def test_as_a_context_manager():
    before = state()
    with compat.install() as outer:
        with compat.install() as inner:
            assert inner.places == outer.places
        assert compat.installed() is outer  # who came second does not undo it
        with pytest.raises(KeyError), compat.install():
            raise KeyError
        assert compat.installed() is outer
    assert state() == before
    with pytest.raises(KeyError), compat.install():
        raise KeyError
    assert state() == before
    with compat.install() as first:
        compat.uninstall()
        with compat.install(fast_paths=False) as second:
            first.__exit__(None, None, None)  # of an installation that is gone
            assert compat.installed() is second
    assert state() == before


def test_without_fast_paths():
    with compat.install(fast_paths=False) as installation:
        assert len(installation.places) == 4 and not installation.has_fast_paths
        assert compat.install().places == compat.install(fast_paths=False).places
        with pytest.raises(ValueError, match="^fast_paths: expected False as installed, got True; uninstall first$"):
            compat.install(fast_paths=True)


def test_another_version_gets_the_classes_only(monkeypatch):
    monkeypatch.setattr(ct, "__version__", "99.1")
    with (
        pytest.warns(RuntimeWarning, match=r"tested with \(.*9.0\), got 99.1; the fast paths are left out"),
        compat.install() as i,
    ):
        assert len(i.places) == 4 and i.version == "99.1"
    with pytest.warns(RuntimeWarning, match="got 99.1$"), compat.install(fast_paths=True) as i:
        assert len(i.places) == 12


@pytest.mark.parametrize("is_fast", [True, False])
def test_unknown_internals_are_named_and_nothing_is_replaced(monkeypatch, is_fast):
    from coremltools.converters.mil.backend.mil import helper

    before = state()
    with monkeypatch.context() as patch:
        patch.delattr(backend, "BlobWriter")
        patch.delattr(native, "_BlobStorageReader")
        patch.delattr(helper, "create_tensor_value")
        patch.delattr(helper, "create_valuetype_tensor")
        patch.setattr(frontend, "_load_value", lambda spec: None)
        patch.delattr("coremltools.converters.mil.mil.passes.defs.quantization.FP16ComputePrecision")
        patch.setitem(sys.modules, "coremltools.optimize._utils", None)
        there = state()
        with pytest.raises(milblob.UnsupportedError) as error:
            compat.install(fast_paths=is_fast)
        assert state() == there and compat.installed() is None
    words = str(error.value)
    assert words.startswith(
        f"coremltools {ct.__version__}: expected coremltools.libmilstoragepython._BlobStorageReader, coremltools.converters.mil.backend.mil.load.BlobWriter"
    )
    assert words.endswith("(milblob was tested with 8.2, 8.3.0, 9.0)") and "\n" not in words
    for name in (
        "helper.create_tensor_value(np_tensor)",
        "helper.create_valuetype_tensor",
        "load._load_value(context, value_spec)",
        "quantization.FP16ComputePrecision",
        "coremltools.optimize._utils",
    ):
        assert (name in words) is is_fast
    assert words.count("coremltools.optimize._utils") == is_fast
    assert state() == before


def test_files_of_others_are_left_alone():
    theirs = object()
    compat.install()
    backend.BlobWriter = theirs
    with pytest.warns(
        RuntimeWarning, match="^coremltools.converters.mil.backend.mil.load.BlobWriter: .* left as it is$"
    ):
        compat.uninstall()
    assert backend.BlobWriter is theirs and frontend.BlobReader is native._BlobStorageReader
    backend.BlobWriter = native._BlobStorageWriter


def test_threads_install_once():
    before = state()
    barrier, found = threading.Barrier(8), []

    def work():
        barrier.wait()
        for _ in range(20):
            with compat.install() as installation:
                found.append(installation)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160 and all(len(i.places) == 12 for i in found)
    assert state() == before


@pytest.mark.parametrize("target", ["iOS15", "iOS16", "iOS18"])
def test_converted_models_are_the_same(tmp_path, target):
    target = getattr(ct.target, target)
    for precision in (ct.precision.FLOAT16, ct.precision.FLOAT32):
        convert(target, compute_precision=precision).save(str(tmp_path / "a.mlpackage"))
        with compat.install():
            convert(target, compute_precision=precision).save(str(tmp_path / "b.mlpackage"))
        assert bytes_of(tmp_path / "a.mlpackage") == bytes_of(tmp_path / "b.mlpackage")
        found = milblob.check(tmp_path / "b.mlpackage")
        assert [one for one in found if one.code != "owner-only"] == []  # coremltools saves so
        for name in "ab":
            shutil.rmtree(tmp_path / f"{name}.mlpackage")


def constants(package):
    """Name -> value of every constant in the PyMIL program that coremltools loads from a package."""
    model = ct.models.MLModel(str(package), skip_model_load=True)
    program = frontend.load(model.get_spec(), model.get_spec().specificationVersion, model.weights_dir)
    return {
        op.outputs[0].name: op.outputs[0].val for op in program.functions["main"].operations if op.op_type == "const"
    }


def test_loaded_programs_are_the_same(tmp_path):
    convert().save(str(tmp_path / "m.mlpackage"))
    expected = constants(tmp_path / "m.mlpackage")
    with compat.install():
        found = constants(tmp_path / "m.mlpackage")
    assert found.keys() == expected.keys() and len(expected) > 8
    for name, value in expected.items():
        assert type(found[name]) is type(value)
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype and found[name].tobytes() == value.tobytes()
            assert found[name].flags.writeable == value.flags.writeable
        else:
            assert found[name] == value


def compressed(model, target):
    """What coremltools makes of a model by quantizing, palettizing, pruning and undoing it."""
    quantize = [cto.coreml.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=10)]
    palettize = [cto.coreml.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=10)]
    if target is ct.target.iOS18:
        quantize.append(
            cto.coreml.OpLinearQuantizerConfig(
                mode="linear", dtype="uint4", granularity="per_block", block_size=16, weight_threshold=10
            )
        )
        palettize.append(
            cto.coreml.OpPalettizerConfig(
                mode="uniform", nbits=3, granularity="per_grouped_channel", group_size=16, weight_threshold=10
            )
        )
    for op in quantize:
        yield cto.coreml.linear_quantize_weights(model, cto.coreml.OptimizationConfig(op))
    for op in palettize:
        small = cto.coreml.palettize_weights(model, cto.coreml.OptimizationConfig(op))
        yield small
        yield cto.coreml.decompress_weights(small)
    prune = cto.coreml.OpMagnitudePrunerConfig(target_sparsity=0.6, weight_threshold=10)
    yield cto.coreml.prune_weights(model, cto.coreml.OptimizationConfig(prune))


@pytest.mark.parametrize("target", ["iOS16", "iOS18"])
def test_compressed_models_are_the_same(tmp_path, target, capfd):
    target = getattr(ct.target, target)
    model = convert(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, result in enumerate(compressed(model, target)):
            result.save(str(tmp_path / f"a{number}.mlpackage"))
        with compat.install():
            for number, result in enumerate(compressed(model, target)):
                result.save(str(tmp_path / f"b{number}.mlpackage"))
    for number in range(7 if target is ct.target.iOS18 else 4):
        assert bytes_of(tmp_path / f"a{number}.mlpackage") == bytes_of(tmp_path / f"b{number}.mlpackage")


def spell(value):
    """A value in one line."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {zlib.crc32(value.tobytes())}"
    return repr(value)


WEIGHTS = os.path.join("Data", "com.apple.CoreML", "weights", "weight.bin")
BLOCKED = """
import importlib.abc, logging, sys, types
logging.disable(logging.WARNING)
sys.modules["sklearn"] = None  # coremltools imports it, which takes twice its own time
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ImportError("no native module on this platform")
sys.meta_path.insert(0, Blocker())
mode, folder, *missing = sys.argv[1:]
test = types.ModuleType("test")
if mode == "before":
    import milblob.compat.coremltools as compat
    compat.install()
import coremltools as ct
exec(open(folder + "/model.py").read(), vars(test))
from coremltools.converters.mil.backend.mil import load as backend
from coremltools.converters.mil.frontend.milproto import load as frontend
if mode == "after":
    assert backend.BlobWriter is None and frontend.BlobReader is None
    for call in (test.convert, lambda: frontend._load_file_value(None, None, None), lambda: test.constants(folder + "/there.mlpackage")):
        try:
            call()
        except Exception as error:
            print(error)
    import milblob.compat.coremltools as compat
    compat.install()
test.convert().save(folder + "/made.mlpackage")
for name, value in test.constants(folder + "/made.mlpackage").items():
    print(test.spell(value))
from coremltools.libmilstoragepython import _BlobStorageReader
assert _BlobStorageReader is compat._BlobStorageReader is frontend.BlobReader
assert str(compat.installed().places[0]) == "sys.modules['coremltools.libmilstoragepython']"
compat.uninstall()
assert backend.BlobWriter is None and frontend.BlobReader is None
for name in missing:
    assert name not in sys.modules and not hasattr(ct, name.split(".")[1])
"""


@pytest.mark.parametrize(("mode", "is_all"), some([("before", False), ("after", True)], 1))
def test_where_native_modules_are_missing(tmp_path, mode, is_all):
    convert().save(str(tmp_path / "there.mlpackage"))
    expected = constants(tmp_path / "there.mlpackage")
    helpers = ["import zlib, numpy as np, coremltools as ct", "from coremltools.converters.mil import Builder as mb"]
    helpers += ["from coremltools.converters.mil.frontend.milproto import load as frontend"]
    helpers += [inspect.getsource(f) for f in (make_program, convert, constants, spell)]
    (tmp_path / "model.py").write_text("\n".join(helpers))
    missing = ["coremltools.libmilstoragepython", "coremltools.libmodelpackage"]
    out = run_child(BLOCKED, mode, tmp_path, *missing[: 1 + is_all])
    if mode == "after":
        assert (
            "BlobWriter not loaded" in out
            and "BlobReader not loaded" in out
            and "Unable to load libmodelpackage" in out
        )
    made, there = (bytes_of(tmp_path / f"{name}.mlpackage") for name in ("made", "there"))
    assert made.keys() == there.keys() and len(made) == 2
    assert made[WEIGHTS] == there[WEIGHTS]  # the order of maps in the other file depends on the process
    specs = [
        ct.models.MLModel(str(tmp_path / f"{name}.mlpackage"), skip_model_load=True).get_spec()
        for name in ("made", "there")
    ]
    assert specs[0] == specs[1] or mode == "after"  # names are numbered on, also by the conversion that failed
    spelled = out.splitlines()[-len(expected) :]
    assert sorted(spelled) == sorted(map(spell, expected.values()))


def test_without_coremltools_there_is_an_import_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "coremltools", None)
    with pytest.raises(ImportError):
        compat.install()
