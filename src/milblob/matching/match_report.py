"""The results of `match`: Match, Tie, Matching; and a summary."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..dtypes import DType
from ..errors import UnsupportedError
from ..results import Result, least
from ..values.cast import cast_array
from ..wording import escape, shortened
from .derivations.layouts import Layout

_MAX_LINES = 20


@dataclass(frozen=True, repr=False)
class Match(Result):
    """A training tensor and the weight it became.

    Attributes:
        given: name in the weights that were given.
        name: of the weight in the model.
        how: "exact" (the same elements after a cast), "name" (the same, but one of several equal tensors, chosen by its
            name), "shared" (the same, and equal to another training tensor that is this weight too), "folded" (a batch
            norm or a scale of the training tensors was folded in), "computed" (the training tensors give it to the bit
            in another way; `given` is the first of them), "scaled" (each output channel by a factor that is not among
            them) or "similar". A weight of a shared blob that no name decides is also "exact".
        given_dtype, given_shape, dtype, shape: of the two.
        layout: turns the given tensor's order of elements into the weight's.
        compression: scheme of the weight, "" if it is stored dense.
        correlation: of the values; 1.0 if they are exact.
        without: other weights that are the same blob, and for which `refit` has nothing to write: it changes all
            weights of a blob or none.
        folded: a description of the folds, or of how the weight was computed.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     trained = {"head.T": model["head_weight"].read().T.copy()}
        >>> [match] = milblob.match("demo.mlpackage", trained).matches
        >>> match.given, match.name, match.how, match.needs
        ('head.T', 'head_weight', 'exact', ['transpose (1, 0)'])
    """

    given: str
    name: str
    how: str
    given_dtype: DType
    given_shape: tuple[int, ...]
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    compression: str
    correlation: float
    without: tuple[str, ...] = ()
    folded: str = ""

    _keys: ClassVar = {"layout": None, "needs": "needs", "refit": "refit"}

    @property
    def needs(self) -> list[str]:
        """The steps from the given tensor to the weight, such as ["transpose (1, 0)", "cast float32 to float16"]."""
        step = "compute" if self.how == "computed" else "fold"
        steps = self.layout.words + ([f"{step}: {self.folded}"] if self.folded else [])
        if self.given_dtype is not self.dtype:
            steps.append(f"cast {self.given_dtype} to {self.dtype}")
        return [*steps, f"compress ({self.compression})"] if self.compression else steps

    @property
    def is_direct(self) -> bool:
        """Whether `refit` can write the tensor as it is, or with a cast."""
        return not self.compression and self.layout.is_identity and self.how in ("exact", "name", "shared")

    @property
    def refit(self) -> str:
        """How `refit` can write it: "as it is", "with a cast" (cast=True), "with a base" (base=), or "": it cannot."""
        if self.is_direct:
            return "" if self.without else "as it is" if self.given_dtype is self.dtype else "with a cast"
        # Similar values alone come from an unknown computation.
        return "" if self.compression or self.how in ("similar", "scaled") else "with a base"

    def apply(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the given tensor in the layout and dtype of the weight; numbers that are too large become infinite.

        Args:
            array: of `given_shape`.

        Raises:
            TypeError: a cast between floats and integers. UnsupportedError: a weight that is computed in another way.
        """
        if self.folded:
            message = f"{self.given}: expected a tensor that is a weight as it is, got {self.name} with {self.folded}"
            raise UnsupportedError(f"{message}; refit with a base computes it")
        moved = self.layout.apply(np.ascontiguousarray(np.asarray(array)).reshape(self.given_shape))
        return cast_array(np.ascontiguousarray(moved).reshape(self.shape), self.dtype, overflow="inf")[0]


@dataclass(frozen=True, repr=False)
class Tie(Result):
    """Tensors that `match` cannot distinguish, because they are equal or nearly so.

    Attributes:
        given: names in the weights that were given.
        names: of weights in the model.

    Examples:
        >>> ones = np.ones(12, np.float32)
        >>> milblob.save({"p": ones, "q": ones}, "model.npz")
        >>> matching = milblob.match("model.npz", {"a": ones, "b": ones})
        >>> [(tie.given, tie.names) for tie in matching.ties]
        [(['a', 'b'], ['p', 'q'])]
    """

    given: list[str]
    names: list[str]


@dataclass(frozen=True, repr=False)
class Matching(Result):
    """The result of `match`.

    Attributes:
        weights, model: the matched files: paths, or descriptions of sources without a path.
        matches: one per matched weight, in the order of the training tensors. A training tensor has several if weights
            are one blob without training tensors of their own.
        ties: tensors that could not be distinguished.
        unmatched_given: training tensors that match no weight of the model.
        unmatched_names: weights of the model that match no training tensor.
        equal_given: training tensors that equal a matched one, but are one too many for several equal weights.
        folded_given: training tensors that other matches were computed with, such as those of batch norms.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     trained = {"head.bias": model["head_bias"].read().copy(), "step": np.zeros(3)}
        >>> matching = milblob.match("demo.mlpackage", trained)
        >>> matching.mapping, matching.unmatched_given
        ({'head.bias': 'head_bias'}, ['step'])
    """

    weights: str
    model: str
    matches: list[Match]
    ties: list[Tie]
    unmatched_given: list[str]
    unmatched_names: list[str]
    equal_given: list[str] = field(default_factory=list)
    folded_given: list[str] = field(default_factory=list)

    @property
    def mapping(self) -> dict[str, str]:
        """Name in the weights -> name in the model, for all matches; for several weights of one blob, the first."""
        return {match.given: match.name for match in reversed(self.matches)}

    @property
    def refit_mapping(self) -> dict[str, str | list[str] | None]:
        """The argument for `refit(mapping=...)`: names of the tensors that it can write, and None for the others.

        A training tensor that is several weights of one blob maps to a list of names; several training tensors that
        share one weight map to the same name, and need equal values. Those with another dtype need cast=True. Tensors
        that need another layout, or a fold, map to None: `refit` with a base computes them.
        """
        names: dict[str, list[str]] = {match.given: [] for match in self.matches}
        for match in self.matches:
            if match.is_direct and not match.without:
                names[match.given].append(match.name)
        found: dict[str, str | list[str] | None] = {
            given: (some if len(some) > 1 else some[0]) if some else None for given, some in names.items()
        }
        left = [*self.equal_given, *self.folded_given, *self.unmatched_given]
        rest = [*(name for tie in self.ties for name in tie.given), *left]
        return found | dict.fromkeys(name for name in rest if name not in found)

    def _worst(self) -> list[str]:
        rows = least((match for match in self.matches if match.correlation < 1), lambda match: match.correlation)
        return [f"{match.given} -> {match.name}: correlation {match.correlation:.6g}" for match in rows]

    def __str__(self) -> str:
        lines = [f"{m.given} -> {m.name}" + (f" ({', '.join(m.needs)})" if m.needs else "") for m in self.matches]
        lines += [f"{', '.join(tie.given)} -> one of {', '.join(tie.names)}" for tie in self.ties]
        return "\n".join(map(escape, [*shortened(lines, _MAX_LINES), summary(self)]))


def summary(matching: Matching, with_given: bool = True) -> str:
    """Summarise how much was matched, and how much of it `refit` can write.

    `with_given`: also state how many training tensors are left; pass False if only some weights were looked for.
    """
    ways = [match.refit for match in matching.matches]
    message = f"{len(ways):,} matched"
    if ways:
        how = ("as it is", "as they are"), ("with a cast", "with --cast"), ("with a base", "with --base")
        counts = [(ways.count(way), text) for way, text in how if ways.count(way)]
        can = ", ".join(f"{count:,} {'can be refit ' * (not at)}{text}" for at, (count, text) in enumerate(counts))
        message += f": {f'{can}; ' * bool(can)}{ways.count(''):,} cannot"
    if matching.ties:
        message += f"; {sum(len(tie.names) for tie in matching.ties):,} weights ambiguous"
    if matching.equal_given and with_given:
        message += f"; {len(matching.equal_given):,} given equal to others"
    lost = (len(matching.unmatched_names), "of the model"), (len(matching.unmatched_given) * with_given, "given")
    return message + "".join(f"; {count:,} {whose} not matched" for count, whose in lost if count)
