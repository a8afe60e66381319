"""Bundles that were made to hurt: for any bytes, a tensor or one of milblob's own errors, soon."""

import random

import pytest

import milblob
import mlir_bytes as m
from bundles import FOLDER
from milblob import FormatError, UnsupportedError
from milblob.aimodel import Asset, codes
from thorough import sized


def use(data):
    """Open bytes and ask for everything."""
    for options in ({}, {"constants": True, "stored": True}):
        with Asset(bytes(data), max_nbytes=1 << 24, **options) as asset:
            for tensor in asset.values():
                try:
                    tensor.read()
                    tensor.compression, tensor.label, tensor.consumers, tensor.parts, tensor.stored_pieces()
                except milblob.MilblobError:
                    continue


def small_bundles():
    return [
        m.file(),
        *(
            (FOLDER / f"{name}.aimodel" / "main.mlirb").read_bytes()
            for name in ("bare_f16_palette4_scaled", "states_f32")
        ),
    ]


def test_every_truncation_is_refused():
    for data in small_bundles():
        for end in range(0, len(data), 1 if len(data) < 1000 else sized(7, 1)):
            with pytest.raises((FormatError, UnsupportedError)):
                use(data[:end])


def test_changed_bytes_give_a_tensor_or_an_error():
    source, found = random.Random(30), 0
    seeds = small_bundles()
    for number in range(sized(1500, 100_000)):
        data = bytearray(seeds[number % len(seeds)])
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(data))
            kind = source.random()
            if kind < 0.6:
                data[at] = source.randrange(256)
            elif kind < 0.8:
                del data[at : at + source.randrange(1, 5)]
            else:
                data[at:at] = source.randbytes(source.randrange(1, 4))
        try:
            use(data)
            found += 1
        except milblob.MilblobError:
            continue
    assert found > 50


def test_a_state_of_a_type_that_is_not_there_is_refused():
    data = bytearray((FOLDER / "states_f32.aimodel" / "main.mlirb").read_bytes())
    with Asset(bytes(data)) as asset:
        code = asset.opened.program.bytecode
        handles = [
            int(code.types["offset"][n]) for n in range(len(code.types)) if code.type_numbers(n)[0] == codes.HANDLE
        ]
    data[handles[0] + 1] = 0xFF  # the number 127, in one byte
    with pytest.raises(FormatError, match=r"type: expected a number below \d+, got 127"):
        use(data)


def nested(depth, is_isolated=True):
    """Operations inside each other."""
    inner = m.op(m.CONSTANT, properties=1, results=(0,))
    for number in range(depth):
        regions = m.region(number == 0, m.block(inner))
        inner = m.op(m.ASSET, regions=m.section(4, regions) if is_isolated else regions, is_isolated=is_isolated)
    return m.file(ir=m.block(inner))


@pytest.mark.parametrize("is_isolated", [True, False])
def test_deep_nesting_is_refused_without_recursion(is_isolated):
    with Asset(nested(150, is_isolated)) as asset:
        assert len(asset) == 0
    with pytest.raises(FormatError, match="at most 200 levels of nesting"):
        Asset(nested(5000, is_isolated))


HUGE = (1 << 64) - 1


@pytest.mark.every
@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "expected MLIR bytecode"),
        (b"ML\xefR", "version of MLIR bytecode"),
        (b"ML\xefR\x0dMLIR", "producer"),
        (m.file() + b"\x09\x01", "expected an id of 0 to 8"),
        (m.file() + m.section(0, m.strings()), "expected each id once"),
        (m.file(parts={4: None}), "expected 0, 1, 2, 3 and 4, but without"),
        (m.file(parts={6: m.varint(0)}), "expected 5 and 6 together"),
        (m.file(parts={0: m.varint(HUGE)}), "strings: expected"),
        (m.file(parts={0: m.varint(9) + m.varint(HUGE) + m.varint(2) * 8 + b"a\0" * 8}), "length of string"),
        (m.file(parts={0: m.varint(9) + m.varint(0) + m.varint(2) * 8 + b"a\0" * 8}), "length of string"),
        (m.file(parts={0: m.strings(*m.TEXTS)[:-1] + b"x"}), "end of string"),
        (m.file(parts={3: m.varint(HUGE) + m.varint(1)}), "attributes"),
        (m.file(parts={3: m.offsets() + b"\1"}), "offsets of attributes"),
        (m.file(parts={2: b"".join(m.ATTRIBUTES)}), "attribute or type"),
        (m.file(parts={8: m.varint(1) + m.varint(HUGE)}), "properties"),
        (
            m.file(parts={5: b"", 6: m.varint(0) + m.varint(0) + m.varint(1) + m.varint(6) + m.varint(HUGE) + b"\0"}),
            "resource",
        ),
        (m.file(parts={5: b"", 6: m.varint(HUGE)}), "groups of external resources"),
        (m.file(ir=m.varint(HUGE - 1)), "name of operation"),
        (m.file(ir=m.block(m.op(m.CONSTANT, properties=99, results=(0,)))), "properties of operation"),
        (m.file(ir=m.block(m.op(m.OUTPUT, operands=(0,)))), "number of a value"),
        (m.file(ir=m.block(m.op(m.OUTPUT, results=(0,)))), "values of region"),
        (m.file(ir=m.block(m.op(m.ASSET, regions=m.section(4, m.region(3, m.block()))))), "values of region: expected"),
        (m.file(ir=m.block(m.op(m.ASSET, regions=m.section(2, m.region(0, m.block()))))), "expected id 4"),
        (m.file(ir=m.block(m.op(m.ASSET, regions=m.section(4, m.region(0, m.block()) + b"\1")))), "expected its end"),
        (m.file(ir=m.graph_ops() + b"\1\1"), "expected its end"),
        (m.file(ir=m.block(m.op(m.ASSET, mask=128))), "mask of operation"),
    ],
)
def test_what_contradicts_itself_is_refused(data, words):
    with pytest.raises((FormatError, UnsupportedError), match=words):
        use(data)


def test_resources_are_checked_against_their_section():
    with Asset(m.resource_file()) as asset:
        assert asset["#0"].read().tobytes() == m.VALUES and asset["#0"].offset % 16 == 0
    for data, words in (
        (m.resource_file(alignment=3), "expected a power of two"),
        (m.resource_file(shown=41), "bytes of resource"),
        (m.resource_file(padding=b"\xcc"), "padding: expected 0x000000cb"),
    ):
        with pytest.raises(FormatError, match=words):
            Asset(data)
    with Asset(m.resource_file(size=36)) as asset, pytest.raises(FormatError, match="expected 40, got 36"):
        asset["#0"].read()


def test_long_chains_and_shared_parts_take_no_long_time():
    """Thousands of casts of casts, and of weights that share one part: bounded, and each refused by its own read."""
    names = (
        *m.TEXTS,
        b"primitive.cast_v1",
        b"primitive.build_sparse_with_bitmask_v1",
        b"primitive.sparse_with_bitmask_to_dense_v1",
    )
    dialect = m.varint(1) + m.varint(1) + m.section(7, m.varint(2)) + m.varint(7) + m.varint(0) + m.varint(7)
    dialect += b"".join(m.varint(number << 1 | 1) for number in (1, 2, 3, 4, 9, 10, 11))
    count = 4000
    ops = [m.op(m.CONSTANT, properties=1, results=(0,)), m.op(5, results=(0,), operands=(1, 1))]
    ops += [m.op(4, results=(0,), operands=(number,)) for number in range(2, count)]
    ops += [m.op(6, results=(0,), operands=(2,)) for _ in range(count)]
    inner = m.region(2 * count + 1, m.block(*ops, arguments=(0,)))
    with Asset(m.file(texts=names, ir=m.graph_ops(inner=inner), parts={1: dialect})) as asset:
        assert len(asset) > count
        for tensor in list(asset.values())[-2:]:
            with pytest.raises(milblob.MilblobError):
                tensor.read()
