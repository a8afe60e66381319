"""The effect of changed weights on the outputs of a model, from a few predictions: `errors` of `milblob.compress`."""

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compressing.pieces import measured
from ..errors import UnsupportedError
from ..formats.onnx import WEIGHTS
from ..onnx.conversion import opened
from ..values.strided import range_of
from .moments import InputMoments
from .ports import read_json
from .runtime import CPU, make_options
from .samples import given_runs
from .session import Session
from .stage import stage_of_model

if TYPE_CHECKING:
    from ..model.model import Model

Array = np.ndarray[Any, Any]

_WORST = 1e12  # for outputs that are no numbers any more: larger than any error that one would choose
_NOISE = 0.05  # of a weight, in relation to its root mean square: 26 dB, where errors still add up


class OutputSensitivity:
    """Called as `errors(name, before, after)`: estimates how far the outputs of a model move if a weight changes.

    The error of the outputs is the sum of their squared differences over that of their squares: of each float output
    (and state) over all runs, then the mean of these. Pass the object to `compress` or `compress_frontier` as `errors`:
    goals then choose recipes by what they do to the outputs, for these inputs.

    One pass over the inputs computes the mean squares of the activations that each weight multiplies, and another one
    the outputs. On the first request for a weight, one prediction with noise added to it measures how much of its error
    reaches the outputs. From both follows the cost of any change of the weight, without a further prediction.

    A weight that cannot be replaced alone (it is compressed already, reordered for a recurrent network, or belongs to
    another function) counts as if all of its own relative error reached the outputs; `unmeasured` names it.

    Args:
        model: a path or an open Model; one Program.
        inputs: as `verify` takes them: arrays by name of input, with one more axis in front for several runs, along
            which states are kept.
        function: that is run; default: the model's default function.

    Attributes:
        runs: how many there are.
        unmeasured: names of weights that were asked for and are not in the graph as they are; grows with the calls.

    Raises:
        ValueError: inputs that do not fit; a model without outputs of floats. UnsupportedError: a pipeline.
        As `Session`.

    Examples:
        >>> tokens = np.arange(64, dtype=np.int32).reshape(4, 1, 16)  # four runs
        >>> errors = milblob.OutputSensitivity("demo.mlpackage", {"tokens": tokens})
        >>> goal = milblob.Goal(bits=5, errors=errors)
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", goal)
        >>> errors.runs, report.outputs_sqnr > 10
        (4, True)
    """

    def __init__(self, model: "str | os.PathLike[str] | Model", inputs: Any, *, function: str | None = None) -> None:
        with opened(model) as source:
            self._session = Session(source, function=function, replaceable=True)
            if len(self._session.stages) > 1:
                raise UnsupportedError("inputs: expected a model of one Program, got a pipeline", file=source.path)
            self._runs = [self._session.convert_inputs(run) for run in given_runs(inputs, self._session.inputs)]
            if not self._runs:
                raise ValueError("inputs: expected one run or more, got none")
            self._moments = InputMoments(self._session.weights)
            options, providers = make_options(False, None), CPU
            stage = stage_of_model(source, function, options, providers, None, self._moments.attach)
        self.runs: int = len(self._runs)
        self.unmeasured: dict[str, None] = {}
        self._lock = threading.Lock()
        self._reached: dict[str, float] = {}
        homes = read_json(stage.metadata, WEIGHTS, stage.file)
        self._names = {str(homes.get(name, name)): name for name in self._session.weights}
        states = self._session.make_state().arrays()
        for run in self._runs:
            self._moments.take(stage.compute(run, states))
        # The outputs of the pass above may differ in their last bits: more readers of a value, other casts of halves.
        self._expected = self._predict({}, self.runs)
        self._outputs = [name for name, found in self._expected[0].items() if found.dtype.kind == "f"]
        counts = range(1, self.runs + 1)
        self._few = next((count for count in counts if any(self._powers(count).values())), 0)
        if not self._few:
            raise ValueError("inputs: expected some for which an output of floats is not zero, got none")

    def __call__(self, name: str, before: Array, after: Array) -> float:
        """Return what the values `after` are expected to cost in place of `before`: zero or more, finite."""
        own = self._names.get(name)
        if own is None or self._session.weights[own].shape != after.shape:
            with self._lock:
                self.unmeasured[name] = None
            squared, power = _squares(before, after)
            return squared / power if power else _WORST if squared else 0.0
        importance = self._moments.importance(own)
        with self._lock:  # the first call of a weight predicts, in all threads of onnxruntime
            if name not in self._reached:
                self._reached[name] = self._reach(own, before, importance)
        cost = _squares(before, after, importance)[0] * self._reached[name]
        return min(cost, _WORST) if np.isfinite(cost) else _WORST

    def of_all(self, weights: Mapping[str, Array]) -> float:
        """Return the error of the outputs where weights have other values: of all runs, measured and not estimated.

        Args:
            weights: by name. Those that cannot be replaced keep their values.
        """
        values = {self._names[name]: value for name, value in weights.items() if name in self._names}
        return self._error(values, self.runs)

    def _reach(self, name: str, before: Array, importance: Array) -> float:
        """How much the error of the outputs grows with the squared change of a weight, its elements weighed."""
        size = _squares(before, before)[1] / max(before.size, 1)
        noise = np.random.default_rng(0).standard_normal(before.shape, np.float32) * np.float32(_NOISE * size**0.5 or 1)
        changed = (before.astype(np.float32) + noise).astype(before.dtype)
        squared = _squares(before, changed, importance)[0]
        return self._error({name: changed}, self._few) / squared if squared else 0.0

    def _error(self, weights: Mapping[str, Array], count: int) -> float:
        """The error of the outputs of the first runs."""
        found = self._predict(weights, count)
        powers = self._powers(count)
        noise = [self._sum(name, found, self._expected) / power for name, power in powers.items() if power > 0]
        mean = float(np.mean(noise))
        return min(mean, _WORST) if np.isfinite(mean) else _WORST

    def _predict(self, weights: Mapping[str, Array], count: int) -> list[dict[str, Array]]:
        """The outputs and states of the first runs."""
        state = self._session.make_state()
        found = []
        for run in self._runs[:count]:
            outputs = self._session.predict(run, state, raw=True, weights=weights)
            found.append(outputs | dict(state))
        return found

    def _powers(self, count: int) -> dict[str, float]:
        return {name: self._sum(name, self._expected[:count]) for name in self._outputs}

    def _sum(self, name: str, runs: list[dict[str, Array]], expected: list[dict[str, Array]] | None = None) -> float:
        """The sum of squares of an output, or of its differences, over the elements with a finite expected value."""
        total = 0.0
        for number, run in enumerate(runs):
            sound = np.isfinite(self._expected[number][name])
            values = run[name][sound].astype(np.float64)
            if expected is not None:
                values -= expected[number][name][sound]
            total += float(np.square(values).sum())
        return total


def _squares(before: Array, after: Array, importance: Array | None = None) -> tuple[float, float]:
    """(sum of squared differences, sum of squares of `before`), both weighed by the importance."""
    lost = measured(before, lambda first, count: range_of(after, first, count, after.dtype), importance)
    return lost.squared, lost.power
