"""The arrays that the weights of a model may follow from, and the work that one search may do."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..progress import ProgressCounter
from ..values.cast import cast_array
from .derivations.derivation import Derivation
from .derivations.layouts import Values
from .derivations.norms import Norm, Vectors
from .derivations.rounding import casts_to
from .scales import Scales
from .siblings import Siblings

_MIN_WORK, _WORK_PER_ELEMENT = 20_000_000_000, 400
"""The work of a search, after which it ends. Trained weights take a small part of it. A hostile file has many pairs,
layouts, rows and samples; those beyond the limit are skipped."""

_PIECE_COUNT = 1 << 20


class Work:
    """The work that a search may do, counted and not measured, so that the result is the same on any machine.

    `tensors`: arrays and weights; each of their elements allows more work. `counter`: adds up the work done, for
    `progress`.
    """

    def __init__(self, tensors: Iterable[LazyTensor], counter: ProgressCounter) -> None:
        self.counter = counter
        self.left = _MIN_WORK + _WORK_PER_ELEMENT * sum(tensor.size for tensor in tensors)  # about a nanosecond each

    def may(self, amount: int) -> bool:
        """Whether enough is left for some work; if so, spend it."""
        self.left -= amount
        return self.left >= 0

    def done(self, name: str, tensor: LazyTensor) -> None:
        """Count an array that was compared with all weights, or a weight for which all was tried."""
        self.counter.add_tensor(name, tensor)


class Checkpoint:
    """The arrays of a checkpoint. `epsilon`: of batch norms, to try before the usual ones."""

    def __init__(self, arrays: Mapping[str, LazyTensor], work: Work, epsilon: float | None = None) -> None:
        self.arrays = arrays  # all of them. floats: those of floating-point numbers.
        self.floats = {name: tensor for name, tensor in self.arrays.items() if tensor.mil_dtype.is_float}
        self.work, self.may, self.epsilon = work, work.may, epsilon
        # which of them belong together
        self.siblings = Siblings({name: tensor.shape for name, tensor in self.arrays.items()})
        self._scales: dict[tuple[int, bool], Scales] = {}
        self._vectors: dict[tuple[str | None, ...], Vectors] = {}
        self._random = np.random.default_rng()  # no author of a file can make rows look equal
        self._factors = np.zeros(0, np.uint64)

    def read(self, name: str) -> Values:
        """Return an array."""
        return np.asarray(self.arrays[name].read())

    def cast(self, name: str, dtype: DType) -> Values:
        """Return an array in another dtype; numbers that are too large become infinite."""
        return cast_array(np.ascontiguousarray(self.read(name)), dtype, overflow="inf")[0]

    def of_size(self, count: int) -> list[str]:
        """Return the arrays of floating-point numbers with some number of elements."""
        return self._of_size.get(count, [])

    @cached_property
    def _of_size(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for name, tensor in self.floats.items():
            found[tensor.size].append(name)
        return found

    def fits(self, weight: LazyTensor, derivation: Derivation) -> bool:
        """Whether a derivation gives the present values of a weight to the bit."""
        if not self.may(100_000 + 8 * weight.size):
            return False
        return casts_to(derivation.compute(self.read), np.asarray(weight.read()), weight.mil_dtype)

    def vectors(self, norm: Norm) -> Vectors:
        """Return the arrays of a norm; they are read once."""
        key = (norm.gamma, norm.beta, norm.mean, norm.variance, norm.dtype)
        if key not in self._vectors:
            self._vectors[key] = norm.vectors(self.read)
        return self._vectors[key]

    def scales(self, count: int, with_vectors: bool = True) -> Scales | None:
        """Return the scales that norms, and vectors too, are for a number of channels; None for none."""
        key = count, with_vectors
        if key not in self._scales:
            norms = [*self.siblings.norms.get(count, ()), *(self.siblings.scales(count) if with_vectors else ())]
            if not norms or not self.may(200_000 * len(norms)):
                return None
            self._scales[key] = Scales(norms, count, self.vectors, self.epsilon)
        return self._scales[key]

    def hash_rows(self, rows: Values) -> Values:
        """Return a hash of each of some rows, [rows, elements]: uint64 [rows]."""
        count = rows.shape[1]
        if count > len(self._factors):
            more = self._random.integers(1, 1 << 63, count - len(self._factors), dtype=np.uint64)
            self._factors = np.concatenate([self._factors, more * np.uint64(2) + np.uint64(1)])
        found = np.empty(len(rows), np.uint64)
        step = max(_PIECE_COUNT // max(count, 1), 1)
        for begin in range(0, len(rows), step):
            bits = bits_of(rows[begin : begin + step]).astype(np.uint64) + np.uint64(1)
            mixed = bits * self._factors[:count]
            found[begin : begin + step] = (mixed ^ (mixed >> np.uint64(29))).sum(axis=1, dtype=np.uint64)
        return found


def numeric(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return the tensors that have elements, and these are numbers."""
    return {name: tensor for name, tensor in tensors.items() if is_numeric(tensor)}


def is_numeric(tensor: LazyTensor) -> bool:
    """Whether a tensor has elements, and these are numbers."""
    return tensor.mil_dtype not in (DType.STRING, DType.BOOL) and tensor.size > 0


def bits_of(values: Values) -> Values:
    """Return the elements as unsigned integers with the same bits."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
