"""The files that the examples in the help of the commands name, and how a shell reads such an example."""

import pathlib
import shlex
import shutil

import numpy as np

import milblob
import tvm_archives
from milblob.cli import main, parser
from milblob.cli.commands import tvm
from paths import DATA, DEMO

NAMES = [*(name for name in parser.COMMANDS if name != "tvm"), *(f"tvm {name}" for name in tvm.COMMANDS)]
"""Every command."""


def make_files(folder):
    """Fill a directory."""
    model = shutil.copytree(DEMO, folder / "Model.mlpackage")
    milblob.repack(model, folder / "Half.mlpackage", cast={"float32": "float16"})
    new = {name: np.array(array * 1.5, np.float32) for name, array in milblob.load(model).items()}
    np.savez(folder / "new.npz", **new)
    for chunk in milblob.chunk(model, folder / "chunks", parts=2).chunks:
        shutil.move(chunk.path, folder)
    assert main(["convert", str(folder / "new.npz"), "-o", str(folder / "new.safetensors"), "-q"]) == 0
    old = shutil.copytree(model, folder / "Old.mlpackage")
    milblob.refit(old, {"head_bias": np.ones(96, np.float32)}, destination=folder / "New.mlpackage")
    milblob.delta(old, folder / "New.mlpackage", folder / "update.milpatch")
    for name in ("prefill", "decode"):
        shutil.copytree(DATA / "opset_ios18_fp16/model.mlpackage", folder / f"{name}.mlpackage")
    np.save(folder / "tokens.npy", np.arange(16)[None])
    np.savez(folder / "inputs.npz", tokens=np.arange(16)[None])
    tvm_archives.make(folder / "model.tar", tvm_archives.files_of())
    for name in ("parameters.npz", "model.params"):
        assert main(["tvm", "params", str(folder / "model.tar"), "-o", str(folder / name), "-q"]) == 0


def arguments_of(example):
    """Split an example; a pattern that is not quoted becomes the files in the current directory that it matches."""
    words = []
    for word in shlex.split(example):
        is_pattern = "*" in word and f"'{word}'" not in example
        words += sorted(str(path) for path in pathlib.Path().glob(word)) if is_pattern else [word]
    return words
