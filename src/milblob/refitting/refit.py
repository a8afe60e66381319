"""milblob.refit: replace the values of a model's weights by arrays from a file or a mapping."""

import contextlib
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from .. import _codec
from ..arguments import Names, as_mapping, as_path, names_in, require, require_flags, source_of
from ..errors import UnsupportedError
from ..model.editable import EditableModel
from ..model.model import Model
from ..model.recovery import settle
from ..model.replaceable import require_name, require_replaceable
from ..progress import Progress, ProgressCounter, start_progress
from ..rewrite.destination import is_in_place
from ..selection import Select, selector
from ..storage.table import format_of
from ..values.cast import require_policies
from .pairs import How, pair
from .plan import RefitPlan
from .problems import ERRORS
from .refit_report import RefitReport, Refitted
from .write import FileChange, copied, write_in_place

__all__ = ["RefitReport", "Refitted", "refit"]

REQUANTIZE = ("keep", "fit")


def refit(
    model: Any,
    weights: Any,
    *,
    base: Any = None,
    scale: float | Sequence[float] | None = None,
    leave: Select = None,
    epsilon: float | None = None,
    mapping: Mapping[str, Names] | None = None,
    cast: bool = False,
    overflow: str = "error",
    unshare: bool = False,
    requantize: str | None = None,
    min_sqnr: float | None = None,
    select: Select = None,
    destination: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> RefitReport:
    """Give weights of a model new values in place, all or none.

    Args:
        model: path of a .mlpackage, .mlmodelc, .mlmodel or weight file; or a Model Library Format archive of TVM, whose
            parameters are the weights (docs/tvm.md).
        weights: name -> array (a NumPy array, or a Tensor of another model), or the path of a .safetensors, .npz,
            .npy, .gguf, .onnx or .params file, of a directory of .npy files, or of an archive. Every one of them must
            fit; other weights of the model are kept. Of an ONNX model, only values that differ are taken. Or a LoRA
            adapter, the path of a folder that PEFT's `save_pretrained` wrote; or a list of several. With `base`, what
            it adds to the weights of the base is added to those of the model; without, its own arrays are the new
            values of those weights of the model that have its names (docs/language-models.md).
        base: as `weights`: the checkpoint that the model was converted from. milblob finds the derivation of each
            weight, checks it against the present values and repeats it with `weights`, casts included
            (docs/fine-tuning.md).
        scale: of an adapter, what its change is multiplied by, 1 if None; of several, a list with one for each. Their
            changes add up, as in PEFT's add_weighted_adapter with "cat".
        leave: with `base`: weights of the model that may be left as they are if their derivation is unknown.
        epsilon: with `base`: the epsilon of batch norms, if it is not one of the usual ones that milblob tries.
        mapping: name in `weights` -> name in the model, where they differ; None leaves one out. A list of names gives
            several weights the same values. "WEIGHT@OPERATION" is the weight as that operation reads it (named by its
            first output, or OPERATION.PARAMETER). Several arrays for one weight must be equal, unless `unshare`.
        cast: convert floats to floats (round to nearest even) and integers to integers (every element is checked).
        overflow: what a cast does with a finite number that is too large: "error", "inf" or "clamp".
        unshare: where weights that are stored once get different values, store them apart: new records in the weight
            file, and new constants where operations read one constant. Without it, that is an error.
        requantize: how a compressed weight takes floats: "keep" puts them onto its scales, offsets, palettes and masks;
            "fit" makes new ones of the same shapes and dtypes. Without it, a compressed weight is an error.
        min_sqnr: least signal-to-quantization-noise ratio, in dB, of each weight that is requantized. If one has less,
            nothing is written.
        select: glob, several, or a function of a name in the model: the weights that change; others are left out.
        destination: write a copy of the model with the new values there, whole or not at all; `model` is not changed.
        force: replace what is at `destination`: a file, or a model.
        dry_run: check everything, write nothing.
        progress: called as the new values of each weight are written to the journal or a new file (see `Progress`),
            before the model changes: what it raises leaves the model as it was. A dry run does not call it. With
            `base` it is also called as each array of that was compared with the model, up to half of the bytes.
        max_nbytes: as for `open`, of the file or directory of weights.

    Returns:
        RefitReport.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, UnsupportedError: values that do not fit, as for assignment in
            mode "r+"; several problems give one ValueError that lists them. Nothing is written.
        BlockingIOError: another writer has the model. OSError: it cannot be written.
        FileExistsError: `destination` exists, and `force` is False or it is something else.

    Examples:
        >>> report = milblob.refit("demo.mlpackage", {"head_bias": np.ones(96)}, cast=True)
        >>> milblob.load("demo.mlpackage")["head_bias"].max()
        np.float32(1.0)
        >>> report = milblob.refit("demo.mlpackage", "lora", base="base.safetensors", leave="mul_*", dry_run=True)
        >>> report.changes[0].name, report.changes[0].given
        ('layers_0_attention_query_weight', 'layers.0.attention.query.weight')
    """
    source = as_path(source_of(model))
    require_flags(cast=cast, unshare=unshare, force=force, dry_run=dry_run)
    start_progress(progress)
    require("epsilon", 0.0 if epsilon is None else epsilon, Real, "a number")
    names = as_mapping("mapping", mapping, "a mapping of names")
    require("min_sqnr", 0 if min_sqnr is None else min_sqnr, Real, "a number of dB")
    require_policies(overflow)
    require("requantize", requantize, str | None, " or ".join(REQUANTIZE))
    if requantize is not None and requantize not in REQUANTIZE:
        raise ValueError(f"requantize: expected one of {', '.join(REQUANTIZE)}, got {requantize!r}")
    how = How(names, cast, overflow, selector(select), progress, unshare, requantize or "", min_sqnr)
    row = format_of(source)
    if row is not None and not row.refit:
        row = None
    if min_sqnr is not None and requantize is None and row is None:
        raise ValueError("min_sqnr: expected requantize too, keep or fit, got none")
    target = source if destination is None else as_path(destination)
    if not dry_run and (destination is None or is_in_place([source], target)):
        settle(source)
    with contextlib.ExitStack() as stack:
        from .adapters import opened_adapters, rebase_adapters, scales_kept

        adapters = opened_adapters(weights, scale, stack, max_nbytes)
        if base is not None:
            from .from_base import rebase

            old = _arrays(base, stack, max_nbytes)
            if adapters:
                found = rebase_adapters(source, adapters, old, how, leave, epsilon)
            else:
                found = rebase(source, _arrays(weights, stack, max_nbytes), old, how, leave, epsilon)
            report = refit(
                source, found.arrays, mapping=found.mapping, cast=True, overflow=overflow, unshare=unshare,
                requantize=requantize, min_sqnr=min_sqnr, select=select, destination=destination, force=force,
                dry_run=dry_run, progress=found.progress,
            )  # fmt: skip
            return replace(
                report,
                unused=found.unused, constant=found.constant, left=found.left, without_effect=found.without_effect,
                note=found.note,
            )  # fmt: skip
        for name, value in (("leave", leave), ("epsilon", epsilon), ("scale", scale)):
            if value is not None:
                raise ValueError(f"{name}: expected a base too (--base), got none")
        if len(adapters) > 1:
            raise ValueError(f"base: expected one (--base), to merge {len(adapters)} adapters into, got none")
        given = adapters[0][0].arrays if adapters else _arrays(weights, stack, max_nbytes)
        if adapters:
            how = how._replace(can_cast=True, note=scales_kept(adapters[0][0]))
        if row is not None:
            for name, value in (("requantize", requantize), ("min_sqnr", min_sqnr)):
                if value is not None:  # they concern Programs
                    raise ValueError(f"{name}: expected none for a file of kind {row.kind}, got {value!r}")
            report = row.function("refit")(
                source, given, how, destination=None if destination is None else target, force=force, dry_run=dry_run,
                max_nbytes=max_nbytes,
            )  # fmt: skip
            return typing.cast(RefitReport, report)
        if destination is None and not dry_run:
            with EditableModel(source, constants=True, stored=True) as opened:
                plan, unchanged = _plan(opened, given, how)
                report = _report(plan, source, source, True, how).without(given, unchanged)
                with _all_problems(plan):
                    if plan.changes:
                        write_in_place(opened, plan.changes, _counter(how, plan.changes))
                return _counted(report, plan)
        with Model(source, constants=True, stored=True) as old:
            if destination is not None:
                _require_output(old, source, target, force)
            plan, unchanged = _plan(old, given, how)
            if dry_run:
                plan.check()
                return _report(plan, source, target, False, how).without(given, unchanged)
            _require_output(old, source, target, force)  # again: another process may have created it
            report, root = _report(plan, source, target, True, how).without(given, unchanged), os.path.abspath(source)
            report = replace(report, changes=[replace(c, file=_moved(c.file, root, target)) for c in report.changes])
            with (
                _all_problems(plan),
                copied(source, old.package, target, force, plan.changes, _counter(how, plan.changes)) as copy,
                Model(copy, constants=True, stored=True),  # checks that the copy can be opened
            ):
                pass
            return _counted(report, plan)


def _plan(model: Model, given: Mapping[str, Any], how: How) -> tuple[RefitPlan, tuple[str, ...]]:
    """Plan what changes; of an ONNX model also return the names of arrays that hold what the model holds already."""
    from ..formats.onnx import OnnxArrays
    from ..formats.peft import AdapterArrays

    if isinstance(given, AdapterArrays):
        from .adapters import named_weights

        how = how._replace(mapping={**named_weights(model, given, how), **how.mapping})
    if not isinstance(given, OnnxArrays):
        return RefitPlan(model, pair(model, given, how), how), ()
    from .from_onnx import changed

    found = changed(model, given, how)
    how = how._replace(mapping=found.mapping)
    if found.unchanged and not any(names_in(how.mapping.get(name, name)) for name in found.arrays):
        return RefitPlan(model, [], how), found.unchanged  # not an error, unlike empty weights
    return RefitPlan(model, pair(model, found.arrays, how), how), found.unchanged


def _moved(file: str, source: str, target: str) -> str:
    """Return the place of a file of the source in the copy."""
    inside = os.path.relpath(os.path.abspath(file), source)
    return target if inside == "." else os.path.join(target, inside)


def _counter(how: How, changes: list[FileChange]) -> ProgressCounter:
    return ProgressCounter(how.progress, (write.tensor for change in changes for write in change.writes))


@contextlib.contextmanager
def _all_problems(plan: RefitPlan) -> Iterator[None]:
    """If new bytes cannot be made while they are written, look for the other problems too. Nothing has changed then."""
    try:
        yield
    except ERRORS:
        plan.check()
        raise


def _counted(report: RefitReport, plan: RefitPlan) -> RefitReport:
    """Return a report with the counts and errors that are known after writing; nothing else runs after that."""
    rows = zip(report.changes, plan.items, strict=True)
    return replace(report, changes=[replace(row, counts=item.counts, sqnr=item.sqnr) for row, item in rows])


def _report(plan: RefitPlan, source: str, output: str, done: bool, how: How) -> RefitReport:
    changes = []
    for item in plan.items:
        tensor = item.tensor
        file = tensor.file or source
        requantized = how.requantize if tensor.chain is not None else ""
        changes.append(
            Refitted(
                item.name, item.given, tensor.mil_dtype, tensor.shape, item.nbytes, item.given_dtype, item.counts,
                file, item.is_in_place, item.sqnr, requantized, item.unshared,
            )
        )  # fmt: skip
    return RefitReport(source, output, changes, done, note=how.note)


def _arrays(weights: Any, stack: contextlib.ExitStack, max_nbytes: int | None) -> Mapping[str, Any]:
    if isinstance(weights, str | os.PathLike):
        from ..formats.read import open_arrays

        return stack.enter_context(open_arrays(weights, max_nbytes=max_nbytes))
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights: expected a path or a mapping of arrays, got {type(weights).__name__}")
    return weights


def _require_output(model: Model, source: str, target: str, force: bool) -> None:
    """Refuse an output that is the model, lies inside or around it, or holds something else."""
    real, place = os.path.realpath(source), os.path.realpath(target)
    if f"{place}{os.sep}".startswith(f"{real}{os.sep}") or f"{real}{os.sep}".startswith(f"{place}{os.sep}"):
        raise ValueError(f"output {target}: expected a place outside the model {source}, got one inside or around it")
    require_name(target, model.kind)
    if model.package.is_directory:
        require_replaceable(target, model.kind, force, like=[source])
    constants = (c for program in model.parts for c in program.scan.constants)
    if not model.package.is_directory and any(c.storage == _codec.BLOB for c in constants):
        message = (
            f"output {target}: expected a model whose weights can be copied with it, got a file that refers to others"
        )
        raise UnsupportedError(message, file=source)
