"""Inputs to try a model with: random ones that its description allows, or given ones, taken apart into runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from ..arguments import array_of
from ..wording import escape
from .ports import SessionInput
from .session import Session

MAX_COUNT = 1 << 24
"""Elements of one random input, where its shape may vary."""

_OPEN = (1, 16)  # sizes of an axis without known bounds
_DRAWN_NBYTES = 12  # of an element: drawn in double precision, and then rounded
_UNBOUNDED = 64  # of an axis without an upper bound
# Nodes whose result holds the numbers of their first input; of _MIXING, of any input.
_PASSING = frozenset([
    "Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Slice", "Expand", "Tile", "Mod"
])  # fmt: skip
_MIXING = frozenset(["Concat", "Where", "Add"])
_INDEXED = {"Gather": (1, 0), "GatherElements": (1, 0), "ScatterElements": (1, 0)}  # inputs: the indices, the table


def random_runs(sessions: Sequence[Session], count: int | None, seed: int) -> Iterator[dict[str, Any]]:
    """Yield inputs for several predictions, made when their turn comes, and the same for the same seed.

    Floats are drawn from the standard normal distribution, pixels from 0 to 255. Integers that choose rows, such as
    tokens of an embedding, are below the number of rows; other integers are 0 or 1. Enumerated shapes come in turn;
    axes with a range are as small as they can be in the first run, as large in the second, then anything between, the
    same share of the way in every axis. Optional inputs are left out of every other run.

    `sessions`: of models with the same inputs; what one of them knows counts for all. `count`: of runs; None: four, or
    as many as there are enumerated shapes. `seed`: any integer of zero or more.
    Raises: LimitError: an input that is larger than the budget of the first model.
    """
    random = np.random.default_rng(seed)
    kinds = {name: [session.inputs[name] for session in sessions] for name in sessions[0].inputs}
    enumerated = max((len(one.enumerated) for ports in kinds.values() for one in ports), default=0)
    bounds = [index_bounds(session) for session in sessions]
    for number in range(max(4, enumerated) if count is None else count):
        share = (0.0, 1.0)[number] if number < 2 else float(random.random())
        values = {}
        for name, ports in kinds.items():
            if number % 2 and all(one.is_optional for one in ports):
                continue
            shape = _shape(ports, share, number)
            sessions[0].budget.require(_DRAWN_NBYTES * prod(shape))
            most = min((found[name] for found in bounds if name in found), default=2)
            values[name] = _values(ports, shape, most, random)
        yield values


def given_runs(inputs: Any, ports: Mapping[str, SessionInput]) -> list[dict[str, Any]]:
    """Return given inputs as a list of what `Session.predict` takes.

    `inputs`: name -> value for one run; or with one more axis in front, along which the runs are, while values without
    it are the same in all runs; or a sequence of such mappings.
    Raises: ValueError: different numbers of runs. TypeError: something else.
    """
    if not isinstance(inputs, Mapping):
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
            raise TypeError(f"inputs: expected arrays by name of input, got {type(inputs).__name__}")
        return [run for one in inputs for run in given_runs(one, ports)]
    counts: dict[str, int] = {}
    values = {name: value if hasattr(value, "getbands") else array_of(value) for name, value in inputs.items()}
    for name, value in values.items():
        port = ports.get(name)
        if port is not None and isinstance(value, np.ndarray) and value.ndim == len(port.shape) + 1:
            counts[name] = len(value)
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise ValueError(escape(f"inputs: expected as many runs of each, along the first axis, got {words}"))
    total = next(iter(counts.values()), 1)
    return [{name: value[run] if name in counts else value for name, value in values.items()} for run in range(total)]


def index_bounds(session: Session) -> dict[str, int]:
    """Return, for inputs of integers that choose rows of a table, the number of its rows."""
    found: dict[str, int] = {}
    for stage in session.stages:
        for value in stage.model.graph.inputs:
            name = value.name or ""
            port = stage.inputs.get(name)
            if port is not None and port.dtype.kind in "iu" and not port.color_space:
                bound = _bound(value)
                if bound is not None:
                    found[name] = min(bound, found.get(name, bound))
    return found


def _bound(start: ir.Value) -> int | None:
    """Return the least number of rows that a value indexes, as far as the graph shows; None if unknown."""
    waiting, seen, bounds = [start], {start}, []
    while waiting:
        value = waiting.pop()
        for node, index in value.uses():
            if node.op_type in _INDEXED:
                place, table = _INDEXED[node.op_type]
                size = _size(node.inputs[table], _axis(node)) if index == place else None
                if size is not None:
                    bounds.append(size)
                if index == place:
                    continue
            elif node.op_type == "OneHot" and index == 0:
                depth = node.inputs[1]
                if depth is not None and depth.const_value is not None:
                    bounds.append(int(depth.const_value.numpy().reshape(-1)[0]))
                continue
            if (node.op_type in _PASSING and index == 0) or node.op_type in _MIXING:
                new = [output for output in node.outputs if output not in seen]
                seen.update(new)
                waiting.extend(new)
    return min((bound for bound in bounds if bound > 0), default=None)


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return 0 if attribute is None else attribute.as_int()


def _size(table: ir.Value | None, axis: int) -> int | None:
    shape = None if table is None else table.shape
    if table is not None and shape is None and table.const_value is not None:
        shape = ir.Shape(table.const_value.shape.numpy())
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) else None


def _shape(ports: Sequence[SessionInput], share: float, number: int) -> tuple[int, ...]:
    """A shape that the models allow: the one that knows most decides."""
    known = next((one for one in ports if one.enumerated), None)
    if known is not None:
        return known.enumerated[number % len(known.enumerated)]
    known = next((one for one in ports if one.ranges), ports[0])
    shape = [next((one.shape[axis] for one in ports if len(one.shape) > axis and one.shape[axis]), size)
             for axis, size in enumerate(known.shape)]  # fmt: skip
    bounds = known.ranges or (_OPEN,) * len(shape)
    while True:
        found = tuple(_between(size, one, share) for size, one in zip(shape, bounds, strict=True))
        if prod(found) <= MAX_COUNT or share < 1e-3:
            return found
        share /= 2


def _between(size: int | None, bounds: tuple[int, int | None], share: float) -> int:
    if size is not None:
        return size
    low = max(bounds[0], 1)
    high = max(low, _UNBOUNDED) if bounds[1] is None else max(bounds[1], low)
    return low + round(share * (high - low))


def _values(ports: Sequence[SessionInput], shape: tuple[int, ...], most: int, random: np.random.Generator) -> Any:
    if any(one.color_space for one in ports):
        return random.integers(0, 256, shape).astype(np.float32)
    kind = ports[0].dtype.kind
    if kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return random.integers(0, most, shape).astype(ports[0].dtype)
    if kind == "O":
        return np.full(shape, "text", object)
    narrowest = min((one.dtype for one in ports), key=lambda dtype: dtype.itemsize)
    return random.standard_normal(shape).astype(narrowest)  # numbers that each of the models can hold
