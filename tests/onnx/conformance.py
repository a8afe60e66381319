"""`make onnx`: coremltools' own tests, converted to ONNX and run by onnxruntime; tables at the end.

    python tests/onnx/conformance.py [--share 0.1] [--jobs 2] [--json results.json] [--why] [pattern of tests ...]
    python tests/onnx/conformance.py --torch 300 [--seed 17] [...]

The first runs its tests of operations, the second a sample of those of its torch frontend: 300 test functions that
compare values, one case of each, chosen by the seed. Needs coremltools, onnxruntime and torch. Tests that need what is
not installed (tensorflow for 44 cases) are left out, and counted as such.
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
OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18", "torch")


def tests_of_coremltools(count):
    """The folder with coremltools' tests of operations, or with those of its torch frontend."""
    import coremltools

    mil = pathlib.Path(coremltools.__file__).parent / "converters" / "mil"
    return mil / "frontend" / "torch" / "test" if count else mil / "mil" / "ops" / "tests"


def start(folder, results, shard, jobs, share, patterns, count, seed):
    """Start one of several processes that run the tests; each takes its own share of them."""
    environment = dict(os.environ)
    environment["MILBLOB_CONFORMANCE"] = str(results)
    environment["MILBLOB_CONFORMANCE_SHARD"] = f"{shard}/{jobs}"
    environment["MILBLOB_CONFORMANCE_SHARE"] = str(share)
    environment["MILBLOB_CONFORMANCE_COUNT"] = str(count // jobs + (shard < count % jobs))
    environment["MILBLOB_CONFORMANCE_SEED"] = seed
    environment["PYTHONPATH"] = os.pathsep.join([str(SUPPORT), *filter(None, [environment.get("PYTHONPATH")])])
    environment["TMPDIR"] = tempfile.mkdtemp(dir=results.parent)
    settings = results.parent / "pytest.ini"  # else those of this project, if the environment lies in it
    settings.write_text("[pytest]\n")
    command = [
        sys.executable, "-m", "pytest", "-c", str(settings), "-p", "onnx_conformance", "-p", "no:cacheprovider", "-p", "no:xdist", "-q",
        "--continue-on-collection-errors", "--tb=no", "-W", "ignore", "--no-header",
        *(["-k", " or ".join(patterns)] if patterns else []), str(folder),
    ]  # fmt: skip
    output = open(results.with_suffix(".log"), "w")  # noqa: SIM115 - the process writes to it
    return subprocess.Popen(command, cwd=results.parent, env=environment, stdout=output, stderr=subprocess.STDOUT)


def record_crash(file, status):
    """Note that the case that ran last ended the process.

    Raises: SystemExit: none has run; with what the process printed.
    """
    now = file.with_suffix(".now")
    if not now.exists():
        output = file.with_suffix(".log").read_text()[-4000:]
        raise SystemExit(f"{output}\npytest ended with status {status} before the first case")
    running = json.loads(now.read_text())
    running |= {"result": "failed", "why": f"the process ended with status {status}", "error": 0.0, "operations": []}
    with open(file, "a", encoding="utf-8") as rows:
        rows.write(json.dumps(running) + "\n")


def run(share=1.0, jobs=1, patterns=(), count=0, seed=""):
    """Run the tests; return one row for each test function, opset and precision, and what is left out among them."""
    folder = tests_of_coremltools(count)
    with tempfile.TemporaryDirectory() as place:
        files = [pathlib.Path(place) / f"{shard}.jsonl" for shard in range(jobs)]
        options = (share, patterns, count, seed)
        processes = [start(folder, file, shard, jobs, *options) for shard, file in enumerate(files)]
        for shard, process in enumerate(processes):
            while process.wait() not in (0, 1, 5):  # it crashed: that case failed, and the others are still to be run
                record_crash(files[shard], process.returncode)
                process = start(folder, files[shard], shard, jobs, *options)
        rows = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
        if not rows:
            sys.stderr.write(files[0].with_suffix(".log").read_text()[-4000:])
    return one_of_each(rows)


def one_of_each(rows):
    """Of the cases of one test function, opset and precision the one that counts; failed where all are void."""
    cases = collections.defaultdict(list)
    for row in rows:
        cases[row["test"], row["opset"] or "", row["precision"] or ""].append(row)
    found = []
    for _, tried in sorted(cases.items()):
        void = [row for row in tried if row["result"] == "void"]
        judged = [row for row in tried if row["result"] not in ("void", "left out")]
        if judged:
            found.append(judged[-1] | {"voids": len(void)})
        else:
            found.append(void[-1] | {"result": "failed", "voids": len(void)} if void else tried[-1])
    return found


def operation_of(row):
    """What a row is about: the name of the class of tests, which is that of the operation."""
    module, test, _ = row["test"].split("::")
    return f"{module.partition('/')[2].removeprefix('test_')}: {test.removeprefix('Test')}"


def table(rows):
    """One line for each operation: passed, failed and unsupported cases by opset."""
    found = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    for row in rows:
        found[operation_of(row)][row["opset"]][row["result"]] += 1
    opsets = [opset for opset in OPSETS if any(opset in row for row in found.values())]
    lines = [f"{'':48}" + "".join(f"{opset:>16}" for opset in opsets)]
    for operation in sorted(found):
        cells = []
        for opset in opsets:
            counts = found[operation][opset]
            cells.append(f"{counts['passed']} / {counts['failed']} / {counts['unsupported']}" if counts else "-")
        lines.append(f"{operation:48}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def summary(rows):
    """The totals in one line."""
    counts = collections.Counter(row["result"] for row in rows)
    passed = [row for row in rows if row["result"] == "passed"]
    loose = sum(bool(row.get("loose")) for row in rows)
    return (
        f"{len(rows)} cases: {counts['passed']} passed ({counts['passed'] - loose} of them to 1e-2 of the range, "
        f"which coremltools' tolerance of half precision is not; {sum(row['voids'] > 0 for row in passed)} after void "
        f"cases), {counts['failed']} failed, {counts['unsupported']} unsupported"
    )


def left_out(rows):
    """Why test functions compared no values in an opset and a precision: the reasons with their counts."""
    counts = collections.Counter(" ".join(row["why"].split())[:160] for row in rows)
    lines = [f"{len(rows)} more compare no values:"] if rows else []
    return lines + [f"{count:6} {why}" for why, count in counts.most_common()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the cases, chosen by name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="write all rows to this file")
    parser.add_argument("--why", action="store_true", help="list every case that failed, is unsupported, or is loose")
    parser.add_argument("--torch", type=int, default=0, metavar="COUNT", help="so many tests of the torch frontend")
    parser.add_argument("--seed", default="", help="shuffles the cases in another order")
    parser.add_argument("patterns", nargs="*", help="only tests whose names contain one of these")
    arguments = parser.parse_args()
    everything = run(arguments.share, arguments.jobs, arguments.patterns, arguments.torch, arguments.seed)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(everything, indent=1))
    rows = [row for row in everything if row["result"] != "left out"]
    print("passed / failed / unsupported")
    print("\n".join(table(rows)))
    if arguments.why:
        for row in rows:
            if row["result"] != "passed" or row.get("loose"):
                why = row.get("why", f"loose: {row['error'] or 0:.3g} of the range")
                print(f"{row['test']} {row['opset']} {row['precision']}: {' '.join(why.split())[:240]}")
        print("\n".join(left_out([row for row in everything if row["result"] == "left out"])))
    print(summary(rows))
    return 0 if rows else 2


if __name__ == "__main__":
    sys.exit(main())
