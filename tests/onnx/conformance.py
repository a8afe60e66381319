"""`make onnx`: coremltools' own tests of operations, converted to ONNX and run by onnxruntime; one table at the end.

    python tests/onnx/conformance.py [--share 0.1] [--jobs 2] [--json results.json] [--why] [pattern of tests ...]

Needs coremltools, onnxruntime and torch (three of the test files ask for it; without torch they are left out).
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SUPPORT = pathlib.Path(__file__).parents[1] / "support"
OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18")


def tests_of_coremltools():
    """The folder with coremltools' tests of operations."""
    import coremltools

    return pathlib.Path(coremltools.__file__).parent / "converters" / "mil" / "mil" / "ops" / "tests"


def start(folder, results, shard, jobs, share, patterns):
    """Start one of several processes that run the tests; each takes its own share of them."""
    environment = dict(os.environ)
    environment["MILBLOB_CONFORMANCE"] = str(results)
    environment["MILBLOB_CONFORMANCE_SHARD"] = f"{shard}/{jobs}"
    environment["MILBLOB_CONFORMANCE_SHARE"] = str(share)
    environment["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *filter(None, [environment.get("PYTHONPATH")])])
    environment["TMPDIR"] = tempfile.mkdtemp(dir=results.parent)
    command = [
        sys.executable, "-m", "pytest", "-p", "onnx_conformance", "-p", "no:cacheprovider", "-p", "no:xdist", "-q",
        "--continue-on-collection-errors", "--tb=no", "-W", "ignore", "--no-header",
        *(["-k", " or ".join(patterns)] if patterns else []), str(folder),
    ]  # fmt: skip
    output = open(results.with_suffix(".log"), "w")  # noqa: SIM115 - the process writes to it
    return subprocess.Popen(command, cwd=results.parent, env=environment, stdout=output, stderr=subprocess.STDOUT)


def record_crash(file, status):
    """Note that the case that ran last ended the process."""
    running = json.loads(file.with_suffix(".now").read_text())
    running |= {"result": "failed", "why": f"the process ended with status {status}", "error": 0.0, "operations": []}
    with open(file, "a", encoding="utf-8") as rows:
        rows.write(json.dumps(running) + "\n")


def run(share=1.0, jobs=1, patterns=()):
    """Run the tests; return one row for each test function, opset and precision that compares values."""
    folder = tests_of_coremltools()
    with tempfile.TemporaryDirectory() as place:
        files = [pathlib.Path(place) / f"{shard}.jsonl" for shard in range(jobs)]
        processes = [start(folder, file, shard, jobs, share, patterns) for shard, file in enumerate(files)]
        for shard, process in enumerate(processes):
            while process.wait() not in (0, 1, 5):  # it crashed: that case failed, and the others are still to be run
                record_crash(files[shard], process.returncode)
                process = start(folder, files[shard], shard, jobs, share, patterns)
        rows = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
        if not rows:
            sys.stderr.write(files[0].with_suffix(".log").read_text()[-4000:])
    return sorted(rows, key=lambda row: (row["test"], row["opset"], row["precision"]))


def operation_of(row):
    """What a row is about: the name of the class of tests, which is that of the operation."""
    module, test, _ = row["test"].split("::")
    return f"{module.partition('/')[2].removeprefix('test_')}: {test.removeprefix('Test')}"


def table(rows):
    """One line for each operation: passed, failed and unsupported cases by opset."""
    found = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for row in rows:
        found[operation_of(row)][row["opset"]][row["result"]] += 1
    lines = [f"{'':48}" + "".join(f"{opset:>16}" for opset in OPSETS)]
    for operation in sorted(found):
        cells = []
        for opset in OPSETS:
            counts = found[operation][opset]
            cells.append(f"{counts['passed']} / {counts['failed']} / {counts['unsupported']}" if counts else "-")
        lines.append(f"{operation:48}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def summary(rows):
    """The totals in one line."""
    counts = collections.Counter(row["result"] for row in rows)
    loose = sum(bool(row.get("loose")) for row in rows)
    return (
        f"{len(rows)} cases: {counts['passed']} passed ({loose} of them loose: worse than 1e-2 of the range), "
        f"{counts['failed']} failed, {counts['unsupported']} unsupported"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the cases, chosen by name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="write all rows to this file")
    parser.add_argument("--why", action="store_true", help="list every case that failed, is unsupported, or is loose")
    parser.add_argument("patterns", nargs="*", help="only tests whose names contain one of these")
    arguments = parser.parse_args()
    rows = run(arguments.share, arguments.jobs, arguments.patterns)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    print("passed / failed / unsupported")
    print("\n".join(table(rows)))
    if arguments.why:
        for row in rows:
            if row["result"] != "passed" or row.get("loose"):
                why = row.get("why", f"loose: {row['error']:.3g} of the range")
                print(f"{row['test']} {row['opset']} {row['precision']}: {' '.join(why.split())[:240]}")
    print(summary(rows))
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
