"""Helpers of the hostile tests: wire bytes by hand, files with holes, and reading all that a source has."""

import contextlib
import os

from reference import read_fields, write_varint
from reference import write_field as field

FLOATS = field(1, field(1, bytes(40)))  # ImmediateValue.tensor.floats of ten zeros, as the content of TensorValue


def tensor_type(code, dims, rank=None):
    """ValueType{tensorType}; a dimension of None is open."""
    shape = b"".join(field(3, field(2, b"") if size is None else field(1, field(1, size))) for size in dims)
    return field(1, field(1, code) + field(2, len(dims) if rank is None else rank) + shape)


def immediate(code, dims, tensor_value, rank=None):
    """Value with a type and an immediate tensor."""
    return field(2, tensor_type(code, dims, rank)) + field(3, field(1, tensor_value))


def blob_value(code, dims, name, offset):
    """Value with a type and a reference to a blob file."""
    return field(2, tensor_type(code, dims)) + field(5, field(1, name) + field(2, offset))


def list_value(values):
    """Value with an immediate list, no type."""
    return field(3, field(3, b"".join(field(1, value) for value in values)))


def nested_fields(levels, *numbers):
    """Messages of nothing but each other: so many times around, fields of these numbers, built from the inside."""
    parts, size = [], 0
    for _ in range(levels):
        for number in numbers:
            head = write_varint(number << 3 | 2) + write_varint(size)
            parts.append(head)
            size += len(head)
    return b"".join(reversed(parts))


def operation(kind="const", name="w", attributes=(), inputs=b"", blocks=b"", output_type=b""):
    """Operation; `attributes` are (key, Value bytes), the rest is serialized already."""
    output = field(1, name) + (field(2, output_type) if output_type else b"")
    return (
        field(1, kind)
        + inputs
        + field(3, output)
        + blocks
        + b"".join(field(5, field(1, key) + field(2, value)) for key, value in attributes)
    )


def const(value, name="w", output_type=None):
    """A const; its output has the type of its value if no other is given."""
    if output_type is None:
        output_type = type_of(value)
    return operation("const", name, [("val", value)], output_type=output_type)


def type_of(value):
    """The ValueType of a serialized Value; b"" if it has none, or is malformed."""
    with contextlib.suppress(ValueError, IndexError):
        return next((inner for number, wire, inner in read_fields(value) if (number, wire) == (2, 2)), b"")
    return b""


def function(operations, name="main", opset="CoreML7"):
    """Entry of Program.functions with one block."""
    block = b"".join(field(3, op) for op in operations)
    return field(2, field(1, name) + field(2, field(2, opset) + field(3, field(1, opset) + field(2, block))))


def program(*operations, opset="CoreML7"):
    return field(1, 1) + function(operations, opset=opset)


def model(program_bytes, spec_version=8):
    return field(1, spec_version) + field(502, program_bytes)


def write_package(folder, model_bytes, weights=None, item="com.apple.CoreML/model.mlmodel"):
    """A .mlpackage around a model file and the files of its weights folder: name -> bytes. Returns its path."""
    package = folder / "m.mlpackage"
    inside = package / "Data" / "com.apple.CoreML"
    (inside / "weights").mkdir(parents=True)
    (inside / "model.mlmodel").write_bytes(model_bytes)
    for name, data in (weights or {}).items():
        (inside / "weights" / name).write_bytes(data)
    entry = f'{{"itemInfoEntries": {{"A": {{"path": "{item}"}}}}, "rootModelIdentifier": "A"}}'
    (package / "Manifest.json").write_text(entry)
    return package


class Sparse:
    """Message bytes with holes: a list of bytes and of int, a number of zero bytes that is never written."""

    def __init__(self, *parts):
        self.parts = [inner for part in parts for inner in (part.parts if isinstance(part, Sparse) else [part])]

    def __len__(self):
        return sum(part if isinstance(part, int) else len(part) for part in self.parts)

    def field(self, number):
        """This as the content of a length-delimited field."""
        return Sparse(write_varint(number << 3 | 2) + write_varint(len(self)), self)

    def write(self, path):
        with path.open("wb") as file:
            for part in self.parts:
                if isinstance(part, int):
                    file.seek(part, os.SEEK_CUR)
                else:
                    file.write(part)
            file.truncate(len(self))


def use_everything(source):
    """Open a model and read all there is. Returns {name: (dtype, shape, bytes or strings)} of the tensors that could be
    read. MilblobError and OSError end one step, or the whole; anything else comes out."""
    import milblob

    found = {}
    for options in ({"constants": True, "stored": True}, {}):
        with milblob.open(source, **options) as opened:
            for step in ("metadata", "functions", "program"):
                with contextlib.suppress(milblob.MilblobError, OSError):
                    getattr(opened, step)
            for name, tensor in opened.items():
                repr(tensor)
                for step in ("consumers", "where", "op", "function", "file", "parts", "compression", "ndim"):
                    with contextlib.suppress(milblob.MilblobError, OSError):
                        getattr(tensor, step)
                try:
                    values = tensor.read()
                    found[name] = (
                        str(tensor.dtype),
                        tensor.shape,
                        repr(values.tolist()) if values.dtype == object else values.tobytes(),
                    )
                    assert tensor.nbytes >= 0
                except (milblob.MilblobError, OSError):
                    pass
            _walk_views(opened)
    return found


def _walk_views(opened):
    """Ask the views of a model for everything."""
    import milblob
    from program_walk import view_consumers, view_program, view_uses

    for tensor in opened.values():
        with contextlib.suppress(milblob.MilblobError, OSError):
            _ = tensor.operation
    with contextlib.suppress(milblob.MilblobError, OSError):
        for view in opened.views:
            for function in view.functions.values():
                view_uses(function)
                view_consumers(function)
            view_program(view)
