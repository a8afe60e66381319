"""The table of formats: every name in it leads somewhere, and nothing is imported before a file of the format comes."""

import pytest

from children import run_child
from milblob.storage.foreign import foreign
from milblob.storage.table import ARRAYS, FORMATS, Format, format_of, imported
from other_files import OTHERS

NAMED = [field for field, kind in Format.__annotations__.items() if kind is str and field not in ("kind", "called")]


@pytest.mark.every
@pytest.mark.parametrize("row", FORMATS, ids=lambda row: f"{row.kind}{''.join(row.suffixes[:1])}")
def test_functions_that_a_format_names_exist(row):
    for field in NAMED:
        if getattr(row, field):
            found = row.function(field)
            assert callable(found) or (field == "codes" and all(isinstance(code, str) for code in found))
    assert row.open and bool(row.check) == bool(row.codes)


def test_a_path_has_the_format_of_its_name_or_of_what_is_in_it(tmp_path):
    names = {"a.NPZ": "npz", "a.tar.gz": "archive", "a.mlirb": "aimodel", "a.bin": "weights", "a.mlmodel": None}
    assert {name: getattr(format_of(str(tmp_path / name)), "kind", None) for name in names} == names
    for kind, file in (
        ("aimodel", "main.mlirb"),
        ("archive", "metadata.json"),
        ("npy", "w.npy"),
        ("tensor-cache", "tensor-cache.json"),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / file).write_text("{}")
        assert format_of(str(tmp_path / kind)).kind == kind
    (tmp_path / "empty.aimodel").mkdir()
    assert format_of(str(tmp_path / "empty.aimodel")).kind == "aimodel"
    (tmp_path / "archive" / "Net.aimodel").mkdir()  # an export of a language model has a metadata.json of its own
    assert format_of(str(tmp_path / "archive")) is None


def test_bytes_of_each_file_of_arrays_are_recognised():
    """By `magic`, or by code of `foreign`: without one of them an error would not name the format."""
    found = [foreign(data) for data, kind, _ in OTHERS.values() if kind in ARRAYS]
    assert {(one.name, one.description) for one in found} == {(row.kind, row.called) for row in ARRAYS.values()}


def test_formats_are_imported_when_they_are_needed():
    code = """
        import sys, milblob
        from milblob.storage.table import format_of
        print(format_of("x.aimodel/main.mlirb").kind, any(n.startswith(("milblob.tvm", "milblob.aimodel")) for n in sys.modules))
    """
    assert run_child(code).split() == ["aimodel", "False"]


def test_a_name_that_leads_nowhere_is_an_error():
    with pytest.raises(AttributeError):
        imported("storage.table:nothing")
    assert Format("x").open == ""
