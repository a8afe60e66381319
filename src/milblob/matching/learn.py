"""Learns from the checkpoint that a model was converted from how each of its weights came to be.

Values decide, bit for bit; names and the operations that read a weight decide only between arrays that are equal. What
they leave open stays open: a weight then has several claims, whose new values must agree.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import gcd
from typing import Any

import numpy as np

from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..model.sharing import by_blob
from ..model.tensor import Tensor
from ..program.view import Consumer
from ..values.cast import cast_array
from .agreeing import agreeing, is_name_of
from .arithmetic import Combined, kind_of
from .conv_folds import Fold, FoldFinder
from .derivation import CheckpointArray, Derivation, Moved, RowRange, Stacked
from .expressions import Expressed, Expressions
from .gathers import Gathers
from .layouts import Layout, layouts
from .lineage import Claim, Lineage, Origin
from .readers import Readers
from .renderings import block_of, correlate, may_render, sqnr_of
from .rest import Rest, is_weight
from .rounding import casts_to
from .row_runs import RowIndex
from .same_elements import same_elements
from .siblings import VECTORS, Siblings

Values = np.ndarray[Any, Any]

_MIN_WORK, _WORK_PER_ELEMENT = 20_000_000_000, 400
"""About a nanosecond each, reckoned and not measured; what somebody made to take longer stays unknown."""

_SAMPLE_COUNT = 1024
_MIN_EXPRESSED = 10  # elements; those of fewer are explained with more suspicion
_MAX_LAYOUTS = 6
_MAX_SMALL = 9  # elements of arrays that a number may follow from, and nothing else
_MAX_CLAIMS = 64  # equal arrays that may be one weight
_AS_TRAINED = ("conv", "conv_transpose", "gather")  # operations before which no pass transposes weights
_FLOATS = frozenset(dtype for dtype in DType if "FLOAT" in dtype.name)


def learn(
    given: Mapping[str, LazyTensor],
    weights: Mapping[str, Tensor],
    looked_at: Callable[[str, LazyTensor], None] = lambda *_: None,
    epsilon: float | None = None,
    changed: Collection[str] | None = None,
) -> Lineage:
    """Learn how the weights and numbers of a model follow from the arrays of a checkpoint.

    Args:
        given: the arrays of the checkpoint by name.
        weights: the constants of the model, compressed weights in their dense form.
        looked_at: called with each array, once it was compared with all weights, and with each weight, once all was
            tried for it.
        epsilon: of batch norms, to try before the usual ones.
        changed: the arrays that will have other values; None for all. A computed table with the numbers of one of
            these, such as learnt frequencies, is unknown.
    """
    learner = _Learner(given, weights, looked_at, epsilon, given.keys() if changed is None else changed)
    learner.learn()
    return learner.lineage()


class _Learner:
    """The state of one `learn`."""

    def __init__(
        self,
        given: Mapping[str, LazyTensor],
        weights: Mapping[str, Tensor],
        looked_at: Callable[[str, LazyTensor], None],
        epsilon: float | None,
        changed: Collection[str],
    ) -> None:
        self._looked_at, self._waiting = looked_at, dict(weights)
        self._epsilon, self._changed = epsilon, changed
        self.given = {name: t for name, t in given.items() if t.mil_dtype not in (DType.STRING, DType.BOOL) and t.size}
        self.all_given = given
        self.weights = {name: t for name, t in weights.items() if _is_candidate(t)}
        self.members = by_blob(self.weights)
        self.first_of = {name: first for first, members in self.members.items() for name in members}
        self.readers = Readers(self.weights)
        self.siblings = Siblings({name: tensor.shape for name, tensor in self.given.items()})
        self._folds = FoldFinder(self.given, self.weights, self.siblings, self.may, epsilon)
        self._gathers = Gathers(self.given, self.may)
        self._expressions = Expressions(self.given, self.siblings, self.may, epsilon)
        self.rounded: set[str] = set()  # weights whose claims give them to one rounding only
        self.claims: dict[str, dict[Derivation | None, set[str]]] = defaultdict(dict)
        self.certain: dict[str, Derivation] = {}
        self.sqnr: dict[str, float] = {}  # of compressed weights
        self.equal: dict[str, list[tuple[str, Layout]]] = {}
        self._indexes: dict[tuple[DType, int], RowIndex] = {}
        self._flat: dict[str, bool] = {}
        self._rest: Rest
        count = sum(t.size for tensors in (self.given, self.weights) for t in tensors.values())
        self._work_left = _MIN_WORK + _WORK_PER_ELEMENT * count

    def may(self, work: int) -> bool:
        """Whether enough of the work budget is left; if so, spend it."""
        self._work_left -= work
        return self._work_left >= 0

    def array(self, name: str) -> Values:
        """Return an array of the checkpoint."""
        return np.asarray(self.given[name].read())

    def done(self, name: str) -> None:
        """Tell the caller, once, that what takes time was tried for a weight."""
        if (tensor := self._waiting.pop(name, None)) is not None:
            self._looked_at(name, tensor)

    def learn(self) -> None:
        """Fill `claims`, from what is certain to what depends on it."""
        self._find_equal()
        self._settle_equal()
        self._render(name for name, weight in self.weights.items() if weight.chain is not None)
        rest = [name for name in self.weights if name not in self.equal and not self.is_flat(name)]
        # A new batch norm scales by almost 1, which rounding may hide: so also look at weights that are equal.
        self._fold(name for name in self.weights if not self.is_flat(name))
        for name in rest:
            if name not in self.claims and self.weights[name].ndim >= 2 and self.weights[name].mil_dtype in _FLOATS:
                self._rows(name)
        for name in rest:
            if name not in self.claims:
                self._depend(name)
        for name in rest:
            if name not in self.claims and self.weights[name].mil_dtype in _FLOATS:
                self._sum(name)
        for name in rest:
            if name not in self.claims and self.weights[name].mil_dtype in _FLOATS:
                self._gather(name)
        self._look_up(name for name in rest if name not in self.claims)
        self._express(name for name in rest if name not in self.claims)
        self._settle_flat()
        self._settle_rest()
        for name in list(self._waiting):
            self.done(name)

    # ------------------------------------------------------------------------------------------------------------ equal

    def _find_equal(self) -> None:
        """Find for each weight the arrays that have its elements after a cast, and in which layout."""
        firsts = {name: self.weights[name] for name in self.members}
        edges = same_elements(self.given, firsts, self.may, self._looked_at)
        for edge in sorted(edges, key=lambda edge: edge.rank):
            for first in edge.new.members:
                for name in self.members[first]:
                    self.equal.setdefault(name, []).extend((given, edge.layout) for given in edge.old.members)

    def _settle_equal(self) -> None:
        """Claim what is equal, other than constants whose elements are all equal, which need more evidence."""
        for names in self._groups(is_flat=False):
            given = list(dict.fromkeys(given for given, _ in self.equal[names[0]]))
            owner = self._owners(given, names)
            blobs = {self.first_of[name] for name in names}
            left = [name for name in given if name not in owner.values()]
            for name in names:
                mine = [owner[name]] if name in owner else []
                if mine and (turned := self._otherwise(name, owner[name])):
                    chosen = mine + turned
                elif mine and not left:
                    chosen = mine
                elif mine and len(blobs) == 1:
                    chosen = mine + left
                else:  # nothing says whose it is: all of them must agree
                    chosen = mine + given
                self._claim_equal(name, chosen, name in owner)
                self.done(name)

    def _groups(self, is_flat: bool) -> Collection[list[str]]:
        """Return the weights, flat or not, that have the elements of some arrays, by these arrays."""
        groups: dict[frozenset[str], list[str]] = defaultdict(list)
        for name, found in self.equal.items():
            if self.is_flat(name) == is_flat:
                groups[frozenset(given for given, _ in found)].append(name)
        return groups.values()

    def _owners(self, given: Iterable[str], names: Iterable[str]) -> dict[str, str]:
        """Return the array that the name of a weight says: weight -> array."""
        return {new: old for old, new in agreeing(given, names, self.first_of) if is_name_of(new, old)}

    def _claim_equal(self, name: str, given: Iterable[str], is_named: bool) -> None:
        """Claim arrays with a weight's elements; several layouts too, unless the name says whose weight it is."""
        layout_of = dict(reversed(self.equal[name]))
        for one in islice(dict.fromkeys(given), _MAX_CLAIMS):  # the rest counts as not used, so no change is lost
            layout = layout_of[one]
            found = [layout]
            if not (is_named and layout.is_identity and self._is_never_turned(name)):
                others = [other for other in self._layouts(one, name) if other != layout]
                if len(others) > _MAX_LAYOUTS and self.is_flat(name):
                    self.claim(name, None)  # any order gives these values: new ones are refused
                else:
                    found += [other for other in others if self._is_laid(one, name, other)]
            for other in found:
                self.claim(name, _moved(CheckpointArray(one), other))

    def _otherwise(self, name: str, owner: str) -> list[str]:
        """Return the arrays that give a weight in another layout than the array which has its name."""
        layout_of = dict(reversed(self.equal[name]))
        return [] if self._is_never_turned(name) else [g for g, lay in layout_of.items() if lay != layout_of[owner]]

    def _is_never_turned(self, name: str) -> bool:
        """Whether all readers take a weight as the checkpoint has it.

        A product `x @ w` becomes a `linear`, which reads w transposed. Where both are equal, as in symmetric matrices
        and zeros, const_deduplication gives the transposed constant the name of w.
        """
        readers = self.readers.of[name]
        return self.weights[name].ndim < 2 or (bool(readers) and all(reader.type in _AS_TRAINED for reader in readers))

    def _layouts(self, given: str, name: str) -> list[Layout]:
        old, new = self.given[given].shape, self.weights[name].shape
        small = [tuple(size for size in shape if size != 1) for shape in (old, new)]
        return layouts(old, new) if max(map(len, small)) > 1 and self.may(50_000) else []

    def _is_laid(self, given: str, name: str, layout: Layout) -> bool:
        """Whether an array gives a weight in another layout too, as symmetric matrices do."""
        weight = self.weights[name]
        positions = (
            np.arange(weight.size) if weight.size <= 256 else np.linspace(0, weight.size - 1, 256).astype(np.int64)
        )
        if not self.may(50_000):
            return False
        old, new = self.array(given).reshape(-1), np.asarray(weight.read()).reshape(-1)
        some = cast_array(old[layout.sources(self.given[given].shape, positions)], weight.mil_dtype, overflow="inf")[0]
        return some.tobytes() == new[positions].tobytes() and self.fits(name, _moved(CheckpointArray(given), layout))

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
        weight = self.weights[name]
        if not self.may(100_000 + 8 * weight.size):
            return False
        values = derivation.compute(self.array)
        return casts_to(values, np.asarray(weight.read()), weight.mil_dtype)

    def is_flat(self, name: str) -> bool:
        """Whether all elements of a weight are equal, so that its values say nothing about where it comes from."""
        if name not in self._flat:
            weight = self.weights[name]
            values = np.asarray(weight.read()).reshape(-1)
            bits = values.view(f"u{values.dtype.itemsize}") if values.dtype.itemsize in (1, 2, 4, 8) else values
            self._flat[name] = bool(bits.size < 2 or ((bits[:64] == bits[0]).all() and (bits == bits[0]).all()))
        return self._flat[name]

    # ----------------------------------------------------------------------------------------------------- convolutions

    def _fold(self, names: Iterable[str]) -> None:
        """Claim weights of convolutions with a batch norm or a scale folded in, and their biases."""
        found = []
        for name in names:
            convolution = self.readers.convolution(name) if name not in self.sqnr else None
            if convolution is None:
                continue
            is_equal = name in self.equal
            owns = [given for given, layout in self.equal[name] if layout.axes is None] if is_equal else None
            for own in self._folds.candidates(convolution) if owns is None else dict.fromkeys(owns):
                found += self._folds.folds(convolution, own, with_scales=not is_equal)
        for fold in self._folds.chosen(found):
            self._claim_fold(fold)

    def _claim_fold(self, fold: Fold) -> None:
        name, bias = fold.convolution.weight, fold.convolution.bias
        self.done(name)
        self.claim(name, fold.weight(self.weights[name].shape))
        if fold.gives_bias and bias is not None:
            reader = fold.convolution.consumer._replace(parameter="bias")
            self.claim(bias, fold.bias(self.weights[bias].shape), reader.label)

    # ------------------------------------------------------------------------------------------------------- compressed

    def _render(self, names: Iterable[str]) -> None:
        """Claim compressed weights: what they render, as near as their compression can come."""
        folds: list[Fold] = []
        for name in names:
            weight = self.weights[name]
            if name in self.equal or weight.mil_dtype not in _FLOATS or not self.may(1_000_000 + 20 * weight.size):
                continue
            dense = np.asarray(weight.read())
            self._claim_rendered(name, dense, self._alike(name, dense))
            convolution = self.readers.convolution(name)
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
        """Claim those options of which a compressed weight is a rendering."""
        for option in dict.fromkeys(options):
            sqnr = None if option is None else self._sqnr(name, dense, option)
            if sqnr is not None or option is None:
                self.claim(name, option)
                self.sqnr[name] = min(self.sqnr.get(name, np.inf), np.inf if sqnr is None else sqnr)

    def _alike(self, name: str, dense: Values) -> Iterator[Derivation]:
        """Yield arrays, and ranges of rows of arrays, of which a sample is like a compressed weight."""
        flat, shape = dense.reshape(-1), dense.shape
        rows = shape[1:] if len(shape) > 2 and shape[0] == 1 else shape
        positions = np.unique(np.linspace(0, flat.size - 1, _SAMPLE_COUNT).astype(np.int64))
        some = flat[positions]
        for given, tensor in self.given.items():
            if tensor.mil_dtype not in _FLOATS or not self.may(100_000):
                continue
            if tensor.size == flat.size:
                values = self.array(given).reshape(-1)
                for layout in layouts(tensor.shape, shape):
                    if self.may(100_000) and correlate(values[layout.sources(tensor.shape, positions)], some):
                        yield _moved(CheckpointArray(given), layout)
            elif tensor.ndim == len(rows) >= 2 and tensor.shape[1:] == rows[1:] and tensor.shape[0] > rows[0]:
                values = self.array(given).reshape(-1)
                for begin in range(0, tensor.shape[0] - rows[0] + 1, gcd(tensor.shape[0], rows[0])):
                    start = begin * (flat.size // rows[0])
                    if self.may(100_000) and correlate(values[start + positions], some):
                        part = RowRange(CheckpointArray(given), begin, begin + rows[0])
                        yield _moved(part, Layout(after=None if rows == shape else shape))

        if (joined := self._joined(dense)) is not None:
            yield joined

    def _joined(self, dense: Values) -> Derivation | None:
        """Return the arrays of which each is like the rows of a compressed weight that follow the one before."""
        parts: list[Derivation] = []
        begin = 0
        while begin < dense.shape[0]:
            for given, tensor in self.given.items():
                if tensor.ndim < 2 or tensor.shape[1:] != dense.shape[1:] or tensor.mil_dtype not in _FLOATS:
                    continue
                rows = tensor.shape[0]
                if begin + rows <= dense.shape[0] and rows < dense.shape[0] and self.may(200_000):
                    some = np.unique(np.linspace(0, tensor.size - 1, _SAMPLE_COUNT).astype(np.int64))
                    wanted = dense[begin : begin + rows].reshape(-1)[some]
                    if correlate(self.array(given).reshape(-1)[some], wanted):
                        parts.append(CheckpointArray(given))
                        begin += rows
                        break
            else:
                return None
        return Stacked(tuple(parts)) if len(parts) > 1 else None

    def _sqnr(self, name: str, dense: Values, option: Derivation) -> float | None:
        values, block = option.compute(self.array).reshape(dense.shape), block_of(self.weights[name])
        if not may_render(values, dense, block) or not self.may(300 * dense.size):
            return None
        return sqnr_of(values, dense, block)

    # ------------------------------------------------------------------------------------------------------------- rows

    def _rows(self, name: str) -> bool:
        """Claim a weight that consists of rows of arrays."""
        weight = self.weights[name]
        values = np.asarray(weight.read())
        for count in dict.fromkeys(weight.size // size for size in weight.shape if size):
            key = weight.mil_dtype, count
            if key not in self._indexes:
                self._indexes[key] = RowIndex(self.given, weight.mil_dtype, count, self.may)
            for ways in self._indexes[key].find(values, weight.mil_dtype):
                fitting_ways = [way for way in ways if self.fits(name, way)]
                for way in fitting_ways:
                    self.claim(name, way)
                if fitting_ways:
                    return True
        return False

    # --------------------------------------------------------------------------------------------------------- siblings

    def _beside(self, name: str, reader: Consumer) -> list[Derivation] | None:
        """Return what a weight may be, as the other weights of an operation say; None if they say nothing.

        An empty list says that the checkpoint has no array for it.
        """
        parts = self.readers.parts(reader)
        for parameter in VECTORS.get(reader.parameter, ()):
            other = parts.get(parameter)
            if other is not None and other != name and other in self.certain:
                return self.siblings.beside(self.certain[other], reader.parameter, self.weights[name].size)
        return None

    def _depend(self, name: str) -> None:
        """Claim a vector that belongs to another weight of an operation that reads it."""
        for reader in self.readers.of[name]:
            for option in self._beside(name, reader) or ():
                if self.fits(name, option):
                    self.claim(name, option, reader.label)

    def _sum(self, name: str) -> None:
        """Claim a bias to which another vector was added."""
        weight = self.weights[name]
        if weight.size != max(weight.shape, default=0):
            return
        vectors = [(other, CheckpointArray(other)) for other in self.siblings.of_size(weight.size)]
        every = [(n, a if self.given[n].ndim == 1 else Moved(a, Layout(after=(weight.size,)))) for n, a in vectors]
        for reader in self.readers.of[name]:
            for option in self._beside(name, reader) or ():
                for other, vector in every:
                    added = Combined("+", option, vector)
                    if other not in option.sources() and self.fits(name, added):
                        self.claim(name, added, reader.label)

    def _gather(self, name: str) -> None:
        """Claim a weight whose rows are looked up in a table, or a vector that is several joined."""
        weight = self.weights[name]
        if weight.chain is not None or weight.size < _MIN_EXPRESSED:
            return
        values = np.asarray(weight.read())
        if weight.size == max(weight.shape, default=0):
            ways: Iterator[Derivation | None] = self._gathers.joined(values, weight.mil_dtype)
        else:
            ways = self._gathers.gathered(values, weight.mil_dtype)
        for way in islice(ways, _MAX_CLAIMS):
            if way is None or self.fits(name, way):
                self.claim(name, way)

    def _look_up(self, names: Iterable[str]) -> None:
        """Claim weights that were looked up element by element."""
        weights = ((name, self.weights[name]) for name in names)
        some = {n: w for n, w in weights if w.mil_dtype in _FLOATS and w.chain is None and w.size >= _MIN_EXPRESSED}
        for name, way in self._gathers.looked_up({n: (np.asarray(w.read()), w.mil_dtype) for n, w in some.items()}):
            if way is None or self.fits(name, way):
                self.claim(name, way)

    def _express(self, names: Iterable[str]) -> None:
        """Claim weights that a short expression gives; of several of one array, that which most weights allow."""
        found: dict[str, list[Expressed]] = {}
        votes: Counter[Any] = Counter()
        for name in names:
            weight = self.weights[name]
            if weight.mil_dtype in _FLOATS and weight.chain is None and weight.size >= _MIN_EXPRESSED:
                found[name] = self._expressions.explain(np.asarray(weight.read()), weight.mil_dtype)
                self.done(name)
                votes.update({kind_of(one.derivation) for one in found[name]})
        for name, options in found.items():
            best: dict[frozenset[str], Expressed] = {}
            for one in sorted(options, key=lambda one: -votes[kind_of(one.derivation)]):
                best.setdefault(frozenset(one.derivation.sources()), one)
            for one in best.values():
                self.claim(name, one.derivation)
                if not one.is_exact:
                    self.rounded.add(name)

    # ------------------------------------------------------------------------------------------------------------- flat

    def _settle_flat(self) -> None:
        """Claim constants whose elements are all equal, such as biases of zeros: here values are no evidence."""
        groups = self._groups(is_flat=True)
        used = {source for claims in self.claims.values() for d in claims if d is not None for source in d.sources()}
        for members in groups:
            given = list(dict.fromkeys(given for given, _ in self.equal[members[0]]))
            owner = self._owners(given, members)
            waiting = {name: self._claim_flat(name, owner.get(name)) for name in members}
            used |= {s for name in members for d in self.claims.get(name, ()) if d is not None for s in d.sources()}
            free = [one for one in given if one not in used]
            for name, count in waiting.items():
                fitting_ones = self._for_parameter(name, free) if self.weights[name].size > 1 else []
                if count and fitting_ones:
                    self._claim_equal(name, fitting_ones, False)
                    self.claim(name, None)  # in what order, or whether at all, nothing tells: new values are refused
                # An array of zeros or ones may be one that noop_elimination left out.
                is_neutral = count > 0 and np.asarray(self.weights[name].read()).reshape(-1)[0] in (0, 1)
                if (count > len(fitting_ones) or is_neutral) and self.claims.get(name):
                    self.claim(name, None)  # somebody reads it of whom nothing is known

    def _claim_flat(self, name: str, named: str | None) -> int:
        """Claim what names and other weights of its readers say; return how many readers stay unexplained."""
        waiting, without = 0, []
        for reader in self.readers.of[name]:
            options = self._beside(name, reader)
            found = [one for one in options or () if self.fits(name, one)]
            for one in found:
                self.claim(name, one, reader.label)
            if options is not None and not options:
                without.append(reader)
            else:
                waiting += not found
        # A name alone is no reason to be a bias of a layer without one: const_deduplication gives its zeros the name of
        # a vector whose addition noop_elimination left out.
        is_open = waiting or not self.readers.of[name]
        known = {source for d in self.claims.get(name, ()) if d is not None for source in d.sources()}
        if named is not None and named not in known and is_open:
            self._claim_equal(name, [named], True)
            waiting -= bool(waiting)
        for reader in without:
            self.claim(name, None, reader.label)
        return waiting if self.readers.of[name] else int(named is None)

    def _for_parameter(self, name: str, given: list[str]) -> list[str]:
        """Keep the arrays whose names fit the parameter that a weight is, where some do."""
        parameters = {reader.parameter for reader in self.readers.of[name]}
        some = [one for one in given if any(self.siblings.is_named_for(one, parameter) for parameter in parameters)]
        return some or given

    # ------------------------------------------------------------------------------------------------------------- rest

    def _settle_rest(self) -> None:
        """Explain what nothing claims yet, or say that it is unknown."""
        rest = self._rest = Rest(
            self.weights, self.readers, self.claims, self.given, self.array, self.may, self._changed
        )
        for name in self.weights:
            if not any(derivation is not None for derivation in self.claims.get(name, ())):
                rest.settle(name, self.is_flat(name))
            self.done(name)
        rest.settle_ambiguous()
        for name, derivations in rest.claims.items():
            for derivation in derivations:
                self.claim(name, derivation)

    # ----------------------------------------------------------------------------------------------------------- result

    def lineage(self) -> Lineage:
        """Return what was found."""
        origins, rest = {}, self._rest
        for name, claims in self.claims.items():
            if any(derivation is not None for derivation in claims):
                found = tuple(Claim(derivation, tuple(sorted(readers))) for derivation, readers in claims.items())
                origins[name] = Origin(name, found, self.sqnr.get(name), name not in rest.rounded | self.rounded)
        used = {
            s for o in origins.values() for c in o.claims if c.derivation is not None for s in c.derivation.sources()
        }
        unused = tuple(name for name in self.all_given if name not in used)
        alike = {given for found in self.equal.values() for given, _ in found}
        # A number that is equal by accident to what it is taken for may have one of the small arrays as its reason.
        small = {name for name in unused if rest.weak and self.all_given[name].size <= _MAX_SMALL}
        in_order = {name: origins[name] for name in self.weights if name in origins}
        return Lineage(in_order, rest.unknown, rest.constant, unused, frozenset(alike.intersection(unused) | small))


def _is_candidate(tensor: Tensor) -> bool:
    if tensor.chain is None and (tensor.mil_dtype in (DType.STRING, DType.BOOL) or not tensor.size):
        return False
    return is_weight(tensor) or tensor.mil_dtype in _FLOATS


def _moved(of: Derivation, layout: Layout) -> Derivation:
    return of if layout.is_identity else Moved(of, layout)
