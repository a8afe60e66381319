"""What the tests of repack share: what a model holds, models to try it on, and the memory that it takes."""

import json
import os
import pathlib
import shutil
import struct

import milblob
import reference
from cases import load_case
from children import LIMIT_NBYTES, SANITIZED, run_fork
from hostile_bytes import blob_value, field, function, immediate, operation, write_package
from paths import DATA

FIXTURES = [
    (name, path)
    for name in sorted(p.parent.relative_to(DATA).as_posix() for p in DATA.rglob("expected.json"))
    if name not in ("neural_network", "wire/odd_numbers")  # no ML Program; a value that cannot be read
    for path in load_case(name).expected["paths"]
    if not path.endswith((".pb", ".mil"))
]
PACKAGES = [(name, path) for name, path in FIXTURES if path.endswith(".mlpackage")]


def fixture_path(name, path):
    return DATA / name / path


def copy_of(source, folder, name=None):
    """A copy of a fixture that a test may change."""
    target = pathlib.Path(folder) / (name or pathlib.Path(source).name)
    return pathlib.Path(
        shutil.copytree(source, target) if pathlib.Path(source).is_dir() else shutil.copy(source, target)
    )


def tree(path):
    """Every file, link and directory below a path: name -> contents, target, or None."""
    path = pathlib.Path(path)
    if path.is_file():
        return path.read_bytes()
    found = {}
    for directory, folders, files in os.walk(path):
        for name in folders + files:
            entry = pathlib.Path(directory, name)
            inside = entry.relative_to(path).as_posix()
            found[inside] = (
                os.readlink(entry) if entry.is_symlink() else entry.read_bytes() if entry.is_file() else None
            )
    return found


def values(path, functions=None):
    """Every constant: name -> (dtype, shape, bytes or strings)."""
    with milblob.open(path, constants=True, stored=True) as opened:
        return {
            name: (str(t.mil_dtype), t.shape, t.read().tolist() if t.dtype == object else t.read().tobytes())
            for name, t in opened.items()
            if functions is None or t.function in functions
        }


def record_values(path):
    """Of a bare weight file: (dtype, count, packed bytes) of each record."""
    with milblob.BlobReader(path) as blobs:
        return [(str(r.dtype), r.count, bytes(blobs.read_packed(r.offset))) for r in blobs]


def findings(path):
    """What `check` says, but for offsets, which move."""
    return sorted({(f.severity, f.code) for f in milblob.check(path)})


def weight_file_names(path):
    return sorted(
        p.relative_to(path).as_posix() for p in pathlib.Path(path).rglob("*.bin") if p.parent.name != "analytics"
    )


def references(path):
    """Every reference: name -> (file name in the Program, offset)."""
    found = {}
    with milblob.open(path, constants=True, stored=True) as opened:
        for name, tensor in opened.items():
            if tensor.is_blob and tensor.constant is not None:
                found[name] = (tensor.constant.text, tensor.constant.blob_offset)
    return found


# ------------------------------------------------------------------------------------------------------- hand-made ones


def blobs_of(*records, garbage=0):
    """A weight file of (blob code, data[, padding bits]): (bytes, metadata offsets). `garbage` fills reserved bytes."""
    data, offsets = bytearray(struct.pack("<II", len(records), 2) + bytes([garbage]) * 56), []
    for code, content, *padding in records:
        data += bytes(reference.align64(len(data)) - len(data))
        offsets.append(len(data))
        nbits = padding[0] if padding else int.from_bytes(bytes([garbage]) * 8, "little")
        data += struct.pack("<IIQQQ", reference.SENTINEL, code, len(content), len(data) + 64, nbits)
        data += bytes([garbage]) * 32 + content
    return bytes(data), offsets


def package_of(folder, functions, files, others=None, spec_version=9):
    """A package by hand: functions {name: [(tensor, mil code, shape, file or None, offset or TensorValue)]}."""
    body = field(1, 1)
    described = b""
    for name, tensors in functions.items():
        ops = []
        for tensor, code, shape, file, place in tensors:
            value = immediate(code, shape, place) if file is None else blob_value(code, shape, file, place)
            ops.append(operation("const", tensor, [("val", value)], output_type=value_type(code, shape)))
        body += function(ops, name)
        described += field(20, field(1, name))
    description = field(2, described + field(21, next(iter(functions)))) if len(functions) > 1 else b""
    whole = field(1, spec_version) + description + field(502, body)
    package = write_package(folder, whole)
    inside = package / "Data" / "com.apple.CoreML"
    for file, data in {**files, **(others or {})}.items():
        (inside / file).parent.mkdir(parents=True, exist_ok=True)
        (inside / file).write_bytes(data)
    return package


def value_type(code, shape):
    dims = b"".join(field(3, field(1, field(1, size))) for size in shape)
    return field(1, field(1, code) + field(2, len(shape)) + dims)


WEIGHTS = "@model_path/weights/weight.bin"


def simple_package(folder, contents, code=11, blob_code=2, itemsize=4, file="weights/weight.bin", garbage=0):
    """One function, one tensor `w0`, `w1`, ... per content, in one weight file."""
    data, offsets = blobs_of(*((blob_code, content) for content in contents), garbage=garbage)
    tensors = [
        (f"w{i}", code, [len(content) // itemsize], f"@model_path/{file}", offset)
        for i, (content, offset) in enumerate(zip(contents, offsets, strict=True))
    ]
    return package_of(folder, {"main": tensors}, {file: data})


# --------------------------------------------------------------------------------------------------- coremltools' view


def small_package(folder):
    """Two functions, two weight files, equal weights, one that is an immediate."""
    data, at = blobs_of((2, b"abcd" * 5), (2, b"abcd" * 5), (2, bytes(20)))
    more, there = blobs_of((2, b"abcd" * 5), (1, b"xy" * 300))
    functions = {
        "one": [("a", 11, [5], WEIGHTS, at[0]), ("b", 11, [5], WEIGHTS, at[1])],
        "two": [("a", 11, [5], WEIGHTS, at[2]), ("c", 10, [300], "@model_path/weights/two.bin", there[1])],
    }
    return package_of(folder, functions, {"weights/weight.bin": data, "weights/two.bin": more}, {"notes.txt": b"mine"})


FILE = "Data/com.apple.CoreML/weights/weight.bin"

MEASURED = """
    import json, pathlib, threading, time
    import milblob
    from milblob.rewrite import copying

    copying.SETTLED_S = -1e9  # holes are what they are said to be

    def anonymous_nbytes():
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    most, done = [0], threading.Event()

    def watch():
        while not done.wait(0.002):
            most[0] = max(most[0], anonymous_nbytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.monotonic()
    report = CALL
    done.set()
    watcher.join()
    most[0] = max(most[0], anonymous_nbytes())
    print(json.dumps({"most": most[0], "seconds": time.monotonic() - start, **COUNTS}))
"""


def measured_repack(source, target, **options):
    """Run milblob.repack in a child of its own; fail if it took too much memory. Returns the counts of its report.

    What counts is anonymous memory: what the process has of its own, and not pages of mapped files, which the system takes
    back when it needs them. A thread in the child reads RssAnon of /proc/self/status every two milliseconds; its highest
    value is what is compared, NumPy, ml_dtypes and milblob (about 15 MiB) included. Linux only.
    """
    call = "milblob.repack(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))"
    return _measured(call, "report.counts()", source, target, options, LIMIT_NBYTES)


def measured_compress(source, target, recipe, limit_nbytes):
    """As measured_repack, for milblob.compress. Returns the first row of its report too."""
    call = "milblob.compress(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))"
    return _measured(call, 'report.to_dict()["weights"][0]', source, target, recipe, limit_nbytes)


def _measured(call, counts, source, target, options, limit_nbytes):
    code = MEASURED.replace("CALL", call).replace("COUNTS", counts)
    found = json.loads(run_fork(code, source, target, json.dumps(options), timeout=1800))
    print(f"{target.name}: {found['most'] / 2**20:.0f} MiB anonymous at most, {found['seconds']:.1f} s")
    spare = limit_nbytes // 5 if SANITIZED else 0  # its shadow, an eighth, and the margins of what is allocated
    assert found["most"] < limit_nbytes + spare
    return found
