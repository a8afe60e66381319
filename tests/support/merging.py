"""Packages whose functions can be merged."""

import reference
from hostile_bytes import blob_value, const, field, tensor_type, write_package

FILE = "@model_path/weights/weight.bin"
UNKNOWN = field(900, b"kept")


def function(name, *operations, opset="CoreML8"):
    """Entry of Program.functions."""
    block = b"".join(field(3, op) for op in operations)
    body = field(2, opset) + field(3, field(1, opset) + field(2, block)) + UNKNOWN
    return field(2, field(1, name) + field(2, body))


def weights_of(records, name=FILE):
    """(weight file, const operations w0, w1, ... that refer to its records)."""
    data, offsets = reference.write_blobs(records)
    ops = [
        const(blob_value(code, [len(values)], name, offset) + UNKNOWN, f"w{i}", tensor_type(code, [len(values)]))
        for i, ((dtype, values), offset) in enumerate(zip(records, offsets, strict=True))
        for code in (reference.DTYPES[dtype][1],)
    ]
    return data, ops


def package_of(
    folder, records, *extra, functions=("main",), description=None, spec_version=9, more=b"", opset="CoreML8"
):
    """A package each of whose functions refers to all records."""
    data, ops = weights_of(records)
    program = field(1, 1) + b"".join(function(name, *ops, *extra, opset=opset) for name in functions) + more
    if description is None:
        description = field(1, field(1, "x")) + field(10, field(1, "y"))
        if len(functions) > 1:
            description = b"".join(field(20, field(1, n) + field(2, field(1, f"x_{n}"))) for n in functions)
    folder.mkdir(parents=True)
    model = field(1, spec_version) + field(2, description) + field(502, program)
    return write_package(folder, model, {"weight.bin": data}).rename(folder.parent / f"{folder.name}.mlpackage")
