"""The table of operations: as coremltools' registry has it now, and what each opset takes."""

import sys

import pytest

from milblob.dtypes import DType
from milblob.program.rules_operations import opset_index, table
from paths import DATA


def test_the_table_is_what_the_script_makes_of_the_registry():
    pytest.importorskip("coremltools")
    sys.path.insert(0, str(DATA))
    import make_operations

    assert make_operations.PATH.read_text("utf-8") == make_operations.table()


def test_what_the_table_says():
    operations = table()
    assert operations.opsets == ("CoreML5", "CoreML6", "CoreML7", "CoreML8") and len(operations.versions) > 160
    conv = operations.find("conv", 0)
    assert conv["x"].dtypes == {DType.FLOAT16, DType.FLOAT32} and conv["x"].group == conv["weight"].group
    assert conv["pad"].is_constant and conv["pad"].is_optional and not conv["x"].is_optional
    assert operations.find("conv", 2)["x"].group != operations.find("conv", 2)["weight"].group
    assert operations.find("concat", 0)["values"].kind == "tuple"
    assert operations.find("read_state", 2) is None and operations.find("read_state", 3)["input"].kind == "state"
    assert operations.find("write_state", 3)["data"].kind == "any"
    assert set(operations.find("constexpr_lut_to_dense", 1)) == {"indices", "lut", "shape"}
    assert set(operations.find("constexpr_lut_to_dense", 3)) == {"indices", "lut", "vector_axis"}
    assert operations.find("plus", 3) is None


@pytest.mark.parametrize(
    ("opset", "index"),
    [("CoreML5", 0), ("CoreML8", 3), ("ios15", 0), ("ios18", 3), ("CoreML9", None), ("CoreML4", None), ("ios26", None),
     ("", None), ("ios", None), ("iosx", None), ("ios1²", None), ("ios" + "9" * 5000, None)],
)  # fmt: skip
def test_opsets(opset, index):
    assert opset_index(opset) == index
