"""What the harnesses in Python share: milblob with counters of coverage, a directory, and the command line.

python tests/fuzz/fuzz_NAME.py [libFuzzer's options] [CORPUS...]      fuzzes, with atheris
python tests/fuzz/fuzz_NAME.py --replay FILE...                       runs each file once; needs no atheris
"""

import atexit
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]
REPLAY = "--replay"


def counted():
    """Return a context in which modules of milblob that are imported get counters of coverage; none for --replay.

    Only milblob is followed: protobuf is not what is tested. It is imported first.
    """
    if REPLAY in sys.argv:
        return contextlib.nullcontext()
    import atheris
    import google.protobuf.message_factory  # noqa: F401
    import ml_dtypes  # noqa: F401

    return atheris.instrument_imports(include=["milblob"])


def folder():
    """Return a new directory in memory where there is one; it is removed at the end of the process."""
    made = tempfile.mkdtemp(prefix="milblob-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return pathlib.Path(made)


def main(one_input):
    """Run the command line: fuzz, or run files once.

    Args:
        one_input: a function of the bytes of one input; an exception of it is a finding.
    """
    warnings.simplefilter("ignore")
    if REPLAY in sys.argv:
        files = sys.argv[sys.argv.index(REPLAY) + 1 :]
        for file in files:
            print(file, flush=True)  # the last line before a crash names the input
            one_input(pathlib.Path(file).read_bytes())
        print(len(files), "inputs")
        return
    import atheris

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
