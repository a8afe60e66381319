"""milblob.chunk: cut a model into packages that run one after another."""

import contextlib
import os
from collections.abc import Iterable, Sequence

from .. import _codec
from ..arguments import as_count, as_path, require, require_flags
from ..errors import UnsupportedError
from ..model.model import Model
from ..model.package import Package
from ..program.splice import Edit, Spliced, splice
from ..program.wire_edits import combined, field, reference_edit
from ..progress import Progress, ProgressCounter, start_progress
from ..rewrite.describe import Description, encode, record_of
from ..rewrite.destination import is_in_place, require_destination
from ..rewrite.new_package import (
    WEIGHT_FILE,
    Bytes,
    NewRecords,
    framed,
    nbytes_of,
    reference_to,
    require_one_program,
    write_package,
)
from ..rewrite.tasks import Item
from ..storage import paths
from ..storage.disk import syncing
from ..storage.output import NewDirectory, Whole, together
from .cutting import Cutter, Record, key_of
from .flow import LiveValue
from .parts import FunctionPart, array_feature, last_edit, part_edits, parts_of
from .report import Chunk, ChunkReport, Cut, RepeatedWeight

_SPEC_VERSION, _DESCRIPTION, _PIPELINE = 1, 2, 202
_MAX_PARTS = 1000
_MUCH_LARGER = 1.5  # than the mean, which a note explains


def chunk(
    source: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    parts: int | None = None,
    max_nbytes: int | None = None,
    at: str | Sequence[str] | None = None,
    pipeline: bool = False,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ChunkReport:
    """Cut a model into packages that run one after another: each takes what the earlier ones return.

    The operations keep their order, names and bytes; a package has a stretch of them, and the weights that these read.
    No value of a weight is read: records are copied from file to file. Cuts are chosen where few bytes cross, among
    those that keep the packages about equal in stored bytes. A function is never cut where a state is used on both
    sides, or inside a nested block. Values of types that Core ML has no inputs for (bool, int16, scalars) are computed
    again in the package that needs them, from values that can be passed on.

    Args:
        source: a .mlpackage (or .mlmodel) with one ML Program. Every function is cut, so that the same weights are
            before and after each cut.
        into: the folder of the new packages, `NAME_chunk1.mlpackage` and so on; made if it does not exist.
        parts: how many packages.
        max_nbytes: largest size of the weights and operations of a package, as stored; as few packages as that takes.
        at: names of values: the model is cut right after the operation that computes each. Give one of `parts`,
            `max_nbytes` and `at`.
        pipeline: also write `NAME_pipeline.mlpackage`, one package that runs all of them. Of models with one function
            and no states.
        force: replace packages that exist.
        dry_run: choose the cuts and report them; write nothing.
        progress: called as weights and files are written (see `Progress`).

    Raises:
        ProgramError: the model cannot be cut so: the place, and why, are named.
        UnsupportedError: a compiled model, a pipeline, MIL text, a weight file; functions for several operation sets.
        ValueError: not one of `parts`, `max_nbytes` and `at`. FileExistsError: a package exists, and `force` is False.
        FormatError, ResolveError, OSError: the source cannot be read or changed while it was read, or the output
            cannot be written. After any exception nothing was written.

    Examples:
        >>> report = milblob.chunk("demo.mlpackage", "chunks", parts=2)
        >>> [chunk.path for chunk in report.chunks]
        ['chunks/demo_chunk1.mlpackage', 'chunks/demo_chunk2.mlpackage']
    """
    name, folder = as_path(source).rstrip("/\\") or "/", as_path(into).rstrip("/\\") or "/"
    require_flags(pipeline=pipeline, force=force, dry_run=dry_run)
    start_progress(progress)
    given = [("parts", parts), ("max_nbytes", max_nbytes), ("at", at)]
    if sum(value is not None for _, value in given) != 1:
        got = " and ".join(what for what, value in given if value is not None) or "none"
        raise ValueError(f"chunk: expected one of parts, max_nbytes and at, got {got}")
    count = None if parts is None else as_count("parts", parts, 1)
    if count is not None and count > _MAX_PARTS:
        raise ValueError(f"parts: expected at most {_MAX_PARTS}, got {count}")
    limit = None if max_nbytes is None else as_count("max_nbytes", max_nbytes, 1)
    places = None if at is None else _names(at)
    with contextlib.closing(Package(name)) as package:
        require_one_program(package)
        with Model(package, stored=True) as model:
            counter = ProgressCounter(progress)
            work = _Chunking(model, name, folder, counter)
            if count is not None:
                cuts = work.cutter.by_parts(work.default, count)
            elif limit is not None:
                cuts = work.cutter.by_size(work.default, limit)
            else:
                cuts = work.cutter.by_name(work.default, places or [])
            work.plan(cuts, pipeline)
            report = work.report(cuts, not dry_run)
            if not dry_run:
                work.write(force)
            return report


def _names(at: str | Sequence[str]) -> list[str]:
    require("at", at, Iterable, "a name or several")
    names = [at] if isinstance(at, str) else list(at)
    for name in names:
        require("at", name, str, "names of values")
    if not names:
        raise ValueError("at: expected a name or several, got none")
    return names


class _Chunking:
    """One call of `chunk`."""

    def __init__(self, model: Model, name: str, folder: str, counter: ProgressCounter) -> None:
        self.model, self.name, self.folder, self.counter = model, name, folder, counter
        self.package: Package = model.package
        self.program = model.parts[0]
        self.source = self.program.source
        self.buffer = self.program.mapping.live()
        self.program.require_edits()
        self.program.require_same_rows()
        functions = list(self.program.view.functions)
        self.description = Description(self.buffer, self.source.description, functions)
        images = {function: self.description.images(function) for function in functions}
        self.cutter = Cutter(model, images, counter)
        self.default = self.description.default if self.description.default in functions else functions[0]
        self.parts: list[dict[str, FunctionPart]] = []
        self.records: list[NewRecords] = []
        self.models: list[list[Bytes]] = []
        self.pipeline: list[Bytes] = []
        self.has_pipeline = False

    # --------------------------------------------------------------------------------------------------------- planning

    def plan(self, cuts: dict[str, list[int]], pipeline: bool) -> None:
        """Decide everything: what each package has, and where each record goes."""
        of = {name: parts_of(flow, cuts[name]) for name, flow in self.cutter.flows.items()}
        count = len(next(iter(of.values())))
        self.parts = [{name: parts[number] for name, parts in of.items()} for number in range(count)]
        self.has_pipeline = pipeline
        if pipeline:
            self._require_pipeline()
        members: list[Bytes] = []
        for number, parts in enumerate(self.parts):
            records, references = self._gather(parts)
            self.records.append(records)
            records.lay_out()
            edits = [edit for part in parts.values() for edit in part_edits(self.buffer, part)]
            edits.append(self._described(number))
            self.models.append([self._spliced(number, edits, references, WEIGHT_FILE)])
            if pipeline:
                member = self._spliced(number, edits, references, f"{number}-{WEIGHT_FILE}")
                members += framed(1, [member])
        if pipeline:
            names = b"".join(field(2, os.path.splitext(name)[0]) for name in self._names()[:count])
            span = self.description.span
            about = bytes(memoryview(self.buffer)[span[0] : sum(span)])
            head = field(_SPEC_VERSION, self.source.spec_version) + field(_DESCRIPTION, about)
            self.pipeline = [head, *framed(_PIPELINE, [*members, names])]

    def _require_pipeline(self) -> None:
        states = [name for flow in self.cutter.flows.values() for name in _states_of(flow.values.values())]
        if states:
            names = ", ".join(dict.fromkeys(states))  # several functions may have the same
            raise UnsupportedError(f"pipeline: expected a model without states, got {names}", file=self.name)
        if len(self.cutter.flows) != 1:
            message = f"pipeline: expected a model of one function, got {', '.join(self.cutter.flows)}"
            raise UnsupportedError(message, file=self.name)

    def _gather(self, parts: dict[str, FunctionPart]) -> tuple[NewRecords, list[tuple[_codec.Constant, Item]]]:
        """Return the records of a package, and which constants refer to which."""
        records = NewRecords(self.counter)
        records.hold(self.package)
        constants = self._constants_of(parts)
        return records, [(one, records.add(self.program, one)) for one in constants]

    def _constants_of(self, parts: dict[str, FunctionPart]) -> list[_codec.Constant]:
        """Return the constants in weight files that the operations of a package hold, and those of attributes."""
        found = list(self.cutter.unheld)
        for name, part in parts.items():
            for row, constants in self.cutter.held[name].items():
                if row < 0 or row in part.rows:
                    found += constants
        return sorted(found, key=lambda one: one.value[0])

    def _spliced(
        self, number: int, edits: list[Edit], references: list[tuple[_codec.Constant, Item]], weight_file: str
    ) -> Spliced:
        file = reference_to(weight_file)
        noted = self.counter.noting(references, lambda row: row[1].name)
        found = (reference_edit(self.buffer, constant, file, item.offset) for constant, item in noted)
        moved = [edit for edit in found if edit is not None]
        for part in self.parts[number].values():
            last = last_edit(self.buffer, part, moved)
            if last is not None:
                inside = range(last.offset, last.offset + last.nbytes)
                moved = [*(edit for edit in moved if edit.offset not in inside), last]
        mapping = self.program.mapping
        return splice(mapping, (0, mapping.nbytes), combined([*edits, *moved]))

    def _described(self, number: int) -> Edit:
        signatures, whole = {}, {}
        for name, part in self.parts[number].items():
            inputs, outputs, states = (self.description.features(name, what) for what in ("input", "output", "state"))
            whole[name] = {"inputs": list(inputs), "outputs": list(outputs), "states": list(states)}
            own = set(part.input_names)
            given = [data for feature, data in inputs.items() if feature in own]
            given += [array_feature(value, True) for value in part.inputs if value.step >= 0]
            made = [data for feature, data in outputs.items() if feature in part.returned]
            made += [array_feature(value, False) for value in part.passed]
            label, probabilities = (self.description.text(name, what) for what in ("label", "probabilities"))
            signatures[name] = {
                "input": given, "output": made, "state": [data for state, data in states.items() if state in own],
                "label": label if label in part.returned else "",
                "probabilities": probabilities if probabilities in part.returned else "",
            }  # fmt: skip
        record = record_of(number + 1, len(self.parts), whole, self.description.record)
        return Edit(*self.description.span, encode(self.description, signatures, record))

    # ---------------------------------------------------------------------------------------------------------- writing

    def _names(self) -> list[str]:
        """Return the names of the packages, and that of the pipeline."""
        stem = os.path.splitext(os.path.basename(os.path.realpath(self.name)))[0]
        width = len(str(len(self.parts)))
        names = [f"{stem}_chunk{number:0{width}}.mlpackage" for number in range(1, len(self.parts) + 1)]
        return [*names, f"{stem}_pipeline.mlpackage"]

    def write(self, force: bool) -> None:
        """Write all packages; they take their names together."""
        packages = [
            ([(WEIGHT_FILE, records.items, records.file_nbytes)], model)
            for records, model in zip(self.records, self.models, strict=True)
        ]
        if self.pipeline:
            weights = [
                (f"{number}-{WEIGHT_FILE}", records.items, records.file_nbytes)
                for number, records in enumerate(self.records)
            ]
            packages.append((weights, self.pipeline))
        self.counter.total_nbytes = sum(
            nbytes_of(model) + sum(item.nbytes for _, items, _ in weights for item in items)
            for weights, model in packages
        )
        is_new = not paths.is_there(self.folder)
        names = self._names()[: len(packages)]
        if is_new:
            self._require_outside(self.folder)
        else:
            for name in names:
                require_destination([self.name], "mlpackage", os.path.join(self.folder, name), force)
                self._require_outside(os.path.join(self.folder, name))
        with together() as outputs, syncing() as sync:
            folder = NewDirectory(self.folder) if is_new else None
            if folder is not None:
                outputs.append(folder)
            written: list[str] = []
            for name, (weights, model) in zip(names, packages, strict=True):
                for file in written:  # while the next package is written
                    sync(file)
                written = write_package(self._directory(name, folder, outputs), weights, model, self.counter)
            for one in (*self.models, self.pipeline):
                one.clear()  # they hold bytes of the source
            for records in self.records:
                records.require_same()

    def _directory(self, name: str, folder: NewDirectory | None, outputs: list[Whole]) -> str:
        """Return an empty directory for a package, in a new folder or in the one that is there."""
        if folder is not None:
            path = os.path.join(folder.name, name)
            os.mkdir(path)
            return path
        target = os.path.join(self.folder, name)
        directory = NewDirectory(target, replace=paths.is_directory(target))
        outputs.append(directory)
        return directory.name

    def _require_outside(self, path: str) -> None:
        """Refuse to write into the source, or over it."""
        real, own = os.path.realpath(path), os.path.realpath(self.name)
        if is_in_place([self.name], path) or real == own or real.startswith(own + os.sep):
            raise ValueError(f"into {self.folder}: expected a folder outside the model, got one inside {self.name}")

    # ----------------------------------------------------------------------------------------------------------- report

    def report(self, cuts: dict[str, list[int]], is_written: bool) -> ChunkReport:
        """Return what was, or would be, written."""
        names = self._names()
        chunks = []
        users: dict[Record, list[int]] = {}
        for number, (parts, nbytes) in enumerate(zip(self.parts, self.cutter.sizes(cuts), strict=True)):
            for constant in self._constants_of(parts):
                users.setdefault(key_of(constant), []).append(number + 1)
            chunks.append(
                Chunk(
                    os.path.join(self.folder, names[number]),
                    nbytes,
                    len(self.records[number].items),
                    sum(len(part.rows) for part in parts.values()),
                    {name: [one.port for one in part.inputs if not one.is_state] for name, part in parts.items()},
                    {name: part.output_names for name, part in parts.items()},
                    {name: _states_of(part.inputs) for name, part in parts.items()},
                )
            )
        repeated = [
            RepeatedWeight(self.cutter.names[key], self.cutter.records[key], sorted(set(numbers)))
            for key, numbers in users.items()
            if len(set(numbers)) > 1
        ]
        pipeline = os.path.join(self.folder, names[-1]) if self.has_pipeline else None
        notes = self._notes([one.nbytes for one in chunks])
        return ChunkReport(self.name, self.folder, chunks, self._cuts(cuts), repeated, pipeline, notes, is_written)

    def _notes(self, sizes: list[int]) -> list[str]:
        """Explain a chunk that is much larger than the mean by what bars the cuts in it."""
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        if len(sizes) == 1 or sizes[largest] * len(sizes) < _MUCH_LARGER * sum(sizes):
            return []
        found = []
        for part in self.parts[largest].values():
            barred = [cut for cut in range(part.start + 1, part.stop) if cut in part.flow.barred]
            if barred:
                share = round(100 * sizes[largest] / sum(sizes))
                reason = part.flow.barred[barred[len(barred) // 2]]
                found.append(f"chunk {largest + 1} has {share}% of the bytes; it cannot be cut where {reason}")
        return found

    def _cuts(self, cuts: dict[str, list[int]]) -> list[Cut]:
        found = []
        for name, places in cuts.items():
            flow = self.cutter.flows[name]
            for number, place in enumerate(places):
                values = flow.crossing(place)
                steps = {flow.steps[step].op.row for step in range(place)}
                again = len(steps & self.parts[number + 1][name].rows)
                crossing = {value.port: str(value.type) for value in values}
                nbytes = sum(value.nbytes for value in values)
                found.append(Cut(name, flow.steps[place - 1].op.label, crossing, nbytes, again))
        return found


def _states_of(values: Iterable[LiveValue]) -> list[str]:
    return [value.name for value in values if value.is_state]
