"""The progress bar of every command that has one: on a terminal, after a second, gone at the end; never with -q."""

import contextlib
import os
import threading

import numpy as np
import pytest

import milblob
import tvm_archives
from children import run_fork
from editable_packages import make_package
from milblob.cli import main
from paths import DATA
from peers import WITHOUT
from thorough import some

# A second has passed whenever somebody looks at the clock.
CODE = """
import itertools, sys, time
ticks = itertools.count()
time.monotonic = lambda: next(ticks) * 2.0
from milblob.cli import main
assert main(sys.argv[1:]) in (0, 1)
"""
COMMANDS = {
    "stats": ["{model}"],
    "diff": ["{model}", "{weights}"],
    "match": ["{model}", "{weights}"],
    "convert": ["{weights}", "-o", "{out}.bin"],
    "refit": ["{model}", "{weights}"],
    "hash": ["{model}"],
    "check": ["{model}", "--values"],
    "merge-functions": ["{ios18}", "-o", "{out}.mlpackage"],
    "tvm params": ["{archive}", "--with", "{parameters}", "-o", "{out}.tar"],
    "repack": ["{model}", "-o", "{out}.mlpackage", "--align", "4096"],
    "compress": ["{ios18}", "-o", "{out}.mlpackage", "--int8", "--min-size", "0"],
}
WRITING = ("convert", "repack", "compress", "merge-functions", "tvm params")


@pytest.fixture
def places(tmp_path):
    """Of a model, of a file with as many arrays of other values, and of what is written."""
    model, weights = make_package(tmp_path, 1), tmp_path / "w.npz"
    np.savez(weights, **{name: array + array.dtype.type(1) for name, array in milblob.load(model).items()})
    tvm_archives.make(tmp_path / "model.tar", tvm_archives.files_of())
    assert main(["tvm", "params", str(tmp_path / "model.tar"), "-o", str(tmp_path / "p.npz"), "-q"]) == 0
    ios18 = DATA / "opset_ios18_fp16/model.mlpackage"
    return {
        "model": model, "weights": weights, "ios18": ios18, "archive": tmp_path / "model.tar",
        "parameters": tmp_path / "p.npz", "out": tmp_path / "out",
    }  # fmt: skip


TERMINAL = """
import os
terminal = os.open(sys.argv.pop(1), os.O_RDWR | os.O_NOCTTY)
os.dup2(terminal, 2)
os.close(terminal)
"""


def on_a_terminal(arguments, code=CODE):
    """Run a command in a fork; return what it has written to stderr, a terminal."""
    pty = pytest.importorskip("pty", reason=WITHOUT["pty"])
    master, slave = pty.openpty()
    chunks = []

    def read():
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while chunk := os.read(master, 1 << 16):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        run_fork(TERMINAL + code, os.ttyname(slave), *arguments)
    finally:
        os.close(slave)
        reader.join()
        os.close(master)
    return b"".join(chunks).decode()


SLEEPING = """
import sys, threading, time
from types import SimpleNamespace
from milblob.cli.terminal import progress
progress._PROGRESS_AFTER_S = 0.01
seen = threading.Event()
write = sys.stderr.write
sys.stderr.write = lambda text: (write(text), "%" in text and seen.set())[0]
with progress.shown(SimpleNamespace(quiet=False)) as line:
    assert seen.wait(60)  # one tensor takes long, and nothing has been called
    line("first", 50, 100)
    seen.clear()
    assert seen.wait(60)
before = threading.active_count()
assert before == 1, "the thread has ended"
"""


def test_a_bar_is_renewed_while_one_tensor_takes_long():
    text = on_a_terminal([], SLEEPING)
    bars = [part for part in text.split("\r") if part.startswith("[")]
    assert bars[0].startswith(f"[{' ' * 30}]   0%  0 B  0 s") and any("50%" in bar and "first" in bar for bar in bars)
    assert text.endswith("\r\x1b[K")


@pytest.mark.parametrize("command", some(COMMANDS, 3))
def test_bar(places, command):
    arguments = [*command.split(), *(argument.format(**places) for argument in COMMANDS[command])]
    force = ["--force"] if command in WRITING else []
    assert "\x1b" not in on_a_terminal([*arguments, "-q"])
    text = on_a_terminal([*arguments, *force])
    lines = [part.removesuffix("\x1b[K") for part in text.split("\r") if part.endswith("\x1b[K")]
    bars = [line for line in lines if line.startswith("[")]
    assert bars and bars[-1].startswith(f"[{'#' * 30}] 100%") and all(len(bar) < 80 for bar in bars), text
    assert any(name in bar for name in ("floats", "bytes", "ints", "weight", "p0") for bar in bars), bars
    assert text[text.rindex("100%") :].partition("\r")[2].startswith("\x1b[K")  # taken back before anything is said


def test_no_bar_without_a_terminal(places, capsys):
    for command, arguments in COMMANDS.items():
        force = ["--force"] if command in WRITING else []
        assert main([*command.split(), *(argument.format(**places) for argument in arguments), *force]) in (0, 1)
        assert "\r" not in capsys.readouterr().err


def test_a_bar_fits_the_line(tmp_path, monkeypatch):
    """A line that wraps could not be taken back."""
    monkeypatch.setenv("COLUMNS", "60")
    np.savez(tmp_path / "w.npz", **{"n" * 500: np.ones(8, np.float32)})
    text = on_a_terminal(["convert", str(tmp_path / "w.npz"), "-o", str(tmp_path / "w.bin")])
    bars = [part for part in text.split("\r") if part.startswith("[")]
    assert bars and len(bars[-1].removesuffix("\x1b[K")) == 59, text
    assert all(len(bar.removesuffix("\x1b[K")) <= 59 for bar in bars), text
