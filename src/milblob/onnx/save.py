"""Writing a converted model: the .onnx file and the files beside it, all or none."""

import os
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import DestinationExistsError, UnsupportedError
from ..formats.onnx_external import HASH_DIGITS, REFERENCE, note_of
from ..hashing import hash_bytes
from ..rewrite.destination import require_no_part
from ..storage import paths
from ..storage.disk import sync_directory
from ..storage.output import NewFile, together
from ..storage.transfer import copy_range, write_at
from ..threads import sized
from .reference import WeightReference, fill, refer
from .weights import BESIDE_NBYTES, Weights

_MAX_MESSAGE_NBYTES = (2 << 30) - (1 << 20)
_ALIGNMENT = 64


def write(model: ir.Model, proto: Any, weights: Weights, path: str, force: bool) -> None:
    """Write a converted model.

    Args:
        model: its large tensors become ExternalTensors of the file beside it, if there is one.
        proto: its message, by `message_of`; completed here.
        weights: which files it refers to.
        path: of the .onnx file.
        force: replace files that exist.

    Raises:
        FileExistsError: a file is there. ValueError: it is part of a model, or its name does not end in .onnx.
            OSError: it cannot be written.
        UnsupportedError: more than protobuf holds.
    """
    beside = os.path.join(os.path.dirname(path), weights.beside)
    pending = {tensor.name: weight for tensor, weight in weights.pending}
    large = []
    for tensor in proto.graph.initializer:
        held: Any = model.graph.initializers[tensor.name].const_value
        is_held = type(held) is ir.Tensor
        if tensor.name in pending or (is_held and weights.mode != "embed" and held.nbytes >= BESIDE_NBYTES):
            large.append(tensor)
        elif is_held and tensor.external_data:
            fill(tensor, held)
    copied = list(weights.files) if weights.mode == "copy" else []
    replaced = [os.path.join(os.path.dirname(path), name) for name in weights.replaced]
    for name in (path, beside, *replaced) if large or copied else (path,):
        if not force and paths.is_there(name):
            raise DestinationExistsError(name)
        require_no_part(weights.sources, name, ".onnx")
    if not path.lower().endswith(".onnx"):
        message = f"output {path}: expected a name that ends in .onnx, so that programs recognise the file"
        raise ValueError(f"{message}, got another")
    with together() as parts:
        new = NewFile(path, force=force)
        parts.append(new)
        if large or copied:
            other = NewFile(beside, force=force)
            parts.insert(0, other)  # the file that refers to the weights comes last
            at = 0
            for mapping in copied:
                at = weights.files[mapping]
                copy_range(mapping, 0, mapping.nbytes, other.fd, at)
                at += mapping.nbytes
            for tensor in large:
                at = -(-at // _ALIGNMENT) * _ALIGNMENT
                weight = pending.get(tensor.name)
                held = model.graph.initializers[tensor.name].const_value
                data = np.frombuffer(held.tobytes(), np.uint8) if weight is None else weight.read_packed()
                nbytes = data.nbytes
                write_at(other.fd, [data], at)
                _refer(tensor, weights.beside, at, data)
                value = model.graph.initializers[tensor.name]
                value.const_value = ir.ExternalTensor(
                    weights.beside, at, nbytes, ir.DataType(tensor.data_type), shape=ir.Shape(list(tensor.dims)),
                    name=tensor.name, base_dir=os.path.dirname(os.path.abspath(path)),
                )  # fmt: skip
                at += nbytes
        held = ((tensor, model.graph.initializers[tensor.name].const_value) for tensor in proto.graph.initializer)
        referred = [(tensor, one) for tensor, one in held if isinstance(one, WeightReference)]
        notes = sized(WeightReference.note, [one for _, one in referred], lambda one: one.size)
        for (tensor, one), (key, note) in zip(referred, notes, strict=True):
            one.metadata_props[key] = note
            tensor.metadata_props.add(key=key, value=note)
        if weights.mode == "reference":
            for mapping in weights.files:
                mapping.require_named()
        serialized_model = serialized(proto, path, 'weights="copy" (--weights copy) has no limit')
        write_at(new.fd, [np.frombuffer(serialized_model, np.uint8)], 0)
    for name in replaced if large or copied else ():
        with suppress(OSError):  # nothing refers to it any more
            os.unlink(name)
            sync_directory(os.path.dirname(path))


def _refer(tensor: Any, location: str, offset: int, data: Any) -> None:
    note = note_of(offset, data.nbytes, hash_bytes(data)[:HASH_DIGITS])
    tensor.metadata_props.add(key=REFERENCE, value=note)
    refer(tensor, location, offset, data.nbytes)


def serialized(proto: Any, path: str, hint: str) -> bytes:
    """Return the bytes of a message. Raises: UnsupportedError: more than protobuf holds."""
    if proto.ByteSize() > _MAX_MESSAGE_NBYTES:
        message = f"message: expected less than 2 GiB in one file, got {proto.ByteSize()} bytes; {hint}"
        raise UnsupportedError(message, file=path)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data
