"""File names for tensors: safe on every file system, unique, readable where possible."""

import string
from collections import Counter
from collections.abc import Iterable

_KEPT = frozenset(string.ascii_letters + string.digits + "_-.#")
_KEPT_LOWER = frozenset(string.ascii_lowercase + string.digits + "_-.#")
# Windows reserves these names, with any suffix.
_RESERVED = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))])
_MAX_NCHARS = 200  # file systems allow 255, including the suffix


def require_texts(names: Iterable[str]) -> None:
    """Refuse names that UTF-8 cannot hold: bytes of a name in a file that are not UTF-8 are lone surrogates.

    Raises: ValueError: there is one.
    """
    for name in names:
        if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
            raise ValueError(f"name of a tensor: expected UTF-8, which this format needs, got {name!r:.200}")


def escaped(name: str, kept: frozenset[str] = _KEPT) -> str:
    """Return a file name, without suffix, for a tensor's name.

    ASCII letters, digits and ``_ - . #`` are kept; every other character becomes ``%XX`` per byte of its UTF-8. So does
    a first character that would hide the file or turn it into a Windows device. A result that is too long is cut and
    ends in ``~`` and a hash. Different names give different results.
    """
    if name.startswith(".") or name.partition(".")[0].lower() in _RESERVED or not name:
        head, rest = f"%{ord(name[0]):02X}" if name else "%", name[1:]
    else:
        head, rest = "", name
    result = head + "".join(c if c in kept else "".join(f"%{byte:02X}" for byte in c.encode()) for c in rest)
    if len(result) > _MAX_NCHARS:
        import hashlib

        result = f"{result[: _MAX_NCHARS - 40]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return result


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return a unique file name, without suffix, for each of several tensors; unique even if case is ignored."""
    names = list(names)
    alike = Counter(escaped(name).lower() for name in names)
    return {name: escaped(name, _KEPT if alike[escaped(name).lower()] == 1 else _KEPT_LOWER) for name in names}
