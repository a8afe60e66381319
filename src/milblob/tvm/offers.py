"""What milblob.tvm does for functions and commands that it is not imported by; see `milblob.formats.archive`."""

from ..analysis.check_blob import Finding
from ..formats.archive import is_archive
from .arrays import open_arrays
from .check import check_archive, check_params
from .refit import refit

__all__ = ["check", "open_arrays", "refit"]


def check(path: str, max_nbytes: int | None = None) -> list[Finding]:
    """Check an archive, or else a `.params` file.

    Raises:
        OSError: it cannot be opened.
    """
    return check_archive(path, max_nbytes=max_nbytes) if is_archive(path) else check_params(path)
