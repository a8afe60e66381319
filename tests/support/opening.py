"""The ways in which storage/beneath.py opens what a model names, each of which can be asked for."""

import errno
import os
import sys

import pytest

from milblob.storage import beneath
from milblob.storage.beneath import OPEN_FLAGS

WAYS = ("openat2", "step by step")
EVERY_WAY = (*WAYS, "compared afterwards")


def open_by(name, monkeypatch):
    """Open in this way until the end of a test; returns its name."""
    if name == "openat2":
        fd = os.open("/", os.O_RDONLY)
        code = beneath._codec.open_beneath(fd, b"proc", OPEN_FLAGS)
        os.close(fd)
        if code < 0:
            pytest.skip(f"no openat2 here ({os.strerror(-code)}): opening beneath a folder by one call is not tested")
        os.close(code)
    elif name == "step by step":
        monkeypatch.setattr(beneath._codec, "open_beneath", lambda *_: -errno.ENOSYS)
    else:
        if not sys.platform.startswith("linux"):
            pytest.skip("no /proc here: places of files that it names are not tested")
        monkeypatch.setattr(beneath, "_HAS_DIR_FDS", False)
    return name
