"""Problems that only reading a model's values shows: NaN, infinities, parts that do not match."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..errors import FormatError, LimitError, MilblobError, ResolveError, WorkerError
from ..model.elements import Piece, stored_piece
from ..model.fetching import fetch
from ..model.model import Model
from ..model.package import Package
from ..model.tensor import Tensor
from ..progress import Progress, ProgressCounter
from ..workers import workers_of
from .check_report import Finding, Findings
from .reopening import FarTensors, Reopened, collected, nbytes_of, up_to_error
from .statistics import Statistics, examined

if TYPE_CHECKING:
    from concurrent.futures import Executor

_MASKS = {
    "constexpr_sparse_to_dense": ("mask", "nonzero_data"),
    "constexpr_lut_to_sparse": ("indices_mask", "indices_nonzero_data"),
    "constexpr_sparse_blockwise_shift_scale": ("data_mask", "nonzero_data"),
}
_INDICES = {"constexpr_lut_to_dense": "indices", "constexpr_lut_to_sparse": "indices_nonzero_data"}
_R = TypeVar("_R")
_BROKEN = (MilblobError, OSError)  # the rest of `check` has reported these already


def check_values(
    found: Findings, package: Package, progress: Progress | None = None, executor: "Executor | None" = None
) -> None:
    """Read every stored tensor of a model and report what is wrong with the values.

    `package`: an open model. What cannot be read is skipped: `check` reports that.
    """
    counter = ProgressCounter(progress)
    opened = _attempt(found, lambda: _opened(package))
    if opened is None:
        return
    model, floats, operations = opened
    fetch([*floats, *operations])  # a server that fails is an error of the check, and no finding
    tensors = [tensor for tensor in counter.noting(floats) if _is_readable(tensor)]
    counter.total_nbytes = sum(map(_nbytes, (*tensors, *operations)))
    workers = workers_of(executor)
    far = None if workers is None else FarTensors(workers, Reopened.of(model, is_broken=True))
    with closing(_steps(found, model, tensors, operations, far)) as steps:
        while (tensor := _attempt(found, lambda: next(steps, None), far is not None)) is not None:
            counter.add(tensor.name, _nbytes(tensor))  # outside of what catches errors: `progress` may raise any


def _attempt(found: Findings, work: Callable[[], _R | None], is_far: bool = False) -> _R | None:
    """Do one step; None at the end, and where the model can be followed no further.

    `is_far`: whether workers read the values: they refuse files that have changed.
    """
    try:
        return work()
    except LimitError as error:
        found.add("warning", "limit", error.what, file=error.file, where=error.where)
    except WorkerError:
        raise
    except _BROKEN as error:
        if is_far:
            if not isinstance(error, MilblobError):
                raise
            found.add("error", "unreadable", error.what, file=error.file, offset=error.offset, where=error.where)
    return None


def _opened(package: Package) -> tuple[Model, list[Tensor], list[Tensor]]:
    """Return the model with its stored tensors of floats, and its compressed weights."""
    model = Model(package, stored=True)
    return model, [tensor for tensor in model.values() if tensor.mil_dtype.is_float], list(_operations(Model(package)))


def _steps(
    found: Findings, model: Model, tensors: list[Tensor], operations: list[Tensor], far: FarTensors | None
) -> Generator[Tensor, None, None]:
    """Yield each tensor after it was checked: numbers first, then compressed weights."""
    yield from _check_numbers(found, model, tensors, far)
    if far is not None:
        yield from _check_far(found, operations, far)
        return
    for operation in operations:
        _check_operation(found, operation)
        yield operation


def _nbytes(tensor: Tensor) -> int:
    try:
        return tensor.nbytes
    except _BROKEN:
        return 0


# ------------------------------------------------------------------------------------------------------ NaN, infinities


def _check_numbers(found: Findings, model: Model, tensors: list[Tensor], far: FarTensors | None) -> Iterator[Tensor]:
    named = {tensor.name: tensor for tensor in tensors}
    for tensor, figures in zip(tensors, examined(named, far, distinct=False), strict=True):
        _report_numbers(found, tensor, figures)
        yield tensor
    for tensor in model.values():
        if tensor.mil_dtype.is_sub_byte and not tensor.is_blob and _has_padding_bits(tensor):
            message = f"unused bits of the last {tensor.mil_dtype} byte: expected zeros, got others"
            found.add("note", "padding", message, file=tensor.file, offset=tensor.offset, where=_where(tensor))


def _is_readable(tensor: Tensor) -> bool:
    try:
        tensor.read_packed()
    except _BROKEN:
        return False
    return True


def _report_numbers(found: Findings, tensor: Tensor, figures: Statistics) -> None:
    expected = f"values of {tensor.mil_dtype} {list(tensor.shape)}: expected finite ones"
    place: dict[str, Any] = {"file": tensor.file, "offset": tensor.offset, "where": _where(tensor)}
    if figures.nans:
        found.add("warning", "nan", f"{expected}, got {figures.nans} NaN", **place)
    if figures.infinities:  # attention masks contain them on purpose
        found.add("note", "infinite", f"{expected}, got {figures.infinities} infinite", **place)


def _where(tensor: Tensor) -> str:
    return tensor.where if tensor.program is not None else f"tensor {tensor.name}"


def _has_padding_bits(tensor: Tensor) -> bool:
    """Whether a packed immediate has bits set after its last element."""
    try:
        program = tensor.program
        offset, nbytes = tensor.constant.payload
        if program is None or tensor.constant.storage != _codec.IMMEDIATE:
            return False
        field, _, at, payload, pieces, _ = _codec.tensor_locate(program.scan.buffer, offset, nbytes)
        used = tensor.size * tensor.mil_dtype.nbits % 8
        last = memoryview(program.scan.buffer)[at + payload - 1] if payload else 0
    except _BROKEN:
        return False
    return field == 7 and pieces == 1 and used != 0 and last >> used != 0


# --------------------------------------------------------------------------------------------------- compressed weights


def _operations(model: Model) -> Iterator[Tensor]:
    """Yield every constexpr operation of a model's weights once, as the tensor that it computes."""
    pending = list(model.values())
    seen = set()  # an operation with two outputs is one message; the models of a pipeline may be in several files
    for tensor in pending:  # grows during the loop
        key = None if tensor.chain is None else (tensor.program, tensor.chain.op.message)
        if key is not None and key not in seen:
            seen.add(key)
            yield tensor
            pending += tensor.parts.values()


def _check_far(found: Findings, operations: list[Tensor], far: FarTensors) -> Iterator[Tensor]:
    """Check the compressed weights in workers; findings come in the order of the operations."""

    def pieces() -> Iterator[tuple[Reopened, int, int]]:
        first = 0
        for group in far.workers.groups(operations, nbytes_of):
            for operation in group:
                _spend(operation)
            yield far.source, first, len(group)
            first += len(group)

    def name_of(piece: tuple[Reopened, int, int]) -> str:
        return f"compressed weights from {operations[piece[1]].name} of {far.source.path}"

    every = up_to_error(far.workers.run(_check_stretch, pieces(), name_of))
    for operation, findings in zip(operations, every, strict=True):
        for one in findings:
            found.add(one.severity, one.code, one.message, file=one.file, offset=one.offset, where=one.where)
        yield operation


def _check_stretch(piece: tuple[Reopened, int, int]) -> tuple[list[list[Finding]], Exception | None]:
    """Return the findings of `count` operations from number `first`, up to an error. Runs in any thread or process."""
    source, first, count = piece

    def checked(operation: Tensor) -> list[Finding]:
        own = Findings()
        _check_operation(own, operation)
        return own.items

    with ExitStack() as stack:
        operations = _operations(cast(Model, source._replace(stored=False).open(stack).model))
        return collected(map(checked, islice(operations, first, first + count)))


def _spend(operation: Tensor) -> None:
    """Count what a worker will scan: its own budget is for one piece only."""
    keys = [_MASKS[operation.op][0]] if operation.op in _MASKS else []
    for key in [*keys, *([_INDICES[operation.op]] if operation.op in _INDICES else [])]:
        with suppress(FormatError, ResolveError, OSError):
            part = operation.parts.get(key)
            if part is not None and part.chain is None:
                part.package.budget.spend((operation.name, part.name), part.nbytes)


def _check_operation(found: Findings, operation: Tensor) -> None:
    parts = operation.parts
    kind = operation.op
    try:
        if kind in _MASKS:
            mask, nonzero = (parts.get(key) for key in _MASKS[kind])
            if mask is not None and nonzero is not None and mask.chain is None:
                _check_mask(found, operation, mask, nonzero)
        if kind in _INDICES:
            indices, palette = parts.get(_INDICES[kind]), parts.get("lut")
            if indices is not None and palette is not None and indices.chain is None:
                _check_indices(found, operation, indices, palette)
    except LimitError:
        raise
    except _BROKEN:
        return


def _piece(part: Tensor, operation: Tensor) -> tuple[Piece, bool]:
    """Return a part's stored elements, and whether they are bits in a byte vector, as up to iOS17."""
    piece = stored_piece(part)
    # Operations may share parts: each use scans them again.
    part.package.budget.spend((operation.name, part.name), piece.nbytes)
    return piece, piece.dtype is DType.UINT8 and "shape" in operation.parts


def _check_mask(found: Findings, operation: Tensor, mask: Tensor, nonzero: Tensor) -> None:
    """Report a mask whose number of ones differs from the number of nonzero values."""
    piece, in_bytes = _piece(mask, operation)
    if piece.dtype is not DType.UINT1 and not in_bytes:
        return
    count = prod(operation.shape) if in_bytes else piece.count
    if in_bytes and piece.count * 8 < count:
        return  # too short: reading reports that
    last = piece.offset + count // 8
    if in_bytes and count % 8 and memoryview(piece.buffer)[last] >> count % 8:
        message = f"unused bits of the last byte of the {_MASKS[operation.op][0]}: expected zeros, got others"
        found.add("note", "padding", message, file=mask.file, offset=mask.offset, where=operation.where)
    tally = _codec.Tally()
    tally.add(piece.buffer, piece.offset, count, 1)
    ones = int(tally.gather(DType.UINT1.mil_code)[0].sums[0])
    if ones != nonzero.size:
        expected = (
            f"{_MASKS[operation.op][1]} of {operation.op}: expected {ones} elements, as many as the mask has ones"
        )
        message = f"{expected}, got {nonzero.size}"
        found.add("error", "mask-count", message, file=mask.file, offset=mask.offset, where=operation.where)


def _check_indices(found: Findings, operation: Tensor, indices: Tensor, palette: Tensor) -> None:
    """Report indices outside the palette."""
    piece, in_bytes = _piece(indices, operation)
    if in_bytes or not piece.dtype.is_integer or piece.dtype.nbits > 16 or palette.ndim < 2:
        return  # up to iOS17 the palette has an entry for every possible index
    entries = palette.shape[-2]
    tally = _codec.Tally()
    tally.add(piece.buffer, piece.offset, piece.count, piece.dtype.nbits)
    _, _, patterns, counts = tally.gather(piece.dtype.mil_code)
    outside = np.frombuffer(patterns, np.uint16) >= entries
    if outside.any():
        most = int(np.frombuffer(patterns, np.uint16).max())
        number = int(np.frombuffer(counts, np.uint64)[outside].sum())
        expected = f"indices of {operation.op}: expected 0 to {entries - 1}, which the palette has"
        message = f"{expected}, got {number} others, up to {most}"
        found.add("error", "palette-index", message, file=indices.file, offset=indices.offset, where=operation.where)
