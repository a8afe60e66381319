"""What a clock does not show: the page cache, bytes read from disk, what becomes resident."""

import contextlib
import ctypes
import functools
import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import milblob

HERE = Path(__file__).parent
SOURCES = Path(milblob.__file__).parents[1]


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or every file below a directory."""
    return [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]


def drop_cache(path: Path) -> None:
    """Ask the kernel to forget the pages of a file, or of all files below a directory. They must not be mapped.

    Pages that are not on disk yet cannot be dropped, hence the fsync. What is left can be read off CWalk.resident.
    """
    for file in files_of(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def drop_all_caches() -> bool:
    """Drop the page cache of the whole machine, and directory entries. False without the right to."""
    try:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def disk_nbytes() -> int:
    """Return the bytes that this process has caused to be read from disk; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


@functools.cache
def _environment() -> dict[str, str]:
    """Environment of a fresh process: bench/ and milblob to import from, bytecode kept, as an installed package has it."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join((str(SOURCES), str(HERE), env.get("PYTHONPATH", "")))
    return env


def run_python(code: str, *argv: str, options: tuple[str, ...] = ()) -> Any:
    """Run Python code in a fresh process and return the JSON that it prints last.

    The first run of a module compiles it; later ones load its bytecode.
    """
    command = [sys.executable, *options, "-c", code, *argv]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"python -c {code!r}: expected exit 0, got {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------------------------- memory

_CHILD_SECONDS = 60


def memory_in_child(run: Callable[[], Any], prepare: Callable[[], None]) -> dict[str, int]:
    """Return how much becomes resident when `run` is called in a child, which has everything that this process has.

    The child is forked, gives free memory back to the system, and resets the kernel's mark of the most that was ever
    resident. What it inherited does not count, so imports and input do not; its result is alive at the end.

    Returns:
        peak_nbytes: growth of what was resident at most, mapped files included: pages around one that is touched count
        where they are in the page cache (Linux maps 16 at a time). anonymous_nbytes: growth, at the end, of the process'
        own memory. Empty where the system does not say, or the child failed or took more than a minute.
    """
    if not Path("/proc/self/clear_refs").exists() or not hasattr(os, "fork"):
        return {}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _measure_in_child(run, prepare, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        ready, _, _ = select.select([pipe], [], [], _CHILD_SECONDS)
        text = pipe.read() if ready else b""
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not text:
        return {}
    peak, anonymous = json.loads(text)
    return {"peak_nbytes": max(0, peak), "anonymous_nbytes": max(0, anonymous)}


def _measure_in_child(run: Callable[[], Any], prepare: Callable[[], None], writer: int) -> None:
    """Do it, write two numbers, end the process: nothing of the parent's may run on the way out."""
    code = 1
    try:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # the parent's pool of threads is not here
        prepare()
        os.write(writer, json.dumps(resident(run)).encode())
        code = 0
    finally:
        os._exit(code)


def resident(run: Callable[[], Any]) -> tuple[int, int]:
    """Return by how many bytes a call makes more resident: at most, and at the end in memory of the process' own."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS"), _status("RssAnon")
    kept = run()
    growth = _status("VmHWM") - before[0], _status("RssAnon") - before[1]
    del kept
    return growth


def _status(key: str) -> int:
    """Bytes, as /proc says."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024
