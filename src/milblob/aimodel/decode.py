"""Compressed weights of a bundle: the operations that compute them, as the chains that milblob decodes."""

from math import prod
from typing import Any, cast

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..program.constexpr import Chain
from ..program.scan import Compressed
from ..values.dense import FLOATS, Computed, Dense, Packed, pack, read
from .bytecode import TensorKind
from .codes import short_family
from .open_bytecode import OpenBytecode

_MAX_LINKS = 8
Array = np.ndarray[Any, Any]

_LINKS = {
    "blockwise_shift_scale": (
        "constexpr_blockwise_shift_scale",
        {"data": "data", "scale": "scale", "offset1": "offset"},
    ),
    "dequantize": ("constexpr_blockwise_shift_scale", {"input": "data", "scale": "scale", "offset1": "offset"}),
    "lut_to_dense": ("constexpr_lut_to_dense", {"indices": "indices", "lut": "lut", "axis": "vector_axis"}),
    "build_sparse_with_bitmask": ("constexpr_sparse_to_dense", {"values": "nonzero_data", "bitmask": "mask"}),
    "cast": ("constexpr_cast", {"input": "source_val"}),
}
"""Operation -> the one of an ML Program that does the same, and what that calls the operands."""


class AssetLink:
    """An operation, or a constant, with the attributes of one of an ML Program that `Chain` and `describe` look at."""

    storage, text, blob_offset = _codec.IMMEDIATE, "", 0

    def __init__(self, row: int, kind: TensorKind, type: str = "") -> None:
        if kind.element is None or kind.element.dtype is None:
            message = f"element type of a part: expected one that MIL has, got {kind.text}"
            raise UnsupportedError(message, code="element-type")
        self.row, self.type, self.dtype = row, type, kind.element.dtype
        self.mil_code, self.shape = self.dtype.mil_code, kind.shape

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AssetLink) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row)


class AssetDecoder:
    """Decodes the weights of an open file of bytecode."""

    def __init__(self, opened: OpenBytecode) -> None:
        self._opened, self._program, self._require = opened, opened.program, opened.budget.require
        self.nbytes = 0  # of all parts that were read
        self._known: dict[int, Dense] = {}

    def dense(self, op: int, links: int = 0) -> Dense:
        """Return the decoder of an operation's values; the same object on each call.

        Raises: UnsupportedError: an operation, or types, that milblob does not decode; they are named. FormatError:
        parts that do not fit each other.
        """
        if op not in self._known:
            self._known[op] = self._make(op, links)
        return self._known[op]

    def _make(self, op: int, links: int) -> Dense:
        name = self._program.bytecode.op_name(op)
        parts, kind = self._program.computed[op], self._program.kind(op)
        if links == _MAX_LINKS:
            raise UnsupportedError(
                f"operations that compute a weight: expected at most {_MAX_LINKS}, got more", code="operation"
            )
        short = short_family(name)
        if kind.element is None or kind.element.dtype is None or None in kind.shape:
            raise UnsupportedError(
                f"output of {name}: expected a known element type and sizes, got {kind.text} {kind.shape}",
                code="element-type",
            )
        if short == "cast":
            self._require(kind.element.numpy.itemsize * prod(cast("tuple[int, ...]", kind.shape)))
            with np.errstate(all="ignore"):  # numbers that do not fit
                values = self._read(parts["input"], links).astype(kind.element.numpy)
            found: Dense = Computed(values, kind.element.dtype)
        elif short == "sparse_with_bitmask_to_dense":
            inner = parts["input"]
            if short_family(self._program.bytecode.op_name(inner)) != "build_sparse_with_bitmask":
                raise self._unknown(self._program.bytecode.op_name(inner))
            found = self._by_chain(inner, self._link(inner, kind), links)
        elif short in ("blockwise_shift_scale", "dequantize"):
            found = self._scaled(op, kind, parts, links)
        elif short == "lut_to_dense":
            found = self._by_chain(op, self._link(op, kind), links)
        else:
            raise self._unknown(name)
        if found.shape != kind.shape or (found.dtype is not kind.element.dtype):
            message = (
                f"output of {name}: expected {found.dtype} {list(found.shape)}, which its parts make, got {kind.text}"
            )
            raise FormatError(f"{message} {list(kind.shape)}", code="compressed")
        return found

    @staticmethod
    def _unknown(name: str) -> UnsupportedError:
        return UnsupportedError(
            f"operation that computes a weight: expected one that is known, got {name}", code="operation"
        )

    def _link(self, op: int, kind: TensorKind, left_out: tuple[str, ...] = ()) -> Compressed:
        """Return an operation whose parts are what makes its operands."""
        mil, keys = _LINKS[short_family(self._program.bytecode.op_name(op))]
        parts = {
            keys[key]: AssetLink(row, self._program.kind(row))
            for key, row in self._program.computed[op].items()
            if key in keys and key not in left_out
        }
        return Compressed(cast(Any, AssetLink(op, kind, mil)), parts)

    def _by_chain(self, op: int, weight: Compressed, links: int, given: dict[int, Packed] | None = None) -> Dense:
        name = self._program.bytecode.op_name(op)

        def stored(part: AssetLink) -> Packed:
            return (given or {}).get(part.row) or self._stored(part.row, links)

        chain = Chain(stored, lambda _: name, self._require)
        found = chain.dense(weight)
        self.nbytes += chain.nbytes
        return found

    def _stored(self, row: int, links: int) -> Packed:
        if row not in self._program.computed:
            return self._opened.packed_constant(row)
        inner = self.dense(row, links + 1)
        self._require(inner.dtype.numpy.itemsize * prod(inner.shape))
        return pack(read(inner), inner.dtype)

    def _read(self, row: int, links: int) -> Array:
        return read(self.dense(row, links + 1)) if row in self._program.computed else self._opened.constant(row)

    def _scaled(self, op: int, kind: TensorKind, parts: dict[str, int], links: int) -> Dense:
        """Decode scale * (data - offset1) + offset2, per block or along an axis, which is expanded to blocks."""
        name = self._program.bytecode.op_name(op)
        data = parts.get("data", parts.get("input", -1))
        if not {"scale", "offset1", "offset2"} <= {*parts}:
            raise FormatError(
                f"operands of {name}: expected data, scale and two offsets, got {', '.join(parts)}", code="compressed"
            )
        scale, first, second = (self._read(parts[key], links) for key in ("scale", "offset1", "offset2"))
        if "axis" in parts:
            self._require_alike(name, scale, first, second)
            sizes = self._blocks(name, len(kind.shape), self._read(parts["axis"], links), scale)
            scale, first, second = (array.reshape(sizes) for array in (scale, first, second))
        stored = self._program.kind(data)
        dtype, shape = kind.element.dtype if kind.element is not None else None, cast("tuple[int, ...]", kind.shape)
        is_plain = stored.element is not None and (stored.element.dtype in FLOATS or _is_integer(stored.element.dtype))
        is_plain = is_plain and first.dtype == stored.element.numpy  # type: ignore[union-attr]
        if is_plain and dtype in FLOATS and scale.dtype == kind.element.numpy and not second.any():  # type: ignore[union-attr]
            given = {parts["scale"]: pack(scale, dtype), parts["offset1"]: pack(first, stored.element.dtype)}  # type: ignore[union-attr]
            link = self._link(op, kind, () if first.any() else ("offset1",))
            return self._by_chain(op, link, links, given)
        if len(scale.shape) != len(shape) or any(
            n == 0 or size % n for size, n in zip(shape, scale.shape, strict=True)
        ):
            raise FormatError(
                f"scale of {name}: expected sizes that divide {shape}, got {scale.shape}", code="compressed"
            )
        self._require_alike(name, scale, first, second)
        self._require(3 * 4 * prod(shape))
        out = self._read(data, links).astype(np.float32)
        if out.shape != shape:
            raise FormatError(f"data of {name}: expected shape {shape}, got {out.shape}", code="compressed")
        with np.errstate(all="ignore"):  # overflow gives infinity; infinity times zero is NaN
            out -= spread_blocks(first, shape)
            out *= spread_blocks(scale, shape)
            if second.any():
                out += spread_blocks(second, shape)
            return Computed(out.astype(kind.element.numpy), dtype)  # type: ignore[union-attr]

    @staticmethod
    def _require_alike(name: str, scale: Array, first: Array, second: Array) -> None:
        if first.shape != scale.shape or second.shape != scale.shape:
            message = f"offsets of {name}: expected shape {scale.shape}, got {first.shape} and {second.shape}"
            raise FormatError(message, code="compressed")

    @staticmethod
    def _blocks(name: str, rank: int, axis: Array, scale: Array) -> tuple[int, ...]:
        if scale.ndim == 0:
            return (1,) * rank
        number = int(axis) if axis.ndim == 0 and axis.dtype.kind in "iu" else -rank - 1
        if scale.ndim != 1 or not -rank <= number < rank:
            message = (
                f"axis of {name}: expected one of {rank} for a vector of scales, got {axis.tolist()} for {scale.shape}"
            )
            raise FormatError(message, code="compressed")
        return tuple(scale.size if i == number % rank else 1 for i in range(rank))

    def described(self, op: int, links: int = 0) -> Compressed | None:
        """Return the chain of operations that computes a weight, to describe it; None of types that MIL lacks."""
        parts, program = self._program.computed[op], self._program
        short = short_family(program.bytecode.op_name(op))
        if short == "sparse_with_bitmask_to_dense":
            op, parts = parts["input"], program.computed.get(parts["input"], {})
            short = short_family(program.bytecode.op_name(op))
        if short not in _LINKS or links == _MAX_LINKS:
            return None
        mil, keys = _LINKS[short]
        try:
            found = {
                keys[key]: self.described(row, links + 1)
                if row in program.computed
                else AssetLink(row, program.kind(row))
                for key, row in parts.items()
                if key in keys
            }
            return Compressed(
                cast(Any, AssetLink(op, program.kind(op), mil)), {k: v for k, v in found.items() if v is not None}
            )
        except UnsupportedError:
            return None


def _is_integer(dtype: DType | None) -> bool:
    return dtype is not None and dtype.is_integer and dtype.nbits <= 8


def spread_blocks(parameters: Array, shape: tuple[int, ...]) -> Array:
    """Return the parameter of each element, float32: along each axis, blocks of shape / parameters.shape share one."""
    found: Array = parameters.astype(np.float32)
    for axis, size in enumerate(shape):
        if parameters.shape[axis] not in (1, size):
            found = np.repeat(found, size // parameters.shape[axis], axis)
    return found
