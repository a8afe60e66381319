"""Random Programs for hypothesis, by google's protobuf; and the same in other bytes."""

from hypothesis import strategies as st

from milblob.program import schema
from reference import read_fields, write_field, write_varint

NAMES = st.sampled_from(["a", "b", "c", "x", "y", "val", "ä", ""])
KEYS = st.sampled_from(["x", "y", "val", "name", "values"])


@st.composite
def value_types(draw, depth=2):
    message = schema.ValueType()
    kind = draw(st.sampled_from(["tensor", "none", *(["list", "tuple", "dict", "state"] if depth else [])]))
    if kind == "tensor":
        tensor = message.tensorType
        tensor.dataType = draw(st.sampled_from([11, 2, 1, 23, 0, 99]))
        for size in draw(st.lists(st.sampled_from([0, 1, 3, None, "...", "unset"]), max_size=3)):
            dimension = tensor.dimensions.add()
            if isinstance(size, int):
                dimension.constant.size = size
            elif size != "unset":
                dimension.unknown.variadic = size == "..."
        tensor.rank = draw(st.sampled_from([len(tensor.dimensions), -1]))
    elif kind == "list":
        message.listType.type.CopyFrom(draw(value_types(depth - 1)))
        if draw(st.booleans()):
            message.listType.length.constant.size = draw(st.integers(0, 5))
    elif kind == "tuple":
        message.tupleType.types.extend(draw(st.lists(value_types(depth - 1), max_size=2)))
    elif kind == "dict":
        message.dictionaryType.keyType.CopyFrom(draw(value_types(depth - 1)))
        if draw(st.booleans()):
            message.dictionaryType.valueType.CopyFrom(draw(value_types(depth - 1)))
    elif kind == "state":
        message.stateType.wrappedType.CopyFrom(draw(value_types(depth - 1)))
    return message


@st.composite
def values(draw, depth=2):
    message = schema.Value(docString=draw(st.sampled_from(["", "", "doc"])))
    if draw(st.booleans()):
        message.type.CopyFrom(draw(value_types()))
    kind = draw(
        st.sampled_from(["floats", "strings", "empty", "blob", "none", *(["list", "tuple", "dict"] if depth else [])])
    )
    immediate = message.immediateValue if kind not in ("blob", "none") else None
    if kind == "blob":
        message.blobFileValue.fileName = "@model_path/weights/w.bin"
        message.blobFileValue.offset = draw(st.integers(0, 1 << 40))
    elif kind == "floats":
        immediate.tensor.floats.values.extend(draw(st.lists(st.floats(width=32), max_size=3)))
    elif kind == "strings":
        immediate.tensor.strings.values.extend(draw(st.lists(st.text(max_size=3), max_size=3)))
    elif kind == "empty":
        immediate.SetInParent()
    elif kind == "list":
        immediate.list.values.extend(draw(st.lists(values(depth - 1), max_size=2)))
    elif kind == "tuple":
        immediate.tuple.values.extend(draw(st.lists(values(depth - 1), max_size=2)))
    elif kind == "dict":
        immediate.dictionary.SetInParent()
        for key, item in draw(st.lists(st.tuples(values(depth - 1), values(depth - 1)), max_size=2)):
            pair = immediate.dictionary.values.add()
            pair.key.CopyFrom(key)
            if draw(st.booleans()):
                pair.value.CopyFrom(item)
    return message


def fill_named(draw, named):
    for name in draw(st.lists(NAMES, max_size=2)):
        added = named.add(name=name)
        if draw(st.booleans()):
            added.type.CopyFrom(draw(value_types(1)))


def fill_values(draw, attributes):
    for key in draw(st.lists(KEYS, max_size=2)):
        attributes[key].CopyFrom(draw(values(1)))


def fill_block(draw, block, depth):
    fill_named(draw, block.inputs)
    block.outputs.extend(draw(st.lists(NAMES, max_size=3)))
    for _ in range(draw(st.integers(0, 3))):
        op = block.operations.add(type=draw(st.sampled_from(["const", "add", "cond", ""])))
        fill_named(draw, op.outputs)
        for key in draw(st.lists(KEYS, max_size=3, unique=True)):
            op.inputs[key].SetInParent()
            for name in draw(st.lists(st.one_of(NAMES, st.none(), values(1)), max_size=2)):
                binding = op.inputs[key].arguments.add()
                if isinstance(name, str):
                    binding.name = name
                elif name is not None:
                    binding.value.CopyFrom(name)
        fill_values(draw, op.attributes)
        for _ in range(draw(st.integers(0, 2)) if depth else 0):
            fill_block(draw, op.blocks.add(), depth - 1)
    if not draw(st.integers(0, 5)):
        fill_values(draw, block.attributes)


@st.composite
def random_programs(draw):
    message = schema.Program(version=draw(st.sampled_from([0, 1, -1])), docString=draw(st.sampled_from(["", "doc"])))
    for name in draw(st.lists(st.sampled_from(["main", "prefill", ""]), max_size=2, unique=True)):
        function = message.functions[name]
        function.opset = draw(st.sampled_from(["CoreML7", ""]))
        fill_named(draw, function.inputs)
        for key in draw(st.lists(st.sampled_from(["CoreML7", "CoreML8", ""]), max_size=2, unique=True)):
            fill_block(draw, function.block_specializations[key], 2)
        fill_values(draw, function.attributes)
    fill_values(draw, message.attributes)
    return message


def scrambled(data, descriptor, draw):
    """The same message as other bytes: fields in another order, sub-messages in pieces, keys of maps twice, unknown ones."""
    fields = []
    for number, wire, value in read_fields(data):
        known = descriptor.fields_by_number.get(number)
        if wire == 2 and known is not None and known.message_type is not None:
            inner = scrambled(value, known.message_type, draw)
            is_singular = not known.is_repeated
            if is_singular and draw(st.integers(0, 9)) == 0:
                cut = [0, *(at for at in ends(inner)), len(inner)]
                at = cut[draw(st.integers(0, len(cut) - 1))]
                fields += [(number, write_field(number, inner[:at])), (number, write_field(number, inner[at:]))]
                continue
            if known.message_type.GetOptions().map_entry and draw(st.integers(0, 9)) == 0:
                key = b"".join(write_field(n, v) for n, w, v in read_fields(value) if n == 1)
                fields.append((number, write_field(number, key)))  # an earlier entry of the same key
            fields.append((number, write_field(number, inner)))
        elif wire == 0:
            fields.append((number, write_varint(number << 3) + write_varint(value)))
        else:
            fields.append(
                (
                    number,
                    write_varint(number << 3 | wire) + (write_varint(len(value)) if wire == 2 else b"") + bytes(value),
                )
            )
    if not descriptor.GetOptions().map_entry and draw(st.integers(0, 9)) == 0:
        fields.append((1000, write_field(1000, b"unknown")))
    order = draw(st.permutations(sorted({number for number, _ in fields})))
    return b"".join(part for number in order for own, part in fields if own == number)


def ends(data):
    at = 0
    for number, wire, value in read_fields(data):
        if wire != 2:
            return []
        at += len(write_field(number, value))
        yield at


@st.composite
def scrambled_programs(draw):
    return scrambled(draw(random_programs()).SerializeToString(), schema.Program.DESCRIPTOR, draw)
