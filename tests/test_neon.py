"""The NEON tier: the C drivers, cross-compiled and run by qemu, where every tier gives the same bits as on this CPU.

`make test` runs the four that call kernels, under AddressSanitizer; `make neon` runs them with more compilers and options, and
the other drivers too.
"""

import os
import platform
import shutil
import subprocess

import sysconfig

import pytest

import aarch64
from hostile_bytes import DATA
from test_c_drivers import ROOT, tensor_values  # noqa: F401
from test_house import compilers

KERNELS = ["cast", "compare", "decode", "statistics"]
INCLUDES = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests' / 'c'}"]
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
CLANG = ["clang", "--target=aarch64-linux-gnu"]
everything = pytest.mark.skipif(
    os.environ.get("MILBLOB_NEON") != "all", reason="part of `make neon`, not of `make test`"
)


@pytest.fixture(scope="session")
def tools():
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("this CPU has NEON: tests/test_c_drivers.py runs its tier")
    found = aarch64.find()
    if isinstance(found, str):
        assert os.environ.get("MILBLOB_NEON") != "all", found
        pytest.skip(found)
    return found


def digest(done):
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("digest "), done.stdout
    return done.stdout


def native_digest(name, folder):
    """What a driver prints on this CPU; the tests of this machine's tiers are in test_c_drivers.py."""
    command = [
        compilers()["c11"],
        "-std=c11",
        "-O1",
        *INCLUDES,
        ROOT / "tests" / "c" / f"{name}.c",
        "-o",
        folder / "native",
    ]
    subprocess.run(command, check=True)
    return digest(subprocess.run([folder / "native"], capture_output=True, text=True, check=False))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name, tools, tmp_path):
    tools.build(
        ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, "-O2", "-g", "-fsanitize=address", *INCLUDES, *WARNINGS
    )
    assert digest(tools.run(tmp_path / name)) == native_digest(name, tmp_path)


def test_there_is_such_a_tier(tools, tmp_path):
    source = tmp_path / "tiers.c"
    source.write_text(
        '#include "milblob/kernels.h"\n#include <stdio.h>\n'
        "int main(void) { for (int i = 0; i < mb_tier_usable(); i++) puts(mb_tiers[i].name); return 0; }\n"
    )
    tools.build(source, tmp_path / "tiers", *INCLUDES)
    assert tools.run(tmp_path / "tiers").stdout.split() == ["plain", "neon"]


def test_the_extension_compiles(tools, tmp_path):
    """The whole generated C file, against the headers of this Python."""
    generated = ROOT / "src" / "milblob" / "_codec.c"
    if not generated.exists():
        pytest.skip("the extension was not built here, so its C file is not there")
    flags = ["-fsyntax-only", "-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types"]
    command = [
        *tools.compiler,
        "-std=c11",
        *flags,
        *INCLUDES,
        f"-I{sysconfig.get_path('include')}",
        f"-I{sysconfig.get_path('platinclude')}",
    ]
    done = subprocess.run([*command, generated], env=tools.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


BREAKS = [  # in a header of kernels: what is replaced, by what, and the driver that has to see it
    (
        "float_neon.h",
        "vmaxvq_u16(most) > (inf)",
        "vmaxvq_u16(most) > (inf) + 512",
        "cast",
    ),  # signalling NaNs are quieted
    ("decode_neon.h", "nbytes - at >= 16", "nbytes - at >= 9", "decode"),  # seven bytes too many are read
    ("compare_neon.h", "vaddq_f64(sum_aa, vmulq_f64(x, x))", "vfmaq_f64(sum_aa, x, x)", "compare"),  # rounded once
    ("moments_neon.h", "high < limit", "high <= limit", "statistics"),  # 65520 is not counted
]


@everything
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken[0])
def test_a_broken_promise_is_seen(broken, tools, tmp_path):
    header, old, new, name = broken
    shutil.copytree(ROOT / "include", tmp_path / "include")
    path = tmp_path / "include" / "milblob" / header
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    source, includes = ROOT / "tests" / "c" / f"{name}.c", [f"-I{tmp_path / 'include'}", f"-I{ROOT / 'tests' / 'c'}"]
    tools.build(source, tmp_path / name, "-O2", "-fsanitize=address", *includes)
    done = tools.run(tmp_path / name)
    assert done.returncode != 0 and ("broken promise" in done.stderr or "AddressSanitizer" in done.stderr)


@everything
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("compiler", "flags"),
    [(None, ["-O3"]), (None, ["-O1", *aarch64.SANITIZERS]), (CLANG, ["-O3"])],
    ids=["gcc", "sanitizers", "clang"],
)
def test_kernels_of_compilers(name, compiler, flags, tools, tmp_path):
    if compiler is not None:
        if shutil.which(compiler[0]) is None or tools.compiler[1:]:
            pytest.skip(f"{compiler[0]} or the system's libraries for AArch64 are not installed")
        flags = [*flags, "-static"]
    tools.build(ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, *flags, *INCLUDES, *WARNINGS, compiler=compiler)
    assert digest(tools.run(tmp_path / name)) == native_digest(name, tmp_path)


@everything
def test_other_drivers(tools, tensor_values, tmp_path):  # noqa: F811
    blobs = [path for path in sorted(DATA.glob("blob_*/weight.bin")) if path.stat().st_size < 20_000]
    for name, files in [
        ("walk_blob", blobs),
        ("tensor_value", tensor_values),
        ("scan_program", sorted(DATA.glob("wire/*/program.pb"))),
    ]:
        tools.build(ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, "-O1", *aarch64.SANITIZERS, *INCLUDES)
        for arguments in ([], ["--mutate", 20, 1]):
            done = tools.run(tmp_path / name, *arguments, *files)
            assert done.returncode == 0, done.stderr[-4000:]
