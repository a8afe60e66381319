"""The table of formats: every name in it leads somewhere, and nothing is imported before a file of the format comes."""

import pytest

from children import run_child
from milblob.model.table import FORMATS, Format, format_of, imported

NAMED = [field for field, kind in Format.__annotations__.items() if kind is str and field != "kind"]


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


def test_formats_are_imported_when_they_are_needed():
    code = """
        import sys, milblob
        from milblob.model.table import format_of
        print(format_of("x.aimodel/main.mlirb").kind, any(n.startswith(("milblob.tvm", "milblob.aimodel")) for n in sys.modules))
    """
    assert run_child(code).split() == ["aimodel", "False"]


def test_a_name_that_leads_nowhere_is_an_error():
    with pytest.raises(AttributeError):
        imported("model.table:nothing")
    assert Format("x").open == ""
