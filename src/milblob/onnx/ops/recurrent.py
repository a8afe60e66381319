"""Recurrent networks. Their weights have the gates in another order than ONNX's, and are rewritten."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from .shape import LAST

Array = Any

_AS_THEY_ARE = (0, 1, 2, 3)
_ACTIVATIONS = {
    "sigmoid": ("Sigmoid", 0.0, 0.0), "tanh": ("Tanh", 0.0, 0.0), "relu": ("Relu", 0.0, 0.0),
    "hard_sigmoid": ("HardSigmoid", 0.2, 0.5), "sigmoid_hard": ("HardSigmoid", 0.2, 0.5),
    "linear": ("Affine", 1.0, 0.0), "scaled_tanh": ("Tanh", 0.0, 0.0), # whose factors are 1 in Core ML
}  # fmt: skip


def _hidden(operator: Operator, g: ModelComponentContainer) -> int:
    """Return the number of hidden units: the columns of weight_hh."""
    g.rank(operator.input("x"), 3, 3)
    shape = np.shape(operator.constant("weight_hh"))
    if len(shape) != 2 or not shape[1]:
        operator.refuse("rows and columns of weight_hh", f"the shape {list(shape)}")
    return int(shape[1])


def _gates(operator: Operator, key: str, order: tuple[int, ...], hidden: int, rank: int) -> Array:
    """Return the rows of a weight, or elements of a bias, with its gates in another order; None if it is left out."""
    array = operator.constant(key, None)
    if array is None:
        return None
    array = np.asarray(array)
    if array.ndim != rank or array.shape[0] != len(order) * hidden:
        shape = [len(order) * hidden, *["any size"] * (rank - 1)]
        message = f"{operator.type}: expected the shape {shape} of {key}, got {list(array.shape)}".replace("'", "")
        raise UnsupportedError(message, where=operator.path)
    parts = np.split(array, len(order), axis=0)
    return np.concatenate([parts[i] for i in order], axis=0)


def _activation(operator: Operator, key: str, default: str) -> tuple[str, float, float]:
    given = operator.number(key, default)
    if given not in _ACTIVATIONS:
        operator.refuse(f"one of {', '.join(_ACTIVATIONS)}", f"{given!r:.40}")
    return _ACTIVATIONS[given]


def _activations(operator: Operator, keys: tuple[tuple[str, str], ...], directions: int) -> dict[str, Any]:
    names, alphas, betas = [], [], []
    for key, default in keys:
        name, alpha, beta = _activation(operator, key, default)
        names.append(name)
        if name in ("HardSigmoid", "Affine"):
            alphas.append(alpha)
            betas.append(beta)
    found: dict[str, Any] = {"activations": names * directions}
    if alphas:
        found |= {"activation_alpha": alphas * directions, "activation_beta": betas * directions}
    return found


def _stacked(
    operator: Operator, g: ModelComponentContainer, keys: list[str], order: tuple[int, ...], rank: int = 2
) -> Any:
    """Return one weight of all directions, or None where no direction has it."""
    hidden = _hidden(operator, g)
    arrays = [_gates(operator, key, order, hidden, rank) for key in keys]
    shapes = [array.shape for array in arrays if array is not None]
    if not shapes:
        return None
    if len(set(shapes)) > 1:
        operator.refuse(f"one shape of {' and '.join(keys)}", list(map(list, shapes)))
    dtype = g.dtype(operator.input("x")).numpy()
    parts = [g.filled(shapes[0], 0, dtype) if array is None else array.astype(dtype) for array in arrays]
    return g.held_weight(f"{operator.name}.{keys[0]}", np.stack(parts), f"gates of {operator.type}")


def _biases(
    operator: Operator, g: ModelComponentContainer, pairs: list[tuple[str, str]], order: tuple[int, ...]
) -> Any:
    """Return ONNX's bias, which is that of the input followed by the recurrent one."""
    rows, found = [], False
    hidden = _hidden(operator, g)
    dtype = g.dtype(operator.input("x")).numpy()
    for pair in pairs:
        halves = []
        for key in pair:
            array = _gates(operator, key, order, hidden, 1) if key else None
            found |= array is not None
            halves.append(g.filled([len(order) * hidden], 0, dtype) if array is None else array.astype(dtype))
        rows.append(np.concatenate(halves))
    return g.constant(np.stack(rows)) if found else None


def _state(operator: Operator, g: ModelComponentContainer, key: str, directions: int, hidden: int) -> Any:
    """Return an initial state [batch, directions * hidden] as [directions, batch, hidden]."""
    x = g.cast(operator.input(key), g.dtype(operator.input("x")))
    if directions == 1:
        return g.node("Unsqueeze", x, g.ints([0]))
    return g.node("Transpose", g.node("Reshape", x, g.ints([0, directions, hidden])), perm=[1, 0, 2])


def _finish(operator: Operator, g: ModelComponentContainer, made: Any, directions: int, hidden: int) -> None:
    """Bind the sequence, or its last step, and the last states."""
    everything, *last = made
    size = directions * hidden
    ends = [
        g.node("Squeeze", one, g.ints([0]))
        if directions == 1
        else g.node("Reshape", g.node("Transpose", one, perm=[1, 0, 2]), g.ints([0, size]))
        for one in last
    ]
    if operator.number("output_sequence", False):
        turned = g.node("Transpose", everything, perm=[0, 2, 1, 3])
        g.bind(operator.outputs[0], g.node("Reshape", turned, g.ints([0, 0, size])))
    else:
        g.bind(operator.outputs[0], g.node("Unsqueeze", ends[0], g.ints([0])))
    for variable, value in zip(operator.outputs[1:], ends, strict=False):
        g.bind(variable, value)


def _direction(operator: Operator, g: ModelComponentContainer) -> tuple[Any, str, int]:
    """Return the sequence, ONNX's direction and how many there are.

    MIL's "reverse" gives the steps in the order in which they are computed, ONNX's in that of the sequence: what is
    reversed is the sequence.
    """
    x: Any = operator.input("x")
    found = operator.number("direction", "forward")
    if found not in ("forward", "reverse", "bidirectional"):
        operator.refuse("a direction", f"{found!r:.40}")
    if found == "reverse":
        back = g.ints([-1])
        return g.node("Slice", x, back, g.ints([-LAST]), g.ints([0]), back), "forward", 1
    return x, found, 2 if found == "bidirectional" else 1


@builtin(
    "lstm", onnx="LSTM, Transpose, Reshape; Scan with clip", limits="constant weights, which are decoded and copied"
)
def _lstm(operator: Operator, g: ModelComponentContainer) -> None:
    """MIL has the gates i, f, o, z, ONNX i, o, f, c; the peepholes are i, f, o and i, o, f."""
    x, direction, count = _direction(operator, g)
    ends = ["", "_back"][:count]
    hidden = _hidden(operator, g)
    order = (0, 2, 1, 3)
    keys = (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    if operator.has("clip"):
        _finish(operator, g, _clipped(operator, g, x, ends, direction), count, hidden)
        return
    made = g.node(
        "LSTM", x,
        _stacked(operator, g, [f"weight_ih{end}" for end in ends], order),
        _stacked(operator, g, [f"weight_hh{end}" for end in ends], order),
        _biases(operator, g, [(f"bias{end}", "") for end in ends], order),
        None,
        _state(operator, g, "initial_h", count, hidden), _state(operator, g, "initial_c", count, hidden),
        _stacked(operator, g, [f"peephole{end}" for end in ends], (0, 2, 1), 1),
        outputs=3, direction=direction, hidden_size=hidden,
        **_activations(operator, keys, count),
    )  # fmt: skip
    _finish(operator, g, made, count, hidden)


def _clipped(operator: Operator, g: ModelComponentContainer, x: Any, ends: list[str], direction: str) -> list[Any]:
    """Return the results of ONNX's LSTM with the cell clipped at each step; ONNX clips the inputs of activations."""
    hidden = _hidden(operator, g)
    dtype = g.dtype(x)
    states = [_state(operator, g, key, len(ends), hidden) for key in ("initial_h", "initial_c")]
    found: list[list[Any]] = [[], [], []]
    for number, end in enumerate(ends):
        start = [g.node("Gather", state, g.scalar(number, ir.DataType.INT64), axis=0) for state in states]
        with g.subgraph():
            inputs = [g.block_input(f"{operator.name}.{key}{end}", dtype, 2) for key in ("h", "c", "x")]
            h, c = _step(operator, g, inputs, end)
            outputs = [h, c, g.node("Identity", h)]
            body = g.graph(f"{operator.name}.step{end}", inputs, outputs, [operator.outputs[1]] * 3)
        back = int(direction == "bidirectional" and number == 1)
        last_h, last_c, sequence = g.node(
            "Scan", *start, x, outputs=3, body=body, num_scan_inputs=1, dtype=dtype,
            scan_input_directions=[back], scan_output_directions=[back],
        )  # fmt: skip
        for values, value, axis in zip(found, (sequence, last_h, last_c), (1, 0, 0), strict=True):
            values.append(g.node("Unsqueeze", value, g.ints([axis])))
    axes = (1, 0, 0)
    return [v[0] if len(v) == 1 else g.node("Concat", *v, axis=axis) for v, axis in zip(found, axes, strict=True)]


def _step(operator: Operator, g: ModelComponentContainer, inputs: list[Any], end: str) -> tuple[Any, Any]:
    """Return the next hidden state and cell."""
    h, c, x = inputs
    hidden, dtype = _hidden(operator, g), g.dtype(x).numpy()
    total = None
    for value, key in ((x, f"weight_ih{end}"), (h, f"weight_hh{end}")):
        array = _gates(operator, key, _AS_THEY_ARE, hidden, 2)
        if array is None:
            operator.refuse(f"the parameter {key}", "none")
        weight = g.constant(np.ascontiguousarray(array.T.astype(dtype)))
        product = g.node("MatMul", value, weight)
        total = product if total is None else g.node("Add", total, product)
    bias = _gates(operator, f"bias{end}", _AS_THEY_ARE, hidden, 1)
    if bias is not None:
        total = g.node("Add", total, g.constant(bias.astype(dtype)))
    i, f, o, z = g.node("Split", total, outputs=4, axis=1, num_outputs=4)
    peephole = _gates(operator, f"peephole{end}", _AS_THEY_ARE[:3], hidden, 1)
    parts = [None] * 3 if peephole is None else np.split(peephole.astype(dtype), 3)

    def gate(value: Any, part: Any, cell: Any) -> Any:
        if part is not None:
            value = g.node("Add", value, g.node("Mul", cell, g.constant(part)))
        return _activate(operator, g, value, "recurrent_activation", "sigmoid")

    kept = g.node("Mul", gate(f, parts[1], c), c)
    new = g.node("Mul", gate(i, parts[0], c), _activate(operator, g, z, "cell_activation", "tanh"))
    clip = abs(float(operator.number("clip")))
    cell = g.node("Clip", g.node("Add", kept, new), g.scalar(-clip, x), g.scalar(clip, x))
    return g.node("Mul", gate(o, parts[2], cell), _activate(operator, g, cell, "activation", "tanh")), cell


def _activate(operator: Operator, g: ModelComponentContainer, value: Any, key: str, default: str) -> Any:
    name, alpha, beta = _activation(operator, key, default)
    if name == "Affine":
        return value
    numbers: dict[str, Any] = {"alpha": alpha, "beta": beta} if name == "HardSigmoid" else {}
    return g.node(name, value, **numbers)


@builtin("gru", onnx="GRU, Transpose, Reshape", limits="constant weights, which are decoded and copied")
def _gru(operator: Operator, g: ModelComponentContainer) -> None:
    """MIL has the gates r, o, z, ONNX z, r, h."""
    x, direction, count = _direction(operator, g)
    hidden = _hidden(operator, g)
    order = (2, 0, 1)
    after = bool(operator.number("reset_after", False))
    made = g.node(
        "GRU", x,
        _stacked(operator, g, ["weight_ih"], order), _stacked(operator, g, ["weight_hh"], order),
        _biases(operator, g, [("input_bias", "bias")], order), None,
        _state(operator, g, "initial_h", count, hidden),
        outputs=2, direction=direction, hidden_size=hidden, linear_before_reset=int(after),
        **_activations(operator, (("recurrent_activation", "sigmoid"), ("activation", "tanh")), count),
    )  # fmt: skip
    _finish(operator, g, made, count, hidden)


@builtin("rnn", onnx="RNN, Transpose, Reshape", limits="constant weights, which are decoded and copied")
def _rnn(operator: Operator, g: ModelComponentContainer) -> None:
    x, direction, count = _direction(operator, g)
    hidden = _hidden(operator, g)
    made = g.node(
        "RNN", x,
        _stacked(operator, g, ["weight_ih"], (0,)), _stacked(operator, g, ["weight_hh"], (0,)),
        _biases(operator, g, [("bias", "")], (0,)), None,
        _state(operator, g, "initial_h", count, hidden),
        outputs=2, direction=direction, hidden_size=hidden,
        **_activations(operator, (("activation", "tanh"),), count),
    )  # fmt: skip
    _finish(operator, g, made, count, hidden)
