"""milblob check: every problem of models and weight files."""

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import options
from ..calling import call
from ..engines import add_executor
from ..several import add_models, run_each
from ..terminal import output, tables
from ..terminal.failures import EXIT_ERROR, EXIT_FINDINGS

if TYPE_CHECKING:
    from ...analysis.check_report import CheckReport

_MAX_ALIKE = 20  # findings with one code that are printed: a truncated file has one for each weight

EXAMPLES = ("check Model.mlpackage --values", "check *.mlpackage -q")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    models = f"{options.MODEL}; .params file or archive of TVM"
    add_models(parser, models)
    parser.add_argument("--values", action="store_true", help="also check values, which reads all weights")
    options.add_codes(parser)
    add_executor(parser)
    options.add_reporting(
        parser, quiet="no notes, no summaries, no progress", verbose="all findings of each code, and their number"
    )


def run(arguments: Namespace) -> int:
    """Run the command; the status is the worst of all paths: 2 cannot be opened, 1 errors or warnings, 0 good."""
    if (arguments.json or getattr(arguments, "json_lines", False)) and arguments.sarif:
        output.say(f"expected --json{'' if arguments.json else '-lines'} or --sarif, got both")
        return EXIT_ERROR
    if arguments.executor is not None and not arguments.values:
        raise ValueError("--executor: expected --values, whose work it gives out, got none")
    checked: list[tuple[str, CheckReport]] = []
    failures: list[str] = []
    status = run_each(arguments, partial(_report, checked, failures), is_headed=False, is_list=not arguments.sarif)
    if arguments.sarif:
        from ..terminal.sarif import log

        output.print_json(log(checked, failures))
    return status


def _report(
    checked: "list[tuple[str, CheckReport]]", failures: list[str], path: str, arguments: Namespace
) -> tuple[int, dict[str, Any] | None]:
    """Print the findings of one model, or collect them for --sarif."""
    try:
        findings = _check(path, arguments)
    except OSError as error:
        if getattr(arguments, "json_lines", False):
            raise
        failures.append(f"{error.strerror or error}: {path}")
        output.say(failures[-1])
        return EXIT_ERROR, None
    status = 0 if findings.is_sound else EXIT_FINDINGS
    if arguments.sarif:
        checked.append((path, findings))
        return status, None
    if arguments.json:
        return status, _document(path, findings)
    is_prefixed = arguments.quiet and arguments.is_several  # without a summary, each line names the model
    _print_findings(path, findings, arguments, f"{path}: " * is_prefixed)
    if not arguments.quiet:
        tables.print_text(f"{path}: {findings.summary}")
    if arguments.verbose:
        for code, count in Counter(finding.code for finding in findings).items():
            tables.print_text(f"  {code} {count}")
    return status, None


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any]]:
    """Check one model, and print nothing; see `several.run_each`."""
    findings = _check(path, arguments)
    return 0 if findings.is_sound else EXIT_FINDINGS, _document(path, findings)


def _check(path: str, arguments: Namespace) -> "CheckReport":
    from ...analysis.check import check

    return call(check, arguments, path, rules=arguments.rule)


def _document(path: str, findings: "CheckReport") -> dict[str, Any]:
    counts = Counter[str](finding.severity for finding in findings)
    totals = {f"{severity}s": counts[severity] for severity in ("error", "warning", "note")}
    return {"path": path, **totals, "findings": [finding.to_dict() for finding in findings]}


def _print_findings(path: str, findings: "CheckReport", arguments: Namespace, prefix: str) -> None:
    """Print the findings, without -v at most `_MAX_ALIKE` of each kind."""
    from ... import mirrored

    counts = Counter[str]()
    for finding in findings:
        if finding.severity != "note" or not arguments.quiet:
            kind = f"{finding.severity}[{finding.code}]"
            counts[kind] += 1
            if arguments.verbose or counts[kind] <= _MAX_ALIKE:
                tables.print_text(f"{prefix}{_shorter(str(finding), mirrored.shown(path))}")
    for kind, count in counts.items():
        if not arguments.verbose and count > _MAX_ALIKE:
            tables.print_text(f"{prefix}{kind} {count - _MAX_ALIKE:,} more (-v prints all)")


def _shorter(text: str, path: str) -> str:
    """Shorten the paths of files inside the model to be relative to it."""
    inside = path.rstrip("/\\") + os.sep
    return text.replace(f" in {inside}", " in ")
