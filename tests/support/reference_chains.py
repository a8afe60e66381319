"""What constexpr operations read, found the obvious way: an object of each row, dictionaries of names, sets of operations."""

from milblob import _codec

MAX_CHAIN, MAX_PARTS = 32, 128


def _part(c):
    index, count = c.binding
    return c.key if count == 1 else f"{c.key}[{index}]"


def _visible(scan, outputs, block, name):
    while block >= 0:
        if (block, name) in outputs:
            return outputs[block, name]
        block = scan.blocks[block][2]
    return None


def _outside(scan, buffer, nbytes):
    """The definitions, as (block, name), that something else than a constexpr operation reads."""
    uses = _codec.graph_program(buffer, 0, nbytes, _codec.SCAN_PLAIN).reads()
    defined = {(op.block, op.name) for op in scan.ops}
    found = set()
    for block, kind, _, _, _, name in uses:
        while block >= 0 and (block, name) not in defined:
            block = scan.blocks[block][2]
        if block >= 0 and (kind is None or not kind.startswith("constexpr_")):
            found.add((block, name))
    return found


def chains_of(data, flags=0):
    """Return what `Program.link` finds in the bytes of a Program.

    Returns:
        outputs: of constexpr operations, each (name, message, which of its outputs), in order.
        parts: message -> {name: a Constant, or one of `outputs`}.
        ends: those of `outputs` that are weights.
        marked: the constants that are parts. shared: those of them that are weights as well.
        refused: whether operations are in a circle, or too many.
    """
    buffer = _codec.Buffer(data)
    scan = _codec.scan_program(buffer, 0, len(data), flags)
    every = _codec.scan_program(buffer, 0, len(data), _codec.SCAN_ALL | _codec.SCAN_PLAIN)
    ops = [op for op in scan.ops if op.type.startswith("constexpr_")]
    seen, outputs, parts, by_name = {}, [], {}, {}
    for op in ops:
        outputs.append((op.name, op.message, seen.get(op.message, 0)))
        seen[op.message] = seen.get(op.message, 0) + 1
        parts.setdefault(op.message, {})
        by_name[op.block, op.name] = outputs[-1]
    own = dict(by_name)
    for c in scan.constants:
        if c.op is not None and c.op.type == "const" and c.key == "val":
            own.setdefault((c.block, c.op.name), c)
    small = {(c.block, c.op.name): c for c in every.constants if c.op and c.op.type == "const" and c.key == "val"}
    all_names = small | own
    outside = _outside(scan, buffer, len(data))
    marked, shared, inner, reading, is_small = set(), set(), set(), [], False
    for c in scan.constants:
        if c.op is None or c.op.message not in parts or not c.op.type.startswith("constexpr_"):
            continue
        if c.storage == _codec.NAME:
            reading.append(c)
        elif c.key != "name" and c.mil_code != 2:
            parts[c.op.message][_part(c)] = c
            marked.add(c)
    for c in reading:
        found = _visible(scan, all_names if is_small else own, c.block, c.text)
        if found is None and not is_small:
            is_small = True
            found = _visible(scan, all_names, c.block, c.text)
        if found is None:
            continue
        parts[c.op.message][_part(c)] = found
        if isinstance(found, tuple):
            inner.add(found[1])
        elif found not in marked:
            marked.add(found)
            if (found.block, found.op.name) in outside:
                shared.add(found)
    ends = [
        output
        for op, output in zip(ops, outputs, strict=True)
        if op.output_count == 1 and (op.message not in inner or (op.block, op.name) in outside)
    ]
    return outputs, parts, ends, marked, shared, _is_refused(parts)


def _is_refused(parts):
    if any(len(found) > MAX_PARTS for found in parts.values()):
        return True
    for message in parts:
        chain, pending = {message}, [message]
        while pending and len(chain) <= MAX_CHAIN:
            read = {part[1] for part in parts[pending.pop()].values() if isinstance(part, tuple)}
            if message in read:
                return True
            pending += read - chain
            chain |= read
        if len(chain) > MAX_CHAIN:
            return True
        is_linked = len(chain) > 1 or any(
            isinstance(part, tuple) and part[1] == message for found in parts.values() for part in found.values()
        )
        if is_linked and sum(len(parts[other]) for other in chain) > MAX_PARTS:
            return True
    return False
