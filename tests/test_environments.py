"""What runs in an environment of its own finds there what it imports: `make test` has more packages than these."""

import ast
import pathlib
import re
import sys
import tomllib

import pytest

from paths import ROOT

SCRIPTS = {
    "finetune": (
        "tests/refitting/live_finetune.py",
        "tests/onnx/compressed.py",
        "tests/onnx/conformance.py",
        "tests/support/onnx_conformance.py",
        "tests/onnx/make_networks.py",
    ),
    "zoo": ("tests/zoo/run.py", "tests/zoo/table.py"),
    "tvm": ("tests/data/make_tvm_oracle.py",),
    "coreai": ("tests/data/make_aimodel_oracle.py",),
    "onnxmltools113": ("tests/onnxmltools/live.py",),
    "onnxmltools116": ("tests/onnxmltools/live.py",),
}
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "google": "protobuf", "tvm": "apache-tvm"}


def group(name, document):
    """The distributions that a dependency group names, and groups in it."""
    for line in document["dependency-groups"][name]:
        if isinstance(line, dict):
            yield from group(line["include-group"], document)
        else:
            yield re.split(r"[<>=~!;\[ ]", line)[0].lower().replace("-", "_")


def imports(path):
    """Modules that a file imports whenever it is imported or run: what functions import may be missing."""
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            todo += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]


def foreign(path, seen):
    """(module of nobody here, file that imports it), also of those of our own modules that a file imports."""
    folders = (path.parent, ROOT / "tests" / "support", ROOT / "bench")
    for name in imports(path):
        own = next((file for folder in folders if (file := folder / f"{name}.py").exists()), None)
        if own is None:
            if name not in sys.stdlib_module_names and name != "milblob":
                yield name, path.name
        elif own not in seen:
            seen.add(own)
            yield from foreign(own, seen)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.sample(len(SCRIPTS))
def test_environments_have_what_their_scripts_import(name):
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    present = {*group(name, document), "numpy"}
    if name in ("finetune", "zoo"):  # milblob runs in them
        present |= {re.split(r"[<>=]", line)[0] for line in document["project"]["dependencies"]}
    found = 0
    for script in SCRIPTS[name]:
        for module, where in foreign(pathlib.Path(ROOT / script), set()):
            assert DISTRIBUTIONS.get(module, module).lower().replace("-", "_") in present, f"{where}: import {module}"
            found += 1
    assert found or name == "zoo"  # whose scripts import in functions


def test_every_environment_is_looked_at():
    """Each target of the Makefile that makes one with a dependency group."""
    makefile = (ROOT / "Makefile").read_text()
    own = set(
        re.findall(r"\$\(VENV\)/(\w+)(?:\$\*)?/\$\(notdir \$\(BIN\)\)/python -m pip install --quiet --group", makefile)
    )
    assert (
        own - {"wheel"} == {"torch", "zoo", "tvm", "onnxmltools"}
        and "$(COREAI) -m pip install --quiet --group" in makefile
    )
