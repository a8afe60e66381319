"""Learns from the checkpoint that a model was converted from how each of its weights came to be.

Values decide, bit for bit; names and the operations that read a weight decide only between arrays that are equal. What
they leave open stays open: a weight then has several claims, whose new values must agree.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from ..values.cast import cast_array, is_castable
from .agreeing import agreeing
from .derivation import Derivation, Folded, Moved, Source, Summed
from .folds import Norm, Vectors, fitting, fold_weight, ratio
from .layouts import Layout, layouts
from .lineage import Claim, Lineage, Origin
from .row_runs import RowIndex
from .same_elements import same_elements
from .sharing import by_blob
from .siblings import VECTORS, Siblings

Values = np.ndarray[Any, Any]

_MIN_WORK, _WORK_PER_ELEMENT = 20_000_000_000, 400
"""About a nanosecond each, reckoned and not measured; what somebody made to take longer stays unknown."""

_TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
"""How far the factors of channels may be from a scale before a fold is computed in full."""

_FLOATS = frozenset(dtype for dtype in DType if "FLOAT" in dtype.name)
_CONVOLUTIONS = ("conv", "conv_transpose")


def learn(
    given: Mapping[str, LazyTensor],
    weights: Mapping[str, Tensor],
    looked_at: Callable[[str, LazyTensor], None] = lambda *_: None,
) -> Lineage:
    """Learn how the weights of a model follow from the arrays of a checkpoint.

    Args:
        given: the arrays of the checkpoint by name.
        weights: the constants of the model, compressed weights in their dense form.
        looked_at: called with each array, once it was compared with all weights.
    """
    learner = _Learner(given, weights)
    learner.learn(looked_at)
    return learner.lineage()


class _Reader(NamedTuple):
    """Where a weight is read: the operation's type, its first output, and the parameter."""

    op: str
    name: str
    parameter: str

    @property
    def words(self) -> str:
        return f"{self.name}.{self.parameter}"


class _Learner:
    """The state of one `learn`."""

    def __init__(self, given: Mapping[str, LazyTensor], weights: Mapping[str, Tensor]) -> None:
        self.given = {name: t for name, t in given.items() if t.mil_dtype not in (DType.STRING, DType.BOOL) and t.size}
        self.all_given = given
        self.weights = {name: t for name, t in weights.items() if _is_candidate(t)}
        self.members = by_blob(self.weights)
        self.readers = {name: _readers(tensor) for name, tensor in self.weights.items()}
        self.parts: dict[str, dict[str, str]] = defaultdict(dict)  # operation -> parameter -> weight
        for name, readers in self.readers.items():
            for reader in readers:
                self.parts[self._key(name, reader)][reader.parameter] = name
        self.siblings = Siblings({name: tensor.shape for name, tensor in self.given.items()})
        self.claims: dict[str, dict[Derivation | None, set[str]]] = defaultdict(dict)
        self.certain: dict[str, Derivation] = {}
        self.equal: dict[str, list[tuple[str, Layout]]] = {}
        self.is_open: set[str] = set()  # weights of which a reader was not explained
        self._indexes: dict[tuple[DType, int], RowIndex] = {}
        self._flat: dict[str, bool] = {}
        count = sum(t.size for tensors in (self.given, self.weights) for t in tensors.values())
        self._work_left = _MIN_WORK + _WORK_PER_ELEMENT * count

    def _key(self, name: str, reader: _Reader) -> str:
        return f"{self.weights[name].function}/{reader.name}"

    def may(self, work: int) -> bool:
        """Whether enough of the work budget is left; if so, spend it."""
        self._work_left -= work
        return self._work_left >= 0

    def array(self, name: str) -> Values:
        """Return an array of the checkpoint."""
        return np.asarray(self.given[name].read())

    def learn(self, looked_at: Callable[[str, LazyTensor], None]) -> None:
        """Fill `claims`, from what is certain to what depends on it."""
        self._find_equal(looked_at)
        self._settle_equal()
        rest = [name for name in self.weights if name not in self.equal and not self.is_flat(name)]
        for name in rest:
            if self.weights[name].ndim >= 2 and self.weights[name].mil_dtype in _FLOATS:
                self._fold(name) or self._rows(name)
        for name in rest:
            if name not in self.claims:
                self._depend(name)
        for name in rest:
            if name not in self.claims and self.weights[name].mil_dtype in _FLOATS:
                self._sum(name)
        self._settle_flat()

    # ------------------------------------------------------------------------------------------------------------ equal

    def _find_equal(self, looked_at: Callable[[str, LazyTensor], None]) -> None:
        """Find for each weight the arrays that have its elements after a cast, and in which layout."""
        firsts = {name: self.weights[name] for name in self.members}
        edges = same_elements(self.given, firsts, self.may, looked_at)
        for edge in sorted(edges, key=lambda edge: edge.rank):
            for first in edge.new.members:
                for name in self.members[first]:
                    self.equal.setdefault(name, []).extend((given, edge.layout) for given in edge.old.members)

    def _settle_equal(self) -> None:
        """Claim what is equal, other than constants whose elements are all equal, which need more evidence."""
        groups: dict[frozenset[str], list[str]] = defaultdict(list)
        for name, found in self.equal.items():
            if not self.is_flat(name):
                groups[frozenset(given for given, _ in found)].append(name)
        for names in groups.values():
            given = list(dict.fromkeys(given for given, _ in self.equal[names[0]]))
            owner = self._owners(given, names)
            blobs = {first for first, members in self.members.items() if set(members) & set(names)}
            left = [name for name in given if name not in owner.values()]
            for name in names:
                mine = [owner[name]] if name in owner else []
                if mine and not left:
                    chosen = mine
                elif mine and len(blobs) == 1:
                    chosen = mine + left
                else:  # nothing says whose it is: all of them must agree
                    chosen = mine + given
                self._claim_equal(name, chosen, name in owner)

    def _owners(self, given: Iterable[str], names: Iterable[str]) -> dict[str, str]:
        """Return the array that the name of a weight says: weight -> array."""
        names = list(names)
        first_of = {name: first for first, members in self.members.items() for name in members}
        return {new: old for old, new in agreeing(given, names, {name: first_of[name] for name in names})}

    def _claim_equal(self, name: str, given: Iterable[str], is_named: bool) -> None:
        """Claim arrays with a weight's elements; several layouts too, unless the name says whose weight it is."""
        for one in dict.fromkeys(given):
            layout = next(layout for other, layout in self.equal[name] if other == one)
            found = [layout]
            if not (is_named and layout.is_identity):
                found += [
                    other for other in self._layouts(one, name) if other != layout and self._is_laid(one, name, other)
                ]
            for other in found:
                self.claim(name, _moved(Source(one), other))

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
        return some.tobytes() == new[positions].tobytes() and self.fits(name, _moved(Source(given), layout))

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
        return _are_equal(values, weight)

    def is_flat(self, name: str) -> bool:
        """Whether all elements of a weight are equal, so that its values say nothing about where it comes from."""
        if name not in self._flat:
            weight = self.weights[name]
            values = np.asarray(weight.read()).reshape(-1)
            bits = values.view(f"u{values.dtype.itemsize}") if values.dtype.itemsize in (1, 2, 4, 8) else values
            self._flat[name] = bool(bits.size < 2 or ((bits[:64] == bits[0]).all() and (bits == bits[0]).all()))
        return self._flat[name]

    # ----------------------------------------------------------------------------------------------------- convolutions

    def _fold(self, name: str) -> bool:
        """Claim a convolution's weight with a batch norm or a scale folded in, and its bias."""
        weight = self.weights[name]
        readers = [
            reader for reader in self.readers[name] if reader.op in _CONVOLUTIONS and reader.parameter == "weight"
        ]
        if not readers or weight.mil_dtype not in _TOLERANCE:
            return False
        parts = self.parts[self._key(name, readers[0])]
        bias = parts.get("bias")
        groups = 0
        if readers[0].op == "conv_transpose":
            groups = 1 if bias is None else max(self.weights[bias].size // weight.shape[1], 1)
            if weight.shape[0] % groups:
                return False
        found = []
        for own in self._foldable(name):
            found += [(own, norm) for norm in self._norms_of(name, own, groups)]
        if not found:
            return False
        pairs = self._with_bias(found, bias) if bias is not None else []
        for own, norm, of in pairs:
            self.claim(str(bias), _folded_bias(of, norm, self.weights[str(bias)].shape), f"{readers[0].name}.bias")
            self.claim(name, Folded(Source(own), norm, groups, False, weight.shape))
        for own, norm in [] if pairs else _once(found):
            self.claim(name, Folded(Source(own), norm, groups, False, weight.shape))
        return True

    def _foldable(self, name: str) -> list[str]:
        weight = self.weights[name]
        return [
            given
            for given, tensor in self.given.items()
            if tensor.size == weight.size and tensor.mil_dtype in _FLOATS and tensor.ndim >= 2
            and tensor.shape[:2] == weight.shape[:2] and self.may(100_000)
        ]  # fmt: skip

    def _norms_of(self, name: str, own: str, groups: int) -> list[Norm]:
        weight = self.weights[name]
        if not self.may(500_000 + 40 * weight.size):
            return []
        target, source = np.asarray(weight.read()), self.array(own).reshape(weight.shape)
        tolerance = _TOLERANCE[weight.mil_dtype]
        found = ratio(target, source, groups)
        if found.residual > tolerance:
            return []
        count = len(found.factors)
        norms = self.siblings.norms.get(count, []) + self.siblings.scales(count)
        if not self.may(1_000_000 * len(norms)):
            return []

        def is_exact(norm: Norm, vectors: Vectors) -> bool:
            return _are_equal(fold_weight(source, norm, vectors, groups), weight)

        return fitting(found.factors, norms, self.array, is_exact, tolerance)

    def _with_bias(self, found: list[tuple[str, Norm]], bias: str) -> list[tuple[str, Norm, str | None]]:
        """Return the folds that give the bias too, with the convolution's own bias; one for the same arrays."""
        pairs: dict[Any, tuple[str, Norm, str | None]] = {}
        for own, norm in found:
            own_biases = self.siblings.vectors(own, self.weights[bias].size)
            shifts = (
                [norm] if norm.variance is not None else [norm, *self.siblings.shifted(norm, self.weights[bias].size)]
            )
            for shift in shifts:
                for of in [*own_biases, None]:
                    if self.fits(bias, _folded_bias(of, shift, self.weights[bias].shape)):
                        key = own, shift.gamma, shift.beta, shift.mean, shift.variance, of
                        pairs.setdefault(key, (own, shift, of))
        with_own = [pair for pair in pairs.values() if pair[2] is not None]
        complete = {pair[:2] for pair in with_own}
        # A convolution that has a bias of its own has used it, if that fits as well: such as one of zeros.
        return [*with_own, *(pair for pair in pairs.values() if pair[2] is None and pair[:2] not in complete)]

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

    def _beside(self, name: str, reader: _Reader) -> list[Derivation] | None:
        """Return what a weight may be, as the other weights of an operation say; None if they say nothing.

        An empty list says that the checkpoint has no array for it.
        """
        parts = self.parts[self._key(name, reader)]
        for parameter in VECTORS.get(reader.parameter, ()):
            other = parts.get(parameter)
            if other is not None and other != name and other in self.certain:
                options = self.siblings.beside(self.certain[other], reader.parameter, self.weights[name].size)
                return None if options is None else options
        return None

    def _depend(self, name: str) -> None:
        """Claim a vector that belongs to another weight of an operation that reads it."""
        for reader in self.readers[name]:
            for option in self._beside(name, reader) or ():
                if self.fits(name, option):
                    self.claim(name, option, reader.words)

    def _sum(self, name: str) -> None:
        """Claim a bias to which another vector was added."""
        weight = self.weights[name]
        if weight.size != max(weight.shape, default=0):
            return
        every = self.siblings.of_size(weight.size)
        for reader in self.readers[name]:
            for option in self._beside(name, reader) or ():
                for other in every:
                    added = Summed(option, Source(other))
                    if other not in option.sources() and self.fits(name, added):
                        self.claim(name, added, reader.words)

    # ------------------------------------------------------------------------------------------------------------- flat

    def _settle_flat(self) -> None:
        """Claim constants whose elements are all equal, such as biases of zeros: here values are no evidence."""
        names = [name for name in self.equal if self.is_flat(name)]
        groups: dict[frozenset[str], list[str]] = defaultdict(list)
        for name in names:
            groups[frozenset(given for given, _ in self.equal[name])].append(name)
        used = {source for claims in self.claims.values() for d in claims if d is not None for source in d.sources()}
        for members in groups.values():
            given = list(dict.fromkeys(given for given, _ in self.equal[members[0]]))
            owner = self._owners(given, members)
            waiting: dict[str, int] = {}
            for name in members:
                waiting[name] = self._claim_flat(name, owner.get(name))
            used |= {s for name in members for d in self.claims.get(name, ()) if d is not None for s in d.sources()}
            free = [one for one in given if one not in used]
            for name, count in waiting.items():
                fitting_ones = self._for_parameter(name, free) if self.weights[name].size > 1 else []
                if count and fitting_ones:
                    self._claim_equal(name, fitting_ones, False)
                if count > len(fitting_ones) and self.claims.get(name):
                    self.claim(name, None)  # somebody reads it of whom nothing is known

    def _claim_flat(self, name: str, named: str | None) -> int:
        """Claim what names and other weights of its readers say; return how many readers stay unexplained."""
        waiting, without = 0, []
        for reader in self.readers[name]:
            options = self._beside(name, reader)
            found = [one for one in options or () if self.fits(name, one)]
            for one in found:
                self.claim(name, one, reader.words)
            if options is not None and not options:
                without.append(reader)
            else:
                waiting += not found
        if named is not None and not any(named in d.sources() for d in self.claims.get(name, ()) if d is not None):
            self._claim_equal(name, [named], True)
            if waiting:
                waiting -= 1
            else:  # it has a name that only its operation explains
                without = without[1:]
        for reader in without:
            self.claim(name, None, reader.words)
        return waiting if self.readers[name] else int(named is None)

    def _for_parameter(self, name: str, given: list[str]) -> list[str]:
        """Keep the arrays whose names fit the parameter that a weight is, where some do."""
        parameters = {reader.parameter for reader in self.readers[name]}
        some = [one for one in given if any(self.siblings.is_named_for(one, parameter) for parameter in parameters)]
        return some or given

    # ----------------------------------------------------------------------------------------------------------- result

    def lineage(self) -> Lineage:
        """Return what was found."""
        origins, unknown, constant = {}, {}, []
        for name, weight in self.weights.items():
            claims = self.claims.get(name, {})
            if any(derivation is not None for derivation in claims):
                found = tuple(Claim(derivation, tuple(sorted(readers))) for derivation, readers in claims.items())
                origins[name] = Origin(name, found)
            elif not _is_weight(weight):
                continue
            elif weight.mil_dtype not in _FLOATS or self.is_flat(name):
                constant.append(name)
            else:
                unknown[name] = "no array of the base, and nothing that milblob computes from them, has its values"
        used = {
            s for o in origins.values() for c in o.claims if c.derivation is not None for s in c.derivation.sources()
        }
        return Lineage(origins, unknown, tuple(constant), tuple(name for name in self.all_given if name not in used))


def _is_weight(tensor: Tensor) -> bool:
    return tensor.chain is not None or tensor.is_blob or tensor.size >= 10


def _is_candidate(tensor: Tensor) -> bool:
    if tensor.chain is None and (tensor.mil_dtype in (DType.STRING, DType.BOOL) or not tensor.size):
        return False
    return _is_weight(tensor) or (tensor.op == "const" and tensor.mil_dtype in _FLOATS)


def _readers(tensor: Tensor) -> list[_Reader]:
    return [_Reader(use.op, use.name, use.parameter) for use in tensor.consumers if not use.op.startswith("constexpr_")]


def _are_equal(values: Values, weight: Tensor) -> bool:
    """Whether values are those of a weight to the bit, once they are cast to its dtype."""
    if values.size != weight.size or not is_castable(values.dtype, weight.mil_dtype):
        return False
    try:
        cast = cast_array(np.ascontiguousarray(values), weight.mil_dtype, overflow="inf")[0].reshape(-1)
    except OverflowError:
        return False
    present = np.ascontiguousarray(weight.read()).reshape(-1)
    return bool(np.array_equal(cast.view(np.uint8), present.view(np.uint8)))


def _moved(of: Derivation, layout: Layout) -> Derivation:
    return of if layout.is_identity else Moved(of, layout)


def _folded_bias(of: str | None, norm: Norm, shape: tuple[int, ...]) -> Folded:
    return Folded(None if of is None else Source(of), norm, 0, True, shape)


def _once(found: list[tuple[str, Norm]]) -> list[tuple[str, Norm]]:
    """Keep one fold of the same arrays."""
    first: dict[Any, tuple[str, Norm]] = {}
    for own, norm in found:
        first.setdefault((own, norm.gamma, norm.beta, norm.mean, norm.variance), (own, norm))
    return list(first.values())
