"""Runs the jobs over the networks of the zoo, two at a time, and keeps what they found in results.json.

make zoo        # all networks with all jobs, then with another opset and precision; ZOO="timm/levit_128s ..." names some
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

_HERE = Path(__file__).parent
_TIMEOUT = 3600
_ALL = ("check", "onnx", "refit", "text", "repack", "compress", "refit_compressed")
_AGAIN = ("check", "onnx", "refit")  # for another opset and precision
RESULTS = _HERE / "results.json"


def one(name, folder, jobs):
    """Run some jobs on one network, in this process; return what they found."""
    import jobs as all_jobs
    from making import made, quiet

    quiet()
    place, note = made(name, folder)
    found = {"made": note}
    for job in jobs if note["error"] is None else ():
        begin = time.process_time()
        try:
            found[job] = all_jobs.JOBS[job](place, note)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            found[job] = {"good": False, "words": words[:1500], "at": f"{Path(where.filename).name}:{where.lineno}"}
        found[job]["seconds"] = round(time.process_time() - begin, 1)
    return found


def several(names, folder, jobs, workers):
    """Run some jobs on networks, a process each; add what they found to the results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def start(name):
        command = [sys.executable, __file__, "--one", name, "--folder", folder, "--jobs", *jobs]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, env=os.environ)
            line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "{}"
            if done.returncode == 0:
                return name, json.loads(line)
            return name, {job: {"good": False, "words": done.stderr.strip()[-300:]} for job in jobs}
        except subprocess.TimeoutExpired:
            return name, {job: {"good": False, "words": f"more than {_TIMEOUT} s"} for job in jobs}

    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(start, name) for name in names]):
            name, found = done.result()
            row = results.setdefault(name, {"made": {"error": "the conversion ended without a word"}})
            row.update(found)
            RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
            wrong = [
                f"{job}: {found[job].get('words') or found[job]}"
                for job in jobs
                if not found.get(job, {}).get("good", True)
            ]
            print(name, (found.get("made") or {}).get("error") or "; ".join(wrong)[:400] or "good", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", default="build/zoo")
    parser.add_argument("--jobs", nargs="+", default=None, help="all; those of them for a second variant")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="every network with every opset and precision")
    parser.add_argument("--again", action="store_true", help="a second variant of every network, and nothing else")
    parser.add_argument("--one")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.folder, arguments.jobs)))
        return
    from architectures import NETWORKS
    from making import VARIANTS, second_of, variant_of

    names = arguments.names or list(NETWORKS)
    if arguments.again:
        names = [f"{name}@{'.'.join(second_of(name))}" for name in names]
    if arguments.all:
        names += [f"{name}@{'.'.join(kind)}" for name in names for kind in VARIANTS if kind != variant_of(name)]
    several(names, arguments.folder, arguments.jobs or (_AGAIN if arguments.again else _ALL), arguments.workers)


if __name__ == "__main__":
    main()
