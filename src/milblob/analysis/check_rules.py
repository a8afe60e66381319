"""The findings of milblob.check about rules of the specification, and the selection of codes to report."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..errors import MilblobError
from ..model.package import Source
from ..program.scan import ProgramScan
from ..progress import ProgressCounter
from ..rules.catalog import RULES, Breach
from ..selection import Select, selector
from .check_blob import CODES
from .check_report import Findings

if TYPE_CHECKING:
    from ..rules.program_rules import Signature

ALL_CODES = frozenset(RULES) | CODES


def chosen(rules: Select, ignore: Select, known: Iterable[str] = ALL_CODES) -> Callable[[str], bool]:
    """Return the function that decides whether `check` reports a code.

    `rules`: report these only; None for all. `ignore`: leave these out; None for none. `known`: every code that a
    finding can have.
    Raises: ValueError: a glob that fits no code; nothing is left to report.
    """
    is_wanted = selector(rules)
    is_ignored = selector(ignore) if ignore is not None else lambda _: False
    for name, globs in (("rules", rules), ("ignore", ignore)):
        if globs is not None and not callable(globs):
            for glob in (globs,) if isinstance(globs, str) else globs:
                if not any(map(selector(glob), known)):
                    message = f"{name}: expected a code of a finding, or a glob of codes such as MIL0*, got {glob!r}"
                    raise ValueError(message)
    wanted = [code for code in known if is_wanted(code)]
    if not wanted:
        raise ValueError("rules: expected a function that selects a code of a finding, got one that selects none")
    if all(map(is_ignored, wanted)):  # the report would always be empty
        message = "all of them" if rules is None else f"all that rules select, {rules!r:.200}"
        raise ValueError(f"ignore: expected to leave the code of a finding to report, got {message}")
    return lambda code: is_wanted(code) and not is_ignored(code)


def check_rules(found: Findings, source: Source, scan: ProgramScan, counter: ProgressCounter) -> None:
    """Report where a Program, or the description beside it, breaks a rule; note each operation.

    Raises: FormatError: bytes that are malformed; what comes after them is not looked at.
    """
    from ..program.view import ProgramView
    from ..rules.program_rules import breaches

    in_file = not source.is_text and not scan.rewritten and scan.buffer.nbytes == source.mapping.nbytes

    def add(breach: Breach) -> None:
        offset = breach.offset if in_file else None
        severity = RULES[breach.rule].severity
        found.add(severity, breach.rule, breach.message, file=source.mapping.name, offset=offset, where=breach.where)

    view = ProgramView(scan.buffer, scan.span, source.prefix, is_plain=scan.rewritten)
    signatures: dict[str, Signature] = {}
    for breach in breaches(view, signatures, counter):
        add(breach)
    try:
        for breach in described_breaches(source, signatures):
            add(breach)
    except MilblobError as error:
        if source.prefix:  # of the model itself `check` reports it
            where = source.prefix + "description"
            found.add("warning", "metadata", error.what, file=source.mapping.name, where=where)


def described_breaches(source: Source, signatures: "Mapping[str, Signature]") -> Iterator[Breach]:
    """Yield where the description beside a Program, or the specification version, does not fit it.

    `source`: the Program. `signatures`: as `rules_program.breaches` fills it.
    Raises: FormatError: not a ModelDescription.
    """
    from ..rules.description_rules import description_breaches

    data = None
    if source.description is not None:
        offset, nbytes = source.description
        data = bytes(memoryview(source.mapping.live())[offset : offset + nbytes])
    yield from description_breaches(data, source.spec_version, signatures, source.prefix)
