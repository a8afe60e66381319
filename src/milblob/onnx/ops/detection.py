"""Detection: boxes that overlap."""

import onnx_ir as ir

from ...errors import UnsupportedError
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator, Scope

_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT


@builtin(
    "non_maximum_suppression",
    onnx="NonMaxSuppression, TopK, GatherND, Pad",
    limits="one batch; one class, or no suppression by class; sizes known",
)
def _non_maximum_suppression(scope: Scope, operator: Operator, g: ModelComponentContainer) -> None:
    """ONNX gives triples (batch, class, box), MIL for each batch the boxes in the order of their scores, padded.

    Without per_class_suppression the best score of each box decides, so that each box is one of a single class.
    """
    boxes, scores = operator.input("boxes"), operator.input("scores")
    batch, count, classes = (int(size or 0) for size in g.dimensions(scores))
    per_class = bool(operator.number("per_class_suppression", False))
    if batch != 1 or not count or not classes or (per_class and classes > 1):
        words = "non_maximum_suppression: expected one batch, and one class or no suppression by class"
        raise UnsupportedError(words, where=operator.path)
    most = int(operator.number("max_boxes"))
    plain, ranks = g.cast(boxes, _FLOAT), g.cast(scores, _FLOAT)
    best = g.node("ReduceMax", ranks, g.ints([2]), keepdims=1)
    limit = [g.scalar(float(operator.number("score_threshold")), _FLOAT)] if operator.has("score_threshold") else []
    triples = g.node(
        "NonMaxSuppression",
        plain,
        g.node("Transpose", best, perm=[0, 2, 1]),
        g.scalar(most, _INT64),
        g.scalar(float(operator.number("iou_threshold")), _FLOAT),
        *limit,
        center_point_box=1,
    )
    chosen = g.node("Gather", triples, g.scalar(2, _INT64), axis=1)
    number = g.node("Shape", chosen)
    lack = g.node("Concat", g.ints([0]), g.node("Sub", g.ints([most]), number), axis=0)
    results = []
    for value, fill, axes in ((boxes, 0, 1), (scores, 0, 1)):
        rows = g.node("Gather", g.cast(value, _FLOAT), chosen, axis=1)
        results.append(g.node("Pad", rows, lack, g.scalar(fill, _FLOAT), g.ints([axes])))
    indices = g.node("Unsqueeze", g.node("Pad", chosen, lack, g.scalar(-1, _INT64)), g.ints([0]))
    for variable, value in zip(operator.outputs, [*results, indices, number], strict=False):
        g.bind(variable, value, convert=True)
