"""Packages whose functions can be merged."""

import reference
from hostile_bytes import blob_value, const, field, operation, tensor_type, write_package

FILE = "@model_path/weights/weight.bin"
UNKNOWN = field(900, b"kept")


VECTOR = tensor_type(11, [1])
ARRAY = field(3, field(5, field(1, 1) + field(2, 65568)))  # the type of a feature that is described: float32 [1]


def function(name, *operations, opset="CoreML8", takes="x"):
    """Entry of Program.functions: what it takes goes through a relu, which it returns as y."""
    relu = operation(
        "relu", "y", inputs=field(2, field(1, "x") + field(2, field(1, field(1, takes)))), output_type=VECTOR
    )
    block = field(2, "y") + b"".join(field(3, op) for op in (*operations, relu))
    taken = field(1, field(1, takes) + field(2, VECTOR))
    body = taken + field(2, opset) + field(3, field(1, opset) + field(2, block)) + UNKNOWN
    return field(2, field(1, name) + field(2, body))


def features(takes="x", numbers=(1, 10)):
    """The input and the output of such a function, as a description has them."""
    return field(numbers[0], field(1, takes) + ARRAY) + field(numbers[1], field(1, "y") + ARRAY)


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
    takes = {name: f"x_{name}" if len(functions) > 1 else "x" for name in functions}
    entries = (function(name, *ops, *extra, opset=opset, takes=taken) for name, taken in takes.items())
    program = field(1, 1) + b"".join(entries) + more
    if description is None:
        description = features()
        if len(functions) > 1:
            described = (field(20, field(1, name) + features(taken, (2, 3))) for name, taken in takes.items())
            description = b"".join(described) + field(21, functions[0])
    folder.mkdir(parents=True)
    model = field(1, spec_version) + field(2, description) + field(502, program)
    return write_package(folder, model, {"weight.bin": data}).rename(folder.parent / f"{folder.name}.mlpackage")
