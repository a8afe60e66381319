"""Merging the functions of several packages into one, with equal weights stored once."""

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, cast

from .. import _codec
from ..arguments import as_path, require, require_flags, source_of
from ..errors import ProgramError, UnsupportedError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.package import ML_PROGRAM, Package
from ..model.tensor import Tensor
from ..program.splice import Edit, splice
from ..program.wire_edits import (
    combined,
    field,
    fields_of,
    reference_edit,
    removed_operation,
    text_edit,
    text_of,
)
from ..progress import Progress, ProgressCounter, start_progress
from ..results import Result
from ..storage.mapped import closed_on_error
from .alike import Shared, find_shared, shareable
from .changes import Sharing, as_sharing
from .describe import DEFAULT, FUNCTIONS, METADATA, Description
from .destination import require_new_package
from .new_package import Bytes, NewRecords, framed, reference_to, require_one_program, write_new_package
from .share import SharedWeight, plan_sharing, sharing_edits
from .tasks import Item

_MULTI_FUNCTION_SPEC_VERSION = 9  # iOS 18: the first with multi-function models
_MULTI_FUNCTION_OPSET = 8
_OPSET = re.compile(r"CoreML([0-9]+)")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_@]*")
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9_@]")

# Program {1 version, 2 functions, 3 docString, 4 attributes}; Model {1 specificationVersion, 2 description}.
_VERSION, _FUNCTIONS, _DOC_STRING, _ATTRIBUTES = 1, 2, 3, 4
_SPEC_VERSION, _DESCRIPTION = 1, 2

_Path: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class MergedFunction(Result):
    """Where a function of a merged package comes from.

    Attributes:
        name: in the new package.
        source: path of the model, as given.
        function: its name there.

    Examples:
        >>> report = milblob.merge_functions([("states.mlpackage", "a"), ("states.mlpackage", "b")], "both.mlpackage")
        >>> report.functions[1]
        MergedFunction(name='b', source='states.mlpackage', function='main')
    """

    name: str
    source: str
    function: str


@dataclass(frozen=True, repr=False)
class MergeReport(Result):
    """The result of `merge_functions`.

    Attributes:
        path: of the new package.
        functions: in the order of the new package.
        default: name of the function that Core ML uses if none is named.
        blob_count: number of records in the new weight file.
        nbytes: bytes of their data.
        shared_nbytes: bytes saved because an equal blob was already stored.
        shared: with `dedupe`: the weights that take the form of another one, by their names in the new package.
        done: False for a dry run.

    Examples:
        >>> report = milblob.merge_functions([("states.mlpackage", "a"), ("states.mlpackage", "b")], "both.mlpackage")
        >>> [function.name for function in report.functions], report.default, report.shared_nbytes
        (['a', 'b'], 'a', 32)
    """

    path: str
    functions: tuple[MergedFunction, ...]
    default: str
    blob_count: int
    nbytes: int
    shared_nbytes: int
    shared: tuple[SharedWeight, ...] = ()
    done: bool = True

    _keys: ClassVar = {"blob_count": "blobs"}


def merge_functions(
    sources: Sequence[_Path | tuple[_Path, str | Mapping[str, str]]],
    destination: _Path,
    *,
    default: str | None = None,
    dedupe: bool | str = True,
    min_sqnr: float | None = None,
    base: Any = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> MergeReport:
    """Merge several models into one multi-function package; equal weights are stored once.

    Functions are copied byte for byte, except their names and the locations of their weights. Other files of the
    packages are not copied. Metadata, docString and attributes of the Program come from the first model that has them.

    Args:
        sources: paths of .mlpackage (or .mlmodel) files with an ML Program of opset CoreML8 (iOS 18) or later, all of
            the same opset; or (path, name) for a model of one function, or (path, {function: name}). Functions keep
            their names unless a name occurs twice; those functions then get the name of their file, followed by
            `_<function>` if the model has several.
        destination: the new .mlpackage. Written atomically.
        default: name (in the new package) of the default function; default: that of the first source.
        dedupe: "values" or "near": as for `repack`, across the sources. Equal records are always stored once.
        min_sqnr, base: as for `repack`.
        force: replace a package that exists.
        dry_run: plan only.
        progress: called as weights and files are written (see `Progress`).
        max_nbytes: as for `open`, of each source.

    Raises:
        UnsupportedError: a source that is a pipeline, a compiled model or not an ML Program, has an older opset or one
            different from the first source's, or has its Program split into several messages.
        ProgramError: a duplicate name, a name that MIL does not allow, or an unknown default function.
        ValueError: no sources; `destination` is not a .mlpackage, or is (in) a source; a wrong `dedupe` or `min_sqnr`.
        FileExistsError: `destination` exists, and `force` is False, or it is not a package, or it has other files in
            it.
        FormatError, ResolveError, OSError: a source cannot be read or changed while it was read, or the output cannot
            be written.

    Examples:
        >>> report = milblob.merge_functions([("states.mlpackage", "a"), ("states.mlpackage", "b")], "both.mlpackage")
        >>> list(milblob.open("both.mlpackage").functions)
        ['a', 'b']
    """
    target = as_path(destination)
    require_flags(force=force, dry_run=dry_run)
    sharing = as_sharing(dedupe, min_sqnr, base)
    if not dedupe:
        raise ValueError(f"dedupe: expected True, 'values' or 'near', got {dedupe!r}; equal records are stored once")
    start_progress(progress)
    require("default", default, str | None, "the name of a function")
    if isinstance(sources, str) or not isinstance(sources, Iterable):
        raise TypeError(f"sources: expected a list of models, got {type(sources).__name__}")
    given = [item if isinstance(item, tuple) else (source_of(item), {}) for item in sources]
    if not given:
        raise ValueError("sources: expected at least one model, got none")
    for _, names in given:
        require("name", names, str | Mapping, "one, or a mapping from functions to names")
    names_of = [as_path(path) for path, _ in given]
    require_new_package(names_of, target, force)
    parts: list[_Part] = []
    counter = ProgressCounter(progress)
    try:
        for path, (_, names) in zip(names_of, given, strict=True):
            parts.append(_Part(path, names, max_nbytes, sharing is not None))
        _require_one_opset(parts)
        functions = _name_functions(parts)
        chosen = _choose_default(parts, functions, default)
        shared = _shared(parts, sharing, max_nbytes, counter) if sharing is not None else []
        described = tuple(_described(row, parts) for row in shared)
        records = _arranged(parts, shared, counter)
        items = records.items
        nbytes = sum(item.nbytes for item in items)
        shared_nbytes = sum(item.nbytes for item in records.every) - nbytes
        report = MergeReport(target, functions, chosen, len(items), nbytes, shared_nbytes, described, not dry_run)
        if dry_run:
            return report
        write_new_package(names_of, target, force, records, _model(parts, chosen), counter)
        return report
    finally:
        for part in parts:
            (part.package if part.model is None else part.model).close()


class _Part:
    """One source: its files, its Program, and the new names of its functions."""

    def __init__(self, path: str, names: str | Mapping[str, str], max_nbytes: int | None, is_shared: bool) -> None:
        self.path = path
        self.package = Package(path, max_nbytes=max_nbytes)
        with closed_on_error(self.package):
            self.source = require_one_program(self.package)
            self.model = Model(self.package, stored=True, constants=True) if is_shared else None
            self.program = OpenProgram(self.package, self.source) if self.model is None else self.model.parts[0]
            self.program.require_edits()
            self.scan, self.buffer = self.program.scan, self.program.mapping.live()
            self.functions = [name for name, _, _ in self.scan.table.functions]
            self.description = Description(self.buffer, self.source.description or (0, 0), self.functions, path)
            self.given = self._given_names(names)
        self.names: dict[str, str] = {}
        self.edits: list[Edit | None] = []

    def _given_names(self, names: str | Mapping[str, str]) -> dict[str, str]:
        if isinstance(names, str):
            if len(self.functions) != 1:
                message = f"name {names!r}: expected a model of one function, got {', '.join(self.functions) or 'none'}"
                raise ProgramError(message, file=self.path)
            return {self.functions[0]: names}
        for name in names:
            if name not in self.functions:
                message = f"function: expected one of {', '.join(self.functions) or 'none'}, got {name!r}"
                raise ProgramError(message, file=self.path)
        return dict(names)

    @property
    def default(self) -> str:
        """The function that Core ML uses if none is named."""
        named = self.description.default
        return named if named in self.functions else self.functions[0]


def _require_one_opset(parts: list[_Part]) -> None:
    """Refuse opsets that cannot be combined: coremltools rebuilds such Programs, which splicing cannot do."""
    first: tuple[str, str] | None = None
    for part in parts:
        for name, opset, _ in part.scan.table.functions:
            number = _OPSET.fullmatch(opset)
            if number is None or int(number[1]) < _MULTI_FUNCTION_OPSET:
                message = f"opset of function {name!r}: expected CoreML{_MULTI_FUNCTION_OPSET} (iOS 18) or later, which"
                message += f" models with several functions need, got {opset}; convert it for that target first"
                raise UnsupportedError(message, file=part.path)
            if first is None:
                first = (opset, part.path)
            if opset != first[0]:
                message = f"opset of function {name!r}: expected {first[0]} as in {first[1]}, got {opset}"
                raise UnsupportedError(message, file=part.path)
    versions = {part.scan.table.version for part in parts}
    if len(versions) != 1:
        raise UnsupportedError(f"version of the Programs: expected one, got {', '.join(map(str, sorted(versions)))}")


def _name_functions(parts: list[_Part]) -> tuple[MergedFunction, ...]:
    """Choose the name of every function."""
    own = [part.given.get(name, name) for part in parts for name in part.functions]
    twice = {name for name in own if own.count(name) > 1}
    result: list[MergedFunction] = []
    seen: dict[str, str] = {}
    for part in parts:
        stem = _NO_IDENTIFIER.sub("_", os.path.splitext(os.path.basename(os.path.realpath(part.path)))[0])
        stem = stem if _IDENTIFIER.fullmatch(stem) else f"_{stem}"
        for function in part.functions:
            name = part.given.get(function, function)
            if name in twice and function not in part.given:
                name = stem if len(part.functions) == 1 else f"{stem}_{function}"
            if not _IDENTIFIER.fullmatch(name):
                message = f"name of a function: expected letters, digits and _, got {name!r}"
                raise ProgramError(message, file=part.path)
            if name in seen:
                message = (
                    f"name of a function: expected another than {name!r}, which one of {seen[name]} has, got it again"
                )
                raise ProgramError(message, file=part.path)
            seen[name] = part.path
            part.names[function] = name
            result.append(MergedFunction(name, part.path, function))
    return tuple(result)


def _choose_default(parts: list[_Part], functions: tuple[MergedFunction, ...], default: str | None) -> str:
    if default is None:
        return parts[0].names[parts[0].default]
    names = [function.name for function in functions]
    if default not in names:
        raise ProgramError(f"default function: expected one of {', '.join(names)}, got {default!r}")
    return default


# -------------------------------------------------------------------------------------------------------------- weights


def _shared(parts: list[_Part], sharing: Sharing, max_nbytes: int | None, counter: ProgressCounter) -> list[Shared]:
    """Find the weights that take the form of another one."""
    models = [part.model for part in parts if part.model is not None]
    weights = (weight for model in models for weight in shareable(model.parts[0]))
    return find_shared(weights, sharing, lambda weight: None, max_nbytes, counter)


def _described(shared: Shared, parts: list[_Part]) -> SharedWeight:
    """Describe a weight that shares, by the names in the new package."""
    part_of = {id(part.package): part for part in parts}
    count = sum(len(part.functions) for part in parts)

    def name(weight: Tensor) -> str:
        part = part_of[id(weight.package)]
        own = weight.name.removeprefix(f"{weight.function}/") if len(part.functions) > 1 else weight.name
        return f"{part.names[weight.function]}/{own}" if count > 1 else own

    return replace(SharedWeight.of(shared), name=name(shared.weight), reference=name(shared.reference))


def _arranged(parts: list[_Part], shared: list[Shared], counter: ProgressCounter) -> NewRecords:
    """Lay out the records that the functions refer to, and make every reference to them an edit of its part.

    `shared`: weights that take the form of another one.
    Returns: The records, each distinct one once, in order of first reference.
    """
    records = NewRecords(counter)
    references: list[tuple[_Part, Any, Item]] = []
    rows = {row.weight.row for row in shared}
    removals = plan_sharing(shared)
    for part in parts:
        records.hold(part.package)
        removal = removals.get(part.program)
        gone = removal.gone if removal is not None else set()
        references += (
            (part, constant, records.add(part.program, constant))
            for constant in part.scan.constants
            if constant.storage == _codec.BLOB
            and constant not in rows
            and (constant.op is None or constant.op.message not in gone)
        )
        part.edits += (removed_operation(part.buffer, op) for op in (removal.removed if removal is not None else ()))
    records.share_equal()
    records.lay_out()
    for part, constant, item in references:
        part.edits.append(reference_edit(part.buffer, constant, reference_to(), item.first.offset))

    def place_of(stored: Tensor) -> tuple[str, int]:
        return reference_to(), records.add(cast(OpenProgram, stored.program), stored.constant).first.offset

    edits = sharing_edits(shared, place_of)
    for part in parts:
        part.edits += edits.get(part.program, ())
    return records


# ---------------------------------------------------------------------------------------------------------------- model


def _model(parts: list[_Part], default: str) -> list[Bytes]:
    """Return the new Model in pieces."""
    description = [
        field(FUNCTIONS, field(1, part.names[function]) + part.description.body(function))
        for part in parts
        for function in part.description.functions
        if function in part.names
    ]
    description.append(field(DEFAULT, default))
    for part in parts:
        metadata = [one for one in part.description.fields if one.number == METADATA]
        if metadata:
            description += [memoryview(part.buffer)[one.start : one.end].tobytes() for one in metadata]
            break
    spec_version = max(_MULTI_FUNCTION_SPEC_VERSION, *(part.source.spec_version for part in parts))
    head = field(_SPEC_VERSION, spec_version) + field(_DESCRIPTION, b"".join(description))
    return [head, *framed(ML_PROGRAM, list(_program(parts)))]


def _program(parts: list[_Part]) -> Iterator[Bytes]:
    """Yield the new Program in pieces: the functions of all, all else from the first that has it."""
    yield field(_VERSION, parts[0].scan.table.version)
    texts: list[bytes] = []
    attributes: dict[str, list[Bytes]] = {}
    for part in parts:
        edits = combined(part.edits)
        places = [edit.offset for edit in edits]
        for entry in fields_of(part.buffer, part.scan.span):
            if entry.wire != 2 or entry.number not in (_FUNCTIONS, _DOC_STRING, _ATTRIBUTES):
                continue
            inside = edits[bisect_left(places, entry.offset) : bisect_left(places, entry.end)]
            if entry.number == _DOC_STRING:
                texts.append(memoryview(part.buffer)[entry.start : entry.end].tobytes())
                continue
            key = text_of(part.buffer, entry.span, 1)
            if entry.number == _FUNCTIONS:
                renamed = combined([*inside, text_edit(part.buffer, entry.span, 1, part.names[key])])
                yield from framed(_FUNCTIONS, [splice(part.source.mapping, entry.span, renamed)])
            else:
                attribute = splice(part.source.mapping, entry.span, inside)
                attributes.setdefault(key, framed(_ATTRIBUTES, [attribute]))
    yield from texts[:1]
    for chunks in attributes.values():
        yield from chunks
