"""What milblob.tvm offers to functions and commands below it, which cannot import it: see `milblob.formats.archive`."""

from collections.abc import Iterable

from ..analysis.check_blob import Finding
from ..formats.archive import is_archive
from .arrays import open_arrays
from .check import check_archive, check_params
from .refit import refit
from .report import CODES

__all__ = ["check", "codes", "open_arrays", "refit"]


def codes() -> Iterable[str]:
    """Return every code that a finding of `check` can have."""
    return CODES


def check(path: str, max_nbytes: int | None = None) -> list[Finding]:
    """Check an archive, or else a `.params` file.

    Raises:
        OSError: it cannot be opened.
    """
    return check_archive(path, max_nbytes=max_nbytes) if is_archive(path) else check_params(path)
