"""What `make neon` runs besides test_neon.py: clang, -O3, UndefinedBehaviorSanitizer, the other drivers, broken kernels."""

import shutil

import pytest

import aarch64
from c_drivers import DIGESTS, INCLUDES, WARNINGS, check_digest, corpus, tensor_value_files
from paths import DATA, ROOT

CLANG = ["clang", "--target=aarch64-linux-gnu"]


@pytest.fixture(scope="session")
def tools():
    found = aarch64.find()
    assert not isinstance(found, str), found
    return found


@pytest.fixture(scope="session")
def tensor_values(tmp_path_factory):
    return tensor_value_files(tmp_path_factory.mktemp("values"))


# In a header of kernels/neon: what is replaced, by what, and the driver that has to see it. Signalling NaNs are quieted; seven bytes
# too many are read; a product and a sum are rounded once; 65520 is not counted.
BREAKS = [
    ("float.h", "vmaxvq_u16(most) > (inf)", "vmaxvq_u16(most) > (inf) + 512", "cast"),
    ("subbyte.h", "= 16; done += 16, at += 2 * nbits) { \\", "= 9; done += 16, at += 2 * nbits) { \\", "decode"),
    ("compare.h", "vaddq_f64(sum_aa, vmulq_f64(x, x))", "vfmaq_f64(sum_aa, x, x)", "compare"),
    ("moments.h", "high < limit", "high <= limit", "statistics"),
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


@pytest.mark.parametrize("name", DIGESTS)
@pytest.mark.parametrize(
    ("compiler", "flags"),
    [(None, ["-O3", "-Wno-maybe-uninitialized"]), (None, ["-O1", *aarch64.SANITIZERS]), (CLANG, ["-O3"])],
    ids=["gcc", "sanitizers", "clang"],
)
def test_kernels_of_compilers(name, compiler, flags, tools, tmp_path):
    if compiler is not None:
        if shutil.which(compiler[0]) is None or tools.compiler[1:]:
            pytest.skip(f"{compiler[0]} or the system's libraries for AArch64 are not installed: this is not run")
        flags = [*flags, "-static"]
    tools.build(ROOT / "tests" / "c" / f"{name}.c", tmp_path / name, *flags, *INCLUDES, *WARNINGS, compiler=compiler)
    check_digest(tools.run(tmp_path / name), name)


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
