"""Pairs arrays with weights of a model: finds names, checks dtypes and shapes, reads no elements."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from ..arguments import Names, array_of, names_in
from ..closeness import ambiguous, unknown
from ..dtypes import DType
from ..errors import UnsupportedError
from ..model.assigning import dtype_of, is_fitting, require_editable, require_shape
from ..model.model import Model, tails_of
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor, make_tensor
from ..program.scan import Compressed
from ..program.view import Consumer, Operation
from ..progress import Progress, ProgressCounter
from ..rewrite.decompress import is_end
from ..values.cast import CastCounts, is_castable
from ..wording import escape, some
from .problems import ERRORS, Problems

MATCH = "`milblob match` finds which weight an array is for"
_BASE = f"{MATCH}; of a checkpoint that was trained further, --base ORIGINAL (base=) finds how each weight was made"
_FACTORS = "factors of a LoRA adapter: give its folder, with adapter_config.json, and --base (base=)"
_CAST = "add --cast (cast=True)"
_REQUANTIZE = "add --requantize keep or fit, or give its parts by their own names (milblob ls --stored)"


class How(NamedTuple):
    """The options of `refit` that decide which array goes where, and how it is converted."""

    mapping: Mapping[str, Names]
    can_cast: bool
    overflow: str
    is_selected: Callable[[str], bool]
    progress: Progress | None
    unshare: bool = False
    requantize: str = ""
    min_sqnr: float | None = None
    note: str = ""


@dataclasses.dataclass(eq=False)
class RefitItem:
    """One array for one weight, or for some of the operations that read it."""

    given: str  # name of the array
    values: Any  # an array, or a tensor that has not been read
    tensor: Tensor  # the weight; of a compressed one, its dense form
    # where the weight is read, if the array is for some of its consumers only; None for all
    consumers: tuple[Consumer, ...] | None
    target: str  # the weight as the user named it
    # what happened in the conversion, once it is done
    counts: CastCounts = dataclasses.field(default_factory=CastCounts)
    sqnr: float | None = None
    name: str = ""  # of the tensor that has the values in the result
    nbytes: int = 0  # of its new stored bytes
    is_in_place: bool = True  # as in `Refitted`
    unshared: str = ""

    def __post_init__(self) -> None:
        self.name = self.tensor.name
        self.given_dtype = dtype_of(self.values)


def pair(model: Model, given: Mapping[str, Any], how: How) -> list[RefitItem]:
    """Find the weight for every array, and check all of them before reporting any problem.

    `model`: opened with `constants=True, stored=True`. `given`: name -> array, or tensor not yet read.
    Raises: The only problem itself; ValueError with all of them if there are several, or if there is nothing to do.
    """
    problems, items = Problems(), []
    names = WeightsByName(model)
    for old in how.mapping:
        if old not in given:
            problems.add(KeyError(f"mapping: {unknown('array', old, given)}"))
    seen: set[tuple[str, str]] = set()
    lacking: list[tuple[str, str, KeyError]] = []
    counter = ProgressCounter(how.progress)
    for old in counter.noting(given, str):
        for new in names_in(how.mapping.get(old, old)):
            if (old, new) in seen:
                continue
            seen.add((old, new))
            try:
                tensor, consumers = names.find(new)
                if how.is_selected(new) or (consumers is not None and how.is_selected(tensor.name)):
                    items.append(RefitItem(old, given[old], tensor, consumers, new))
            except KeyError as error:
                if how.is_selected(new):
                    lacking.append((old, new, error))
            except ERRORS as error:
                if how.is_selected(new):
                    problems.add(error)
    remedy = MATCH if items or problems or len(lacking) == 1 else _BASE  # not one array has a weight of its name
    for old, new, cause in lacking:
        is_only = len(lacking) == 1 and not cause.args[0]
        message = cause.args[0] or unknown("weight", new, weight_names(model) if is_only else (), model.path)
        advice = _FACTORS if ".lora_A." in old or ".lora_B." in old else remedy
        problems.add_kind(f"arrays with names that {model.path} lacks", advice, old, KeyError(message))
    for item in counter.noting(items):
        try:
            _require_fit(item, how, problems)
        except ERRORS as error:
            problems.add(error)
    problems.raise_any()
    if not items:
        raise ValueError("weights: expected at least one, got none")
    if how.requantize and not any(program.scan.groups for program in model.parts):
        raise ValueError(f"requantize: expected a model with compressed weights, got none in {model.path}")
    return items


def _require_fit(item: RefitItem, how: How, problems: Problems) -> None:
    tensor, dtype, own = item.tensor, item.tensor.mil_dtype, item.given_dtype
    if tensor.chain is not None:
        if not how.requantize:
            error: Exception = UnsupportedError(
                f"{tensor.name}: expected a weight that is stored dense, got {tensor.op}"
            )
            problems.add_kind("arrays for compressed weights", _REQUANTIZE, item.given, error)
            return
        if not own.is_float:
            raise TypeError(escape(f"{tensor.name}: expected floats to requantize, got {own}"))
        require_shape(tensor, item.values)
        return
    if not is_fitting(dtype, own, how.can_cast):
        add_dtype(problems, tensor.name, dtype, item.given, own, how.can_cast)
        return
    require_shape(tensor, item.values)
    require_editable(tensor)


def add_dtype(problems: Problems, name: str, dtype: DType, given: str, own: DType, can_cast: bool) -> None:
    """Add the problem that an array has another dtype than its weight, and may not, or cannot, be cast.

    `name`, `dtype`: of the weight. `given`, `own`: name and dtype of the array.
    """
    wanted = f"{dtype}, or that can become it" if can_cast else dtype
    error = TypeError(f"{name}: expected elements of {wanted}, got {own}")
    if not can_cast and is_castable(own, dtype):
        problems.add_kind(f"{own} arrays for {dtype} weights", _CAST, given, error)
    else:
        problems.add(error)


# ---------------------------------------------------------------------------------------------------------------- names


class WeightsByName:
    """The weights of a model by name, compressed ones among them.

    `model`: opened with `stored=True`, which lists the parts of compressed weights.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._chains: dict[str, list[tuple[OpenProgram, Compressed, str]]] | None = None

    def find(self, name: str) -> tuple[Tensor, tuple[Consumer, ...] | None]:
        """Return the weight of a name; of WEIGHT@OPERATION also where that operation reads it.

        OPERATION is the operation's first output, as `milblob show WEIGHT` prints it, or OPERATION.PARAMETER.

        Raises: KeyError: there is none; has a message only where it adds to the name. UnsupportedError: a computed part
        of a chain.
        """
        found = self._weight(name)
        if found is not None:
            return found, None
        head, _, operation = name.rpartition("@")
        tensor = self._weight(head) if head and operation else None
        if tensor is None:
            raise KeyError("")
        return tensor, _reading(tensor, operation)

    def _weight(self, name: str) -> Tensor | None:
        found = self._model.lookup(name)
        if found is not None:
            return found
        if self._chains is None:
            self._chains = self._by_name()
        chains = self._chains.get(name, [])
        if not chains:
            return None
        if len(chains) > 1:
            raise KeyError(ambiguous(name, (chain[2] for chain in chains)))
        program, group, full = chains[0]
        if not is_end(program, group):
            message = f"{name}: expected a weight, got {group.op.type} inside a chain (its parts can be set)"
            raise UnsupportedError(message, file=self._model.path)
        return make_tensor(program, full, group)

    def _by_name(self) -> dict[str, list[tuple[OpenProgram, Compressed, str]]]:
        """Find the operations that compute weights by their names, whole ones and without prefixes."""
        whole: dict[str, list[tuple[OpenProgram, Compressed, str]]] = {}
        tails: dict[str, list[tuple[OpenProgram, Compressed, str]]] = {}
        for program in self._model.parts:
            for group in program.scan.groups:
                full = program.scan.name_of(group)
                row = (program, group, full)
                whole.setdefault(full, []).append(row)
                for tail in tails_of(full):
                    tails.setdefault(tail, []).append(row)
        return tails | whole


def weight_names(model: Model) -> Iterator[str]:
    """Yield the names of what an array can be for, compressed weights among them."""
    yield from (name for name, tensor in model.items() if tensor.mil_dtype is not DType.STRING)
    for program in model.parts:
        yield from (program.scan.name_of(group) for group in program.scan.groups)


def _reading(tensor: Tensor, operation: str) -> tuple[Consumer, ...]:
    consumers = tuple(c for c in readers_of(tensor) if operation in _names_of(c))
    if len({consumer.reader for consumer in consumers}) != 1:
        message = f"one of {described(tensor)}" if not consumers else "the name of one operation"
        raise KeyError(f"operation that reads {tensor.name}: expected {message}, got {operation!r}")
    return consumers


def readers_of(tensor: Tensor) -> list[Consumer]:
    """Return the places where a weight is read by name; none for a value inside the operation that uses it."""
    return [consumer for consumer in tensor.consumers if consumer.name]


def _names_of(consumer: Consumer) -> tuple[str, ...]:
    reader = consumer.reader
    return (reader.label, consumer.label) if isinstance(reader, Operation) else ()


def described(tensor: Tensor) -> str:
    """Return the operations that read a weight, by the names that a mapping accepts."""
    found = []
    for consumer in readers_of(tensor):
        reader = consumer.reader
        if isinstance(reader, Operation):
            found.append(f"{reader.label} ({reader.type}, {consumer.parameter})")
        else:
            found.append("an output of its block")
    return some(found) or "none"


def read(values: Any) -> np.ndarray[Any, Any]:
    """Return the values of an array, or of a tensor that is not read yet."""
    return cast("np.ndarray[Any, Any]", values.read() if hasattr(values, "mil_dtype") else array_of(values))
