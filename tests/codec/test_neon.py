"""The NEON tier: the C drivers, cross-compiled and run by qemu; what they compute is the same as on this CPU.

Those that call kernels, as quickly as that goes. `make neon` runs neon_more.py too: sanitizers, more compilers and options,
the other drivers.
"""

import platform
import subprocess
import sysconfig

import pytest

import aarch64
from c_drivers import CONTRACTING, DIGESTS, INCLUDES, WARNINGS, check_digest, setup_flags
from compiled import compile_kept
from once import once
from paths import ROOT
from thorough import some


@pytest.fixture(scope="session")
def tools():
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("this CPU has NEON: tests/codec/test_c_drivers.py runs its tier")
    found = aarch64.find()
    if isinstance(found, str):
        pytest.skip(f"{found}: the kernels for arm64 are not run (make thorough installs both)")
    return found


@pytest.fixture(scope="session")
def build(tools, tmp_path_factory):
    """A function that builds tests/c/NAME.c, or another source, once for all workers, and returns the program's path.

    With CFLAGS that would fuse a * b + c, and then the options of setup.py, which come last and must have the say.
    """
    unit = tmp_path_factory.mktemp("kernels") / "kernels.c"
    unit.write_text('#include "milblob/kernels.h"\n')
    options = [*INCLUDES, *WARNINGS, *CONTRACTING, *setup_flags()]

    def made(name, source, *flags):
        command = tools.command(source, *flags, *options)
        return once(
            tmp_path_factory, name, lambda path: compile_kept(command, path, name, environment=tools.environment)
        )

    def one(name, source=None):
        kernels = made("neon.o", unit, "-O1", "-DMB_TIERS_HERE", "-c")
        source = source or ROOT / "tests" / "c" / f"{name}.c"
        return made(f"neon-{name}", source, "-O1", "-DMB_TIERS_ELSEWHERE", str(kernels))

    return one


@pytest.mark.parametrize("name", some(DIGESTS, named=["cast"]))
def test_kernels(name, tools, build):
    check_digest(tools.run(build(name)), name)


def test_packed_bits(tools, build):
    done = tools.run(build("packed"))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("option", some(["-ffast-math", "-Ofast", "-ffinite-math-only"], 1))
def test_options_that_change_values_are_refused(option, tools, tmp_path):
    source = tmp_path / "kernels.c"
    source.write_text('#include "milblob/kernels.h"\n')
    with pytest.raises(subprocess.CalledProcessError) as raised:
        tools.build(source, tmp_path / "kernels.o", option, *INCLUDES, *setup_flags(), "-fsyntax-only")
    assert "compile it without -ffast-math" in raised.value.stderr


def test_there_is_such_a_tier(tools, build, tmp_path):
    source = tmp_path / "tiers.c"
    source.write_text(
        '#include "milblob/kernels.h"\n#include <stdio.h>\n'
        "int main(void) { for (int i = 0; i < mb_tier_usable(); i++) puts(mb_tiers[i].name); return 0; }\n"
    )
    assert tools.run(build("tiers", source)).stdout.split() == ["plain", "neon"]


def test_the_extension_compiles(tools, tmp_path):
    """The whole generated C file, against the headers of this Python."""
    generated = ROOT / "src" / "milblob" / "_codec.c"
    if not generated.exists():
        pytest.skip("the extension was not built here: its C file is not compiled for AArch64")
    python = [f"-I{sysconfig.get_path(which)}" for which in ("include", "platinclude")]
    errors = ["-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types"]
    command = [*tools.compiler, "-std=c11", "-fsyntax-only", *errors, *INCLUDES, *python, generated]
    done = subprocess.run(command, env=tools.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
