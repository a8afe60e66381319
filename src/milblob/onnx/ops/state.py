"""States: inputs of the graph whose new values are outputs, as they are of branches and loops that write them."""

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope


@builtin("read_state", onnx="the graph's input, or what was written last")
def _read_state(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.let(operator.output, g.states[operator.input("input")])


@builtin("write_state", onnx="the graph's output")
def _write_state(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    g.states[operator.input("input")] = g.value(operator.input("data"))


@builtin("coreml_update_state", onnx="the graph's output")
def _update_state(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    state = operator.input("state")
    g.states[state] = g.value(operator.input("value"))
    if operator.outputs:
        g.let(operator.output, g.states[state])
