"""Brings a Program into plain form: every message in one piece, every key of a map once. protobuf does it."""

from .. import _codec
from ..errors import UnsupportedError


def rewrite(buffer: _codec.Buffer, span: tuple[int, int]) -> tuple[_codec.Buffer, tuple[int, int]]:
    """Let protobuf merge split messages and drop repeated map keys. Unknown fields are kept.

    Returns:
        The new bytes, and the Program's place in them.

    Raises:
        UnsupportedError: 2 GiB or more, which protobuf cannot merge. FormatError: protobuf refuses the bytes.
    """
    from . import schema

    offset, nbytes = span
    if nbytes >= 1 << 31:
        raise UnsupportedError(
            f"Program in pieces: expected less than 2 GiB, which protobuf can merge, got {nbytes} bytes",
            file=buffer.name,
        )
    data = schema.parse("Program", memoryview(buffer)[offset : offset + nbytes]).SerializeToString(deterministic=True)
    return _codec.Buffer(data, buffer.name), (0, len(data))
