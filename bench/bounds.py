"""What bounds the inner loop of each kernel: cycles that llvm-mca expects of several CPUs, and the resource that is full.

Compiles src/milblob/kernels.c, takes the innermost loop with the most vector instructions of each kernel of a tier, or the
loops named in LOOPS, and prints a table; NEON kernels are compiled by clang, if it and headers for arm64 are there. It is no measurement: llvm-mca knows pipelines, but no caches and no memory. A loop whose cycles are far
below what its bytes take from memory is bound by memory; for the others the table says what to save.

    python bench/bounds.py --mca llvm-mca-19 --clang clang > bench/results/bounds.md
"""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import aarch64  # noqa: E402

ITERATIONS = 100
AVX512 = ("icelake-server", "znver4", "znver5")
CPUS = {"avx2": ("haswell", "znver3"), "avx512": AVX512, "vbmi": AVX512, "vbmi2": AVX512, "neon": ("apple-m1",)}
JUMP = re.compile(r"\s+(?:j\w+|b\.?\w+|cbn?z\s+\w+,|tbn?z\s+\w+, #\w+,)\s+(\.L\w+)$")
IS_VECTOR = re.compile(r"\s+v?p?\w+\s.*(%[xyz]mm|\bv\d+\.\d|\bq\d)")
LOOPS = {
    "mb_moments_": (("extremes and sum", ("v?f?min", r"v?f?add.*(ymm|zmm|2d)")), ("squares", ("v?f?sub", "v?f?mul"))),
    "mb_quantize_f16_avx": (
        (
            "two rows",
            (r"(?:vpackusdw|vpmovdb)[\s\S]*\n\s+(?:vpackusdw|vpmovdb)", r"(?:v(?:rndscale|round)ps[\s\S]*){4}"),
        ),
    ),
    "mb_quantize_f32_avx": (("two rows", (r"(?:vpackusdw|vpmovdb)[\s\S]*\n\s+(?:vpackusdw|vpmovdb)",)),),
    "mb_varint_run_ints_avx2": (("four elements", ("vpmaddubsw",)),),
    "mb_varint_run_64_avx2": (("four elements", ("vpmaddubsw",)),),
}
"""How the name of a kernel begins that takes its steps in loops of their own -> each step, and instructions of it. Other
loops of these kernels count what is rare."""


def assembly(command: list[str], folder: pathlib.Path, *flags: str) -> str:
    """The unit that has the kernels, as the extension is compiled."""
    out = folder / "kernels.s"
    flags = ("-O3", "-std=c11", "-ffp-contract=off", "-fno-asynchronous-unwind-tables", *flags, f"-I{ROOT / 'include'}")
    subprocess.run([*command, *flags, "-S", "-o", out, ROOT / "src/milblob/kernels.c"], check=True)
    return out.read_text()


def functions(text: str) -> dict[str, list[str]]:
    """Each function's lines, without comments."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in map(str.rstrip, re.sub(r"[ \t]*(#+|//) .*", "", text).splitlines()):
        start = re.match(r"(mb_\w+):$", line)
        if start:
            lines = found[start[1]] = []
        elif re.match(r"\s+\.size\s", line):
            lines = []
        else:
            lines.append(line)
    return found


def inner_loops(lines: list[str]) -> list[list[str]]:
    """The innermost loops with vector instructions, the one with the most of them first."""
    places = {line[:-1]: number for number, line in enumerate(lines) if re.match(r"\.L\w+:$", line)}
    jumps = [(number, JUMP.match(line)) for number, line in enumerate(lines)]
    spans = [(places[jump[1]], number) for number, jump in jumps if jump and places.get(jump[1], number) < number]
    inner = [(a, b) for a, b in spans if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)]
    loops = [[line for line in lines[a : b + 1] if re.match(r"\s+[a-z]", line)] for a, b in inner]
    vectors = [(sum(bool(IS_VECTOR.match(line)) for line in loop), loop) for loop in loops]
    return [loop for many, loop in sorted(vectors, key=lambda pair: -pair[0]) if many]


def chosen(name: str, lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the loops that take a kernel's time, each with the name of its row."""
    loops = inner_loops(lines)
    steps = next((steps for start, steps in LOOPS.items() if name.startswith(start)), ())
    for step, wanted in steps:
        texts = [(loop, "\n".join(loop)) for loop in loops]
        with_all = [loop for loop, text in texts if all(re.search(rf"^\s+{one}", text, re.MULTILINE) for one in wanted)]
        yield from ((f"{name}: {step}", loop) for loop in with_all[-1:])  # the one that does the least besides
    if not steps and loops:
        yield name, loops[0]


def expected(mca: str, cpu: str, loop: list[str]) -> str:
    """Cycles of one iteration, and what bounds them: the fullest resource, or the wait for earlier results."""
    triple = "aarch64-linux-gnu" if cpu in CPUS["neon"] else "x86_64-linux-gnu"
    command = [mca, f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={ITERATIONS}", "-json", "-"]
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
    parser.add_argument("--clang", default="clang", help="compiles the NEON kernels")
    options = parser.parse_args()
    mca = shutil.which(options.mca)
    if mca is None:
        raise SystemExit(f"{options.mca}: not found; it comes with LLVM")
    with tempfile.TemporaryDirectory() as folder:
        python = f"-I{sysconfig.get_path('include')}"
        found = functions(assembly([options.compiler], pathlib.Path(folder), python))
        tools = aarch64.find()
        clang = None if isinstance(tools, str) else tools.clang(options.clang)
        neon = functions(assembly(clang, pathlib.Path(folder), "-mcpu=apple-m1")) if clang else {}
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
    print(
        "iteration waits for the one before). Caches and memory are not modelled. LLVM 19 has Zen 4's description for znver5"
    )
    print("too, and that of an older CPU of Apple for apple-m1. NEON loops are compiled by clang.\n")
    for tier, units in (("avx2", found), ("avx512", found), ("neon", neon)):
        cpus = CPUS[tier]
        print(f"## {tier.upper()}\n\n| kernel | instructions | {' | '.join(cpus)} |\n|---|---|{'---|' * len(cpus)}")
        for name, lines in sorted(units.items()):
            for row, loop in chosen(name, lines) if CPUS.get(name.rsplit("_", 1)[-1]) == cpus else ():
                print(f"| {row} | {len(loop)} | {' | '.join(expected(mca, cpu, loop) for cpu in cpus)} |")
        print()


if __name__ == "__main__":
    main()
