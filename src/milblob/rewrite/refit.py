"""milblob.refit: replace the values of a model's weights by arrays from a file or a mapping."""

import contextlib
import os
import stat
import typing
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any, NamedTuple

from .. import _codec
from ..arguments import Names, names_in, require, require_calls, require_flags
from ..dtypes import DType
from ..errors import MilblobError, UnsupportedError
from ..formats.archive import is_archive, kind
from ..model.editable import Assignment, EditableModel, assignment_of, require_fit, require_unshared
from ..model.model import Model
from ..model.replaceable import require_replaceable
from ..model.tensor import Tensor
from ..progress import Counter, Progress
from ..selection import Select, selector
from ..storage import paths, pending
from ..storage.output import NewDirectory, whole_file
from ..values.cast import CastCounts
from .destination import copy_entry, copy_tree

_MAX_PROBLEMS = 20


class Refitted(NamedTuple):
    """One weight that gets new values.

    Attributes:
        name: of the tensor in the model.
        given: name in the weights that were given; of an assignment, the same name.
        dtype, shape: of the tensor.
        nbytes: as stored.
        given_dtype: of the given values; differs from `dtype` if they were cast.
        counts: the cast's counts.
        file: path of the file that holds the values.
        in_place: whether the bytes are changed in place; otherwise the model file is rewritten.
    """

    name: str
    given: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    given_dtype: DType
    counts: CastCounts
    file: str
    in_place: bool


class RefitReport(NamedTuple):
    """What a refit changes, or changed.

    Attributes:
        source, output: paths; equal for a change in place.
        changes: one row per weight, in the order of the weights that were given.
        done: False for a dry run.
        unused: names in the weights that were given of which nothing was taken, as the mapping or `select` says.
        constant: with a base: weights that do not follow from it: equal elements, masks of attention, integers.
        left: with a base: weights that stay as they are, as `leave` says.
    """

    source: str
    output: str
    changes: list[Refitted]
    done: bool
    unused: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all changed weights, as stored."""
        return sum(change.nbytes for change in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        rows = []
        for c in self.changes:
            row = {"name": c.name, "given": c.given, "dtype": str(c.dtype), "shape": list(c.shape), "nbytes": c.nbytes}
            row |= {"file": c.file, "in_place": c.in_place, "cast_from": None}
            if c.given_dtype is not c.dtype:
                row |= {"cast_from": str(c.given_dtype), **c.counts._asdict()}
            rows.append(row)
        document = {"source": self.source, "output": self.output, "done": self.done, "nbytes": self.nbytes}
        names = {"unused": list(self.unused), "constant": list(self.constant), "left": list(self.left)}
        return {**document, "tensors": rows, **names}

    def without(self, given: Mapping[str, Any]) -> "RefitReport":
        """Note which of the weights that were given are not used."""
        used = {change.given for change in self.changes}
        return self._replace(unused=tuple(name for name in given if name not in used))


def refit(
    path: str | os.PathLike[str],
    weights: Any,
    *,
    base: Any = None,
    leave: Select = None,
    epsilon: float | None = None,
    mapping: Mapping[str, Names] | None = None,
    cast: bool = False,
    overflow: str = "error",
    select: Select = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> RefitReport:
    """Give weights of a model new values in place, all or none.

    Args:
        path: a .mlpackage, .mlmodelc, .mlmodel or weight file; or a Model Library Format archive of TVM, whose
            parameters are the weights (docs/tvm.md).
        weights: name -> array (a NumPy array, or a Tensor of another model), or the path of a .safetensors, .npz,
            .npy or .params file, of a directory of .npy files, or of an archive. Every one of them must fit; weights
            of the model that are not among them stay.
        base: as `weights`: the checkpoint that the model was converted from. How each weight follows from it is found
            out, checked against the present values, and done with `weights`, casts included (docs/fine-tuning.md).
        leave: with `base`: weights of the model that may stay as they are although nothing is known about them.
        epsilon: with `base`: of batch norms, where it is not one of the usual ones and milblob cannot tell.
        mapping: name in `weights` -> name in the model, where they differ; None leaves one out. A list of names gives
            several weights the same values, as all weights of one blob need them.
        cast: convert floats to floats (round to nearest even) and integers to integers (every element is checked).
        overflow: what a cast does with a finite number that is too large: "error", "inf" or "clamp".
        select: glob, several, or a function of a name in the model: the weights that change; others are left out.
        output: write a copy of the model with the new values there, whole or not at all; `path` stays as it is.
        force: replace what is at `output`: a file, or a model.
        dry_run: check everything, write nothing.
        progress: called as the new values of each weight are written to the journal or a new file (see `Progress`),
            before the model changes: what it raises leaves the model as it was. A dry run does not call it.
        max_nbytes: as for `open`, of the file or directory of weights.

    Returns:
        RefitReport.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, UnsupportedError: values that do not fit, as for assignment in
            mode "r+"; several problems give one ValueError that lists them. Nothing is written.
        BlockingIOError: another writer has the model. OSError: it cannot be written.
        FileExistsError: `output` exists, and `force` is False or it is something else.
    """
    source = os.fsdecode(os.fspath(path))
    require_flags(cast=cast, force=force, dry_run=dry_run)
    require_calls(progress=progress)
    require("epsilon", 0.0 if epsilon is None else epsilon, Real, "a number")
    require("mapping", {} if mapping is None else mapping, Mapping, "a mapping of names")
    how = _How(mapping or {}, cast, overflow, selector(select), progress)
    with contextlib.ExitStack() as stack:
        given = _arrays(weights, stack, max_nbytes)
        if base is not None:
            from .from_base import rebase

            is_left = selector(leave) if leave is not None else lambda _: False
            found = rebase(
                source, given, _arrays(base, stack, max_nbytes), how.mapping, how.is_selected, is_left, epsilon=epsilon
            )
            report = refit(
                source, found.arrays, mapping=found.mapping, cast=True, overflow=overflow, select=select,
                output=output, force=force, dry_run=dry_run, progress=progress,
            )  # fmt: skip
            return report._replace(unused=found.unused, constant=found.constant, left=found.left)
        for name, value in (("leave", leave), ("epsilon", epsilon)):
            if value is not None:
                raise ValueError(f"{name}: expected a base too, got none")
        if is_archive(source):
            report = kind().refit(
                source, given, mapping=how.mapping, cast=cast, overflow=overflow,
                select=how.is_selected, progress=progress,
                output=None if output is None else os.fsdecode(os.fspath(output)), force=force, dry_run=dry_run,
                max_nbytes=max_nbytes,
            )  # fmt: skip
            return typing.cast(RefitReport, report)
        if output is None and not dry_run:
            with EditableModel(source, constants=True, stored=True) as model:
                return _write(model, given, how, source).without(given)
        target = source if output is None else os.fsdecode(os.fspath(output))
        with Model(source, constants=True, stored=True) as unchanged:
            if output is not None:
                _require_output(unchanged, source, target, force)
            staged = _pair(unchanged, given, how, only_check=not dry_run)
            if dry_run:
                require_unshared(unchanged, staged)
                return _report(staged, source, target, False).without(given)
        with _copied(source, target, force) as copy:
            with EditableModel(copy, constants=True, stored=True, locked=True) as model:
                report = _write(model, given, how, source)
            moved = [change._replace(file=target + change.file[len(copy) :]) for change in report.changes]
        return report._replace(output=target, changes=moved).without(given)


class _How(NamedTuple):
    """The options of `refit` that decide which array goes where, and how it is converted."""

    mapping: Mapping[str, Names]
    can_cast: bool
    overflow: str
    is_selected: Callable[[str], bool]
    progress: Progress | None


def _write(model: EditableModel, given: Mapping[str, Any], how: _How, source: str) -> RefitReport:
    staged = _pair(model, given, how)
    for assignment in staged.values():
        model.stage(assignment)
    report = _report(staged, source, source, True)
    model.write_assigned(Counter(how.progress, (assignment.tensor for assignment in staged.values())))
    return report


def _report(staged: Mapping[str, Assignment], source: str, output: str, done: bool) -> RefitReport:
    anew = {id(a.mapping) for a in staged.values() if not a.is_in_place}
    changes = [
        Refitted(
            a.tensor.name, a.given, a.tensor.mil_dtype, a.values.shape, len(a.data), a.given_dtype, a.counts,
            str(a.mapping.name), id(a.mapping) not in anew,
        )
        for a in staged.values()
    ]  # fmt: skip
    return RefitReport(source, output, changes, done)


def _arrays(weights: Any, stack: contextlib.ExitStack, max_nbytes: int | None) -> Mapping[str, Any]:
    if isinstance(weights, str | os.PathLike):
        from ..formats.read import open_arrays

        return stack.enter_context(open_arrays(weights, max_nbytes=max_nbytes))
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights: expected a path or a mapping of arrays, got {type(weights).__name__}")
    return weights


def _pair(model: Model, given: Mapping[str, Any], how: _How, only_check: bool = False) -> dict[str, Assignment]:
    """Find the tensor for every array, and check all of them before reporting any problem.

    Raises:
        The only problem itself; ValueError with all of them if there are several, or if there is nothing to do.
    """
    problems: list[Exception] = [
        KeyError(f"mapping: expected names of the weights that are given, got {old!r}")
        for old in how.mapping
        if old not in given
    ]
    staged: dict[str, Assignment] = {}
    takers: dict[str, str] = {}
    pairs = [(old, new) for old in given for new in names_in(how.mapping.get(old, old))]
    for old, new in pairs:
        if not how.is_selected(new):
            continue
        try:
            tensor, values = _find(model, new), given[old]
            if tensor.name in takers:
                if takers[tensor.name] == old:
                    continue
                raise ValueError(f"{tensor.name}: expected one array for it, got {takers[tensor.name]} and {old}")
            takers[tensor.name] = old
            require_fit(tensor, values, how.can_cast)
            if not only_check:
                staged[tensor.name] = assignment_of(tensor, values, old, how.can_cast, how.overflow)
        except (KeyError, TypeError, ValueError, OverflowError, MilblobError) as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        words = [str(error.args[0]) if isinstance(error, KeyError) else str(error) for error in problems]
        words[_MAX_PROBLEMS:] = [f"and {len(words) - _MAX_PROBLEMS} more"] if len(words) > _MAX_PROBLEMS else []
        raise ValueError(f"weights: expected all to fit, got {len(problems)} problems: {'; '.join(words)}")
    if not takers:
        raise ValueError("weights: expected at least one, got none")
    return staged


def _find(model: Model, name: str) -> Tensor:
    """Return a tensor of a model opened with `stored=True`.

    Raises:
        KeyError: there is none. UnsupportedError: a compressed weight.
    """
    try:
        return model[name]
    except KeyError as error:
        if error.args[0] != name:  # ambiguous
            raise
    for _, program in model.scans:
        for group in program.groups:
            full = program.part_names[id(group)]
            if full == name or full.endswith(f"/{name}"):
                words = f"{name}: expected a weight that is stored dense, got {group.op.type} (its parts can be set)"
                raise UnsupportedError(words, file=model.path)
    raise KeyError(f"weight: expected a name in {model.path}, got {name!r}")


# --------------------------------------------------------------------------------------------------------------- copies


def _require_output(model: Model, source: str, target: str, force: bool) -> None:
    """Refuse an output that is the model, lies inside or around it, or holds something else.

    Raises:
        ValueError, FileExistsError, UnsupportedError.
    """
    real, place = os.path.realpath(source), os.path.realpath(target)
    if f"{place}{os.sep}".startswith(f"{real}{os.sep}") or f"{real}{os.sep}".startswith(f"{place}{os.sep}"):
        raise ValueError(f"output {target}: expected a place outside the model {source}, got one inside or around it")
    if paths.is_directory(source):
        require_replaceable(target, model.kind, force, like=[source])
    constants = (c for _, program in model.scans for c in program.scan.constants)
    if not paths.is_directory(source) and any(c.storage == _codec.BLOB for c in constants):
        words = (
            f"output {target}: expected a model whose weights can be copied with it, got a file that refers to others"
        )
        raise UnsupportedError(words, file=source)


@contextlib.contextmanager
def _copied(source: str, target: str, force: bool) -> Iterator[str]:
    """Yield the path of a copy, which is renamed to `target` on success."""
    if not paths.is_directory(source):
        with whole_file(target, force) as name:
            real = paths.real(source)
            copy_entry(os.path.dirname(real), os.path.basename(real), name, least=stat.S_IWUSR)
            pending.require_none(source)  # from a writer that died after the model was opened
            yield name
        return
    with NewDirectory(target, replace=paths.is_directory(target)) as new:
        copy_tree(source, new.name)
        pending.require_none(source)
        yield new.name
