"""Programs that the MIL builder refuses to make: built from coremltools' protobuf messages."""

import os

import coremltools as ct
import numpy as np
from coremltools import proto
from coremltools.converters.mil import Builder as mb

import mil_printer
import packages
import record
import reference

MIL = proto.MIL_pb2
# The TensorValue field that coremltools' helper picks for a dtype (bfloat16 and fp8, which it refuses: bytes).
FIELD = {
    "BOOL": "bools",
    "STRING": "strings",
    "FLOAT32": "floats",
    "FLOAT64": "doubles",
    "INT16": "ints",
    "INT32": "ints",
    "UINT16": "ints",
    "INT64": "longInts",
    "UINT64": "longInts",
}
NUMERIC = [dtype for dtype in reference.DTYPES if dtype != "STRING"]


def value_type(dtype, shape=()):
    """ValueType of a tensor; None is an unknown dimension, "..." a variadic one."""
    message = MIL.ValueType()
    message.tensorType.dataType = MIL.DataType.Value(dtype)
    message.tensorType.rank = -1 if "..." in shape else len(shape)
    for dim in shape:
        if dim is None or dim == "...":
            message.tensorType.dimensions.add().unknown.variadic = dim == "..."
        else:
            message.tensorType.dimensions.add().constant.size = dim
    return message


def tensor(dtype, shape, values, field=None):
    """Value with an immediate tensor; floats of 16 bits and less are given as bits."""
    field = field or FIELD.get(dtype, "bytes")
    if field == "bytes":
        values = reference.pack_elements(values, dtype)
    message = MIL.Value(type=value_type(dtype, shape))
    part = getattr(message.immediateValue.tensor, field)
    part.SetInParent()
    if field == "bytes":
        part.values = values
    elif field in ("ints", "longInts"):
        part.values.extend(reference.as_int(v, 32 if field == "ints" else 64) for v in values)
    else:
        part.values.extend(values)
    return message


def string(text):
    """Value with a scalar string."""
    return tensor("STRING", (), [text])


def blob(dtype, shape, name, offset):
    """Value in a blob file."""
    message = MIL.Value(type=value_type(dtype, shape))
    message.blobFileValue.fileName, message.blobFileValue.offset = name, offset
    return message


def sequence(items):
    """Value with a list, typed by its first item."""
    message = MIL.Value()
    message.type.listType.type.CopyFrom(items[0].type if items else value_type("INT32"))
    message.type.listType.length.constant.size = len(items)
    message.immediateValue.list.SetInParent()
    message.immediateValue.list.values.extend(items)
    return message


def group(*items):
    """Value with a tuple."""
    message = MIL.Value()
    message.type.tupleType.types.extend(item.type for item in items)
    message.immediateValue.tuple.values.extend(items)
    return message


def dictionary(*pairs):
    """Value with a dictionary, typed by its first pair."""
    message = MIL.Value()
    message.type.dictionaryType.keyType.CopyFrom(pairs[0][0].type)
    message.type.dictionaryType.valueType.CopyFrom(pairs[0][1].type)
    for key, value in pairs:
        pair = message.immediateValue.dictionary.values.add()
        pair.key.CopyFrom(key)
        pair.value.CopyFrom(value)
    return message


def const(name, value):
    """A const operation."""
    op = MIL.Operation(type="const", attributes={"name": string(name), "val": value})
    op.outputs.add(name=name).type.CopyFrom(value.type)
    return op


def identity(name, source="x", shape=(1,)):
    """An identity operation."""
    op = MIL.Operation(type="identity", attributes={"name": string(name)})
    op.inputs["x"].arguments.add(name=source)
    op.outputs.add(name=name).type.CopyFrom(value_type("FLOAT32", shape))
    return op


def model(operations, opset="CoreML8", version=9):
    """A Model whose one function holds the operations and ends in `out`."""
    spec = proto.Model_pb2.Model(specificationVersion=version)
    for feature in (spec.description.input.add(name="x"), spec.description.output.add(name="out")):
        feature.type.multiArrayType.shape.append(1)
        feature.type.multiArrayType.dataType = 65568
    spec.mlProgram.version = 1
    function = spec.mlProgram.functions["main"]
    function.opset = opset
    function.inputs.add(name="x").type.CopyFrom(value_type("FLOAT32", (1,)))
    block = function.block_specializations[opset]
    block.operations.extend([*operations, identity("out")])
    block.outputs.append("out")
    return spec


def finish(spec, folder, note, *versions):
    """Saves model.mlmodel, compiled forms (model_1.3.mlmodelc, ...) and what is expected of them."""
    path, paths = os.path.join(folder, "model.mlmodel"), ["model.mlmodel"]
    packages.save_spec(spec, path)
    for version in versions:
        paths.append(f"model_{version}.mlmodelc")
        mil_printer.compile_model(spec, os.path.join(folder, paths[-1]), version, folder)
    record.record_model(folder, paths, note)


def sample(rng, dtype, count):
    """Random elements as reference.pack_elements takes them; 16-bit and smaller floats finite, as bits."""
    _, _, nbits, kind = reference.DTYPES[dtype]
    if kind == "b":
        return (rng.integers(0, 2, count) == 1).tolist()
    if kind == "f":
        return rng.standard_normal(count).astype("f4" if nbits == 32 else "f8").tolist()
    if dtype == "FLOAT16":
        return rng.standard_normal(count).astype(np.float16).view(np.uint16).tolist()
    if dtype == "BFLOAT16":
        return (rng.standard_normal(count).astype(np.float32).view(np.uint32) >> 16).tolist()
    if kind == "r":
        return rng.integers(0, 0x70, count).tolist()
    low = -(1 << nbits - 1) if kind == "i" else 0
    values = [
        low,
        low + (1 << nbits) - 1,
        *(low + int.from_bytes(rng.bytes(8), "little") % (1 << nbits) for _ in range(count)),
    ]
    return values[:count]


def make_immediates(folder):
    """Every dtype inline, in the field that belongs to it, at ranks 0 to 3."""
    rng = np.random.default_rng(51)
    operations = []
    for dtype in NUMERIC:
        for label, shape in (
            ("scalar", ()),
            ("one", (1,)),
            ("nine", (9,)),
            ("ten", (10,)),
            ("cube", (2, 3, 2)),
            ("long", (37,)),
        ):
            values = sample(rng, dtype, int(np.prod(shape)))
            operations.append(const(f"{dtype.lower()}_{label}", tensor(dtype, shape, values)))
    operations.append(const("string_scalar", string("plain")))
    operations.append(const("string_grid", tensor("STRING", (2, 2), ["a", "", "ü", "日本"])))
    note = "every dtype inline at 1 1 9 10 12 and 37 elements, no blob file"
    finish(model(operations), folder, note, "1.0", "1.3")


def make_immediates_odd(folder):
    """Inline values no text was ever seen for: empty tensors, NaN, control characters, many-faced floats."""
    operations = []
    for dtype in [*NUMERIC, "STRING"]:
        operations += [
            const(f"{dtype.lower()}_empty{i}", tensor(dtype, shape, [])) for i, shape in enumerate([(0,), (2, 0, 3)])
        ]
    special = [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1.7976931348623157e308, 0.1]
    operations.append(const("float64_special", tensor("FLOAT64", (7,), special)))
    singles = np.array([0x7FC00000, 0xFFC00001, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x7F7FFFFF], "u4").view("f4")
    bits = MIL.Value(type=value_type("FLOAT32", (7,)))
    bits.immediateValue.tensor.floats.MergeFromString(reference.write_field(1, singles.tobytes()))
    operations.append(const("float32_special", bits))
    halves = [0x7E00, 0xFE01, 0x7D01, 0x7C00, 0xFC00, 0x8000, 1, 0x7BFF, 0x03FF, 0x3C00, 0x3555]
    operations.append(const("float16_special", tensor("FLOAT16", (11,), halves)))
    operations.append(const("bfloat16_special", tensor("BFLOAT16", (5,), [0x7FC0, 0x7F80, 0xFF80, 0x8000, 1])))
    operations.append(const("fp8_all", tensor("FLOAT8E4M3FN", (16, 16), list(range(256)))))
    operations.append(const("fp8_wide", tensor("FLOAT8E5M2", (256,), list(range(256)))))
    texts = [
        "",
        "NUL \0 inside",
        'quote " backslash \\ tab \t newline \n',
        "猫",
        "\U0001f600",
        "e\u0301 is not \u00e9",
        "x" * 300,
    ]
    operations.append(const("strings_special", tensor("STRING", (7,), texts)))
    missing = MIL.Value(type=value_type("FLOAT32", (0,)))
    missing.immediateValue.tensor.SetInParent()
    operations.append(const("empty_without_field", missing))
    operations.append(const("rank_unknown_shape", tensor("INT32", (None,), [1, 2, 3])))
    note = (
        "empty tensors, NaN and infinities, all fp8 values, strings with NUL, quotes, newlines and non-BMP characters"
    )
    finish(model(operations), folder, note)


def make_other_fields(folder):
    """Dtypes in a field other than coremltools' own choice, where no value is lost."""
    rng = np.random.default_rng(52)
    operations = []
    for field, dtypes in {
        "ints": ["INT8", "UINT8", "UINT32", "INT4", "UINT4", "UINT1"],
        "longInts": ["INT32", "UINT32", "INT8"],
        "bytes": ["FLOAT32", "FLOAT64", "INT16", "UINT16", "INT32", "INT64", "UINT64", "BOOL"],
    }.items():
        for dtype in dtypes:
            values = sample(rng, dtype, 12)
            operations.append(const(f"{dtype.lower()}_in_{field.lower()}", tensor(dtype, (12,), values, field)))
    finish(model(operations), folder, "dtypes in another field than coremltools picks: readable, as no value is lost")


def make_attributes(folder):
    """Values everywhere else: attributes of program, functions, blocks, operations; containers; argument bindings."""
    ten = [i / 4 for i in range(12)]
    spec = model([])
    program, function = spec.mlProgram, spec.mlProgram.functions["main"]
    block = function.block_specializations["CoreML8"]
    program.docString = "documentation"
    program.attributes["buildInfo"].CopyFrom(
        dictionary((string("tool"), string("make.py")), (string("v"), string("1")))
    )
    program.attributes["table"].CopyFrom(tensor("FLOAT32", (3, 4), ten))
    shapes = dictionary((string("x"), tensor("INT32", (2,), [1, 4])))
    ranges = dictionary((string("x"), sequence([tensor("INT32", (2,), [1, 4]), tensor("INT32", (2,), [2, 8])])))
    information = group(group(string("DefaultShapes"), shapes), group(string("RangeDims"), ranges))
    function.attributes["FlexibleShapeInformation"].CopyFrom(information)
    block.attributes["block_note"].CopyFrom(tensor("INT32", (11,), range(11)))
    custom = MIL.Operation(
        type="custom_layer",
        attributes={
            "name": string("custom"),
            "class_name": string("Mine"),
            "input_order": sequence([string("x"), string("y")]),
            "weights": sequence([tensor("FLOAT32", (12,), ten), tensor("FLOAT32", (12,), ten[::-1])]),
            "nothing": sequence([]),
            "pair": group(tensor("INT64", (), [-5]), sequence([sequence([tensor("UINT8", (2,), [1, 255])])])),
        },
    )
    custom.attributes["documented"].CopyFrom(string("text"))
    custom.attributes["documented"].docString = "a Value may have one"
    custom.inputs["x"].arguments.add(name="x")
    custom.outputs.add(name="custom").type.CopyFrom(value_type("FLOAT32", (1,)))
    concat = MIL.Operation(type="concat", attributes={"name": string("joined")})
    concat.inputs["values"].arguments.add(name="x")
    concat.inputs["values"].arguments.add().value.CopyFrom(tensor("FLOAT32", (12,), ten))
    concat.inputs["values"].arguments.add(name="custom")
    concat.inputs["values"].arguments.add().value.CopyFrom(tensor("FLOAT32", (2,), [1.5, -1.5]))
    concat.inputs["axis"].arguments.add().value.CopyFrom(tensor("INT32", (), [0]))
    concat.inputs["interleave"].arguments.add().value.CopyFrom(tensor("BOOL", (), [False]))
    concat.outputs.add(name="joined").type.CopyFrom(value_type("FLOAT32", (16,)))
    two = MIL.Operation(type="split", attributes={"name": string("halves")})
    two.inputs["x"].arguments.add().value.CopyFrom(tensor("FLOAT32", (12,), ten))
    for name in ("left", "right"):
        two.outputs.add(name=name).type.CopyFrom(value_type("FLOAT32", (6,)))
    operations = [custom, concat, two, *block.operations]
    del block.operations[:]
    block.operations.extend(operations)
    note = "attributes of program, function, block and operation; lists, tuples, dictionaries; values as arguments"
    finish(spec, folder, note)


def make_containers_text(folder):
    """The attribute forms that compiled text has a syntax for (no block attributes, no docString)."""
    spec = model([])
    information = group(
        group(string("DefaultShapes"), dictionary((string("x"), tensor("INT32", (2,), [1, 4])))),
        group(string("RangeDims"), dictionary((string("x"), sequence([tensor("INT32", (2,), [1, 4])])))),
    )
    spec.mlProgram.functions["main"].attributes["FlexibleShapeInformation"].CopyFrom(information)
    spec.mlProgram.attributes["buildInfo"].CopyFrom(dictionary((string("a"), string("1")), (string("b"), string(""))))
    block = spec.mlProgram.functions["main"].block_specializations["CoreML8"]
    concat = MIL.Operation(type="concat", attributes={"name": string("joined")})
    concat.inputs["values"].arguments.add(name="x")
    concat.inputs["values"].arguments.add(name="x")
    concat.inputs["axis"].arguments.add().value.CopyFrom(tensor("INT32", (), [0]))
    concat.inputs["table"].arguments.add().value.CopyFrom(tensor("FLOAT32", (12,), [i / 8 for i in range(12)]))
    concat.outputs.add(name="joined").type.CopyFrom(value_type("FLOAT32", (2,)))
    operations = [concat, const("labels", sequence([string("one"), string("two")])), *block.operations]
    del block.operations[:]
    block.operations.extend(operations)
    finish(spec, folder, "tuples, dictionaries and lists, in the protobuf and in text", "1.0", "1.3")


def make_type_attributes(folder):
    """Attributes of a TensorType, variadic dimensions, a Value without a value: nothing here is a tensor constant."""
    spec = model([const("small", tensor("INT32", (2,), [1, 2]))])
    function = spec.mlProgram.functions["main"]
    typed = function.inputs[0].type.tensorType
    typed.attributes["hidden"].CopyFrom(tensor("FLOAT32", (12,), [0.5] * 12))
    extra = function.inputs.add(name="any_rank")
    extra.type.CopyFrom(value_type("FLOAT32", ("...",)))
    function.inputs.add(name="cache").type.stateType.wrappedType.CopyFrom(value_type("FLOAT16", (2, 3)))
    note = (
        "a tensor inside TensorType.attributes (not listed: it belongs to a type), a variadic dimension, a state input"
    )
    finish(spec, folder, note)


def make_specializations(folder):
    """One function with two block specializations, another opset first."""
    spec = model([const("w", tensor("FLOAT32", (12,), range(12)))])
    function = spec.mlProgram.functions["main"]
    older = function.block_specializations["CoreML7"]
    older.CopyFrom(function.block_specializations["CoreML8"])
    older.operations[0].CopyFrom(const("w", tensor("FLOAT32", (12,), range(12, 24))))
    finish(spec, folder, "two block specializations with one weight name, different values")


def make_nested_pipeline(folder):
    """A pipelineClassifier that holds a pipeline, among ML Programs and a neuralNetwork."""
    weight = [const("w", tensor("FLOAT32", (12,), range(12)))]
    spec = proto.Model_pb2.Model(specificationVersion=9)
    outer = spec.pipelineClassifier.pipeline
    outer.models.add().CopyFrom(model(weight))
    inner = outer.models.add(specificationVersion=9).pipeline
    inner.models.add().CopyFrom(model([const("w", tensor("FLOAT32", (12,), range(1, 13)))]))
    inner.models.add(specificationVersion=4).neuralNetwork.SetInParent()
    outer.names.extend(["first", "second"])
    inner.names.extend(["third", "fourth"])
    finish(spec, folder, "pipelineClassifier > pipeline; model1/model1 is a neuralNetwork")


def make_weight_files(folder):
    """Several weight files, one in a sub-folder with the basename of another: coremltools would read the wrong one."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 12))], opset_version=ct.target.iOS16)
    def program(x):
        for i, name in enumerate(("first", "second", "third")):
            x = mb.add(x=x, y=mb.const(val=np.arange(12, dtype=np.float32) + 100 * i, name=name), name=f"add_{name}")
        return mb.identity(x=x, name="out")

    path = packages.save(packages.convert(program, ct.target.iOS16), folder)
    root = os.path.join(os.path.dirname(record.find_spec(path)))
    places = {"second": "weights/layers/0/weight.bin", "third": "weights/über größe.bin"}

    def move(spec):
        for op in spec.mlProgram.functions["main"].block_specializations["CoreML6"].operations:
            if op.outputs[0].name in places:
                target = os.path.join(root, places[op.outputs[0].name])
                value = op.attributes["val"].blobFileValue
                array = record.read_blob(os.path.join(root, "weights", "weight.bin"), value.offset, "FLOAT32")
                data, offsets = reference.write_blobs([("FLOAT32", array.tolist())])
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "wb") as file:
                    file.write(data)
                value.fileName, value.offset = f"@model_path/{places[op.outputs[0].name]}", offsets[0]

    packages.edit(path, move)
    mil_printer.compile_package(path, os.path.join(folder, "model.mlmodelc"), "1.0")
    note = (
        "three weight files, one in a sub-folder under a basename used elsewhere; the second and third by reference.py"
    )
    record.record_model(folder, ["model.mlpackage", "model.mlmodelc"], note, pymil=False)


CASES = {
    "immediates": make_immediates,
    "immediates_odd": make_immediates_odd,
    "other_fields": make_other_fields,
    "attributes": make_attributes,
    "containers": make_containers_text,
    "type_attributes": make_type_attributes,
    "specializations": make_specializations,
    "nested_pipeline": make_nested_pipeline,
    "weight_files": make_weight_files,
}
