"""milblob batch: one command for each of many models, in several processes, with a journal to resume from."""

from argparse import REMAINDER, ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from .. import options
from ..command_call import COMMANDS, CommandCall
from ..engines import add_engine, engine
from ..parser import CommandParser
from ..several import add_finding, found_in
from ..terminal import output
from ..terminal.failures import EXIT_ERROR, EXIT_FINDINGS
from ..terminal.progress import shown

if TYPE_CHECKING:
    from ...batching.report import BatchItem, BatchReport

EXAMPLES = ("batch repack --cast float32=float16 -- *.mlpackage --into small", "batch check -- '*.mlpackage' --jobs 2")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "milblob batch COMMAND [OPTIONS OF COMMAND] -- MODEL ... [OPTIONS]"
    what = f"one of {', '.join(COMMANDS)}, with its options; after --: the models, and options of batch"
    parser.add_argument("words", metavar="COMMAND", nargs=REMAINDER, help=what)
    _add_options(parser)


def _add_options(parser: ArgumentParser) -> None:
    add_finding(parser)
    into = "a directory for outputs, which are named as their sources are; needed by commands that write"
    options.add_output(parser, "--into", metavar="DIR", help=into)
    suffix = "of outputs; default: that of the source, .npz of convert, .onnx of to-onnx"
    parser.add_argument("--suffix", metavar=".EXT", help=suffix)
    jobs = "work on N models at a time, each in a process; default: 1"
    parser.add_argument("-j", "--jobs", metavar="N", type=options.count, default=1, help=jobs)
    add_engine(parser, "work on models, instead of --jobs")
    resume = "continue the batch of the journal: skip what is done, if source and output are unchanged"
    parser.add_argument("--resume", action="store_true", help=resume)
    journal = "journal of what is done, JSON Lines; default: milblob-batch.jsonl in DIR"
    options.add_output(parser, "--journal", metavar="FILE", help=journal)
    parser.add_argument("--fail-fast", action="store_true", help="begin no further model after a failure")
    lines = "print one JSON object for each model, on one line, when it is done; default for check, stats and hash"
    parser.add_argument("--json-lines", action="store_true", help=f"{lines} without --into")
    options.add_messages(
        parser,
        json="print counts and failures as one JSON object",
        quiet="only failures, no progress",
        verbose="name each model when it is done",
    )


def run(arguments: Namespace) -> int:
    """Run the command. Raises: ValueError: no command or another one; no --, no models; as `milblob.batch`."""
    from ...batching.batch import run_batch

    words = arguments.words
    if "--" not in words:
        raise ValueError("expected COMMAND OPTIONS -- MODEL ..., got no --")
    end = words.index("--")
    call = CommandCall(words[:end])
    tail = CommandParser(prog="milblob batch", allow_abbrev=False, add_help=False)
    tail.add_argument("models", nargs="*")
    _add_options(tail)
    arguments = tail.parse_args(words[end + 1 :], arguments)
    if not arguments.models and arguments.files_from is None:
        raise ValueError("expected MODEL or --files-from FILE after --, got neither")
    if call.is_writer and arguments.into is None:
        raise ValueError(f"{call.command}: expected --into DIR, a directory for the outputs, got none")
    found = found_in(arguments, arguments.models)
    is_printed = arguments.json_lines or not (arguments.into or call.is_writer or arguments.json)
    call = CommandCall(words[:end], has_document=is_printed)
    greatest = 0

    def take(item: "BatchItem") -> None:
        """Print what becomes of a model."""
        nonlocal greatest
        status, document = (0, None) if item.result is None else item.result
        greatest = max(greatest, status)
        if is_printed:
            line: dict[str, Any] = {"path": item.source, "output": item.destination, "state": item.status}
            line |= {"error": item.error} if item.error else {}
            output.print_json_line(line | ({"result": document} if document is not None else {}))
        elif arguments.verbose:
            output.say(f"{item.source}: {item.status}")
        elif status == EXIT_FINDINGS and not arguments.quiet:
            output.say(f"{item.source}: findings, or nothing to do")

    with engine(arguments), shown(arguments) as progress:
        report = run_batch(
            call, found, into=arguments.into, suffix=arguments.suffix or call.suffix,
            added="" if call.is_writer else ".json", resume=arguments.resume,
            journal=arguments.journal, fail_fast=arguments.fail_fast, jobs=arguments.jobs,
            executor=arguments.executor, each=take, progress=progress,
        )  # fmt: skip
    if arguments.json and not arguments.json_lines:
        output.print_json(report.to_dict())
    _say(report, arguments)
    return EXIT_ERROR if report.failed else greatest


def _say(report: "BatchReport", arguments: Namespace) -> None:
    """Report counts, and at the end each failure."""
    if not arguments.quiet:
        skipped = f"{report.skipped} skipped" if report.skipped else ""
        parts = [f"{report.done} done", skipped, f"{report.failed} failed"]
        left = report.count - report.done - report.skipped - report.failed
        parts.append(f"{left} not started" if left else "")
        where = f", to {arguments.into}" if arguments.into else ""
        models = output.plural(report.count, "model")
        output.say(f"{models}, {output.size(report.nbytes)}: {', '.join(filter(None, parts))}{where}")
    for failure in report.failures:
        message = failure.error
        output.say(message if failure.source in message else f"{failure.source}: {message}")
