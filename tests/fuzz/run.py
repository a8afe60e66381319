"""Build every harness with clang's libFuzzer, run each for a while, and print what came of it: `make fuzz SECONDS=n`.

Inputs start from tests/fuzz/corpus and from tests/data (seeds.py). New ones are kept in OUT/corpus, so that the next run goes
on from there; an input that breaks a promise lands in OUT/findings, which makes the exit status 1.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = HERE / "corpus"
FLAGS = ["-std=c11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
MOST = {"blob": 20_000, "program": 12_000, "splice": 12_000, "text": 12_000, "python": 8_000, "public": 400}
"""Longest inputs in bytes; of other harnesses 4000."""
PYTHON = {"python": slice(0, 1), "public": slice(1, 2)}
"""Harnesses in Python, and which byte of an input says what is called."""
SHORT, MOST_KEPT = 2_000, 100
"""Longest input in bytes, and how many of a harness, that are kept in the repository."""


def harnesses():
    """Names of the harnesses: those in C, and those in Python where their fuzzer is installed."""
    names = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))
    if importlib.util.find_spec("atheris") is None:
        print(f"{', '.join(PYTHON)}: left out, atheris is not installed", file=sys.stderr)
        return names
    return [*names, *PYTHON]


def build(name, out):
    """Return the command that runs a harness."""
    if name in PYTHON:
        return [sys.executable, str(HERE / f"fuzz_{name}.py")]
    clang = shutil.which(os.environ.get("CLANG", "clang"))
    if clang is None:
        sys.exit("make fuzz: expected clang with libFuzzer, got none; CLANG=path names one")
    program = out / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests' / 'c'}"]
    subprocess.run([clang, *FLAGS, *includes, HERE / f"fuzz_{name}.c", "-o", program], check=True)
    return [str(program)]


def environment():
    """Sanitizers that say where; this milblob for the Python harness."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "allocator_may_return_null=1"}  # fmt: skip


def figures(log):
    """What libFuzzer says of itself: executions, edges and features covered, inputs kept."""
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", log)
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", log) or re.findall(r"^#(\d+)\t", log, re.M)
    edges, features, inputs = map(int, covered[-1] if covered else (0, 0, 0))
    return {"executions": int(executions[-1]) if executions else 0, "edges": edges, "features": features, "inputs": inputs}  # fmt: skip


def fuzz(name, command, out, seconds):
    """Run one harness for a time; returns its figures."""
    corpus, findings, seeds = out / "corpus" / name, out / "findings", out / "seeds" / name
    for folder in (corpus, findings, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(findings.glob(f"{name}-*"))
    options = [
        f"-max_total_time={seconds}", f"-max_len={MOST.get(name, 4_000)}", f"-artifact_prefix={findings}/{name}-",
        "-print_final_stats=1", "-timeout=60", "-report_slow_units=60", "-rss_limit_mb=3000", f"-detect_leaks={int(name not in PYTHON)}",
    ]  # fmt: skip
    if name == "text":
        options.append(f"-dict={HERE / 'text.dict'}")
    folders = [corpus, seeds, *([KEPT / name] if (KEPT / name).is_dir() else [])]
    log = out / "log" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        done = subprocess.run([*command, *options, *folders], stdout=file, stderr=file, env=environment(), check=False)
    row = figures(log.read_text(encoding="utf-8", errors="replace"))
    found = sorted(path.name for path in set(findings.glob(f"{name}-*")) - before)
    return {"harness": name, "seconds": seconds, **row, "status": done.returncode, "findings": found, "log": str(log)}


def smallest(name, command, out, sources):
    """Small inputs that together cover all that was covered."""
    if name in PYTHON:  # atheris cannot merge: some of each call
        chosen = {}
        for path in sorted(
            (path for folder in sources for path in folder.iterdir()), key=lambda path: path.stat().st_size
        ):
            chosen.setdefault(path.read_bytes()[PYTHON[name]], []).append(path)
        return [
            path
            for paths in chosen.values()
            for path in paths[: 3 if name == "python" else 1]
            if path.stat().st_size <= SHORT
        ]
    merged = out / "merged" / name
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    with (out / "log" / f"{name}-merge.txt").open("wb") as file:
        options = ["-merge=1", f"-max_len={SHORT}", merged, *sources]
        subprocess.run([*command, *options], stdout=file, stderr=file, env=environment(), check=True)
    return list(merged.iterdir())


def keep(name, command, out, most_nbytes):
    """Put the smallest inputs into tests/fuzz/corpus/NAME, up to a total size; crashes that are there stay."""
    target, total, count = KEPT / name, 0, 0
    target.mkdir(parents=True, exist_ok=True)
    sources = [path for path in (target, out / "corpus" / name, out / "seeds" / name) if path.is_dir()]
    found = {path.read_bytes() for path in smallest(name, command, out, sources)}
    for old in set(target.iterdir()) - set(target.glob("crash-*")):
        old.unlink()
    for data in sorted(found, key=lambda data: (len(data), data))[:MOST_KEPT]:
        total += len(data)
        if total > most_nbytes:
            break
        (target / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:12]).write_bytes(data)
        count += 1
    print(f"{name}: kept {count} of {len(found)} inputs")


def main():
    """Run the command line; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each harness")
    parser.add_argument("--jobs", type=int, default=1, help="harnesses at a time")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--only", nargs="*", help="names of harnesses")
    parser.add_argument(
        "--keep", type=int, metavar="NBYTES", help="afterwards minimise each corpus into tests/fuzz/corpus"
    )
    given = parser.parse_args()
    names = given.only or harnesses()
    out = given.out.resolve()
    subprocess.run([sys.executable, HERE / "seeds.py", out / "seeds", *names], check=True)
    commands = {name: build(name, out) for name in names}
    rows = []
    print(
        f"{'harness':12}{'seconds':>8}{'executions':>12}{'edges':>7}{'features':>9}{'inputs':>7}  findings", flush=True
    )
    if given.seconds > 0:
        with ThreadPoolExecutor(given.jobs) as pool:
            for row in pool.map(lambda name: fuzz(name, commands[name], out, given.seconds), names):
                rows.append(row)
                words = ", ".join(row["findings"]) or (
                    "none" if row["status"] == 0 else f"status {row['status']}, see {row['log']}"
                )
                print(
                    f"{row['harness']:12}{row['seconds']:8}{row['executions']:12}{row['edges']:7}{row['features']:9}"
                    f"{row['inputs']:7}  {words}",
                    flush=True,
                )
                (out / "figures.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if given.keep is not None:
        for name in names:
            keep(name, commands[name], out, given.keep)
    return any(row["findings"] or row["status"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
