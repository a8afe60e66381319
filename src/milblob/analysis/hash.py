"""Content hashes: equal for equal tensors and models, independent of the tool and of the place of the bytes.

docs/hash.md defines, byte for byte, what is hashed.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _codec
from ..arguments import require_flags
from ..dtypes import DType
from ..hashing import Span, blake3
from ..model.elements import Piece, dense_pieces, in_order, stored_piece
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..results import Result
from .reopening import FarTensors, account
from .sides import Side, is_arrays

if TYPE_CHECKING:
    from concurrent.futures import Executor

Known = dict[Any, bytes]
"""Hashes that are known: of data of records, and of chains of operations."""


@dataclass(frozen=True, repr=False)
class ContentHash(Result):
    """The hashes of a model, each 64 hexadecimal digits.

    Attributes:
        model: of everything: all tensors by name, and the inputs of all operations.
        tensors: name -> hash of every tensor constant, weights and others, in the model's order.

    Examples:
        >>> found = milblob.content_hash("demo.mlpackage")
        >>> len(found.model), len(found.tensors), found.tensors["head_weight"][:8]
        (64, 151, 'd617a4a7')
    """

    model: str
    tensors: dict[str, str]


@takes_urls("source")
def content_hash(
    source: Any,
    *,
    dense: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> ContentHash:
    """Hash the contents of a model or weight file: BLAKE3, see docs/hash.md.

    Offsets, layout, alignment, uninitialised and padding bytes, file names, the order of maps, dates, metadata and
    compilers' notes about themselves do not count; nor does whether a value is in a weight file or in the Program.

    Args:
        source: what `open` takes, or an open Model; a file of arrays, such as .npz, .safetensors or .params, or an
            archive of TVM; or a mapping from names to arrays. Arrays have the hash of a weight file with their names.
        dense: hash compressed weights by their decoded values, so that they equal those of the decompressed model; else
            by their scheme and stored parts.
        executor: of a local path or an open model: any concurrent.futures.Executor, whose workers open the path
            themselves (see `milblob.executors`).
        progress: called as each tensor has been hashed (see `Progress`).
        max_nbytes: as for `open`; default: that of an open Model.
        storage_options, cache: as for `open`, of a URL.

    Returns:
        ContentHash.

    Raises:
        As `open` and `Tensor.read`: all or nothing. ValueError: `executor` with a source that workers cannot open.
        WorkerError: workers that were killed.

    Examples:
        >>> report = milblob.repack("demo.mlpackage", "aligned.mlpackage", align=4096)
        >>> a, b = milblob.content_hash("demo.mlpackage"), milblob.content_hash("aligned.mlpackage")
        >>> a.model == b.model
        True
    """
    require_flags(dense=dense)
    start_progress(progress)
    if is_arrays(source):
        with contextlib.ExitStack() as stack:
            arrays = Side.open(source, False, stack, max_nbytes).tensors
            far = FarTensors.of(executor, source, max_nbytes=max_nbytes)
            digests = hashes_of(arrays, far, dense=dense, progress=progress)
            return ContentHash(_whole(digests, []), digests)
    with _with_constants(source, max_nbytes) as model:
        return model_hash(model, FarTensors.of(executor, model), dense=dense, progress=progress)


def model_hash(
    model: Model,
    far: FarTensors | None = None,
    *,
    dense: bool = False,
    progress: Progress | None = None,
    known: Known | None = None,
) -> ContentHash:
    """Hash the contents of an open model that lists every constant; see `content_hash`.

    `far`: the workers that hash its tensors; None for this process. `known`: of records whose data was hashed before:
    (path of the file, offset of the record, dtype) -> hash. Workers do not use it.
    """
    tensors = {name: tensor for name, tensor in model.items() if not is_left_out(tensor, dense)}
    hashes = hashes_of(tensors, far, dense=dense, progress=progress, known=known)
    uses = [line for program in model.parts for line in _uses(program, dense)]
    return ContentHash(_whole(hashes, uses), hashes)


def _whole(hashes: Mapping[str, str], uses: list[bytes]) -> str:
    lines = [b"tensor %b %b\n" % (digest.encode(), _text(name)) for name, digest in hashes.items()]
    return _message(b"milblob model 1\n" + b"".join(sorted(lines + uses)))


def hashes_of(
    tensors: Mapping[str, LazyTensor],
    far: FarTensors | None,
    *,
    dense: bool = False,
    progress: Progress | None = None,
    known: Known | None = None,
) -> dict[str, str]:
    """Return the hash of each tensor. `tensors`: by their names in the source. `far`, `known`: as for `model_hash`."""
    if far is None:
        found = tensor_hashes(tensors.values(), dense=dense, progress=progress, known=known)
        return dict(zip(tensors, found, strict=True))
    counter, digests = ProgressCounter(progress, tensors.values()), {}
    hashes = far.each(tensor_hashes, tensors, partial(account, is_dense=dense), dense=dense)
    with contextlib.closing(hashes):
        for (name, tensor), digest in zip(tensors.items(), hashes, strict=True):
            digests[name] = digest
            counter.add_tensor(tensor.name, tensor)
    return digests


def tensor_hashes(
    tensors: Iterable[LazyTensor], *, dense: bool = False, progress: Progress | None = None, known: Known | None = None
) -> Iterator[str]:
    """Yield the hash of each tensor, in order; small ones are worked on several at a time. `known`: as `model_hash`."""
    known = {} if known is None else known
    tensors = list(tensors)
    fetch(tensors)
    counter = ProgressCounter(progress, tensors)
    hashes = in_order(tensors, lambda tensor: _tensor(tensor, dense, known).hex())
    for tensor, found in zip(tensors, hashes, strict=True):
        counter.add_tensor(tensor.name, tensor)
        yield found


def is_left_out(tensor: Tensor, dense: bool = False) -> bool:
    """Whether a constant is not content: attributes of Program, function or block, and names of operations.

    With `dense`, also everything of a constexpr operation except the value it computes, such as the name of a dtype.
    """
    constant = tensor.constant
    if constant is None or tensor.program is None:
        return False
    if dense and tensor.op.startswith("constexpr_"):
        return True
    return constant.op is None or (constant.key == "name" and tensor.mil_dtype is DType.STRING)


def _with_constants(source: Any, max_nbytes: int | None) -> Model:
    """Open a separate model that lists every constant; the caller closes it."""
    if not isinstance(source, Model):
        return Model(source, constants=True, max_nbytes=max_nbytes)
    max_nbytes = source.package.budget.given_nbytes if max_nbytes is None else max_nbytes
    package = source.package
    if package.path is not None:  # not `source.path`, which may be a URL
        return Model(package.path, constants=True, max_nbytes=max_nbytes)
    package.require_open()
    mapping = package.sources[0].mapping if package.blobs is None else package.blobs.mapping
    return Model(memoryview(mapping.live()), constants=True, max_nbytes=max_nbytes)


# ----------------------------------------------------------------------------------------------------------- one tensor


def _tensor(tensor: LazyTensor, dense: bool, known: Known) -> bytes:
    """The hash of a tensor. `known` keeps those of what several tensors share."""
    if isinstance(tensor, Tensor) and tensor.chain is not None and not dense:
        key = tensor.chain
        if key not in known:
            parts = {key.encode(): _tensor(part, False, known) for key, part in tensor.parts.items()}
            lines = b"".join(b"%b %b\n" % (parts[key].hex().encode(), _netstring(key)) for key in sorted(parts))
            head = b"milblob compressed 1\n%b\n%b\n" % (_type(tensor), tensor.op.removeprefix("constexpr_").encode())
            known[key] = bytes.fromhex(_message(head + lines))
        return known[key]
    if tensor.mil_dtype is DType.STRING:
        data = digest([Piece(_codec.Buffer(_strings(tensor)), 0, len(_strings(tensor)), DType.UINT8)])
    else:
        data = _data(tensor, known)
    return bytes.fromhex(_message(b"milblob tensor 1\n%b\n%b\n" % (_type(tensor), data.hex().encode())))


def _type(tensor: LazyTensor) -> bytes:
    return f"{tensor.mil_dtype} [{', '.join(map(str, tensor.shape))}]".encode()


def _data(tensor: LazyTensor, known: Known) -> bytes:
    if tensor.place.is_computed:
        return digest(dense_pieces(tensor))
    piece = stored_piece(tensor)
    if not isinstance(tensor, Tensor) or not tensor.is_blob:
        tensor.place.account()
        return digest([piece])
    key = (tensor.file, tensor.offset, piece.dtype)
    found = known.get(key)
    if found is None:
        tensor.place.account()
        found = known[key] = digest([piece])
    return found


def _strings(tensor: LazyTensor) -> bytes:
    return b"".join(_text(text) for text in tensor.read().reshape(-1).tolist())


def _text(text: str) -> bytes:
    return _netstring(text.encode("utf-8", "surrogatepass"))  # bytes of a name that are not UTF-8 are lone surrogates


def _netstring(data: bytes) -> bytes:
    return b"%d:%b" % (len(data), data)


# ---------------------------------------------------------------------------------------------------------- the Program


def _uses(program: OpenProgram, dense: bool) -> list[bytes]:
    """Return a line for every name that an operation reads or a block returns."""
    program.require_same_rows()
    scan, lines, nbytes = program.scan, [], 0
    scopes: dict[int, str] = {}
    for block, kind, op, key, number, name in program.view.graph.reads():
        if dense and kind is not None and kind.startswith("constexpr_"):
            continue
        if block not in scopes:
            scopes[block] = program.prefix + scan.scope(scan.table.blocks[block][1], block)
        binding = "0" if kind is None else f"{key}[{number}]"
        words = (scopes[block], "return" if kind is None else kind, op, binding, name)
        lines.append(b"use %b\n" % b" ".join(map(_text, words)))
        nbytes += len(lines[-1])
        scan.require_texts(nbytes)  # each line repeats the names of the blocks around it
    return lines


# --------------------------------------------------------------------------------------------------------------- BLAKE3


def _message(data: bytes) -> str:
    return digest([Piece(_codec.Buffer(data), 0, len(data), DType.UINT8)]).hex()


def digest(pieces: Iterable[Piece]) -> bytes:
    """Return the BLAKE3 of concatenated pieces; bits after the last element count as zero."""
    return blake3(span for piece in pieces for span in _spans(piece))


def _spans(piece: Piece) -> Iterator[Span]:
    """Yield the bytes of a piece; the last one changed if bits after its last element are set, as in some files."""
    buffer, offset, nbytes = piece.buffer, piece.offset, piece.nbytes
    used = piece.count * piece.dtype.nbits % 8
    last = memoryview(buffer)[offset + nbytes - 1] if used else 0
    if last >> used == 0:
        yield buffer, offset, nbytes
    else:
        yield buffer, offset, nbytes - 1
        yield _codec.Buffer(bytes([last & ((1 << used) - 1)]), buffer.name), 0, 1
