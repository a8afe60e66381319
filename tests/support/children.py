"""Python in processes of its own, which may crash, hang or take much memory without harm to the tests."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

SUPPORT = pathlib.Path(__file__).resolve().parent

SANITIZED = "MILBLOB_SANITIZED" in os.environ
"""`make sanitize`: AddressSanitizer takes terabytes of addresses, and memory beside all that is allocated."""

KEPT_NBYTES = (256 if SANITIZED else 0) << 20
"""What AddressSanitizer keeps of the memory that was freed."""

LIMIT_NBYTES = (100 << 20) + KEPT_NBYTES
"""Anonymous memory that work on files of any size may take."""


def child_environment():
    """The environment for a new interpreter with this one's import path."""
    import sys

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def tool_environment():
    """The environment for a program that is not Python's: without the sanitizers that `make sanitize` preloads."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


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


_SERVER = """
import faulthandler, gc, importlib, json, os, pkgutil, resource, signal, sys
import numpy, milblob
for module in pkgutil.walk_packages(milblob.__path__, "milblob."):
    if not module.name.endswith("__main__") and not module.name.startswith(("milblob.onnx", "milblob.running")):
        importlib.import_module(module.name)
milblob.program.schema.parse("Program", b"")
gc.collect()
gc.freeze()
while line := sys.stdin.buffer.readline():
    order = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(os.waitpid(pid, 0)[1], flush=True)
else:
    sys.exit()
signal.alarm(order["timeout"])
for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, os.open(order["out"], os.O_WRONLY)), (2, os.open(order["err"], os.O_WRONLY))):
    os.dup2(file, number)
    os.close(file)
faulthandler.enable()
os.chdir(order["folder"])
os.environ.clear()
os.environ.update(order["environment"])
if order["memory_nbytes"]:
    resource.setrlimit(resource.RLIMIT_AS, (order["memory_nbytes"], order["memory_nbytes"]))
sys.argv[1:] = order["arguments"]
exec(compile(order["code"], "<string>", "exec"), {"__name__": "__main__", "sys": sys})
"""
_servers = {}


def run_fork(code, *arguments, timeout=120, memory_nbytes=None, expect_code=0):
    """Do what `run_child` does, in a fork of a process that has imported NumPy and milblob: that takes a tenth of the time.

    Not for code that looks at what is imported, or changes something before milblob is. A hang ends with SIGALRM.
    """
    if SANITIZED or not sys.platform.startswith("linux"):
        return run_child(code, *arguments, timeout=timeout, memory_nbytes=memory_nbytes, expect_code=expect_code)
    if os.getpid() not in _servers:  # it ends when this process does
        path = os.pathsep.join([str(SUPPORT), *(entry for entry in sys.path if entry)])
        _servers[os.getpid()] = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    server = _servers[os.getpid()]
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        order = {
            "code": textwrap.dedent(code), "arguments": [str(argument) for argument in arguments], "timeout": timeout,
            "memory_nbytes": memory_nbytes, "out": out.name, "err": err.name, "folder": os.getcwd(), "environment": dict(os.environ),
        }  # fmt: skip
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        status = os.waitstatus_to_exitcode(int(server.stdout.readline()))
        said, errors = (pathlib.Path(file.name).read_text(encoding="utf-8", errors="replace") for file in (out, err))
    assert status == expect_code, f"exit {status}\n{said[-2000:]}\n{errors[-4000:]}"
    return said


def peak_rss_nbytes():
    """The most resident memory this process ever had; Linux. ru_maxrss would count that of the process that started it. 0 under AddressSanitizer, whose own would be counted."""
    if SANITIZED:
        return 0
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")
