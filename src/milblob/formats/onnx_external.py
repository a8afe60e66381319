"""External data of ONNX models: other files, opened beneath the model's folder, and the referenced bytes in them.

A reference is an offset, and the bytes there are read as the weight. So milblob notes a hash of the bytes beside
each reference that it writes, and compares it before it uses them. Runtimes know nothing of it.
"""

import json
import os
from collections.abc import Mapping

from .. import _codec
from ..budget import Budget
from ..errors import FormatError, MilblobError, ResolveError
from ..hashing import blake3
from ..jsontext import parse_json
from ..storage.beneath import Location
from ..storage.mapped import MappedFile

REFERENCE = "milblob.reference"
"""Key in the metadata of an initializer: {"offset", "nbytes", "hash"} of the bytes that it refers to. It is valid only
while the initializer refers there: a tool that writes the values elsewhere may change them."""

HASH_DIGITS = 32


def hash_of(mapping: MappedFile, buffer: _codec.Buffer, offset: int, nbytes: int) -> str:
    """Return the digits that a model notes about bytes in the buffer of a file."""
    return blake3([(buffer, offset, nbytes)], mapping.passed).hex()[:HASH_DIGITS]


def note_of(offset: int, nbytes: int, hash: str) -> str:
    """Return what an initializer has under REFERENCE."""
    return json.dumps({"offset": offset, "nbytes": nbytes, "hash": hash}, separators=(",", ":"))


class External:
    """The elements of one tensor, in another file."""

    __slots__ = ("_error", "_hash", "_location", "_name", "_path", "mapping", "nbytes", "offset")

    def __init__(
        self,
        opened: MappedFile | MilblobError,
        name: str,
        path: str,
        location: str,
        offset: int,
        nbytes: int,
        hash: str,
    ) -> None:
        self.mapping = opened if isinstance(opened, MappedFile) else None  # that file; None where it cannot be opened
        self.offset, self.nbytes = offset, nbytes  # offset, nbytes: of the elements
        self._error = opened if isinstance(opened, MilblobError) else None
        self._name, self._path, self._location, self._hash = name, path, location, hash

    def checked(self) -> MappedFile:
        """Return the file after checking it: it holds these bytes, with the hash that the model records, if any.

        Raises: FormatError: it has not. ResolveError: it cannot be opened.
        """
        if self.mapping is None:
            raise self._error or ValueError("closed")
        end = self.offset + self.nbytes
        if end > self.mapping.nbytes:
            message = f"bytes inside the {self.mapping.nbytes} of {self._location}, got {self.offset} to {end}"
            message = f"place of external data of {self._name!r:.100}: expected {message}"
            raise FormatError(f"{message} (convert again if that file was replaced)", file=self._path)
        if self._hash:
            found = hash_of(self.mapping, self.mapping.check_size(), self.offset, self.nbytes)
            if found != self._hash:
                place = f"at {self.offset} in {self._location}"
                message = (
                    f"external data of {self._name!r:.100}: expected the bytes that were converted (hash {self._hash})"
                )
                hint = "that file was replaced or changed since: convert the model again, or use --weights copy"
                raise FormatError(f"{message}, got others {place}; {hint}", file=self._path, code="stale-reference")
            self._hash = ""
        return self.mapping


class ExternalFiles:
    """The files that one ONNX model names; each is opened once, on the first access to a tensor in it."""

    def __init__(self, path: str, budget: Budget | None = None) -> None:
        self._path = path
        self._budget = budget
        self._opened: dict[str, MappedFile | MilblobError] = {}

    def close(self) -> None:
        """Let go of all files."""
        for opened in self._opened.values():
            if isinstance(opened, MappedFile):
                opened.close()

    def find(self, name: str, entries: Mapping[str, str], note: str, needed: int) -> External:
        """Return where the elements of a tensor are.

        Raises: FormatError: no place, or one of another size. That its file cannot be opened is raised when it is read.
        """
        location = entries.get("location", "")
        if not location:
            raise self._refuse(f"external data of {name!r:.100}: expected a location, got none")
        offset, nbytes = self._number(name, entries, "offset", 0), self._number(name, entries, "length", needed)
        if nbytes != needed:
            raise self._refuse(f"length of external data of {name!r:.100}: expected {needed}, got {nbytes}")
        opened = self._opened.get(location)
        if opened is None:
            opened = self._opened[location] = self._open(name, location)
        return External(opened, name, self._path, location, offset, nbytes, self._hash(name, note, offset, nbytes))

    def _open(self, name: str, location: str) -> MappedFile | MilblobError:
        try:
            folder = Location(os.path.dirname(self._path) or ".")
            found = MappedFile(folder.beneath(location, links=False))  # as every runtime does
        except MilblobError as error:
            error.file = error.file or self._path
            return error
        except OSError as error:
            message = f"external data of {name!r:.100}: expected at {location!r:.200}, got {error.strerror or error}"
            return ResolveError(message, file=self._path, code="missing-file")
        if self._budget is not None:
            self._budget.add_file(found.name, found.nbytes, found.identity)
        return found

    def _number(self, name: str, entries: Mapping[str, str], key: str, default: int) -> int:
        text = entries.get(key, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            message = f"{key} of external data of {name!r:.100}: expected a number of bytes, got {text!r:.100}"
            raise self._refuse(message)
        return int(text)

    def _hash(self, name: str, note: str, offset: int, nbytes: int) -> str:
        """Return the hash of a note about these bytes; "" for a note about other bytes, or without a note."""
        if not note:
            return ""
        found = parse_json(note, f"{REFERENCE} of {name!r:.100}", self._path, unique=True)
        hash = found.get("hash") if isinstance(found, dict) else None
        if not isinstance(hash, str) or len(hash) != HASH_DIGITS:
            raise self._refuse(f"{REFERENCE} of {name!r:.100}: expected offset, nbytes and hash, got {note!r:.100}")
        return hash if (found.get("offset"), found.get("nbytes")) == (offset, nbytes) else ""

    def _refuse(self, message: str) -> FormatError:
        return FormatError(message, file=self._path)
