"""Which constants of a model are stored as one record."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _codec
from ..errors import ResolveError
from ..program.scan import Program
from ..storage.beneath import Location
from .model import Model
from .package import Source, resolve

Key = tuple[str, int]
"""(Real path of a weight file, offset of the record's metadata)."""


class User(NamedTuple):
    """A constant that refers to a record.

    Attributes:
        name: of the weight, or of the part of a compressed one.
        source, program, constant: where it is in the model.
    """

    name: str
    source: Source
    program: Program
    constant: _codec.Constant


def record_users(model: Model) -> dict[Key, list[User]]:
    """Return the constants that refer to each record, parts of compressed weights among them."""
    places: dict[tuple[Location | None, str], str] = {}
    names = {id(t.constant): t.name for t in model.values() if t.constant is not None}
    users: dict[Key, list[User]] = {}
    for source, program in model.scans:
        for c in program.scan.constants:
            if c.storage == _codec.BLOB:
                name = names.get(id(c)) or program.part_names.get(id(c)) or program.path(c.op, c)
                key = _place(places, source, c.text), c.blob_offset
                users.setdefault(key, []).append(User(name, source, program, c))
    return users


def blob_users(model: Model) -> dict[Key, list[str]]:
    """Return the names of the weights, and of the parts of compressed ones, that are stored as each record."""
    return {key: [user.name for user in users] for key, users in record_users(model).items()}


def require_unshared(model: Model, staged: Mapping[str, Any]) -> None:
    """Refuse to change a record that is also another weight, unless that weight gets the same values.

    Args:
        staged: name -> stored bytes, of weights that are in weight files.

    Raises:
        ValueError: it does not; the message names it.
    """
    if not staged:
        return
    for names in blob_users(model).values():
        changed = [name for name in names if name in staged]
        for other in names if changed and len(names) > 1 else ():
            first = changed[0]
            if other not in staged:
                words = f"{first}: expected new values for {other} too, which is the same blob, got none"
                raise ValueError(words)
            if other != first and not have_equal_bytes(staged[first], staged[other]):
                words = f"{first}: expected equal values for {other}, which is the same blob, got others"
                raise ValueError(words)


def have_equal_bytes(a: Any, b: Any) -> bool:
    """Whether two C-contiguous buffers of any format have the same bytes."""
    if a is b:
        return True
    first, second = _codec.Buffer(a), _codec.Buffer(b)
    return first.nbytes == second.nbytes and _codec.equal_bytes(first, 0, second, 0, first.nbytes)


def _place(places: dict[tuple[Location | None, str], str], source: Source, text: str) -> str:
    """Return the real path of a weight file; an unresolvable reference equals no other."""
    key = (source.directory, text)
    if key not in places:
        try:
            places[key] = resolve(*key).real()
        except ResolveError:
            places[key] = text
    return places[key]
