"""Faults on demand: every call on a file can fail, read or write short, or be the last one of its process.

    def change(path):                       # the action: a function of a module's own, given JSON values
        ...

    def test_it(faults, tmp_path):
        for outcome in faults.at_every_call(change, [str(tmp_path / "a")], root=tmp_path, mode="fail", code="ENOSPC"):
            ...                             # after each: what state is there, whole?

What counts as a call is what changes files; with `kinds` also what looks at them, removes or closes them. `record` runs
an action whole and returns what it did to files (see tests/support/powerloss.py).

A long-lived child with tests/c/faults.c preloaded forks for each run, so that one costs a millisecond and no import.
Linux only; the fixture `faults` in conftest.py skips elsewhere.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import pytest

import milblob
from c_drivers import compilers
from paths import ROOT
from thorough import sized, some

SUPPORT = pathlib.Path(__file__).resolve().parent
MODES = ("fail", "fail on", "short", "short then fail", "kill before", "kill middle", "kill after")
"""fail: the nth call returns the errno. fail on: and so does every later one that takes room. short: a write writes half.
short then fail: and later ones fail. kill before, kill middle (of a write), kill after: SIGKILL."""
KINDS = {"changes": 1, "looks": 2, "removes": 4, "closes": 8}
"""looks: stat, open for reading, read, map, list, lock and their like. removes: unlink, rmdir."""
WITH_ONNX = ("milblob.onnx", "milblob.running")  # and milblob.onnxmltools
"""What the names of modules that import the library onnx begin with."""
NEEDS_ONNX = "ONNX: "
"""What an argument of an action that needs that library begins with."""

FAILURES = [
    ("fail", "EIO"), ("fail", "EROFS"), ("fail", "EACCES"), ("fail on", "ENOSPC"), ("fail on", "EDQUOT"), ("short", "EIO"),
    ("short then fail", "ENOSPC"), ("kill before", "EIO"), ("kill middle", "EIO"), ("kill after", "EIO"),
]  # fmt: skip
EACH_FAILURE = some(FAILURES, named=[("fail", "EIO"), ("short then fail", "ENOSPC"), ("kill after", "EIO")])
"""What fails from a short write on fails as with "fail on", with half of a write on the disk: one of both is enough."""


class Outcome(NamedTuple):
    """What became of a run: exit "ok", "error" or "killed"; its error; the calls counted; the one that was met.

    `value` is what the action returned, as JSON can hold it; `names` what all calls were, if none was to meet a fate.
    """

    exit: str
    error: str
    calls: int
    what: str
    value: Any
    names: list[str]
    number: int


class Faults:
    """The children that run actions, one without the library onnx and one with it; `close` ends them."""

    def __init__(self, library):
        self._library = str(library)
        self._children = {}

    def _child(self, modules):
        """Return the child that has imported these modules, which may be a new one."""
        if modules not in self._children:
            preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD", ""), self._library]))
            path = os.pathsep.join([str(SUPPORT), *(entry for entry in sys.path if entry)])
            self._children[modules] = subprocess.Popen(
                [sys.executable, str(SUPPORT / "faults.py"), *modules],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "LD_PRELOAD": preload, "PYTHONPATH": path},
            )  # fmt: skip
        return self._children[modules]

    def run(
        self,
        action,
        arguments,
        *,
        root,
        number=0,
        mode="fail",
        code="EIO",
        kinds=("changes",),
        kill_after_s=None,
        log="",
    ):
        """Run an action in a process of its own.

        Args:
            action: a function that its file defines at its top level; the child loads that file.
            arguments: for it, as JSON has them.
            root: directory; only calls on what is below count.
            number: the call that meets its fate, from 1; 0: none does, they are only counted.
            mode, code: which fate; see MODES.
            kinds: which calls count; see KINDS.
            kill_after_s: send SIGKILL so many seconds after it has begun.
            log: path of a file, elsewhere, to record in what changes.
        """
        order = {
            "file": action.__code__.co_filename, "action": action.__name__, "arguments": arguments,
            "root": os.path.realpath(root), "number": number, "mode": MODES.index(mode), "code": getattr(errno, code),
            "kill_after_s": kill_after_s, "log": os.fspath(log), "kinds": sum(KINDS[kind] for kind in kinds),
        }  # fmt: skip
        child = self._child(modules_for(*arguments))
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.flush()
        answer = child.stdout.readline()
        assert answer, "the child that runs actions is gone"
        return Outcome(*json.loads(answer), number)

    def record(self, action, arguments, *, root):
        """Run an action whole, and return the bytes of a log of what it did to files below `root`."""
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            outcome = self.run(action, arguments, root=root, log=log)
            assert outcome.exit == "ok", outcome
            return pathlib.Path(log).read_bytes()

    def at_every_call(self, action, arguments, *, root, mode="fail", code="EIO", kinds=("changes",), turns=3):
        """Yield the outcome of a run for each call that the action makes, until one is not reached any more.

        Args:
            action, arguments, root, mode, code, kinds: as for `run`.
            turns: in `make test` each mode meets one of three calls: failures other ones than short writes, and these
                other ones than kills, so that the cases of `EACH_FAILURE` together meet every call. 1: it meets all.
        """
        step = sized(turns, 1)
        number = 1 + ("fail", "short", "kill").index(mode.split()[0]) % step
        while True:
            outcome = self.run(action, arguments, root=root, number=number, mode=mode, code=code, kinds=kinds)
            if outcome.exit == "ok" and outcome.calls < number:
                assert number > step, "the action makes no call"
                return
            yield outcome
            number += step
            assert number < 2000, "the action does not end"

    def kill_often(self, action, arguments, *, root, seed, count, is_enough, longest_s=0.03):
        """Kill an action at random moments, and yield each time it was.

        Args:
            action, root: as for `run`; the action goes on for ever.
            arguments: called for the arguments of each run.
            seed: of the moments.
            count: kills at least.
            is_enough: called after them: whether what was seen shows that the action was at work. A busy machine needs
                more of them, and longer ones.
        """
        chance = random.Random(seed)
        for number in range(20 * count):
            if number >= count and is_enough():
                return
            seconds = chance.uniform(0, longest_s * (1 + number // count))
            outcome = self.run(action, arguments(), root=root, kill_after_s=seconds)
            assert outcome.exit == "killed", outcome
            yield outcome
        raise AssertionError("the action was killed often, and never got anywhere")

    def close(self):
        """End the children."""
        for child in self._children.values():
            child.stdin.close()
            child.stdout.close()
            child.wait(60)


def modules_for(*arguments):
    """The modules that an action with these arguments needs, which its child imports before it forks."""
    return ("milblob.onnx",) if any(str(argument).startswith(NEEDS_ONNX) for argument in arguments) else ()


def build_library(folder):
    """Compile tests/c/faults.c into a folder; returns the library, or None where there is no C compiler."""
    compiler = compilers()["c11"]
    if compiler is None:
        return None
    library = folder / "faults.so"
    source = ROOT / "tests" / "c" / "faults.c"
    subprocess.run([compiler, "-std=gnu11", "-O1", "-fPIC", "-shared", "-w", source, "-o", library, "-ldl"], check=True)
    return library


def temporaries(directory):
    """Names below a directory that a writer left and should have removed."""
    return sorted(path.name for path in pathlib.Path(directory).rglob(".milblob-*"))


def generation(number):
    return number.to_bytes(4, "big") * (1000 + number % 7 * 3000)


def generation_of(data):
    number = int.from_bytes(data[:4], "big")
    assert data == generation(number)
    return number


@contextlib.contextmanager
def read_only(directory):
    """Make a directory read-only, for root too."""
    if os.geteuid() != 0:
        directory.chmod(0o555)
        yield
        directory.chmod(0o755)
        return
    done = subprocess.run(["chattr", "+i", directory], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("root writes everywhere, and nothing can be mounted: a read-only directory is not tested")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", directory], check=True)


# ------------------------------------------------------------------------------------------------------- in the child


def _serve():
    library = ctypes.CDLL(None)
    library.faults_seen.restype = ctypes.c_long
    library.faults_what.restype = library.faults_name.restype = ctypes.c_char_p
    # All of milblob first, and what it imports on first use: each run forks from here, and would else import it again,
    # which takes longer than what it does. Not what imports the library onnx, but for
    # an action that needs it: a fork of a process that has it takes half as long again.
    for module in pkgutil.walk_packages(milblob.__path__, "milblob."):
        if not module.name.endswith(".__main__") and not module.name.startswith(WITH_ONNX):
            importlib.import_module(module.name)
    assert "onnx" not in sys.modules, "WITH_ONNX lacks a folder of milblob that imports it"
    for name in ("numpy.ma", "safetensors.numpy"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    milblob.program.schema.parse("Program", b"")
    for name in sys.argv[1:]:
        importlib.import_module(name)
    modules = {}
    gc.freeze()  # a collection in a fork would copy every page
    _join_pages()
    for line in sys.stdin:
        order = json.loads(line)
        file = order["file"]
        if file not in modules:
            spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
            modules[file] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[file])
            gc.freeze()
            _join_pages()
        print(json.dumps(_run(library, getattr(modules[file], order["action"]), order)), flush=True)


def _join_pages():
    """Ask for memory in huge pages, where Linux can do so: a fork then copies a table of a few entries, not of thousands."""
    collapse, size = 25, 1 << 21
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, inode = line.split()[:5]
        first, end = (int(number, 16) // size * size for number in place.split("-"))
        if rights == "rw-p" and inode == "0":
            for start in range(first + size, end, size):
                madvise(start, size, collapse)


def _run(library, function, order):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        result, value = ["error", "no result"], None
        try:
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) if order["log"] else -1
            os.write(writer, b"\n")
            library.faults_record(log)
            number = ctypes.c_long(order["number"])
            library.faults_arm(os.fsencode(order["root"]), number, order["mode"], order["code"], order["kinds"])
            try:
                value = function(*order["arguments"])
                result = ["ok", ""]
            except Exception as error:
                result = ["error", f"{type(error).__name__}: {error}"]
            result += [library.faults_seen(), library.faults_what().decode(), value]
            result.append([] if order["number"] else [library.faults_name(i + 1).decode() for i in range(result[2])])
            library.faults_arm(b"", ctypes.c_long(0), 0, 0, 0)
            os.write(writer, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.read(reader, 1)
    if order["kill_after_s"] is not None:
        end = time.monotonic() + order["kill_after_s"]
        while time.monotonic() < end and not select.select([reader], [], [], 0)[0]:
            pass
        os.kill(pid, signal.SIGKILL)
    data = b""
    while chunk := os.read(reader, 65536):  # first, for a child waits while the pipe is full
        data += chunk
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return ["killed", str(os.WTERMSIG(status)), 0, "", None, []]
    return json.loads(data)


if __name__ == "__main__":
    sys.modules["faults"] = sys.modules["__main__"]
    _serve()
