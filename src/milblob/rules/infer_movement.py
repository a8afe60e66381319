"""Types of outputs that follow plainly from those of the inputs: operations that move, cut out and join elements.

Their elements are those of x, so that the data type is known even where the shape depends on values that are not.
"""

from collections.abc import Callable

from ..program.types import TensorType
from ..wording import sizes as spelled
from .known_arguments import MAX_COUNT, Given, Unsure, index, product, typed
from .misfits import Misfit, require_like, require_multiple

_Maker = Callable[[Given], TensorType | tuple[TensorType, ...]]
_Mover = Callable[[Given], TensorType]
MAKERS: dict[str, _Maker] = {}
"""Operation -> the function that infers its types."""


def _moves(kind: str) -> Callable[[_Mover], _Mover]:
    """Register the function of an operation that moves elements: where it is not sure, the whole shape is open."""

    def register(make: _Mover) -> _Mover:
        def moved(given: Given) -> TensorType:
            try:
                return make(given)
            except Unsure:
                return TensorType(given.tensor("x").dtype, (), -1)

        MAKERS[kind] = moved
        return make

    return register


@_moves("reshape")
def _reshape(given: Given) -> TensorType:
    x = given.ranked("x")
    wanted = given.integers_or_none("shape")
    if wanted is None:
        (count,) = given.ranked("shape").shape[:1] or (None,)
        if count is None or count > MAX_COUNT:
            raise Unsure
        return typed(x, (None,) * count)
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise Unsure
    # A 0 takes the size of x: counted from the front, since CoreML7 from the back. If these differ it is left open.
    # So it is where x has an open dimension: coremltools writes the 0 itself as the size then.
    is_plain = len(wanted) == len(x.shape) and None not in x.shape
    made: list[int | None] = [
        (x.shape[i] if is_plain else None) if size == 0 else size for i, size in enumerate(wanted)
    ]
    whole = product(x.shape)
    place = wanted.index(-1) if -1 in wanted else len(made)
    rest = product([*made[:place], *made[place + 1 :]])
    if whole and rest:
        if whole % rest or (whole != rest and -1 not in wanted):
            raise Misfit("shape", f"one of the {whole} elements of x, {spelled(x.shape)}", list(wanted))
        if -1 in wanted:
            made[place] = whole // rest
    elif -1 in wanted:
        made[place] = None
    return typed(x, made)


@_moves("reshape_like")
def _reshape_like(given: Given) -> TensorType:
    x = given.tensor("x")
    first, last, to_end = (given.each_integer(key) for key in ("begins", "ends", "end_masks"))
    shapes = given.shapes("ref_tensors")
    if not len(shapes) == len(first) == len(last) == len(to_end):
        raise Unsure
    made: list[int | None] = []
    for i, shape in enumerate(shapes):
        made += shape[first[i] :] if to_end[i] else shape[first[i] : last[i]]
    return typed(x, made)


@_moves("transpose")
def _transpose(given: Given) -> TensorType:
    x = given.ranked("x")
    perm = given.integers_or_none("perm")
    if perm is None:
        return typed(x, (None,) * len(x.shape))
    axes = [index(axis, len(x.shape)) for axis in perm]
    if sorted(axes) != list(range(len(x.shape))):
        raise Unsure
    return typed(x, [x.shape[axis] for axis in axes])


@_moves("expand_dims")
def _expand_dims(given: Given) -> TensorType:
    x = given.ranked("x")
    axes = given.integers("axes")
    rank = len(x.shape) + len(axes)
    shape = list(x.shape)
    for axis in sorted(index(axis, rank) for axis in axes):
        shape.insert(axis, 1)
    return typed(x, shape)


@_moves("squeeze")
def _squeeze(given: Given) -> TensorType:
    x = given.ranked("x")
    if "axes" in given:
        axes = {index(axis, len(x.shape)) for axis in given.integers("axes")}
        if any(x.shape[axis] != 1 for axis in axes):
            raise Unsure
    elif None in x.shape:
        raise Unsure
    else:
        axes = {i for i, size in enumerate(x.shape) if size == 1}
    return typed(x, [size for i, size in enumerate(x.shape) if i not in axes])


@_moves("slice_by_index")
def _slice_by_index(given: Given) -> TensorType:
    x = given.ranked("x")
    rank = len(x.shape)
    begin, end = given.integers_or_none("begin"), given.integers_or_none("end")
    stride = given.sizes("stride", rank, 1)
    from_start, to_end = given.sizes("begin_mask", rank, 0), given.sizes("end_mask", rank, 0)
    dropped = given.sizes("squeeze_mask", rank, 0)
    _require_count(rank, begin=begin, end=end)
    if 0 in stride:
        raise Unsure
    made: list[int | None] = []
    for i, size in enumerate(x.shape):
        if dropped[i]:
            continue
        is_known = (from_start[i] or begin is not None) and (to_end[i] or end is not None)
        first = None if from_start[i] or begin is None else begin[i]
        last = None if to_end[i] or end is None else end[i]
        made.append(_length(size, first, last, stride[i]) if is_known else None)
    return typed(x, made)


def _length(size: int | None, first: int | None, last: int | None, stride: int) -> int | None:
    """How many elements a slice takes; None where readers may differ: no element, or a negative end to go back to."""
    if size is None or (stride < 0 and last is not None and last < 0):
        return None
    begin, end, step = slice(first, last, stride).indices(size)
    return max(-((begin - end) // step), 0) or None  # not the length of a range, which ends at 2**63


@_moves("slice_by_size")
def _slice_by_size(given: Given) -> TensorType:
    x = given.ranked("x")
    rank = len(x.shape)
    begin, wanted = given.integers_or_none("begin"), given.integers_or_none("size")
    _require_count(rank, begin=begin, size=wanted)
    if wanted is None:
        return typed(x, (None,) * rank)
    made: list[int | None] = list(wanted)
    for i, size in enumerate(x.shape):
        if wanted[i] < 0:
            is_known = size is not None and begin is not None and begin[i] >= 0 and wanted[i] == -1
            made[i] = size - begin[i] if is_known and size is not None and begin is not None else None
    return typed(x, made)


@_moves("gather")
def _gather(given: Given) -> TensorType:
    x, indices = given.ranked("x"), given.ranked("indices")
    axis = index(given.integer("axis", 0), len(x.shape))
    shared = given.integer("batch_dims", 0)
    if not 0 <= shared <= len(indices.shape):
        raise Unsure
    return typed(x, (*x.shape[:axis], *indices.shape[shared:], *x.shape[axis + 1 :]))


@_moves("gather_along_axis")
def _gather_along_axis(given: Given) -> TensorType:
    x, indices = given.tensor("x"), given.ranked("indices")
    axes = given.integers_or_none("axis") if "axis" in given else None
    if x.rank >= 0 and not x.variadic and axes:
        axis = index(axes[0], len(x.shape))
        require_like("indices", (*x.shape[:axis], None, *x.shape[axis + 1 :]), indices.shape)
    return typed(x, indices.shape)


@_moves("gather_nd")
def _gather_nd(given: Given) -> TensorType:
    x, indices = given.ranked("x"), given.ranked("indices")
    depth = indices.shape[-1] if indices.shape else None
    if depth is None:
        raise Unsure
    shared = given.integer("batch_dims", 0)
    if shared < 0:
        raise Unsure
    if depth + shared > len(x.shape):
        raise Misfit("the last dimension of indices", f"at most {len(x.shape) - shared}", depth)
    return typed(x, (*indices.shape[:-1], *x.shape[shared + depth :]))


def _concat(given: Given) -> TensorType:
    values = given.several("values")
    shapes = [one.shape or (1,) for one in values]  # numbers make a vector
    rank = len(shapes[0])
    axis = index(given.integer("axis"), rank)
    for shape in shapes:
        if len(shape) != rank:
            raise Misfit("shapes of values", f"{rank} dimensions", spelled(shape))
    along = [shape[axis] for shape in shapes]
    made = _common([(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes])
    made[axis] = None if None in along else sum(size or 0 for size in along)
    return typed(values[0], made)


def _stack(given: Given) -> TensorType:
    values = given.several("values")
    rank = len(values[0].shape)
    axis = index(given.integer("axis"), rank + 1)
    made = _common([one.shape for one in values])
    return typed(values[0], [*made[:axis], len(values), *made[axis:]])


def _common(shapes: list[tuple[int | None, ...]]) -> list[int | None]:
    """The sizes that several shapes have in common; open where none is known. Raises: Misfit: they have none."""
    for shape in shapes[1:]:
        require_like("shapes of values", shapes[0], shape)
    known = [{size for size in sizes if size is not None} for sizes in zip(*shapes, strict=True)]
    if any(len(sizes) > 1 for sizes in known):
        raise Misfit("shapes of values", "one size in each dimension", ", ".join(map(spelled, shapes[:8])))
    return [sizes.pop() if sizes else None for sizes in known]


def _require_count(rank: int, **given: tuple[int, ...] | None) -> None:
    """Refuse numbers that are not one for each dimension. Raises: Misfit."""
    for key, found in given.items():
        if found is not None and len(found) != rank:
            raise Misfit(key, f"a number for each of the {rank} dimensions of x", len(found))


def _split(given: Given) -> tuple[TensorType, ...]:
    x = given.ranked("x")
    axis = index(given.integer("axis"), len(x.shape))
    whole = x.shape[axis]
    sizes = given.integers_or_none("split_sizes")
    made: list[int | None]
    if sizes is not None:
        if whole is not None and sum(sizes) != whole:
            raise Misfit("split_sizes", f"a sum of {whole}", sum(sizes))
        made = list(sizes)
    elif "num_splits" in given:
        count = given.integer("num_splits")
        if count > MAX_COUNT:
            raise Unsure
        is_even = "split_sizes" not in given and whole is not None and count > 0
        if is_even:
            require_multiple("the size along axis", whole, count)
        made = [whole // count if is_even and whole is not None else None] * count
    else:
        raise Unsure
    return tuple(typed(x, (*x.shape[:axis], size, *x.shape[axis + 1 :])) for size in made)


@_moves("tile")
def _tile(given: Given) -> TensorType:
    x = given.ranked("x")
    times = given.integers_or_none("reps")
    if times is None:
        return typed(x, (None,) * len(x.shape))
    _require_count(len(x.shape), reps=times)
    return typed(x, [None if size is None else size * n for size, n in zip(x.shape, times, strict=True)])


@_moves("pad")
def _pad(given: Given) -> TensorType:
    x = given.ranked("x")
    amounts = given.integers_or_none("pad")
    if amounts is None:
        return typed(x, (None,) * len(x.shape))
    if len(amounts) % 2 or len(amounts) > 2 * len(x.shape):
        raise Unsure
    made = list(x.shape)
    first = len(made) - len(amounts) // 2
    for i, size in enumerate(made[first:]):
        made[first + i] = None if size is None else size + amounts[2 * i] + amounts[2 * i + 1]
    return typed(x, made)


@_moves("flatten2d")
def _flatten(given: Given) -> TensorType:
    x = given.ranked("x")
    axis = given.integer("axis", 1)
    return typed(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@_moves("sliding_windows")
def _sliding_windows(given: Given) -> TensorType:
    x = given.ranked("x")
    axis = index(given.integer("axis"), len(x.shape))
    size, stride = given.integer("size"), given.integer("stride", 1)
    whole = x.shape[axis]
    if stride < 1 or size < 1:
        raise Unsure
    count = None if whole is None or whole < size else (whole - size) // stride + 1
    return typed(x, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))


def _space(kind: str, key: str, is_deeper: bool) -> None:
    """Register an operation that makes blocks of height and width channels, or the other way round."""

    @_moves(kind)
    def make(given: Given) -> TensorType:
        x = given.ranked("x", 4, 4)
        size = given.integer(key)
        if size < 1:
            raise Unsure
        count, channels, *area = x.shape
        if is_deeper:
            return typed(x, (count, _times(channels, size * size), *(_over(one, size) for one in area)))
        return typed(x, (count, _over(channels, size * size), *(_times(one, size) for one in area)))


_space("depth_to_space", "block_size", False)
_space("pixel_shuffle", "upscale_factor", False)
_space("pixel_unshuffle", "downscale_factor", True)
_space("space_to_depth", "block_size", True)


def _times(size: int | None, factor: int) -> int | None:
    return None if size is None else size * factor


def _over(size: int | None, divisor: int) -> int | None:
    require_multiple("a dimension of x", size, divisor)
    return None if size is None else size // divisor


@_moves("space_to_batch")
def _space_to_batch(given: Given) -> TensorType:
    x, blocks, amounts = _batches(given, "paddings")
    count, channels, *area = x.shape
    padded = [None if size is None else size + sum(amounts[2 * i : 2 * i + 2]) for i, size in enumerate(area)]
    made = [_over(size, block) for size, block in zip(padded, blocks, strict=True)]
    return typed(x, (_times(count, blocks[0] * blocks[1]), channels, *made))


@_moves("batch_to_space")
def _batch_to_space(given: Given) -> TensorType:
    x, blocks, amounts = _batches(given, "crops")
    count, channels, *area = x.shape
    whole = [_times(size, block) for size, block in zip(area, blocks, strict=True)]
    made = [None if size is None else size - sum(amounts[2 * i : 2 * i + 2]) for i, size in enumerate(whole)]
    return typed(x, (_over(count, blocks[0] * blocks[1]), channels, *made))


def _batches(given: Given, key: str) -> tuple[TensorType, tuple[int, ...], tuple[int, ...]]:
    blocks, amounts = given.sizes("block_shape", 2, 1), given.sizes(key, 4, 0)
    if min(blocks) < 1:
        raise Unsure
    return given.ranked("x", 4, 4), blocks, amounts


MAKERS |= {"concat": _concat, "split": _split, "stack": _stack}
