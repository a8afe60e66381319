"""repack(decompress=True): compressed weights become dense constants, to the bit what coremltools decompresses them to."""

import concurrent.futures
import shutil
import struct

import numpy as np
import pytest

import milblob
import reference
from cases import DENSE_CASES, dense_rows
from constexpr_bytes import code, constexpr, value
from dtype_values import assert_same
from hostile_bytes import Sparse, blob_value, field, model, operation, program, write_package
from milblob.rewrite import execute
from paths import DATA
from peers import WITHOUT
from repacking import FILE, WEIGHTS, findings, measured_repack, record_values, references, tree, value_type
from thorough import sized

pytestmark = pytest.mark.usefixtures("unsynced")


def dense_copy(source, target, **options):
    return milblob.repack(source, target, decompress=True, **options)


@pytest.mark.parametrize("case", DENSE_CASES)
def test_every_case(case, tmp_path):
    """All weights, dense and to the bit; nothing is left of their parts, and everything else stays."""
    source, target = DATA / case / "model.mlpackage", tmp_path / "out.mlpackage"
    expected = dense_rows(case)
    report = dense_copy(source, target)
    assert report.counts()["decompress"] == sum(name in expected for name in milblob.load(source))
    before, after = milblob.load(source), milblob.load(target)
    assert list(before) == list(after)
    for name, (row, array) in expected.items():
        assert_same(after[name], array, row["dtype"])
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)
    with milblob.open(target, stored=True) as opened:
        assert all(not tensor.compression for tensor in opened.values())
        assert set(opened) == set(before)  # no part is left
        assert {tensor.op for name, tensor in opened.items() if name in expected} == {"const"}
    assert findings(target) == []  # such as a record that nothing refers to
    assert len({offset for _, offset in references(target).values()}) == len(record_values(target / FILE))
    found = milblob.diff(source, target, select=lambda name: True)
    assert found.is_same and {row.kind for row in found.rows} <= {"same", "stored"}
    assert dense_copy(target, tmp_path / "again.mlpackage").counts() == {}
    assert tree(tmp_path / "again.mlpackage") == tree(target)


@pytest.mark.parametrize("case", DENSE_CASES)
def test_coremltools_loads_it(case, tmp_path):
    """PyMIL infers the same types, and has the dense values where the compressed weight was."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools_view import weights_of

    target = tmp_path / "out.mlpackage"
    dense_copy(DATA / case / "model.mlpackage", target)
    expected = dense_rows(case)
    found = weights_of(pymil_of(target))
    for name, (row, array) in expected.items():
        op, _, values = found[name]
        assert op == "const"
        assert_same(np.asarray(values), array, row["dtype"])


def pymil_of(path):
    """coremltools' own program. It opens a copy: it writes to what it opens."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    copy = shutil.copytree(path, path.parent / "theirs.mlpackage")
    loaded = ct.models.MLModel(str(copy), skip_model_load=True)
    spec = loaded.get_spec()
    return load(spec, spec.specificationVersion, file_weights_dir=loaded.weights_dir)


# -------------------------------------------------------------------------------------------------------------- options


def test_some_of_them(tmp_path):
    source, target = DATA / "palette_4bit" / "model.mlpackage", tmp_path / "out.mlpackage"
    with milblob.open(source) as opened:
        names = [name for name, tensor in opened.items() if tensor.compression]
    assert len(names) > 1
    report = dense_copy(source, target, select=names[0])
    assert [change.name for change in report.changed if "decompress" in change.actions] == names[:1]
    with milblob.open(target) as opened:
        assert [name for name, tensor in opened.items() if tensor.compression] == names[1:]
    before, after = milblob.load(source), milblob.load(target)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_report_and_dry_run(tmp_path):
    source, target = DATA / "quant_int8" / "model.mlpackage", tmp_path / "out.mlpackage"
    planned = dense_copy(source, target, dry_run=True)
    assert not target.exists()
    steps = []
    report = dense_copy(source, target, progress=lambda *step: steps.append(step))
    assert [repr(c) for c in planned.changes] == [repr(c) for c in report.changes]
    assert planned.nbytes_after == report.nbytes_after > report.nbytes
    ((file, _, _),) = report.files
    assert report.nbytes_after == sum(len(data) for _, _, data in record_values(target / file))
    assert steps[-1][1] == steps[-1][2]
    rows = {row["name"]: row for row in report.to_dict()["tensors"] if "decompress" in row["actions"]}
    with milblob.open(target) as opened:
        for name, row in rows.items():
            assert (row["offset_after"], row["nbytes_after"]) == (opened[name].offset, opened[name].nbytes)


@pytest.mark.parametrize("options", [
    {"align": 4096}, {"canonical": True}, {"dedupe": True}, {"split": 4096}, {"merge": True}, {"inline": 64}, {"externalize": 1}, {"gc": True},
])  # fmt: skip
def test_with_other_options(options, tmp_path):
    source, target = DATA / "optimize_ios18" / "model.mlpackage", tmp_path / "out.mlpackage"
    dense_copy(source, target, **options)
    before, after = milblob.load(source), milblob.load(target, constants=True)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    with milblob.open(target) as opened:
        assert not any(tensor.compression for tensor in opened.values())
    assert findings(target) == []


def test_any_executor_and_in_place(tmp_path):
    source = DATA / "sparse_palette" / "model.mlpackage"
    dense_copy(source, tmp_path / "a.mlpackage")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        dense_copy(source, tmp_path / "b.mlpackage", executor=pool)
    own = shutil.copytree(source, tmp_path / "c.mlpackage")
    dense_copy(own, own, force=True)
    assert tree(tmp_path / "a.mlpackage") == tree(tmp_path / "b.mlpackage") == tree(own)


# ------------------------------------------------------------------------------------------------------- made by hand


def package(folder, *operations, files=()):
    return write_package(folder, model(program(*operations)), files)


def lut(name, palette, indices, **more):
    parts = {"indices": ("UINT1", indices), "lut": ("FLOAT16", palette), **more}
    return constexpr("lut_to_dense", [(name, "FLOAT16", indices.shape)], parts)


PALETTE = np.array([1.5, -2.5], np.float16).reshape(1, 1, 2, 1)
BITS = np.array([[0, 1, 1], [1, 0, 1]], np.uint8)
DENSE = np.where(BITS, np.float16(-2.5), np.float16(1.5))


def reader(name, *of):
    """An operation that reads constants."""
    body = field(1, "custom_layer")
    for number, source in enumerate(of):
        body += field(2, field(1, f"x{number}") + field(2, field(1, field(1, source))))
    return body + field(3, field(1, name) + field(2, value_type(10, [2, 3])))


def test_operation_that_another_one_and_the_model_read(tmp_path):
    """An inner operation of a chain that something else reads too becomes dense itself."""
    scale = ("FLOAT16", np.full((1, 1), 2, np.float16))
    outer = constexpr("blockwise_shift_scale", [("w", "FLOAT16", (2, 3))], {"data": "q", "scale": scale})
    inner = constexpr(
        "lut_to_dense", [("q", "INT8", (2, 3))],
        {"indices": ("UINT1", BITS), "lut": ("INT8", np.array([3, -4], np.int8).reshape(1, 1, 2, 1))},
    )  # fmt: skip
    quantized = np.where(BITS, np.int8(-4), np.int8(3))
    source = package(tmp_path, inner, outer, reader("y", "w", "q"))
    dense_copy(source, tmp_path / "both.mlpackage")
    found = milblob.load(tmp_path / "both.mlpackage", constants=True)
    assert (found["w"] == quantized * 2.0).all() and (found["q"] == quantized).all()
    # If only the inner one is asked for, the outer one computes from what it has become.
    dense_copy(source, tmp_path / "inner.mlpackage", select="q")
    with milblob.open(tmp_path / "inner.mlpackage", constants=True) as opened:
        assert opened["w"].compression and (opened["w"].read() == quantized * 2.0).all()
    dense_copy(source, tmp_path / "outer.mlpackage", select="w")
    with milblob.open(tmp_path / "outer.mlpackage", constants=True, stored=True) as opened:
        assert opened["w"].op == "const" and opened["q.indices"].op == "constexpr_lut_to_dense"
    # Read by nothing but the outer one, it goes.
    alone = package(tmp_path / "alone", inner, outer, reader("y", "w"))
    dense_copy(alone, tmp_path / "w.mlpackage")
    assert list(milblob.load(tmp_path / "w.mlpackage")) == ["w"]
    with milblob.open(tmp_path / "w.mlpackage", constants=True, stored=True) as opened:
        assert not [name for name in opened if name.startswith("q")]


def test_const_operations_that_are_parts(tmp_path):
    """One that only the weight reads goes; one that the model reads too stays."""

    def const(name, dtype, array):
        return operation(
            "const", name, [("val", value(dtype, array))], output_type=value_type(code(dtype), array.shape)
        )

    ops = (
        const("palette", "FLOAT16", PALETTE), const("bits", "UINT1", BITS),
        constexpr("lut_to_dense", [("w", "FLOAT16", (2, 3))], {"indices": "bits", "lut": "palette"}),
    )  # fmt: skip
    for name, readers, left in (("one", ["w"], {"w"}), ("two", ["w", "palette"], {"w", "palette"})):
        source = package(tmp_path / name, *ops, reader("y", *readers))
        dense_copy(source, tmp_path / f"{name}.mlpackage")
        with milblob.open(tmp_path / f"{name}.mlpackage", constants=True, stored=True) as opened:
            assert {n for n, t in opened.items() if t.op == "const"} == left
            assert (opened["w"].read() == DENSE).all()


def test_weights_of_the_same_parts_are_one_record(tmp_path):
    """As in two functions that share a weight."""
    source = package(tmp_path, lut("a", PALETTE, BITS), lut("b", PALETTE, BITS), lut("c", PALETTE * 2, BITS))
    report = dense_copy(source, tmp_path / "out.mlpackage")
    assert [count for _, count, _ in report.files] == [2]
    found = milblob.load(tmp_path / "out.mlpackage")
    assert (found["a"] == DENSE).all() and (found["b"] == DENSE).all() and (found["c"] == DENSE * 2).all()


def test_model_file_alone_keeps_them_inside(tmp_path):
    path = tmp_path / "m.mlmodel"
    path.write_bytes(model(program(lut("w", PALETTE, BITS), reader("y", "w"))))
    dense_copy(path, tmp_path / "out.mlmodel")
    with milblob.open(tmp_path / "out.mlmodel", constants=True) as opened:
        assert not opened["w"].is_blob and (opened["w"].read() == DENSE).all()


def test_what_is_refused(tmp_path):
    source, target = DATA / "quant_int8" / "model.mlpackage", tmp_path / "out.mlpackage"
    with pytest.raises(ValueError, match="without cast"):
        dense_copy(source, target, cast="float16")
    with pytest.raises(milblob.UnsupportedError, match="decompress"):
        dense_copy(source / FILE, tmp_path / "out.bin")
    broken = package(tmp_path, lut("w", np.ones((1, 1, 4, 1), np.float16), BITS))
    with pytest.raises(milblob.FormatError, match=r"2 entries.*got 4.*'w'"):
        dense_copy(broken, target)
    unknown = package(
        tmp_path / "unknown", constexpr("hexagon", [("w", "FLOAT16", (2, 3))], {"indices": ("UINT1", BITS)})
    )
    with pytest.raises(milblob.UnsupportedError, match="hexagon"):
        dense_copy(unknown, target)
    assert not target.exists() and sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == []


def test_large_weights_in_pieces(tmp_path, monkeypatch):
    """Pieces of any size: packed elements, vectors of a palette, a mask."""
    monkeypatch.setattr(execute, "TASK_NBYTES", 64)
    for case in ("matrix_palettes", "matrix_chains", "sparse_palette"):
        source = DATA / case / "model.mlpackage"
        dense_copy(source, tmp_path / f"{case}.mlpackage")
        before, after = milblob.load(source), milblob.load(tmp_path / f"{case}.mlpackage")
        assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_little_memory(tmp_path):
    """64M elements of int8 (`make thorough`: 256M) become 128 MiB of float16 (512), in pieces."""
    rows, columns = sized(1 << 12, 1 << 14), 1 << 14
    count = rows * columns
    data = blob_value(21, [rows, columns], WEIGHTS, 64)
    scale = ("FLOAT16", np.full((1, 1), 0.5, np.float16))
    op = constexpr("blockwise_shift_scale", [("w", "FLOAT16", (rows, columns))], {"data": "d", "scale": scale})
    const = operation("const", "d", [("val", data)], output_type=value_type(21, [rows, columns]))
    source = write_package(tmp_path, model(program(const, op)))
    (source / FILE).parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack("<II56x", 1, 2) + struct.pack("<IIQQ40x", reference.SENTINEL, 4, count, 128)
    Sparse(header, count - 4, b"\x01\x02\xfe\x7f").write(source / FILE)
    target = tmp_path / "out.mlpackage"
    assert measured_repack(source, target, decompress=True)["decompress"] == 1
    with milblob.open(target) as opened:
        assert opened["w"].op == "const" and opened["w"][-1, -5:].tolist() == [0, 0.5, 1, -1, 63.5]
        assert not opened["w"][: rows // 2].any()
    shutil.rmtree(source), shutil.rmtree(target)


def test_selecting_nothing_is_not_selecting_everything(tmp_path):
    with pytest.raises(ValueError, match=r"^select: expected a glob or several, got none"):
        dense_copy(DATA / "quant_int8" / "model.mlpackage", tmp_path / "out.mlpackage", select=[])
    assert not list(tmp_path.iterdir())
