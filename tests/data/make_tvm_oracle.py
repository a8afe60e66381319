"""What TVM itself makes of `.params` files and tensor caches: `make tvm-oracle` runs this where apache-tvm is installed.

    python make_tvm_oracle.py record FOLDER     writes FOLDER/oracle.json and FOLDER/cache, which tests compare with, and FOLDER/sha256.json
    python make_tvm_oracle.py serve             answers lines of JSON (tests/tvm/live.py asks)

It imports nothing of milblob.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import struct
import sys
import tempfile

import ml_dtypes
import numpy as np

from tvm import runtime

DTYPES = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16", "bool",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn",
]  # fmt: skip
"""Those that TVM makes tensors of from NumPy arrays; for the others it has no way in (see `odd`)."""
ODD = ["int1", "int2", "int4", "uint1", "uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float32x4", "handle"]  # fmt: skip
SHAPES = [(2, 3), (), (0, 3), (5,), (3, 0, 2), (1, 1, 1, 1, 1, 1, 1)]


def values(dtype, shape, seed=7):
    """Any bits, except where only some are elements."""
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    count = int(np.prod(shape, dtype=int))
    bits = np.random.default_rng(seed).integers(0, 256, count * kind.itemsize, dtype=np.uint8)
    if dtype == "bool":
        bits &= 1
    if dtype == "float4_e2m1fn":
        bits &= 15
    return bits.view(kind).reshape(shape)


def described(tensors):
    """Names, dtypes, shapes and bits of tensors that TVM has."""
    rows = []
    for name, tensor in tensors.items():
        row = {"name": name, "dtype": str(tensor.dtype), "shape": list(tensor.shape)}
        try:
            row["hex"] = tensor.numpy().tobytes().hex()
        except Exception as error:  # whatever it is, it is what TVM does
            row["error"] = type(error).__name__
        rows.append(row)
    return rows


def saved(tensors):
    """The bytes that TVM writes for name -> array."""
    return bytes(runtime.save_param_dict({name: runtime.tensor(array) for name, array in tensors.items()}))


def loaded(data):
    """What TVM reads: its tensors, or the class of its error."""
    try:
        return {"tensors": described(runtime.load_param_dict(data))}
    except Exception as error:
        return {"error": type(error).__name__}


def written():
    """(what, name -> array) of every file that TVM is asked to write."""
    for dtype in DTYPES:
        for shape in SHAPES:
            yield f"{dtype} {list(shape)}", {"p": values(dtype, shape)}
    one = values("float32", (2,))
    yield "golden", {"p0": np.array([[2, 4]], "float32")}
    yield "empty", {}
    yield "names", {"": one, "weiß": one, "名前/\n": one, "a" * 300: one, " ": one}
    yield "order", {"z": one, "a": values("int8", (3,)), "m": values("float16", ())}
    yield "all", {dtype: values(dtype, (3, 2), number) for number, dtype in enumerate(DTYPES)}


def edited(data, offset, new):
    """Bytes with some of them replaced."""
    return data[:offset] + new + data[offset + len(new) :]


def strange():
    """(what, bytes) of files that are odd or broken; 'a' and 'b' of two float32 each."""
    good = saved({"a": np.array([1, 2], "float32"), "b": np.array([3, 4], "float32")})
    first = 24 + 2 * 9 + 8
    record = 56
    yield "good", good
    yield "cut in the last tensor", good[:-3]
    yield "cut before the last elements", good[:-8]
    yield "cut in the last record", good[:-12]
    yield "trailing", good + b"more"
    yield "duplicate names", edited(good, 24 + 9 + 8, b"a")
    yield "reserved of the file", edited(good, 8, b"\7")
    yield "reserved of a tensor", edited(good, first + 8, b"\7")
    yield "device id", edited(good, first + 20, b"\3")
    yield "device type", edited(good, first + 16, b"\2")
    yield "magic of the file", edited(good, 0, b"\0")
    yield "magic of a tensor", edited(good, first + record, b"\0")
    yield "second count", edited(good, first - 8, b"\1")
    yield "size of a tensor", edited(good, first + 40, b"\4")
    yield "lanes", edited(good, first + 30, b"\2")
    yield "a name that is no UTF-8", edited(good, 32, b"\xff")
    yield "dimension below 0", edited(good, first + 32, b"\xff" * 8)


def odd():
    """(dtype, bytes of a file whose six elements are bytes that count up) of dtypes that TVM only makes empty."""
    for dtype in ODD:
        data = bytes(runtime.save_param_dict({"p": runtime.empty((2, 3), dtype)}))
        start = 24 + 9 + 8 + 32 + 16 + 8
        fill = bytes(0x12 + 0x22 * number & 255 for number in range(len(data) - start))
        yield dtype, data[:start] + fill


def record(folder):
    """Write everything."""
    rows = []
    for what, tensors in written():
        data = saved(tensors)
        arrays = [[name, str(array.dtype), list(array.shape), array.tobytes().hex()] for name, array in tensors.items()]
        rows.append({"what": what, "arrays": arrays, "hex": data.hex()})
    document = {
        "versions": {name: importlib.metadata.version(name) for name in ("apache-tvm", "numpy", "ml_dtypes")},
        "written": rows,
        "read": [{"what": what, "hex": data.hex(), **loaded(data)} for what, data in strange()],
        "odd": [{"what": dtype, "hex": data.hex(), **loaded(data)} for dtype, data in odd()],
        "cache": cache(folder / "cache"),
    }
    for row in document["read"]:
        if row["what"].startswith("cut") and "tensors" in row:
            row["tensors"][-1].pop("hex")  # what was in memory
    for row in document["odd"]:
        for tensor in row.get("tensors", []):
            if row["what"] not in ("int4", "float4_e2m1fn"):
                tensor.pop("hex", None)  # partly what was in memory
    text = json.dumps(document, indent=0, ensure_ascii=True)
    (folder / "oracle.json").write_text(text + "\n", encoding="utf-8")
    record_sums(folder)


def record_sums(folder):
    """Write sha256.json: the sha256 of every other file in the folder, as versions.json has them for the other fixtures."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "sha256.json")
    sums = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "sha256.json").write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def cache(folder):
    """Make a tensor cache in two shards, and return what TVM reads from it."""
    import shutil

    from tvm.contrib import tvmjs

    shutil.rmtree(folder, ignore_errors=True)
    tensors = {
        "short": values("float32", (4, 3), 1), "bf16": values("bfloat16", (5,), 2), "half": values("float16", (2, 2), 3), "bytes": values("uint8", (7,), 4),
        "raw": values("float32", (3,), 5), "fp8": values("float8_e4m3fn", (6,), 6), "scalar": values("int64", (), 7), "none": values("float32", (0, 2), 8),
    }  # fmt: skip
    formats = {"raw": "raw", "*": "f32-to-bf16"}
    out = sys.stdout
    sys.stdout = sys.stderr  # it prints
    try:
        tvmjs.dump_tensor_cache(
            tensors, str(folder), encode_format=formats, shard_cap_mb=40 / (1 << 20), show_progress=False
        )
        read, _ = tvmjs.load_tensor_cache(str(folder), runtime.device("cpu", 0) if hasattr(runtime, "device") else None)
    finally:
        sys.stdout = out
    return described(read)


def serve():
    """Answer requests: {"load": hex} or {"load_file": path}, or {"save": [[name, dtype, shape, hex], ...]}."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "load" in asked:
            answer = loaded(bytes.fromhex(asked["load"]))
        else:
            arrays = {}
            for name, dtype, shape, data in asked["save"]:
                kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
                arrays[name] = np.frombuffer(bytes.fromhex(data), kind).reshape(shape)
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/a.params"
                runtime.save_param_dict_to_file({n: runtime.tensor(a) for n, a in arrays.items()}, path)
                answer = {"hex": pathlib.Path(path).read_bytes().hex()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    assert struct.pack("=H", 1) == struct.pack("<H", 1), "a little-endian machine"
    if sys.argv[1] == "record":
        record(pathlib.Path(sys.argv[2]))
    else:
        serve()
