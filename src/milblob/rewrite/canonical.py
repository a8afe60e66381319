"""The canonical form of a model file: equal models give equal bytes, in any order of fields and maps."""

from typing import Any

from ..errors import UnsupportedError
from ..program import schema

DATE = "com.github.apple.coremltools.conversion_date"
"""The entry of the metadata that holds only the time of conversion."""


def canonical_model(data: Any, file: str | None = None) -> bytes:
    """Return a Model message with its fields and the keys of its maps in order, and without the date of conversion.

    protobuf leaves the order of maps open, and coremltools writes another one each time. Unknown fields are kept.

    `data`: of the model file; the result is made in memory. `file`: its name, for messages.
    Raises: UnsupportedError: more bytes than protobuf takes. FormatError: they do not parse.
    """
    with memoryview(data) as view:
        if view.nbytes > schema.MAX_NBYTES:
            message = f"canonical: expected a model file of at most {schema.MAX_NBYTES} bytes, which protobuf can sort"
            raise UnsupportedError(f"{message}, got {view.nbytes}", file=file)
    model = schema.parse("Model", data, file=file)
    if DATE in model.description.metadata.userDefined:
        del model.description.metadata.userDefined[DATE]
    return bytes(model.SerializeToString(deterministic=True))
