"""The command line: one subcommand per module of this package, such as `milblob ls` and `milblob repack`.

Data goes to stdout, messages go to stderr. Exit status: 0 good, 1 findings, 2 an error, reported in one line.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    `argv`: arguments without the program's name; default: those of the process.
    Returns: Exit status: 0 good, 1 findings, 2 an error (one line on stderr), 130 interrupted, 141 nobody reads stdout.
    """
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, ValueError, OSError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        words = sys.argv[1:] if argv is None else argv
        if words[:1] == ["--names-of"]:  # for completion: nothing else is imported
            from .shells import print_names

            print_names(words[1:])
            return 0
        from .parser import parse

        arguments = parse(argv)  # --help and --version end here
        from .engines import engine
        from .sources import local_sources

        with local_sources(arguments), engine(arguments):
            status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as stop:  # argparse: --help, --version, wrong usage
        return int(stop.code or 0)
    except Exception as error:
        from .terminal.failures import report

        with suppress(OSError):
            sys.stdout.flush()
        return report(error)


def _discard_stdout() -> None:
    """Keep the interpreter from writing at exit to a closed pipe."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
