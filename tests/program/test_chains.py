"""What constexpr operations read, found in C: against dictionaries of names in Python; and what it takes to keep it."""

import tracemalloc

import pytest

import hostile_chains
import milblob
import random_chains
import reference_chains
from hostile_bytes import field, model, program, tensor_type
from milblob import _codec
from milblob.program.scan import Compressed, ProgramScan
from reference import write_varint
from thorough import sized

COUNT = sized(2_000, 5_000)


def linked(data, constants):
    """The Program of these bytes, or None where it is refused."""
    found = ProgramScan(_codec.Buffer(data), (0, len(data)), "", constants)
    try:
        found.link()
    except milblob.MilblobError:
        return None
    found.names()
    return found


def described(part):
    return (part.op.name, part.op.message, part.output) if isinstance(part, Compressed) else part.value


def check(data, constants):
    """Compare with the reference; return how many outputs there are, or -1 where they are refused."""
    flags = _codec.SCAN_ALL if constants else 0
    outputs, parts, ends, marked, shared, refused = reference_chains.chains_of(data, flags)
    found = linked(data, constants)
    assert (found is None) == (refused and bool(outputs))
    if found is None:
        return -1
    groups = found.groups
    assert [described(group) for group in groups] == outputs
    assert [described(end) for end in found.ends] == ends
    for group in groups:
        expected = parts[group.op.message]
        assert list(group.parts) == list(expected)
        for key, part in group.parts.items():
            assert described(part) == (expected[key] if isinstance(expected[key], tuple) else expected[key].value)
    scan = found.table
    constants = [scan.constant(row) for row in range(scan.total)]
    assert {c.value for c in constants if found.is_part(c)} == {c.value for c in marked}
    assert {c.value for c in constants if found.is_shared(c)} == {c.value for c in shared}
    assert {c.value for c in constants[len(scan) :]} <= {c.value for c in marked}
    return len(outputs)


@pytest.mark.parametrize("constants", [False, True])
def test_chains_of_random_programs(constants):
    counts = [check(random_chains.chained(seed), constants) for seed in range(300)]
    assert counts.count(-1) > 10 and sum(count > 3 for count in counts) > 100


@pytest.mark.parametrize(
    "operations",
    [
        hostile_chains.line(32),
        hostile_chains.line(33),
        hostile_chains.doubled(12),
        hostile_chains.lattice(3, 8),
        hostile_chains.lattice(6, 8),
        hostile_chains.fan(20, 10),
        hostile_chains.bindings(126, 3),
        hostile_chains.bindings(127, 3),
        hostile_chains.bindings(5000, 3),
        hostile_chains.circle(1),
        hostile_chains.circle(5),
        hostile_chains.circle(40),
    ],
    ids=lambda operations: str(len(operations)),
)
def test_chains_of_many_operations(operations):
    check(hostile_chains.program(*operations), False)


def blob(code, shape, offset):
    place = field(1, b"@model_path/weights/weight.bin") + b"\x10" + write_varint(offset)
    return field(2, tensor_type(code, shape)) + field(5, place)


def quantized(number):
    """A weight of two records, which no other weight has."""
    name = b"encoder_layers_%05d_weight" % number
    body = field(1, "constexpr_blockwise_shift_scale")
    body += field(3, field(1, name) + field(2, tensor_type(10, [64, 64])))
    for key, value in (
        ("data", blob(21, [64, 64], 64 + 8192 * number)),
        ("scale", blob(10, [64, 1], 4288 + 8192 * number)),
    ):
        body += field(5, field(1, key) + field(2, value))
    return body


@pytest.fixture(scope="module")
def many():
    return model(program(*map(quantized, range(COUNT)), opset="CoreML8"), 9)


def test_memory_of_compressed_weights_that_are_not_read(many):
    """The rows and names of a weight and of its two parts, and no object of any."""
    with milblob.open(many) as opened:
        assert opened["encoder_layers_00000_weight"].parts  # imports what it needs
    tracemalloc.start()
    try:
        with milblob.open(many) as opened:
            assert len(opened) == COUNT and opened["encoder_layers_00000_weight"].parts
            held, _ = tracemalloc.get_traced_memory()
            found = opened.parts[0].scan
            table = found.table.nbytes + found.names().nbytes + found.chains.nbytes
            assert (held + table) / COUNT < 300
            assert sum(1 for tensor in opened.values() if tensor.parts) == COUNT
            assert tracemalloc.get_traced_memory()[0] - held < 10 * COUNT, "a listing keeps nothing"
    finally:
        tracemalloc.stop()


def test_a_weight_is_equal_to_itself_made_again(many):
    with milblob.open(many) as opened, milblob.open(many) as other:
        name = "encoder_layers_00007_weight"
        first, again, elsewhere = opened[name].chain, opened[name].chain, other[name].chain
        assert first is not again and first == again and len({first, again}) == 1
        assert first != elsewhere and first != opened["encoder_layers_00008_weight"].chain and first != name
        assert first.parts == again.parts and first.parts.keys() == {"data", "scale"}
    assert [part.name for part in opened[name].parts.values()] == [f"{name}.data", f"{name}.scale"]
