"""A C compiler for AArch64 and an emulator to run what it makes: those of this machine, or unpacked from its distribution.

As a script: `aarch64.py FOLDER` gets what is missing into FOLDER, where `find` looks for it. Nothing is installed, no rights
are needed: apt-get says which packages there are and downloads them, dpkg unpacks them. It never fails, it says how it went.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parents[2] / ".venv" / "aarch64"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PACKAGES = {COMPILER: ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"], EMULATOR: ["qemu-user"]}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
APT = ["-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20"]


@dataclasses.dataclass(frozen=True)
class Tools:
    """What runs C on AArch64: the beginnings of two commands, and their environment."""

    compiler: list[str]
    emulator: list[str]
    environment: dict[str, str]

    def clang(self, name="clang"):
        """The beginning of a command that compiles with clang, as Macs do, against the same libraries; None without it."""
        path = shutil.which(name)
        if path is None:
            return None
        command = [path, "--target=aarch64-linux-gnu"]
        if len(self.compiler) == 1:  # the system's: clang finds it
            return command
        root = pathlib.Path(self.compiler[0]).parents[2]
        system, linker = root / "usr" / "aarch64-linux-gnu", root / "usr" / "bin" / "aarch64-linux-gnu-ld"
        found = [f"--sysroot={root}", f"--gcc-toolchain={root / 'usr'}", "-isystem", str(system / "include")]
        unused = "-Wno-unused-command-line-argument"  # of the linker, where nothing is linked
        return [*command, *found, f"--ld-path={linker}", f"-L{system / 'lib'}", f"-B{system / 'lib'}", unused]

    def build(self, source, program, *flags, compiler=None):
        """Compile one C file; raises CalledProcessError, whose stderr says why not."""
        command = [*self.command(source, *flags, compiler=compiler), "-o", str(program)]
        subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)

    def command(self, source, *flags, compiler=None):
        """The command that compiles one C file, without its output."""
        return [*(compiler or self.compiler), "-std=c11", *flags, str(source)]

    def run(self, program, *arguments, timeout=300):
        """Run a program; returns the finished process with its output as text."""
        command = [*self.emulator, str(program), *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )


def find(folder=FOLDER):
    """Look for the tools on PATH, then in a folder.

    Returns:
        Tools that were seen to work, AddressSanitizer included, or a line that says what is missing.
    """
    root = pathlib.Path(folder).resolve() / "root"
    libraries = [str(path) for path in [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]]
    environment = {**os.environ, "LC_ALL": "C", "ASAN_OPTIONS": "detect_leaks=0"}  # the emulator cannot stop threads
    paths = {}
    for name in (COMPILER, EMULATOR):
        unpacked = root / "usr" / "bin" / name
        paths[name] = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        return f"{' and '.join(missing)}: neither on PATH nor in {folder}"
    compiler, system = [paths[COMPILER]], "/usr/aarch64-linux-gnu"
    if libraries:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*libraries, environment.get("LD_LIBRARY_PATH", "")]).rstrip(
            ":"
        )
    if paths[COMPILER].startswith(str(root)):  # linker scripts have absolute paths, which begin at the system's root
        compiler, system = [*compiler, f"--sysroot={root}"], str(root / "usr" / "aarch64-linux-gnu")
    tools = Tools(compiler, [paths[EMULATOR], "-L", system], environment)
    with tempfile.TemporaryDirectory() as name:
        source, program = pathlib.Path(name, "probe.c"), pathlib.Path(name, "probe")
        source.write_text('#include <arm_neon.h>\n#include <stdio.h>\nint main(void) { return puts("works") < 0; }\n')
        try:
            tools.build(source, program, *SANITIZERS)
            done = tools.run(program, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{paths[COMPILER]}: {getattr(error, 'stderr', None) or error}"
    return tools if done.stdout == "works\n" else f"{paths[EMULATOR]}: {done.stderr or done.returncode}"


def fetch(folder):
    """Download and unpack the packages of the missing tools.

    Raises:
        OSError, subprocess.SubprocessError: it did not work; the folder is as it was.
    """
    folder = pathlib.Path(folder).resolve()
    wanted = [package for name, packages in PACKAGES.items() if shutil.which(name) is None for package in packages]
    wanted = wanted or PACKAGES[COMPILER]  # there, but without its library
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "packages", "new"):
        (folder / part).mkdir(parents=True)
    own_lists = ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]

    def apt(*arguments):
        command = ["apt-get", *APT, *arguments]
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(
            command, cwd=folder / "packages", env=environment, capture_output=True, text=True, timeout=300, check=True
        ).stdout

    def download(*options):
        plan = apt(*options, "--simulate", "--no-install-recommends", "install", *wanted)
        found = re.findall(r"^Inst (\S+) \((\S+) ", plan, re.MULTILINE)  # an upgrade has the old version in between
        if not found:
            raise FileNotFoundError("apt-get: no package to unpack")
        apt(*options, "download", *(f"{name}={version}" for name, version in found))

    try:
        try:
            download()
        except subprocess.CalledProcessError:  # no lists, or old ones
            apt(*own_lists, "update")
            download(*own_lists)
        for package in sorted((folder / "packages").glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, folder / "new"], capture_output=True, timeout=120, check=True)
        (folder / "new").rename(folder / "root")
    finally:
        for part in ("lists", "cache", "packages", "new"):
            shutil.rmtree(folder / part, ignore_errors=True)


def main(folder):
    tools = find(folder)
    if isinstance(tools, str) and shutil.which("apt-get") and shutil.which("dpkg"):
        print(f"{tools}; asking apt-get for packages to unpack there")
        try:
            fetch(folder)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"that did not work: {(getattr(error, 'stderr', None) or str(error)).strip()}")
        tools = find(folder)
    print(
        f"no NEON here: {tools}" if isinstance(tools, str) else f"NEON: {tools.compiler[0]}, run by {tools.emulator[0]}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
