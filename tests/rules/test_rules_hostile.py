"""Rules over random, broken and hostile Programs: findings or our exceptions, the same by the fast way and the slow one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milblob
from cases import DATA
from hostile_bytes import const, field, immediate, list_value, operation, program, tensor_type
from milblob import _codec
from milblob.program import schema
from milblob.program.view import ProgramView
from milblob.rules.catalog import RULES
from milblob.rules.program_rules import breaches
from milblob.rules.value_rules import value_breaches
from protobuf_programs import add_op, new_program, set_type
from random_programs import random_programs, scrambled_programs
from reference import write_varint
from sound_models import sound_model
from thorough import PROFILE, sized


def view_of(data):
    return ProgramView(_codec.Buffer(data), (0, len(data)))


def told(found):
    """Breaches without what depends on the order of maps: which entry comes first."""
    shown = {"MIL007": lambda b: (), "MIL031": lambda b: (b.where,)}
    return {(b.rule, *shown.get(b.rule, lambda b: (b.message, b.where))(b)) for b in found}


@settings(PROFILE)
@given(random_programs())
def test_random_programs(message):
    found = list(breaches(view_of(message.SerializeToString())))
    assert {breach.rule for breach in found} <= set(RULES)
    for breach in found:
        assert "\n" not in breach.message and ": expected " in breach.message and len(breach.message) < 600


@settings(PROFILE)
@given(random_programs())
def test_values_that_c_passes_break_nothing(message):
    """What is passed by a look at its head is what a look at all of it passes."""
    view = view_of(message.SerializeToString())
    found = {(breach.rule, breach.message) for breach in breaches(view)}
    for op in view.operations():
        values = [*op.attributes.values(), *(b.value for bound in op.inputs.values() for b in bound if b.is_value)]
        assert {(b.rule, b.message) for value in values for b in value_breaches(value)} <= found


FIELDS = ("floats", "ints", "bools", "strings", "longInts", "doubles", "bytes")
NUMBERS = [0, 1, -1, 255, 32767, 32768, 65535, 65536, -32768, -32769, 2**31 - 1, -(2**31)]


def every_tensor():
    """Yield Values of every data type in every field, with as many elements as the type says, or another number."""
    for code in [0, 99, *schema.DATA_TYPES]:
        for name in FIELDS:
            for shape, count in (((2, 3), 6), ((2, 3), 5), ((), 1), ((0,), 0), ((4,), 1), ((1 << 40, 1 << 40), 6)):
                value = schema.Value()
                set_type(value.type, code, shape)
                field_of = getattr(value.immediateValue.tensor, name)
                field_of.SetInParent()
                if name == "bytes":
                    field_of.values = bytes(count)
                elif name == "strings":
                    field_of.values.extend(["ä"] * count)
                else:
                    field_of.values.extend([1] * count)
                yield value
    for code in schema.DATA_TYPES:
        for number in NUMBERS:
            value = schema.Value()
            set_type(value.type, code, ())
            value.immediateValue.tensor.ints.values.append(number)
            yield value
        value = schema.Value()
        set_type(value.type, code, (3,))
        value.blobFileValue.fileName = "w"
        yield value


def test_c_passes_what_python_finds_sound_and_nothing_else():
    passed = 0
    for value in every_tensor():
        message, block = new_program()
        block.operations.add(type="const").attributes["val"].CopyFrom(value)
        view = view_of(message.SerializeToString())
        (op,) = view.operations()
        found = list(value_breaches(op.attributes["val"]))
        if not view.graph.facts(op.row)[4]:  # no value is in doubt
            assert found == [], value
            passed += 1
    assert passed > 60


@settings(PROFILE)
@given(scrambled_programs())
def test_fields_in_any_order_and_in_pieces(data):
    whole = schema.Program.FromString(data).SerializeToString()
    assert told(breaches(view_of(data))) == told(breaches(view_of(whole)))


def test_of_an_attribute_that_comes_twice_the_last_one_is_judged():
    """As protobuf has it: the first one, here without a type, does not count."""
    sound = immediate(11, (1,), field(1, field(1, b"\0" * 4)))
    twice = program(
        operation("const", "w", [("val", field(3, b"")), ("val", sound)], output_type=tensor_type(11, (1,)))
    )
    whole = schema.Program.FromString(twice).SerializeToString()
    assert len(whole) < len(twice)
    assert told(breaches(view_of(twice))) == told(breaches(view_of(whole))) == set()


@settings(PROFILE)
@given(st.integers(0, 1 << 32))
def test_sound_bytes_changed_anywhere(seed):
    draw = random.Random(seed)
    data = bytearray(sound_model().mlProgram.SerializeToString(deterministic=True))
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(data))
        data[at] = draw.choice([0, 0x7F, 0xFF, data[at] ^ 1 << draw.randrange(8)])
    try:
        for breach in breaches(view_of(bytes(data))):
            assert breach.rule in RULES
    except milblob.MilblobError:
        pass


@pytest.mark.parametrize(
    "name", ["control_flow", "constexpr_ios18", "lists", "states", "flexible", "classifier_strings"]
)
def test_real_models_changed_anywhere(name, tmp_path):
    """The description too: `check` itself raises nothing."""
    model = next((DATA / name).rglob("*.mlmodel"))
    data, draw = model.read_bytes(), random.Random(7)
    for _ in range(sized(60, 3000)):
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(data))] = draw.randrange(256)
        milblob.check(bytes(changed))


def test_names_in_circles():
    message, block = new_program()
    for i in range(300):
        add_op(block, "relu", f"r{i}", x=f"r{(i + 1) % 300}")
    add_op(block, "relu", "self", x="self")
    found = list(breaches(view_of(message.SerializeToString())))
    assert {breach.rule for breach in found} == {"MIL004"} and len(found) == 300


def test_blocks_as_deep_as_they_may_be():
    block = b""
    for _ in range(90):
        block = field(3, operation("cond", "c", blocks=field(4, block), output_type=tensor_type(11, [1]))) + field(
            2, "c"
        )
    whole = field(1, 1) + field(
        2, field(1, "main") + field(2, field(2, "CoreML7") + field(3, field(1, "CoreML7") + field(2, block)))
    )
    found = list(breaches(view_of(whole)))
    assert {"MIL033", "MIL027"} == {breach.rule for breach in found}
    assert max(len(breach.where) for breach in found) < 1000


def nested(depth, number):
    data = tensor_type(11, [1])
    for _ in range(depth):
        data = field(number, field(1, data))
    return data


@pytest.mark.parametrize("number", [2, 3, 5])
def test_types_in_types(number):
    list(breaches(view_of(program(operation("relu", "w", output_type=nested(90, number))))))
    with pytest.raises(milblob.FormatError, match="levels of nesting"):
        list(breaches(view_of(program(operation("relu", "w", output_type=nested(120, number))))))


def lists(depth):
    """A Value of lists in lists, each with its type."""
    declared, value = tensor_type(11, [0]), b""
    value = field(2, declared) + field(3, field(1, b""))
    for _ in range(depth):
        declared = field(2, field(1, declared) + field(2, field(1, field(1, 1))))
        value = field(2, declared) + list_value([value])
    return value


def test_values_in_values():
    assert list(breaches(view_of(program(const(lists(60)))))) == []
    with pytest.raises(milblob.FormatError, match="levels of nesting"):
        list(breaches(view_of(program(const(lists(120))))))


def test_many_of_everything():
    """Each of these took minutes if a step looked at all the others."""
    count = sized(5_000, 200_000)
    outputs = b"".join(field(3, field(1, f"o{i}")) for i in range(count))
    returned = b"".join(field(2, f"o{i}") for i in range(count))
    block = field(3, field(1, "add") + outputs) + returned
    blocks = b"".join(field(3, field(1, key) + field(2, block)) for key in ("CoreML7", "CoreML8"))
    whole = field(1, 1) + field(2, field(1, "main") + field(2, field(2, "CoreML7") + blocks))
    found = list(breaches(view_of(whole)))
    assert sum(breach.rule == "MIL008" for breach in found) == 2 * count
    arguments = b"".join(field(2, field(1, f"k{i}") + field(2, field(1, field(1, "x")))) for i in range(count))
    found = list(breaches(view_of(program(operation("add", "w", inputs=arguments)))))
    assert sum(breach.rule == "MIL025" for breach in found) == count
    classes = list_value([field(2, tensor_type(2, [])) + field(3, field(1, field(4, field(1, "a"))))] * count)
    sound = field(2, field(2, field(1, tensor_type(2, [])) + field(2, field(1, field(1, count))))) + classes
    assert {b.rule for b in breaches(view_of(program(const(sound))))} == set()
    unsound = field(2, field(3, b"".join(field(1, tensor_type(11, [1])) for _ in range(count)))) + classes
    assert {b.rule for b in breaches(view_of(program(const(unsound))))} == {"MIL015"}


def test_large_types_that_are_used_often():
    """Each of these looked at the type anew for every use of its name."""
    count = sized(3_000, 100_000)
    large = field(3, b"".join(field(1, tensor_type(11, [1])) for _ in range(count)))
    taken = field(1, field(1, "x") + field(2, large))
    bound = field(2, field(1, "x") + field(2, field(1, field(1, "x"))))
    ops = b"".join(
        field(3, operation("relu", f"r{i}", inputs=bound, output_type=tensor_type(11, [i]))) for i in range(count)
    )
    block = field(3, field(1, "CoreML7") + field(2, ops))
    whole = field(1, 1) + field(2, field(1, "main") + field(2, taken + field(2, "CoreML7") + block))
    found = list(breaches(view_of(whole)))
    assert sum(breach.rule == "MIL028" for breach in found) == count and max(len(b.message) for b in found) < 400
    several = field(2, field(1, "loop_vars") + field(2, field(1, field(1, "x")) * count))
    inner = field(4, b"".join(field(2, "x") for _ in range(count))) * 2
    returned = b"".join(field(3, field(1, f"o{i}") + field(2, tensor_type(11, [1]))) for i in range(count))
    block = field(3, field(1, "CoreML7") + field(2, field(3, field(1, "while_loop") + several + returned + inner)))
    whole = field(1, 1) + field(2, field(1, "main") + field(2, taken + field(2, "CoreML7") + block))
    assert {breach.rule for breach in breaches(view_of(whole))} == {"MIL034"}
    # A list whose elements have their type from it alone.
    listed = field(2, field(2, field(1, large) + field(2, field(1, field(1, count))))) + list_value([b""] * count)
    assert {breach.rule for breach in breaches(view_of(program(const(listed))))} == {"MIL013"}
    many = field(3, b"".join(field(1, field(1, field(1, 1000 + i))) for i in range(count)))
    found = list(breaches(view_of(program(operation("relu", "w", output_type=field(2, field(1, many)))))))
    assert 20 <= sum(breach.rule == "MIL009" for breach in found) < 50


HUGE = [2**20 + 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def typed(shape):
    return tensor_type(11, shape)


def integers(*values):
    """A const operation of int32 values, and the binding of its name."""
    shape = [] if len(values) == 1 else [len(values)]
    packed = field(2, field(1, b"".join(write_varint(value % 2**64) for value in values)))
    return immediate(23, shape, packed)


def judged(kind, inputs, arguments, outputs=None):
    """The rules that one operation breaks; inputs: of its function, name -> type; arguments: parameter -> name or Value."""
    taken = b"".join(field(1, field(1, name) + field(2, stated)) for name, stated in inputs.items())
    bound = b""
    for key, argument in arguments.items():
        binding = field(1, argument) if isinstance(argument, str) else field(2, argument)
        bound += field(2, field(1, key) + field(2, field(1, binding)))
    made = b"".join(field(3, field(1, f"y{i}") + field(2, stated)) for i, stated in enumerate(outputs or [typed([1])]))
    block = field(3, field(1, "CoreML8") + field(2, field(3, field(1, kind) + bound + made)))
    whole = field(1, 1) + field(2, field(1, "main") + field(2, taken + field(2, "CoreML8") + block))
    found = list(breaches(view_of(whole)))
    assert all(len(breach.message) < 600 for breach in found)
    return {breach.rule for breach in found}


@pytest.mark.parametrize("size", HUGE)
def test_counts_that_a_few_bytes_ask_for(size):
    """Each of these made as many dimensions or outputs, or numbers of more digits than Python prints."""
    shape = tensor_type(23, [size])
    assert judged("reshape", {"x": typed([4]), "n": shape}, {"x": "x", "shape": "n"}) == set()
    assert judged("fill", {"n": shape}, {"shape": "n"}) == set()
    for kind, keys in (("random_uniform", ("low", "high")), ("random_normal", ("mean", "stddev"))):
        numbers = {key: immediate(11, [], field(1, field(1, b"\0\0\0\0"))) for key in keys}
        assert judged(kind, {"n": shape}, {"shape": "n", **numbers}) == set()
    count = integers(min(size, 2**31 - 1))
    assert judged("split", {"x": typed([2, 3])}, {"x": "x", "num_splits": count, "axis": integers(0)}) == set()
    axis = integers(1)
    long = typed([size] * 400)
    flat = (typed([2, 2]),)
    assert judged("flatten2d", {"x": long}, {"x": "x", "axis": axis}, flat) == {"MIL050"}
    assert judged("flatten2d", {"x": long}, {"x": "x", "axis": integers(300)}, flat) == set()
    assert judged("reshape", {"x": long}, {"x": "x", "shape": integers(-1, 1)}, flat) == {"MIL050"}


@pytest.mark.parametrize("size", HUGE)
def test_slices_of_huge_dimensions(size):
    """The length of a range ends at 2**63."""
    sliced = {
        "x": "x",
        "begin": integers(1, 0),
        "end": integers(0, 0),
        "end_mask": immediate(1, [2], field(3, field(1, b"\1\1"))),
    }
    inputs = {"x": typed([size, 3])}
    assert judged("slice_by_index", inputs, sliced, (typed([size - 1, 3]),)) == set()
    assert judged("slice_by_index", inputs, sliced, (typed([size - 2, 3]),)) == {"MIL050"}


def test_many_dimensions_take_no_longer_than_they_are_long():
    """Products that grew with each took half a minute of these."""
    count = 100_000
    assert judged("flatten2d", {"x": typed([2**64 - 1] * count)}, {"x": "x", "axis": integers(count)}) == {"MIL050"}
