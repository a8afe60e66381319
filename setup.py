"""Build the one extension module. Everything else about the package is in pyproject.toml."""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# -O3 because the plain kernels rely on the vectoriser; MSVC's /O2 includes it. Debug information takes a quarter of the
# time and is four fifths of the file. Sanitizers want it, and less optimization (Makefile).
# These come after CFLAGS, which may let a compiler round a * b + c once: arm64 then computes other bits than x86.
OPTIMIZE_FLAGS = os.environ.get("MILBLOB_OPTIMIZE", "-O3 -g0").split()
GNU_FLAGS = [*OPTIMIZE_FLAGS, "-std=c11", "-ffp-contract=off", "-fvisibility=hidden"]
FLAGS = ["/O2", "/std:c11", "/fp:precise"] if sys.platform == "win32" else GNU_FLAGS

# One wheel for 3.11 and every later Python, except free-threaded ones, which have no stable ABI (docs/decisions.md).
IS_STABLE = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

codec = Extension(
    "milblob._codec",
    sources=["src/milblob/_codec.pyx", "src/milblob/kernels.c", "src/milblob/text.c"],
    include_dirs=["include"],
    depends=[*glob("include/**/*.h", recursive=True), *glob("src/milblob/**/*.px[di]", recursive=True)],
    extra_compile_args=FLAGS,
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if IS_STABLE else [],
    py_limited_api=IS_STABLE,
)


class BuildInParallel(build_ext):
    """Compiles the units of the extension side by side; setuptools would compile one after another."""

    def build_extension(self, ext):
        """Build as setuptools does, with a compiler that starts all units at once."""
        compile_each = self.compiler.compile

        def compile_all(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [objects[0] for objects in pool.map(lambda source: compile_each([source], **options), sources)]

        self.compiler.compile = compile_all
        super().build_extension(ext)


# An editable installation whose extension the Makefile builds in its place.
IS_COMPILED = os.environ.get("MILBLOB_COMPILE") != "0"

setup(
    cmdclass={"build_ext": BuildInParallel},
    ext_modules=cythonize([codec], language_level=3) if IS_COMPILED else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE and IS_COMPILED else {},
)
