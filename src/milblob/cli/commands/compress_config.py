"""The file of milblob compress --config: recipes and goals as TOML or JSON, and their short names."""

import os
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...arguments import parse_nbytes
from ...closeness import hint
from ...errors import FormatError
from ...jsontext import MAX_NBYTES, parse_json

if TYPE_CHECKING:
    from ...compressing.recipe import Recipe


def apply(arguments: Namespace, has_way: bool) -> None:
    """Read the file of --config, if it is given, and set the options that the command line leaves out.

    Sets `recipe`, `recipes`, `per_name` and `op_types`, which have no options, and the goals and limits that have
    options. An option on the command line wins.

    `has_way`: whether the command line has a recipe, a goal, a plan or --frontier: those of the file are then unused.
    Raises: OSError: the file cannot be read. FormatError: it is not TOML or JSON, or a key or value in it is wrong.
    """
    arguments.recipe, arguments.recipes, arguments.per_name, arguments.op_types = None, [], {}, {}
    path = arguments.config
    if path is None:
        return
    document = _read(path)
    for key, value in document.items():
        if key not in _KEYS:
            raise FormatError(f"{key!r:.60} is not a key of a configuration{hint(str(key), _KEYS)}", file=path)
        try:
            found = _KEYS[key](value)
        except (TypeError, ValueError) as error:
            raise FormatError(f"{key}: {error}", file=path) from None
        if has_way and key in _WAYS:
            continue
        if getattr(arguments, key) in (None, [], {}):
            setattr(arguments, key, found)


def _read(path: str) -> dict[str, Any]:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (".toml", ".json"):
        raise ValueError(f"--config {path}: expected a .toml or .json file, got {suffix or 'no suffix'}")
    with open(path, "rb") as file:  # noqa: PTH123
        data = file.read(MAX_NBYTES + 1)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"configuration: expected UTF-8, got {error.reason}", file=path) from None
    document = parse_json(text, "configuration", path, unique=True) if suffix == ".json" else _toml(text, path)
    if not isinstance(document, dict):
        raise FormatError(f"configuration: expected an object, got {type(document).__name__}", file=path)
    return document


def _toml(text: str, path: str) -> Any:
    import tomllib

    if len(text) > MAX_NBYTES:
        raise FormatError(f"configuration: expected at most {MAX_NBYTES} bytes, got more", file=path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "nesting too deep"
        raise FormatError(f"configuration: expected TOML, got {message}", file=path) from None


def recipe(value: Any) -> "Recipe":
    """Return the recipe that a value of the file means: a short name, a table, or a list of these for a joint recipe.

    Raises: TypeError, ValueError: it means none.
    """
    from ...compressing.parse_recipe import NAMED, as_recipe
    from ...compressing.recipe import Joint

    if isinstance(value, str) and value not in NAMED:
        raise ValueError(f"expected a recipe such as {', '.join(NAMED)}, got {value!r:.60}")
    if isinstance(value, list):
        if not value or any(isinstance(one, list) for one in value):
            raise ValueError("expected a list of recipes, got an empty or a nested one")
        steps = tuple(map(recipe, value))
        return steps[0] if len(steps) == 1 else Joint(steps)
    return as_recipe(value)


def _recipe_or_none(value: Any) -> "Recipe | None":
    return None if value is None or value == "none" else recipe(value)


def _table(of: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the parser of a table whose values are parsed by `of`."""

    def parse(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError(f"expected a table, got {type(value).__name__}")
        found = {}
        for key, one in value.items():
            try:
                found[key] = of(one)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{key}: {error}") from None
        return found

    return parse


def _recipes(value: Any) -> "list[Recipe]":
    if not isinstance(value, list) or not value:
        raise TypeError("expected a list of recipes")
    return [recipe(one) for one in value]


def _globs(value: Any) -> list[str]:
    globs = [value] if isinstance(value, str) else value
    if not isinstance(globs, list) or not globs or not all(isinstance(glob, str) for glob in globs):
        raise TypeError("expected a glob or a list of globs")
    return globs


def _size(value: Any) -> int:
    return parse_nbytes(value) if isinstance(value, str) else _count(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a whole number of 0 or more, got {value!r:.60}")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"expected a number, got {value!r:.60}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError("expected a number in the range of float64, got a larger one") from None


_WAYS = ("recipe", "size", "bits", "sqnr")
_KEYS: dict[str, Callable[[Any], Any]] = {
    "recipe": recipe,
    "recipes": _recipes,
    "per_name": _table(_recipe_or_none),
    "op_types": _table(_recipe_or_none),
    "size": _size,
    "bits": _number,
    "sqnr": _number,
    "sensitivity": lambda value: list(_table(_number)(value).items()),
    "select": _globs,
    "min_size": _count,
}
"""Each key of the file, and what reads its value. The keys are those of the arguments of `milblob.compress`."""
