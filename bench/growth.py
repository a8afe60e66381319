"""How every public operation grows: 100 to 1,000,000 tensors, and a sparse file of 1 MB to 16 GiB.

    PYTHONPATH=src:bench .venv/bin/python bench/growth.py [--most 1000000] [--only NAME ...] [--keep]

Each point is a process of its own; its processor time (user and system, the least of up to five calls) and the growth of
its resident memory are taken. Python's garbage collector is off: its passes over all objects, which begin at some size,
would hide how the operation grows. The slope is that of the upper range: the last factor of 10, both axes logarithmic.
1 is growth in proportion; n log n has a slope of at most 1.1 there. The exit status is 1 if a slope is above LIMIT for no
known reason. The rows "control: ..." do in plain Python what all operations must: their slopes are those of the machine.
"""

import argparse
import gc
import io
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import machine
import makers
import numpy as np
from measure import resident
from report import BYTES, GROWTH, PLOT, SPELLED, TENSORS, growth_image, growth_line, growth_page
from results import Growth, Series

import milblob
import milblob.cli
import milblob.onnx

COUNTS = 100, 1_000, 10_000, 100_000, 1_000_000
SIZES = 1 << 20, 1 << 24, 1 << 28, 1 << 31, 1 << 34
SECONDS = 100.0
"""A larger size is not tried if this one took so long."""
SHAPE = (8, 8)


class Inputs:
    """The files of one size, made when they are first asked for.

    Args:
        folder: for the files.
        count: of tensors, or bytes of values.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def __getattr__(self, name: str) -> Path:
        """Return the path of a file by the name of the function in FILES."""
        suffix, make = FILES[name]
        path = self.folder / f"{name}{suffix}"
        if not path.exists():
            make(self, path)
        return path


def tensors(inputs: Inputs) -> makers.Tensors:
    return makers.Tensors(inputs.count, SHAPE)


def arrays(inputs: Inputs, name: str = "weight_{:05d}", tuned: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """All weights by name; of a tuned model one of a hundred is another."""
    found = tensors(inputs)
    return {name.format(i): -found[i] if tuned and i % 100 == 7 else found[i] for i in range(inputs.count)}


def write_model(inputs: Inputs, path: Path) -> None:
    makers.write_chain(path, tensors(inputs))


def write_tuned(inputs: Inputs, path: Path) -> None:
    milblob.refit(inputs.model, arrays(inputs, tuned=True), destination=path)


def write_arrays(inputs: Inputs, path: Path) -> None:
    milblob.save(arrays(inputs, "layers.{}.weight"), path)


def write_sparse(inputs: Inputs, path: Path) -> None:
    """Write it, and read what will be read, so that its pages are in the cache: those of a large file are not read twice."""
    makers.write_sparse(path, inputs.count)
    if inputs.count <= READ:
        with open(path / "Data" / makers.WEIGHTS_NAME / "weight.bin", "rb") as file:
            while file.read(1 << 20):
                pass


def integers(count: int) -> np.ndarray[Any, Any]:
    """Return int32 of every magnitude alike."""
    random = np.random.default_rng(4)
    some = np.exp2(random.uniform(0, 31, min(count, 1 << 20))) * random.choice([-1, 1], min(count, 1 << 20))
    return np.resize(some.astype(np.int32), count)


def write_uint4(inputs: Inputs, path: Path) -> None:
    elements = np.random.default_rng(7).integers(0, 16, 1 << 20, np.uint8)
    with milblob.BlobWriter(path, sync=False) as writer:
        writer.write(np.resize(elements, 2 * inputs.count), "uint4")


FILES: dict[str, tuple[str, Callable[[Inputs, Path], Any]]] = {
    "model": (".mlpackage", write_model),
    "tuned": (".mlpackage", write_tuned),
    "arrays": (".safetensors", write_arrays),
    "base": (".safetensors", lambda inputs, path: milblob.save(arrays(inputs), path)),
    "new": (".safetensors", lambda inputs, path: milblob.save(arrays(inputs, tuned=True), path)),
    "blobs": (".bin", lambda inputs, path: milblob.save(arrays(inputs), path)),
    "compressed": (".mlpackage", lambda inputs, path: milblob.compress(inputs.model, path, "int8", scope=SMALL)),
    "chunks": ("", lambda inputs, path: milblob.chunk(inputs.model, path, parts=4)),
    "patch": (".milpatch", lambda inputs, path: milblob.delta(inputs.model, inputs.tuned, path)),
    "onnx": (".onnx", lambda inputs, path: milblob.onnx.convert(inputs.model, path, weights="embed")),
    "text": (".mil", lambda inputs, path: path.write_bytes(milblob.to_text(inputs.model, weights="all").encode())),
    "sparse": (".mlpackage", write_sparse),
    "integers": (".npy", lambda inputs, path: np.save(path, integers(inputs.count // 4))),
    "packed": (".tensor", lambda inputs, path: path.write_bytes(milblob.pack_tensor(np.load(inputs.integers)))),
    "uint4": (".bin", write_uint4),
}
SMALL = milblob.Scope(min_size=1)


class Operation(NamedTuple):
    """What is measured.

    Attributes:
        call: of the inputs and a path that does not exist.
        most: the most tensors that it is measured with. 100,000 of what walks a Program, which may have no more than
            1,048,575 operations and constants: each tensor here brings three others.
        files: attributes of the inputs that it reads, made before the clock starts.
    """

    call: Callable[[Inputs, Path], Any]
    most: int = 100_000
    files: tuple[str, ...] = ("model",)


def opened(call: Callable[[Any], Any], **options: Any) -> Callable[[Inputs, Path], Any]:
    def run(inputs: Inputs, out: Path) -> Any:
        with milblob.open(inputs.model, **options) as model:
            return call(model)

    return run


def command(*arguments: str) -> Callable[[Inputs, Path], None]:
    """A command; M, N: the model and the tuned model."""

    def run(inputs: Inputs, out: Path) -> None:
        places = {"M": "model", "N": "tuned"}
        run_command(*(getattr(inputs, places[one]) if one in places else one for one in arguments))

    return run


def run_command(*arguments: object) -> None:
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        status = milblob.cli.main([str(one) for one in arguments])
    assert status < 2, status


def walk(model: Any) -> int:
    return sum(len(operation.inputs) for function in model.functions.values() for operation in function.walk())


def assign(inputs: Inputs, out: Path) -> None:
    shutil.copytree(inputs.model, out)
    new = tensors(inputs)
    with milblob.open(out, "r+") as model:
        for i in range(inputs.count):
            model[new.name(i)] = new[i]


def write_records(inputs: Inputs, out: Path) -> None:
    new = tensors(inputs)
    with milblob.BlobWriter(out, sync=False) as writer:
        for i in range(inputs.count):
            writer.write(new[i])


def read_records(inputs: Inputs, out: Path) -> None:
    with milblob.BlobReader(inputs.blobs) as reader:
        for offset in reader.index["offset"]:
            reader.read(int(offset))


def slices(inputs: Inputs, out: Path) -> None:
    with milblob.safe_open(inputs.model, "np") as f:
        for name in f.offset_keys():
            f.get_slice(name)[...]


def gather(inputs: Inputs, out: Path) -> None:
    """Read and write each row of 64 bytes of a table once, in random order: what any hash table of as many names does."""
    order = np.random.default_rng(1).permutation(inputs.count)
    table = np.ones((inputs.count, 8), np.uint64)
    table[order, 0] = order[order]


MILLION = 1_000_000
M, N = ("model",), ("model", "tuned")
OPERATIONS: dict[str, Operation] = {
    "control: dict": Operation(lambda i, out: dict.fromkeys(f"weight_{n:05d}" for n in range(i.count)), MILLION, ()),
    "control: objects": Operation(lambda i, out: {f"weight_{n:05d}": [n] for n in range(i.count)}, MILLION, ()),
    "control: gather": Operation(gather, MILLION, ()),
    "control: memory": Operation(lambda i, out: len(bytearray(b"x") * (500 * i.count)), MILLION, ()),
    "open": Operation(opened(len), MILLION),
    "names": Operation(opened(list), MILLION),
    "tensors": Operation(opened(lambda model: sum(t.nbytes for t in model.values())), MILLION),
    "read each": Operation(opened(lambda model: [t.read() for t in model.values()]), MILLION),
    "load": Operation(lambda i, out: milblob.load(i.model), MILLION),
    "load weight file": Operation(lambda i, out: milblob.load(i.blobs), MILLION, ("blobs",)),
    "stored, constants": Operation(opened(list, stored=True, constants=True)),
    "view: walk": Operation(opened(walk)),
    "consumers": Operation(opened(lambda model: [t.consumers for t in model.values()])),
    "find": Operation(opened(lambda model: model.find(type="linear"))),
    "program": Operation(opened(lambda model: model.program.ByteSize())),
    "assign each": Operation(assign),
    "BlobWriter.write": Operation(write_records, MILLION, ()),
    "BlobReader.read": Operation(read_records, MILLION, ("blobs",)),
    "safe_open slices": Operation(slices, MILLION),
    "open_arrays": Operation(lambda i, out: list(milblob.open_arrays(i.base)), MILLION, ("base",)),
    "to_text": Operation(lambda i, out: milblob.to_text(i.model, io.BytesIO())),
    "open .mil": Operation(lambda i, out: len(milblob.open(i.text)), 100_000, ("text",)),
    "statistics": Operation(lambda i, out: milblob.statistics(i.model), MILLION),
    "content_hash": Operation(lambda i, out: milblob.content_hash(i.model)),
    "content_hash dense": Operation(lambda i, out: milblob.content_hash(i.compressed, dense=True), 100_000, ("compressed",)),
    "check": Operation(lambda i, out: milblob.check(i.model, values=True)),
    "check compressed": Operation(lambda i, out: milblob.check(i.compressed, values=True), 100_000, ("compressed",)),
    "diff": Operation(lambda i, out: milblob.diff(i.model, i.tuned), 100_000, N),
    "diff, other names": Operation(lambda i, out: milblob.diff(i.model, i.arrays), 100_000, ("model", "arrays")),
    "match": Operation(lambda i, out: milblob.match(i.model, i.arrays), 100_000, ("model", "arrays")),
    "match tuned": Operation(lambda i, out: milblob.match(i.tuned, i.arrays), 100_000, ("tuned", "arrays")),
    "report": Operation(lambda i, out: milblob.report(i.model, destination=out)),
    "report of two": Operation(lambda i, out: milblob.report(i.model, i.tuned, destination=out), 100_000, N),
    "repack": Operation(lambda i, out: milblob.repack(i.model, out, align=4096), MILLION),
    "repack dedupe": Operation(lambda i, out: milblob.repack(i.model, out, dedupe=True), MILLION),
    "repack dedupe values": Operation(lambda i, out: milblob.repack(i.model, out, dedupe="values")),
    "repack dedupe near": Operation(lambda i, out: milblob.repack(i.model, out, dedupe="near", min_sqnr=30)),
    "repack gc canonical": Operation(lambda i, out: milblob.repack(i.model, out, gc=True, canonical=True)),
    "repack cast": Operation(lambda i, out: milblob.repack(i.blobs, out.with_suffix(".bin"), cast={"float16": "float32"}), MILLION, ("blobs",)),
    "repack inline": Operation(lambda i, out: milblob.repack(i.model, out, inline=True), MILLION),
    "repack split": Operation(lambda i, out: milblob.repack(i.model, out, split=64 * i.count)),
    "repack decompress": Operation(lambda i, out: milblob.repack(i.compressed, out, decompress=True), 100_000, ("compressed",)),
    "compress int8": Operation(lambda i, out: milblob.compress(i.model, out, "int8", scope=SMALL)),
    "compress palette4": Operation(lambda i, out: milblob.compress(i.model, out, "palette4", scope=SMALL), 10_000),
    "compress goal": Operation(lambda i, out: milblob.compress(i.model, out, milblob.Goal(bits=6), scope=SMALL), 10_000),
    "compress_frontier": Operation(lambda i, out: milblob.compress_frontier(i.model, scope=SMALL), 10_000),
    "recompress": Operation(lambda i, out: milblob.compress(i.compressed, out, "int8", scope=SMALL, recompress=True), 10_000, ("compressed",)),
    "refit": Operation(lambda i, out: milblob.refit(i.model, i.new, destination=out), 100_000, ("model", "new")),
    "refit base": Operation(lambda i, out: milblob.refit(i.model, i.new, base=i.base, destination=out), 100_000, ("model", "new", "base")),
    "refit compressed": Operation(lambda i, out: milblob.refit(i.compressed, i.new, requantize="fit", cast=True, destination=out), 10_000, ("compressed", "new")),
    "merge_functions": Operation(lambda i, out: milblob.merge_functions([(i.model, "a"), (i.tuned, "b")], out), 100_000, N),
    "merge_functions values": Operation(lambda i, out: milblob.merge_functions([(i.model, "a"), (i.tuned, "b")], out, dedupe="values"), 100_000, N),
    "chunk": Operation(lambda i, out: milblob.chunk(i.model, out, parts=4)),
    "chunk pipeline": Operation(lambda i, out: milblob.chunk(i.model, out, max_nbytes=i.count * 100, pipeline=True)),
    "join": Operation(lambda i, out: milblob.join(sorted(i.chunks.glob("*.mlpackage")), out), 100_000, ("chunks",)),
    "delta": Operation(lambda i, out: milblob.delta(i.model, i.tuned, out.with_suffix(".milpatch")), 100_000, N),
    "apply": Operation(lambda i, out: milblob.apply(i.model, i.patch, out), 100_000, ("model", "patch")),
    "onnx.convert": Operation(lambda i, out: milblob.onnx.convert(i.model, out.with_suffix(".onnx"), weights="embed")),
    "onnx.convert copy": Operation(lambda i, out: milblob.onnx.convert(i.model, out.with_suffix(".onnx"), weights="copy")),
    "onnx.convert compressed": Operation(lambda i, out: milblob.onnx.convert(i.compressed, out.with_suffix(".onnx"), weights="embed"), 10_000, ("compressed",)),
    "onnx.coverage": Operation(lambda i, out: milblob.onnx.coverage(i.model)),
    **{f"convert to {suffix}": Operation(
        lambda i, out, suffix=suffix: milblob.convert(i.model, out.with_suffix(f".{suffix}")), MILLION
    ) for suffix in ("safetensors", "npz", "params", "bin")},
    "convert to a folder": Operation(lambda i, out: milblob.convert(i.model, f"{out.with_suffix('')}/"), 10_000),
    "download": Operation(lambda i, out: milblob.download(i.model.as_uri(), out)),
    "Session": Operation(lambda i, out: milblob.Session(i.model).close(), 1_000),
    "verify": Operation(lambda i, out: milblob.verify(i.model, i.model, runs=1), 1_000),
    "ls": Operation(command("ls", "M")),
    "ls --json": Operation(command("ls", "M", "--json"), MILLION),
    "ls --stored": Operation(command("ls", "M", "--stored", "--constants", "-v")),
    "show": Operation(command("show", "M")),
    "show one": Operation(command("show", "M", "weight_00007")),
    "text": Operation(command("text", "M")),
    "stats": Operation(command("stats", "M"), MILLION),
    "command check": Operation(command("check", "M")),
    "command diff": Operation(command("diff", "M", "N"), 100_000, N),
    "command diff --json": Operation(command("diff", "M", "N", "--json"), 100_000, N),
    "command match": Operation(command("match", "M", "N"), 100_000, N),
    "command hash": Operation(command("hash", "M", "N"), 100_000, N),
}  # fmt: skip


def sparse(call: Callable[[Any], Any]) -> Callable[[Inputs, Path], Any]:
    def run(inputs: Inputs, out: Path) -> Any:
        with milblob.open(inputs.sparse) as model:
            return call(model)

    return run


def of_size(nbytes: int, call: Callable[[Inputs, Path], Any]) -> Operation:
    return Operation(call, nbytes, ("sparse",))


WHOLE, READ, WRITTEN = SIZES[-1], SIZES[-2], SIZES[2]
OF_SIZE: dict[str, Operation] = {
    "control: copy": Operation(lambda i, out: np.fromfile(i.integers, np.int32).copy(), WRITTEN, ("integers",)),
    "pack int32": Operation(lambda i, out: milblob.pack_tensor(np.load(i.integers)), WRITTEN, ("integers",)),
    "unpack int32": Operation(
        lambda i, out: milblob.unpack_tensor(i.packed.read_bytes(), "int32", (i.count // 4,)), WRITTEN, ("packed",)
    ),
    "read uint4": Operation(lambda i, out: milblob.load(i.uint4), WRITTEN, ("uint4",)),
    "open one file": of_size(WHOLE, sparse(list)),
    "load one file": of_size(WHOLE, lambda i, out: milblob.load(i.sparse)),
    "read a slice": of_size(WHOLE, sparse(lambda model: model["weight_3"][-1, -8:])),
    "check one file": of_size(WHOLE, lambda i, out: milblob.check(i.sparse)),
    "text of one file": of_size(WHOLE, lambda i, out: milblob.to_text(i.sparse)),
    "plan of repack": of_size(WHOLE, lambda i, out: milblob.repack(i.sparse, out, align=4096, dry_run=True)),
    "ls of one file": of_size(WHOLE, lambda i, out: run_command("ls", i.sparse)),
    "show of one file": of_size(WHOLE, lambda i, out: run_command("show", i.sparse)),
    "check the values": of_size(READ, lambda i, out: milblob.check(i.sparse, values=True)),
    "hash one file": of_size(READ, lambda i, out: milblob.content_hash(i.sparse)),
    "statistics of one file": of_size(READ, lambda i, out: milblob.statistics(i.sparse)),
    "diff with itself": of_size(READ, lambda i, out: milblob.diff(i.sparse, i.sparse)),
    "repack one file": of_size(WRITTEN, lambda i, out: milblob.repack(i.sparse, out, align=4096)),
    "convert one file": of_size(WRITTEN, lambda i, out: milblob.convert(i.sparse, out.with_suffix(".safetensors"))),
    "compress one file": of_size(WRITTEN, lambda i, out: milblob.compress(i.sparse, out, "int8")),
}  # fmt: skip
_CACHES = "the table of a million names does not fit into the caches"
_PAGES = "the kernel clears the pages of new memory, which small arrays take again; user time grows in proportion"
REASONS = {
    "program": "protobuf's own parser",
    "control: dict": _CACHES,
    "control: objects": _CACHES,
    "control: gather": "a table of 64 MB does not fit into the caches",
    "stored, constants": "the table of 400,000 names does not fit into the caches: as control: dict",
    "open": f"{_CACHES}: as control: dict, and less than control: gather",
    "names": f"{_CACHES}: as control: dict, and less than control: gather",
    "repack": "it writes 4 GB, a page for each tensor: the system's time has a slope of 1.23, the user's 1.12",
    "control: copy": _PAGES,
    "pack int32": _PAGES,
    "unpack int32": _PAGES,
}
"""Why an operation may grow faster than n log n: what is known, by measurement, to have another cause than its own steps."""
GROUPS: dict[str, dict[str, Operation]] = {TENSORS: OPERATIONS, BYTES: OF_SIZE}


def measured(call: Callable[[], Any], out: Path) -> tuple[float, int]:
    """Return (processor seconds, bytes): the least of several calls in a forked process, and what became resident in the first."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            gc.disable()
            times, peak = [], 0
            # The first call imports modules: what takes a second is called twice too.
            while not times or (len(times) < 2 and times[0] < 10) or (sum(times) < 1.0 and len(times) < 5):
                for path in out.parent.glob(f"{out.stem}*"):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                start = spent()
                if times:
                    call()
                else:
                    peak = resident(call)[0]
                times.append(spent() - start)
            os.write(writer, json.dumps([min(times), peak]).encode())
            code = 0
        except BaseException as error:
            os.write(writer, json.dumps(f"{type(error).__name__}: {error}"[:300]).encode())
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    result = json.loads(found or '"ended by a signal"')
    if isinstance(result, str):
        raise RuntimeError(result)
    return result[0], result[1]


def spent() -> float:
    """Processor seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def series_of(name: str, operation: Operation, sizes: Iterable[int], folder: Path) -> Series:
    """Measure an operation at each size, in order, until one takes too long or fails."""
    points: list[tuple[int, float, int]] = []
    for size in sizes:
        if size > operation.most or (points and points[-1][1] > SECONDS):
            break
        place, out = folder / str(size), folder / "out" / "made.mlpackage"
        place.mkdir(exist_ok=True)
        out.parent.mkdir(exist_ok=True)
        inputs = Inputs(place, size)
        try:
            for file in operation.files:
                getattr(inputs, file)
            points.append((size, *measured(partial(operation.call, inputs, out), out)))
        except Exception as error:
            return Series(name, points, f"{size:,}: {type(error).__name__}: {error}"[:300], REASONS.get(name, ""))
        finally:
            shutil.rmtree(out.parent)
    return Series(name, points, "", REASONS.get(name, ""))


def merged(old: Growth, new: Growth) -> Growth:
    """Return a run with the series that were measured again, in the order of the operations."""
    groups = {}
    for title, operations in GROUPS.items():
        found = {one.name: one for run in (old, new) for one in run.groups.get(title, ())}
        groups[title] = [found[name] for name in operations if name in found]
    return Growth(new.header | {"is_merged": True}, groups)


def main() -> int:
    """Measure; with --keep, write the table and the plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="tensors")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="operations; --keep keeps what is known of the others"
    )
    parser.add_argument("--keep", action="store_true", help="write bench/results/growth.* and docs/growth.svg")
    options = parser.parse_args()
    groups: dict[str, list[Series]] = {}
    with tempfile.TemporaryDirectory(prefix="growth-") as made:
        for title, operations in GROUPS.items():
            sizes = [n for n in COUNTS if n <= options.most] if title == TENSORS else SIZES
            for name, operation in operations.items():
                if not options.only or name in options.only:
                    series = series_of(name, operation, sizes, Path(made))
                    print(growth_line(series, SPELLED[title]), flush=True)
                    groups.setdefault(title, []).append(series)
            for place in Path(made).iterdir():
                shutil.rmtree(place)
    found = Growth(machine.describe(), groups)
    if options.keep:
        kept = merged(Growth.load(GROWTH), found) if options.only and GROWTH.exists() else found
        kept.save(GROWTH)
        GROWTH.with_suffix(".md").write_text(growth_page(kept), encoding="utf-8")
        PLOT.write_text(growth_image(kept), encoding="utf-8")
    return int(any(one.is_steep and not one.reason for rows in groups.values() for one in rows))


if __name__ == "__main__":
    sys.exit(main())
