"""milblob.compress: quantize, palettize or prune the weights of a model, and say what is lost."""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from .. import decibels
from ..arguments import Names, as_count, as_mapping, as_path, require, require_calls, require_flags
from ..errors import UnsupportedError
from ..lossy.unfit import UnfitError
from ..model.model import Model
from ..progress import Progress, ProgressCounter
from ..results import Result, least
from ..rewrite.changes import Options
from ..rewrite.destination import require_outside
from ..rewrite.parts import CompressedWeight, Loss, WeightParts
from ..rewrite.repack import repacking
from ..selection import Select, selector
from ..storage import paths
from ..storage.output import NewFile
from ..storage.scratch import Scratch
from ..threads import sized
from ..values.strided import Empty
from .candidates import Candidate, first_alike
from .compress_plan import CompressPlan, PlannedWeight, as_plan
from .find_candidates import CandidateSearch, NamedRecipe, Request, Skipped
from .goals import Errors, RecipeChoice, as_goal, as_ladder, as_sensitivity
from .linear_recipe import Linear
from .parse_recipe import as_recipe
from .recipe import Recipe
from .weight import HeldBlocks

if TYPE_CHECKING:
    from concurrent.futures import Executor

LEAST = 2048
"""coremltools' threshold: only weights of more elements are compressed."""


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
        gap: the most by which the squared error of a palette may exceed the least possible (weighted, if it was fitted
            so); None where that is not known, or there is no palette.
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
        skipped: (name, reason) of each weight, compressed already or not, that stays although it was asked for.
        nbytes, nbytes_after: of all weights as stored, compressed or not.
        done: False for a dry run.
        kept: names of the weights that could be compressed, and stay because the plan says so; also in `skipped`
            where milblob made the plan.
        stale: see RepackReport.
        outputs_sqnr: of the outputs, in dB, as `errors.of_all` measured it for the recipes that were chosen; None
            without such errors.
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
                one.recipe,
                {"nbytes": one.nbytes, "nbytes_after": one.nbytes_after, "sqnr": _finite(one.sqnr)},
            )
            for one in self.weights
        }
        return CompressPlan(rows | {name: PlannedWeight(None) for name in self.kept})

    def _worst(self) -> list[str]:
        rows = least((one for one in self.weights if one.squared), lambda one: one.sqnr)
        return [f"{one.name}: SQNR {one.sqnr:.3g} dB" for one in rows]


def compress(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    recipe: Any = None,
    *,
    select: Select = None,
    op_types: Mapping[str, Any] | None = None,
    per_name: Mapping[str, Any] | None = None,
    least: int = LEAST,
    size: str | int | None = None,
    bits: float | None = None,
    sqnr: float | None = None,
    recipes: Iterable[Any] | None = None,
    sensitivity: Mapping[str, float] | None = None,
    errors: Errors | None = None,
    plan: Any = None,
    weights: Any = None,
    mapping: Mapping[str, Names] | None = None,
    importance: Mapping[str, Any] | None = None,
    nan: str = "skip",
    requantize: bool = False,
    force: bool = False,
    dry_run: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    save_plan: str | os.PathLike[str] | None = None,
) -> CompressReport:
    """Compress the weights of a model; everything else stays as it is, byte for byte.

    A weight is a `const` operation with float16 or float32 values of two dimensions or more, more than `least`
    elements, that operations read which accept a compressed one: the rules of coremltools. The operation becomes
    the one that coremltools writes for the model's opset; its name and its output stay. Weights that share a record, or
    have equal bytes and the same recipe, share the parts. The result appears whole or not at all.

    Given one of `size`, `bits` and `sqnr` instead of a recipe, each weight gets one of `recipes`, or stays: every
    recipe is measured on every weight, and the sum of their squared errors, each relative to the power of its weight
    and times its elements and the operations that read it, is as small as that allows (docs/compress.md says how near
    to the least possible). It is never larger than that of one recipe for all weights that fits.

    Args:
        src: a .mlpackage or a .mlmodelc.
        dst: where the result goes. May be `src` itself, which is then replaced.
        recipe: a Linear, Palette or Prune, a sum of them, or its dict or JSON; None if other arguments say it all.
        select: glob, several, or a function of a name: the weights that are tried.
        op_types: type of an operation, such as "conv" -> recipe for the weights that it reads; None: they stay.
        per_name: glob of names -> recipe, or None; the first that fits counts, before `op_types`. Where none fits, the
            whole name of an operation stands for the weights that it reads.
        least: only weights of more elements are compressed. Not with a plan, which names the weights.
        size: all weights of the result take at most so many bytes as stored; or a text such as "40MB" (of 2**20).
        bits: the weights that can be compressed take at most so many bits for each element, on average.
        sqnr: every weight is compressed with at least so many dB, in the fewest bytes, or stays.
        recipes: to choose from, for `size`, `bits` and `sqnr`; None: some from 8 to 2 bits that the opset can hold.
        sensitivity: glob of names -> factor of the error of these weights, for `size`, `bits` and `sqnr`; the first
            that fits counts, and 1 without one.
        errors: called as `errors(name, before, after)` with the values of a weight and those that a recipe makes of
            them; returns what that costs, zero or more, in place of the squared error over the power, for `size`,
            `bits` and `sqnr` (whose dB are those of this number). Called in several threads at a time. If it has a
            method `of_all`, called with values by name, that has the last word: what was chosen for `size` or `bits`
            is compared with each recipe alone that fits. `milblob.OutputSensitivity` makes such an object.
        plan: a CompressPlan (such as the `plan` of a report), its dict, or the path of its file: the recipe of each
            weight by name, small ones too. Instead of everything else that chooses weights or recipes.
        weights: new values for the model, as for `refit`: a mapping of arrays or the path of a file, such as .gguf. All
            weights that are named take them, cast to their dtypes; then the model is compressed. Integers and scales of
            Q8_0 and Q4_0 stay as they are where the recipe has the same blocks (int8 or int4, 32 along the last
            dimension). Without a recipe, goal or plan, that is what each weight gets that the file has so.
        mapping: with `weights`: name in them -> name in the model, as for `refit`.
        importance: name -> how much the elements of a weight count, zero or more: an array of its shape, or one number
            for each input channel. It weighs the errors of palettes and of the search of scales; what is pruned is
            the magnitude times its root. It weighs the errors that `size`, `bits` and `sqnr` compare, too.
        nan: "skip": weights with NaN or infinity stay as they are, and the report says so. "keep": Palette and Prune
            keep such elements as they are; others skip the weight.
        requantize: whether a weight that is compressed already, in a way that the recipe cannot go on from, is
            compressed anew from its dense values; else it stays.
        force: replace `dst` if it exists.
        dry_run: compute and measure, write nothing.
        executor: any concurrent.futures.Executor that copies what stays.
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
        As `repack`. Whatever is raised, `dst` is as it was.
    """
    source, output = require_directory(src), as_path(dst)
    require_flags(force=force, dry_run=dry_run)
    require_calls(progress=progress, errors=errors)
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(f"executor: expected a concurrent.futures.Executor, got {type(executor).__name__}")
    request = as_request(recipe, select, op_types, per_name, least, importance, nan, requantize)
    chooser, planned = _chooser(size, bits, sqnr, recipes, sensitivity, errors), None if plan is None else as_plan(plan)
    by_others = any(request.op_types.values()) or any(named.recipe for named in request.per_name)
    has_others = select is not None or request.op_types or request.per_name or request.least != LEAST
    if planned is not None and (request.recipe or chooser or has_others):
        raise ValueError("plan: expected it without recipe, select, op_types, per_name, least and a goal, got both")
    if request.recipe is not None and chooser is not None:
        raise ValueError("recipe: expected None with size, bits and sqnr, which choose from `recipes`, got one")
    is_free = request.recipe is None and chooser is None and planned is None and not by_others
    if is_free and weights is None:
        raise ValueError(
            "recipe: expected one, here or in op_types or per_name, or a size, bits, sqnr or plan, got none"
        )
    if weights is None and mapping is not None:
        raise ValueError("mapping: expected weights, whose names it maps, got none")
    request = request._replace(plan=None if planned is None else planned.recipes)
    with contextlib.ExitStack() as stack:
        path, plan_file = source, None
        if save_plan is not None:
            plan_path = as_path(save_plan)
            for model in (source, output):
                require_outside(model, plan_path)
            plan_file = NewFile(plan_path, force=force)  # before the work: what is wrong with it is said now
            stack.callback(plan_file.discard)
        if weights is not None:
            from .new_values import new_values

            path, blocks = stack.enter_context(new_values(source, output, weights, mapping, dry_run, max_nbytes))
            as_they_are = _as_they_are(blocks, request.is_selected) if is_free else []
            request = request._replace(blocks=blocks, per_name=[*request.per_name, *as_they_are])
        options = Options({}, compress=True)
        work = stack.enter_context(repacking([path], output, options, force, executor, None, max_nbytes, dry_run))
        scratch = Scratch(tempfile.gettempdir() if dry_run else os.path.dirname(os.path.abspath(output)) or ".")
        search = CandidateSearch(request, scratch, None if chooser is None else chooser.recipes)
        counter = ProgressCounter(progress)
        made = _compressed(work.models[0], search, chooser, counter, None if dry_run else scratch.lasting)
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
    model: Model, search: CandidateSearch, chooser: RecipeChoice | None, counter: ProgressCounter, lasting: Empty | None
) -> list[tuple[Candidate, WeightParts]]:
    """Compress the weights of a model: their parts are there, or will be computed while they are written.

    Args:
        search: finds them, and notes those that stay.
        chooser: chooses the recipes; None if each weight has one.
        counter: told of each weight whose loss is known, or that stays.
        lasting: makes arrays for the parts; None for a dry run: nothing is kept but what is lost.

    Returns:
        In Program order; equal weights have one WeightParts.
    """
    candidates = search.find(model)
    firsts = first_alike(candidates)
    counter.total_nbytes = sum(candidates[number].tensor.nbytes for number in set(firsts))
    if chooser is not None:
        counter.total_nbytes *= 1 + chooser.passes
        candidates = search.take(chooser.choose(model, candidates, firsts, counter))
        firsts = first_alike(candidates)
    search.require_planned(model, {one.tensor.name for one in candidates})

    made: dict[int, WeightParts | UnfitError] = {}
    unique = sorted(set(firsts))
    done = sized(lambda number: candidates[number].parts(lasting), unique, lambda n: candidates[n].tensor.size)
    for number, parts in zip(unique, done, strict=True):
        made[number] = parts
        if isinstance(parts, UnfitError) or parts.loss is not None:
            counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
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


def require_directory(src: Any) -> str:
    """Return the path of a package or compiled model.

    Raises:
        UnsupportedError: something else. TypeError: no path.
    """
    require("src", src, str | os.PathLike, "the path of a model")
    source = as_path(src).rstrip("/") or "/"
    if not paths.is_directory(source) and paths.is_there(source):
        raise UnsupportedError("compress: expected a .mlpackage or .mlmodelc, got a file", file=source)
    return source


def as_request(
    recipe: Any,
    select: Select,
    op_types: Mapping[str, Any] | None,
    per_name: Mapping[str, Any] | None,
    least: Any,
    importance: Any,
    nan: Any,
    requantize: Any,
) -> Request:
    """Return what `compress` and `compress_frontier` are asked to do, checked.

    Raises:
        As `as_recipe`. ValueError: nan is neither "skip" nor "keep". TypeError: something else.
    """
    require_flags(requantize=requantize)
    require("nan", nan, str, "skip or keep")
    if nan not in ("skip", "keep"):
        raise ValueError(f"nan: expected skip or keep, got {nan!r}")
    heavy = as_mapping("importance", importance, "arrays by name of weight")
    least, chosen = as_count("least", least), _recipe(recipe)
    types = as_mapping("op_types", op_types, "a mapping from types of operations to recipes")
    names = as_mapping("per_name", per_name, "a mapping from globs of names to recipes")
    by_type = {name: _recipe(one) for name, one in types.items()}
    by_name = [NamedRecipe(name, selector(name), _recipe(one)) for name, one in names.items()]
    is_selected = None if select is None else selector(select)
    return Request(chosen, is_selected, by_type, by_name, least, None, heavy, nan, requantize)


def _recipe(value: Any) -> Recipe | None:
    return None if value is None else as_recipe(value)


def _chooser(
    size: Any, bits: Any, sqnr: Any, recipes: Any, sensitivity: Any, errors: Errors | None
) -> RecipeChoice | None:
    goal = as_goal(size, bits, sqnr)
    if goal is None:
        for name, value in (("recipes", recipes), ("sensitivity", sensitivity), ("errors", errors)):
            if value is not None:
                raise ValueError(f"{name}: expected a size, bits or sqnr, which it is for, got none")
        return None
    return RecipeChoice(goal, as_ladder(recipes), as_sensitivity(sensitivity), errors)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _report(candidate: Candidate, parts: WeightParts) -> WeightReport:
    tensor = candidate.tensor
    return WeightReport(
        tensor.name, candidate.options[0].recipe, parts.op, tensor.nbytes, parts.nbytes, *cast(Loss, parts.loss)
    )
