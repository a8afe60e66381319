"""New values for parameters of an archive, by the names and with the options of `milblob.refit`."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..closeness import unknown
from ..formats.params import Parameter
from ..progress import ProgressCounter
from ..refitting.by_name import GivenTensor, pair_by_name
from ..refitting.pairs import How
from ..refitting.refit_report import RefitReport, Refitted
from ..rewrite.destination import is_in_place
from .arrays import named_parameters
from .edit import require_parameters
from .library import Library
from .library import open as open_library


def refit(
    path: str,
    given: Mapping[str, Any],
    how: How,
    *,
    destination: str | None,
    force: bool,
    dry_run: bool,
    max_nbytes: int | None = None,
) -> RefitReport:
    """Give parameters of an archive new values: all of them or none, as `milblob.refit` does.

    Raises: KeyError, TypeError, ValueError, OverflowError: an array that does not fit; of several problems one
    ValueError that lists them. UnsupportedError: an archive without parameters of its own (AOT, operator style).
    Nothing is written. Otherwise as `Library.with_params`.
    """
    if how.unshare:
        raise ValueError("unshare: expected none for an archive of TVM, got True")
    with open_library(path, max_nbytes=max_nbytes) as library:
        known = named_parameters(library)
        if not known:
            for module in library.modules.values():
                require_parameters(library, module)

        def find(name: str) -> tuple[str, Parameter]:
            if name not in known:
                _refuse(library, name)
            module, key = known[name]
            require_parameters(library, module)
            return name, module.params[key]

        targets = pair_by_name(given, find, library.path or "", how)
        in_place = destination is None or is_in_place([path], destination)
        target = path if destination is None else destination
        rows = [_row(row, find(row.name)[1], library, target, in_place) for row in targets]
        report = RefitReport(path, target, rows, not dry_run).without(given)
        if not dry_run:
            counter = ProgressCounter(how.progress, (find(row.name)[1] for row in targets))
            arrays: dict[str, dict[str, GivenTensor]] = {}
            for row in targets:
                module, key = known[row.name]
                arrays.setdefault(module.name, {})[key] = row
                row.is_read = partial(counter.add_tensor, row.name, module.params[key])
            library.with_params(arrays, target, force=force)
        return report


def _row(target: GivenTensor, parameter: Parameter, library: Library, output: str, in_place: bool) -> Refitted:
    is_patched = in_place and library.kind == "directory"
    return Refitted(
        target.name, target.given, parameter.mil_dtype, target.shape, parameter.stored_nbytes, target.given_dtype,
        target.counts, output, is_patched,
    )  # fmt: skip


def _refuse(library: Library, name: str) -> None:
    module = library.modules.get(name.partition("/")[0])
    if module is not None and len(library.modules) > 1:
        require_parameters(library, module)
    raise KeyError(unknown("parameter", name, named_parameters(library), library.path))
