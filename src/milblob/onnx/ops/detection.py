"""Detection: boxes that overlap."""

from typing import Any

import numpy as np
import onnx_ir as ir

from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator

_INT64, _FLOAT = ir.DataType.INT64, ir.DataType.FLOAT
_MAX_BOXES = 1 << 24
_LOWEST = float(np.finfo(np.float32).min)


@builtin("non_maximum_suppression", onnx="NonMaxSuppression, ScatterND, TopK, GatherND")
def _non_maximum_suppression(operator: Operator, g: ModelComponentContainer) -> None:
    """ONNX gives triples (batch, class, box), MIL for each batch the boxes in the order of their scores, padded.

    A box counts with its best score, and is of the class that has it. From iOS 17 on the boxes are the last axis, and
    there are neither a threshold of scores nor numbers of boxes; before, a batch whose scores are all below the
    threshold gives its best box.
    """
    is_last = not operator.has("score_threshold")
    boxes, scores = (g.cast(operator.input(key), g.dtype(operator.input(key))) for key in ("boxes", "scores"))
    if is_last:
        boxes, scores = (g.node("Transpose", value, perm=[0, 2, 1]) for value in (boxes, scores))
    most = int(operator.number("max_boxes"))
    if not 0 < most <= _MAX_BOXES:
        operator.refuse(f"1 to {_MAX_BOXES} for max_boxes", most)
    ranks = g.cast(scores, _FLOAT)
    best = g.node("ReduceMax", ranks, g.ints([2]), keepdims=0)
    kept = _survivors(operator, g, g.cast(boxes, _FLOAT), ranks, best, most)
    places = _best(g, kept, most)
    is_chosen = g.node("Greater", places[0], g.scalar(_LOWEST, _FLOAT))
    indices = places[1]
    if not is_last:
        nothing = g.node("Not", g.node("Slice", is_chosen, g.ints([0]), g.ints([1]), g.ints([1])))
        first = g.node("And", nothing, g.constant(g.numbers(most)[None] == 0))
        alone = g.node("ArgMax", best, axis=1, keepdims=1)
        indices = g.node("Where", first, alone, indices)
        is_chosen = g.node("Or", is_chosen, first)
    inside = g.node("Where", is_chosen, indices, g.scalar(0, _INT64))
    rows = []
    for value in (boxes, scores):
        found = g.node("GatherND", value, g.node("Unsqueeze", inside, g.ints([-1])), batch_dims=1)
        chosen = g.node("Unsqueeze", is_chosen, g.ints([-1]))
        rows.append(g.node("Where", chosen, found, g.scalar(0, value)))
    if is_last:
        rows = [g.node("Transpose", value, perm=[0, 2, 1]) for value in rows]
    numbers = g.node("Where", is_chosen, indices, g.scalar(-1, _INT64))
    count = g.node("ReduceSum", g.cast(is_chosen, _INT64), g.ints([1]), keepdims=0)
    for variable, value in zip(operator.outputs, [*rows, numbers, count], strict=False):
        g.bind(variable, value)


def _survivors(operator: Operator, g: ModelComponentContainer, boxes: Any, scores: Any, best: Any, most: int) -> Any:
    """Return the scores of boxes that are left, [batch, boxes], and -inf for the others.

    ONNX keeps scores above the threshold, MIL those that reach it.
    """
    none = g.scalar(-np.inf, _FLOAT)
    by_class = g.node("Unsqueeze", best, g.ints([1]))
    if operator.number("per_class_suppression", False):
        own = g.node("ArgMax", scores, axis=2, keepdims=1)
        classes = g.node("Squeeze", g.node("Shape", scores, start=2, end=3), g.ints([0]))
        every = g.node("Range", g.scalar(0, _INT64), classes, g.scalar(1, _INT64))
        by_class = g.node("Transpose", g.node("Where", g.node("Equal", own, every), scores, none), perm=[0, 2, 1])
    threshold = _LOWEST
    if operator.has("score_threshold"):
        given = np.float32(operator.number("score_threshold"))
        threshold = max(_LOWEST, float(np.nextafter(given, np.float32(-np.inf))))
    triples = g.node(
        "NonMaxSuppression",
        boxes,
        by_class,
        g.scalar(most, _INT64),
        g.scalar(float(operator.number("iou_threshold")), _FLOAT),
        g.scalar(threshold, _FLOAT),
        center_point_box=1,
    )
    pairs = g.node("Gather", triples, g.ints([0, 2]), axis=1)
    empty = g.node("Expand", none, g.shape(best))
    return g.node("ScatterND", empty, pairs, g.node("GatherND", best, pairs))


def _best(g: ModelComponentContainer, kept: Any, most: int) -> Any:
    """Return the `most` best scores and their places; there may be fewer boxes than these."""
    batch = g.node("Shape", kept, start=0, end=1)
    more = g.node("Expand", g.scalar(-np.inf, _FLOAT), g.node("Concat", batch, g.ints([most]), axis=0))
    values, indices = g.node("TopK", g.node("Concat", kept, more, axis=1), g.ints([most]), outputs=2, axis=1)
    return values, g.set_dtype(indices, _INT64)
