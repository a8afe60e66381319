"""The command line: one subcommand per module of this package, such as `milblob ls` and `milblob repack`.

Data goes to stdout, messages go to stderr. Exit status: 0 good, 1 findings, 2 an error, reported in one line.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .parser import parse
from .sources import local_sources
from .terminal.failures import EXIT_ERROR, report

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; default: those of the process.

    Returns:
        Exit status: 0 good, 1 findings, 2 an error (one line on stderr), 130 interrupted, 141 nobody reads stdout.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, OSError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        arguments = parse(argv)
        with local_sources(arguments):
            status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse: --help, --version, wrong usage
        return stop.code if isinstance(stop.code, int) else EXIT_ERROR
    except Exception as error:
        with suppress(OSError):
            sys.stdout.flush()
        return report(error)


def _discard_stdout() -> None:
    """Keep the interpreter from writing at exit to a closed pipe."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
