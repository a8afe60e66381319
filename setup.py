"""Build the one extension module. Everything else about the package is in pyproject.toml."""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

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

# For the stable ABI, what Cython writes imports inspect, and so dis and tokenize, to read the numbers of these flags of
# code objects: a quarter of what milblob adds to the start of a process. With the numbers here it reads none of them,
# and `without_inspect` takes the import out. They are in Python's documentation of inspect.
CODE_FLAGS = {
    "CO_OPTIMIZED": "0x1",
    "CO_NEWLOCALS": "0x2",
    "CO_VARARGS": "0x4",
    "CO_VARKEYWORDS": "0x8",
    "CO_GENERATOR": "0x20",
    "CO_COROUTINE": "0x80",
    "CO_ASYNC_GENERATOR": "0x200",
}
NO_IMPORT = "inspect = Py_NewRef(Py_None); (void)__Pyx_init_co_variable;"

codec = Extension(
    "milblob._codec",
    sources=["src/milblob/_codec.pyx", "src/milblob/kernels.c", "src/milblob/text.c"],
    include_dirs=["include"],
    depends=[*glob("include/**/*.h", recursive=True), *glob("src/milblob/**/*.px[di]", recursive=True)],
    extra_compile_args=FLAGS,
    define_macros=[("Py_LIMITED_API", "0x030B0000"), *CODE_FLAGS.items()] if IS_STABLE else [],
    py_limited_api=IS_STABLE,
)


def without_inspect(extensions):
    """Remove the import of inspect from Cython's output; output of another version without that line stays as it is."""
    for path in (Path(source) for extension in extensions for source in extension.sources if IS_STABLE):
        text = path.read_text(encoding="utf-8")
        changed = text.replace('inspect = PyImport_ImportModule("inspect");', NO_IMPORT)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
    return extensions


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
    ext_modules=without_inspect(cythonize([codec], language_level=3)) if IS_COMPILED else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE and IS_COMPILED else {},
)
