"""Changes inside files that are done whole or not at all: a redo journal.

`commit` writes everything that is to change to one new file, the journal, which exists only when it is complete; then
it changes the files in place; then it removes the journal. A process that dies on the way leaves a journal, and whoever
opens the model next does the rest (`recover`). The cost is that of the changed bytes, not of the files.

A journal may come with a model from anywhere, so that it is as little trusted as the model: `recover` changes only the
files that its caller names, each only inside its bounds, and nothing at all if anything in the journal is wrong.

The file, little-endian: magic (8 bytes), nbytes of all of it (u64), CRC-32 of what follows the header (u32), number of
entries (u32); then per entry: kind (u8: 1 patch, 2 replacement), nbytes of the path (u16), nbytes of the file it is for
(u64), offset (u64), nbytes of the data (u64), the path (UTF-8, relative, "/"), the data. The data of a replacement is
the name of the file, beside the one it is for, that takes its name.
"""

import contextlib
import os
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import FormatError
from . import mapped
from .output import NewFile, lock, sync, sync_directory
from .transfer import copy_range, write_at

JOURNAL = ".milblob-journal"
_MAGIC = b"milblob\1"
_HEAD = struct.Struct("<8sQII")
_ENTRY = struct.Struct("<BHQQQ")
_PATCH, _REPLACEMENT = 1, 2
STAGED = ".milblob-new"
_WAIT_S = 10.0  # for a writer that is in the middle of a commit
_FLAGS = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


class Patch(NamedTuple):
    """Bytes to put inside a file, which keeps its size.

    Attributes:
        path: of the file, relative to the root of the model, with "/".
        offset: of the first byte.
        data: C-contiguous buffer; held until the commit is done, never copied.
    """

    path: str
    offset: int
    data: Any


class Replacement(NamedTuple):
    """New contents for a file.

    Attributes:
        path: of the file, relative to the root of the model, with "/".
        write: called with a descriptor of an empty file, writes them.
    """

    path: str
    write: Callable[[int], object]


class _Entry(NamedTuple):
    kind: int
    path: str
    file_nbytes: int
    offset: int
    data: Any


def place(path: str) -> tuple[str, str]:
    """Return (root, name of the journal) for a model: in a package its own directory, else the one the file is in."""
    if os.path.isdir(path):
        return path, JOURNAL
    real = os.path.realpath(path) if os.path.islink(path) else path
    return os.path.dirname(real) or ".", f".{os.path.basename(real)}{JOURNAL}"


def enclosing(path: str) -> str | None:
    """Return the directory of the package or compiled model that a path leads into, as far as its name says so."""
    full = os.path.abspath(path)
    if ".mlpackage" not in full and ".mlmodelc" not in full:
        return None
    parent = os.path.dirname(full)
    while parent and parent != os.path.dirname(parent):
        if parent.endswith((".mlpackage", ".mlmodelc")) and os.path.isdir(parent):
            return parent
        parent = os.path.dirname(parent)
    return None


def pending(path: str) -> str | None:
    """Return the model (a path) that has to be recovered before the bytes of `path` mean anything, or None."""
    if os.path.lexists(os.path.join(*place(path))):
        return path
    around = enclosing(path)
    return around if around is not None and os.path.lexists(os.path.join(around, JOURNAL)) else None


def require_none(path: str) -> None:
    """Refuse a file in the middle of a change, for readers that know the file and not the model.

    Raises:
        FormatError: there is a journal; what to do is said.
    """
    model = pending(path)
    if model is not None:
        words = f"journal: expected none, got one of an interrupted change; milblob.open({model!r}) completes it"
        raise FormatError(words, file=os.path.join(*place(model)))


# --------------------------------------------------------------------------------------------------------------- commit


def commit(
    root: str,
    name: str,
    patches: Iterable[Patch],
    replacements: Iterable[Replacement] = (),
    fds: Mapping[str, int] | None = None,
) -> set[str]:
    """Change the files of a model, all of them or none.

    Args:
        root: the directory that all paths are relative to.
        name: of the journal, as `place` gives it. The caller holds the lock of the model.
        patches: changed in place, so that views of these bytes show the new values. Only a file that has another hard
            link is replaced by a changed copy, because the other name stands for something else.
        replacements: files that get new contents under the same name; views keep the old ones. None of them may be
            patched too.
        fds: path -> descriptor, open for writing, whose `lock` the caller holds. The other files are locked meanwhile.

    Returns:
        Paths that lead to new files now.

    Raises:
        ValueError: a patch that leads out of its file.
        BlockingIOError: another writer has the lock of a file.
        OSError: whatever the system says. As long as there is no journal nothing has changed. If there is one, the
            change is not lost: it is done when the model is opened the next time.
    """
    by_path: dict[str, list[Patch]] = {}
    for patch in patches:
        if memoryview(patch.data).nbytes:
            by_path.setdefault(patch.path, []).append(patch)
    new: list[Replacement] = list(replacements)
    with contextlib.ExitStack() as stack:
        held: dict[str, int] = dict(fds or {})
        for path in {*by_path, *(replacement.path for replacement in new)}:
            if path not in held:
                held[path] = stack.enter_context(_locked(_join(root, path)))
            sweep_staged(_join(root, path))
        for path in list(by_path):
            status = os.fstat(held[path])
            for patch in by_path[path]:
                _require_inside(path, patch.offset, memoryview(patch.data).nbytes, status.st_size)
            if status.st_nlink > 1:
                new.append(Replacement(path, _copier(_join(root, path), by_path.pop(path))))
        if not by_path and len(new) == 1:  # one rename is whole by itself
            with NewFile(_join(root, new[0].path), locked=True) as file:
                new[0].write(file.fd)
            return {new[0].path}
        entries = []
        for path, group in by_path.items():
            entries += [_Entry(_PATCH, path, os.fstat(held[path]).st_size, p.offset, p.data) for p in group]
        try:
            for replacement in new:
                entries.append(_stage(replacement, _join(root, replacement.path), held[replacement.path]))
            if entries:
                _write_journal(root, name, entries)
        except BaseException:
            _remove_staged(root, entries)
            raise
        if entries:
            _apply_written(root, os.path.join(root, name), held)
            os.unlink(os.path.join(root, name))
            sync_directory(root)
    return {replacement.path for replacement in new}


def sweep_staged(path: str) -> None:
    """Remove what a killed commit prepared for a file and never used. The caller holds the lock."""
    directory, base = os.path.split(path)
    with contextlib.suppress(OSError):
        names = os.listdir(directory or ".")
        if any(name.endswith(JOURNAL) for name in names):  # it may be in use
            return
        for name in names:
            if name.startswith(f".{base}.") and name.endswith(STAGED) and _is_staged(name, base):
                os.unlink(os.path.join(directory, name))


def _remove_staged(root: str, entries: list[_Entry]) -> None:
    for entry in entries:
        if entry.kind == _REPLACEMENT:
            with contextlib.suppress(OSError):
                os.unlink(_staged(root, entry))


def _stage(replacement: Replacement, target: str, old: int) -> _Entry:
    """Write the new contents of a file beside it."""
    status = os.fstat(old)
    base = f".{os.path.basename(target)}.{os.urandom(8).hex()}{STAGED}"
    name = os.path.join(os.path.dirname(target), base)
    fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(fd, stat.S_IMODE(status.st_mode))
        replacement.write(fd)
        sync(fd)
        nbytes = os.fstat(fd).st_size
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    finally:
        os.close(fd)
    sync_directory(os.path.dirname(target))
    return _Entry(_REPLACEMENT, replacement.path, nbytes, 0, base.encode())


def _write_journal(root: str, name: str, entries: list[_Entry]) -> None:
    import zlib

    path = os.path.join(root, name)
    new = NewFile(path, force=False)
    try:
        at, crc = _HEAD.size, 0
        for entry in entries:
            relative, data = entry.path.encode(), memoryview(entry.data).cast("B")
            head = _ENTRY.pack(entry.kind, len(relative), entry.file_nbytes, entry.offset, len(data)) + relative
            for part in (head, data):
                write_at(new.fd, [part], at)
                at += len(part)
                crc = zlib.crc32(part, crc)
        write_at(new.fd, [_HEAD.pack(_MAGIC, at, crc, len(entries))], 0)
        inode = os.fstat(new.fd).st_ino
    except BaseException:
        new.discard()
        raise
    try:
        new.commit()
    except BaseException:
        # It may have its name, and fail only to have it on the disk. If it cannot be taken back it counts.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path, follow_symlinks=False).st_ino == inode:
                os.unlink(path)
        raise


def _apply_written(root: str, path: str, fds: Mapping[str, int]) -> None:
    """Do what the journal says: from its own bytes, because the patches may be views of what is about to change."""
    written = mapped.Mapping(path)
    try:
        _apply(root, list(_entries(memoryview(written.live()), path)), fds)
    finally:
        written.close()


def _apply(root: str, entries: list[_Entry], fds: Mapping[str, int]) -> None:
    """Do what the entries say. It can be done again, from any point, with the same result."""
    changed = set()
    for entry in entries:
        if entry.kind == _PATCH:
            write_at(fds[entry.path], [entry.data], entry.offset)
            changed.add(entry.path)
    for path in changed:
        sync(fds[path])
    directories = set()
    for entry in entries:
        if entry.kind == _REPLACEMENT and os.path.lexists(_staged(root, entry)):
            os.replace(_staged(root, entry), _join(root, entry.path))
            directories.add(os.path.dirname(_join(root, entry.path)))
    for directory in directories:
        sync_directory(directory)


def _copier(path: str, patches: list[Patch]) -> Callable[[int], None]:
    """Return what writes the contents of a file, patched."""

    def write(fd: int) -> None:
        source = mapped.Mapping(path)
        try:
            copy_range(source, 0, source.nbytes, fd, 0)
        finally:
            source.close()
        for patch in patches:
            write_at(fd, [patch.data], patch.offset)

    return write


# -------------------------------------------------------------------------------------------------------------- recover


def recover(root: str, name: str, changeable: Callable[[], Collection[str]], lock_path: str | None = None) -> bool:
    """Do the rest of a commit that was interrupted, if there is one.

    Args:
        root, name: as for `commit`.
        changeable: gives the real paths of the files that a journal of this model may change.
        lock_path: what the lock of the model is on; default: the root.

    Returns:
        Whether there was one.

    Raises:
        FormatError: a broken journal, or one that would change anything else. Nothing has been changed.
        BlockingIOError: a writer has held the lock for ten seconds.
        OSError: it cannot be done here, such as where nothing may be written; the message says what to do.
    """
    path = os.path.join(root, name)
    if not os.path.lexists(path):
        return False
    try:
        with contextlib.ExitStack() as stack:
            fds: dict[str, int] = {}
            if not _wait(stack, lock_path or root, path, fds):
                return True
            _redo(stack, root, path, changeable(), fds)
            os.unlink(path)
            sync_directory(root)
    except FormatError:
        raise
    except OSError as error:
        words = (
            f"journal of an interrupted change: expected to complete it where the model may be written, got "
            f"{error.strerror or error}; open it once as somebody who may write to it, or copy it to such a place"
        )
        raise OSError(error.errno, words, path) from error
    return True


def _wait(stack: contextlib.ExitStack, lock_path: str, path: str, fds: dict[str, int]) -> bool:
    """Take the lock of a model; False if a living writer has completed its commit meanwhile."""
    end = time.monotonic() + _WAIT_S
    real = os.path.realpath(lock_path)
    while os.path.lexists(path):
        try:
            if not os.path.isdir(real):
                fds[real] = stack.enter_context(_locked(real))
            elif os.name != "nt":  # no lock of a directory there; the files themselves are locked below
                fd = os.open(real, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                stack.callback(os.close, fd)
                lock(fd, real)
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return os.path.lexists(path)
    return False


def _redo(
    stack: contextlib.ExitStack, root: str, path: str, changeable: Collection[str], held: Mapping[str, int]
) -> None:
    if os.path.islink(path):
        raise FormatError("journal: expected a regular file, got a symbolic link", file=path)
    source = mapped.Mapping(path)
    try:
        data = memoryview(source.live())
        _require_whole(data, path)
        entries = list(_entries(data, path))
        for entry in entries:  # all of them before anything is opened for writing
            _require_sound(root, entry, path, changeable)
        _redo_entries(stack, root, path, entries, held)
    finally:
        source.close()


def _redo_entries(
    stack: contextlib.ExitStack, root: str, path: str, entries: list[_Entry], held: Mapping[str, int]
) -> None:
    fds: dict[str, int] = {}
    plain: list[_Entry] = []
    copies: dict[str, list[Patch]] = {}
    for entry in entries:
        if entry.kind == _REPLACEMENT:
            plain.append(entry)
            continue
        if entry.path not in fds:
            real = _real(root, entry.path)
            fds[entry.path] = held[real] if real in held else stack.enter_context(_locked(real))
        status = os.fstat(fds[entry.path])
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.file_nbytes:
            words = f"journal: expected {entry.path} to have {entry.file_nbytes} bytes, got {status.st_size}"
            raise FormatError(words, file=path)
        if status.st_nlink > 1:
            copies.setdefault(entry.path, []).append(Patch(entry.path, entry.offset, entry.data))
        else:
            plain.append(entry)
    for copied, patches in copies.items():
        with NewFile(_real(root, copied), locked=True) as new:
            _copier(_real(root, copied), patches)(new.fd)
    _apply(root, plain, fds)


def _require_whole(data: memoryview, path: str) -> None:
    import zlib

    if len(data) < _HEAD.size:
        raise FormatError(f"journal: expected a header of {_HEAD.size} bytes, got {len(data)}", file=path)
    magic, nbytes, crc, _ = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise FormatError(f"journal: expected the magic {_MAGIC!r}, got {magic!r}", offset=0, file=path)
    if nbytes != len(data):
        raise FormatError(f"journal: expected {nbytes} bytes, got {len(data)}", offset=8, file=path)
    got = zlib.crc32(data[_HEAD.size :])
    if got != crc:
        raise FormatError(f"journal: expected the checksum 0x{crc:08x}, got 0x{got:08x}", offset=16, file=path)


def _entries(data: memoryview, path: str) -> Iterator[_Entry]:
    """Yield the entries of a journal, their data as views of it."""
    at, count = _HEAD.size, _HEAD.unpack_from(data)[3]
    for _ in range(count):
        if len(data) - at < _ENTRY.size:
            raise FormatError(f"journal: expected an entry, got {len(data) - at} bytes", offset=at, file=path)
        kind, path_nbytes, file_nbytes, offset, data_nbytes = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size + path_nbytes
        if start > len(data) or data_nbytes > len(data) - start:
            words = "journal: expected an entry to end inside it, got one that does not"
            raise FormatError(words, offset=at, file=path)
        try:
            relative = bytes(data[at + _ENTRY.size : start]).decode()
        except UnicodeDecodeError:
            raise FormatError("journal: expected a path in UTF-8, got other bytes", offset=at, file=path) from None
        yield _Entry(kind, relative, file_nbytes, offset, data[start : start + data_nbytes])
        at = start + data_nbytes
    if at != len(data):
        raise FormatError(f"journal: expected its end after {count} entries, got more", offset=at, file=path)


def _require_sound(root: str, entry: _Entry, journal: str, changeable: Collection[str]) -> None:
    if "\0" in entry.path or _real(root, entry.path) not in changeable:
        words = f"journal: expected changes of the model file and its weight files only, got one of {entry.path!r}"
        raise FormatError(words, file=journal)
    if entry.kind == _PATCH:
        try:
            _require_inside(entry.path, entry.offset, len(entry.data), entry.file_nbytes)
        except ValueError as error:
            raise FormatError(f"journal: {error}", file=journal) from None
    elif entry.kind == _REPLACEMENT:
        name = bytes(entry.data).decode("utf-8", "replace")
        if not _is_staged(name, os.path.basename(entry.path)):
            words = f"journal: expected the name of a replacement for {entry.path}, got {name!r}"
            raise FormatError(words, file=journal)
        staged = _staged(root, entry)
        if os.path.lexists(staged):
            status = os.stat(staged, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_size != entry.file_nbytes:
                words = f"journal: expected {name} to be a file of {entry.file_nbytes} bytes, got another"
                raise FormatError(words, file=journal)
    else:
        raise FormatError(f"journal: expected a patch or a replacement, got kind {entry.kind}", file=journal)


def _is_staged(name: str, base: str) -> bool:
    middle = name.removeprefix(f".{base}.").removesuffix(STAGED)
    return name == f".{base}.{middle}{STAGED}" and len(middle) == 16 and not set(middle) - set("0123456789abcdef")


def _staged(root: str, entry: _Entry) -> str:
    return os.path.join(os.path.dirname(_join(root, entry.path)), bytes(entry.data).decode())


def _join(root: str, path: str) -> str:
    return os.path.join(root, *path.split("/"))


def _real(root: str, path: str) -> str:
    return os.path.realpath(_join(root, path))


def _require_inside(path: str, offset: int, nbytes: int, file_nbytes: int) -> None:
    if offset < 0 or offset + nbytes > file_nbytes:
        raise ValueError(
            f"bytes [{offset}, {offset + nbytes}) of {path}: expected to lie inside its {file_nbytes} bytes, got more"
        )


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int]:
    fd = os.open(path, _FLAGS)
    try:
        lock(fd, path)
        yield fd
    finally:
        os.close(fd)
