"""What was measured, as objects: jobs, their rows, ratios, targets; and growth. table.py and report.py only print it."""

import functools
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import machine

ROLES = {"milblob": ">", "limit": "_", "aside": "~", "rival": " "}
"""Role -> mark of its rows in a table."""
MAX_MOVEMENT = 1.2
"""How far the limit of a job may move between start and end, as a ratio; figures of jobs with more are not shown."""
OF_THE_MACHINE = ("cpu", "cores", "scale")
"""What the header of two results has in common if they can be merged."""


class Target(NamedTuple):
    """What a row is held to, what it is, and whether that is enough."""

    limit: str
    actual: str
    met: bool

    @property
    def words(self) -> str:
        """Both."""
        return f"{self.limit} (is {self.actual})"


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

    @property
    def movement(self) -> float:
        """The median of the first turn to that of the last, the larger to the smaller; 1 where there is one turn only."""
        start, end = self.data.get("start", 1.0), self.data.get("end", 1.0)
        return float(max(start, end) / min(start, end))

    def targets(self, rows: dict[str, "Row"]) -> list[Target]:
        """What this row is held to. A row that it is compared with and that is absent is left out."""
        found = []
        limit = self.data.get("limit_ms")
        if limit is not None:
            found.append(Target(f"<= {limit:.3g} ms", spell_time(self.median), self.median * 1e3 <= limit))
        most = self.data.get("limit_nbytes")
        if most is not None and self.peak is not None:
            found.append(Target(f"<= {spell_nbytes(most)} resident", spell_nbytes(self.peak), self.peak <= most))
        for name, factor in self.data.get("targets", {}).items():
            if name in rows:
                ratio = self.median / rows[name].median
                found.append(Target(f"<= {spell_factor(factor)} of {name}", spell_factor(ratio), ratio <= factor))
        return found


class Job:
    """The rows of one job, fastest first.

    Args:
        name: what is done.
        rows: in the order in which they were measured.

    Attributes:
        own: milblob's row that the job is about: the first one. best: the fastest rival that does the same job.
        limit: the fastest of those that cannot be beaten. Each is None where there is none.
        movement: that of the limit that moved most between start and end; 1 without a limit.
        repeats: how often the job was measured again because a limit moved too far.
    """

    def __init__(self, name: str, rows: list[Row]) -> None:
        self.name, self.file = name, rows[0].file
        self.rows = {row.name: row for row in sorted(rows, key=lambda row: row.median)}
        self.own = next((row for row in rows if row.role == "milblob"), None)
        self.best = next((row for row in self.rows.values() if row.role == "rival"), None)
        self.limit = next((row for row in self.rows.values() if row.role == "limit"), None)
        self.movement = max((row.movement for row in rows if row.role == "limit"), default=1.0)
        self.repeats = max(row.data.get("repeats", 0) for row in rows)

    @property
    def is_settled(self) -> bool:
        """Whether the limits were nearly the same at start and end."""
        return self.movement <= MAX_MOVEMENT

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


def jobs_of(rows: Iterable[dict[str, Any]]) -> dict[str, Job]:
    """Return the jobs of rows by name, in the order of the run."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["job"], []).append(Row(row))
    return {name: Job(name, rows) for name, rows in found.items()}


class Results:
    """All that was measured on one machine.

    Args:
        data: the JSON that run.py or conftest.py wrote.

    Attributes:
        header: machine, versions, date; see machine.py.
        kind: of machine.
        runs: bench file -> date, version of milblob, load average at the start, seconds; empty for a single process.
        jobs: by name, in the order of the run. settled: those whose limit did not move.
        absent: job, row, file and reason of each row that is not there.
        abouts: bench file -> its docstring.

    Raises:
        ValueError: another format.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        if data.get("format") != 1:
            raise ValueError(f"format of the results: expected 1, got {data.get('format')!r}")
        self.header: dict[str, Any] = data["header"]
        self.kind = machine.kind(self.header["cpu"])
        self.runs: dict[str, dict[str, Any]] = data.get("runs", {})
        self.abouts: dict[str, str] = data["abouts"]
        self.absent: list[dict[str, str]] = data["absent"]
        self.jobs = jobs_of(data["rows"])
        self.settled = {name: job for name, job in self.jobs.items() if job.is_settled}

    @property
    def scale(self) -> float:
        """Share of the full size."""
        return float(self.header["scale"])

    @functools.cached_property
    def targets(self) -> list[tuple[Row, Target]]:
        """Every target of a settled job with its row."""
        return [(row, t) for job in self.settled.values() for row in job.rows.values() for t in row.targets(job.rows)]


def load(path: Path) -> Results:
    """Return what a file of results says.

    Raises:
        OSError, ValueError: it cannot be read, or is none.
    """
    return Results(json.loads(path.read_text()))


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return results with what another run of the same machine adds; bench files that ran again replace what they gave.

    Args:
        old, new: the JSON of results; new are the later ones, whose header counts.

    Raises:
        ValueError: they are not of the same machine, or not of the same scale.
    """
    for key in OF_THE_MACHINE:
        if old["header"][key] != new["header"][key]:
            raise ValueError(f"{key} of the results: expected {old['header'][key]}, got {new['header'][key]}")
    files = set(new["runs"])
    found = new | {key: old[key] | new[key] for key in ("runs", "abouts")}
    for key in ("rows", "absent"):
        found[key] = [row for row in old[key] if row["file"] not in files] + new[key]
    return found


def repeated(rows: list[dict[str, Any]], again: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return the rows of a bench file after its jobs whose limit moved were measured again.

    Args:
        rows: as they were. again: rows of those jobs, some of which may have failed.
        number: how often these jobs have been measured again.

    Returns:
        The rows in their order; those of a job are the new ones if all are there and its limit moved less than before.
    """
    before, now = jobs_of(rows), jobs_of(again)
    names = {name for name, job in before.items() if not job.is_settled}
    better = {
        name
        for name in names & now.keys()
        if now[name].rows.keys() >= before[name].rows.keys() and now[name].movement < before[name].movement
    }
    new = {(row["job"], row["row"]): row for row in again}
    kept = [new[row["job"], row["row"]] if row["job"] in better else row for row in rows]
    return [row | {"repeats": number} if row["job"] in names else row for row in kept]


def write(path: Path, data: dict[str, Any]) -> None:
    """Write results as JSON, a line for each row; whole or not at all."""
    lines = json.dumps({key: value for key, value in data.items() if key != "rows"}, indent=1).removesuffix("\n}")
    rows = ",\n".join("  " + json.dumps(row) for row in data["rows"])
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(f'{lines},\n "rows": [\n{rows}\n ]\n}}\n')
    os.replace(unfinished, path)


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
    """Peak, and in parentheses the anonymous memory of the process at the end."""
    if row.peak is None:
        return ""
    return f"{spell_nbytes(row.peak)} ({spell_nbytes(row.anonymous or 0)})"


def span(values: Iterable[Any]) -> str:
    """The least and the largest, in words; empty without any."""
    found = sorted(values)
    return " to ".join(
        f"{value:g}" if isinstance(value, float) else str(value) for value in dict.fromkeys(found[:1] + found[-1:])
    )


def facts(header: dict[str, Any], every: Mapping[str, dict[str, Any]] | None = None) -> dict[str, str]:
    """Where, when and with what: title -> words. `every`: the runs of the bench files, as in `Results`."""
    runs = (every or {}).values()
    own = header["milblob"]
    built = f"; {own['extension']}; {own['threads']} threads" if "extension" in own else ""
    memory = f", {header['memory_nbytes'] / 2**30:.0f} GiB of memory" if header["memory_nbytes"] else ""
    pages = f", transparent huge pages: {header['huge_pages']}" if header["huge_pages"] else ""
    version = span(run["version"] for run in runs) or own["version"]
    loads = span(run["load_average"] for run in runs if "load_average" in run) or f"{header['load_average']:g}"
    lines = {
        "date": span(run["date"] for run in runs) or header["date"],
        "milblob": f"{version}, kernels of tier {own['tier']} (of {own['tiers']}){built}",
        "CPU": f"{header['cpu']}, {header['cores']} cores{memory}",
        "system": f"{header['system']}, {header['python']}{pages}",
        "versions": ", ".join(f"{name} {version}" for name, version in header["versions"].items()),
        "load average at the start": loads,
    }
    seconds = sum(run.get("seconds", 0) for run in runs)
    if seconds:
        lines["the run took"] = f"{seconds / 60:.1f} minutes"
    if header["scale"] != 1:
        lines["scale"] = (
            f"{header['scale']:g}, a smoke run: sizes are that part of the full ones, targets are meant for 1"
        )
    return lines
