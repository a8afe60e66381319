"""Atomic changes inside files: a redo journal.

`commit` writes all changes to one new file, the journal, which appears only when it is complete. It then changes the
files in place and removes the journal. If the process dies on the way, the journal remains: readers refuse the model,
and the next writer or `milblob.recover` completes the change. The cost is that of the changed bytes, not of the files.

A journal may arrive with a model from anywhere, so it is trusted as little as the model. `recover` changes only the
files that its caller names, each only within its bounds. It changes nothing if anything in the journal is wrong, or if
the journal may come from a user who may not write to the files. journal_format.py defines the contents of a journal;
pending.py defines where journals are and how readers treat them.
"""

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import FormatError, MilblobError, ResolveError
from ..results import Result
from . import journal_format, mapped, owners, paths, pending
from .beneath import Directory, Location
from .disk import naming, sync, sync_directory
from .journal_format import (
    DIGEST_NBYTES,
    HEAD_NBYTES,
    PATCH,
    REPLACEMENT,
    Entry,
    Journal,
    Later,
    digest_of,
    join,
    nbytes_of,
)
from .locks import is_named, lock, locked_directory
from .output import NewFile
from .pending import Pending
from .temporary import sweep
from .transfer import copy_range, write_at

_WAIT_S = 10.0  # for a writer that is in the middle of a commit
_FLAGS = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
_READ_FLAGS = _FLAGS & ~os.O_RDWR | os.O_RDONLY
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)  # the error of a name that leads to no file
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


def _nothing() -> None:
    pass


class Patch(NamedTuple):
    """Bytes to write inside a file; its size does not change."""

    path: str  # of the file, relative to the root of the model, with "/"
    offset: int  # of the first byte
    data: Any  # C-contiguous buffer, held until the commit is done and never copied; or a `Later`
    # called once the bytes are in the journal or in a changed copy; its exception ends the commit, and nothing has
    # changed
    written: Callable[[], object] = _nothing


class Replacement(NamedTuple):
    """New contents for a file."""

    path: str  # of the file, relative to the root of the model, with "/"
    write: Callable[[int], object]  # called with a descriptor of an empty file, writes them
    # called after that, returns the BLAKE3 of all that was written but the first `FIRST_NBYTES`; None if it is not
    # known: then the file is read once more
    rest: Callable[[], bytes] | None = None


class CommitProgress:
    """How far a commit got, for a caller that handles its exception.

    Attributes:
        is_published: the change may be in the files or in a journal. Earlier facts about the files no longer hold, and
            nothing more may be written until the model is opened again.
    """

    is_published = False


# --------------------------------------------------------------------------------------------------------------- commit


def commit(
    root: str,
    base: str,
    patches: Iterable[Patch],
    replacements: Iterable[Replacement] = (),
    fds: Mapping[str, int] | None = None,
    progress: CommitProgress | None = None,
) -> set[str]:
    """Change the files of a model, all or none.

    Args:
        root, base: of the model, as `pending.place` gives them. All paths are relative to the root. The caller holds
            the lock of the model.
        patches: changed in place, so that views of these bytes show the new values. A file that has another hard link
            is replaced by a changed copy instead, because the other name must keep its contents.
        replacements: files that get new contents under the same name; views keep the old contents. None of them may be
            patched too.
        fds: path -> descriptor, open for writing, whose `lock` the caller holds. The other files are locked here.
        progress: updated with how far the commit got.

    Returns:
        Paths that now lead to new files.

    Raises:
        ValueError: a patch that reaches outside its file.
        BlockingIOError: another writer has the lock of a file.
        PendingChangeError: an earlier change of one of the files was interrupted and must be completed first.
        OSError: from the system. If no journal exists yet, nothing has changed. If one exists, the change is not lost:
            the next writer or `milblob.recover` completes it.
    """
    progress = progress or CommitProgress()
    by_path: dict[str, list[Patch]] = {}
    for patch in patches:
        if nbytes_of(patch.data):
            by_path.setdefault(patch.path, []).append(patch)
    new: list[Replacement] = list(replacements)
    with contextlib.ExitStack() as stack:
        # Outermost: also for what fails while a change is taken back.
        stack.enter_context(naming(os.path.join(root, base) if base else root))
        held: dict[str, int] = dict(fds or {})
        pending.require_none(os.path.join(root, base))
        for path in dict.fromkeys([*by_path, *(replacement.path for replacement in new)]):
            full = join(root, path)
            if path not in held:
                held[path] = stack.enter_context(_locked(full, root))
            elif not is_named(held[path], full):
                message = "file: expected the one that was opened, got another by that name"
                raise FormatError(message, file=full)
            pending.sweep_staged(full)  # refuses a file with a journal; no other process can write one under our lock
        for path in list(by_path):
            status = os.fstat(held[path])
            by_path[path] = _once(by_path[path])
            for patch in by_path[path]:
                _require_inside(path, patch.offset, nbytes_of(patch.data), status.st_size)
            if sum(nbytes_of(patch.data) for patch in by_path[path]) > status.st_size:
                raise ValueError(
                    f"patches of {path}: expected no more bytes than it has, got parts of it several times"
                )
            if status.st_nlink > 1:
                new.append(Replacement(path, _copier(held[path], by_path.pop(path))))
        if not by_path and len(new) == 1:  # one rename is atomic by itself
            _replace(join(root, new[0].path), held[new[0].path], new[0].write, progress)
            return {new[0].path}
        entries = []
        written = [patch.written for group in by_path.values() for patch in group]  # of the first entries
        for path, group in by_path.items():
            entries += [Entry(PATCH, path, os.fstat(held[path]).st_size, p.offset, p.data) for p in group]
        is_alone = bool(base) and {*by_path, *(r.path for r in new)} <= {base}
        found = Pending(root, f".{base}{pending.JOURNAL}" if is_alone else pending.JOURNAL)
        try:
            for replacement in new:
                entries.append(_stage(root, replacement, held[replacement.path]))
            if entries:
                new_journal = _write_journal(found, base, entries, held, progress, written)
                stack.callback(new_journal.release)  # until then readers wait
        except BaseException:
            if not progress.is_published:
                _remove_staged(root, entries)
            raise
        if entries:
            _finish(found, held)
            progress.is_published = False
    return {replacement.path for replacement in new}


def _once(patches: list[Patch]) -> list[Patch]:
    """Return the patches without repetitions: two tensors may share bytes of a file, and get the same values.

    So a journal is never larger than the files that it changes, and a reader can bound its size.
    """
    places: dict[tuple[int, int], int] = {}
    result: list[Patch] = []
    for patch in patches:
        place = places.setdefault((patch.offset, nbytes_of(patch.data)), len(result))
        same = result[place] if place < len(result) else patch
        if same is not patch and _are_equal(same.data, patch.data):

            def written(first: Patch = same, second: Patch = patch) -> None:
                first.written()
                second.written()

            result[place] = same._replace(written=written)
        else:
            result.append(patch)
    return result


def _are_equal(a: Any, b: Any) -> bool:
    """Whether two buffers hold the same bytes. Two `Later` are equal only if they are one object."""
    if a is b:
        return True
    return not isinstance(a, Later) and not isinstance(b, Later) and memoryview(a).cast("B") == memoryview(b).cast("B")


def _finish(found: Pending, held: Mapping[str, int]) -> None:
    """Apply the journal from its own bytes, since patches may be views of the bytes about to change. Then remove it."""
    try:
        with Journal(found.path, is_ours=True) as journal:
            _apply(found.root, journal.entries, held)
        os.unlink(found.path)
        sync_directory(found.root)
    except OSError as error:
        message = (
            f"change: expected to complete it, got {error.strerror or error}; it is kept in this journal: "
            f"close the model, and run {found.advice}"
        )
        raise OSError(error.errno, message, found.path) from error


def _replace(target: str, old: int, write: Callable[[int], object], progress: CommitProgress) -> None:
    """Give one file new contents."""
    new = NewFile(target, locked=True)
    try:
        write(new.fd)
        inode = os.fstat(new.fd).st_ino
    except BaseException as error:
        new.fail(error)
        raise
    try:
        new.commit()
    except BaseException:  # may come from the sync after the rename, or from a rename that succeeded
        progress.is_published = _may_be(target, inode)
        raise


def _may_be(path: str, inode: int) -> bool:
    """Return whether a name may lead to a file; True if unknown."""
    try:
        status = paths.status(path, follow=False)
    except OSError:
        return True
    return status is not None and status.st_ino == inode


def _remove_staged(root: str, entries: list[Entry]) -> None:
    for entry in entries:
        if entry.kind == REPLACEMENT:
            with contextlib.suppress(OSError, ResolveError), _directory_of(root, entry.path) as directory:
                directory.unlink(entry.staged)


def _stage(root: str, replacement: Replacement, old: int) -> Entry:
    """Write the new contents of a file beside it."""
    status = os.fstat(old)
    name = journal_format.staged_name(os.path.basename(replacement.path))
    with _directory_of(root, replacement.path) as directory:
        fd = -1
        try:
            with naming(join(root, replacement.path)):
                fd = directory.open(name, _FLAGS | os.O_CREAT | os.O_EXCL)
            owners.keep_file(fd, status)
            with naming(join(root, replacement.path), fd):
                replacement.write(fd)
                sync(fd)
            nbytes, digest = os.fstat(fd).st_size, digest_of(fd, replacement.rest)
        except BaseException:
            with contextlib.suppress(OSError):
                directory.unlink(name)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        _sync_names(directory)
    return Entry(REPLACEMENT, replacement.path, nbytes, 0, digest + name.encode())


def _directory_of(root: str, path: str) -> Directory:
    """Hold the directory of a file, given relative to the root, open: always below the root, despite links.

    Raises: ResolveError: it is not. OSError: it cannot be opened.
    """
    return Directory(Location(root).entry(os.path.dirname(path)))


def _sync_names(directory: Directory) -> None:
    if directory.fd >= 0:
        sync(directory.fd)


def _write_journal(
    found: Pending,
    base: str,
    entries: list[Entry],
    held: Mapping[str, int],
    progress: CommitProgress,
    written: list[Callable[[], object]],
) -> NewFile:
    """Write a journal, which appears complete; the result keeps it locked until its `release`."""
    import zlib

    new = NewFile(found.path, force=False, locked=True, held=True)
    try:
        if hasattr(os, "fchmod"):  # readable for those who may read all changed files; writable for the owner only
            readers = _OTHERS_READ
            for entry in entries:
                readers &= os.fstat(held[entry.path]).st_mode
            os.fchmod(new.fd, stat.S_IRUSR | stat.S_IWUSR | readers)
        at, crc = HEAD_NBYTES, 0
        for number, part in enumerate(journal_format.pieces(base, entries)):
            write_at(new.fd, [part], at)
            at, crc = at + len(part), zlib.crc32(part, crc)
            index, is_data = divmod(number - 2, 2)  # after the two of the name: the head and the data of each entry
            if is_data and 0 <= index < len(written):
                written[index]()
        write_at(new.fd, [journal_format.header(at, crc, len(entries))], 0)
        inode = os.fstat(new.fd).st_ino
    except BaseException as error:
        new.fail(error)
        raise
    progress.is_published = True
    try:
        new.commit()
    except BaseException:
        new.release()
        # The journal may have kept its name. Unless the removal succeeds and is synced, it is valid.
        status = paths.status(found.path, follow=False)
        if status is not None and status.st_ino == inode:
            os.unlink(found.path)
        sync_directory(found.root)  # before any file that it needs is removed
        progress.is_published = False
        raise
    return new


def _apply(root: str, entries: list[Entry], fds: Mapping[str, int]) -> None:
    """Apply the entries. Idempotent: can be repeated from any point with the same result."""
    changed = set()
    for entry in entries:
        if entry.kind == PATCH:
            write_at(fds[entry.path], [entry.data], entry.offset)
            changed.add(entry.path)
    for path in changed:
        sync(fds[path])
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.kind == REPLACEMENT:
            groups.setdefault(os.path.dirname(entry.path), []).append(entry)
    for group in groups.values():
        with _directory_of(root, group[0].path) as directory:
            for entry in group:
                directory.replace(entry.staged, os.path.basename(entry.path))
            _sync_names(directory)


def _copier(old: int, patches: list[Patch]) -> Callable[[int], None]:
    """Return a function that writes the contents of an open file with the patches applied."""

    def write(fd: int) -> None:
        with io.FileIO(old, closefd=False) as file, contextlib.closing(mapped.MappedFile(file)) as source:
            copy_range(source, 0, source.nbytes, fd, 0)
        for patch in patches:
            data = patch.data.make() if isinstance(patch.data, Later) else patch.data
            write_at(fd, [data], patch.offset)
            patch.written()

    return write


# -------------------------------------------------------------------------------------------------------------- recover


@dataclass(frozen=True, repr=False)
class Recovered(Result):
    """An interrupted change that was completed.

    Attributes:
        journal: path that its journal had.
        files: paths of the files that it changes, in the order of the journal.
        nbytes: how many bytes of these files it changes; of a file that is replaced, all of them.

    Examples:
        >>> for change in milblob.recover("demo.mlpackage").changes:  # none was pending
        ...     print(change.journal, change.files, change.nbytes)
    """

    journal: str
    files: tuple[str, ...]
    nbytes: int


def recover(found: Pending, changeable: Callable[[str], Collection[str]]) -> Recovered | None:
    """Complete a commit that was interrupted, or wait for a running one to end.

    `found`: the journal, which may be gone by now. `changeable`: called with the path of the model, returns the real
    paths of the files that its journal may change.
    Returns: The completed change; None if another process completed it.
    Raises: FormatError: a broken journal, one that would change another file or one that is gone, one from another
    user, or a file that matches neither the old contents nor the new. Nothing has been changed. BlockingIOError: a
    writer has held the lock for ten seconds. OSError: it cannot be done here, for example on a read-only file system;
    the message gives advice.
    """
    try:
        with contextlib.ExitStack() as stack:
            fds: dict[str, int] = {}
            model = _model_of(found)
            if model is None:
                Journal(found.path).close()  # raises the error about it
                model = found.root
            if not _wait(stack, model, found.path, fds):
                return None
            sweep(found.root)  # the journal's own temporary name, where the system creates files by linking
            journal = stack.enter_context(Journal(found.path))
            journal.hold()
            if journal.status.st_nlink > 1:
                message = f"journal: expected a file of one name, got {journal.status.st_nlink} hard links to it"
                raise FormatError(message, file=found.path)
            try:
                allowed = changeable(model)
            except MilblobError as error:
                message = f"journal: expected the model {model} that it changes, got none that can be read ({error})"
                raise FormatError(message, file=found.path) from error
            for entry in journal.entries:  # all of them before anything is opened for writing
                _require_sound(found, entry, allowed)
            files = tuple(dict.fromkeys(join(found.root, entry.path) for entry in journal.entries))
            nbytes = sum(len(e.data) if e.kind == PATCH else e.file_nbytes for e in journal.entries)
            _redo(stack, found, journal, fds)
            os.unlink(found.path)
            sync_directory(found.root)
            return Recovered(found.path, files, nbytes)
    except ResolveError as error:  # it changed since we looked
        message = f"journal: expected changes of files below {found.root} only, got one that is led out ({error.what})"
        raise FormatError(message, file=found.path) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not paths.is_there(found.path):
            return None  # another process has completed it
        if error.errno in _NOWHERE:
            message = f"journal: expected the model and the files that it changes, got {error.strerror} for "
            message += f"{error.filename!r:.500}; restore the model and run {found.advice}, or remove the journal"
            raise FormatError(message, file=found.path) from error
        message = (
            f"journal of an interrupted change: expected to complete it where the model may be written, got "
            f"{error.strerror or error}; run {found.advice} as a user who may write to it, or copy it to such a place"
        )
        raise OSError(error.errno, message, found.path) from error


def _model_of(found: Pending) -> str | None:
    """Return the path of the model that a journal belongs to; None if the journal cannot be read."""
    if found.name != pending.JOURNAL:
        return os.path.join(found.root, found.name.removesuffix(pending.JOURNAL)[1:])
    try:
        with Journal(found.path, is_whole=False) as journal:
            return os.path.join(found.root, journal.base) if journal.base else found.root
    except (FormatError, OSError):
        return None


def _wait(stack: contextlib.ExitStack, model: str, path: str, fds: dict[str, int]) -> bool:
    """Take the lock of a model; return False if a running writer completed its commit first."""
    end = time.monotonic() + _WAIT_S
    while paths.is_there(path):
        try:
            if not paths.is_directory(model):
                fds[model] = stack.enter_context(_locked(model, os.path.dirname(model)))
            else:
                stack.enter_context(locked_directory(model))
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return paths.is_there(path)
    return False


def _redo(stack: contextlib.ExitStack, found: Pending, journal: Journal, held: Mapping[str, int]) -> None:
    fds: dict[str, int] = {}
    reals: dict[str, str] = {}
    todo: list[Entry] = []
    copies: dict[str, list[Patch]] = {}
    for entry in journal.entries:
        if entry.path not in fds:
            real = paths.real(join(found.root, entry.path))
            fds[entry.path] = held[real] if real in held else stack.enter_context(_locked(real, found.root))
            reals[entry.path] = os.path.relpath(real, found.root).replace(os.sep, "/")
        status = os.fstat(fds[entry.path])
        owners.require_trusted(journal.status, status, found.path, "it", entry.path)
        if entry.kind == REPLACEMENT:
            if _is_to_do(found, entry, fds[entry.path]):
                todo.append(entry)
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.file_nbytes:
            message = f"journal: expected {entry.path} to have {entry.file_nbytes} bytes, got {status.st_size}"
            raise FormatError(message, file=found.path)
        if status.st_nlink > 1:
            copies.setdefault(entry.path, []).append(Patch(entry.path, entry.offset, entry.data))
        else:
            todo.append(entry)
    made: list[Entry] = []
    try:
        for copied, patches in copies.items():
            replacement = Replacement(reals[copied], _copier(fds[copied], patches))
            made.append(_stage(found.root, replacement, fds[copied]))
        _apply(found.root, todo + made, fds)
    except BaseException:
        _remove_staged(found.root, made)
        raise
    for entry in made:  # includes those of a killed recovery: these staged files are no longer needed
        with contextlib.suppress(OSError), _directory_of(found.root, entry.path) as directory:
            for name in directory.names():
                if journal_format.is_staged(name, os.path.basename(entry.path)):
                    directory.unlink(name)


def _is_to_do(found: Pending, entry: Entry, target: int) -> bool:
    """Return whether a file still has to be replaced; if not, it is the new one, byte for byte.

    Raises: FormatError: its replacement is missing, is another file, or may come from another user.
    """
    name, digest = entry.staged, bytes(entry.data[:DIGEST_NBYTES])
    try:
        with _directory_of(found.root, entry.path) as directory:
            fd = directory.open(name, _READ_FLAGS)
    except FileNotFoundError:
        if os.fstat(target).st_size == entry.file_nbytes and digest_of(target) == digest:
            return False
        message = (
            f"journal: expected {name}, or {entry.path} to be that file of {entry.file_nbytes} bytes already, got "
            "neither; restore the model, and remove the journal"
        )
        raise FormatError(message, file=found.path) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            message = f"journal: expected {name} to be a regular file, got a symbolic link"
            raise FormatError(message, file=found.path) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_size != entry.file_nbytes:
            message = f"journal: expected {name} to be a file of {entry.file_nbytes} bytes, got another"
            raise FormatError(message, file=found.path)
        owners.require_trusted(status, os.fstat(target), found.path, name, entry.path)
        if digest_of(fd) != digest:
            message = f"journal: expected {name} to have the checksum that is in the journal, got another"
            raise FormatError(message, file=found.path)
    finally:
        os.close(fd)
    return True


def _require_sound(found: Pending, entry: Entry, changeable: Collection[str]) -> None:
    if "\0" in entry.path or paths.real(join(found.root, entry.path)) not in changeable:
        message = f"journal: expected changes of the model file and its weight files only, got one of {entry.path!r}"
        raise FormatError(message, file=found.path)
    if entry.kind == PATCH:
        try:
            _require_inside(entry.path, entry.offset, len(entry.data), entry.file_nbytes)
        except ValueError as error:
            raise FormatError(f"journal: {error}", file=found.path) from None
    elif entry.kind == REPLACEMENT:
        name = bytes(entry.data[DIGEST_NBYTES:]).decode("utf-8", "replace")
        if not journal_format.is_staged(name, os.path.basename(entry.path)):
            message = f"journal: expected the name of a replacement for {entry.path}, got {name!r}"
            raise FormatError(message, file=found.path)


def _require_inside(path: str, offset: int, nbytes: int, file_nbytes: int) -> None:
    if offset < 0 or offset + nbytes > file_nbytes:
        raise ValueError(
            f"bytes [{offset}, {offset + nbytes}) of {path}: expected to lie inside its {file_nbytes} bytes, got more"
        )


@contextlib.contextmanager
def _locked(path: str, root: str) -> Iterator[int]:
    """Open a file below the root of a model for writing and lock it; `path` had no links when it was resolved."""
    fd = Location(root).entry(os.path.relpath(path, root)).open(_FLAGS)
    try:
        lock(fd, path)
        yield fd
    finally:
        os.close(fd)
