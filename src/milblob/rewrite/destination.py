"""Checks of the destination of a rewritten model."""

import os
import stat
from collections.abc import Iterator

from ..errors import DestinationExistsError
from ..model.replaceable import require_name, require_replaceable
from ..storage import paths

_MARKERS = {".mlpackage": ("Manifest.json",), ".mlmodelc": ("model.mil", "model0", "coremldata.bin")}


def is_in_place(sources: list[str], destination: str) -> bool:
    """Whether a destination is one of the sources, under any name; another hard link to it does not count."""
    for source in sources:
        status, target = paths.status(source), paths.status(destination)
        if status is None or target is None or not os.path.samestat(status, target):
            continue
        # A directory has one name. A file may have several hard links: replacing one leaves the others alone.
        if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1 or paths.real(source) == paths.real(destination):
            return True
    return False


def require_destination(sources: list[str], kind: str, destination: str, force: bool) -> None:
    """Refuse a destination that may not be replaced, lies inside a model, or contains one of the sources.

    Args:
        sources: paths, all of `kind`.
        kind: "mlpackage", "mlmodelc", "mlmodel", "mil", "blob" or "listing".
        force: allow replacing what is there: a file by a file, a model by a model of the same kind without any other
            files in it (see `require_replaceable`). Nothing else is ever replaced.

    Raises:
        ValueError: a path inside the source, around it or in another model; the suffix of another kind.
        FileExistsError: it exists and may not be replaced.
    """
    require_name(destination, kind)
    is_directory = kind in ("mlpackage", "mlmodelc")
    real = os.path.realpath(destination)
    require_outside_models(sources, destination)
    if is_in_place(sources, destination):
        return
    for source in sources:
        if paths.is_directory(real) and any(_is_same(parent, real) for parent in _parents(os.path.realpath(source))):
            raise ValueError(f"output {destination}: expected a place outside of models, got one that holds {source}")
    if is_directory:
        require_replaceable(destination, kind, force, like=sources)
        return
    if not paths.is_there(destination):
        return
    if not force:
        raise DestinationExistsError(destination)
    if paths.is_directory(real):
        raise FileExistsError(f"{destination}: expected a file to replace, got a directory")


def require_outside_models(sources: list[str], destination: str) -> None:
    """Refuse a destination inside one of the sources, or inside another model. Raises: ValueError: it is."""
    for parent in _parents(os.path.realpath(destination)):
        if any(paths.is_directory(source) and _is_same(source, parent) for source in sources) or _is_model(parent):
            raise ValueError(f"output {destination}: expected a place outside of models, got one in {parent}")


def require_new_package(sources: list[str], destination: str, force: bool) -> None:
    """Refuse a destination that is not the name of a package, or that `require_destination` refuses.

    `sources`: paths of the models that it is made of.
    Raises: ValueError: another suffix; one of the sources; a path inside or around one. FileExistsError: it exists.
    """
    if not destination.rstrip("/\\").endswith(".mlpackage"):
        raise ValueError(f"destination {destination}: expected a name that ends in .mlpackage")
    if is_in_place(sources, destination):
        raise ValueError(f"destination {destination}: expected a place outside the models, got one of them")
    require_destination(sources, "mlpackage", destination, force)


def require_outside(source: str, target: str) -> None:
    """Refuse an output that is a model, lies inside it, or contains it. Raises: ValueError: it does."""
    real_source, real_target = os.path.realpath(source), os.path.realpath(target)
    inside = real_target == real_source or real_target.startswith(real_source + os.sep)
    around = paths.is_directory(real_target) and real_source.startswith(real_target.rstrip(os.sep) + os.sep)
    if inside or around:
        how = "holds" if around else "is, or is in,"
        raise ValueError(f"output {target}: expected a place outside the model, got one that {how} {source}")


def require_no_part(sources: list[str], destination: str, suffix: str) -> None:
    """Refuse to replace a file of a model, also through a link; for results that may lie inside a model.

    `sources`: paths of the model that is read, and of the files that are open. `suffix`: files of a model that end so
    are none of its own, and may be replaced.
    Raises: ValueError: what is there is part of that model, or of another.
    """
    if not paths.is_there(destination):
        return
    real = os.path.realpath(destination)
    inside = any(_is_model(parent) or any(_is_same(source, parent) for source in sources) for parent in _parents(real))
    if is_in_place(sources, destination) or (inside and not real.endswith(suffix)):
        raise ValueError(
            f"output {destination}: expected a place where no file of a model is, got one that is part of a model"
        )


def _parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _is_same(a: str, b: str) -> bool:
    first, second = paths.status(a), paths.status(b)
    return first is not None and second is not None and os.path.samestat(first, second)


def _is_model(path: str) -> bool:
    """Whether a directory is a model, by name and contents: either alone may also fit another directory."""
    markers = _MARKERS.get(os.path.splitext(path)[1], ())
    return any(paths.is_there(os.path.join(path, name)) for name in markers)
