"""New values for parameters of an archive, by the names and with the options of `milblob.refit`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..arguments import Names, array_of, names_in
from ..dtypes import as_dtype
from ..errors import MilblobError
from ..formats.params import Parameter, is_lazy
from ..progress import Counter, Progress
from ..refitting.pairs import CAST, MATCH
from ..refitting.problems import ERRORS, Problems
from ..refitting.report import RefitReport, Refitted
from ..rewrite.destination import is_in_place
from ..values.cast import CastCounts, cast_array, is_castable
from .arrays import named_parameters
from .edit import require_parameters
from .library import Library, Module
from .library import open as open_library


class _Values:
    """Values that are given to a parameter; cast when they are read, not before.

    Attributes:
        dtype, shape: of the parameter.
        is_read: called when they are read the first time; what it raises ends the change, and nothing is written.
        given_dtype: DType of what was given.
        counts: what happened in a cast, once `read` was called.
    """

    def __init__(self, name: str, parameter: Parameter, given: Any, can_cast: bool, overflow: str) -> None:
        """Check that dtype and shape fit, and look at no element.

        Raises:
            TypeError, ValueError: they do not.
        """
        self._name, self._overflow, self._wanted = name, overflow, parameter.mil_dtype
        self._source: Any = given if is_lazy(given) else array_of(given)
        self.dtype, self.shape, self.counts = parameter.dtype, parameter.shape, CastCounts()
        self.is_read: Callable[[], None] = lambda: None
        self.given_dtype = (
            self._source.mil_dtype if hasattr(self._source, "mil_dtype") else as_dtype(self._source.dtype)
        )
        self.is_cast = self.given_dtype is not self._wanted
        if self.is_cast and not (can_cast and is_castable(self.given_dtype, self._wanted)):
            wanted = f"{self._wanted}, or that can become it" if can_cast else self._wanted
            error = TypeError(f"{name}: expected elements of {wanted}, got {self.given_dtype}")
            if not can_cast and is_castable(self.given_dtype, self._wanted):
                raise _NeedsCastError(f"{self.given_dtype} arrays for {self._wanted} weights", error)
            raise error
        if tuple(self._source.shape) != self.shape:
            raise ValueError(f"{name}: expected shape {self.shape}, got {tuple(self._source.shape)}")

    def read(self) -> np.ndarray[Any, Any]:
        """Return the values, of `dtype`.

        Raises:
            OverflowError: a number that is too large, unless the cast may change it.
        """
        array = self._source.read() if is_lazy(self._source) else self._source
        done, self.is_read = self.is_read, lambda: None  # a file that may not change at all is compared first
        done()
        if not self.is_cast:
            return np.asarray(array)
        try:
            values, self.counts = cast_array(array, self._wanted, overflow=self._overflow)
        except MilblobError:
            raise
        except (OverflowError, TypeError, ValueError) as error:
            kind = next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))
            raise kind(f"{self._name}: {error}") from None
        return values if values.dtype == self.dtype else values.astype(self.dtype)


class _NeedsCastError(Exception):
    """Values that a cast would make fit.

    Attributes:
        what: the values and the parameters, in the plural.
        error: that says so of one of them.
    """

    def __init__(self, what: str, error: Exception) -> None:
        super().__init__(what)
        self.what, self.error = what, error


class _Target:
    """A parameter that gets new values."""

    def __init__(self, given: str, name: str, module: Module, key: str, values: _Values) -> None:
        self.given, self.name, self.module, self.key, self.values = given, name, module, key, values


def refit(
    path: str,
    given: Mapping[str, Any],
    *,
    mapping: Mapping[str, Names],
    cast: bool,
    overflow: str,
    unshare: bool,
    select: Callable[[str], bool] | None,
    output: str | None,
    force: bool,
    dry_run: bool,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> RefitReport:
    """Give parameters of an archive new values: all of them or none. Arguments and result as of `milblob.refit`.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: what does not fit; of several problems one ValueError that lists
            them. UnsupportedError: an archive without parameters of its own (AOT, operator style). Nothing is written.
        Otherwise as `Library.with_params`.
    """
    if unshare:
        raise ValueError("unshare: expected none for an archive of TVM, got True")
    with open_library(path, max_nbytes=max_nbytes) as library:
        targets = _pair(library, given, mapping, cast, overflow, select)
        in_place = output is None or is_in_place([path], output)
        target = path if output is None else output
        rows = [_row(row, library, target, in_place) for row in targets]
        report = RefitReport(path, target, rows, not dry_run).without(given)
        if not dry_run:
            counter = Counter(progress, (row.module.params[row.key] for row in targets))
            arrays: dict[str, dict[str, _Values]] = {}
            for row in targets:
                arrays.setdefault(row.module.name, {})[row.key] = row.values
                parameter = row.module.params[row.key]
                row.values.is_read = partial(counter.add_tensor, row.name, parameter)
            library.with_params(arrays, target, force=force)
        return report


def _row(target: _Target, library: Library, output: str, in_place: bool) -> Refitted:
    parameter, values = target.module.params[target.key], target.values
    is_patched = in_place and library.kind == "directory"
    return Refitted(
        target.name, target.given, parameter.mil_dtype, values.shape, parameter.stored_nbytes, values.given_dtype,
        values.counts, output, is_patched,
    )  # fmt: skip


def _pair(
    library: Library,
    given: Mapping[str, Any],
    mapping: Mapping[str, Names],
    can_cast: bool,
    overflow: str,
    select: Callable[[str], bool] | None,
) -> list[_Target]:
    """Find the parameter of every array, and check all of them, casts included, before anything is written."""
    known = named_parameters(library)
    if not known:
        for module in library.modules.values():
            require_parameters(library, module)
    problems = Problems()
    for old in mapping:
        if old not in given:
            problems.add(KeyError(f"mapping: expected names of the weights that are given, got {old!r}"))
    targets: dict[str, _Target] = {}
    pairs = [(old, new) for old in given for new in names_in(mapping.get(old, old))]
    for old, new in pairs:
        if select is not None and not select(new):
            continue
        try:
            if new not in known:
                _refuse(library, new)
            if new in targets:
                if targets[new].given == old:
                    continue
                raise ValueError(f"{new}: expected one array for it, got {targets[new].given} and {old}")
            module, key = known[new]
            require_parameters(library, module)
            values = _Values(new, module.params[key], given[old], can_cast, overflow)
            targets[new] = _Target(old, new, module, key, values)
            if values.is_cast:
                values.read()  # what does not fit is said before anything is written
        except _NeedsCastError as found:
            problems.add_kind(found.what, CAST, old, found.error)
        except KeyError as error:
            problems.add_kind(f"arrays with names that {library.path} lacks", MATCH, old, error)
        except ERRORS as error:
            problems.add(error)
    problems.raise_any()
    if not targets:
        raise ValueError("weights: expected at least one, got none")
    return list(targets.values())


def _refuse(library: Library, name: str) -> None:
    module = library.modules.get(name.partition("/")[0])
    if module is not None and len(library.modules) > 1:
        require_parameters(library, module)
    raise KeyError(f"weight: expected a name of a parameter in {library.path}, got {name!r:.100}")
