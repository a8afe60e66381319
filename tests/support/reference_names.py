"""The names of a Program's constants, put together in Python from the rows of a scan: what the names made in C must equal."""

from collections import Counter

from milblob import _codec

STEPS = ("[{}]", "[{}].key", "[{}].value")


def part(c):
    index, count = c.binding
    return c.key if count == 1 else f"{c.key}[{index}]"


def own_name(c):
    """The name of a constant within its scope."""
    op = c.op
    if op is None:
        owner = {_codec.PROGRAM_ATTRIBUTE: "@program", _codec.FUNCTION_ATTRIBUTE: "@function"}.get(c.owner, "@block")
        name = f"{owner}.{c.key}"
    elif c.key == "val" and op.type == "const" and c.owner == _codec.ATTRIBUTE:
        name = op.name
    else:
        name = f"{op.name}.{part(c)}"
    return name + "".join(STEPS[kind].format(index) for index, kind in c.steps)


def names_of(scan, prefix=""):
    """The unique names of all constants of a scan, then of its constexpr outputs; None for rows that only read a name."""
    rows = [(own_name(c), c.function, c.block) if c.storage != _codec.NAME else None for c in scan.constants]
    rows += [(op.name, scan.blocks[op.block][1], op.block) for op in scan.ops if op.type.startswith("constexpr_")]
    several = len(scan.functions) > 1

    def head(function):
        return prefix + (f"{scan.functions[function][0]}/" if several and function >= 0 else "")

    names = [None if row is None else head(row[1]) + row[0] for row in rows]
    counts = Counter(names)
    names = [
        n if n is None or counts[n] == 1 else prefix + scope(scan, *row[1:]) + row[0]
        for n, row in zip(names, rows, strict=True)
    ]
    taken, seen = Counter(names), set()
    for i, base in enumerate(names):
        if base is None:
            continue
        number = 2
        while names[i] in seen or (names[i] != base and taken[names[i]]):
            names[i] = f"{base}#{number}"
            number += 1
        seen.add(names[i])
    return names


def scope(scan, function, block):
    """``main/cond_0[1]/``; ``main[CoreML7]/`` where a function has several blocks."""
    steps = ""
    while block >= 0 and scan.blocks[block][2] >= 0:
        name, _, parent, number, _ = scan.blocks[block]
        steps = f"{name}[{number}]/{steps}"
        block = parent
    if function < 0:
        return ""
    tops = sum(row[1] == function and row[2] < 0 for row in scan.blocks)
    top = f"[{scan.blocks[block][0]}]" if tops > 1 and block >= 0 else ""
    return f"{scan.functions[function][0]}{top}/{steps}"
