"""milblob check: every problem of models and weight files."""

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import Any

from ... import mirrored
from ...analysis.check import check
from ...analysis.check_report import CheckReport
from .. import options
from ..engines import add_executor
from ..sources import add_sources
from ..terminal import output, tables
from ..terminal.progress import shown

_EXIT_FINDINGS, _EXIT_ERROR = 1, 2

EXAMPLES = ("check Model.mlpackage --values", "check *.mlpackage -q")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    models = f"{options.MODEL}; .params file or archive of TVM"
    parser.add_argument("models", metavar="MODEL", nargs="+", help=models)
    parser.add_argument("--values", action="store_true", help="also check values, which reads all weights")
    options.add_codes(parser)
    add_sources(parser, "models")
    add_executor(parser)
    options.add_reporting(parser, quiet="no notes, no summaries, no progress", verbose="count the findings by code")


def run(arguments: Namespace) -> int:
    """Run the command; the status is the worst of all paths: 2 cannot be opened, 1 errors or warnings, 0 good."""
    if arguments.json and arguments.sarif:
        output.say("expected --json or --sarif, got both")
        return _EXIT_ERROR
    status = 0
    checked: list[tuple[str, CheckReport]] = []
    failures: list[str] = []
    results: list[dict[str, Any]] = []
    prefixed = arguments.quiet and len(arguments.models) > 1  # without a summary, each line names the model
    for path in arguments.models:
        try:
            with shown(arguments) as progress:
                findings = check(
                    path,
                    values=arguments.values,
                    rules=arguments.rule,
                    ignore=arguments.ignore,
                    executor=arguments.executor,
                    progress=progress,
                    max_nbytes=arguments.max_nbytes,
                )
        except OSError as error:
            failures.append(f"{error.strerror or error}: {path}")
            output.say(failures[-1])
            status = _EXIT_ERROR
            continue
        counts = Counter[str](finding.severity for finding in findings)
        if not findings.is_sound:
            status = max(status, _EXIT_FINDINGS)
        checked.append((path, findings))
        if arguments.sarif:
            continue
        if arguments.json:
            totals = {f"{severity}s": counts[severity] for severity in ("error", "warning", "note")}
            results.append({"path": path, **totals, "findings": [finding.to_dict() for finding in findings]})
            continue
        for finding in findings:
            if finding.severity != "note" or not arguments.quiet:
                line = _shorter(str(finding), mirrored.shown(path))
                tables.print_text(f"{path}: {line}" if prefixed else line)
        if not arguments.quiet:
            tables.print_text(f"{path}: {findings.summary}")
        if arguments.verbose:
            for code, count in Counter(finding.code for finding in findings).items():
                tables.print_text(f"  {code} {count}")
    if arguments.json:
        output.print_json({"models": results})
    if arguments.sarif:
        from ..terminal.sarif import log

        output.print_json(log(checked, failures))
    return status


def _shorter(text: str, path: str) -> str:
    """Shorten the paths of files inside the model to be relative to it."""
    inside = path.rstrip("/\\") + os.sep
    return text.replace(f" in {inside}", " in ")
