"""Records what coremltools sees in a model: expected.json and expected.npz of a case.

The walk is plain Python over coremltools' own protobuf objects; blob values come from coremltools' reader. Nothing here
knows milblob. The shape of expected.json is described in README.md.
"""

import json
import os
import zipfile

import numpy as np
from coremltools import proto
from coremltools.converters.mil.frontend.milproto import load as milproto
from coremltools.libmilstoragepython import _BlobStorageReader

MIL = proto.MIL_pb2
NBITS = {"INT4": 4, "UINT4": 4, "UINT2": 2, "UINT1": 1, "UINT6": 6, "UINT3": 3}
# How a dtype's elements are kept in expected.npz. Types that NumPy lacks are kept as raw bits, one element each.
STORED = {
    "BOOL": "?", "FLOAT16": "<f2", "FLOAT32": "<f4", "FLOAT64": "<f8", "BFLOAT16": "<u2", "FLOAT8E4M3FN": "u1",
    "FLOAT8E5M2": "u1", "INT4": "u1", "UINT1": "u1", "UINT2": "u1", "UINT3": "u1", "UINT4": "u1", "UINT6": "u1",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4",
    "UINT64": "<u8",
}  # fmt: skip
READ = {"FLOAT32": "float", "FLOAT16": "fp16"}


def read_blob(path, offset, dtype):
    """Reads one blob through coremltools; int4 comes back as its nibble 0..15, float16 as its bits viewed."""
    values = getattr(_BlobStorageReader(path), f"read_{READ.get(dtype, dtype.lower())}_data")(offset)
    if dtype == "INT4":
        return values.view(np.uint8) & 15
    return values.view(STORED[dtype])


def unpack_bits(data, nbits, count):
    """Unpacks `count` elements of `nbits` bits, least significant first, through numpy's unpackbits."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[: count * nbits].reshape(count, nbits)
    return (bits.astype(np.uint16) << np.arange(nbits, dtype=np.uint16)).sum(axis=1).astype(np.uint8)


def read_immediate(tensor, dtype, shape):
    """Returns (field name, array in its stored dtype, or a list of strings)."""
    field = tensor.WhichOneof("value")
    count = int(np.prod(shape)) if all(dim is not None for dim in shape) else None
    if field is None:
        return None, [] if dtype == "STRING" else np.zeros(shape, STORED[dtype])
    values = getattr(tensor, field).values
    if field == "strings":
        return field, list(values)
    if field == "bytes":
        nbits = NBITS.get(dtype)
        array = unpack_bits(values, nbits, count) if nbits else np.frombuffer(values, STORED[dtype])
    else:
        kind = {"floats": "f4", "doubles": "f8", "ints": "i4", "longInts": "i8", "bools": "?"}[field]
        array = np.array(values, kind)
        wide = array.dtype.kind == "i" and STORED[dtype] in ("<u4", "<u8") and array.itemsize == int(STORED[dtype][2])
        array = array.view(STORED[dtype]) if wide else array.astype(STORED[dtype])
    return field, array.reshape([-1 if dim is None else dim for dim in shape])


def read_shape(tensor_type):
    """Returns the dimensions as integers, unknown ones as None."""
    return [d.constant.size if d.WhichOneof("dimension") == "constant" else None for d in tensor_type.dimensions]


class Recorder:
    """Collects the tensor constants of one case.

    Attributes:
        tensors: one dict per tensor constant.
        arrays: npz key -> array.
        agreed: how many values PyMIL loaded, all equal to ours.
        refused: how many values PyMIL would not load.
    """

    def __init__(self, root):
        """Starts a recording.

        Args:
            root: directory that `@model_path` stands for.
        """
        self.root, self.tensors, self.arrays, self.agreed, self.refused = root, [], {}, 0, 0

    def value(self, value, where, path=""):
        """Records a Value and what lies inside it."""
        kind = value.type.WhichOneof("type")
        if kind == "tensorType":
            self.tensor(value, {**where, "path": path})
            return
        if value.WhichOneof("value") != "immediateValue":
            return
        inner = value.immediateValue
        member = inner.WhichOneof("value")
        if member == "dictionary":
            for i, pair in enumerate(inner.dictionary.values):
                self.value(pair.key, where, f"{path}[{i}].key")
                self.value(pair.value, where, f"{path}[{i}].value")
        elif member in ("list", "tuple"):
            for i, item in enumerate(getattr(inner, member).values):
                self.value(item, where, f"{path}[{i}]")

    def tensor(self, value, where):
        """Records one tensor constant."""
        tensor_type = value.type.tensorType
        dtype, shape = MIL.DataType.Name(tensor_type.dataType), read_shape(tensor_type)
        row = {**where, "dtype": dtype, "shape": shape}
        if value.WhichOneof("value") == "blobFileValue":
            blob = value.blobFileValue
            values = read_blob(os.path.join(self.root, blob.fileName.removeprefix("@model_path/")), blob.offset, dtype)
            values = values.reshape([-1 if dim is None else dim for dim in shape])
            row |= {"file": blob.fileName, "offset": blob.offset, "weight": True}
        else:
            row["field"], values = read_immediate(value.immediateValue.tensor, dtype, shape)
            row["weight"] = dtype != "STRING" and values.size >= 10
        if check_value(value, self.root, dtype, values):
            self.agreed += 1
        else:
            self.refused += 1
        if dtype == "STRING":
            row["strings"] = values
        else:
            row["npz"] = f"t{len(self.arrays)}"
            self.arrays[row["npz"]] = values
        self.tensors.append(row)

    def attributes(self, attributes, where, kind="attribute"):
        """Records a map of Values, keys sorted."""
        for key in sorted(attributes):
            self.value(attributes[key], {**where, "parameter": key, "where": kind})

    def block(self, block, where, path):
        """Records a block: its attributes, then its operations in order, nested blocks after their operation."""
        where = {**where, "block": path}
        self.attributes(block.attributes, {**where, "op": None, "op_index": None, "output": None}, "block")
        for index, op in enumerate(block.operations):
            output = op.outputs[0].name if op.outputs else None
            here = {**where, "op": op.type, "op_index": index, "output": output}
            for key in sorted(op.inputs):
                for i, binding in enumerate(op.inputs[key].arguments):
                    if binding.WhichOneof("binding") == "value":
                        self.value(binding.value, {**here, "parameter": key, "where": "input", "binding": i})
            self.attributes(op.attributes, here)
            for number, nested in enumerate(op.blocks):
                step = f"{output or op.type}[{number}]"
                self.block(nested, where, f"{path}/{step}" if path else step)

    def program(self, program, model=""):
        """Records a Program: program, function and block attributes and every operation."""
        empty = {"model": model, "function": None, "specialization": None, "block": None}
        nothing = {"op": None, "op_index": None, "output": None}
        self.attributes(program.attributes, {**empty, **nothing}, "program")
        for name in sorted(program.functions):
            function = program.functions[name]
            self.attributes(function.attributes, {**empty, **nothing, "function": name}, "function")
            for opset in sorted(function.block_specializations):
                where = {"model": model, "function": name, "specialization": opset}
                self.block(function.block_specializations[opset], where, "")


def walk_models(spec, name=""):
    """Yields (model name, Model message) for a model, or for every model of a pipeline: model0, model1, ..."""
    kind = spec.WhichOneof("Type")
    if kind in ("pipeline", "pipelineClassifier", "pipelineRegressor"):
        pipeline = spec.pipeline if kind == "pipeline" else getattr(spec, kind).pipeline
        for i, model in enumerate(pipeline.models):
            yield from walk_models(model, f"{name}/model{i}" if name else f"model{i}")
    else:
        yield name, spec


def find_spec(path):
    """Returns the model file of an .mlpackage, or the path itself."""
    inside = os.path.join(path, "Data", "com.apple.CoreML", "model.mlmodel")
    return inside if os.path.isdir(path) else path


def read_spec(path):
    """Parses a model file with coremltools' messages."""
    spec = proto.Model_pb2.Model()
    with open(find_spec(path), "rb") as file:
        spec.ParseFromString(file.read())
    return spec


def check_value(value, root, dtype, values):
    """Compares one value with what coremltools' own loader (PyMIL) makes of it; returns whether PyMIL could load it."""
    file = value.blobFileValue.fileName.removeprefix("@model_path/")
    context = milproto.TranscriptionContext(os.path.join(root, os.path.dirname(file)))
    try:
        got = np.asarray(milproto._load_value(context, value))
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RuntimeError):
        return False
    if dtype == "STRING":
        same = [str(text) for text in got.flat] == values
    else:
        got = got.view(np.uint8) & 15 if dtype == "INT4" else got
        same = got.shape == values.shape and np.array_equal(got.astype(values.dtype), values, equal_nan=True)
    if not same:
        raise AssertionError(f"PyMIL and the walk disagree: {got} {values}")
    return True


def load_pymil(path, spec):
    """Whether coremltools' PyMIL loads the whole Program; the words of its error if not."""
    weights = os.path.join(os.path.dirname(find_spec(path)), "weights")
    try:
        milproto.load(spec, specification_version=spec.specificationVersion, file_weights_dir=weights)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return "loads"


def save_arrays(path, arrays):
    """Writes an npz whose bytes depend on the arrays only."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for key, array in arrays.items():
            entry = zipfile.ZipInfo(key + ".npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with file.open(entry, "w") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)


def save_json(path, head, **tables):
    """Writes a JSON object with one row of a table per line."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    for name, rows in tables.items():
        body = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in rows)
        lines.append(f'  "{name}": [\n{body}\n  ]' if rows else f'  "{name}": []')
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def record_model(folder, paths, note, pymil=True, dense=None):
    """Records a case.

    Args:
        folder: the case.
        paths: its models; the first holds the protobuf, the others hold the same tensors in another form.
        note: what is special.
        pymil: whether to say if coremltools' PyMIL loads it.
        dense: (rows, arrays) of decompressed weights.
    """
    path = os.path.join(folder, paths[0])
    spec = read_spec(path)
    recorder = Recorder(os.path.dirname(find_spec(path)))
    functions = {}
    for name, model in walk_models(spec):
        if model.WhichOneof("Type") == "mlProgram":
            recorder.program(model.mlProgram, name)
            for function in sorted(model.mlProgram.functions):
                functions[f"{name}/{function}" if name else function] = model.mlProgram.functions[function].opset
    kind = spec.WhichOneof("Type")
    head = {
        "case": os.path.basename(folder), "note": note, "paths": paths, "type": kind,
        "specification_version": spec.specificationVersion, "functions": functions,
    }  # fmt: skip
    if kind == "mlProgram" and pymil:
        head["pymil"] = load_pymil(path, spec)
    head["values_pymil_agreed_on"], head["values_pymil_refused"] = recorder.agreed, recorder.refused
    rows, arrays = dense or ([], {})
    tables = {"tensors": recorder.tensors} | ({"dense": rows} if rows else {})
    save_json(os.path.join(folder, "expected.json"), head, **tables)
    save_arrays(os.path.join(folder, "expected.npz"), recorder.arrays | arrays)


def record_blobs(folder, paths, note, rows, arrays):
    """Records a case of bare blob files.

    Args:
        folder: the case.
        paths: its files, with the same records at the same places.
        note: what is special.
        rows: dicts of dtype, offset, data_offset, nbytes, padding_nbits, count, source; npz keys are added.
        arrays: the values, one array per row.
    """
    keys = {f"r{i}": array for i, array in enumerate(arrays)}
    rows = [{**row, "npz": key} for row, key in zip(rows, keys, strict=True)]
    head = {"case": os.path.basename(folder), "note": note, "paths": paths, "type": "blob"}
    save_json(os.path.join(folder, "expected.json"), head, records=rows)
    save_arrays(os.path.join(folder, "expected.npz"), keys)
