"""The rows of a listing: of an array in a file, and as JSON."""

from contextlib import suppress
from math import prod
from typing import Any

from ...errors import UnsupportedError
from ...model.lazy import LazyTensor, dtype_text
from ...model.rows import Listed, scheme_of

_MORE: dict[str, Any] = {"function": "", "op": "", "file": None, "offset": None, "compression": None}


def array_row(name: str, array: LazyTensor, path: str) -> Listed:
    """What is listed of an array; also of one whose dtype or shape no array can have."""
    shape: tuple[int | None, ...] = (None,)
    with suppress(UnsupportedError):
        shape = array.shape
    count = None if None in shape else prod(shape)  # type: ignore[arg-type]
    nbytes: int | None = None
    with suppress(UnsupportedError):
        nbytes = getattr(array, "stored_nbytes", None)
        nbytes = array.nbytes if nbytes is None else nbytes
    function, op, file, offset, compression = (getattr(array, key, default) for key, default in _MORE.items())
    return Listed(name, dtype_text(array), shape, count, nbytes, function, op, file or path, offset, compression)


def row_document(row: Listed) -> dict[str, Any]:
    """Return a row as `ls --json` prints it."""
    document = row._asdict() | {"compression": scheme_of(row)}
    del document["element_count"]
    return document
