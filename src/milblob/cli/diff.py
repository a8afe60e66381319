"""milblob diff: compare two models, or a model and a file of arrays."""

from argparse import Namespace

from ..analysis.diff import Diff, TensorDiff, diff, summary
from . import names, output
from .progress import shown
from .selection import describe_filter

_EXIT_DIFFERENT = 1
_MAX_CHANGES = 20
_HEADS = ["name", "what", "dtype", "shape", "differ", "max", "mean", "relative", "cosine", "SQNR dB"]
_WHAT = {
    "same": "same", "stored": "same, stored otherwise", "close": "close", "dtype": "same, other dtype",
    "named": "in both", "different": "other values", "shape": "other shape",
    "only_a": "only in A", "only_b": "only in B",
}  # fmt: skip


def run(arguments: Namespace) -> int:
    """Run the command."""
    with shown(arguments) as progress:
        found = diff(
            arguments.a,
            arguments.b,
            select=arguments.keep or None,
            function=arguments.function,
            mapping=names.mapping(arguments),
            atol=arguments.atol,
            rtol=arguments.rtol,
            names_only=arguments.names_only,
            stored=arguments.stored,
            progress=progress,
            max_nbytes=arguments.max_nbytes,
        )
    if not found.rows and describe_filter(arguments) and not arguments.quiet:
        output.say(f"no tensor matches {describe_filter(arguments)}")
    if arguments.json:
        output.print_json(found.to_dict())
    elif not arguments.quiet:
        _print(found, arguments)
    elif found.left_out:  # nothing that was given is passed over in silence
        output.say(f"{output.plural(len(found.left_out), 'tensor')} of A left out by the mapping")
    return 0 if found.same else _EXIT_DIFFERENT


def _print(found: Diff, arguments: Namespace) -> None:
    rows = [row for row in found.rows if arguments.verbose or row.kind not in ("same", "named")]
    left = 0
    if arguments.top is not None:
        worst = found.worst()
        rows, left = worst[: arguments.top], max(0, len(worst) - arguments.top)
    if rows:
        cells = [_cells(row) for row in rows]
        used = [i for i in range(len(_HEADS)) if i < 2 or any(line[i] for line in cells)]
        right = [number for number, i in enumerate(used) if i > 3]
        output.print_table([_HEADS[i] for i in used], [[line[i] for i in used] for line in cells], right=right)
        if left:
            print(f"... and {output.plural(left, 'tensor')} that differ less")
        print()
    changes = [*found.structure, *found.metadata, *(found.tools if arguments.verbose else ())]
    shown = changes if arguments.verbose else changes[:_MAX_CHANGES]
    for change in shown:
        print(output.escape(change.words))
    if len(shown) < len(changes):
        print(f"... and {len(changes) - len(shown):,} more (-v shows them)")
    if changes:
        print()
    print(f"{'same' if found.same else 'different'}: {summary(found)}")


def _cells(row: TensorDiff) -> list[str]:
    name = row.name if row.other in (None, row.name) else f"{row.name} = {row.other}"
    dtypes = [
        "" if dtype is None else f"{dtype}{f' ({scheme})' if scheme else ''}"
        for dtype, scheme in zip(row.dtypes, row.compressions, strict=True)
    ]
    shapes = [
        "" if shape is None else output.shape_text(None if size < 0 else size for size in shape) for shape in row.shapes
    ]
    cells = [name, _WHAT[row.kind], _both(*dtypes), _both(*shapes)]
    figures = row.figures
    if figures is None:
        return [*cells, *[""] * 6]
    values = (figures.max_abs, figures.mean_abs, figures.relative, figures.cosine, figures.sqnr)
    texts = ["" if value is None else f"{value:.4g}" for value in values]
    if figures.cosine is not None:
        texts[3] = f"{figures.cosine:.6f}"
    if figures.sqnr is not None:
        texts[4] = f"{figures.sqnr:.1f}"
    differ = output.share(figures.unequal, row.count)
    return [*cells, f"{differ}, {figures.mismatched} not finite" if figures.mismatched else differ, *texts]


def _both(a: str, b: str) -> str:
    return a if a == b or not b else b if not a else f"{a} | {b}"
