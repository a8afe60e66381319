"""milblob convert: from every format to every other and back, the same bits."""

import json
import os
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import milblob
from cases import MODEL_CASES, load_case
from children import SANITIZED, run_fork
from hostile_bytes import Sparse
from milblob import DType
from milblob.formats import read
from paths import DATA
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

DEMO = str(DATA.parents[1] / "examples" / "demo.mlpackage")
TARGETS = ["x.npz", "x.safetensors", "x/", "x.bin"]


def values(source, constants=False, stored=False):
    """name -> (dtype, shape, bits) of a model, or of what convert made of one."""
    if read.is_array_file(str(source)):
        with read.open_arrays(source) as arrays:
            return {name: described(array) for name, array in arrays.items()}
    with milblob.open(source, constants=constants, stored=stored) as model:
        return {name: described(tensor) for name, tensor in model.items()}


def described(tensor):
    array = tensor.read()
    bits = array.reshape(-1).tolist() if array.dtype == object else array.tobytes()
    return str(tensor.mil_dtype), array.shape, bits


def readable(path):
    """What convert reads again of what it wrote: of a weight file, its listing."""
    path = str(path).rstrip("/")
    return path[:-4] + ".json" if path.endswith(".bin") else path


@pytest.mark.parametrize("target", some(TARGETS, 5))
@pytest.mark.parametrize(
    "source",
    [
        "blob_all_dtypes/weight.bin",
        "blob_sub_byte/weight.bin",
        "blob_empty/weight.bin",
        "immediates/model.mlmodel",
        "immediates_odd/model.mlmodel",
    ],
)
def test_there_and_back(source, target, cli, tmp_path):
    """Every dtype, through each format, to a weight file and to npz again."""
    options = ["--constants"] if "immediates" in source else []
    expected = values(DATA / source, constants=bool(options))
    there = f"{tmp_path}/{target}"
    assert cli("convert", DATA / source, "-o", there, *options)[0] == 0
    with read.open_arrays(readable(there)) as arrays:
        assert {name: described(array) for name, array in arrays.items()} == expected
    for number, back in enumerate(["y.bin", "y.safetensors", "y.npz"]):
        assert cli("convert", readable(there), "-o", tmp_path / back, "-q") == (0, "", ""), number
        with read.open_arrays(readable(tmp_path / back)) as arrays:
            assert {name: described(array) for name, array in arrays.items()} == expected


def test_those_are_all_22_dtypes():
    seen = {
        row[0]
        for name in ("immediates", "immediates_odd")
        for row in values(DATA / name / "model.mlmodel", True).values()
    }
    seen |= {row[0] for row in values(DATA / "blob_all_dtypes/weight.bin").values()}
    assert seen == {str(dtype) for dtype in DType}


@pytest.mark.parametrize(
    "case", some([name for name in MODEL_CASES if "wire" not in name and "pipeline" not in name], 10)
)
def test_models(case, cli, tmp_path):
    """Of every sample, all that is stored; and back as a weight file with the names of the model."""
    path = load_case(case).path()
    expected = values(path, stored=True)
    if not expected:
        assert cli("convert", path, "-o", tmp_path / "x.safetensors", "--stored")[0] == 2
        return
    assert cli("convert", path, "-o", tmp_path / "x.safetensors", "--stored")[0] == 0
    assert cli("convert", tmp_path / "x.safetensors", "-o", tmp_path / "x.bin")[0] == 0
    assert cli("convert", tmp_path / "x.json", "-o", tmp_path / "x.npz")[0] == 0
    assert values(tmp_path / "x.npz") == expected
    assert [f for f in milblob.check(tmp_path / "x.json") if f.severity != "note"] == []


def test_two_runs_give_the_same_bytes(cli, tmp_path):
    for target in ("npz", "safetensors", "bin"):
        for number in "12":
            assert cli("convert", DATA / "blob_all_dtypes/weight.bin", "-o", tmp_path / f"{number}.{target}")[0] == 0
        assert (tmp_path / f"1.{target}").read_bytes() == (tmp_path / f"2.{target}").read_bytes()


def test_records_become_those_of_the_first_file_again(cli, tmp_path):
    """A file that coremltools wrote, to npz and back: the same, byte for byte, but for the hash that its listing has."""
    case = load_case("opset_ios18_fp16")
    weights = next(path for path in case.folder.rglob("weight.bin") if "mlpackage" in str(path))
    assert cli("convert", weights, "-o", tmp_path / "x.npz")[0] == 0
    assert cli("convert", tmp_path / "x.npz", "-o", tmp_path / "weight.bin")[0] == 0
    data, before = (tmp_path / "weight.bin").read_bytes(), weights.read_bytes()
    assert data[:8] + bytes(32) + data[40:] == before
    document = json.loads((tmp_path / "weight.json").read_text())
    assert (document["nbytes"], document["hash"]) == (len(before), data[8:40].hex())
    with milblob.open(weights) as model:
        milblob.write_weights(model, tmp_path / "alone.bin")
    assert (tmp_path / "alone.bin").read_bytes() == before


def test_their_own_libraries_read_it(cli, tmp_path):
    path = tmp_path / "weight.bin"
    with milblob.BlobWriter(path) as blobs:
        for array in (
            np.float32([1.5, -2]),
            np.arange(3).astype(ml_dtypes.bfloat16),
            np.arange(7).astype(ml_dtypes.float8_e5m2),
        ):
            blobs.write(array)
        blobs.write(np.uint8([1, 2, 3, 7]), "uint3")
    assert (
        cli("convert", path, "-o", tmp_path / "x.npz", "-q")[0]
        == cli("convert", path, "-o", tmp_path / "x.safetensors", "-q")[0]
        == 0
    )
    with np.load(tmp_path / "x.npz") as found:
        assert found["#0"].tolist() == [1.5, -2]
        assert found["#1"].view(ml_dtypes.bfloat16).tolist() == [0, 1, 2]
        packed = found["#3"].tolist()
    assert packed == [0b11_010_001, 0b1110]
    with safetensors.safe_open(tmp_path / "x.safetensors", "numpy") as found:
        assert found.get_slice("#1").get_dtype() == "BF16"
        assert found.get_slice("#2").get_dtype() == "F8_E5M2"
        assert found.get_tensor("#0").tolist() == [1.5, -2]
        assert found.get_tensor("#3").tolist() == packed
        assert json.loads(found.metadata()["milblob"])["#3"] == {"dtype": "uint3", "shape": [4], "packed": True}


def test_what_weight_files_lack_is_kept_with_a_note(cli, tmp_path):
    arrays = {
        "i": np.int64([-1, 1 << 40]),
        "b": np.array([True, False]),
        "t": np.array([["a", "größe\n"]]),
        "d": np.float64(0.1),
        "u": np.zeros((0, 3), np.uint64),
        "w": np.float16([1]),
    }
    np.savez(tmp_path / "x.npz", **arrays)
    assert cli("convert", tmp_path / "x.npz", "-o", tmp_path / "x.bin")[0] == 0
    with milblob.open(tmp_path / "x.json") as model:  # as they are stored
        assert {str(tensor.mil_dtype) for tensor in model.values()} == {"uint8", "float16"}
    assert cli("convert", tmp_path / "x.json", "-o", tmp_path / "y.npz")[0] == 0
    assert values(tmp_path / "y.npz") == values(tmp_path / "x.npz")
    assert cli("convert", tmp_path / "x.json", "-o", tmp_path / "z.npz")[0] == 0
    with np.load(tmp_path / "z.npz") as found:
        assert found["i"].tolist() == arrays["i"].tolist() and found["d"] == 0.1
    status, _, err = cli("convert", tmp_path / "x.npz", "-o", tmp_path / "v.bin", "--listing", tmp_path / "v.mil")
    assert status == 2 and "a listing in JSON has room for it" in err
    assert not [name for name in os.listdir(tmp_path) if name.startswith("v")]
    document = json.loads((tmp_path / "x.json").read_text())
    document["tensors"][0]["note"]["shape"] = [3]
    (tmp_path / "x.json").write_text(json.dumps(document))
    assert (
        "in the note of i: expected what uint8 [16] holds packed"
        in cli("convert", tmp_path / "x.json", "-o", tmp_path / "v.npz")[2]
    )


def test_choices(cli, tmp_path):
    functions = DATA / "functions/model.mlpackage"
    with milblob.open(functions) as model:
        names = [name for name, tensor in model.items() if tensor.function == next(iter(model.functions))]
        assert 0 < len(names) < len(model)
        assert cli("convert", functions, "-o", tmp_path / "f.npz", "-f", next(iter(model.functions)))[0] == 0
    assert list(values(tmp_path / "f.npz")) == names
    assert cli("convert", DEMO, "-o", tmp_path / "a.safetensors", "-k", "head_*", "-q") == (0, "", "")
    assert list(values(tmp_path / "a.safetensors")) == ["head_bias", "head_weight"]
    status, out, err = cli("convert", tmp_path / "a.safetensors", "-o", tmp_path / "a.bin", "-k", "*_bias", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "path": str(tmp_path / "a.safetensors"), "output": str(tmp_path / "a.bin"),
        "tensors": [{"name": "head_bias", "dtype": "float32", "shape": [96], "nbytes": 384}], "nbytes": 384,
        "listing": str(tmp_path / "a.json"), "widened": [], "noted": [], "skipped": {}, "unmatched": [],
    }  # fmt: skip
    assert (
        cli("convert", DEMO, "-o", tmp_path / "b.npz", "-k", "head_bias", "-v")[2].splitlines()[0]
        == "milblob: head_bias float32 [96]"
    )


def test_refusals(cli, tmp_path):
    npz = tmp_path / "a.npz"
    np.savez(npz, w=np.int8([1]))
    palette = DATA / "palette_4bit/model.mlpackage"
    before = npz.read_bytes()
    for argv, words in {
        (npz, npz, "--force"): "expected a place outside",
        (npz, tmp_path / "x.txt"): "expected .safetensors, .npz, .params, .bin or a directory",
        (npz, tmp_path / "x.npz", "-f", "main"): "expected a model, which function is about",
        (npz, tmp_path / "x.npz", "--stored"): "expected a model, which constants and stored are about",
        (npz, tmp_path / "x.npz", "-k", "v*"): f"-k v*: no tensor in {npz} matches",
        (npz, tmp_path / "x.mlpackage"): "expected a file of arrays, got a model; `milblob repack MODEL -o` writes one",
        (npz, tmp_path / "x.npz", "--align", "4096"): "expected a weight file",
        (npz, tmp_path / "x.npz", "--listing", "y.json"): "expected a weight file",
        (npz, tmp_path / "x.bin", "--listing", npz, "--force"): "expected a place outside",
        (npz, tmp_path / "none" / "x.bin"): "expected a directory",
        (palette, palette / "x.bin"): "expected a place outside",
        (tmp_path / "none.npz", tmp_path / "x.bin"): "No such file",
    }.items():
        source, target, *options = argv
        status, _, err = cli("convert", source, "-o", target, *options)
        assert status == 2 and words in err, (argv, err)
    assert os.listdir(tmp_path) == ["a.npz"] and npz.read_bytes() == before
    assert cli("convert", npz, "-o", tmp_path / "x.bin")[0] == 0
    assert "already exists (use --force to replace it)" in cli("convert", npz, "-o", tmp_path / "x.bin")[2]
    assert cli("convert", npz, "-o", tmp_path / "x.bin", "--force")[0] == 0
    assert cli("convert", palette, "-o", tmp_path / "dense.npz")[0] == 0
    assert values(tmp_path / "dense.npz") == values(palette)
    assert cli("convert", palette, "-o", tmp_path / "p.npz", "--stored")[0] == 0
    assert values(tmp_path / "p.npz") == values(palette, stored=True)


def test_both_forms_of_narrow_dtypes_are_read(cli, tmp_path):
    """--unpack puts one element into a byte; both forms come back as the same tensors."""
    source = DATA / "blob_sub_byte/weight.bin"
    assert cli("convert", source, "-o", tmp_path / "e.npz", "--unpack")[0] == 0
    assert cli("convert", source, "-o", tmp_path / "c.npz")[0] == 0
    assert values(tmp_path / "e.npz") == values(tmp_path / "c.npz") == values(source)
    with np.load(tmp_path / "e.npz") as loose, np.load(tmp_path / "c.npz") as tight:
        assert {a.shape for a in tight.values()} != {a.shape for a in loose.values()}
        notes = json.loads(str(loose["__milblob__"]))
        assert all(set(note) == {"dtype"} for note in notes.values())


# -------------------------------------------------------------------------------------------------------------- memory

NBYTES = sized(64, 256) << 20
LIMIT = sized(24, 100) << 20
CHILD = """
    import resource
    import milblob, milblob.cli, safetensors.numpy, zipfile, zlib, milblob.formats.npz, milblob.formats.safetensors
    def anonymous():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    limit = anonymous() + int(sys.argv.pop())
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        bytearray(150 << 20)
        raise SystemExit("the limit does not hold")
    except MemoryError:
        pass
    sys.exit(milblob.cli.main(["convert", "-q", sys.argv[1], "-o", *sys.argv[2:]]))
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or SANITIZED,
    reason="RLIMIT_DATA counts mappings on Linux only, and ASan's: memory is not limited here",
)
def test_large_tensors_are_never_in_memory(tmp_path):
    """256 MiB in two tensors, one of them packed nibbles, with 100 MiB of memory: every way but compressed npz.

    In `make test` 64 MiB with 24: less than one tensor has.
    """
    data, _ = milblob_file([("INT4", NBYTES // 2), ("FLOAT16", NBYTES // 2)])
    source = tmp_path / "s.bin"
    data.write(source)
    for there in ("a.npz", "a.safetensors", "a"):
        run_fork(CHILD, source, tmp_path / there, LIMIT)
        run_fork(CHILD, tmp_path / there, tmp_path / "b.bin", "--force", LIMIT)
        assert os.path.getsize(tmp_path / "b.bin") >= NBYTES
        with milblob.open(source) as first, milblob.open(tmp_path / "b.json") as second:
            for name in first:
                mine, theirs = first[name].read_packed(), second[name].read_packed()
                assert mine.size == theirs.size == NBYTES // 2
                assert mine[-4096:].tobytes() == theirs[-4096:].tobytes() != bytes(4096)
        for path in (tmp_path / there, tmp_path / "b.bin"):
            if path.is_dir():
                for name in os.listdir(path):
                    (path / name).unlink()
            else:
                path.unlink()


def milblob_file(records):
    """A weight file that is sparse on disk; data of (dtype, nbytes), zeros but for the last 4096 bytes."""
    import reference

    pieces, offsets, at = [reference.write_blobs([])[0][:64]], [], 64
    head = bytearray(pieces[0])
    head[0:4] = len(records).to_bytes(4, "little")
    pieces = [bytes(head)]
    for dtype, nbytes in records:
        code = reference.DTYPES[dtype][0]
        metadata = (0xDEADBEEF).to_bytes(4, "little") + code.to_bytes(4, "little") + nbytes.to_bytes(8, "little")
        metadata += (at + 64).to_bytes(8, "little") + bytes(40)
        pieces += [metadata, nbytes - 4096, bytes(range(1, 256)) * 16 + bytes(16)]
        offsets.append(at)
        at += 64 + nbytes
        assert at % 64 == 0
    return Sparse(*pieces), offsets
