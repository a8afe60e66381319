"""What tests compile from C, kept from run to run: compiled again only if something that it is made of has changed."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess

from paths import ROOT

KEPT = ROOT / "build" / "tests"
"""`make clean` removes it. Where nothing can be written, as in an unpacked source distribution, nothing is kept."""
FOLDERS = ("include", "tests/c", "tests/fuzz")


def compile_kept(command, path, name, *, environment=None, kept=KEPT):
    """Compile into a path, or copy there what the same command once made of the same sources.

    Args:
        command: of the compiler, without its output. Files and folders (after -I) in it count by what they hold.
        path: of the output, at which nothing is yet.
        name: of what is made; of each name the last one is kept.
        environment: of the compiler.
        kept: folder of what was made.

    Raises:
        CalledProcessError: it does not compile; the compiler has said why.
    """
    command = [str(part) for part in command]
    made = kept / f"{name}-{_key(command, environment)}"
    with contextlib.suppress(OSError):
        shutil.copy(made, path)
        return
    subprocess.run([*command, "-o", path], env=environment, check=True)
    with contextlib.suppress(OSError):
        kept.mkdir(parents=True, exist_ok=True)
        part = kept / f"part-{os.getpid()}-{name}"
        shutil.copy(path, part)
        for old in kept.glob(f"{name}-" + "[0-9a-f]" * 64):
            old.unlink()
        part.rename(made)


def _key(command, environment):
    """The hash of all that the output depends on."""
    said = subprocess.run([command[0], "-v"], env=environment, capture_output=True, check=False)
    found = hashlib.sha256(said.stderr)
    found.update(str(os.stat(command[0]).st_mtime_ns).encode())  # another compiler of the same version
    for name in ("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH"):
        found.update(repr((environment or os.environ).get(name)).encode())
    for part in [f"-I{ROOT / folder}" for folder in FOLDERS] + command[1:]:
        place = pathlib.Path(part.removeprefix("-I"))
        files = sorted(place.rglob("*.[ch]")) if place.is_dir() else [place] if place.is_file() else []
        if not files:
            found.update(repr(part).encode())
        for file in files:
            relative = file.relative_to(place) if place.is_dir() else file.suffix
            found.update(repr((str(relative), hashlib.sha256(file.read_bytes()).digest())).encode())
    return found.hexdigest()
