"""The ModelDescription in coremldata.bin, which lies beside the text of a compiled model.

Apple does not publish the format. The files examined (docs/mil-text.md) have one form, in little-endian: the field
number of Model for the kind of model, three more numbers, the text "generic", the specification version, three numbers
of zero, the description, and a tail. A text and the description have their length before them. Any other form is
skipped, because its meaning is unknown.
"""

import struct
from contextlib import closing

from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile

NAME = "coremldata.bin"
_ML_PROGRAM = 502
_TEXT = b"generic"
_HEAD = struct.Struct(f"<I24sQ{len(_TEXT)}sQ24sQ")
_MAX_NBYTES = 64 << 20


def described(directory: Location) -> bytes | None:
    """Return the serialized ModelDescription of a compiled ML Program; None if there is none, or another form.

    `directory`: that holds model.mil.
    Raises: As opening the file.
    """
    location = directory.beneath(NAME)
    if not paths.is_file(location.path):
        return None
    with closing(MappedFile(location)) as mapping, memoryview(mapping.live()) as data:
        if not _HEAD.size <= data.nbytes <= _MAX_NBYTES:
            return None
        kind, _, text_nbytes, text, _, zeros, nbytes = _HEAD.unpack_from(data)
        is_known = kind == _ML_PROGRAM and text_nbytes == len(_TEXT) and text == _TEXT and not any(zeros)
        is_whole = nbytes <= data.nbytes - _HEAD.size
        return bytes(data[_HEAD.size : _HEAD.size + nbytes]) if is_known and is_whole else None
