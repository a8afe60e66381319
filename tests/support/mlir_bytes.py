"""MLIR bytecode made by hand, byte by byte: small files that no producer writes. Nothing here comes from milblob."""


def varint(number, nbytes=0):
    """A PrefixVarInt; with `nbytes`, one that is longer than it needs to be."""
    size = next(n for n in range(1, 10) if n == 9 or number < 1 << 7 * n)
    size = max(size, nbytes)
    if size == 9:
        return b"\0" + number.to_bytes(8, "little")
    return (number << size | 1 << (size - 1)).to_bytes(size, "little")


def section(number, data, at=0, alignment=0):
    """A section; with an alignment, padded for the offset `at` in the file."""
    head = bytes([number | (0x80 if alignment else 0)]) + varint(len(data))
    if alignment:
        head += varint(alignment)
        head += b"\xcb" * (-(at + len(head)) % alignment)
    return head + data


def strings(*texts):
    """The data of a section of strings: lengths of the last one first."""
    rows = [text + b"\0" for text in texts]
    return varint(len(rows)) + b"".join(varint(len(row)) for row in reversed(rows)) + b"".join(rows)


TEXTS = (b"aicode", b"serialization.asset", b"dataflow.graph_v1", b"primitive.constant_v1", b"dataflow.output_v1", b"main", b"key",
         b"aicode.name", b"x")  # fmt: skip
ASSET, GRAPH, CONSTANT, OUTPUT = range(4)
SHAPE = (2, 5)
VALUES = bytes(range(40))


LOCATION = 11


def op(name, *, location=LOCATION, properties=None, results=(), operands=(), regions=b"", mask=0, is_isolated=True):
    """An operation; `regions` are those that follow it, as `region` makes them, or a section of them."""
    out = varint(location)
    for bit, rows, has in ((64, properties, properties is not None), (2, results, results), (4, operands, operands)):
        if has:
            mask |= bit
            out += varint(rows) if bit == 64 else varint(len(rows)) + b"".join(map(varint, rows))
    if regions:
        mask |= 16
        out += varint(1 << 1 | is_isolated) + regions
    return varint(name) + bytes([mask]) + out


def block(*ops, arguments=()):
    """A block of operations, whose arguments have these types."""
    head = varint(len(ops) << 1 | bool(arguments))
    if arguments:
        head += (
            varint(len(arguments)) + b"".join(varint(kind << 1 | 1) + varint(LOCATION) for kind in arguments) + b"\0"
        )
    return head + b"".join(ops)


def region(values, *blocks):
    """A region that defines `values` values."""
    return varint(len(blocks)) + (varint(values) if blocks else b"") + b"".join(blocks)


def graph_ops(**more):
    """The operations of a file: an asset, a graph with one argument, in it a constant that is returned."""
    inner = region(2, block(op(CONSTANT, properties=1, results=(0,)), op(OUTPUT, operands=(1,)), arguments=(0,)))
    inner = more.pop("inner", inner)
    graph = op(GRAPH, properties=0, regions=section(4, inner))
    return block(op(ASSET, regions=section(4, region(0, block(graph)))))


ATTRIBUTES = (
    varint(6) + b"\0" + varint(len(VALUES)) + VALUES,  # 0: the value
    varint(1) + varint(5),  # 1: "main"
    varint(4) + varint(2),  # 2: the type of the function
    varint(2) + varint(1) + varint(0) + varint(0),  # 3: false
    varint(5) + varint(1) + varint(5),  # 4: a list of a dictionary
    varint(5) + varint(1) + varint(6),  # 5: a dictionary
    varint(9) + varint(7) + varint(1) + varint(7),  # 6: aicode.name = "x"
    varint(1) + varint(8),  # 7: "x"
    varint(5) + varint(0),  # 8: an empty list
    varint(31) + varint(8) + varint(0) * 4,  # 9: a position in a file
    varint(46),  # 10: no scope
    varint(40) + varint(9) + varint(10) + varint(0) + varint(0),  # 11: a location
)
TYPES = (
    varint(2) + varint(2) + varint(SHAPE[0] << 1) + varint(SHAPE[1] << 1) + varint(1),  # 0: tensor<2x5xf32>
    varint(6),  # 1: f32
    varint(30) + varint(1) + varint(0) + varint(1) + varint(0),  # 2: tensor -> tensor
)
PROPERTIES = (
    b"".join(map(varint, (4, 0, 3, 2, 3, 1, 3, 8, 4))),  # of the graph
    varint(0),  # of the constant
)


def offsets(attributes=ATTRIBUTES, types=TYPES):
    """The data of a section of sizes."""
    out = varint(len(attributes)) + varint(len(types))
    for rows in (attributes, types):
        out += varint(0) + varint(len(rows)) + b"".join(varint(len(row) << 1 | 1) for row in rows)
    return out


def listed(rows):
    """The data of a section of properties."""
    return varint(len(rows)) + b"".join(varint(len(row)) + row for row in rows)


def dialects(version=2, names=(b"aicode",)):
    """The data of a section of dialects, with the names of the operations."""
    out = varint(len(names))
    for number, _ in enumerate(names):
        out += varint(number << 1 | 1) + section(7, varint(version))
    return out + varint(4) + varint(0) + varint(4) + b"".join(varint(number << 1 | 1) for number in range(1, 5))


def file(
    *, ir=None, texts=TEXTS, attributes=ATTRIBUTES, types=TYPES, properties=PROPERTIES, version=6, parts=None, **more
):
    """A file of bytecode; `parts` replaces the data of sections, None leaves one out."""
    data = {
        1: dialects(more.get("dialect_version", 2)),
        3: offsets(attributes, types),
        2: b"".join(attributes) + b"".join(types),
        4: graph_ops() if ir is None else ir,
        0: strings(*texts),
        8: listed(properties),
        **(parts or {}),
    }
    return (
        b"ML\xefR"
        + varint(version)
        + b"MLIR22.0.0git\0"
        + b"".join(section(n, d) for n, d in data.items() if d is not None)
    )


def resource_file(alignment=16, size=40, shown=None, padding=b"\xcb", is_used=True, parts=None, **more):
    """A file whose constant is a resource."""
    value = varint(7) + varint(0) if is_used else ATTRIBUTES[0]
    head = varint(alignment) + varint(size if shown is None else shown)
    data = head + padding * (-len(head) % max(alignment, 1)) + VALUES[:size]
    offset = varint(0) + varint(0) + varint(1) + varint(6) + varint(len(data)) + b"\0"
    plain = file(attributes=[value, *ATTRIBUTES[1:]], parts={**(parts or {}), 6: offset}, **more)
    at = len(plain)
    found = section(5, data, at=at, alignment=max(alignment, 16))
    if alignment == 1:  # one byte too far for whole elements
        found = section(5, data, at=at, alignment=16)
        start = at + len(found) - len(data)
        assert (start + len(head)) % 4, "an offset that floats do not have"
    return plain + found
