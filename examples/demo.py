"""Open a Core ML model, list its weights, load them and print what happened: `make demo`, `make demo MODEL=path`.

Usage: python examples/demo.py [MODEL]        (MODEL: .mlpackage, .mlmodelc, .mlmodel, model.mil or a weight file)
"""

import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import milblob

DEMO = Path(__file__).with_name("demo.mlpackage")
MAX_ROWS = 24


def size(nbytes: int) -> str:
    """Format a number of bytes."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"


def describe(console: Console, model: milblob.Model) -> None:
    """Print the model's metadata."""
    about = model.metadata
    rows = {
        "description": about.description,
        "author": about.author,
        "made by": about.producer,
        "specification": f"{about.spec_version or ''} {about.opset}".strip(),
        "functions": ", ".join(model.functions),
        "inputs": "; ".join(f"{feature.name}: {feature}" for feature in about.inputs),
        "outputs": "; ".join(f"{feature.name}: {feature}" for feature in about.outputs),
    }
    for title, text in rows.items():
        if text:
            console.print(f"  {title:14}{text}", markup=False, highlight=False)


def print_weights(console: Console, model: milblob.Model) -> None:
    """Print the weights as a table: name, dtype, shape, stored bytes. Names are never cut or folded."""
    rows = [("name", "dtype", "shape", "stored")]
    for tensor in list(model.values())[:MAX_ROWS]:
        dtype = f"{tensor.mil_dtype} ({tensor.compression})" if tensor.compression else str(tensor.mil_dtype)
        rows.append((tensor.name, dtype, str(list(tensor.shape)), size(tensor.nbytes)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows if len(model) else []:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[3] = row[3].rjust(widths[3])
        console.print("  ".join(cells), style="bold" if row is rows[0] else None, markup=False, highlight=False)
    if len(model) > MAX_ROWS:
        console.print(f"... and {len(model) - MAX_ROWS} more")
    if not len(model):
        console.print(
            "no weights" + ("" if model.kind == "blob" else "; milblob ls --constants lists smaller constants")
        )


def demo(console: Console, path: str) -> None:
    """Open a model, list its weights, load them and look at the largest."""
    start = time.perf_counter()
    model = milblob.open(path)
    opened = time.perf_counter() - start
    with model:
        console.print(f"milblob.open({path!r})", style="bold", markup=False)
        console.print(f"  {model.kind}, {len(model)} weights, in {opened * 1000:.1f} ms", highlight=False)
        describe(console, model)
        print_weights(console, model)
        packed = [tensor for tensor in model.values() if tensor.compression]
    if packed:
        tensor = packed[0]
        words = "1 weight is" if len(packed) == 1 else f"{len(packed)} weights are"
        console.print(f"\n{words} compressed. Parts of {tensor.name}:", markup=False)
        for key, part in tensor.parts.items():
            console.print(f"  {key:16}{part!r}", markup=False, highlight=False)

    start = time.perf_counter()
    weights = milblob.load(path)  # compressed weights are decoded; stored=True reads their parts instead
    loaded = time.perf_counter() - start
    nbytes = sum(array.nbytes for array in weights.values())
    console.print(f"\nmilblob.load({path!r})", style="bold", markup=False)
    console.print(f"  {len(weights)} arrays, {size(nbytes)}, in {loaded * 1000:.1f} ms", highlight=False)
    # Two reads of one tensor are at the same address only if neither was a copy.
    with milblob.open(path) as model:
        views = sum(np.may_share_memory(t.read(), t.read()) for t in model.values() if t.size)
        empty = sum(1 for t in model.values() if not t.size)
    decoded = len(weights) - views - empty
    console.print(f"  {views} are views of the stored bytes, {decoded} had to be decoded, {empty} are empty")
    if weights:
        name, array = max(weights.items(), key=lambda item: item[1].nbytes)
        console.print(f"\nThe largest, {name}: {array.dtype} {array.shape}", markup=False)
        console.print(f"  {array.reshape(-1)[:6]}", markup=False, highlight=False)


def main() -> int:
    """Run the demo on the model named on the command line; return the exit status."""
    path = sys.argv[1] if len(sys.argv) > 1 else str(DEMO)
    if Path(path) == DEMO and DEMO.is_relative_to(Path.cwd()):
        path = str(DEMO.relative_to(Path.cwd()))
    try:
        demo(Console(soft_wrap=True), path)
    except (milblob.MilblobError, OSError) as error:
        sys.stdout.flush()
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
