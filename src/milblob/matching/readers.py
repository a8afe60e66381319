"""Which operations read a weight, and which weights an operation reads."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from ..model.tensor import Tensor
from ..program.view import Block, Consumer, Operation

_CONVOLUTIONS = ("conv", "conv_transpose")


class Convolution(NamedTuple):
    """An operation with a weight into which something may have been folded.

    Attributes:
        weight, bias: names of its weights; None if it has no bias.
        groups: of a conv_transpose; 0 for a conv.
        consumer: where the weight is read.
    """

    weight: str
    bias: str | None
    groups: int
    consumer: Consumer


class Readers:
    """The readers of all weights of a model.

    Attributes:
        of: weight -> who reads it, constexpr operations left out.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self.of = {
            name: [consumer for consumer in tensor.consumers if not consumer.type.startswith("constexpr_")]
            for name, tensor in weights.items()
        }
        self._parts: dict[Operation | Block, dict[str, str]] = defaultdict(dict)
        for name, consumers in self.of.items():
            for consumer in consumers:
                self._parts[consumer.reader][consumer.parameter] = name

    def parts(self, consumer: Consumer) -> Mapping[str, str]:
        """Return the weights of an operation that reads a weight: parameter -> weight."""
        return self._parts[consumer.reader]

    def convolution(self, name: str) -> Convolution | None:
        """Return the first convolution whose weight this is."""
        weight = self._weights[name]
        for consumer in self.of[name]:
            if consumer.type not in _CONVOLUTIONS or consumer.parameter != "weight" or weight.ndim < 3:
                continue
            bias = self.parts(consumer).get("bias")
            if consumer.type == "conv":
                return Convolution(name, bias, 0, consumer)
            groups = 1 if bias is None else max(self._weights[bias].size // weight.shape[1], 1)
            return None if weight.shape[0] % groups else Convolution(name, bias, groups, consumer)
        return None
