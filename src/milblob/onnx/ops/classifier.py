"""Classifiers: the most probable label, and the probabilities."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from ...dtypes import DType
from ..emit import ModelComponentContainer
from ..registry import builtin
from ..topology import Operator
from ..types import tensor_type

_DOMAIN = "ai.onnx.ml"


@builtin("classify", onnx="Reshape, ArgMax, Gather; ZipMap with zipmap=True")
def _classify(operator: Operator, g: ModelComponentContainer) -> None:
    """The label is a tensor of one element, of texts or int64; probabilities are the tensor that they were before.

    The types of both outputs become those: MIL has a scalar and a dictionary.
    """
    probabilities = operator.input("probabilities")
    labels = [element for label in operator.constant("classes") for element in np.asarray(label).reshape(-1).tolist()]
    are_texts = all(isinstance(label, str) for label in labels)
    if not are_texts and not all(type(label) is int for label in labels):
        operator.refuse("classes that are all strings or all integers", "others")
    count = g.dimensions(probabilities)
    if not labels or (None not in count and prod(size or 0 for size in count) != len(labels)):
        operator.refuse(f"one label for each of the probabilities {list(count)}", f"{len(labels)} labels")
    table = g.constant(np.array(labels, object if are_texts else np.int64))
    flat = g.node("Reshape", probabilities, g.ints([-1]))
    best = g.node("ArgMax", flat, axis=0, keepdims=1)
    g.classes = [label if are_texts else int(label) for label in labels]
    label, *rest = operator.outputs
    declared = tensor_type(probabilities.type)
    kind = DType.STRING if are_texts else DType.INT64
    label.type = replace(declared, dtype=kind, shape=(1,), rank=1, variadic=())
    g.bind(label, g.node("Gather", table, best, axis=0))
    for variable in rest[:1]:
        variable.type = declared
        if not g.zipmap:
            g.bind(variable, probabilities)
            continue
        attribute: dict[str, Any] = {"classlabels_strings" if are_texts else "classlabels_int64s": g.classes}
        row = g.node("Reshape", g.cast(probabilities, ir.DataType.FLOAT), g.ints([1, -1]))
        found = g.node("ZipMap", row, domain=_DOMAIN, **attribute)
        g.maps[g.bind(variable, found).name or ""] = ir.DataType.STRING if are_texts else ir.DataType.INT64
