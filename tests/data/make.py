"""Makes every fixture under tests/data (and examples/demo.mlpackage) with coremltools. Tests only read what this wrote.

Usage: python tests/data/make.py [case | demo ...]        (needs coremltools; no torch, no Mac)
"""

import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import time
import traceback

import coremltools
import google.protobuf
import numpy

import make_blobs
import make_compressed
import make_constexpr
import make_demo
import make_programs
import make_protos
import make_wire

HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(HERE, "..", "..", "examples")
CASES = {
    **make_blobs.CASES, **make_programs.CASES, **make_protos.CASES, **make_compressed.CASES, **make_constexpr.CASES, **make_wire.CASES,
}  # fmt: skip


def make_case(name):
    """Makes one case in a process of its own, so that names coremltools numbers start anew; returns success."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        numpy.random.seed(0)
        if name == "demo":
            make_demo.make_demo(DEMO)
        else:
            folder = os.path.join(HERE, name)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            CASES[name](folder)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def record_versions():
    """Writes versions.json: what made the fixtures, and the sha256 of every file."""
    sums = {}
    for folder, _, names in os.walk(HERE):
        for name in names:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, HERE).replace(os.sep, "/")
            if any(inside.startswith(f"{case}/") for case in CASES):
                with open(path, "rb") as file:
                    sums[inside] = hashlib.sha256(file.read()).hexdigest()
    versions = {
        "coremltools": coremltools.__version__, "numpy": numpy.__version__,
        "protobuf": google.protobuf.__version__, "python": platform.python_version(),
    }  # fmt: skip
    print("made with", versions)
    with open(os.path.join(HERE, "versions.json"), "w", encoding="utf-8") as file:
        json.dump({"made_with": versions, "sha256": dict(sorted(sums.items()))}, file, indent=1)
        file.write("\n")


def main(names):
    """Makes the named cases, or all; returns the exit status."""
    logging.disable(logging.WARNING)
    failed = []
    for name in names or [*CASES, "demo"]:
        start = time.monotonic()
        ok = make_case(name)
        print(f"{'made  ' if ok else 'FAILED'} {name} ({time.monotonic() - start:.1f} s)", flush=True)
        failed += [] if ok else [name]
    record_versions()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
