"""The canonical form of a model file: the same model gives the same bytes, in whatever order it was written."""

from typing import Any

from ..errors import UnsupportedError
from ..program import schema

DATE = "com.github.apple.coremltools.conversion_date"
"""The one entry of the metadata that tells when a model was made, and nothing of the model."""


def canonical_model(data: Any, file: str | None = None) -> bytes:
    """Return a Model message with its fields and the keys of its maps in order, and without the date of conversion.

    protobuf leaves the order of maps open, and coremltools writes another one each time. Fields that nobody knows stay.

    Args:
        data: of the model file; the result is made in memory.
        file: its name, for messages.

    Raises:
        UnsupportedError: more bytes than protobuf takes. FormatError: they do not parse.
    """
    with memoryview(data) as view:
        if view.nbytes > schema.MAX_NBYTES:
            words = f"canonical: expected a model file of at most {schema.MAX_NBYTES} bytes, which protobuf can sort"
            raise UnsupportedError(f"{words}, got {view.nbytes}", file=file)
    message = schema.parse("Model", data, file=file)
    if DATE in message.description.metadata.userDefined:
        del message.description.metadata.userDefined[DATE]
    return bytes(message.SerializeToString(deterministic=True))
