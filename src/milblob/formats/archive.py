"""Archives that hold arrays and belong to a package above this one: which paths they are, and who opens them.

milblob.tvm knows Model Library Format archives, and is built on this package. So nothing here imports it: milblob
itself says, once, where to find it (`Kind`).
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import UnsupportedError
from ..storage import paths

if TYPE_CHECKING:
    from .params import Parameters

SUFFIXES = (".tar", ".tar.gz", ".tgz")
_METADATA = "metadata.json"
PARAMETERS = "parameters"
"""The folder of an unpacked archive that holds its `.params` files."""

# A compiled Core ML model has a metadata.json too.
_OTHERS = frozenset(["Manifest.json", "model.mil", "model0", "coremldata.bin", "model.espresso.net"])


class Kind(Protocol):
    """What a package that knows archives offers."""

    def open_arrays(self, path: str, max_nbytes: int | None = None) -> "Parameters":
        """Open the parameters; see `formats.read.open_arrays`."""

    def check(self, path: str, max_nbytes: int | None = None) -> list[Any]:
        """Check an archive or a `.params` file; see `milblob.check`."""

    def codes(self) -> Iterable[str]:
        """Return every code that a finding of `check` can have."""

    def refit(self, path: str, given: Mapping[str, Any], **options: Any) -> Any:
        """Give parameters new values; `options` and the result as of `milblob.refit`."""


_known: list[Callable[[], Kind]] = []


def register(find: Callable[[], Kind]) -> None:
    """Say who knows archives: `find` is called when one is met first."""
    _known[:] = [find]


def is_archive(path: str) -> bool:
    """Whether a path is an archive: by its suffix; a directory by the metadata.json in it."""
    if paths.is_directory(path):
        return paths.is_there(os.path.join(path, _METADATA)) and not _OTHERS.intersection(os.listdir(path))
    return is_archive_name(path)


def changeable_files(path: str) -> set[str]:
    """Return the files of an unpacked archive that its journal may change: those of its parameters.

    A journal's paths are compared once their links are resolved, so that a file behind a link is none of these.

    Raises:
        OSError: they cannot be listed.
    """
    folder = os.path.join(paths.real(path), PARAMETERS)
    return {os.path.join(folder, name) for name in os.listdir(folder)} if paths.is_directory(folder) else set()


def is_archive_name(path: str) -> bool:
    """Whether a file with this path is an archive."""
    return path.lower().endswith(SUFFIXES)


def kind() -> Kind:
    """Return who knows archives.

    Raises:
        UnsupportedError: nobody.
    """
    if not _known:
        raise UnsupportedError("archive: expected milblob.tvm to be there, which opens it, got nobody")
    return _known[0]()
