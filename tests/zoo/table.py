"""Writes docs/conformance.md from results.json: every network of the zoo, what it was asked, and what came of it."""

import json
from pathlib import Path

from run import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

_HEAD = """# Conformance

Networks of torchvision, timm and transformers, with random weights, as coremltools 9.0 converts them, and what milblob makes of them.
`make zoo` converts and measures them, and writes this page; it needs torch, in an environment of its own. The weights of a base and of
a tuned checkpoint differ in every parameter and buffer; statistics of batch norms are not trivial.

- **check**: `milblob.check` has neither an error nor a warning.
- **ONNX**: the largest difference of the output from torch's, as a share of its range: at most 1e-4 in float32, 2e-2 in float16.
- **refit**: the model of the base, refitted with the tuned checkpoint and nothing said by hand: the same difference from torch's tuned
  network; in brackets, how many elements of all constants differ from a new conversion of that. Or the refusal.
- **text, repack**: MIL text of the model, and the model repacked and back, have the same content hash.
- **compress**: int8, int4 in blocks of 32, palettes of 16, where `coremltools.optimize` has them for the opset: the same weights are
  chosen; the sum of the squared errors against theirs (1: equal; at most 1 is right).
"""

_OPERATIONS = (
    "coremltools' own tests of operations run as ONNX too: `make onnx`, with its totals in [onnx.md](onnx.md)."
)


def page(results):
    """Return the page."""
    converted = {name: row for name, row in results.items() if row.get("made", {}).get("error") is None}
    lines = [
        _HEAD,
        "## Totals",
        "",
        "| | right | of |",
        "|---|---|---|",
        f"| converted by coremltools | {len(converted)} | {len(results)} |",
    ]
    for job in ("check", "onnx", "refit", "text", "repack", "compress"):
        rows = [row[job] for row in converted.values() if job in row]
        if rows:
            lines.append(f"| {job} | {sum(bool(row['good']) for row in rows)} | {len(rows)} |")
    wrong = [
        name
        for name, row in converted.items()
        if not row.get("refit", {}).get("good", True) and "error" in row["refit"]
    ]
    lines += [
        "",
        f"Refits that end with success and other outputs: {len(wrong)}{''.join(f', {name}' for name in wrong)}.",
        "",
        _OPERATIONS,
        "",
    ]
    lines += [
        "## Networks",
        "",
        "| network | opset | precision | check | ONNX | refit | text, repack | compress |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(converted.items()):
        made = row["made"]
        lines.append(
            f"| {name} | {made['opset']} | {made['precision'].lower()} | {_yes(row.get('check'))} | {_error(row.get('onnx'))} | "
            f"{_refit(row.get('refit'))} | {_yes(row.get('text'))}, {_yes(row.get('repack'))} | {_compress(row.get('compress'))} |"
        )
    lines += ["", "## What coremltools does not convert", "", "| network | its words |", "|---|---|"]
    lines += [
        f"| {name} | {_cell(row['made']['error'])} |" for name, row in sorted(results.items()) if name not in converted
    ]
    return "\n".join(lines) + "\n"


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")[:160]


def _yes(found):
    return "" if found is None else "yes" if found["good"] else "no"


def _error(found):
    if found is None:
        return ""
    return f"{found['error']:.0e}" if "error" in found else _cell(found.get("words", ""))


def _refit(found):
    if found is None:
        return ""
    if "error" in found:
        return f"{found['error']:.0e} ({found['differ']})" if "differ" in found else f"{found['error']:.0e}"
    words = found.get("words", "")
    return "refused: " + _cell(
        words.partition(", got ")[2].partition(" (--leave")[0].partition(" that milblob")[0] or words
    )


def _compress(found):
    if found is None:
        return ""
    rows = [f"{kind} {row['error']:.3g}" for kind, row in found.items() if isinstance(row, dict)]
    return ", ".join(rows) or ("not for this opset" if found["good"] else _cell(found.get("words", "no")))


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
