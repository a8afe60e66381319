"""The format of patches as docs/format-of-patches.md describes it: read and written by slow, obvious code.

`made` is the oracle for what a patch makes; `packed` writes patches with any contents, sound or not.
"""

import struct
import sys
from typing import NamedTuple

import pytest

from peers import WITHOUT
from reference_hash import blake3

NAME = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
zstd = pytest.importorskip(NAME, reason=WITHOUT["backports.zstd"])

KINDS = ["mlpackage", "mlmodelc", "mlmodel", "blob"]
COPY, RAW, CHANGE, PREFIX = range(4)


class File(NamedTuple):
    """A file of a model: where it is, its size and digest, the sizes of its parts, and of a new one its steps."""

    path: bytes
    nbytes: int
    digest: bytes
    parts: list[int]
    steps: list[tuple]


class Contents(NamedTuple):
    """A patch: kind of model, content hashes, files, and the frames one after another."""

    kind: int
    hashes: tuple[bytes, bytes]
    old: list[File]
    new: list[File]
    frames: bytes


def unpacked(data):
    """Return the contents of a sound patch."""
    magic, version, kind, nbytes, at, index_nbytes = struct.unpack_from("<8sIIQQQ", data)
    assert (magic, version, nbytes) == (b"milpatch", 1, len(data))
    index = zstd.decompress(data[at:])
    assert len(index) == index_nbytes
    hashes, (old_count, new_count) = (index[:32], index[32:64]), struct.unpack_from("<II", index, 64)
    place, heads = 72, []
    for _ in range(old_count + new_count):
        nbytes, parts, steps, length = struct.unpack_from("<QIIH", index, place)
        start = place + 18 + 32
        heads.append((index[start : start + length], nbytes, index[place + 18 : start], parts, steps))
        place = start + length
    parts = []
    for head in heads:
        parts.append(list(struct.unpack_from(f"<{head[3]}Q", index, place)))
        place += 8 * head[3]
    steps = []
    for head in heads:
        steps.append([struct.unpack_from("<BBIQQII", index, place + 30 * number) for number in range(head[4])])
        place += 30 * head[4]
    assert place == len(index)
    files = [File(*head[:3], own, rows) for head, own, rows in zip(heads, parts, steps, strict=True)]
    return Contents(kind, hashes, files[:old_count], files[old_count:], data[72:at])


def packed(contents, version=1):
    """Return a patch with these contents, whose own digest is right."""
    files = [*contents.old, *contents.new]
    index = b"".join([*contents.hashes, struct.pack("<II", len(contents.old), len(contents.new))])
    for file in files:
        counts = len(file.parts), len(file.steps), len(file.path)
        index += struct.pack("<QIIH", file.nbytes, *counts) + file.digest + file.path
    index += b"".join(struct.pack(f"<{len(file.parts)}Q", *file.parts) for file in files)
    index += b"".join(struct.pack("<BBIQQII", *step) for file in files for step in file.steps)
    return with_index(contents.kind, contents.frames, zstd.compress(index), len(index), version)


def with_index(kind, frames, index, index_nbytes, version=1):
    """Return a patch with an index as it is stored."""
    nbytes = 72 + len(frames) + len(index)
    head = struct.pack("<8sIIQQQ", b"milpatch", version, kind, nbytes, 72 + len(frames), index_nbytes)
    return head + digest(head + frames + index) + frames + index


def digest(data):
    """BLAKE3, slow for small data and milblob's for large data: its own tests compare the two."""
    if len(data) < 1 << 9:
        return bytes.fromhex(blake3(data))
    from milblob.hashing import hash_bytes

    return bytes.fromhex(hash_bytes(data))


def file_digest(data, parts):
    """Return the digest of the bytes of a file."""
    lines, at = b"milblob file 1\n", 0
    for nbytes in parts:
        lines += b"%d %b\n" % (nbytes, digest(data[at : at + nbytes]).hex().encode())
        at += nbytes
    assert at == len(data)
    return digest(lines)


def made(contents, old):
    """Return path -> bytes of the new model, from those of the old one."""
    for file in contents.old:
        assert file_digest(old[file.path.decode()], file.parts) == file.digest
    at, found = 0, {}
    for file in contents.new:
        data = b""
        for kind, width, number, offset, nbytes, span, stored in file.steps:
            frame, at = contents.frames[at : at + stored], at + stored
            before = old[contents.old[number].path.decode()][offset:] if kind != RAW else b""
            if kind == COPY:
                data += before[:nbytes]
            elif kind == PREFIX:
                data += zstd.decompress(frame, zstd.ZstdDict(before[:span], is_raw=True).as_prefix)
            else:
                data += elements(zstd.decompress(frame), width, before[:nbytes] if kind == CHANGE else None)
        assert file_digest(data, file.parts) == file.digest
        found[file.path.decode()] = data
    assert at == len(contents.frames)
    return found


def elements(planes, width, before):
    """Return bytes from planes of bytes, and of differences from `before`."""
    count, step = len(planes) // max(width, 1), max(width, 1)
    data = b"".join(bytes(planes[byte * count + i] for byte in range(step)) for i in range(count))
    if before is None:
        return data
    if width == 0:
        return bytes(a ^ b for a, b in zip(data, before, strict=True))
    found = b""
    for i in range(0, len(data), width):
        change = int.from_bytes(data[i : i + width], "little")
        difference = -(change + 1) // 2 if change & 1 else change // 2
        old = int.from_bytes(before[i : i + width], "little")
        found += ((old + difference) % (1 << 8 * width)).to_bytes(width, "little")
    return found
