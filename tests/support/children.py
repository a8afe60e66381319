"""Python in processes of its own, which may crash, hang or take much memory without harm to the tests."""

import os
import pathlib
import subprocess
import sys
import textwrap

SUPPORT = pathlib.Path(__file__).resolve().parent

SANITIZED = "MILBLOB_SANITIZED" in os.environ
"""`make sanitize`: AddressSanitizer takes terabytes of addresses, and memory beside all that is allocated."""

LIMIT_NBYTES = (356 if SANITIZED else 100) << 20
"""Anonymous memory that work on files of any size may take: AddressSanitizer keeps 256 MiB of what was freed."""


def child_environment():
    """The environment for a new interpreter with this one's import path."""
    import sys

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_child(code, *arguments, timeout=120, memory_nbytes=None, expect_code=0):
    """Run Python code in a process of its own, faulthandler on; returns its output.

    A crash, a Python error or (the guard) a hang fails the test. `memory_nbytes` limits the child's address space, where
    that can be: not under AddressSanitizer, which is also slower.
    """
    prelude = "import faulthandler, sys; faulthandler.enable()\n"
    if memory_nbytes is not None and not SANITIZED:
        prelude += f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({memory_nbytes}, {memory_nbytes}))\n"
    path = os.pathsep.join([str(SUPPORT), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout * 10 if SANITIZED else timeout, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == expect_code, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def peak_rss_nbytes():
    """The most resident memory this process ever had; Linux. ru_maxrss would count that of the process that started it. 0 under AddressSanitizer, whose own would be counted."""
    if SANITIZED:
        return 0
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")
