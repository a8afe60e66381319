"""Listings of weight files: the name, dtype, shape and record offset of each tensor.

A bare weight file has records but no names. A listing beside it has them, as JSON, {"format": "milblob", "file": ...,
"nbytes": ..., "hash": ..., "tensors": [{"name", "dtype", "shape", "offset", "nbytes"}]}, or as MIL text, one const
operation for each tensor. A size and a hash, which the weight file has in its header, tie a listing to its weight file.
"""

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from ..dtypes import DType
from ..errors import FormatError, ProgramError
from ..jsontext import as_shape, first_again, parse_json
from ..storage.mapped import MappedFile

MODEL_PATH = "@model_path/"
FORMAT = "milblob"
HEAD_NBYTES = 1024
HASH_AT, HASH_NBYTES = 8, 32  # in the header of a weight file: other writers leave zeros, readers ignore them
_HASH = r"[0-9a-f]{64}"  # patterns are compiled with their first use: few models are listings
_BUILD_INFO = 'dict<tensor<string, []>, tensor<string, []>>({{{{"milblob-weights", "{}"}}}})'
_MIL_STAMP = (
    re.escape(f"program(1.0)\n[buildInfo = {_BUILD_INFO.format('@')}]")
    .replace("@", r"(\d{1,19}) ([0-9a-f]{64})")
    .encode()
)
_MARK = rb'"format"\s*:\s*"milblob"'
_NOT_IN_IDENTIFIERS = r"[^A-Za-z0-9_@]"
_ESCAPES = str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


class Stamp(NamedTuple):
    """Identifies the weight file that a listing belongs to.

    The weight file has the hash too, in reserved bytes of its header, so a comparison reads only the header. The hash
    covers the bytes as first written. A change in place does not update it, and the listing remains valid.
    """

    nbytes: int  # size of the file
    hash: str  # BLAKE3 of everything after its header, as first written: 64 hexadecimal digits

    def require(self, weights: MappedFile) -> None:
        """Refuse any other weight file. Raises: FormatError: another size, or another hash in the header."""
        data = memoryview(weights.need([(0, HASH_AT + HASH_NBYTES)]))
        found = bytes(data[HASH_AT : HASH_AT + HASH_NBYTES]).hex()
        if (data.nbytes, found) != self or not int(found, 16):
            got = f"{data.nbytes} bytes with {f'hash {found}' if int(found, 16) else 'none'}"
            message = (
                f"weights of a listing: expected {self.nbytes} bytes with hash {self.hash} in the header, got {got}"
            )
            message += " (another weight file, or one that was written again: write both together, or open it alone)"
            raise FormatError(message, offset=HASH_AT, file=weights.name)


class Row(NamedTuple):
    """One tensor of a listing."""

    name: str  # unique in its listing
    dtype: DType  # of the record
    shape: tuple[int, ...]  # of the tensor; the record has as many elements
    offset: int  # byte offset of the record's metadata
    note: dict[str, Any] | None = None  # the original dtype, where weight files cannot hold it: see `formats.elements`


def is_listing(head: bytes) -> bool:
    """Whether a file that begins with these `HEAD_NBYTES` bytes is meant as a listing in JSON."""
    return head.lstrip()[:1] == b"{" and re.search(_MARK, head) is not None


def parse_listing(data: Any, file: str | None) -> tuple[str, list[Row], Stamp | None]:
    """Read a listing in JSON.

    Returns: (name of the weight file, relative to the listing; the rows; size and hash of the weight file, which older
    listings lack).
    Raises: FormatError: not a listing; a row that is incomplete or inconsistent; a name twice.
    """
    document = parse_json(data, "listing", file, unique=True)
    tensors = document.get("tensors") if isinstance(document, dict) and document.get("format") == FORMAT else None
    if not isinstance(tensors, list) or not isinstance(document.get("file"), str):
        message = 'listing: expected {"format": "milblob", "file": name, "tensors": [...]}, got something else'
        raise FormatError(message, file=file)
    rows = [_row(entry, number, file) for number, entry in enumerate(tensors)]
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise FormatError(f"listing: expected every name once, got {first_again(names)!r} twice", file=file)
    return document["file"], rows, _stamp(document, file)


def _stamp(document: dict[str, Any], file: str | None) -> Stamp | None:
    if "nbytes" not in document and "hash" not in document:
        return None
    nbytes, digits = document.get("nbytes"), document.get("hash")
    if (
        type(nbytes) is not int
        or not 0 <= nbytes < 1 << 63
        or not isinstance(digits, str)
        or not re.fullmatch(_HASH, digits)
    ):
        message = f"listing: expected nbytes and hash of the weight file, got {nbytes!r:.100} and {digits!r:.100}"
        raise FormatError(message, file=file)
    return Stamp(nbytes, digits)


def stamp_of_text(head: bytes) -> Stamp | None:
    """Return size and hash of the weight file that MIL text lists, from its first HEAD_NBYTES; or None."""
    found = re.match(_MIL_STAMP, head)
    return None if found is None else Stamp(int(found[1]), found[2].decode())


def _row(entry: Any, number: int, file: str | None) -> Row:
    def refuse(what: str, expected: str, got: Any) -> FormatError:
        return FormatError(f"{what} of tensor {number}: expected {expected}, got {got!r:.100}", file=file)

    if not isinstance(entry, dict):
        raise refuse("entry", "an object", entry)
    name, offset, note = entry.get("name"), entry.get("offset"), entry.get("note")
    if not isinstance(name, str) or not name or not _is_text(name):
        raise refuse("name", "a string", name)
    if type(offset) is not int or not 0 <= offset < 1 << 64:
        raise refuse("offset", "a byte offset", offset)
    dtype = _BY_NAME.get(str(entry.get("dtype")))
    if dtype is None:
        raise refuse("dtype", "one that weight files hold", entry.get("dtype"))
    shape = as_shape(entry.get("shape"))
    if shape is None:
        raise refuse("shape", "a list of sizes", entry.get("shape"))
    if "nbytes" in entry and entry["nbytes"] != dtype.nbytes(prod(shape)):
        raise refuse("nbytes", f"{dtype.nbytes(prod(shape))} for its dtype and shape", entry["nbytes"])
    if note is not None and not isinstance(note, dict):
        raise refuse("note", "an object", note)
    return Row(name, dtype, shape, offset, note)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # JSON can contain an unpaired surrogate
        return False
    return True


_BY_NAME = {str(dtype): dtype for dtype in DType if dtype.blob_code is not None}


def to_json(file: str, rows: Sequence[Row], stamp: Stamp | None = None) -> str:
    """Return a listing as JSON, one line for each tensor.

    `file`: name of the weight file, relative to the listing, with slashes. `stamp`: of the weight file.
    """
    import json

    lines = []
    for row in rows:
        entry: dict[str, Any] = {
            "name": row.name,
            "dtype": str(row.dtype),
            "shape": list(row.shape),
            "offset": row.offset,
            "nbytes": row.dtype.nbytes(prod(row.shape)),
        }
        if row.note is not None:
            entry["note"] = row.note
        lines.append(" " + json.dumps(entry, ensure_ascii=False))
    which = "" if stamp is None else f'"nbytes": {stamp.nbytes}, "hash": "{stamp.hash}", '
    head = f'{{"format": "{FORMAT}", "file": {json.dumps(file, ensure_ascii=False)}, {which}"tensors": ['
    body = ",\n".join(lines)
    return f"{head}\n{body}\n]}}\n" if lines else f"{head}]}}\n"


def to_mil(file: str, rows: Sequence[Row], stamp: Stamp | None = None) -> str:
    """Return a listing as MIL text: a program whose one function holds a const operation for each tensor.

    `file`: name of the weight file, relative to the listing, with slashes. `rows`: the tensors. Names that are not MIL
    identifiers become such ("layers.0.w" is layers_0_w); the attribute `name` has the original ones.
    Raises: ProgramError: a row with a note, or a name with a NUL. MIL text can hold neither.
    """
    lines = []
    path = _string(MODEL_PATH + file)
    for row, identifier in zip(rows, identifiers([row.name for row in rows]), strict=True):
        if row.note is not None:
            message = f"tensor {row.name!r}: expected a dtype that weight files hold, got {row.note.get('dtype')}"
            raise ProgramError(f"{message}; a listing in JSON has room for it")
        kind = f"tensor<{row.dtype.mil_text}, [{', '.join(map(str, row.shape))}]>"
        blob = f"BLOBFILE(path = {path}, offset = tensor<uint64, []>({row.offset}))"
        lines.append(f"            {kind} {identifier} = const()[name = {_string(row.name)}, val = {kind}({blob})];\n")
    which = "" if stamp is None else f"[buildInfo = {_BUILD_INFO.format(f'{stamp.nbytes} {stamp.hash}')}]\n"
    return f"program(1.0)\n{which}{{\n    func main<ios18>() {{\n{''.join(lines)}        }} -> ();\n}}\n"


def _string(text: str) -> str:
    if "\0" in text:
        raise ProgramError(f"string: expected one without NUL, which MIL text cannot hold, got {text!r:.100}")
    return f'tensor<string, []>("{text.translate(_ESCAPES)}")'


def identifiers(names: Iterable[str]) -> list[str]:
    """Return a unique MIL identifier for each name; a name that already is one is unchanged."""
    names = list(names)
    wanted = [_identifier(name) for name in names]
    taken = {name for name, identifier in zip(names, wanted, strict=True) if name == identifier}
    following: dict[str, int] = {}
    result = []
    for name, identifier in zip(names, wanted, strict=True):
        unique = identifier
        if name != identifier:
            number = following.get(identifier, 0)
            while unique in taken:
                number += 1
                unique = f"{identifier}_{number}"
            following[identifier] = number
            taken.add(unique)
        result.append(unique)
    return result


def _identifier(name: str) -> str:
    text = re.sub(_NOT_IN_IDENTIFIERS, "_", name)
    return text if text and (text[0] == "_" or text[0].isalpha()) else f"_{text}"


def to_program(file: str, rows: Iterable[Row]) -> bytes:
    """Return the Program that a listing describes: as from its MIL text, but with the original names."""
    from ..program import schema

    if not _is_text(file):
        raise FormatError(f"listing: expected a weight file whose name is UTF-8, got {file!r:.100}")
    program = schema.Program(version=1)
    block = program.functions["main"].block_specializations[""]
    for row in rows:
        op = block.operations.add(type="const")
        output = op.outputs.add(name=row.name)
        tensor = output.type.tensorType
        tensor.dataType, tensor.rank = row.dtype.mil_code, len(row.shape)
        for size in row.shape:
            tensor.dimensions.add().constant.size = size
        value = op.attributes["val"]
        value.type.CopyFrom(output.type)
        value.blobFileValue.fileName, value.blobFileValue.offset = MODEL_PATH + file, row.offset
    return bytes(program.SerializeToString(deterministic=True))
