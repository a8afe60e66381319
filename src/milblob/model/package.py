"""The files of a model: packages, compiled models, model files, MIL text, bare blob files and their listings."""

import errno
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..arguments import as_path, source_of
from ..blobs.reader import BlobReader
from ..budget import Budget
from ..errors import FormatError, MilblobError, ResolveError, UnsupportedError
from ..mirrored import shown
from ..program.plain import parse_text, plain_model, read_model
from ..program.scan import ProgramScan
from ..storage import paths
from ..storage.beneath import Location
from ..storage.foreign import Foreign, explained, is_onnx, onnx_model, refusal
from ..storage.mapped import MappedFile
from ..storage.pending import Pending, map_settled, wait
from .identify import EXPECTED, SPEC_VERSION_TAG, identify_directory, identify_file, is_blob_head
from .listing import HEAD_NBYTES, Stamp, parse_listing, stamp_of_text, to_program
from .listing import MODEL_PATH as MODEL_PATH
from .manifest import find_root_model

ML_PROGRAM, PIPELINES = 502, {202: 1, 200: 2, 201: 2}  # field of Model -> messages around Pipeline.models
MIN_SPEC_VERSION = 6  # iOS 15: the first with ML Programs; older versions are drafts of the format
MAX_PIPELINE_DEPTH = 16
REFUSALS = (MilblobError, OSError, ValueError)
"""What examining a hostile file tree can raise; ValueError is for names that no file system accepts."""

_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Source(NamedTuple):
    """One Program of a model."""

    prefix: str  # "" or, in a pipeline, "model0/"
    directory: Location | None  # replaces @model_path; references must not escape it; None for a buffer
    mapping: MappedFile  # the file that holds it, as protobuf or as text
    program: tuple[_codec.Buffer, int, int]  # (buffer, offset, nbytes) of the serialized Program
    is_text: bool  # parsed from MIL text; offsets in the Program are then not offsets in the file
    spec_version: int  # Model.specificationVersion; 0 if a compiled model does not state it
    description: tuple[int, int] | None  # (offset, nbytes) of the ModelDescription in mapping, or None
    stamp: Stamp | None = None  # of a listing, size and hash of its weight file; None if it states none


class Package:
    """The files of one model.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel, model.mil, blob file or a listing of one; or a buffer or file
            object with the contents of one of the latter four. Its contents decide which, not its name.
        on_pending: what to do about an interrupted change of a file of the model: see `pending.map_settled`. By default
            it is refused; writers complete it (`recovery.complete`).
        report: called with the error of what cannot be opened, and the prefix of that model; the rest is opened all the
            same. None raises it. In any case raises what is wrong with the source as a whole.
        is_mapped: map files; else read each file whole when it is first needed (see mapped.py).

    Raises:
        OSError: a file cannot be opened.
        FormatError: broken contents.
        UnsupportedError: a model of another type, named; a draft.
        ResolveError: the manifest leads to a file that is missing or outside the package.
        PendingChangeError: a change of the model was interrupted.
    """

    def __init__(
        self,
        source: Any,
        *,
        on_pending: Callable[[Pending], object] | None = wait,
        report: Callable[[Exception, str], None] | None = None,
        is_mapped: bool = True,
        max_nbytes: int | None = None,
    ) -> None:
        # unsound: a change of this model failed halfway; the mapped bytes may mix old and new
        self.closed = self.unsound = False
        self._on_pending, self._report, self._is_mapped = on_pending, report, is_mapped
        self.kind = ""  # "mlpackage", "mlmodelc", "mlmodel", "mil", "listing" or "blob"
        source = source_of(source)
        self.path = as_path(source) if isinstance(source, str | os.PathLike) else None  # as given; None for a buffer
        root = None if self.path is None else Location(self.path)
        kind = None if root is None else identify_directory(root.path)
        self.budget = Budget(max_nbytes, self.path)  # how many bytes may be produced from the files
        self.sources: list[Source] = []  # one per Program; empty for a blob file
        self.blobs: BlobReader | None = None  # for a blob file, its reader
        self.others: list[tuple[str, str]] = []  # (prefix, type) of pipeline members that are not ML Programs
        # name -> values that replace a tensor's stored ones (see `places.place_of`)
        self.assigned: dict[str, np.ndarray[Any, Any]] = {}
        self.mappings: list[MappedFile] = []
        self._readers: dict[tuple[Location | None, str], BlobReader] = {}
        self._by_place: dict[str, BlobReader] = {}
        try:
            if root is not None and kind is not None:
                self._open_directory(root, kind)
            else:
                self._try("", self._open_file, self._map(source))
        except BaseException:
            self.close()
            raise

    @property
    def is_directory(self) -> bool:
        """Whether the model was a directory when it was opened. Later its path may, for a moment, lead nowhere."""
        return self.kind in ("mlpackage", "mlmodelc")

    def _map(self, source: Any) -> MappedFile:
        mapping = map_settled(source, self._on_pending, is_mapped=self._is_mapped)
        self.mappings.append(mapping)
        self.budget.add_file(mapping.name, mapping.nbytes, mapping.identity)
        return mapping

    # ---------------------------------------------------------------------------------------------------- directories

    def _open_directory(self, root: Location, kind: str | Foreign) -> None:
        if isinstance(kind, Foreign):
            advice = f" ({kind.advice})" if kind.advice else ""
            message = "directory: expected a .mlpackage or .mlmodelc, got neither Manifest.json nor model.mil"
            raise FormatError(f"{message} but {kind.description}{advice}", file=root.path, code="not-a-model")
        self.kind = kind
        if kind == "mlmodelc":
            self._try("", self._open_compiled, root, "", 0)
            return
        try:
            model = find_root_model(root)
        except FileNotFoundError:
            message = "package: expected a Manifest.json, got none"
            raise FormatError(message, file=root.path, code="manifest") from None
        try:
            mapping = self._map(model)
        except OSError as error:
            if error.errno not in _NOWHERE:
                raise
            message = f"root item of the manifest: expected at {model.path}, got no such file"
            raise ResolveError(message, file=os.path.join(root.path, "Manifest.json"), code="missing-file") from None
        self._open_model(mapping, model.parent())

    def _try(self, prefix: str, work: Callable[..., None], *arguments: Any) -> None:
        """Open a part of the source. Its error is reported, or raised if nobody wants reports."""
        try:
            work(*arguments)
        except REFUSALS as error:
            if self._report is None:
                raise
            self._report(error, prefix)

    def _open_compiled(self, directory: Location, prefix: str, depth: int) -> None:
        path = directory.path

        def has(name: str) -> bool:
            return paths.is_there(os.path.join(path, name))

        if has("model.mil"):
            self._open_text(self._map(directory.beneath("model.mil")), directory, prefix)
        elif has("model0"):
            if depth == MAX_PIPELINE_DEPTH:
                raise FormatError(f"pipelines: expected at most {MAX_PIPELINE_DEPTH} levels, got more", file=path)
            number = 0
            while has(name := f"model{number}"):
                inner = f"{prefix}{name}/"
                self._try(inner, self._open_compiled, directory.beneath(name), inner, depth + 1)
                number += 1
            self._require_programs(depth, path)
        elif prefix and (has("model.espresso.net") or has("coremldata.bin")):
            self.others.append((prefix, "neuralNetwork" if has("model.espresso.net") else "unknown"))
        elif has("model.espresso.net"):
            raise UnsupportedError(
                "compiled model: expected an ML Program, got a neuralNetwork", file=path, code="model-type"
            )
        elif has("coremldata.bin"):
            raise UnsupportedError(
                "compiled model: expected an ML Program (model.mil), got another type", file=path, code="model-type"
            )
        else:
            raise FormatError(
                "directory: expected a .mlpackage or .mlmodelc, got neither Manifest.json nor model.mil",
                file=path,
                code="not-a-model",
            )

    # ---------------------------------------------------------------------------------------------------------- files

    def _open_file(self, mapping: MappedFile) -> None:
        _require_bytes(mapping)
        data = memoryview(mapping.need([(0, HEAD_NBYTES)]))
        if mapping.is_partial and not is_blob_head(data[:HEAD_NBYTES]):  # of weights, the head is enough
            data = memoryview(mapping.live())
        mapping.expect_random(True)
        kind = identify_file(data, self.path)
        mapping.expect_random(False)
        if isinstance(kind, Foreign):
            raise refusal(kind, EXPECTED, mapping.name)
        self.kind = kind
        if kind == "blob":
            try:
                self.blobs = BlobReader(mapping)
            except REFUSALS:
                if self._report is None:  # else `check_blob` reports the defect
                    raise
            return
        directory = Location(self.path).parent() if self.path is not None else None
        if kind == "mil":
            self._open_text(mapping, directory, "")
        elif kind == "listing":
            file, rows, stamp = parse_listing(data, mapping.name)
            buffer = _codec.Buffer(to_program(file, rows), mapping.name)
            self.sources.append(Source("", directory, mapping, (buffer, 0, buffer.nbytes), True, 0, None, stamp))
        else:
            if data[0] != SPEC_VERSION_TAG and not (self.path or "").endswith(".mlmodel"):
                _require_message(mapping)
            self._open_model(mapping, directory)

    def _open_text(self, mapping: MappedFile, directory: Location | None, prefix: str) -> None:
        try:
            program = _codec.Buffer(parse_text(mapping.live()), mapping.name)
        except (FormatError, UnsupportedError) as error:
            raise explained(error, mapping, "model.mil: expected MIL text", is_text=True) from None
        stamp = stamp_of_text(bytes(memoryview(mapping.live())[:HEAD_NBYTES]))
        self.sources.append(Source(prefix, directory, mapping, (program, 0, program.nbytes), True, 0, None, stamp))

    def _open_model(self, mapping: MappedFile, directory: Location | None) -> None:
        _require_bytes(mapping)
        try:
            self._add_model(mapping, mapping.live(), 0, mapping.nbytes, directory, "", 0)
        except (FormatError, UnsupportedError) as error:
            raise explained(error, mapping, "model file: expected a serialized Model") from None

    def _add_model(
        self,
        mapping: MappedFile,
        buffer: _codec.Buffer,
        offset: int,
        nbytes: int,
        directory: Location | None,
        prefix: str,
        depth: int,
    ) -> None:
        """Add one Model message; for a pipeline, each of its models."""
        buffer, (spec_version, description, kind, body) = plain_model(buffer, offset, nbytes)
        if kind == ML_PROGRAM and body is not None:
            if spec_version < MIN_SPEC_VERSION:
                raise UnsupportedError(
                    f"specification version of an ML Program: expected {MIN_SPEC_VERSION} or more, got {spec_version} "
                    "(a draft of the format)",
                    file=mapping.name,
                    code="spec-version",
                )
            self.sources.append(Source(prefix, directory, mapping, (buffer, *body), False, spec_version, description))
        elif kind in PIPELINES and body is not None:
            if depth == MAX_PIPELINE_DEPTH:
                message = f"pipelines: expected at most {MAX_PIPELINE_DEPTH} levels, got more"
                raise FormatError(message, offset=offset, file=mapping.name)
            at = body
            if PIPELINES[kind] == 2:  # PipelineClassifier and PipelineRegressor hold a Pipeline in field 1
                inner = [
                    (o, n) for number, wire, _, o, n in _codec.wire_fields(buffer, *body) if number == 1 and wire == 2
                ]
                at = inner[-1] if inner else (body[0], 0)
            models = [(o, n) for number, wire, _, o, n in _codec.wire_fields(buffer, *at) if number == 1 and wire == 2]
            for index, (o, n) in enumerate(models):
                member = f"{prefix}model{index}/"
                self._try(member, self._add_model, mapping, buffer, o, n, directory, member, depth + 1)
            self._require_programs(depth, mapping.name)
        elif depth > 0:
            self.others.append((prefix, _type_name(kind) or "unknown"))
        else:
            numbers = frozenset(number for number, *_ in _codec.wire_fields(buffer, offset, nbytes))
            if is_onnx(numbers):
                raise refusal(onnx_model(mapping.name), EXPECTED, mapping.name)
            name = _type_name(kind)
            what = f"a {name}" if name else f"type number {kind}" if kind else "none that is known"
            raise UnsupportedError(
                f"model type: expected an ML Program or a pipeline of them, got {what}",
                file=mapping.name,
                code="model-type",
            )

    def describe(self) -> tuple[int, Any]:
        """Return (spec version, serialized ModelDescription) of the model itself; for a pipeline, of the whole.

        Only for models that are protobuf files.
        """
        mapping = self.mappings[0]
        buffer = mapping.check_size()
        spec_version, span, _, _ = read_model(buffer, 0, buffer.nbytes)
        offset, nbytes = span or (0, 0)
        return spec_version, memoryview(buffer)[offset : offset + nbytes]

    def _require_programs(self, depth: int, name: str | None) -> None:
        if depth == 0 and not self.sources:
            kinds = ", ".join(sorted({kind for _, kind in self.others})) or "no models"
            raise UnsupportedError(
                f"pipeline: expected an ML Program among its models, got {kinds}", file=name, code="model-type"
            )

    # ---------------------------------------------------------------------------------------------------- references

    def reader(self, source: Source, file_name: str) -> BlobReader:
        """Return the reader of a weight file that one of this model's Programs names; each file is mapped once.

        Raises: ResolveError: missing, or outside the directory of the model. FormatError, UnsupportedError: not a blob
        v2 file, or not the one that the listing belongs to.
        """
        key = (source.directory, file_name)
        found = self._readers.get(key)
        if found is None:
            try:
                place = resolve(source.directory, file_name)
                real = place.real()  # a Program may spell the path of one file in many ways
                found = self._by_place.get(real)
                if found is not None:
                    self._readers[key] = found
                    return found
                mapping = self._map(place)
            except ResolveError as error:
                error.file = error.file or source.mapping.name
                raise
            except (FileNotFoundError, NotADirectoryError):
                raise ResolveError(
                    f"weight file {file_name}: expected at {place.path}, got no such file",
                    file=source.mapping.name,
                    code="missing-file",
                ) from None
            try:
                found = BlobReader(mapping)
                if source.stamp is not None:
                    source.stamp.require(mapping)
            except BaseException:
                self.mappings.remove(mapping)
                mapping.close()
                raise
            self._readers[key] = self._by_place[real] = found
            if self.closed:  # another thread closed the package before it saw this reader
                mapping.close()
                self.require_open()
        return found

    def changeable(self) -> set[str]:
        """Return the real paths of the weight-carrying files: those that a journal of this model may change.

        Raises: As reading the Programs of the model.
        """
        if self.blobs is not None:
            return {paths.real(name) for name in (self.blobs.name,) if name is not None}
        found = {paths.real(self.path)} if self.path is not None and self.kind in ("listing", "mil") else set()
        for source in self.sources:
            if source.mapping.name is not None:
                found.add(paths.real(source.mapping.name))
            scan = ProgramScan(source.program[0], source.program[1:], source.prefix, is_text=source.is_text)
            names = dict.fromkeys(c.text for c in scan.constants if c.storage == _codec.BLOB)
            found |= {resolve(source.directory, name).real() for name in names}
        return found

    def require_open(self) -> None:
        """Raise ValueError after close; as `require_sound`."""
        if self.closed:
            raise ValueError("I/O operation on closed model" + (f" {shown(self.path)}" if self.path else ""))
        self.require_sound()

    def require_sound(self) -> None:
        """Raise FormatError if a change of this model failed halfway."""
        if self.unsound:
            message = "model: expected its last change to be complete, got one that failed on the way; close it, and "
            raise FormatError(f"{message}complete the change with milblob recover", file=self.path)

    def close(self) -> None:
        """Close every file. Arrays remain valid."""
        self.closed = True
        self.sources = []
        for mapping in self.mappings:
            mapping.close()


def _require_bytes(mapping: MappedFile) -> None:
    """Refuse an empty file, which protobuf would parse as an empty Model."""
    if mapping.nbytes == 0:
        message = "file: expected a Core ML model or weight file, got an empty file"
        raise FormatError(message, file=mapping.name, code="empty-file")


def _require_message(mapping: MappedFile) -> None:
    """Report that a text or an image is not a model, rather than which byte protobuf could not parse."""
    buffer = mapping.live()
    try:
        _codec.wire_fields(buffer, 0, buffer.nbytes)
    except FormatError as error:
        message = f"file: expected a Core ML model, MIL text or a weight file, got none of them ({error.what})"
        raise FormatError(message, offset=error.offset, file=mapping.name, code="not-a-model") from None


def _type_name(kind: int) -> str | None:
    """Return Core ML's name for a type of Model. Imports the table only when a model is refused."""
    from ..program.schema import MODEL_TYPES

    return MODEL_TYPES.get(kind)


# ----------------------------------------------------------------------------------------------------------- references


def resolve(directory: Location | None, file_name: str) -> Location:
    """Resolve the fileName of a BlobFileValue to a location; opens nothing.

    Raises: ResolveError: not of the form @model_path/..., outside the directory, or without a directory (a buffer).
    """
    if not file_name.startswith(MODEL_PATH):
        message = f"weight file: expected a name that begins with {MODEL_PATH}, got {file_name!r}"
        raise ResolveError(message, code="escaping-file")
    if directory is None:
        message = f"weight file {file_name}: expected a model with a directory, got a buffer"
        raise ResolveError(message, code="missing-file")
    return directory.beneath(file_name[len(MODEL_PATH) :])
