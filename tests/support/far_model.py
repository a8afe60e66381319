"""A package of a Program of 1 MB and 300 weights of 640 MB, of which a server sends what is asked for."""

import json
import struct

from reference import SENTINEL, align64
from remote_server import Holes
from repacking import FILE, value_type

COUNT, NBYTES, PROGRAM_NBYTES = 300, 640_000_000, 1_000_000
WEIGHT = "w7"
"""A weight of 1 MiB of ones; the others are zeros."""

_FOLDER = "Data/com.apple.CoreML"


def far_package(name="m.mlpackage"):
    """The files of the package, as `remote_server.Server` takes them."""
    from hostile_bytes import blob_value, field, function, operation

    large = (NBYTES - (1 << 20)) // (COUNT - 1) // 64 * 64
    stretches, offset, ops = {0: struct.pack("<II", COUNT, 2) + bytes(56)}, 64, []
    for number in range(COUNT):
        own = f"w{number}"
        nbytes = 1 << 20 if own == WEIGHT else large
        record = struct.pack("<IIQQQ", SENTINEL, 2, nbytes, offset + 64, 0) + bytes(32)
        stretches[offset] = record + (b"\0\0\x80\x3f" * (nbytes // 4) if own == WEIGHT else b"")
        shape = [nbytes // 4]
        value = blob_value(11, shape, "@model_path/weights/weight.bin", offset)
        ops.append(operation("const", own, [("val", value)], output_type=value_type(11, shape)))
        offset = align64(offset + 64 + nbytes)
    body = field(1, 1) + function(ops, "main")
    model = field(1, 9) + field(502, body)
    model += field(2, field(100, field(1, "x" * (PROGRAM_NBYTES - len(model)))))  # a long description
    manifest = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {"1": {"author": "a", "name": "m", "path": "com.apple.CoreML/model.mlmodel"}},
        "rootModelIdentifier": "1",
    }
    return {
        f"{name}/Manifest.json": json.dumps(manifest).encode(),
        f"{name}/{_FOLDER}/model.mlmodel": model,
        f"{name}/{FILE}": Holes(offset, stretches),
    }


def far_safetensors():
    """The same weights as a .safetensors file: its header and holes."""
    large = (NBYTES - (1 << 20)) // (COUNT - 1) // 64 * 64
    at, header = 0, {}
    for number in range(COUNT):
        nbytes = 1 << 20 if f"w{number}" == WEIGHT else large
        header[f"w{number}"] = {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    ones = start + header[WEIGHT]["data_offsets"][0]
    head = struct.pack("<Q", len(text)) + text
    return Holes(start + at, {0: head, ones: b"\0\0\x80\x3f" * (1 << 18)})
