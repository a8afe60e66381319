"""Compiles cwalk.c into a temporary directory and calls it."""

import ctypes
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("cwalk.c")


class CWalk:
    """The functions of cwalk.c.

    Args:
        folder: where the library is put.

    Raises:
        RuntimeError: no C compiler; the limits cannot be measured without one.
    """

    def __init__(self, folder: Path) -> None:
        compiler = os.environ.get("CC") or shutil.which("cc") or (sysconfig.get_config_var("CC") or "").split(" ")[0]
        if not compiler:
            raise RuntimeError("C compiler: expected cc or $CC, got none")
        library = folder / "cwalk.so"
        subprocess.run(
            [*compiler.split(), "-O2", "-ftree-vectorize", "-shared", "-fPIC", str(SOURCE), "-o", str(library)],
            check=True,
        )
        self._library = ctypes.CDLL(str(library))
        for name in ("cwalk_records", "cwalk_program", "cwalk_resident", "cwalk_halve"):
            getattr(self._library, name).restype = ctypes.c_int64

    def records(self, path: str, random: bool = False) -> tuple[int, int]:
        """Walk a blob file under random or default read-ahead: (records, sum of their sizes in bytes)."""
        total = ctypes.c_uint64()
        count = self._library.cwalk_records(path.encode(), random, ctypes.byref(total))
        return count, total.value

    def sum(self, array: Any) -> int:
        """Add up the 64-bit words of a contiguous array, in one pass of one thread."""
        function = self._library.cwalk_sum
        function.restype = ctypes.c_uint64
        return int(function(ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(array.nbytes)))

    def program(self, model: str, weights: str) -> tuple[int, int, int, int]:
        """Walk a model file: (blob values, operations, bytes of their records, elements declared)."""
        out = (ctypes.c_uint64 * 4)()
        if self._library.cwalk_program(model.encode(), weights.encode(), out):
            raise OSError(f"{model}: expected a model file with weights, got none")
        return tuple(out)

    def halve(self, source: str, target: str, sync: bool) -> int:
        """Read a file and write half of its bytes to another, with no arithmetic: the bytes written."""
        written = int(self._library.cwalk_halve(source.encode(), target.encode(), sync))
        if written < 0:
            raise OSError(f"{target}: expected half of {source}, got an error")
        return written

    def resident(self, path: str) -> int:
        """Return the bytes of a file that are in the page cache; -1 if the system does not say."""
        return int(self._library.cwalk_resident(path.encode()))
