"""docs/onnx-operations.md and what it is about."""

import onnx_table
from paths import ROOT


def test_the_table_of_operations_is_that_of_the_registry():
    """`python tests/support/onnx_table.py` writes it."""
    page = (ROOT / "docs" / "onnx-operations.md").read_text("utf-8")
    table = page.partition(onnx_table.BEGIN)[2].partition(onnx_table.END)[0].strip().splitlines()
    assert table == onnx_table.lines()
    assert not [row for row in table if "| not yet |" in row]
    assert len(table) > 168
