"""The public names: each has an example that runs, and everything that it takes, returns and has has a type."""

import shutil

import pytest

import api_examples
import api_page
import remote_server
from peers import WITHOUT

RUNNING = ("OutputDifference", "OutputSensitivity", "Session", "SessionInput", "SessionOutput", "SessionState")
RUNNING += ("VerifyReport", "verify")
"""Names whose examples run models."""


@pytest.fixture(scope="module")
def public():
    """Every public name with its definition. Reading them takes seconds: only the worker that runs these tests does."""
    return {f"{module}.{name}": found for module, name, found in api_page.public()}


def group_of(name):
    """Return the group that the examples of a name run in: its module, or that of all names that need onnxruntime."""
    return "running" if name.removeprefix("milblob.") in RUNNING else name.rpartition(".")[0]


def need(group):
    """Skip the examples of a group whose optional package is not installed."""
    if group == "milblob.onnx":
        pytest.importorskip("onnx", reason=WITHOUT["onnx"])
    if group == "milblob.torch":
        pytest.importorskip("torch", reason=WITHOUT["torch"])
    if group == "milblob.jax":
        pytest.importorskip("jax", reason=WITHOUT["jax"])
    if group == "milblob.mlx":
        pytest.importorskip("mlx.core", reason=WITHOUT["mlx"])
    if group == "running":
        pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])


@pytest.mark.every
@pytest.mark.parametrize("group", sorted([*api_page.MODULES, "running"]))
def test_the_examples_of_public_names_print_what_they_show(group, public, tmp_path, monkeypatch):
    need(group)
    failures = {}
    (tmp_path / "served").mkdir()
    api_examples.make_folder(tmp_path / "served")
    with remote_server.serving(remote_server.files_below(tmp_path / "served")) as server:
        for name in sorted(name for name in public if group_of(name) == group):
            shutil.copytree(tmp_path / "served", tmp_path / name)
            monkeypatch.chdir(tmp_path / name)
            examples = api_examples.examples_of(name, public[name], server.url)
            failures[name] = api_examples.run(examples) if examples.examples else "it has no example"
    assert not any(failures.values()), "\n".join(f"{name}: {text}" for name, text in failures.items() if text)


def test_the_last_section_of_a_docstring_has_the_examples(public):
    last = {name: found.docstring.parse("google", warnings=False)[-1] for name, found in public.items()}
    assert not {name for name, section in last.items() if section.kind.value != "examples"}


def test_everything_public_has_a_type(public):
    things = [thing for name, found in public.items() for thing in api_page.typed(name, found)]
    assert len(things) > 1000
    assert [name for name, type in things if type is None] == []


def test_the_list_has_a_line_for_each_public_name_and_each_of_its_members(public):
    lines = [line for name, found in public.items() for line in api_page.lines(name, found)]
    assert all("\n" not in line for line in lines)
    assert "milblob.Model.close() -> None" in lines
    assert "milblob.Tensor.offset: int | None" in lines
    assert "milblob.DType.nbits: int" in lines
    assert (
        "milblob.tvm.check_params(source: Any, *, tvm: str | None = None, max_nbytes: int | None = None) -> CheckReport"
        in lines
    )
