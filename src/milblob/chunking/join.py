"""milblob.join: make one package of packages that run one after another."""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _codec
from ..arguments import as_path, require_flags
from ..blobs.equal import Stretch
from ..errors import ProgramError, UnsupportedError
from ..model.model import Model
from ..model.package import ML_PROGRAM, Package
from ..program.fields import repeated
from ..program.splice import Edit, splice
from ..program.wire_edits import (
    Field,
    combined,
    field,
    field_start,
    fields_of,
    reference_edit,
    removed_operation,
    text_of,
)
from ..progress import Progress, ProgressCounter, start_progress
from ..rewrite.describe import Description, encode, is_array
from ..rewrite.destination import require_new_package
from ..rewrite.new_package import (
    Bytes,
    NewRecords,
    framed,
    reference_to,
    require_one_program,
    write_new_package,
)
from ..rewrite.tasks import Item
from ..wording import escape
from .flow import constants_by_row
from .linking import Interface, JoinedPart, interface_of, rename_edits, settle_names
from .report import JoinReport

_SPEC_VERSION, _DESCRIPTION = 1, 2
_PROGRAM_FUNCTIONS = 2
# Function {1 inputs, 2 opset, 3 block specializations}; Block {1 inputs, 2 outputs, 3 operations, 4 attributes}.
_FUNCTION_INPUTS, _OPSET, _SPECIALIZATIONS = 1, 2, 3
_BLOCK_OUTPUTS, _NOT_OPERATIONS = 2, {1: 2, 2: 2, 4: 2}


def join(
    sources: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    also: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> JoinReport:
    """Make one package of packages that run one after another, such as those that `chunk` made.

    An output feeds the inputs of later models that have its name and type, and is a value inside the new model then.
    Operations are copied as they are; a value gets another name (`NAME__1`) only where an earlier model uses the name.
    What several models have (equal constants of one name, operations that compute the same) is stored once.
    Of the parts of one model, inputs and outputs are those of the whole again, in its order.
    The content hash is that of the whole, too.
    Metadata and attributes are those of the first model.

    Args:
        sources: .mlpackage (or .mlmodel) files with one ML Program each, in the order in which they run, all with the
            same functions for the same operation sets.
        destination: the new .mlpackage. Written atomically.
        also: outputs that the new model returns although a later model takes them.
        force: replace a package that exists.
        progress: called as weights and files are written (see `Progress`).
        max_nbytes: as for `open`, of each source.

    Raises:
        ProgramError: inputs and outputs of one name and different types, or of two models; a state of two models;
            different functions; nothing that links a model to the others.
        UnsupportedError: compiled models, pipelines; different operation sets.
        ValueError: fewer than two sources; `destination` is not a .mlpackage, or is (in) a source.
        FileExistsError: `destination` exists, and `force` is False.
        FormatError, ResolveError, OSError: a source cannot be read or changed while it was read, or the output cannot
            be written. After any exception nothing was written.

    Examples:
        >>> chunks = [chunk.path for chunk in milblob.chunk("demo.mlpackage", "chunks", parts=2).chunks]
        >>> report = milblob.join(chunks, "joined.mlpackage")
        >>> len(milblob.load("joined.mlpackage")) == len(milblob.load("demo.mlpackage"))
        True
    """
    target = as_path(destination)
    require_flags(force=force)
    start_progress(progress)
    if isinstance(sources, str | os.PathLike) or not isinstance(sources, Iterable):
        raise TypeError(f"sources: expected a list of models, got {type(sources).__name__}")
    if isinstance(also, str) or not isinstance(also, Iterable):
        raise TypeError(f"also: expected a list of names, got {type(also).__name__}")
    names = [as_path(source) for source in sources]
    if len(names) < 2:
        raise ValueError(f"sources: expected two models or more, got {len(names)}")
    require_new_package(names, target, force)
    with contextlib.ExitStack() as stack:
        counter = ProgressCounter(progress)
        models = []
        for name in counter.noting(names, str):
            package = stack.enter_context(contextlib.closing(Package(name, max_nbytes=max_nbytes)))
            require_one_program(package)
            models.append(_Source(stack.enter_context(Model(package, stored=True)), name))
        work = _Joining(models, list(also), counter)
        model = work.model()
        report = work.report(target)
        write_new_package(names, target, force, work.records, model, counter)
        return report


class _Source:
    """One of the models."""

    def __init__(self, model: Model, path: str) -> None:
        self.path, self.package = path, model.package
        self.program = model.parts[0]
        self.source = self.program.source
        self.buffer = self.program.mapping.live()
        self.program.require_edits()
        self.program.require_same_rows()
        self.functions = self.program.view.functions
        self.description = Description(self.buffer, self.source.description, list(self.functions))
        self.record: dict[str, Any] = _parsed(self.description.record)
        self.constants = [one for one in self.program.scan.constants if one.storage == _codec.BLOB]

    def stretch(self, constant: _codec.Constant) -> Stretch:
        """Return the bytes of a record."""
        reader = self.package.reader(self.source, constant.text)
        record = reader.record(constant.blob_offset)
        place = record.data_offset, record.nbytes
        return Stretch(reader.mapping.check_size(), *place, (record.dtype, record.count))


def _parsed(text: str) -> dict[str, Any]:
    """Read the record of a part; None if it is unreadable, because metadata may hold any text."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    rows = found.get("functions") if isinstance(found, dict) else None
    if not isinstance(rows, dict) or not isinstance(found.get("parts"), list):
        return {}
    for row in rows.values():
        # parts that older versions made have no "states"
        lists = [row.get("inputs"), row.get("outputs"), row.get("states", [])] if isinstance(row, dict) else [None]
        if not all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists):
            return {}
    return found


def _ordered(rows: dict[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return rows in the order of some names; others come last."""
    order = {one: at for at, one in enumerate(names)}
    return dict(sorted(rows.items(), key=lambda row: order.get(row[0], len(order))))


class _Joining:
    """One call of `join`."""

    def __init__(self, sources: list[_Source], keep: list[str], counter: ProgressCounter) -> None:
        self.sources = sources
        self.renamed = 0
        self.stages: dict[str, list[JoinedPart]] = {}
        self.interfaces: dict[str, Interface] = {}
        first = sources[0]
        for source in sources:
            if list(source.functions) != list(first.functions):
                message = f"functions: expected {', '.join(first.functions)}, as in {first.path}, got"
                raise ProgramError(f"{message} {', '.join(source.functions)}", file=source.path)
        for name, function in first.functions.items():
            for source in sources:
                opset = source.functions[name].opset
                if opset != function.opset:
                    message = f"opset of function {name}: expected {function.opset}, as in {first.path}, got {opset}"
                    raise UnsupportedError(message, file=source.path)
            self._link(name, keep)
        self._require_kept(keep)
        self.records = NewRecords(counter)
        for source in sources:
            self.records.hold(source.package)
        self.references = [self._gather(source) for source in sources]
        self.records.lay_out()

    def _link(self, name: str, keep: list[str]) -> None:
        stages = []
        for source in self.sources:
            held = constants_by_row(source.functions[name], source.constants)
            stages.append(JoinedPart(source.path, source.buffer, source.functions[name], held, source.stretch))
        records = [source.record.get("functions", {}).get(name) for source in self.sources]
        noted = records[0]["outputs"] if records[0] and all(row == records[0] for row in records) else []
        interface = interface_of(stages, [*noted, *keep])
        for number, stage in enumerate(stages):
            links = any(number in (taker, maker) for (taker, _), maker in interface.linked.items())
            if not links and not noted:  # parts of one model belong together though nothing crosses a cut
                message = f"function {name}: expected inputs or outputs that link it to the other models, got none"
                raise ProgramError(message, file=stage.path)
        if records[0] and noted:
            interface.inputs = _ordered(interface.inputs, records[0]["inputs"])
            interface.states = _ordered(interface.states, records[0].get("states", []))
        self._require_descriptions(name, interface)
        self.renamed += settle_names(stages, interface)
        self.stages[name], self.interfaces[name] = stages, interface

    def _require_descriptions(self, function: str, interface: Interface) -> None:
        """Refuse links of what is not an array, and one input that two models describe in different ways."""
        for (taker, name), maker in interface.linked.items():
            for number, what in ((maker, "output"), (taker, "input")):
                source = self.sources[number]
                data = source.description.features(function, what).get(name)
                if data is not None and not is_array(data):
                    message = (
                        f"{what} {name!r}: expected an array, which can be a value inside a model, got another type"
                    )
                    raise ProgramError(escape(message), file=source.path)
        for name, number in interface.inputs.items():
            own = self.sources[number].description.features(function, "input").get(name)
            for source in self.sources[number + 1 :]:
                theirs = source.description.features(function, "input").get(name)
                if own is not None and theirs is not None and _type_of(own) != _type_of(theirs):
                    message = (
                        f"input {name!r}: expected the type that it has in {self.sources[number].path}, got another"
                    )
                    raise ProgramError(escape(message), file=source.path)

    def _require_kept(self, keep: list[str]) -> None:
        for name in keep:
            if not any(name in interface.outputs for interface in self.interfaces.values()):
                raise ProgramError(escape(f"also: expected an output of a model, got {name!r:.200}"))

    # ---------------------------------------------------------------------------------------------------------- weights

    def _gather(self, source: _Source) -> list[tuple[_codec.Constant, Item]]:
        """Return which constants of a model refer to which records, those of dropped operations left out."""
        number = self.sources.index(source)
        left_out = {
            one.value
            for stages in self.stages.values()
            for row in stages[number].dropped
            for one in stages[number].held.get(row, ())
        }
        return [(one, self.records.add(source.program, one)) for one in source.constants if one.value not in left_out]

    # ------------------------------------------------------------------------------------------------------------ model

    def model(self) -> list[Bytes]:
        """Return the new model file in pieces."""
        program = self._program()
        first = self.sources[0]
        signatures = {name: self._signature(name) for name in self.stages}
        head = field(_SPEC_VERSION, max(source.source.spec_version for source in self.sources))
        head += field(_DESCRIPTION, encode(first.description, signatures, self._record()))
        return [head, *framed(ML_PROGRAM, program)]

    def _record(self) -> str:
        """Return the record of the result: that of the whole if all its parts are here, else of these parts."""
        records = [source.record for source in self.sources]
        first = records[0]
        if not first or any({**one, "parts": 0} != {**first, "parts": 0} for one in records):  # of one model
            return ""
        parts = [number for one in records for number in one["parts"]]
        if parts == list(range(1, first.get("of", 0) + 1)):
            outer = first.get("outer", "")
            return outer if isinstance(outer, str) else ""
        return json.dumps(first | {"parts": parts})

    def _signature(self, function: str) -> dict[str, Any]:
        interface = self.interfaces[function]
        found: dict[str, Any] = {"label": "", "probabilities": ""}
        for what, names in (("input", interface.inputs), ("output", interface.outputs), ("state", interface.states)):
            features = [
                (self.sources[number].description.features(function, what), name) for name, number in names.items()
            ]
            found[what] = [described[name] for described, name in features if name in described]
        for what in ("label", "probabilities"):
            for source in self.sources:
                name = source.description.text(function, what)
                found[what] = name if name in interface.outputs else found[what]
        return found

    def _program(self) -> list[Bytes]:
        first = self.sources[0]
        pieces: list[Bytes] = []
        edits = self._moved(0)
        for one in fields_of(first.buffer, first.program.scan.span):
            if one.number == _PROGRAM_FUNCTIONS and one.wire == 2:
                name = text_of(first.buffer, one.span, 1)
                pieces += framed(_PROGRAM_FUNCTIONS, [field(1, name), *framed(2, self._function(name))])
            else:
                pieces += _whole(first, one, edits)
        return pieces

    def _function(self, name: str) -> list[Bytes]:
        stages, interface = self.stages[name], self.interfaces[name]
        first = self.sources[0]
        view = stages[0].function.view
        inputs = b"".join(
            self._input(stages[number], one) for one, number in (*interface.inputs.items(), *interface.states.items())
        )
        block: list[Bytes] = [
            b"".join(field(_BLOCK_OUTPUTS, stages[n].name(one)) for one, n in interface.outputs.items())
        ]
        for number, stage in enumerate(stages):
            block.append(self._operations(number, stage))
        edits = self._moved(0)
        attributes = fields_of(first.buffer, view.graph.function(stages[0].function.row)[2])
        span = view.graph.block(stages[0].block.row)[1]
        for _, place in repeated(first.buffer, span, {4: 2}, "attributes"):
            start = field_start(first.buffer, 4, place, "attributes")
            block += _whole(first, Field(4, 2, 0, start, *place), edits)
        pieces: list[Bytes] = [inputs]
        for one in attributes:
            if one.number == _SPECIALIZATIONS and one.wire == 2:
                pieces += framed(_SPECIALIZATIONS, [field(1, stages[0].function.opset), *framed(2, block)])
            elif one.number != _FUNCTION_INPUTS:
                pieces += _whole(first, one, edits)
        return pieces

    def _input(self, stage: JoinedPart, name: str) -> bytes:
        graph = stage.function.view.graph
        rows = graph.names(*graph.function(stage.function.row)[4])
        at, nbytes = next((at, nbytes) for one, at, nbytes in rows if one == name)
        return field(_FUNCTION_INPUTS, field(1, name) + field(2, memoryview(stage.buffer)[at : at + nbytes]))

    def _operations(self, number: int, stage: JoinedPart) -> Bytes:
        """Return the operations of a stage, as they are in the new function."""
        source = self.sources[number]
        span = stage.function.view.graph.block(stage.block.row)[1]
        edits = [removed_operation(stage.buffer, op) for op in stage.block.operations if op.row in stage.dropped]
        for field_number, place in repeated(stage.buffer, span, _NOT_OPERATIONS, "fields of a block"):
            start = field_start(stage.buffer, field_number, place, "field of a block")
            edits.append(Edit(start, sum(place) - start, b""))
        edits += rename_edits(stage)
        inside = [edit for edit in self._moved(number) if span[0] <= edit.offset < sum(span)]
        return splice(source.program.mapping, span, combined([*edits, *inside]))

    def _moved(self, number: int) -> list[Edit]:
        """Return the edits of a model's references to weight files."""
        buffer = self.sources[number].buffer
        file = reference_to()
        moved = (reference_edit(buffer, one, file, item.first.offset) for one, item in self.references[number])
        return [edit for edit in moved if edit is not None]

    # ----------------------------------------------------------------------------------------------------------- report

    def report(self, target: str) -> JoinReport:
        """Return what was written."""
        nbytes = sum(item.nbytes for item in self.records.items)
        every = {
            (source.path, one.text, one.blob_offset): source.stretch(one).nbytes
            for source in self.sources
            for one in source.constants
        }
        return JoinReport(
            [source.path for source in self.sources],
            target,
            list(self.stages),
            {name: sorted({link for _, link in one.linked}) for name, one in self.interfaces.items()},
            {name: list(one.inputs) for name, one in self.interfaces.items()},
            {name: list(one.outputs) for name, one in self.interfaces.items()},
            {name: list(one.states) for name, one in self.interfaces.items()},
            self.renamed,
            sum(every.values()) - nbytes,
            len(self.records.items),
            nbytes,
        )


def _whole(source: _Source, one: Field, edits: list[Edit]) -> list[Bytes]:
    """Return a whole field of a model file, with the edits inside it."""
    if one.wire != 2:
        return [bytes(memoryview(source.buffer)[one.start : one.end])]
    inside = [edit for edit in edits if one.offset <= edit.offset < one.end]
    spliced = splice(source.program.mapping, one.span, combined(inside)) if one.nbytes else b""
    return framed(one.number, [spliced])


def _type_of(feature: bytes) -> list[bytes]:
    """Return the serialized FeatureTypes of a FeatureDescription."""
    buffer = _codec.Buffer(feature)
    found = fields_of(buffer, (0, len(feature)))
    return [feature[one.offset : one.end] for one in found if one.number == 3 and one.wire == 2]
