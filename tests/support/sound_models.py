"""A sound model that has something of everything that the rules of the specification are about, to break by one change."""

import numpy as np

import milblob
from milblob.program import schema
from protobuf_programs import F32, STRING, add_const, add_op, set_type, set_value

BOOL, F16, F64, I32 = 1, 10, 12, 23
CLASSES = ("cat", "dog")


def operation(block, name):
    """The operation of a block whose first output has a name."""
    return next(op for op in block.operations if op.outputs and op.outputs[0].name == name)


def set_text(value, *texts, shape=None):
    """Make a Value a tensor of strings: one for rank 0."""
    set_type(value.type, STRING, () if shape is None else shape)
    value.immediateValue.tensor.strings.values.extend(texts)


def set_list(value, texts):
    """Make a Value a list of strings."""
    set_type(value.type.listType.type, STRING, ())
    value.type.listType.length.constant.size = len(texts)
    value.immediateValue.list.SetInParent()
    for text in texts:
        set_text(value.immediateValue.list.values.add(), text)


def set_tuple(value, *arrays):
    """Make a Value a tuple of float32 tensors."""
    value.type.tupleType.SetInParent()
    value.immediateValue.tuple.SetInParent()
    for array in arrays:
        set_type(value.type.tupleType.types.add(), F32, np.shape(array))
        set_value(value.immediateValue.tuple.values.add(), array)


def set_dictionary(value, pairs):
    """Make a Value a dictionary of strings."""
    set_type(value.type.dictionaryType.keyType, STRING, ())
    set_type(value.type.dictionaryType.valueType, STRING, ())
    value.immediateValue.dictionary.SetInParent()
    for key, text in pairs.items():
        pair = value.immediateValue.dictionary.values.add()
        set_text(pair.key, key)
        set_text(pair.value, text)


def _scalar(block, name, code, field, item):
    op = block.operations.add(type="const")
    value = op.attributes["val"]
    set_type(value.type, code, ())
    getattr(value.immediateValue.tensor, field).values.append(item)
    set_type(op.outputs.add(name=name).type, code, ())


def _typed(block, kind, name, code, shape, **inputs):
    op = add_op(block, kind, None, **inputs)
    set_type(op.outputs.add(name=name).type, code, shape)
    return op


def _main(function):
    """Constants here and in a weight file, cond, while_loop, classify with a list, an image, an open dimension."""
    set_type(function.inputs.add(name="x").type, F32, [12])
    set_type(function.inputs.add(name="image").type, F32, [1, 3, 8, 8])
    flexible = function.inputs.add(name="flexible").type
    set_type(flexible, F32, [1, 4])
    flexible.tensorType.dimensions[0].unknown.SetInParent()
    block = function.block_specializations["CoreML6"]
    add_const(block, "w", range(12))
    set_text(block.operations[0].attributes["name"], "w")
    stored = block.operations.add(type="const")
    set_type(stored.attributes["val"].type, F32, [12])
    stored.attributes["val"].blobFileValue.fileName = "@model_path/weights/weight.bin"
    stored.attributes["val"].blobFileValue.offset = 64
    set_type(stored.outputs.add(name="stored").type, F32, [12])
    add_op(block, "add", "y", x="x", y="w")
    add_op(block, "mul", "scaled", x="y", y="stored")
    _scalar(block, "p", BOOL, "bools", True)
    _scalar(block, "limit", F32, "floats", 100.0)
    cond = add_op(block, "cond", "z", pred="p")
    for _ in range(2):
        inner = cond.blocks.add()
        add_op(inner, "relu", "inside", x="scaled")
        inner.outputs.append("inside")
    loop = add_op(block, "while_loop", "out", loop_vars=["z"])
    test, body = loop.blocks.add(), loop.blocks.add()
    set_type(test.inputs.add(name="a").type, F32, [12])
    _typed(test, "reduce_max", "most", F32, [], x="a")
    _typed(test, "less", "goes_on", BOOL, [], x="most", y="limit")
    test.outputs.append("goes_on")
    set_type(body.inputs.add(name="b").type, F32, [12])
    add_op(body, "add", "more", x="b", y="w")
    body.outputs.append("more")
    axes = block.operations.add(type="const")
    set_type(axes.attributes["val"].type, I32, [2])
    axes.attributes["val"].immediateValue.tensor.ints.values.extend([2, 3])
    set_type(axes.outputs.add(name="axes").type, I32, [2])
    _typed(block, "reduce_mean", "bright", F32, [1, 3, 1, 1], x="image", axes="axes", keep_dims="p")
    _typed(block, "relu", "open", F32, [1, 4], x="flexible")
    operation(block, "open").outputs[0].type.CopyFrom(flexible)
    add_const(block, "probabilities", [0.25, 0.75])
    classify = block.operations.add(type="classify")
    classify.inputs["probabilities"].arguments.add(name="probabilities")
    set_list(classify.inputs["classes"].arguments.add().value, CLASSES)
    set_type(classify.outputs.add(name="label").type, STRING, [])
    scores = classify.outputs.add(name="scores").type.dictionaryType
    set_type(scores.keyType, STRING, [])
    set_type(scores.valueType, F64, [])
    block.outputs.extend(["out", "open", "bright", "label", "scores"])
    function.opset = "CoreML6"
    return block


def _keeping(function):
    """A state that is read and written."""
    set_type(function.inputs.add(name="kept").type.stateType.wrappedType, F16, [4])
    set_type(function.inputs.add(name="step").type, F16, [4])
    function.opset = "CoreML8"
    block = function.block_specializations["CoreML8"]
    _typed(block, "read_state", "before", F16, [4], input="kept")
    _typed(block, "add", "after", F16, [4], x="before", y="step")
    add_op(block, "write_state", None, input="kept", data="after")
    block.outputs.append("after")


def _feature(features, name, shape, code):
    array = features.add(name=name).type.multiArrayType
    array.shape.extend(shape)
    array.dataType = code


def _describe(description):
    description.defaultFunctionName = "main"
    main = description.functions.add(name="main")
    _feature(main.input, "x", [12], 65568)
    image = main.input.add(name="image").type.imageType
    image.width = image.height = 8
    image.colorSpace = 20
    _feature(main.input, "flexible", [1, 4], 65568)
    ranges = main.input[2].type.multiArrayType.shapeRange.sizeRanges
    ranges.add(lowerBound=1, upperBound=10)
    ranges.add(lowerBound=4, upperBound=4)
    _feature(main.output, "out", [12], 65568)
    _feature(main.output, "open", [], 65568)
    _feature(main.output, "bright", [1, 3, 1, 1], 65568)
    main.output.add(name="label").type.stringType.SetInParent()
    main.output.add(name="scores").type.dictionaryType.stringKeyType.SetInParent()
    description.predictedFeatureName = "label"
    description.predictedProbabilitiesName = "scores"
    keeping = description.functions.add(name="keeping")
    _feature(keeping.input, "step", [4], 65552)
    _feature(keeping.output, "after", [4], 65552)
    state = keeping.state.add(name="kept").type.stateType.arrayType
    state.shape.append(4)
    state.dataType = 65552


def sound_model():
    """Return a Model message; `write` makes a file of it."""
    model = schema.Model(specificationVersion=9)
    program = model.mlProgram
    program.version = 1
    set_dictionary(program.attributes["buildInfo"], {"one": "1", "two": "2"})
    block = _main(program.functions["main"])
    program.functions["main"].block_specializations["CoreML8"].CopyFrom(block)
    _keeping(program.functions["keeping"])
    _describe(model.description)
    return model


def write(model, folder):
    """Write a model with its weight file into a folder, and return its path."""
    (folder / "weights").mkdir()
    with milblob.BlobWriter(folder / "weights" / "weight.bin") as blobs:
        blobs.write(np.arange(12, dtype=np.float32))
    path = folder / "model.mlmodel"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path
