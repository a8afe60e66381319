"""What `make neon` runs besides test_neon.py: clang, -O3, UndefinedBehaviorSanitizer, the other drivers, broken kernels."""

import shutil
import subprocess
import sysconfig

import pytest

import aarch64
from c_drivers import CONTRACTING, DIGESTS, INCLUDES, WARNINGS, check_digest, corpus, setup_flags, tensor_value_files
from paths import DATA, ROOT

APPLE = "-mcpu=apple-m1"
"""What clang on a Mac assumes if nobody says otherwise."""


@pytest.fixture(scope="session")
def tools():
    found = aarch64.find()
    assert not isinstance(found, str), found
    return found


@pytest.fixture(scope="session")
def tensor_values(tmp_path_factory):
    return tensor_value_files(tmp_path_factory.mktemp("values"))


# In a header of kernels/neon: what is replaced, by what, and the driver that has to see it. Signalling NaNs are quieted; seven bytes
# too many are read; a product and a sum are rounded once; 65520 is not counted; what is lost counts as kept; squares are not
# rounded; the last half of a search is left out.
BREAKS = [
    ("float.h", "vmaxvq_u16(most) > (inf)", "vmaxvq_u16(most) > (inf) + 512", "cast"),
    ("subbyte.h", "= 16; done += 16, at += 2 * nbits) { \\", "= 9; done += 16, at += 2 * nbits) { \\", "decode"),
    ("compare.h", "vaddq_f64(sum_aa, vmulq_f64(x, x))", "vfmaq_f64(sum_aa, x, x)", "compare"),
    ("moments.h", "high < limit", "high <= limit", "statistics"),
    ("prune.h", "vbicq_u32(sizes, is_chosen), stays,", "vbicq_u32(sizes, is_chosen), sizes,", "compress"),
    ("squares.h", "return mb_round_half_neon(vmulq_f32(x, x));", "return vmulq_f32(x, x);", "compress"),
    ("palette_values.h", "step = 8; step > 0;", "step = 8; step > 1;", "compress"),
]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken[0])
def test_a_broken_promise_is_seen(broken, tools, tmp_path):
    header, old, new, name = broken
    shutil.copytree(ROOT / "include", tmp_path / "include")
    path = tmp_path / "include" / "milblob" / "kernels" / "neon" / header
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    source, includes = ROOT / "tests" / "c" / f"{name}.c", [f"-I{tmp_path / 'include'}", f"-I{ROOT / 'tests' / 'c'}"]
    tools.build(source, tmp_path / name, "-O2", "-fsanitize=address", *includes)
    done = tools.run(tmp_path / name)
    assert done.returncode != 0 and ("broken promise" in done.stderr or "AddressSanitizer" in done.stderr)


@pytest.fixture(scope="session")
def clang(tools):
    command = tools.clang()
    if command is None:
        pytest.skip("clang, the compiler of Macs, is not installed: what it makes for arm64 is not run")
    return command


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize(
    "flags", [["-O3", "-Wno-maybe-uninitialized"], ["-O1", *aarch64.SANITIZERS]], ids=["gcc", "sanitizers"]
)
def test_kernels_of_gcc(name, flags, tools, tmp_path):
    tools.build(ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, *flags, *INCLUDES, *WARNINGS)
    check_digest(tools.run(tmp_path / name), name)


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize("flags", [[], CONTRACTING], ids=["clang", "contracting"])
def test_kernels_of_clang(name, flags, clang, tools, tmp_path):
    """clang fuses a * b + c on arm64 unless it is told not to; with the options of setup.py it never does."""
    options = ["-O3", APPLE, "-static", *flags, *(setup_flags() if flags else [])]
    tools.build(ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, *options, *INCLUDES, *WARNINGS, compiler=clang)
    check_digest(tools.run(tmp_path / name), name)


@pytest.mark.parametrize("language", ["c11", "c++17"])
def test_headers_of_clang(language, clang, tools, tmp_path):
    """Each header alone: what is for arm64 is seen by no other compiler of headers."""
    headers = sorted((ROOT / "include").rglob("*.h"))
    assert len(headers) > 60
    command = [
        *clang,
        "-x",
        language.rstrip("1234567890"),
        f"-std={language}",
        APPLE,
        *INCLUDES,
        *WARNINGS,
        "-fsyntax-only",
    ]
    for number, header in enumerate(headers):
        source = tmp_path / f"{number}.c"
        source.write_text(f'#include "{header.relative_to(ROOT / "include").as_posix()}"\n' * 2)
        done = subprocess.run([*command, source], env=tools.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{header}: {done.stderr[-4000:]}"


def test_the_extension_of_clang(clang, tools):
    generated = ROOT / "src" / "milblob" / "_codec.c"
    assert generated.exists(), "make build writes the C file of the extension"
    python = [f"-I{sysconfig.get_path(which)}" for which in ("include", "platinclude")]
    command = [*clang, *setup_flags(), APPLE, "-Wall", "-Wextra", "-Werror", "-DPy_LIMITED_API=0x030B0000"]
    done = subprocess.run(
        [*command, *INCLUDES, *python, "-fsyntax-only", generated],
        env=tools.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_other_drivers(tools, tensor_values, tmp_path):
    blobs = [path for path in sorted(DATA.glob("blob_*/weight.bin")) if path.stat().st_size < 20_000]
    for name, files in [
        ("walk_blob", blobs),
        ("sub_byte", corpus("sub_byte")),
        ("tensor_value", tensor_values),
        ("scan_program", sorted(DATA.glob("wire/*/program.pb"))),
    ]:
        tools.build(ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, "-O1", *aarch64.SANITIZERS, *INCLUDES)
        files = [path for path in files if path.stat().st_size > 0]
        for arguments in (["--whole"], ["--mutate", 10, 1]):
            done = tools.run(tmp_path / name, *arguments, *files)
            assert done.returncode == 0, done.stderr[-4000:]


def test_packed_bits_with_sanitizers(tools, tmp_path):
    tools.build(
        ROOT / "tests" / "c" / "packed.c", tmp_path / "packed", "-O1", *aarch64.SANITIZERS, *INCLUDES, *WARNINGS
    )
    done = tools.run(tmp_path / "packed")
    assert done.returncode == 0, done.stderr[-4000:]
