"""What `milblob.check` says of bundles: nothing of sound ones, and the code of what is wrong with others."""

import hashlib
import json
import time

import pytest

import milblob
import mlir_bytes as m
from bundles import NAMES, bundle, copy_of
from milblob.aimodel import Asset
from milblob.aimodel.check import CODES


def codes(path, **options):
    """Every (severity, code) of a path."""
    return {(found.severity, found.code) for found in milblob.check(path, **options)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(6)
def test_recorded_bundles_are_sound(name):
    found = codes(bundle(name))
    expected = {("error", "constant-size")} if name.endswith("fp4_mx") else set()
    assert {row for row in found if row[0] != "note"} == expected
    assert (("note", "debug-info") in found) == name.endswith(("debug", "_b1"))
    assert {code for _, code in found} <= set(CODES)


def test_apple_s_crashing_constant_is_named(tmp_path):
    found = milblob.check(bundle("bare_f16_fp4_mx"))
    assert any("one byte for each value; Apple's library crashes on this" in row.message for row in found)


def rewritten(folder, name, data):
    (folder / name).write_bytes(data)


METADATA = {"assetVersion": "2.0"}


@pytest.mark.every
@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda f: (f / "main.mlirb").unlink(), ("error", "missing-file")),
        (lambda f: (f / "main.hash").unlink(), ("warning", "missing-file")),
        (lambda f: (f / "metadata.json").unlink(), ("warning", "missing-file")),
        (lambda f: rewritten(f, "other.txt", b"x"), ("note", "extra-file")),
        (lambda f: rewritten(f, "main.hash", bytes(32)), ("error", "hash")),
        (lambda f: rewritten(f, "main.hash", bytes(31)), ("error", "hash")),
        (lambda f: rewritten(f, "main.hash", bytes(5000)), ("error", "hash")),
        (lambda f: rewritten(f, "metadata.json", b"{"), ("error", "metadata")),
        (lambda f: rewritten(f, "metadata.json", b"[]"), ("error", "metadata")),
        (lambda f: rewritten(f, "metadata.json", b'"\xff"'), ("error", "metadata")),
        (
            lambda f: rewritten(f, "metadata.json", json.dumps({**METADATA, "author": 3}).encode()),
            ("error", "metadata"),
        ),
        (
            lambda f: rewritten(f, "metadata.json", json.dumps({"assetVersion": "3.0"}).encode()),
            ("warning", "metadata"),
        ),
        (lambda f: rewritten(f, "metadata.json", b"{}"), ("warning", "metadata")),
        (
            lambda f: rewritten(f, "metadata.json", json.dumps({**METADATA, "creationDate": "today"}).encode()),
            ("warning", "metadata"),
        ),
        (
            lambda f: rewritten(
                f, "metadata.json", json.dumps({**METADATA, "creatorDefinedMetadata": {"a": 1}}).encode()
            ),
            ("error", "metadata"),
        ),
        (lambda f: rewritten(f, "metadata.json", json.dumps({**METADATA, "x": ""}).encode()), ("note", "metadata")),
        (lambda f: rewritten(f, "main.mlirb", b"ML\xefR\x0d"), ("error", "bytecode")),
        (lambda f: rewritten(f, "main.mlirb", m.file(version=7)), ("error", "container-version")),
        (lambda f: rewritten(f, "main.mlirb", m.file(dialect_version=3)), ("warning", "dialect-version")),
        (
            lambda f: rewritten(f, "main.mlirb", b"version https://git-lfs.github.com/spec/v1\nsize 99\n"),
            ("error", "lfs-pointer"),
        ),
        (
            lambda f: rewritten(f, "main.mlirb", m.file().replace(b"MLIR22.0.0git", b"MLIR23.0.0git")),
            ("note", "producer"),
        ),
    ],
)
def test_what_is_wrong_with_a_bundle(change, expected, tmp_path):
    folder = copy_of("linear_f32", tmp_path)
    change(folder)
    assert expected in codes(folder)


@pytest.mark.every
@pytest.mark.parametrize(
    "data, expected",
    [
        (m.file(texts=[b"other", *m.TEXTS[1:]]), ("error", "dialect")),
        (m.file(types=[m.TYPES[0], m.varint(99), m.TYPES[2]]), ("warning", "element-type")),
        (m.file(attributes=[m.varint(99), *m.ATTRIBUTES[1:]]), ("warning", "attribute-code")),
        (
            m.file(attributes=[m.varint(6) + b"\0" + m.varint(3) + bytes(3), *m.ATTRIBUTES[1:]]),
            ("error", "constant-size"),
        ),
        (m.resource_file(size=36), ("error", "constant-size")),
        (m.resource_file(alignment=64), ("warning", "resource-alignment")),
        (m.resource_file(alignment=1), ("warning", "resource-alignment")),
        (m.resource_file(is_used=False), ("warning", "resource-unused")),
        (m.file(texts=[*m.TEXTS, b"/example/net.py", b"0" * 64]), ("note", "debug-info")),
        (m.file(properties=[m.PROPERTIES[0][:4], m.PROPERTIES[1]]), ("error", "bytecode")),
    ],
)
def test_what_is_wrong_with_bytecode(data, expected, tmp_path):
    (tmp_path / "x.mlirb").write_bytes(data)
    assert expected in codes(tmp_path / "x.mlirb")


def test_values_that_constants_share(tmp_path):
    found = [row for row in milblob.check(bundle("functions_f32")) if row.code == "shared-value"]
    assert any(
        "main/broadcasting_batch_matmul_0.y, second/broadcasting_batch_matmul_0.y" in row.message for row in found
    )


def test_codes_can_be_chosen():
    assert codes(bundle("linear_f32_debug"), rules="debug-*") == {("note", "debug-info")}
    assert codes(bundle("linear_f32_debug"), ignore=["debug-info", "shared-value"]) == set()
    with pytest.raises(ValueError, match="expected a code of a finding"):
        milblob.check(bundle("linear_f32"), rules="nothing-*")
    with pytest.raises(ValueError, match="expected a model, whose values"):
        milblob.check(bundle("linear_f32"), values=True)
    with pytest.raises(FileNotFoundError):
        milblob.check("/nowhere/x.aimodel")


def test_the_hash_in_a_bundle_is_that_of_its_bytecode(tmp_path):
    folder = copy_of("linear_f32", tmp_path)
    data = bytearray((folder / "main.mlirb").read_bytes())
    data[-200] ^= 0  # the same bytes
    assert codes(folder) == set()
    rewritten(folder, "main.hash", hashlib.sha256(bytes(data) + b"x").digest())
    assert ("error", "hash") in codes(folder)


def test_a_string_like_a_path_takes_no_long_time(tmp_path):
    """A pattern that tries every slash as the last one would take the square of the length."""
    text = b"/" * 300_000 + b"\0x"
    (tmp_path / "x.mlirb").write_bytes(m.file(texts=(*m.TEXTS, text)))
    start = time.process_time()
    assert not [row for row in milblob.check(tmp_path / "x.mlirb") if row.code == "debug-info"]
    assert time.process_time() - start < 5


def test_a_change_during_the_check_of_a_bundle_is_not_reported(tmp_path, monkeypatch):
    folder = copy_of("linear_f32", tmp_path)
    name, array = next(iter(milblob.load(folder).items()))
    companion = Asset.companion
    left = [array + 1, array + 2]

    def changed_first(asset, file, *more):
        if file == "main.hash" and left:
            companion(asset, file, *more)
            milblob.refit(folder, {name: left.pop()})
            found = companion(asset, file, *more)
            milblob.refit(folder, {name: left[0] if left else array})
            return found
        return companion(asset, file, *more)

    monkeypatch.setattr(Asset, "companion", changed_first)
    assert list(milblob.check(folder)) == [] and not left
    (folder / "main.hash").write_bytes(bytes(32))
    assert [row.code for row in milblob.check(folder)] == ["hash"]
