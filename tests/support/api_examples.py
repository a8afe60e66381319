"""The examples in the docstrings of the public names, and the folder in which they run."""

import doctest
import shutil

import numpy as np

import adapters
import milblob
import tvm_archives
from paths import DATA, DEMO

MODELS = (
    "states",  # has a state, as decoders do
    "lists",  # has an operation that makes a list
    "functions",  # has two functions that share a weight
    "classifier_strings",  # gives a dictionary of probabilities
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples_of(name, found, url):
    """Return the examples in the docstring of a public name; `url` is where those that download something find it."""
    globs = {"milblob": milblob, "np": np, "url": url}
    line = found.docstring.lineno or 0  # none where a stub has no docstring
    return doctest.DocTestParser().get_doctest(found.docstring.value, globs, name, str(found.filepath), line)


def make_folder(folder):
    """Put the files that examples read into a folder."""
    shutil.copytree(DEMO, folder / "demo.mlpackage")
    adapters.make_files(folder)
    for name in MODELS:
        shutil.copytree(DATA / name / "model.mlpackage", folder / f"{name.partition('_')[0]}.mlpackage")
    shutil.copytree(DATA / "aimodel" / "conv_f16.aimodel", folder / "demo.aimodel")
    shutil.copytree(DATA / "tvm" / "cache", folder / "cache")
    tvm_archives.make(folder / "demo.tar", tvm_archives.files_of())
    params = {"w": np.float32([[1, 2], [3, 4]]), "n": np.arange(3, dtype=np.int32)}
    (folder / "demo.params").write_bytes(tvm_archives.params_of(params))


def run(examples):
    """Run examples in the current folder, and return what differs from what they show, as text; "" if nothing does."""
    runner, written = doctest.DocTestRunner(verbose=False, optionflags=FLAGS), []
    runner.run(examples, out=written.append)
    return "".join(written)
