"""Build the one extension module. Everything else about the package is in pyproject.toml."""

import os
import sys
import sysconfig
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

# -O3 because the plain kernels rely on the vectoriser; MSVC's /O2 includes it. Sanitizers want less (Makefile).
# These come after CFLAGS, which may let a compiler round a * b + c once: arm64 then computes other bits than x86.
GNU_FLAGS = [os.environ.get("MILBLOB_OPTIMIZE", "-O3"), "-std=c11", "-ffp-contract=off"]
FLAGS = ["/O2", "/std:c11", "/fp:precise"] if sys.platform == "win32" else GNU_FLAGS

# One wheel for 3.11 and every later Python, except free-threaded ones, which have no stable ABI (docs/decisions.md).
IS_STABLE = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

codec = Extension(
    "milblob._codec",
    sources=["src/milblob/_codec.pyx"],
    include_dirs=["include"],
    depends=[*glob("include/**/*.h", recursive=True), *glob("src/milblob/**/*.px[di]", recursive=True)],
    extra_compile_args=FLAGS,
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else [],
    py_limited_api=IS_STABLE,
)

# An editable installation whose extension the Makefile builds in its place.
IS_COMPILED = os.environ.get("MILBLOB_COMPILE") != "0"

setup(
    ext_modules=cythonize([codec], language_level=3) if IS_COMPILED else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE and IS_COMPILED else {},
)
