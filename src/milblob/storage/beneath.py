"""Opening the files that a model names without ever leaving the model's directory, even if links change at any time.

Resolving a link and then opening the result leaves a gap in which the link can be exchanged. So the open itself
enforces the boundary: either one system call that refuses to leave a directory (openat2, Linux 5.6), or one component
after another, each opened relative to the directory before it and never through a link that was not read first. Windows
has neither; there we open the file and then ask the system for its path.
"""

import errno
import os
import re
import sys
from functools import lru_cache
from typing import NoReturn, Self

from .. import _codec
from ..errors import ResolveError
from ..mirrored import ROOTS, provide, shown
from . import paths

OPEN_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY", "O_NOCTTY"))
"""For reading. O_NONBLOCK so that opening a FIFO returns at once and can be refused; regular files do not care."""

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_LISTED = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _CLOEXEC
_PASSED = getattr(os, "O_PATH", 0) | _LISTED  # on the way: such a directory need not be readable
_MAX_LINKS = 40  # in one path: the kernel's limit
# Errors of openat2 after which walking step by step either succeeds or gives the precise reason: the call is missing or
# forbidden, a link escapes or is absolute, a directory is being renamed, or a signal arrived.
_UNDECIDED = (
    errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG, errno.EXDEV, errno.EAGAIN, errno.EINTR,
)  # fmt: skip
_HAS_DIR_FDS = os.open in os.supports_dir_fd


class Location:
    """The place of a model, or of a file or directory that the model names.

    `Location(path)` is a path from the user: it is opened wherever it leads. `location.beneath(relative)` is a path
    from one of the model's files: it may be a link, and go through links, but must end inside `location`. Locations
    nest: a location beneath a location that is itself beneath another must remain inside both. Where the format allows
    no links, `links=False` refuses each one between the outer location and the file, also inside of it.
    """

    __slots__ = ("_links", "_outer", "_parts", "_relative", "path")

    def __init__(self, path: str) -> None:
        # with links unresolved, so that messages show what the user knows. Not for opening: use `open`.
        self.path = path
        self._outer: Location | None = None
        self._relative = ""
        self._parts: list[str] = []
        self._links = True

    def beneath(self, relative: str, *, links: bool = True) -> "Location":
        """Return the location of a path from a file, with slashes of either kind; does not touch the file system.

        `relative`: to this directory. `links`: whether opening it may follow symbolic links.
        Raises: ResolveError: an absolute path, or one with "..", a drive, a NUL, or an unpaired surrogate.
        """
        parts = relative.replace("\\", "/").split("/")
        if relative[:1] in ("/", "\\") or ".." in parts or "\0" in relative or any(part[1:2] == ":" for part in parts):
            raise ResolveError(f"reference: expected a path inside {self.path}, got {relative!r}", code="escaping-file")
        try:
            os.fsencode(relative)
        except UnicodeEncodeError:  # JSON can spell it
            raise ResolveError(
                f"reference: expected a path that can be a file name, got {relative!r}", code="escaping-file"
            ) from None
        found = Location(join_relative(self.path, relative))
        found._outer, found._relative, found._links = self, relative, links
        found._parts = _components("/".join(parts))
        return found

    def entry(self, path: str, *, links: bool = True) -> "Location":
        """Return the location of an entry whose name came from the file system: it may contain any character."""
        found = Location(os.path.join(self.path, path))
        found._outer, found._relative, found._links = self, path, links
        found._parts = _components(path)
        return found

    def parent(self) -> "Location":
        """Return the location of its directory, beneath the same root."""
        if self._outer is None:
            return Location(os.path.dirname(self.path) or ".")
        return self._outer.beneath("/".join(self._parts[:-1]))

    def _cached(self) -> "Location | None":
        """Return the blob that its link leads to in a cache of the Hugging Face Hub; None of all else."""
        outer: Location | None = self
        while outer is not None and outer._outer is not None:
            if not outer._links:
                return None
            outer = outer._outer
        found = None if outer is None or outer is self else blob_of(self.path, outer.path)
        return None if found is None else Location(found[0]).entry(found[1], links=False)

    def open(self, flags: int = OPEN_FLAGS) -> int:
        """Open it and return a file descriptor, which the caller owns.

        `flags`: as for `os.open`; none that creates a file.
        Raises: ResolveError: it escapes, or there is a link where none may be. OSError: it cannot be opened.
        """
        outer = self._outer
        if ROOTS:
            self._provide()
        if outer is None:
            return os.open(self.path or os.curdir, flags)
        try:
            return self._open(outer, flags)
        except ResolveError:
            cached = self._cached()
            if cached is None:
                raise
            return cached.open(flags)

    def _open(self, outer: "Location", flags: int) -> int:
        sys.audit("open", self.path, None, flags)
        if not _HAS_DIR_FDS:
            return self._open_and_compare(flags)
        directory = outer.open(_PASSED)
        try:
            if not self._links:
                return self._walk(directory, flags)
            name = os.fsencode("/".join(self._parts) or ".")
            fd = _codec.open_beneath(directory, name, flags)
            if fd >= 0:
                return fd
            if -fd not in _UNDECIDED:
                raise OSError(-fd, os.strerror(-fd), self.path)
            return self._walk(directory, flags)
        finally:
            os.close(directory)

    def is_there(self) -> bool:
        """Return whether its name exists, as `paths.is_there`; of a remote file, whether there is one."""
        return paths.is_there(self.path) or (bool(ROOTS) and provide(self.path, is_named=True))

    def _provide(self) -> None:
        """Make what represents a remote file, once a model names it; refuse one that does not exist."""
        for directory in list(ROOTS):
            is_missing = self.path.startswith(directory + os.sep) and not paths.is_there(self.path)
            if is_missing and not provide(self.path, is_named=True):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), shown(self.path))

    def _walk(self, root: int, flags: int) -> int:
        """Open it component by component; no component is a link at the moment it is opened."""
        opened: list[int] = []  # the directories from root on
        parts = self._parts[::-1]  # still to go, the next one last
        links = 0
        try:
            while parts:
                part, here = parts.pop(), opened[-1] if opened else root
                if part == ".." and opened:  # of a link
                    os.close(opened.pop())
                    continue
                if part == "..":  # above the root, perhaps to come back
                    links += 1
                    parts = self._real_parts(links)
                    continue
                try:
                    fd = os.open(part, (_PASSED if parts else flags) | _NO_LINK, dir_fd=here)
                except OSError as error:
                    # A link, or no longer one, or not a directory: a new attempt finds out.
                    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) or links == _MAX_LINKS:
                        raise OSError(error.errno, error.strerror, self.path) from None
                    links += 1
                    target = _link(part, here)
                    if target is not None and not self._links:
                        self._refuse_link(part)
                    if target is not None and os.path.isabs(target):
                        while opened:
                            os.close(opened.pop())
                        parts = self._real_parts(links)
                    else:
                        parts += [part] if target is None else _components(target)[::-1]
                    continue
                if not parts:
                    return fd
                opened.append(fd)
            return os.open(".", flags, dir_fd=opened[-1] if opened else root)
        finally:
            for fd in opened:
                os.close(fd)

    def _real_parts(self, links: int) -> list[str]:
        """Return its real path as components from the root, in reverse. The walk does not rely on it."""
        root, real = os.path.realpath(self._root()), os.path.realpath(self.path)
        if not _is_inside(real, root) or links > _MAX_LINKS:
            self._refuse(real)
        return _components(os.path.relpath(real, root))[::-1]

    def _open_and_compare(self, flags: int) -> int:
        """Open it, then refuse the opened file if it is outside: for systems where a directory cannot be held open."""
        self.real()  # do not even open a file outside, unless a link changes after this
        fd = os.open(self.path, flags)
        try:
            real, outer = final_path(fd), self._outer
            if not self._links:
                plain = os.path.join(os.path.realpath(self._root()), *self._parts)
                if os.path.normcase(real) != os.path.normcase(plain):
                    self._refuse_link(real)
            while outer is not None:
                if not _is_inside(real, os.path.realpath(outer.path)):
                    self._refuse(real)
                outer = outer._outer
        except BaseException:
            os.close(fd)
            raise
        return fd

    def real(self) -> str:
        """Return its path with all links followed: equal for two locations of one file. It need not exist.

        Raises: ResolveError: it escapes.
        """
        real, outer = _real(self.path), self._outer
        while outer is not None:
            if not _is_inside(real, _real(outer.path)):
                cached = self._cached()
                if cached is None:
                    self._refuse(real)
                return cached.real()
            outer = outer._outer
        return real

    def names(self) -> list[tuple[str, bool]]:
        """Return (name, is a directory and not a link) for every entry of this directory, sorted by name.

        Raises: As `open`.
        """
        if os.scandir not in os.supports_fd:
            self.real()
            with os.scandir(self.path) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        fd = self.open(_LISTED)
        try:
            with os.scandir(fd) as entries:
                return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        finally:
            os.close(fd)

    def _root(self) -> str:
        return self.path if self._outer is None else self._outer.path

    def _refuse(self, real: str | None = None) -> NoReturn:
        found = real if real is not None else os.path.realpath(self.path)
        message = f"reference {self._relative!r}: expected a file inside {self._root()}, got a link to {found}"
        if "/blobs/" in found and "/snapshots/" in os.path.abspath(self._root()):
            message += (
                " (the cache of Hugging Face links files: `hf download --local-dir DIR` makes a copy without links)"
            )
        raise ResolveError(message, code="escaping-file")

    def _refuse_link(self, got: str) -> NoReturn:
        message = f"reference {self._relative!r:.200}: expected no symbolic link on the way, got {got!r:.200}"
        raise ResolveError(message, code="escaping-file")

    def __repr__(self) -> str:
        return f"<Location {self.path}>"


class Directory:
    """A directory held open: operations on names act in this directory, even after its path leads elsewhere.

    A context manager. Names are plain entry names, without a slash.

    Raises: As `Location.open`.
    """

    __slots__ = ("_path", "fd")

    def __init__(self, place: Location) -> None:
        self._path = place.path if _HAS_DIR_FDS else place.real()
        self.fd = place.open(_LISTED) if _HAS_DIR_FDS else -1  # of the directory; -1 where no directory can be held

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a name as `os.open` does; follows links unless the flags forbid it."""
        return os.open(name, flags, mode, dir_fd=self.fd) if self.fd >= 0 else os.open(self._full(name), flags, mode)

    def replace(self, old: str, new: str) -> None:
        """Rename an entry; another of the new name is replaced."""
        if self.fd >= 0:
            os.replace(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        else:
            os.replace(self._full(old), self._full(new))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        if self.fd >= 0:
            os.unlink(name, dir_fd=self.fd)
        else:
            os.unlink(self._full(name))

    def names(self) -> list[str]:
        """Return the names of all entries, in any order."""
        return os.listdir(self.fd if self.fd >= 0 else self._path)

    def _full(self, name: str) -> str:
        return os.path.join(self._path, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)


@lru_cache(maxsize=64)  # every weight of a file asks for the same one
def join_relative(root: str, relative: str) -> str:
    """Join a directory and a relative path from a file, with slashes of either kind."""
    return os.path.join(root, *_components(relative.replace("\\", "/")))


def _components(path: str) -> list[str]:
    return [part for part in path.replace(os.sep, "/").split("/") if part not in ("", ".")]


def _real(path: str) -> str:
    """`os.path.realpath`, six times faster where the system can report it and the path exists."""
    try:
        return paths.asked(path) or os.path.realpath(path)
    except (OSError, ValueError):
        return os.path.realpath(path)


def _is_inside(real: str, root: str) -> bool:
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def _link(name: str, directory: int) -> str | None:
    """Return where a link in a directory leads, or None if the entry is not a link."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise


def final_path(fd: int) -> str:
    """Return the path of an open file, all links followed. For Windows; also Linux with /proc (for tests)."""
    if sys.platform != "win32":
        return os.readlink(f"/proc/self/fd/{fd}")
    import ctypes
    import msvcrt

    text = ctypes.create_unicode_buffer(1 << 15)
    function = ctypes.windll.kernel32.GetFinalPathNameByHandleW
    function.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32, ctypes.c_uint32]
    if not 0 < function(msvcrt.get_osfhandle(fd), text, len(text), 0) < len(text):
        raise ctypes.WinError()
    return text.value.replace("\\\\?\\UNC\\", "\\\\", 1).removeprefix("\\\\?\\")


_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"


def blob_of(path: str, model: str) -> tuple[str, str] | None:
    """Return where a link in a cached model leads, if it is one of the cache's own.

    The link is read once, and the caller opens what is returned, without following links: a link that is exchanged
    afterwards leads nowhere else.

    `path`: of a file in the model, which may be a link; the folders above it are none that lead out. `model`: path of
    the model.
    Returns: Real path of the repository's folder, and the path in it; None for all else.
    """
    try:
        root, folder = os.path.realpath(model), os.path.realpath(os.path.dirname(path))
        link = os.readlink(path)
    except (OSError, ValueError):
        return None
    parts = root.split(os.sep)
    inside = folder == root or folder.startswith(root + os.sep) or os.path.dirname(root) == folder
    if not inside or os.path.isabs(link):
        return None
    for number in range(1, len(parts) - 2):
        if _REPOSITORY.fullmatch(parts[number]) and parts[number + 1] == _SNAPSHOTS:
            repository = os.sep.join(parts[: number + 1])
            target = os.path.normpath(os.path.join(folder, link))
            blobs, name = os.path.split(target)
            if blobs == os.path.join(repository, _BLOBS) and name not in ("", os.curdir, os.pardir):
                return repository, f"{_BLOBS}/{name}"
    return None
