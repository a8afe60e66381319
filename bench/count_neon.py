"""The NEON kernels beside the plain ones: instructions that qemu executes, and cycles that llvm-mca expects of two CPUs.

    python bench/count_neon.py            # gcc -O3, and the cycles of a Neoverse N1
    python bench/count_neon.py --clang    # clang -O3, which is what Macs have, and those of an Apple M1

Neither is a time: a count says nothing about what an instruction costs, and llvm-mca knows pipelines, but no caches, no
mispredicted branches, and no loads that wait for a store to the same place. It is what can be said without an arm64 machine.

Stretches of instructions that were executed equally often are what llvm-mca gets, each as if it were a loop.
"""

import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import aarch64  # noqa: E402

CPU = "max,sve=off"  # neither of the two has SVE, which memcpy would use
ITERATIONS = 100


def executed(tools, program):
    """How often each instruction was executed, by its address: a Counter for each row."""
    for step in ("-one-insn-per-tb", "-singlestep"):  # the new name and the old one
        rows, row = [], None
        command = [*tools.emulator, "-cpu", CPU, step, "-d", "exec,nochain", "-D", "/dev/stdout", str(program)]
        with subprocess.Popen(
            command, env=tools.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            for line in run.stdout:
                if not line.startswith("Trace"):
                    continue
                symbol = line.rsplit(None, 1)[-1]
                if symbol == "row_begin":
                    row = collections.Counter()
                elif symbol == "row_end":
                    if row is not None:
                        rows.append(row)
                    row = None
                elif row is not None:
                    row[int(line.split("/")[1], 16)] += 1
        if rows:
            return rows
    raise SystemExit(f"{tools.emulator[0]} does not say what it executes")


def disassembled(tools, program):
    """The text of each instruction, by its address."""
    listing = pathlib.Path(tools.compiler[0]).with_name("aarch64-linux-gnu-objdump")
    command = [str(listing), "-d", "--no-show-raw-insn", str(program)]
    done = subprocess.run(command, env=tools.environment, capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        match = re.match(r"\s+([0-9a-f]+):\t(.*)", line)
        if match:
            text = re.sub(r"\s*(//|;).*", "", match[2])
            found[int(match[1], 16)] = re.sub(r"[0-9a-f]+ <[^>]*>", ".", text)  # where it jumps to
    return found


def stretches(counts):
    """Neighbouring instructions that were executed equally often: (times, addresses)."""
    found = []
    for address in sorted(counts):
        if found and found[-1][1][-1] == address - 4 and found[-1][0] == counts[address]:
            found[-1][1].append(address)
        else:
            found.append((counts[address], [address]))
    return found


def expected(rows, texts, cpu, mca):
    """Cycles of each row."""
    blocks = [[part for part in stretches(row) if part[0] * len(part[1]) * 200 > row.total()] for row in rows]
    regions = dict.fromkeys(tuple(addresses) for row in blocks for _, addresses in row)
    assembly = []
    for number, addresses in enumerate(regions):
        assembly += [f"# LLVM-MCA-BEGIN {number}", *(texts[address] for address in addresses), "# LLVM-MCA-END"]
    command = [
        mca,
        "-mtriple=aarch64-linux-gnu",
        f"-mcpu={cpu}",
        f"-iterations={ITERATIONS}",
        "-instruction-info=0",
        "-resource-pressure=0",
        "-",
    ]
    done = subprocess.run(command, input="\n".join(assembly) + "\n", capture_output=True, text=True, check=False)
    totals = [int(total) / ITERATIONS for total in re.findall(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)]
    if len(totals) != len(regions):
        raise SystemExit(f"{mca}: {done.stderr[:2000]}")
    cycles = dict(zip(regions, totals, strict=True))
    return [sum(times * cycles[tuple(addresses)] for times, addresses in row) for row in blocks]


def measure(tools, compiler, flags, cpu, mca):
    """What each row takes: name -> tier -> (instructions, cycles), each per element."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "count")
        flags = ["-O3", "-static", *flags, f"-I{ROOT / 'include'}"]
        tools.build(ROOT / "bench" / "count_neon.c", program, *flags, compiler=compiler)
        names = [line.split("\t") for line in tools.run(program, "names").stdout.splitlines()]
        rows = executed(tools, program)
        cycles = expected(rows, disassembled(tools, program), cpu, mca) if mca else [float("nan")] * len(rows)
    found = collections.defaultdict(dict)
    for (tier, elements, name), row, some in zip(names, rows, cycles, strict=True):
        found[name][tier] = row.total() / int(elements), some / int(elements)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clang", nargs="?", const="clang", help="compile with it, for an Apple M1")
    parser.add_argument("--mca", default="llvm-mca", help="llvm-mca, of LLVM 16 or newer: older ones know no Neoverse")
    options = parser.parse_args()
    tools = aarch64.find()
    if isinstance(tools, str):
        raise SystemExit(f"{tools}; make neon gets it")
    compiler = tools.clang(options.clang) if options.clang else None
    if options.clang and compiler is None:
        raise SystemExit(f"{options.clang}: not found")
    cpu = "apple-m1" if options.clang else "neoverse-n1"
    mca = shutil.which(options.mca)
    flags = [f"-mcpu={cpu}"] if options.clang else []
    found = measure(tools, compiler, flags, cpu, mca)
    if mca is None:
        print(f"{options.mca} was not found: no cycles", file=sys.stderr)
    print(f"| kernel | instructions: plain | `neon` | ratio | cycles of {cpu}: plain | `neon` | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, tiers in found.items():
        plain, neon = tiers["plain"], tiers.get("neon", tiers["plain"])
        cells = [
            f"{before:.2f} | {after:.2f} | {before / after:.1f}" for before, after in zip(plain, neon, strict=True)
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
