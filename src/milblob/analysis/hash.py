"""Content hashes: equal for equal tensors and models, whichever tool wrote them and wherever their bytes lie.

docs/hash.md defines, byte for byte, what is hashed.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..arguments import require_flags
from ..dtypes import DType
from ..errors import UnsupportedError
from ..model.elements import Readable
from ..model.model import Model
from ..model.pieces import Piece, dense_pieces, in_order, stored_piece
from ..model.tensor import Tensor
from ..program.scan import Program
from ..threads import PIECE_NBYTES, ordered
from .pairing import Side, is_arrays

_MAX_DEPTH = 32
_STRETCH = _codec.HASH_STRETCH_NBYTES


class ContentHash(NamedTuple):
    """The hashes of a model, each 64 hexadecimal digits.

    Attributes:
        model: of everything: all tensors by name, and which operation reads what.
        tensors: name -> hash of every tensor constant, weights and others, in the model's order.
    """

    model: str
    tensors: dict[str, str]


def content_hash(source: Any, *, dense: bool = False) -> ContentHash:
    """Hash the contents of a model or weight file: BLAKE3, see docs/hash.md.

    Offsets, layout, alignment, uninitialised and padding bytes, file names, the order of maps, dates, metadata and what
    compilers note about themselves do not count; neither does whether a value lies in a weight file or in the Program.

    Args:
        source: what `open` takes, or an open Model; a file of arrays, such as .npz, .safetensors or .params, or an
            archive of TVM; or a mapping from names to arrays. Arrays have the hash of a weight file with their names.
        dense: hash compressed weights by their decoded values, so that they equal those of the decompressed model; else
            by their scheme and stored parts.

    Returns:
        ContentHash.

    Raises:
        As `open` and `Tensor.read`: all or nothing.
    """
    require_flags(dense=dense)
    if is_arrays(source):
        with contextlib.ExitStack() as stack:
            arrays = Side.open(source, False, stack).tensors
            digests = dict(zip(arrays, tensor_hashes(arrays.values(), dense=dense), strict=True))
            return ContentHash(_whole(digests, []), digests)
    with _with_constants(source) as model:
        tensors = {name: tensor for name, tensor in model.items() if not is_left_out(tensor, dense)}
        hashes = dict(zip(tensors, tensor_hashes(tensors.values(), dense=dense), strict=True))
        uses = [line for _, program in model._programs for line in _uses(program, dense)]
        return ContentHash(_whole(hashes, uses), hashes)


def _whole(hashes: Mapping[str, str], uses: list[bytes]) -> str:
    lines = [b"tensor %b %b\n" % (digest.encode(), _text(name)) for name, digest in hashes.items()]
    return _message(b"milblob model 1\n" + b"".join(sorted(lines + uses)))


def tensor_hashes(tensors: Iterable[Readable], *, dense: bool = False) -> Iterator[str]:
    """Yield the hash of each tensor, in order; small ones are worked on several at a time."""
    known: dict[Any, bytes] = {}
    yield from in_order(tensors, lambda tensor: _tensor(tensor, dense, known).hex())


def is_left_out(tensor: Tensor, dense: bool = False) -> bool:
    """Whether a constant is no content: attributes of Program, function or block, and names of operations.

    With `dense` all that a constexpr operation has beside the value that it computes, such as the name of a dtype.
    """
    constant = tensor._constant
    if constant is None or tensor._program is None:
        return False
    if dense and tensor.op.startswith("constexpr_"):
        return True
    return constant.op is None or (constant.key == "name" and tensor.mil_dtype is DType.STRING)


def _with_constants(source: Any) -> Model:
    """A model of its own that lists every constant; the caller closes it."""
    if not isinstance(source, Model):
        return Model(source, constants=True)
    if source.path is not None:
        return Model(source.path, constants=True)
    package = source._package
    package.require_open()
    mapping = package.sources[0].mapping if package.blobs is None else package.blobs._mapping
    return Model(memoryview(mapping.live()), constants=True)


# ----------------------------------------------------------------------------------------------------------- one tensor


def _tensor(tensor: Readable, dense: bool, known: dict[Any, bytes], depth: int = 0) -> bytes:
    """The hash of a tensor. `known` keeps those of what several tensors share."""
    if isinstance(tensor, Tensor) and tensor._compressed is not None and not dense:
        if depth > _MAX_DEPTH:
            words = f"constexpr operations: expected a chain of at most {_MAX_DEPTH}, got more"
            raise UnsupportedError(words, file=tensor.file, where=tensor.where)
        key = id(tensor._compressed)  # alive as long as the model is
        if key not in known:
            parts = {key.encode(): _tensor(part, False, known, depth + 1) for key, part in tensor.parts.items()}
            lines = b"".join(b"%b %b\n" % (parts[key].hex().encode(), _netstring(key)) for key in sorted(parts))
            head = b"milblob compressed 1\n%b\n%b\n" % (_type(tensor), tensor.op.removeprefix("constexpr_").encode())
            known[key] = bytes.fromhex(_message(head + lines))
        return known[key]
    if tensor.mil_dtype is DType.STRING:
        data = _digest([Piece(_codec.Buffer(_strings(tensor)), 0, len(_strings(tensor)), DType.UINT8)])
    else:
        data = _data(tensor, known)
    return bytes.fromhex(_message(b"milblob tensor 1\n%b\n%b\n" % (_type(tensor), data.hex().encode())))


def _type(tensor: Readable) -> bytes:
    return f"{tensor.mil_dtype} [{', '.join(map(str, tensor.shape))}]".encode()


def _data(tensor: Readable, known: dict[Any, bytes]) -> bytes:
    piece = stored_piece(tensor)
    if piece is None:
        return _digest(dense_pieces(tensor))
    if not isinstance(tensor, Tensor) or not tensor.is_blob:
        return _digest([piece])
    key = (tensor.file, tensor.offset, piece.dtype)
    found = known.get(key)
    if found is None:
        found = known[key] = _digest([piece])
    return found


def _strings(tensor: Readable) -> bytes:
    return b"".join(_text(text) for text in tensor.read().reshape(-1).tolist())


def _text(text: str) -> bytes:
    return _netstring(text.encode())


def _netstring(data: bytes) -> bytes:
    return b"%d:%b" % (len(data), data)


# ---------------------------------------------------------------------------------------------------------- the Program


def _uses(program: Program, dense: bool) -> list[bytes]:
    """A line for every name that an operation reads, or a block returns."""
    scan = program._scan_again(_codec.SCAN_USES)
    lines = []
    tops: dict[int, int] = {}
    for block in program.scan.blocks:
        if block[2] < 0:
            tops[block[1]] = tops.get(block[1], 0) + 1
    for use in scan.constants:
        op = None if use.owner == _codec.RETURN else use.op
        kind = "return" if op is None else op.type
        if dense and kind.startswith("constexpr_"):
            continue
        scope = program.prefix + program._scope(use.function, use.block, tops.get(use.function, 0) > 1)
        binding = f"{use.key}[{use.binding[0]}]" if op is not None else str(use.binding[0])
        words = (scope, kind, "" if op is None else op.name, binding, use.text)
        lines.append(b"use %b\n" % b" ".join(map(_text, words)))
    return lines


# --------------------------------------------------------------------------------------------------------------- BLAKE3


def _message(data: bytes) -> str:
    return _digest([Piece(_codec.Buffer(data), 0, len(data), DType.UINT8)]).hex()


def _digest(pieces: Iterable[Piece]) -> bytes:
    """BLAKE3 of the bytes of pieces, one behind the other; bits behind the last element count as zero."""
    values: list[bytes] = []  # chaining values of whole stretches
    count = 0
    rest: tuple[_codec.Buffer, int, int] = (
        _codec.Buffer(b""),
        0,
        0,
    )  # at most a stretch: the last one if no more comes
    for piece in pieces:
        buffer, offset, nbytes = piece.buffer, piece.offset, piece.nbytes
        if nbytes == 0:
            continue
        if rest[2]:
            taken = min(_STRETCH - rest[2], nbytes)
            joined = bytes(_view(*rest)) + bytes(_view(buffer, offset, taken))
            rest = (_codec.Buffer(joined), 0, len(joined))
            offset, nbytes = offset + taken, nbytes - taken
            if nbytes == 0:
                continue
            values.append(_codec.hash_stretches(*rest, count))
            count += 1
        whole = (nbytes - 1) // _STRETCH
        if whole:
            values += _whole_stretches(buffer, offset, whole, count)
            count += whole
        rest = _without_padding(piece, offset + whole * _STRETCH, nbytes - whole * _STRETCH)
    if not count:
        return _codec.hash_stretches(*rest, 0, True)
    values.append(_codec.hash_stretches(*rest, count))
    return _codec.hash_join(b"".join(values))


def _whole_stretches(buffer: _codec.Buffer, offset: int, count: int, first: int) -> list[bytes]:
    step = max(PIECE_NBYTES // _STRETCH, 1)

    def work(start: int) -> bytes:
        nbytes = min(step, count - start) * _STRETCH
        return _codec.hash_stretches(buffer, offset + start * _STRETCH, nbytes, first + start)

    return list(ordered(work, range(0, count, step), count > step))


def _without_padding(piece: Piece, offset: int, nbytes: int) -> tuple[_codec.Buffer, int, int]:
    """The end of a piece; copied if bits behind its last element are set, which some files have."""
    used = piece.count * piece.dtype.nbits % 8
    view = _view(piece.buffer, offset, nbytes)
    if piece.dtype.nbits >= 8 or used == 0 or view[-1] >> used == 0:
        return piece.buffer, offset, nbytes
    data = bytearray(view)
    data[-1] &= (1 << used) - 1
    return _codec.Buffer(bytes(data), piece.buffer.name), 0, nbytes


def _view(buffer: _codec.Buffer, offset: int, nbytes: int) -> memoryview:
    return memoryview(buffer)[offset : offset + nbytes]


def hash_bytes(data: Any) -> str:
    """Return the BLAKE3 hash of any contiguous buffer or array, as 64 hexadecimal digits: what b3sum prints."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    buffer = _codec.Buffer(data)
    return _digest([Piece(buffer, 0, buffer.nbytes, DType.UINT8)]).hex()
