"""Models as coremltools sees them: its protobuf classes, its own program, its reader of weight files."""

import collections
import functools
import sys
import types

import numpy as np

import milblob
import reference
from cases import model_directory
from thorough import sized

WORDS = {
    "FLOAT16": ("fp16", np.uint16),
    "FLOAT32": ("float", np.float32),
    "INT8": ("int8", np.int8),
    "INT16": ("int16", np.int16),
    "INT32": ("int32", np.int32),
    "UINT8": ("uint8", np.uint8),
    "UINT16": ("uint16", np.uint16),
    "UINT32": ("uint32", np.uint32),
    "INT4": ("int4", np.int8),
    "UINT1": ("uint1", np.uint8),
    "UINT2": ("uint2", np.uint8),
    "UINT3": ("uint3", np.uint8),
    "UINT4": ("uint4", np.uint8),
    "UINT6": ("uint6", np.uint8),
}


def theirs(path):
    """Every constant of a package as coremltools has it: place in the spec -> (dtype, shape, bytes).

    Its own protobuf classes, its own reader of weight files; references are followed by their whole path, as Core ML
    does (coremltools itself looks at the last part only).
    """
    from coremltools import proto
    from coremltools.libmilstoragepython import _BlobStorageReader

    names = proto.MIL_pb2.DataType.Name
    root = model_directory(path)
    spec = proto.Model_pb2.Model.FromString(
        next(p for p in [path, *root.glob("*.mlmodel")] if p.is_file()).read_bytes()
    )
    readers, found = {}, {}

    def visit_value(key, value):
        kind = names(value.type.tensorType.dataType)
        dims = tuple(d.constant.size for d in value.type.tensorType.dimensions)
        if value.HasField("blobFileValue"):
            file = root / value.blobFileValue.fileName.removeprefix("@model_path/")
            reader = readers.setdefault(file, _BlobStorageReader(str(file)))
            read = {"FLOAT16": "fp16", "FLOAT32": "float"}.get(kind, kind.lower())
            if kind in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"):  # which it cannot read
                with milblob.BlobReader(file) as blobs:
                    data = bytes(blobs.read_packed(value.blobFileValue.offset))
            else:
                data = np.asarray(getattr(reader, f"read_{read}_data")(value.blobFileValue.offset)).tobytes()
            found[key] = (kind, dims, data)
        elif value.immediateValue.WhichOneof("value") == "tensor":
            found[key] = (kind, dims, natural_bytes(kind, value.immediateValue.tensor, int(np.prod(dims))))
        elif value.HasField("immediateValue"):
            found[key] = ("", dims, value.immediateValue.SerializeToString(deterministic=True))

    def visit_block(key, block):
        for index, op in enumerate(block.operations):
            for name, value in op.attributes.items():
                visit_value((*key, index, op.type, name), value)
            for name, argument in op.inputs.items():
                for number, binding in enumerate(argument.arguments):
                    if binding.HasField("value"):
                        visit_value((*key, index, op.type, name, number), binding.value)
            for number, inner in enumerate(op.blocks):
                visit_block((*key, index, number), inner)

    def visit_model(key, message):
        for pipeline in ("pipeline", "pipelineClassifier", "pipelineRegressor"):
            if message.HasField(pipeline):
                inner = getattr(message, pipeline)
                for number, member in enumerate(getattr(inner, "pipeline", inner).models):
                    visit_model((*key, number), member)
        for name, body in message.mlProgram.functions.items():
            for block in body.block_specializations.values():
                visit_block((*key, name), block)

    visit_model((), spec)
    return found


def natural_bytes(kind, tensor, count):
    """The elements of an immediate, as coremltools' own reader of weight files would give them."""
    which = tensor.WhichOneof("value")
    if which is None:
        return b""
    content = getattr(tensor, which).values
    if which == "strings":
        return repr(list(content)).encode()
    nbits = reference.DTYPES[kind][2]
    if which == "bytes" and nbits >= 8:
        return bytes(content)
    if which == "bytes":
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")[: count * nbits].reshape(count, nbits)
        numbers = bits @ (1 << np.arange(nbits))
        if kind == "INT4":
            numbers = np.where(numbers > 7, numbers - 16, numbers)
        return numbers.astype(np.int8 if kind == "INT4" else np.uint8).tobytes()
    dtype = {"FLOAT32": "<f4", "FLOAT64": "<f8", "BOOL": "?", "FLOAT16": "<f2"}.get(kind, kind.lower())
    return np.array(list(content)).astype(dtype).tobytes()


def load_pymil(path):
    """Have coremltools make its own program of a package."""
    from coremltools import proto
    from coremltools.converters.mil.frontend.milproto import load as milproto

    root = model_directory(path)
    file = path if path.is_file() else next(root.glob("*.mlmodel"))
    spec = proto.Model_pb2.Model.FromString(file.read_bytes())
    return milproto.load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(root / "weights"))


def loaded_values(program):
    """(function, output, parameter) -> values after loading: of const operations, and of the parts of constexpr ones.

    A list, for names that occur in several blocks.
    """
    found = collections.defaultdict(list)

    def visit(function, block):
        for op in block.operations:
            if op.op_type == "const":
                found[function, op.outputs[0].name, "val"].append(op.outputs[0].val)
            elif op.op_type.startswith("constexpr_"):
                for key, value in op.inputs.items():
                    found[function, op.outputs[0].name, key].append(value.val)
            for inner in op.blocks:
                visit(function, inner)

    for name, function in program.functions.items():
        visit(name, function)
    return found


def pymil_values(path):
    """Every value that coremltools' own program has: (function, output, parameter) -> bytes, sorted."""
    found = {}

    def visit(name, block):
        for op in block.operations:
            inputs = op.inputs if op.op_type.startswith("constexpr_") else {}
            for key, var in [*inputs.items(), *([("val", op.outputs[0])] if op.op_type == "const" else [])]:
                array = np.asarray(var.val)
                row = (
                    str(array.dtype),
                    array.shape,
                    array.tobytes() if array.dtype != object else repr(array.tolist()),
                )
                output = op.outputs[0].name.rstrip("0123456789")  # it counts up what has no name, from load to load
                found.setdefault((name, output, key), []).append(row)
            for inner in op.blocks:
                visit(name, inner)

    for name, body in load_pymil(path).functions.items():
        visit(name, body)
    return {key: sorted(rows) for key, rows in found.items()}


def weights_of(program):
    """Output name -> (operation, dtype, values) of constants in coremltools' own program."""
    found = {}
    for body in program.functions.values():
        for op in body.operations:
            if op.op_type in ("const", "constexpr_cast"):
                value = op.outputs[0].val if op.op_type == "const" else op.materialized_val_inference()
                found[op.outputs[0].name] = (op.op_type, np.asarray(value).dtype, np.asarray(value))
    return found


def trust_coremltools():
    """If coremltools is imported, have it convert without work that changes nothing, which takes four fifths of the time.

    It checks its own Program before and after each pass, and writes it as text for its log, whether anybody reads that or
    not. After each pass it follows compressed weights, also through Programs that have none or that the pass has not
    changed. Two passes make the Programs that they look for in each conversion, one infers all types again where it has
    found no transpose, and at the end garbage is collected. `make thorough` leaves coremltools as it is.
    """
    if "coremltools" not in sys.modules or not sized(True, False):
        return
    program = sys.modules["coremltools.converters.mil.mil.program"].Program
    blocks = sys.modules["coremltools.converters.mil.mil.block"]
    block, function = blocks.Block, blocks.Function
    program.validate = lambda self, check_essential_scope=False: None
    program.__str__ = block.__str__ = function.__str__ = object.__repr__
    follow = block._propagate_nonreplaceable_vars
    changes = _count_changes(sys.modules["coremltools.converters.mil.mil.var"].Var)

    def follow_what_is_there(self):
        if not isinstance(self, function):
            follow(self)
            return
        if getattr(self, "changes_followed", None) == changes[0]:  # most passes find nothing to do
            return
        ops = list(_operations(self))
        if any(op.op_type.startswith("constexpr_") for op in ops):
            follow(self)
        else:
            for op in ops:
                for output in op.outputs or ():
                    output.nonreplaceable_vars_upstream = set()
        self.changes_followed = changes[0]

    block._propagate_nonreplaceable_vars = follow_what_is_there
    passes = sys.modules["coremltools.converters.mil.mil.passes.defs.optimize_activation"]
    for owner, name in (
        (passes.fuse_gelu_tanh_approximation, "get_gelu_pattern1"),
        (passes.fuse_gelu_tanh_approximation, "get_gelu_pattern2"),
        (passes.FusePreluPattern1, "get_prelu_pattern"),
        (passes.FusePreluPattern2, "get_prelu_pattern"),
    ):
        setattr(owner, name, staticmethod(functools.cache(getattr(owner, name))))
    transposes = sys.modules["coremltools.converters.mil.mil.passes.defs.optimize_repeat_ops"].reduce_transposes
    reduce_them = transposes._reduce_transposes_block

    def reduce_what_is_there(block):
        if any(op.op_type == "transpose" for op in block.operations):
            reduce_them(block)

    transposes._reduce_transposes_block = staticmethod(reduce_what_is_there)
    sys.modules["coremltools.converters._converters_entry"].gc = types.SimpleNamespace(collect=lambda: None)


def _count_changes(var):
    """Return a list with the number of times that an operation began or ceased to read a variable, from now on."""
    changes, add, remove = [0], var.add_child_op, var.remove_child_op

    def add_counted(self, op):
        changes[0] += 1
        add(self, op)

    def remove_counted(self, op, no_check=False):
        changes[0] += 1
        remove(self, op, no_check)

    var.add_child_op, var.remove_child_op = add_counted, remove_counted
    return changes


def _operations(block):
    """Yield the operations of a block of coremltools' own Program, and of the blocks in it."""
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from _operations(inner)
