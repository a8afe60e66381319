"""Commands that take many models: their arguments, and the loop; one that cannot be read does not stop the rest."""

import contextlib
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from glob import has_magic
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ..mirrored import is_url, shown_url
from . import options
from .sources import add_storage_options, check_options, local_source, require_url
from .terminal import output, tables
from .terminal.failures import EXIT_ERROR, message_of, report
from .terminal.streams import is_of_stdout

if TYPE_CHECKING:
    from ..batching.find import Found

Document = dict[str, Any]


def add_finding(parser: options.Parser) -> Any:
    """Add -r and --files-from, which `found_in` reads; return their group."""
    parser.set_defaults(usage=f"see {parser.prog} --help")
    title = "MODEL may also be a glob in quotes, such as 'models/**/*.mlpackage'"
    group = parser.add_argument_group("many models", title)
    group.add_argument("-r", "--recursive", action="store_true", help="of a directory, take every model below it")
    listed = "also the models that FILE names, one on each line; -: those of stdin"
    group.add_argument("--files-from", metavar="FILE", help=listed)
    return group


def add_models(parser: options.Parser, description: str = options.ANY) -> None:
    """Add the models of a command that reads each of them, which `run_each` goes through, and all options for many."""
    parser.add_argument("models", metavar="MODEL", nargs="*", help=description)
    add_many(parser)


def add_many(parser: options.Parser) -> None:
    """Add the options of `run_each`: how to find models, to report each, and to stop."""
    group = add_finding(parser)
    lines = "print one JSON object for each model, on one line, when it is done"
    group.add_argument("--json-lines", action="store_true", help=lines)
    group.add_argument("--fail-fast", action="store_true", help="stop at the first model that cannot be processed")
    add_storage_options(parser, is_each=True)


def run_each(
    arguments: Namespace,
    run: Callable[[str, Namespace], tuple[int, Document | None]],
    *,
    is_headed: bool = True,
    is_list: bool = False,
) -> int:
    """Run a command for each of `arguments.models`, and those that the options of `add_many` name.

    With --json they are one object: that of the only model, or {"models": [...]}. A document for --json-lines is
    printed when it is there, and not kept.

    Args:
        arguments: of the command; `is_several` is set to whether there are several models.
        run: prints the report of one model, or returns it for --json; also returns the exit status.
        is_headed: whether to print the path before each report if there are several models.
        is_list: whether --json prints a list for one model too.

    Returns:
        The greatest exit status.

    Raises:
        ValueError: no model, an empty list; storage options without a URL. What `run` raises for the only model.
    """
    as_lines = getattr(arguments, "json_lines", False)
    arguments.json = arguments.json or as_lines
    arguments.is_several, found = _models_of(arguments)
    status, number, is_whole = 0, -1, False
    documents, urls = [], list[str]()
    for number, source in enumerate(found):
        if is_headed and arguments.is_several and not arguments.json and number:
            print()
        at = [source if isinstance(source, str) else source[0]]
        urls += [at[0]] if not urls and is_url(at[0]) else []
        try:
            if not isinstance(source, str):
                raise source[1]
            with local_source(source, arguments) as path:
                at = [path]
                if is_headed and arguments.is_several and not arguments.json:
                    tables.print_text(f"{path}:")
                result, document = run(path, arguments)
        except Exception as error:
            if not (arguments.is_several or as_lines) or is_of_stdout(error):
                raise
            result = report(error, named(at[0]))
            document = {"path": named(at[0]), "error": message_of(error)} if as_lines else None
        status = max(status, result)
        if document is not None and as_lines:
            output.print_json_line(document)
        elif document is not None:
            documents.append(document)
        if result >= EXIT_ERROR and getattr(arguments, "fail_fast", False):
            break
    else:
        is_whole = True
    if number < 0:
        raise ValueError(f"--files-from: expected a list of models, got an empty one: {arguments.files_from}")
    if arguments.json and not as_lines and (documents or is_list or arguments.is_several):
        output.print_json({"models": documents} if is_list or arguments.is_several else documents[0])
    if is_whole and getattr(arguments, "files_from", None) is not None:  # else it was looked at before
        require_url(arguments, urls or [f"none in {arguments.files_from}"])
    return status


def found_in(arguments: Namespace, given: Iterable[str]) -> "Iterator[Found]":
    """Yield the models of a command, by -r, globs and --files-from.

    Raises: As `find_models`. OSError: the file of --files-from cannot be read.
    """
    from ..batching.find import find_models

    yield from find_models(given, recursive=arguments.recursive)
    with _list_of(arguments) as listed:
        yield from find_models([], recursive=arguments.recursive, listed=listed)


def named(path: str) -> str:
    """Return what messages call a source: a URL without user, password and query."""
    return shown_url(path) if is_url(path) else path


def _models_of(arguments: Namespace) -> tuple[bool, Iterable[str | tuple[str, Exception]]]:
    """Return whether there are several models, and each of them, or what was given and the error in finding it."""
    if not hasattr(arguments, "files_from"):  # a command without these options
        return len(arguments.models) > 1, arguments.models
    if not arguments.models and arguments.files_from is None:
        raise ValueError(f"expected MODEL or --files-from FILE, got neither; {arguments.usage}")
    if arguments.files_from is None:
        check_options(arguments, arguments.models)
        if not arguments.recursive and not any(map(has_magic, arguments.models)):
            return len(arguments.models) > 1, arguments.models
    found = _found_each(arguments)
    if arguments.recursive or arguments.files_from is not None:
        return True, found
    first = list(islice(found, 2))
    return len(first) > 1, chain(first, found)


def _found_each(arguments: Namespace) -> Iterator[str | tuple[str, Exception]]:
    from ..batching.find import find_models

    for given in arguments.models:
        try:
            yield from (found.path for found in find_models([given], recursive=arguments.recursive))
        except (ValueError, OSError) as error:
            yield given, error
    with _list_of(arguments) as listed:
        for line in listed:
            try:
                yield from (found.path for found in find_models([], recursive=arguments.recursive, listed=[line]))
            except (ValueError, OSError) as error:
                yield line, error


@contextlib.contextmanager
def _list_of(arguments: Namespace) -> Iterator[Iterable[str]]:
    """Yield the paths that --files-from names, as they come."""
    if arguments.files_from is None:
        yield ()
        return
    from ..batching.find import read_list

    if arguments.files_from == "-":
        yield read_list(sys.stdin.buffer)
    else:
        with open(arguments.files_from, "rb") as file:  # noqa: PTH123
            yield read_list(file)
