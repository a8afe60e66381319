"""Where a rewritten model may go, and how its unchanged files are copied."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

from ..errors import FormatError
from ..model.replaceable import require_replaceable
from ..program.splice import Spliced
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile
from ..storage.output import is_ours
from ..storage.pending import JOURNAL, is_left
from ..storage.transfer import copy_range, write_at
from .tasks import data_ranges

_SUFFIXES = {
    "mlpackage": (".mlpackage",),
    "mlmodelc": (".mlmodelc",),
    "mlmodel": (".mlmodel",),
    "blob": (".bin", ".blob", ".weights", ".fmadapter"),
}
_MARKERS = {".mlpackage": ("Manifest.json",), ".mlmodelc": ("model.mil", "model0", "coremldata.bin")}
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_CHUNK_NBYTES = 64 << 20


def is_in_place(sources: list[str], dst: str) -> bool:
    """Whether a destination is one of the sources, under any name; another hard link to it does not count."""
    for source in sources:
        status, target = paths.status(source), paths.status(dst)
        if status is None or target is None or not os.path.samestat(status, target):
            continue
        # A directory has one name. A file may have several hard links: replacing one leaves the others alone.
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1 or paths.real(source) == paths.real(dst):
            return True
    return False


def require_destination(sources: list[str], kind: str, dst: str, force: bool) -> None:
    """Refuse a destination that may not be replaced, lies inside a model, or contains one of the sources.

    Args:
        sources: paths, all of `kind`.
        kind: "mlpackage", "mlmodelc", "mlmodel" or "blob".
        dst: the path of the result.
        force: allow replacing what is there: a file by a file, a model by a model of the same kind without any other
            files in it (see `require_replaceable`). Nothing else is ever replaced.

    Raises:
        ValueError: a path inside the source, around it or in another model; the suffix of another kind.
        FileExistsError: it exists and may not be replaced.
    """
    suffix = os.path.splitext(dst)[1]
    wrong = [other for other, suffixes in _SUFFIXES.items() if suffix in suffixes and other != kind]
    if wrong:
        wanted = " or ".join(_SUFFIXES[kind][:2])
        raise ValueError(f"output {dst}: expected a name for a {kind}, such as {wanted}, got one for a {wrong[0]}")
    is_directory = kind in ("mlpackage", "mlmodelc")
    real = os.path.realpath(dst)
    for parent in _parents(real):
        if any(paths.is_directory(source) and _is_same(source, parent) for source in sources) or _is_model(parent):
            raise ValueError(f"output {dst}: expected a place outside of models, got one in {parent}")
    if is_in_place(sources, dst):
        return
    for source in sources:
        if paths.is_directory(real) and any(_is_same(parent, real) for parent in _parents(os.path.realpath(source))):
            raise ValueError(f"output {dst}: expected a place outside of models, got one that holds {source}")
    if is_directory:
        require_replaceable(dst, kind, force, like=sources)
        return
    if not paths.is_there(dst):
        return
    if not force:
        raise FileExistsError(f"{dst}: expected no such file or directory, got one (--force replaces it)")
    if paths.is_directory(real):
        raise FileExistsError(f"{dst}: expected a file to replace, got a directory")


def _parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _is_same(a: str, b: str) -> bool:
    first, second = paths.status(a), paths.status(b)
    return first is not None and second is not None and os.path.samestat(first, second)


def _is_model(path: str) -> bool:
    """Whether a directory is a model, by name and contents: either alone may also fit another directory."""
    markers = _MARKERS.get(os.path.splitext(path)[1], ())
    return any(paths.is_there(os.path.join(path, name)) for name in markers)


# -------------------------------------------------------------------------------------------------------------- copying


def walk(root: str, inside: str = "") -> Iterator[tuple[str, bool]]:
    """Yield (path relative to root, is a directory) for everything below, directories before their contents.

    Sorted by name; links are not followed. The remains of interrupted milblob writers are skipped.

    Raises:
        FormatError: a journal. ResolveError: a directory has become a link that escapes.
    """
    for base, is_directory in Location(root).entry(inside).names():
        if is_ours(base) or (is_left(base) and not is_directory):
            continue
        name = os.path.join(inside, base) if inside else base
        if base.endswith(JOURNAL):  # it appeared after the model was opened, since opening completes one
            raise FormatError("model: expected no change while it is read, got a journal", file=root)
        yield name, is_directory
        if is_directory:
            yield from walk(root, name)


def copy_entry(
    root: str,
    name: str,
    target: str,
    written: Callable[[int], None] = lambda nbytes: None,
    held: MappedFile | None = None,
    *,
    least: int = 0,
) -> None:
    """Copy a file with its permissions; a symbolic link as a link.

    A link that names a place inside the model by an absolute path becomes a relative one, so that the copy does not
    depend on the original. Holes of a sparse file stay holes.

    Args:
        root: real directory of the model.
        name: of the file, relative to it.
        target: path of the copy.
        written: called with the number of bytes copied, as they are copied.
        held: the open file itself, if any: its name might lead elsewhere by now.
        least: permissions that the copy has in any case.

    Raises:
        FormatError: not a regular file, or it changed meanwhile. ResolveError: it has become a link that escapes.
        OSError: it cannot be read or written.
    """
    origin = os.path.join(root, name)
    if paths.is_link(origin):
        os.symlink(_link(root, origin), target)
        return
    mapping = held if held is not None else MappedFile(Location(root).entry(name))
    try:
        before = os.fstat(mapping.fd)
        with new_file(target) as fd:
            os.ftruncate(fd, mapping.nbytes)
            _copy(mapping, 0, mapping.nbytes, fd, 0, written)
        after = os.fstat(mapping.fd)
        if (after.st_size, after.st_mtime_ns) != (mapping.nbytes, before.st_mtime_ns):
            raise FormatError("file: expected no change while it is copied, got one", file=origin)
    finally:
        if held is None:
            mapping.close()
    set_mode(target, before.st_mode, least=least)


def copy_tree(source: str, target: str) -> None:
    """Copy a whole model to an empty directory: files as files, links as links. Its owner can write to the copy.

    Raises:
        As `copy_entry` and `walk`.
    """
    root = os.path.realpath(source)
    entries = list(walk(root))
    for name, is_directory in entries:
        if is_directory:
            os.mkdir(os.path.join(target, name))
        else:
            copy_entry(root, name, os.path.join(target, name), least=stat.S_IWUSR)
    for name, is_directory in reversed(entries):
        if is_directory:
            set_mode(os.path.join(target, name), os.stat(os.path.join(root, name)).st_mode, least=stat.S_IRWXU)


def write_spliced(spliced: Spliced, mapping: MappedFile, fd: int, written: Callable[[int], None]) -> None:
    """Write an edited message to a new file as a stream; holes of the old file stay holes.

    Args:
        spliced: of `mapping`.
        fd: of an empty file.
        written: called with the number of bytes written, as they are written.

    Raises:
        OSError, FormatError: as copying.
    """
    os.ftruncate(fd, spliced.nbytes)
    offset = 0
    for piece in spliced.pieces:
        if isinstance(piece, tuple):
            _copy(mapping, piece[0], piece[1], fd, offset, written)
            offset += piece[1]
        else:
            write_at(fd, [piece], offset)
            written(piece.nbytes)
            offset += piece.nbytes


def _copy(mapping: MappedFile, start: int, nbytes: int, fd: int, offset: int, written: Callable[[int], None]) -> None:
    done = 0
    for at, size in data_ranges(mapping, start, nbytes):
        for part in range(at, at + size, _CHUNK_NBYTES):
            count = min(_CHUNK_NBYTES, at + size - part)
            copy_range(mapping, part, count, fd, offset + part - start)
            done += count
            written(count)
    if done < nbytes:  # holes
        written(nbytes - done)


def _link(root: str, path: str) -> str:
    link = os.readlink(path)
    if not os.path.isabs(link):
        return link
    directory, place = os.path.realpath(os.path.dirname(path)), os.path.realpath(os.path.dirname(link))
    if os.path.commonpath([root, place]) != root:
        return link
    return os.path.relpath(os.path.join(place, os.path.basename(link)), directory)


def set_mode(path: str, mode: int, *, least: int = 0) -> None:
    """Give a file or directory the permissions of another one, and those in `least`."""
    os.chmod(path, stat.S_IMODE(mode) & 0o777 | least)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[int]:
    """Create a file that does not exist, and yield a descriptor for reading and writing."""
    fd = os.open(path, _FLAGS, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)
