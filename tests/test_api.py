"""The public names: each has an example that runs, and everything that it takes, returns and has has a type."""

import pytest

import api_examples
import api_page
import remote_server
from peers import WITHOUT

PUBLIC = {f"{module}.{name}": found for module, name, found in api_page.public()}
RUNNING = ("OutputDifference", "OutputSensitivity", "Session", "SessionInput", "SessionOutput", "SessionState")
RUNNING += ("VerifyReport", "verify")
"""Names whose examples run models."""


def need(name):
    """Skip a test of a name whose optional package is not installed."""
    if name.startswith("milblob.onnx."):
        pytest.importorskip("onnx", reason=WITHOUT["onnx"])
    if name.startswith("milblob.torch."):
        pytest.importorskip("torch", reason=WITHOUT["torch"])
    if name.startswith("milblob.jax."):
        pytest.importorskip("jax", reason=WITHOUT["jax"])
    if name.startswith("milblob.mlx."):
        pytest.importorskip("mlx.core", reason=WITHOUT["mlx"])
    if name.removeprefix("milblob.") in RUNNING:
        pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_examples_of_a_public_name_print_what_they_show(name, tmp_path, monkeypatch):
    need(name)
    api_examples.make_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    with remote_server.serving(remote_server.files_below(tmp_path)) as server:
        examples = api_examples.examples_of(name, PUBLIC[name], server.url)
        assert examples.examples, f"{name} has no example"
        assert not (failures := api_examples.run(examples)), failures


def test_the_last_section_of_a_docstring_has_the_examples():
    last = {name: found.docstring.parse("google", warnings=False)[-1] for name, found in PUBLIC.items()}
    assert not {name for name, section in last.items() if section.kind.value != "examples"}


def test_everything_public_has_a_type():
    things = [thing for name, found in PUBLIC.items() for thing in api_page.typed(name, found)]
    assert len(things) > 1000
    assert [name for name, type in things if type is None] == []


def test_the_list_has_a_line_for_each_public_name_and_each_of_its_members():
    lines = [line for name, found in PUBLIC.items() for line in api_page.lines(name, found)]
    assert all("\n" not in line for line in lines)
    assert "milblob.Model.close() -> None" in lines
    assert "milblob.Tensor.offset: int | None" in lines
    assert "milblob.DType.nbits: int" in lines
    assert (
        "milblob.tvm.check_params(source: Any, *, tvm: str | None = None, max_nbytes: int | None = None) -> CheckReport"
        in lines
    )
