"""`progress` is called from the start on: no phase of a long call examines all tensors without a call in between.

Work is counted and not timed: a profile function counts the calls of functions between two calls of `progress`.
"""

import atexit
import functools
import inspect
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import pytest

import milblob
import milblob.tvm
from hostile_bytes import write_package
from milblob.program import schema
from milblob.progress import ProgressCounter
from peers import WITHOUT
from protobuf_programs import F32, add_const, add_op, new_program, set_type

COUNT, SIDE = 120, 6
SMALL = milblob.Scope(min_size=1)
MAX_CALLS = 4_000
"""The calls of functions for what each call of `progress` may be preceded by: imports, files, one tensor."""
MAX_CALLS_PER_TENSOR = 200
"""About 40 us: 7,500 tensors in 0.3 s."""


def values(seed):
    rng = np.random.default_rng(seed)
    return {f"w{number}": rng.standard_normal((SIDE, SIDE)).astype(np.float32) for number in range(COUNT)}


def write_chain(folder):
    """Write a package of COUNT operations `linear`, each with a weight in the weight file and the output of the one before."""
    program, block = new_program("main")
    function = program.functions["main"]
    set_type(function.inputs.add(name="x").type, F32, (1, SIDE))
    before = "x"
    for name, array in values(1).items():
        add_const(block, name, array)
        before = add_op(block, "linear", f"y_{name}", (1, SIDE), x=before, weight=name).outputs[0].name
    block.outputs.append(before)
    model = schema.Model(specificationVersion=9)
    model.mlProgram.CopyFrom(program)
    for features, name in ((model.description.input, "x"), (model.description.output, before)):
        kind = features.add(name=name).type.multiArrayType
        kind.dataType = 65568  # float32
        kind.shape.extend((1, SIDE))
    inline = write_package(folder, model.SerializeToString(deterministic=True))
    milblob.repack(inline, folder / "model.mlpackage", externalize=True)
    return folder / "model.mlpackage"


class Files:
    """The files that the calls read, made once; `out`: a path that does not exist."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out" / "made.mlpackage"
        self.model, self.new = write_chain(folder), values(2)
        self.old, self.npz = milblob.load(self.model), folder / "new.npz"
        np.savez(self.npz, **self.new)
        self.tuned, self.compressed = folder / "tuned.mlpackage", folder / "compressed.mlpackage"
        milblob.refit(self.model, self.new | {"w0": self.old["w0"]}, destination=self.tuned)
        milblob.compress(self.model, self.compressed, "int8", scope=SMALL)
        self.chunks = [one.path for one in milblob.chunk(self.model, folder / "chunks", parts=2).chunks]
        self.patch = folder / "p.milpatch"
        milblob.delta(self.model, self.tuned, self.patch)
        renamed = {name.replace("w", "layers."): array for name, array in self.old.items()}
        self.trained = folder / "trained.safetensors"
        milblob.save(renamed, self.trained)


@functools.cache
def files():
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Files(folder)


def to(method, suffix="", **options):
    """Call a function that writes."""
    return lambda f, progress: method(
        f.model, f"{f.out.with_suffix('')}{suffix or '.mlpackage'}", progress=progress, **options
    )


CALLS = {
    "apply": lambda f, progress: milblob.apply(f.model, f.patch, f.out, progress=progress),
    "batch": lambda f, progress: milblob.batch(milblob.content_hash, [f.model, f.tuned], progress=progress),
    "check": lambda f, progress: milblob.check(f.model, progress=progress),
    "check values": lambda f, progress: milblob.check(f.compressed, values=True, progress=progress),
    "chunk": to(milblob.chunk, "/", parts=2),
    "compress": to(milblob.compress, recipe="int8", scope=SMALL),
    "compress to a goal": to(milblob.compress, recipe=milblob.Goal(bits=10, recipes=["int8", "int4"]), scope=SMALL),
    "compress again": lambda f, progress: milblob.compress(
        f.compressed, f.out, "int8", scope=SMALL, recompress=True, progress=progress
    ),
    "compress_frontier": lambda f, progress: milblob.compress_frontier(
        f.model, recipes=["int8", "int4"], scope=SMALL, progress=progress
    ),
    "content_hash": lambda f, progress: milblob.content_hash(f.model, progress=progress),
    "content_hash dense": lambda f, progress: milblob.content_hash(f.compressed, dense=True, progress=progress),
    "convert safetensors": to(milblob.convert, ".safetensors"),
    "convert npz": to(milblob.convert, ".npz"),
    "convert npy": to(milblob.convert, "/"),
    "convert params": to(milblob.convert, ".params"),
    "convert bin": to(milblob.convert, ".bin"),
    "delta": lambda f, progress: milblob.delta(f.model, f.tuned, f.out, progress=progress),
    "diff": lambda f, progress: milblob.diff(f.model, f.tuned, progress=progress),
    "diff names": lambda f, progress: milblob.diff(f.model, f.tuned, names_only=True, progress=progress),
    "diff other names": lambda f, progress: milblob.diff(f.model, f.trained, progress=progress),
    "download": lambda f, progress: milblob.download(f.model.as_uri(), f.out, progress=progress),
    "join": lambda f, progress: milblob.join(f.chunks, f.out, progress=progress),
    "match": lambda f, progress: milblob.match(f.model, f.trained, progress=progress),
    "match tuned": lambda f, progress: milblob.match(f.tuned, f.trained, progress=progress),
    "merge_functions": lambda f, progress: milblob.merge_functions(
        [(f.model, "a"), (f.tuned, "b")], f.out, progress=progress
    ),
    "merge_functions values": lambda f, progress: milblob.merge_functions(
        [(f.model, "a"), (f.compressed, "b")], f.out, dedupe="near", min_sqnr=20, progress=progress
    ),
    "refit": lambda f, progress: milblob.refit(f.model, f.npz, destination=f.out, progress=progress),
    "refit plan": lambda f, progress: milblob.refit(f.model, f.npz, dry_run=True, progress=progress),
    "refit base": lambda f, progress: milblob.refit(f.model, f.new, base=f.old, destination=f.out, progress=progress),
    "refit compressed": lambda f, progress: milblob.refit(
        f.compressed, f.npz, requantize="fit", cast=True, destination=f.out, progress=progress
    ),
    "repack": to(milblob.repack, align=4096),
    "repack plan": to(milblob.repack, dedupe=True, dry_run=True),
    "repack canonical": to(milblob.repack, gc=True, canonical=True),
    "repack near": to(milblob.repack, dedupe="near", min_sqnr=30),
    "repack decompress": lambda f, progress: milblob.repack(f.compressed, f.out, decompress=True, progress=progress),
    "repack inline": to(milblob.repack, inline=True),
    "report": lambda f, progress: milblob.report(f.model, destination=f.out, progress=progress),
    "report of two": lambda f, progress: milblob.report(f.model, f.tuned, destination=f.out, progress=progress),
    "save": lambda f, progress: milblob.save(f.new, f.out.with_suffix(".npz"), progress=progress),
    "statistics": lambda f, progress: milblob.statistics(f.model, progress=progress),
    "verify": lambda f, progress: milblob.verify(f.model, f.model, runs=1, progress=progress),
    "write_weights": lambda f, progress: milblob.write_weights(f.new, f.out.with_suffix(".bin"), progress=progress),
    "tvm.write_params": lambda f, progress: milblob.tvm.write_params(f.new, f.out, progress=progress),
}  # fmt: skip
ONE_STEP = ("batch", "match tuned", "verify")  # one call is one model, one search for a weight, one session


def silences(call):
    """Return for each call of `progress`, and the end, (how many functions were called before it, the call)."""
    found, count = [], 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    def progress(*row):
        nonlocal count
        found.append((count, row))
        count = 0

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call(progress)
    finally:
        sys.setprofile(before)
    return [*found, (count, None)]


@pytest.mark.parametrize("name", CALLS)
def test_progress_is_called_from_the_start_and_in_every_phase(name):
    if name == "verify":
        pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
    f, rows = files(), []

    def run(progress):
        shutil.rmtree(f.out.parent, ignore_errors=True)
        f.out.parent.mkdir()
        CALLS[name](f, progress)

    run(None)  # imports
    rows = silences(run)
    first = rows[0][1]
    assert first == ("", 0, 0) and rows[0][0] < MAX_CALLS
    longest = max(rows, key=lambda row: row[0])
    assert longest[0] < MAX_CALLS + COUNT * MAX_CALLS_PER_TENSOR or name in ONE_STEP, longest


def test_every_public_function_with_progress_is_called():
    def names(module, prefix=""):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and "progress" in inspect.signature(function).parameters:
                yield prefix + name

    every = {*names(milblob), *(name for name in dir(milblob) if "progress" in _parameters(getattr(milblob, name)))}
    every |= {f"tvm.{name}" for name in dir(milblob.tvm) if "progress" in _parameters(getattr(milblob.tvm, name))}
    assert every == {name.partition(" ")[0] for name in CALLS}


def _parameters(function):
    return inspect.signature(function).parameters if inspect.isfunction(function) else ()


def test_what_notes_is_not_done():
    rows = []
    counter = ProgressCounter(lambda *row: rows.append(row))
    assert list(counter.noting(["a", "b"], str)) == ["a", "b"]
    counter.total_nbytes = 5
    counter.add("c", 3)
    counter.note("d")
    assert counter.notes is not None
    counter.notes("e", 7, 9)
    assert rows == [("a", 0, 0), ("b", 0, 0), ("c", 3, 5), ("d", 3, 5), ("e", 3, 5)]
    assert ProgressCounter(None).notes is None and list(ProgressCounter(None).noting([1])) == [1]


@pytest.mark.parametrize("error", [OSError, milblob.FormatError])
def test_check_raises_what_progress_raises(error):
    """An exception of the callback is not a finding, also if it is one of milblob's own."""
    raised = error("stop")

    def progress(name, done, total):
        if name:
            raise raised

    with pytest.raises(error) as caught:
        milblob.check(files().model, values=True, progress=progress)
    assert caught.value is raised
