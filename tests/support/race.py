"""Somebody who exchanges two names all the time, so that what is looked at is another file when it is opened.

    with exchanging(inside, outside):       # two names of one folder, swapped in one step, some 100,000 times a second
        ...

`python tests/support/race.py` runs the loads of tests/storage/test_beneath.py, 100,000 for each way of opening, and prints what they met.
"""

import contextlib
import errno
import os
import subprocess
import sys
import time

import pytest

from milblob import _codec
from paths import ROOT

LOADS = int(os.environ.get("MILBLOB_RACE_LOADS", "1500"))
"""Loads in one place, in the second tier."""

_CODE = """
import sys
from milblob import _codec
a, b = (name.encode() for name in sys.argv[1:])
while True:
    for _ in range(1000):
        _codec.exchange(a, b)
    print(end=".", flush=True)
"""


@contextlib.contextmanager
def exchanging(first, second):
    """Exchange two names in a process of its own for as long as this lasts; first what it was at the end."""
    names = [os.fsencode(first), os.fsencode(second)]
    if _codec.exchange(*names) in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        pytest.skip("names cannot be exchanged in one step here: loads while they are exchanged are not tested")
    _codec.exchange(*names)
    before = os.lstat(first).st_ino
    command = [sys.executable, "-c", _CODE, os.fspath(first), os.fspath(second)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        assert child.stdout.read(1), "nobody exchanges anything"
        yield
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        if os.lstat(first).st_ino != before:
            _codec.exchange(*names)


if __name__ == "__main__":
    os.environ.update(MILBLOB_THOROUGH="1", MILBLOB_RACE_LOADS="5900")  # in 17 places
    started = time.monotonic()
    code = pytest.main(
        [
            str(ROOT / "tests" / "storage" / "test_beneath.py"),
            "-q",
            "-s",
            "-p",
            "no:randomly",
            "-k",
            "race_of_loads",
        ]
    )
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
