"""Fetching the values of many tensors of a remote model at once: a request for each costs the time of a round trip."""

from collections.abc import Iterable
from typing import Any, cast

from ..blobs.reader import BlobReader
from ..errors import MilblobError
from ..mirrored import FILES
from .places import RecordPlace
from .tensor import Tensor


def fetch(tensors: Iterable[Any]) -> None:
    """Fetch the bytes in weight files of tensors that are about to be read, also of parts of compressed ones.

    Does nothing for local models. Skips bytes that cannot be found; reading the tensor then reports the reason.

    Args:
        tensors: of any models; others than `Tensor` are left out.

    Raises:
        OSError: the files cannot be fetched. FormatError: they have changed.
    """
    if not FILES:
        return
    spans: dict[int, tuple[BlobReader, list[tuple[int, int]]]] = {}
    pending = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
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
