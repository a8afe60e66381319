"""Recurrent networks. Their weights have the gates in another order than ONNX's, and are written anew."""

from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope
from .shape import LAST

Array = Any

_ACTIVATIONS = {
    "sigmoid": ("Sigmoid", 0.0, 0.0), "tanh": ("Tanh", 0.0, 0.0), "relu": ("Relu", 0.0, 0.0),
    "hard_sigmoid": ("HardSigmoid", 0.2, 0.5), "sigmoid_hard": ("HardSigmoid", 0.2, 0.5),
    "linear": ("Affine", 1.0, 0.0), "scaled_tanh": ("ScaledTanh", 1.7159, 2.0 / 3.0),
}  # fmt: skip


def _gates(array: Array, order: tuple[int, ...]) -> Array:
    """Return the rows of a weight with its gates in another order."""
    parts = np.split(np.asarray(array), len(order), axis=0)
    return np.concatenate([parts[i] for i in order], axis=0)


def _activations(operator: Operator, keys: tuple[tuple[str, str], ...], directions: int) -> dict[str, Any]:
    names, alphas, betas = [], [], []
    for key, default in keys:
        given = operator.number(key, default)
        if given not in _ACTIVATIONS:
            words = f"{operator.type}: expected one of {', '.join(_ACTIVATIONS)}, got {given!r:.40}"
            raise UnsupportedError(words, where=operator.path)
        name, alpha, beta = _ACTIVATIONS[given]
        names.append(name)
        if name in ("HardSigmoid", "Affine", "ScaledTanh"):
            alphas.append(alpha)
            betas.append(beta)
    found: dict[str, Any] = {"activations": names * directions}
    if alphas:
        found |= {"activation_alpha": alphas * directions, "activation_beta": betas * directions}
    return found


def _stacked(operator: Operator, g: ModelComponentContainer, keys: list[str], order: tuple[int, ...]) -> Any:
    """Return one weight of all directions, or None where no direction has it."""
    arrays = [operator.constant(key, None) for key in keys]
    if all(array is None for array in arrays):
        return None
    shape = next(array.shape for array in arrays if array is not None)
    dtype = g.dtype(operator.input("x")).numpy()
    parts = [np.zeros(shape, dtype) if array is None else _gates(array, order).astype(dtype) for array in arrays]
    return g.held_weight(f"{operator.name}.{keys[0]}", np.stack(parts), f"gates of {operator.type}")


def _biases(
    operator: Operator, g: ModelComponentContainer, pairs: list[tuple[str, str]], order: tuple[int, ...]
) -> Any:
    """Return ONNX's bias, which is that of the input followed by the recurrent one."""
    rows, found = [], False
    hidden = np.asarray(operator.constant("weight_hh")).shape
    dtype = g.dtype(operator.input("x")).numpy()
    for pair in pairs:
        halves = []
        for key in pair:
            array = operator.constant(key, None) if key else None
            found |= array is not None
            halves.append(np.zeros(hidden[0], dtype) if array is None else _gates(array, order).astype(dtype))
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
        raise UnsupportedError(f"{operator.type}: expected a direction, got {found!r:.40}", where=operator.path)
    if found == "reverse":
        back = g.ints([-1])
        return g.node("Slice", x, back, g.ints([-LAST]), g.ints([0]), back), "forward", 1
    return x, found, 2 if found == "bidirectional" else 1


@builtin("lstm", onnx="LSTM, Transpose, Reshape")
def _lstm(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """MIL has the gates i, f, o, z, ONNX i, o, f, c; the peepholes are i, f, o and i, o, f."""
    x, direction, count = _direction(operator, g)
    ends = ["", "_back"][:count]
    hidden = np.asarray(operator.constant("weight_hh")).shape[1]
    order = (0, 2, 1, 3)
    keys = (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))
    clip = operator.number("clip", None)
    made = g.node(
        "LSTM", x,
        _stacked(operator, g, [f"weight_ih{end}" for end in ends], order),
        _stacked(operator, g, [f"weight_hh{end}" for end in ends], order),
        _biases(operator, g, [(f"bias{end}", "") for end in ends], order),
        None,
        _state(operator, g, "initial_h", count, hidden), _state(operator, g, "initial_c", count, hidden),
        _stacked(operator, g, [f"peephole{end}" for end in ends], (0, 2, 1)),
        outputs=3, direction=direction, hidden_size=hidden, clip=None if clip is None else float(clip),
        **_activations(operator, keys, count),
    )  # fmt: skip
    _finish(operator, g, made, count, hidden)


@builtin("gru", onnx="GRU, Transpose, Reshape")
def _gru(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """MIL has the gates r, o, z, ONNX z, r, h."""
    x, direction, count = _direction(operator, g)
    hidden = np.asarray(operator.constant("weight_hh")).shape[1]
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


@builtin("rnn", onnx="RNN, Transpose, Reshape")
def _rnn(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    x, direction, count = _direction(operator, g)
    hidden = np.asarray(operator.constant("weight_hh")).shape[1]
    made = g.node(
        "RNN", x,
        _stacked(operator, g, ["weight_ih"], (0,)), _stacked(operator, g, ["weight_hh"], (0,)),
        _biases(operator, g, [("bias", "")], (0,)), None,
        _state(operator, g, "initial_h", count, hidden),
        outputs=2, direction=direction, hidden_size=hidden,
        **_activations(operator, (("activation", "tanh"),), count),
    )  # fmt: skip
    _finish(operator, g, made, count, hidden)
