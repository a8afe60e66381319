"""One change each that makes the model of sound_models.py break one rule of the specification."""

from typing import NamedTuple

import numpy as np

from protobuf_programs import F32, add_const, add_op, set_type, set_value
from sound_models import BOOL, F16, F64, operation, set_list, set_text, set_tuple

HERE = "main.block['CoreML6']"
KEEPING = "keeping.block['CoreML8']"
I16, U8, U4, U1 = 22, 31, 35, 37


class Broken(NamedTuple):
    """One broken model.

    Attributes:
        rule: that it breaks, and no other.
        words: of the message.
        where: path of the finding.
        loader: whether coremltools' loader refuses it.
        change: makes it of the sound one.
    """

    rule: str
    words: str
    where: str
    loader: bool
    change: object


BROKEN = []


def breaks(rule, words, where, *, loader=False):
    """Add the change that is decorated."""

    def add(change):
        BROKEN.append(Broken(rule, words, where.replace("HERE", HERE).replace("KEEPING", KEEPING), loader, change))
        return change

    return add


def main(m):
    return m.mlProgram.functions["main"]


def block(m):
    return main(m).block_specializations["CoreML6"]


def op(m, name):
    return operation(block(m), name)


def val(m, name):
    return op(m, name).attributes["val"]


def out(m, name):
    return op(m, name).outputs[0].type.tensorType


def classes(m):
    return op(m, "label").inputs["classes"].arguments[0].value


def build_info(m):
    return m.mlProgram.attributes["buildInfo"].immediateValue.dictionary.values


def described(m, what, name, function=0):
    return next(f for f in getattr(m.description.functions[function], what) if f.name == name).type


def add_tuple(m):
    one = block(m).operations.add(type="const")
    set_tuple(one.attributes["val"], [1.0], [2.0, 3.0])
    one.outputs.add(name="one").type.CopyFrom(one.attributes["val"].type)
    return one.attributes["val"]


# ------------------------------------------------------------------------------------------------------ names and scope


@breaks("MIL001", "output: expected a name such as x_1, got 'a-b'", "HERE.op[13] 'a-b'")
def _(m):
    add_op(block(m), "relu", "a-b", x="y")


@breaks("MIL001", "attribute: expected a name such as x_1, got 'clé'", "HERE.op[6] 'z'", loader=True)
def _(m):
    set_text(op(m, "z").attributes["clé"], "x")


@breaks("MIL001", "attribute: expected a name such as x_1, got ''", "main", loader=True)
def _(m):
    set_text(main(m).attributes[""], "x")


@breaks("MIL002", "name: expected one that its block does not have yet, got 'y'", "HERE.op[13] 'y'")
def _(m):
    add_op(block(m), "relu", "y", x="x")


@breaks("MIL002", "input: expected a name that no other has, got 'x'", "main")
def _(m):
    set_type(main(m).inputs.add(name="x").type, F32, [12])


@breaks("MIL003", "input 'x': expected a name that is defined before, got 'nobody'", "HERE.op[13] 'v'", loader=True)
def _(m):
    add_op(block(m), "relu", "v", x="nobody")


@breaks("MIL003", "input 'x': expected a name that is defined before, got 'inside'", "HERE.op[13] 'v'")
def _(m):
    add_op(block(m), "relu", "v", x="inside")


@breaks("MIL004", "input 'y': expected a name that is defined before, got 'z'", "HERE.op[2] 'y'", loader=True)
def _(m):
    op(m, "y").inputs["y"].arguments[0].name = "z"


@breaks("MIL004", "got 'z'", "HERE.op[6] 'z'.block[0].op[0] 'inside'", loader=True)
def _(m):
    op(m, "z").blocks[0].operations[0].inputs["x"].arguments[0].name = "z"


@breaks("MIL005", "output of the block: expected a name that it sees, got 'z'", "HERE.op[6] 'z'.block[1]", loader=True)
def _(m):
    op(m, "z").blocks[1].outputs[0] = "z"


@breaks("MIL006", "expected one for the opset 'CoreML7', got 'CoreML6', 'CoreML8'", "main", loader=True)
def _(m):
    main(m).opset = "CoreML7"


@breaks("MIL007", "outputs: expected tensor<fp32, [12]> out, ", "main.block['CoreML8']")
def _(m):
    del main(m).block_specializations["CoreML8"].outputs[0]


@breaks("MIL007", "outputs: expected tensor<fp32, [12]> out, ", "main.block['CoreML8']")
def _(m):
    outputs = main(m).block_specializations["CoreML8"].outputs
    outputs[0], outputs[1] = outputs[1], outputs[0]


# ---------------------------------------------------------------------------------------------------------------- types


@breaks("MIL008", "output 'y': expected a type, got none", "HERE.op[2] 'y'", loader=True)
def _(m):
    op(m, "y").outputs[0].ClearField("type")


@breaks("MIL008", "input 'b': expected a type, got none", "HERE.op[7] 'out'.block[1]", loader=True)
def _(m):
    op(m, "out").blocks[1].inputs[0].ClearField("type")


@breaks(
    "MIL009", "output 'scaled': expected a data type that is known, got number 0", "HERE.op[3] 'scaled'", loader=True
)
def _(m):
    out(m, "scaled").dataType = 0


@breaks("MIL010", "output 'y': expected a rank of 1, its number of dimensions, got 2", "HERE.op[2] 'y'", loader=True)
def _(m):
    out(m, "y").rank = 2


@breaks("MIL010", "got -1", "HERE.op[2] 'y'", loader=True)
def _(m):
    out(m, "y").rank = -1


@breaks("MIL011", "output 'v': expected a type inside, got none", "HERE.op[13] 'v'", loader=True)
def _(m):
    add_op(block(m), "relu", "v", x="y").outputs[0].type.listType.SetInParent()


@breaks("MIL012", "input 'y': expected a name or a value, got neither", "HERE.op[2] 'y'", loader=True)
def _(m):
    del op(m, "y").inputs["y"].arguments[:]


@breaks("MIL020", "output 'v': expected keys that are strings or integers, got fp32", "HERE.op[13] 'v'", loader=True)
def _(m):
    add_op(block(m), "identity", "v", x="y").outputs[0].type.CopyFrom(op(m, "label").outputs[1].type)
    set_type(op(m, "v").outputs[0].type.dictionaryType.keyType, F32, [])


@breaks(
    "MIL035",
    "output 'v': expected a type without states, got state<tensor<fp32, [12]>>",
    "HERE.op[13] 'v'",
    loader=True,
)
def _(m):
    value_type = add_op(block(m), "relu", "v", x="y").outputs[0].type
    set_type(value_type.stateType.wrappedType, F32, [12])


# --------------------------------------------------------------------------------------------------------------- values


@breaks(
    "MIL013",
    "value: expected an immediate or a reference to a weight file, got neither",
    "HERE.op[0] 'w'.val",
    loader=True,
)
def _(m):
    val(m, "w").ClearField("immediateValue")


@breaks("MIL013", "type of the value: expected one, got none", "HERE.op[0] 'w'.val", loader=True)
def _(m):
    val(m, "w").ClearField("type")


@breaks("MIL014", "type of the value: expected a known shape, got tensor<fp32, [?]>", "HERE.op[0] 'w'.val", loader=True)
def _(m):
    val(m, "w").type.tensorType.dimensions[0].unknown.SetInParent()


@breaks("MIL014", "type of the value: expected a known shape, got list<string, ?>", "HERE.op[12] 'label'.classes")
def _(m):
    classes(m).type.listType.length.unknown.SetInParent()


@breaks("MIL015", "value: expected one of tensor<fp32, [12]>, got a list", "HERE.op[0] 'w'.val", loader=True)
def _(m):
    val(m, "w").immediateValue.list.SetInParent()


@breaks("MIL016", "elements of floats: expected 12 for shape (12,), got 13", "HERE.op[0] 'w'.val", loader=True)
def _(m):
    val(m, "w").immediateValue.tensor.floats.values.append(1.0)


@breaks("MIL016", "tensor value of float32: expected field floats, got ints", "HERE.op[0] 'w'.val")
def _(m):
    val(m, "w").immediateValue.tensor.ints.values.extend(range(12))


@breaks("MIL016", "tensor value of bool: expected field bools, got strings", "HERE.op[4] 'p'.val", loader=True)
def _(m):
    val(m, "p").immediateValue.tensor.strings.SetInParent()


@breaks("MIL017", "list: expected 3 elements for list<string, 3>, got 2", "HERE.op[12] 'label'.classes")
def _(m):
    classes(m).type.listType.length.constant.size = 3


@breaks("MIL017", "type: expected string, got fp32", "HERE.op[12] 'label'.classes[1]")
def _(m):
    set_value(classes(m).immediateValue.list.values[1], 1.0)


@breaks(
    "MIL018", "tuple: expected 1 elements for tuple<tensor<fp32, [1]>>, got 2", "HERE.op[13] 'one'.val", loader=True
)
def _(m):
    del add_tuple(m).type.tupleType.types[1]
    del op(m, "one").outputs[0].type.tupleType.types[1]


@breaks("MIL018", "type: expected tensor<fp32, [2]>, got tensor<fp32, [1]>", "HERE.op[13] 'one'.val[1]", loader=True)
def _(m):
    values = add_tuple(m).immediateValue.tuple.values
    values[1].CopyFrom(values[0])


@breaks("MIL019", "key of a dictionary: expected one that is not there yet, got 'one'", "program.buildInfo[1].key")
def _(m):
    build_info(m)[1].key.CopyFrom(build_info(m)[0].key)


@breaks("MIL019", "type: expected string, got fp32", "program.buildInfo[0].value")
def _(m):
    set_value(build_info(m)[0].value, 1.0)


@breaks(
    "MIL021",
    "type: expected a tensor of a data type that weight files hold, got tensor<fp64, [12]>",
    "HERE.op[13] 'v'.val",
    loader=True,
)
def _(m):
    block(m).operations.add().CopyFrom(op(m, "stored"))
    last = block(m).operations[-1]
    last.outputs[0].name = "v"
    last.outputs[0].type.tensorType.dataType = last.attributes["val"].type.tensorType.dataType = F64


@breaks(
    "MIL022",
    "output 'probabilities': expected tensor<fp32, [2]>, which its value has, got tensor<fp32, [3]>",
    "HERE.op[11] 'probabilities'",
)
def _(m):
    out(m, "probabilities").dimensions[0].constant.size = 3


@breaks("MIL022", "outputs of const: expected 1, got 2", "HERE.op[11] 'probabilities'", loader=True)
def _(m):
    op(m, "probabilities").outputs.add(name="more").type.CopyFrom(op(m, "probabilities").outputs[0].type)


# ----------------------------------------------------------------------------------------------------------- operations


@breaks("MIL023", "operation: expected one of CoreML6, got 'plus'", "HERE.op[2] 'y'", loader=True)
def _(m):
    op(m, "y").type = "plus"


@breaks(
    "MIL024",
    "operation scaled_dot_product_attention: expected an opset that has it, CoreML8 or newer, got CoreML6",
    "HERE.op[14] 'v'",
)
def _(m):
    add_const(block(m), "q", np.zeros((1, 2, 2)))
    add_op(block(m), "scaled_dot_product_attention", "v", (1, 2, 2), query="q", key="q", value="q")


@breaks("MIL025", "argument of add: expected one of x, y, got 'z'", "HERE.op[2] 'y'", loader=True)
def _(m):
    op(m, "y").inputs["z"].arguments.add(name="w")


@breaks(
    "MIL026",
    "argument validate_indices of gather: expected an opset that has it, CoreML7 or newer, got CoreML6",
    "HERE.op[13] 'v'",
)
def _(m):
    add_op(block(m), "gather", "v", [2], x="y", indices="axes", validate_indices="p")


@breaks("MIL027", "arguments of add: expected y among them, got x", "HERE.op[2] 'y'", loader=True)
def _(m):
    del op(m, "y").inputs["y"]


@breaks("MIL028", "argument y of add: expected one binding, got 2", "HERE.op[2] 'y'", loader=True)
def _(m):
    op(m, "y").inputs["y"].arguments.add(name="x")


@breaks(
    "MIL028",
    "argument classes of classify: expected a list, got tensor<fp32, [12]>",
    "HERE.op[12] 'label'",
    loader=True,
)
def _(m):
    op(m, "label").inputs["classes"].arguments[0].name = "w"


@breaks("MIL029", "argument pred of cond: expected bool, got fp32", "HERE.op[6] 'z'", loader=True)
def _(m):
    op(m, "z").inputs["pred"].arguments[0].name = "x"


@breaks(
    "MIL030",
    "argument x of reverse: expected an opset in which it is taken, CoreML7 or newer, got int16 in CoreML6",
    "HERE.op[14] 'v'",
)
def _(m):
    half = block(m).operations.add(type="const")
    half.CopyFrom(op(m, "axes"))
    half.outputs[0].name = "short"
    half.outputs[0].type.tensorType.dataType = half.attributes["val"].type.tensorType.dataType = I16
    half.attributes["val"].immediateValue.tensor.ints.values[:] = [0, 1]
    added = add_op(block(m), "reverse", "v", [2], x="short")
    added.outputs[0].type.tensorType.dataType = I16


@breaks("MIL031", "argument y of add: expected fp32, as argument x has, got int32", "HERE.op[13] 'v'", loader=True)
def _(m):
    add_op(block(m), "add", "v", [2], x="probabilities", y="axes")


@breaks(
    "MIL032",
    "argument keep_dims of reduce_mean: expected a constant, got a name that is not one",
    "HERE.op[15] 'v'",
    loader=True,
)
def _(m):
    add_op(block(m), "reduce_max", "most", [], x="x")
    add_op(block(m), "less", "never", [], x="most", y="limit").outputs[0].type.tensorType.dataType = BOOL
    add_op(block(m), "reduce_mean", "v", [1], x="x", keep_dims="never")


@breaks("MIL033", "blocks of cond: expected 2, got 1", "HERE.op[6] 'z'", loader=True)
def _(m):
    del op(m, "z").blocks[1]


@breaks("MIL033", "blocks of add: expected 0, got 1", "HERE.op[2] 'y'")
def _(m):
    op(m, "y").blocks.add()


@breaks("MIL034", "outputs of block 1 of cond: expected 1, got 2", "HERE.op[6] 'z'.block[1]")
def _(m):
    op(m, "z").blocks[1].outputs.append("scaled")


@breaks(
    "MIL034", "inputs of block 0 of while_loop: expected tensor<fp32, [12]> as number 0", "HERE.op[7] 'out'.block[0]"
)
def _(m):
    op(m, "out").blocks[0].inputs[0].type.tensorType.dimensions[0].constant.size = 13


@breaks("MIL036", "version of the Program: expected 1, got 2", "program", loader=True)
def _(m):
    m.mlProgram.version = 2


@breaks("MIL037", "functions of the Program: expected one at least, got none", "program")
def _(m):
    m.mlProgram.functions.clear()
    m.description.Clear()
    m.ClearField("description")


@breaks("MIL038", "name of the operation: expected a string, got tensor<fp32, [1]>", "HERE.op[6] 'z'", loader=True)
def _(m):
    set_value(op(m, "z").attributes["name"], [1.0])


@breaks("MIL038", "buildInfo: expected dict<string, string>, got list<string, 1>", "program")
def _(m):
    set_list(m.mlProgram.attributes["buildInfo"], ["one"])


@breaks("MIL039", "opset: expected one whose operations are known here, got 'CoreML99'", "main.block['CoreML99']")
def _(m):
    main(m).block_specializations["CoreML99"].CopyFrom(block(m))


# ------------------------------------------------------------------------------------------- data types, compressed weights


@breaks(
    "MIL048", "output 'nibble': expected an opset that has uint4, CoreML8 or newer, got CoreML6", "HERE.op[13] 'nibble'"
)
def _(m):
    one = block(m).operations.add(type="const")
    set_type(one.attributes["val"].type, U4, [2])
    one.attributes["val"].immediateValue.tensor.bytes.values = b"\x21"
    set_type(one.outputs.add(name="nibble").type, U4, [2])


def compressed(m, kind, shape, code=F16, **parts):
    """Add a constexpr operation to the function that has a state, whose opset has them all; parts are (type, shape)."""
    op = m.mlProgram.functions["keeping"].block_specializations["CoreML8"].operations.add(type=f"constexpr_{kind}")
    for key, (part, sizes) in parts.items():
        value = op.inputs[key].arguments.add().value
        set_type(value.type, part, sizes)
        nbits = {F16: 16, U8: 8, U4: 4, U1: 1}[part]
        value.immediateValue.tensor.bytes.values = bytes((int(np.prod(sizes)) * nbits + 7) // 8)
    set_type(op.outputs.add(name="dense").type, code, shape)


@breaks(
    "MIL049",
    "scale: expected sizes that divide those of data, [2, 6], got [2, 4]",
    "KEEPING.op[3] 'dense'",
    loader=True,
)
def _(m):
    compressed(m, "blockwise_shift_scale", [2, 6], data=(U4, [2, 6]), scale=(F16, [2, 4]))


@breaks("MIL049", "offset: expected the shape of scale, [2, 3], got [2, 1]", "KEEPING.op[3] 'dense'", loader=True)
def _(m):
    compressed(m, "blockwise_shift_scale", [2, 6], data=(U4, [2, 6]), scale=(F16, [2, 3]), offset=(U4, [2, 1]))


@breaks("MIL049", "shape of the result: expected [2, 6], which the parts make, got [12]", "KEEPING.op[3] 'dense'")
def _(m):
    compressed(m, "blockwise_shift_scale", [12], data=(U4, [2, 6]), scale=(F16, [1, 1]))


@breaks(
    "MIL049", "data type of the result: expected float16, which the parts make, got float32", "KEEPING.op[3] 'dense'"
)
def _(m):
    compressed(m, "lut_to_dense", [2, 6], F32, indices=(U4, [2, 6]), lut=(F16, [1, 1, 16, 1]))


@breaks("MIL049", "lut: expected 16 entries for indices of 4 bits, got 8", "KEEPING.op[3] 'dense'", loader=True)
def _(m):
    compressed(m, "lut_to_dense", [2, 6], indices=(U4, [2, 6]), lut=(F16, [1, 1, 8, 1]))


@breaks("MIL049", "vector_axis: expected one for vectors of 2 elements, got none", "KEEPING.op[3] 'dense'", loader=True)
def _(m):
    compressed(m, "lut_to_dense", [4, 6], indices=(U4, [2, 6]), lut=(F16, [1, 1, 16, 2]))


@breaks("MIL049", "shape of the result: expected [2, 8], which the parts make, got [2, 6]", "KEEPING.op[3] 'dense'")
def _(m):
    compressed(m, "sparse_to_dense", [2, 6], mask=(U1, [2, 8]), nonzero_data=(F16, [0]))


@breaks("MIL049", "outputs of constexpr_lut_to_dense: expected 1, got 2", "KEEPING.op[3] 'dense'", loader=True)
def _(m):
    compressed(m, "lut_to_dense", [2, 6], indices=(U4, [2, 6]), lut=(F16, [1, 1, 16, 1]))
    dense = m.mlProgram.functions["keeping"].block_specializations["CoreML8"].operations[3]
    dense.outputs.add(name="more").type.CopyFrom(dense.outputs[0].type)


@breaks("MIL049", "outputs of constexpr_lut_to_sparse: expected 2, got 1", "KEEPING.op[3] 'dense'", loader=True)
def _(m):
    compressed(
        m, "lut_to_sparse", [0], indices_mask=(U1, [2, 8]), indices_nonzero_data=(U4, [0]), lut=(F16, [1, 1, 16, 1])
    )


# ---------------------------------------------------------------------------------------------------------- description


@breaks("MIL040", "image: expected a tensor of Float32, got tensor<fp16, [1, 3, 8, 8]>", "description.input 'picture'")
def _(m):
    set_type(m.mlProgram.functions["keeping"].inputs.add(name="picture").type, F16, [1, 3, 8, 8])
    added = m.description.functions[1].input.add(name="picture")
    added.type.CopyFrom(described(m, "input", "image"))


@breaks("MIL040", "image: expected C = 1 for its colours, got tensor<fp32, [1, 3, 8, 8]>", "description.input 'image'")
def _(m):
    described(m, "input", "image").imageType.colorSpace = 10


@breaks("MIL040", "image: expected a tensor of rank 4, got tensor<fp32, [12]>", "description.input 'x'")
def _(m):
    described(m, "input", "x").CopyFrom(described(m, "input", "image"))


@breaks("MIL041", "inputs of the function main: expected flexible, image, x, got flexible, image", "description")
def _(m):
    del m.description.functions[0].input[0]


@breaks("MIL041", "states of the function keeping: expected kept, got none", "description")
def _(m):
    del m.description.functions[1].state[:]


@breaks("MIL042", "data type: expected tensor<fp32, [12]> of the Program, got int32", "description.input 'x'")
def _(m):
    described(m, "input", "x").multiArrayType.dataType = 131104


@breaks("MIL042", "type: expected tensor<fp32, [12]> of the Program, got none", "description.output 'out'")
def _(m):
    described(m, "output", "out").Clear()


@breaks(
    "MIL042", "keys of the dictionary: expected those of dict<string, fp64>, got int64", "description.output 'scores'"
)
def _(m):
    described(m, "output", "scores").dictionaryType.int64KeyType.SetInParent()


@breaks("MIL043", "shape: expected that of tensor<fp32, [12]>, got [3, 4]", "description.input 'x'")
def _(m):
    described(m, "input", "x").multiArrayType.shape[:] = [3, 4]


@breaks(
    "MIL043", "shape range: expected that of tensor<fp32, [?, 4]>, got [1..10, 4..8]", "description.input 'flexible'"
)
def _(m):
    described(m, "input", "flexible").multiArrayType.shapeRange.sizeRanges[1].upperBound = 8


@breaks("MIL043", "size: expected that of tensor<fp32, [8, 8]>, got [8, 9]", "description.input 'image'")
def _(m):
    described(m, "input", "image").imageType.width = 9


@breaks("MIL044", "shape: expected one in the ranges [2..10, 4], got [1, 4]", "description.input 'flexible'")
def _(m):
    described(m, "input", "flexible").multiArrayType.shapeRange.sizeRanges[0].lowerBound = 2


@breaks("MIL044", "default value: expected one of float32, got intDefaultValue", "description.input 'x'")
def _(m):
    described(m, "input", "x").multiArrayType.intDefaultValue = 1


@breaks(
    "MIL045",
    "predictedFeatureName: expected one of the outputs after, bright, label, open, out, scores, got 'x'",
    "description",
)
def _(m):
    m.description.predictedFeatureName = "x"


@breaks("MIL046", "functions of the description: expected keeping, main, got main", "description")
def _(m):
    del m.description.functions[1]


@breaks("MIL046", "default function: expected one of keeping, main, got 'other'", "description")
def _(m):
    m.description.defaultFunctionName = "other"


@breaks("MIL047", "specification version: expected 9 or more for the opset 'CoreML8', got 8", "keeping", loader=True)
def _(m):
    m.mlProgram.functions["main"].block_specializations.pop("CoreML8")
    m.specificationVersion = 8


# --------------------------------------------------------------------------------------------------- models of tests/data

_WIRE = {"MIL022", "MIL041"}  # constants declare one shape for every value, and the description has no output
UNSOUND = {
    "attributes": {"MIL027"},
    "containers": {"MIL025"},
    "immediates_odd": {"MIL014"},
    "type_attributes": {"MIL041"},
    **{key: {*_WIRE, "MIL005"} for key in ("wire/chunks", "wire/duplicate_keys", "wire/split", "wire/unpacked")},
    "wire/odd_names": {"MIL001", "MIL005", "MIL013", "MIL025", "MIL027", "MIL041"},
    "wire/odd_numbers": {*_WIRE, "MIL005", "MIL016"},
    "wire/replaced": {*_WIRE, "MIL025", "MIL027"},
    "wire/split_program": {"MIL005", "MIL022", "MIL046"},
}
"""What the models of tests/data break that were written by hand for what a reader must get through: no more, no less."""


def broken_rules(case, path):
    """The rules that a model of tests/data breaks; a bare Program has no description."""
    found = UNSOUND.get(case, _WIRE if case.startswith("wire/") else set())
    return found - {"MIL041", "MIL046"} if path.endswith(".pb") else found


@breaks(
    "MIL050",
    "expected tensor<fp32, [12]>, which its inputs make, got tensor<fp32, [11]>",
    "HERE.op[2] 'y'",
    loader=True,
)
def _(m):
    out(m, "y").dimensions[0].constant.size = 11


@breaks("MIL050", "outputs of mul: expected 1, got 2", "HERE.op[3] 'scaled'", loader=True)
def _(m):
    op(m, "scaled").outputs.add(name="twice").type.tensorType.CopyFrom(out(m, "scaled"))
