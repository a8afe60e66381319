"""Files of other kinds in place of a Core ML model or its weights: their kinds by their bytes, and advice.

Only called for a file that cannot be opened as a model: nothing that parses is refused for looking like another kind.
"""

import codecs
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import FormatError, UnsupportedError
from .mapped import MappedFile
from .table import ARRAYS, Format

ARRAY_COMMANDS = "milblob ls, show, stats, hash, diff, match, report and convert"
"""The commands that take files of arrays."""

_WITH_CHECK = f"{ARRAY_COMMANDS.replace(' and', ',')}, check"
_ARCHIVE_COMMANDS = f"{_WITH_CHECK}, refit and tvm"

_HEAD_NBYTES = 1024
_MEMBERS = 64  # of a zip archive, whose names are looked at
_PYTORCH = "load it with torch.load, save its tensors with safetensors.torch.save_file, and give that file"
_UNREAD = "which milblob does not read"
_ONNX_FIELDS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
_GRAPH = 7
_BLANK = b"\xef\xbb\xbf \t\r\n"
_LEGACY_PYTORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard", "unzstd"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
)


class Foreign(NamedTuple):
    """A kind of file that is not Core ML's."""

    # short: a kind of ARRAYS; "pytorch", "pickle", "zip", "keras", "hdf5", "tflite", "aimodel", "aimodelc", "tar",
    # "compressed", "html", "xml", "json" or "text"; `identify` adds "directory" and "part"
    name: str
    description: str  # a phrase for messages, with an article
    advice: str = ""  # what the user can do; "" if nothing is known


def foreign(data: Any, file: str | None = None) -> Foreign | None:
    """Identify bytes that are not a model; None if they are unknown.

    `data`: a file, or its first kilobyte or more, as a bytes-like object. `file`: its name, for the advice.
    """
    head, name = bytes(memoryview(data)[:_HEAD_NBYTES]), file or "it"
    if head.startswith(b"PK\x03\x04"):
        return _zip(memoryview(data), name)
    for magic, tool, command in _COMPRESSED:
        if head.startswith(magic):
            return Foreign("compressed", f"a file that {tool} compressed", f"decompress it first: {command} {name}")
    if head[257:262] == b"ustar":
        advice = f"unpack it first: tar xf {name}; if TVM made it, {_ARCHIVE_COMMANDS} take it"
        return Foreign("tar", "a tar archive", advice)
    if head.startswith(_LEGACY_PYTORCH):
        return Foreign("pytorch", "a PyTorch file of the old form", _PYTORCH)
    if re.match(rb"\x80[\2-\5]", head) and (head[1] < 4 or head[2:3] == b"\x95"):
        return Foreign("pickle", "a Python pickle", "save its arrays as safetensors or npz where it is trusted")
    for row in ARRAYS.values():
        if row.magic and head.startswith(row.magic):
            return _arrays(row, name)
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= 100_000_000:
        return _arrays(ARRAYS["safetensors"], name)
    if head.startswith(b"ML\xefR"):
        return bytecode(file)
    if head[4:8] == b"TFL3":
        return Foreign("tflite", f"a TensorFlow Lite model, {_UNREAD}", "give the Core ML model of that network")
    if is_onnx_head(data):
        return onnx_model(file)
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        return Foreign("hdf5", f"an HDF5 file, such as Keras writes, {_UNREAD}", "save its arrays as npz")
    return _text(head)


def is_onnx(numbers: frozenset[int]) -> bool:
    """Whether a message that has these fields is an ONNX model: it has a graph, unlike Model."""
    return _GRAPH in numbers and numbers <= _ONNX_FIELDS


def is_onnx_head(data: Any) -> bool:
    """Whether the first kilobyte of a file, or all of it, is that of an ONNX model: its fields up to the graph."""
    head, at = bytes(memoryview(data)[:_HEAD_NBYTES]), 0
    while at < len(head):
        tag, at = _varint(head, at)
        number, wire = tag >> 3, tag & 7
        if number not in _ONNX_FIELDS or wire not in (0, 2):
            return False  # such as 500, the neural network of a Core ML model
        if number == _GRAPH:
            return wire == 2
        value, at = _varint(head, at)
        at += value if wire == 2 else 0
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends: at the end of the data at the latest."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            break
    return value, at


def onnx_model(name: str | None) -> Foreign:
    """Return the description of an ONNX model, with advice."""
    return _arrays(ARRAYS["onnx"], name or "it")


def bytecode(name: str | None) -> Foreign:
    """Return the description of the bytecode of a bundle; a file of another name must be renamed first."""
    found = bundle(name)
    if name is not None and name.lower().endswith(".mlirb"):
        return found
    message = "MLIR bytecode, as bundles of Apple's Core AI have it, which is not a Core ML model"
    return Foreign(found.name, message, f"give it a name that ends in .mlirb; then {found.advice}")


def bundle(name: str | None) -> Foreign:
    """Return the description of a bundle of Core AI, with advice."""
    advice = f"{_WITH_CHECK}, refit and repack take it"
    return Foreign("aimodel", "a bundle of Apple's Core AI, which is not a Core ML model", advice)


def unpacked_archive() -> Foreign:
    """Return the description of the directory of an archive of TVM, with advice."""
    return Foreign("directory", "an unpacked archive of TVM", f"{_ARCHIVE_COMMANDS} take it")


def _arrays(row: Format, name: str) -> Foreign:
    is_named = name.lower().endswith(row.suffixes)
    how = "milblob.open_arrays opens it;" if is_named else f"if its name ends in {row.suffixes[0]},"
    advice = f"{how} {ARRAY_COMMANDS} take it, and milblob refit gives its values to a model"
    return Foreign(row.kind, row.called, advice)


def _zip(data: memoryview, name: str) -> Foreign:
    members = list(_members(data))
    ends = tuple(member.rpartition("/")[2] for member in members)
    if any(".mlpackage" in member or ".mlmodelc" in member for member in members) or "Manifest.json" in ends:
        how = f"name it {name}.zip, which milblob reads, or unzip it"
        if name.lower().endswith(".zip"):
            how = "unzip it: what runs or writes a model takes no archive, as docs/remote.md lists"
        return Foreign("zip", "a zip archive of a Core ML model", how)
    if any(end in ("data.pkl", "constants.pkl", "byteorder") for end in ends) or "archive_format" in ends:
        return Foreign("pytorch", "a PyTorch file", _PYTORCH)
    if members and all(member.endswith(".npy") for member in members):
        return _arrays(ARRAYS["npz"], name)
    if {"config.json", "model.weights.h5"} & set(members):
        return Foreign("keras", f"a Keras model, {_UNREAD}", "save its arrays as npz")
    return Foreign("zip", "a zip archive", f"unpack it first: unzip {name}")


def _members(data: memoryview) -> Iterator[str]:
    """Yield the names of a zip archive's first members, up to one whose size is not before its data."""
    at = 0
    for _ in range(_MEMBERS):
        if bytes(data[at : at + 4]) != b"PK\x03\x04" or len(data) - at < 30:
            return
        flags = int.from_bytes(data[at + 6 : at + 8], "little")
        nbytes = int.from_bytes(data[at + 18 : at + 22], "little")
        name_nbytes, extra_nbytes = (int.from_bytes(data[at + i : at + i + 2], "little") for i in (26, 28))
        yield bytes(data[at + 30 : at + 30 + name_nbytes]).decode("utf-8", "replace")
        if flags & 8 or nbytes == 0xFFFFFFFF:  # the size comes after the data, or in the extra field
            return
        at += 30 + name_nbytes + extra_nbytes + nbytes


def _text(head: bytes) -> Foreign | None:
    start = head.lstrip(_BLANK)
    if re.match(rb"<(!doctype html|html|head|body)\b", start, re.IGNORECASE):
        advice = "a download that failed, or needs a login, leaves one; download the file again"
        return Foreign("html", "an HTML page in place of the file", advice)
    if start.startswith(b"<?xml"):
        return Foreign("xml", "an XML document")
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)  # the head may end inside a character
    except UnicodeDecodeError:
        return None
    if not text or not all(c.isprintable() or c in "\t\r\n" for c in text):
        return None
    first = text.splitlines()[0][:60]
    if start[:1] in (b"{", b"["):
        return Foreign("json", f"JSON, but not a listing of a weight file: {first!r}")
    return Foreign("text", f"text: {first!r}")


def refusal(found: Foreign, expected: str, file: str | None) -> FormatError | UnsupportedError:
    """Return the error about a file of another kind.

    `expected`: the beginning of the message, such as "file: expected a weight file".
    """
    message = f"{expected}, got {found.description}" + (f" ({found.advice})" if found.advice else "")
    if found.name in ("html", "xml", "json", "text"):
        return FormatError(message, file=file, code="web-page" if found.name == "html" else "not-a-model")
    return UnsupportedError(message, file=file, code="other-format")


def explained(
    error: FormatError | UnsupportedError, mapping: MappedFile, expected: str, *, is_text: bool = False
) -> FormatError | UnsupportedError:
    """Return the `refusal` of a file if its bytes are of another kind of file; else the given error.

    `error`: that its own reader raised. `expected`: as for `refusal`. `is_text`: text is expected, so the error can be
    more precise.
    """
    found = foreign(mapping.live(), mapping.name)
    return error if found is None or (is_text and found.name == "text") else refusal(found, expected, mapping.name)
