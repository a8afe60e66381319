"""support/compiled.py: what is kept from an earlier run is made of the same, else it is compiled again."""

import subprocess
import sys

import pytest

import compiled
from compiled import compile_kept

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a compiler that is a script: not tested on Windows")

COMPILER = """#!/bin/sh
test "$1" = -v && { cat VERSION >&2; exit; }
echo "$@" >> LOG
grep -q wrong "$1" && exit 1
for last; do :; done
cp "$1" "$last"
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A function that compiles; it returns how often the compiler has run so far, and what is in the output."""
    for name in ("version", "log"):
        (tmp_path / name).write_text("")
    cc = tmp_path / "cc"
    cc.write_text(COMPILER.replace("VERSION", str(tmp_path / "version")).replace("LOG", str(tmp_path / "log")))
    cc.chmod(0o755)
    (tmp_path / "headers").mkdir()
    (tmp_path / "a.c").write_text("first")
    (tmp_path / "headers" / "h.h").write_text("first")
    monkeypatch.setattr(compiled, "ROOT", tmp_path / "root")
    (tmp_path / "root" / "tests" / "c").mkdir(parents=True)

    def run(*flags, name="program"):
        out = tmp_path / "out"
        out.unlink(missing_ok=True)
        command = [cc, tmp_path / "a.c", f"-I{tmp_path / 'headers'}", *flags]
        compile_kept(command, out, name, kept=tmp_path / "kept")
        return len((tmp_path / "log").read_text().splitlines()), out.read_text()

    return run


def test_the_same_is_compiled_once(compiler, tmp_path):
    assert [compiler(), compiler(), compiler("-O1"), compiler("-O1")] == [(1, "first")] * 2 + [(2, "first")] * 2
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert compiler(name="other") == (3, "first") == compiler(name="other") == compiler("-O1")


@pytest.mark.parametrize("changed", ["a.c", "headers/h.h", "headers/new.h", "root/tests/c/any.h", "version"])
def test_changed_files_are_compiled_again(compiler, tmp_path, changed):
    assert compiler() == (1, "first")
    (tmp_path / changed).write_text("second")
    assert compiler() == (2, "second" if changed == "a.c" else "first") == compiler()
    if changed == "headers/new.h":
        (tmp_path / changed).rename(tmp_path / "headers" / "renamed.h")
        assert compiler() == (3, "first")


def test_what_does_not_compile_is_not_kept(compiler, tmp_path):
    (tmp_path / "a.c").write_text("wrong")
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            compiler()
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    assert not (tmp_path / "kept").exists()


def test_where_nothing_can_be_kept(compiler, tmp_path):
    (tmp_path / "kept").write_text("no folder")
    assert [compiler(), compiler()] == [(1, "first"), (2, "first")]
