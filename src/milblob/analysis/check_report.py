"""The result of a check: Finding, CheckReport, and the list that collects findings."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, get_args, overload

from ..mirrored import shown
from ..results import Result, ambiguous, least
from ..rules.catalog import Severity
from ..wording import bounded, escape, located, plural, shortened

MAX_ALIKE = 1000  # findings of one code per file; a last finding counts the rest
SEVERITIES = get_args(Severity)
"""The most severe first."""
_MAX_LINES = 20


@dataclass(frozen=True, repr=False)
class Finding(Result):
    """One thing that `milblob.check` noticed.

    Attributes:
        severity: "error": a reader fails or returns wrong values; "warning": readers differ on it, or it is most likely
            not meant; "note": valid, but worth knowing.
        code: stable short name of the kind of problem, such as "sentinel"; docs/cli.md lists all.
        message: one line: what, expected, got.
        file: path of the file it is in; None in a buffer.
        offset: byte offset in that file; None if no single byte is at fault.
        where: path inside the Program, or "".

    Examples:
        >>> with open("weight.bin", "wb") as file:
        ...     written = file.write(bytes([2, 0, 0, 0, 2]) + bytes(59))
        >>> for finding in milblob.check("weight.bin"):
        ...     print(finding.severity, finding.code, finding.offset, finding.message)
        error record-count 0 record count: expected 0 as found in the file, got 2 in the header (there is room for 0)
    """

    severity: Severity
    code: str
    message: str
    file: str | None = None
    offset: int | None = None
    where: str = ""

    def __str__(self) -> str:
        return located(f"{self.severity}[{self.code}] {self.message}", self)


@dataclass(frozen=True, repr=False)
class CheckReport(Result, Sequence[Finding]):
    """What a check found: a sequence of Finding, in the order in which they were made.

    Attributes:
        source: what was checked: a path, or a description of anything without one.
        findings: all of them.

    Examples:
        >>> report = milblob.check("demo.mlpackage")
        >>> report.is_sound, len(report.errors), report.summary
        (True, 0, 'good')
    """

    source: str
    findings: tuple[Finding, ...]

    _keys: ClassVar = {"is_sound": "is_sound"}

    @property
    def is_sound(self) -> bool:
        """Whether there is neither an error nor a warning. Notes are ignored."""
        return not (self.errors or self.warnings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings for which a reader fails or returns wrong values."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings on which readers differ, or that are most likely not meant."""
        return self._of("warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """The findings that are valid, but worth knowing."""
        return self._of("note")

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def __bool__(self) -> NoReturn:
        ambiguous(self, "is_sound")

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def _worst(self) -> list[str]:
        return [str(finding) for finding in least(self.findings, lambda finding: SEVERITIES.index(finding.severity))]

    @property
    def summary(self) -> str:
        """How many there are of each severity, such as "1 error, 2 notes"; "good" without any."""
        counts = Counter(finding.severity for finding in self.findings)
        return ", ".join(plural(counts[severity], severity) for severity in SEVERITIES if counts[severity]) or "good"

    def __str__(self) -> str:
        lines = shortened([str(finding) for finding in self.findings], _MAX_LINES)
        return "\n".join([*lines, f"{escape(self.source)}: {self.summary}"])


class Findings:
    """A growing list of findings, of bounded memory: similar findings are counted instead of kept.

    Args:
        is_wanted: returns whether a code is reported; None for all.
        path: of the file or folder that `note` reports about; None for a buffer.
    """

    def __init__(self, is_wanted: Callable[[str], bool] | None = None, path: str | None = None) -> None:
        self.path = path
        self.items: list[Finding] = []  # the findings so far, in the order in which they were made
        self._is_wanted = is_wanted
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._severities: dict[tuple[str, str | None], Severity] = {}

    def add(
        self,
        severity: Severity,
        code: str,
        message: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        where: str = "",
    ) -> None:
        """Append a finding, unless nobody wants its code, or its file already has `MAX_ALIKE` of it."""
        if self._is_wanted is not None and not self._is_wanted(code):
            return
        key = (code, file)
        self._counts[key] += 1
        self._severities.setdefault(key, severity)
        if self._counts[key] <= MAX_ALIKE:
            self.items.append(Finding(severity, code, bounded(shown(message)), file and shown(file), offset, where))

    def note(
        self,
        severity: Severity,
        code: str,
        message: str,
        where: str = "",
        offset: int | None = None,
        file: str | None = None,
    ) -> None:
        """Append a finding about `path`, or another `file`, whose texts may hold any characters: they are escaped."""
        self.add(severity, code, escape(message), file=file or self.path, offset=offset, where=escape(where))

    def close(self, source: str | None) -> CheckReport:
        """Return all findings, with one more for each kind that was cut short.

        `source`: what was checked: a path; None for a buffer.
        """
        for (code, file), count in self._counts.items():
            if count > MAX_ALIKE:
                message = f"findings of this kind: expected to list {MAX_ALIKE}, got {count - MAX_ALIKE} more"
                self.items.append(Finding(self._severities[code, file], code, message, file))
        return CheckReport(shown(source or "file in memory"), tuple(self.items))
