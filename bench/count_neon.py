"""Instructions of the NEON kernels beside those of the plain ones, counted by qemu: `python bench/count_neon.py`.

A count is no time: loads, look-ups in tables and additions do not cost the same. It is what can be said without an arm64 machine.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import aarch64  # noqa: E402

# What a row is called, the function without its tier, how many elements it does, and what else is counted for plain.
ROWS = [
    *((f"cast {name.replace('_', ' to ')}", f"mb_cast_{name}", 2048) for name in ["f32_f16", "f32_bf16", "f16_f32", "bf16_f32", "f16_bf16", "bf16_f16"]),
    ("unpack {nbits} bits", "mb_unpack_bits", 2048),
    ("pack {nbits} bits", "mb_pack_bits", 2048),
    ("unpack {nbits} bits, signed", "mb_unpack_signed", 2048),
    *((f"scale {name.replace('_', ' to ')}", f"mb_scale_{name}", 2048) for name in ["u8_f16", "u8_steps", "f16_f16", "f16_f32"]),
    *((f"look up {{entries}} of {nbits} bits", f"mb_lookup_{nbits}", 2048) for nbits in (8, 16, 32)),
    *((f"expand {nbits} bits", f"mb_expand_{nbits}", 2048) for nbits in (8, 16, 32)),
    ("count ones, a byte", "mb_ones", 256),
    ("compare float32", "mb_compare_f32", 1024),
    ("compare float64", "mb_compare_f64", 1024),
    ("moments of float64", "mb_moments_block", 1024),
    ("BLAKE3, a byte", "mb_blake3", 16384),
]  # fmt: skip


def count(tools, nbits, entries):
    """Instructions by function, of one run."""
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "count")
        flags = ["-O3", "-static", f"-DNBITS={nbits}", f"-DENTRIES={entries}", f"-I{ROOT / 'include'}"]
        tools.build(ROOT / "bench" / "count_neon.c", program, *flags)
        trace = ["-d", "exec,nochain", "-D", "/dev/stdout", str(program)]
        for step in ("-one-insn-per-tb", "-singlestep"):  # the new name and the old one
            with subprocess.Popen(
                [tools.emulator[0], step, *trace], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as run:
                for line in run.stdout:
                    if line.startswith("Trace"):
                        name = line.rsplit(None, 1)[-1].split(".")[0]
                        counts[re.sub(r"pack_rounds_\d", "pack_bits", name)] += 1
            if counts:
                return counts
    raise SystemExit(f"{tools.emulator[0]} does not say what it executes")


def main():
    tools = aarch64.find()
    if isinstance(tools, str):
        raise SystemExit(f"{tools}; make neon gets it")
    print("| kernel | `neon` | `plain` | ratio |\n|---|---|---|---|")
    printed = set()
    for nbits, entries in [(4, 16), (6, 64), (3, 256)]:
        counts = count(tools, nbits, entries)
        for name, function, elements in ROWS:
            name = name.format(nbits=nbits, entries=entries)
            neon, plain = counts[f"{function}_neon"], counts[f"{function}_plain"] or counts[function]
            if "blake3" in function:
                half = counts["mb_blake3_compress"]  # only plain calls it here
                plain += half
            if function == "mb_unpack_signed":  # unpacks, then extends; the other call to unpack was its own
                plain = counts["mb_unpack_signed"] + counts["mb_unpack_bits"] // 2
            if function == "mb_unpack_bits":
                plain //= 2
            if neon > elements // 64 and name not in printed:
                printed.add(name)
                print(f"| {name} | {neon / elements:.1f} | {plain / elements:.1f} | {plain / neon:.1f} |")


if __name__ == "__main__":
    main()
