"""Weights that a rewriting compresses, as data: what is stored for each, and what says which they are."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple, Protocol

from ..model.model import Model
from ..model.tensor import Tensor
from ..program.compress_edits import Links
from ..values.dense import Dense
from .decompress import Decompression


class StoredPart(NamedTuple):
    """A part of a compressed weight.

    Attributes:
        value: its serialized TensorValue if it is stored in the Program.
        open: else, returns its stored bytes, or what computes them.
    """

    key: str
    dtype: Any
    shape: tuple[int, ...]
    value: bytes | None
    open: Callable[[], Dense] | None

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return int(self.dtype.nbytes(prod(self.shape)))


class CompressedWeight(NamedTuple):
    """A weight of the model that is compressed.

    Attributes:
        number: equal for weights that share their parts.
        op: type of the operation that computes it.
        links: the parts that are not stored: which operations compute them.
    """

    tensor: Tensor
    number: int
    op: str
    parts: tuple[StoredPart, ...]
    links: Links

    @property
    def nbytes_after(self) -> int:
        """Bytes of all parts as stored."""
        return sum(part.nbytes for part in self.parts)


class ModelCompression(Protocol):
    """What is compressed in a model."""

    @property
    def weights(self) -> Mapping[Any, CompressedWeight]:
        """By constant, or by the chain of what was compressed before; known once it is prepared."""

    @property
    def decompressions(self) -> Mapping[int, Decompression]:
        """By id of the Programs with such chains: which of their operations go."""

    def prepare(self, model: Model) -> None:
        """Find the weights, and what is stored for each."""

    def of_compressed(self) -> list[CompressedWeight]:
        """Return the weights that were compressed before, in another way."""
