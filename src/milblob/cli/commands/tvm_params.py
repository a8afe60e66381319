"""milblob tvm params: parameters of a Model Library Format archive, out and in."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ...arguments import Names
from ...closeness import unknown
from .. import options
from ..calling import call, complete_first
from ..selection import check_select, kept
from ..terminal.progress import shown
from .convert import say_written
from .refit import say_refit

if TYPE_CHECKING:
    from ...model.lazy import LazyTensor
    from ...tvm import Library

EXAMPLES = ("tvm params model.tar -o weights.npz", "tvm params model.tar --with parameters.npz -o retrained.tar")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="ARCHIVE", help=options.ARCHIVE)
    target = f"{options.NEW_FILES} or directory/"
    target += "; with --with the new archive, of the kind that ARCHIVE is; default: ARCHIVE itself"
    options.add_output(parser, "-o", "--output", help=target)
    new = f"new values: {options.FILES}, or another archive; names, shapes and dtypes must fit"
    parser.add_argument("--with", dest="new", metavar="NEW", help=new)
    module = "only this module, whose parameters then have their own names, without MODULE/"
    parser.add_argument("-m", "--module", metavar="MODULE", help=module)
    options.add_select(parser, "only parameters whose name matches")
    parser.add_argument("--cast", action="store_true", help="convert floats to floats and integers to integers")
    options.add_force(parser, "replace what is at OUT")
    options.add_dry_run(parser)
    options.add_reporting(parser, verbose="name each parameter", json="print what was done as one JSON object")


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ...formats.directories import is_archive

    if not is_archive(arguments.model):
        raise ValueError(f"{arguments.model}: expected an archive (.tar, .tar.gz or its directory), got something else")
    return _write_out(arguments) if arguments.new is None else _take_in(arguments)


def _write_out(arguments: Namespace) -> int:
    from ...formats.write import save
    from ...rewrite.convert import written
    from ...rewrite.destination import require_outside
    from ...tvm import open as open_library

    target = arguments.output
    if target is None:
        raise ValueError("output: expected -o OUT, or --with NEW and the archive to change, got neither")
    if arguments.cast or arguments.dry_run:
        raise ValueError(f"output {target}: expected --with NEW, which --cast and --dry-run are about")
    require_outside(arguments.model, target)
    with ExitStack() as stack:
        library = stack.enter_context(open_library(arguments.model, max_nbytes=arguments.max_nbytes))
        named = _named(library, arguments.module)
        chosen = {name: named[name] for name in kept(named, arguments, arguments.model)}
        if not chosen:
            raise ValueError(f"parameters of {arguments.model}: expected at least one, got none")
        report = written([arguments.model], target, chosen)
        with shown(arguments) as progress:
            save(chosen, target, force=arguments.force, progress=progress)
    say_written(arguments, report)
    return 0


def _named(library: "Library", module: str | None) -> "dict[str, LazyTensor]":
    """The parameters: of one module by their own names, of all as `named_parameters` calls them.

    Raises: KeyError: no module is called that.
    """
    from ...tvm.arrays import named_parameters

    if module is None:
        return {name: owner.params[key] for name, (owner, key) in named_parameters(library).items()}
    _require_module(library, module)
    return dict(library.modules[module].params)


def _require_module(library: "Library", module: str) -> None:
    if module not in library.modules:
        raise KeyError(unknown("module", module, library.modules, library.path))


def _take_in(arguments: Namespace) -> int:
    from ...refitting.refit import refit

    complete_first(arguments, arguments.model)
    check_select(arguments, arguments.model)
    done = call(
        refit, arguments, arguments.model, arguments.new, mapping=_mapping(arguments), destination=arguments.output
    )
    say_refit(done, arguments)
    return 0


def _mapping(arguments: Namespace) -> Mapping[str, Names]:
    """Where the arrays go: with -m to that module, if there are several."""
    from ...formats.read import open_arrays
    from ...tvm import open as open_library

    if arguments.module is None:
        return {}
    with open_library(arguments.model, max_nbytes=arguments.max_nbytes) as library:
        _require_module(library, arguments.module)
        if len(library.modules) == 1:
            return {}
    with open_arrays(arguments.new, max_nbytes=arguments.max_nbytes) as arrays:
        return {name: f"{arguments.module}/{name}" for name in arrays}
