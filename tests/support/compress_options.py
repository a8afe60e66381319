"""Options of `milblob.compress` by name alone, for tests that take them from tables."""

import milblob

GOAL = ("size", "bits", "sqnr", "recipes", "sensitivity", "errors")
SCOPE = ("select", "op_types", "per_name", "min_size")
GUIDANCE = ("weights", "mapping", "importance")


def grouped(**options):
    """Return the arguments of `compress`: a goal, a scope and a guidance of those options that belong to them.

    `plan` is a recipe too.

    Raises:
        What `Goal`, `Scope` and `Guidance` raise.
    """
    if "plan" in options:
        options["recipe"] = options.pop("plan")
    goal = _take(options, GOAL, milblob.Goal, "recipe")
    return scoped(**options) | goal


def scoped(**options):
    """Return the arguments of `compress_frontier`, which takes the options of a goal as they are."""
    found = _take(options, SCOPE, milblob.Scope, "scope") | _take(options, GUIDANCE, milblob.Guidance, "guidance")
    return options | found  # without what `found` has taken


def _take(options, names, kind, argument):
    given = {name: options.pop(name) for name in names if name in options}
    return {argument: kind(**given)} if given else {}
