"""Commands that take several models: an unreadable model is reported, and the others are still processed."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from .terminal import output, tables
from .terminal.failures import report

Document = dict[str, Any]


def run_each(
    arguments: Namespace, run: Callable[[str, Namespace], tuple[int, Document | None]], *, is_headed: bool = True
) -> int:
    """Run a command for each of `arguments.models`.

    With --json they are one object: that of the only model, or {"models": [...]}.

    Args:
        arguments: of the command.
        run: prints the report of one model, or returns it for --json; also returns the exit status.
        is_headed: whether to print the path before each report if there are several models.

    Returns:
        The greatest exit status.
    """
    paths = arguments.models
    status = 0
    documents = []
    for number, path in enumerate(paths):
        if is_headed and len(paths) > 1 and not arguments.json:
            if number:
                print()
            tables.print_text(f"{path}:")
        try:
            found, document = run(path, arguments)
        except Exception as error:
            if len(paths) == 1:
                raise
            found, document = report(error, path), None
        status = max(status, found)
        if document is not None:
            documents.append(document)
    if arguments.json:
        output.print_json(documents[0] if len(paths) == 1 else {"models": documents})
    return status
