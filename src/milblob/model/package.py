"""Which files make a model: packages, compiled models, model files, MIL text, bare blob files and their listings."""

import os
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..blobs.reader import BlobReader
from ..errors import FormatError, ResolveError, UnsupportedError
from ..jsontext import MAX_NBYTES, parse_json
from ..program.mil_text import parse_text
from ..program.scan import Program
from ..storage import journal
from ..storage.mapped import Mapping
from .listing import HEAD_NBYTES, is_listing, parse_listing, to_program
from .listing import MODEL_PATH as MODEL_PATH

ML_PROGRAM, PIPELINES = 502, {202: 1, 200: 2, 201: 2}  # field of Model -> messages around Pipeline.models
MIN_SPEC_VERSION = 6  # iOS 15: the first with ML Programs; what calls itself older is a draft of the format
MAX_PIPELINE_DEPTH = 16

_SPEC_VERSION_TAG = 0x08  # the first byte of every Model that a known producer writes
BLOB_SUFFIXES = (".bin", ".blob", ".weights", ".fmadapter")


class Source(NamedTuple):
    """One Program of a model.

    Attributes:
        prefix: "" or, in a pipeline, "model0/".
        directory: what @model_path stands for; None for a buffer.
        mapping: the file that holds it, as protobuf or as text.
        program: (buffer, offset, nbytes) of the serialized Program.
        is_text: parsed from MIL text, so that offsets in the Program are not offsets in the file.
        spec_version: Model.specificationVersion; 0 where a compiled model does not say.
        description: (offset, nbytes) of the ModelDescription in mapping, or None.
    """

    prefix: str
    directory: str | None
    mapping: Mapping
    program: tuple[_codec.Buffer, int, int]
    is_text: bool
    spec_version: int
    description: tuple[int, int] | None


class Package:
    """The files of one model.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel, model.mil, blob file or a listing of one; or a buffer or file
            object with the contents of one of the latter four. What it is follows from its contents, not from its name.
        recover: first do the rest of a change that was interrupted (see journal.py).
        is_mapped: map files; else read each of them whole when it is first needed (see mapping.py).

    Attributes:
        kind: "mlpackage", "mlmodelc", "mlmodel", "mil", "listing" or "blob".
        path: as given; None for a buffer.
        sources: one per Program; empty for a blob file.
        blobs: for a blob file, its reader.
        others: (prefix, type) of pipeline members that are no ML Programs.
        staged: name -> values that a tensor is to get, which then are those that it has (see editing.py).

    Raises:
        OSError: a file cannot be opened.
        FormatError: broken contents.
        UnsupportedError: a model of another type, named; a draft.
        ResolveError: the manifest leads to a file that is missing or outside the package.
    """

    def __init__(self, source: Any, *, recover: bool = True, is_mapped: bool = True) -> None:
        self.closed = False
        self._is_mapped = is_mapped
        self.path: str | None = None
        self.sources: list[Source] = []
        self.blobs: BlobReader | None = None
        self.others: list[tuple[str, str]] = []
        self.staged: dict[str, np.ndarray[Any, Any]] = {}
        self._mappings: list[Mapping] = []
        self._readers: dict[tuple[str | None, str], BlobReader] = {}
        try:
            if isinstance(source, str | os.PathLike):
                self.path = os.fsdecode(os.fspath(source))
                if recover and (interrupted := journal.pending(self.path)) is not None:
                    _recover(interrupted)
                if os.path.isdir(self.path):
                    self._open_directory(self.path)
                    return
            self._open_file(self._map(source))
        except BaseException:
            self.close()
            raise

    def _map(self, source: Any) -> Mapping:
        mapping = Mapping(source, is_mapped=self._is_mapped)
        self._mappings.append(mapping)
        return mapping

    # ---------------------------------------------------------------------------------------------------- directories

    def _open_directory(self, path: str) -> None:
        if os.path.lexists(os.path.join(path, "Manifest.json")):
            self.kind = "mlpackage"
            model = find_root_model(path)
            self._open_model(self._map(model), os.path.dirname(model))
        elif path.rstrip("/\\").endswith(".mlpackage"):
            raise FormatError("package: expected a Manifest.json, got none", file=path)
        else:
            self.kind = "mlmodelc"
            self._open_compiled(path, "", 0)

    def _open_compiled(self, path: str, prefix: str, depth: int) -> None:
        def has(name: str) -> bool:
            return os.path.lexists(os.path.join(path, name))

        if has("model.mil"):
            self._open_text(self._map(contained(path, "model.mil")), path, prefix)
        elif has("model0"):
            if depth == MAX_PIPELINE_DEPTH:
                raise FormatError(f"pipelines: expected at most {MAX_PIPELINE_DEPTH} levels, got more", file=path)
            number = 0
            while has(f"model{number}"):
                self._open_compiled(contained(path, f"model{number}"), f"{prefix}model{number}/", depth + 1)
                number += 1
            self._require_programs(depth, path)
        elif prefix and (has("model.espresso.net") or has("coremldata.bin")):
            self.others.append((prefix, "neuralNetwork" if has("model.espresso.net") else "unknown"))
        elif has("model.espresso.net"):
            raise UnsupportedError("compiled model: expected an ML Program, got a neuralNetwork", file=path)
        elif has("coremldata.bin"):
            raise UnsupportedError("compiled model: expected an ML Program (model.mil), got another type", file=path)
        else:
            raise FormatError(
                "directory: expected a .mlpackage or .mlmodelc, got neither Manifest.json nor model.mil", file=path
            )

    # ---------------------------------------------------------------------------------------------------------- files

    def _open_file(self, mapping: Mapping) -> None:
        data = memoryview(mapping.live())
        directory = os.path.dirname(self.path) or "." if self.path is not None else None
        suffix = os.path.splitext(self.path or "")[1]
        _require_bytes(mapping)
        head = bytes(data[:64])
        if suffix == ".mil" or head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"program"):
            self.kind = "mil"
            self._open_text(mapping, directory, "")
        elif is_listing(bytes(data[:HEAD_NBYTES])):
            self.kind = "listing"
            file, rows = parse_listing(data, mapping.name)
            buffer = _codec.Buffer(to_program(file, rows), mapping.name)
            self.sources.append(Source("", directory, mapping, (buffer, 0, buffer.nbytes), True, 0, None))
        elif suffix in BLOB_SUFFIXES or _is_blob(data):
            self.kind = "blob"
            self.blobs = BlobReader(mapping)
        else:
            self.kind = "mlmodel"
            if suffix != ".mlmodel" and data[0] != _SPEC_VERSION_TAG:
                _require_message(mapping)
            self._open_model(mapping, directory)

    def _open_text(self, mapping: Mapping, directory: str | None, prefix: str) -> None:
        program = _codec.Buffer(parse_text(mapping.live()), mapping.name)
        self.sources.append(Source(prefix, directory, mapping, (program, 0, program.nbytes), True, 0, None))

    def _open_model(self, mapping: Mapping, directory: str | None) -> None:
        _require_bytes(mapping)
        self._add_model(mapping, mapping.live(), 0, mapping.nbytes, directory, "", 0)

    def _add_model(
        self,
        mapping: Mapping,
        buffer: _codec.Buffer,
        offset: int,
        nbytes: int,
        directory: str | None,
        prefix: str,
        depth: int,
    ) -> None:
        """Take in one Model message; a pipeline's models one after another."""
        spec_version, description, kind, body = _read_model(buffer, offset, nbytes)
        if body is None:  # a singular message in pieces: protobuf puts them together
            from ..program import schema

            plain = schema.parse("Model", memoryview(buffer)[offset : offset + nbytes], file=mapping.name)
            buffer = _codec.Buffer(plain.SerializeToString(deterministic=True), mapping.name)
            spec_version, description, kind, body = _read_model(buffer, 0, buffer.nbytes)
        if kind == ML_PROGRAM and body is not None:
            if spec_version < MIN_SPEC_VERSION:
                raise UnsupportedError(
                    f"specification version of an ML Program: expected {MIN_SPEC_VERSION} or more, got {spec_version} "
                    "(a draft of the format)",
                    file=mapping.name,
                )
            self.sources.append(Source(prefix, directory, mapping, (buffer, *body), False, spec_version, description))
        elif kind in PIPELINES and body is not None:
            if depth == MAX_PIPELINE_DEPTH:
                words = f"pipelines: expected at most {MAX_PIPELINE_DEPTH} levels, got more"
                raise FormatError(words, offset=offset, file=mapping.name)
            at = body
            if PIPELINES[kind] == 2:  # PipelineClassifier and PipelineRegressor hold a Pipeline in field 1
                inner = [
                    (o, n) for number, wire, _, o, n in _codec.wire_fields(buffer, *body) if number == 1 and wire == 2
                ]
                at = inner[-1] if inner else (body[0], 0)
            models = [(o, n) for number, wire, _, o, n in _codec.wire_fields(buffer, *at) if number == 1 and wire == 2]
            for index, (o, n) in enumerate(models):
                self._add_model(mapping, buffer, o, n, directory, f"{prefix}model{index}/", depth + 1)
            self._require_programs(depth, mapping.name)
        elif depth > 0:
            self.others.append((prefix, _type_name(kind) or "unknown"))
        else:
            name = _type_name(kind)
            what = f"a {name}" if name else f"type number {kind}" if kind else "none that is known"
            raise UnsupportedError(
                f"model type: expected an ML Program or a pipeline of them, got {what}", file=mapping.name
            )

    def describe(self) -> tuple[int, Any]:
        """Return (spec version, serialized ModelDescription) of the model itself: of the whole, where it is a pipeline.

        Only for models that are protobuf files.
        """
        mapping = self._mappings[0]
        buffer = mapping.check_size()
        spec_version, span, _, _ = _read_model(buffer, 0, buffer.nbytes)
        offset, nbytes = span or (0, 0)
        return spec_version, memoryview(buffer)[offset : offset + nbytes]

    def _require_programs(self, depth: int, name: str | None) -> None:
        if depth == 0 and not self.sources:
            kinds = ", ".join(sorted({kind for _, kind in self.others})) or "no models"
            raise UnsupportedError(f"pipeline: expected an ML Program among its models, got {kinds}", file=name)

    # ---------------------------------------------------------------------------------------------------- references

    def reader(self, source: Source, file_name: str) -> BlobReader:
        """Return the reader of a weight file that a Program of this model names; each file is mapped once.

        Raises:
            ResolveError: missing, or outside the directory of the model.
            FormatError, UnsupportedError: not a blob v2 file.
        """
        key = (source.directory, file_name)
        found = self._readers.get(key)
        if found is None:
            try:
                path = resolve(source.directory, file_name)
            except ResolveError as error:
                error.file = error.file or source.mapping.name
                raise
            try:
                mapping = self._map(path)
            except (FileNotFoundError, NotADirectoryError):
                raise ResolveError(
                    f"weight file {file_name}: expected at {path}, got no such file", file=source.mapping.name
                ) from None
            found = self._readers[key] = BlobReader(mapping)
            if self.closed:  # by another thread, which did not see this one
                mapping.close()
                self.require_open()
        return found

    def changeable(self) -> set[str]:
        """Return the real paths of the files whose bytes are weights: what a journal of this model may change.

        Raises:
            As reading the Programs of the model.
        """
        if self.blobs is not None:
            return {os.path.realpath(name) for name in (self.blobs.name,) if name is not None}
        found = set()
        for source in self.sources:
            if not source.is_text and source.mapping.name is not None:
                found.add(os.path.realpath(source.mapping.name))
            program = Program(source.program[0], source.program[1:], source.prefix, is_text=source.is_text)
            names = {c.text for c in program.scan.constants if c.storage == _codec.BLOB}
            found |= {os.path.realpath(resolve(source.directory, name)) for name in names}
        return found

    def require_open(self) -> None:
        """Raise ValueError after close."""
        if self.closed:
            raise ValueError("I/O operation on closed model" + (f" {self.path}" if self.path else ""))

    def close(self) -> None:
        """Close every file. Arrays stay valid."""
        self.closed = True
        self.sources = []
        for mapping in self._mappings:
            mapping.close()


def _recover(path: str) -> None:
    """Complete what a killed process has begun to change in the model at `path`."""

    def changeable() -> set[str]:
        package = Package(path, recover=False)
        try:
            return package.changeable()
        finally:
            package.close()

    journal.recover(*journal.place(path), changeable, path)


def _require_bytes(mapping: Mapping) -> None:
    """Refuse an empty file, which would be a Model without anything in it."""
    if mapping.nbytes == 0:
        raise FormatError("file: expected a Core ML model or weight file, got an empty file", file=mapping.name)


def _require_message(mapping: Mapping) -> None:
    """Say of a text or a picture that it is no model, and not which of its bytes protobuf could not take."""
    buffer = mapping.live()
    try:
        _codec.wire_fields(buffer, 0, buffer.nbytes)
    except FormatError as error:
        words = f"file: expected a Core ML model, MIL text or a weight file, got none of them ({error.what})"
        raise FormatError(words, offset=error.offset, file=mapping.name) from None


def _type_name(kind: int) -> str | None:
    """What Core ML calls a type of Model. The table is not imported before a model has to be refused."""
    from ..program.schema import MODEL_TYPES

    return MODEL_TYPES.get(kind)


def _is_blob(data: memoryview) -> bool:
    """A storage header of version 2 (or 1, to be refused by name), with a record's sentinel where it announces one."""
    if len(data) < 64 or bytes(data[4:8]) not in (b"\2\0\0\0", b"\1\0\0\0"):
        return False
    return data[4] == 2 or (len(data) >= 68 and bytes(data[64:68]) == b"\xef\xbe\xad\xde")


def _read_model(
    buffer: _codec.Buffer, offset: int, nbytes: int
) -> tuple[int, tuple[int, int] | None, int, tuple[int, int] | None]:
    """Read the head of a Model: (spec version, description span, type field, its span or None if it came in pieces)."""
    spec_version, description, kind = 0, None, 0
    body: tuple[int, int] | None = (offset, 0)
    pieces = 0
    for number, wire, value, at, length in _codec.wire_fields(buffer, offset, nbytes):
        if number == 1 and wire == 0:
            spec_version = value
        elif number == 2 and wire == 2:
            description = (at, length)
        elif wire == 2 and number >= 200:  # Model.Type, a oneof: the last one counts, pieces of one add up
            pieces = pieces + 1 if number == kind else 1
            kind, body = number, (at, length)
    return spec_version, description, kind, body if pieces < 2 else None


# ------------------------------------------------------------------------------------------------------------- manifest


def read_json(path: str) -> Any:
    """Read a JSON file of a package.

    Raises:
        OSError: it cannot be opened.
        FormatError: not a regular file, too large, not JSON, or nested too deep.
    """
    # Read, which is quicker for a few kilobytes; one that is too large is refused before it is touched.
    mapping = Mapping(path, is_mapped=os.stat(path).st_size > MAX_NBYTES)
    try:
        return parse_json(memoryview(mapping.live()), "JSON", path)
    finally:
        mapping.close()


def manifest() -> bytes:
    """Return the manifest of a package with model.mlmodel and a folder of weights: always the same bytes.

    Identifiers have to be unique in a manifest only. These are version 5 UUIDs of the paths. coremltools rewrites
    the manifest of every package that it opens; this is the form that it writes, so that it changes nothing.
    """
    import json

    items = (
        ("B7B312DC-4C52-5F9E-A2C1-08A40D60BF43", "model.mlmodel", "CoreML Model Specification"),
        ("AA794B57-6179-5AD2-8C64-3B8D10B76FAC", "weights", "CoreML Model Weights"),
    )
    author = "com.apple.CoreML"
    entries = {
        identifier: {"author": author, "description": words, "name": name, "path": f"{author}/{name}"}
        for identifier, name, words in items
    }
    content = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": items[0][0]}
    return (json.dumps(content, indent=4, sort_keys=True) + "\n").encode()


def find_root_model(root: str) -> str:
    """Return the path of a package's model file, by its manifest.

    Raises:
        FormatError: a manifest without root item.
        ResolveError: the root item's file is missing or outside the package.
    """
    path = os.path.join(root, "Manifest.json")
    manifest = read_json(contained(root, "Manifest.json"))
    entries = manifest.get("itemInfoEntries") if isinstance(manifest, dict) else None
    identifier = manifest.get("rootModelIdentifier") if isinstance(manifest, dict) else None
    if not isinstance(entries, dict) or not isinstance(identifier, str):
        lacking = "itemInfoEntries" if not isinstance(entries, dict) else "rootModelIdentifier"
        raise FormatError(f"manifest: expected a key {lacking}, got none that can be used", file=path)
    item = entries.get(identifier)
    if not isinstance(item, dict) or not isinstance(item.get("path"), str):
        raise FormatError(f"manifest: expected an item with a path for root {identifier!r}, got none", file=path)
    contained(os.path.join(root, "Data"), item["path"])  # says so of an absolute path, which the next line would join
    model = contained(root, "Data/" + item["path"])
    if not os.path.lexists(model):
        raise ResolveError(f"root item of the manifest: expected at {model}, got no such file", file=path)
    return model


# ---------------------------------------------------------------------------------------------------------- containment


def join_relative(root: str, relative: str) -> str:
    """Join a path from a file, with slashes of either kind, to a directory. `contained` says where it may lead."""
    return os.path.join(root, *[part for part in relative.replace("\\", "/").split("/") if part not in ("", ".")])


def contained(root: str, relative: str) -> str:
    """Join a path from a file to the directory that it may not leave.

    Three checks, in this order:
        1. It is relative, and has no "..", no drive, no NUL.
        2. With every symbolic link followed it is inside `root`, with every link followed.
        3. What is returned is the unresolved path, so that messages show what the user knows.

    Raises:
        ResolveError: it leads outside.
    """
    parts = relative.replace("\\", "/").split("/")
    if relative[:1] in ("/", "\\") or ".." in parts or "\0" in relative or any(part[1:2] == ":" for part in parts):
        raise ResolveError(f"reference: expected a path inside {root}, got {relative!r}")
    path = join_relative(root, relative)
    try:
        real_root, real_path = os.path.realpath(root), os.path.realpath(path)
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair
        raise ResolveError(f"reference: expected a path that can be a file name, got {relative!r}") from None
    if real_path != real_root and not real_path.startswith(real_root.rstrip(os.sep) + os.sep):
        raise ResolveError(f"reference {relative!r}: expected a file inside {root}, got a link to {real_path}")
    return path


def resolve(directory: str | None, file_name: str) -> str:
    """Return the path that a BlobFileValue's fileName stands for.

    Raises:
        ResolveError: not of the form @model_path/..., outside the directory, or there is no directory (a buffer).
    """
    if not file_name.startswith(MODEL_PATH):
        raise ResolveError(f"weight file: expected a name that begins with {MODEL_PATH}, got {file_name!r}")
    if directory is None:
        raise ResolveError(f"weight file {file_name}: expected a model with a directory, got a buffer")
    return contained(directory, file_name[len(MODEL_PATH) :])
