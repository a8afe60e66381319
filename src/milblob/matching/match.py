"""milblob.match: find which training tensor became which weight of a model."""

import contextlib
from dataclasses import replace
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np

from ..analysis.sides import Side, is_arrays
from ..arguments import require
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.sharing import blob_users
from ..model.tensor import Tensor
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..selection import Select, require_selected, selector
from .checkpoint import Checkpoint, Work, is_numeric, numeric
from .match_report import Match, Matching
from .model_weights import ModelWeights, is_compressed, is_weight
from .ownership import Ownership
from .search import Search
from .similarity import Similarity

MIN_CORRELATION = 0.7
_MAX_LACKING = 100  # names listed in `Match.without`


@takes_urls("model", "weights")
def match(
    model: Any,
    weights: Any,
    *,
    min_correlation: float = MIN_CORRELATION,
    select: Select = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> Matching:
    """Find which training tensor became which weight of a model.

    First, find tensors with the same elements after a cast to the weight's dtype: in the same order, with permuted axes
    (for matrices: transposed), or in another shape. Then find expressions that give other weights to the bit, as
    `refit` with a base does. Last, for weights that are compressed or otherwise changed, find the tensors whose values
    correlate best. Names decide between equal tensors where they agree.

    Args:
        model: what `open` takes, or an open Model; or a Model Library Format archive of TVM, or another file of arrays.
            Where weights share one blob, as those of two functions may, each is matched: with the training tensor of
            its name, else with one that matches the blob.
        weights: path of a .safetensors, .npz, .npy, .gguf or .onnx file, of a directory of .npy files, or of a model;
            or a mapping from names to arrays.
        min_correlation: least correlation (the cosine once the means are taken off) of values that are similar.
        select: glob, several, or a function of a name: the weights of the model to look for.
        progress: called as each training tensor has been looked at, and each weight matched (see `Progress`).
        max_nbytes: as for `open`, of each side that is opened here.
        storage_options, cache: as for `open`, of the URLs.

    Returns:
        Matching.

    Raises:
        ValueError: a min_correlation outside (0, 1]; a `select` that selects nothing. As `diff`.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     trained = {"head.bias": model["head_bias"].read().copy()}
        >>> milblob.match("demo.mlpackage", trained).mapping
        {'head.bias': 'head_bias'}
    """
    start_progress(progress)
    is_selected = selector(select)
    require("min_correlation", min_correlation, Real, "a number")
    if not 0 < min_correlation <= 1:
        raise ValueError(f"min_correlation: expected a number above 0, up to 1, got {min_correlation}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(np.errstate(all="ignore"))  # of any values, infinite and NaN too
        side = Side.open(weights, False, stack, max_nbytes)
        whole = _target(model, stack, max_nbytes)
        side, whole = side.beside(whole), whole.beside(side)
        require_selected(select, any(map(is_selected, whole.tensors)), whole.words)
        given = numeric(side.tensors)
        wanted = {name: t for name, t in whole.tensors.items() if _is_candidate(t) and is_selected(name)}
        fetch([*given.values(), *wanted.values()])
        every = (*given.values(), *wanted.values())
        search = Search(Checkpoint(given, Work(every, ProgressCounter(progress, every))), ModelWeights(wanted), wanted)
        done = Ownership(search.checkpoint, search.weights)
        search.find_equal()
        done.settle_equal(search.equalities)
        if whole.has_program:
            done.settle_derived(search)
        Similarity(search.checkpoint, done, min_correlation).settle()
        search.done_all()
        found = [match for name in given for match in done.found.get(name, ())]
        if whole.model is not None:
            found = _with_what_lacks(whole.model, found)
        equal = [name for name in given if name in done.equal and name not in done.used]
        rest = [name for name in side.tensors if name not in done.used and name not in done.equal]
        lost = [name for name, tensor in wanted.items() if name not in done.taken and _is_weight(tensor)]
        tied = {name for tie in done.ties for name in tie.given}
        folded = [name for name in given if name in done.used and name not in tied and name not in done.found]
        return Matching(side.words, whole.words, found, done.ties, rest, lost, equal, folded)


def _target(model: Any, stack: contextlib.ExitStack, max_nbytes: int | None) -> Side:
    """The target of a refit: a model with every constant, or the parameters of an archive."""
    if isinstance(model, Model) or is_arrays(model):
        return Side.open(model, False, stack, max_nbytes)
    whole = stack.enter_context(Model(model, constants=True, max_nbytes=max_nbytes))
    return Side(dict(whole), whole, whole.path or "model in memory")


def _with_what_lacks(model: Model, matches: list[Match]) -> list[Match]:
    """Note where `refit` would refuse a weight because it cannot write another weight that is the same blob."""
    writable = {match.name for match in matches if match.is_direct}
    lacking: dict[str, tuple[str, ...]] = {}
    for users in blob_users(model).values():
        missing = tuple(islice(dict.fromkeys(name for name in users if name not in writable), _MAX_LACKING))
        lacking |= dict.fromkeys(writable.intersection(users), missing) if missing else {}
    return [replace(match, without=lacking.get(match.name, ())) for match in matches]


def _is_weight(tensor: LazyTensor) -> bool:
    """Whether a constant counts if it is not found; of files of arrays, each array."""
    return not isinstance(tensor, Tensor) or is_weight(tensor)


def _is_candidate(tensor: LazyTensor) -> bool:
    """Whether a tensor is a weight, or a small constant that may be a bias; not a numeric argument of an operation."""
    if is_compressed(tensor) or not is_numeric(tensor):
        return is_compressed(tensor)
    is_const = isinstance(tensor, Tensor) and tensor.op == "const"
    return _is_weight(tensor) or (is_const and tensor.mil_dtype.is_float and tensor.ndim > 0)
