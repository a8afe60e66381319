"""Packages for tests that change weights: one whose values say a number, and what is left of it afterwards."""

import pathlib

import numpy as np

import milblob
import reference
from blob_files import blob_file
from faults import temporaries
from hostile_bytes import blob_value, const, immediate, model, program, write_package
from milblob import DType

FULL = {"constants": True, "stored": True}


def code(name):
    return DType[name].mil_code


def ints(values):
    return reference.pack_tensor_value("ints", [int(v) for v in values])


def make_package(folder, number=0):
    """Two blobs, and immediates whose encoding grows with the values; everything says `number`."""
    values = np.full(300, number, "<f4")
    data, offsets = blob_file(("FLOAT32", values), ("UINT8", np.full(70, number, "u1")))
    body = program(
        const(blob_value(code("FLOAT32"), [3, 100], "@model_path/weights/weight.bin", offsets[0]), "floats"),
        const(blob_value(code("UINT8"), [70], "@model_path/weights/weight.bin", offsets[1]), "bytes"),
        const(immediate(code("INT32"), [40], ints(np.full(40, number * 1000))), "ints"),
    )
    return write_package(folder, model(body), {"weight.bin": data})


def number_of(path):
    """What everything says, if it says the same."""
    values = milblob.load(path)
    found = {int(v) for v in np.unique(values["floats"])} | {int(v) for v in np.unique(values["bytes"])}
    found |= {int(v) // 1000 for v in np.unique(values["ints"])}
    (number,) = found
    return number


def recovered_number(path):
    """What everything says once an interrupted change is completed."""
    milblob.recover(path)
    return number_of(path)


def assign_in(opened, number, names):
    for name in names:
        tensor = opened[name]
        opened[name] = np.full(tensor.shape, number * (1000 if name == "ints" else 1), tensor.dtype)


def assign(path, number, names=("floats", "bytes", "ints")):
    """An action: new values that all say `number`."""
    with milblob.open(path, "r+") as opened:
        assign_in(opened, number, names)


def assign_blobs(path, number):
    assign(path, number, ("floats", "bytes"))


def left(path):
    return temporaries(path) + sorted(p.name for p in pathlib.Path(path).rglob("*.milblob-*"))


def files_of(path):
    path = pathlib.Path(path)
    return {p: p.read_bytes() for p in (path.rglob("*") if path.is_dir() else [path]) if p.is_file()}


def turned(tensor):
    """Other values of the same dtype and shape."""
    values = tensor.read()
    if tensor.mil_dtype is DType.STRING:
        return np.array([f"{text}!" for text in values.reshape(-1)], object).reshape(values.shape)
    if tensor.mil_dtype is DType.BOOL:
        return ~values
    turned = values.reshape(-1)[::-1].reshape(values.shape)
    if turned.tobytes() != values.tobytes():
        return turned
    raw = values.view(np.uint8) if values.ndim else values.reshape(1).view(np.uint8)
    one = (raw ^ 1).view(values.dtype)
    return one.reshape(values.shape)
