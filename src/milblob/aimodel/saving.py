"""Writing a changed bundle, in place through one journal or as a copy, always with the hash of its bytecode."""

import os
import stat

from ..errors import FormatError, UnsupportedError
from ..model.replaceable import IsPart, require_apart, require_name, require_replaceable
from ..rewrite.copying import copy_entry, new_file, set_mode, walk
from ..rewrite.destination import is_in_place
from ..storage import journal, paths, pending
from ..storage.beneath import Location
from ..storage.locks import locked_directory
from ..storage.output import NewDirectory, NewFile, described
from ..storage.transfer import write_at
from .asset import BYTECODE, HASH, METADATA, Asset
from .emit import Piece, Span, sha256, size_of, write

_PARTS = frozenset([BYTECODE, HASH, METADATA])


NewBytecode = tuple[list[Piece], list[journal.Patch] | None]
"""The whole file, and what differs where it keeps its size and its layout; None if the whole file is written."""


def patched(nbytes: int, changes: list[journal.Patch]) -> NewBytecode:
    """Return a file of `nbytes` bytes with changes at their offsets, which do not overlap."""
    pieces: list[Piece] = []
    at = 0
    for change in sorted(changes, key=lambda change: change.offset):
        pieces += [Span(at, change.offset - at), change.data]
        at = change.offset + size_of(change.data)
    pieces.append(Span(at, nbytes - at))
    return [piece for piece in pieces if size_of(piece)], changes


def save(asset: Asset, new: NewBytecode, target: str, force: bool) -> None:
    """Write a bundle with other bytecode, and its hash.

    `target`: a path; the bundle itself is changed in place. `force`: replace what is at `target`, a bundle or a file.
    Raises: FileExistsError: something is there. ValueError: a place inside or around the bundle. BlockingIOError:
    another writer has it. OSError: it cannot be written. Nothing has changed then.
    """
    source = asset.path or ""
    in_place = is_in_place([source], target)
    if not asset.is_directory:
        require_target(asset, target, force)
        with NewFile(target, force=force or in_place) as file:
            write(asset.mapping, new[0], file.fd)
    elif in_place:
        _change(asset, new)
    else:
        _copy(asset, new, target, force)


def require_target(asset: Asset, target: str, force: bool) -> None:
    """Refuse a target before anything is computed; raises as `save`."""
    in_place = is_in_place([asset.path or ""], target)
    if not asset.is_directory:
        _require_alone(asset.path or "")
        _require_alone(target)
        if not in_place:
            require_name(target, "bytecode")
        return
    if in_place:
        return
    require_name(target, "aimodel")
    source = asset.path or ""
    require_apart(source, target)
    require_replaceable(target, "a bundle of Core AI", force, like=[paths.real(source)], understand=_understand)


def _require_alone(path: str) -> None:
    """Refuse the bytecode of a bundle, or a link to it: the bundle's hash would be that of other bytes."""
    folder, name = os.path.split(paths.real(path))
    if name == BYTECODE and paths.is_there(os.path.join(folder, HASH)):
        message = f"file: expected a bundle or a file outside a bundle, got the {BYTECODE} of a bundle"
        raise UnsupportedError(f"{message}; give {folder}", file=path)


def _change(asset: Asset, new: NewBytecode) -> None:
    root = paths.real(asset.path or "")
    with locked_directory(root):
        pending.require_none(root)  # of a writer that has died since the bundle was opened
        asset.mapping.require_named()
        pieces, changes = new
        patches = list(changes or [])
        replacements = []
        if changes is None:
            replacements.append(journal.Replacement(BYTECODE, lambda file: write(asset.mapping, pieces, file)))
        if patches or replacements:
            digest = sha256(asset.mapping, pieces)
            hashed = _hash_change(root, digest)
            (patches if isinstance(hashed, journal.Patch) else replacements).append(hashed)  # type: ignore[arg-type]
        journal.commit(root, "", patches, replacements)


def _hash_change(root: str, digest: bytes) -> journal.Patch | journal.Replacement:
    place = os.path.join(root, HASH)
    if not paths.is_there(place):
        message = f"bundle: expected {HASH} in it, which names the compiled model that devices keep, got none"
        raise FormatError(f"{message} (write a new bundle: -o)", file=root, code="missing-file")
    status = os.lstat(place)
    if not stat.S_ISREG(status.st_mode):
        raise FormatError(f"{HASH}: expected a regular file, got {described(status)}", file=place, code="missing-file")
    if status.st_size == len(digest):
        return journal.Patch(HASH, 0, digest)
    return journal.Replacement(HASH, lambda file: write_at(file, [digest], 0))


def _copy(asset: Asset, new: NewBytecode, target: str, force: bool) -> None:
    require_target(asset, target, force)
    pieces, _ = new
    source = Location(paths.real(asset.path or ""))
    with NewDirectory(target, replace=paths.is_directory(target)) as made:
        for name, is_directory in walk(source.path):
            if is_directory:
                os.mkdir(os.path.join(made.name, name))
            elif name not in (BYTECODE, HASH):
                copy_entry(source.path, name, os.path.join(made.name, name), least=stat.S_IRUSR)
        place = os.path.join(made.name, BYTECODE)
        with new_file(place) as fd:
            write(asset.mapping, pieces, fd)
        mode = stat.S_IMODE(os.fstat(asset.mapping.fd).st_mode) if asset.mapping.fd >= 0 else 0o644
        set_mode(place, mode, least=stat.S_IRUSR)
        with new_file(os.path.join(made.name, HASH)) as fd:
            write_at(fd, [sha256(asset.mapping, pieces)], 0)


def _understand(root: Location) -> IsPart:
    """Accept the files of a bundle."""
    if not paths.is_there(os.path.join(root.path, BYTECODE)):
        raise FormatError(f"bundle: expected {BYTECODE} in it, got none", file=root.path)
    return lambda name: name in _PARTS
