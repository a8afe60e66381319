"""The functions of a model, and the cuts that divide all of them in the same places."""

import itertools
from collections.abc import Sequence

from .. import _codec
from ..blobs.reader import BlobRecord
from ..closeness import hint
from ..errors import ProgramError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..progress import ProgressCounter
from ..wording import escape, some
from .choose import Course, cheapest_cuts, matching_cuts
from .flow import Flow, constants_by_row

RECORD_OVERHEAD = 64
"""Bytes of metadata of each record; its data begin at a multiple of it."""

Record = tuple[str, int]
"""A weight as a Program refers to it: name of the file, offset."""


class Cutter:
    """An open model whose functions are cut.

    `model`: open, with one Program. `images`: function -> outputs that are not arrays.
    `counter`: notes each operation.
    Raises: As `Flow`. FormatError, ResolveError: a reference to a record that cannot be read.
    """

    def __init__(self, model: Model, images: dict[str, frozenset[str]], counter: ProgressCounter) -> None:
        self.model = model
        self.program: OpenProgram = model.parts[0]
        self.flows: dict[str, Flow] = {}  # function -> its operations
        # function -> row of an operation -> the constants in weight files that it holds; see `constants_by_row`
        self.held: dict[str, dict[int, list[_codec.Constant]]] = {}
        self.records: dict[Record, int] = {}  # every record that the Program refers to, with its size as stored
        self.names: dict[Record, str] = {}  # of each record, that of the first weight which refers to it
        constants = [one for one in self.program.scan.constants if one.storage == _codec.BLOB]
        for constant in constants:
            key = key_of(constant)
            if key not in self.records:
                nbytes = self.record(constant).nbytes
                self.records[key] = RECORD_OVERHEAD + -(-nbytes // RECORD_OVERHEAD) * RECORD_OVERHEAD
                self.names[key] = constant.op.name if constant.op is not None else constant.text
        for name, function in self.program.view.functions.items():
            self.flows[name] = Flow(function, self.program.source.spec_version, images[name], counter)
            self.held[name] = constants_by_row(function, constants)
        places = {one.value for held in self.held.values() for row in held.values() for one in row}
        # constants in weight files that no function holds: in attributes of the Program
        self.unheld = [one for one in constants if one.value not in places]
        self._indices = {key: number for number, key in enumerate(self.records)}
        self._courses = {name: self._course(name) for name in self.flows}

    def record(self, constant: _codec.Constant) -> BlobRecord:
        """Return the record that a constant refers to."""
        reader = self.model.package.reader(self.program.source, constant.text)
        return reader.record(constant.blob_offset)

    def _course(self, name: str) -> Course:
        flow, held = self.flows[name], self.held[name]
        sizes = list(self.records.values())
        needs: list[list[int]] = [
            [self._indices[key_of(constant)] for constant in held.get(step.op.row, ())] for step in flow.steps
        ]
        for output, op in flow.constants.items():
            if output != op.output_names[0]:
                continue
            things = [len(sizes), *(self._indices[key_of(constant)] for constant in held.get(op.row, ()))]
            sizes.append(op.message[1])
            for number in set().union(*(flow.read_by[one] for one in op.output_names)):
                needs[number] += things
        own = [step.op.message[1] for step in flow.steps]
        return Course(own, [sorted(set(one)) for one in needs], sizes, flow.cost, flow.idle.union(flow.barred))

    # --------------------------------------------------------------------------------------------------------- choosing

    def by_parts(self, default: str, parts: int) -> dict[str, list[int]]:
        """Return the cuts of every function for a number of parts.

        `default`: the function whose cuts the others follow.
        Raises: ProgramError: a function that cannot be cut into that many.
        """
        self._require_places(default, parts)
        return self._followed(default, cheapest_cuts(self._courses[default], parts))

    def by_size(self, default: str, limit: int) -> dict[str, list[int]]:
        """Return the cuts of every function for the fewest parts that are not larger than a limit.

        Raises: ProgramError: what cannot be divided is larger.
        """
        course = self._courses[default]
        found = course.fill(limit)
        if found is None:
            raise self._too_large(default, limit)
        for parts in range(len(found) + 1, len(course.cuts) + 2):
            cuts = self._followed(default, cheapest_cuts(course, parts, limit))
            if len(self.flows) == 1 or max(self.sizes(cuts)) <= limit:
                return cuts
        message = "max_nbytes: expected functions that fit it when they are cut in the same places, got"
        raise ProgramError(f"{message} parts that are larger with {limit} bytes", file=self.model.path)

    def by_name(self, default: str, names: Sequence[str]) -> dict[str, list[int]]:
        """Return the cuts of every function after the operations that compute some values.

        Raises: ProgramError: no such value, or not a place where a function can be cut.
        """
        cuts = sorted({self._place(default, name) for name in names})
        others = {}
        for function in self.flows:
            if function != default and all(self.flows[function].index_of(name) is not None for name in names):
                others[function] = sorted({self._place(function, name) for name in names})
        return self._followed(default, cuts, others)

    def sizes(self, cuts: dict[str, list[int]]) -> list[int]:
        """Return the size of each part, with what the functions share once."""
        shared, own = len(self.records), [0] * (len(next(iter(cuts.values()))) + 1)
        stored: list[set[int]] = [set() for _ in own]
        for name, places in cuts.items():
            course = self._courses[name]
            for number, (start, stop) in enumerate(zip([0, *places], [*places, course.count], strict=True)):
                things = {thing for needs in course.needs[start:stop] for thing in needs}
                own[number] += sum(course.own[start:stop])
                own[number] += sum(course.sizes[thing] for thing in things if thing >= shared)
                stored[number] |= {thing for thing in things if thing < shared}
        sizes = list(self.records.values())
        return [size + sum(sizes[thing] for thing in things) for size, things in zip(own, stored, strict=True)]

    def _followed(
        self, default: str, cuts: list[int], known: dict[str, list[int]] | None = None
    ) -> dict[str, list[int]]:
        """Return cuts of every function: of the others where the same weights are before and after."""
        course = self._courses[default]
        shared = len(self.records)
        every = [{thing for thing in needs if thing < shared} for needs in course.needs]
        before, after = [], []
        for cut in cuts:
            early, late = set().union(*every[:cut]), set().union(*every[cut:])
            before.append(early - late)
            after.append(late - early)
        found = {}
        for name in self.flows:
            if name == default:
                found[name] = cuts
            elif known and name in known:
                found[name] = known[name]
            else:
                found[name] = self._following(name, before, after)
        return found

    def _following(self, name: str, before: list[set[int]], after: list[set[int]]) -> list[int]:
        self._require_places(name, len(before) + 1)
        course = self._courses[name]
        own = {thing for needs in course.needs for thing in needs}
        if not any(own & (early | late) for early, late in zip(before, after, strict=True)):
            return cheapest_cuts(course, len(before) + 1)
        return matching_cuts(course, before, after)

    def _require_places(self, name: str, parts: int) -> None:
        course, flow = self._courses[name], self.flows[name]
        most = len(course.cuts) + 1
        if parts <= most:
            return
        message = f"function {name}: expected at most {most} {'part' if most == 1 else 'parts'}, got {parts}"
        reason = next(iter(flow.barred.values()), "")
        raise ProgramError(escape(message + (f"; it cannot be cut in most places: {reason}" if reason else "")))

    def _too_large(self, name: str, limit: int) -> ProgramError:
        """Return the error about the largest stretch that cannot be divided."""
        course, flow = self._courses[name], self.flows[name]
        edges = [0, *course.cuts, course.count]
        size, start, stop = max((course.size(a, b), a, b) for a, b in itertools.pairwise(edges))
        things = {thing for needs in course.needs[start:stop] for thing in needs if thing < len(self.records)}
        keys = list(self.records)
        largest = max(things, key=lambda thing: self.records[keys[thing]], default=None)
        what = f"operation {flow.steps[start].op.label!r}"
        if stop - start > 1:
            what = f"{stop - start} operations from {flow.steps[start].op.label!r} on, which cannot be divided"
            reasons = [flow.barred[cut] for cut in range(start + 1, stop) if cut in flow.barred]
            what += f" ({reasons[0]})" if reasons else ""  # idle cuts have none
        if largest is not None:
            what += f", with the weight {self.names[keys[largest]]!r} of {self.records[keys[largest]]} bytes"
        return ProgramError(escape(f"max_nbytes: expected at least {size}, for {what}; got {limit}"))

    def _place(self, function: str, name: str) -> int:
        flow = self.flows[function]
        cut = flow.index_of(name)
        what = f"at: function {function}: expected a value"
        if cut is None:
            nested = flow.nested_in(name)
            if nested is not None:
                raise ProgramError(escape(f"{what} of the function itself, got {name!r} in a block of {nested!r}"))
            if name in flow.constants:
                raise ProgramError(escape(f"{what} that is computed, got the constant {name!r}"))
            if name in flow.values:
                raise ProgramError(escape(f"{what} that an operation computes, got the input {name!r}"))
            known = [one for one, value in flow.values.items() if value.step >= 0]
            raise ProgramError(escape(f"{what}, such as {some(known)}, got {name!r:.200}{hint(name, known)}"))
        if cut == flow.count:
            raise ProgramError(escape(f"{what} before the last operation, got {name!r}, which is computed by it"))
        if cut in flow.barred:
            raise ProgramError(escape(f"at {name!r}: function {function} cannot be cut there: {flow.barred[cut]}"))
        return cut


def key_of(constant: _codec.Constant) -> Record:
    """Return how a constant refers to its record."""
    return constant.text, constant.blob_offset
