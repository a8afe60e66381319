"""New values for tensors of formats that milblob changes by name: the array for each tensor, and its checks."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arguments import array_of, names_in
from ..closeness import unknown
from ..dtypes import as_dtype
from ..formats.params import is_lazy
from ..model.lazy import LazyTensor
from ..values.cast import CastCounts, cast_array, elements_named, is_castable
from ..wording import escape
from .pairs import MATCH, How, add_dtype
from .problems import ERRORS, Problems


class GivenTensor:
    """A tensor that gets new values, which are cast when they are read, not before.

    `name`: of the tensor. `given`: name of the array. `source`: the array itself.
    """

    def __init__(self, name: str, tensor: LazyTensor, given: str, source: Any, overflow: str) -> None:
        self.name, self.given, self._overflow, self._wanted = name, given, overflow, tensor.mil_dtype
        self._source: Any = source if is_lazy(source) else array_of(source)
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

    def is_fitting(self, how: How, problems: Problems) -> bool:
        """Whether dtype and shape fit, without a look at any element; else add the problem."""
        if self.is_cast and not (how.can_cast and is_castable(self.given_dtype, self._wanted)):
            add_dtype(problems, self.name, self._wanted, self.given, self.given_dtype, how.can_cast)
            return False
        if tuple(self._source.shape) != self.shape:
            problems.add(ValueError(f"{self.name}: expected shape {self.shape}, got {tuple(self._source.shape)}"))
            return False
        return True

    def read(self) -> np.ndarray[Any, Any]:
        """Return the values, of `dtype`.

        Raises: OverflowError: a number that is too large, unless the cast may change it.
        """
        array = self._source.read() if is_lazy(self._source) else array_of(self._source)
        done, self.is_read = self.is_read, lambda: None  # a file that may not change at all is compared first
        done()
        if not self.is_cast:
            return array
        with elements_named(self.name):
            values, self.counts = cast_array(array, self._wanted, overflow=self._overflow)
        return values if values.dtype == self.dtype else values.astype(self.dtype)


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
            target = GivenTensor(new, tensor, old, given[old], how.overflow)
            if target.is_fitting(how, problems):
                targets[new] = target
                if target.is_cast:
                    target.read()  # a number that does not fit is refused before anything is written
        except KeyError as error:
            problems.add_kind(f"arrays with names that {where} lacks", MATCH, old, error)
        except ERRORS as error:
            problems.add(error)
    problems.raise_any()
    if not targets:
        raise ValueError("weights: expected at least one, got none")
    return list(targets.values())
