"""Calls of every public function of milblob that takes a model, and the mutations of models for them.

CALLS has one entry for each name that `milblob`, `milblob.onnx` and `milblob.tvm` offer and that can be called with a model.
NO_MODEL says of the others why they are not in it. `tests/test_public_calls.py` compares both with what is offered.
"""

import contextlib
import io
import pathlib
import random
import shutil
import warnings

import numpy as np

import milblob
import milblob.onnx
import milblob.tvm

MODEL = "Data/com.apple.CoreML/model.mlmodel"


def _everything_of(path, out):
    with milblob.open(path, constants=True, stored=True) as model:
        for tensor in model.values():
            with contextlib.suppress(milblob.MilblobError):
                tensor.read(max_nbytes=1 << 24) if "max_nbytes" in tensor.read.__code__.co_varnames else tensor.read()
            repr(tensor), tensor.consumers
        for function in model.functions.values():
            for operation in function.walk() if hasattr(function, "walk") else ():
                repr(operation)
        model.find(type="const")


def _assign(path, out):
    place = _copied(path, out)
    with milblob.open(place, "r+") as model:
        for name, tensor in [
            (name, tensor) for name, tensor in model.items() if tensor.ndim < 60 and tensor.nbytes < 1 << 24
        ][:2]:
            with contextlib.suppress(milblob.MilblobError, TypeError):
                model[name] = np.zeros(tensor.shape, tensor.dtype)


def _copied(path, out):
    place = out / path.name
    shutil.copytree(path, place, dirs_exist_ok=True) if path.is_dir() else shutil.copy(path, place)
    return place


def _refit(path, out):
    with milblob.open(path) as model:
        values = {
            name: np.zeros(t.shape, np.float32)
            for name, t in list(model.items())[:3]
            if t.size < 1 << 20 and t.ndim < 60
        }
    milblob.refit(path, values, cast=True, requantize="fit", output=out / "refitted.mlpackage")


def _refit_base(path, out):
    base = {"w": np.ones((4, 4), np.float32), "b": np.arange(4, dtype=np.float32)}
    milblob.refit(path, {name: array + 1 for name, array in base.items()}, base=base, requantize="fit", dry_run=True)


def _topologies(path):
    """Also compile and coverage of what was parsed; convert_topology is what convert calls."""
    with milblob.open(path) as model:
        for function in model.functions.values():
            topology = milblob.onnx.parse_mil(function)
            milblob.onnx.compile(topology)
            repr(topology)


def _session(path, out):
    with milblob.Session(path) as session:
        repr(session)


CALLS = {
    "load": lambda path, out: milblob.load(path, max_nbytes=1 << 26),
    "open": _everything_of,
    "Model": lambda path, out: milblob.Model(path).close(),
    "EditableModel": _assign,
    "check": lambda path, out: [str(finding) for finding in milblob.check(path)],
    "content_hash": lambda path, out: milblob.content_hash(path),
    "statistics": lambda path, out: milblob.statistics(path),
    "diff": lambda path, out: milblob.diff(path, path),
    "match": lambda path, out: milblob.match(path, path),
    "to_text": lambda path, out: milblob.to_text(path, io.BytesIO()),
    "repack": lambda path, out: milblob.repack(
        path, out / "repacked.mlpackage", dedupe=True, cast={"float32": "float16"}
    ),
    "compress": lambda path, out: milblob.compress(path, out / "int8.mlpackage", milblob.Linear("int8"), least=8),
    "compress_frontier": lambda path, out: milblob.compress_frontier(path),
    "merge_functions": lambda path, out: milblob.merge_functions({"a": path, "b": path}, out / "merged.mlpackage"),
    "refit": _refit,
    "refit with a base": _refit_base,
    "verify": lambda path, out: milblob.verify(path, path, runs=1),
    "onnx.convert": lambda path, out: milblob.onnx.convert(path, out / "m.onnx"),
    "Session": _session,
    "onnx.coverage": lambda path, out: milblob.onnx.coverage(path),
    "onnx.parse_mil": lambda path, out: _topologies(path),
    "OutputErrors": lambda path, out: milblob.OutputErrors(path, 1),
    "tvm.open": lambda path, out: milblob.tvm.open(path),
    "tvm.open_params": lambda path, out: milblob.tvm.open_params(path),
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
    "onnx.register_shape_calculator": "code", "onnx.unregister": "code", "tvm.write_params": "arrays",
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- damaged

_NAMES = ("", "a/b", "x" * 5000, "\u202e", "main", "w\n", "cond_0[1]", "0")
_TYPES = ("const", "conv", "linear", "constexpr_affine_dequantize", "constexpr_lut_to_dense", "classify", "cond", "while_loop", "tile",
          "fill", "one_hot", "range_1d", "gather", "reshape", "constexpr_blockwise_shift_scale", "constexpr_sparse_to_dense", "nothing")  # fmt: skip
_SIZES = (0, 1, 7, 2**31, 2**40, 2**63 - 1, 2**64 - 1)


def damaged(data, rng):
    """Return a serialized Model with a few things of its Program changed, or a few of its bytes."""
    from coremltools.proto import Model_pb2

    model = Model_pb2.Model()
    model.ParseFromString(data)
    operations = [
        op
        for function in model.mlProgram.functions.values()
        for block in function.block_specializations.values()
        for op in block.operations
    ]
    for _ in range(rng.randint(1, 3)):
        if operations:
            _change(rng.choice(operations), operations, rng)
    data = model.SerializeToString()
    if rng.random() < 0.4:  # what protobuf would not write: half a character, NUL in the name of a file
        for old, new in rng.sample(_PATCHES, 2):
            places = [at for at in range(len(data)) if data.startswith(old, at)]
            if places:
                at = rng.choice(places)
                data = data[:at] + new + data[at + len(new) :]
    return data


_PATCHES = [(b"weights/", b"\x00eights/"), (b"@model_path", b"@mod\xed\xa0\x80path"[:11]), (b"_to_fp16", b"\xed\xa0\x80o_fp16"),
            (b"main", b"\xed\xb0\x80n"), (b"weight", b"w\x00ight"), (b"weight", b"\xff\xfeight"), (b"const", b"con\xc3\x28")]  # fmt: skip


def _change(op, operations, rng):
    kind = rng.randrange(9)
    if kind == 0 and op.inputs:
        del op.inputs[rng.choice(sorted(op.inputs))]
    elif kind == 1 and op.attributes:
        del op.attributes[rng.choice(sorted(op.attributes))]
    elif kind == 2:
        op.type = rng.choice(_TYPES)
    elif kind == 3 and op.outputs:
        rng.choice(op.outputs).name = rng.choice(
            [*_NAMES, *(one.outputs[0].name for one in operations[:40] if one.outputs)]
        )
    elif kind == 4 and op.outputs:
        dimensions = rng.choice(op.outputs).type.tensorType.dimensions
        if rng.random() < 0.3:
            for _ in range(65):
                dimensions.add().constant.size = 1
        elif dimensions:
            rng.choice(dimensions).constant.size = rng.choice(_SIZES)
    elif kind == 5 and op.outputs:
        rng.choice(op.outputs).type.tensorType.dataType = rng.choice((0, 1, 2, 10, 11, 21, 23, 33, 35, 99))
    elif kind == 6:
        other = rng.choice(operations)
        op.inputs.clear()
        for key, argument in other.inputs.items():
            op.inputs[key].CopyFrom(argument)
    elif kind == 7:
        for value in op.attributes.values():
            if value.HasField("blobFileValue"):
                value.blobFileValue.offset = rng.choice(
                    (0, 63, 64, 2**40, 2**64 - 1, value.blobFileValue.offset // 2 + 64)
                )
    elif op.inputs:
        argument = op.inputs[rng.choice(sorted(op.inputs))]
        if argument.arguments:
            argument.arguments[0].name = rng.choice(_NAMES)


def run(path, data, name, out):
    """Call one function on a damaged model; return what came out that nobody promised, or None.

    milblob's own exceptions may come out, those of the system, and ValueError, TypeError and KeyError where the words are ours.
    """
    (path / MODEL).write_bytes(data)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CALLS[name](path, out)
    except (milblob.MilblobError, OSError):
        return None
    except (ValueError, TypeError) as error:
        return None if _is_ours(error) else error
    except Exception as error:
        return error
    return None


def _is_ours(error):
    """Whether milblob raised an exception itself, in words of its own: not NumPy, a codec, nor Python for it."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    place = pathlib.Path(trace.tb_frame.f_code.co_filename)
    is_raised = "milblob" in place.parts and type(error) in (ValueError, TypeError)
    return is_raised and ("expected" in str(error) or str(error).startswith("weights:"))


def cases(count, seed, models):
    """Yield (model, function, random generator): each function in turn, on models in turn."""
    rng = random.Random(seed)
    names = [*CALLS]
    for at in range(count):
        yield models[rng.randrange(len(models))], names[at % len(names)], random.Random(rng.randrange(1 << 60))
