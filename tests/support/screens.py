"""The screens of the documents: what a command prints on a terminal of 80 columns, without colours.

As a program it writes the examples of docs/cli.md again:

    PYTHONPATH=tests/support .venv/bin/python tests/support/screens.py
"""

import contextlib
import io
import os
import pathlib
import re
import shlex
import shutil
import struct
import tempfile
from unittest import mock

import adapters
import milblob
import tvm_archives
from milblob.cli import main
from milblob.cli.terminal import tables
from paths import DATA, DEMO, ROOT

PAGES = (ROOT / "docs" / "cli.md", ROOT / "docs" / "language-models.md")
COLUMNS = 80
EXAMPLE = re.compile(r"(?<=```console\n)\$ milblob .*?(?=\n```)", re.S)
ELLIPSIS = "\n...\n"


def make_files(folder):
    """The files that the examples name."""
    shutil.copytree(DEMO, folder / "demo.mlpackage")
    shutil.copytree(DEMO, folder / "examples" / "demo.mlpackage")
    for precision in ("float16", "float32"):
        model = DATA / f"opset_ios17_fp{precision[-2:]}" / "model.mlpackage"
        shutil.copytree(model, folder / f"{precision}.mlpackage")
    shutil.copytree(DATA / "quant_int8_offset" / "model.mlpackage", folder / "decode.mlpackage")
    shutil.copytree(DATA / "palette_scaled" / "model.mlpackage", folder / "palettized.mlpackage")
    milblob.repack(folder / "decode.mlpackage", folder / "prefill.mlpackage", decompress=True)
    broken = shutil.copytree(DEMO, folder / "broken.mlpackage") / "Data/com.apple.CoreML/weights/weight.bin"
    data = bytearray(broken.read_bytes())
    struct.pack_into("<I", data, 9344, 0)
    broken.write_bytes(bytes(data[:-100]))
    adapters.make_files(folder)
    tvm_archives.make(folder / "model.tar", tvm_archives.files_of())


def screen(command):
    """What a command prints, data before messages."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(tables, "terminal_width", lambda: COLUMNS),
        mock.patch.dict(os.environ, {"TERM": "dumb"}),
    ):
        main(shlex.split(command))
    return b"".join(stream.buffer.getvalue() for stream in (out, err)).decode().rstrip("\n")


def steps_of(example):
    """(command, what the page shows of it) for each command of an example."""
    for step in example.removeprefix("$ milblob ").split("\n$ milblob "):
        command, _, shown = step.partition("\n")
        yield command, shown


def shortened(text, shown):
    """A screen with as many lines as the page shows of it before and after "..."."""
    if ELLIPSIS not in shown:
        return text
    lines = text.split("\n")
    head, *_, tail = (len(part.split("\n")) for part in shown.split(ELLIPSIS))
    return ELLIPSIS.join("\n".join(part) for part in (lines[:head], lines[len(lines) - tail :]))


def renewed(example):
    """An example as its commands print it now, run in the current directory."""
    steps = [(command, shortened(screen(command), shown)) for command, shown in steps_of(example)]
    return "\n".join(f"$ milblob {command}\n{text}".rstrip("\n") for command, text in steps)


def write_screens():
    """Write the examples of the pages as their commands print them now."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for example in EXAMPLE.findall(text):
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                make_files(pathlib.Path(folder))
                text = text.replace(example, renewed(example))
        page.write_text(text, "utf-8")


if __name__ == "__main__":
    write_screens()
