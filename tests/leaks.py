"""Does any call keep memory? Every API is called again and again, and what is in use must not grow: `make leaks`.

Two counts: blocks of Python's own allocator, in which every object of up to 512 bytes is one, and bytes that malloc has given
out, which are the larger ones and what the compiled core takes. Caches fill while nothing is counted yet, and grow now and then
later; a leak grows in every round, so the smallest of the rounds counts, and what looks like a leak gets more of them. Linux with
glibc 2.33 or newer.
"""

import contextlib
import ctypes
import gc
import os
import pathlib
import shutil
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent
os.environ["MILBLOB_THREADS"] = "1"  # threads have arenas of their own
sys.path[:0] = [str(TESTS / "support")]

import numpy as np  # noqa: E402

import milblob  # noqa: E402
import tvm_archives  # noqa: E402
from hostile_bytes import use_everything  # noqa: E402
from milblob import _codec  # noqa: E402
from milblob.formats.read import open_arrays  # noqa: E402

DATA = TESTS / "data"
ROUNDS, MORE_ROUNDS, CALLS, WARM = 5, 15, 40, 60
BLOCKS, NBYTES = 0.5, 200
"""What a call may keep on average without being called a leak: half an object, and less than any large one."""


class _Info(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def in_use():
    """Blocks of Python's allocator, and bytes that malloc has given out."""
    gc.collect()
    info = libc.mallinfo2()
    return sys.getallocatedblocks(), info.uordblks + info.hblkhd


def errors_of(path):
    with contextlib.suppress(milblob.MilblobError):
        use_everything(path)


def calls(folder):
    """What is called: words and a function."""
    package, wire = DATA / "constexpr_ios18/model.mlpackage", DATA / "wire/split/model.mlmodel"
    text, blobs, strings = (
        DATA / "opset_ios16_fp16/model.mlmodelc",
        DATA / "blob_all_dtypes/weight.bin",
        DATA / "lists/model.mlmodelc",
    )
    changed, broken = folder / "changed.mlpackage", folder / "broken.mlmodel"
    shutil.copytree(DATA / "opset_ios15_fp16/model.mlpackage", changed)
    data = (package / "Data/com.apple.CoreML/model.mlmodel").read_bytes()
    broken.write_bytes(data[: len(data) // 2])
    values = milblob.pack_tensor(np.arange(-50, 1000, dtype="i4"))
    floats = np.linspace(-3, 3, 5000, dtype="<f4")
    name, kept = "fc_weight", []
    with milblob.open(changed) as model:
        weight = np.array(model[name])

    def blob_reader():
        with milblob.BlobReader(blobs) as reader:
            for record in reader:
                reader.read(record), reader.read_packed(record)
            with contextlib.suppress(milblob.FormatError):
                reader.read(7)

    def kept_view():
        with milblob.BlobReader(blobs) as reader:
            return [reader.read(record) for record in reader]

    def write():
        with milblob.BlobWriter(folder / "new.bin") as writer:
            writer.write(floats)
            writer.write(np.ones(33, np.uint8), "uint3")

    def write_and_fail():
        with contextlib.suppress(OverflowError, milblob.MilblobError), milblob.BlobWriter(folder / "bad.bin") as writer:
            writer.write(np.full(33, 9, np.uint8), "uint3")

    def convert():
        milblob.write_weights({"a": floats}, folder / "w.safetensors.bin", listing=folder / "w.json", force=True)
        for tensor in milblob.load(folder / "w.json").values():
            assert tensor.size

    def edit():
        with milblob.open(changed, "r+") as model:
            model[name] = weight

    def tensor_values():
        milblob.unpack_tensor(values, "int32", (1050,))
        milblob.pack_tensor(floats)
        with contextlib.suppress(milblob.FormatError):
            milblob.unpack_tensor(values[:-1], "int32", (1050,))

    def npz():
        np.savez(folder / "a.npz", a=floats)
        with open_arrays(folder / "a.npz") as arrays:
            assert [arrays[key].read().size for key in arrays]

    def statistics():
        with milblob.open(package) as model:
            for tensor in model.values():
                milblob.statistics(tensor, histogram=True)

    def refit():
        milblob.refit(changed, {name: weight})

    def repack():
        milblob.repack(package, folder / "repacked.mlpackage", cast="float16", dedupe=True, gc=True, force=True)

    def params():
        milblob.tvm.write_params({"a": floats, "b": np.ones(3, bool)}, folder / "a.params", force=True)
        with milblob.tvm.read_params(folder / "a.params") as read:
            assert all(array.size for array in read.values())
        with contextlib.suppress(milblob.FormatError):
            milblob.tvm.read_params((folder / "a.params").read_bytes()[:-1])

    def archives():
        for data in (archive, tvm_archives.gzip_of(archive), archive[:9000]):
            milblob.tvm.check_archive(data)
        with milblob.tvm.open(archive) as library:
            library.with_params({"p0": library.modules["default"].params["p0"]}, folder / "a.tar", force=True)

    archive = tvm_archives.tar_of(tvm_archives.files_of())
    return [
        ("control: keeps an object", lambda: kept.append(object())), ("control: keeps 300 bytes", lambda: libc.malloc(300)),
        ("open, list, read: package", lambda: use_everything(package)), ("open, list, read: MIL text", lambda: use_everything(text)),
        ("open, list, read: split Program", lambda: use_everything(wire)), ("open, list, read: strings", lambda: use_everything(strings)),
        ("open: broken", lambda: errors_of(broken)), ("load", lambda: milblob.load(package)), ("load, mmap=False", lambda: milblob.load(package, mmap=False)),
        ("BlobReader", blob_reader), ("views that outlive the reader", kept_view), ("BlobWriter", write), ("BlobWriter that fails", write_and_fail),
        ("TensorValues", tensor_values), ("check", lambda: milblob.check(package, values=True)), ("check: broken", lambda: milblob.check(broken)),
        ("diff", lambda: milblob.diff(package, changed)), ("match", lambda: milblob.match(package, package)), ("statistics", statistics),
        ("content_hash", lambda: milblob.content_hash(package, dense=True)), ("listing", convert), ("npz", npz), ("edit", edit), ("refit", refit),
        ("repack", repack), ("dtypes", _codec.dtype_table), ("TVM: .params", params), ("TVM: archives", archives),
    ]  # fmt: skip


def main():
    """Print a line for each call; returns 1 if one keeps memory, or if one that should does not."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for words, call in calls(pathlib.Path(folder)):
            for _ in range(WARM):
                call()
            grown = []
            for number in range(ROUNDS + MORE_ROUNDS):
                before = in_use()
                for _ in range(CALLS):
                    call()
                grown.append([(now - then) / CALLS for now, then in zip(in_use(), before, strict=True)])
                blocks, nbytes = (min(column) for column in zip(*grown, strict=True))
                leaks = blocks >= BLOCKS or nbytes >= NBYTES
                if number + 1 >= ROUNDS and not leaks:
                    break
            failed += leaks != words.startswith("control")
            print(f"{words:34}{blocks:8.2f} blocks{nbytes:10.1f} bytes a call{'   LEAKS' if leaks else ''}", flush=True)
    return failed > 0


if __name__ == "__main__":
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Info
    sys.exit(main())
