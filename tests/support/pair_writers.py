"""For writers.py: what writes several files at once, or needs a library that writers.py does not."""

import contextlib
import functools
import os
import pathlib
import shutil
import tempfile
from unittest import mock

import numpy as np

import milblob
import tvm_archives
from bundles import copy_of, is_hashed
from paths import DATA

NEW_OUTPUTS = {"y": np.arange(12, dtype="<f4")}
NEW_STATES = {"cache": np.full((3, 5), 2, "<f2")}
PARAMETERS = {"p0": np.arange(12, dtype="<f4").reshape(3, 4)}


def package(name, into="m.mlpackage"):
    """A copy of a package of tests/data."""

    def make(folder):
        shutil.copytree(DATA / name / "model.mlpackage", folder / into)

    return make


# ------------------------------------------------------------------------------------------------------------- ONNX


@functools.cache
def converted():
    """What an earlier conversion of another model has left: name -> bytes."""
    import milblob.onnx

    with tempfile.TemporaryDirectory() as place:
        milblob.onnx.convert(DATA / "quant_int8" / "model.mlpackage", os.path.join(place, "out.onnx"), weights="copy")
        return {path.name: path.read_bytes() for path in pathlib.Path(place).iterdir()}


def earlier_conversion(folder):
    package("quant_uint8")(folder)
    for name, data in converted().items():
        (folder / name).write_bytes(data)


def graph_at(name):
    """The initializers of an ONNX model, as its own library reads them."""

    def see(folder):
        import onnx

        if not os.path.lexists(folder / name):
            return None
        graph = onnx.load(folder / name).graph
        return repr({one.name: onnx.numpy_helper.to_array(one, folder).tobytes() for one in graph.initializer})

    return see


# ----------------------------------------------------------------------------------------------------- run and verify


class FakeSession:
    """A model that onnxruntime need not run."""

    def __init__(self, *_, **__):
        self.inputs, self.outputs, self.states = {}, {"y": None}, dict(NEW_STATES)

    def convert_inputs(self, given):
        return given

    def predict(self, inputs, raw):
        return dict(NEW_OUTPUTS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def without_runtime(act):
    """An action of `milblob run` or `verify` that does everything but run a model."""

    def run(folder, second):
        from milblob.cli.commands import run as cli_run
        from milblob.cli.commands import verify as cli_verify

        with contextlib.ExitStack() as stack:
            for module in (cli_run, cli_verify):
                stack.enter_context(mock.patch.object(module, "open_session", FakeSession))
            found = mock.Mock(worst=[NEW_OUTPUTS], is_same=True)
            stack.enter_context(mock.patch("milblob.verify", lambda *_, **__: found, create=True))
            act(folder, second)

    run.argv = act.argv
    return run


def earlier_run(folder):
    (folder / "m.mlpackage").mkdir()
    for name, arrays in (("y.npz", NEW_OUTPUTS), ("s.npz", NEW_STATES)):
        np.savez(folder / name, **{key: array - 1 for key, array in arrays.items()})


def model_with_nothing(folder):
    (folder / "m.mlpackage").mkdir()


# ------------------------------------------------------------------------------------------------------ compress, TVM


def compressed(folder):
    """A model, the same compressed, and the plan of that."""
    package("control_flow")(folder)
    milblob.compress(
        folder / "m.mlpackage",
        folder / "out.mlpackage",
        milblob.Palette(2),
        save_plan=folder / "plan.json",
        scope=milblob.Scope(min_size=0),
    )


def compiled_models(folder):
    """A compiled model, and where its compressed copy goes, another one."""
    for name, source in (("m", "opset_ios16_fp16"), ("out", "constexpr_ios16")):
        shutil.copytree(DATA / source / "model.mlmodelc", folder / f"{name}.mlmodelc")


def model_and_values(folder):
    package("control_flow")(folder)
    with milblob.open(folder / "m.mlpackage") as model:
        np.savez(folder / "w.npz", **{name: tensor.read() + 1 for name, tensor in model.items()})


def save_plan(folder):
    plan = milblob.CompressPlan({"w": milblob.PlannedWeight(milblob.Palette(4))})
    plan.save(folder / "plan.json", force=True)


def parameters(library):
    return next(iter(library.modules.values())).params


def archive(kind, copy=False):
    """An archive of TVM, new values for it, and for a copy another archive where it goes."""

    def make(folder):
        files, suffix = tvm_archives.files_of(), "" if kind == "directory" else f".{kind}"
        for name in ("lib", "out") if copy else ("lib",):
            tvm_archives.make(folder / f"{name}{suffix}", files, kind)
        with milblob.tvm.open(folder / f"lib{suffix}") as library:
            np.savez(folder / "w.npz", **{name: array.read() + 1 for name, array in parameters(library).items()})

    return make


def parameters_at(name):
    def see(folder):
        with milblob.tvm.open(folder / name) as library:
            return repr({key: array.read().tobytes() for key, array in parameters(library).items()})

    return see


def asset(name="linear_f32", copy=False, is_bare=False):
    """A bundle of Core AI, new values for the weights of its first function, and for a copy another bundle where it goes."""

    def make(folder):
        copy_of(name, folder, "m.aimodel")
        weights = milblob.load(folder / "m.aimodel")
        np.savez(folder / "w.npz", **{key: array + 1 for key, array in weights.items() if key.startswith("main/")})
        if copy:
            copy_of("conv_f32", folder, "out.aimodel")
        if is_bare:
            (folder / "m.aimodel" / "main.mlirb").rename(folder / "m.mlirb")
            shutil.rmtree(folder / "m.aimodel")

    return make


def asset_at(name):
    """The weights of a bundle, whose hash is that of its bytecode."""

    def see(folder):
        found = repr({key: array.tobytes() for key, array in milblob.load(folder / name).items()})
        assert not (folder / name).is_dir() or is_hashed(folder / name)
        return found

    return see


def params_file(folder):
    np.savez(folder / "w.npz", **PARAMETERS)
    milblob.tvm.write_params({"p0": np.zeros(3, "<f4")}, folder / "out.params")
