"""milblob.compress: quantize, palettize or prune the weights of a model, and say what is lost."""

import contextlib
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..arguments import as_integer, require, require_calls, require_flags
from ..errors import UnsupportedError
from ..model.identify import identify_directory
from ..progress import Counter, Progress
from ..selection import Select, selector
from ..storage import paths
from .changes import Options
from .compressing import CompressedWeight, Compressing, Extras, spool_directory
from .recipes import Recipe, as_recipe
from .repack import Repacking

if TYPE_CHECKING:
    from concurrent.futures import Executor

LEAST = 2048
"""coremltools' threshold: only weights of more elements are compressed."""


class WeightReport(NamedTuple):
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

    @property
    def relative(self) -> float:
        """The norm of the difference, relative to that of the weight; 0 if nothing is lost."""
        return 0.0 if not self.squared else math.inf if not self.power else math.sqrt(self.squared / self.power)

    @property
    def sqnr(self) -> float:
        """Signal to quantization noise, in dB; infinite if nothing is lost."""
        return math.inf if not self.squared else -math.inf if not self.power else -20 * math.log10(self.relative)


class CompressReport(NamedTuple):
    """What a compression changes, or changed.

    Attributes:
        source, output: paths.
        weights: what is compressed, in Program order.
        skipped: (name, reason) of each weight, compressed already or not, that stays although it was asked for.
        nbytes, nbytes_after: of all weights as stored, compressed or not.
        done: False for a dry run.
    """

    source: str
    output: str
    weights: list[WeightReport]
    skipped: list[tuple[str, str]]
    nbytes: int
    nbytes_after: int
    done: bool

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it; an infinite SQNR is null."""
        rows = [
            {
                "name": one.name, "recipe": one.recipe.to_dict(), "op": one.op, "nbytes": one.nbytes,
                "nbytes_after": one.nbytes_after, "sqnr": one.sqnr if math.isfinite(one.sqnr) else None,
                "relative": one.relative if math.isfinite(one.relative) else None, "largest": one.largest,
                "squared": one.squared, "power": one.power, "gap": one.gap,
            }
            for one in self.weights
        ]  # fmt: skip
        return {
            "source": self.source, "output": self.output, "done": self.done, "nbytes": self.nbytes,
            "nbytes_after": self.nbytes_after, "weights": rows,
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
        }  # fmt: skip


def compress(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    recipe: Any = None,
    *,
    select: Select = None,
    op_types: Mapping[str, Any] | None = None,
    per_name: Mapping[str, Any] | None = None,
    least: int = LEAST,
    importance: Mapping[str, Any] | None = None,
    nan: str = "skip",
    requantize: bool = False,
    force: bool = False,
    dry_run: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> CompressReport:
    """Compress the weights of a model; everything else stays as it is, byte for byte.

    A weight is a `const` operation with float16 or float32 values of two dimensions or more, more than `least`
    elements, that operations read which accept a compressed one: the rules of coremltools. The operation becomes
    the one that coremltools writes for the model's opset; its name and its output stay. Weights that share a record, or
    have equal bytes and the same recipe, share the parts. The result appears whole or not at all.

    Args:
        src: a .mlpackage.
        dst: where the result goes. May be `src` itself, which is then replaced.
        recipe: a Linear, Palette or Prune, a sum of them, or its dict or JSON; None if the next ones say it all.
        select: glob, several, or a function of a name: the weights that are tried.
        op_types: type of an operation, such as "conv" -> recipe for the weights that it reads; None: they stay.
        per_name: glob of names -> recipe, or None; the first that fits counts, before `op_types`.
        least: only weights of more elements are compressed.
        importance: name -> how much the elements of a weight count, zero or more: an array of its shape, or one number
            for each input channel. It weighs the errors of palettes and of the search of scales; what is pruned is
            the magnitude times its root.
        nan: "skip": weights with NaN or infinity stay as they are, and the report says so. "keep": Palette and Prune
            keep such elements as they are; others skip the weight.
        requantize: whether a weight that is compressed already, in a way that the recipe cannot go on from, is
            compressed anew from its dense values; else it stays.
        force: replace `dst` if it exists.
        dry_run: compute and measure, write nothing.
        executor: any concurrent.futures.Executor that copies what stays.
        progress: called as weights are computed (see `Progress`).
        max_nbytes: as for `open`.

    Returns:
        CompressReport, with what each weight loses.

    Raises:
        UnsupportedError: an opset that cannot hold what a recipe makes; the one that can is named. Not a package.
        ValueError: operations that read one weight ask for different recipes; a wrong option.
        As `repack`. Whatever is raised, `dst` is as it was.
    """
    require("src", src, str | os.PathLike, "the path of a model")
    require_flags(force=force, dry_run=dry_run, requantize=requantize)
    if nan not in ("skip", "keep"):
        raise ValueError(f"nan: expected skip or keep, got {nan!r}")
    require_calls(progress=progress)
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(f"executor: expected a concurrent.futures.Executor, got {type(executor).__name__}")
    least = as_integer("least", least)
    if least < 0:
        raise ValueError(f"least: expected 0 or more, got {least}")
    chosen = None if recipe is None else as_recipe(recipe)
    by_type = {name: None if one is None else as_recipe(one) for name, one in (op_types or {}).items()}
    by_name = [(selector(name), None if one is None else as_recipe(one)) for name, one in (per_name or {}).items()]
    if chosen is None and not any(by_type.values()) and not any(one for _, one in by_name):
        raise ValueError("recipe: expected one, here or in op_types or per_name, got none")
    source, output = os.fsdecode(os.fspath(src)).rstrip("/") or "/", os.fsdecode(os.fspath(dst))
    if not paths.is_directory(source) and paths.is_there(source):
        raise UnsupportedError("compress: expected a .mlpackage, got a file", file=source)
    if paths.is_directory(source) and identify_directory(source) == "mlmodelc":
        words = "compress: expected a .mlpackage, got a compiled model (compress the package, then compile it)"
        raise UnsupportedError(words, file=source)
    work = Compressing(
        chosen, selector(select), by_type, by_name, least, None if dry_run else spool_directory(output),
        Counter(progress), Extras(importance or {}, nan, requantize),
    )  # fmt: skip
    with contextlib.closing(work):
        options = Options({}, compress=work)
        done = Repacking([source], output, options, force, executor, None, max_nbytes).run(dry_run)
        weights = [_report(weight) for weight in work.weights.values()]
    return CompressReport(source, output, weights, work.skipped, done.nbytes, done.nbytes_after, done.done)


def _report(weight: CompressedWeight) -> WeightReport:
    made = weight.made
    return WeightReport(
        weight.tensor.name, weight.recipe, made.op, weight.tensor.nbytes, weight.nbytes_after, made.squared, made.power,
        made.largest, made.gap,
    )  # fmt: skip
