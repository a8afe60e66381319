"""Build the one extension module. Everything else about the package is in pyproject.toml."""

import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup

# -O3 because the plain kernels rely on the compiler's vectoriser; MSVC's /O2 includes it.
FLAGS = ["/O2", "/std:c11"] if sys.platform == "win32" else ["-O3", "-std=c11"]

codec = Extension(
    "milblob._codec",
    sources=["src/milblob/_codec.pyx"],
    include_dirs=["include"],
    depends=[*glob("include/milblob/*.h"), *glob("src/milblob/*.px[di]")],
    extra_compile_args=FLAGS,
)

setup(ext_modules=cythonize([codec], language_level=3))
