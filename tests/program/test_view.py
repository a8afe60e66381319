"""The view of a Program: equal to a walk over google's message, by every test model and by random Programs."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milblob
from cases import case_paths, load_case
from hostile_bytes import const, field, list_value, model, operation, program, tensor_type
from milblob import _codec
from milblob.program import schema
from milblob.program.types import DictionaryType, ListType, StateType, TensorType, TupleType, read_type
from milblob.program.view import Block, Function, Operation, ProgramView
from program_walk import (
    message_program,
    message_uses,
    view_consumers,
    view_program,
    view_uses,
)
from protobuf_programs import add_const, add_op, as_model, new_program
from random_programs import random_programs, scrambled_programs
from thorough import FEWER, PROFILE, some


def view_of(data):
    return ProgramView(_codec.Buffer(data), (0, len(data)))


def assert_same(view, message):
    assert view_program(view) == message_program(message)
    for name, function in view.functions.items():
        expected = message_uses(message.functions[name.removeprefix(view.prefix)])
        assert view_uses(function) == expected
        assert view_consumers(function) == {key: value for key, value in expected.items() if key[0] != ()}


# Python's protobuf cuts integers that do not fit, which milblob refuses, and hides map entries with unknown fields.
OTHERWISE_IN_PROTOBUF = {"wire/odd_numbers", "wire/unknown_in_entry"}


@pytest.mark.parametrize(("name", "path"), some(case_paths(), 18))
@pytest.mark.sample(5)
def test_every_test_model(name, path):
    with milblob.open(load_case(name).source(path), constants=True, stored=True) as opened:
        messages = opened.programs
        assert [view.prefix for view in opened.views] == list(messages)
        for view in opened.views:
            if name not in OTHERWISE_IN_PROTOBUF:
                assert_same(view, messages[view.prefix])
        for tensor in opened.values():
            found = tensor.operation
            assert (found.type if found else "") == tensor.op
            if found is not None:
                assert (
                    tensor.where.startswith(found.path)
                    and (found.name if found.outputs else found.type) == tensor.op_row.name
                )
        assert list(opened.functions.values()) == [opened.functions[name] for name in opened.functions]


# ------------------------------------------------------------------------------------------------------ random Programs


@settings(PROFILE)
@given(random_programs())
def test_random_programs(message):
    assert_same(view_of(message.SerializeToString()), message)


# ------------------------------------------------------------------------------------------------------- unusual bytes


@settings(FEWER)
@given(scrambled_programs())
def test_fields_in_any_order_and_in_pieces(data):
    assert_same(view_of(data), schema.Program.FromString(data))


def test_names_after_operations():
    """protobuf allows the outputs of a block, and its inputs, after its operations and between them."""
    op = field(
        3, field(1, "relu") + field(2, field(1, "x") + field(2, field(1, field(1, "b")))) + field(3, field(1, "a"))
    )
    block = field(2, "first") + field(1, field(1, "a")) + op + field(2, "a") + op + field(1, field(1, "b"))
    data = field(2, field(1, "main") + field(2, field(2, "CoreML7") + field(3, field(1, "CoreML7") + field(2, block))))
    view = view_of(data)
    (body,) = view.functions["main"].blocks.values()
    assert [v.name for v in body.inputs] == ["a", "b"] and body.outputs == ("first", "a") and len(body.operations) == 2
    assert_same(view, schema.Program.FromString(data))


# ------------------------------------------------------------------------------------------------------------ the objects


def nested_program():
    """main(x): a = relu(x); if (p) {b = a; s = b} else {s = add(x, s?)}, with one name in both blocks."""
    message, block = new_program()
    message.functions["main"].inputs.add(name="x")
    add_const(block, "w", np.arange(12))
    add_op(block, "relu", "a", x="x")
    cond = add_op(block, "cond", "r", pred="a")
    for number, reads in enumerate(("a", "x")):
        inner = cond.blocks.add()
        add_op(inner, "add", "s", x=reads, y=["w", [1.0, 2.0]])
        add_op(inner, "mul", f"t{number}", x="s", y="nobody")
        inner.outputs.append("s")
    add_op(block, "identity", "s", x="r")
    block.outputs.append("s")
    return message


def test_scope():
    view = view_of(nested_program().SerializeToString())
    main = view.functions["main"]
    relu, cond = view.find(type="relu")[0], view.find("r")[0]
    first, second = cond.blocks
    assert [op.name for op in main.walk()] == ["w", "a", "r", "s", "t0", "s", "t1", "s"]
    assert [op.name for op in main.block.operations] == ["w", "a", "r", "s"]
    assert first.operations[1].inputs["x"][0].definition == first.operations[0]
    assert second.operations[1].inputs["x"][0].definition == second.operations[0]
    assert first.operations[0] != second.operations[0]
    assert first.defining("a") == relu and first.defining("x") == main and second.defining("nobody") is None
    assert main.block.defining("s") == main.block.operations[-1] and main.block.defining("t0") is None
    assert [(c.reader, c.parameter) for c in relu.consumers] == [(cond, "pred"), (first.operations[0], "x")]
    assert [c.reader for c in first.operations[0].consumers] == [first.operations[1], first]
    assert [c.reader for c in main.block.operations[-1].consumers] == [main.block]
    (name, value) = first.operations[0].inputs["y"]
    assert (name.name, name.value) == ("w", None) and value.name is None and value.definition is None
    assert (
        value.value.read().tolist() == [1.0, 2.0]
        and value.path == "main.block['CoreML8'].op[2] 'r'.block[0].op[0] 's'.y"
    )
    assert first.parent == main.block and first.operation == cond and first.number == 0 and main.block.parent is None
    assert first.function == main == cond.function and len({main, cond, first, second, relu, relu}) == 5


def test_statements_are_those_of_a_walk():
    view = view_of(nested_program().SerializeToString())
    for block, nested in ((view.functions["main"].block, True), (view.find(type="cond")[0].blocks[1], False)):
        listed = [(s.type, s.outputs, dict(s.inputs)) for s in block.statements(nested=nested)]
        assert listed == [
            (op.type, op.output_names, {key: tuple(b.name for b in bindings) for key, bindings in op.inputs.items()})
            for op in (block.walk() if nested else block.operations)
        ]
        assert len(listed) == (8 if nested else 2)


def test_operations_are_a_sequence():
    view = view_of(nested_program().SerializeToString())
    operations = view.functions["main"].block.operations
    assert len(operations) == 4 and operations[-1].index == 3 and operations[1:3] == [operations[1], operations[2]]
    assert operations[2] in operations and next(reversed(operations)) == operations[3]
    with pytest.raises(IndexError):
        operations[4]


def test_find():
    with milblob.open(as_model(nested_program())) as opened:
        assert [op.name for op in opened.find(type="add")] == ["s", "s"]
        assert [op.type for op in opened.find("s")] == ["add", "add", "identity"]
        assert [op.name for op in opened.find(["t*", "r"], type=lambda kind: kind != "relu")] == ["r", "t0", "t1"]
        assert opened.find("no") == [] and len(opened.find()) == 8
        with pytest.raises(TypeError, match="select: expected"):
            opened.find(type=3)


def test_functions_are_a_mapping():
    message, _ = new_program("beta", "alpha")
    opened = milblob.open(as_model(message))
    functions = opened.functions
    assert isinstance(functions, Mapping) and list(functions) == ["alpha", "beta"] and len(functions) == 2
    assert functions["beta"].name == "beta" == str(functions["beta"]) and "alpha" in functions
    assert [(name, found.opset) for name, found in functions.items()] == [("alpha", "CoreML8"), ("beta", "CoreML8")]
    assert repr(functions) == "<Functions: alpha, beta>" and functions.get("gamma") is None
    with pytest.raises(KeyError, match="the model has no function 'gamma' .it has alpha, beta"):
        functions["gamma"]
    with (
        milblob.open(load_case("blob_all_dtypes").path()) as weights,
        pytest.raises(KeyError, match="has no function 'main'"),
    ):
        weights.functions["main"]


@pytest.mark.parametrize("name", ["constexpr_ios16", "constexpr_ios18", "opset_ios16_fp16"])
def test_bindings_give_the_values_of_constants(name):
    """Those of a compressed weight are decoded, as `Tensor.read` decodes them, also after the model is gone."""
    with milblob.open(load_case(name).path(), constants=True) as opened:
        tensors = [t for t in opened.values() if t.operation and (t.chain or t.constant.key == "val")]
        expected = {(t.operation.path, t.chain.output if t.chain else 0): t.read() for t in tensors}
    operations = milblob.open(load_case(name).path()).find()
    decoded = set()
    for op in operations:
        for parameter, bindings in op.inputs.items():
            for binding in bindings:
                source = binding.definition
                if not isinstance(source, Operation) or not (
                    source.type.startswith("constexpr_") or source.type == "const"
                ):
                    continue
                number = source.output_names.index(binding.name)
                if (found := expected.get((source.path, number))) is not None:
                    array = binding.array()
                    assert array.dtype == found.dtype and (array == found).all()
                    assert len(bindings) > 1 or op[parameter] == binding
                    decoded.add(source.type)
    assert any(kind.startswith("constexpr_" if "constexpr" in name else "const") for kind in decoded)


def test_bindings_without_one_constant():
    opened = milblob.open(load_case("opset_ios16_fp16").path())
    conv = next(
        op for op in opened.find() if any(b.constant is None and b.name for bs in op.inputs.values() for b in bs)
    )
    computed = next(key for key, (first, *_) in conv.inputs.items() if first.constant is None)
    with pytest.raises(ValueError, match="expected a constant, got"):
        conv.inputs[computed][0].array()
    with pytest.raises(KeyError, match="expected one of .*, got 'nonsense'"):
        conv["nonsense"]
    (loop,) = milblob.open(load_case("control_flow").path()).find(type="while_loop")
    with pytest.raises(ValueError, match=r"loop_vars of .*: expected one binding, got \d+ \(use inputs\)"):
        loop["loop_vars"]


def test_bindings_of_a_closed_model():
    with milblob.open(load_case("constexpr_ios18").path()) as opened:
        found = [b for op in opened.find() for bs in op.inputs.values() for b in bs]
        (first, *_) = [b for b in found if b.name and b.definition and b.definition.name and _is_decoded(b)]
        first.array()
    with pytest.raises(ValueError, match="I/O operation on closed model"):
        first.array()


def _is_decoded(binding):
    return isinstance(binding.definition, Operation) and binding.definition.type.startswith("constexpr_")


def test_a_block_for_another_opset():
    message, _ = new_program()
    message.functions["main"].opset = "CoreML9"
    function = view_of(message.SerializeToString()).functions["main"]
    assert list(function.blocks) == ["CoreML8"]
    with pytest.raises(milblob.FormatError, match="expected one for the opset CoreML9, got CoreML8"):
        function.block  # noqa: B018


def test_a_closed_model():
    opened = milblob.open(load_case("opset_ios16_fp16").path())
    functions = opened.functions
    main = functions["main"]
    op = opened.find(type="const")[0]
    (key, value), *_ = op.attributes.items()
    binding = next(b for o in main.walk() for bindings in o.inputs.values() for b in bindings)
    opened.close()
    for use in (
        lambda: main.name, lambda: main.inputs, lambda: op.type, lambda: op.name, lambda: op.attributes, lambda: op.path,
        lambda: value.type, lambda: value.array(), lambda: value.doc_string, lambda: binding.name, lambda: functions["main"],
        lambda: binding.definition, lambda: op.consumers, lambda: main.blocks, lambda: list(main.walk()), opened.find,
        lambda: main.block.statements(), lambda: opened.views,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="I/O operation on closed model"):
            use()
    assert key and binding.row == 0


def test_arrays_are_views_and_outlive_the_model():
    with milblob.open(load_case("opset_ios16_fp16").path()) as opened:
        name, tensor = next((n, t) for n, t in opened.items() if t.is_blob and t.op == "const")
        value = tensor.operation.attributes["val"]
        array = value.array()
        assert value.blob.offset == tensor.offset and value.kind == "blob" and not array.flags.owndata
        assert np.shares_memory(array, tensor.read()) and str(value.type).startswith("tensor<fp16, [")
        expected = tensor.read().tobytes()
    assert array.tobytes() == expected and name


def test_values_in_a_weight_file_need_a_model():
    with milblob.open(load_case("opset_ios16_fp16").path()) as opened:
        program_ = opened.parts[0].scan
        view = ProgramView(program_.buffer, program_.span)
        value = next(v for op in view.operations() for v in op.attributes.values() if v.kind == "blob")
        with pytest.raises(milblob.ResolveError, match="expected a model to find the file"):
            value.array()
        assert value.blob.file_name.startswith("@model_path/")


def test_objects_of_the_view_are_not_made_by_hand():
    for kind in (Operation, Operation.inputs.__objclass__):
        with pytest.raises(TypeError, match="expected to be made by a Block"):
            kind().type  # noqa: B018
    assert issubclass(Function, object) and issubclass(Block, object)


# ------------------------------------------------------------------------------------------------------------------ types

TYPES = [
    (TensorType(milblob.DType.FLOAT16, (1, None, 64), 3), "tensor<fp16, [1, ?, 64]>"),
    (TensorType(milblob.DType.STRING), "string"),
    (TensorType(milblob.DType.INT32, (0,), 1), "tensor<int32, [0]>"),
    (TensorType(milblob.DType.INT32, (None,), -1, (0,)), "tensor<int32, [...]>"),
    (TensorType(99, (2,), 1), "tensor<type_99, [2]>"),
    (ListType(TensorType(milblob.DType.STRING), None), "list<string, ?>"),
    (ListType(TensorType(milblob.DType.BOOL), 3), "list<bool, 3>"),
    (TupleType((TensorType(milblob.DType.UINT4, (2,), 1), StateType(TensorType(milblob.DType.FLOAT32)))), "tuple<tensor<uint4, [2]>, state<fp32>>"),
    (DictionaryType(TensorType(milblob.DType.STRING), TensorType(milblob.DType.INT64)), "dict<string, int64>"),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "text"), TYPES)
def test_types_print_as_mil_text(type_, text):
    assert str(type_) == text and hash(type_) == hash(type_) and type_ == type_
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(type_, dataclasses.fields(type_)[0].name, 7)


# --------------------------------------------------------------------------------------------------------------- hostile


def everything(data):
    """All that a view of these bytes says."""
    view = view_of(data)
    said = view_program(view)
    return said, [(view_uses(f), view_consumers(f)) for f in view.functions.values()]


def in_block(block):
    return field(2, field(1, "main") + field(2, field(2, "CoreML7") + field(3, field(1, "CoreML7") + field(2, block))))


def deep(count, wrap, core=b""):
    for _ in range(count):
        core = wrap(core)
    return core


REFUSED = [
    (in_block(deep(5000, lambda inner: field(3, field(4, inner)))), "nested blocks: expected at most 200"),
    (in_block(field(3, field(3, field(1, "a") + field(2, deep(150, lambda inner: field(5, field(1, inner))))))), "types: expected at most 100"),
    (in_block(field(3, field(1, b"\xff"))), "text: expected UTF-8"),
    (in_block(field(3, field(3, field(1, b"\xc0\x80")))), "text: expected UTF-8"),
    (in_block(field(2, b"\xfe")), "text: expected UTF-8"),
    (in_block(field(3, field(2, field(1, b"\xfe") + field(2, field(1, field(1, "a")))))), "text: expected UTF-8"),
    (in_block(field(3, field(5, field(1, b"\xfe")))), "text: expected UTF-8"),
    (field(2, field(1, b"\xfe")), "text: expected UTF-8"),
    (in_block(b"\x18\x01"), "field of Block: expected wire type 2, got 0"),
    (in_block(field(3, b"\x08\x01")), "field of Operation: expected wire type 2, got 0"),
    (in_block(field(3, b"\x12\x05\x0a")), "length prefix: expected 5 bytes, got 1"),
    (in_block(field(3, field(3, b"\x10\x01"))), "type of an input or output: expected wire type 2"),
    (in_block(field(3, field(3, field(2, field(1, b"\x0a\x01a"))))), "field of TensorType: expected wire type 0, got 2"),
    (in_block(field(3, field(5, field(1, "a") + field(2, b"\x10\x01")))), "member of Value: expected wire type 2, got 0"),
    (b"\x0a\x00", "version of the Program: expected wire type 0, got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "words"), REFUSED)
def test_hostile_bytes_are_refused_by_name(data, words):
    with pytest.raises(milblob.FormatError, match=words) as caught:
        everything(data)
    assert "\n" not in str(caught.value)


def test_a_name_that_reads_itself_and_a_name_defined_twice():
    message, block = new_program()
    add_op(block, "add", "a", x="b", y="a")
    add_op(block, "add", "b", x="a", y="b")
    add_op(block, "add", "a", x="a")
    view = view_of(message.SerializeToString())
    first, second, third = view.functions["main"].block.operations
    assert first.inputs["x"][0].definition == second and first.inputs["y"][0].definition == first
    assert third.inputs["x"][0].definition == first and third.consumers == ()
    assert_same(view, message)


def test_very_many_names_in_very_deep_blocks():
    """Each name is looked up once, however deep it stands."""
    leaf = b"".join(field(3, field(2, field(1, "x") + field(2, field(1, field(1, f"n{i}"))))) for i in range(20_000))
    data = in_block(deep(190, lambda inner: field(3, field(4, inner)), leaf))
    view = view_of(data)
    assert {view.graph.definer(row) for row in range(20_000)} == {-1} and view.graph.counts == (1, 191, 20_190)
    assert view_of(in_block(field(3, b"") * 100_000)).graph.counts[2] == 100_000
    with pytest.raises(milblob.FormatError, match="functions, blocks or operations: expected 1048575"):
        view_of(in_block(field(3, b"") * (1 << 20)))


STRINGS = [
    "docs",
    "key",
    "attribute",
    "value",
    "type",
    "argument",
    "binding",
    "output",
    "block",
    "function",
    "opset",
]


MANY = 100_001
"""Fields of one message, more than are listed at once anywhere: lists of fields end at 100,000."""


def test_messages_of_very_many_fields():
    """A block has one for each operation, a list for each item, a tuple for each member: as many as there are."""
    nested = field(4, field(3, operation("relu", "r")) * MANY + field(1, field(1, "x")))
    data = program(operation("cond", "c", blocks=nested), *[operation("relu")] * MANY)
    block = view_of(data).functions["main"].block
    assert block.attributes == {} and len(block.operations) == MANY + 1
    assert block.operations[0].blocks[0].attributes == {}
    assert milblob.diff(model(data), model(data)).is_same
    named = tensor_type(2, [])
    text = field(2, named) + field(3, field(1, field(4, field(1, "a"))))
    listed = field(2, field(2, field(1, named) + field(2, field(1, field(1, MANY))))) + list_value([text] * MANY)
    items = list(view_of(program(const(listed))).functions["main"].block.operations[0].attributes["val"].each_item())
    assert len(items) == MANY and items[-1].type == TensorType(milblob.DType.STRING, ())
    several = field(3, b"".join(field(1, field(1, field(1, 11))) for _ in range(MANY)))
    assert len(read_type(several).members) == MANY


def test_fields_come_in_turns():
    """Whatever is asked for at a time, they are those of the whole message."""
    data = b"".join(field(number, size) for number, size in [(1, 5), (2, b""), (3, b"abc"), (1, 300), (2, b"x" * 200)])
    buffer = _codec.Buffer(b"junk" + data * 3)
    whole = _codec.wire_fields(buffer, 4, 3 * len(data))
    for numbers in ({}, {1: 0}, {2: 2, 3: 2}, {1: 0, 2: 2, 3: 2, 9: 2}):
        for most in (1, 2, 4, 100):
            found, at = [], 4
            while at < buffer.nbytes:
                rows, after = _codec.next_fields(buffer, at, buffer.nbytes - at, numbers, most)
                assert len(rows) <= most and after > at
                found, at = found + rows, after
            assert found == [row for row in whole if row[0] in numbers]
    for cut in range(1, len(data)):
        try:
            expected = _codec.wire_fields(buffer, 4, cut)
        except milblob.FormatError as error:
            with pytest.raises(milblob.FormatError) as caught:
                _codec.next_fields(buffer, 4, cut, {1: 0})
            assert str(caught.value) == str(error)
        else:
            assert _codec.next_fields(buffer, 4, cut, {1: 0, 2: 2, 3: 2}) == (expected, 4 + cut)
    for offset, nbytes in ((0, buffer.nbytes + 1), (buffer.nbytes + 1, 0), (2**64 - 1, 2)):
        with pytest.raises((ValueError, milblob.FormatError)):
            _codec.next_fields(buffer, offset, nbytes, {1: 0})


@pytest.mark.parametrize("twice", STRINGS)
def test_a_string_that_comes_twice_is_the_last_one(twice):
    """As protobuf reads it; each string of the messages that a view reads, alone, for others may make protobuf merge all."""

    def string(name, number, text):
        return field(number, b"first") * (name == twice) + field(number, text)

    value = string("value", 1, b"of the value") + field(2, field(1, b"\x08\x0b"))
    binding = field(1, string("binding", 1, b"x"))
    op = string("type", 1, b"add") + field(2, string("argument", 1, b"x") + field(2, binding))
    op += field(3, string("output", 1, b"y")) + field(5, string("attribute", 1, b"name") + field(2, value))
    block = string("block", 1, b"CoreML7") + field(2, field(2, b"y") + field(3, op))
    function = string("function", 1, b"main") + field(2, string("opset", 2, b"CoreML7") + field(3, block))
    data = (
        field(2, function) + string("docs", 3, b"of the Program") + field(4, string("key", 1, b"k") + field(2, value))
    )
    message = schema.parse("Program", data)
    assert message.docString == "of the Program" and message.functions["main"].opset == "CoreML7"
    assert_same(view_of(data), message)


@settings(FEWER)
@given(random_programs(), st.data())
def test_broken_bytes_are_refused_or_read(message, data):
    whole = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if whole:
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for attempt in (bytes(whole), bytes(whole[:cut])):
        try:
            everything(attempt)
        except milblob.MilblobError as error:
            assert "\n" not in str(error)


def test_deep_values_and_types_end_in_an_error_of_ours():
    lists = deep(3000, lambda inner: field(3, field(3, field(1, inner))))
    with pytest.raises(milblob.FormatError, match="expected at most"):
        everything(in_block(field(3, field(5, field(1, "val") + field(2, lists)))))
    with pytest.raises(milblob.FormatError, match="types: expected at most 100"):
        read_type(deep(101, lambda inner: field(5, field(1, inner))))
    model_bytes = model(program(operation(attributes=[("val", lists)])))
    with pytest.raises(milblob.FormatError):
        milblob.open(model_bytes)
