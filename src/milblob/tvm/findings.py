"""Faults of an archive: `open` raises the first one, `check` gathers all."""

import os

from ..analysis.check_report import Findings
from ..errors import FormatError, MilblobError, PendingChangeError

CODES = {
    "not-an-archive": "neither a tar, nor a gzipped one, nor a directory with a metadata.json",
    "tar": "a tar that readers cannot follow, or follow in different ways: checksums, sizes, PAX records, its end",
    "tar-end": "no end, or something after it",
    "gzip": "a gzip stream that is broken, or becomes far larger than it should",
    "pending-change": "a change of the archive was interrupted: `milblob recover` completes it",
    "member-name": "a name that leads out of the archive, or does not begin with ./",
    "member-kind": "a link, a device, a sparse file",
    "member-twice": "a member twice",
    "missing-member": "a file is missing that archives of this version, style and executor have",
    "extra-member": "a file that archives of this version, style and executor do not have",
    "module-name": "a file whose name belongs to no module",
    "version": "a version that never existed",
    "metadata": "a key of metadata.json that is missing or has the wrong shape",
    "form": "the form of another version or of the published draft; milblob understands it",
    "date": "a date that does not parse",
    "module-twice": "a module, or another key, twice in metadata.json",
    "graph": "a graph that contradicts itself",
    "graph-param": "a parameter that is not an argument of the graph",
    "param-shape": "a parameter whose shape is not the one in the graph",
    "param-dtype": "a parameter whose dtype is not the one in the graph",
    "missing-param": "an argument of the graph that is neither an input nor a parameter",
    "graph-argument": "a node without code that is not an argument of the graph, or an argument with code",
    "graph-input": "an input that the graph lacks, or that has another size there",
    "io-size": "io_size_bytes is not the sum of the inputs and outputs",
    "dependency": "an external dependency that is not in the archive, or leads out of it",
    "constants": "constants_size_bytes is not the sum of the parameters",
    "storage": "storage ids other than those of the graph: an old bug of TVM's exporter",
    "storage-twice": "a storage id twice, with two sizes",
    "params": "a .params file that is broken",
    "params-trailing": "bytes after the last tensor, which TVM ignores",
    "params-twice": "a name twice; TVM takes the last tensor",
    "params-reserved": "reserved fields or a device id other than 0, which TVM ignores",
    "params-name": "a name that is not UTF-8",
    "params-dtype": "an element type that TVM itself cannot read back",
    "params-limit": "beyond the defaults of TVM's C runtime: names of 80 bytes, 6 dimensions",
}
"""Every code that a finding of `Library.validate` can have, with its meaning."""


class Report(Findings):
    """The problems of an archive: the first one is raised, or all are gathered.

    Args:
        path: of the archive; None for a buffer.
        is_gathering: gather everything; otherwise faults are raised, and what readers can live with is dropped.
    """

    def __init__(self, path: str | None, *, is_gathering: bool = False) -> None:
        super().__init__(None if is_gathering else lambda _: False, path)
        self.is_gathering = is_gathering
        self._journals: set[str | None] = set()

    def file(self, member: str, root: str | None) -> str | None:
        """Return the path of the file that holds a member: the archive, or in a directory the member itself."""
        return self.path if root is None or not member else os.path.join(root, *member.split("/"))

    def refuse(
        self,
        code: str,
        message: str,
        where: str = "",
        offset: int | None = None,
        file: str | None = None,
        kind: type[MilblobError] = FormatError,
    ) -> None:
        """Raise, or gather, a fault that no reader should accept.

        Raises: FormatError, or `kind`: unless problems are gathered.
        """
        if not self.is_gathering:
            raise kind(message, offset=offset, where=where, file=file or self.path)
        self.note("error", code, message, where, offset, file)

    def error(self, code: str, error: MilblobError | OSError, where: str = "") -> None:
        """Raise, or gather, an error that was caught. A pending change is gathered once, with its own code."""
        if not self.is_gathering:
            raise error
        if isinstance(error, PendingChangeError):
            code, where = error.code, ""
            if error.journal in self._journals:
                return
            self._journals.add(error.journal)
        if isinstance(error, OSError):
            self.refuse(code, f"file: expected to read it, got {error.strerror or error}", where, None, error.filename)
        else:
            self.refuse(code, error.what, where or error.where, error.offset, error.file)
