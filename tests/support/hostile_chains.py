"""Models whose constexpr operations share what they read: few bytes, and more ways through them than anyone could go."""

import numpy as np

import hostile_bytes
import reference
from constexpr_bytes import code, constexpr, value
from hostile_bytes import const, field, immediate, model, operation, tensor_type

ONES = ("FLOAT16", np.ones(12, "<f2"))
SCALE = ("FLOAT16", np.ones(1, "<f2"))
KIND = "blockwise_shift_scale"


def program(*operations):
    """A Program of iOS 18, which has all of the operations."""
    return hostile_bytes.program(*operations, opset="CoreML8")


def vectors(count, size, vector, inner=False):
    """`count` weights of `size` * `vector` bytes, made of `size` bits and two entries of a palette; a model file."""
    parts = {"indices": ("UINT1", np.zeros(size, np.uint8)), "lut": ("UINT8", np.ones((1, 2, vector), np.uint8))}
    parts["vector_axis"] = ("INT32", np.zeros((), np.int32))
    shape = [(f"w{i}", "UINT8", (size * vector,)) for i in range(count)]
    if not inner:
        return model(program(*(constexpr("lut_to_dense", [out], parts) for out in shape)), 9)
    # What is computed is a palette that each weight takes one entry of: the values are few, what is between is not.
    lut = constexpr("lut_to_dense", [("lut", "UINT8", (2, size * vector))],
                    parts | {"indices": ("UINT1", np.zeros((2, size), np.uint8)), "lut": ("UINT8", np.ones((1, 1, 2, vector), np.uint8)),
                             "vector_axis": ("INT32", np.ones((), np.int32))})  # fmt: skip
    ops = [
        constexpr(
            "blockwise_shift_scale",
            [(f"w{i}", "FLOAT16", (1,))],
            {"data": ("INT8", np.ones(1, np.int8)), "scale": "lut"},
        )
        for i in range(count)
    ]
    return model(program(lut, *ops), 9)


def scaled(name, data, scale=SCALE, **more):
    return constexpr(KIND, [(name, "FLOAT16", (12,))], {"data": data, "scale": scale, **more})


def line(count):
    """Each operation reads the one before it."""
    return [scaled("w0", ONES), *(scaled(f"w{i}", f"w{i - 1}") for i in range(1, count))]


def doubled(count):
    """Each reads the one before it three times: 3 to the power of `count` ways to the first one."""
    first = scaled("w0", ONES, ONES)
    return [first, *(scaled(f"w{i}", *[f"w{i - 1}"] * 2, offset=f"w{i - 1}") for i in range(1, count))]


def lattice(depth, width):
    """Layers of operations of which each reads two of the layer before."""
    ops = [scaled(f"w0_{j}", ONES, ONES) for j in range(width)]
    for i in range(1, depth):
        ops += [scaled(f"w{i}_{j}", f"w{i - 1}_{j}", f"w{i - 1}_{(j + 1) % width}") for j in range(width)]
    return ops


def fan(count, depth=1):
    """Many weights that end one chain."""
    return [*doubled(depth), *(scaled(f"e{i}", f"w{depth - 1}", f"w{depth - 1}") for i in range(count))]


def bindings(count, ends):
    """Many weights of one operation with very many parts, which are one constant."""
    parts = field(2, field(1, "data") + field(2, field(1, field(1, "c")) * count))
    inner = operation(f"constexpr_{KIND}", "w", output_type=tensor_type(10, [12]), inputs=parts)
    return [const(value(*ONES), "c"), inner, *(scaled(f"e{i}", "w") for i in range(ends))]


def circle(count):
    """An end that reads operations which read each other in a circle."""
    ops = [scaled(f"w{i}", f"w{(i + 1) % count}") for i in range(count)]
    return [*ops, scaled("end", "w0")]


def shared_axis(count):
    """Weights of which each has the same large constant as its axis: a part that is to be one number."""
    axis = immediate(code("INT32"), [100_000], reference.pack_tensor_value("ints", list(range(100_000))))
    parts = {"quantized_data": ("UINT8", np.ones((2, 6), np.uint8)), "scale": ("FLOAT16", np.ones(2, "<f2"))}
    parts |= {"zero_point": ("UINT8", np.zeros(2, np.uint8)), "axis": "axis"}
    return [
        const(axis, "axis"),
        *(constexpr("affine_dequantize", [(f"w{i}", "FLOAT16", (2, 6))], parts) for i in range(count)),
    ]


MODELS = {
    "line of 10": lambda: line(10), "line of 32": lambda: line(32), "line of 33": lambda: line(33),
    "line of 800": lambda: line(800), "line of 3,000": lambda: line(3_000),
    "doubled 10": lambda: doubled(10), "doubled 32": lambda: doubled(32), "doubled 33": lambda: doubled(33),
    "doubled 800": lambda: doubled(800), "doubled 10,000": lambda: doubled(10_000),
    "lattice of 7 by 4": lambda: lattice(7, 4), "lattice of 32 by 30": lambda: lattice(32, 30),
    "fan of 1,000": lambda: fan(1_000), "fan of 300 on 31": lambda: fan(300, 31),
    "bindings 5,000 by 5,000": lambda: bindings(5_000, 5_000), "circle of 3": lambda: circle(3),
    "circle of 1,000": lambda: circle(1_000), "one axis of 300": lambda: shared_axis(300),
}  # fmt: skip

REFUSED = ("line of 33", "line of 800", "line of 3,000", "doubled 33", "doubled 800", "doubled 10,000",
           "lattice of 32 by 30", "bindings 5,000 by 5,000", "circle of 3", "circle of 1,000")  # fmt: skip
MALFORMED = ("one axis of 300",)
"""Chains that are short enough, of operations of which each breaks a rule."""


def source(name):
    """The bytes of a model file."""
    return model(program(*MODELS[name]()), 9)
