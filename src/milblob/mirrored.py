"""Local files that represent remote ones or members of archives: which they are, and how their bytes arrive.

`remote` makes them and enters them here; `storage` looks them up. A representing file has a name in a private directory
and is empty, so that code that opens it by name finds nothing in it, and never zeros where bytes have not arrived. Its
bytes are in its `Backing`, which `storage.mapped.MappedFile` opens in its place.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Spans = Sequence[tuple[int, int]]
"""(offset, nbytes) of several ranges of a file."""


class Backing(NamedTuple):
    """Where the bytes of a representing file are."""

    name: str  # what messages call it: a URL without user, password and query
    nbytes: int  # size of the whole file
    fetch: Callable[[Spans], None]  # called with ranges inside the file; returns once they are in the file or `memory`
    # makes the sparse file of `nbytes` bytes when it is first needed, as a model may have more files than a process can
    # have open; returns its descriptor, which the maker owns. None for `memory`.
    file: Callable[[], int] | None = None
    memory: memoryview | None = None  # the bytes, where they are a part of a mapping


class Root(NamedTuple):
    """A directory of representing files."""

    name: str  # what messages call it
    # makes the file of a path, relative to the directory with "/", if there is one; returns whether there is. The flag
    # is True if a model names the path, and False for one of several paths that milblob tries.
    provide: Callable[[str, bool], bool]
    is_listed: bool  # whether every file is known at once; else only files requested by name


FILES: dict[tuple[int, int], Backing] = {}
"""(Device, inode) of each representing file."""

ROOTS: dict[str, Root] = {}
"""Real path of each directory of them."""


_NAMES: dict[str, str] = {}
_MAX_NAMES = 256  # of directories that are gone

PREFIX = "milblob-"
"""Of the names of these directories."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z][A-Za-z0-9+.-]*::")
_ZIP = ".zip"


def is_remote(source: Any) -> bool:
    """Whether a source is a URL, or may be a zip archive: what `remote.mirror.open_mirror` looks at."""
    text = source
    if not isinstance(source, str):
        if not isinstance(source, os.PathLike):
            return False
        text = os.fspath(source)
        if not isinstance(text, str):
            return False
    return (":" in text and is_url(text)) or text[-4:].lower() == _ZIP


def is_url(text: str) -> bool:
    """Whether a text is a URL, or a chain of them as fsspec takes it ("zip://name::https://...")."""
    return _SCHEME.match(text) is not None


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, which may all hold credentials."""
    return "::".join(map(_shown_part, url.split("::")))


def _shown_part(url: str) -> str:
    head, mark, rest = url.partition("://")
    if not mark:
        return url
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    if head.lower() != "hf":  # where a revision follows the "@", and no user comes before it
        host = host.rpartition("@")[2]
    return f"{head}://{host}{slash}{path}"


def provide(path: str, *, is_named: bool) -> bool:
    """Make the representing file of a path that does not exist; return whether there is one now.

    `path`: any path; most are not below a root. `is_named`: whether a model names the file.
    Raises: OSError: the remote file cannot be examined.
    """
    for directory, root in list(ROOTS.items()):
        if path.startswith(directory) and path[len(directory) : len(directory) + 1] in (os.sep, "/"):
            relative = path[len(directory) :].replace(os.sep, "/").strip("/")
            return root.provide(relative, is_named)
    return False


def enter(directory: str, root: Root) -> None:
    """Enter a directory of representing files; its name is known for messages even after it is gone."""
    ROOTS[directory] = root
    _NAMES.pop(directory, None)
    _NAMES[directory] = root.name
    while len(_NAMES) > _MAX_NAMES + len(ROOTS):
        del _NAMES[next(iter(_NAMES))]


def represents(path: str) -> bool:
    """Whether a path is below a directory of representing files."""
    return any(path.startswith(directory + os.sep) for directory in ROOTS)


def is_unlisted(path: str) -> bool:
    """Whether a path is below a directory without a listing: only files requested by name are known."""
    return any(path.startswith(directory + os.sep) and not root.is_listed for directory, root in list(ROOTS.items()))


def shown(text: str) -> str:
    """Return a text with the private directories in it replaced by what messages call them."""
    if PREFIX in text:
        for directory, name in list(_NAMES.items()):
            inside = f"{name}/" if name else ""
            text = text.replace(directory + os.sep, inside).replace(directory, name or os.curdir)
    return text
