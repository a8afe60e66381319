"""milblob --completion: the scripts complete commands, options, choices, files and names of tensors."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import milblob
from milblob.cli import main
from paths import DEMO
from shells import fish_completes, zsh_completes

pytest.importorskip("shtab", reason="no completion is tested")

HOSTILE = ["$(touch pwned)", "`touch pwned`", "(touch pwned)", "a b", "*", "w;touch pwned", "\x1b[31m", "w/ok", "größe"]


def printed(cli, shell):
    status, out, err = cli("--completion", shell)
    assert (status, err) == (0, "")
    return out


@pytest.fixture
def folder(tmp_path):
    """A directory with a model, and `milblob` on the path of `environment`."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(DEMO, folder / "demo.mlpackage")
    command = tmp_path / "bin" / "milblob"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m milblob "$@"\n')
    command.chmod(0o755)
    return folder


@pytest.fixture
def environment(folder):
    source = os.pathsep.join(p for p in (str(milblob.__path__[0] + "/.."), os.environ.get("PYTHONPATH")) if p)
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": source}


@pytest.fixture
def complete(cli, folder, environment):
    """What bash offers for the last of some words."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed: its completion is not tested")
    script = folder.parent / "milblob.bash"
    script.write_text(printed(cli, "bash"))

    def run(*words):
        code = """
            source "$1"; shift
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _shtab_milblob "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            printf '%s\\n' "${COMPREPLY[@]}"
        """
        argv = ["bash", "--norc", "-c", code, "bash", str(script), "milblob", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder, env=environment)
        assert done.stderr == ""
        return done.stdout.split()

    run.folder = folder
    return run


def test_bash_completes_commands_options_choices_and_files(complete):
    assert set(complete("re")) == {"recover", "refit", "repack", "report"}
    assert complete("tvm", "p") == ["params"]
    assert set(complete("compress", "demo.mlpackage", "--min")) == {"--min-sparsity", "--min-size"}
    assert set(complete("ls", "demo.mlpackage", "--sort", "")) == {"file", "name", "size", "dtype", "offset"}
    assert complete("ls", "dem") == ["demo.mlpackage"]


def test_bash_completes_names_of_tensors(complete):
    names = list(milblob.load(DEMO))
    assert complete("ls", "demo.mlpackage", "-k", "layers_3_mlp") == [n for n in names if n.startswith("layers_3_mlp")]
    assert complete("show", "demo.mlpackage", "head") == ["head_weight", "head_bias"]
    assert complete("convert", "-o", "demo.mlpackage", "-k", "head") == []  # no model is read


def test_hostile_names_are_not_completed(complete):
    np.savez(complete.folder / "w.npz", **{name: np.float32([1]) for name in HOSTILE})
    assert complete("ls", "w.npz", "-k", "") == ["w/ok", "größe"]
    assert sorted(path.name for path in complete.folder.iterdir()) == ["demo.mlpackage", "w.npz"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_another_shell_is_sound(cli, shell, tmp_path):
    script = tmp_path / "script"
    script.write_text(text := printed(cli, shell))
    assert "_milblob_names" in text and "merge-functions" in text and "min-sparsity" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion is not run")
    subprocess.run([shell, "-n", script], check=True)


LINES = [
    ("milblob re", {"recover", "refit", "repack", "report"}),
    ("milblob tvm p", {"params"}),
    ("milblob compress demo.mlpackage --min", {"--min-sparsity", "--min-size"}),
    ("milblob ls demo.mlpackage --sort ", {"file", "name", "size", "dtype", "offset"}),
    ("milblob ls dem", {"demo.mlpackage"}),
    ("milblob ls demo.mlpackage -k layers_3_mlp_up", {"layers_3_mlp_up_weight", "layers_3_mlp_up_bias"}),
    ("milblob show demo.mlpackage head", {"head_weight", "head_bias"}),
    ("milblob convert -o demo.mlpackage -k head", set()),  # no model is read
    ("milblob ls 'a b.npz' -k ", {"w/ok", "größe"}),  # no name that a shell would not take as it is
]


@pytest.mark.sample(2)
@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(("line", "expected"), [pytest.param(*row, id=row[0]) for row in LINES])
def test_another_shell_completes(cli, shell, line, expected, folder, environment):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion is not run")
    np.savez(folder / "a b.npz", **{name: np.float32([1]) for name in HOSTILE})
    complete = zsh_completes if shell == "zsh" else fish_completes
    found = complete(printed(cli, shell), line, folder, environment)
    assert {name.rstrip("/") for name in found} == expected
    assert sorted(path.name for path in folder.iterdir()) == ["a b.npz", "demo.mlpackage"]


def test_fish_completes_the_value_after_an_equals_sign(cli, folder, environment):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed: its completion is not run")
    found = fish_completes(printed(cli, "fish"), "milblob ls demo.mlpackage --select=head_b", folder, environment)
    assert found == ["--select=head_bias"]


@pytest.mark.parametrize("words", [[], [""], ["ls"], ["ls", "none.mlpackage", "-k", ""], ["ls", __file__, "-k", ""]])
def test_names_of_no_model_are_none(cli, words):
    assert cli("--names-of", *words) == (0, "", "")


def test_without_shtab_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--completion", "bash"]) == 2
    assert "shtab is not installed; run: pip install shtab (milblob's extra completion " in capsys.readouterr().err
