"""New weights derived through the checkpoint that a model was converted from: the values of `refit(..., base=...)`."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..analysis.sides import Side
from ..arguments import Names, names_in
from ..dtypes import DType
from ..errors import UnsupportedError
from ..matching.derivations.derivation import Derivation
from ..matching.derivations.rounding import MAX_KEPT, kept_from_zero
from ..matching.lineage import Claim, Lineage, Origin
from ..matching.search import find_lineage
from ..matching.steps.renderings import is_like
from ..model.elements import Elements, have_equal_bits
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.stored import StoredArray
from ..model.tensor import Tensor
from ..progress import Progress, ProgressCounter
from ..selection import Select, selector
from ..storage.table import format_of
from ..values.cast import cast_array, is_castable
from ..wording import escape, shortened, some
from .checkpoints import renamed
from .merging import MergedArray
from .pairs import How

_MAX_NAMES = 20
_MAX_CLAIMS = 4
_COUNTERS = ("num_batches_tracked",)
"""Arrays that training changes and no converter uses: they are listed as not used, and no more."""


class Rebased(NamedTuple):
    """What a refit is to write."""

    # label -> new values, computed when they are read. A label describes their derivation from the checkpoint.
    arrays: dict[str, LazyTensor]
    # label -> the weights that get them, or WEIGHT@OPERATION.PARAMETER where only some readers do
    mapping: dict[str, Names]
    unused: tuple[str, ...]  # arrays of the checkpoint that no weight follows from
    without_effect: tuple[str, ...]  # arrays that differ, and that no constant of the model depends on
    # weights that follow from no array -> what they are: one number, a mask, positions, integers
    constant: Mapping[str, str]
    left: tuple[str, ...]  # weights that the caller leaves as they are
    note: str  # a text that describes how names were changed
    progress: Progress | None  # called while they are written; None for no progress


def rebase(
    path: str, new: Mapping[str, Any], base: Mapping[str, Any], how: How, leave: Select, epsilon: float | None = None
) -> Rebased:
    """Learn from a base checkpoint how each weight of a model came to be, and do the same with another checkpoint.

    Args:
        path: of the model; it is only read.
        how: as `refit` was asked. Its mapping has None for each array that is to be left out; its progress is called as
            each array of the base was compared, and each weight explained, which is half of the work.
        leave: weights that may be left as they are if their derivation is unknown.
        epsilon: of batch norms, to try before the usual ones.

    Raises:
        ValueError: the checkpoints do not have the same arrays; a weight that does not follow from the base; an array
            that differs and that no weight follows from. Each is named.
    """
    out, progress = _left_out(how.mapping, base), how.progress
    is_left = selector(leave) if leave is not None else lambda _: False
    row = format_of(path)
    if row is not None and not row.open_model:
        raise UnsupportedError(f"base: expected a model to refit, got a file of kind {row.kind}", file=path)
    new, note = renamed(base.keys(), new)
    sides = [tensors_of(arrays) for arrays in (base, new)]
    old, tuned = ({name: tensor for name, tensor in side.items() if name not in out} for side in sides)
    _require_alike(old, tuned)
    opened = (Model if row is None else row.function("open_model"))(path, constants=True)
    with opened as model, np.errstate(all="ignore"):  # of any values, infinite and NaN too
        constants = dict(model.items())
        counter = ProgressCounter(progress, (*old.values(), *constants.values()))
        half = counter.total_nbytes
        counter.total_nbytes = 2 * half
        _require_left(model, leave)
        _require_requantize(constants, how, is_left, model.path)
        every, others = sides
        different = {
            n: tensor
            for n, tensor in counter.noting(every.items(), itemgetter(0))
            if n in others and not _are_equal(tensor, others[n])
        }
        changed = [name for name in different if name not in out]
        known = {name: tensor for name, tensor in constants.items() if getattr(tensor, "is_dense", True)}
        lineage = find_lineage(old, known, counter, epsilon, changed)
        lost, without_effect = _unused(lineage, old, tuned, changed)
        merged = frozenset(name for name in changed if isinstance(tuned[name], MergedArray))
        lost += (name for name in without_effect if name in merged)
        left_out = [name for name in lineage.unknown if is_left(name)]
        problems = [*_resembling({name: constants[name] for name in left_out}, different)]
        problems += _unknown(lineage, how.is_selected, is_left) + _lost(lost)
        result = _Writing(tuned, how.unshare)
        for origin in counter.noting(lineage.origins.values()):
            is_changed = not merged or any(merged.intersection(claim.sources()) for claim in origin.claims)
            if is_changed and how.is_selected(origin.name) and not is_left(origin.name):
                result.add(origin, constants[origin.name])
        problems += result.problems
        if problems:
            raise ValueError(escape(f"weights: expected all to follow from the base, got {'; '.join(problems)}"))
    not_used = tuple(name for name in new if name in out or name in lineage.unused)
    left = tuple(name for name in [*lineage.origins, *lineage.unknown] if is_left(name))
    return Rebased(
        result.arrays, result.mapping, not_used, tuple(without_effect), lineage.constant, left,
        note, _second_half(progress, half),
    )  # fmt: skip


def _require_left(model: Model, leave: Select) -> None:
    """Refuse globs that match no constant: a misspelled name must be an error."""
    for glob in () if leave is None else [leave] if isinstance(leave, str) or callable(leave) else leave:
        if not any(map(selector(glob), model)):
            message = f"leave: expected names of constants in {model.path}, got none"
            raise ValueError(message if callable(glob) else f"{message} that matches {glob!r:.200}")


def _require_requantize(
    constants: Mapping[str, Tensor], how: How, is_left: Callable[[str], bool], path: str | None
) -> None:
    """Refuse compressed weights without a policy at once, because learning may take minutes."""
    compressed = (name for name, tensor in constants.items() if tensor.chain is not None)
    names = [name for name in compressed if how.is_selected(name) and not is_left(name)]
    if names and not how.requantize:
        message = (
            f"weights: expected ones that are stored dense, got {len(names):,} compressed: {some(names, _MAX_NAMES)}"
        )
        raise UnsupportedError(f"{message} (add --requantize keep or fit)", file=path)


def _second_half(progress: Progress | None, half: int) -> Progress | None:
    """Return what to call while the weights are written: how many will be was not known when the count began."""
    if progress is None:
        return None
    return lambda name, done, total: progress(name, half + half * done // max(total, 1), 2 * half)


def _left_out(mapping: Mapping[str, Names], base: Mapping[str, Any]) -> set[str]:
    wrong = [name for name, names in mapping.items() if names_in(names)]
    if wrong:
        message = "mapping with a base: expected only None, for arrays to leave out (the base assigns the others)"
        raise ValueError(escape(f"{message}; got a name for {some(wrong, _MAX_NAMES)}"))
    lacking = [name for name in mapping if name not in base]
    if lacking:
        raise KeyError(f"mapping: expected names of arrays of the base, got {some(lacking, _MAX_NAMES)}")
    return set(mapping)


def tensors_of(arrays: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Return arrays, of a file or of the caller, as tensors by name."""
    with contextlib.ExitStack() as stack:
        return dict(Side.open(arrays, False, stack).tensors)


def _require_alike(base: Mapping[str, LazyTensor], new: Mapping[str, LazyTensor]) -> None:
    """Refuse checkpoints of two different networks, with all differences."""
    problems = []
    for have, lack, message in ((base, new, "only in the base"), (new, base, "only in the new weights")):
        names = [name for name in have if name not in lack and not name.endswith(_COUNTERS)]
        if names:
            problems.append(f"{len(names):,} {message}: {some(names, _MAX_NAMES)}")
    for name, old in base.items():
        tuned = new.get(name)
        if tuned is not None and not (old.shape == tuned.shape and _are_alike(old.mil_dtype, tuned.mil_dtype)):
            message = (
                f"{name} is {old.mil_dtype} {list(old.shape)} in the base, {tuned.mil_dtype} {list(tuned.shape)} now"
            )
            problems.append(message)
    if problems:
        message = "; ".join(shortened(problems, _MAX_NAMES))
        raise ValueError(escape(f"weights: expected the arrays of the base, with other values; {message}"))


def _resembling(left: Mapping[str, Tensor], different: Mapping[str, LazyTensor]) -> Iterator[str]:
    """Yield a problem for each left weight that resembles a changed array: it would keep old values."""
    for name, weight in left.items():
        values = np.asarray(weight.read())
        array = next((array for array, tensor in different.items() if is_like(values, tensor)), None)
        if array is not None:
            yield f"{name}: expected a constant that no array gives, to leave it as it is; got one that is like {array}"


def _are_alike(a: DType, b: DType) -> bool:
    """Whether a checkpoint may have been saved in one dtype, and its base in another."""
    return a is b or (a.is_float and b.is_float)


def _unknown(lineage: Lineage, is_selected: Callable[[str], bool], is_left: Callable[[str], bool]) -> list[str]:
    """Return a problem for each weight without a known derivation."""
    found = [
        f"{name} ({reason})" for name, reason in lineage.unknown.items() if is_selected(name) and not is_left(name)
    ]
    if not found:
        return []
    advice = "--leave NAME leaves one as it is, if it does not depend on the checkpoint"
    if not lineage.origins:
        advice = "none follows from it: is it the checkpoint that this model was converted from?"
    count = "1 constant" if len(found) == 1 else f"{len(found):,} constants"
    return [f"{count} of the model that milblob cannot compute from the base: {some(found, _MAX_NAMES)} ({advice})"]


def _unused(
    lineage: Lineage, base: Mapping[str, LazyTensor], new: Mapping[str, LazyTensor], changed: Collection[str]
) -> tuple[list[str], list[str]]:
    """Return the changes that would be lost, and the arrays with changes that no constant of the model depends on.

    Where every weight and every number of the model is explained, other arrays cannot matter. But some may have done
    nothing in the base, and a converter leaves these out: a bias of zeros, a scale of ones.
    """
    is_explained = not lineage.unknown and bool(lineage.origins)
    found: tuple[list[str], list[str]] = [], []
    for name in lineage.unused:
        if name in changed and not name.endswith(_COUNTERS):
            is_without = is_explained and name not in lineage.unclear and not _is_neutral(np.asarray(base[name].read()))
            found[is_without].append(name)
    shapes = {name: tensor.shape for name, tensor in base.items()}
    for name, (axis, missing) in lineage.unused_parts(shapes).items():
        old, tuned = (np.take(np.asarray(arrays[name].read()), missing, axis) for arrays in (base, new))
        if old.tobytes() != tuned.tobytes():
            found[is_explained and not _is_neutral(old)].append(f"{name} (used in part)")
    return found


def _lost(names: list[str]) -> list[str]:
    """Return the problem that changes would be lost."""
    if not names:
        return []
    count = "1 array differs" if len(names) == 1 else f"{len(names):,} arrays differ"
    message = f"{count} from the base, and no weight of the model follows from {'it' if len(names) == 1 else 'them'}"
    return [f"{message}: {some(names, _MAX_NAMES)} (null in the mapping leaves one out)"]


def _is_neutral(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array may have done nothing: all elements are equal, or its one number is 0 or 1."""
    values = array.reshape(-1)
    if values.size == 1:
        return bool(values[0] in (0, 1))
    return bool(values.size == 0 or (values == values[0]).all())


def _are_equal(a: LazyTensor, b: LazyTensor) -> bool:
    if a is b or isinstance(b, MergedArray):
        return a is b
    if a.shape != b.shape:
        return False
    if a.size == 0 or a.mil_dtype is not b.mil_dtype or a.mil_dtype is DType.STRING:
        return bool(np.array_equal(np.asarray(a.read()), np.asarray(b.read())))
    return have_equal_bits(Elements(a), Elements(b))


class _Writing:
    """Collects what is to be written."""

    def __init__(self, new: Mapping[str, LazyTensor], unshare: bool) -> None:
        self._new, self._unshare = new, unshare
        self.problems: list[str] = []
        self._labels: dict[tuple[Derivation | str, tuple[int, ...]], str] = {}
        self.arrays: dict[str, LazyTensor] = {}
        self.mapping: dict[str, Names] = {}

    def add(self, origin: Origin, weight: Tensor) -> None:
        """Add a weight with the value that its claims agree on, else each claim for its readers."""
        claims = origin.claims
        known = [claim for claim in claims if claim.derivation is not None]
        if len(claims) == 1 or self._agree(claims, weight):
            self._add(known[0], weight, weight.name)
            return
        if not self._unshare or not all(claim.readers for claim in claims):
            words = " and ".join(str(claim.derivation) for claim in known[:_MAX_CLAIMS])
            more = f" and {len(known) - _MAX_CLAIMS} more" if len(known) > _MAX_CLAIMS else ""
            if len(known) < len(claims):
                others = some((r for c in claims if c.derivation is None for r in c.readers), _MAX_NAMES)
                more += f" and by {others or 'others'}"
            advice = "" if not all(claim.readers for claim in claims) else " (--unshare stores them apart)"
            self.problems.append(f"{weight.name}: shared by {words}{more}, whose new values differ{advice}")
            return
        for claim in claims:
            targets = [f"{weight.name}@{reader}" for reader in claim.readers] or [weight.name]
            for target in targets:
                self._add(claim, weight, target)

    def _agree(self, claims: tuple[Claim, ...], weight: Tensor) -> bool:
        first = self._cast(claims[0].derivation, weight)
        return all(self._cast(claim.derivation, weight).tobytes() == first.tobytes() for claim in claims[1:])

    def _cast(self, derivation: Derivation | None, weight: Tensor) -> np.ndarray[Any, Any]:
        values = np.asarray(weight.read()) if derivation is None else self._compute(derivation, weight.mil_dtype)
        if not is_castable(values.dtype, weight.mil_dtype):
            return values
        return cast_array(np.ascontiguousarray(values).reshape(weight.shape), weight.mil_dtype, overflow="inf")[0]

    def _compute(self, derivation: Derivation, to: DType) -> np.ndarray[Any, Any]:
        return kept_from_zero(derivation.compute(lambda name: np.asarray(self._new[name].read())), to)

    def _add(self, claim: Claim, weight: Tensor, target: str) -> None:
        derivation, shape = claim.derivation, weight.shape
        key = (weight.name if derivation is None else derivation, shape)
        label = self._labels.get(key)
        if label is None:
            label = self._labels[key] = self._new_label(derivation, weight)
            array = self._new.get(label)
            if isinstance(array, MergedArray) and array.shape == shape and array.size >= MAX_KEPT:
                self.arrays[label] = array  # can be computed in pieces
            elif derivation is None:
                present = np.array(weight.read())
                self.arrays[label] = StoredArray(label, weight.mil_dtype, shape, lambda: present, "memory")
            else:
                dtype = derivation.dtype(lambda name: self._new[name].mil_dtype)
                found: Derivation = derivation
                self.arrays[label] = StoredArray(
                    label, dtype, shape, lambda: self._compute(found, weight.mil_dtype).reshape(shape), "memory"
                )
            self.mapping[label] = []
        self.mapping[label] = [*names_in(self.mapping[label]), target]

    def _new_label(self, derivation: Derivation | None, weight: Tensor) -> str:
        """Return words for a derivation, with the name of the weight where others are described by the same words."""
        label = str(derivation) if derivation is not None else f"{weight.name} as it is"
        if label in self.arrays:
            label = f"{label} (of {weight.name})"
        while label in self.arrays:
            label += "'"
        return label
