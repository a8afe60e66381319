"""The C programs of tests/c: compilers and flags for them, their inputs, and what they print."""

import ast
import os
import shutil
import sys
import sysconfig

import reference
from hostile_bytes import field
from paths import ROOT
from thorough import IS_THOROUGH

# What the drivers of kernels print: the same on every CPU. Who changes a driver changes its line.
DIGESTS = {
    "cast": "digest eda0366dd2b71563\n",
    "compare": "digest cd22a56670939490\n",
    "compress": "digest f3df8a3cdb1cdcf7\n",
    "decode": "digest 526cfa73b997c138\n",
    "statistics": "digest 16b907f84f4c0d56\n",
}
QUICK = ["-fsanitize=address", "--param=asan-instrumentation-with-call-threshold=15"]
SANITIZERS = [*(["-fsanitize=address,undefined"] if IS_THOROUGH else QUICK), "-fno-sanitize-recover=all"]
"""UndefinedBehaviorSanitizer more than doubles the time to compile; `make sanitize` has it too. In `make test` functions with
many accesses call AddressSanitizer's checks, as inlined ones take gcc twice as long; short loops have theirs inlined."""
INCLUDES = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests' / 'c'}"]
CONTRACTING = ["-std=gnu11", "-ffp-contract=fast"]
"""What somebody's CFLAGS may say: a compiler may then round a * b + c once, and arm64 computes other bits than x86."""
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]


def setup_flags():
    """The options that setup.py compiles the extension with here, but for those of optimization and debugging."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    names = {"os": os, "sys": sys}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and "FLAGS" in ast.unparse(line.targets[0]):
            exec(compile(ast.Module([line], []), "setup.py", "exec"), names)
    return [flag for flag in names["FLAGS"] if not flag.startswith(("-O", "-g"))]


def compilers():
    """The commands that compile C and C++ here: language -> path, or None."""
    c = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    cxx = shutil.which((sysconfig.get_config_var("CXX") or "c++").split()[0]) or shutil.which("c++")
    return {"c11": c, "c++17": cxx}


def corpus(name):
    """Inputs that fuzzing kept: they cover much with little, or once broke a promise."""
    files = sorted((ROOT / "tests" / "fuzz" / "corpus" / name).iterdir())
    assert len(files) > 20
    return files


def tensor_value_files(folder):
    """TensorValues in every field and encoding, and runs of bytes that once fooled the quick decoder."""
    values = [
        reference.pack_tensor_value("floats", [1.0] * 9), reference.pack_tensor_value("doubles", [1.0] * 5),
        reference.pack_tensor_value("ints", [1, -1, 300, 1 << 30] * 40), reference.pack_tensor_value("longInts", [-(1 << 63), 7] * 60),
        reference.pack_tensor_value("bools", [True, False] * 100), reference.pack_tensor_value("strings", ["", "a", "bc"]),
        reference.pack_tensor_value("bytes", bytes(range(200))),
        field(2, field(1, b"\1" * 63 + b"\x80" * 10_000 + b"\1")), field(2, field(1, b"\1" * 64 + b"\x80" * 20)),
        field(3, field(1, b"\1" * 200) + b"\x08\x01" * 50 + field(1, b"\0" * 5)), field(2, field(1, b"\5")) + field(2, b"\x08\x07") + field(5, field(1, b"\3")),
    ]  # fmt: skip
    paths = [folder / f"{number}.pb" for number in range(len(values))]
    for path, value in zip(paths, values, strict=True):
        path.write_bytes(value)
    return paths


def check_digest(done, name):
    """Fail unless a finished driver printed the digest that it prints on every CPU."""
    assert done.returncode == 0, done.stderr[-4000:]
    check_printed(done.stdout, name)


def check_printed(text, name):
    """Fail unless a driver printed its digest."""
    why = "if the driver has other inputs now, such as those of a new dtype, put what it printed into DIGESTS"
    assert text == DIGESTS[name], f"the plain tier gives other bits than on other CPUs; {why}"
