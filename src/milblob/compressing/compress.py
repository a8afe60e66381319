"""milblob.compress: quantize, palettize or prune the weights of a model, and report the loss."""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from .. import decibels
from ..arguments import as_path, require, require_flags, require_nan, source_of
from ..errors import UnsupportedError
from ..lossy.loss import Loss
from ..lossy.unfit import UnfitError
from ..model.identify import identify
from ..model.model import Model
from ..progress import Progress, ProgressCounter, start_progress
from ..results import Result, least, plain
from ..rewrite.changes import Options
from ..rewrite.destination import require_outside
from ..rewrite.parts import CompressedWeight, WeightParts
from ..rewrite.repack import Repacking
from ..selection import selector
from ..storage import paths
from ..storage.foreign import Foreign, refusal
from ..storage.output import NewDirectory, NewFile
from ..storage.scratch import Scratch
from ..values.strided import Empty
from ..workers import workers_of
from .candidates import Candidate, first_alike
from .compress_plan import CompressPlan, PlannedWeight
from .far_weights import FarWeights, parts_of
from .find_candidates import CandidateSearch, NamedRecipe, Request, Skipped
from .goals import RecipeChoice
from .linear_recipe import Linear
from .options import Goal, Guidance, Scope
from .parse_recipe import as_recipe
from .recipe import Recipe
from .weight import HeldBlocks

if TYPE_CHECKING:
    from concurrent.futures import Executor


@dataclass(frozen=True, repr=False)
class WeightReport(Result):
    """One compressed weight.

    Attributes:
        name: of the tensor.
        recipe: with which it was compressed.
        op: type of the operation that computes it.
        nbytes, nbytes_after: as stored, all parts together. Weights that share their parts count them each.
        squared: sum of the squared differences of the dense values from the weight.
        power: sum of the squares of the weight.
        largest: difference.
        gap: upper bound of the squared error of a palette minus the least possible one (weighted, if the palette was
            fitted so); None if it is unknown or without a palette.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8")
        >>> weight = report.weights[0]
        >>> weight.name, weight.nbytes, weight.nbytes_after, weight.sqnr > 40
        ('embedding_weight', 9216, 4900, True)
    """

    name: str
    recipe: Recipe
    op: str
    nbytes: int
    nbytes_after: int
    squared: float
    power: float
    largest: float
    gap: float | None = None

    _keys: ClassVar = {"sqnr": "sqnr", "relative": "relative"}

    @property
    def relative(self) -> float:
        """The norm of the difference, relative to that of the weight; 0 if nothing is lost."""
        return 0.0 if not self.squared else math.inf if not self.power else math.sqrt(self.squared / self.power)

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise, in dB; infinite if nothing is lost."""
        return decibels.of_power(self.power, self.squared)


@dataclass(frozen=True, repr=False)
class CompressReport(Result):
    """What a compression changes, or changed.

    Attributes:
        source, output: paths.
        weights: what is compressed, in Program order.
        skipped: (name, reason) of each requested weight, compressed already or not, that was left as it was.
        nbytes, nbytes_after: of all weights as stored, compressed or not.
        done: False for a dry run.
        kept: names of the weights that could be compressed and that the plan leaves as they are; also in `skipped`
            where milblob made the plan.
        stale: see RepackReport.
        outputs_sqnr: of the outputs, in dB, as `errors.of_all` measured it for the recipes that were chosen; None
            without such errors.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8", dry_run=True)
        >>> report.done, len(report.weights), report.nbytes, report.nbytes_after
        (False, 26, 179904, 92648)
    """

    source: str
    output: str
    weights: list[WeightReport]
    skipped: list[Skipped]
    nbytes: int
    nbytes_after: int
    done: bool
    kept: list[str] = field(default_factory=list)
    stale: tuple[str, ...] = ()
    outputs_sqnr: float | None = None

    @property
    def plan(self) -> CompressPlan:
        """What was done, to be saved, edited and applied again."""
        rows = {
            one.name: PlannedWeight(
                one.recipe, {"nbytes": one.nbytes, "nbytes_after": one.nbytes_after, "sqnr": plain(one.sqnr)}
            )
            for one in self.weights
        }
        return CompressPlan(rows | {name: PlannedWeight(None) for name in self.kept})

    def _worst(self) -> list[str]:
        rows = least((one for one in self.weights if one.squared), lambda one: one.sqnr)
        return [f"{one.name}: SQNR {one.sqnr:.3g} dB" for one in rows]


def compress(
    source: Any,
    destination: str | os.PathLike[str],
    recipe: Any = None,
    *,
    scope: Scope | None = None,
    guidance: Guidance | None = None,
    nan: str = "skip",
    recompress: bool = False,
    force: bool = False,
    dry_run: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    save_plan: str | os.PathLike[str] | None = None,
) -> CompressReport:
    """Compress the weights of a model; everything else is kept as it is, byte for byte.

    A weight is a `const` operation with float16 or float32 values of two dimensions or more, more than
    `scope.min_size` elements, that operations read which accept a compressed one: the rules of coremltools. The
    operation becomes the one that coremltools writes for the model's opset; its name and its output are kept. Weights
    that share a record, or have equal bytes and the same recipe, share the parts. The result appears whole or not at
    all.

    With a Goal, every recipe is measured on every weight, and each weight gets one of them or is left as it is. The
    choice minimizes the sum of the relative squared errors (squared error over the power of the weight), each times the
    elements of the weight and the operations that read it; docs/compress.md states the distance to the least possible
    sum. The sum is never larger than with one recipe for all weights that fits.

    Args:
        source: a .mlpackage or a .mlmodelc; or an MLModel of coremltools, whose package is read.
        destination: where the result goes. May be `source` itself, which is then replaced.
        recipe: how: a Linear, Palette or Prune, a sum of them, its name ("int8", "uint8", "int4", "uint4", "unique",
            "palette1" to "palette8" but 5 and 7), its dict or JSON; or a Goal, which chooses recipes; or a CompressPlan
            (such as the `plan` of a report, or `CompressPlan.load("plan.json")`), which names the recipe of each
            weight, small ones too. None if `scope` has recipes, or `guidance` has weights.
        scope: which weights. Not with a plan.
        guidance: new values, and the importance of elements.
        nan: "skip": weights with NaN or infinity are left as they are, and the report lists them. "keep": Palette and
            Prune keep such elements as they are; others skip the weight. "error": such a weight is an error.
        recompress: whether a weight that is compressed already, in a way that the recipe cannot continue from, is
            compressed from its decoded values; else it is left as it is.
        force: replace `destination` if it exists.
        dry_run: compute and measure, write nothing.
        executor: any concurrent.futures.Executor (see `milblob.executors`), whose workers measure, compute and copy in
            pieces. They keep the parts in files beside the destination until the result is complete. A weight is one
            piece, however large; equal weights are found in this process, and errors and recipes that are functions
            are called in it.
        progress: called as weights are computed (see `Progress`).
        max_nbytes: as for `open`.
        save_plan: a JSON file for the plan of what is done, in a dry run too. It takes its name just before the result:
            if one of them cannot be written, neither is.

    Returns:
        CompressReport, with what each weight loses.

    Raises:
        UnsupportedError: an opset that cannot hold what a recipe makes; the one that can is named. A file.
        ValueError: operations that read one weight ask for different recipes; a wrong option; a `select`, a glob in
            `per_name` or a type in `op_types` that fits no weight; a size that cannot be
            reached: the least that can is named; a plan with a recipe for a weight that cannot be compressed so.
        KeyError: a plan with a name that the model does not have.
        WorkerError: workers that were killed. As `repack`. After any exception `destination` is unchanged.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8")
        >>> report.nbytes, report.nbytes_after
        (179904, 92648)
        >>> report = milblob.compress("demo.mlpackage", "smaller.mlpackage", milblob.Goal(size="60KB"))
        >>> report.nbytes_after <= 60 * 1024
        True
    """
    source, output = require_directory(source), as_path(destination)
    require_flags(force=force, dry_run=dry_run)
    start_progress(progress)
    workers = workers_of(executor)
    chosen = as_choice(recipe)
    request = as_request(chosen if isinstance(chosen, Recipe) else None, scope, guidance, nan, recompress)
    guidance = guidance or Guidance()
    chooser = None
    if isinstance(chosen, Goal):
        chooser = RecipeChoice(chosen, chosen.recipes, chosen.sensitivity, chosen.errors)
    if isinstance(chosen, CompressPlan) and (scope or Scope()) != Scope():
        raise ValueError("scope: expected none with a CompressPlan, which names the weights, got one")
    is_free = chosen is None and not (scope or Scope()).has_recipes
    if is_free and guidance.weights is None:
        raise ValueError(
            "recipe: expected one, a Goal or a CompressPlan, or recipes in scope.op_types or scope.per_name, got none"
        )
    if isinstance(chosen, CompressPlan):
        request = request._replace(plan=chosen.recipes)
    with contextlib.ExitStack() as stack:
        path, plan_file = source, None
        if save_plan is not None:
            plan_path = as_path(save_plan)
            for model in (source, output):
                require_outside(model, plan_path)
            plan_file = NewFile(plan_path, force=force)  # before the work, so that a bad path is reported at once
            stack.callback(plan_file.discard)
        if guidance.weights is not None:
            from .new_values import new_values

            given = new_values(source, output, guidance.weights, guidance.mapping, dry_run, max_nbytes)
            path, blocks = stack.enter_context(given)
            as_they_are = _as_they_are(blocks, request.is_selected) if is_free else []
            request = request._replace(blocks=blocks, per_name=[*request.per_name, *as_they_are])
        options = Options({}, compress=True)
        counter = ProgressCounter(progress)
        noting = ProgressCounter(counter.notes)  # weights are counted, not files
        work = Repacking([path], output, options, force, workers, noting, max_nbytes, dry_run)
        stack.enter_context(work.opened())
        scratch = Scratch(tempfile.gettempdir() if dry_run else os.path.dirname(os.path.abspath(output)) or ".")
        search = CandidateSearch(request, scratch, None if chooser is None else chooser.recipes)
        folder = None
        if workers is not None and not dry_run:
            staged = NewDirectory(f"{os.path.abspath(output)}.parts")  # it never takes this name
            stack.callback(staged.discard)
            folder = staged.name
        far = FarWeights.of(workers, work.models[0], folder)
        made = _compressed(work.models[0], search, chooser, counter, None if dry_run else scratch.persistent, far)
        of_parts = {parts: candidate.tensor for candidate, parts in reversed(made)}  # the first of those that share it

        def computed(parts: WeightParts) -> None:
            counter.add_tensor(of_parts[parts].name, of_parts[parts])

        done = work.write([CompressedWeight(candidate.tensor, parts) for candidate, parts in made], computed)
        report = CompressReport(
            source, output, [_report(*row) for row in made], search.skipped, done.nbytes, done.nbytes_after, done.done,
            search.kept, done.stale, None if chooser is None else chooser.outputs_sqnr,
        )  # fmt: skip
        if plan_file is not None:
            report.plan.write(plan_file)
            work.outputs.insert(0, plan_file)
    return report


def _compressed(
    model: Model,
    search: CandidateSearch,
    chooser: RecipeChoice | None,
    counter: ProgressCounter,
    persistent: Empty | None,
    far: FarWeights,
) -> list[tuple[Candidate, WeightParts]]:
    """Compress the weights of a model: their parts are there, or will be computed while they are written.

    Args:
        search: finds them, and records the weights that are left as they are.
        chooser: chooses the recipes; None if each weight has one.
        counter: counts each weight whose loss is known, or that is left as it is.
        persistent: allocates the arrays of the parts; None for a dry run, which keeps only the loss.
        far: compute.

    Returns:
        In Program order; equal weights have one WeightParts.
    """
    candidates, firsts = search.find(model, counter, far)
    if chooser is not None:
        counter.total_nbytes *= 1 + chooser.passes
        candidates = search.take(chooser.choose(model, candidates, firsts, counter, far))
        firsts = first_alike(candidates, counter)
    search.require_planned(model, {one.tensor.name for one in candidates})

    made: dict[int, WeightParts | UnfitError] = {}
    unique = sorted(set(firsts))

    def here(number: int) -> WeightParts | UnfitError:
        return candidates[number].parts(persistent)

    done = far.each(parts_of, candidates, unique, lambda number: None, here)
    for number, parts in zip(unique, done, strict=True):
        made[number] = parts
        if isinstance(parts, UnfitError) or parts.loss is not None:
            counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
        else:  # computed while it is written
            counter.note(candidates[number].tensor.name)
    found = []
    for candidate, first in zip(candidates, firsts, strict=True):
        parts = made[first]
        if isinstance(parts, UnfitError):
            search.refuse(candidate.tensor.name, parts)
        else:
            found.append((candidate, parts))
    return found


def _as_they_are(blocks: Mapping[str, HeldBlocks], is_selected: Callable[[str], bool] | None) -> list[NamedRecipe]:
    """Recipes for the weights whose new values are blocks that Core ML can hold."""
    found = []
    for name, held in blocks.items():
        if is_selected is None or is_selected(name):
            recipe = Linear(held.dtype, granularity="per_block", block=held.block)
            found.append(NamedRecipe(name, name.__eq__, recipe))
    if not found:
        raise ValueError("weights: expected some in blocks that Core ML can hold (Q8_0, Q4_0), or a recipe, got none")
    return found


def as_choice(recipe: Any) -> Recipe | Goal | CompressPlan | None:
    """Return the recipe, goal or plan that an argument describes. Raises: As `as_recipe` and `CompressPlan.load`."""
    if recipe is None or isinstance(recipe, Goal | CompressPlan):
        return recipe
    if isinstance(recipe, Mapping) and "milblob" in recipe:
        return CompressPlan.load(recipe)
    return as_recipe(recipe)


def require_directory(source: Any) -> str:
    """Return the path of a package or compiled model. Raises: MilblobError: something else. TypeError: no path."""
    source = source_of(source)
    require("source", source, str | os.PathLike, "the path of a model")
    path = as_path(source).rstrip("/") or "/"
    if not paths.is_directory(path) and paths.is_there(path):
        expected, found = "compress: expected a .mlpackage or .mlmodelc", identify(path)
        if isinstance(found, Foreign):
            raise refusal(found, expected, path)
        raise UnsupportedError(f"{expected}, got a file", file=path)
    return path


def as_request(
    recipe: Recipe | None, scope: Scope | None, guidance: Guidance | None, nan: Any, recompress: Any
) -> Request:
    """Return what `compress` and `compress_frontier` are asked to do, checked.

    Raises: ValueError: an unknown word for nan. TypeError: something else.
    """
    require_flags(recompress=recompress)
    require_nan(nan)
    require("scope", scope, Scope | None, "a Scope")
    require("guidance", guidance, Guidance | None, "a Guidance")
    scope, guidance = scope or Scope(), guidance or Guidance()
    by_name = [NamedRecipe(name, selector(name), one) for name, one in (scope.per_name or {}).items()]
    is_selected = None if scope.select is None else selector(scope.select)
    return Request(
        recipe, is_selected, scope.op_types or {}, by_name, scope.min_size, None, guidance.importance or {}, nan,
        recompress,
    )  # fmt: skip


def _report(candidate: Candidate, parts: WeightParts) -> WeightReport:
    tensor = candidate.tensor
    return WeightReport(
        tensor.name, candidate.options[0].recipe, parts.op, tensor.nbytes, parts.nbytes, *cast(Loss, parts.loss)
    )
