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

pytest.importorskip("shtab", reason="no completion is tested")


def printed(cli, shell):
    status, out, err = cli("--completion", shell)
    assert (status, err) == (0, "")
    return out


@pytest.fixture
def complete(cli, tmp_path):
    """What bash offers for the last of some words, in a directory with a model."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed: its completion is not tested")
    script = tmp_path / "milblob.bash"
    script.write_text(printed(cli, "bash"))
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(DEMO, folder / "demo.mlpackage")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    command = bin_folder / "milblob"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m milblob "$@"\n')
    command.chmod(0o755)

    def run(*words):
        code = """
            source "$1"; shift
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _shtab_milblob "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
            printf '%s\\n' "${COMPREPLY[@]}"
        """
        source = os.pathsep.join(p for p in (str(milblob.__path__[0] + "/.."), os.environ.get("PYTHONPATH")) if p)
        environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": source}
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
    names = {
        "$(touch pwned)": 1,
        "`touch pwned`": 1,
        "a b": 1,
        "*": 1,
        "w;touch pwned": 1,
        "\x1b[31m": 1,
        "w/ok": 1,
        "größe": 1,
    }
    np.savez(complete.folder / "w.npz", **{name: np.float32([value]) for name, value in names.items()})
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


@pytest.mark.parametrize("words", [[], [""], ["ls"], ["ls", "none.mlpackage", "-k", ""], ["ls", __file__, "-k", ""]])
def test_names_of_no_model_are_none(cli, words):
    assert cli("--names-of", *words) == (0, "", "")


def test_without_shtab_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--completion", "bash"]) == 2
    assert "shtab is not installed; run: pip install shtab (milblob's extra completion " in capsys.readouterr().err
