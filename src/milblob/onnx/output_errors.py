"""What a changed weight does to the outputs of its model: `errors` of `milblob.compress`."""

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from .samples import given_runs
from .session import Session

if TYPE_CHECKING:
    from ..model.model import Model

Array = np.ndarray[Any, Any]

_WORST = 1e12  # for outputs that are no numbers any more: larger than any error that one would choose


class OutputErrors:
    """Called as `errors(name, before, after)`: runs the model with one weight changed; how far do its outputs move?

    The result is the squared error of the outputs over their power: of each float output (and state) over all runs,
    then the mean of these. Pass it to `compress` or `compress_frontier` as `errors`: goals then choose recipes by what
    they do to the outputs, for these inputs, one weight at a time. Each call costs one prediction for each run.

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
        ValueError: inputs that do not fit; a model without outputs of floats. As `Session`.
    """

    def __init__(self, model: "str | os.PathLike[str] | Model", inputs: Any, *, function: str | None = None) -> None:
        self._session = Session(model, function=function, replaceable=True)
        self._runs = [self._session.convert_inputs(run) for run in given_runs(inputs, self._session.inputs)]
        if not self._runs:
            raise ValueError("inputs: expected one run or more, got none")
        self.runs = len(self._runs)
        self.unmeasured: dict[str, None] = {}
        self._lock = threading.Lock()
        self._expected = self._predict({})
        names = [name for name, found in self._expected[0].items() if found.dtype.kind == "f"]
        self._power = {name: self._sum(name, self._expected) for name in names}
        self._power = {name: power for name, power in self._power.items() if power > 0}
        if not self._power:
            raise ValueError("inputs: expected some for which an output of floats is not zero, got none")

    def __call__(self, name: str, before: Array, after: Array) -> float:
        """Return what the values `after` cost in place of `before`: zero or more, finite."""
        weight = self._session.weights.get(name)
        if weight is None or weight.shape != after.shape:
            with self._lock:
                self.unmeasured[name] = None
            return _relative(before, after)
        found = self._predict({name: after})
        noise = [self._sum(output, found, self._expected) / power for output, power in self._power.items()]
        mean = float(np.mean(noise))
        return mean if np.isfinite(mean) else _WORST

    def _predict(self, weights: dict[str, Array]) -> list[dict[str, Array]]:
        state = self._session.make_state()
        found = []
        for run in self._runs:
            outputs = self._session.predict(run, state, raw=True, weights=weights)
            found.append(outputs | dict(state))
        return found

    def _sum(self, name: str, runs: list[dict[str, Array]], expected: list[dict[str, Array]] | None = None) -> float:
        """The sum of squares of an output, or of its differences, where what is expected is finite."""
        total = 0.0
        for number, run in enumerate(runs):
            sound = np.isfinite(self._expected[number][name])
            values = run[name][sound].astype(np.float64)
            if expected is not None:
                values -= expected[number][name][sound]
            total += float(np.square(values).sum())
        return total


def _relative(before: Array, after: Array) -> float:
    old = before.astype(np.float64)
    power = float(np.square(old).sum())
    found = float(np.square(after.astype(np.float64) - old).sum())
    return found / power if power else _WORST if found else 0.0
