"""Copies of a model in which some files are changed: each byte is written once."""

import os
import stat
from collections.abc import Callable, Mapping

from ..errors import FormatError
from ..storage import paths
from ..storage.mapped import MappedFile
from ..storage.transfer import copy_range
from .copying import OpenFiles, copy_entry, data_ranges, new_file, set_mode, walk


def write_entry(root: str, name: str, target: str, held: MappedFile, write: Callable[[int], object]) -> None:
    """Write a changed copy of a file with its permissions; its owner can write to the copy.

    `held`: the open file that `write` copies. `write`: called with a descriptor of an empty file.
    Raises: FormatError: the file changed since it was opened, or another file has its name. As `write`.
    """
    origin = os.path.join(root, name)
    before = os.fstat(held.fd)
    with new_file(target) as fd:
        write(fd)
    after, named = os.fstat(held.fd), paths.status(origin)
    is_same = (after.st_size, after.st_mtime_ns) == (held.nbytes, before.st_mtime_ns)
    if not is_same or named is None or not os.path.samestat(named, after):
        raise FormatError("file: expected no change while it is copied, got one", file=origin)
    set_mode(target, before.st_mode, least=stat.S_IWUSR)


Changed = Mapping[MappedFile, Callable[[int], object]]
"""An open file that changes -> what writes the changed copy to an empty file."""


def copy_changed(root: str, name: str, target: str, changed: Changed, files: OpenFiles) -> None:
    """Copy a file of a model, or write its changed copy; the owner can write to it. As `copy_entry`."""
    held = files.find(os.path.join(root, name))
    if held is None or held not in changed:
        copy_entry(root, name, target, held=held, least=stat.S_IWUSR)
    else:
        write_entry(root, name, target, held, changed[held])


def copy_changed_tree(source: str, target: str, changed: Changed, files: OpenFiles) -> None:
    """Copy a whole model to an empty directory, with some files changed: files as files, links as links.

    Its owner can write to the copy. The model's files are those that were opened.

    Raises: FormatError: one of them is not there any more. As `copy_entry`, `write_entry` and `walk`.
    """
    root = os.path.realpath(source)
    entries = list(walk(root))
    for name, is_directory in entries:
        if is_directory:
            os.mkdir(os.path.join(target, name))
        else:
            copy_changed(root, name, os.path.join(target, name), changed, files)
    files.require_all()
    for name, is_directory in reversed(entries):
        if is_directory:
            set_mode(os.path.join(target, name), os.stat(os.path.join(root, name)).st_mode, least=stat.S_IRWXU)


def copy_between(mapping: MappedFile, start: int, end: int, fd: int) -> None:
    """Copy bytes of a mapped file to the same place of a file of zeros; holes are preserved."""
    if end > start:
        for at, nbytes in data_ranges(mapping, start, end - start):
            copy_range(mapping, at, nbytes, fd, at)
