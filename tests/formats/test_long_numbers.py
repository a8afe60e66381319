"""Numbers of thousands of digits, as files state them or as their sizes multiply: errors of ours, in messages of bounded length."""

import io
import json
import re
import struct
import zipfile

import numpy as np
import pytest

import milblob
import tvm_archives
from hostile_bytes import FLOATS, const, field, immediate, model, program
from matrix import every
from milblob.compressing.compress_plan import KIND, VERSION
from milblob.formats.read import open_arrays
from milblob.jsontext import as_shape

MOST = (1 << 63) - 1
DIGITS, HEX = "9" * 4200, "0x" + "f" * 9000


def npy(shape):
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head


def npz(shape):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("a.npy", npy(shape))
    return made.getvalue()


def safetensors(shape, end="16"):
    head = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, {end}]}}}}'.encode()
    return struct.pack("<Q", len(head)) + head + bytes(16)


def listing(shape, more="", offset="64", head=""):
    row = f'{{"name": "a", "dtype": "float32", "shape": {shape}, "offset": {offset}{more}}}'
    return f'{{"format": "milblob", "file": "w.bin", {head}"tensors": [{row}]}}'.encode()


def onnx(count, code=1):
    tensor = b"".join(field(1, MOST) for _ in range(count)) + field(2, code) + field(8, "a") + field(9, bytes(16))
    return field(1, 8) + field(7, field(5, tensor)) + field(8, field(2, 18))


def gguf(*sizes):
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"a" + struct.pack("<I", len(sizes))
    return head + struct.pack(f"<{len(sizes)}QIQ", *sizes, 0, 0) + bytes(64)


def archive(shape):
    graph = tvm_archives.graph_with(lambda found: found["attrs"]["shape"][1].__setitem__(1, shape))
    return tvm_archives.tar_of(tvm_archives.files_of() | {"executor-config/graph/default.graph": graph})


SHAPES = {"literal": f"({DIGITS}, {DIGITS})", "negative": f"(-{DIGITS},)", "hexadecimal": f"({HEX},)", "empty": f"(0, {HEX})",
          "negative hexadecimal": f"(-{HEX},)", "product": f"({', '.join([str(MOST)] * 64)})", "one": f"({DIGITS},)"}  # fmt: skip
MANY = json.dumps([MOST] * 64)
ARRAYS = {
    **{f"{name}.npy": npy(shape) for name, shape in SHAPES.items()},
    **{f"{name}.npz": npz(shape) for name, shape in SHAPES.items()},
    "sizes.safetensors": safetensors(MANY), "number.safetensors": safetensors(f"[{DIGITS}]"),
    "end.safetensors": safetensors("[4]", DIGITS), "longer.safetensors": safetensors("[4]", DIGITS * 2),
    "sizes.json": listing(MANY), "bytes.json": listing(MANY, f', "nbytes": {DIGITS}'), "offset.json": listing("[4]", offset=DIGITS),
    "stamp.json": listing("[4]", head=f'"nbytes": {DIGITS}, "hash": "{"a" * 64}", '), "number.json": listing(f"[{DIGITS}]"),
    "million.json": listing(json.dumps([MOST] * 300_000)),
    "sizes.onnx": onnx(64), "many.onnx": onnx(1024), "nibbles.onnx": onnx(64, 22), "sizes.gguf": gguf(*[(1 << 64) - 1] * 4),
    "sizes.params": tvm_archives.one_file(shape=(1 << 62,) * 60),
}  # fmt: skip
PROGRAMS = {
    "sizes": [(1 << 64) - 1] * 64, "product": [1 << 63, 1 << 63], "empty": [(1 << 64) - 1] * 60 + [0],
    "many": [(1 << 64) - 1] * 1000,
}  # fmt: skip


def require_short(message):
    assert len(message) < 2500 and not re.search(r"\d{60}", message), message[:200]
    assert "Exceeds the limit" not in message


@pytest.fixture
def folder(tmp_path):
    with milblob.BlobWriter(tmp_path / "w.bin") as blobs:
        blobs.write(np.zeros(4, np.float32))
    return tmp_path


def test_files_with_long_numbers_are_refused_in_short_messages(folder):
    def refused(name):
        (folder / name).write_bytes(ARRAYS[name])
        with pytest.raises(milblob.MilblobError) as caught, open_arrays(folder / name) as arrays:
            for array in arrays.values():
                array.read()
        require_short(str(caught.value))
        require_short(caught.value.what)

    every(refused, ARRAYS)


def test_findings_have_short_messages(folder):
    def checked(name, data, **options):
        path = folder / name
        path.write_bytes(data)
        found = milblob.check(path, **options)
        assert found.findings
        for finding in found:
            require_short(finding.message)

    for name in PROGRAMS:
        checked(f"{name}.mlmodel", model(program(const(immediate(11, PROGRAMS[name], FLOATS)))), values=True)
    for name in ("bytes.json", "stamp.json"):
        checked(name, ARRAYS[name])
    checked("m.tar", archive([MOST] * 64))


def test_plans_with_long_numbers_are_refused_in_short_messages(tmp_path):
    plan = tmp_path / "plan.json"

    def refused(key):
        recipe = {"recipe": "Palette", "bits": 4, key: int(DIGITS)}
        document = {"milblob": KIND, "version": VERSION, "weights": {"w": {"recipe": recipe}}}
        plan.write_text(json.dumps(document))
        with pytest.raises(milblob.FormatError) as caught:
            milblob.CompressPlan.load(plan)
        require_short(str(caught.value))

    every(refused, ("bits", "recipe", "mode", "granularity", DIGITS))


def test_a_shape_has_at_most_64_sizes():
    assert as_shape([1] * 64) == (1,) * 64
    assert as_shape([1] * 65) is None
