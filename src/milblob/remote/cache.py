"""The cache of remote files, as a user chooses it."""

import os
from dataclasses import dataclass

from ..arguments import as_count, as_path

DEFAULT_NBYTES = 10 << 30
"""What a cache may take on disk, unless the user gives another size."""


@dataclass(frozen=True)
class Cache:
    """A directory that keeps what is fetched of remote files, for `cache=` of `open` and the like.

    Attributes:
        path: of the directory, which is made if there is none. Nobody but its owner may write to it.
        max_nbytes: what it may take on disk; the entries that were not used for the longest time go first.

    Examples:
        >>> cache = milblob.Cache("fetched", max_nbytes=1 << 30)
        >>> len(milblob.load(f"{url}/demo.mlpackage", cache=cache))
        69
    """

    path: str | os.PathLike[str]
    max_nbytes: int = DEFAULT_NBYTES

    def __post_init__(self) -> None:
        """Check the arguments. Raises: TypeError, ValueError."""
        as_path(self.path)
        as_count("max_nbytes", self.max_nbytes)


CacheLike = Cache | str | os.PathLike[str] | None
"""What `cache=` takes; a path: that directory, of DEFAULT_NBYTES."""
