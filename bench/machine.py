"""Where and with what something was measured."""

import datetime
import functools
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("coremltools", "safetensors", "protobuf", "numpy", "ml_dtypes", "gguf", "h5py", "torch", "pytest-benchmark")
SCALE_NAME = "MILBLOB_BENCH_SCALE"
KINDS = {
    (6, 0x3C): "Haswell", (6, 0x3F): "Haswell", (6, 0x4F): "Broadwell", (6, 0x55): "Skylake", (6, 0x6A): "Ice Lake",
    (6, 0x6C): "Ice Lake", (6, 0x8F): "Sapphire Rapids", (6, 0xCF): "Emerald Rapids", (6, 0xAD): "Granite Rapids",
    **dict.fromkeys([(23, model) for model in (*range(0x30, 0x50), *range(0x60, 0xB0))], "Zen 2"),
    **dict.fromkeys([(25, model) for model in (*range(0x10), *range(0x20, 0x60))], "Zen 3"),
    **dict.fromkeys([(25, model) for model in (*range(0x10, 0x20), *range(0x60, 0xB0))], "Zen 4"),
    **dict.fromkeys([(26, model) for model in (*range(0x30), *range(0x40, 0x50), *range(0x60, 0x80))], "Zen 5"),
}  # fmt: skip
"""(CPU family, model) -> microarchitecture, as in Linux' `arch/x86/kernel/cpu/amd.c` and `intel-family.h`."""


def _read(path: str) -> str:
    """The text of a file of /proc or /sys; empty where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def cpu_name() -> str:
    """What the processor calls itself, as far as the system says."""
    info = _read("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info, re.M) or [platform.processor() or platform.machine()]
    facts = dict(re.findall(r"^(cpu family|model)\s*: (\d+)$", info, re.M))
    family = f" (family {facts['cpu family']}, model {facts['model']})" if len(facts) == 2 else ""
    return str(names[0]) + family


class Kind(NamedTuple):
    """A kind of machine: a title for readers, and the same for the name of a file."""

    title: str
    slug: str


def kind(cpu: str) -> Kind:
    """Return the kind of machine that a processor makes; its whole name where the kind is not known.

    Args:
        cpu: as `cpu_name` returns it.
    """
    facts = re.search(r"\(family (\d+), model (\d+)\)$", cpu)
    known = KINDS.get((int(facts[1]), int(facts[2]))) if facts else None
    if known is not None:
        return Kind(known, known.lower().replace(" ", ""))
    return Kind(cpu, re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-") or "unknown")


def milblob_facts() -> dict[str, str]:
    """Version, tier of the kernels, compiler, threads."""
    import milblob

    info = milblob.info()
    extension = f"{info.abi}, by {info.compiler}"
    tiers = ", ".join(info.tiers)
    return {
        "version": info.version,
        "tier": info.tier,
        "tiers": tiers,
        "extension": extension,
        "threads": str(info.threads),
    }


@functools.cache
def describe() -> dict[str, Any]:
    """The header of a report: date, machine, system, versions, settings that matter."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.M)
    pages = re.search(r"\[(\w+)\]", _read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_nbytes": int(memory[1]) * 1024 if memory else 0,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "huge_pages": pages[1] if pages else "",
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
        "milblob": milblob_facts(),
        "versions": versions,
        "scale": float(os.environ.get(SCALE_NAME, "1")),
    }
