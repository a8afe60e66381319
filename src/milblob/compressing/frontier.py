"""The Pareto frontier of a model: the least error of its weights at each size, over all mixtures of recipes."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import decibels
from ..arguments import require_calls
from ..model.model import Model
from ..progress import Progress, ProgressCounter, start_progress
from ..results import Result, plain
from ..storage.scratch import Scratch
from ..workers import workers_of
from .choosing import Point, choose
from .compress import as_request, require_directory
from .far_weights import FarWeights
from .find_candidates import CandidateSearch, Skipped
from .frontier_svg import picture
from .goals import RecipeChoice, alike, point_of, walked
from .options import Errors, Guidance, Scope, as_ladder, as_sensitivity
from .recipe import Recipe

if TYPE_CHECKING:
    from concurrent.futures import Executor


class Alone(NamedTuple):
    """One recipe, applied to every weight that takes it."""

    recipe: Recipe  # the weights that do not take it are left as they are
    point: Point  # the resulting size and error
    # of the mixture chosen for the same bytes: at most that of `point` and of any mixture chosen for fewer bytes
    chosen_error: float


@dataclass(frozen=True, repr=False)
class Frontier(Result):
    """The Pareto frontier of size and error of a model: the mixtures of recipes that no other mixture dominates.

    It is the walk of `choosing` from start to end: greedy by error saved per byte on the convex hull of each weight.
    That gives the convex part of the frontier exactly, in one sort, for any number of weights.
    Errors are means over the elements of the weights that can be compressed: of each weight the squared error over its
    power, for each operation that reads it. With `errors`, they are sums of what it returned.

    Attributes:
        source: path.
        nbytes: of all weights as stored now.
        fixed_nbytes: of those that cannot be compressed.
        element_count: of those that can.
        points: from the fewest bytes to the least error; no mixture of recipes of the same size has a smaller error.
        alone: each recipe alone, from the fewest bytes to the most.
        skipped: (name, reason) of each weight that cannot be compressed.

    Examples:
        >>> frontier = milblob.compress_frontier("demo.mlpackage", recipes=["int8", "palette4"])
        >>> frontier.nbytes, frontier.fixed_nbytes, len(frontier.skipped)
        (179904, 4800, 43)
        >>> frontier.points[0].nbytes < frontier.points[-1].nbytes
        True
    """

    source: str
    nbytes: int
    fixed_nbytes: int
    element_count: int
    points: list[Point]
    alone: list[Alone]
    skipped: list[Skipped]

    def bits(self, nbytes: int) -> float:
        """Return the bits per element of the compressible weights, if all weights together take `nbytes`."""
        return 8 * (nbytes - self.fixed_nbytes) / self.element_count if self.element_count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it; an infinite SQNR is null."""
        return {
            "source": self.source, "nbytes": self.nbytes, "fixed_nbytes": self.fixed_nbytes,
            "points": [self._row(point) for point in self.points],
            "alone": [
                self._row(one.point)
                | {"recipe": one.recipe.to_dict(), "chosen_sqnr": plain(decibels.of_power(1.0, one.chosen_error))}
                for one in self.alone
            ],
            "skipped": plain(self.skipped),
        }  # fmt: skip

    def _row(self, point: Point) -> dict[str, Any]:
        return {
            "nbytes": point.nbytes, "bits": self.bits(point.nbytes), "error": point.error,
            "sqnr": plain(decibels.of_power(1.0, point.error)),
        }  # fmt: skip

    def to_svg(self) -> str:
        """Return the picture: size against error."""
        name = self.source.rstrip("/").rpartition("/")[2]
        return picture(name, self.points, {one.recipe: one.point for one in self.alone})


def compress_frontier(
    source: Any,
    *,
    recipes: Iterable[Any] | None = None,
    sensitivity: Mapping[str, float] | None = None,
    errors: Errors | None = None,
    scope: Scope | None = None,
    guidance: Guidance | None = None,
    nan: str = "skip",
    recompress: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> Frontier:
    """Measure every recipe on every weight, and return what sizes and errors the model can have. Nothing is written.

    Args:
        source: a .mlpackage; or an MLModel of coremltools, whose package is read.
        recipes, sensitivity, errors: as for `Goal`.
        scope, guidance, nan, recompress, progress, max_nbytes: as for `compress` with a size; no new weights.
        executor: any concurrent.futures.Executor (see `milblob.executors`), whose workers measure.

    Raises:
        As `compress`. ValueError: a guidance with weights.

    Examples:
        >>> frontier = milblob.compress_frontier("demo.mlpackage", recipes=["int8", "palette4"])
        >>> picture = frontier.to_svg()
        >>> len(frontier.alone)
        2
    """
    path = require_directory(source)
    require_calls(errors=errors)
    start_progress(progress)
    chooser = RecipeChoice(None, as_ladder(recipes), as_sensitivity(sensitivity), errors)
    request = as_request(None, scope, guidance, nan, recompress)
    if guidance is not None and guidance.weights is not None:
        raise ValueError("guidance: expected no weights for a frontier (refit the model first), got some")
    workers = workers_of(executor)
    search = CandidateSearch(request, Scratch(tempfile.gettempdir()), chooser.recipes)
    counter = ProgressCounter(progress)
    with Model(path, stored=True, constants=True, max_nbytes=max_nbytes) as model:
        far = FarWeights.of(workers, model)
        candidates, firsts = search.find(model, counter, far)
        nbytes = counter.total_nbytes
        counter.total_nbytes = 2 * nbytes  # each is measured once; then there is a choice for the size of each recipe
        search.take(chooser.choose(model, candidates, firsts, counter, far))
    found = chooser.measurements
    units = [unit.choices for unit in found.units]
    others = alike(found)
    alone = []
    for number, (recipe, choices) in enumerate(others.items(), 1):
        point = point_of(found, choices)
        chosen = choose(units, point.nbytes - found.fixed_nbytes, others.values(), counter)
        counter.add("", nbytes * number // len(others) - nbytes * (number - 1) // len(others))
        alone.append(Alone(recipe, point, chosen.error / found.divisor))
    alone.sort(key=lambda one: one.point)
    element_count = sum(unit.element_count for unit in found.units)
    skipped = [row for row in search.skipped if row[0] not in set(search.kept)]
    return Frontier(path, found.nbytes_now, found.fixed_nbytes, element_count, walked(found), alone, skipped)
