"""milblob.verify: do two models predict the same? Both run in onnxruntime, with the same inputs."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Real
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
import onnx_ir as ir

from .. import decibels
from ..arguments import as_count, as_path, require
from ..errors import MilblobError
from ..progress import Progress, ProgressCounter, start_progress
from ..results import Result, ambiguous, least
from ..wording import escape
from .samples import given_runs, random_runs
from .session import Session, SessionState

if TYPE_CHECKING:
    from ..model.model import Model

LIMIT, HALF_LIMIT = 2e-5, 8e-3
"""The greatest relative error of equal models: in single precision, and where half precision takes part."""


@dataclass(frozen=True, repr=False)
class OutputDifference(Result):
    """How far an output (or a state, after each run) of the second model is from that of the first, over all runs.

    Attributes:
        name: of the output or state.
        dtype: of the first model's.
        largest: difference; of labels and integers that are too large for a float64, 1 if they differ.
        relative: the largest difference as a share of the range of the first model's values in the same run: the
            greater of their spread and their greatest magnitude. Of integers, bools and labels: the share of elements
            that differ. Infinite where one is NaN or infinite and the other is not, and where shapes differ.
        sqnr: signal to noise in dB, over all runs; infinite if nothing differs.
        differing: elements that differ.
        total: elements.
        run: in which `relative` is greatest.
        limit: that `relative` may reach.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8")
        >>> [logits] = milblob.verify("demo.mlpackage", "small.mlpackage", max_error=0.1).outputs
        >>> logits.name, logits.is_within, logits.sqnr > 20
        ('logits', True, True)
    """

    name: str
    dtype: str
    largest: float
    relative: float
    sqnr: float
    differing: int
    total: int
    run: int
    limit: float

    _keys: ClassVar = {"is_within": "is_within"}

    @property
    def is_within(self) -> bool:
        """Whether the difference is within the limit."""
        return self.relative <= self.limit


@dataclass(frozen=True, repr=False)
class VerifyReport(Result):
    """What `verify` found.

    Attributes:
        a, b: the models.
        outputs: each output, then each state.
        runs: how many predictions were compared.
        worst: the inputs of the run whose output is worst in relation to its limit; of models with states, of all runs
            up to that one.

    Examples:
        >>> report = milblob.verify("demo.mlpackage", "demo.mlpackage", runs=2)
        >>> report.is_same, report.runs, [output.name for output in report.outputs]
        (True, 2, ['logits'])
    """

    a: str
    b: str
    outputs: list[OutputDifference]
    runs: int
    worst: list[dict[str, Any]]

    _keys: ClassVar = {"is_same": "is_same", "worst": None}

    @property
    def is_same(self) -> bool:
        """Whether every output is within its limit."""
        return all(one.is_within for one in self.outputs)

    def __bool__(self) -> NoReturn:
        ambiguous(self, "is_same")

    def _worst(self) -> list[str]:
        rows = least(self.outputs, lambda one: -one.relative)
        return [f"{one.name}: relative error {one.relative:.3g} (limit {one.limit:.3g})" for one in rows]


def verify(
    a: "str | os.PathLike[str] | Model | Session | Sequence[str | os.PathLike[str] | Model]",
    b: "str | os.PathLike[str] | Model | Session | Sequence[str | os.PathLike[str] | Model]",
    inputs: Any = None,
    *,
    function: str | None = None,
    runs: int | None = None,
    seed: int = 0,
    max_error: float | None = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> VerifyReport:
    """Compare what two models predict.

    States begin with zeros and are kept from run to run, in each model its own. NaN equals NaN, and infinity infinity
    of the same sign.

    Args:
        a, b: models with the same inputs, outputs and states, as for `Session`; .onnx files too. A list of models runs
            one after another, as `chunk` makes them: what they pass on is not compared. Both models then round the
            result of each operation (`round_each` of `Session`), so that chunks differ in no bit.
        inputs: see `samples.given_runs`: arrays by name, with an axis in front for several runs; None: random ones, as
            `samples.random_runs` makes them.
        function: that is run of both; default: the default function of each. Of a session or an .onnx file beside a
            model, the one that it is.
        runs: how many random runs, less than 2^31; default: four, or one for each enumerated shape if there are more.
        seed: of the random inputs.
        max_error: that the relative error of each output may reach (see `OutputDifference`); default: 2e-5 of the
            range, 8e-3 where a model computes in half precision, and none for integers and labels.
        progress: called as runs are done, with the bytes of their outputs.
        max_nbytes: as for `Session`, of the models that are opened here.

    Raises:
        LimitError: random inputs that are larger than `max_nbytes` allows.
        ValueError: different inputs or outputs; inputs that do not fit. MilblobError: a run that fails.
        As `Session`.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8")
        >>> milblob.verify("demo.mlpackage", "small.mlpackage", max_error=0.1).is_same
        True
    """
    start_progress(progress)
    runs = None if runs is None else as_count("runs", runs, 1, nbits=31)
    seed = as_count("seed", seed)
    require("max_error", 0.0 if max_error is None else max_error, Real, "a number")
    if max_error is not None and not max_error >= 0:
        raise ValueError(f"max_error: expected 0 or more, got {max_error}")
    if inputs is not None and runs is not None:
        raise ValueError("runs: expected none with inputs, which set the number of runs, got both")
    if max_nbytes is not None and isinstance(a, Session) and isinstance(b, Session):
        raise ValueError(f"max_nbytes: expected none of sessions, which have their own, got {max_nbytes!r:.100}")
    if function is not None and all(isinstance(one, Session) or _is_file(one) for one in (a, b)):
        raise ValueError(f"function: expected none of sessions and .onnx files, which are one, got {function!r:.100}")
    is_rounded = rounds_each(a, b)
    counter = ProgressCounter(progress)
    with ExitStack() as stack:
        first, second = (
            one if isinstance(one, Session) else stack.enter_context(_opened(one, function, max_nbytes, is_rounded))
            for _, one in counter.noting((("a", a), ("b", b)), itemgetter(0))
        )
        _require_alike(first, second)
        if inputs is None:
            chosen: Iterable[dict[str, Any]] = random_runs((first, second), runs, seed)
        elif not (chosen := given_runs(inputs, first.inputs)):
            raise ValueError("inputs: expected one run or more, got none")
        float_limit = HALF_LIMIT if _is_half(first) or _is_half(second) else LIMIT
        return _compare(first, second, chosen, float_limit, max_error, inputs is None, counter)


def rounds_each(a: Any, b: Any) -> bool:
    """Whether `verify` rounds the result of each operation: one is a list of models, and both can be opened so."""
    is_chain = any(isinstance(one, Sequence) and not isinstance(one, str) for one in (a, b))
    return is_chain and not any(isinstance(one, Session) or _is_file(one) for one in (a, b))


def _opened(model: Any, function: str | None, max_nbytes: int | None, is_rounded: bool) -> Session:
    function = None if _is_file(model) else function
    return Session(model, function=function, round_each=is_rounded, max_nbytes=max_nbytes)


def _is_file(model: Any) -> bool:
    """Whether a model is given as an .onnx file."""
    return isinstance(model, str | os.PathLike) and as_path(model).lower().endswith(".onnx")


def _compare(
    first: Session,
    second: Session,
    runs: Iterable[dict[str, Any]],
    float_limit: float,
    limit: float | None,
    is_random: bool,
    counter: ProgressCounter,
) -> VerifyReport:
    states = first.make_state(), second.make_state()
    outputs = [name for name in first.outputs if name in second.outputs]
    differences = {name: _Differences(name, float_limit, limit) for name in (*outputs, *first.states)}
    count = 0
    kept: dict[int, dict[str, Any]] = {}  # candidates for the worst run, and the runs before them that set its states
    for number, values in enumerate(runs):
        found = []
        for session, state in zip((first, second), states, strict=True):
            found.append(_predict(session, values, state, number, is_random))
        for name, one in differences.items():
            one.add(number, found[0][name], found[1][name])
        counter.add(f"run {number}", sum(array.nbytes for array in found[0].values()))
        count, kept[number] = number + 1, values
        if not first.states:
            kept = {run: kept[run] for run in {0, *(one.run for one in differences.values())}}
    worst = max(differences.values(), key=_Differences.badness, default=None)
    at = 0 if worst is None else worst.run
    inputs = [kept[run] for run in (range(at + 1) if first.states else (at,))]
    results = [one.result() for one in differences.values()]
    return VerifyReport(first.path or "a", second.path or "b", results, count, inputs)


def _predict(
    session: Session, values: Mapping[str, Any], state: SessionState, number: int, is_random: bool
) -> dict[str, Any]:
    try:
        return session.predict(values, state, raw=True) | dict(state)
    except MilblobError as error:
        message = "; other inputs than random ones may be given (inputs, -i)" if is_random else ""
        raise MilblobError(f"run {number}: {error.what}{message}", file=error.file, code=error.code) from error


class _Differences:
    """The differences of one output, over the runs so far; `float_limit` is that of floats without a `limit`."""

    def __init__(self, name: str, float_limit: float, limit: float | None) -> None:
        self.name, self.run = name, 0
        self._float_limit, self._limit = float_limit, limit
        self._dtype = ""
        self._largest = self._relative = self._noise = self._power = 0.0
        self._differing = self._count = 0

    def add(self, run: int, a: "np.ndarray[Any, Any]", b: "np.ndarray[Any, Any]") -> None:
        a, b = np.asarray(a), np.asarray(b)
        self._dtype = "text" if a.dtype == object else str(a.dtype)
        if a.shape != b.shape:
            self._note(run, math.inf, math.inf, a.size)
        elif a.dtype.kind == "f" and b.dtype.kind == "f":
            self._add_floats(run, a.astype(np.float64), b.astype(np.float64))
        else:
            differing = int((a != b).sum())
            largest = float(differing > 0)
            if differing and a.dtype.kind in "iub" and b.dtype.kind in "iub":
                largest = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
            self._note(run, largest, differing / max(a.size, 1), differing)
        self._count += a.size

    def _add_floats(self, run: int, a: "np.ndarray[Any, Any]", b: "np.ndarray[Any, Any]") -> None:
        is_same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.where(is_same, 0.0, np.abs(a - b))
        difference[np.isnan(difference)] = math.inf
        sound = a[np.isfinite(a)]
        extent = max(float(np.ptp(sound)), float(np.abs(sound).max())) if sound.size else 0.0
        largest = float(difference.max()) if difference.size else 0.0
        relative = 0.0 if not largest else largest / extent if extent else math.inf
        self._power += float(np.square(sound).sum())
        self._noise += float(np.square(difference).sum())
        self._note(run, largest, relative, int((~is_same).sum()))

    def _note(self, run: int, largest: float, relative: float, differing: int) -> None:
        self._differing += differing
        self._largest = max(self._largest, largest)
        if relative > self._relative:
            self._relative, self.run = relative, run

    @property
    def _allowed(self) -> float:
        if self._limit is not None:
            return self._limit
        return self._float_limit if self._dtype.startswith("float") else 0.0

    def badness(self) -> float:
        """How far the error is beyond its limit."""
        return self._relative / self._allowed if self._allowed else math.inf if self._relative else 0.0

    def result(self) -> OutputDifference:
        is_power = self._power > 0 and math.isfinite(self._noise)
        ratio = -math.inf if self._differing else math.inf
        if self._noise and is_power:
            ratio = decibels.of_power(self._power, self._noise)
        return OutputDifference(
            self.name, self._dtype, self._largest, self._relative, ratio, self._differing, self._count, self.run,
            self._allowed,
        )  # fmt: skip


def _require_alike(first: Session, second: Session) -> None:
    """Refuse models that have not the same inputs, outputs and states. Raises: ValueError: they have not."""
    for what in ("inputs", "outputs", "states"):
        a, b = getattr(first, what), getattr(second, what)
        sides = {"A": [name for name in a if name not in b], "B": [name for name in b if name not in a]}
        for side, session in (("A", first), ("B", second)):
            if what == "outputs" and session.is_chain:  # what its models pass on
                sides[side] = []
        words = [f"{', '.join(names)} only in {side}" for side, names in sides.items() if names]
        if words:
            chains = [(sides[side], one) for side, one in (("A", first), ("B", second)) if one.is_chain]
            is_late = what == "inputs" and any(not one.outputs.keys().isdisjoint(names) for names, one in chains)
            more = "; list models in the order in which they run" if is_late else ""
            raise ValueError(escape(f"{what}: expected the same of both models, got {' and '.join(words)}{more}"))
    for name, one in first.inputs.items():
        other = second.inputs[name]
        sizes = zip(one.shape, other.shape, strict=False)
        if len(one.shape) != len(other.shape) or any(m and n and m != n for m, n in sizes):
            raise ValueError(escape(f"input {name}: expected the same shape in both models, got {one} and {other}"))


def _is_half(session: Session) -> bool:
    """Whether a model computes in half precision anywhere."""
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    for stage in session.stages:
        graph = stage.model.graph
        if any(value.dtype in half for value in (*graph.inputs, *graph.outputs)):
            return True
        for value in graph.initializers.values():
            dtype = value.const_value.dtype if value.const_value is not None else value.dtype
            if dtype in half and any(node.op_type != "Cast" for node, _ in value.uses()):
                return True
        for node in graph.all_nodes():
            to = node.attributes.get("to")
            if node.op_type == "Cast" and to is not None and to.as_int() in map(int, half):
                return True
    return False
