"""Random Programs of constexpr operations that read each other, small constants, names of outer blocks, and no constants."""

import random

from protobuf_programs import LONG, add_const, add_op, new_program, set_type, set_value

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h", "data", "data[0]"]
KINDS = ["constexpr_cast", "constexpr_lut_to_sparse", "constexpr_", "constexpr_anything"]
F32 = 11


def _fill(chance, block, depth=0):
    for _ in range(chance.randrange(1, 9)):
        name, kind = chance.choice(NAMES), chance.randrange(8)
        if kind < 2:
            add_const(block, name, LONG[: chance.choice([1, 9, 10, 12])])
        elif kind == 2:
            add_op(block, "relu", name, x=chance.choice(NAMES))
        elif kind == 3 and depth < 3:
            _fill(chance, add_op(block, "cond", name).blocks.add(), depth + 1)
        else:
            others = NAMES[: NAMES.index(name)] if chance.random() < 0.95 else NAMES  # few circles
            read = {key: chance.choice([LONG, LONG[:1], *others]) for key in chance.sample(["data", "scale", "lut"], 2)}
            if chance.random() < 0.3:
                read["data"] = [chance.choice([LONG, *others]) for _ in range(chance.randrange(1, 4))]
            if chance.random() < 0.1:
                read["data[0]"] = LONG
            op = add_op(block, chance.choice(KINDS), name, **read)
            if chance.random() < 0.3:
                set_value(op.attributes[chance.choice(["name", "data", "offset"])], LONG)
            if chance.random() < 0.3:
                set_type(op.outputs.add(name=chance.choice(NAMES)).type, F32, (12,))
    if chance.random() < 0.3:
        block.outputs.append(chance.choice(NAMES))


def chained(seed):
    """The bytes of a Program, by seed."""
    chance = random.Random(seed)
    program, _ = new_program(*chance.choice([["main"], ["alpha", "main"]]))
    for function in program.functions.values():
        for block in function.block_specializations.values():
            _fill(chance, block)
    return program.SerializeToString(deterministic=True)
