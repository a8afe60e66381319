"""milblob inside coremltools: its reader and writer of weight files, and fast paths where coremltools is slow.

    import milblob.compat.coremltools as compat
    compat.install()            # before or after `import coremltools`; undone by compat.uninstall()
    with compat.install():      # or for the length of a block
        ct.convert(...)

`Installation.places` lists what is replaced. The files of coremltools are not changed, and its results are the same,
byte for byte. Where its native modules are missing (Windows, a Python without a wheel), calls that fail with
"BlobWriter not loaded" work after `install()`.
"""

import importlib
import inspect
import operator
import sys
import threading
import warnings
from types import ModuleType
from typing import Any, NamedTuple, Self

from ..errors import UnsupportedError
from .fastpaths import FAST_PATHS, FastPath, replacement
from .modelpackage import ModelPackage
from .storage import _BlobStorageReader, _BlobStorageWriter

TESTED_VERSIONS = ("8.2", "8.3.0", "9.0")
"""Tested versions of coremltools. With others `install` omits the fast paths unless asked for them."""

NATIVE = "coremltools.libmilstoragepython"
_PACKAGES = "coremltools.libmodelpackage"
_CLASSES = {"_BlobStorageReader": _BlobStorageReader, "_BlobStorageWriter": _BlobStorageWriter}
_IMPORTERS = (
    ("coremltools.converters.mil.backend.mil.load", "BlobWriter", _BlobStorageWriter),
    ("coremltools.converters.mil.frontend.milproto.load", "BlobReader", _BlobStorageReader),
)
_NOTHING: Any = object()
_lock = threading.RLock()
_current: "Installation | None" = None


class Replaced(NamedTuple):
    """A name that is replaced.

    Attributes:
        owner: the module or class that has the attribute, or `sys.modules`.
        name: of the attribute, or of the module.
        old: the previous value, or a mark that there was none.
        new: the replacement.
    """

    owner: Any
    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.owner is sys.modules:
            return f"sys.modules[{self.name!r}]"
        prefix = f"{self.owner.__module__}." if isinstance(self.owner, type) else ""
        return f"{prefix}{self.owner.__name__}.{self.name}"

    def found(self) -> Any:
        """Return the current value."""
        return (self.owner if self.owner is sys.modules else vars(self.owner)).get(self.name, _NOTHING)

    def put(self, value: Any) -> None:
        """Set the value, or remove it."""
        if self.owner is sys.modules and value is _NOTHING:
            del sys.modules[self.name]
        elif self.owner is sys.modules:
            sys.modules[self.name] = value
        elif value is _NOTHING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


class Installation:
    """An installation. As a context manager it is undone at the end, unless it existed before.

    Attributes:
        version: of coremltools.
        places: the replaced names, a `Replaced` each; `str` of one is its dotted name.
        has_fast_paths: whether functions are replaced too, not only the two classes.
    """

    def __init__(self, version: str, places: tuple[Replaced, ...], has_fast_paths: bool, is_first: bool = True) -> None:
        self.version = version
        self.places = places
        self.has_fast_paths = has_fast_paths
        self._is_first = is_first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            if self._is_first and _current is self:
                uninstall()

    def __repr__(self) -> str:
        return f"<milblob in coremltools {self.version}: {len(self.places)} names>"


def install(*, fast_paths: bool | None = None) -> Installation:
    """Put milblob's reader, writer and fast paths where coremltools looks for its own; import coremltools if need be.

    Args:
        fast_paths: whether to replace slow functions too, see docs/compat.md; default: if the version of coremltools is
            one of TESTED_VERSIONS.

    Returns:
        Installation: what was replaced; also a context manager. A second call does nothing.

    Raises:
        ImportError: coremltools is not installed.
        UnsupportedError: this coremltools lacks names that would be replaced or used; the message lists all of them,
            and nothing has been replaced.
        ValueError: it is already installed with other `fast_paths`.
    """
    global _current
    with _lock:
        if _current is not None:
            if fast_paths not in (None, _current.has_fast_paths):
                message = f"fast_paths: expected {_current.has_fast_paths} as installed, got {fast_paths}"
                raise ValueError(f"{message}; uninstall first")
            return Installation(_current.version, _current.places, _current.has_fast_paths, is_first=False)
        package = importlib.import_module("coremltools")
        version = str(getattr(package, "__version__", "of unknown version"))
        if version not in TESTED_VERSIONS:
            left_out = "" if fast_paths is not None else "; the fast paths are left out"
            message = f"coremltools: expected a version that milblob was tested with ({', '.join(TESTED_VERSIONS)}), "
            warnings.warn(f"{message}got {version}{left_out}", RuntimeWarning, stacklevel=2)
            fast_paths = bool(fast_paths)
        has_fast_paths = fast_paths is not False
        missing: list[str] = []
        places = _classes(package, missing)
        if has_fast_paths:
            places += [place for path in FAST_PATHS for place in _function(path, missing)]
        if missing:
            message = f"coremltools {version}: expected {', '.join(dict.fromkeys(missing))}, got none"
            raise UnsupportedError(f"{message} (milblob was tested with {', '.join(TESTED_VERSIONS)})")
        for place in places:
            place.put(place.new)
        _current = Installation(version, tuple(places), has_fast_paths)
        return _current


def uninstall() -> None:
    """Restore everything that `install` has replaced. Does nothing if it is not installed.

    A name that other code has replaced since is left alone, with a RuntimeWarning.
    """
    global _current
    with _lock:
        if _current is None:
            return
        places, _current = _current.places, None
        for place in reversed(places):
            if place.found() is place.new:
                place.put(place.old)
            else:
                message = f"{place}: expected what milblob had put there, got something else; it is left as it is"
                warnings.warn(message, RuntimeWarning, stacklevel=2)


def installed() -> Installation | None:
    """Return the current installation, or None."""
    return _current


# --------------------------------------------------------------------------------------------------------------- places


def _classes(package: ModuleType, missing: list[str]) -> list[Replaced]:
    """The places of the two classes. Names that do not exist are added to `missing`."""
    native = _native(NATIVE)
    if native is None:
        places = _instead(package, NATIVE, _CLASSES)
    else:
        places = [Replaced(native, name, _named(native, name, missing), new) for name, new in _CLASSES.items()]
    for module_name, name, new in _IMPORTERS:
        module = _module(module_name, missing)
        if module is not None:
            places.append(Replaced(module, name, _named(module, name, missing), new))
    if _native(_PACKAGES) is None:  # the native one is kept: it is not slow
        places += _instead(package, _PACKAGES, {"ModelPackage": ModelPackage})
        for module_name in ("coremltools.models.model", "coremltools.models.utils"):
            module = _module(module_name, missing)
            if module is not None:
                places.append(Replaced(module, "_ModelPackage", _named(module, "_ModelPackage", missing), ModelPackage))
    return places


def _native(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # no such file, or one for another platform: coremltools does not distinguish either
        return None


def _instead(package: ModuleType, full_name: str, contents: dict[str, Any]) -> list[Replaced]:
    """Make a module in place of a missing native one."""
    module = ModuleType(full_name, "milblob's classes in the place of coremltools' native module, which is missing.")
    vars(module).update(contents)
    name = full_name.rpartition(".")[2]
    return [
        Replaced(sys.modules, full_name, sys.modules.get(full_name, _NOTHING), module),
        Replaced(package, name, vars(package).get(name, _NOTHING), module),
    ]


def _function(path: FastPath, missing: list[str]) -> list[Replaced]:
    """The place of a function. It, and names that its replacement uses, are added to `missing` if they do not exist."""
    module = _module(path.module, missing)
    if module is None:
        return []
    for needed in path.needs:
        try:
            operator.attrgetter(needed)(module)
        except AttributeError:
            missing.append(f"{path.module}.{needed}")
    owner_name, _, name = path.name.rpartition(".")
    owner = _named(module, owner_name, missing) if owner_name else module
    if owner is None:
        return []
    old = vars(owner).get(name)
    function = old.__func__ if isinstance(old, staticmethod) else old
    message = f"{path.module}.{path.name}({', '.join(path.parameters)})"
    if not inspect.isfunction(function) or tuple(inspect.signature(function).parameters) != path.parameters:
        missing.append(message)
        return []
    new: Any = replacement(path, function, module)
    return [Replaced(owner, name, old, staticmethod(new) if isinstance(old, staticmethod) else new)]


def _module(name: str, missing: list[str]) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        missing.append(name)
        return None


def _named(module: ModuleType, name: str, missing: list[str]) -> Any:
    """Return the value of a name in a module; None if coremltools has set it to None, which is not an error."""
    if name not in vars(module):
        missing.append(f"{module.__name__}.{name}")
    return vars(module).get(name)


__all__ = [
    "TESTED_VERSIONS", "Installation", "Replaced", "_BlobStorageReader", "_BlobStorageWriter", "install", "installed",
    "uninstall",
]  # fmt: skip
