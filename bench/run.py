"""Run the benchmarks and print one table: python bench/run.py [--json OUT.json] [JOB ...], JOB as in bench_JOB.py.

Each bench file runs in a process of its own, so that none can take the others with it: what fails, hangs or is killed is
absent from the table by name. Their data lies in one temporary directory, which is removed at the end.
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
from pathlib import Path
from typing import Any

import makers
import table
from results import Results, load

HERE = Path(__file__).parent
FILE_SECONDS = 600
"""What one file may take before it is ended; all together take about ten minutes."""


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


def run_file(path: Path, folder: Path, data: Path) -> dict[str, Any]:
    """Run one file in a process of its own; return its part of the results."""
    part = folder / f"{path.stem}.json"
    command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), str(path), "--summary", str(part)]
    environment = os.environ | {"MILBLOB_BENCH_DATA": str(data)}
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


def remove_unshared(data: Path) -> None:
    """Remove what no other file needs, so that the data of all jobs is never there at once."""
    for path in data.glob("*/*"):
        if path.name not in makers.SHARED:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(files: list[Path]) -> dict[str, Any]:
    """Run bench files one after another; return the results of all.

    The data is kept if $MILBLOB_BENCH_DATA says where.
    """
    kept = os.environ.get("MILBLOB_BENCH_DATA")
    found: dict[str, Any] = {"format": 1, "header": {}, "abouts": {}, "rows": [], "absent": []}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="milblob-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data = Path(kept) if kept else folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(files, 1):
            begun = time.perf_counter()
            print(f"{number:2}/{len(files)} {path.stem}", end=" ", flush=True, file=sys.stderr)
            part = run_file(path, folder, data)
            for key in ("rows", "absent"):
                found[key] += part[key]
            found["abouts"].update(part["abouts"])
            found["header"] = found["header"] or part.get("header", {})
            if not kept:
                remove_unshared(data)
            rows = f"{len(part['rows'])} rows, {len(part['absent'])} absent"
            print(f"{rows}, {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    found["header"]["seconds"] = round(time.perf_counter() - start, 1)
    return found


def main() -> int:
    """Run, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="as in bench_JOB.py; default: all")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--against", type=Path, help="results of another run: print what has changed since")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes and data are cleaned up
    found = run(bench_files(arguments.jobs))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        lines = {key: value for key, value in found.items() if key != "rows"}
        rows = ",\n".join("  " + json.dumps(row) for row in found["rows"])
        arguments.json.write_text(json.dumps(lines, indent=1).rstrip("}\n") + f',\n "rows": [\n{rows}\n ]\n}}\n')
    if not found["rows"]:
        raise SystemExit("rows: expected at least one, got none")
    results = Results(found)
    print(table.text(results))
    if arguments.against is not None:
        print("\n" + table.comparison(results, load(arguments.against)))
    return table.exit_code(results)


if __name__ == "__main__":
    raise SystemExit(main())
