"""Directories of models, and functions for batches that processes can import."""

import os
import pathlib
import shutil
import threading
import time

import milblob
from repacking import small_package, tree


def models(folder, count):
    """Write small models, a third of them in a directory of its own; return the directory."""
    folder.mkdir(parents=True)
    first = small_package(folder).rename(folder / "m0.mlpackage")
    for number in range(1, count):
        package = folder / ("sub" if number % 3 == 2 else "") / f"m{number}.mlpackage"
        shutil.copytree(first, package)
        next(package.rglob("notes.txt")).write_text(f"of model {number}")
    return folder


def seen(folder):
    """Every output, as a reader of the directory finds it: name -> (identity, contents)."""
    found = {}
    for package in sorted(folder.rglob("*.mlpackage")):
        status = package.stat()
        found[package.relative_to(folder).as_posix()] = (status.st_ino, status.st_mtime_ns), tree(package)
    return found


def left_over(folder):
    """Temporary files and directories of writers."""
    return list(folder.rglob(".milblob-*"))


def halved(source, destination, force=False):
    """A function of a batch."""
    return milblob.repack(source, destination, cast={"float32": "float16"}, force=force)


def killed_by_one(source):
    """Ends its process if the model is m1; while there are others, these need a moment."""
    if pathlib.Path(source).stem == "m1":
        os._exit(9)
    time.sleep(0.02)
    return pathlib.Path(source).stem


def size(source):
    return len(tree(pathlib.Path(source)))


def failing(source):
    if pathlib.Path(source).stem == "m1":
        raise RuntimeError("two\nlines")
    return pathlib.Path(source).stem


class InThisThread:
    """An executor that does its work when it gets it."""

    def __init__(self):
        self.threads = set()

    def submit(self, function, *arguments):
        from concurrent.futures import Future

        self.threads.add(threading.get_ident())
        future = Future()
        future.set_result(function(*arguments))
        return future


def sleeping(folder):
    """Names its process in a directory, and works for a minute."""
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(60)
