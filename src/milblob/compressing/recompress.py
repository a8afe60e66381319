"""Weights that are compressed already: the pieces that a recipe continues from."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from ..dtypes import DType
from ..lossy.palettize import Palettized
from ..lossy.quantize import Quantized
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor, make_tensor
from ..program import cast_edits
from ..rewrite.decompress import plan_decompression
from ..values.strided import Empty, ranges
from .pieces import LINKED_OPSET, Pieces
from .recipe import Recipe

_INTEGERS = (DType.INT8, DType.UINT8, DType.INT4, DType.UINT4)


def steps_of(tensor: Tensor) -> tuple[str, ...] | None:
    """Return the recipes that could have made a compressed weight for iOS18; None if no recipe can continue from it.

    Reads only the Program, no values.
    """
    parts = tensor.parts
    if "shape" in parts:
        return None
    if tensor.op == "constexpr_lut_to_dense":
        return ("Palette",) if _has_plain_palettes(parts, "indices") else None
    if tensor.op == "constexpr_blockwise_shift_scale":
        offset = parts.get("offset")
        is_plain = not any(part.parts for part in parts.values()) and parts["data"].mil_dtype in _INTEGERS
        is_plain = is_plain and (offset is None or offset.mil_dtype is parts["data"].mil_dtype)
        return ("Linear",) if is_plain else None
    if tensor.op != "constexpr_sparse_to_dense":
        return None
    nonzero = parts["nonzero_data"]
    if not nonzero.parts:
        return None if parts["mask"].parts else ("Prune",)
    if nonzero.op != "constexpr_lut_to_sparse" or nonzero.parts["indices_mask"].parts:
        return None
    return ("Prune", "Palette") if _has_plain_palettes(nonzero.parts, "indices_nonzero_data") else None


def dense_values(tensor: Tensor, empty: Empty) -> Any:
    """Return the values of a weight: those that are stored, or of a compressed one an array that `empty` makes."""
    return tensor.read() if tensor.chain is None else tensor.read(out=empty(tensor.shape, tensor.dtype))


def pieces_of(tensor: Tensor, empty: Empty) -> Pieces:
    """Return the pieces of a compressed weight that has `steps_of`; `empty` makes arrays as long as the weight."""

    def stored(part: Tensor) -> Any:
        return part.read(out=empty(part.shape, part.dtype)) if part.mil_dtype.is_sub_byte else part.read()

    parts = tensor.parts
    pieces = Pieces(dense_values(tensor, empty), steps_of(tensor) or (), empty=empty)
    if pieces.steps == ("Palette",):
        return _with_palettes(pieces, parts, stored(parts["indices"]).view(np.uint8), parts["indices"])
    if pieces.steps == ("Linear",):
        data, offset = parts["data"], parts.get("offset")
        point = None if offset is None else stored(offset)
        coded = Quantized(stored(data), parts["scale"].read(), point, data.mil_dtype)
        return pieces._replace(coded=coded)
    nonzero = parts["nonzero_data"]
    if pieces.steps == ("Prune",):
        return pieces._replace(bits=_bits(parts["mask"], empty), nonzero=nonzero.read())
    pieces = pieces._replace(bits=_bits(nonzero.parts["indices_mask"], empty))
    codes, indices = empty(tensor.shape, np.uint8), nonzero.parts["indices_nonzero_data"]
    some, mask, done = stored(indices).view(np.uint8), pieces.mask, 0
    for begin, chosen in ranges(mask):
        count = int(np.count_nonzero(chosen))
        own = np.zeros(chosen.size, np.uint8)
        own[chosen] = some[done : done + count]
        codes.reshape(-1)[begin : begin + chosen.size] = own
        done += count
    return _with_palettes(pieces, nonzero.parts, codes, indices)


def _has_plain_palettes(parts: Mapping[str, Tensor], key: str) -> bool:
    """Whether indices and palettes of numbers are stored, the palettes as floats."""
    lut = parts["lut"]
    is_stored = not lut.parts and not parts[key].parts
    return is_stored and lut.shape[-1:] == (1,) and lut.mil_dtype in (DType.FLOAT16, DType.FLOAT32)


def _with_palettes(pieces: Pieces, parts: Mapping[str, Tensor], codes: Any, indices: Tensor) -> Pieces:
    table = Palettized(codes, parts["lut"].read(), indices.mil_dtype.nbits)
    return pieces._replace(table=table)


def _bits(mask: Tensor, empty: Empty) -> Any:
    """The bits of a mask, as they are stored; those after the last element are zero."""
    packed = mask.place.packed()
    bits = empty(DType.UINT1.nbytes(packed.size), np.uint8)
    bits[...] = np.ndarray(bits.shape, np.uint8, packed.buffer, packed.offset)  # type: ignore[arg-type]
    if packed.size % 8:
        bits[-1] &= (1 << packed.size % 8) - 1
    return bits


def not_continued(tensor: Tensor, recipes: Iterable[Recipe]) -> dict[Recipe, str | None]:
    """Return for each recipe why it cannot go on from what a weight is compressed to; None if it can."""
    is_late = cast_edits.opset(cast(OpenProgram, tensor.program).scan, tensor.op_row) >= LINKED_OPSET
    steps = steps_of(tensor) if is_late else None
    found: dict[Recipe, str | None] = {}
    for recipe in recipes:
        message = None if steps is None else recipe.objection(steps)
        reason = "" if message is None else f": {message}"
        is_refused = steps is None or message is not None
        expected = f"expected a dense weight for {recipe}, or recompress"
        refusal = f"{expected}, got a compressed one ({tensor.op}){reason}"
        found[recipe] = refusal if is_refused else None
    return found


def all_weights(model: Model) -> Iterator[Tensor]:
    """Yield the constants that are no parts of compressed weights, and the compressed weights, in Program order.

    `model`: opened with all constants and stored parts.
    """
    constants: dict[OpenProgram | None, list[Tensor]] = {}
    for tensor in model.tensors.values():
        constants.setdefault(tensor.program, []).append(tensor)
    for program in model.parts:
        scan = program.scan
        groups = scan.groups
        ends = plan_decompression(program, lambda group: True).weights if groups else []
        parts = {part for group in groups for part in group.stored() if not scan.is_shared(part)}
        found = [tensor for tensor in constants.get(program, ()) if tensor.constant not in parts]
        found += [make_tensor(program, scan.name_of(end), end) for end in ends]
        yield from sorted(found, key=lambda tensor: tensor.op_row.message[0] if tensor.op_row is not None else -1)
