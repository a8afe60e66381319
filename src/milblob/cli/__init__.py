"""The command line: one subcommand per module of `commands`, such as `milblob ls` and `milblob repack`.

Data goes to stdout, messages go to stderr. Exit status: 0 good, 1 findings, 2 an error, reported in one line.
"""

import sys
from collections.abc import Sequence

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    `argv`: arguments without the program's name; default: those of the process.
    Returns: Exit status: 0 good, 1 findings, 2 an error (one line on stderr), 130 interrupted, 141 nobody reads stdout.
    """
    from .terminal import streams

    with streams.prepared():
        try:
            try:
                status = _run(sys.argv[1:] if argv is None else argv)
            except SystemExit as stop:  # argparse: --help, --version, wrong usage
                status = int(stop.code or 0)
            sys.stdout.flush()
        except KeyboardInterrupt:
            status = EXIT_INTERRUPTED
        except Exception as error:
            status = _failed(error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                streams.discard(stream)
        return status


def _run(words: Sequence[str]) -> int:
    if words[:1] == ["--names-of"]:  # for completion: nothing else is imported
        from .shells import print_names

        print_names(words[1:])
        return 0
    from .parser import parse

    arguments = parse(words)  # --help and --version end here
    from .engines import engine
    from .sources import local_sources

    with local_sources(arguments), engine(arguments):
        return int(arguments.run(arguments))


def _failed(error: Exception) -> int:
    """Report an error, after what was printed before it; return the exit status."""
    from .terminal import failures, streams

    is_of_stdout = streams.is_of_stdout(error)
    try:
        sys.stdout.flush()
    except OSError as lost:
        is_of_stdout = is_of_stdout or (isinstance(error, OSError) and error.errno == lost.errno)
        streams.discard(sys.stdout)
    if isinstance(error, BrokenPipeError) and is_of_stdout:
        return EXIT_BROKEN_PIPE
    return failures.report(error)
