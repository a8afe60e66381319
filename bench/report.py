"""Write docs/performance.md and docs/growth.svg from results: python bench/report.py RESULTS.json.

Every sentence with a figure in it is made from the results, so that the page cannot say what was not measured.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import plot
import results
import table
from results import (
    Job,
    Results,
    Row,
    Series,
    spell_factor,
    spell_memory,
    spell_speed,
    spell_time,
    spell_versus,
)

ROOT = Path(__file__).parent.parent
PAGE, PLOT = ROOT / "docs" / "performance.md", ROOT / "docs" / "growth.svg"
KEPT = ROOT / "bench" / "results"

METHOD = """\
## How it is measured

`make bench` makes `.venv`, installs the rivals into it, makes the data with the rivals' own writers, runs every file
`bench/bench_*.py` in a process of its own and prints the table that this page is made from. `make bench JOB=list` runs one
file, `MILBLOB_BENCH_SCALE=0.02 make bench` a smoke run. `make performance` writes this page and its plot from the results of
the last `make bench`, and keeps them in `bench/results/`; `make bench AGAINST=bench/results/NAME.json` also prints what has
changed since then. [bench/README.md](../bench/README.md) says what is needed.

- **Right before fast.** Each row runs once and its result is checked, value by value where it gives values, before it is
  timed. A row that is wrong has no time and is listed as absent.
- **Same run, same data.** Every rival reads the same tensors from its own format. The rows of a job take turns, forwards and
  backwards, so that a slow minute of the machine hits all of them. Only ratios within one run are worth comparing.
- **Median and spread.** The median of all rounds; the spread is half the interquartile range, in percent of the median.
  Rows under 50 microseconds are repeated within a round.
- **Open to close.** A row opens its file, makes its result and lets go of it; nothing is cached between rounds but the pages
  of the file. The garbage collector is on.
- **Limits** (in italics) are what cannot be beaten: a memcpy or memset of as many bytes, a bare read or write by the system's
  own call, a walk in C (`bench/cwalk.c`) that visits the same bytes and makes nothing of them. They share no code with
  milblob. Rows marked "for orientation" do less or other work; no ratio is taken to them.
- **Memory** is measured in a forked child: how much the most that was resident grew while the row ran once, pages of mapped
  files included; in parentheses what of the process' own memory was still held at the end, with the result alive. Imports and
  input do not count. Pages of a mapped file are the system's to take back.
- **Cold** rows drop the pages of their files before each round; `mincore` says whether that worked, and where it did not the
  row says INVALID. How far the kernel reads ahead is a setting of the disk, so these times differ much between machines.
- **Disk.** Jobs that write and sync are measured on the file system of the temporary directory (`TMPDIR`); their times say as
  much of the disk as of the code. Compare them with their limit."""


def page(found: Results, source: str) -> str:
    """Return the text of docs/performance.md.

    Args:
        found: what was measured.
        source: path of the results in the repository, for the reader.
    """
    count = found.header.get("runs", 1)  # more where a run was cut short and jobs were measured behind it
    runs = "one run of `make bench`" if count == 1 else f"{count} runs of `bench/run.py`, each of other jobs,"
    lines = [
        "# Performance",
        "",
        f"<!-- Written by bench/report.py from {source}; `make performance` writes it anew. Do not edit. -->",
        "",
        f"Every figure on this page is from {runs} on the machine below; the page is written from its",
        f"[results]({'../' + source}) by a script. Times are medians; how each was made, and the command that repeats it, stands beside it.",
        "",
    ]
    lines += [
        f"- **{line.partition(': ')[0]}**: {line.partition(': ')[2]}" for line in results.header_lines(found.header)
    ]
    if found.scale != 1:
        lines += ["", "**This is a smoke run: the sizes are small and the targets mean nothing.**"]
    for part in (glance(found), behind(found), targets(found), growth(found), absent(found)):
        lines += ["", *part]
    lines += ["", METHOD, "", "## Every figure"]
    for file in dict.fromkeys(job.file for job in found.jobs.values()):
        lines += ["", *section(found, file)]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text that a table of Markdown can hold."""
    return text.replace("|", "\\|")


def rows_of(headings: list[str], lines: list[list[str]]) -> Iterator[str]:
    """A table of Markdown without the columns that are empty; the first column is words, the others are figures."""
    used = [i for i in range(len(headings)) if i == 0 or any(line[i] for line in lines)]
    yield f"| {' | '.join(headings[i] for i in used)} |"
    yield "|" + "".join("---|" if i == 0 else "--:|" for i in used)
    for line in lines:
        yield f"| {' | '.join(cell(line[i]) for i in used)} |"


def glance(found: Results) -> Iterator[str]:
    """The row of milblob of each job beside the best rival and the limit."""
    yield "## At a glance"
    yield ""
    lines = []
    for job in found.jobs.values():
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
    """The jobs that somebody else does faster."""
    yield "## Where a rival is ahead"
    yield ""
    jobs = [job for job in found.jobs.values() if job.is_behind]
    compared = sum(job.own is not None and job.best is not None for job in found.jobs.values())
    if not jobs:
        yield f"In none of the {compared} jobs that a rival does too."
        return
    yield f"In {len(jobs)} of the {compared} jobs that a rival does too:"
    yield ""
    for job in jobs:
        for rival in job.rows.values():
            if rival.role == "rival" and job.own is not None and rival.median < job.own.median:
                times = f"{spell_time(rival.median)} against {spell_time(job.own.median)}"
                note = f" ({rival.note})" if rival.note else ""
                words = spell_versus(rival.median, job.own.median)
                yield f"- {job.name}: {rival.name} is {words}, {times}{note}."


def targets(found: Results) -> Iterator[str]:
    """How many are met, and which are not."""
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


def growth_words(series: Series) -> str:
    """What an exponent means."""
    if series.exponent < 0.15:
        return "does not depend on the work"
    if series.exponent < 0.9:
        return "grows more slowly than the work"
    return "grows as the work does" if series.exponent <= 1.1 else "grows faster than the work"


def growth(found: Results) -> Iterator[str]:
    """The plot and its figures."""
    yield "## How each cost grows"
    yield ""
    if not found.growth:
        yield "Not measured in this run."
        return
    yield f"![time at 1, 10 and 100 times the work, logarithmic]({PLOT.name})"
    yield ""
    yield "The same work 1, 10 and 100 times over. In parentheses, and in the table, the slope from the first point to the last:"
    yield "1 is a cost that grows as the work does, like the dotted lines; 0 one that does not depend on it."
    yield f"Repeat it with `{command(found.growth_file)}`."
    yield ""
    lines = []
    for series in found.growth:
        times = [spell_time(seconds) for _, seconds in series.points]
        most = f"{series.points[-1][0]:,.0f} {series.unit}"
        lines.append([series.name, most, " / ".join(times), f"{series.exponent:.2f}", growth_words(series)])
    yield from rows_of(["what", "work at the last point", "times", "exponent", ""], lines)


def absent(found: Results) -> Iterator[str]:
    """Who could not take part."""
    yield "## Absent"
    yield ""
    if not found.absent:
        yield "Nobody: every row was measured."
    for row in found.absent:
        yield f"- {row['job'] + ': ' if row['job'] else ''}{row['row']} (`bench/{row['file']}.py`): {row['reason']}"


def command(file: str) -> str:
    """What repeats a file."""
    return f"make bench JOB={file.removeprefix('bench_')}"


def section(found: Results, file: str) -> Iterator[str]:
    """The jobs of one file, with what it says of itself."""
    about = found.abouts.get(file, "")
    title, _, rest = about.partition("\n")
    yield f"### {file.removeprefix('bench_')}"
    yield ""
    yield title
    if rest.strip():
        yield ""
        yield rest.strip()
    yield ""
    yield f"`{command(file)}`, made by [bench/{file}.py](../bench/{file}.py)."
    for job in found.jobs.values():
        if job.file == file:
            yield ""
            yield f"#### {job.name}"
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
    """The name as its role wants it."""
    return {"milblob": f"**{row.name}**", "limit": f"_{row.name}_"}.get(row.role, row.name)


def words(row: Row) -> str:
    """The note; before it, that a row is for orientation."""
    found = ["for orientation"] if row.role == "aside" else []
    return "; ".join([*found, row.note] if row.note else found)


def image(found: Results) -> str:
    """Return the text of docs/growth.svg."""
    return plot.growth(found.growth, "time at 1, 10 and 100 times the work (slope)") if found.growth else ""


def main() -> int:
    """Keep the results, and write the page and the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="what run.py wrote; kept as bench/results/VERSION.json")
    path = parser.parse_args().path
    found = results.load(path)
    kept = KEPT / f"{found.header['milblob']['version']}.json"
    if path.resolve() != kept:
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(path.read_bytes())
    PAGE.write_text(page(found, kept.relative_to(ROOT).as_posix()), encoding="utf-8")
    PLOT.write_text(image(found), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} and {PLOT.relative_to(ROOT)} are those of {kept.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
