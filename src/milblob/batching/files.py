"""The files of a model, or of an output: their hashes, times and sizes."""

import json
import os
from collections.abc import Iterator
from typing import Any

from .._codec import Buffer
from ..hashing import Span, blake3, hash_bytes
from ..storage import paths
from ..storage.table import BLOB_SUFFIXES
from ..storage.temporary import is_ours

_PIECE_NBYTES = 1 << 22


def signature(path: str) -> bytes:
    """Return a hash of the names, sizes and times of a model's files: equal while they are not written to."""
    rows = []
    for name, file in _files(path):
        status = os.stat(file)
        rows.append((name, status.st_size, status.st_mtime_ns))
    return _hash(rows)


def beside(destination: str) -> list[str]:
    """Return the files that belong to an output: weights of an .onnx file, the listing of a weight file."""
    stem, suffix = os.path.splitext(destination)
    names = [f"{stem}.bin", f"{destination}.bin"] if suffix == ".onnx" else []
    names += [f"{stem}.json"] if suffix in BLOB_SUFFIXES else []
    return [name for name in names if paths.is_file(name)]


def hash_files(*tops: str) -> bytes:
    """Return a hash of the names and contents of all files."""
    rows = [(name, blake3(_spans(file)).hex()) for top in tops for name, file in _files(top)]
    return _hash(rows)


def _hash(rows: list[Any]) -> bytes:
    return bytes.fromhex(hash_bytes(json.dumps(rows).encode()))


def _spans(file: str) -> Iterator[Span]:
    with open(file, "rb", buffering=0) as opened:  # noqa: PTH123
        while data := opened.read(_PIECE_NBYTES):
            yield Buffer(data), 0, len(data)


def _files(top: str) -> list[tuple[str, str]]:
    """Return (name inside, path) of a file, or of each file of a directory."""
    if not paths.is_directory(top):
        return [("", top)]
    found = []
    for directory, inner, names in os.walk(top):
        inner.sort()
        found += [os.path.join(directory, name) for name in sorted(names) if not is_ours(name)]
    return [(os.path.relpath(path, top).replace(os.sep, "/"), path) for path in found]


def nbytes_below(path: str) -> int:
    """Return the size of a file, or of all files of a directory; 0 if it cannot be read."""
    try:
        return sum(os.stat(file).st_size for _, file in _files(path))
    except OSError:
        return 0
