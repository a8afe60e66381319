"""States: inputs of the graph whose new values are outputs."""

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope


def _require_outer(operator: Operator, g: ModelComponentContainer) -> None:
    if g.is_nested:
        words = f"{operator.type}: expected a state outside of cond and while_loop, got one inside"
        raise UnsupportedError(words, where=operator.path)


@builtin("read_state", onnx="the graph's input, or what was written last", limits="not inside of cond and while_loop")
def _read_state(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    _require_outer(operator, g)
    g.bind(operator.output, g.states[operator.input("input")])


@builtin("write_state", onnx="the graph's output", limits="not inside of cond and while_loop")
def _write_state(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    _require_outer(operator, g)
    g.states[operator.input("input")] = g.value(operator.input("data"))


@builtin("coreml_update_state", onnx="the graph's output", limits="not inside of cond and while_loop")
def _update_state(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    _require_outer(operator, g)
    state = operator.input("state")
    g.states[state] = g.value(operator.input("value"))
    if operator.outputs:
        g.bind(operator.output, g.states[state])
