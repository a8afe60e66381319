"""Run the benchmarks and print one table: python bench/run.py [--json OUT.json] [JOB ...], JOB as in bench_JOB.py.

Each bench file runs in a process of its own, so that none can take the others with it: what fails, hangs or is killed is
absent from the table by name. Their data lies in one temporary directory, which is removed at the end.

A job whose limit (memcpy, a bare write) took more than 20% longer at its end than at its start, or less, is measured again.
OUT.json is written after each file, and keeps what other runs on this machine gave for other files.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import makers
import table
from results import Results, jobs_of, load, merged, repeated, write

HERE = Path(__file__).parent
FILE_SECONDS = 600
"""What one file may take before it is ended; all together take about half an hour."""
REPEATS = 2
"""How often a job is measured again whose limit moved."""


def bench_files(jobs: list[str]) -> list[Path]:
    """The files of the named jobs, or all.

    Raises:
        SystemExit: no such job.
    """
    every = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    wrong = [job for job in jobs if job not in every]
    if wrong:
        raise SystemExit(f"job: expected one of {', '.join(every)}, got {wrong[0]}")
    return [every[job] for job in jobs] if jobs else list(every.values())


def run_file(path: Path, folder: Path, data: Path, nodes: list[str] | None = None) -> dict[str, Any]:
    """Run one file, or some of its nodes, in a process of its own; return its part of the results."""
    part = folder / f"{path.stem}.json"
    part.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), str(path), "--summary", str(part)]
    if nodes is not None:
        only = folder / "only.json"
        only.write_text(json.dumps(nodes))
        command += ["--only", str(only)]
    # TMPDIR: coremltools leaves models there.
    environment = os.environ | {"MILBLOB_BENCH_DATA": str(data), "TMPDIR": str(folder)}
    output = folder / f"{path.stem}.txt"
    with output.open("w") as log:
        process = subprocess.Popen(
            [*command, "--basetemp", str(folder / "tmp")],
            cwd=HERE, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        end = ""
        try:
            process.wait(FILE_SECONDS)
        except subprocess.TimeoutExpired:
            end = f"failed: took more than {FILE_SECONDS} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode not in (0, 1) and not end:
        end = f"failed: exit code {process.returncode}"
    try:
        found: dict[str, Any] = json.loads(part.read_text())
    except (OSError, ValueError):
        found = {"abouts": {}, "rows": [], "absent": [], "running": ""}
        end = end or "failed: no results"
    running = found.pop("running")
    if end:
        found["absent"].append({"job": "", "row": running or path.stem, "file": path.stem, "reason": end})
    if found["absent"]:
        failed = [row for row in found["absent"] if row["reason"].startswith("failed")]
        if failed:
            print("".join(f"  {line}\n" for line in output.read_text().splitlines()[-15:]), end="", file=sys.stderr)
    return found


def settled(path: Path, folder: Path, data: Path, repeats: int) -> dict[str, Any]:
    """Run one file, and at most `repeats` times those of its jobs again whose limit moved; return its part."""
    part = run_file(path, folder, data)
    rows = part["rows"]
    for number in range(1, repeats + 1):
        moved = {name for name, job in jobs_of(rows).items() if not job.is_settled}
        if not moved:
            break
        print(f"(a limit moved: {len(moved)} jobs again)", end=" ", flush=True, file=sys.stderr)
        nodes = [row["node"] for row in rows if row["job"] in moved]
        rows = repeated(rows, run_file(path, folder, data, nodes)["rows"], number)
    return part | {"rows": [{key: value for key, value in row.items() if key != "node"} for row in rows]}


def remove_unshared(data: Path) -> None:
    """Remove what no other file needs, so that the data of all jobs is never there at once."""
    for path in data.glob("*/*"):
        if path.name not in makers.SHARED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(files: list[Path], repeats: int, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run bench files one after another; return the results of all.

    The data is kept if $MILBLOB_BENCH_DATA says where.

    Args:
        files: to run.
        repeats: how often a job may be measured again.
        keep: called after each file with the results so far.
    """
    kept = os.environ.get("MILBLOB_BENCH_DATA")
    found: dict[str, Any] = {"format": 1, "header": {}, "runs": {}, "abouts": {}, "rows": [], "absent": []}
    with tempfile.TemporaryDirectory(prefix="milblob-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data = Path(kept) if kept else folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(files, 1):
            started = time.perf_counter()
            print(f"{number:2}/{len(files)} {path.stem}", end=" ", flush=True, file=sys.stderr)
            part = settled(path, folder, data, repeats)
            for key in ("rows", "absent"):
                found[key] += part[key]
            found["abouts"].update(part["abouts"])
            seconds = round(time.perf_counter() - started, 1)
            header = part.get("header") or machine.describe()
            found["header"] = found["header"] or header
            found["runs"][path.stem] = {
                "date": header["date"], "version": header["milblob"]["version"], "seconds": seconds,
                "load_average": header["load_average"],
            }  # fmt: skip
            keep(found)
            if not kept:
                remove_unshared(data)
            moved = sum(not job.is_settled for job in jobs_of(part["rows"]).values())
            words = f"{len(part['rows'])} rows, {len(part['absent'])} absent, {seconds:.0f} s"
            print(words + (f", limits of {moved} jobs not settled" if moved else ""), file=sys.stderr)
    return found


def keeper(path: Path) -> Callable[[dict[str, Any]], None]:
    """Return the function that writes results to a file, with what is there of other bench files.

    Raises:
        SystemExit: what is there is of another machine or scale.
    """
    old = json.loads(path.read_text()) if path.exists() else None
    here = {"header": machine.describe(), "runs": {}, "abouts": {}, "rows": [], "absent": []}

    def keep(found: dict[str, Any]) -> None:
        write(path, found if old is None else merged(old, found))

    try:
        if old is not None:
            merged(old, here)
    except ValueError as error:
        raise SystemExit(f"{path}: {error}; remove it, or write to another file") from None
    return keep


def main() -> int:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="as in bench_JOB.py; default: all")
    parser.add_argument(
        "--json", type=Path, help="where to write the results, beside those of other jobs that are there"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="how often a job is repeated whose limit moved")
    parser.add_argument("--against", type=Path, help="results of another run: print what has changed since")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes and data are cleaned up
    keep = keeper(arguments.json) if arguments.json is not None else lambda _: None
    found = run(bench_files(arguments.jobs), arguments.repeats, keep)
    if not found["rows"]:
        raise SystemExit("rows: expected at least one, got none")
    results = Results(found)
    print(table.text(results))
    if arguments.against is not None:
        print("\n" + table.comparison(results, load(arguments.against)))
    return table.exit_code(results)


if __name__ == "__main__":
    raise SystemExit(main())
