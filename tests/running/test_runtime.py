"""What onnxruntime gets is what was checked: never another file that has the name by now."""

import contextlib
import os
import shutil
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import milblob
import milblob.onnx
from matrix import every
from milblob import Session
from milblob.running.runtime import make_options
from milblob.storage.mapped import MappedFile
from onnx_models import save
from paths import ROOT
from race import exchanging
from thorough import share, sized, some

DEMO = ROOT / "examples" / "demo.mlpackage"
TOKENS = np.arange(16, dtype=np.int32)[None] * 5
INSIDE, OUTSIDE = 1.0, 2.0
WEIGHTS = "Data/com.apple.CoreML/weights"


@pytest.fixture
def by_bytes(monkeypatch):
    """As on a system where an open file has no path of its own."""

    @contextlib.contextmanager
    def nameless(self):
        yield None

    monkeypatch.setattr(MappedFile, "held_name", nameless)


# ------------------------------------------------------------------------------------------------------------- the race


def make_sums(folder, value):
    """x + w, where every element of w is the value."""
    from coremltools.converters.mil.mil import Builder as mb

    folder.mkdir()
    weight = np.full(512, value, np.float32)
    weight[0] = -value  # else coremltools writes one element
    return save(folder / "m.mlpackage", lambda x: mb.add(x=x, y=weight, name="sum"), {"x": np.zeros(512, np.float32)})


def predicted(session):
    return float(session.predict({"x": np.zeros(512, np.float32)})["sum"][-1])


def run_package(path):
    return predicted(Session(path))


def run_copy(path):
    """Converted while the names are exchanged; the copy is read in peace."""
    folder = path.parent / "out"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    milblob.onnx.convert(path, folder / "m.onnx", weights="copy")
    return predicted(Session(folder / "m.onnx"))


def run_file(path):
    """An .onnx file without notes, as other tools write it."""
    return predicted(Session(path.with_suffix(".onnx")))


@pytest.mark.parametrize("action", [run_package, run_copy, run_file])
@pytest.mark.parametrize("part", some([WEIGHTS, f"{WEIGHTS}/weight.bin"], 1))
def test_race_of_sessions(action, part, tmp_path):
    """Nobody computes with the weights of the other model, however often the way to them is exchanged for a link."""
    path, other = (make_sums(tmp_path / name, value) for name, value in (("inside", INSIDE), ("outside", OUTSIDE)))
    milblob.onnx.convert(path, path.with_suffix(".onnx"))
    model = onnx.load(path.with_suffix(".onnx"), load_external_data=False)
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
    onnx.save(model, path.with_suffix(".onnx"))
    link = path / "link"
    link.symlink_to(other / part)
    met = Counter()
    with exchanging(path / part, link):
        count = sized(60, 1000)
        while met.total() < count or (not (met[INSIDE] and met["ResolveError"]) and met.total() < 40 * count):
            try:
                met[action(path)] += 1
            except (milblob.MilblobError, OSError) as error:
                met[type(error).__name__] += 1
    print(f"{action.__name__}, {part}: {dict(met)}")
    assert OUTSIDE not in met, met
    assert met[INSIDE] and met["ResolveError"], met  # else nothing has been exchanged


# --------------------------------------------------------------------------------------------------------- both ways


def test_values_are_handed_over_where_open_files_have_no_name(tmp_path, by_bytes):
    """Of packages and .onnx files, dense and compressed, with and without optimisation: what the other way computes.

    `make test` optimises every other one of these files, `make thorough` all.
    """
    packages = {"dense": shutil.copytree(DEMO, tmp_path / "dense.mlpackage")}
    for name, recipe in (
        ("int8", milblob.Linear("int8")),
        ("palette", milblob.Palette(4)),
        ("decoded", milblob.Palette(6)),
    ):
        packages[name] = tmp_path / f"{name}.mlpackage"
        milblob.compress(DEMO, packages[name], recipe)
    for package in packages.values():
        milblob.onnx.convert(package, package.with_suffix(".onnx"))

    def compute(path, optimize):
        return Session(path, optimize=optimize).predict({"tokens": TOKENS})["logits"]

    def check(name, suffix):
        path = packages[name].with_suffix(suffix)
        for optimize in share([False, True], list(packages).index(name) + (suffix == ".onnx"), 2):
            found = compute(path, optimize)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(MappedFile, "held_name", HELD_NAME)
                np.testing.assert_array_equal(found, compute(path, optimize))

    every(check, packages, [".mlpackage", ".onnx"])
    session = Session(packages["dense"], replaceable=True)
    head = milblob.load(DEMO)["head_weight"]
    expected = session.predict({"tokens": TOKENS})["logits"]
    changed = session.predict({"tokens": TOKENS}, weights={"head_weight": head * 0})["logits"]
    assert not np.array_equal(changed, expected)
    np.testing.assert_array_equal(session.predict({"tokens": TOKENS})["logits"], expected)


HELD_NAME = MappedFile.held_name


def test_a_file_that_was_replaced_while_it_is_open_runs_as_it_was(tmp_path):
    """It has no name any more: onnxruntime gets its bytes."""
    path = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    expected = Session(path).predict({"tokens": TOKENS})["logits"]
    file = path / WEIGHTS / "weight.bin"
    with milblob.open(path) as model:
        size = file.stat().st_size
        model["head_weight"].read()
        os.replace(shutil.copy(file, tmp_path / "other"), file)
        file.write_bytes(bytes(size))
        found = Session(model).predict({"tokens": TOKENS})["logits"]
        with pytest.raises(milblob.FormatError, match="expected the one that was opened, got another by that name"):
            milblob.onnx.convert(model, tmp_path / "m.onnx")
    np.testing.assert_array_equal(found, expected)
    assert not (tmp_path / "m.onnx").exists()


# ------------------------------------------------------------------------------------------- external data, everywhere


def external(name, array, location, offset=0):
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


VALUES = np.arange(600, dtype=np.float32)
PLACES = ["graph", "constant", "branch", "function"]


def model_with(tensor, place, path):
    """y = x + w, where w is an initializer, a Constant, or in a branch or a function."""
    add = helper.make_node("Add", ["x", "w"], ["y"])
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    inner = helper.make_tensor_value_info("y", TensorProto.FLOAT, [600])
    functions, initializers, imports = [], [], [helper.make_opsetid("", 21)]
    if place == "graph":
        nodes, initializers = [add], [tensor]
    elif place == "constant":
        nodes = [constant, add]
    elif place == "branch":
        branch = helper.make_graph([add], "b", [], [inner], [tensor])
        yes = numpy_helper.from_array(np.array(True), "yes")
        nodes, initializers = [helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch)], [yes]
        nodes.append(helper.make_node("Identity", ["out"], ["y"]))
        branch.output[0].name = branch.node[0].output[0] = "z"
        nodes[0].CopyFrom(helper.make_node("If", ["yes"], ["out"], then_branch=branch, else_branch=branch))
    else:
        functions = [helper.make_function("mine", "f", ["x"], ["y"], [constant, add], imports)]
        imports = [*imports, helper.make_opsetid("mine", 1)]
        nodes = [helper.make_node("f", ["x"], ["y"], domain="mine")]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [600])
    graph = helper.make_graph(nodes, "g", [given], [inner], initializers)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=imports, functions=functions), path)
    return path


def check_places(folder):
    (folder / "data").mkdir()
    (folder / "data" / "w.bin").write_bytes(bytes(64) + VALUES.tobytes())

    def check(place):
        path = model_with(external("w", VALUES, "data/w.bin", 64), place, folder / f"{place}.onnx")
        found = Session(path).predict({"x": VALUES})["y"]
        np.testing.assert_array_equal(found, VALUES * 2)

    every(check, PLACES)


def test_external_data_in_every_place(tmp_path):
    check_places(tmp_path)


def test_external_data_in_every_place_by_bytes(tmp_path, by_bytes):
    check_places(tmp_path)


def test_no_reference_in_any_place_leads_out(tmp_path):
    """References are relative to the root for onnxruntime; so each one in a file is replaced, wherever it stands."""
    root = tmp_path / "root"
    root.mkdir()
    for folder in (tmp_path, root):
        (folder / "w.bin").write_bytes(VALUES.tobytes())
    (root / "link.bin").symlink_to("w.bin")
    locations = ["../w.bin", str(tmp_path / "w.bin"), str(tmp_path / "w.bin")[1:], "link.bin", "proc/self/environ", ""]

    def check(place, location):
        path = model_with(external("w", VALUES, location), place, root / "m.onnx")
        with pytest.raises(milblob.MilblobError, match=r"external data|reference"):
            Session(path)

    every(check, PLACES, locations)

    def check_bounds(place, offset):
        path = model_with(external("w", VALUES, "w.bin", offset), place, root / "m.onnx")
        with pytest.raises(milblob.FormatError, match="expected bytes inside the 2400"):
            Session(path)

    every(check_bounds, PLACES, [1, 2400, 1 << 62])


def test_sizes_of_external_data_that_nothing_has(tmp_path):
    (tmp_path / "w.bin").write_bytes(VALUES.tobytes())

    def check(dims, code):
        tensor = external("w", VALUES, "w.bin")
        tensor.data_type = code
        del tensor.dims[:]
        tensor.dims.extend(dims)
        with pytest.raises(milblob.FormatError, match="external data of 'w'"):
            Session(model_with(tensor, "graph", tmp_path / "m.onnx"))

    every(check, [[-600], [1 << 62, 1 << 62], [601]], [TensorProto.FLOAT, TensorProto.STRING, 99, TensorProto.INT4])


# ------------------------------------------------------------------------------------------------------------- options


def test_optimization_decodes_weights_once(tmp_path, monkeypatch):
    """What onnxruntime runs has no DequantizeLinear left, and gives what coremltools' own decoded weights give."""
    import coremltools as ct

    from milblob.running import session as module

    milblob.compress(DEMO, tmp_path / "int8.mlpackage", "int8")
    with Session(tmp_path / "int8.mlpackage", optimize=True) as session:
        found = session.predict({"tokens": TOKENS})["logits"]
    seen = []

    def keeping(optimize, threads):
        seen.append(make_options(optimize, threads))
        seen[-1].optimized_model_filepath = str(tmp_path / "optimized.onnx")
        return seen[-1]

    monkeypatch.setattr(module, "make_options", keeping)
    Session(tmp_path / "int8.mlpackage", optimize=True)
    kinds = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node}
    assert seen
    assert "DequantizeLinear" not in kinds
    dense = ct.models.MLModel(str(tmp_path / "int8.mlpackage"), skip_model_load=True)
    ct.optimize.coreml.decompress_weights(dense).save(str(tmp_path / "dense.mlpackage"))
    expected = Session(tmp_path / "dense.mlpackage").predict({"tokens": TOKENS})["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.ptp(expected))


def test_threads_of_a_session(monkeypatch):
    """Those of the argument, then those of the variable, then the idle processors of this process."""
    monkeypatch.setenv("MILBLOB_THREADS", "3")
    assert [make_options(False, threads).intra_op_num_threads for threads in (2, None)] == [2, 3]
    monkeypatch.delenv("MILBLOB_THREADS")
    monkeypatch.setattr("milblob.running.runtime.unused", lambda: 5)
    assert make_options(False, None).intra_op_num_threads == 5
