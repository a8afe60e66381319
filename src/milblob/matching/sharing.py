"""Which weights of a model are stored as the same records."""

import os
from collections.abc import Mapping
from typing import Any

from ..model.lazy import LazyTensor
from ..model.tensor import Tensor


def by_blob(tensors: Mapping[str, LazyTensor]) -> dict[str, list[str]]:
    """Put weights together that are stored as the same records, such as those of two functions, by the first's name."""
    found: dict[Any, list[str]] = {}
    real: dict[str | None, str | None] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            found[name] = [name]
            continue
        stored = list(tensor.parts.values()) if tensor.chain is not None else [tensor]
        places = []
        for part in stored:
            if part.is_blob:
                path = part.file
                if path not in real:
                    real[path] = path if path is None else os.path.realpath(path)
                places.append((real[path], part.offset))
        kind = (tensor.op, tensor.mil_dtype, tensor.shape, tuple(places))
        found.setdefault(kind if len(places) == len(stored) > 0 else name, []).append(name)
    return {names[0]: names for names in found.values()}
