"""milblob.diff: compare two models, or a model and a file of arrays: names, shapes, dtypes, values."""

import contextlib
import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from ..arguments import Names, as_mapping, require, require_flags
from ..dtypes import DType
from ..model.elements import Elements, are_stored_alike, have_equal_bits
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..program.compression import Compression
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..results import Result, ambiguous, least
from ..selection import Select, require_selected, selector
from ..wording import escape, shortened
from ..workers import workers_of
from .aligning import Alignment
from .changes import Change
from .diff_metadata import compare_metadata
from .diff_program import compare_programs
from .limits import Failure, Limits
from .operations import Key, key_of
from .pairing import AnyPair, Pairs, left_out, of_function, pair
from .reopening import Reopened, account, collected, nbytes_of, up_to_error
from .sides import Side
from .tensor_diff import TensorDiff, measure

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..executors import Workers

_MAX_LINES = 20
_MAX_NAMES = 8
_SMALL_COUNT = 1 << 14
"""Elements of a stored part; comparing fewer again costs less than finding out whether they were compared before."""


@dataclass(frozen=True, repr=False)
class Diff(Result):
    """The differences between A and B.

    Attributes:
        a, b: what was compared: paths, or descriptions of anything without a path.
        rows: a TensorDiff for every tensor, in the order of A, then those that only B has.
        structure: Changes of the Programs.
        metadata: Changes of the models' metadata.
        tools: Changes of the date of conversion and of the tools; they are not differences.
        notes: Changes of names of operations; they are not differences.
        left_out: names of A that the mapping leaves out; they were not compared.
        atol, rtol: the tolerances.
        names_only: whether only names were compared.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8")
        >>> found = milblob.diff("demo.mlpackage", "small.mlpackage")
        >>> found.is_same, found.worst()[0].name
        (False, 'layers_3_mlp_down_weight')
        >>> [failure.row.name for failure in found.failing(min_sqnr=30)]
        []
    """

    a: str
    b: str
    rows: list[TensorDiff]
    structure: list[Change] = field(default_factory=list)
    metadata: list[Change] = field(default_factory=list)
    tools: list[Change] = field(default_factory=list)
    notes: list[Change] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    atol: float = 0.0
    rtol: float = 0.0
    names_only: bool = False

    _keys: ClassVar = {"is_same": "is_same", "rows": "tensors", "totals": "totals"}

    @property
    def is_same(self) -> bool:
        """Whether nothing differs: neither tensors (beyond the tolerances) nor Programs nor metadata."""
        return not (self.structure or self.metadata or any(row.is_different for row in self.rows))

    def __bool__(self) -> NoReturn:
        ambiguous(self, "is_same")

    @property
    def totals(self) -> dict[str, int]:
        """The number of tensors of each kind, of elements compared, and of Changes."""
        kinds = ("same", "stored", "close", "dtype", "different", "shape", "only_a", "only_b", "named")
        found = dict.fromkeys(kinds, 0)
        for row in self.rows:
            found[row.kind] += 1
        compared = sum(row.count for row in self.rows if row.kind in kinds[:5])
        return {**found, "elements": compared, "structure": len(self.structure), "metadata": len(self.metadata)}

    def worst(self) -> list[TensorDiff]:
        """Return the rows that differ or are close: those without figures first, then by descending relative error."""
        return sorted(self._apart(), key=_rank)

    def _apart(self) -> list[TensorDiff]:
        return [row for row in self.rows if row.is_different or row.kind in ("close", "stored")]

    def failing(
        self, *, min_sqnr: float | None = None, min_cosine: float | None = None, max_abs: float | None = None
    ) -> list[Failure]:
        """Return the weights that are beyond a limit, those without figures first, then by descending relative error.

        Equal values are within any limit. A weight without a counterpart, or with one of another shape, is within none.
        Programs and metadata play no part, nor do the tolerances.

        Args:
            min_sqnr: least signal-to-noise ratio, in dB.
            min_cosine: least cosine.
            max_abs: largest |b - a|.

        Raises:
            TypeError, ValueError: no number, or no limit at all. ValueError: only names were compared.
        """
        limits = Limits(min_sqnr, min_cosine, max_abs)
        limits.require()
        if self.names_only:
            raise ValueError("limits: expected a comparison of values, got one of names only")
        return [failure for row in sorted(self.rows, key=_rank) if (failure := limits.judge(row)) is not None]

    def _worst(self) -> list[str]:
        changes = (str(change) for change in (*self.structure, *self.metadata))
        return [*(f"{row.name}: {row.message}" for row in least(self._apart(), _rank)), *islice(changes, 3)]

    def __str__(self) -> str:
        lines = [f"{row.name}: {row.message}" for row in self.rows if row.kind not in ("same", "named")]
        lines += map(str, (*self.structure, *self.metadata))
        verdict = "same" if self.is_same else "different"
        return "\n".join(
            map(escape, [f"{self.a} and {self.b}: {verdict}, {summary(self)}", *shortened(lines, _MAX_LINES)])
        )


def summary(diff: Diff) -> str:
    """Return the number of tensors of each kind as text, and what the mapping left out."""
    words = {
        "same": "the same", "stored": "the same, stored otherwise", "close": "close", "named": "in both",
        "dtype": "of another dtype", "different": "with other values", "shape": "of another shape",
        "only_a": "only in A", "only_b": "only in B",
    }  # fmt: skip
    parts = [f"{diff.totals[kind]:,} {text}" for kind, text in words.items() if diff.totals[kind]]
    count = len(diff.rows)
    text = f"{count:,} tensor{'' if count == 1 else 's'}" + (f": {', '.join(parts)}" if parts else "")
    if diff.left_out:
        more = ", ..." if len(diff.left_out) > _MAX_NAMES else ""
        text += f"; {len(diff.left_out):,} of A left out by the mapping: {', '.join(diff.left_out[:_MAX_NAMES])}{more}"
    return text


@takes_urls("a", "b")
def diff(
    a: Any,
    b: Any,
    *,
    select: Select = None,
    function: str | None = None,
    mapping: Mapping[str, Names] | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    names_only: bool = False,
    stored: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> Diff:
    """Compare two models, or a model and a file of arrays, regardless of compression.

    Tensors are paired by `mapping`, by name, by name without function or pipeline prefix if that is unambiguous, and
    finally by their consumers, because coremltools renames a weight when it compresses it. A constant that is a weight
    on one side only, because it is in a weight file, is paired with the small constant of the other side. Positions and
    order of tensors, uninitialised bytes, and the serialization of a Program are not compared.

    Args:
        a, b: each a path (a model, weight file or listing; .safetensors, .npz, .npy or a directory of .npy), an open
            Model, or a mapping from names to arrays. A is the reference.
        select: glob, several, or a function of a name: only tensors that it selects by the name of either side are
            compared, and no Programs and metadata.
        function: likewise only tensors of this function.
        mapping: name in `a` -> name in `b`, or a list of names; None leaves the tensor of `a` out.
        atol, rtol: elements may differ by atol + rtol * |a|.
        names_only: compare only which names there are.
        stored: compare the stored parts of compressed weights instead of the weights.
        executor: of two local paths or open models: any concurrent.futures.Executor, whose workers open the paths
            themselves (see `milblob.executors`). The Programs are compared here.
        progress: called as each tensor of `a` has been compared (see `Progress`).
        max_nbytes: as for `open`, of each side that is opened here.
        storage_options, cache: as for `open`, of the URLs.

    Returns:
        Diff. Programs and metadata are compared if both are models.

    Raises:
        KeyError: an unknown name in `mapping`; a function that neither has. ValueError: two names for one tensor; a
            negative tolerance; a `select` that selects nothing. TypeError: arrays of neither numbers nor text.
        ValueError: `executor` with a source that workers cannot open. WorkerError: workers that were killed.
        As `open`, `formats.read.open_arrays` and `Tensor.read`.

    Examples:
        >>> bias = np.ones(96, np.float32)
        >>> report = milblob.refit("demo.mlpackage", {"head_bias": bias}, destination="new.mlpackage")
        >>> found = milblob.diff("demo.mlpackage", "new.mlpackage")
        >>> found.is_same, [row.name for row in found.worst()]
        (False, ['head_bias'])
    """
    require_flags(names_only=names_only, stored=stored)
    start_progress(progress)
    is_selected = selector(select)
    require("function", function, str | None, "a name")
    names = as_mapping("mapping", mapping, "a mapping of names")
    for what, tolerance in (("atol", atol), ("rtol", rtol)):
        require(what, tolerance, Real, "a number")
    if not (atol >= 0 and rtol >= 0):
        raise ValueError(f"tolerances: expected 0 or more, got {atol} and {rtol}")
    if names_only and (atol or rtol):
        raise ValueError(f"tolerances: expected none with names_only, which compares no values, got {atol} and {rtol}")
    counter = ProgressCounter(progress)
    with contextlib.ExitStack() as stack:
        first, second = (Side.open(side, stored, stack, max_nbytes) for side in (a, b))
        if stored and not first.has_parts and not second.has_parts:
            raise ValueError(f"{first.words}, {second.words}: expected a model, which stored (--stored) is about")
        first, second = first.beside(second), second.beside(first)
        if not names_only:
            fetch([*first.tensors.values(), *second.tensors.values()])
        alignment = None
        if first.has_program and second.has_program:
            alignment = Alignment(cast(Model, first.model), cast(Model, second.model), counter)
        pairs = pair(first, second, names, alignment, counter, reads=not names_only)
        if function is not None:
            pairs = of_function(pairs, first, second, function)
        pairs = [both for both in pairs if any(name is not None and is_selected(name) for name in both)]
        inside = "" if function is None else f", function {function}"
        require_selected(select, bool(pairs), f"{first.words} or {second.words}{inside}")
        rows = []
        counter.expect(first.tensors[old] for old, _ in pairs if old is not None)
        how = atol, rtol, names_only
        workers = None if names_only else workers_of(executor)
        if workers is None:
            found = _compared(pairs, first, second, how)
        else:
            sources = tuple(
                Reopened.of(side, stored=stored, max_nbytes=max_nbytes, is_restored=True) for side in (a, b)
            )
            found = _compared_far(pairs, first, second, how, workers, cast("tuple[Reopened, Reopened]", sources))
        with contextlib.closing(found):
            for (old, _), row in zip(pairs, found, strict=True):
                rows.append(row)
                if old is not None:
                    counter.add_tensor(old, first.tensors[old])
        result = Diff(first.words, second.words, rows, atol=atol, rtol=rtol, names_only=names_only)
        result.left_out.extend(left_out(first, mapping or {}))
        if alignment is not None and select is None and function is None and not names_only:
            keys = [(_key(first, old), _key(second, new)) for old, new in pairs]
            _compare_programs(alignment, result, keys)
            for target, changes in zip(
                (result.metadata, result.tools), compare_metadata(*alignment.models), strict=True
            ):
                target.extend(changes)
        return result


def _compare_programs(alignment: Alignment, result: "Diff", keys: list[tuple[Key | None, Key | None]]) -> None:
    """Add how two Programs differ; remove the rows of small constants without a counterpart that this compares."""
    seen: tuple[set[Key], set[Key]] = set(), set()
    changes, notes = compare_programs(alignment, {(x, y) for x, y in keys if x and y}, seen)
    rows = zip(result.rows, keys, strict=True)
    result.rows[:] = [row for row, (x, y) in rows if (x and y) or not (x in seen[0] or y in seen[1])]
    result.structure.extend(changes)
    result.notes.extend(notes)


def _key(side: Side, name: str | None) -> Key | None:
    tensor = None if name is None else side.tensors[name]
    return key_of(tensor) if isinstance(tensor, Tensor) else None


# ----------------------------------------------------------------------------------------------------------- one tensor


_How = tuple[float, float, bool]
"""How tensors are compared: `atol`, `rtol` and `names_only` of `diff`."""
_Piece = tuple[tuple[Reopened, Reopened], tuple[AnyPair, ...], _How]
"""Two sources, and some pairs of their tensors for a worker."""


def _compared(pairs: Iterable[AnyPair], first: Side, second: Side, how: _How) -> Generator[TensorDiff, None, None]:
    parts = _Parts()
    for old, new in pairs:
        ours, theirs = (s.tensors[n] if n is not None else None for s, n in ((first, old), (second, new)))
        yield _compare(old, ours, new, theirs, how, parts)


def _compared_far(
    pairs: Pairs, first: Side, second: Side, how: _How, workers: "Workers", sources: tuple[Reopened, Reopened]
) -> Generator[TensorDiff, None, None]:
    def tensors(pair: AnyPair) -> list[LazyTensor]:
        return [side.tensors[name] for side, name in zip((first, second), pair, strict=True) if name is not None]

    def pieces() -> Iterator[_Piece]:
        for group in workers.groups(pairs, lambda pair: sum(map(nbytes_of, tensors(pair)))):
            for both in group:
                for tensor in tensors(both) if None not in both else ():
                    account(tensor)  # the budget of a worker is for one piece only
            yield sources, tuple(group), how

    def name_of(piece: _Piece) -> str:
        old, new = piece[1][0]
        return f"tensors from {new if old is None else old} of {first.words} and {second.words}"

    return up_to_error(workers.run(_compare_pairs, pieces(), name_of))


def _compare_pairs(piece: _Piece) -> tuple[list[TensorDiff], Exception | None]:
    """Compare pairs of tensors, up to an error. Runs in any thread or process."""
    sources, pairs, how = piece
    with contextlib.ExitStack() as stack:
        first, second = (Side(source.named(stack), None, source.path) for source in sources)
        return collected(_compared(pairs, first, second, how))


def _compare(
    old: str | None, a: LazyTensor | None, new: str | None, b: LazyTensor | None, how: _How, parts: "_Parts"
) -> TensorDiff:
    """Compare two tensors; one of them may be missing."""
    atol, rtol, names_only = how
    either = cast(LazyTensor, a if a is not None else b)
    if a is None or b is None or names_only:
        kind = "named" if a is not None and b is not None else "only_a" if b is None else "only_b"
        other = new if kind == "named" else None
        shapes = tuple(None if t is None else _declared(t) for t in (a, b))
        dtypes = tuple(None if t is None else t.mil_dtype for t in (a, b))
        schemes = tuple(None if t is None else _compression(t) for t in (a, b))
        count = math.prod(_declared(either) or (0,))
        return TensorDiff(str(old if old is not None else new), other, kind, dtypes, shapes, schemes, count)  # type: ignore[arg-type]
    row = TensorDiff(
        str(old),
        new,
        "same",
        (a.mil_dtype, b.mil_dtype),
        (a.shape, b.shape),
        (_compression(a), _compression(b)),
        a.size,
    )
    if a.shape != b.shape:
        return replace(row, kind="shape")
    if DType.STRING in row.dtypes:
        if a.mil_dtype is not b.mil_dtype:
            return replace(row, kind="different")
        return row if a.read().tolist() == b.read().tolist() else replace(row, kind="different")
    are_tensors = False
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if parts.are_equal(a, b):
            return row
        are_tensors = True
    ours, theirs = Elements(a), Elements(b)
    is_compared = are_tensors and not any(row.compressions)  # parts are compared one by one
    if a.mil_dtype is b.mil_dtype and not is_compared and have_equal_bits(ours, theirs):
        return row if row.schemes[0] == row.schemes[1] else replace(row, kind="stored")
    figures = measure(ours, theirs, atol, rtol)
    if figures.outside:
        kind = "different"
    elif a.mil_dtype is b.mil_dtype or atol > 0 or rtol > 0:
        kind = "close"
    else:
        kind = "dtype"
    return replace(row, kind=kind, figures=figures)


def _declared(tensor: LazyTensor) -> tuple[int, ...]:
    """Return the shape without reading values to find an open dimension."""
    shape = tensor.declared_shape if isinstance(tensor, Tensor) else tensor.shape
    return tuple(-1 if size is None else size for size in shape)


def _compression(tensor: LazyTensor) -> Compression | None:
    return tensor.compression if isinstance(tensor, Tensor) else None


class _Parts:
    """Which stored parts of two models have the same bits; each pair is compared once, even if weights share it."""

    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}

    def are_equal(self, a: Tensor, b: Tensor) -> bool:
        """Whether two weights are stored as the same bits, so nothing needs decoding."""
        if a.chain is None and b.chain is None and a.size < _SMALL_COUNT:
            return self._compare(a, b)
        key = *_identity(a), *_identity(b)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compare(a, b)
        return found

    def _compare(self, a: Tensor, b: Tensor) -> bool:
        if a.chain is None or b.chain is None:
            if a.chain is not b.chain or a.mil_dtype is not b.mil_dtype or a.shape != b.shape:
                return False
            if a.mil_dtype is DType.STRING:
                return bool(a.read().tolist() == b.read().tolist())
            return are_stored_alike(a, b)
        ours, theirs = a.parts, b.parts
        if a.op != b.op or ours.keys() != theirs.keys() or a.chain.output != b.chain.output:
            return False
        return all(self.are_equal(ours[key], theirs[key]) for key in ours)


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that identifies a tensor of an open model; in a weight file, its position and type."""
    if not tensor.is_blob:
        return (tensor.name,)
    return tensor.place.key(), tensor.mil_dtype.mil_code, tensor.declared_shape


# ---------------------------------------------------------------------------------------------------------------- words


def _rank(row: TensorDiff) -> tuple[int, float, bool]:
    if row.figures is None:
        return (0 if row.is_different else 2), 0.0, False
    relative = row.figures.relative
    return (0, 0.0, False) if relative is None or row.figures.mismatched else (1, -relative, not row.is_different)
