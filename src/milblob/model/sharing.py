"""The weights and constants of a model that share a stored record."""

import functools
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .. import _codec
from ..errors import FormatError, ResolveError, UnsupportedError
from ..progress import NO_PROGRESS, ProgressCounter
from ..storage import paths
from ..storage.beneath import Location
from ..wording import escape
from .assigning import stored_of
from .lazy import LazyTensor
from .model import Model
from .open_program import OpenProgram
from .package import resolve
from .tensor import Tensor

Key = tuple[str, int]
"""(Real path of a weight file, offset of the record's metadata)."""


class User(NamedTuple):
    """A constant that refers to a record."""

    name: str  # of the weight, or of the part of a compressed one
    program: OpenProgram  # where it is in the model
    constant: _codec.Constant


def record_users(model: Model) -> dict[Key, list[User]]:
    """Return the constants that refer to each record, parts of compressed weights among them."""
    places: dict[tuple[Location | None, str], str] = {}
    names = {t.constant: t.name for t in model.values() if t.constant is not None}
    users: dict[Key, list[User]] = {}
    for program in model.parts:
        scan = program.scan
        for c in scan.constants:
            if c.storage == _codec.BLOB:
                name = names.get(c) or (scan.name_of(c) if scan.is_part(c) else scan.path(c.op, c))
                key = _place(places, program.directory, c.text), c.blob_offset
                users.setdefault(key, []).append(User(name, program, c))
    return users


def blob_users(model: Model) -> dict[Key, list[str]]:
    """Return the names of the weights, and of the parts of compressed ones, that are stored as each record."""
    return {key: [user.name for user in users] for key, users in record_users(model).items()}


def _real(path: str) -> str:
    """Return a path without links; as it is where it can be no path, as a model may name one."""
    try:
        return os.path.realpath(path)
    except ValueError:  # NUL, half a character
        return path


def by_blob(tensors: Mapping[str, LazyTensor]) -> dict[str, list[str]]:
    """Put weights together that are stored as the same records, such as those of two functions, by the first's name."""
    found: dict[Any, list[str]] = {}
    real = functools.cache(_real)
    for name, tensor in tensors.items():
        key: Any = name
        if isinstance(tensor, Tensor):
            stored = list(tensor.parts.values()) if tensor.chain is not None else [tensor]
            if stored and all(part.is_blob for part in stored):
                places = tuple((real(part.file or ""), part.offset) for part in stored)
                key = (tensor.op, tensor.mil_dtype, tensor.shape, places)
        found.setdefault(key, []).append(name)
    return {names[0]: names for names in found.values()}


def require_unshared(model: Model, staged: Mapping[str, Any]) -> None:
    """Refuse to change a record that is also another weight, unless that weight gets the same values.

    `staged`: name -> stored bytes, of weights that are in weight files.
    Raises: ValueError: it does not; the message names it.
    """
    if not staged:
        return
    for names in blob_users(model).values():
        changed = [name for name in names if name in staged]
        for other in names if changed and len(names) > 1 else ():
            first = changed[0]
            if other not in staged:
                message = f"{first}: expected new values for {other} too, which is the same blob, got none"
                raise ValueError(escape(message))
            if other != first and not have_equal_bytes(staged[first], staged[other]):
                message = f"{first}: expected equal values for {other}, which is the same blob, got others"
                raise ValueError(escape(message))


def require_no_other_data(model: Model, written: Iterable[Tensor], counter: ProgressCounter = NO_PROGRESS) -> None:
    """Refuse to write into the data of a record that is not written: another weight would change with it.

    `written`: what gets new values; only those in weight files count. `counter`: notes each weight of the model.
    Raises: FormatError: records overlap.
    """
    spans: dict[str, list[tuple[int, int, Tensor]]] = {}
    real, known = functools.cache(paths.real), {}
    for tensor in written:
        if tensor.is_blob:
            known[tensor.name] = mapping, offset, nbytes = stored_of(tensor)
            spans.setdefault(real(str(mapping.name)), []).append((offset, nbytes, tensor))
    for changes in spans.values():
        changes.sort(key=lambda change: change[0])
    starts = {file: [change[0] for change in changes] for file, changes in spans.items()}
    for listed in counter.noting(model.values() if spans else ()):
        for other in listed.parts.values() if listed.chain is not None else [listed]:
            if not other.is_blob:
                continue
            try:
                mapping, offset, nbytes = known.get(other.name) or stored_of(other)
            except (FormatError, ResolveError, UnsupportedError):
                continue  # an unreadable weight has no values to lose
            file = real(str(mapping.name))
            begins = starts.get(file, [])
            for at in range(max(bisect_right(begins, offset) - 1, 0), bisect_left(begins, offset + nbytes)):
                begin, count, tensor = spans[file][at]
                if tensor.offset != other.offset and begin + count > offset:
                    message = f"data of {tensor.name}: expected none of another record, got some of {other.name}"
                    raise FormatError(message, offset=max(offset, begin), file=mapping.name)


def have_equal_bytes(a: Any, b: Any) -> bool:
    """Whether two C-contiguous buffers of any format have the same bytes."""
    if a is b:
        return True
    first, second = _codec.Buffer(a), _codec.Buffer(b)
    return first.nbytes == second.nbytes and _codec.equal_bytes(first, 0, second, 0, first.nbytes)


def _place(places: dict[tuple[Location | None, str], str], directory: Location | None, text: str) -> str:
    """Return the real path of a weight file; an unresolvable reference equals no other."""
    key = (directory, text)
    if key not in places:
        try:
            places[key] = resolve(*key).real()
        except ResolveError:
            places[key] = text
    return places[key]
