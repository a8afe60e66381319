"""Emitting and repacking: byte-identical where nothing is asked for; resources once, unused ones gone, casts that are sound."""

import functools

import numpy as np
import pytest

import milblob
import mlir_bytes as m
from bundles import FOLDER, NAMES, bundle, copy_of, is_hashed
from milblob import FormatError, ProgramError
from milblob.aimodel import Asset
from milblob.aimodel.emit import Emitter, varint, views
from milblob.storage import journal

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(6)
def test_parsing_and_emitting_gives_the_same_bytes(name):
    with Asset(bundle(name)) as asset:
        data = b"".join(map(bytes, views(asset.mapping, Emitter(asset.program.bytecode).pieces())))
    assert data == (FOLDER / f"{name}.aimodel" / "main.mlirb").read_bytes()


def test_numbers_have_their_shortest_form():
    for bits in range(65):
        for number in {max((1 << bits) - 1, 0), min(1 << bits, (1 << 64) - 1)}:
            assert varint(number) == m.varint(number)


def test_a_copy_is_the_same_file(tmp_path):
    report = milblob.repack(bundle("functions_f32"), tmp_path / "out.aimodel")
    assert report.done and not report.changed and report.nbytes == report.nbytes_after
    for path in (FOLDER / "functions_f32.aimodel").iterdir():
        assert (tmp_path / "out.aimodel" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(FileExistsError):
        milblob.repack(bundle("functions_f32"), tmp_path / "out.aimodel")


def test_equal_resources_are_stored_once(tmp_path):
    folder = copy_of("functions_f32", tmp_path)
    old = milblob.load(folder)
    first = "main/broadcasting_batch_matmul_0.y"
    milblob.refit(folder, {first: old[first] + 1}, unshare=True)
    apart = (folder / "main.mlirb").stat().st_size
    milblob.refit(folder, {first: old[first]})
    for dry_run in (True, False):
        report = milblob.repack(folder, folder, dedupe=True, dry_run=dry_run, force=True)
        assert report.counts() == {"deduplicate": 1} and report.nbytes - report.nbytes_after == old[first].nbytes
    assert (folder / "main.mlirb").stat().st_size <= apart - old[first].nbytes and is_hashed(folder)
    assert all(array.tobytes() == old[name].tobytes() for name, array in milblob.load(folder).items())
    assert not [row for row in milblob.check(folder) if row.severity != "note"]


def test_resources_that_nothing_refers_to_are_dropped(tmp_path):
    (tmp_path / "x.mlirb").write_bytes(m.resource_file(is_used=False))
    report = milblob.repack(tmp_path / "x.mlirb", tmp_path / "y.mlirb", gc=True)
    assert report.files[0][1] == 0 and (tmp_path / "y.mlirb").stat().st_size < (tmp_path / "x.mlirb").stat().st_size
    assert list(milblob.check(tmp_path / "y.mlirb")) == []


def cast_file(reader):
    """A file whose float32 resource is read by one operation, which returns float16; Apple's converters fold such casts."""
    names = (*m.TEXTS, reader)
    dialect = m.varint(1) + m.varint(1) + m.section(7, m.varint(2)) + m.varint(5) + m.varint(0) + m.varint(5)
    dialect += b"".join(m.varint(number << 1 | 1) for number in (1, 2, 3, 4, 9))
    half = m.varint(2) + m.varint(2) + m.varint(4) + m.varint(10) + m.varint(4)
    types = [*m.TYPES, half, m.varint(7)]
    ops = [
        m.op(m.CONSTANT, properties=1, results=(0,)),
        m.op(4, results=(3,), operands=(1,)),
        m.op(m.OUTPUT, operands=(2,)),
    ]
    ir = m.graph_ops(inner=m.region(3, m.block(*ops, arguments=(0,))))
    return m.resource_file(texts=names, types=types, ir=ir, parts={1: dialect})


def test_a_cast_changes_only_what_casts_read(tmp_path):
    (tmp_path / "x.mlirb").write_bytes(cast_file(b"primitive.cast_v1"))
    old = milblob.load(tmp_path / "x.mlirb")["main/output_0.0"]
    report = milblob.repack(tmp_path / "x.mlirb", tmp_path / "y.mlirb", cast="float16", overflow="inf")
    assert report.counts() == {"cast": 1} and (report.nbytes, report.nbytes_after) == (40, 20)
    with milblob.open(tmp_path / "y.mlirb") as asset:
        (tensor,) = asset.values()
        assert tensor.dtype_text == "f16" and tensor.shape == old.shape
        np.testing.assert_array_equal(tensor.read(), old.astype(np.float16))
    assert list(milblob.check(tmp_path / "y.mlirb")) == []
    (tmp_path / "z.mlirb").write_bytes(cast_file(b"relu_v1"))
    for path in (tmp_path / "z.mlirb", bundle("linear_f32")):
        with pytest.raises(ProgramError, match=r"expected constants that only casts read.*\(read by "):
            milblob.repack(
                path, tmp_path / f"other{path[-8:] if isinstance(path, str) else '.mlirb'}", cast={"float32": "float16"}
            )
    assert not list(tmp_path.glob("other*"))


@pytest.mark.parametrize(
    "options",
    [{"merge": True}, {"align": 4096}, {"canonical": True}, {"externalize": 10}, {"cast": {"bfloat16": "float16"}}],
)
def test_options_that_bundles_have_no_use_for(options, tmp_path):
    with pytest.raises(ValueError, match="for a bundle of Core AI"):
        milblob.repack(bundle("linear_f32"), tmp_path / "out.aimodel", **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(6)
def test_every_bundle_can_be_repacked_and_keeps_its_values(name, tmp_path):
    """Also those of the first release, which have locations in MLIR's own encoding."""
    milblob.repack(bundle(name), tmp_path / "out.aimodel", dedupe=True, gc=True)
    options = {"constants": True, "stored": True}
    with Asset(bundle(name), **options) as old, Asset(tmp_path / "out.aimodel", **options) as new:
        assert list(old) == list(new)
        for tensor in old.values():
            if (name, tensor.dtype_text) != ("bare_f16_fp4_mx", "f4E2M1FN"):  # one byte for each value: not read
                assert tensor.read().tobytes() == new[tensor.name].read().tobytes()


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        (m.varint(7) + m.varint(9), r"expected the number of a blob among 1 resources, got \[9\]"),
        (m.varint(7), r"expected the number of a blob among 1 resources, got \[\]"),
        (m.varint(7) + m.varint(0) + m.varint(0), r"expected the number of a blob among 1 resources, got \[0, 0\]"),
    ],
)
@pytest.mark.parametrize("options", [{"gc": True}, {"dedupe": True}])
def test_an_attribute_that_names_no_resource_is_refused(attribute, words, options, tmp_path):
    attributes = (m.varint(7) + m.varint(0), *m.ATTRIBUTES[1:], attribute)
    data = m.resource_file(parts={2: b"".join((*attributes, *m.TYPES)), 3: m.offsets(attributes)})
    (tmp_path / "x.mlirb").write_bytes(data)
    with pytest.raises(FormatError, match=words):
        milblob.repack(tmp_path / "x.mlirb", tmp_path / "y.mlirb", **options)
    assert not (tmp_path / "y.mlirb").exists()


@pytest.mark.parametrize(
    "options", [{"nan": "error"}, {"overflow": "error"}, {"overflow": "inf"}, {"overflow": "clamp"}]
)
def test_a_cast_keeps_to_its_policies_and_counts_what_they_met(options, tmp_path):
    values = np.array(
        [np.nan, 1e30, -1e30, 1e-30, 0.5, 1, 2, 3, 4, 5] if "nan" not in options else [np.nan] * 10, "<f4"
    )
    if options.get("overflow") == "error":
        values[0] = 0
    data = cast_file(b"primitive.cast_v1")
    (tmp_path / "x.mlirb").write_bytes(data.replace(m.VALUES, values.tobytes()))
    call = functools.partial(milblob.repack, tmp_path / "x.mlirb", tmp_path / "y.mlirb", cast="float16", **options)
    if "error" in options.values():
        with pytest.raises((OverflowError, ValueError), match="tensor main/output_0.0: "):
            call()
        assert not (tmp_path / "y.mlirb").exists()
        return
    (row,) = call().to_dict()["tensors"]
    assert (row["overflow"], row["nan"], row["underflow"]) == (2, 1, 1)
    limit = np.inf if options["overflow"] == "inf" else 65504
    (found,) = milblob.load(tmp_path / "y.mlirb").values()
    with np.errstate(over="ignore"):
        expected = np.clip(values, -limit, limit).astype(np.float16)
    np.testing.assert_array_equal(found.reshape(-1), expected)


def test_a_change_that_was_interrupted_is_completed_before_a_bundle_is_repacked_in_place(tmp_path, monkeypatch):
    folder = copy_of("linear_f32", tmp_path)
    weights = {name: array + 1 for name, array in milblob.load(folder).items()}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(journal, "_finish", killed)
    with pytest.raises(KeyboardInterrupt):
        milblob.refit(folder, weights)
    monkeypatch.undo()
    for target, dry_run in ((tmp_path / "copy.aimodel", False), (folder, True)):
        with pytest.raises(milblob.PendingChangeError):
            milblob.repack(folder, target, gc=True, force=True, dry_run=dry_run)
    milblob.repack(folder, folder, gc=True, force=True)
    assert all(a.tobytes() == weights[name].tobytes() for name, a in milblob.load(folder).items())
    assert is_hashed(folder) and sorted(p.name for p in folder.iterdir()) == [
        "main.hash",
        "main.mlirb",
        "metadata.json",
    ]


def test_nan_skip_leaves_a_resource_with_nan_as_it_is(tmp_path):
    values = np.array([np.nan, *range(9)], "<f4")
    data = cast_file(b"primitive.cast_v1").replace(m.VALUES, values.tobytes())
    (tmp_path / "x.mlirb").write_bytes(data)
    report = milblob.repack(tmp_path / "x.mlirb", tmp_path / "y.mlirb", cast="float16", nan="skip")
    assert report.counts() == {}
    (found,) = milblob.load(tmp_path / "y.mlirb").values()
    assert found.reshape(-1).tobytes() == values.tobytes()
