"""diff, hash and match of bundles: by content, then by reader and number; never by the keys of resources."""

import numpy as np
import pytest

import milblob
from bundles import FOLDER, bundle, copy_of


def test_two_conversions_of_one_network_have_one_hash():
    again = [(FOLDER / f"linear_f32{end}.aimodel" / "main.mlirb").read_bytes() for end in ("", "_again")]
    assert again[0] != again[1]
    first, second = (milblob.content_hash(bundle(f"linear_f32{end}")) for end in ("", "_again"))
    assert first == second and len(first.tensors) == 4
    assert milblob.content_hash(bundle("linear_f16")).model != first.model
    with milblob.open(bundle("linear_f32")) as asset:
        assert milblob.content_hash(asset) == first


def test_a_compressed_weight_has_the_hash_of_its_dense_values():
    found = milblob.content_hash(bundle("bare_f16_palette4"))
    dense = milblob.content_hash(milblob.load(bundle("bare_f16_palette4")))
    assert found == dense


def kinds(a, b, **options):
    return {row.name: (row.other, row.kind) for row in milblob.diff(a, b, **options).rows}


def test_diff_of_conversions_and_of_a_changed_bundle(tmp_path):
    assert {kind for _, kind in kinds(bundle("linear_f32"), bundle("linear_f32_again")).values()} == {"same"}
    folder = copy_of("linear_f32", tmp_path)
    milblob.refit(folder, {"#1": np.zeros(32, "f4")})
    found = kinds(bundle("linear_f32"), folder)
    assert [name for name, (_, kind) in found.items() if kind == "different"] == ["main/broadcasting_add_0.other"]
    assert {kind for _, kind in kinds(bundle("linear_f32"), bundle("linear_f32_b1"), names_only=True).values()} == {
        "named"
    }


def test_diff_and_match_with_a_checkpoint(tmp_path):
    """Its names say nothing about those of the bundle, and the other way round."""
    names = ["fc2.bias", "fc1.weight", "fc2.weight", "fc1.bias"]
    weights = [np.array(array) for array in milblob.load(bundle("linear_f32")).values()]
    checkpoint = dict(zip(names, (weights[3], weights[0], weights[2], weights[1]), strict=True))
    np.savez(tmp_path / "c.npz", **checkpoint)
    found = kinds(bundle("linear_f32"), tmp_path / "c.npz")
    assert list(found.values()) == [
        ("fc1.weight", "same"),
        ("fc1.bias", "same"),
        ("fc2.weight", "same"),
        ("fc2.bias", "same"),
    ]
    matching = milblob.match(bundle("linear_f32"), tmp_path / "c.npz")
    assert {row.given: row.name for row in matching.matches} == {other: name for name, (other, _) in found.items()}
    transposed = {name: np.ascontiguousarray(array.T) for name, array in checkpoint.items()}
    assert len(milblob.match(bundle("linear_f32"), transposed).matches) == 4


def test_parts_can_be_compared():
    found = kinds(bundle("bare_f16_int8_symm_per_channel"), bundle("bare_f16_int8_asym_per_channel"), stored=True)
    assert {name.rpartition(".")[2] for name in found} == {"data", "scale", "offset1", "offset2"}


def test_statistics(tmp_path):
    found = milblob.statistics(bundle("linear_f32"))
    assert found.total.count == 1328 and found.total.dtype is milblob.DType.FLOAT32
    with pytest.raises(milblob.FormatError, match="one byte for each value"):
        milblob.statistics(bundle("bare_f16_fp4_mx"))
