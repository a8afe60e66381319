"""Journals by hand."""

import struct
import zlib


def journal_bytes(*entries, magic=b"milblob\3", nbytes=None, crc=None, count=None, base=""):
    """A journal by hand: entries are (kind, path, file_nbytes, offset, data)."""
    body = struct.pack("<H", len(base.encode())) + base.encode()
    for kind, path, file_nbytes, offset, data in entries:
        path = path if isinstance(path, bytes) else path.encode()
        body += struct.pack("<BHQQQ", kind, len(path), file_nbytes, offset, len(data)) + path + data
    head = struct.pack(
        "<8sQII",
        magic,
        24 + len(body) if nbytes is None else nbytes,
        zlib.crc32(body) if crc is None else crc,
        len(entries) if count is None else count,
    )
    return head + body
