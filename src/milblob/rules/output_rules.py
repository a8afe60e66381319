"""Rules of the specification about the outputs of operations: types that follow plainly from those of the inputs.

Other operations, and dimensions that depend on unknown values, are not checked: a finding is never a
guess. Elementwise operations, reductions and products are here, those that move elements in infer_movement.py, those
that go over windows in infer_windows.py. The source is coremltools' own type inference.
"""

from collections.abc import Callable, Iterator

from ..dtypes import DType
from ..program.types import ListType, StateType, TensorType, ValueType
from ..wording import sizes as spelled
from .infer_movement import MAKERS as _MOVED
from .infer_windows import MAKERS as _WINDOWS
from .known_arguments import MAX_COUNT, Arguments, Given, Unsure, broadcast, index, of_dtype, typed
from .misfits import Misfit, Shape, require_like

_LIKE_X = (
    "abs", "acos", "asin", "atan", "atanh", "band_part", "batch_norm", "ceil", "clamped_relu", "clip", "cos",
    "cosh", "cumsum", "elu", "erf", "exp", "exp2", "floor", "gelu", "identity", "instance_norm", "inverse",
    "l2_norm", "layer_norm", "leaky_relu", "linear_activation", "local_response_norm", "log", "logical_not",
    "prelu", "relu", "relu6", "reverse", "reverse_sequence", "round", "rsqrt", "scaled_tanh", "sigmoid",
    "sigmoid_hard", "sign", "silu", "sin", "sinh", "slice_update", "softmax", "softplus", "softplus_parametric",
    "softsign", "sqrt", "square", "tan", "tanh", "threshold", "thresholded_relu",
)  # fmt: skip
_PARAMETERS = ("mean", "variance", "gamma", "beta", "alpha")
_BROADCAST = (
    "add", "floor_div", "maximum", "minimum", "mod", "mul", "pow", "sub",
)  # fmt: skip
_COMPARED = (
    "equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "not_equal",
)  # fmt: skip
_REDUCED = (
    "reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum", "reduce_log_sum_exp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square",
)  # fmt: skip


_AXES = ("axis", "axes", "perm", "seq_axis", "batch_axis")
_LEAST_ONE = (
    "block_shape", "block_size", "dilations", "downscale_factor", "groups", "kernel_sizes", "strides", "upscale_factor",
)  # fmt: skip
_COUNTED = ("x", "data", "input", "values", "indices")  # the first that an operation has is whose dimensions axes count


def axis_breaches(kind: str, arguments: Arguments) -> Iterator[tuple[str, str]]:
    """Yield the sizes below 1 of an operation, and the axes that its input does not have: (rule, words)."""
    given = Given(arguments)
    for key, _ in arguments:
        if key in _LEAST_ONE and (found := given.integers_or_none(key)) and min(found) < 1:
            yield "MIL050", f"{key} of {kind}: expected 1 or more, got {min(found)}"
            return
    for key in _AXES if kind != "flatten2d" else ():  # its axis is a place between dimensions
        try:
            axes = given.integers(key)
            rank = len(next(given.shapes(one)[0] for one in _COUNTED if one in given))
        except (Unsure, StopIteration, IndexError):
            continue
        if not rank:
            continue  # which axis a number has is not written down
        rank += len(axes) if kind == "expand_dims" else kind in ("one_hot", "stack")
        for axis in axes:
            if not -rank <= axis < rank:
                yield "MIL050", f"{key} of {kind}: expected {-rank} to {rank - 1}, got {axis}"
                return
        if key == "perm" and sorted(axis % rank for axis in axes) != list(range(rank)):
            yield "MIL050", f"perm of {kind}: expected each of {rank} dimensions once, got {list(axes)}"


def outputs_of(kind: str, arguments: Arguments) -> tuple[ValueType, ...] | None:
    """Return the types of an operation's outputs: open where its inputs leave them open; None if nothing is known.

    Raises: Misfit: its inputs fit no output.
    """
    make = MAKERS.get(kind)
    if make is None:
        return None
    try:
        made = make(Given(arguments))
    except Unsure:
        return None
    return made if isinstance(made, tuple) else (made,)


def _like_x(given: Given) -> ValueType:
    x = given.type("x")
    for key in _PARAMETERS:
        if key in given and isinstance(x, TensorType) and given.tensor(key).dtype != x.dtype:
            raise Unsure  # coremltools leaves out casts of x, and Core ML computes in the data type of the parameters
    return x


def _broadcast(given: Given) -> TensorType:
    x, y = given.ranked("x"), given.ranked("y")
    if x.dtype != y.dtype:
        raise Unsure
    return typed(x, broadcast(x.shape, y.shape))


def _divided(given: Given) -> TensorType:
    found = _broadcast(given)
    if found.dtype not in (DType.FLOAT16, DType.FLOAT32):
        raise Unsure  # of integers: which operator sets divide them to which type is not written down
    return found


def _select(given: Given) -> TensorType:
    a, b, chosen = given.ranked("a"), given.ranked("b"), given.ranked("cond")
    if a.dtype != b.dtype:
        raise Unsure
    shape = broadcast(a.shape, b.shape)
    try:
        is_sure = broadcast(shape, chosen.shape) == shape
    except Misfit:  # coremltools does not compare them
        is_sure = False
    return typed(a, shape) if is_sure else TensorType(a.dtype, (), -1)  # whether cond widens them is not written down


def _cast(given: Given) -> TensorType:
    x = given.tensor("x")
    return TensorType(given.named("dtype", ""), x.shape, x.rank, x.variadic)


def _quantize(given: Given) -> TensorType:
    x = given.ranked("input")
    return of_dtype(given.named("output_dtype", ""), x.shape)


def _reduced(given: Given) -> TensorType:
    x = given.ranked("x")
    axes = given.integers("axes") if "axes" in given else range(len(x.shape))
    return typed(x, _without(x, axes, given))


def _reduced_to_index(given: Given) -> TensorType:
    shape = _without(given.ranked("x"), (given.integer("axis", -1),), given)
    return of_dtype(given.named("output_dtype", "int32"), shape)


def _without(x: TensorType, axes: "tuple[int, ...] | range", given: Given) -> list[int | None]:
    """The shape of a reduction."""
    rank = len(x.shape)
    reduced = {index(axis, rank) for axis in axes}
    if given.integer("keep_dims", 0):
        return [1 if i in reduced else size for i, size in enumerate(x.shape)]
    return [size for i, size in enumerate(x.shape) if i not in reduced]


def _topk(given: Given) -> tuple[TensorType, ...]:
    x = given.ranked("x")
    axis = index(given.integer("axis", -1), len(x.shape))
    count = given.integer("k", 1)
    if (size := x.shape[axis]) is not None and count > size:
        raise Misfit("k", f"at most {size}", count)
    values = typed(x, (*x.shape[:axis], count if count > 0 else None, *x.shape[axis + 1 :]))
    if not given.integer("return_indices", 1):
        return (values,)
    return values, of_dtype(given.named("output_indices_dtype", "int32"), values.shape)


def _linear(given: Given) -> TensorType:
    x, weight = given.ranked("x", 1), given.ranked("weight", 2, 2)
    require_like("the last dimension of x", weight.shape[1:], x.shape[-1:])
    return typed(x, (*x.shape[:-1], weight.shape[0]))


def _matmul(given: Given) -> TensorType:
    x, y = given.ranked("x", 1), given.ranked("y", 2)
    if x.dtype != y.dtype:
        raise Unsure
    is_turned, is_y_turned = given.integer("transpose_x", 0), given.integer("transpose_y", 0)
    columns, summed = y.shape[-2:] if is_y_turned else y.shape[:-3:-1]
    inner = x.shape[-2 if is_turned and len(x.shape) > 1 else -1]
    if None not in (inner, summed) and inner != summed:
        raise Misfit("x and y", "ones that can be multiplied", f"{spelled(x.shape)} and {spelled(y.shape)}")
    if len(x.shape) == 1:  # a vector: one row, which the output does not have; of several matrices readers may differ
        return typed(x, (columns,) if len(y.shape) == 2 else (None,) * (len(y.shape) - 1))
    rows = x.shape[-1 if is_turned else -2]
    return typed(x, (*broadcast(x.shape[:-2], y.shape[:-2]), rows, columns))


def _einsum(given: Given) -> TensorType:
    values = given.several("values")
    equation = given.word("equation").replace(" ", "")
    terms, arrow, made = equation.partition("->")
    letters = terms.split(",")
    if not arrow or len(letters) != len(values):
        raise Unsure
    sizes: dict[str, int | None] = {}
    for term, one in zip(letters, values, strict=True):
        if len(term) != len(one.shape) or len(set(term)) != len(term) or not term.isalpha():
            raise Unsure
        for letter, size in zip(term, one.shape, strict=True):
            before = sizes.get(letter, 1)
            sizes[letter] = broadcast((before,), (size,))[0]
    if not set(made) <= set(sizes):
        raise Unsure
    return typed(values[0], [sizes[letter] for letter in made])


def _attention(given: Given) -> TensorType:
    query, value = given.ranked("query", 2), given.ranked("value", 2)
    if "key" in given:
        key = given.ranked("key", 2)
        require_like("the last dimension of key", query.shape[-1:], key.shape[-1:])
        require_like("value, but for its last dimension,", key.shape[:-1], value.shape[:-1])
        require_like("the batch of key", query.shape[:-2], key.shape[:-2])
    return typed(query, (*query.shape[:-1], value.shape[-1]))


def _read_state(given: Given) -> ValueType:
    state = given.type("input")
    if not isinstance(state, StateType) or state.wrapped is None:
        raise Unsure
    return state.wrapped


def _fill(given: Given) -> TensorType:
    dtype = given.tensor("value").dtype if "value" in given else DType.FLOAT32
    return TensorType(dtype, *_stated(given))


def _fill_like(given: Given) -> TensorType:
    dtype = given.tensor("value").dtype if "value" in given else DType.FLOAT32
    return of_dtype(dtype, given.ranked("ref_tensor").shape)


def _random_categorical(given: Given) -> TensorType:
    x = given.ranked("x")
    return typed(x, (*x.shape[:-1], given.integer("size", 1)))


def _stated(given: Given) -> tuple[tuple[int | None, ...], int]:
    """Return the shape and rank that the argument `shape` gives."""
    found = given.integers_or_none("shape")
    if found is not None:
        return found, len(found)
    (count,) = given.ranked("shape").shape[:1] or (None,)
    return ((), -1) if count is None or count > MAX_COUNT else ((None,) * count, count)


def _one_hot(given: Given) -> TensorType:
    shape = given.ranked("indices").shape
    axis = index(given.integer("axis", -1), len(shape) + 1)
    count = given.integers_or_none("one_hot_vector_size")
    dtype = given.tensor("on_value").dtype if "on_value" in given else DType.INT32
    return of_dtype(dtype, (*shape[:axis], count[0] if count else None, *shape[axis:]))


def _scatter(given: Given) -> ValueType:
    found = _shapes_of(given, "data", "indices", "updates")
    if found is not None and "axis" in given and (axes := given.integers_or_none("axis")):
        data, indices, updates = found
        axis = index(axes[0], len(data))
        require_like("updates", (*data[:axis], *indices, *data[axis + 1 :]), updates)
    return given.type("data")


def _scatter_along_axis(given: Given) -> ValueType:
    found = _shapes_of(given, "data", "indices", "updates")
    if found is not None:
        data, indices, updates = found
        require_like("updates", indices, updates)
        if "axis" in given and (axes := given.integers_or_none("axis")):
            axis = index(axes[0], len(data))
            require_like("indices", (*data[:axis], None, *data[axis + 1 :]), indices)
    return given.type("data")


def _scatter_nd(given: Given) -> ValueType:
    found = _shapes_of(given, "data", "indices", "updates")
    if found is not None and found[1] and (depth := found[1][-1]) is not None:
        data, indices, updates = found
        if depth > len(data):
            raise Misfit("the last dimension of indices", f"at most {len(data)}, the rank of data", depth)
        require_like("updates", (*indices[:-1], *data[depth:]), updates)
    return given.type("data")


def _shapes_of(given: Given, *keys: str) -> list[Shape] | None:
    """Return the shapes of several arguments; None if one of the ranks is not known."""
    try:
        return [given.ranked(key).shape for key in keys]
    except Unsure:
        return None


def _list_length(given: Given) -> TensorType:
    if not isinstance(given.type("ls"), ListType):
        raise Unsure
    return of_dtype(DType.INT32, ())


def _list_gather(given: Given) -> TensorType:
    element, indices = given.element("ls"), given.ranked("indices", 1, 1)
    return typed(element, (*indices.shape, *element.shape))


MAKERS: dict[str, Callable[[Given], ValueType | tuple[ValueType, ...]]] = {
    **dict.fromkeys(_LIKE_X, _like_x),
    **dict.fromkeys(("list_scatter", "list_write"), lambda given: given.type("ls")),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_COMPARED, lambda given: of_dtype(DType.BOOL, _broadcast(given).shape)),
    **dict.fromkeys(_REDUCED, _reduced),
    **dict.fromkeys(("reduce_argmax", "reduce_argmin"), _reduced_to_index),
    **_MOVED,
    **_WINDOWS,
    "argsort": lambda given: of_dtype(DType.INT32, given.ranked("x").shape),
    "cast": _cast,
    "dequantize": lambda given: typed(given.tensor("scale"), given.ranked("input").shape),
    "einsum": _einsum,
    "fill": _fill,
    "fill_like": _fill_like,
    "linear": _linear,
    "list_gather": _list_gather,
    "list_length": _list_length,
    "list_read": lambda given: given.element("ls"),
    "matmul": _matmul,
    "non_zero": lambda given: of_dtype(DType.INT32, (None, len(given.ranked("x").shape))),
    "one_hot": _one_hot,
    "quantize": _quantize,
    "random_bernoulli": lambda given: TensorType(given.tensor("prob").dtype, *_stated(given)),
    "random_categorical": _random_categorical,
    "random_normal": lambda given: TensorType(given.tensor("mean").dtype, *_stated(given)),
    "random_uniform": lambda given: TensorType(given.tensor("low").dtype, *_stated(given)),
    "range_1d": lambda given: typed(given.tensor("start"), (None,)),
    "read_state": _read_state,
    "real_div": _divided,
    "scaled_dot_product_attention": _attention,
    "scatter": _scatter,
    "scatter_along_axis": _scatter_along_axis,
    "scatter_nd": _scatter_nd,
    "select": _select,
    "shape": lambda given: of_dtype(DType.INT32, (len(given.ranked("x").shape),)),
    "topk": _topk,
}
"""Operation -> the function that infers its types; Unsure: the inputs do not determine them, Misfit: they fit none."""
