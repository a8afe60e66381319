"""How much is made of the files of a model, in all: what is beyond the budget is refused, and a caller can allow it."""

import itertools
import json
import struct
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

import hostile_bytes
import milblob
import tvm_archives
from children import run_fork
from constexpr_bytes import code, constexpr
from hostile_bytes import blob_value, const, function, immediate, model, program, write_package
from hostile_chains import vectors
from milblob import budget
from milblob.cli import main
from milblob.formats.read import open_arrays
from paths import DATA
from thorough import some

MIB = 1 << 20
LIMITED = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has RLIMIT_AS and /proc: memory that hostile input takes is not limited here",
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """So that the models of these tests can be small."""
    monkeypatch.setattr(budget, "MIN_NBYTES", 1 << 16)
    monkeypatch.setattr(budget, "MAX_GROWTH", 16)


def weight_file(path, arrays):
    with milblob.BlobWriter(path) as blobs:
        return [blobs.write(array) for array in arrays]


def aliases(folder, count, nbytes, dtype="FLOAT16", spelled=lambda i: "", overlapping=False):
    """A package of many constants that are one record; or of a record each, whose data are the same but for 64 bytes."""
    array = np.zeros(nbytes // 2, np.float16) if dtype == "FLOAT16" else np.zeros(nbytes * 4, ml_dtypes.uint2)
    file = folder / "made.bin"
    (offset,) = weight_file(file, [array])
    data = file.read_bytes()
    places = [(offset, array.size)] * count
    if overlapping:
        head, record, values = data[:64], data[64:128], data[128:]
        start = 64 * (count + 1)
        records = [record[:8] + struct.pack("<QQ", nbytes - 64 * i, start + 64 * i) + record[24:] for i in range(count)]
        data = head + b"".join(records) + values
        places = [(64 * (i + 1), (nbytes - 64 * i) // 2) for i in range(count)]
    ops = [
        const(blob_value(code(dtype), [size], f"@model_path/{spelled(i)}weights/weight.bin", at), f"w{i}")
        for i, (at, size) in enumerate(places)
    ]
    body = hostile_bytes.field(1, 1) + function(ops).replace(b"CoreML7", b"CoreML8")
    return write_package(folder, model(body, 9), {"weight.bin": data})


REFUSED = (
    r"values in all: expected at most \d+ bytes made of \d+ bytes stored, got \d+ bytes or more; "
    r"max_nbytes \(--max-nbytes\) allows more"
)


def test_the_numbers(monkeypatch):
    """docs/security.md names them; a caller's own limit counts instead."""
    monkeypatch.undo()
    assert (budget.MIN_NBYTES, budget.MAX_GROWTH) == (1 << 30, 256)
    text = (DATA.parent.parent / "docs" / "security.md").read_text("utf-8")
    assert "256 times" in text and "1 GiB" in text
    one = budget.Budget()
    assert one.max_nbytes == 1 << 30
    one.add_file(None, 1 << 23)
    assert one.max_nbytes == 1 << 31
    assert budget.Budget(5).max_nbytes == 5


def test_a_file_counts_once(tmp_path):
    """By whatever name: links make no file larger."""
    file, link, hard = (tmp_path / name for name in ("a", "b", "c"))
    file.write_bytes(bytes(100))
    link.symlink_to(file)
    hard.hardlink_to(file)
    one = budget.Budget()
    for path in (file, link, hard, file):
        one.add_file(str(path), 100)
    assert one.stored_nbytes == 100


def test_what_is_spent():
    """Each key once; what does not fit is not counted, so that what is smaller still has room."""
    one = budget.Budget(100)
    for key, nbytes in (("a", 60), ("a", 60), ("b", 40)):
        one.spend(key, nbytes)
    with pytest.raises(milblob.LimitError, match=r"expected at most 100 bytes .* got 101 bytes or more"):
        one.spend("c", 1)
    other = budget.Budget(100)
    with pytest.raises(milblob.LimitError):
        other.spend("a", 101)
    other.spend("b", 100)


@pytest.mark.parametrize("wrong", [1.5, "1G", -1])
def test_a_limit_that_is_none(wrong):
    with pytest.raises((TypeError, ValueError), match="max_nbytes: expected"):
        milblob.open(model(program()), max_nbytes=wrong)


CALLS = {
    "load": lambda path, out, **how: milblob.load(path, **how),
    "open": lambda path, out, **how: [t.read() for t in milblob.open(path, **how).values()],
    "out": lambda path, out, **how: [t.read(out=np.empty(t.shape, t.dtype)) for t in milblob.open(path, **how).values()],
    "statistics": lambda path, out, **how: [milblob.statistics(t) for t in milblob.open(path, **how).values()],
    "statistics of a path": lambda path, out, **how: milblob.statistics(path, **how),
    "content_hash": lambda path, out, **how: milblob.content_hash(path, dense=True, **how),
    "diff": lambda path, out, **how: milblob.diff(path, other_values(path), **how),
    "match": lambda path, out, **how: milblob.match(path, other_values(path), **how),
    "decompress": lambda path, out, **how: milblob.repack(path, out / "d.mlmodel", decompress=True, force=True, **how),
    "write_weights": lambda path, out, **how: milblob.write_weights(dict(milblob.open(path, **how)), out / "w.bin", force=True),
}  # fmt: skip


def other_values(path):
    """Arrays with the names and shapes of a model, every element another one: nothing is seen without decoding."""
    with milblob.open(path) as opened:
        return {name: np.full(t.shape, 3, t.dtype) for name, t in opened.items()}


@pytest.mark.every
@pytest.mark.parametrize("call", CALLS)
def test_decoded_values(tmp_path, call):
    """Many weights of which each is small enough, and all together are not; max_nbytes allows them."""
    path = tmp_path / "m.mlmodel"
    path.write_bytes(vectors(40, 2048, 1 << 10))
    with pytest.raises(milblob.LimitError, match=REFUSED):
        CALLS[call](path, tmp_path)
    assert CALLS[call](path, tmp_path, max_nbytes=1 << 30) is not None


@pytest.mark.parametrize("call", ["load", "statistics", "content_hash", "diff"])
def test_values_between(tmp_path, call):
    """What is computed on the way counts too, for each weight that it is computed for."""
    path = tmp_path / "m.mlmodel"
    path.write_bytes(vectors(2, 1024, 1 << 12, inner=True))
    with pytest.raises(milblob.LimitError, match=REFUSED):
        CALLS[call](path, tmp_path)


def test_levels_count_together(tmp_path):
    """A chain whose every level is 4096 times the one before has no more room than one level."""
    path = tmp_path / "m.mlmodel"
    zero = ("INT32", np.zeros((), np.int32))
    ops, size = [], 64
    for i in range(3):
        indices = ("UINT8", np.zeros(size, np.uint8)) if not i else f"w{i - 1}"
        size *= 1 << 8
        parts = {"indices": indices, "lut": ("UINT8", np.ones((1, 256, 1 << 8), np.uint8)), "vector_axis": zero}
        ops.append(constexpr("lut_to_dense", [(f"w{i}", "UINT8", (size,))], parts))
    path.write_bytes(model(program(*ops), 9))
    with milblob.open(path) as opened, pytest.raises(milblob.LimitError, match=REFUSED):
        opened["w2"].read()


READERS = {
    "statistics": lambda path, out, **how: main(["stats", str(path), *flags(how)]),
    "content_hash": lambda path, out, **how: main(["hash", str(path), *flags(how)]),
    "diff": lambda path, out, **how: main(["diff", str(path), str(out / "other.npz"), *flags(how)]),
    "match": lambda path, out, **how: main(["match", str(path), str(out / "other.npz"), *flags(how)]),
    "check": lambda path, out, **how: main(["check", "--values", str(path), *flags(how)]),
    "npz": lambda path, out, **how: main(["convert", str(path), "-o", str(out / "x.npz"), *flags(how)]),
    "safetensors": lambda path, out, **how: main(["convert", str(path), "-o", str(out / "x.safetensors"), *flags(how)]),
    "npy": lambda path, out, **how: main(["convert", str(path), "-o", str(out / "x") + "/", *flags(how)]),
    "params": lambda path, out, **how: main(["convert", str(path), "-o", str(out / "x.params"), *flags(how)]),
    "weights": lambda path, out, **how: main(["convert", str(path), "-o", str(out / "x.bin"), *flags(how)]),
    "show": lambda path, out, **how: main(["show", str(path), "w0", *flags(how)]),
}  # fmt: skip


def flags(how):
    return [word for key, text in how.items() for word in (f"--{key.replace('_', '-')}", str(text))]


WRITERS = ("diff", "npz", "safetensors", "npy", "params", "weights")


@pytest.mark.every
@pytest.mark.parametrize("call", READERS)
def test_one_record_under_many_names(tmp_path, capsys, call):
    """Looked at once by what can remember it; where that is no help, refused. The option is the same everywhere."""
    path = aliases(tmp_path, 300, 1 << 14)
    np.savez(tmp_path / "other.npz", **{f"w{i}": np.ones(1 << 13, "<f2") for i in range(300)})
    status = READERS[call](path, tmp_path)
    words = capsys.readouterr().err
    if call in WRITERS:
        assert status == 2 and "values in all: expected at most" in words and words.count("\n") == 1
        assert READERS[call](path, tmp_path, max_nbytes="1G") in (0, 1)
    else:
        assert status in (0, 1) and not words, words
        small = READERS[call](path, tmp_path, max_nbytes="1K")
        got = capsys.readouterr()
        assert "expected at most 1K" in got.err + got.out and (small == 2 or call == "check")


def test_one_record_is_looked_at_once(tmp_path, monkeypatch):
    """Not 200 times; and the figures of each tensor have its own shape."""
    path = aliases(tmp_path, 200, 1 << 12)
    seen = []
    whole = milblob.analysis.statistics._of_pieces
    monkeypatch.setattr(milblob.analysis.statistics, "_of_pieces", lambda *a: seen.append(1) or whole(*a))
    with milblob.open(path) as opened:
        found = list(milblob.analysis.statistics.statistics_of(opened.values()))
    assert len(found) == 200 and len(set(found)) == 1 and len(seen) <= 4


def test_one_file_spelled_in_many_ways(tmp_path):
    """It is mapped once, and makes the budget no larger."""
    path = aliases(tmp_path, 200, 1 << 12, spelled=lambda i: "./" * i)
    with milblob.open(path) as opened:
        assert all(tensor.read().size == 1 << 11 for tensor in opened.values())
        assert len(opened.package.mappings) == 2
        assert opened.package.budget.stored_nbytes == sum(
            f.stat().st_size for f in path.rglob("*") if f.is_file() and f.name != "Manifest.json"
        )


@pytest.mark.parametrize("call", ["load", "diff"])
def test_sub_byte_values_of_one_record(tmp_path, call):
    """They are unpacked for each name: eight bits for two."""
    path = aliases(tmp_path, 300, 1 << 14, dtype="UINT2")
    with pytest.raises(milblob.LimitError, match=REFUSED):
        CALLS[call](path, tmp_path)


def test_views_cost_nothing(tmp_path):
    """`load` of one record under many names hands out views: nothing is made, so nothing counts."""
    path = aliases(tmp_path, 300, 1 << 14)
    assert len(milblob.load(path, max_nbytes=0)) == 300


def test_reading_again_costs_nothing(tmp_path):
    """A caller that reads a tensor in each of many rounds has no budget to think of."""
    path = tmp_path / "m.mlmodel"
    path.write_bytes(vectors(1, 16, 1 << 10))
    with milblob.open(path, max_nbytes=30_000) as opened:
        for _ in range(50):
            assert opened["w0"].read().size == 1 << 14
            assert milblob.statistics(opened["w0"]).count == 1 << 14


def test_a_model_keeps_its_limit(tmp_path):
    """An open model, and what is opened again for it, has the limit that it was opened with."""
    path = tmp_path / "m.mlmodel"
    path.write_bytes(vectors(2, 64, 1 << 10))
    with milblob.open(path, max_nbytes=1000) as opened:
        for call in (milblob.load, milblob.content_hash):
            with pytest.raises(milblob.LimitError, match="at most 1000 bytes"):
                call(path, max_nbytes=1000) if call is milblob.load else call(opened, dense=True)
        with pytest.raises(milblob.LimitError, match="at most 1000 bytes"):
            milblob.diff(opened, other_values(path))
    with milblob.open(path, "r+", max_nbytes=1000) as opened, pytest.raises(milblob.LimitError):
        opened["w0"].read()


def test_check_reports_what_it_did_not_look_at(tmp_path):
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(program(const(immediate(11, [10], hostile_bytes.FLOATS)))))
    assert list(milblob.check(path, values=True)) == []
    (found,) = milblob.check(path, values=True, max_nbytes=5)
    assert (found.severity, found.code) == ("warning", "limit") and "expected at most 5 bytes" in found.message


@pytest.mark.parametrize("call", ["statistics", "content_hash", "diff", "match", "npz", "weights"])
def test_records_that_overlap(tmp_path, capsys, call):
    """Nothing can be remembered of these: each begins elsewhere in the same bytes."""
    path = aliases(tmp_path, 400, 1 << 16, overlapping=True)
    np.savez(tmp_path / "other.npz", **{f"w{i}": np.ones((1 << 15) - 32 * i, "<f2") for i in range(400)})
    assert READERS[call](path, tmp_path) == 2
    assert "values in all: expected at most" in capsys.readouterr().err
    assert READERS[call](path, tmp_path, max_nbytes="1G") in (0, 1)


@pytest.mark.parametrize("how", ["repack", "merge"])
def test_records_that_overlap_are_not_written_apart(tmp_path, how):
    path = aliases(tmp_path, 400, 1 << 16, overlapping=True)
    new = tmp_path / "new.mlpackage"
    call = {"repack": lambda **more: milblob.repack(path, new, canonical=True, **more),
            "merge": lambda **more: milblob.merge_functions([path], new, **more)}[how]  # fmt: skip
    with pytest.raises(milblob.LimitError, match=REFUSED):
        call()
    assert not new.exists()
    call(max_nbytes=1 << 30)
    assert len(milblob.load(new)) == 400


@pytest.mark.parametrize("kind", ["directory", "listing", "tensor cache"])
def test_one_array_under_many_names(tmp_path, capsys, kind):
    """An index, a listing or a tensor cache that has many names for one file or record."""
    rows = [{"dtype": "float16", "shape": [1 << 13], "name": f"w{i}"} for i in range(300)]
    if kind == "directory":
        np.save(tmp_path / "a.npy", np.zeros(1 << 13, "<f2"))
        document = {"format": "milblob", "tensors": {row["name"]: {"file": "a.npy", **row} for row in rows}}
        source, target = tmp_path, tmp_path / "index.json"
    elif kind == "tensor cache":
        (tmp_path / "shard.bin").write_bytes(bytes(1 << 14))
        rows = [row | {"format": "raw", "byteOffset": 0, "nbytes": 1 << 14} for row in rows]
        shard = {"dataPath": "shard.bin", "format": "raw-shard", "nbytes": 1 << 14, "records": rows}
        document = {"metadata": {}, "records": [shard]}
        source = target = tmp_path / "tensor-cache.json"
    else:
        (offset,) = weight_file(tmp_path / "a.bin", [np.zeros(1 << 13, "<f2")])
        document = {"format": "milblob", "file": "a.bin", "tensors": [row | {"offset": offset} for row in rows]}
        source = target = tmp_path / "a.json"
    target.write_text(json.dumps(document))
    out = tmp_path.parent / f"{tmp_path.name}.safetensors"
    assert main(["convert", str(source), "-o", str(out)]) == 2
    assert "values in all" in capsys.readouterr().err
    assert main(["convert", str(source), "-o", str(out), "--max-nbytes", "100M", "-q"]) == 0


@pytest.mark.parametrize("kind", ["params", "tar", "directory"])
@pytest.mark.parametrize("call", [call for call in READERS if call != "check"])
def test_files_of_tvm_have_the_limit_of_all_others(tmp_path, capsys, kind, call):
    """Parameters that are looked through, or written elsewhere, count; a list of them does not."""
    path = tmp_path / ("m" if kind == "directory" else f"m.{kind}")
    arrays = {f"w{i}": np.arange(1 << 12, dtype=np.float32) + i for i in range(2)}
    if kind == "params":
        milblob.tvm.write_params(arrays, path)
    else:
        files = tvm_archives.files_of() | {"parameters/default.params": tvm_archives.params_of(arrays)}
        tvm_archives.make(path, files, kind)
    np.savez(tmp_path / "other.npz", **arrays)
    assert READERS[call](path, tmp_path, max_nbytes="8K") == 2
    assert "expected at most 8K" in capsys.readouterr().err
    assert READERS[call](path, tmp_path, max_nbytes="1M") == 0
    assert main(["ls", str(path), "--max-nbytes", "8K"]) == 0


METHODS = {"deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}


def zipped(path, arrays, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [0, 1, 5000, 1 << 17])
def test_members_of_every_compression_are_read(tmp_path, method, size):
    """Bit for bit what NumPy reads, in both orders of memory."""
    rng = np.random.default_rng(size)
    arrays = {
        "a": rng.integers(0, 5, size).astype("<f4"),
        "b": np.asfortranarray(rng.random((3, size // 3))),
        "c": np.array(7, "<i8"),
    }
    zipped(tmp_path / "a.npz", arrays, METHODS[method])
    with open_arrays(tmp_path / "a.npz", max_nbytes=1 << 25) as found, np.load(tmp_path / "a.npz") as theirs:
        for name in arrays:
            assert found[name].read().tobytes() == theirs[name].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_members_of_every_compression_have_a_budget(tmp_path, method):
    """Each member fits, all together do not; before memory is taken for one."""
    path = tmp_path / "a.npz"
    arrays = {f"a{i}": np.zeros(1 << 18, np.uint8) for i in range(40)}
    zipped(path, arrays, METHODS[method])
    with open_arrays(path) as found:
        read = itertools.count()
        with pytest.raises(milblob.LimitError, match=REFUSED):
            for name in found:
                found[name].read()
                next(read)
    assert next(read) < 40
    with open_arrays(path, max_nbytes=1 << 25) as found:
        assert all(not found[name].read().any() for name in found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["short", "broken", "sum"])
def test_broken_members_of_every_compression(tmp_path, method, how):
    path = tmp_path / "a.npz"
    zipped(path, {"a": np.arange(10_000, dtype="<i4")}, METHODS[method])
    data = bytearray(path.read_bytes())
    if how == "sum":  # in the central directory
        data[data.rindex(b"PK\1\2") + 16] ^= 1
    elif how == "broken":
        data[200:220] = bytes(20)
    else:
        at = data.rindex(b"PK\1\2") + 20
        data[at : at + 4] = (int.from_bytes(data[at : at + 4], "little") // 2).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(milblob.FormatError), open_arrays(path, max_nbytes=1 << 20) as found:
        found["a"].read()


PRELUDE = """
    import io, pathlib, tempfile, zipfile
    import numpy as np
    import milblob
    from children import peak_rss_nbytes
    from milblob.formats.read import open_arrays
    path = pathlib.Path(tempfile.mkdtemp()) / "a.npz"
    method = getattr(zipfile, "ZIP_" + sys.argv[1].upper().replace("DEFLATE", "DEFLATED"))

    def head(descr, shape):
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
        return stream.getvalue()

    def write(name, head, nbytes):
        with zipfile.ZipFile(path, "w", method) as archive, archive.open(name, "w", force_zip64=True) as member:
            member.write(head)
            zeros = bytes(1 << 20)
            for _ in range(nbytes >> 20):
                member.write(zeros)
"""


@LIMITED
@pytest.mark.parametrize("method", some(METHODS, 1))
def test_a_member_that_becomes_gigabytes(method):
    """256 MiB of a few hundred kilobytes at most: the header alone is unpacked, and then the rest is refused."""
    code_of = """
    write("a.npy", head("|u1", (1 << 28,)), 1 << 28)
    before = peak_rss_nbytes()
    with open_arrays(path, max_nbytes=1 << 20) as found:
        array = found["a"]
        assert array.shape == (1 << 28,)
        try:
            array.read()
        except milblob.LimitError as error:
            assert "max_nbytes" in str(error) and path.stat().st_size < 1 << 20
        else:
            raise AssertionError
    print((peak_rss_nbytes() - before) >> 20)
    """
    assert int(run_fork(PRELUDE + code_of, method, timeout=240, memory_nbytes=1500 * MIB)) < 100


@LIMITED
@pytest.mark.parametrize("method", some([*METHODS, "stored"], 1))
def test_notes_that_become_gigabytes(method):
    """The notes of milblob are read when a file is opened: they are one string, of a bounded size."""
    code_of = """
    before = 0
    for descr, shape in (("<U50000000", ()), ("<U16", (1 << 20,)), ("|u1", (1 << 27,))):
        start = head(descr, shape)
        count = np.dtype(descr).itemsize * int(np.prod(shape))
        with zipfile.ZipFile(path, "w", method) as archive, archive.open("__milblob__.npy", "w", force_zip64=True) as member:
            member.write(start)
            left = count
            while left:
                member.write(bytes(min(left, 1 << 20)))
                left -= min(left, 1 << 20)
        before = before or peak_rss_nbytes()
        try:
            open_arrays(path)
        except milblob.FormatError as error:
            assert "expected one string of at most 16777216 characters" in str(error), error
        else:
            raise AssertionError(descr)
    print((peak_rss_nbytes() - before) >> 20)
    """
    assert int(run_fork(PRELUDE + code_of, method, timeout=240, memory_nbytes=1500 * MIB)) < 100


@LIMITED
def test_a_dictionary_larger_than_its_member():
    """LZMA names the size of its dictionary, for which memory is taken at once: no more is than the member has bytes."""
    code_of = """
    write("a.npy", head("|u1", (1000,)) + bytes(1000), 0)
    data = bytearray(path.read_bytes())
    at = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    data[at + 5 : at + 9] = b"\\xff" * 4
    path.write_bytes(data)
    with open_arrays(path) as found:
        assert found["a"].read().tolist() == [0] * 1000
    """
    run_fork(PRELUDE + code_of, "lzma", timeout=60, memory_nbytes=1000 * MIB)


@LIMITED
def test_six_gigabytes_of_a_small_file():
    """The default, as it is: 135 KB that become 6 GiB, one at a time."""
    code_of = """
    import milblob
    from children import peak_rss_nbytes
    from hostile_chains import vectors
    data = vectors(6, 1 << 14, 1 << 15)
    assert len(data) < 1 << 19
    try:
        milblob.load(data)
    except milblob.LimitError as error:
        assert "expected at most 1073741824 bytes" in str(error)
        print("refused")
    """
    assert run_fork(code_of, timeout=120, memory_nbytes=3 << 30).strip() == "refused"
