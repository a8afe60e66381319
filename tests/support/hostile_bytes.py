"""Helpers of the hostile tests: wire bytes by hand, files with holes, and children that may crash on their own."""

import contextlib
import os
import pathlib
import subprocess
import sys
import textwrap

from reference import write_field as field
from reference import write_varint

SANITIZED = "MILBLOB_SANITIZED" in os.environ
"""`make sanitize`: AddressSanitizer takes terabytes of addresses, and memory beside all that is allocated."""

LIMIT_NBYTES = (356 if SANITIZED else 100) << 20
"""Anonymous memory that work on files of any size may take: AddressSanitizer keeps 256 MiB of what was freed."""

SUPPORT = pathlib.Path(__file__).parent
DATA = SUPPORT.parent / "data"
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


def const(value, name="w"):
    return operation("const", name, [("val", value)])


def function(operations, name="main"):
    """Entry of Program.functions with one block."""
    block = b"".join(field(3, op) for op in operations)
    return field(2, field(1, name) + field(2, field(2, "CoreML7") + field(3, field(1, "CoreML7") + field(2, block))))


def program(*operations):
    return field(1, 1) + function(operations)


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


def run_child(code, *arguments, timeout=120, memory_nbytes=None, expect_code=0):
    """Run Python code in a process of its own, faulthandler on; returns its output.

    A crash, a Python error or (the guard) a hang fails the test. `memory_nbytes` limits the child's address space, where
    that can be: not under AddressSanitizer, which is also slower.
    """
    prelude = "import faulthandler, sys; faulthandler.enable()\n"
    if memory_nbytes is not None and not SANITIZED:
        prelude += f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({memory_nbytes}, {memory_nbytes}))\n"
    path = os.pathsep.join([str(SUPPORT), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout * 10 if SANITIZED else timeout, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == expect_code, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def peak_rss_nbytes():
    """The most resident memory this process ever had; Linux. 0 under AddressSanitizer, whose own would be counted."""
    if SANITIZED:
        return 0
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


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
    return found
