"""A weight between recipes: its partly compressed form, and the parts stored for that form."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..lossy.loss import Loss, total
from ..lossy.palettize import Palettized
from ..lossy.quantize import Quantized
from ..lossy.unfit import UnfitError
from ..program.compress_edits import Link, Links, Same
from ..program.constexpr import Chain
from ..program.scan import Compressed
from ..rewrite.changes import WEIGHT_COUNT
from ..rewrite.parts import Part, Put, WeightParts
from ..threads import ordered
from ..values.dense import Dense, Packed, read
from ..values.strided import PIECE_COUNT, Empty, packed_mask, range_of, selected, unpacked_mask
from ..values.tensorvalue import stored_bytes

Array = np.ndarray[Any, Any]

LINKED_OPSET = 18
"""The first opset in which operations compute parts of others, and in which blocks and groups are."""

INDICES = {1: DType.UINT1, 2: DType.UINT2, 3: DType.UINT3, 4: DType.UINT4, 6: DType.UINT6, 8: DType.UINT8}
_MEASURED_COUNT = 1 << 20  # elements that are measured at a time


class Pieces(NamedTuple):
    """The compressed form of a weight so far. A field is None if no recipe has made it."""

    array: Array  # the weight as it was
    steps: tuple[str, ...] = ()  # names of the recipes, in order
    bits: Array | None = None  # mask of the elements that are not zero: packed, least significant first
    nonzero: Array | None = None  # these elements, where nothing else holds them
    coded: Quantized | None = None  # integers and their scales
    table: Palettized | None = None  # palettes and indices
    axis: int | None = None  # the axis of the vector that one index represents
    lut: Quantized | None = None  # integers and scales that the palettes are computed from
    loss: Loss | None = None  # if it is known
    empty: Empty = np.empty  # makes all arrays as long as the weight
    is_coming: bool = False  # whether arrays that do not go into the Program are only shapes, see `coming`

    @property
    def mask(self) -> Array:
        """Which elements are not zero, as bool, unpacked from `bits`."""
        return unpacked_mask(cast(Array, self.bits), self.array.shape, self.empty)

    def values(self) -> Array:
        """Return the dense values that the pieces represent."""
        if not self.steps:
            return self.array
        # Decoding writes stored bytes: the result has the machine's byte order, not that of the array.
        return read(self._dense(), self.empty(self.array.shape, as_dtype(self.array.dtype).numpy))

    def measured(self, weights: Array | None = None) -> Loss:
        """Return what is lost; see `measured`."""
        if not self.steps:
            return measured(self.array, partial(range_of, self.array), weights)
        dense = self._dense()
        return measured(self.array, lambda begin, count: read(dense, None, begin, (count,)), weights)

    def _dense(self) -> Dense:
        op, parts, links = self._parts(LINKED_OPSET)
        return _dense(op, {part.key: part for part in parts}, links, self.array)

    def parts(self, opset: int) -> WeightParts:
        """Return what is stored for an opset, and what is lost.

        Raises: UnfitError: the values would not be finite; iOS16 has no 3-bit indices.
        """
        loss = self.loss if self.loss is not None else self.measured()
        require_finite_loss(loss)
        op, parts, links = self._parts(opset)
        gap = None if self.table is None or np.isnan(self.table.gap) else self.table.gap
        return WeightParts(op, tuple(parts), self.array.size, links, loss._replace(gap=gap))

    def parts_to_come(self, opset: int, write: Callable[[set[str], Put], Loss], is_sure: bool = False) -> WeightParts:
        """Return what will be stored for an opset; arrays that do not go into the Program are still `coming`.

        `write`: computes and writes the parts with some keys; see `WeightParts.compute`. `is_sure`: as there.
        Raises: as `parts`.
        """
        op, parts, links = self._replace(is_coming=True)._parts(opset)
        stored = {part.key for part in parts if part.array is None}
        return WeightParts(op, tuple(parts), self.array.size, links, None, partial(write, stored), is_sure)

    def require_whole_vectors(self) -> None:
        """Refuse a mask that has only some elements of a vector: an index represents all of them.

        Raises: UnfitError: it does.
        """
        if self.bits is None or self.axis is None:
            return
        length = cast(Palettized, self.table).palettes.shape[-1]
        mask = np.moveaxis(self.mask, self.axis, -1)
        mask = mask.reshape(*mask.shape[:-1], -1, length)
        step = max(PIECE_COUNT // length, 1)
        for first in range(0, mask.size // length, step):
            count = min(step, mask.size // length - first)
            some = range_of(mask, first * length, count * length).reshape(count, length)
            if (some.any(-1) != some.all(-1)).any():
                message = f"expected vectors that are pruned as a whole (Prune with block={length}, dim={self.axis})"
                raise UnfitError(f"{message}, got some that are pruned in part")

    def _parts(self, opset: int) -> tuple[str, list[Part], Links]:
        if opset < LINKED_OPSET:
            return (*self._early(), {})
        links: dict[str, Link | Same] = {}
        if self.bits is None and self.coded is not None:
            return "constexpr_blockwise_shift_scale", self._scaled("data", self.coded), links
        if self.bits is None:
            return "constexpr_lut_to_dense", self._palettes("indices", "", links), links
        packed = None if self.is_coming else memoryview(self.bits)  # type: ignore[arg-type]
        mask = Part("mask", DType.UINT1, self.array.shape, None, packed)
        if self.nonzero is not None:
            return "constexpr_sparse_to_dense", [self._part("nonzero_data", self.nonzero), mask], links
        inner = "nonzero_data."
        count = _codec.count_ones(_codec.Buffer(self.bits), 0, 0, self.array.size)
        outputs = [(DType.UINT1, self.array.shape), (as_dtype(self.array.dtype), (count,))]
        if self.coded is not None:
            links["nonzero_data"] = Link("constexpr_sparse_blockwise_shift_scale", tuple(outputs), 1)
            chosen = self.coded._replace(data=selected(self.coded.data, self.mask, self.empty))
            parts = self._scaled(f"{inner}nonzero_data", chosen, inner)
            parts.append(replace(mask, key=f"{inner}data_mask"))
            # coremltools writes the mask twice where it was there first.
            was_first = self.steps.index("Prune") < self.steps.index("Linear")
            links["mask"] = Same(f"{inner}data_mask") if was_first else Same("nonzero_data", 0)
        else:
            links["nonzero_data"] = Link("constexpr_lut_to_sparse", tuple(outputs), 1)
            links["mask"] = Same("nonzero_data", 0)
            table = cast(Palettized, self.table)
            mask, vectors = replace(mask, key=f"{inner}indices_mask"), self.mask
            if self.axis is not None:  # the recipe ensures a mask of whole vectors
                length = table.palettes.shape[-1]
                vectors = vectors[(*(slice(None),) * self.axis, slice(None, None, length))]
                bits = packed_mask(vectors, self.empty)
                mask = replace(mask, shape=vectors.shape, data=memoryview(bits))  # type: ignore[arg-type]
            some = selected(table.indices, vectors, self.empty)
            chosen_table = self._replace(table=table._replace(indices=some))
            parts = [mask, *chosen_table._palettes("indices_nonzero_data", inner, links)]
        return "constexpr_sparse_to_dense", parts, links

    def _palettes(self, key: str, prefix: str, links: dict[str, Link | Same]) -> list[Part]:
        """The indices and what computes the palettes."""
        table = cast(Palettized, self.table)
        index = INDICES[table.nbits]
        parts = [self._part(prefix + key, table.indices.view(index.numpy), index)]
        if self.lut is None:
            parts.append(self._part(f"{prefix}lut", table.palettes))
        else:
            kind = as_dtype(self.lut.scale.dtype), self.lut.data.shape
            links[f"{prefix}lut"] = Link("constexpr_blockwise_shift_scale", (kind,))
            parts += self._scaled(f"{prefix}lut.data", self.lut, f"{prefix}lut.")
        if self.axis is not None:
            parts.append(self._part(f"{prefix}vector_axis", np.array(self.axis, np.int32)))
        return parts

    def _early(self) -> tuple[str, list[Part]]:
        """The parts for iOS16 and 17: bits are packed in bytes, and one recipe is all that there can be."""
        shape = self._part("shape", np.array(self.array.shape, np.uint32))
        if self.coded is not None:
            made = self.coded
            zeros = np.zeros(made.scale.shape, made.dtype.numpy)
            point = made.zero_point if made.zero_point is not None else zeros
            axis = next((axis for axis, count in enumerate(made.scale.shape) if count > 1), 0)
            scaled = [
                self._part("zero_point", point.squeeze(), made.dtype),
                self._part("scale", made.scale.squeeze()),
            ]
            return "constexpr_affine_dequantize", [
                self._part("quantized_data", made.data, made.dtype),
                *(reversed(scaled) if self.is_coming else scaled),  # an order that results have had from the first
                self._part("axis", np.array(axis, np.int32)),
            ]
        if self.table is not None:
            if self.table.nbits == 3:
                raise UnfitError("expected an opset of iOS18 for 3 bits, got an earlier one")
            index = INDICES[self.table.nbits]
            part = self._part("indices", self.table.indices.view(index.numpy), index)
            packed = coming((part.nbytes,), np.uint8) if self.is_coming else np.frombuffer(part.data, np.uint8)
            parts = [self._part("indices", packed), self._part("lut", self.table.palettes.reshape(-1)), shape]
            return "constexpr_lut_to_dense", parts
        kept = [self._part("nonzero_data", self.nonzero), self._part("mask", self.bits), shape]
        return "constexpr_sparse_to_dense", kept

    def _scaled(self, key: str, made: Quantized, prefix: str = "") -> list[Part]:
        parts = [self._part(key, made.data, made.dtype), self._part(f"{prefix}scale", made.scale)]
        if made.zero_point is not None:
            parts.append(self._part(f"{prefix}offset", made.zero_point, made.dtype))
        return parts

    def _part(self, key: str, array: Any, dtype: Any = None) -> Part:
        """Make a part of an array."""
        array = np.asarray(array)
        dtype = as_dtype(array.dtype) if dtype is None else dtype
        few = array if array.size < WEIGHT_COUNT else None
        data = None if self.is_coming else stored_bytes(array, dtype, empty=self.empty)
        return Part(key, dtype, array.shape, few, data)


def coming(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array that takes no memory, in place of one whose elements are computed while they are written."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def require_finite_loss(loss: Loss) -> None:
    """Refuse values that became infinite or NaN. Raises: UnfitError."""
    if not np.isfinite(loss[:3]).all():  # scales are rounded, and the largest floats are near
        message = "expected finite elements after rounding, got infinite ones: their values are near the largest float"
        raise UnfitError(message)


def measured(array: Array, values: Callable[[int, int], Array], weights: Array | None = None) -> Loss:
    """Return what is lost if values take the place of those of an array.

    Elements that are not finite, and the same in both, do not count.

    `array`: as it was. `values`: returns what some elements became, given the number of the first and how many; called
    in any thread. `weights`: of the elements in both sums, in the same shape; None: all alike.
    """

    def work(part: tuple[int, int]) -> Loss:
        with np.errstate(invalid="ignore"):  # also of a signalling NaN
            wide = range_of(array, *part, np.float64)
            difference = values(*part).astype(np.float64) - wide
        kept = ~np.isfinite(wide)
        if kept.any():
            wide, difference = np.where(kept, 0, wide), np.where(kept, 0, difference)
        weighted = difference, wide
        if weights is not None:
            heavy = range_of(weights, *part, np.float32).astype(np.float64)
            weighted = heavy * difference, heavy * wide
        squared, power = np.dot(difference, weighted[0]), np.dot(wide, weighted[1])
        return Loss(float(squared), float(power), float(np.abs(difference).max(initial=0.0)))

    divided = [(first, min(_MEASURED_COUNT, array.size - first)) for first in range(0, array.size, _MEASURED_COUNT)]
    return total(ordered(work, divided))


# -------------------------------------------------------------------------------------------------------- dense values


class _Rows:
    """Parts and links as the rows that `Chain` reads.

    Not functions that call each other: they would form a reference cycle, which keeps arrays as long as the weight, and
    their files, until the garbage collector runs.
    """

    def __init__(self, parts: Mapping[str, Part], links: Links) -> None:
        self._parts, self._links = parts, links
        self._made: dict[tuple[str, int], Any] = {}

    def group(self, kind: str, prefix: str, outputs: Any, output: int) -> Any:
        """Return the row of an operation: its parts are those whose keys begin with the prefix."""
        dtype, shape = outputs[output]
        row: Any = SimpleNamespace(  # what `Chain` asks of an operation
            type=kind, message=(len(prefix), 0), mil_code=dtype.mil_code, shape=shape, output_count=len(outputs)
        )
        names = (*self._parts, *self._links)
        keys = [key for key in names if key.startswith(prefix) and "." not in key[len(prefix) :]]
        return Compressed(row, {key[len(prefix) :]: self._of(key) for key in keys}, output)

    def _of(self, key: str, output: int | None = None) -> Any:
        link = self._links.get(key)
        if link is None:
            return self._parts[key]
        if isinstance(link, Same):
            return self._of(link.key, link.output)
        number = link.output if output is None else output
        if (key, number) not in self._made:
            self._made[key, number] = self.group(link.op, f"{key}.", link.outputs, number)
        return self._made[key, number]


def _dense(op: str, parts: Mapping[str, Part], links: Links, array: Array) -> Dense:
    """What a reader of the parts computes; the parts are checked as a reader checks them."""

    def stored(row: Part) -> Packed:
        return Packed(_codec.Buffer(row.data), 0, row.dtype, row.shape)

    chain = Chain(stored, lambda row: str(row.type), lambda nbytes: None)
    return chain.dense(_Rows(parts, links).group(op, "", [(as_dtype(array.dtype), array.shape)], 0))
