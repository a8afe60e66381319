"""A plan of a compression: the recipe of each weight, as a file that can be read, edited and applied."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..arguments import as_path, require
from ..errors import FormatError
from ..jsontext import parse_json
from ..results import Result, plain
from ..storage.output import NewFile
from ..storage.transfer import write_json
from ..wording import escape
from .parse_recipe import as_recipe
from .recipe import Recipe

KIND, VERSION = "compress plan", 1
_FIGURES = frozenset(["nbytes", "nbytes_after", "sqnr"])


@dataclass(frozen=True, repr=False)
class PlannedWeight(Result):
    """What becomes of one weight.

    Attributes:
        recipe: None to leave the weight as it is.
        figures: for people to read: "nbytes" and "nbytes_after" as stored, "sqnr" in dB (None: nothing is lost).

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8", dry_run=True)
        >>> planned = report.plan.weights["head_weight"]
        >>> planned.recipe, planned.figures["nbytes_after"]
        (Linear(dtype='int8', mode='linear_symmetric', granularity='per_channel', block=32, search=False), 5092)
    """

    recipe: Recipe | None
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe and the figures, each under its name, as JSON can hold them."""
        return {"recipe": plain(self.recipe), **plain(self.figures)}


@dataclass(frozen=True, repr=False)
class CompressPlan(Result):
    """The recipe of each weight.

    Attributes:
        weights: by name. Weights of the model that are not in it are left as they are.

    Examples:
        >>> plan = milblob.compress("demo.mlpackage", "small.mlpackage", milblob.Goal(bits=5), dry_run=True).plan
        >>> plan.save("plan.json")
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", milblob.CompressPlan.load("plan.json"))
        >>> report.plan.recipes == {name: recipe for name, recipe in plan.recipes.items() if recipe}
        True
    """

    weights: Mapping[str, PlannedWeight]

    @property
    def recipes(self) -> dict[str, Recipe | None]:
        """The recipes alone."""
        return {name: weight.recipe for name, weight in self.weights.items()}

    @classmethod
    def load(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> "CompressPlan":
        """Return the plan in a file that `save` has written, or in its dict.

        Raises:
            OSError: it cannot be read. FormatError: a file without a plan. ValueError: a dict without one, an unknown
                recipe or option; the weight is named. TypeError: something else.
        """
        file, document = None, source
        if isinstance(source, str | os.PathLike):
            file = as_path(source)
            with open(file, "rb") as opened:  # noqa: PTH123
                document = parse_json(opened.read(), "plan", file, unique=True)
            if not isinstance(document, dict):
                raise FormatError(f"plan: expected an object, got {type(document).__name__}", file=file)
        require("plan", document, Mapping, "the dict of a plan, or the path of its file")
        try:
            return _parsed(cast(Mapping[str, Any], document))
        except (ValueError, TypeError) as error:
            if file is None:
                raise
            raise FormatError(str(error), file=file) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON can hold it."""
        return {"milblob": KIND, "version": VERSION, **super().to_dict()}

    def save(self, destination: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the plan to a JSON file, atomically.

        Args:
            destination: path of the file.
            force: replace it if it exists.

        Raises:
            FileExistsError: it exists. OSError: it cannot be written. As `write`.
        """
        with NewFile(as_path(destination), force=force) as new:
            self.write(new)

    def write(self, new: NewFile) -> None:
        """Write the plan to a file that has no name yet.

        Raises:
            OSError: it cannot be written. ValueError: a recipe with a function, which no file can hold; the weight is
                named.
        """
        for name, weight in self.weights.items():
            if weight.recipe is not None and not weight.recipe.is_data:
                message = "expected recipes that come back from JSON, got one with a lut_function"
                raise ValueError(escape(f"plan: {message} for {name} (leave it out, and give it in per_name)"))
        write_json(new.fd, self.to_dict())


def _parsed(document: Mapping[str, Any]) -> CompressPlan:
    if document.get("milblob") != KIND:
        raise ValueError(f"plan: expected milblob: {KIND!r}, got {document.get('milblob')!r:.60}")
    if type(document.get("version")) is not int or document["version"] != VERSION:  # 1.0 and True equal 1
        raise ValueError(f"version of plan: expected {VERSION}, got {document.get('version')!r:.60}")
    unknown = sorted(set(document) - {"milblob", "version", "weights"}, key=str)
    if unknown:
        raise ValueError(f"plan: expected milblob, version and weights, got {unknown[0]!r:.60}")
    rows = document.get("weights")
    require("weights of plan", rows, Mapping, "an object with the name of each weight")
    return CompressPlan({name: _planned(name, row) for name, row in rows.items()})  # type: ignore[union-attr]


def _planned(name: Any, row: Any) -> PlannedWeight:
    require("name in plan", name, str, "the name of a weight")
    require(f"{name} in plan", row, Mapping, "an object with its recipe")
    unknown = sorted(set(row) - _FIGURES - {"recipe"}, key=str)
    if unknown or "recipe" not in row:
        got = repr(unknown[0])[:60] if unknown else "none"
        raise ValueError(f"{name} in plan: expected a recipe and the figures {', '.join(sorted(_FIGURES))}, got {got}")
    try:
        recipe = None if row["recipe"] is None else as_recipe(row["recipe"])
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name} in plan: {error}") from None
    return PlannedWeight(recipe, {key: row[key] for key in row if key != "recipe"})
