"""What a clock does not show: the page cache, bytes read from disk, resident memory of a fresh process."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = HERE.parent / "src"


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
    """Environment of a fresh process: bench/ and src/ to import from, bytecode kept, as an installed package has it."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join((str(SOURCES), str(HERE), env.get("PYTHONPATH", "")))
    cache = env["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="milblob-bench-pyc-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
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


_RSS = """
import importlib, json, sys
from pathlib import Path
module, function, tiny, path = sys.argv[1:]
tiny, path = Path(tiny), Path(path)
run = getattr(importlib.import_module(module), function)
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key)) * 1024
kept = run(tiny)                            # pays for imports and first uses
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")                         # the peak starts again from what is resident now
keys = "VmRSS", "RssAnon", "RssFile"
before = [status(key) for key in keys]
kept = run(path)
print(json.dumps([status("VmHWM") - before[0], *(status(key) - old for key, old in zip(keys[1:], before[1:]))]))
"""


def resident_growth(module: str, function: str, tiny: Path, path: Path) -> dict[str, int]:
    """Return how much becomes resident when `module.function(path)` runs in a fresh process, in bytes.

    The function has been run on `tiny` before, which pays for imports. Its result is kept alive.

    Returns:
        peak: of everything; anonymous, file: of the process' own memory and of mapped files, afterwards. Pages around
        one that is touched count as resident where they are in the page cache (Linux maps 16 at a time). Empty where
        /proc does not say.
    """
    if not Path("/proc/self/clear_refs").exists():
        return {}
    peak, anonymous, file = run_python(_RSS, module, function, str(tiny), str(path))
    return {"peak_nbytes": peak, "anonymous_nbytes": anonymous, "file_nbytes": file}
