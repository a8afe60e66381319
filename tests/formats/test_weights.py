"""write_weights, listings and `milblob pack`: coremltools reads the weight files; records have names."""

import gc
import json
import os
import random
import sys

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from blob_files import blob_file
from dtype_values import NUMPY
from milblob import DType, FormatError, ResolveError, write_weights
from milblob.model.listing import Row, identifiers, parse_listing, to_json, to_mil
from paths import DATA
from peers import WITHOUT

BLOB_DTYPES = [dtype for dtype in DType if dtype.blob_code is not None]
OTHERS = [dtype for dtype in DType if dtype.blob_code is None]


def one_of_each(seed=0):
    """One array of every dtype that weight files hold, with odd shapes; and the dtypes that must be named."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for number, dtype in enumerate(BLOB_DTYPES):
        shape = [(3, 5), (7,), (), (2, 1, 9), (1, 130)][number % 5]
        count = int(np.prod(shape))
        bits = np.frombuffer(rng.bytes(count * max(dtype.nbits, 8) // 8), np.uint8)
        if dtype.is_sub_byte:
            bits = bits & (1 << dtype.nbits) - 1
        arrays[str(dtype)] = bits.view(NUMPY[dtype.name]).reshape(shape)
    return arrays, {"uint3": "uint3", "uint6": "uint6"}


@pytest.mark.parametrize("listing", ["weight.json", "weight.mil"])
def test_every_dtype_is_found_by_name(listing, tmp_path):
    arrays, dtypes = one_of_each()
    offsets = write_weights(arrays, tmp_path / "weight.bin", listing=tmp_path / listing, dtypes=dtypes)
    assert list(offsets) == list(arrays)
    with milblob.open(tmp_path / listing) as model:
        assert list(model) == list(arrays)
        for name, array in arrays.items():
            tensor = model[name]
            assert (str(tensor.mil_dtype), tensor.shape, tensor.offset) == (name, array.shape, offsets[name])
            assert tensor.read().tobytes() == array.tobytes()
            assert tensor.read().dtype == array.dtype
    loaded = milblob.load(tmp_path / listing)
    assert {name: array.tobytes() for name, array in loaded.items()} == {n: a.tobytes() for n, a in arrays.items()}
    assert [f for f in milblob.check(tmp_path / listing) if f.severity != "note"] == []
    assert list(milblob.check(tmp_path / "weight.bin")) == []
    assert sorted(os.listdir(tmp_path)) == sorted(["weight.bin", listing])


def test_bytes_are_those_of_the_reference(tmp_path):
    arrays, dtypes = one_of_each(1)
    offsets = write_weights(arrays, tmp_path / "weight.bin", dtypes=dtypes)
    data, expected = blob_file(*[(name.upper(), array) for name, array in arrays.items()])
    assert (tmp_path / "weight.bin").read_bytes() == data
    assert list(offsets.values()) == expected


def test_coremltools_reads_at_the_listed_offsets(tmp_path, cli):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.libmilstoragepython import _BlobStorageReader

    from coremltools_view import WORDS

    arrays, _ = one_of_each(2)
    for name, array in arrays.items():
        if DType[name.upper()].is_sub_byte:
            array = array.view(np.uint8)
        elif name.startswith(("bfloat", "float8")):
            array = array.view(f"u{array.itemsize}")
        np.save(tmp_path / f"{name}.npy", array)
    options = [
        o
        for name in arrays
        if DType[name.upper()].is_sub_byte and name != "int4"
        for o in ("--dtype", f"{name}={name}")
    ]
    signed = arrays["int4"].astype(np.int8)
    np.save(tmp_path / "int4.npy", signed)
    files = sorted(str(tmp_path / f"{name}.npy") for name in arrays)
    out = tmp_path / "weight.bin"
    status, _, err = cli("convert", *files, "-o", out, *options, "--dtype", "int4=int4")
    assert status == 0, err
    rows = {row["name"]: row for row in json.loads((tmp_path / "weight.json").read_text())["tensors"]}
    reader = _BlobStorageReader(str(out))
    checked = 0
    for dtype, (word, _) in WORDS.items():
        array = arrays[dtype.lower()]
        theirs = np.asarray(getattr(reader, f"read_{word}_data")(rows[dtype.lower()]["offset"]))
        assert theirs.size == array.size
        expected = signed if dtype == "INT4" else array
        assert theirs.reshape(-1).tobytes() == np.ascontiguousarray(expected).tobytes(), dtype
        checked += 1
    assert checked == len(WORDS) > 10


def test_what_may_be_packed(cli, tmp_path):
    """npy files, npz, safetensors, directories, all in one."""
    np.save(tmp_path / "a.npy", np.arange(4, dtype=np.int32))
    np.savez(tmp_path / "b.npz", **{"layers.0/w": np.float16([1, 2]), "größe": np.uint8([3])})
    with milblob.open(DATA / "blob_sub_byte/weight.bin") as model:
        from milblob.formats import npy_dir, safetensors

        some = {name: model[name] for name in list(model)[:5]}
        npy_dir.save(some, str(tmp_path / "c"))
        safetensors.save({f"s{name}": tensor for name, tensor in some.items()}, str(tmp_path / "d.safetensors"))
        sources = [tmp_path / name for name in ("a.npy", "b.npz", "c", "d.safetensors")]
        status, out, err = cli("convert", *sources, "-o", tmp_path / "weight.bin", "--json")
        assert status == 0, err
        written = json.loads(out)
        assert written["listing"] == str(tmp_path / "weight.json")
        names = [row["name"] for row in written["tensors"]]
        assert names == ["a", "layers.0/w", "größe", *some, *(f"s{name}" for name in some)]
        with milblob.open(tmp_path / "weight.json") as packed:
            assert list(packed) == names
            assert packed["a"].read().tolist() == [0, 1, 2, 3]
            for name, tensor in some.items():
                for other in (packed[name], packed[f"s{name}"]):
                    assert other.mil_dtype is tensor.mil_dtype
                    assert other.read().tobytes() == tensor.read().tobytes()


def test_align(cli, tmp_path):
    np.savez(tmp_path / "a.npz", a=np.int8([1]), b=np.float32([2]), c=np.zeros(5000, np.uint16))
    assert cli("convert", tmp_path / "a.npz", "-o", tmp_path / "w.bin", "--align", 4096)[0] == 0
    with milblob.BlobReader(tmp_path / "w.bin") as blobs:
        assert [record.data_offset % 4096 for record in blobs] == [0, 0, 0]
    assert (
        "argument --align: invalid choice: 100"
        in cli("convert", tmp_path / "a.npz", "-o", tmp_path / "x.bin", "--align", 100)[2]
    )
    assert not (tmp_path / "x.bin").exists()


def test_dtypes_by_option(cli, tmp_path):
    np.savez(tmp_path / "a.npz", w0=np.uint8([1, 7]), w1=np.int64([-8, 7]), f=np.float32([1]))
    out = tmp_path / "w.bin"
    assert cli("convert", tmp_path / "a.npz", "-o", out, "--dtype", "w0=uint3", "--dtype", "w1=int4", "-q") == (
        0,
        "",
        "",
    )
    with milblob.open(tmp_path / "w.json") as model:
        assert [(str(t.mil_dtype), t.nbytes, t.read().tolist()) for t in model.values()] == [
            ("uint3", 1, [1, 7]), ("int4", 1, [-8, 7]), ("float32", 4, [1.0]),
        ]  # fmt: skip
    for option, words in {
        "w0": "expected NAME=DTYPE",
        "x*=uint4": "no tensor matches x*",
        "w0=uint5": "dtype: expected",
        "w0=uint2": "tensor w0: element 1: expected 0 to 3, got 7",
        "f=int8": "tensor f: array: expected elements of int8, got float32",
        "f=float64": "expected a dtype that weight files hold, got float64",
    }.items():
        status, _, err = cli(
            "convert",
            tmp_path / "a.npz",
            "-o",
            tmp_path / "x.bin",
            "-k",
            "[wf]*",
            "--dtype",
            "w1=int8",
            "--dtype",
            option,
        )
        assert status == 2 and words in err, err
        assert sorted(os.listdir(tmp_path)) == ["a.npz", "w.bin", "w.json"]


def test_what_weight_files_lack_is_named_or_left_out(cli, tmp_path):
    np.savez(
        tmp_path / "a.npz",
        steps=np.int64([1]),
        mask=np.array([True]),
        w=np.float16([1]),
        z=np.complex64([1j]),
        d=np.zeros(2),
    )
    status, _, err = cli("convert", tmp_path / "a.npz", "-o", tmp_path / "noted.bin", "-k", "[!z]*")
    assert status == 0
    assert "no Core ML model can use: steps (int64), mask (bool), d (float64)\n" in err
    assert cli("convert", tmp_path / "a.npz", "-o", tmp_path / "w.bin")[0] == 2  # MIL lacks complex numbers
    assert not (tmp_path / "w.bin").exists()
    status, out, err = cli("convert", tmp_path / "a.npz", "-o", tmp_path / "w.bin", "--skip-unsupported", "--json")
    assert status == 0
    assert list(json.loads(out)["skipped"]) == ["z", "steps", "mask", "d"]
    assert "left out: steps int64" in err and "left out: z" in err
    assert list(milblob.load(tmp_path / "w.json")) == ["w"]
    assert cli("convert", tmp_path / "a.npz", "-o", tmp_path / "v.bin", "--skip-unsupported", "-k", "mask")[0] == 2
    with pytest.raises(TypeError, match=r"float64 of 0, .* and 12 more"):
        write_weights({str(i): np.zeros(1) for i in range(20)}, tmp_path / "v.bin")
    with pytest.raises(TypeError, match="string of s"):
        write_weights({"s": ["text"]}, tmp_path / "v.bin")
    with pytest.raises(KeyError, match="dtypes: no tensor .w."):
        write_weights({}, tmp_path / "v.bin", dtypes={"w": "int8"})
    assert not (tmp_path / "v.bin").exists()


def test_names_that_clash(cli, tmp_path):
    np.savez(tmp_path / "a.npz", w=np.int8([1]))
    np.savez(tmp_path / "b.npz", w=np.int8([2]))
    assert (
        "expected each once, got w again"
        in cli("convert", tmp_path / "a.npz", tmp_path / "b.npz", "-o", tmp_path / "w.bin")[2]
    )


def test_strided_and_swapped_arrays(tmp_path):
    base = np.arange(600_000, dtype=">i4").reshape(1000, 600)
    arrays = {"t": base.T, "s": base[::3, ::-2], "list": np.int16([[1, 2], [3, 4]]), "f": np.asfortranarray(base)}
    write_weights(arrays, tmp_path / "w.bin", listing=tmp_path / "w.json")
    loaded = milblob.load(tmp_path / "w.json")
    for name, array in arrays.items():
        assert np.array_equal(loaded[name], array), name


# ------------------------------------------------------------------------------------------------- together or not at all


def test_both_or_neither(tmp_path, monkeypatch):
    target, listing = tmp_path / "w.bin", tmp_path / "w.json"
    arrays = {"a": np.int8([1])}

    def broken():
        raise OSError(28, "No space left on device")

    class Refuses:
        def __array__(self, *_, **__):
            broken()

    with pytest.raises(OSError):
        write_weights({"a": Refuses()}, target, listing=listing)
    assert os.listdir(tmp_path) == []
    listing.write_text("mine")
    with pytest.raises(FileExistsError):
        write_weights(arrays, target, listing=listing)
    assert os.listdir(tmp_path) == ["w.json"] and listing.read_text() == "mine"
    listing.unlink()
    target.write_text("mine")
    with pytest.raises(FileExistsError):
        write_weights(arrays, target, listing=listing)
    assert os.listdir(tmp_path) == ["w.bin"] and target.read_text() == "mine"
    target.unlink()
    from milblob.storage import output as files

    for step in ("complete", "named"):  # of the listing, and of the weights
        for suffix in (".json", ".bin"):
            real = getattr(files.NewFile, step)
            with monkeypatch.context() as patch:
                patch.setattr(
                    files.NewFile,
                    step,
                    lambda self, real=real, suffix=suffix: broken() if self.path.endswith(suffix) else real(self),
                )
                with pytest.raises(OSError, match="No space"):
                    write_weights(arrays, target, listing=listing)
            assert os.listdir(tmp_path) == []


def test_force_replaces_and_open_views_remain_valid(tmp_path):
    target, listing = tmp_path / "w.bin", tmp_path / "w.json"
    write_weights({"a": np.arange(9, dtype=np.int32)}, target, listing=listing)
    old = milblob.load(listing)["a"]
    with milblob.open(listing) as model:  # rewritten from itself
        write_weights({"b": model["a"], "c": np.int8([1])}, target, listing=listing, force=True)
    assert old.tolist() == list(range(9))
    assert {name: a.tolist() for name, a in milblob.load(listing).items()} == {"b": list(range(9)), "c": [1]}


def test_places_of_listings(tmp_path):
    (tmp_path / "weights").mkdir()
    target = tmp_path / "weights" / "w.bin"
    write_weights({"a": np.int8([1])}, target, listing=tmp_path / "w.json")
    assert json.loads((tmp_path / "w.json").read_text())["file"] == "weights/w.bin"
    assert milblob.load(tmp_path / "w.json")["a"].tolist() == [1]
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="expected a place beside"):
        write_weights({"a": np.int8([1])}, tmp_path / "v.bin", listing=tmp_path / "other" / "w.json")
    with pytest.raises(ValueError, match=r"ends in \.json or \.mil"):
        write_weights({"a": np.int8([1])}, tmp_path / "v.bin", listing=tmp_path / "w.txt")
    assert not (tmp_path / "v.bin").exists()


@pytest.mark.skipif(os.name == "nt", reason="POSIX names and links: what Windows calls so is not tested")
@pytest.mark.parametrize("suffix", [".json", ".mil"])
def test_listings_that_would_not_lead_to_their_weights(tmp_path, monkeypatch, suffix):
    """Refused before anything is written: one file for both, links that lead out, names that listings cannot spell."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "way").symlink_to("elsewhere/deep")
    (tmp_path / "out").symlink_to("elsewhere/w.bin")
    (tmp_path / f"is{suffix}").write_bytes(b"mine")
    (tmp_path / "is.bin").symlink_to(f"is{suffix}")
    (tmp_path / f"none{suffix}").symlink_to("none.bin")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "out.bin").symlink_to("../elsewhere/w.bin")
    before = sorted(tmp_path.rglob("*"))
    for weights, listing in [
        (f"l{suffix}", "l"), (f"./l{suffix}", "l"), ("is.bin", "is"), ("none.bin", "none"), ("w.bin", "way/../l"), ("w.bin", "way/l"),
        ("here/out.bin", "here/l"), ("a\\b.bin", "l"), ("c:d.bin", "l"), ("here/c:/../w\\.bin", "l"), ("\udcff.bin", "l"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r"^listing .*: expected (another file|a place beside)"):
            write_weights({"a": np.int8([1])}, weights, listing=f"{listing}{suffix}", force=True)
        assert sorted(tmp_path.rglob("*")) == before and (tmp_path / f"is{suffix}").read_bytes() == b"mine"
    for weights, listing in [
        ("..w.bin", "l"),
        ("way/../w.bin", "way/../l"),
        ("here/../w.bin", "here/../l"),
        ("x\n.bin", "x\n"),
    ]:
        write_weights({"a": np.int8([1])}, weights, listing=f"{listing}{suffix}", force=True)
        assert milblob.load(f"{listing}{suffix}")["a"].tolist() == [1]


# ------------------------------------------------------------------------------------------------------------- listings


def test_the_two_forms(tmp_path):
    rows = [Row("a", DType.FLOAT16, (2, 3), 64), Row("b.0", DType.UINT3, (), 192)]
    assert to_json("w.bin", rows) == (
        '{"format": "milblob", "file": "w.bin", "tensors": [\n'
        ' {"name": "a", "dtype": "float16", "shape": [2, 3], "offset": 64, "nbytes": 12},\n'
        ' {"name": "b.0", "dtype": "uint3", "shape": [], "offset": 192, "nbytes": 1}\n'
        "]}\n"
    )
    assert parse_listing(to_json("w.bin", rows), None) == ("w.bin", rows, None)
    assert parse_listing(to_json("w.bin", []), None) == ("w.bin", [], None)
    text = to_mil("w.bin", rows)
    assert (
        'tensor<fp16, [2, 3]> a = const()[name = tensor<string, []>("a"), val = tensor<fp16, [2, 3]>(BLOBFILE('
        'path = tensor<string, []>("@model_path/w.bin"), offset = tensor<uint64, []>(64)))];\n'
    ) in text
    assert "tensor<uint3, []> b_0 = const()" in text


NAMES = [
    "w",
    "layers.0.w",
    "layers_0_w",
    "0",
    "",
    "a b",
    "a/b",
    "größe",
    "program",
    "tensor",
    "const",
    'a"b\\c\nd\te\rf',
    "x" * 3000,
    "@",
    "a@b",
    "_1",
    "日本",
]


def test_names_in_mil_text(tmp_path):
    names = NAMES[:4] + NAMES[5:]
    arrays = {name: np.int32([i]) for i, name in enumerate(names)}
    write_weights(arrays, tmp_path / "w.bin", listing=tmp_path / "w.mil")
    with milblob.open(tmp_path / "w.mil") as model:
        assert list(model) == identifiers(names)
        assert [tensor.read().tolist() for tensor in model.values()] == [[i] for i in range(len(names))]
        ops = next(iter(next(iter(model.program.functions.values())).block_specializations.values())).operations
        assert [op.attributes["name"].immediateValue.tensor.strings.values[0] for op in ops] == names
    write_weights(arrays, tmp_path / "v.bin", listing=tmp_path / "v.json")
    assert list(milblob.load(tmp_path / "v.json")) == names


def test_identifiers_are_unique():
    draw = random.Random(5)
    for _ in range(200):
        names = list({"".join(draw.choice("ab_.1@") for _ in range(draw.randint(0, 4))) for _ in range(60)})
        found = identifiers(names)
        assert len(set(found)) == len(names)
        for name, identifier in zip(names, found, strict=True):
            assert identifier.isascii() and identifier[0] in "ab_"
            assert identifier == name or not (name and name[0] in "ab_" and "." not in name)


def document(**changes):
    row = {"name": "w", "dtype": "int32", "shape": [3], "offset": 64, "nbytes": 12, **changes}
    return {"format": "milblob", "file": "w.bin", "tensors": [{k: v for k, v in row.items() if v is not ...}]}


BAD = {
    **{f"name {v!r}": document(name=v) for v in (..., "", 3, None, "\ud800")},
    **{f"dtype {v!r}": document(dtype=v) for v in (..., "int64", "float5", 3, None, [], {})},
    **{f"shape {v!r}": document(shape=v) for v in (..., 3, [-1], [3.0], [True], ["3"], None, [1 << 64])},
    **{f"offset {v!r}": document(offset=v) for v in (..., -1, 1 << 64, 64.0, "64", None, True)},
    **{f"nbytes {v!r}": document(nbytes=v) for v in (11, "12", None)},
    "note": document(note=[]),
    "file": {**document(), "file": 3},
    "tensors": {**document(), "tensors": {}},
    "row": {**document(), "tensors": [3]},
    "twice": {**document(), "tensors": document()["tensors"] * 2},
}


@pytest.mark.sample(18)
@pytest.mark.parametrize("what", BAD)
def test_hostile_listings(what, tmp_path):
    path = tmp_path / "w.json"
    path.write_text(json.dumps(BAD[what]))
    with pytest.raises(FormatError) as caught:
        milblob.open(path)
    assert caught.value.file == str(path)
    assert any(finding.severity == "error" for finding in milblob.check(path))


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "milblob"',
        '{"format": "milblob", "format": "milblob"}',
        '{"format": "milblob", "x": ' + "[" * 100_000,
    ],
)
def test_listings_that_are_no_json(text, tmp_path):
    (tmp_path / "w.json").write_text(text)
    with pytest.raises(FormatError, match="^listing"):
        milblob.open(tmp_path / "w.json")


@pytest.mark.parametrize("file", ["../w.bin", "/etc/passwd", "link.bin", "C:w.bin", "a\0b", "sub/../../w.bin"])
def test_listings_do_not_lead_outside(file, tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    write_weights({"w": np.arange(3, dtype=np.int32)}, tmp_path / "w.bin")
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "w.json").write_text(json.dumps({**document(), "file": file}))
    with milblob.open(folder / "w.json") as model, pytest.raises((ResolveError, FormatError)):
        model["w"].read()


def test_listings_that_lie_about_records(tmp_path):
    write_weights({"w": np.arange(3, dtype=np.int32)}, tmp_path / "w.bin")
    for changes in ({"dtype": "float32"}, {"shape": [4], "nbytes": 16}, {"offset": 128}, {"offset": 1 << 63}):
        (tmp_path / "w.json").write_text(json.dumps(document(**changes)))
        with milblob.open(tmp_path / "w.json") as model:
            assert list(model) == ["w"]
            with pytest.raises(milblob.MilblobError):
                model["w"].read()
        with pytest.raises(milblob.MilblobError):
            milblob.load(tmp_path / "w.json")
        assert [f for f in milblob.check(tmp_path / "w.json") if f.severity == "error"]
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.json").write_text(json.dumps(document()))
    with milblob.open(tmp_path / "w.json") as model, pytest.raises(ResolveError, match="no such file"):
        model["w"].read()


def test_a_listing_from_memory_has_names_and_no_values(tmp_path):
    with milblob.open(json.dumps(document()).encode()) as model:
        assert (list(model), model.kind, model["w"].shape) == (["w"], "listing", (3,))
        with pytest.raises(ResolveError, match="got a buffer"):
            model["w"].read()


def test_listing_loads_no_more_than_it_lists(tmp_path):
    """Other records of the file are not named, and a record may have two names."""
    data, offsets = blob_file(("INT8", np.int8([1, 2])), ("BFLOAT16", np.ones(4).astype(ml_dtypes.bfloat16)))
    (tmp_path / "w.bin").write_bytes(data)
    rows = [Row("a", DType.BFLOAT16, (2, 2), offsets[1]), Row("b", DType.BFLOAT16, (4,), offsets[1])]
    (tmp_path / "w.json").write_text(to_json("w.bin", rows))
    loaded = milblob.load(tmp_path / "w.json")
    assert {name: array.shape for name, array in loaded.items()} == {"a": (2, 2), "b": (4,)}
    assert np.shares_memory(loaded["a"], loaded["b"])
    assert reference.DTYPES["BFLOAT16"][0] == DType.BFLOAT16.blob_code


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux counts descriptors: a leaked one is not seen here"
)
def test_convert_leaves_no_open_file(cli, tmp_path):
    np.savez(tmp_path / "a.npz", w=np.int8([1]))
    gc.collect()  # what other tests left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert cli("convert", tmp_path / "a.npz", "-o", tmp_path / "w.bin", "--force")[0] == 0
        assert cli("convert", tmp_path / "a.npz", "-o", tmp_path / "w.bin")[0] == 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_every_dtype_that_mil_has_is_one_of_the_two_kinds():
    assert {dtype.name for dtype in OTHERS} == {"BOOL", "STRING", "FLOAT64", "INT64", "UINT64"}
    assert len(BLOB_DTYPES) == 17
