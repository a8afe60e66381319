"""New values for tensors of formats that milblob changes by name: the array for each tensor, and its checks."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arguments import array_of, names_in
from ..closeness import unknown
from ..dtypes import as_dtype
from ..errors import MilblobError
from ..formats.params import is_lazy
from ..model.lazy import LazyTensor
from ..values.cast import CastCounts, cast_array, is_castable
from ..wording import escape
from .pairs import CAST, MATCH, How
from .problems import ERRORS, Problems


class GivenValues:
    """Values that are given to a tensor; cast when they are read, not before."""

    def __init__(self, name: str, tensor: LazyTensor, given: Any, can_cast: bool, overflow: str) -> None:
        """Check that dtype and shape fit, and look at no element. Raises: TypeError, ValueError: they do not."""
        self._name, self._overflow, self._wanted = name, overflow, tensor.mil_dtype
        self._source: Any = given if is_lazy(given) else array_of(given)
        # dtype, shape: of the tensor; counts: what happened in a cast, once `read` was called
        self.dtype, self.shape, self.counts = tensor.dtype, tensor.shape, CastCounts()
        # called when they are read the first time; what it raises ends the change, and nothing is written
        self.is_read: Callable[[], None] = lambda: None
        # DType of what was given
        self.given_dtype = (
            self._source.mil_dtype if hasattr(self._source, "mil_dtype") else as_dtype(self._source.dtype)
        )
        # uint3 and uint6, which NumPy lacks, are given as uint8; packing refuses values that do not fit.
        self.is_cast = self.given_dtype is not self._wanted and np.dtype(self._source.dtype) != tensor.dtype
        if self.is_cast and not (can_cast and is_castable(self.given_dtype, self._wanted)):
            wanted = f"{self._wanted}, or that can become it" if can_cast else self._wanted
            error = TypeError(f"{name}: expected elements of {wanted}, got {self.given_dtype}")
            if not can_cast and is_castable(self.given_dtype, self._wanted):
                raise NeedsCastError(f"{self.given_dtype} arrays for {self._wanted} weights", error)
            raise error
        if tuple(self._source.shape) != self.shape:
            raise ValueError(f"{name}: expected shape {self.shape}, got {tuple(self._source.shape)}")

    def read(self) -> np.ndarray[Any, Any]:
        """Return the values, of `dtype`.

        Raises: OverflowError: a number that is too large, unless the cast may change it.
        """
        array = self._source.read() if is_lazy(self._source) else array_of(self._source)
        done, self.is_read = self.is_read, lambda: None  # a file that may not change at all is compared first
        done()
        if not self.is_cast:
            return array
        try:
            values, self.counts = cast_array(array, self._wanted, overflow=self._overflow)
        except MilblobError:
            raise
        except (OverflowError, TypeError, ValueError) as error:
            kind = next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))
            raise kind(f"{self._name}: {error}") from None
        return values if values.dtype == self.dtype else values.astype(self.dtype)


class NeedsCastError(Exception):
    """Values that a cast would make fit."""

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(what)
        # what: the values and the weights, in the plural; error: the message for one of them
        self.what, self.error = what, error


class GivenTensor(NamedTuple):
    """A tensor that gets new values: its name, the name of the array, and the values."""

    name: str
    given: str
    values: GivenValues


def pair_by_name(
    given: Mapping[str, Any], find: Callable[[str], tuple[str, LazyTensor]], where: str, how: How
) -> list[GivenTensor]:
    """Find the tensor of every array, and check all of them, casts included, before anything is written.

    `given`: arrays by name. `find`: returns the name and the tensor that a name means; KeyError: none; other errors: it
    cannot change. `how`: which array goes where, and how it is converted.
    Raises: KeyError, TypeError, ValueError, OverflowError: what does not fit; of several problems one ValueError.
    """
    problems = Problems()
    for lacking in [name for name in how.mapping if name not in given]:
        problems.add(KeyError(f"mapping: {unknown('array', lacking, given)}"))
    targets: dict[str, GivenTensor] = {}
    pairs = [(name, new) for name in given for new in names_in(how.mapping.get(name, name))]
    for old, wanted in pairs:
        if not how.is_selected(wanted):
            continue
        try:
            new, tensor = find(wanted)
            if new in targets:
                if targets[new].given == old:
                    continue
                raise ValueError(escape(f"{new}: expected one array for it, got {targets[new].given} and {old}"))
            values = GivenValues(new, tensor, given[old], how.can_cast, how.overflow)
            targets[new] = GivenTensor(new, old, values)
            if values.is_cast:
                values.read()  # a number that does not fit is refused before anything is written
        except NeedsCastError as found:
            problems.add_kind(found.what, CAST, old, found.error)
        except KeyError as error:
            problems.add_kind(f"arrays with names that {where} lacks", MATCH, old, error)
        except ERRORS as error:
            problems.add(error)
    problems.raise_any()
    if not targets:
        raise ValueError("weights: expected at least one, got none")
    return list(targets.values())
