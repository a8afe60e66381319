"""Recipes from their dicts and from JSON."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..arguments import require
from ..closeness import hint
from ..errors import FormatError
from ..jsontext import parse_json
from ..lossy.palettize import NBITS
from ..wording import enumerated
from .linear_recipe import Linear
from .palette_recipe import Palette
from .prune_recipe import Prune
from .recipe import Joint, Recipe, nested_error

RECIPES: dict[str, type[Recipe]] = {"Linear": Linear, "Palette": Palette, "Prune": Prune, "Joint": Joint}
_KINDS = enumerated([name for name in RECIPES if name != "Joint"], "or")
NAMED: dict[str, Recipe] = {
    **{dtype: Linear(dtype) for dtype in ("int8", "uint8", "int4", "uint4")},
    **{f"palette{bits}": Palette(bits) for bits in NBITS},
    "unique": Palette(mode="unique"),
}
"""Recipes that have a name."""


def as_recipe(value: Any) -> Recipe:
    """Return a recipe that is given as such, by its name ("int8"), as its dict or as its JSON.

    Raises: TypeError: something else. ValueError: an unknown recipe or option, or a wrong value; it is named.
    """
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        if value in NAMED:
            return NAMED[value]
        if not value.lstrip().startswith("{"):
            message = f"recipe: expected a {_KINDS}, one as JSON, or one of {', '.join(NAMED)}"
            raise ValueError(f"{message}, got {value!r:.60}{_advice(value)}")
        try:
            value = parse_json(value, "JSON", None, unique=True)
        except FormatError as error:
            message = f"recipe: expected a {_KINDS}, or one as JSON"
            raise ValueError(f"{message}, got {value!r:.60} ({error})") from None
    require("recipe", value, Mapping, f"a {_KINDS}, its name, or one as JSON")
    kind = RECIPES.get(value["recipe"]) if isinstance(value.get("recipe"), str) else None
    if kind is None:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {value.get('recipe')!r:.60}")
    options = {key: option for key, option in value.items() if key != "recipe"}
    known = [one.name for one in fields(kind)]
    unknown = sorted(set(options).difference(known), key=str)
    if unknown:
        raise ValueError(f"{value['recipe']}: expected its options {', '.join(known)}, got {unknown[0]!r:.60}")
    if kind is Joint:
        if not options:
            raise ValueError("Joint: expected recipes, got none")
        require("recipes", options["recipes"], list | tuple, "a list of recipes")
        # Before any is made: a Joint may hold another in turn, and so on.
        if any(isinstance(one, Mapping) and one.get("recipe") == "Joint" for one in options["recipes"]):
            raise nested_error()
        return Joint(tuple(as_recipe(one) for one in options["recipes"]))
    return kind(**{key: tuple(option) if isinstance(option, list) else option for key, option in options.items()})


def _advice(name: str) -> str:
    """Return what may be meant by a text that is not the name of a recipe; "" if nothing is like it."""
    text = name.lower()
    if text.endswith(".json"):
        return " (CompressPlan.load reads a plan)"
    if text.startswith(("prune", "spars")):
        return "; a part of the elements becomes zero with Prune(0.5)"
    if text in ("fp16", "float16", "half", "fp32", "float32", "bf16", "bfloat16"):
        return '; repack(..., cast="float16") changes the dtype'
    if re.fullmatch(r"\d+(\.\d+)?\s*[kmg](i?b)?", text):
        return f"; a size is Goal(size={name!r:.60})"
    letters, digits = re.sub(r"[^a-z]", "", text), re.sub(r"\D", "", text)
    meant = f"palette{digits}" if letters.startswith(("pal", "lut", "kmeans", "bit")) else letters + digits
    if meant in NAMED:
        return f"; did you mean {meant}?"
    return hint(text, NAMED)
