"""How large milblob is: lines, classes and folders, test cases, and how far a call travels. `make figures` prints it.

Lines are all lines of a file, comments and docstrings included. A class is a `class` statement, at any level.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys

from folders import FOLDERS
from journeys import journeys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "milblob"


def lines_of(paths):
    """Return how many lines files have together."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def classes_in(path):
    """Return how many classes a file defines."""
    return sum(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def cases(**environment):
    """Return how many test cases pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    listed = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True)
    return int(re.search(r"(\d+)(?:/\d+)? tests", listed.stdout)[1])


def main():
    """Print the tables, in Markdown."""
    kinds = {
        "Python": SOURCE.rglob("*.py"),
        "Cython": [*SOURCE.rglob("*.pyx"), *SOURCE.rglob("*.pxi"), *SOURCE.rglob("*.pxd")],
        "C headers": (ROOT / "include").rglob("*.h"),
        "tests, Python": (ROOT / "tests").rglob("*.py"),
        "tests, C": (ROOT / "tests").rglob("*.[ch]"),
    }
    print("| | lines |\n|---|---|")
    for kind, paths in kinds.items():
        print(f"| {kind} | {lines_of(paths):,} |")
    print("\n| folder | files | lines | classes |\n|---|---|---|---|")
    for folder in [SOURCE, *sorted(path for path in SOURCE.iterdir() if any(path.glob("*.py")))]:
        paths = list(folder.glob("*.py") if folder == SOURCE else folder.rglob("*.py"))
        name = f"`{folder.name}`" if folder != SOURCE else "(none)"
        print(f"| {name} | {len(paths)} | {lines_of(paths):,} | {sum(map(classes_in, paths))} |")
    print("\n| tests | cases |\n|---|---|")
    print(f"| first tier (`make test`) | {cases():,} |")
    print(f"| both tiers (`make thorough`) | {cases(MILBLOB_THOROUGH='1'):,} |")
    print("\n| call | functions | modules | folders | climbs |\n|---|---|---|---|---|")
    for call, (functions, modules, entered, climbs) in journeys(FOLDERS):
        print(f"| `{call}` | {functions} | {modules} | {entered} | {len(climbs)} |")


if __name__ == "__main__":
    main()
