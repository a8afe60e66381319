"""Calls of every public function of milblob that takes a model, and of every command, and what may come out of them.

CALLS has one entry for each name that `milblob`, `milblob.onnx` and `milblob.tvm` offer and that can be called with a model;
after a space stands which of several ways. COMMANDS has the arguments of each command. NO_MODEL says of the others why they are
not in it. `tests/test_public_calls.py` compares all with what is offered.
"""

import contextlib
import io
import json
import pathlib
import re
import shutil
import sys
import warnings

import numpy as np

import milblob
import milblob.cli
import milblob.cli.terminal.failures
import milblob.onnx
import milblob.tvm
from compress_options import grouped
from file_damage import SOURCES, write_files
from model_damage import Choices, damaged_weights, hostile
from paths import DATA, DEMO

MODEL = "Data/com.apple.CoreML/model.mlmodel"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
MODELS = [DEMO, *(DATA / name / "model.mlpackage" for name in (
    "constexpr_ios18", "opset_ios16_fp16", "functions", "control_flow", "classifier_strings", "sparse_palette", "quant_int8",
    "flexible", "states", "opset_ios18_fp16", "classifier_integers", "lists", "constexpr_ios16", "palette_grouped", "weight_files",
))]  # fmt: skip
"""Sound models that are damaged; SOURCES of file_damage.py follow. A byte of a fuzzer says which."""
LATE = DATA / "opset_ios18_fp16" / "model.mlpackage"


def _everything_of(path, out):
    with milblob.open(path, constants=True, stored=True) as model:
        for tensor in model.values():
            is_text = tensor.mil_dtype == milblob.DType.STRING
            for read in (tensor.read, *([] if is_text else [tensor.read_packed])):
                with contextlib.suppress(milblob.MilblobError):
                    read()
            repr((tensor, tensor.consumers, tensor.operation, tensor.parts, tensor.size, is_text or tensor.nbytes))
        for function in model.functions.values():
            for operation in function.walk():
                repr((operation, operation.inputs, operation.outputs, operation.attributes, operation.consumers))
        model.find(type="const")
        repr((model.metadata, model.program.ByteSize()))


def _assign(path, out):
    with milblob.open(_copied(path, out), "r+") as model:
        for name, tensor in [(name, t) for name, t in model.items() if _is_small(t)][:2]:
            with contextlib.suppress(milblob.MilblobError):
                model[name] = np.zeros(tensor.shape, tensor.dtype)


def _is_small(tensor):
    """Whether NumPy can make an array of its shape, and has its dtype: this module makes one."""
    is_shaped = tensor.ndim < 60 and None not in tensor.shape and tensor.size < 1 << 20
    return is_shaped and tensor.mil_dtype != milblob.DType.STRING


def _copied(path, out):
    if path.is_dir():
        return shutil.copytree(path, out / path.name, dirs_exist_ok=True)
    shutil.copytree(path.parent, out / "copy", dirs_exist_ok=True)
    return out / "copy" / path.name


def _values(path, most=3):
    """New values for a few weights of a model."""
    with milblob.open(path) as model:
        found = [(name, tensor) for name, tensor in model.items() if _is_small(tensor)][:most]
    return {
        name: np.full(tensor.shape, 1 if tensor.dtype.kind in "iub" else 0.5, tensor.dtype) for name, tensor in found
    }


def _refit(requantize, is_in_place=False):
    def call(path, out):
        if is_in_place:
            milblob.refit(_copied(path, out), _values(path), cast=True, requantize=requantize, unshare=True)
        else:
            milblob.refit(path, _values(path), cast=True, requantize=requantize, destination=out / "refitted.mlpackage")

    return call


BASE = {"w": np.ones((4, 4), np.float32), "b": np.arange(4, dtype=np.float32)}


def _refit_base(path, out):
    """From its own weights as the base, so that they follow from it."""
    with milblob.open(path, constants=True) as model:
        base = {name: tensor.read() for name, tensor in model.items() if _is_small(tensor)}
    tuned = {name: array + 1 if array.dtype.kind == "f" else array for name, array in base.items()}
    milblob.refit(path, tuned, base=base, cast=True, dry_run=True)


def _topologies(path):
    """Also compile and coverage of what was parsed; convert_topology is what convert calls."""
    with milblob.open(path) as model:
        for function in model.functions.values():
            topology = milblob.onnx.parse_mil(function)
            milblob.onnx.compile(topology)
            repr(topology)


def _session(path, out):
    with milblob.Session(path, replaceable=True) as session:
        repr((session, session.inputs, session.outputs, session.states))


def _feeds(path, runs=()):
    """Inputs of a model; `runs`: () for one run, (n,) for several. None for a model whose inputs are large."""
    with milblob.Session(path) as session:
        inputs = list(session.inputs.values())
    sizes = [[*runs, *(size if isinstance(size, int) else 1 for size in one.shape or ())] for one in inputs]
    if all(len(shape) < 60 and np.prod(np.array(shape, object)) < 1 << 16 for shape in sizes):
        return {one.name: np.ones(shape, one.dtype) for one, shape in zip(inputs, sizes, strict=True)}
    return None


def _predict(path, out):
    feeds = _feeds(path)
    if feeds is not None:
        with milblob.Session(path) as session:
            session.run(None, feeds)
            session(**feeds)


def _errors(path, out):
    feeds = _feeds(path, (2,))
    if feeds is not None:
        errors = milblob.OutputSensitivity(path, feeds)
        for name, array in _values(path, 1).items():
            errors(name, array, array + 1)


def _convert(**options):
    """Beside the model, for a file with references stands above what it names."""
    return lambda path, out: milblob.onnx.convert(path, path.parent / "converted.onnx", force=True, **options)


def _safe_open(path, out):
    with milblob.safe_open(path, "np", constants=True) as f:
        repr((f, f.metadata(), f.get_tensors()))
        for name in f.offset_keys():
            part = f.get_slice(name)
            repr((part.get_shape(), part.get_dtype(), part[...]))


def _repack(**options):
    return lambda path, out: milblob.repack(path, out / "repacked.mlpackage", **options)


def _compress(recipe=None, **options):
    return lambda path, out: milblob.compress(path, out / "small.mlpackage", **_asked(recipe, options))


def _asked(recipe, options):
    return {"recipe": recipe} | grouped(**({} if "plan" in options else {"min_size": 8}), **options)


def _read_arrays(path, out):
    with milblob.open_arrays(path) as arrays:
        for name in arrays:
            with contextlib.suppress(milblob.MilblobError):
                arrays[name].read()


def _save(path, out):
    with milblob.open(path) as model:
        milblob.save(model, out / "s.npz")


def _join(path, out):
    chunks = milblob.chunk(path, out / "chunks", parts=2).chunks
    milblob.join([chunk.path for chunk in chunks], out / "whole.mlpackage")


def _delta(path, out):
    milblob.delta(DEMO, path, out / "to.milpatch", force=True)
    milblob.apply(DEMO, out / "to.milpatch", out / "to.mlpackage", force=True)


def _apply(path, out):
    milblob.delta(path, DEMO, out / "from.milpatch", force=True)
    milblob.apply(path, out / "from.milpatch", dry_run=True)


CALLS = {
    "load": lambda path, out: milblob.load(path),
    "load stored": lambda path, out: milblob.load(path, constants=True, stored=True, mmap=False),
    "open": _everything_of,
    "Model": lambda path, out: milblob.Model(path).close(),
    "EditableModel": _assign,
    "check": lambda path, out: milblob.check(path, values=True),
    "content_hash": lambda path, out: milblob.content_hash(path),
    "content_hash dense": lambda path, out: milblob.content_hash(path, dense=True),
    "statistics": lambda path, out: milblob.statistics(path, histogram=True),
    "report": lambda path, out: milblob.report(path, destination=out / "report.html", force=True),
    "report of two": lambda path, out: milblob.report(path, DEMO, destination=out / "two.html", force=True),
    "diff": lambda path, out: milblob.diff(path, path),
    "diff with another": lambda path, out: milblob.diff(DEMO, path, stored=True),
    "match": lambda path, out: milblob.match(path, path),
    "match arrays": lambda path, out: milblob.match(path, BASE),
    "match with a model": lambda path, out: milblob.match(DEMO, path),
    "to_text": lambda path, out: milblob.to_text(path, io.BytesIO()),
    "recover": lambda path, out: milblob.recover(path),
    "to_text with weights": lambda path, out: milblob.to_text(path, weights="all"),
    "repack": _repack(dedupe=True, cast={"float32": "float16"}),
    "repack near": _repack(dedupe="near", min_sqnr=30, base={}),
    "repack values": _repack(dedupe="values"),
    "repack dense": _repack(decompress=True, gc=True, canonical=True, align=4096),
    "repack inline": _repack(inline=True, nan="error", overflow="clamp", cast={"float16": "float32"}),
    "repack outside": _repack(externalize=1, split="function", merge=False),
    "compress": _compress(milblob.Linear("int8")),
    "compress blocks": _compress(milblob.Linear("int4", granularity="per_block", block=2), recompress=True),
    "compress palette": _compress(milblob.Palette(2, granularity="per_grouped_channel", group_size=2), nan="keep"),
    "compress vectors": _compress(milblob.Palette(2, vector=2)),
    "compress pruned": _compress(milblob.Joint((milblob.Prune(0.5), milblob.Linear("uint8")))),
    "compress goal": _compress(bits=5.0),
    "compress_frontier": lambda path, out: milblob.compress_frontier(path, scope=milblob.Scope(min_size=8)),
    "merge_functions": lambda path, out: milblob.merge_functions([(path, "a"), (path, "b")], out / "merged.mlpackage"),
    "merge_functions values": lambda path, out: milblob.merge_functions(
        [(path, "a"), (path, "b")], out / "merged.mlpackage", dedupe="near", min_sqnr=30, base={}, dry_run=False
    ),
    "merge_functions with another": lambda path, out: milblob.merge_functions(
        [(path, "a"), (LATE, "b")], out / "merged.mlpackage"
    ),
    "chunk": lambda path, out: milblob.chunk(path, out / "chunks", parts=2),
    "chunk by size": lambda path, out: milblob.chunk(path, out / "chunks", max_nbytes=2000, pipeline=True),
    "join": _join,
    "delta": _delta,
    "apply": _apply,
    "refit": _refit(None),
    "refit compressed": _refit("fit"),
    "refit in place": _refit(None, is_in_place=True),
    "refit compressed in place": _refit("keep", is_in_place=True),
    "refit with a base": _refit_base,
    "refit a model": lambda path, out: milblob.refit(_copied(DEMO, out), path),
    "verify": lambda path, out: milblob.verify(path, path, runs=1, max_nbytes=1 << 24),
    "open_arrays": _read_arrays,
    "save": _save,
    "convert": lambda path, out: milblob.convert(path, out / "c.safetensors"),
    "convert to a weight file": lambda path, out: milblob.convert(path, out / "c.bin", stored=True, constants=True),
    "convert to an unpacked directory": lambda path, out: milblob.convert([path], f"{out}/folder/", unpack=True),
    "onnx.convert": _convert(),
    "onnx.convert a copy": _convert(weights="copy", precision="float32", compressed="dense"),
    "onnx.convert all in one": _convert(weights="embed", opset=18, zipmap=True),
    "Session": _session,
    "Session that runs": _predict,
    "onnx.coverage": lambda path, out: milblob.onnx.coverage(path),
    "onnx.parse_mil": lambda path, out: _topologies(path),
    "OutputSensitivity": _errors,
    "safe_open": _safe_open,
    "tvm.open": lambda path, out: milblob.tvm.open(path).close(),
    "tvm.open_params": lambda path, out: milblob.tvm.open_params(path).close(),
    "tvm.read_params": lambda path, out: milblob.tvm.read_params(path),
    "tvm.read_cache": lambda path, out: milblob.tvm.read_cache(path),
    "tvm.check_archive": lambda path, out: milblob.tvm.check_archive(path),
    "tvm.check_params": lambda path, out: milblob.tvm.check_params(path),
}
"""Name -> a function of the path of a model and of a directory for what is written."""

NO_MODEL = {
    "BlobReader": "weight files: fuzz_python.py", "BlobWriter": "writes arrays", "pack_tensor": "arrays",
    "unpack_tensor": "bytes of a value: fuzz_tensor.c", "write_weights": "arrays", "info": "no argument",
    "onnx.compile": "with onnx.parse_mil", "onnx.convert_topology": "with onnx.convert", "onnx.Weights": "with onnx.convert",
    "onnx.decoded": "a weight of a conversion", "onnx.register_converter": "code", "onnx.supported": "no model",
    "download": "a server: tests/remote", "batch": "calls others: tests/batching", "onnx.register_shape_calculator": "code", "onnx.unregister": "code", "tvm.write_params": "arrays",
}  # fmt: skip

COMMANDS = {
    "ls": ["M", "--json"], "ls as a table": ["M", "--stored", "--constants", "-v"], "ls of files": ["M", "-p"],
    "show": ["M"], "show one": ["M", "w"], "show as JSON": ["M", "--json"],
    "text": ["M"], "text around": ["M", "--op", "out0_0", "--around", "2"], "text with values": ["M", "--weights", "all"],
    "stats": ["M", "--histogram", "--would-overflow", "float16"], "stats as JSON": ["M", "--json", "--stored"],
    "report": ["M", "-o", "O/report.html"], "report of two": ["D", "M", "-o", "O/two.html", "--json"],
    "recover": ["M"], "hash": ["M"], "hash of two": ["M", "D", "--dense"],
    "diff": ["M", "D"], "diff as JSON": ["D", "M", "--json", "--stored"], "diff with arrays": ["M", "B"],
    "match": ["M", "B", "-o", "O/mapping.json"], "match as JSON": ["M", "B", "--json"],
    "convert constants": ["M", "-o", "O/a.npz", "--constants", "--unpack"], "convert to a directory": ["M", "-o", "O/a", "--stored"],
    "convert": ["M", "-o", "O/a.safetensors"], "convert for TVM": ["M", "-o", "O/a.params"], "convert to a weight file": ["M", "-o", "O/w.bin", "--listing", "O/w.json"],
    "batch": ["hash", "--dense", "--", "M", "--into", "O/results"], "batch of copies": ["repack", "--gc", "--", "M", "D", "--into", "O/copies"],
    "check": ["M", "--values"], "check of two": ["M", "D", "--json"], "check for SARIF": ["M", "--sarif"],
     "refit": ["M", "V", "--cast", "-o", "O/r.mlpackage"], "refit with a base": ["M", "B", "--base", "B", "-n"],
    "refit with the model": ["D", "M", "-n"],
    "repack": ["M", "-o", "O/r.mlpackage", "--cast", "float32=float16", "--gc", "--dedupe"],
    "repack near": ["M", "-o", "O/r.mlpackage", "--dedupe=near", "--min-sqnr", "30", "--verify"], "repack plan": ["M", "-o", "O/r.mlpackage", "--decompress", "-n", "--json"],
    "compress": ["M", "-o", "O/c.mlpackage", "--palette", "4", "--min-size", "8"], "compress plan": ["M", "-o", "O/c.mlpackage", "--bits", "6", "--min-size", "8", "--save-plan", "O/p.json"],
    "compress frontier": ["M", "--frontier", "O/f.svg", "--min-size", "8"],
    "chunk": ["M", "-o", "O/parts", "--parts", "2", "-v"], "join": ["M", "L", "-o", "O/m.mlpackage"],
    "delta": ["D", "M", "-o", "O/p.milpatch", "-v"], "apply": ["M", "D"],
    "merge-functions": ["M", "L", "-o", "O/m.mlpackage", "--as", f"{LATE}:main=other"],
    "merge-functions values": ["M", "L", "-o", "O/m.mlpackage", "--as", f"{LATE}:main=other", "--dedupe=values", "-n"],
    "to-onnx": ["M", "-o", "O/m.onnx", "--weights", "copy"], "to-onnx coverage": ["M", "--coverage"], "to-onnx as JSON": ["M", "-o", "O/m.onnx", "--json", "--weights", "embed"],
    "run": ["M", "-i", "F", "-o", "O/a.npz"], "verify": ["M", "M", "--runs", "1", "--max-nbytes", "16MiB"],
    "tvm ls": ["ls", "M"], "tvm check": ["check", "M"], "tvm params": ["params", "M", "-o", "O/a.params"],
    "info": [],
}  # fmt: skip
"""Command, and after a space which of several ways -> its arguments. M is the model, D a sound one, L one
for iOS 18, B a file of arrays, V one of values for the model, F one of its inputs, O a directory for what is written."""


NAMES = [*CALLS, *(f"milblob {name}" for name in COMMANDS)]
"""Of all calls; a byte of a fuzzer says which."""


def case(data, folder):
    """Make the model or file that bytes say, do with it what they say, and return what came of it.

    Args:
        data: the first byte chooses what is damaged, the second a call, the others the damage.
        folder: for the model and what is written; what is in it is removed.

    Returns:
        (name of the call, what came out that milblob does not promise, or None)
    """
    choices = Choices(data)
    kind, name = choices.one([*MODELS, *SOURCES]), choices.one(NAMES)
    shutil.rmtree(folder / "in", ignore_errors=True)
    if kind in SOURCES:
        path = write_files(kind, folder / "in", choices)
        return name, run(name, path, folder / "out")
    path = shutil.copytree(kind, folder / "in" / "m.mlpackage")
    (path / MODEL).write_bytes(hostile((path / MODEL).read_bytes(), choices))
    if (path / WEIGHTS).exists():
        (path / WEIGHTS).write_bytes(damaged_weights((path / WEIGHTS).read_bytes(), choices))
    return name, run(name, path, folder / "out")


def run(name, path, out):
    """Call one function, or a command, and return what came out that milblob does not promise, or None.

    Args:
        name: of CALLS, or "milblob" and one of COMMANDS.
        path: of a model.
        out: a directory that is made for what is written.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("milblob "):
            return _run_command(name.removeprefix("milblob "), path, out)
        try:
            result = CALLS[name](path, out)
        except Exception as error:
            return None if is_promised(error) else error
        for one in result if isinstance(result, list) else [result] if not isinstance(result, dict | str) else []:
            words = f"{one!r} {one}"
            if not all(character.isprintable() or character == "\n" for character in words) or len(words) > 1 << 16:
                return AssertionError(f"{type(one).__name__} of {len(words)} characters: {words!r:.500}")
    return None


def _run_command(name, path, out):
    """Run a command as the shell does: exit status 0, 1, or 2 with one line for each error."""
    places = {"M": path, "D": DEMO, "L": LATE, "B": out / "base.npz", "V": out / "values.npz", "F": out / "feeds.npz"}
    np.savez(places["B"], **BASE)
    for place, make in (("V", _values), ("F", _feeds)):
        if place in COMMANDS[name]:
            np.savez(places[place], **BASE)
            with contextlib.suppress(
                milblob.MilblobError, OSError, ValueError, TypeError
            ):  # CALLS has what makes these
                np.savez(places[place], **(make(path) or BASE))
    arguments = [f"{out}{one[1:]}" if one.startswith("O/") else str(places.get(one, one)) for one in COMMANDS[name]]
    errors, words_of = [], milblob.cli.terminal.failures.message_of

    def recorded(error):
        errors.append(error)
        return words_of(error)

    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in streams)
    milblob.cli.terminal.failures.message_of = recorded
    try:
        status = milblob.cli.main([name.split(" ")[0] if name[:3] != "tvm" else "tvm", *arguments])
        printed = [stream.flush() or stream.buffer.getvalue().decode() for stream in (sys.stdout, sys.stderr)]
    except Exception as error:
        return error
    finally:
        milblob.cli.terminal.failures.message_of = words_of
        sys.stdout, sys.stderr = streams
    for error in errors:
        if not is_promised(error):
            return error
    lines = printed[1].splitlines()
    said = [line for line in lines if line.startswith("milblob: ")]
    is_status_right = status in (0, 1, 2) and (not errors or status == 2) and (status < 2 or said)
    if not is_status_right or len(said) < len(errors) or not all(line.isprintable() for line in lines):
        return AssertionError(f"status {status}, {len(errors)} errors, and on stderr {printed[1]!r:.500}")
    if not all(character.isprintable() or character == "\n" for character in printed[0]):
        return AssertionError(f"stdout is not printable: {printed[0]!r:.500}")
    if {"--json", "--sarif"} & {*arguments} and status < 2:
        try:
            json.loads(printed[0])
        except ValueError as error:
            return AssertionError(f"stdout is no JSON, {error}: {printed[0]!r:.500}")
    return None


_FOREIGN = re.compile(r"\b(?!(?:OS|File\w*|Permission\w*)Error)[A-Z]\w*(?:Error|Exception)\b")


def is_promised(error):
    """Whether an exception is milblob's or the system's, or ValueError or TypeError about an argument; and what it says.

    A message that names an exception of another kind says that something failed that nobody had thought of.
    """
    words = str(error)
    if "arguments that fit each other" in words:  # a converter failed, and nobody has said on what
        return False
    if _FOREIGN.search(words) or not words.isprintable() or len(words) > 3000:
        return False
    if isinstance(error, milblob.MilblobError):
        return True
    if isinstance(error, OSError):
        return not isinstance(error, io.UnsupportedOperation)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_raised_here = trace is None or "milblob" in pathlib.Path(trace.tb_frame.f_code.co_filename).parts
    return (
        is_raised_here
        and type(error) in (ValueError, TypeError, KeyError, OverflowError)
        and ("expected" in words or " no " in words or " is ambiguous: " in words or words.startswith("weights:"))
    )
