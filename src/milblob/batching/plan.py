"""The plan of a batch: every source with the name of its output. What cannot be done is refused here."""

import errno
import os
from collections.abc import Iterable, Iterator

from ..mirrored import is_url
from ..storage import paths
from ..storage.table import FORMATS
from .find import Found, folded

JOURNAL = "milblob-batch.jsonl"
"""The journal, in the directory for outputs."""

_SUFFIXES = tuple(suffix for row in FORMATS for suffix in row.suffixes if suffix.count(".") > 1)


class Plan:
    """Sources, and the names of their outputs.

    A path and a name are all that is kept of each, for there may be a million.

    `into`: the directory for outputs; None without outputs. `suffix`: replaces the suffix of each name; None keeps it.
    more: added to each name.
    Raises: ValueError: no source, a URL, two sources with one output name, an output inside a source.
    """

    def __init__(self, sources: Iterable[Found], into: str | None, suffix: str | None = None, more: str = "") -> None:
        self.into = into
        self._real_into = "" if into is None else paths.real(into)
        self.sources: list[str] = []
        self._names: list[str] = []
        names: dict[str, int] = {}
        inside: set[str] = set()
        for found in sources:
            if is_url(found.path):
                raise ValueError("batch: expected local paths, got a URL (--download of other commands makes a copy)")
            if into is not None:
                name = (found.name if suffix is None else _stem(found.name) + suffix) + more
                self._require_outside(found, inside)
                first = names.setdefault(folded(name), len(self.sources))
                if first != len(self.sources):
                    paths_of = f"{self.sources[first]} and {found.path}"
                    hint = "name their directory with -r (recursive=True), and outputs keep the folders"
                    raise ValueError(f"{paths_of}: expected different output names, got {name} for both ({hint})")
                self._names.append(name)
            self.sources.append(found.path)
        if not self.sources:
            raise ValueError("batch: expected models, got none")
        for name, number in names.items():
            self._require_no_part(name, number, names, inside)

    def __len__(self) -> int:
        return len(self.sources)

    def name(self, number: int) -> str:
        """What the journal calls a model: the name of its output, or its path."""
        return self._names[number] if self.into is not None else self.sources[number]

    def destination(self, number: int) -> str | None:
        """The path of an output."""
        return None if self.into is None else os.path.join(self.into, *self._names[number].split("/"))

    def require_new(self) -> None:
        """Raise FileExistsError if an output exists."""
        for number in range(len(self.sources) if self.into is not None and paths.is_directory(self.into) else 0):
            destination = self.destination(number)
            if destination is not None and paths.is_there(destination):
                message = "expected no such output, got one (name another directory, or remove it)"
                raise FileExistsError(errno.EEXIST, message, destination)

    def require_journal(self, journal: str) -> None:
        """Refuse a journal that is a source, or in one. Raises: ValueError: it is."""
        path = paths.real(journal)
        around = {path}
        while (path := os.path.dirname(path)) not in around:
            around.add(path)
        for source in self.sources:
            if paths.real(source) in around:
                raise ValueError(f"{journal}: expected a journal outside of the sources, got one in {source}")

    def _require_outside(self, found: Found, inside: set[str]) -> None:
        """Refuse a directory for outputs in a source, and collect the sources that are in that directory."""
        into = self._real_into
        for path in filter(None, (found.path, found.root)):
            source = paths.real(path)
            if f"{into}{os.sep}".startswith(f"{source}{os.sep}"):
                message = "expected a directory for outputs that is outside of the sources"
                raise ValueError(f"{self.into}: {message}, got one in {path}")
            if path == found.path and source.startswith(f"{into}{os.sep}"):
                inside.add(folded(source[len(into) + 1 :].replace(os.sep, "/")))

    def _require_no_part(self, name: str, number: int, names: dict[str, int], inside: set[str]) -> None:
        """Refuse an output that is a source, that has one in it or is in one, or that is in another output."""
        for above in _above(name):
            if above in inside:
                raise ValueError(f"{self.sources[number]}: expected an output outside of the sources, got {name}")
            if above != name and above in names:
                raise ValueError(f"{self.sources[number]}: expected an output that is not in another one, got {name}")
        if name == JOURNAL:
            raise ValueError(f"{self.sources[number]}: expected an output name other than the journal's, got {name}")


def _above(name: str) -> Iterator[str]:
    """Yield a name, and the names of the directories that it is in."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _stem(name: str) -> str:
    """Return a name without its suffix."""
    for suffix in _SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return os.path.splitext(name)[0]
