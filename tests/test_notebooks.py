"""The notebook in examples/ runs from top to bottom, and is kept without output."""

import shutil

import pytest

from paths import DEMO, ROOT
from peers import WITHOUT

nbclient = pytest.importorskip("nbclient", reason=WITHOUT["nbclient"])
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs(path, tmp_path):
    for module in ("mpld3", "matplotlib", "ipykernel"):
        pytest.importorskip(module, reason=WITHOUT["nbclient"])
    nbformat = pytest.importorskip("nbformat", reason=WITHOUT["nbclient"])
    shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs)
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert pictures == sum("milblob.plot." in cell.source for cell in code)
    tables = [data["text/html"] for output in outputs if "text/html" in (data := output.get("data", {}))]
    assert len(tables) == 1 and "<caption>Model</caption>" in tables[0] and "demo.mlpackage" in tables[0]
    assert "69 weights in report.html" in outputs[-1].text


def test_there_is_a_notebook():
    assert NOTEBOOKS
