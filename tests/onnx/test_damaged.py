"""What `check` calls an error though it breaks no rule of MIL: files that lie about themselves are not converted."""

import os
import shutil
import struct

import pytest

import milblob
import milblob.onnx
from paths import ROOT

DEMO = ROOT / "examples" / "demo.mlpackage"
FIRST = 64  # where the first record's metadata begin


def weight(package):
    return next(package.rglob("weight.bin"))


def put(kind, at, number):
    """A change of one number in the weight file."""

    def change(package):
        data = bytearray(weight(package).read_bytes())
        struct.pack_into(kind, data, at, number)
        weight(package).write_bytes(data)

    return change


def replace(content):
    return lambda package: weight(package).write_bytes(content)


def truncate(package):
    data = weight(package).read_bytes()
    weight(package).write_bytes(data[: len(data) // 2])


def escape(package):
    outside = shutil.move(weight(package), package.parent / "elsewhere.bin")
    os.symlink(outside, package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin")


def overlap(package):
    """The second record's data begin where the first one's do."""
    data = bytearray(weight(package).read_bytes())
    nbytes, start = struct.unpack_from("<QQ", data, FIRST + 8)
    second = start + -(-nbytes // 64) * 64
    struct.pack_into("<Q", data, second + 16, start)
    weight(package).write_bytes(data)


# Code of the finding: what damages a sound package.
DAMAGES = [
    ("empty-file", replace(b"")),
    ("header", replace(b"\1\0\0\0")),
    ("version", put("<I", 4, 1)),
    ("record-count", put("<I", 0, 1)),
    ("record-count", put("<I", 0, 1 << 31)),
    ("sentinel", put("<I", FIRST, 0)),
    ("dtype-code", put("<I", FIRST + 4, 99)),
    ("dtype-mismatch", put("<I", FIRST + 4, 14)),
    ("bounds", put("<Q", FIRST + 8, 1 << 60)),
    ("bounds", put("<Q", FIRST + 16, 1 << 60)),
    ("size-mismatch", put("<Q", FIRST + 8, 64)),
    ("bounds", truncate),
    ("overlap", overlap),
    ("missing-file", lambda package: weight(package).unlink()),
    ("lfs-pointer", replace(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n")),
    ("manifest", lambda package: (package / "Manifest.json").write_text("{")),
    ("missing-file", lambda package: next(package.rglob("*.mlmodel")).unlink()),
    ("escaping-file", escape),
]


@pytest.mark.parametrize("mode", ["reference", "copy", "embed"])
@pytest.mark.parametrize(("code", "damage"), DAMAGES, ids=[f"{n}-{code}" for n, (code, _) in enumerate(DAMAGES)])
def test_what_check_calls_an_error_is_not_converted(code, damage, mode, tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    damage(package)
    findings = [finding for finding in milblob.check(package) if finding.severity == "error"]
    assert code in {finding.code for finding in findings}
    before = sorted(os.listdir(tmp_path))
    with pytest.raises((milblob.MilblobError, FileNotFoundError)) as caught:
        milblob.onnx.convert(package, tmp_path / "demo.onnx", weights=mode)
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before
