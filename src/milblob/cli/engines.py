"""--executor and --memory: the engine whose workers do the work of a command."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from . import options


def add_executor(parser: options.Parser) -> None:
    """Add --executor and --memory, for commands whose work is given out in pieces."""
    add_engine(parser, "do the work in pieces")
    description = "with --executor, about how many bytes of values a piece has, such as 1G; default: 64M"
    parser.add_argument("--memory", metavar="SIZE", type=options.size, help=description)


def add_engine(parser: options.Parser, what: str) -> None:
    """Add --executor; `what` begins its description."""
    description = f"{what}: in processes:N or threads:N, by the scheduler dask:tcp://HOST:PORT, or by ray:auto"
    parser.add_argument("--executor", metavar="SPEC", help=description)


@contextlib.contextmanager
def engine(arguments: Namespace) -> Iterator[None]:
    """Replace the text of --executor, if there is one, by the executor, which is shut down when the block ends.

    Raises: ValueError: --memory without --executor. As `executors.open`.
    """
    spec: Any = getattr(arguments, "executor", None)
    memory = getattr(arguments, "memory", None)
    if not isinstance(spec, str):
        if spec is None and memory is not None:
            raise ValueError("--memory: expected --executor, whose pieces it is about, got none")
        yield
        return
    from .. import executors

    with executors.open(spec, memory=memory) as arguments.executor:
        yield
