"""Which operations read a weight, and which weights an operation reads."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from ..model.tensor import Tensor

_CONVOLUTIONS = ("conv", "conv_transpose")


class Reader(NamedTuple):
    """Where a weight is read: the operation's type, its first output, and the parameter."""

    op: str
    name: str
    parameter: str

    @property
    def words(self) -> str:
        """The place as `refit` takes it after WEIGHT@."""
        return f"{self.name}.{self.parameter}"


class Convolution(NamedTuple):
    """An operation with a weight into which something may have been folded.

    Attributes:
        weight, bias: names of its weights; None if it has no bias.
        groups: of a conv_transpose; 0 for a conv.
        reader: where the weight is read.
    """

    weight: str
    bias: str | None
    groups: int
    reader: Reader


class Readers:
    """The readers of all weights of a model.

    Attributes:
        of: weight -> readers, constexpr operations left out.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self.of = {name: _readers(tensor) for name, tensor in weights.items()}
        self._parts: dict[str, dict[str, str]] = defaultdict(dict)
        for name, readers in self.of.items():
            for reader in readers:
                self._parts[self._key(name, reader)][reader.parameter] = name

    def _key(self, name: str, reader: Reader) -> str:
        return f"{self._weights[name].function}/{reader.name}"

    def parts(self, name: str, reader: Reader) -> Mapping[str, str]:
        """Return the weights of an operation that reads a weight: parameter -> weight."""
        return self._parts[self._key(name, reader)]

    def convolution(self, name: str) -> Convolution | None:
        """Return the first convolution whose weight this is."""
        weight = self._weights[name]
        for reader in self.of[name]:
            if reader.op not in _CONVOLUTIONS or reader.parameter != "weight" or weight.ndim < 3:
                continue
            bias = self.parts(name, reader).get("bias")
            if reader.op == "conv":
                return Convolution(name, bias, 0, reader)
            groups = 1 if bias is None else max(self._weights[bias].size // weight.shape[1], 1)
            return None if weight.shape[0] % groups else Convolution(name, bias, groups, reader)
        return None


def _readers(tensor: Tensor) -> list[Reader]:
    return [Reader(use.op, use.name, use.parameter) for use in tensor.consumers if not use.op.startswith("constexpr_")]
