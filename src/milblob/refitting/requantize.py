"""New values for a compressed weight: its chain of constexpr operations, from the dense end to the stored parts."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from ..dtypes import DType
from ..errors import MilblobError, UnsupportedError
from ..lossy import stored_parts
from ..model.assigning import encode
from ..model.tensor import Tensor
from ..program.constexpr import Chain
from ..program.scan import Compressed
from ..program.view import Operation
from ..values.cast import cast_array
from ..values.dense import Dense, Packed, pack, read
from ..values.tensorvalue import stored_bytes
from ..wording import escape
from .pairs import How, RefitItem, readers_of
from .pairs import read as read_values
from .problems import ERRORS

Array = np.ndarray[Any, Any]
_SMALL_NBYTES = 1 << 16
_PALETTES = ("constexpr_lut_to_dense", "constexpr_lut_to_sparse")
_SCALES = ("constexpr_blockwise_shift_scale", "constexpr_sparse_blockwise_shift_scale")
_INDICES = {1: DType.UINT1, 2: DType.UINT2, 3: DType.UINT3, 4: DType.UINT4, 6: DType.UINT6, 8: DType.UINT8}


def requantized(item: RefitItem, how: How, recent: "list[Requantized]") -> list[tuple[Tensor, Callable[[], Any]]]:
    """Return the stored parts of a compressed weight that change, each with what makes its new bytes.

    `recent`: the weight that was requantized last, of all that get this list: only its large parts are kept.
    Raises: UnsupportedError: an operation that cannot be requantized. ValueError: a part that another weight reads too.
    """
    weight = Requantized(item, how, recent)
    return [(tensor, weight.maker(key)) for key, tensor in weight.changing.items()]


class Requantized:
    """The new stored parts of one weight, computed on the first access to one of them."""

    def __init__(self, item: RefitItem, how: How, recent: "list[Requantized]") -> None:
        self._item, self._how, self._recent = item, how, recent
        self._is_fit = how.requantize == "fit"
        self._chain = cast(Compressed, item.tensor.chain)
        self.changing: dict[Any, Tensor] = {}  # the parts that change, by their row
        for row in self._find(self._chain):
            self.changing[row] = item.tensor.part(row)
        self._require_own()
        self._arrays: dict[Any, Array] = {}
        self._small: dict[Any, Any] = {}
        self._error: Exception | None = None

    def maker(self, key: Any) -> Callable[[], Any]:
        """Return a function that makes the new stored bytes of a part."""

        def make() -> Any:
            if self._error is not None:  # one problem, however many parts there are
                raise self._error
            if key in self._small:
                return self._small[key]
            if key not in self._arrays:
                try:
                    self._compute()
                except ERRORS as error:
                    self._error = error
                    self.drop()
                    raise
            return self._encode(key)

        return make

    def _encode(self, key: int) -> Any:
        data, _, _ = encode(self.changing[key], self._arrays[key])
        return data

    def drop(self) -> None:
        """Forget the large parts."""
        self._arrays = {}

    # -------------------------------------------------------------------------------------------------------- structure

    def _find(self, node: Compressed) -> Iterator[Any]:
        """Yield the rows of the parts that change.

        Raises: UnsupportedError: a part is computed in a way that cannot be turned round.
        """
        kind, parts = node.op.type, node.parts
        if kind == "constexpr_cast":
            yield self._stored(node, "source_val")
        elif kind == "constexpr_affine_dequantize":
            yield self._stored(node, "quantized_data")
            if self._is_fit:
                yield self._stored(node, "scale")
                yield self._stored(node, "zero_point")
        elif kind in _SCALES:
            key = "data" if "data" in parts else "nonzero_data"
            if isinstance(parts[key], Compressed):
                self._require_values(parts[key], kind == _SCALES[1])
                yield from self._find(parts[key])
            else:
                yield parts[key]
            if self._is_fit:
                yield from (parts[key] for key in ("scale", "offset", "data_mask") if _is_stored(parts, key))
        elif kind in _PALETTES:
            yield self._stored(node, "indices" if "indices" in parts else "indices_nonzero_data")
            if self._is_fit:
                lut = parts["lut"]
                if isinstance(lut, Compressed):
                    yield from self._find(lut)
                else:
                    yield lut
                if _is_stored(parts, "indices_mask") and self._vector(node) == 1:
                    yield parts["indices_mask"]
        elif kind == "constexpr_sparse_to_dense":
            values = parts["nonzero_data"]
            if isinstance(values, Compressed):
                self._require_values(values, True)
                yield from self._find(values)
            else:
                yield values
            if self._is_fit and _is_stored(parts, "mask") and self._is_free(values):
                yield parts["mask"]
        else:
            raise self._unsupported(node)

    def _require_values(self, node: Compressed, is_sparse: bool) -> None:
        """Refuse a part that is computed, unless it is the values of an operation that can be requantized.

        Raises: UnsupportedError.
        """
        if is_sparse and (node.output != 1 or node.op.type not in (_PALETTES[1], _SCALES[1])):
            raise self._unsupported(node)

    def _is_free(self, values: Any) -> bool:
        """Whether a mask may be any other: entries of palettes that are vectors cover several elements."""
        while isinstance(values, Compressed) and "nonzero_data" in values.parts:
            values = values.parts["nonzero_data"]
        return not isinstance(values, Compressed) or self._vector(values) == 1

    def _unsupported(self, node: Compressed) -> UnsupportedError:
        path = self._item.tensor.program.scan.path(node.op) if self._item.tensor.program is not None else ""
        message = f"{self._item.tensor.name}: expected a chain that can be requantized, got {node.op.type} inside"
        return UnsupportedError(f"{message} (repack --decompress makes it dense)", where=path)

    def _stored(self, node: Compressed, key: str) -> Any:
        row = node.parts[key]
        if isinstance(row, Compressed):
            raise self._unsupported(row)
        return row

    def _vector(self, node: Compressed) -> int:
        lut = node.parts["lut"]
        shape = (lut.op if isinstance(lut, Compressed) else lut).shape or ()
        return 1 if "shape" in node.parts or not shape else int(shape[-1] or 1)

    def _require_own(self) -> None:
        """Refuse parts that operations outside the chain read: their values would change too. Raises: ValueError."""
        tensor = self._item.tensor
        inside = {self._chain.op.message}
        nodes = [self._chain]
        for node in nodes:  # grows on the way
            for part in node.parts.values():
                if isinstance(part, Compressed) and part.op.message not in inside:
                    inside.add(part.op.message)
                    nodes.append(part)
        read = [*self.changing.values(), *(tensor.part(node) for node in nodes[1:])]
        for part in read:
            for reader in (consumer.reader for consumer in readers_of(part)):
                if not isinstance(reader, Operation) or reader.message not in inside:
                    other = reader.label if isinstance(reader, Operation) else "an output of its block"
                    message = f"{part.name}: expected a part of {tensor.name} alone, got one that {other} reads too"
                    raise ValueError(escape(message))

    # ------------------------------------------------------------------------------------------------------ computation

    def _compute(self) -> None:
        """Compute all parts, and how well they meet the values.

        Raises:
            ValueError: a value that is not finite; less SQNR than wanted. OverflowError: a number too large for a part.
        """
        for other in self._recent:
            other.drop()
        self._recent[:] = [self]
        name, how = self._item.tensor.name, self._how
        values = read_values(self._item.values)
        values = np.ascontiguousarray(values if values.dtype in (np.float32, np.float64) else values.astype(np.float32))
        _require_finite(values, name)
        self._arrays = {}
        try:
            wanted = values
            if self._is_fit and self._item.tensor.mil_dtype is DType.FLOAT16:  # as a new conversion does
                wanted = cast_array(values, DType.FLOAT16, overflow=how.overflow)[0].astype(np.float32)
                _require_finite(wanted, name)
            if not self._repack():
                self._dense(self._chain)  # checks that the old parts fit each other before new ones are made
                self._solve(self._chain, wanted, None)
        except MilblobError:
            raise
        except OverflowError as error:
            raise OverflowError(escape(f"{name}: {error}")) from None
        self._item.sqnr = stored_parts.sqnr(values, self._decoded(self._chain))
        for key, array in self._arrays.items():
            if array.nbytes <= _SMALL_NBYTES:
                self._small[key] = self._encode(key)
        if how.min_sqnr is not None and (self._item.sqnr is None or self._item.sqnr < how.min_sqnr):
            got = "none, of zeros" if self._item.sqnr is None else f"{self._item.sqnr:.1f} dB"
            raise ValueError(escape(f"{name}: expected an SQNR of {how.min_sqnr:g} dB or more, got {got}"))

    def _repack(self) -> bool:
        """Take integers and scales as they are, if the values have some and these are the same blocks and dtypes."""
        find = getattr(self._item.values, "blocks", None)
        node, parts = self._chain, self._chain.parts
        if find is None or not self._is_fit or node.op.type != _SCALES[0]:
            return False
        if set(parts) != {"data", "scale"} or not (_is_stored(parts, "data") and _is_stored(parts, "scale")):
            return False
        blocks = find()
        if blocks is None or self._dtype(parts["data"]) is not blocks.dtype:
            return False
        if self._item.tensor.part(parts["scale"]).shape != blocks.scale.shape:
            return False
        self._set(node, "data", blocks.data)
        self._set(node, "scale", blocks.scale)
        return True

    def _decoded(self, node: Compressed) -> Array:
        """Return what an operation yields with the new parts, by the decoder that reads models."""
        return read(self._dense(node))

    def _dense(self, node: Compressed) -> Dense:
        """Return what computes an operation, with the new parts, once all of them were checked."""
        program = self._item.tensor.program

        def stored(row: Any) -> Packed:
            tensor = self._item.tensor.part(row)
            array = self._arrays.get(row)
            if array is None:
                return tensor.stored_place.packed()
            return pack(array, tensor.mil_dtype)

        chain = Chain(stored, lambda op: "" if program is None else program.scan.path(op), lambda nbytes: None)
        return chain.dense(node)

    def _array(self, node: Compressed, key: str) -> Array:
        """Return a part as numbers: the new ones, or those that are there."""
        row = node.parts[key]
        if isinstance(row, Compressed):
            array = self._decoded(row)
        elif row in self._arrays:
            array = self._arrays[row]
        else:
            array = self._item.tensor.part(row).stored_place.read()
        return _numbers(array)

    def _dtype(self, row: Any) -> DType:
        return self._item.tensor.part(row).mil_dtype

    def _set(self, node: Compressed, key: str, array: Array) -> None:
        """Set a stored part, in its shape and dtype; floats are rounded, integers are in range already."""
        row = node.parts[key]
        dtype, shape = self._dtype(row), self._item.tensor.part(row).shape
        if not dtype.is_integer:
            array, _ = cast_array(np.asarray(array), dtype, overflow=self._how.overflow)
        elif array.dtype.kind == "f":
            low, high = dtype.range
            array = np.clip(np.rint(array), low, high)
        if dtype.is_integer:
            array = array.astype(np.int8 if dtype.range[0] < 0 and dtype.nbits <= 8 else np.uint8)
        self._arrays[row] = np.array(array.reshape(shape), order="C")  # ascontiguousarray makes a number a vector

    def _solve(self, node: Compressed, values: Array, mask: Array | None) -> None:
        """Set the stored parts below an operation so that it yields the values, as nearly as it can.

        `mask`: of a sparse-to-sparse operation, the elements that are stored.
        """
        kind = node.op.type
        if kind == "constexpr_cast":
            self._set(node, "source_val", values)
        elif kind == "constexpr_affine_dequantize":
            self._solve_affine(node, values)
        elif kind in _SCALES:
            self._solve_scale(node, values, mask)
        elif kind in _PALETTES:
            self._solve_palette(node, values, mask)
        else:
            self._solve_sparse(node, values)

    def _solve_affine(self, node: Compressed, values: Array) -> None:
        codes = stored_parts.Range(*self._dtype(node.parts["quantized_data"]).range)
        scale, offset = self._array(node, "scale"), self._array(node, "zero_point")
        axis = int(self._array(node, "axis").reshape(-1)[0]) % values.ndim
        along = [1] * values.ndim
        along[axis] = -1
        scale, offset = scale.reshape(along), offset.reshape(along)
        if self._is_fit:
            if scale.shape == offset.shape:
                new, new_offset, codes = stored_parts.fit_scale(values, scale.shape, offset, codes)
            else:
                new, new_offset = stored_parts.fit_scale_alone(values, scale, offset, codes), offset
            self._set(node, "scale", _without_zeros(new, scale))
            self._set(node, "zero_point", cast(Array, new_offset))
            scale, offset = (self._array(node, key).reshape(along) for key in ("scale", "zero_point"))
        self._set(node, "quantized_data", stored_parts.quantize(values, scale, offset, codes))

    def _solve_scale(self, node: Compressed, values: Array, mask: Array | None) -> None:
        parts = node.parts
        key = "data" if "data" in parts else "nonzero_data"
        data, scale = parts[key], self._array(node, "scale")
        offset = self._array(node, "offset") if "offset" in parts else None
        is_integer = not isinstance(data, Compressed) and self._dtype(data).is_integer
        codes = stored_parts.Range(*self._dtype(data).range) if is_integer else stored_parts.Range(0, 0)
        if self._is_fit:
            new, new_offset = scale, offset
            if not _is_stored(parts, "scale") or not (offset is None or _is_stored(parts, "offset")):
                pass  # a computed scale is kept
            elif is_integer:
                new, new_offset, codes = stored_parts.fit_scale(values, scale.shape, offset, codes, mask)
            elif isinstance(data, Compressed) and offset is None:
                new = self._scale_for(data, values, scale.shape, mask)
            for name, array in (("scale", _without_zeros(new, scale)), ("offset", new_offset)):
                if _is_stored(parts, name):
                    self._set(node, name, cast(Array, array))
            if _is_stored(parts, "data_mask"):
                self._set(node, "data_mask", cast(Array, mask).astype(np.uint8))
            scale = self._array(node, "scale")
            offset = None if offset is None else self._array(node, "offset")
        if isinstance(data, Compressed):
            self._solve(data, _steps(values, scale, offset), mask)
            return
        new_data = stored_parts.quantize(values, scale, offset, codes) if is_integer else _steps(values, scale, offset)
        self._set(node, key, new_data if mask is None else new_data[mask])

    def _scale_for(self, data: Compressed, values: Array, counts: tuple[int, ...], mask: Array | None) -> Array:
        """Return scales that bring each block into the range of what is scaled, such as a palette."""
        low, high = stored_parts.extremes(values, counts, mask)
        before = self._decoded(data).astype(np.float64)
        most = float(np.abs(before).max(initial=0)) or 1.0
        if before.min(initial=0) >= 0:
            return cast(Array, np.where(high >= -low, high, low) / most)
        return cast(Array, np.maximum(np.abs(low), np.abs(high)) / most)

    def _solve_palette(self, node: Compressed, values: Array, mask: Array | None) -> None:
        parts = node.parts
        is_packed = "shape" in parts
        lut = self._array(node, "lut")
        if is_packed:  # iOS16: one palette for the whole weight, indices packed in bytes
            lut = lut.reshape(*[1] * values.ndim, -1, 1)
        *groups, _, vector = lut.shape
        axis = int(self._array(node, "vector_axis").reshape(-1)[0]) % values.ndim if "vector_axis" in parts else 0
        vectors = stored_parts.as_vectors(values, vector, axis)
        chosen = mask
        if mask is not None and vector > 1:
            chosen = stored_parts.as_vectors(mask, vector, axis)[..., 0]
        shape = vectors.shape[:-1]
        if self._is_fit:
            new = lut.astype(np.float32)
            dtype = np.float16 if self._item.tensor.mil_dtype is DType.FLOAT16 else np.float32
            for number, ranges in stored_parts.groups_of(shape, tuple(groups)):
                own = vectors[ranges] if chosen is None else vectors[ranges][chosen[ranges]]
                own = own.reshape(-1, vector).astype(dtype)
                new[number] = stored_parts.fit_palette(own, lut[number])
            inner = parts["lut"]
            if isinstance(inner, Compressed):
                self._solve(inner, new.astype(values.dtype).reshape(inner.op.shape), None)
            else:
                self._set(node, "lut", new.reshape(-1) if is_packed else new)
            lut = self._array(node, "lut").reshape(lut.shape)
        codes = np.zeros(shape, np.uint8)
        for number, ranges in stored_parts.groups_of(shape, tuple(groups)):
            codes[ranges] = stored_parts.nearest(vectors[ranges], lut[number])
        if is_packed:
            nbits = (lut.shape[-2]).bit_length() - 1
            packed = stored_bytes(codes.reshape(-1).view(_INDICES[nbits].numpy), _INDICES[nbits])
            self._set(node, "indices", np.frombuffer(packed, np.uint8))
        elif chosen is None:
            self._set(node, "indices", codes)
        else:
            if self._is_fit and vector == 1 and _is_stored(parts, "indices_mask"):
                self._set(node, "indices_mask", chosen.astype(np.uint8))
            self._set(node, "indices_nonzero_data", codes[chosen])

    def _solve_sparse(self, node: Compressed, values: Array) -> None:
        parts = node.parts
        is_packed = "shape" in parts
        inner = parts["nonzero_data"]
        mask = self._array(node, "mask")
        if is_packed:
            mask = np.unpackbits(mask.astype(np.uint8), bitorder="little")[: values.size]
        mask = mask.reshape(values.shape) != 0
        own = self._mask_of(inner) if isinstance(inner, Compressed) else mask
        if self._is_fit and own.shape == mask.shape and self._is_free(inner):
            mask = own = stored_parts.fit_mask(values, int(np.count_nonzero(mask)))
            if _is_stored(parts, "mask"):
                self._set(node, "mask", np.packbits(mask, bitorder="little") if is_packed else mask.astype(np.uint8))
        if not isinstance(inner, Compressed):
            self._set(node, "nonzero_data", values[mask])
        elif own is mask:
            self._solve(inner, values, mask)
        else:  # the values are handed on in order, from the places of one mask to those of the other
            moved = np.zeros(own.shape, values.dtype)
            moved[own] = values[mask]
            self._solve(inner, moved, own)

    def _mask_of(self, node: Compressed) -> Array:
        """Return the mask of a sparse-to-sparse operation, of the elements that it yields."""
        mask = self._array(node, "data_mask" if "data_mask" in node.parts else "indices_mask") != 0
        if node.op.type == _PALETTES[1] and self._vector(node) > 1:
            axis = int(self._array(node, "vector_axis").reshape(-1)[0])
            mask = np.repeat(mask, self._vector(node), axis)
        return cast(Array, mask)


def _is_stored(parts: dict[str, Any], key: str) -> bool:
    """Whether an operation has a part that is stored, and not computed."""
    return key in parts and not isinstance(parts[key], Compressed)


def _numbers(array: Array) -> Array:
    """Return elements of a dtype that NumPy lacks as int8, uint8 or float32, and other arrays as they are."""
    if array.dtype.kind in "fiub":
        return array
    name = array.dtype.name
    return array.astype(np.uint8 if name.startswith("uint") else np.int8 if name.startswith("int") else np.float32)


def _steps(values: Array, scale: Array, offset: Array | None) -> Array:
    """Return values / scale + offset, the input of a scaling operation; 0 where the scale is 0."""
    out = np.empty_like(values)
    for rows in stored_parts.rows_of(values.shape):
        by = stored_parts.spread(scale, values.shape, rows).astype(values.dtype)
        with np.errstate(all="ignore"):
            out[rows] = np.where(by == 0, 0, values[rows] / by)
        if offset is not None:
            out[rows] += stored_parts.spread(offset, values.shape, rows).astype(values.dtype)
    return out


def _without_zeros(scale: Array, old: Array) -> Array:
    """Replace the scale of blocks of zeros, whose codes all mean 0, by the old one."""
    return np.where(scale == 0, old.astype(scale.dtype), scale)


def _require_finite(values: Array, name: str) -> None:
    flat = values.reshape(-1)
    for start in range(0, flat.size, 1 << 20):
        bad = ~np.isfinite(flat[start : start + (1 << 20)])
        if bad.any():
            index = start + int(bad.argmax())
            raise ValueError(
                escape(f"{name}: element {index}: expected a finite number to requantize, got {flat[index]}")
            )
