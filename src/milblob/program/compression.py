"""How a weight is compressed, as its Program declares it; no weight file is read."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..results import Result
from .scan import Compressed

Shape = tuple[int, ...]

_ELEMENTS = {
    "affine_dequantize": "quantized_data",
    "blockwise_shift_scale": "data",
    "cast": "source_val",
    "lut_to_dense": "indices",
    "lut_to_sparse": "indices_nonzero_data",
    "sparse_blockwise_shift_scale": "nonzero_data",
    "sparse_to_dense": "nonzero_data",
}
"""Operation -> the part with one element per element of the weight, or per nonzero element."""

_MASKS = {"lut_to_sparse": "indices_mask", "sparse_blockwise_shift_scale": "data_mask"}


@dataclass(frozen=True, repr=False)
class Compression(Result):
    """How a compressed weight is stored. `str` gives it in a few characters, such as "int4 /32", see docs/cli.md.

    All but the scheme and the operations are None where they do not apply or the declared types lack them.

    Attributes:
        scheme: its operation without "constexpr_", such as "lut_to_dense".
        operations: the whole chain without "constexpr_", from the dense end inwards.
        bits_per_weight: stored bits of all parts, masks and scales and palettes included, for each dense element.
        nbits: bits of an index or of a quantized element.
        block_shape: how many elements along each axis share a scale.
        group_shape: how many indices along each axis share a palette.
        vector_size: elements of a palette's entry.
        sparsity: the share of elements that are zero and not stored.
        element_dtype: DType of an index, a quantized or a nonzero element, or of the input of a cast.
        label: what `str` returns.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "palette4")
        >>> compression = milblob.open("small.mlpackage")["head_weight"].compression
        >>> compression.scheme, compression.nbits, str(compression)
        ('lut_to_dense', 4, 'pal4')
    """

    scheme: str
    operations: tuple[str, ...] = ()
    bits_per_weight: float | None = None
    nbits: int | None = None
    block_shape: Shape | None = None
    group_shape: Shape | None = None
    vector_size: int | None = None
    sparsity: float | None = None
    element_dtype: DType | None = None
    label: str = ""

    _keys: ClassVar = {"element_dtype": None, "label": None}

    def __str__(self) -> str:
        return self.label


def describe(weight: Compressed, number: Callable[[Any], int | None]) -> Compression:
    """Describe the operations that compute a weight; parts that are missing or do not fit are left out.

    `number`: returns the value of a stored part that is a single number (a `_codec.Constant`), or None.
    """
    chain = [weight]
    seen = {id(weight.parts)}  # the outputs of one operation share theirs, below one weight
    for link in chain:  # grows on the way
        for part in link.parts.values():
            if isinstance(part, Compressed) and id(part.parts) not in seen:
                seen.add(id(part.parts))
                chain.append(part)
    found: dict[str, Any] = {"operations": tuple(_kind(link) for link in chain)}
    size = _size(weight)
    nbytes = _stored_nbytes(weight)
    if size and nbytes is not None:
        found["bits_per_weight"] = 8 * nbytes / size
    nonzero = _size(weight.parts.get("nonzero_data"))
    if _kind(weight) == "sparse_to_dense" and size and nonzero is not None:
        found["sparsity"] = 1 - nonzero / size
    link = weight
    for _ in chain:  # follow the elements: the compression of a palette or a scale is not that of the weight
        _describe(link, found, number)
        inner = link.parts.get(_ELEMENTS.get(_kind(link), ""))
        if not isinstance(inner, Compressed):
            break
        link = inner
    scheme = found["operations"][0]
    return Compression(scheme, label=_label(scheme, found, _shape(weight)), **found)


def _describe(link: Compressed, found: dict[str, Any], number: Callable[[Any], int | None]) -> None:
    """Add the attributes that one operation determines."""
    parts, kind = link.parts, _kind(link)
    elements, lut = parts.get(_ELEMENTS.get(kind, "")), parts.get("lut")
    shape = _shape(parts.get(_MASKS.get(kind, "")) or elements)
    if elements is not None:
        found["element_dtype"] = BY_MIL_CODE.get(_op_or_constant(elements).mil_code)
    # iOS16: indices are packed in bytes, so the size of the palette gives their bits.
    is_packed = kind == "lut_to_dense" and "shape" in parts
    if is_packed:
        shape, count = _shape(link), _size(lut)
        found["nbits"] = count.bit_length() - 1 if count else None
        found["group_shape"], found["vector_size"] = shape, 1
    elif elements is not None and kind != "cast":
        dtype = found["element_dtype"]
        if dtype is not None and dtype.is_integer:
            found["nbits"] = dtype.nbits
    if lut is not None and not is_packed:
        sizes = _shape(lut)
        if sizes and len(sizes) > 2:
            found["group_shape"], found["vector_size"] = _divide(shape, sizes[:-2]), sizes[-1]
    elif kind.endswith("shift_scale"):
        found["block_shape"] = _divide(shape, _shape(parts.get("scale")))
    elif kind == "affine_dequantize" and shape:
        counts = {_size(parts.get("scale")), _size(parts.get("zero_point"))}
        axis = number(parts.get("axis")) if counts != {1} else 0
        if axis is not None and -len(shape) <= axis < len(shape):
            axis %= len(shape)
            is_vector = any(_shape(parts.get(key)) for key in ("scale", "zero_point"))
            found["block_shape"] = tuple(1 if i == axis and is_vector else n for i, n in enumerate(shape))


def _label(scheme: str, found: dict[str, Any], shape: Shape | None) -> str:
    """Describe in a few characters the elements, and how many share a scale or a palette."""
    words = []
    block_shape, vector_size, sparsity = (found.get(name) for name in ("block_shape", "vector_size", "sparsity"))
    if any(operation in ("sparse_to_dense", *_MASKS) for operation in found["operations"]):
        words.append("sparse" if sparsity is None else f"sparse {sparsity:.0%}")
    if vector_size is not None:
        words.append(f"pal{found.get('nbits') or ''}" + (f" v{vector_size}" if vector_size > 1 else ""))
        words += ["scaled"] if block_shape else _sharing(found.get("group_shape"), shape)
    elif block_shape is not None or scheme == "cast":
        words.append(str(found.get("element_dtype") or scheme))
        words += _sharing(block_shape, shape)
    return " ".join(words) or scheme


def _sharing(block: Shape | None, shape: Shape | None) -> list[str]:
    """Nothing if all elements share one scale or palette; "/ch" if those of a channel do; else the size of a block."""
    if block is None or shape is None or len(block) != len(shape):
        return []
    divided = [size for size, whole in zip(block, shape, strict=True) if size < whole]
    if divided == [1]:
        return ["/ch"]
    sizes = [size for size in divided if size > 1] or divided[:1]
    return [f"/{'x'.join(map(str, sizes))}"] if sizes else []


def _kind(link: Compressed) -> str:
    return str(link.op.type).removeprefix("constexpr_")


def _op_or_constant(part: Any) -> Any:
    return part.op if isinstance(part, Compressed) else part


def _shape(part: Any) -> Shape | None:
    """The declared shape of a part, or of an operation's result; None if it is open or unknown."""
    shape = None if part is None else _op_or_constant(part).shape
    return None if shape is None or None in shape else tuple(shape)


def _size(part: Any) -> int | None:
    shape = _shape(part)
    return None if shape is None else prod(shape)


def _divide(shape: Shape | None, counts: Shape | None) -> Shape | None:
    if shape is None or counts is None or len(shape) != len(counts) or 0 in counts:
        return None
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


def _stored_nbytes(weight: Compressed) -> int | None:
    """Bytes of all stored parts; a blob that two parts share counts once."""
    blobs: dict[Any, int] = {}
    for part in weight.stored():
        size = _size(part)
        if size is None or BY_MIL_CODE[part.mil_code] is DType.STRING:
            return None
        blobs[(part.text, part.blob_offset) if part.storage == _codec.BLOB else part] = BY_MIL_CODE[
            part.mil_code
        ].nbytes(size)
    return sum(blobs.values())
