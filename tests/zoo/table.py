"""Writes docs/conformance.md from results.json: every network of the zoo, what it was asked, and what came of it."""

import json
from pathlib import Path

from run import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"

_HEAD = """# Conformance

This page shows how milblob handles networks of torchvision, timm and transformers that coremltools 9.0 converted: whether it checks, runs,
refits, rewrites and compresses them correctly. Look up a network like yours before you rely on one of these steps.

`make zoo` converts and measures the networks and writes this page; it needs torch, in an environment of its own. Weights are random. Those
of a base and of a tuned checkpoint differ in every parameter and buffer; statistics of batch norms are not trivial.

- **check**: `milblob.check` has neither an error nor a warning.
- **ONNX**: the largest difference of the output from torch's, as a share of its range: at most 1e-4 in float32, 2e-2 in float16.
- **refit**: the model of the base, refitted with the tuned checkpoint and no options: the same difference from torch's tuned
  network; in brackets, how many elements of all constants differ from a new conversion of that. Or the refusal.
- **text, repack**: MIL text of the model, and the model repacked and back, have the same content hash.
- **compress**: int8, int4 in blocks of 32, palettes of 16, where the opset has them: the same weights are chosen as by
  `coremltools.optimize`; the sum of the squared errors against theirs (1: equal), which must be at most theirs for each weight.
- **compressed refit**: the model of the base with int8 weights, and with palettes of 16, refitted by `--base` and `--requantize fit`: how
  many weights have the bits that compressing a new conversion of the tuned network gives; in brackets, how many elements do not. All
  other constants must be equal, no weight may lose more than 0.1 dB (palettes: 0.2 dB) against that conversion, and the output may
  be off by three times as much as its. Or the refusal.
"""

_OPERATIONS = (
    "coremltools' own tests of operations run as ONNX too: `make onnx`, with its totals in [onnx.md](onnx.md)."
)


_JOBS = {
    "check": "check", "onnx": "ONNX", "refit": "refit", "text": "text", "repack": "repack", "compress": "compress",
    "refit_compressed": "compressed refit",
}  # fmt: skip


def page(results):
    """Return the page."""
    first = {name: row for name, row in results.items() if "@" not in name}
    again = {name: row for name, row in results.items() if "@" in name}
    lines = [
        _HEAD,
        "## Totals",
        "",
        "| | right | of | again, with another opset and precision | of |",
        "|---|---|---|---|---|",
    ]
    sides = [_converted(first), _converted(again)]
    lines.append(f"| converted by coremltools | {len(sides[0])} | {len(first)} | {len(sides[1])} | {len(again)} |")
    for job, words in _JOBS.items():
        counts = []
        for rows in sides:
            some = [row[job] for row in rows.values() if job in row and _says_something(job, row[job])]
            counts += [str(sum(bool(one["good"]) for one in some)), str(len(some))] if some else ["", ""]
        lines.append(f"| {words} | {' | '.join(counts)} |")
    lines += ["", *_summary({**sides[0], **sides[1]}), "", _OPERATIONS, "", "## Networks", ""]
    lines += [
        "| network | opset | precision | check | ONNX | refit | text, repack | compress | compressed refit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(sides[0].items()):
        lines.append(
            f"{_begin(name, row)} | {_yes(row.get('text'))}, {_yes(row.get('repack'))} | {_compress(row.get('compress'))} | "
            f"{_requantized(row.get('refit_compressed'))} |"
        )
    lines += ["", "## Again, with another opset and precision", ""]
    lines += ["| network | opset | precision | check | ONNX | refit |", "|---|---|---|---|---|---|"]
    lines += [f"{_begin(name, row)} |" for name, row in sorted(sides[1].items())]
    lines += ["", "## What coremltools does not convert", "", "| network | its words |", "|---|---|"]
    lines += [
        f"| {name} | {_cell(row['made']['error'])} |" for name, row in sorted(first.items()) if name not in sides[0]
    ]
    return "\n".join(lines) + "\n"


def _converted(results):
    return {name: row for name, row in results.items() if row["made"]["error"] is None}


def _says_something(job, found):
    """Whether a job did something: the opset of some networks has no compression."""
    return "compress" not in job or bool(_kinds(found)) or "words" in found


def _summary(rows):
    """Return what the page says about all networks, in lists."""
    refits = {name: row["refit"] for name, row in rows.items() if "refit" in row}
    wrong = [name for name, found in refits.items() if not found["good"] and "error" in found]
    still = [name for name, found in refits.items() if "moved" in found and found["moved"] < 0.1]
    compressed = [
        (name, kind, row) for name, found in rows.items() for kind, row in _kinds(found.get("refit_compressed"))
    ]
    done = [row for _, _, row in compressed if "weights" in row]
    lines = [
        f"- Refits that end with success and other outputs: {_listed(wrong)}.",
        f"- Networks whose output moves by less than a tenth of its range from base to tuned, so that the result shows less: {_listed(still)}.",
    ]
    if compressed:
        bad = [f"{name} ({kind})" for name, kind, row in compressed if "weights" in row and not row["right"]]
        lines.append(f"- Compressed refits that end with success and other outputs: {_listed(bad)}.")
    for kind in dict.fromkeys(kind for _, kind, _ in compressed):
        own = [row for _, one, row in compressed if one == kind and "weights" in row]
        weights, equal, elements, differ = (
            sum(row[key] for row in own) for key in ("weights", "equal", "elements", "differ")
        )
        lines.append(
            f"- Compressed refits, {kind}: {len(own)} networks, {equal:,} of {weights:,} weights equal to the bit, {differ:,} of "
            f"{elements:,} elements differ; the greatest loss of a weight is {max(0.0, -min((row['least gap'] for row in own), default=0)):.2f} dB."
        )
    refused = [
        f"| {name}, {kind} | {_cell(_reason(row['words']))} |" for name, kind, row in compressed if "words" in row
    ]
    if not done:
        return lines
    lines.append(f"- Compressed refits that are refused: {len(refused)}.")
    return lines + (["", "| compressed refit that is refused | why |", "|---|---|", *refused] if refused else [])


def _listed(names):
    return f"{len(names)}{': ' if names else ''}{', '.join(names)}"


def _kinds(found):
    return [(kind, row) for kind, row in (found or {}).items() if isinstance(row, dict)]


def _begin(name, row):
    made = row["made"]
    return (
        f"| {name.partition('@')[0]} | {made['opset']} | {made['precision'].lower()} | {_yes(row.get('check'))} | "
        f"{_error(row.get('onnx'))} | {_refit(row.get('refit'))}"
    )


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
    return "refused: " + _cell(_reason(found.get("words", "")))


def _reason(words):
    return words.partition(", got ")[2].partition(" (--leave")[0].partition(" that milblob")[0] or words


def _compress(found):
    if found is None:
        return ""
    rows = [f"{kind} {row['error']:.3g}" for kind, row in _kinds(found)]
    return ", ".join(rows) or ("not for this opset" if found["good"] else _cell(found.get("words", "no")))


def _requantized(found):
    if found is None:
        return ""
    if "words" in found:
        return _cell(found["words"])
    rows = [
        f"{kind} refused" if "words" in row else f"{kind} {row['equal']}/{row['weights']} ({row['differ']})"
        for kind, row in _kinds(found)
    ]
    return ", ".join(rows) or "not for this opset"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
