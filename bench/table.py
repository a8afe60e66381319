"""Turn the JSON of pytest-benchmark into one readable table: python bench/table.py out.json [--markdown].

Exit code: 0 if every target is met or the run was not at full scale, else 1.
"""

import argparse
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "ml_dtypes", "protobuf", "coremltools", "safetensors", "h5py", "gguf", "torch")
HEADINGS = ("row", "median", "IQR", "to milblob", "speed", "target", "met", "note")


def spell_time(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 1000 else f"{seconds * factor:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def spell_ratio(ratio: float) -> str:
    """How many times the median of another row."""
    return f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


def spell_factor(factor: float) -> str:
    """A target: 3x, or 1/200."""
    return f"{factor:g}x" if factor >= 1 else f"1/{1 / factor:g}"


class Row:
    """One measured row, with its times at the full size of the work."""

    def __init__(self, benchmark: dict[str, Any]) -> None:
        self.info = benchmark["extra_info"]
        self.name, self.job = self.info["row"], self.info["job"]
        self.median = benchmark["stats"]["median"] / self.info["share"]
        self.iqr = benchmark["stats"]["iqr"] / self.info["share"]

    def targets(self, rows: dict[str, "Row"]) -> list[tuple[str, bool]]:
        """What this row is held to, each with whether it is met."""
        found = []
        if self.info["limit_ms"] is not None:
            found.append((f"<= {self.info['limit_ms']:g} ms", self.median * 1e3 <= self.info["limit_ms"]))
        for name, factor in self.info["targets"].items():
            if name in rows:
                ratio = self.median / rows[name].median
                shown = spell_ratio(ratio) if factor >= 1 else f"1/{1 / ratio:.3g}"
                found.append((f"<= {spell_factor(factor)} {name} (is {shown})", ratio <= factor))
            else:
                found.append((f"<= {spell_factor(factor)} {name} (not measured)", False))
        return found

    def cells(self, rows: dict[str, "Row"]) -> list[str]:
        """The row of the table."""
        own = next((r for r in rows.values() if r.info["role"] == "milblob"), None)
        ratio = spell_ratio(self.median / own.median) if own is not None and own is not self else ""
        speed = f"{self.info['nbytes'] / self.median / 1e6:,.0f} MB/s" if self.info["nbytes"] else ""
        targets = self.targets(rows)
        met = "" if not targets else "yes" if all(ok for _, ok in targets) else "NO"
        words = "; ".join(text for text, _ in targets)
        mark = {"milblob": "**", "limit": "_"}.get(self.info["role"], "")
        times = spell_time(self.median), spell_time(self.iqr)
        return [f"{mark}{self.name}{mark}", *times, ratio, speed, words, met, self.info["note"]]


def describe(data: dict[str, Any], scale: float) -> list[str]:
    """Where, when and with what."""
    machine, cpu = data["machine_info"], data["machine_info"].get("cpu", {})
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    python = f"{machine['python_implementation']} {machine['python_version']}"
    return [
        f"date: {data['datetime'][:16]}",
        f"CPU: {cpu.get('brand_raw', platform.processor() or 'unknown')}, {cpu.get('count', '?')} cores",
        f"system: {machine['system']} {machine['release']}, {python}",
        f"versions: {', '.join(versions)}",
        f"scale: {scale:g}" + ("" if scale == 1 else " (targets are meant for 1)"),
    ]


def print_markdown(jobs: dict[str, dict[str, Row]]) -> None:
    """A table per job, as README files want them."""
    for job, rows in jobs.items():
        table = [row.cells(rows) for row in rows.values()]
        used = [i for i in range(len(HEADINGS)) if any(row[i] for row in table)]
        print(f"\n### {job}\n\n| {' | '.join(HEADINGS[i] for i in used)} |\n|{'---|' * len(used)}")
        for row in table:
            print(f"| {' | '.join(row[i] for i in used)} |")


def print_text(jobs: dict[str, dict[str, Row]]) -> None:
    """Columns for a terminal, with targets and notes under their row."""
    for job, rows in jobs.items():
        print(f"\n{job}")
        width = max(len(name) for name in rows)
        for row in rows.values():
            _, median, iqr, ratio, speed, target, met, note = row.cells(rows)
            mark = {"milblob": ">", "limit": "_"}.get(row.info["role"], " ")
            print(f"  {mark} {row.name:{width}}  {median:>8} +- {iqr:>8}  {ratio:>9}  {speed}".rstrip())
            if target:
                print(f"      target {target}: {'met' if met == 'yes' else 'NOT MET'}")
            if note:
                print(f"      {note}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, help="what pytest --benchmark-json wrote")
    parser.add_argument("--markdown", action="store_true", help="tables for a README")
    arguments = parser.parse_args()
    data = json.loads(arguments.path.read_text())
    jobs: dict[str, dict[str, Row]] = {}
    for row in map(Row, data["benchmarks"]):
        jobs.setdefault(row.job, {})[row.name] = row
    if not jobs:
        print(f"{arguments.path}: expected benchmarks, got none", file=sys.stderr)
        return 2
    jobs = {job: dict(sorted(rows.items(), key=lambda item: item[1].median)) for job, rows in jobs.items()}
    scale = next(iter(next(iter(jobs.values())).values())).info["scale"]
    print("\n".join(describe(data, scale)))
    (print_markdown if arguments.markdown else print_text)(jobs)
    results = [(row, text, ok) for rows in jobs.values() for row in rows.values() for text, ok in row.targets(rows)]
    missed = [(row, text) for row, text, ok in results if not ok]
    print(f"\n{len(results) - len(missed)} of {len(results)} targets met")
    for row, text in missed:
        print(f"  missed: {row.job}: {row.name} {text}")
    return 1 if missed and scale == 1 else 0


if __name__ == "__main__":
    raise SystemExit(main())
