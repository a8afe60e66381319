"""The weights of a model that a search explains: which share a blob, which operations read them, which are constant."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..analysis.operations import WEIGHT_COUNT
from ..model.lazy import LazyTensor
from ..model.sharing import by_blob
from ..program.view import Consumer
from .checkpoint import bits_of, is_numeric
from .derivations.layouts import Values

_CONVOLUTIONS = ("conv", "conv_transpose")


class Convolution(NamedTuple):
    """An operation with a weight into which something may have been folded."""

    weight: str  # names of its weights; None if it has no bias
    bias: str | None
    groups: int  # of a conv_transpose; 0 for a conv
    consumer: Consumer  # where the weight is read


class ModelWeights(dict[str, LazyTensor]):
    """The weights of a model by name, and its small constants; compressed weights in their dense form."""

    def __init__(self, tensors: Mapping[str, LazyTensor]) -> None:
        super().__init__(tensors)
        # the weights of each blob, by the first of them. first_of: the first one, by each of them.
        self.members = by_blob(self)
        self.first_of = {name: first for first, members in self.members.items() for name in members}
        self._flat: dict[str, bool] = {}

    @cached_property
    def readers(self) -> dict[str, list[Consumer]]:
        """The operations that read each weight, without constexpr operations."""
        return {
            name: [one for one in getattr(tensor, "consumers", ()) if not one.type.startswith("constexpr_")]
            for name, tensor in self.items()
        }

    @cached_property
    def _parts(self) -> dict[Any, dict[str, str]]:
        found: dict[Any, dict[str, str]] = defaultdict(dict)
        for name, consumers in self.readers.items():
            for consumer in consumers:
                found[consumer.reader][consumer.parameter] = name
        return found

    def values_of(self, name: str) -> Values:
        """Return the present values of a weight."""
        return np.asarray(self[name].read())

    def of_blobs(self, firsts: Iterable[str]) -> list[str]:
        """Return all weights of some blobs, given by their first weights."""
        return [name for first in firsts for name in self.members[first]]

    def parts(self, consumer: Consumer) -> Mapping[str, str]:
        """Return the weights of an operation that reads a weight: parameter -> weight."""
        return self._parts[consumer.reader]

    def convolution(self, name: str) -> Convolution | None:
        """Return the first convolution whose weight this is."""
        weight = self[name]
        for consumer in self.readers[name]:
            if consumer.type not in _CONVOLUTIONS or consumer.parameter != "weight" or weight.ndim < 3:
                continue
            bias = self.parts(consumer).get("bias")
            if consumer.type == "conv":
                return Convolution(name, bias, 0, consumer)
            groups = 1 if bias is None else max(self[bias].size // weight.shape[1], 1)
            return None if weight.shape[0] % groups else Convolution(name, bias, groups, consumer)
        return None

    def is_flat(self, name: str) -> bool:
        """Whether all elements of a weight are equal, so that its values do not identify its source."""
        if name not in self._flat:
            bits = bits_of(self.values_of(name)).reshape(-1)
            self._flat[name] = bool(bits.size < 2 or ((bits[:64] == bits[0]).all() and (bits == bits[0]).all()))
        return self._flat[name]


def is_compressed(tensor: LazyTensor) -> bool:
    """Whether the values are decoded from compressed parts."""
    return getattr(tensor, "chain", None) is not None


def is_weight(tensor: LazyTensor) -> bool:
    """Whether a constant is one that a listing shows by default; each array of a file is."""
    return is_compressed(tensor) or getattr(tensor, "is_blob", True) or tensor.size >= WEIGHT_COUNT


def is_candidate(tensor: LazyTensor) -> bool:
    """Whether a constant is a weight, or another number that may follow from a checkpoint."""
    if not is_compressed(tensor) and not is_numeric(tensor):
        return False
    return is_weight(tensor) or tensor.mil_dtype.is_float
