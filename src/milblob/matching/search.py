"""The search for how the weights of a model follow from the arrays of a checkpoint.

It generates and tests expressions (derivations/), the cheap ones first: hashes and samples of values propose
candidates, which are computed in full and compared with the weight, bit for bit or to one rounding; for a compressed
weight, as the source of its compression. This fits because a converter's arithmetic is short and deterministic. Names,
and the operations that read a weight, decide only between equal arrays. A weight that remains ambiguous has several
claims, whose new values must agree.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from math import gcd, inf
from typing import Any

import numpy as np

from .. import progress
from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..program.view import Consumer
from ..values.cast import cast_array
from .agreeing import agreeing, is_name_of
from .checkpoint import Checkpoint, Work, numeric
from .derivations.arithmetic import Combined, follows_by_element, kind_of
from .derivations.derivation import CheckpointArray, Derivation, Explained, RowRange, Stacked, moved
from .derivations.layouts import Layout, Values, layouts, spread
from .derivations.rounding import casts_to, kept_from_zero
from .lineage import Claim, Lineage, Origin
from .model_weights import Convolution, ModelWeights, is_candidate, is_compressed
from .siblings import VECTORS
from .steps.conv_folds import Fold, FoldFinder
from .steps.expressions import Expressions
from .steps.gathers import Gathers
from .steps.renderings import block_of, correlate, may_render, sqnr_of
from .steps.rest import Rest
from .steps.rows import RowIndex
from .steps.same_elements import Equality, same_elements

_SAMPLE_COUNT = 1024
_MIN_EXPRESSED = 10  # elements; those of fewer are explained with more suspicion
_MAX_LAYOUTS = 6
_MAX_SMALL = 9  # elements of arrays that a number may follow from, and nothing else
_TRIED_COUNT = 1 << 18  # elements for which two derivations are compared
_AT_ONCE_COUNT = 1 << 13  # of these elements, how many are computed in one call
_EQUAL_COUNT = 1 << 10  # elements that must be equal before they are cast: of two ways to round, one in three differs
_MAX_CLAIMS = 64  # equal arrays that may be one weight
_AS_TRAINED = ("conv", "conv_transpose", "gather")  # operations before which no pass transposes weights


def find_lineage(
    arrays: Mapping[str, LazyTensor],
    tensors: Mapping[str, LazyTensor],
    counter: progress.ProgressCounter | None = None,
    epsilon: float | None = None,
    changed: Collection[str] | None = None,
) -> Lineage:
    """Find how each weight and each number of a model follows from the arrays of a checkpoint.

    Args:
        arrays: the checkpoint by name.
        tensors: the constants of the model, compressed weights in their dense form.
        counter: adds up each array, once it was compared with all weights, and each weight, once all was tried for it.
        epsilon: of batch norms, to try before the usual ones.
        changed: the arrays that will have other values; None for all. A computed table with the numbers of one of
            these, such as learnt frequencies, is unknown.
    """
    weights = ModelWeights({name: tensor for name, tensor in tensors.items() if is_candidate(tensor)})
    known = numeric(arrays)
    work = Work((*known.values(), *weights.values()), counter or progress.ProgressCounter(None))
    search = Search(Checkpoint(known, work, epsilon), weights, tensors)
    search.find_equal()
    search.claim_equal()
    search.claim_rendered()
    # A new batch norm scales by almost 1, which rounding may hide: so also look at weights that are equal.
    search.claim_folds(weights)
    search.claim_computed(name for name in weights if name not in search.equal)
    search.claim_flat()
    rest = search.claim_rest(arrays.keys() if changed is None else changed)
    return search.lineage(rest, arrays)


class Search:
    """The state of one search, and its steps; each step claims some weights.

    `checkpoint`: the arrays. weights: to explain. `counted`: the tensors whose progress is reported once every step has
    tried them.
    """

    def __init__(
        self, checkpoint: Checkpoint, weights: ModelWeights, counted: Mapping[str, LazyTensor] | None = None
    ) -> None:
        self.checkpoint, self.weights = checkpoint, weights
        self.may = checkpoint.may
        self._waiting = dict(counted or {})
        self._folds = FoldFinder(checkpoint, weights)
        self.equalities: list[Equality] = []  # the arrays and weights with the same elements; set by `find_equal`
        self.equal: dict[str, list[tuple[str, Layout]]] = {}  # the same by weight: arrays, and in which layout
        # by weight, each with the operations that read these values; of all, if it has none
        self.claims: dict[str, dict[Derivation | None, set[str]]] = defaultdict(dict)
        self.certain: dict[str, Derivation] = {}  # weights with one claim
        # weights of convolutions, and arrays from which each channel differs by a factor, which no fold gives
        self.unfolded: list[tuple[Convolution, str]] = []
        self.rounded: set[str] = set()  # weights whose claims give them to one rounding only
        self.sqnr: dict[str, float] = {}  # of compressed weights, in dB
        self._indexes: dict[tuple[DType, int], RowIndex] = {}

    @cached_property
    def _gathers(self) -> Gathers:
        return Gathers(self.checkpoint)

    @cached_property
    def _expressions(self) -> Expressions:
        return Expressions(self.checkpoint)

    def done(self, name: str) -> None:
        """Report progress on a weight, once, after the slow steps were tried for it."""
        if (tensor := self._waiting.pop(name, None)) is not None:
            self.checkpoint.work.done(name, tensor)

    def done_all(self) -> None:
        """Report progress on the weights that no slow step was tried for."""
        for name in list(self._waiting):
            self.done(name)

    def claim(self, name: str, derivation: Derivation | None, reader: str = "") -> None:
        """Note one way in which a weight follows, for one of its readers or for all."""
        readers = self.claims[name].setdefault(derivation, set())
        if reader:
            readers.add(reader)
        real = [one for one in self.claims[name] if one is not None]
        if len(real) == 1 and None not in self.claims[name]:
            self.certain[name] = real[0]
        else:
            self.certain.pop(name, None)

    def fits(self, name: str, derivation: Derivation) -> bool:
        """Whether a derivation gives the present values of a weight to the bit."""
        return self.checkpoint.fits(self.weights[name], derivation)

    # ------------------------------------------------------------------------------------------------------------ equal

    def find_equal(self) -> None:
        """Find for each weight the arrays that have its elements after a cast, and in which layout."""
        firsts = {name: self.weights[name] for name in self.weights.members}
        self.equalities = same_elements(self.checkpoint.arrays, firsts, self.checkpoint.work)
        for one in sorted(self.equalities, key=lambda one: one.rank):
            for name in self.weights.of_blobs(one.weights.members):
                self.equal.setdefault(name, []).extend((array, one.layout) for array in one.arrays.members)

    def claim_equal(self) -> None:
        """Claim equal arrays, except for constants whose elements are all equal: these need more evidence."""
        for names in self._groups(is_flat=False):
            arrays = list(dict.fromkeys(array for array, _ in self.equal[names[0]]))
            tensors = [self.checkpoint.arrays[one] for one in arrays] + [self.weights[name] for name in names]
            is_clear = len(arrays) == 1 and all(tensor.size == max(tensor.shape, default=1) for tensor in tensors)
            owner = {} if is_clear else self._owners(arrays, names)  # one vector: names decide nothing
            blobs = {self.weights.first_of[name] for name in names}
            left = [name for name in arrays if name not in owner.values()]
            for name in names:
                mine = [owner[name]] if name in owner else []
                if mine and (turned := self._otherwise(name, owner[name])):
                    chosen = mine + turned
                elif mine and not left:
                    chosen = mine
                elif mine and len(blobs) == 1:
                    chosen = mine + left
                else:  # the owner is unknown: all of them must agree
                    chosen = mine + arrays
                self._claim_equal(name, chosen, name in owner)
                self.done(name)

    def _groups(self, is_flat: bool) -> Collection[list[str]]:
        """Return the weights, flat or not, that have the elements of some arrays, by these arrays."""
        groups: dict[frozenset[str], list[str]] = defaultdict(list)
        for name, found in self.equal.items():
            if self.weights.is_flat(name) == is_flat:
                groups[frozenset(array for array, _ in found)].append(name)
        return groups.values()

    def _owners(self, arrays: Iterable[str], names: Iterable[str]) -> dict[str, str]:
        """Return the array that the name of a weight refers to: weight -> array."""
        return {new: old for old, new in agreeing(arrays, names, self.weights.first_of) if is_name_of(new, old)}

    def _claim_equal(self, name: str, arrays: Iterable[str], is_named: bool) -> None:
        """Claim arrays with a weight's elements; several layouts too, unless the name identifies the array."""
        layout_of = dict(reversed(self.equal[name]))
        for one in islice(dict.fromkeys(arrays), _MAX_CLAIMS):  # the rest is reported as unused, so no change is lost
            layout = layout_of[one]
            found = [layout]
            if not (is_named and layout.is_identity and self._is_never_turned(name)):
                others = [other for other in self._layouts(one, name) if other != layout]
                if len(others) > _MAX_LAYOUTS and self.weights.is_flat(name):
                    self.claim(name, None)  # any order gives these values: new ones are refused
                else:
                    found += [other for other in others if self._is_laid(one, name, other)]
            for other in found:
                self.claim(name, moved(CheckpointArray(one), other))

    def _otherwise(self, name: str, owner: str) -> list[str]:
        """Return the arrays that give a weight in another layout than the array which has its name."""
        layout_of = dict(reversed(self.equal[name]))
        return [] if self._is_never_turned(name) else [g for g, lay in layout_of.items() if lay != layout_of[owner]]

    def _is_never_turned(self, name: str) -> bool:
        """Whether all readers take a weight as the checkpoint has it.

        A product `x @ w` becomes a `linear`, which reads w transposed. Where both are equal, as in symmetric matrices
        and zeros, const_deduplication gives the transposed constant the name of w.
        """
        readers = self.weights.readers[name]
        return self.weights[name].ndim < 2 or (bool(readers) and all(reader.type in _AS_TRAINED for reader in readers))

    def _layouts(self, array: str, name: str) -> list[Layout]:
        old, new = self.checkpoint.arrays[array].shape, self.weights[name].shape
        small = [tuple(size for size in shape if size != 1) for shape in (old, new)]
        return layouts(old, new) if max(map(len, small)) > 1 and self.may(50_000) else []

    def _is_laid(self, array: str, name: str, layout: Layout) -> bool:
        """Whether an array gives a weight in another layout too, as symmetric matrices do."""
        weight = self.weights[name]
        positions = (
            np.arange(weight.size) if weight.size <= 256 else np.linspace(0, weight.size - 1, 256).astype(np.int64)
        )
        if not self.may(50_000):
            return False
        old, new = self.checkpoint.read(array).reshape(-1), np.asarray(weight.read()).reshape(-1)
        some = cast_array(
            old[layout.sources(self.checkpoint.arrays[array].shape, positions)], weight.mil_dtype, overflow="inf"
        )[0]
        return some.tobytes() == new[positions].tobytes() and self.fits(name, moved(CheckpointArray(array), layout))

    # ----------------------------------------------------------------------------------------------------- convolutions

    def claim_folds(self, names: Iterable[str]) -> None:
        """Claim weights of convolutions with a batch norm or a scale folded in, and their biases."""
        found: list[Fold] = []
        for name in self.checkpoint.work.counter.noting(names, str):
            convolution = self.weights.convolution(name) if name not in self.sqnr else None
            if convolution is None:
                continue
            is_equal = name in self.equal
            owns = [array for array, layout in self.equal[name] if layout.axes is None] if is_equal else None
            owns = self._folds.candidates(convolution) if owns is None else list(dict.fromkeys(owns))
            for own in owns if owns and not self.weights.is_flat(name) else ():
                folds = self._folds.folds(convolution, own, with_scales=not is_equal)
                found += folds
                if not folds:
                    self.unfolded.append((convolution, own))
        for fold in self._folds.chosen(found):
            self._claim_fold(fold)

    def scaled(self) -> Iterator[tuple[str, str, tuple[float, float]]]:
        """Yield weights of convolutions whose channels are those of an array times some factors, and the extremes."""
        for convolution, own in self.unfolded:
            ratio = self._folds.ratio(convolution, own)
            if ratio is not None and ratio.is_evidence:
                yield convolution.weight, own, ratio.spread

    def _claim_fold(self, fold: Fold) -> None:
        name, bias = fold.convolution.weight, fold.convolution.bias
        self.done(name)
        self.claim(name, fold.weight(self.weights[name].shape))
        if fold.gives_bias and bias is not None:
            reader = fold.convolution.consumer._replace(parameter="bias")
            self.claim(bias, fold.bias(self.weights[bias].shape), reader.label)

    # ------------------------------------------------------------------------------------------------------- compressed

    def claim_rendered(self) -> None:
        """Claim the arrays of compressed weights: those as near as their compression can come."""
        folds: list[Fold] = []
        for name, weight in self.weights.items():
            if name in self.equal or not weight.mil_dtype.is_float or not is_compressed(weight):
                continue
            if not self.may(1_000_000 + 20 * weight.size):
                continue
            dense = self.weights.values_of(name)
            self._claim_rendered(name, dense, self._alike(dense))
            convolution = self.weights.convolution(name)
            if name not in self.claims and convolution is not None:
                rendered = self._folds.rendered(convolution, dense)
                folds += rendered
                if rendered:
                    continue
            elif name not in self.claims:
                self._claim_rendered(name, dense, islice(self._gathers.rendered(dense, weight.mil_dtype), _MAX_CLAIMS))
            self.done(name)
        for fold in self._folds.chosen(folds):
            self._claim_fold(fold)
        self.sqnr |= self._folds.sqnr

    def _claim_rendered(self, name: str, dense: Values, options: Iterable[Derivation | None]) -> None:
        """Claim the options that a compressed weight may be a compression of."""
        for option in dict.fromkeys(options):
            sqnr = None if option is None else self._sqnr(name, dense, option)
            if sqnr is not None or option is None:
                self.claim(name, option)
                self.sqnr[name] = min(self.sqnr.get(name, np.inf), np.inf if sqnr is None else sqnr)

    def _alike(self, dense: Values) -> Iterator[Derivation]:
        """Yield arrays, and ranges of rows of arrays, whose samples resemble a compressed weight."""
        flat, shape = dense.reshape(-1), dense.shape
        rows = shape[1:] if len(shape) > 2 and shape[0] == 1 else shape
        positions = spread(flat.size, _SAMPLE_COUNT)
        some = flat[positions]
        for array, tensor in self.checkpoint.floats.items():
            if not self.may(100_000):
                continue
            if tensor.size == flat.size:
                values = self.checkpoint.read(array).reshape(-1)
                for layout in layouts(tensor.shape, shape):
                    if self.may(100_000) and correlate(values[layout.sources(tensor.shape, positions)], some):
                        yield moved(CheckpointArray(array), layout)
            elif tensor.ndim == len(rows) >= 2 and tensor.shape[1:] == rows[1:] and tensor.shape[0] > rows[0]:
                values = self.checkpoint.read(array).reshape(-1)
                for begin in range(0, tensor.shape[0] - rows[0] + 1, gcd(tensor.shape[0], rows[0])):
                    start = begin * (flat.size // rows[0])
                    if self.may(100_000) and correlate(values[start + positions], some):
                        part = RowRange(CheckpointArray(array), begin, begin + rows[0])
                        yield moved(part, Layout(after=None if rows == shape else shape))

        if (joined := self._joined(dense)) is not None:
            yield joined

    def _joined(self, dense: Values) -> Derivation | None:
        """Return the arrays that, stacked in order, resemble the rows of a compressed weight."""
        parts: list[Derivation] = []
        begin = 0
        while begin < dense.shape[0]:
            for array, tensor in self.checkpoint.floats.items():
                if tensor.ndim < 2 or tensor.shape[1:] != dense.shape[1:]:
                    continue
                rows = tensor.shape[0]
                if begin + rows <= dense.shape[0] and rows < dense.shape[0] and self.may(200_000):
                    some = spread(tensor.size, _SAMPLE_COUNT)
                    wanted = dense[begin : begin + rows].reshape(-1)[some]
                    if correlate(self.checkpoint.read(array).reshape(-1)[some], wanted):
                        parts.append(CheckpointArray(array))
                        begin += rows
                        break
            else:
                return None
        return Stacked(tuple(parts)) if len(parts) > 1 else None

    def _sqnr(self, name: str, dense: Values, option: Derivation) -> float | None:
        values, block = option.compute(self.checkpoint.read).reshape(dense.shape), block_of(self.weights[name])
        if not may_render(values, dense, block) or not self.may(300 * dense.size):
            return None
        return sqnr_of(values, dense, block)

    # ------------------------------------------------------------------------------------------------------------- rows

    def claim_computed(self, names: Iterable[str], patience: float = inf) -> None:
        """Claim weights that are computed from arrays: of rows, of sums, looked up, or by a short expression.

        `names`: of weights; those that are claimed, or whose elements are all equal, are left out. `patience`: after
        how many weights in a row for which a step finds nothing it leaves out the others.
        """
        rest = [name for name in names if name not in self.claims and not self.weights.is_flat(name)]
        floats = [name for name in rest if self.weights[name].mil_dtype.is_float]
        self._each(self._rows, (name for name in floats if self.weights[name].ndim >= 2), patience)
        self._each(self._depend, rest, patience)
        self._each(self._sum, floats, patience)
        self._each(self._gather, floats, patience)
        self._look_up(islice((name for name in floats if name not in self.claims), int(min(8 * patience, len(floats)))))
        self._express(floats, patience)

    def _each(self, step: Callable[[str], object], names: Iterable[str], patience: float) -> None:
        """Take a step for each weight that is not claimed yet."""
        missed = 0
        for name in self.checkpoint.work.counter.noting(names, str):
            if name not in self.claims and missed < patience:
                step(name)
                missed = 0 if name in self.claims else missed + 1

    def _rows(self, name: str) -> None:
        """Claim a weight that consists of rows of arrays."""
        weight, values = self.weights[name], self.weights.values_of(name)
        for count in dict.fromkeys(weight.size // size for size in weight.shape if size):
            key = weight.mil_dtype, count
            if key not in self._indexes:
                self._indexes[key] = RowIndex(self.checkpoint, *key)
            for ways in self._indexes[key].find(values, weight.mil_dtype):
                fitting_ways = [way for way in ways if self.fits(name, way)]
                for way in fitting_ways:
                    self.claim(name, way)
                if fitting_ways:
                    return

    # --------------------------------------------------------------------------------------------------------- siblings

    def _beside(self, name: str, reader: Consumer) -> list[Derivation] | None:
        """Return candidates for a weight from the other weights of an operation; None if these identify nothing.

        An empty list means that the checkpoint has no array for it.
        """
        parts = self.weights.parts(reader)
        for parameter in VECTORS.get(reader.parameter, ()):
            other = parts.get(parameter)
            if other is not None and other != name and other in self.certain:
                return self.checkpoint.siblings.beside(self.certain[other], reader.parameter, self.weights[name].size)
        return None

    def _depend(self, name: str) -> None:
        """Claim a vector that belongs to another weight of an operation that reads it."""
        for reader in self.weights.readers[name]:
            for option in self._beside(name, reader) or ():
                if self.fits(name, option):
                    self.claim(name, option, reader.label)

    def _sum(self, name: str) -> None:
        """Claim a bias to which another vector was added."""
        weight = self.weights[name]
        if weight.size != max(weight.shape, default=0):
            return
        vectors = [(other, CheckpointArray(other)) for other in self.checkpoint.siblings.of_size(weight.size)]
        every = [
            (n, moved(a, Layout(after=None if self.checkpoint.arrays[n].ndim == 1 else (weight.size,))))
            for n, a in vectors
        ]
        for reader in self.weights.readers[name]:
            for option in self._beside(name, reader) or ():
                for other, vector in every:
                    added = Combined("+", option, vector)
                    if other not in option.sources() and self.fits(name, added):
                        self.claim(name, added, reader.label)

    def _gather(self, name: str) -> None:
        """Claim a weight whose rows are looked up in a table, or a vector that is several joined."""
        weight = self.weights[name]
        if not self._is_expressible(name):
            return
        values = self.weights.values_of(name)
        if weight.size == max(weight.shape, default=0):
            ways: Iterator[Derivation | None] = self._gathers.joined(values, weight.mil_dtype)
        else:
            ways = self._gathers.gathered(values, weight.mil_dtype)
        for way in islice(ways, _MAX_CLAIMS):
            if way is None or self.fits(name, way):
                self.claim(name, way)

    def _look_up(self, names: Iterable[str]) -> None:
        """Claim weights that were looked up element by element."""
        some = {name: self.weights[name] for name in names if self._is_expressible(name)}
        for name, way in self._gathers.looked_up({n: (np.asarray(w.read()), w.mil_dtype) for n, w in some.items()}):
            if way is None or self.fits(name, way):
                self.claim(name, way)

    def _express(self, names: Iterable[str], patience: float) -> None:
        """Claim weights that a short expression gives; of several of one array, that which most weights allow."""
        found: dict[str, list[Explained]] = {}
        votes: Counter[Any] = Counter()
        missed = 0
        for name in self.checkpoint.work.counter.noting(names, str):
            if name not in self.claims and missed < patience and self._is_expressible(name):
                found[name] = self._expressions.explain(self.weights.values_of(name), self.weights[name].mil_dtype)
                missed = 0 if found[name] else missed + 1
                self.done(name)
                votes.update({kind_of(one.derivation) for one in found[name]})
        for name, options in found.items():
            best: dict[frozenset[str], Explained] = {}
            for one in sorted(options, key=lambda one: -votes[kind_of(one.derivation)]):
                first = best.setdefault(frozenset(one.derivation.sources()), one)
                if first is one:
                    self.claim(name, one.derivation)
                    if not one.is_exact:
                        self.rounded.add(name)
                elif first.is_exact and one.is_exact:
                    same = votes[kind_of(first.derivation)] == votes[kind_of(one.derivation)]
                    if same and self._differ(name, first.derivation, one.derivation):
                        self.claim(name, one.derivation)  # such as / 3 beside * 0.333333

    def _differ(self, name: str, one: Derivation, other: Derivation) -> bool:
        """Whether two derivations that give the present values give different ones for arrays that are near."""
        weight, rng, is_equal = self.weights[name], np.random.default_rng(0), True
        shapes = {self.checkpoint.arrays[source].shape for one in (one, other) for source in one.sources()}
        # Elements that follow from elements alone can be computed for many arrays at once, along a new first axis.
        is_many = len(shapes) == 1 and follows_by_element(one) and follows_by_element(other)
        step = max(_AT_ONCE_COUNT // weight.size, 1) if is_many else 1
        for number in range(0, max(_TRIED_COUNT // weight.size, 1), step):
            if is_equal and number * weight.size >= _EQUAL_COUNT:
                return False
            if not self.may(100_000 + 50 * step * weight.size):
                return True  # both are kept then, and compared when there are new values
            arrays: dict[str, Values] = {}

            def near(given: str, arrays: dict[str, Values] = arrays) -> Values:
                if given not in arrays:
                    values = self.checkpoint.read(given)
                    random = rng.random((step, *values.shape) if is_many else values.shape)
                    arrays[given] = (values * (1 + random / 4)).astype(values.dtype)
                return arrays[given]

            values, found = one.compute(near), other.compute(near)
            is_equal = is_equal and np.array_equal(values, found, equal_nan=True)
            found = np.ascontiguousarray(kept_from_zero(found, weight.mil_dtype, weight.size))
            found = cast_array(found, weight.mil_dtype, overflow="inf")[0]
            if not casts_to(values, found, weight.mil_dtype, weight.size):
                return True
        return False

    def _is_expressible(self, name: str) -> bool:
        return self.weights[name].size >= _MIN_EXPRESSED and not is_compressed(self.weights[name])

    # ------------------------------------------------------------------------------------------------------------- flat

    def claim_flat(self) -> None:
        """Claim constants whose elements are all equal, such as biases of zeros: here values are no evidence."""
        groups = self._groups(is_flat=True)
        used = self._used()
        for members in groups:
            arrays = list(dict.fromkeys(array for array, _ in self.equal[members[0]]))
            owner = self._owners(arrays, members)
            waiting = {name: self._claim_flat(name, owner.get(name)) for name in members}
            used |= {s for name in members for d in self.claims.get(name, ()) if d is not None for s in d.sources()}
            free = [one for one in arrays if one not in used]
            for name, count in waiting.items():
                fitting_ones = self._for_parameter(name, free) if self.weights[name].size > 1 else []
                if count and fitting_ones:
                    self._claim_equal(name, fitting_ones, False)
                    self.claim(name, None)  # their order, or use at all, is unknown: new values are refused
                # An array of zeros or ones may be one that noop_elimination left out.
                is_neutral = count > 0 and self.weights.values_of(name).reshape(-1)[0] in (0, 1)
                is_hidden = not np.isfinite(self.weights.values_of(name).reshape(-1)[0])  # what was added to it is lost
                if (count > len(fitting_ones) or is_neutral or is_hidden) and self.claims.get(name):
                    self.claim(name, None)  # it may have a reader without any known array

    def _claim_flat(self, name: str, named: str | None) -> int:
        """Claim arrays by name and by the other weights of its readers; return how many readers remain unexplained."""
        waiting, without = 0, []
        for reader in self.weights.readers[name]:
            options = self._beside(name, reader)
            found = [one for one in options or () if self.fits(name, one)]
            for one in found:
                self.claim(name, one, reader.label)
            if options is not None and not options:
                without.append(reader)
            else:
                waiting += not found
        # A name alone does not make an array the bias of a layer without one: const_deduplication gives its zeros the
        # name of a vector whose addition noop_elimination left out.
        is_open = waiting or not self.weights.readers[name]
        known = {source for d in self.claims.get(name, ()) if d is not None for source in d.sources()}
        if named is not None and named not in known and is_open:
            self._claim_equal(name, [named], True)
            waiting -= bool(waiting)
        for reader in without:
            self.claim(name, None, reader.label)
        return waiting if self.weights.readers[name] else int(named is None)

    def _for_parameter(self, name: str, arrays: list[str]) -> list[str]:
        """Keep the arrays whose names fit the parameter that a weight is, where some do."""
        parameters = {reader.parameter for reader in self.weights.readers[name]}
        some = [
            one
            for one in arrays
            if any(self.checkpoint.siblings.is_named_for(one, parameter) for parameter in parameters)
        ]
        return some or arrays

    # ------------------------------------------------------------------------------------------------------------- rest

    def claim_rest(self, changed: Collection[str]) -> Rest:
        """Claim numbers that are functions of arrays, and classify the remaining weights as constant or unknown."""
        rest = Rest(self.weights, self.claims, self.checkpoint, changed)
        for name in self.weights:
            if not any(derivation is not None for derivation in self.claims.get(name, ())):
                rest.settle(name)
            self.done(name)
        rest.settle_ambiguous()
        for name, derivations in rest.claims.items():
            for derivation in derivations:
                self.claim(name, derivation)
        self.done_all()
        return rest

    def lineage(self, rest: Rest, arrays: Mapping[str, LazyTensor]) -> Lineage:
        """Return the result for all arrays of a checkpoint."""
        origins, rounded = {}, rest.rounded | self.rounded
        for name in self.weights:
            claims = self.claims.get(name, {})
            if any(derivation is not None for derivation in claims):
                found = tuple(Claim(derivation, tuple(sorted(readers))) for derivation, readers in claims.items())
                origins[name] = Origin(name, found, self.sqnr.get(name), name not in rounded)
        used = self._used()
        unused = tuple(name for name in arrays if name not in used)
        alike = {array for found in self.equal.values() for array, _ in found}
        # A number that equals its expression by accident may come from one of the small arrays.
        small = {name for name in unused if rest.weak and arrays[name].size <= _MAX_SMALL}
        return Lineage(origins, rest.unknown, rest.constant, unused, frozenset(alike.intersection(unused) | small))

    def _used(self) -> set[str]:
        """Return the arrays that some claim is made of."""
        return {s for claims in self.claims.values() for d in claims if d is not None for s in d.sources()}
