"""Check a bundle of Core AI: its files, its bytecode, its constants, and private data that it reveals."""

import os
import re
from collections import Counter
from typing import Any, cast

from ..analysis.check_report import CheckReport, Findings
from ..errors import FormatError, MilblobError, UnsupportedError
from ..jsontext import parse_json
from ..rules.catalog import Severity
from ..storage import paths
from ..wording import some
from .asset import BYTECODE, HASH, METADATA, Asset
from .decode import AssetDecoder
from .emit import ALIGNMENT, Span, sha256
from .open_bytecode import expected_nbytes, size_message
from .program import StoredConstant, type_text

CODES = {
    "lfs-pointer": "a Git LFS pointer in place of the file",
    "pending-change": "a change of the bundle was interrupted: `milblob recover` completes it",
    "missing-file": "main.mlirb, main.hash or metadata.json is missing",
    "extra-file": "a file that bundles do not have",
    "hash": "main.hash is not the SHA-256 of main.mlirb: devices would run a model that was compiled before",
    "metadata": "a key of metadata.json that is missing, not known, or has the wrong type",
    "bytecode": "MLIR bytecode that breaks its format",
    "container-version": "a version of the bytecode other than 6",
    "dialect": "a dialect other than aicode",
    "dialect-version": "a version of aicode other than 2: no tensor is read",
    "producer": "bytecode of another compiler than that of every bundle known",
    "function": "functions that cannot be followed: properties, types or names",
    "constant-size": "a constant with more or fewer bytes than its type needs; Apple's library crashes on it",
    "element-type": "a code of an element type that is not known",
    "attribute-code": "a code of a value that is not known",
    "compressed": "parts of a compressed weight that do not fit each other",
    "operation": "an operation that computes a weight in a way that is not known",
    "resource-key": "a key that two resources have",
    "resource-alignment": "an alignment below that of an element, or above what Apple's reader takes in small files",
    "resource-unused": "a resource that no constant refers to",
    "shared-value": "constants that are one stored value, so that a change in place changes all of them",
    "debug-info": "paths and hashes of source files, which the conversion for debugging leaves in the bundle",
}
"""Every code that a finding can have, and what it means."""


PRODUCER, ASSET_VERSION = "MLIR22.0.0git", "2.0"
_TEXTS = ("author", "license", "description", "producer", "creationDate", "assetVersion")
_KEYS = frozenset([*_TEXTS, "creatorDefinedMetadata"])
_DATE = re.compile(r"\d{8}T\d{6}Z")
_ROOT = re.compile(r"/|[A-Za-z]:[\\/]")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_NAMES = 4
_MAX_TRIES = 8  # to read a bundle that others change all the time
_SAFE_NBYTES = 1 << 20  # a file of fewer bytes is read, not mapped, and so not aligned to more than 16


def check_asset(path: str, max_nbytes: int | None = None) -> CheckReport:
    """Check a bundle, or a bare .mlirb file, and report every problem in one pass.

    Raises: OSError: it cannot be opened. What is inside is reported, not raised.
    """
    os.stat(path)
    checker = _AssetChecker(path)
    checker.check(max_nbytes)
    return checker.close(path)


def _hashes(asset: Asset) -> tuple[bytes | None, bytes]:
    """Return main.hash, None if there is none, and the SHA-256 of the bytecode."""
    return asset.companion(HASH, 1 << 10), sha256(asset.mapping, [Span(0, asset.mapping.nbytes)])


def _is_path(text: str) -> bool:
    """Whether a text is an absolute path of a file, in linear time."""
    root = _ROOT.match(text)
    return root is not None and "\0" not in text and any(mark in text[root.end() :] for mark in "\\/.")


class _AssetChecker(Findings):
    def __init__(self, path: str) -> None:
        super().__init__(path=path)
        self._path = path
        self._is_directory = paths.is_directory(path)

    def error(self, error: MilblobError, where: str = "", severity: Severity = "error") -> None:
        """Add a finding about an error that was caught."""
        code = error.code if error.code in CODES else "bytecode"
        self.note(severity, code, error.what, where or error.where, error.offset, error.file)

    def check(self, max_nbytes: int | None) -> None:
        """Check everything."""
        if self._is_directory:
            self._check_files()
        try:
            asset = Asset(self._path, constants=True, stored=True, max_nbytes=max_nbytes)
        except MilblobError as error:
            if error.code != "missing-file":
                self.error(error)
            return
        with asset:
            if self._is_directory:
                self._check_hash(asset)
                self._check_metadata(asset)
            self._check_bytecode(asset)
            self._check_constants(asset)
            self._check_computed(max_nbytes)

    # ----------------------------------------------------------------------------------------------------------- files

    def _check_files(self) -> None:
        names = os.listdir(self._path)
        for name, severity in ((BYTECODE, "error"), (HASH, "warning"), (METADATA, "warning")):
            if name not in names:
                self.note(cast(Severity, severity), "missing-file", f"bundle: expected {name} in it, got none")
        extra = sorted(set(names) - {BYTECODE, HASH, METADATA})
        if extra:
            self.note("note", "extra-file", f"bundle: expected three files, got {some(extra, _MAX_NAMES)} too")

    def _check_hash(self, asset: Asset) -> None:
        try:
            stated, found = self._settled_hash(asset)
        except MilblobError as error:
            self.note("error", "hash", error.what, "", error.offset, error.file)
            return
        if stated is None:
            return
        file = os.path.join(self._path, HASH)
        if len(stated) != 32:
            self.note("error", "hash", f"{HASH}: expected 32 bytes, got {len(stated)}", file=file)
            return
        if found != stated:
            message = f"{HASH}: expected {found.hex()}, the SHA-256 of {BYTECODE}, got {stated.hex()}"
            self.note("error", "hash", message, file=file)

    def _settled_hash(self, asset: Asset) -> tuple[bytes | None, bytes]:
        """Return main.hash and the SHA-256 of the bytecode; both of one moment, even while a writer changes them.

        Raises: As `Asset`.
        """
        stated, found = _hashes(asset)
        for _ in range(_MAX_TRIES):
            if stated is None or found == stated:
                break
            before = stated, found
            with Asset(self._path) as now:  # another file, if the bundle has been replaced
                stated, found = _hashes(now)
            if (stated, found) == before:
                break
        return stated, found

    def _check_metadata(self, asset: Asset) -> None:
        file = os.path.join(self._path, METADATA)
        try:
            text = asset.companion(METADATA)
            if text is None:
                return
            document = parse_json(text.decode("utf-8"), METADATA, file, unique=True)
        except UnicodeDecodeError as error:
            self.note("error", "metadata", f"{METADATA}: expected UTF-8, got {error.reason}", "", error.start, file)
            return
        except MilblobError as error:
            self.note("error", "metadata", error.what, "", error.offset, file)
            return
        if not isinstance(document, dict):
            self.note("error", "metadata", f"{METADATA}: expected an object, got {type(document).__name__}", file=file)
            return
        for key in _TEXTS:
            if key in document and not isinstance(document[key], str):
                self.note("error", "metadata", f"{key}: expected a string, got {document[key]!r:.80}", file=file)
        version, date = document.get("assetVersion"), document.get("creationDate")
        if version is None or (isinstance(version, str) and version != ASSET_VERSION):
            self.note("warning", "metadata", f"assetVersion: expected {ASSET_VERSION}, got {version}", file=file)
        if isinstance(date, str) and not _DATE.fullmatch(date):
            message = f"creationDate: expected a form like 20261122T060839Z, got {date!r:.80}"
            self.note("warning", "metadata", message, file=file)
        user = document.get("creatorDefinedMetadata", {})
        if not isinstance(user, dict) or not all(isinstance(value, str) for value in user.values()):
            self.note(
                "error", "metadata", f"creatorDefinedMetadata: expected strings by name, got {user!r:.80}", file=file
            )
        unknown = sorted(set(document) - _KEYS)
        if unknown:
            message = f"keys: expected ones that are known, got {some(unknown, _MAX_NAMES)} too"
            self.note("note", "metadata", message, file=file)

    # -------------------------------------------------------------------------------------------------------- bytecode

    def _check_bytecode(self, asset: Asset) -> None:
        code, file = asset.program.bytecode, asset.file
        if code.refusal:
            self.note("warning", "dialect-version", f"{code.refusal}: no tensor is read", file=file)
        if code.producer != PRODUCER:
            self.note("note", "producer", f"producer: expected {PRODUCER}, got {code.producer!r:.80}", file=file)
        keys = Counter(int(key) for key in code.resources["key"])
        for key, count in keys.items():
            if count > 1:
                message = f"key {code.string(key)!r:.100}: expected one resource with it, got {count}"
                self.note("error", "resource-key", message, file=file)
        texts = [code.string(number) for number in range(len(code.strings))]
        sources = [text for text in texts if _is_path(text)]
        digests = [text for text in texts if _DIGEST.fullmatch(text)]
        if sources or digests:
            message = f"strings: expected none about source files, got {len(sources)} paths"
            message += f" ({some(sources, _MAX_NAMES) or 'none'}) and {len(digests)} hashes of files"
            self.note("note", "debug-info", message, file=file)

    def _check_constants(self, asset: Asset) -> None:
        program, file = asset.program, asset.file
        users: dict[Any, list[str]] = {}
        used: set[int] = set()
        shown: set[Any] = set()  # values of weights, not only of constants in decompositions
        names = {tensor.row.op: name for name, tensor in asset.items()}
        for op in program.constants:
            name = names.get(op, f"operation {op}")
            try:
                kind, stored = program.kind(op), program.stored(op)
            except (FormatError, UnsupportedError) as error:
                self.error(error, name, "warning" if isinstance(error, UnsupportedError) else "error")
                continue
            users.setdefault(stored.key, []).append(name)
            if not names.get(op, "#").rpartition("/")[2].startswith("#") and program.is_weight(op):
                shown.add(stored.key)
            if stored.resource is not None:
                used.add(stored.resource)
            if kind.element is None:
                message = f"element type: expected one that is known, got {kind.text}"
                self.note("warning", "element-type", message, name, None, file)
                continue
            if None in kind.shape:
                continue
            count = 1
            for size in cast("tuple[int, ...]", kind.shape):
                count *= size
            expected = expected_nbytes(kind.element, count, stored.is_splat)
            if stored.nbytes != expected:
                self.note("error", "constant-size", size_message(kind, stored, expected), name, stored.offset, file)
            self._check_alignment(asset, name, kind, stored)
        for key, members in users.items():
            if len(members) > 1 and key in shown:
                message = f"{key[0]} {key[1]}: expected one constant with this value, got {some(members, _MAX_NAMES)}"
                self.note("note", "shared-value", message, file=file)
        unused = [number for number in range(len(program.bytecode.resources)) if number not in used]
        if unused:
            nbytes = int(program.bytecode.resources["nbytes"][unused].sum())
            message = (
                f"resources: expected all to be used, got {len(unused)} of {nbytes} bytes that no constant refers to"
            )
            self.note("warning", "resource-unused", message, file=file)

    def _check_alignment(self, asset: Asset, name: str, kind: Any, stored: StoredConstant) -> None:
        if stored.resource is None:
            return
        if stored.alignment > ALIGNMENT and asset.mapping.nbytes < _SAFE_NBYTES:
            message = f"alignment: expected at most {ALIGNMENT}, which Apple's reader takes in a small file"
            self.note(
                "warning", "resource-alignment", f"{message}, got {stored.alignment}", name, stored.offset, asset.file
            )
        if stored.offset % kind.element.numpy.itemsize:
            message = (
                f"offset of {type_text(kind)}: expected a multiple of its elements' {kind.element.numpy.itemsize} bytes"
            )
            self.note(
                "warning", "resource-alignment", f"{message}, got {stored.offset}", name, stored.offset, asset.file
            )

    def _check_computed(self, max_nbytes: int | None) -> None:
        with Asset(self._path, max_nbytes=max_nbytes) as asset:
            for name, tensor in asset.items():
                if not tensor.is_computed or asset.program.bytecode.refusal:
                    continue
                try:
                    decoder = AssetDecoder(asset.opened)
                    decoder.dense(tensor.row.op)
                except MilblobError as error:
                    if error.code != "constant-size":  # reported already
                        severity: Severity = "warning" if isinstance(error, UnsupportedError) else "error"
                        code = error.code if error.code in CODES else "compressed"
                        self.note(severity, code, error.what, name, error.offset, error.file or asset.file)
