"""Pages whose examples run from top to bottom, in one folder: README.md, the start page and the tutorials.

A block of Python is followed by a block without a language: what it prints. A block of the console has commands after `$ ` with what
they print. As a program it writes what they print now:

    PYTHONPATH=tests/support .venv/bin/python tests/support/walkthroughs.py
"""

import contextlib
import io
import pathlib
import re
import shutil
import tempfile

from paths import ROOT
from screens import screen, shortened, steps_of

PAGES = [ROOT / "README.md", ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
BLOCK = re.compile(r"^```(?P<kind>python|console)\n(?P<code>.*?)^```\n(?:\n^```\n(?P<shown>.*?)^```\n)?", re.M | re.S)


def renewed(text):
    """Return a page with what its examples print now. Call it in a folder that has `examples`."""
    names = {}

    def run(match):
        code = match["code"]
        if match["kind"] == "console":
            steps = ((command, shortened(screen(command), shown)) for command, shown in steps_of(code.rstrip("\n")))
            lines = "".join(f"$ milblob {command}\n{printed}".rstrip("\n") + "\n" for command, printed in steps)
            return f"```console\n{lines}```\n" + match[0][len(f"```console\n{code}```\n") :]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "page", "exec"), names)
        block = f"```python\n{code}```\n"
        return block + f"\n```\n{printed.getvalue()}```\n" if printed.getvalue() else block

    return BLOCK.sub(run, text)


def renew(page, folder):
    """Return the text of a page with what its examples print in a new folder."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    with contextlib.chdir(folder):
        return renewed(page.read_text("utf-8"))


if __name__ == "__main__":
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(renew(page, pathlib.Path(folder)), "utf-8")
