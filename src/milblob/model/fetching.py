"""Fetching the values of many tensors of a remote model at once: a request for each costs the time of a round trip."""

from collections.abc import Iterable
from typing import Any, cast

from ..blobs.reader import BlobReader
from ..errors import MilblobError
from ..mirrored import FILES
from ..storage.mapped import MappedFile
from .places import RecordPlace
from .stored import StoredArray
from .tensor import Tensor


def fetch(tensors: Iterable[Any]) -> None:
    """Fetch the bytes of tensors that are about to be read, also of parts of compressed ones, and of stored arrays.

    Does nothing for local models. Skips bytes that cannot be found; reading the tensor then reports the reason.

    `tensors`: of any models and files of arrays.
    Raises: OSError: the files cannot be fetched. FormatError: they have changed.
    """
    if not FILES:
        return
    spans: dict[int, tuple[BlobReader, list[tuple[int, int]]]] = {}
    stretches: dict[int, tuple[MappedFile, list[tuple[int, int]]]] = {}
    pending: list[Tensor] = []
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            pending.append(tensor)
        elif isinstance(tensor, StoredArray) and tensor.place.stretch is not None:
            mapping, offset, nbytes = tensor.place.stretch
            stretches.setdefault(id(mapping), (mapping, []))[1].append((offset, nbytes))
    while pending:
        tensor = pending.pop()
        if tensor.chain is not None:
            pending += cast("Iterable[Tensor]", tensor.parts.values())
            continue
        place = tensor.place
        if isinstance(place, RecordPlace):
            try:
                reader = place.reader()
            except MilblobError:
                continue
            if reader.mapping.is_partial:
                spans.setdefault(id(reader), (reader, []))[1].append(place.span)
    for reader, records in spans.values():
        reader.fetch(records)
    for mapping, parts in stretches.values():
        mapping.need(parts)
