"""Compiled models whose coremldata.bin holds the description: flexible shapes, defaults and images are those of the package."""

import random
import struct
from dataclasses import replace

import numpy as np
import pytest

from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])

import coremltools as ct
from coremltools.converters.mil import Builder as mb

import milblob
import milblob.onnx
from milblob.onnx import MilProgramContainer
from milblob.onnx.containers import described
from milblob.storage.beneath import Location
from onnx_models import save
from paths import SAMPLES
from text_models import FEATURES, compiled_of

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPES = [(1, 4), (1, 8), (2, 16)]


def coremldata(description, kind=502, text=b"generic", zero=0):
    """The form of the files that Core ML's compiler makes, as far as it is known."""
    head = (
        struct.pack("<IQQQ", kind, 5, 0, 0) + struct.pack("<Q", len(text)) + text + struct.pack("<QQQQ", 7, zero, 0, 0)
    )
    return head + struct.pack("<Q", len(description)) + description + struct.pack("<IQI", kind, 0, 0)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Enumerated shapes, an optional input with a default, and an image of any of three sizes."""
    folder = tmp_path_factory.mktemp("m")
    sizes = [ct.Shape((1, 3, side, side)) for side in (4, 6, 8)]
    inputs = [
        ct.TensorType("x", ct.EnumeratedShapes([ct.Shape(shape) for shape in SHAPES], default=SHAPES[0])),
        ct.TensorType("y", (1,)),
        ct.ImageType("photo", shape=ct.EnumeratedShapes(sizes, default=(1, 3, 6, 6))),
    ]
    feeds = {"x": ((None, None), np.float32), "y": np.zeros(1, np.float32), "photo": ((1, 3, None, None), np.float32)}
    path = save(
        folder / "a.mlpackage",
        lambda x, y, photo: (mb.add(x=x, y=y), mb.relu(x=photo)), feeds, inputs=inputs, opset="iOS18",
    )  # fmt: skip
    model = ct.utils.load_spec(str(path))
    (given,) = (one for one in model.description.input if one.name == "y")
    given.type.isOptional, given.type.multiArrayType.floatDefaultValue = True, 0.25
    ct.utils.save_spec(model, str(folder / "m.mlpackage"), weights_dir=str(path / "Data/com.apple.CoreML/weights"))
    return folder / "m.mlpackage"


def description_of(package):
    return ct.utils.load_spec(str(package)).description.SerializeToString(deterministic=True)


def ports(path):
    with milblob.open(path) as model:
        found = MilProgramContainer(model)
        return found.inputs, found.outputs, found.states


def test_the_compiled_model_takes_what_the_package_does(package, tmp_path):
    compiled = compiled_of(package, tmp_path)
    without = ports(compiled)
    assert without != ports(package) and not any(port.flexible for port in without[0])
    (compiled / FEATURES).write_bytes(coremldata(description_of(package)))
    for port, due in zip(ports(compiled)[0], ports(package)[0], strict=True):
        assert port == due or (port.fixed == {} and not due.flexible and replace(due, fixed={}) == port)
    assert ports(compiled)[1:] == ports(package)[1:]
    flexible = {port.name: port.flexible for port in ports(compiled)[0]}
    assert flexible["x"] == {"enumerated": [list(shape) for shape in SHAPES]} and "enumerated" in flexible["photo"]
    session = milblob.Session(compiled)
    for shape in SHAPES:
        found = session.predict({"x": np.ones(shape, np.float32), "photo": np.ones((1, 3, 4, 4), np.float32)})
        assert any(np.array_equal(np.full(shape, np.float32(1.25)), array) for array in found.values())
    with pytest.raises(ValueError, match="got the shape"):
        session.predict({"x": np.ones((1, 5), np.float32), "photo": np.ones((1, 3, 4, 4), np.float32)})


def renamed(description):
    message = ct.proto.Model_pb2.ModelDescription.FromString(description)
    message.input[0].name = "other"
    return message.SerializeToString()


def reshaped(description):
    message = ct.proto.Model_pb2.ModelDescription.FromString(description)
    message.input[0].type.multiArrayType.enumeratedShapes.shapes[0].shape.append(7)
    return message.SerializeToString()


@pytest.mark.parametrize("make", [
    lambda description: b"",
    lambda description: b"described",
    lambda description: description,
    lambda description: coremldata(description)[:-40],
    lambda description: coremldata(description, kind=500),
    lambda description: coremldata(description, text=b"another"),
    lambda description: coremldata(description, zero=1),
    lambda description: coremldata(b"\x0f" + description),
    lambda description: coremldata(renamed(description)),
    lambda description: coremldata(reshaped(description)),
])  # fmt: skip
def test_other_forms_and_other_values_are_skipped(make, package, tmp_path):
    compiled = compiled_of(package, tmp_path)
    without = ports(compiled)
    (compiled / FEATURES).write_bytes(make(description_of(package)))
    assert ports(compiled) == without


def test_bytes_changed_anywhere(package, tmp_path):
    """What is taken over fits the Program, whatever the file says."""
    compiled = compiled_of(package, tmp_path)
    sound = coremldata(description_of(package))
    draw, taken = random.Random(4), 0
    for _ in range(60):
        data = bytearray(sound)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        (compiled / FEATURES).write_bytes(data)
        try:
            inputs, _, _ = ports(compiled)
        except milblob.MilblobError:
            continue
        assert {port.name for port in inputs} == {"x", "y", "photo"}
        taken += 1
    assert taken > 10


def test_a_shape_alone_fixes_nothing(package, tmp_path):
    """Where the description says no flexible shape and the Program leaves dimensions open, they stay open."""
    compiled = compiled_of(package, tmp_path)
    message = ct.proto.Model_pb2.ModelDescription.FromString(description_of(package))
    message.input[0].type.multiArrayType.ClearField("enumeratedShapes")
    (compiled / FEATURES).write_bytes(coremldata(message.SerializeToString()))
    (x,) = (port for port in ports(compiled)[0] if port.name == "x")
    assert (x.fixed, x.flexible, x.default_shape) == ({}, {}, SHAPES[0])


@pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no models by other people beside the repository: only our own are tested"
)
def test_files_of_core_mls_own_compiler_are_understood():
    paths = list(SAMPLES.glob(f"*/*.mlmodelc/{FEATURES}"))
    assert len(paths) >= 3
    for path in paths:
        assert described(Location(str(path.parent)))
        with milblob.open(path.parent) as model:
            found = MilProgramContainer(model)
            assert all(port.default_shape for port in found.inputs)
