"""The Python surface on files that a fuzzer made: whatever they hold, only milblob's own exceptions come out.

The first byte says what the rest is (KINDS of seeds.py, modulo their number) and what is done with it (the quotient). Files lie in
a package on disk, so that references lead somewhere, and OSError may come out too: names may be too long for the system.
harness.py has the command line.
"""

import pathlib
import shutil

import numpy
from harness import counted, folder, main

with counted():
    import milblob

from seeds import DATA, KINDS

from hostile_bytes import use_everything
from milblob.formats.read import open_arrays

NAMES = list(KINDS)
PACKAGE = DATA / "constexpr_ios18/model.mlpackage"
COMPILED = DATA / "constexpr_ios18/model.mlmodelc"
PLACES = {
    "model": "m.mlpackage/Data/com.apple.CoreML/model.mlmodel", "weights": "m.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
    "manifest": "m.mlpackage/Manifest.json", "journal": "m.mlpackage/.milblob-journal",
    "text": "m.mlmodelc/model.mil", "metadata": "m.mlmodelc/metadata.json",
    "safetensors": "a.safetensors", "npz": "a.npz", "npy": "a.npy", "listing": "a.json",
    "gguf": "a.gguf", "onnx": "a.onnx",
}  # fmt: skip
DTYPES = list(milblob.DType)
SHAPES = [(9,), (None,), (200,), (), (0,), (2, None), (3, 40), (160,)]

FOLDER = folder()


def lay_out():
    """The sound package and compiled model, as they were."""
    for source, name in ((PACKAGE, "m.mlpackage"), (COMPILED, "m.mlmodelc")):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        shutil.copytree(source, FOLDER / name)
    milblob.write_weights({"a": numpy.ones(3, "<f2")}, FOLDER / "w.bin", force=True)  # what listings speak of


def statistics(path):
    with milblob.open(path) as model:
        for tensor in model.values():
            try:
                milblob.statistics(tensor, histogram=True)
            except milblob.MilblobError:
                continue
            except TypeError as error:  # of strings there are none
                if "string" not in str(error):
                    raise


def repack(path):
    new = FOLDER / f"new{path.suffix}"
    try:
        milblob.repack(path, new, dedupe=True, gc=True)
        use_everything(new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        new.unlink(missing_ok=True)


ACTIONS = [
    use_everything,
    lambda path: milblob.check(path, values=True),
    lambda path: milblob.diff(path, PACKAGE),
    repack,
    lambda path: milblob.content_hash(path, dense=True),
    statistics,
    lambda path: milblob.match(PACKAGE, path),
    lambda path: milblob.load(path, constants=True, mmap=False),
]


def unpack(data):
    """A TensorValue, a byte in front for its dtype and shape."""
    dtype, shape = DTYPES[data[0] % len(DTYPES)], SHAPES[data[0] // len(DTYPES) % len(SHAPES)]
    milblob.unpack_tensor(data[1:], dtype, shape)


def arrays(path):
    with open_arrays(path) as found:
        for name in found:
            try:
                found[name].read()
            except milblob.MilblobError:
                continue


def one_input(data):
    """Run one input; anything but MilblobError, or OSError of a path, comes out."""
    if len(data) < 2:
        return
    kind, action = NAMES[data[0] % len(NAMES)], ACTIONS[data[0] // len(NAMES) % len(ACTIONS)]
    try:
        if kind == "value":
            unpack(data[1:])
            return
        path = FOLDER / PLACES[kind]
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(data[1:])
        try:
            if kind in ("safetensors", "npz", "npy", "gguf", "onnx"):
                arrays(path)
            elif kind == "listing":
                use_everything(path)
            elif kind == "journal":
                milblob.recover(FOLDER / pathlib.PurePath(PLACES[kind]).parts[0])
            else:
                action(FOLDER / pathlib.PurePath(PLACES[kind]).parts[0])
                if kind in ("model", "weights", "text"):
                    use_everything(data[1:])  # in memory, where references lead nowhere
        finally:
            if kind == "journal":
                lay_out()  # a sound journal changes weights
            elif before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)
    except milblob.MilblobError as error:
        assert str(error).isprintable(), repr(error)
    except OSError:
        if kind == "value":
            raise


if __name__ == "__main__":
    lay_out()
    main(one_input)
