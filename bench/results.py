"""What was measured, as objects: jobs, their rows, ratios, targets; and growth. table.py and report.py only print it."""

import functools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

ROLES = {"milblob": ">", "limit": "_", "aside": "~", "rival": " "}
"""Role -> mark of its rows in a table."""


class Target(NamedTuple):
    """What a row is held to: words for it, and whether it is met."""

    words: str
    met: bool


class Row:
    """One measured row; times are seconds at the full size of the work.

    Attributes:
        job, name, role, note: see `row` of conftest.py.
        median, iqr: of the rounds.
        peak, anonymous: bytes that became resident, the latter of the process' own memory; None where not measured.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.job, self.name, self.role, self.file = data["job"], data["row"], data["role"], data["file"]
        self.median: float = data["median"]
        self.iqr: float = data["q3"] - data["q1"]
        self.nbytes: int = data.get("nbytes", 0)
        self.peak: int | None = data.get("peak_nbytes")
        self.anonymous: int | None = data.get("anonymous_nbytes")
        self.note: str = data.get("note", "")

    @property
    def speed(self) -> float:
        """Bytes of input in a second; 0 where that says nothing."""
        return self.nbytes / self.median

    @property
    def spread(self) -> float:
        """Half the interquartile range, as a part of the median."""
        return self.iqr / 2 / self.median

    def targets(self, rows: dict[str, "Row"]) -> list[Target]:
        """What this row is held to. A row that it is compared with and that is absent is left out."""
        found = []
        limit = self.data.get("limit_ms")
        if limit is not None:
            found.append(Target(f"<= {limit:.3g} ms", self.median * 1e3 <= limit))
        most = self.data.get("limit_nbytes")
        if most is not None and self.peak is not None:
            found.append(Target(f"<= {spell_nbytes(most)} resident", self.peak <= most))
        for name, factor in self.data.get("targets", {}).items():
            if name in rows:
                ratio = self.median / rows[name].median
                shown = f"is {spell_factor(ratio)}"
                found.append(Target(f"<= {spell_factor(factor)} of {name} ({shown})", ratio <= factor))
        return found


class Job:
    """The rows of one job, fastest first.

    Args:
        name: what is done.
        rows: in the order in which they were measured.

    Attributes:
        own: milblob's row that the job is about: the first one. best: the fastest rival that does the same job.
        limit: the fastest of those that cannot be beaten. Each is None where there is none.
    """

    def __init__(self, name: str, rows: list[Row]) -> None:
        self.name, self.file = name, rows[0].file
        self.rows = {row.name: row for row in sorted(rows, key=lambda row: row.median)}
        self.own = next((row for row in rows if row.role == "milblob"), None)
        self.best = next((row for row in self.rows.values() if row.role == "rival"), None)
        self.limit = next((row for row in self.rows.values() if row.role == "limit"), None)

    @property
    def is_behind(self) -> bool:
        """Whether a rival is ahead of milblob's row."""
        return self.own is not None and self.best is not None and self.best.median < self.own.median


LIMIT = 1.15
"""The largest slope that is accepted: n log n, and the noise of a small figure."""


class Series(NamedTuple):
    """How an operation grows, as growth.py measured it.

    Attributes:
        name: of the operation.
        points: (tensors or bytes, processor seconds, bytes resident), by size.
        failure: what went wrong after them.
        reason: why it is steep; empty if that is not known.
    """

    name: str
    points: list[tuple[int, float, int]]
    failure: str = ""
    reason: str = ""

    def slopes(self) -> list[float]:
        """Slopes between neighbours, both axes logarithmic: 1 for a cost that grows as the work does."""
        pairs = zip(self.points, self.points[1:], strict=False)
        return [math.log(max(t1, 1e-6) / max(t0, 1e-6)) / math.log(n1 / n0) for (n0, t0, _), (n1, t1, _) in pairs]

    @property
    def slope(self) -> float | None:
        """The slope of the upper range."""
        return (self.slopes() or [None])[-1]

    @property
    def is_steep(self) -> bool:
        """Whether it grows faster than n log n; of what takes less than 50 ms nobody can say."""
        return self.slope is not None and self.slope > LIMIT and self.points[-1][1] > 0.05


class Growth(NamedTuple):
    """A run of growth.py: its header, and the series of each group of sizes by title."""

    header: dict[str, Any]
    groups: dict[str, list[Series]]

    @classmethod
    def load(cls, path: Path) -> "Growth":
        """Read what `save` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        groups = {
            title: [
                Series(row["name"], [(n, t, m) for n, t, m in row["points"]], row["failure"], row["reason"])
                for row in rows
            ]
            for title, rows in data["groups"].items()
        }
        return cls(data["header"], groups)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        groups = {title: [one._asdict() for one in rows] for title, rows in self.groups.items()}
        path.write_text(json.dumps({"header": self.header, "groups": groups}, indent=1) + "\n", encoding="utf-8")


class Results:
    """A whole run.

    Args:
        data: the JSON that run.py or conftest.py wrote.

    Attributes:
        header: machine, versions, date; see machine.py.
        jobs: by name, in the order of the run.
        absent: job, row, file and reason of each row that is not there.
        abouts: bench file -> its docstring.

    Raises:
        ValueError: another format.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        if data.get("format") != 1:
            raise ValueError(f"format of the results: expected 1, got {data.get('format')!r}")
        self.header: dict[str, Any] = data["header"]
        self.abouts: dict[str, str] = data["abouts"]
        self.absent: list[dict[str, str]] = data["absent"]
        rows = [Row(row) for row in data["rows"]]
        by_job: dict[str, list[Row]] = {}
        for row in rows:
            by_job.setdefault(row.job, []).append(row)
        self.jobs = {name: Job(name, found) for name, found in by_job.items()}

    @property
    def scale(self) -> float:
        """Share of the full size."""
        return float(self.header["scale"])

    @functools.cached_property
    def targets(self) -> list[tuple[Row, Target]]:
        """Every target with its row."""
        return [(row, t) for job in self.jobs.values() for row in job.rows.values() for t in row.targets(job.rows)]


def load(path: Path) -> Results:
    """Return what a file of results says.

    Raises:
        OSError, ValueError: it cannot be read, or is none.
    """
    return Results(json.loads(path.read_text()))


# --------------------------------------------------------------------------------------------------------------- words


def spell_time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def spell_nbytes(nbytes: float) -> str:
    """MiB, or GiB from 1000 MiB on."""
    mib = nbytes / 2**20
    if mib >= 1000:
        return f"{mib / 1024:.2f} GiB"
    return f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"


def spell_speed(bytes_per_second: float) -> str:
    """MB/s, or GB/s from a thousand on; nothing for 0."""
    if not bytes_per_second:
        return ""
    return f"{bytes_per_second / 1e9:.3g} GB/s" if bytes_per_second >= 1e9 else f"{bytes_per_second / 1e6:.3g} MB/s"


def spell_factor(factor: float) -> str:
    """A ratio of times, the smaller of the two as one: 3x, or 1/200."""
    if factor >= 0.995:
        digits = 0 if factor % 1 == 0 or factor >= 100 else 1 if factor >= 10 else 2
        return f"{factor:,.{digits}f}x"
    return f"1/{1 / factor:.3g}" if factor > 1 / 999 else f"1/{1 / factor:,.0f}"


def spell_versus(own: float, other: float) -> str:
    """How a time compares with another, in words."""
    ratio = other / own
    if 0.98 <= ratio <= 1.02:
        return "as fast"
    digits = 2 if max(ratio, 1 / ratio) < 1.2 else 1 if max(ratio, 1 / ratio) < 10 else 0
    return f"{ratio:,.{digits}f}x faster" if ratio > 1 else f"{1 / ratio:,.{digits}f}x slower"


def spell_memory(row: Row) -> str:
    """Peak and, behind it, what of it is the process' own at the end."""
    if row.peak is None:
        return ""
    return f"{spell_nbytes(row.peak)} ({spell_nbytes(row.anonymous or 0)})"


def header_lines(header: dict[str, Any]) -> list[str]:
    """Where, when and with what: words and a colon, then the fact."""
    own = header["milblob"]
    built = f"; {own['extension']}; {own['threads']} threads" if "extension" in own else ""
    memory = f", {header['memory_nbytes'] / 2**30:.0f} GiB of memory" if header["memory_nbytes"] else ""
    pages = f", transparent huge pages: {header['huge_pages']}" if header["huge_pages"] else ""
    lines = [
        f"date: {header['date']}",
        f"milblob: {own['version']}, kernels of tier {own['tier']} (of {own['tiers']}){built}",
        f"CPU: {header['cpu']}, {header['cores']} cores{memory}",
        f"system: {header['system']}, {header['python']}{pages}",
        f"versions: {', '.join(f'{name} {version}' for name, version in header['versions'].items())}",
        f"load average at the start: {header['load_average']:g}",
    ]
    if header.get("seconds"):
        lines.append(f"the whole run took: {header['seconds'] / 60:.1f} minutes")
    if header["scale"] != 1:
        lines.append(
            f"scale: {header['scale']:g}, a smoke run: sizes are that part of the full ones, targets are meant for 1"
        )
    return lines
