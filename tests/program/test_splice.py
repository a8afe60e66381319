"""Replaced ranges against a slow oracle: a tree of fields that is changed and serialized again."""

import errno
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milblob
from hostile_bytes import FLOATS, const, field, immediate, model, program
from milblob import _codec
from milblob.program import schema
from milblob.program.splice import Edit, splice
from milblob.storage.mapped import MappedFile
from reference import write_varint
from thorough import PROFILE, some

LEVELS = 1400  # MB_SPLICE_DEPTH


def padded(value, more):
    """A varint with `more` redundant bytes, ten in all at most."""
    data = bytearray(write_varint(value))
    for _ in range(min(more, 10 - len(data))):
        data[-1] |= 0x80
        data.append(0)
    return bytes(data)


class Node:
    """One field. `content`: raw bytes after the tag, or the payload, or the fields of a message."""

    def __init__(self, rng, depth):
        self.number = rng.choice([1, 2, 3, 5, 502, (1 << 29) - 1])
        kinds = [0, 1, 2, 5] + ["message", "message", "group"] * (depth > 0)
        self.kind = rng.choice(kinds)
        more = rng.choice([0, 0, 0, 1, 2])
        self.padding = rng.choice([0, 0, 0, 1, 3, 9])
        self.payload = None  # new bytes for the whole payload
        if self.kind in ("message", "group"):
            self.content = Message(rng, depth - 1)
        else:
            self.content = {
                0: padded(rng.getrandbits(rng.choice([7, 32, 64])), more),
                1: rng.randbytes(8),
                5: rng.randbytes(4),
            }.get(self.kind, rng.randbytes(rng.choice([0, 1, 5, 126, 127, 128, 200])))
        wire = {"message": 2, "group": 3}.get(self.kind, self.kind)
        self.tag = padded(self.number << 3 | wire, 0 if more == 2 and self.number > 9 else more)
        self.end_tag = write_varint(self.number << 3 | 4) if wire == 3 else b""

    def old(self, at=0):
        """Serialize as it is, noting where the field and its payload lie."""
        self.offset, self.data = at, at + len(self.tag)
        body = self.content.old(0) if isinstance(self.content, Message) else self.content
        self.prefix = padded(len(body), self.padding) if self.kind in (2, "message") else b""
        self.data += len(self.prefix)
        if self.kind in ("message", "group"):
            self.content.old(self.data)
        self.nbytes = len(body)
        whole = self.tag + self.prefix + body + self.end_tag
        self.end = at + len(whole)
        return whole

    def new(self):
        if self.payload is not None:
            body = self.payload
        else:
            body = self.content.new() if isinstance(self.content, Message) else self.content
        prefix = self.prefix
        if prefix and len(body) != self.nbytes:
            prefix = write_varint(len(body))
        return self.tag + prefix + body + self.end_tag


class Message:
    """A list of fields, runs of which may be replaced: first index -> (end index, new bytes)."""

    def __init__(self, rng, depth):
        self.fields = [Node(rng, depth) for _ in range(rng.choice([0, 1, 2, 4, 7]))]
        self.runs = {}

    def old(self, at=0):
        parts = []
        for node in self.fields:
            parts.append(node.old(at))
            at += len(parts[-1])
        return b"".join(parts)

    def new(self):
        parts, index = [], 0
        while index < len(self.fields):
            if index in self.runs:
                index, data = self.runs[index]
                parts.append(data)
            else:
                parts.append(self.fields[index].new())
                index += 1
        return b"".join(parts)

    def choose(self, rng, chance):
        """Mark edits in this tree; yields them in order."""
        index = 0
        while index < len(self.fields):
            node = self.fields[index]
            if rng.random() < chance:
                end = rng.randint(index + 1, min(len(self.fields), index + 3))
                data = new_bytes(rng, self.fields[end - 1].end - node.offset)
                self.runs[index] = (end, data)
                yield Edit(node.offset, self.fields[end - 1].end - node.offset, data)
                index = end
                continue
            if node.kind in (2, "message") and node.nbytes and rng.random() < chance:
                node.payload = new_bytes(rng, node.nbytes)
                yield Edit(node.data, node.nbytes, node.payload)
            elif node.kind == "message":
                yield from node.content.choose(rng, chance)
            index += 1


def new_bytes(rng, old_nbytes):
    """As many bytes as before, or some lengths at which a prefix grows or shrinks."""
    return rng.randbytes(rng.choice([old_nbytes, 0, 1, 127, 128, 300, 16500]))


@settings(PROFILE)
@given(st.integers(0, 1 << 60), st.sampled_from([0.0, 0.05, 0.3]))
def test_random_trees(seed, chance):
    rng = random.Random(seed)
    tree = Message(rng, 6)
    head = rng.randbytes(rng.choice([0, 7]))
    old = tree.old(len(head))
    edits = list(tree.choose(rng, chance))
    expected = tree.new()
    rng.shuffle(edits)
    buffer = _codec.Buffer(head + old + b"\xff" * 3)  # what is around the message is not looked at
    result = splice(buffer, (len(head), len(old)), edits)
    assert result.tobytes() == expected
    assert result.nbytes == len(expected)
    if not edits:
        assert expected == old and result.pieces in ([], [(len(head), len(old))])


def test_no_edits_are_the_same_bytes():
    data = model(program(const(immediate(11, [10], FLOATS))))
    assert splice(_codec.Buffer(data), (0, len(data)), []).tobytes() == data


def span_of(data, part):
    assert data.count(part) == 1
    return data.index(part), len(part)


def test_lengths_around_a_value():
    """Each of the ten messages around a TensorValue counts it."""
    for count in (10, 30, 31, 32, 4000, 5000, 600_000):
        new = field(1, field(1, b"\1\2\3\4" * count))
        data = model(program(const(immediate(11, [10], FLOATS)), const(immediate(11, [10], FLOATS[:-1] + b"\1"), "v")))
        wanted = model(program(const(immediate(11, [10], new)), const(immediate(11, [10], FLOATS[:-1] + b"\1"), "v")))
        offset, nbytes = span_of(data, FLOATS)
        assert splice(_codec.Buffer(data), (0, len(data)), [Edit(offset, nbytes, new)]).tobytes() == wanted


def test_protobuf_reads_the_result():
    data = model(program(const(immediate(11, [10], FLOATS))))
    message = schema.parse("Model", data)
    (operation,) = message.mlProgram.functions["main"].block_specializations["CoreML7"].operations
    operation.attributes["val"].immediateValue.tensor.floats.values[:] = range(1000)
    operation.attributes["val"].docString = "later"
    value = operation.attributes["val"].SerializeToString()
    offset, nbytes = span_of(data, immediate(11, [10], FLOATS))
    result = splice(_codec.Buffer(data), (0, len(data)), [Edit(offset, nbytes, value)])
    assert schema.parse("Model", result.tobytes()) == message


def test_a_model_inside_a_buffer_and_edits_of_many_kinds():
    data = field(1, b"abc") + field(2, b"") + field(3, 7)
    buffer = _codec.Buffer(bytearray(b"\xff" + data + b"\xff"))
    span = (1, len(data))

    def edited(*edits):
        return splice(buffer, span, [Edit(*edit) for edit in edits]).tobytes()

    assert edited((3, 3, b"")) == field(1, b"") + data[5:]  # a payload that becomes empty keeps its field
    assert edited((1, 5, b"")) == data[5:]  # a field that goes
    assert edited((6, 2, field(2, b"x") + field(4, 1))) == data[:5] + field(2, b"x") + field(4, 1) + data[7:]
    assert edited((1, 9, b"")) == b""  # all of it
    assert edited((1, 5, memoryview(b"\x50\x07"))) == b"\x50\x07" + data[5:]
    assert edited((3, 3, bytearray(b"1")), (6, 2, b""), (8, 2, b"\x50\x07")) == field(1, b"1") + b"\x50\x07"


# ------------------------------------------------------------------------------------------------------------- hostile

DATA = field(1, b"abc") + field(2, field(1, 300) + field(2, b"xy")) + b"\x1b\x0a\x01a\x1c" + field(4, 7)
#      0 1 2..4           5 6  7 8 9           10 11 12..13    14   15 16 17 18    19 20


def refused(data, edits, words, span=None, offset=None):
    with pytest.raises(milblob.FormatError) as caught:
        splice(_codec.Buffer(data, "m.mlmodel"), span or (0, len(data)), [Edit(*edit) for edit in edits])
    assert words in str(caught.value)
    assert "in m.mlmodel" in str(caught.value)
    if offset is not None:
        assert caught.value.offset == offset


def test_every_range_that_is_none_is_refused():
    """All ranges of a small message: those on edges are taken, all others refused."""
    assert DATA[5:7] == b"\x12\x07" and DATA[14] == 0x1B and len(DATA) == 21
    edges = [0, 5, 14, 19, 21]
    good = {(a, b) for a in edges for b in edges if a < b}
    good |= {(2, 5), (7, 14), (7, 10), (10, 14), (12, 14)}
    for start in range(len(DATA) + 2):
        for end in range(start, len(DATA) + 3):
            if (start, end) in good:
                splice(_codec.Buffer(DATA), (0, len(DATA)), [Edit(start, end - start, b"")])
            else:
                with pytest.raises(milblob.FormatError, match=": expected "):
                    splice(_codec.Buffer(DATA), (0, len(DATA)), [Edit(start, end - start, b"")])


def test_messages_for_bad_ranges():
    edge = "range of an edit: expected the payload of a field or whole fields, got"
    refused(DATA, [(1, 1, b"")], f"{edge} 1 bytes that are neither at byte 1", offset=1)
    refused(DATA, [(13, 1, b"")], f"{edge} 1 bytes that are neither at byte 13", offset=13)
    refused(DATA, [(3, 1, b"")], "fixed-width field: expected 8 more bytes, got 2", offset=3)  # `abc` is no message
    refused(DATA, [(16, 1, b"")], edge, offset=16)  # inside a group
    refused(DATA, [(0, 0, b"x")], f"{edge} 0 bytes", offset=0)
    refused(DATA, [(12, 9, b"")], edge, offset=12)  # out of the message that it begins in
    refused(DATA, [(19, 3, b"")], "range of an edit: expected 3 bytes, got 2 before the end of the message", offset=19)
    refused(
        DATA, [(0, 14, b""), (7, 3, b"")], "range of an edit: expected to begin at byte 14 or later, got 7", offset=7
    )
    refused(DATA, [(2, 3, b""), (2, 3, b"")], "range of an edit: expected to begin at byte 5 or later, got 2", offset=2)
    refused(DATA, [(2, 3, b"")], "range of an edit: expected to begin at byte 5 or later, got 2", span=(5, 9))
    refused(DATA, [(19, 2, b"")], "range of an edit: expected 2 bytes, got 0 before", span=(5, 9))
    refused(DATA, [], "expected to lie inside the buffer", span=(5, 90))
    with pytest.raises(OverflowError):
        splice(_codec.Buffer(DATA), (0, len(DATA)), [Edit(-1, 3, b"")])
    with pytest.raises(TypeError):
        splice(_codec.Buffer(DATA), (0, len(DATA)), [Edit(2, 3, "text")])


def test_broken_messages_on_the_way():
    refused(b"\x0a\x05abc", [(2, 3, b"")], "length prefix: expected 5 bytes, got 3", offset=1)
    refused(b"\x0c" + DATA, [(3, 3, b"")], "wire type: expected 0 to 3 or 5, got 4", offset=0)
    refused(b"\x00\x01" + DATA, [(4, 3, b"")], "field number: expected 1 to", offset=0)
    refused(b"\x80" * 11 + DATA, [(13, 3, b"")], "varint: expected at most 10 bytes", offset=0)
    refused(b"\x0a\x03\x08\x80\x80" + DATA, [(2, 2, b"")], "varint: expected", offset=3)
    refused(b"\x0b\x0a\x01a\x14" + DATA, [(7, 3, b"")], "end of group: expected the field number of its start")
    refused(b"\x0a\x00" * 3 + b"\x0a", [(4, 3, b"")], "varint: expected 1 more bytes, got 0", offset=7)
    # What is broken beside the way stays as it is.
    data = field(1, b"\xff" * 9) + field(2, b"ab") + b"\x07"
    result = splice(_codec.Buffer(data), (0, len(data)), [Edit(13, 2, b"c")]).tobytes()
    assert result == field(1, b"\xff" * 9) + field(2, b"c") + b"\x07"


def test_truncations_give_a_result_or_an_error():
    data = model(program(const(immediate(11, [10], FLOATS))))
    offset, nbytes = span_of(data, FLOATS)
    for cut in range(len(data)):
        with pytest.raises(milblob.FormatError):
            splice(_codec.Buffer(data[:cut]), (0, cut), [Edit(offset, nbytes, b"")])


def nested(levels, core):
    for _ in range(levels):
        core = field(1, core)
    return core


def test_depth():
    """As deep as the scan goes: dictionaries in blocks. One level more is an error, not a crash."""
    for levels in (1, 500, LEVELS - 1):
        data = nested(levels, b"\x08\x01")
        result = splice(_codec.Buffer(data), (0, len(data)), [Edit(len(data) - 2, 2, b"\x08\x02" * 100)])
        assert result.tobytes() == nested(levels, b"\x08\x02" * 100)
    refused(
        nested(LEVELS, b"\x08\x01"),
        [(len(nested(LEVELS, b"\x08\x01")) - 2, 2, b"")],
        f"expected at most {LEVELS - 1} levels",
    )
    refused(nested(30_000, b"\x08\x01"), [(len(nested(30_000, b"\x08\x01")) - 2, 2, b"")], "messages around an edit")


def test_many_edits():
    """The table of prefixes grows; a thousand edits in a thousand messages, and again in one."""
    item = nested(30, field(3, b"abc"))
    data = field(1, item) * 1000
    edits = [Edit((i + 1) * len(field(1, item)) - 3, 3, b"xyz" * 50) for i in range(1000)]
    assert (
        splice(_codec.Buffer(data), (0, len(data)), edits).tobytes()
        == field(1, nested(30, field(3, b"xyz" * 50))) * 1000
    )
    data = field(1, b"abc") * 1000
    edits = [Edit(i * 5, 5, b"" if i % 2 else field(1, i)) for i in range(1000)]
    assert splice(_codec.Buffer(data), (0, len(data)), edits).tobytes() == b"".join(
        field(1, i) for i in range(0, 1000, 2)
    )


# -------------------------------------------------------------------------------------------------------------- writing


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A mapped file of 20 MiB around a small field: (mapping, edits, expected bytes)."""
    bulk = random.Random(1).randbytes(10 << 20)
    path = tmp_path_factory.mktemp("mapped") / "old"
    path.write_bytes(field(1, bulk) + field(2, b"old") + field(1, bulk))
    mapping = MappedFile(path)
    yield (
        mapping,
        [Edit(len(field(1, bulk)) + 2, 3, b"new one")],
        field(1, bulk) + field(2, b"new one") + field(1, bulk),
    )
    mapping.close()


def written(result, path, **options):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0))
    try:
        assert result.write_to(fd, **options) == result.nbytes
    finally:
        os.close(fd)
    return path.read_bytes()


def test_writing_through_the_kernel(mapped, tmp_path, monkeypatch):
    mapping, edits, expected = mapped
    calls = []
    if hasattr(os, "copy_file_range"):
        real = os.copy_file_range

        def few(src, dst, count, *rest):
            calls.append(count)
            return real(src, dst, min(count, 3_000_000), *rest)

        monkeypatch.setattr(os, "copy_file_range", few)
    result = splice(mapping, (0, mapping.nbytes), edits)
    assert written(result, tmp_path / "new") == expected
    assert written(result, tmp_path / "new", offset=1000, sync=True) == bytes(1000) + expected
    assert len(calls) >= 4 or not hasattr(
        os, "copy_file_range"
    )  # what an edit moves off its place in a page is read and written


@pytest.mark.parametrize(
    "answer", some([errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, 0, None], named=[errno.EXDEV, 0, None])
)
def test_writing_without_the_kernel(answer, mapped, tmp_path, monkeypatch):
    """What cannot be copied is written, from where the copy stopped; a write may take a part of what it is given."""
    mapping, edits, expected = mapped

    def refuse(*arguments):
        if answer == 0:
            return 0
        raise OSError(answer, os.strerror(answer))

    if answer is None:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    else:
        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    if hasattr(os, "pwritev"):
        monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: os.pwrite(fd, views[0][: 1 << 20], offset))
    assert written(splice(mapping, (0, mapping.nbytes), edits), tmp_path / "new") == expected
    assert written(splice(mapping.live(), (0, mapping.nbytes), edits), tmp_path / "new") == expected


def test_errors_of_the_file_system_come_out(mapped, tmp_path, monkeypatch):
    mapping, edits, _ = mapped
    result = splice(mapping, (0, mapping.nbytes), edits)
    for name in ("copy_file_range", "pwritev" if hasattr(os, "pwritev") else "write"):

        def full(*arguments):
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(os, name, full, raising=False)
        with pytest.raises(OSError, match="full"):
            written(result, tmp_path / "new")
        monkeypatch.undo()
    fd = os.open(tmp_path / "new", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            result.write_to(fd)
    finally:
        os.close(fd)


@pytest.mark.skipif(os.name == "nt", reason="a mapped file cannot shrink on Windows: one that does is not tested")
def test_a_file_that_shrinks(tmp_path, monkeypatch):
    path = tmp_path / "old"
    path.write_bytes(field(1, bytes(10_000)) + field(2, b"old"))
    mapping = MappedFile(path)
    result = splice(mapping, (0, mapping.nbytes), [Edit(10_005, 3, b"x")])
    os.truncate(path, 5000)
    with pytest.raises(milblob.FormatError, match="size: expected 10008 bytes as when it was opened, got 5000"):
        written(result, tmp_path / "new")
    with pytest.raises(milblob.FormatError, match="got 5000"):
        splice(mapping, (0, mapping.nbytes), [])
    mapping.close()
    path.write_bytes(bytes(10_000))
    mapping = MappedFile(path)
    if hasattr(os, "copy_file_range"):  # while it is copied
        real = os.copy_file_range

        def shrink(src, dst, count, *rest):
            os.truncate(path, 4000)
            return real(src, dst, count, *rest)

        monkeypatch.setattr(os, "copy_file_range", shrink)
        with pytest.raises(milblob.FormatError, match="got 4000"):
            written(splice(mapping, (0, mapping.nbytes), []), tmp_path / "new")
    mapping.close()
