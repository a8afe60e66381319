"""check --values: what only reading the values of a model shows."""

import json
import shutil
import struct

import numpy as np
import pytest

import milblob
import reference
from cases import case_paths, load_case
from hostile_bytes import const, immediate, model, program
from milblob.cli import main
from paths import DATA, DEMO
from thorough import some

WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


def codes(source):
    """What the values add to the findings: (severity, code) pairs."""
    plain = milblob.check(source)
    found = milblob.check(source, values=True)
    assert found[: len(plain)] == plain.findings
    return [(finding.severity, finding.code) for finding in found[len(plain) :]]


@pytest.fixture
def package(tmp_path):
    """A function that copies a fixture: (package, its weight file's path)."""

    def copy(case):
        source = DEMO if case == "demo" else DATA / case / "model.mlpackage"
        target = tmp_path / f"{case}.mlpackage"
        shutil.copytree(source, target)
        return target, target / WEIGHTS

    return copy


def parts_of(package, name):
    with milblob.open(package) as opened:
        return {
            key: (part.offset, part.data_offset)
            for key, part in opened[name].parts.items()
            if part.is_blob and part.offset
        }


@pytest.mark.parametrize(("case", "path"), some(case_paths(), 18))
@pytest.mark.sample(6)
def test_fixtures_are_good(case, path):
    """Models that coremltools wrote have sound masks, palettes and padding; NaNs and infinities only where they are meant to be."""
    found = codes(load_case(case).source(path))
    assert not {code for severity, code in found if severity == "error"}
    with milblob.open(load_case(case).source(path), stored=True) as opened:
        expected = set()
        for tensor in opened.values():
            if "FLOAT" in tensor.mil_dtype.name and tensor.chain is None:
                with np.errstate(all="ignore"):
                    values = tensor.read().astype(np.float64)
                expected |= {("warning", "nan")} if np.isnan(values).any() else set()
                expected |= {("note", "infinite")} if np.isinf(values).any() else set()
    assert {row for row in found if row[1] != "padding"} == expected


def test_nan_and_infinite(package):
    path, weights = package("demo")
    data = bytearray(weights.read_bytes())
    with milblob.open(path) as opened:
        tensor = opened["head_weight"]
        at, offset = tensor.data_offset, tensor.offset
    struct.pack_into("<3f", data, at + 40, np.nan, np.inf, -np.inf)
    weights.write_bytes(data)
    nan, infinite = milblob.check(path, values=True)[-2:]
    assert (nan.severity, nan.code, nan.offset, nan.file) == ("warning", "nan", offset, str(weights))
    assert nan.message == "values of float32 [96, 48]: expected finite ones, got 1 NaN"
    assert nan.where.endswith("'head_weight'.val")
    assert (infinite.severity, infinite.code) == ("note", "infinite")
    assert infinite.message.endswith("got 2 infinite")


def test_nan_in_a_weight_file():
    data, offsets = reference.write_blobs(
        [("FLOAT16", [0x3C00, 0x7E00]), ("FLOAT8E4M3FN", [0x7F, 0]), ("BFLOAT16", [0x7F80])]
    )
    found = milblob.check(data, values=True)
    assert [(f.code, f.offset, f.where) for f in found] == [
        ("nan", offsets[0], "tensor #0"), ("nan", offsets[1], "tensor #1"), ("infinite", offsets[2], "tensor #2"),
    ]  # fmt: skip


@pytest.mark.parametrize(("case", "name", "key"), [
    ("sparse", "first_weight_sparsified", "mask"), ("sparse_uint1", None, "mask"), ("sparse_quantized", None, None), ("sparse_palette", None, None),
])  # fmt: skip
def test_a_mask_with_another_count(package, case, name, key):
    path, weights = package(case)
    with milblob.open(path, stored=True) as opened:
        masks = [t for t in opened.values() if t.is_blob and t.name.endswith("mask") and (name or "") in t.name]
        at = masks[0].data_offset
    data = bytearray(weights.read_bytes())
    data[at] ^= 1
    weights.write_bytes(data)
    found = [f for f in milblob.check(path, values=True) if f.code == "mask-count"]
    assert found and all(f.severity == "error" for f in found)
    assert "as many as the mask has ones, got" in found[0].message and found[0].file == str(weights)
    assert ".op[" in found[0].where


def test_each_model_of_a_compiled_pipeline_is_checked(tmp_path):
    """Their Programs are in files of their own, in which operations are in the same places."""
    path = tmp_path / "m.mlmodelc"
    shutil.copytree(DATA / "pipeline" / "model.mlmodelc", path)
    for name in ("model0", "model1"):
        shutil.rmtree(path / name)
        shutil.copytree(DATA / "constexpr_ios18" / "model.mlmodelc", path / name)
    with milblob.open(path) as opened:
        at = opened["model1/sparse_palette_dense"].parts["mask"].parts["indices_mask"].data_offset
    weights = path / "model1" / "weights" / "weight.bin"
    data = bytearray(weights.read_bytes())
    data[at] ^= 1
    weights.write_bytes(data)
    [found] = milblob.check(path, values=True)
    assert (found.code, found.file) == ("mask-count", str(weights)) and found.where.startswith("model1/main")


def test_bits_after_a_mask(tmp_path):
    path = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "constexpr_ios16" / "model.mlpackage", path)
    program_path = path / "Data/com.apple.CoreML/model.mlmodel"
    with milblob.open(path) as opened:
        mask = opened["sparse_odd"].parts["mask"].read()
    data = program_path.read_bytes()
    assert data.count(mask.tobytes()) >= 1
    noisy = mask.copy()
    noisy[-1] |= 0xE0
    program_path.write_bytes(data.replace(mask.tobytes(), noisy.tobytes()))
    assert codes(path) == [("note", "padding")]


def test_bits_after_an_immediate(tmp_path):
    path = tmp_path / "m.mlmodel"
    packed = reference.pack_elements([1, 2, 3, 1, 2, 3, 0, 1, 2, 3, 1], "UINT3")
    for last, expected in ((0, []), (0x80, [("note", "padding")])):
        value = reference.pack_tensor_value("bytes", packed[:-1] + bytes([packed[-1] | last]))
        path.write_bytes(model(program(const(immediate(39, [11], value)))))
        assert codes(path) == expected


def test_an_index_outside_the_palette(tmp_path):
    """A palette of fewer entries than the indices' bits can say: 12 where there are 4 bits."""
    path = tmp_path / "m.mlmodel"
    indices = immediate(
        35,
        [2, 6],
        reference.pack_tensor_value("bytes", reference.pack_elements([0, 11, 12, 15, 3, 2, 1, 0, 4, 5, 6, 7], "UINT4")),
    )
    small = immediate(
        35, [2, 6], reference.pack_tensor_value("bytes", reference.pack_elements([i % 12 for i in range(12)], "UINT4"))
    )
    lut = immediate(11, [1, 1, 12, 1], reference.pack_tensor_value("floats", [float(i) for i in range(12)]))
    for part, expected in ((small, []), (indices, [("error", "palette-index")])):
        path.write_bytes(model(program(palette(part, lut))))
        assert codes(path) == expected
    assert (
        "expected 0 to 11, which the palette has, got 2 others, up to 15"
        in milblob.check(path, values=True)[-1].message
    )


def palette(indices, lut):
    from hostile_bytes import field, operation, tensor_type

    def argument(key, value):
        return field(2, field(1, key) + field(2, field(1, field(2, value))))

    return operation(
        "constexpr_lut_to_dense",
        "w",
        (),
        argument(b"indices", indices) + argument(b"lut", lut),
        output_type=tensor_type(11, [2, 6]),
    )


def test_existing_damage_is_reported_once(package):
    path, weights = package("sparse")
    weights.unlink()
    assert codes(path) == []
    assert {f.code for f in milblob.check(path, values=True)} == {"missing-file"}
    assert codes(DATA / "neural_network" / "model.mlmodel") == []
    assert codes(b"nothing of ours") == []


def test_command(package, capsys):
    path, weights = package("demo")
    data = bytearray(weights.read_bytes())
    data[-4:] = struct.pack("<f", np.nan)
    weights.write_bytes(data)
    assert main(["check", str(path)]) == 0
    capsys.readouterr()
    assert main(["check", "--values", "--json", str(path)]) == 1
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert [finding["code"] for finding in row["findings"]] == ["nan"]


def test_more_values_than_are_allowed(tmp_path):
    """What is left to look at is said, and what was found before stays."""
    with milblob.BlobWriter(tmp_path / "w.bin") as blobs:
        blobs.write(np.array([np.nan, 1], "f2"))
        blobs.write(np.ones(1000, "f4"))
    found = milblob.check(tmp_path / "w.bin", values=True, max_nbytes=100)
    assert [(f.severity, f.code) for f in found if f.severity != "note"] == [("warning", "nan"), ("warning", "limit")]
    assert "max_nbytes (--max-nbytes) allows more" in found[-1].message
    assert "limit" not in {f.code for f in milblob.check(tmp_path / "w.bin", values=True)}
