"""Packages of weights w0, w1, ... that linear operations read, written by hand, of any size and perhaps with holes."""

import struct

import numpy as np

import reference
from hostile_bytes import Sparse, blob_value, field, model, operation, program, write_package
from repacking import FILE, WEIGHTS, value_type

COLUMNS = 4096


def save_weight(folder, dtype, count, pieces, opset=18):
    """Write a package of one weight; return its path. As save_weights."""
    return save_weights(folder, dtype, count, [pieces], opset)


def save_weights(folder, dtype, count, weights, opset=18):
    """Write the package; return its path.

    Args:
        dtype: "float16" or "float32".
        count: rows of each weight, of COLUMNS elements each.
        weights: of each its pieces: bytes of the weight, and numbers of bytes that are a hole.
    """
    folder.mkdir(exist_ok=True)
    code, blob_code = (10, 1) if dtype == "float16" else (11, 2)
    shape, nbytes = [count, COLUMNS], count * COLUMNS * np.dtype(dtype).itemsize
    operations, records, end = [], [], 64
    for number, pieces in enumerate(weights):
        value, kind = blob_value(code, shape, WEIGHTS, end), value_type(code, shape)
        operations.append(operation("const", f"w{number}", [("val", value)], output_type=kind))
        bindings = b"".join(
            field(2, field(1, key) + field(2, field(1, field(1, value))))
            for key, value in (("x", "x"), ("weight", f"w{number}"))
        )
        name = "y" if number == 0 else f"y{number}"
        operations.append(operation("linear", name, inputs=bindings, output_type=value_type(code, [1, count])))
        records += [struct.pack("<IIQQ40x", reference.SENTINEL, blob_code, nbytes, end + 64), *pieces]
        end += 64 + nbytes
    opset_name = {16: b"CoreML6", 17: b"CoreML7", 18: b"CoreML8"}[opset]
    package = write_package(folder, model(program(*operations), opset - 9).replace(b"CoreML7", opset_name))
    Sparse(struct.pack("<II56x", len(weights), 2), *records).write(package / FILE)
    return package
