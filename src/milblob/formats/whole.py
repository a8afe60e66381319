"""Output that appears whole or not at all: a temporary name beside the final one, synced, then renamed."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

Progress = Callable[[str, int], None]
"""Called with the name and the stored bytes of each tensor once it is written."""


@contextlib.contextmanager
def whole_file(path: str, force: bool = False) -> Iterator[str]:
    """Give a temporary name to write to; on success it becomes `path`, on failure nothing is left.

    Raises:
        FileExistsError: `path` exists and `force` is False, or it is a directory.
        FileNotFoundError: the directory that it is to be in does not exist.
    """
    if os.path.isdir(path) or (os.path.lexists(path) and not force):
        raise FileExistsError(
            f"{path}: expected no such file, got one" + ("" if os.path.isdir(path) else " (--force replaces it)")
        )
    _require_parent(path)
    handle, temporary = tempfile.mkstemp(prefix=".milblob-", suffix=".tmp", dir=os.path.dirname(path) or ".")
    os.close(handle)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are for their owner alone
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_parent(path)


@contextlib.contextmanager
def whole_directory(path: str, force: bool, marker: str) -> Iterator[str]:
    """Give a temporary directory to fill; on success it becomes `path`, on failure nothing is left.

    With `force` a directory that is empty, or has a file `marker` from an earlier run, is replaced; no other ever is.

    Raises:
        FileExistsError: `path` exists and may not be replaced.
        FileNotFoundError: the directory that it is to be in does not exist.
    """
    path = path.rstrip("/\\") or path
    if os.path.lexists(path):
        is_ours = os.path.isdir(path) and not os.path.islink(path)
        is_ours = is_ours and (not os.listdir(path) or os.path.isfile(os.path.join(path, marker)))
        if not is_ours:
            raise FileExistsError(f"{path}: expected no such directory, or one that milblob extract made, got another")
        if not force and os.listdir(path):
            raise FileExistsError(f"{path}: expected no such directory, got one (--force replaces it)")
    parent = os.path.dirname(path) or "."
    _require_parent(path)
    temporary = tempfile.mkdtemp(prefix=".milblob-", suffix=".tmp", dir=parent)
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        if os.path.isdir(path):
            old = tempfile.mkdtemp(prefix=".milblob-", suffix=".old", dir=parent)
            os.rename(path, os.path.join(old, "old"))
            try:
                os.rename(temporary, path)
            except BaseException:
                os.rename(os.path.join(old, "old"), path)
                raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_parent(path)


def _require_parent(path: str) -> None:
    """Name the directory that is not there; the temporary name in it would mean nothing to anyone."""
    parent = os.path.dirname(path) or "."
    if not os.path.isdir(parent):
        raise FileNotFoundError(f"output {path}: expected a directory {parent}, got none")


def sync(path: str) -> None:
    """Have the contents of a file on disk before it gets its name."""
    handle = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_parent(path: str) -> None:
    with contextlib.suppress(OSError):  # Windows cannot open directories; the rename holds all the same
        handle = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
