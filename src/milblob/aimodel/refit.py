"""New values for the weights of a bundle, by the names and with the options of `milblob.refit`."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..closeness import unknown
from ..errors import UnsupportedError
from ..progress import ProgressCounter
from ..refitting.by_name import GivenTensor, pair_by_name
from ..refitting.pairs import How
from ..refitting.problems import Problems
from ..refitting.refit_report import RefitReport, Refitted
from ..rewrite.destination import is_in_place
from ..storage.journal import Patch
from ..storage.journal_format import Later
from ..values.tensorvalue import stored_bytes
from ..wording import some
from .asset import BYTECODE, Asset
from .codes import DENSE, RESOURCE
from .emit import ALIGNMENT, Emitter, NewResource, varint
from .program import StoredConstant
from .saving import NewBytecode, patched, require_target, save
from .tensors import AssetTensor

INLINE_COUNT = 256
"""Values of fewer elements are written inline, as Apple does."""

_MAX_NAMES = 6


class _Value:
    """One stored value that changes: the constants that share it, and those of them that get new values."""

    def __init__(self, stored: StoredConstant, users: list[str]) -> None:
        self.stored, self.users = stored, users  # stored: where it is; users: names of all constants that share it
        self.targets: dict[str, GivenTensor] = {}  # name -> what it gets


def refit(
    path: str,
    given: Mapping[str, Any],
    how: How,
    *,
    destination: str | None,
    force: bool,
    dry_run: bool,
    max_nbytes: int | None = None,
) -> RefitReport:
    """Give weights of a bundle new values, all or none, as `milblob.refit` does.

    The hash of the bytecode is written in the same step. Constants with equal values are often one stored value: it
    changes only if all of them get the same new values; `unshare` gives those that change a value of their own.

    Raises: KeyError, TypeError, ValueError, OverflowError, UnsupportedError: what does not fit. Nothing is written.
    Otherwise as `saving.save`.
    """
    target = path if destination is None else destination
    with Asset(path, constants=True, stored=True, max_nbytes=max_nbytes) as asset:
        asset.opened.require_readable()
        require_target(asset, target, force)
        find = partial(_find, asset)
        targets = pair_by_name(given, find, asset.path or "", how)
        values = _group(asset, targets)
        problems = Problems()
        for value in values:
            problem = _problem(value, how.unshare)
            if problem is not None:
                problems.add(problem)
        problems.raise_any()
        new = _rewritten(asset, values)
        rows = [
            _row(asset, row, value, new, target, is_in_place([path], target))
            for value in values
            for row in value.targets.values()
        ]
        order = {row.name: number for number, row in enumerate(targets)}
        report = RefitReport(path, target, sorted(rows, key=lambda row: order[row.name]), not dry_run).without(given)
        if not dry_run:
            counter = ProgressCounter(how.progress, (asset[row.name] for row in targets))
            for row in targets:
                row.is_read = partial(counter.add_tensor, row.name, asset[row.name])
            save(asset, new, target, force)
        return report


def _find(asset: Asset, name: str) -> tuple[str, AssetTensor]:
    """Return a constant that may change, by any of its names."""
    if name not in asset:
        with Asset(asset.path, max_nbytes=asset.budget.given_nbytes) as dense:
            if name in dense:
                message = f"{name}: expected a weight that is stored dense, got a compressed one"
                raise UnsupportedError(
                    f"{message}; its parts can change: {', '.join(p.name for p in dense[name].parts.values())}"
                )
        raise KeyError(unknown("weight", name, asset, asset.path))
    tensor = asset[name]
    if tensor.ordinal < 0:
        raise UnsupportedError(f"{name}: expected a weight, got a constant inside the decomposition of an operation")
    return tensor.name, tensor


def _group(asset: Asset, targets: list[GivenTensor]) -> list[_Value]:
    """Return the stored values that change."""
    users: dict[Any, list[str]] = {}
    for name, tensor in asset.items():
        if tensor.op == "constant":
            users.setdefault(asset.program.stored(tensor.row.op).key, []).append(name)
    values: dict[Any, _Value] = {}
    for row in targets:
        stored = asset.program.stored(asset[row.name].row.op)
        value = values.setdefault(stored.key, _Value(stored, users[stored.key]))
        value.targets[row.name] = row
    return list(values.values())


def _problem(value: _Value, unshare: bool) -> Exception | None:
    """Return why a value cannot change, if it cannot."""
    if unshare or (len(value.targets) == len(value.users) and _are_alike(value)):
        return None
    names = list(value.targets)
    others = [name for name in value.users if name not in value.targets]
    if others:
        message = f"{names[0]}: expected a value of its own, got one that {some(others, _MAX_NAMES)} has too"
        return ValueError(f"{message}: give them the same new values, or unshare (--unshare)")
    message = (
        f"{some(names, _MAX_NAMES)}: expected equal new values, since they are one stored value, got different ones"
    )
    return ValueError(f"{message} (--unshare stores them apart)")


def _are_alike(value: _Value) -> bool:
    """Whether all targets of a value get the same bytes."""
    first, *others = value.targets.values()
    if all(row.given == first.given and row.dtype == first.dtype for row in others):
        return True
    own = first.read()
    return all(row.read().tobytes() == own.tobytes() for row in others)


def _bytes_of(asset: Asset, row: GivenTensor) -> Any:
    """Return the stored form of new values: little-endian, sub-byte elements packed."""
    return stored_bytes(np.ascontiguousarray(row.read()), asset[row.name].mil_dtype)


def _nbytes_of(asset: Asset, row: GivenTensor) -> int:
    return asset[row.name].mil_dtype.nbytes(prod(row.shape))


def _rewritten(asset: Asset, values: list[_Value]) -> NewBytecode:
    """Return the bytecode with new values: patched where every value keeps its place and size, else whole."""
    whole: list[_Value] = []
    apart: list[_Value] = []
    for value in values:
        (whole if len(value.targets) == len(value.users) and _are_alike(value) else apart).append(value)
    changes: list[Patch] = []
    grown: list[_Value] = []
    for value in whole:
        row = next(iter(value.targets.values()))
        nbytes = _nbytes_of(asset, row)
        if nbytes != value.stored.nbytes or (value.stored.is_splat and prod(row.shape) > 1):
            grown.append(value)  # one element was repeated
        else:
            later = Later(nbytes, partial(_bytes_of, asset, row))
            changes.append(Patch(BYTECODE, value.stored.offset, later))
    if not apart and not grown:
        return patched(asset.mapping.nbytes, changes)
    emitter = Emitter(asset.program.bytecode)
    for value in whole:
        row = next(iter(value.targets.values()))
        data = Later(_nbytes_of(asset, row), partial(_bytes_of, asset, row))
        if value.stored.resource is not None:
            emitter.resources[value.stored.resource] = emitter.resources[value.stored.resource]._replace(data=data)
        else:
            emitter.attributes[value.stored.attribute] = _attribute(emitter, data, prod(row.shape))
    for value in apart:
        made: dict[str, int] = {}
        for name, row in value.targets.items():
            number = made.get(row.given)
            if number is None:
                data = Later(_nbytes_of(asset, row), partial(_bytes_of, asset, row))
                number = made[row.given] = emitter.add("attributes", _attribute(emitter, data, prod(row.shape)))
            emitter.set_properties(asset[name].row.op, emitter.add("properties", varint(number)))
    return emitter.pieces(), None


def _attribute(emitter: Emitter, data: Later, count: int) -> bytes:
    """Return the attribute of a value: inline if it is small, else with a resource of its own."""
    if count < INLINE_COUNT or not emitter.has_resources:
        raw = bytes(memoryview(data.make()))
        return varint(DENSE) + b"\0" + varint(len(raw)) + raw
    return varint(RESOURCE) + varint(emitter.add_resource(NewResource(emitter.new_key(), ALIGNMENT, data)))


def _row(asset: Asset, row: GivenTensor, value: _Value, new: NewBytecode, target: str, in_place: bool) -> Refitted:
    tensor = asset[row.name]
    others = [name for name in value.users if name not in value.targets]
    is_whole = len(value.targets) == len(value.users)
    return Refitted(
        row.name, row.given, tensor.mil_dtype, row.shape, _nbytes_of(asset, row), row.given_dtype, row.counts,
        target, in_place and new[1] is not None, unshared="" if is_whole else others[0],
    )  # fmt: skip
