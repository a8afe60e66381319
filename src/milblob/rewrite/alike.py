"""Finds the weights of a model that have equal values in different forms, or nearly equal values.

Samples select candidates among the weights of one dtype and shape. Two candidates are compared in full; of more, those
are equal whose decoded values have equal hashes, as of `content_hash(dense=True)`.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from math import asin, ceil, log, log1p, pi
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..analysis.hash import tensor_hashes
from ..analysis.sides import Side
from ..analysis.tensor_diff import Figures, measure
from ..dtypes import DType
from ..matching.derivations.layouts import Layout
from ..matching.match import match
from ..matching.similarity import sampled
from ..matching.steps.same_elements import moved_elements
from ..model.elements import Elements, are_stored_alike, have_equal_bits
from ..model.lazy import LazyTensor
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor, make_tensor
from ..program.cast_edits import FIRST_INPUTS, opset
from ..program.compress_edits import consumer_refusal, refusal
from ..program.scan import Compressed
from ..progress import NO_PROGRESS, ProgressCounter
from ..wording import escape
from .changes import Sharing
from .decompress import Identities, is_end

_STRETCHES, _STRETCH_COUNT = 8, 128  # of a sample: stretches, since a compressed weight decodes all between positions
_SLACK_DB = 6.0  # how far the SQNR of a sample may be below that of the whole
_MISSED = 1e-6  # probability that two near rows are never compared
_LEAST_TOGETHER = 0.2  # of two near rows in one table: 62 tables
_ROWS = 512  # samples that are compared at a time
_MAX_COMPARED = 8  # references that a weight is compared with in full, where samples do not distinguish them


class Shared(NamedTuple):
    """A weight that takes the form of another one."""

    weight: Tensor  # that changes
    reference: Tensor  # whose stored records and operations it gets; it is unchanged
    # of the reference's values as noise on those of the weight; None if the values are equal to the bit
    figures: Figures | None = None


class _Form:
    """The weights that are computed in one way from the same stored values."""

    __slots__ = ("_elements", "nbytes", "order", "weights")

    def __init__(self, first: Tensor, order: int) -> None:
        self.weights = [first]  # in Program order
        self.nbytes = first.nbytes  # stored for them
        self.order = order  # position of the first
        self._elements: Elements | None = None

    def elements(self) -> Elements:
        """Open its values. A compressed weight is kept open if its parts are in the file: it has no memory itself."""
        if self._elements is not None:
            return self._elements
        found, chain = Elements(self.first), self.first.chain
        if chain is not None and not any(isinstance(part, Compressed) for part in chain.parts.values()):
            self._elements = found
        return found

    @property
    def first(self) -> Tensor:
        """Its first weight, whose values all of them have."""
        return self.weights[0]

    @property
    def rank(self) -> tuple[int, int]:
        """A sort key: small forms first, then early ones."""
        return self.nbytes, self.order


class _Member(NamedTuple):
    """Forms of equal values; `figures` are those of the reference's values as noise on theirs, None if equal."""

    forms: list[_Form]
    figures: Figures | None = None

    @property
    def first(self) -> Tensor:
        """A weight with the values."""
        return self.forms[0].first


_Group = list[_Member]
"""Weights that may share; the first member is the reference."""


def shareable(program: OpenProgram) -> Iterator[Tensor]:
    """Yield the weights of a Program that may share: compressed ones, and `const` operations in weight files."""
    scan = program.scan
    rows: list[Any] = [
        row for row in scan.constants if row.storage == _codec.BLOB and _is_const(row) and not scan.is_part(row)
    ]
    rows += [group for group in scan.groups if is_end(program, group)]
    for row in rows:
        tensor = make_tensor(program, scan.name_of(row), row)
        if tensor.mil_dtype not in (DType.STRING, DType.BOOL) and None not in tensor.declared_shape and tensor.size:
            yield tensor


def _is_const(row: _codec.Constant) -> bool:
    return row.op is not None and row.op.type == "const" and row.key == "val" and not row.steps


def find_shared(
    weights: Iterable[Tensor],
    sharing: Sharing,
    folder_of: Callable[[Tensor], Hashable],
    max_nbytes: int | None = None,
    counter: ProgressCounter = NO_PROGRESS,
) -> list[Shared]:
    """Find the weights that take the form of another one.

    Of weights that are equal, the form with the fewest stored bytes is shared, among those that the readers of most of
    the weights accept: an operation may need a `const`, and an operation set may lack a form. Of nearly equal ones,
    the form of the reference.

    Args:
        weights: as `shareable` yields them.
        folder_of: weights can share only if this is equal.
        max_nbytes: as for `open`, of `sharing.base`.
        counter: notes each weight.

    Raises:
        ValueError: no weight that is nearly equal to another was made from the base. As `match` and `Tensor.read`.
    """
    alike: dict[Hashable, list[Tensor]] = defaultdict(list)
    for weight in counter.noting(weights):
        alike[folder_of(weight), weight.mil_dtype, weight.shape].append(weight)
    identities, groups = Identities(), []
    for same in alike.values():
        forms = _forms(same, identities, counter) if len(same) > 1 else []
        if len(forms) > 1 and (sharing.min_sqnr is not None or any(form.first.chain is not None for form in forms)):
            groups += _groups(forms, sharing.min_sqnr, counter)
    if sharing.base is not None and sharing.min_sqnr is not None:
        groups = _with_base(groups, sharing.base, sharing.min_sqnr, max_nbytes)
    return [shared for group in groups for shared in _resolved(group)]


# ---------------------------------------------------------------------------------------------------------------- forms


def _forms(weights: list[Tensor], identities: Identities, counter: ProgressCounter) -> list[_Form]:
    found: dict[int, _Form] = {}
    for order, weight in enumerate(counter.noting(weights)):
        number = identities.of(weight)
        if number in found:
            found[number].weights.append(weight)
        else:
            found[number] = _Form(weight, order)
    return list(found.values())


def _name_of(form: _Form) -> str:
    return form.first.name


def _groups(forms: list[_Form], min_sqnr: float | None, counter: ProgressCounter) -> list[_Group]:
    """Group forms of one dtype and shape by their values."""
    positions = _positions(forms[0].first.size)
    rows = sampled((form.elements() for form in counter.noting(forms, _name_of)), positions)
    buckets: dict[bytes, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        buckets[row.tobytes()].append(number)
    classes: list[list[int]] = []
    for bucket in buckets.values():
        same = _equal([forms[number] for number in bucket])
        classes += ([bucket[index] for index in some] for some in same)
    members = [_Member([forms[number] for number in some]) for some in classes]
    if min_sqnr is None or not forms[0].first.mil_dtype.is_float:
        return [[member] for member in members if len(member.forms) > 1]
    return _near(members, rows[[some[0] for some in classes]], min_sqnr, counter)


def _equal(forms: list[_Form]) -> Iterable[list[int]]:
    """Put the indices of forms of equal values together. Records are not compared: equal ones are found as such."""
    weights = [form.first for form in forms]
    if len(weights) == 1 or all(weight.chain is None for weight in weights):
        return [[index] for index in range(len(weights))]
    if len(weights) == 2:  # faster than hashing both
        return [[0, 1]] if have_equal_bits(*(form.elements() for form in forms)) else [[0], [1]]
    found: dict[str, list[int]] = defaultdict(list)
    for index, digest in enumerate(tensor_hashes(weights, dense=True)):
        found[digest].append(index)
    return found.values()


def _positions(size: int) -> np.ndarray[Any, Any]:
    """Return where weights of a size are sampled."""
    if size <= _STRETCHES * _STRETCH_COUNT:
        return np.arange(size)
    begins = np.linspace(0, size - _STRETCH_COUNT, _STRETCHES).astype(np.int64)
    return (begins[:, None] + np.arange(_STRETCH_COUNT)).reshape(-1)


# --------------------------------------------------------------------------------------------------------- nearly equal


def _near(
    members: list[_Member], rows: np.ndarray[Any, Any], min_sqnr: float, counter: ProgressCounter
) -> list[_Group]:
    """Group members whose values are nearly those of a reference: the smallest forms first."""
    scale = np.abs(rows).max(initial=0)
    rows = rows / scale if scale else rows  # squares do not overflow
    norms = np.linalg.norm(rows, axis=1)
    ratio = 10 ** (-(min_sqnr - _SLACK_DB) / 20)  # of the norm of the noise to that of the values
    neighbours = _neighbours(rows, ratio)
    free, compared = np.ones(len(members), bool), np.zeros(len(members), int)
    groups = []
    order = sorted(range(len(members)), key=lambda number: min(form.rank for form in members[number].forms))
    for leader in counter.noting(order, lambda number: _name_of(members[number].forms[0])):
        if not free[leader]:
            continue
        free[leader] = False
        group = [members[leader]]
        found = neighbours(leader)
        found = found[free[found] & (compared[found] < _MAX_COMPARED)]
        for begin in range(0, len(found), _ROWS):
            some = found[begin : begin + _ROWS]
            noise = np.linalg.norm(rows[some] - rows[leader], axis=1)
            for number in some[noise <= ratio * norms[some]]:
                figures = _compared(members[number].first, members[leader].first, min_sqnr)
                compared[number] += 1
                if figures is not None:
                    group.append(members[number]._replace(figures=figures))
                    free[number] = False
        if len(group) > 1 or len(group[0].forms) > 1:
            groups.append(group)
    return groups


def _neighbours(rows: np.ndarray[Any, Any], ratio: float) -> Callable[[int], np.ndarray[Any, Any]]:
    """Return a function: number of a row -> the rows that may differ from it by less than `ratio` of their norm.

    Two such rows are at a small angle, so few planes through the origin separate them (Charikar's hashing, 2002). Each
    table groups the rows by the sides of several random planes on which they are, enough of them to leave few rows in a
    group. Two near rows miss each other in all tables once in a million times. So the comparisons do not grow with the
    square of the rows.
    """
    nbits = max(len(rows).bit_length() - 1, 1)
    together = (
        1 - max(asin(ratio) / pi, 1e-9) if ratio < 1 else 0.0
    )  # probability that a plane does not separate two near rows
    while nbits and together**nbits < _LEAST_TOGETHER:
        nbits -= 1
    count = ceil(log(_MISSED) / log1p(-(together**nbits))) if nbits else 1
    random, tables = np.random.default_rng(rows.shape[1]), []
    for _ in range(count):
        sides = rows @ random.standard_normal((rows.shape[1], nbits)) >= 0
        codes = sides @ (1 << np.arange(nbits))
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        tables.append((order, np.searchsorted(ordered, codes), np.searchsorted(ordered, codes, "right")))
    return lambda number: np.unique(np.concatenate([order[low[number] : high[number]] for order, low, high in tables]))


def _compared(weight: Tensor, reference: Tensor, min_sqnr: float) -> Figures | None:
    """Compare a weight with a reference in full; None if it is not nearly equal."""
    figures = measure(Elements(weight), Elements(reference))
    is_near = figures.sqnr is not None and figures.sqnr >= min_sqnr and not figures.mismatched
    return figures if is_near else None


def _with_base(groups: list[_Group], base: Any, min_sqnr: float, max_nbytes: int | None) -> list[_Group]:
    """Make the member whose values are closest to the base the reference of each group.

    Raises: ValueError: no group has values of the base. As `match`.
    """
    with contextlib.ExitStack() as stack:
        side = Side.open(base, False, stack, max_nbytes)
        near = [group[0].first for group in groups if len(group) > 1]
        origins = _origins(near, side) if near else {}
        if near and not origins:
            names = ", ".join(weight.name for weight in near[:3]) + ", ..." * (len(near) > 3)
            message = f"base: expected a tensor that one of the nearly equal weights was made from ({names})"
            raise ValueError(escape(f"{message}, got none in {side.words}"))
        return [_by_base(group, origins.get(group[0].first), min_sqnr) for group in groups]


def _origins(weights: list[Tensor], side: Side) -> dict[Tensor, tuple[LazyTensor, Layout]]:
    """Map weights to the arrays that they were made from, and their layouts."""
    names: dict[str, Tensor] = {}
    for weight in weights:
        names[weight.name if weight.name not in names else f"{weight.name}:{len(names)}"] = weight
    found = {}
    for row in match(names, side.tensors).matches:
        if not row.folded and row.how != "scaled":
            found[names[row.name]] = side.tensors[row.given], row.layout
    return found


def _by_base(group: _Group, origin: tuple[LazyTensor, Layout] | None, min_sqnr: float) -> _Group:
    if origin is None or len(group) == 1:
        return group

    def error(member: _Member) -> float:
        relative = measure(moved_elements(*origin), Elements(member.first)).relative
        return float("inf") if relative is None else relative

    errors = [error(member) for member in group]
    reference = group[errors.index(min(errors))]
    result = [reference._replace(figures=None)]
    for member in group:
        figures = _compared(member.first, reference.first, min_sqnr) if member is not reference else None
        result += [member._replace(figures=figures)] if figures is not None else []
    return result


# ------------------------------------------------------------------------------------------------------------ reference


def _resolved(group: _Group) -> Iterator[Shared]:
    """Choose the form that a group shares; yield the weights that take it."""
    weights = [weight for member in group for form in member.forms for weight in form.weights]
    takes = {weight: _takes(weight) for weight in weights}

    def count(form: _Form) -> int:
        return sum(_accepts(weight, takes[weight], form) for weight in weights)

    best = min(group[0].forms, key=lambda form: (-count(form), form.rank))
    for member in group:
        for form in member.forms:
            if form is best or _has_same_parts(form.first, best.first):
                continue  # equal records are shared as such
            for weight in form.weights:
                if member.figures is not None and any(one.type.startswith("constexpr_") for one in weight.consumers):
                    continue  # it is a part, too: another weight would get other values
                if _accepts(weight, takes[weight], best):
                    yield Shared(weight, best.first, member.figures)


def _takes(weight: Tensor) -> bool:
    """Whether the operations that read a weight accept a compressed one."""
    if weight.chain is not None:
        return True
    return refusal(weight.constant, 0) is None and consumer_refusal(weight.consumers) is None


def _accepts(weight: Tensor, takes_chain: bool, form: _Form) -> bool:
    reference = form.first
    if reference.chain is None:
        return True
    own, other = (opset(one.program.scan, one.op_row) for one in (weight, reference))  # type: ignore[union-attr]
    return takes_chain and other <= own and (other < FIRST_INPUTS) == (own < FIRST_INPUTS)


def _has_same_parts(a: Tensor, b: Tensor) -> bool:
    """Whether two weights are computed in one way from parts of equal bytes."""
    if (a.op, a.mil_dtype, a.shape) != (b.op, b.mil_dtype, b.shape):
        return False
    if a.chain is None or b.chain is None:
        return a.chain is b.chain and are_stored_alike(a, b)
    ours, theirs = a.parts, b.parts
    is_same = a.chain.output == b.chain.output and ours.keys() == theirs.keys()
    return is_same and all(_has_same_parts(ours[key], theirs[key]) for key in ours)
