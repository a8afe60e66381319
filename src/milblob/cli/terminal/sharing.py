"""Text about the weights that take the form of another one."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import output
from .tables import LAST, Column, print_table

if TYPE_CHECKING:
    from ...rewrite.share import SharedWeight

_COLUMNS = [
    Column("weight", is_name=True),
    Column("shares", is_name=True),
    Column("as", drop=LAST + 1),
    Column("size", True, drop=1),
    Column("SQNR", True),
    Column("largest", True, drop=2),
]


def print_shared(shared: "Sequence[SharedWeight]") -> None:
    """Print a row for each weight, if there is one."""
    if shared:
        print_table(_COLUMNS, [_cells(row) for row in shared])


def shared_message(shared: "Sequence[SharedWeight]", dedupe: str) -> str:
    """Return how many weights share, for the summary of a command. `dedupe`: "values" or "near"."""
    near = [row.sqnr for row in shared if math.isfinite(row.sqnr)]
    if not shared:
        if dedupe == "near":
            return "nothing to share: no different weights have nearly equal values"
        return "nothing to share: no weights have the same values in different forms"
    counts = [f"{output.plural(len(shared) - len(near), 'weight')} of equal values"] * (len(shared) > len(near))
    if near:
        counts.append(f"{output.plural(len(near), 'weight')} of nearly equal ones, least SQNR {min(near):.1f} dB")
    return f"shared: {', '.join(counts)}"


def _cells(row: "SharedWeight") -> list[str]:
    ratio = f"{row.sqnr:.1f}" if math.isfinite(row.sqnr) else "equal"
    return [row.name, row.reference, row.op, output.size(row.nbytes), ratio, f"{row.max_abs:.3g}"]
