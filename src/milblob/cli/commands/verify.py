"""milblob verify: do two models predict the same?"""

import math
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .. import options
from ..inputs import add_function, add_inputs, open_session, read_inputs, require_function_used
from ..terminal import output, tables
from ..terminal.failures import EXIT_FINDINGS
from ..terminal.progress import shown
from .run import require_npz, save

if TYPE_CHECKING:
    from ... import OutputDifference, VerifyReport

EXAMPLES = (
    "verify Model.mlpackage Half.mlpackage --max-error 0.01",
    "verify Model.mlpackage Model_chunk*.mlpackage -i inputs.npz",
)
_COLUMNS = (
    tables.Column("output", is_name=True),
    tables.Column("dtype", drop=0),
    tables.Column("differ", is_right=True, drop=1),
    tables.Column("largest", is_right=True),
    tables.Column("relative", is_right=True),
    tables.Column("SQNR", is_right=True),
    tables.Column("limit", is_right=True),
    tables.Column(""),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    what = ".mlpackage, .mlmodelc, .mlmodel with ML Programs, or .onnx"
    parser.add_argument("a", metavar="A", help=what)
    others = "another one with the same inputs and outputs, or several that run one after another, as chunk makes them"
    parser.add_argument("b", metavar="B", nargs="+", help=others)
    add_inputs(parser, "one more axis in front holds several runs; default: random ones")
    parser.add_argument(
        "--runs", metavar="N", type=options.count, help="random runs; default: 4, or one for each shape"
    )
    parser.add_argument("--seed", metavar="N", type=options.count, help="seed of the random inputs; default: 0")
    max_error = "largest difference allowed, as a share of the output's range; default: 2e-5, or 8e-3 in half precision"
    parser.add_argument("--max-error", metavar="X", type=options.at_least_0, help=max_error)
    options.add_output(
        parser, "--worst", metavar="FILE", help="write the inputs of the worst run to this .npz file, for -i"
    )
    add_function(parser)
    options.add_force(parser, "replace the file of --worst")
    options.add_reporting(parser, quiet="print nothing, no progress", verbose="also name the models and the inputs")


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ... import verify
    from ...running.verify import rounds_each
    from ...storage.output import NewFile

    if arguments.worst is not None:
        for model in (arguments.a, *arguments.b):
            require_npz(model, arguments.worst)
    if arguments.inputs:
        for option, value in (("--runs", arguments.runs), ("--seed", arguments.seed)):
            if value is not None:
                raise ValueError(f"{option}: expected none with -i, which gives the inputs, got one")
    require_function_used(arguments, arguments.a, *arguments.b)
    with ExitStack() as stack:
        worst = None
        if arguments.worst is not None:
            worst = stack.enter_context(NewFile(arguments.worst, force=arguments.force))
        others = arguments.b if len(arguments.b) > 1 else arguments.b[0]
        is_rounded = rounds_each(arguments.a, others)
        first, second = (
            stack.enter_context(open_session(one, arguments, round_each=is_rounded)) for one in (arguments.a, others)
        )
        inputs = read_inputs(arguments, first.inputs) if arguments.inputs else None
        with shown(arguments) as progress:
            found = verify(
                first, second, inputs, runs=arguments.runs, seed=arguments.seed or 0, max_error=arguments.max_error,
                progress=progress,
            )  # fmt: skip
        if worst is not None:
            save(worst, _stacked(found.worst))
    if arguments.json:
        output.print_json(found.to_dict())
    elif not arguments.quiet:
        _print(found, arguments)
    return 0 if found.is_same else EXIT_FINDINGS


def _stacked(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Inputs as -i takes them: of several runs with an axis in front; of runs that are not alike, the last one's."""
    import numpy as np

    arrays = [{name: np.asarray(value) for name, value in run.items()} for run in runs]
    shapes = [{name: array.shape for name, array in run.items()} for run in arrays]
    if len(arrays) == 1 or any(one != shapes[0] for one in shapes):
        return arrays[-1]
    return {name: np.stack([run[name] for run in arrays]) for name in arrays[0]}


def _print(found: "VerifyReport", arguments: Namespace) -> None:
    print_report(found)
    if arguments.verbose:
        how = "with the inputs given" if arguments.inputs else f"with random inputs of seed {arguments.seed or 0}"
        output.say(f"ran {found.a} and {found.b} {how}")
    if arguments.worst is not None:
        output.say(f"the inputs of the worst run to {arguments.worst}")


def print_report(found: "VerifyReport") -> None:
    """Print a row for each output, and a summary."""
    tables.print_table(_COLUMNS, [_cells(one) for one in found.outputs])
    print()
    message = "same" if found.is_same else "different"
    tables.print_text(f"{message}: {output.plural(found.runs, 'run')}, {_summary(found)}")


def _summary(found: "VerifyReport") -> str:
    beyond = [one for one in found.outputs if not one.is_within]
    if beyond:
        worst = max(beyond, key=lambda one: one.relative)
        most = f"most {worst.name} in run {worst.run}"
        return f"{len(beyond)} of {output.plural(len(found.outputs), 'output')} beyond the limit, {most}"
    return "nothing differs" if not any(one.differing for one in found.outputs) else "all outputs within their limits"


def _cells(one: "OutputDifference") -> list[str]:
    sqnr = "" if not one.differing else f"{one.sqnr:.1f}" if math.isfinite(one.sqnr) else "-"
    return [
        one.name, one.dtype, output.share(one.differing, one.total), f"{one.largest:.3g}", f"{one.relative:.3g}", sqnr,
        f"{one.limit:.3g}", "" if one.is_within else "beyond",
    ]  # fmt: skip
