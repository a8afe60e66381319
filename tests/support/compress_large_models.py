"""Packages of one weight w0 that a linear operation reads, written by hand, of any size and perhaps with holes."""

import struct

import numpy as np

import reference
from hostile_bytes import Sparse, blob_value, field, model, operation, program, write_package
from repacking import FILE, WEIGHTS, value_type

COLUMNS = 4096


def save_weight(folder, dtype, count, pieces, opset=18):
    """Write the package; return its path.

    Args:
        dtype: "float16" or "float32".
        count: rows, of COLUMNS elements each.
        pieces: bytes of the weight, and numbers of bytes that are a hole.
    """
    folder.mkdir(exist_ok=True)
    code, blob_code = (10, 1) if dtype == "float16" else (11, 2)
    shape = [count, COLUMNS]
    const = operation(
        "const", "w0", [("val", blob_value(code, shape, WEIGHTS, 64))], output_type=value_type(code, shape)
    )
    bindings = b"".join(
        field(2, field(1, key) + field(2, field(1, field(1, value)))) for key, value in (("x", "x"), ("weight", "w0"))
    )
    linear = operation("linear", "y", inputs=bindings, output_type=value_type(code, [1, count]))
    opset_name = {16: b"CoreML6", 17: b"CoreML7", 18: b"CoreML8"}[opset]
    package = write_package(folder, model(program(const, linear), opset - 9).replace(b"CoreML7", opset_name))
    width = COLUMNS * np.dtype(dtype).itemsize
    metadata = struct.pack("<IIQQ40x", reference.SENTINEL, blob_code, count * width, 128)
    Sparse(struct.pack("<II56x", 1, 2), metadata, *pieces).write(package / FILE)
    return package
