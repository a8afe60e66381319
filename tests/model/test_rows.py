"""Rows of a listing: as the tensor of each says, though a tensor is made only for the first of those that are alike."""

import itertools

import pytest

import hostile_chains
import milblob
import random_chains
from hostile_bytes import field, model, program, tensor_type
from milblob.model import tensors
from milblob.model.rows import row_of
from paths import DATA
from reference import write_varint
from thorough import share, sized

VIEWS = list(itertools.product([False, True], repeat=2))
MODELS = sorted(path for name in ("*.mlpackage", "*.mlmodelc") for path in DATA.glob(f"*/{name}"))


def unique_nbytes(model):
    """Bytes of everything that is stored, each record once."""
    found = {}

    def add(tensor):
        row = row_of(tensor)
        if row.compression:
            for part in reversed(tensor.parts.values()):
                add(part)
        elif row.element_count is not None:
            found.setdefault((row.file, row.offset) if row.offset is not None else row.name, row.nbytes or 0)

    for tensor in model.values():
        add(tensor)
    return sum(found.values())


def require_rows(source, constants, stored):
    """Compare the rows of a model with its tensors; return how many there are, or -1 if it cannot be opened."""
    try:
        opened = milblob.open(source, constants=constants, stored=stored)
    except milblob.MilblobError:
        return -1
    with opened:
        found = opened.rows()
        for row, tensor in zip(found.listed, opened.values(), strict=True):
            expected = row_of(tensor)
            assert row == expected
            assert expected.compression == row.compression
        assert found.unique_nbytes == unique_nbytes(opened)
        chosen = {row.name for row in found.listed[1::3]}
        assert opened.rows(chosen).listed == found.listed[1::3]
        return len(found.listed)


@pytest.mark.parametrize(("constants", "stored"), VIEWS)
def test_rows_of_models(constants, stored):
    """Half of the models with each view in `make test`: each model with two of the four."""
    models = share(MODELS, constants + stored, 2)
    assert sum(require_rows(path, constants, stored) for path in models) > sized(250, 500)


@pytest.mark.parametrize(("constants", "stored"), VIEWS)
def test_rows_of_random_chains(constants, stored):
    counts = [require_rows(model(random_chains.chained(seed), 9), constants, stored) for seed in range(60)]
    assert sum(count > 0 for count in counts) > 15
    for operations in (hostile_chains.doubled(5), hostile_chains.lattice(3, 8), hostile_chains.bindings(20, 3)):
        assert require_rows(model(hostile_chains.program(*operations), 9), constants, stored) > 0


def test_rows_of_records():
    for path in DATA.glob("blob_*/*.bin"):
        require_rows(path, False, False)


def palettized(number, offsets):
    """A weight whose parts are records at these offsets."""
    body = field(1, "constexpr_lut_to_dense") + field(3, field(1, f"w{number}") + field(2, tensor_type(10, [8, 8])))
    for (key, code, shape), offset in zip((("indices", 31, [8, 8]), ("lut", 10, [1, 1, 256, 1])), offsets, strict=True):
        place = field(1, b"@model_path/weights/weight.bin") + b"\x10" + write_varint(offset)
        body += field(5, field(1, key) + field(2, field(2, tensor_type(code, shape)) + field(5, place)))
    return body


def test_a_record_that_weights_share_counts_once():
    ops = [palettized(i, (64 + 1024 * i, 640)) for i in range(100)]
    with milblob.open(model(program(*ops, opset="CoreML8"), 9)) as opened:
        assert opened.rows().unique_nbytes == 100 * 64 + 512 == unique_nbytes(opened)


@pytest.mark.parametrize("stored", [False, True])
def test_a_listing_makes_a_tensor_for_the_first_of_those_that_are_alike(stored, monkeypatch, cli, tmp_path):
    made = []
    make = tensors.make_tensor
    monkeypatch.setattr(tensors, "make_tensor", lambda *given: made.append(given[3]) or make(*given))
    path = tmp_path / "many.mlmodel"
    path.write_bytes(model(program(*(palettized(i, (64 + 1024 * i, 640)) for i in range(500)), opset="CoreML8"), 9))
    status, out, _ = cli("ls", path, *(["--stored"] if stored else []))
    assert status == 0 and out.count("\n") > 500
    assert len(made) < 10
