"""The options of milblob compress that choose recipes: goals, plans and the frontier."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from ...wording import some
from .. import options
from ..calling import call
from ..selection import check_select
from ..terminal import output, tables

if TYPE_CHECKING:
    from ...compressing.compress_plan import CompressPlan
    from ...compressing.frontier import Frontier
    from ...compressing.options import Goal, Scope
    from ...onnx import OutputSensitivity

_MAX_NAMES = 8
GOALS = ("size", "bits", "sqnr")
KINDS = (*GOALS, "plan", "frontier")
"""What may be given instead of a recipe."""

_COLUMNS = (
    tables.Column("recipe alone"),
    tables.Column("size", is_right=True),
    tables.Column("bits", is_right=True, drop=0),
    tables.Column("SQNR", is_right=True),
    tables.Column("best mixture", is_right=True),
)


def add_options(parser: ArgumentParser, kinds: Any) -> None:
    """Add the options. `kinds`: the group of mutually exclusive options."""
    kinds.add_argument("--size", metavar="SIZE", type=options.size, help="all weights take at most SIZE, such as 40M")
    kinds.add_argument("--bits", metavar="N", type=float, help="at most N bits for each element, on average")
    kinds.add_argument("--sqnr", metavar="DB", type=float, help="at least DB for each weight, else leave it as it is")
    kinds.add_argument("--plan", metavar="FILE", help="apply a plan, a JSON file that --save-plan wrote")
    options.add_output(
        kinds, "--frontier", metavar="SVG", help="draw size against error to this file, and compress nothing"
    )
    add = parser.add_argument
    sensitivity = "the error of weights that match GLOB counts FACTOR times; may be repeated"
    add("--sensitivity", metavar="GLOB=FACTOR", action="append", type=_factor, default=[], help=sensitivity)
    calibrate = "inputs by name, as for milblob verify -i: minimize the error of the outputs, not of the weights"
    add("--calibrate", metavar="FILE", help=calibrate)
    options.add_output(
        parser,
        "--save-plan",
        metavar="FILE",
        help="write what is done to a JSON file, to be edited and applied with --plan",
    )


def check(arguments: Namespace) -> None:
    """Refuse options that would do nothing. Raises: ValueError: there is one."""
    from ...rewrite.destination import require_outside
    from ...storage.output import NewFile

    has_goal = arguments.frontier is not None or any(getattr(arguments, name) is not None for name in GOALS)
    of_goals = (
        ("recipes of --config", arguments.recipes),
        ("--sensitivity", arguments.sensitivity),
        ("--calibrate", arguments.calibrate),
    )
    for option, value in of_goals:
        if value and not has_goal:
            raise ValueError(f"{option}: expected --size, --bits, --sqnr or --frontier, which it is for, got none")
    not_of_plans = (
        ("-k", arguments.select),
        ("--min-size", arguments.min_size is not None),
        ("per_name of --config", arguments.per_name),
        ("op_types of --config", arguments.op_types),
    )
    for option, is_given in not_of_plans:
        if arguments.plan is not None and is_given:
            raise ValueError(f"{option}: expected none with --plan, whose plan names the weights, got one")
    for path in (arguments.save_plan, arguments.frontier):  # before the work, not after it
        if path is None:
            continue
        for model in (arguments.model, arguments.output):
            if model is not None:
                require_outside(model, path)
        NewFile(path, force=arguments.force).discard()
    if arguments.frontier is None:
        if arguments.output is None:
            raise ValueError("-o: expected the path of the result, got none")
        return
    for option, value in (("-o", arguments.output), ("--save-plan", arguments.save_plan), ("-n", arguments.dry_run)):
        if value:
            raise ValueError(f"{option}: expected none with --frontier, which compresses nothing, got one")


def goal(arguments: Namespace, errors: "OutputSensitivity | None") -> "Goal | CompressPlan | None":
    """Return the goal or the plan that the options describe; None without one.

    Raises: As `Goal` and `CompressPlan.load`.
    """
    from ...compressing.compress_plan import CompressPlan
    from ...compressing.options import Goal

    if arguments.plan is not None:
        return CompressPlan.load(arguments.plan)
    found = {name: getattr(arguments, name) for name in GOALS if getattr(arguments, name) is not None}
    return Goal(**found, **ladder(arguments), errors=errors) if found else None


def ladder(arguments: Namespace) -> dict[str, Any]:
    """Return `recipes` and `sensitivity`, if they are given."""
    found: dict[str, Any] = {"recipes": arguments.recipes} if arguments.recipes else {}
    return found | ({"sensitivity": dict(arguments.sensitivity)} if arguments.sensitivity else {})


def calibration(arguments: Namespace) -> "OutputSensitivity | None":
    """Return what measures the outputs, if --calibrate is given; it runs the model.

    Raises: As `OutputSensitivity`, and opening the file.
    """
    from ...model import open as opening

    if arguments.calibrate is None:
        return None
    from ... import OutputSensitivity
    from ..inputs import read_arrays

    inputs = read_arrays(arguments.calibrate, arguments)
    with opening.open_model(arguments.model, max_nbytes=arguments.max_nbytes) as model:
        return OutputSensitivity(model, inputs)


def say_unmeasured(errors: "OutputSensitivity | None") -> None:
    """Report, with -q too, the weights that --calibrate did not measure: it has no effect on them."""
    if errors is not None and errors.unmeasured:
        names = some(sorted(errors.unmeasured), _MAX_NAMES)
        output.say(f"--calibrate: measured by their own error, for they cannot be replaced alone: {names}")


def run_frontier(arguments: Namespace, scope: "Scope", extras: dict[str, Any]) -> int:
    """Draw the frontier and print its table. `extras`: importance, errors, nan and recompress."""
    from ...compressing.frontier import compress_frontier
    from ...compressing.options import Guidance
    from ...storage.output import NewFile
    from ...storage.transfer import write_at

    check_select(arguments, arguments.model)
    with NewFile(arguments.frontier, force=arguments.force) as new:
        guidance = Guidance(importance=extras.pop("importance"))
        frontier = call(
            compress_frontier, arguments, arguments.model, scope=scope, guidance=guidance,
            sensitivity=dict(arguments.sensitivity) or None, **extras,
        )  # fmt: skip
        if not frontier.alone:
            raise ValueError(f"--frontier: expected weights that can be compressed in {arguments.model}, got none")
        write_at(new.fd, [frontier.to_svg().encode()], 0)
    if arguments.json:
        output.print_json(frontier.to_dict())
        return 0
    _print(frontier)
    if arguments.verbose:
        for name, reason in frontier.skipped:
            output.say(f"{name} left as it is: {reason}")
    if not arguments.quiet:
        sizes = f"{output.size(frontier.points[0].nbytes)} to {output.size(frontier.nbytes)}"
        output.say(f"{output.plural(len(frontier.points), 'size')} of {sizes}, drawn to {arguments.frontier}")
    return 0


def _print(frontier: "Frontier") -> None:
    from ...compressing.frontier_svg import short

    rows = [
        (
            short(one.recipe),
            output.size(one.point.nbytes),
            f"{frontier.bits(one.point.nbytes):.2f}",
            _decibel(one.point.error),
            _decibel(one.chosen_error),
        )
        for one in frontier.alone
    ]
    tables.print_table(_COLUMNS, rows)


def _decibel(error: float) -> str:
    from ... import decibels

    return f"{decibels.of_power(1.0, error):.1f} dB" if error > 0 else "exact"


def _factor(text: str) -> tuple[str, float]:
    glob, equals, factor = text.rpartition("=")
    try:
        if equals and glob:
            return glob, float(factor)
    except ValueError:
        pass
    raise ArgumentTypeError(f"expected GLOB=FACTOR, such as head*=4, got {text!r}")
