"""Write docs/performance.md and bench/results/rows.md: python bench/report.py [RESULTS.json].

RESULTS.json, which run.py wrote, is first merged into bench/results/KIND.json, KIND being the kind of machine that it was
measured on. The pages show all these files side by side. Every sentence with a figure is made from them, so the pages cannot
say anything that was not measured. Jobs whose limit moved between start and end are named, and their figures left out.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import machine
import results
import table
from results import (
    LIMIT,
    MAX_MOVEMENT,
    Growth,
    Job,
    Results,
    Row,
    Series,
    spell_factor,
    spell_memory,
    spell_nbytes,
    spell_time,
    spell_versus,
)

import plot

ROOT = Path(__file__).parent.parent
PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "growth.svg"
KEPT = ROOT / "bench" / "results"
ROWS = KEPT / "rows.md"
EDITED = "`make performance` rewrites it. Do not edit. -->"
MISSING = "-"
GROWTH = KEPT / "growth.json"

GLANCE = (
    "bench_list",
    "bench_load",
    "bench_program",
    "bench_start",
    "bench_decode",
    "bench_cast",
    "bench_write",
    "bench_refit",
    "bench_merge",
    "bench_stats",
    "bench_compress",
    "bench_onnx",
    "bench_session",
)
"""The files whose first job is shown at a glance."""

METHOD = """\
## How it is measured

`make bench` makes `.venv`, installs the rivals into it, makes the data with the rivals' own writers, runs every file
`bench/bench_*.py` in a process of its own and prints a table of all rows. `make bench JOB=list` runs one file and keeps what was
measured of the others, `MILBLOB_BENCH_SCALE=0.02 make bench` is a smoke run. `make performance` keeps the results of the last `make bench`
in `bench/results/`, in the file of this kind of machine, and writes these pages and the plot from all files there.
`make bench AGAINST=bench/results/NAME.json` also prints what changed since then. `bench/README.md` lists the requirements.

- **Right before fast.** Each row runs once and its result is checked, value by value where it gives values, before it is
  timed. A row with a wrong result has no time and is listed as absent.
- **Same run, same data.** Every rival reads the same tensors from its own format. The rows of a job take turns, forwards and
  backwards, so that a slow minute of the machine hits all of them. Only ratios within one run can be compared.
- **Median and spread.** The median of all rounds; the spread is half the interquartile range, in percent of the median.
  Rows under 50 microseconds are repeated within a round.
- **Open to close.** A row opens its file, makes its result and releases it; only the pages of the file are cached between
  rounds. The garbage collector is on.
- **Limits** (in italics) cannot be beaten: a memcpy or memset of the same number of bytes, a bare read or write system call, a
  walk in C (`bench/cwalk.c`) that visits the same bytes and builds nothing. They share no code with milblob. Rows marked "for
  orientation" do less or other work; no ratio is taken to them.
- **Moved limits.** A limit is measured at the start and at the end of its job. If its time changed by more than 20%, other work disturbed the
  job: it is measured again, at most twice, and no figure of it is shown if its limit still moved. Jobs without a limit have no such check.
- **Memory** is measured in a forked child: by how much the peak of resident memory grew while the row ran once, pages of mapped
  files included; in parentheses how much of the process's own memory was still held at the end, with the result alive. Imports
  and input do not count. The system can reclaim the pages of a mapped file at any time.
- **Cold** rows drop the pages of their files before each round; `mincore` checks that this worked, and where it did not the row
  is marked INVALID. How far the kernel reads ahead is a setting of the disk, so these times differ much between machines.
- **Disk.** Jobs that write and sync are measured on the file system of the temporary directory (`TMPDIR`); their times depend as
  much on the disk as on the code. Compare them with their limit.

There are no times for arm64; [kernels.md](kernels.md) counts instructions instead."""


def page(every: list[Results]) -> str:
    """Return the text of docs/performance.md.

    Args:
        every: what was measured on each kind of machine, in the order in which it is shown.
    """
    names = ", ".join(f"`bench/results/{found.kind.slug}.json`" for found in every)
    lines = [
        "# Performance",
        "",
        f"<!-- Written by bench/report.py from {names.replace('`', '')}; {EDITED}",
        "",
        "This page compares the speed and memory of milblob with those of other libraries, including the jobs where another one is faster. It",
        "is for those who choose a library, and for those who change the speed of this one.",
        "",
        f"Every figure is from `make bench` on one of the machines below. A script writes the page from {names};",
        "`bench/results/rows.md` has every row. Times are medians. Ratios are between rows of one machine, measured in turns.",
        "",
        *machines(every),
    ]
    for part in (
        slower_jobs(every),
        glance(every),
        targets(every),
        growth(Growth.load(GROWTH)),
        moved(every),
        absent(every),
    ):
        lines += ["", *part]
    return "\n".join([*lines, "", METHOD]) + "\n"


def rows_page(every: list[Results]) -> str:
    """Return the text of the page with every row: each job, with the command that repeats it."""
    links = ", ".join(f"[{found.kind.title}]({found.kind.slug}.json)" for found in every)
    lines = [
        "# Every benchmark row",
        "",
        f"<!-- Written by bench/report.py from the results beside it; {EDITED}",
        "",
        f"All rows of the results of each kind of machine: {links}. [docs/performance.md](../../docs/performance.md) is written from the same files",
        "and explains how they are measured. Times are medians; each section names the command that repeats it.",
        "",
        *machines(every),
        "",
        "## Every job",
        "",
        *summary(side_by_side(every), every),
    ]
    for file in dict.fromkeys(job.file for found in every for job in found.jobs.values()):
        lines += ["", *section(every, file)]
    return "\n".join(lines) + "\n"


def machines(every: list[Results]) -> Iterator[str]:
    """Where, when and with what, a column for each machine; and which rows were measured with an older milblob."""
    facts = [results.facts(found.header, found.runs) for found in every]
    titles = list(dict.fromkeys(title for found in facts for title in found))
    columns = [found.kind.title for found in every]
    yield from rows_of(["", *columns], [[title, *(found.get(title, MISSING) for found in facts)] for title in titles])
    version = every[0].header["milblob"]["version"]
    for found in every:
        older = [f"`{file}.py` ({run['version']})" for file, run in found.runs.items() if run["version"] != version]
        if older:
            yield ""
            yield f"Measured on {found.kind.title} before {version}: the rows of {', '.join(older)}."


def cell(text: str) -> str:
    """Text that a table of Markdown can hold."""
    return text.replace("|", "\\|")


def rows_of(headings: list[str], lines: list[list[str]]) -> Iterator[str]:
    """A Markdown table without its empty columns; the first column is text, the others are figures."""
    used = [i for i in range(len(headings)) if i == 0 or any(line[i] for line in lines)]
    yield f"| {' | '.join(headings[i] for i in used)} |"
    yield "|" + "".join("---|" if i == 0 else "--:|" for i in used)
    for line in lines:
        yield f"| {' | '.join(cell(line[i]) for i in used)} |"


def side_by_side(every: list[Results]) -> dict[str, list[Job | None]]:
    """Job -> what each machine gave; None where it was not measured, or its limit moved. Without those that all lack."""
    names = dict.fromkeys(name for found in every for name in found.jobs)
    jobs = {name: [found.settled.get(name) for found in every] for name in names}
    return {name: found for name, found in jobs.items() if any(found)}


def named(title: str, every: list[Results]) -> list[str]:
    """Headings of one column for each machine."""
    return [f"{title}, {found.kind.title}" for found in every]


def glance(every: list[Results]) -> Iterator[str]:
    """The first job of some files."""
    jobs = side_by_side(every)
    first: dict[str, str] = {}
    for name, found in jobs.items():
        for job in found:
            if job is not None and job.own is not None:
                first.setdefault(job.file, name)
    yield "## At a glance"
    yield ""
    yield from summary({first[file]: jobs[first[file]] for file in GLANCE if file in first}, every)
    yield ""
    yield f"All {len(jobs)} jobs: `bench/results/rows.md`."


def summary(jobs: dict[str, list[Job | None]], every: list[Results]) -> Iterator[str]:
    """A table with milblob's row of each job beside the best rival and the limit; a column of each for every machine."""
    lines = []
    for name, found in jobs.items():
        owns = [(job, job.own) if job is not None else (None, None) for job in found]
        if not any(own for _, own in owns):
            continue
        rivals = [job.best.name for job, own in owns if job and own and job.best]
        times, ratios, limits = [], [], []
        for job, own in owns:
            best, limit = (job.best, job.limit) if job is not None else (None, None)
            times.append(spell_time(own.median) if own else MISSING)
            ratios.append(spell_versus(own.median, best.median) if own and best else "")
            limits.append(
                f"{spell_factor(own.median / limit.median)} of {spell_time(limit.median)}" if own and limit else ""
            )
        memory = next((spell_memory(own) for _, own in owns if own), "")
        lines.append([name, *times, " or ".join(dict.fromkeys(rivals)) or "none", *ratios, *limits, memory])
    headings = [
        "job",
        *named("milblob", every),
        "best rival",
        *named("milblob is", every),
        *named("of the limit", every),
    ]
    yield from rows_of([*headings, "peak (own) memory"], lines)


def slower_jobs(every: list[Results]) -> Iterator[str]:
    """The jobs that a rival does faster on one of the machines."""
    yield "## Where a rival is ahead"
    yield ""
    for found in every:
        compared = [job for job in found.settled.values() if job.own is not None and job.best is not None]
        yield f"- {found.kind.title}: in {sum(job.is_behind for job in compared)} of the {len(compared)} jobs that a rival can do."
    lines = []
    for name, jobs in side_by_side(every).items():
        rivals = dict.fromkeys(row.name for job in jobs if job for row in ahead(job))
        lines += [[f"{name}: {rival}", *(versus(job, rival) for job in jobs)] for rival in rivals]
    if lines:
        yield ""
        yield from rows_of(["job: rival", *named("the rival is", every)], lines)


def ahead(job: Job) -> list[Row]:
    """The rivals that are faster than milblob."""
    own = job.own
    return [row for row in job.rows.values() if own and row.role == "rival" and row.median < own.median]


def versus(job: Job | None, name: str) -> str:
    """How a rival compares with milblob, with both times."""
    if job is None or job.own is None or name not in job.rows:
        return MISSING
    rival, own = job.rows[name], job.own
    note = f" ({rival.note})" if rival.note else ""
    return (
        f"{spell_versus(rival.median, own.median)}, {spell_time(rival.median)} against {spell_time(own.median)}{note}"
    )


def targets(every: list[Results]) -> Iterator[str]:
    """How many targets are met, and which are missed on one of the machines."""
    yield "## Targets"
    yield ""
    by_name = [{(row.job, row.name, target.limit): target for row, target in found.targets} for found in every]
    for found, ones in zip(every, by_name, strict=True):
        yield f"- {found.kind.title}: {sum(target.met for target in ones.values())} of {len(ones)} targets are met."
    lines = []
    for key in dict.fromkeys(key for ones in by_name for key, target in ones.items() if not target.met):
        targets = [ones.get(key) for ones in by_name]
        shown = [MISSING if one is None else one.actual if one.met else f"**{one.actual}**" for one in targets]
        lines.append([": ".join(key), *shown])
    if lines:
        yield ""
        yield "Missed where the figure is bold:"
        yield ""
        yield from rows_of(["job: row: target", *(found.kind.title for found in every)], lines)


def moved(every: list[Results]) -> Iterator[str]:
    """The jobs whose limit moved, which are not shown."""
    yield "## Not shown"
    yield ""
    yield f"The limit of these jobs took more than {MAX_MOVEMENT - 1:.0%} longer at one end of the job than at the other, so other work disturbed them:"
    yield ""
    count = 0
    for found in every:
        for job in found.jobs.values():
            if not job.is_settled:
                count += 1
                yield f"- {job.name} ({found.kind.title}): {job.movement - 1:.0%}, after {job.repeats} repeats"
    if not count:
        yield "- none"
    for found in every:
        if not any("start" in row.data for job in found.jobs.values() for row in job.rows.values()):
            yield f"- unknown ({found.kind.title}): limits were not measured at both ends then"


def growth(found: Growth) -> Iterator[str]:
    """The plots, and what is steep."""
    yield "## How each cost grows"
    yield ""
    yield f"![processor time by size, both axes logarithmic: a small plot for each operation]({PLOT.name})"
    yield ""
    every = [one for rows in found.groups.values() for one in rows]
    steep = [one for one in every if one.is_steep]
    yield f"Processor time of {len(every)} operations, by the number of tensors of a model and by the bytes of a file, with Python's garbage"
    yield "collector off. The number beside each name is the slope over the last factor of 10 or 16: 1 for a cost that grows in proportion to the"
    yield "work, like the dotted lines, 0 for one that does not depend on it; n log n has 1.1 at most."
    yield f"{_FEW[len(steep)] if len(steep) < len(_FEW) else len(steep)} above {LIMIT}{':' if steep else '.'}"
    if found.header.get("is_merged"):
        yield MERGED
    if steep:
        yield ""
        lines = [
            [one.name, f"{one.points[-1][0]:,}", spell_time(one.points[-1][1]), f"{one.slope:.2f}", one.reason]
            for one in steep
        ]
        yield from rows_of(["operation", "largest size", "time", "slope", "reason"], lines)
    yield ""
    yield f"All of them: `bench/results/{GROWTH.with_suffix('.md').name}`. Repeat it with `make growth`."


_FEW = "None is", "One is", "Two are", "Three are", "Four are"


MERGED = "Rows are from several runs: some were measured earlier than the date above, under other load."
TENSORS, BYTES = "By number of tensors", "By bytes of four tensors in a sparse file"
SPELLED: dict[str, Callable[[int], str]] = {TENSORS: "{:,}".format, BYTES: spell_nbytes}
WORDS = f"""Processor time, user and system, of the operation in a process of its own; what became resident; the slope of the last factor
of 10 or 16, both axes logarithmic. A slope above {LIMIT} has a reason, or is marked as steep. The rows "control: ..." do in plain Python
what all operations must do: their slopes are those of the machine and of Python. What walks a Program ends at 100,000 tensors: it may have
1,048,575 operations and constants (docs/security.md), and each tensor here brings three others."""
HEAD = "| operation | processor time at each size | largest | slope | resident | |"


def growth_line(series: Series, spell: Callable[[int], str]) -> str:
    """Return a row of the table in Markdown."""
    times = " / ".join(spell_time(seconds) for _, seconds, _ in series.points)
    memory = spell_nbytes(series.points[-1][2]) if series.points else "-"
    most = spell(series.points[-1][0]) if series.points else "-"
    slope = "-" if series.slope is None else f"{series.slope:.2f}"
    note = series.failure or series.reason or ("**steep**" if series.is_steep else "")
    return f"| {series.name} | {times} | {most} | {slope} | {memory} | {note} |"


def growth_page(found: Growth) -> str:
    """Return the table in Markdown."""
    rows = [
        "# Growth",
        "",
        *(f"{title}: {words}" for title, words in results.facts(found.header).items()),
        "",
        WORDS,
        *([MERGED] if found.header.get("is_merged") else []),
        "",
    ]
    for title, every in found.groups.items():
        rows += [
            f"## {title}",
            "",
            HEAD,
            "|---|---|---|---|---|---|",
            *(growth_line(one, SPELLED[title]) for one in every),
            "",
        ]
    return "\n".join(rows)


def growth_image(found: Growth) -> str:
    """Return the plots as an SVG."""
    every = [one for rows in found.groups.values() for one in rows]
    panels = [(one.name, [(float(n), t) for n, t, _ in one.points], one.slope) for one in every]
    return plot.multiples(panels, "Processor time by size (slope of the upper range)")


def absent(every: list[Results]) -> Iterator[str]:
    """The rows that could not be measured, and the files that were not run."""
    yield "## Absent"
    yield ""
    reasons: dict[str, list[str]] = {}
    files = dict.fromkeys(file for found in every for file in found.runs)
    for found in every:
        for row in found.absent:
            words = f"{row['job'] + ': ' if row['job'] else ''}{row['row']} (`bench/{row['file']}.py`): {row['reason']}"
            reasons.setdefault(words, []).append(found.kind.title)
        for file in files.keys() - found.runs.keys():
            reasons.setdefault(f"all rows of `bench/{file}.py`: not run", []).append(found.kind.title)
    if not reasons:
        yield "None: every row was measured."
    for words in sorted(reasons):
        yield f"- {words} ({', '.join(reasons[words])})"


def command(file: str) -> str:
    """Return the command that repeats a file."""
    return f"make bench JOB={file.removeprefix('bench_')}"


def section(every: list[Results], file: str) -> Iterator[str]:
    """The jobs of one file, after its docstring."""
    about = next((found.abouts[file] for found in every if file in found.abouts), "")
    title, _, rest = about.partition("\n")
    yield f"## {file.removeprefix('bench_')}"
    yield ""
    yield title
    if rest.strip():
        yield ""
        yield rest.strip()
    yield ""
    runs = [(found.kind.title, found.runs[file]) for found in every if file in found.runs]
    dates = "; ".join(f"{kind} on {run['date']}, milblob {run['version']}" for kind, run in runs)
    yield f"`{command(file)}`, made by [bench/{file}.py](../{file}.py)." + (f" Measured: {dates}." if dates else "")
    for name, jobs in side_by_side(every).items():
        if any(job is not None and job.file == file for job in jobs):
            yield ""
            yield f"### {name}"
            yield ""
            yield from job_table(jobs, every)


def job_table(jobs: list[Job | None], every: list[Results]) -> Iterator[str]:
    """Every row of a job, fastest on the first machine first; a column of each figure for every machine."""
    lines = []
    for name in dict.fromkeys(name for job in jobs if job for name in job.rows):
        found = [(job.rows[name], job) if job is not None and name in job.rows else None for job in jobs]
        cells = [table.cells(*one) if one else [MISSING, "", "", ""] for one in found]
        rows = [one[0] for one in found if one]
        lines.append(
            [
                styled(rows[0]),
                *(f"{median} {spread.replace('+-', '±')}".strip() for median, spread, *_ in cells),
                *(best for _, _, best, *_ in cells),
                *(limit for _, _, _, limit, *_ in cells),
                spell_memory(rows[0]),
                words([(one[0], found.kind.title) for one, found in zip(found, every, strict=True) if one]),
            ]
        )
    headings = ["row", *(found.kind.title for found in every), *named("to the best rival", every)]
    yield from rows_of([*headings, *named("of the limit", every), "peak (own) memory", "note"], lines)
    for job, on in zip(jobs, every, strict=True):
        for row in job.rows.values() if job is not None else ():
            for target in row.targets(job.rows if job is not None else {}):
                yield ""
                verdict = "met" if target.met else "**missed**"
                yield f"Target of {row.name}: {target.words}; {verdict} ({on.kind.title})."


def styled(row: Row) -> str:
    """Return the name in the type of its role: milblob bold, limits italic."""
    return {"milblob": f"**{row.name}**", "limit": f"_{row.name}_"}.get(row.role, row.name)


def words(rows: list[tuple[Row, str]]) -> str:
    """Return the note of a row, after "for orientation" where that applies; with the machine where they differ."""
    notes = {title: row.note for row, title in rows if row.note}
    found = ["for orientation"] if rows[0][0].role == "aside" else []
    if len(set(notes.values())) == 1:
        return "; ".join([*found, *set(notes.values())])
    return "; ".join([*found, *(f"{title}: {note}" for title, note in notes.items())])


def kept() -> list[Results]:
    """What was measured on each kind of machine, the last one first."""
    names = sorted(path for path in KEPT.glob("*.json") if path != GROWTH)
    return sorted(map(results.load, names), key=lambda found: found.header["date"], reverse=True)


def keep(path: Path) -> Path:
    """Merge results into those of the same kind of machine; return where they are.

    Raises:
        SystemExit: they are of a smoke run, or of another machine of that kind.
    """
    data = json.loads(path.read_text())
    if data["header"]["scale"] != 1:
        raise SystemExit(f"{path}: scale: expected 1, got {data['header']['scale']:g}: its figures are not kept")
    target = KEPT / f"{machine.kind(data['header']['cpu']).slug}.json"
    try:
        results.write(target, results.merged(json.loads(target.read_text()), data) if target.exists() else data)
    except ValueError as error:
        raise SystemExit(f"{target}: {error}; remove it first if it shall be replaced") from None
    return target


def main() -> int:
    """Keep the results, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, nargs="?", help="what run.py wrote; kept as bench/results/KIND.json")
    path = parser.parse_args().path
    if path is not None:
        print(f"kept {keep(path).relative_to(ROOT)}")
    every = kept()
    for target, text in ((PAGE, page(every)), (ROWS, rows_page(every))):
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
