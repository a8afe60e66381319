"""Print what was measured as one table: python bench/table.py RESULTS.json [--against OLD.json].

Exit code: 1 if a row of milblob failed, 2 if there is nothing to print, else 0; targets that were missed are listed.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import results
from results import (
    MAX_MOVEMENT,
    ROLES,
    Job,
    Results,
    Row,
    spell_factor,
    spell_memory,
    spell_speed,
    spell_time,
    spell_versus,
)

HEADINGS = ("", "median", "spread", "to best rival", "of limit", "speed", "peak (own) memory")
NOISE = 0.1
"""A change of less than this, or than the spreads of both runs, is none."""


def cells(row: Row, job: Job) -> list[str]:
    """The columns of a row, its name apart."""
    best = spell_versus(row.median, job.best.median) if job.best is not None and row.role == "milblob" else ""
    limit = spell_factor(row.median / job.limit.median) if job.limit is not None and row is not job.limit else ""
    return [
        spell_time(row.median),
        f"+-{row.spread:.0%}",
        best,
        limit,
        spell_speed(row.speed),
        spell_memory(row),
    ]


def job_lines(job: Job) -> Iterator[str]:
    """A job with targets and notes under their rows."""
    table = [[f"{ROLES[row.role]} {row.name}", *cells(row, job)] for row in job.rows.values()]
    widths = [max(len(line[i]) for line in [HEADINGS, *table]) for i in range(len(HEADINGS))]
    title = "".join(f"  {word:>{width}}" for word, width in zip(HEADINGS[1:], widths[1:], strict=True))
    yield f"\n{job.name}"
    yield f"  {'':{widths[0]}}{title}"
    for line, row in zip(table, job.rows.values(), strict=True):
        figures = "".join(f"  {word:>{width}}" for word, width in zip(line[1:], widths[1:], strict=True))
        yield f"  {line[0]:{widths[0]}}{figures}".rstrip()
        for target in row.targets(job.rows):
            yield f"      target {target.words}: {'met' if target.met else 'NOT MET'}"
        if row.note:
            yield f"      {row.note}"


def ending_lines(found: Results) -> Iterator[str]:
    """What is absent, where rivals are ahead, whose limit moved, which targets were missed."""
    if found.absent:
        yield "\nabsent"
        for row in found.absent:
            yield f"  {row['file']}: {row['job'] + ': ' if row['job'] else ''}{row['row']}: {row['reason']}"
    behind = [job for job in found.settled.values() if job.is_behind]
    if behind:
        yield "\na rival is ahead"
        for job in behind:
            if job.own is not None and job.best is not None:
                yield f"  {job.name}: {job.own.name} is {spell_versus(job.own.median, job.best.median)} than {job.best.name}"
    moved = [job for job in found.jobs.values() if not job.is_settled]
    if moved:
        yield f"\na limit moved by more than {MAX_MOVEMENT - 1:.0%} between start and end: neither ratios nor targets hold"
        yield from (f"  {job.name}: by {job.movement - 1:.0%}, after {job.repeats} repeats" for job in moved)
    missed = [(row, target) for row, target in found.targets if not target.met]
    yield f"\n{len(found.targets) - len(missed)} of {len(found.targets)} targets met"
    for row, target in missed:
        yield f"  missed: {row.job}: {row.name} {target.words}"


def text(found: Results) -> str:
    """The whole table."""
    marks = "> milblob   _ limit: cannot be beaten   ~ less or other work, for orientation   the rest: rivals"
    lines = [*(f"{title}: {words}" for title, words in results.facts(found.header, found.runs).items()), marks]
    for job in found.jobs.values():
        lines += job_lines(job)
    return "\n".join([*lines, *ending_lines(found)])


def comparison(found: Results, old: Results) -> str:
    """Rows of milblob that changed by more than the noise, in time, and in their ratio to the limit of the same run."""
    lines = [f"against {old.header['date']}, milblob {old.header['milblob']['version']}, {old.header['cpu']}"]
    if found.scale != old.scale:
        return f"{lines[0]}\n  nothing to compare: scale {old.scale:g} then, {found.scale:g} now"
    shared = 0
    for name, job in found.settled.items():
        before = old.settled.get(name)
        for row in job.rows.values():
            if before is None or row.name not in before.rows or row.role != "milblob":
                continue
            shared += 1
            then = before.rows[row.name]
            change = row.median / then.median
            if abs(change - 1) <= max(NOISE, row.spread + then.spread):
                continue
            ratio = ""
            if job.limit is not None and before.limit is not None:
                ratios = then.median / before.limit.median, row.median / job.limit.median
                ratio = f"; of the limit: {spell_factor(ratios[0])} then, {spell_factor(ratios[1])} now"
            times = f"{spell_time(then.median)} then, {spell_time(row.median)} now"
            lines.append(f"  {spell_versus(row.median, then.median):>14}  {name}: {row.name}: {times}{ratio}")
    lines.append(
        f"  {shared} rows of milblob in both, {len(lines) - 1} changed by more than their spread and {NOISE:.0%}"
    )
    return "\n".join(lines)


def exit_code(found: Results) -> int:
    """1 if a row of milblob failed, 2 if there are no rows at all, else 0."""
    if not found.jobs:
        return 2
    return int(any(row["reason"].startswith("failed") and "milblob" in row["row"] for row in found.absent))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="what run.py wrote")
    parser.add_argument("--against", type=Path, help="results of another run: print what has changed since")
    arguments = parser.parse_args()
    found = results.load(arguments.path)
    print(text(found))
    if arguments.against is not None:
        print("\n" + comparison(found, results.load(arguments.against)))
    return exit_code(found)


if __name__ == "__main__":
    raise SystemExit(main())
