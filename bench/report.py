"""Write docs/performance.md and bench/results/VERSION.md from results: python bench/report.py RESULTS.json.

Every sentence with a figure is made from the results, so the pages cannot say anything that was not measured.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import results
import table
from results import (
    LIMIT,
    Growth,
    Job,
    Results,
    Row,
    Series,
    header_lines,
    spell_factor,
    spell_memory,
    spell_nbytes,
    spell_speed,
    spell_time,
    spell_versus,
)

import plot

ROOT = Path(__file__).parent.parent
PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "growth.svg"
KEPT = ROOT / "bench" / "results"
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
)
"""The files whose first job is shown at a glance."""

METHOD = """\
## How it is measured

`make bench` makes `.venv`, installs the rivals into it, makes the data with the rivals' own writers, runs every file
`bench/bench_*.py` in a process of its own and prints a table of all rows. `make bench JOB=list` runs one file,
`MILBLOB_BENCH_SCALE=0.02 make bench` a smoke run. `make performance` writes these pages and the plot from the results of the last
`make bench`, and keeps the results in `bench/results/`; `make bench AGAINST=bench/results/NAME.json` also prints what changed since
then. `bench/README.md` lists the requirements.

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
- **Memory** is measured in a forked child: by how much the peak of resident memory grew while the row ran once, pages of mapped
  files included; in parentheses how much of the process's own memory was still held at the end, with the result alive. Imports
  and input do not count. The system can reclaim the pages of a mapped file at any time.
- **Cold** rows drop the pages of their files before each round; `mincore` checks that this worked, and where it did not the row
  is marked INVALID. How far the kernel reads ahead is a setting of the disk, so these times differ much between machines.
- **Disk.** Jobs that write and sync are measured on the file system of the temporary directory (`TMPDIR`); their times depend as
  much on the disk as on the code. Compare them with their limit.

There are no times for arm64; [kernels.md](kernels.md) counts instructions instead."""


def page(found: Results, source: str) -> str:
    """Return the text of docs/performance.md.

    Args:
        found: what was measured.
        source: path of the results in the repository, for the reader.
    """
    count = found.header.get("runs", 1)  # more where a run was cut short and other jobs were measured later
    runs = "one run of `make bench`" if count == 1 else f"{count} runs of `bench/run.py`, each of other jobs,"
    rows = source.removesuffix(".json") + ".md"
    lines = [
        "# Performance",
        "",
        f"<!-- Written by bench/report.py from {source}; `make performance` rewrites it. Do not edit. -->",
        "",
        "This page compares the speed and memory of milblob with those of other libraries, including the jobs where another one is faster. It",
        "is for those who choose a library, and for those who change the speed of this one.",
        "",
        f"Every figure is from {runs} on the machine below. A script writes the page from `{source}`;",
        f"`{rows}` has every row. Times are medians.",
        "",
        *machine(found),
    ]
    for part in (behind(found), glance(found, rows), targets(found), growth(Growth.load(GROWTH)), absent(found)):
        lines += ["", *part]
    return "\n".join([*lines, "", METHOD]) + "\n"


def rows_page(found: Results, source: str) -> str:
    """Return the text of the page with every row: each job, with the command that repeats it.

    Args:
        found: what was measured.
        source: path of the results in the repository; the page lies beside them.
    """
    name = Path(source).name
    lines = [
        f"# Every benchmark row of milblob {found.header['milblob']['version']}",
        "",
        f"<!-- Written by bench/report.py from {source}; `make performance` rewrites it. Do not edit. -->",
        "",
        f"All rows of the [results]({name}). [docs/performance.md](../../docs/performance.md) is written from the same file and explains how they are",
        "measured. Times are medians; each section names the command that repeats it.",
        "",
        *machine(found),
        "",
        "## Every job",
        "",
        *summary(found.jobs.values()),
    ]
    for file in dict.fromkeys(job.file for job in found.jobs.values()):
        lines += ["", *section(found, file)]
    return "\n".join(lines) + "\n"


def machine(found: Results) -> Iterator[str]:
    """Where, when and with what."""
    for line in results.header_lines(found.header):
        title, _, fact = line.partition(": ")
        yield f"- **{title}**: {fact}"
    if found.scale != 1:
        yield ""
        yield "**This is a smoke run: the sizes are small and the targets mean nothing.**"


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


def glance(found: Results, rows: str) -> Iterator[str]:
    """The first job of ten files."""
    first: dict[str, Job] = {}
    for job in found.jobs.values():
        if job.own is not None:
            first.setdefault(job.file, job)
    yield "## At a glance"
    yield ""
    yield from summary(first[file] for file in GLANCE if file in first)
    yield ""
    yield f"All {len(found.jobs)} jobs: `{rows}`."


def summary(jobs: Iterable[Job]) -> Iterator[str]:
    """A table with milblob's row of each job beside the best rival and the limit."""
    lines = []
    for job in jobs:
        if job.own is None:
            continue
        own = spell_time(job.own.median)
        best = f"{job.best.name}, {spell_time(job.best.median)}" if job.best is not None else "none"
        versus = spell_versus(job.own.median, job.best.median) if job.best is not None else ""
        limit = (
            f"{spell_factor(job.own.median / job.limit.median)} of {spell_time(job.limit.median)}" if job.limit else ""
        )
        lines.append([job.name, own, best, versus, limit, spell_memory(job.own)])
    yield from rows_of(["job", "milblob", "best rival", "milblob is", "of the limit", "peak (own) memory"], lines)


def behind(found: Results) -> Iterator[str]:
    """The jobs that a rival does faster."""
    yield "## Where a rival is ahead"
    yield ""
    jobs = [job for job in found.jobs.values() if job.is_behind]
    compared = sum(job.own is not None and job.best is not None for job in found.jobs.values())
    if not jobs:
        yield f"In none of the {compared} jobs that a rival can do."
        return
    yield f"In {len(jobs)} of the {compared} jobs that a rival can do:"
    yield ""
    for job in jobs:
        for rival in job.rows.values():
            if rival.role == "rival" and job.own is not None and rival.median < job.own.median:
                times = f"{spell_time(rival.median)} against {spell_time(job.own.median)}"
                note = f" ({rival.note})" if rival.note else ""
                words = spell_versus(rival.median, job.own.median)
                yield f"- {job.name}: {rival.name} is {words}, {times}{note}."


def targets(found: Results) -> Iterator[str]:
    """How many targets are met, and which are missed."""
    missed = [(row, target) for row, target in found.targets if not target.met]
    yield "## Targets"
    yield ""
    yield f"{len(found.targets) - len(missed)} of {len(found.targets)} targets are met" + (
        "; missed:" if missed else "."
    )
    if missed:
        yield ""
    for row, target in missed:
        yield f"- {row.job}: {row.name}: {target.words}"


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


TENSORS, BYTES = "By number of tensors", "By bytes of four tensors in a sparse file"
SPELLED: dict[str, Callable[[int], str]] = {TENSORS: "{:,}".format, BYTES: spell_nbytes}
WORDS = f"""Processor time, user and system, of the operation in a process of its own; what became resident; the slope of the last factor
of 10 or 16, both axes logarithmic. A slope above {LIMIT} has a reason, or is marked as steep. The rows "control: ..." do in plain Python
what all operations must do: their slopes are those of the machine and of Python."""
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
    rows = ["# Growth", "", *header_lines(found.header), "", WORDS, ""]
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


def absent(found: Results) -> Iterator[str]:
    """The rows that could not be measured."""
    yield "## Absent"
    yield ""
    if not found.absent:
        yield "None: every row was measured."
    for row in found.absent:
        yield f"- {row['job'] + ': ' if row['job'] else ''}{row['row']} (`bench/{row['file']}.py`): {row['reason']}"


def command(file: str) -> str:
    """Return the command that repeats a file."""
    return f"make bench JOB={file.removeprefix('bench_')}"


def section(found: Results, file: str) -> Iterator[str]:
    """The jobs of one file, after its docstring."""
    about = found.abouts.get(file, "")
    title, _, rest = about.partition("\n")
    yield f"## {file.removeprefix('bench_')}"
    yield ""
    yield title
    if rest.strip():
        yield ""
        yield rest.strip()
    yield ""
    yield f"`{command(file)}`, made by [bench/{file}.py](../{file}.py)."
    for job in found.jobs.values():
        if job.file == file:
            yield ""
            yield f"### {job.name}"
            yield ""
            yield from job_table(job)


def job_table(job: Job) -> Iterator[str]:
    """Every row of a job, fastest first."""
    lines = []
    for row in job.rows.values():
        median, spread, best, limit, *_ = table.cells(row, job)
        lines.append(
            [
                styled(row),
                median,
                spread.replace("+-", "±"),
                best,
                limit,
                spell_speed(row.speed),
                spell_memory(row),
                words(row),
            ]
        )
    headings = ["row", "median", "spread", "to the best rival", "of the limit", "speed", "peak (own) memory", "note"]
    yield from rows_of(headings, lines)
    for row in job.rows.values():
        for target in row.targets(job.rows):
            yield ""
            yield f"Target of {row.name}: {target.words}; {'met' if target.met else '**missed**'}."


def styled(row: Row) -> str:
    """Return the name in the type of its role: milblob bold, limits italic."""
    return {"milblob": f"**{row.name}**", "limit": f"_{row.name}_"}.get(row.role, row.name)


def words(row: Row) -> str:
    """Return the note, after "for orientation" where that applies."""
    found = ["for orientation"] if row.role == "aside" else []
    return "; ".join([*found, row.note] if row.note else found)


def main() -> int:
    """Keep the results, and write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="what run.py wrote; kept as bench/results/VERSION.json")
    path = parser.parse_args().path
    found = results.load(path)
    kept = KEPT / f"{found.header['milblob']['version']}.json"
    if path.resolve() != kept:
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(path.read_bytes())
    source = kept.relative_to(ROOT).as_posix()
    rows = kept.with_suffix(".md")
    PAGE.write_text(page(found, source), encoding="utf-8")
    rows.write_text(rows_page(found, source), encoding="utf-8")
    print(f"wrote {', '.join(str(path.relative_to(ROOT)) for path in (PAGE, rows))} from {source}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
