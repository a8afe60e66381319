"""What bounds the inner loop of each x86 kernel: cycles that llvm-mca expects of several CPUs, and the resource that is full.

Compiles src/milblob/kernels.c, takes the innermost loop with the most vector instructions of each kernel of a tier, and
prints a table. It is no measurement: llvm-mca knows pipelines, but no caches and no memory. A loop whose cycles are far
below what its bytes take from memory is bound by memory; for the others the table says what to save.

    python bench/bounds.py --mca llvm-mca-19 > bench/results/bounds.md
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ITERATIONS = 100
CPUS = {"avx2": ("haswell", "znver3"), "avx512": ("icelake-server", "znver4"), "vbmi2": ("icelake-server", "znver4")}
CPUS["vbmi"] = CPUS["levels_avx512"] = CPUS["avx512"]
JUMP = re.compile(r"\s+j\w+\s+(\.L\w+)$")
IS_VECTOR = re.compile(r"\s+v?p?\w+\s.*%[xyz]mm")


def assembly(compiler: str, folder: pathlib.Path) -> str:
    """The unit that has the kernels, as the extension is compiled."""
    out = folder / "kernels.s"
    flags = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-asynchronous-unwind-tables", f"-I{ROOT / 'include'}"]
    flags.append(f"-I{sysconfig.get_path('include')}")
    subprocess.run([compiler, *flags, "-S", "-o", out, ROOT / "src/milblob/kernels.c"], check=True)
    return out.read_text()


def functions(text: str) -> dict[str, list[str]]:
    """Each function's lines."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        start = re.match(r"(mb_\w+):$", line)
        if start:
            lines = found[start[1]] = []
        elif re.match(r"\s+\.size\s", line):
            lines = []
        else:
            lines.append(line)
    return found


def inner_loop(lines: list[str]) -> list[str]:
    """The innermost loop with the most vector instructions; empty if there is none."""
    places = {line[:-1]: number for number, line in enumerate(lines) if re.match(r"\.L\w+:$", line)}
    jumps = [(number, JUMP.match(line)) for number, line in enumerate(lines)]
    spans = [(places[jump[1]], number) for number, jump in jumps if jump and places.get(jump[1], number) < number]
    inner = [(a, b) for a, b in spans if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)]
    loops = [[line for line in lines[a : b + 1] if re.match(r"\s+[a-z]", line)] for a, b in inner]
    loops = [loop for loop in loops if any(IS_VECTOR.match(line) for line in loop)]
    return max(loops, key=lambda loop: sum(bool(IS_VECTOR.match(line)) for line in loop), default=[])


def expected(mca: str, cpu: str, loop: list[str]) -> str:
    """Cycles of one iteration, and what bounds them: the fullest resource, or the wait for earlier results."""
    command = [mca, "-mtriple=x86_64-linux-gnu", f"-mcpu={cpu}", f"-iterations={ITERATIONS}", "-json", "-"]
    done = subprocess.run(command, input="\n".join(loop) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        return "-"
    report = json.loads(done.stdout)
    region = report["CodeRegions"][0]
    cycles = region["SummaryView"]["TotalCycles"] / ITERATIONS
    pressure: dict[int, float] = {}
    last = len(loop)  # the row of sums
    for use in region["ResourcePressureView"]["ResourcePressureInfo"]:
        if use["InstructionIndex"] == last:
            pressure[use["ResourceIndex"]] = use["ResourceUsage"]
    names = report["TargetInfo"]["Resources"]
    place, most = max(pressure.items(), key=lambda pair: pair[1], default=(0, 0.0))
    name = re.sub(r"[^\w]+.*", "", names[place]) if names else ""  # a part of a resource has a number after a NUL
    why = name if most > 0.85 * cycles else "front end" if len(loop) > 3.4 * cycles else "latency"
    return f"{cycles:.1f} ({why})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument("--mca", default="llvm-mca", help="llvm-mca, of LLVM 16 or newer: older ones know no Zen 4")
    options = parser.parse_args()
    mca = shutil.which(options.mca)
    if mca is None:
        raise SystemExit(f"{options.mca}: not found; it comes with LLVM")
    with tempfile.TemporaryDirectory() as folder:
        found = functions(assembly(options.compiler, pathlib.Path(folder)))
    version = re.search(
        r"LLVM version (\S+)", subprocess.run([mca, "--version"], capture_output=True, text=True).stdout
    )
    compiler = subprocess.run([options.compiler, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    print("# What bounds the kernels\n")
    print(
        f"Made by `python bench/bounds.py`: {compiler}, llvm-mca {version[1] if version else ''}. Each cell: cycles of"
    )
    print(
        "one iteration of the inner loop, and what is full: an execution port, the front end, or nothing (latency: each"
    )
    print("iteration waits for the one before). Caches and memory are not modelled.\n")
    for tier, cpus in (("avx2", CPUS["avx2"]), ("AVX-512", CPUS["avx512"])):
        print(f"## {tier.upper()}\n\n| kernel | instructions | {' | '.join(cpus)} |\n|---|---|{'---|' * len(cpus)}")
        for name, lines in sorted(found.items()):
            suffix = name.rsplit("_", 1)[-1]
            if CPUS.get(suffix) == cpus and (loop := inner_loop(lines)):
                print(f"| {name} | {len(loop)} | {' | '.join(expected(mca, cpu, loop) for cpu in cpus)} |")
        print()


if __name__ == "__main__":
    main()
