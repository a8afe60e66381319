"""Further cases for the tests of milblob.onnx: compressed weights, lists, branches and loops, indices, shapes.

`cases` returns {operation: cases}; its argument makes a case of (function, inputs, formula, since, until, halves).
"""

import numpy as np

F, INT = np.float32, np.int32
random = np.random.default_rng(31)
X = random.normal(size=(4, 6)).astype(F)
BYTES = random.integers(0, 256, (4, 6)).astype(np.uint8)
NIBBLES = random.integers(0, 16, (4, 6)).astype(np.uint8)
MASK = random.random((4, 6)) < 0.5
NONZERO = random.normal(size=int(MASK.sum())).astype(F)
LUT = random.normal(size=16).astype(F)


def filled(mask, values):
    """The dense form of a sparse weight."""
    out = np.zeros(mask.shape, F)
    out[mask] = values
    return out


def packed(nibbles):
    """Two elements to a byte, the first one in the low half."""
    flat = nibbles.reshape(-1, 2)
    return (flat[:, 0] | flat[:, 1] << 4).astype(np.uint8)


def narrow(array, name):
    """An array as an element type of coremltools that NumPy lacks."""
    from coremltools.converters.mil.mil import types

    return array.astype(getattr(types, f"np_{name}_dtype"))


def constexpr_cases(case):
    """Each operation of both generations; the weight is added to an input."""

    def weight(make, expected, since="iOS16", until="iOS18"):
        return case(lambda mb, x: mb.add(x=x, y=make(mb)), (X,), lambda x: x + expected, since, until, False)

    scales, points = np.linspace(0.1, 0.4, 4).astype(F), np.array([3, 0, 200, 7], np.uint8)
    shape = np.array([4, 6], np.uint32)
    bits = np.packbits(MASK.reshape(-1), bitorder="little")
    signed = (NIBBLES.astype(np.int8) ^ 8) - 8
    blocks = random.uniform(0.1, 1, (2, 3)).astype(F)
    spread = blocks.repeat(2, 0).repeat(2, 1)
    offsets = random.integers(-8, 8, (2, 3)).astype(np.int8)
    codes = random.integers(0, 16, int(MASK.sum())).astype(np.uint8)
    steps = random.integers(-100, 100, int(MASK.sum())).astype(np.int8)
    columns = random.uniform(0.1, 1, (1, 6)).astype(F)
    vectors = random.normal(size=(1, 1, 16, 2)).astype(F)
    few = MASK[:, :3]
    wide = (vectors[0, 0][NIBBLES[:, :3]] * few[..., None]).reshape(4, 6)
    pairs = vectors[0, 0][NIBBLES[:, :3]].reshape(4, 6)
    return {
        "constexpr_affine_dequantize": [
            weight(lambda mb: mb.constexpr_affine_dequantize(quantized_data=BYTES, zero_point=points, scale=scales, axis=0),
                   (BYTES.astype(F) - points[:, None]) * scales[:, None]),
            weight(lambda mb: mb.constexpr_affine_dequantize(quantized_data=BYTES.view(np.int8), zero_point=np.int8(-5), scale=F(0.25), axis=1),
                   (BYTES.view(np.int8).astype(F) + 5) * F(0.25)),
        ],
        "constexpr_cast": [weight(lambda mb: mb.constexpr_cast(source_val=X.astype(np.float16), output_dtype="fp32"), X.astype(np.float16).astype(F))],
        "constexpr_lut_to_dense": [
            weight(lambda mb: mb.constexpr_lut_to_dense(indices=packed(NIBBLES), lut=LUT, shape=shape), LUT[NIBBLES], "iOS16", "iOS17"),
            weight(lambda mb: mb.constexpr_lut_to_dense(indices=narrow(NIBBLES, "uint4"), lut=LUT.reshape(1, 1, 16, 1)), LUT[NIBBLES], "iOS18"),
            weight(lambda mb: mb.constexpr_lut_to_dense(indices=narrow(NIBBLES[:, :3], "uint4"), lut=vectors, vector_axis=1), pairs, "iOS18"),
        ],
        "constexpr_sparse_to_dense": [
            weight(lambda mb: mb.constexpr_sparse_to_dense(nonzero_data=NONZERO, mask=bits, shape=shape), filled(MASK, NONZERO), "iOS16", "iOS17"),
            weight(lambda mb: mb.constexpr_sparse_to_dense(nonzero_data=NONZERO, mask=narrow(MASK.astype(np.uint8), "uint1")), filled(MASK, NONZERO), "iOS18"),
        ],
        "constexpr_blockwise_shift_scale": [
            weight(lambda mb: mb.constexpr_blockwise_shift_scale(data=narrow(signed, "int4"), scale=blocks), signed * spread, "iOS18"),
            weight(lambda mb: mb.constexpr_blockwise_shift_scale(data=narrow(signed, "int4"), scale=blocks, offset=narrow(offsets, "int4")),
                   (signed - offsets.astype(F).repeat(2, 0).repeat(2, 1)) * spread, "iOS18"),
            weight(lambda mb: mb.constexpr_blockwise_shift_scale(data=BYTES, scale=columns), BYTES * columns, "iOS18"),
        ],
        "constexpr_lut_to_sparse": [
            weight(lambda mb: dense_of(mb, mb.constexpr_lut_to_sparse(
                indices_mask=narrow(MASK.astype(np.uint8), "uint1"), indices_nonzero_data=narrow(codes, "uint4"), lut=LUT.reshape(1, 1, 16, 1))),
                filled(MASK, LUT[codes]), "iOS18"),
            weight(lambda mb: dense_of(mb, mb.constexpr_lut_to_sparse(
                indices_mask=narrow(few.astype(np.uint8), "uint1"), indices_nonzero_data=narrow(NIBBLES[:, :3][few], "uint4"), lut=vectors, vector_axis=1)),
                wide, "iOS18"),
        ],
        "constexpr_sparse_blockwise_shift_scale": [
            weight(lambda mb: dense_of(mb, mb.constexpr_sparse_blockwise_shift_scale(
                data_mask=narrow(MASK.astype(np.uint8), "uint1"), nonzero_data=steps, scale=columns, offset=np.full((1, 6), 7, np.int8))),
                filled(MASK, steps - F(7)) * columns, "iOS18"),
        ],
    }  # fmt: skip


def sparse_cases(case):
    """What operations on sparse weights compute, read by others: the values that are not zero."""
    count = int(MASK.sum())
    codes = random.integers(0, 16, count).astype(np.uint8)
    steps, columns = random.integers(-9, 9, count).astype(np.int8), random.uniform(0.1, 1, (1, 6)).astype(F)
    mask = MASK.astype(np.uint8)
    at = np.nonzero(MASK)[1]
    inputs = (random.normal(size=count).astype(F),)

    def looked_up(mb, x):
        parts = mb.constexpr_lut_to_sparse(
            indices_mask=narrow(mask, "uint1"),
            indices_nonzero_data=narrow(codes, "uint4"),
            lut=LUT.reshape(1, 1, 16, 1),
        )
        return mb.add(x=x, y=parts[1])

    def scaled(mb, x, is_shared=False):
        own = steps + np.int8(is_shared)  # coremltools cannot save two operations that are the same
        parts = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=narrow(mask, "uint1"), nonzero_data=own, scale=columns
        )
        found = mb.mul(x=x, y=parts[1])
        return (found, mb.add(x=dense_of(mb, parts), y=F(1))) if is_shared else found

    values, others = steps * columns[0, at], (steps + 1) * columns[0, at]
    return {
        "constexpr_lut_to_sparse": [case(looked_up, inputs, lambda x: x + LUT[codes], "iOS18", "iOS18", False)],
        "constexpr_sparse_blockwise_shift_scale": [
            case(scaled, inputs, lambda x: x * values, "iOS18", "iOS18", False),
            case(lambda mb, x: scaled(mb, x, True), inputs, lambda x: (x * others, filled(MASK, others) + 1), "iOS18", "iOS18", False),
        ],
    }  # fmt: skip


def dense_of(mb, parts):
    mask, nonzero = parts
    return mb.constexpr_sparse_to_dense(nonzero_data=nonzero, mask=mask)


def list_cases(case):
    """Elements of several types, lengths and indices that are computed, a list that a loop fills."""

    def first(mb, x):
        return mb.squeeze(x=mb.slice_by_size(x=mb.cast(x=x, dtype="int32"), begin=[0], size=[1]), axes=[0])

    def written(mb, x, dtype):
        ls = mb.make_list(init_length=1, elem_shape=(3,), dtype=dtype)
        value = x if dtype == "fp32" else mb.cast(x=x, dtype=dtype)
        ls = mb.list_write(ls=ls, index=3, value=value)  # which makes the list longer
        return ls, mb.list_length(ls=ls)

    def typed(mb, x, dtype):
        ls, length = written(mb, x, dtype)
        found = [mb.list_read(ls=ls, index=3), mb.list_gather(ls=ls, indices=[3, 0])]
        return [one if dtype == "fp32" else mb.cast(x=one, dtype="fp32") for one in found] + [length]

    def computed(mb, x):
        n = first(mb, x)
        ls = mb.make_list(init_length=n, dynamic_length=False, elem_shape=(3,), dtype="fp32")
        ls = mb.list_write(ls=ls, index=mb.sub(x=n, y=INT(1)), value=x)
        return mb.list_read(ls=ls, index=mb.sub(x=n, y=INT(1))), mb.list_length(ls=ls)

    def looped(mb, x):
        ls = mb.make_list(init_length=4, elem_shape=(3,), dtype="fp32")

        def body(i, ls):
            return mb.add(x=i, y=INT(1)), mb.list_write(ls=ls, index=i, value=mb.mul(x=x, y=mb.cast(x=i, dtype="fp32")))

        _, ls = mb.while_loop(_cond=lambda i, ls: mb.less(x=i, y=INT(4)), _body=body, loop_vars=(INT(0), ls))
        return mb.list_gather(ls=ls, indices=[3, 1, 0])

    values = np.array([2, -1.5, 0], F)
    found = [
        case(lambda mb, x, d=dtype: typed(mb, x, d), (values,), lambda x, c=convert: (c(x), np.stack([c(x), 0 * x]), INT(4)), halves=False)
        for dtype, convert in (("fp32", lambda x: x), ("int32", lambda x: x.astype(INT).astype(F)), ("bool", lambda x: (x != 0).astype(F)))
    ]  # fmt: skip
    found.append(case(computed, (values,), lambda x: (x, INT(2)), halves=False))
    found.append(case(looped, (values,), lambda x: np.stack([3 * x, x, 0 * x]), halves=False))
    reading = [found[0], found[3]]
    return {
        "make_list": found,
        "list_length": found[:1],
        "list_read": reading,
        "list_gather": found[:3],
        "list_write": found,
    }


def control_cases(case):
    """Loops in loops, branches in loops and the other way round, variables that grow, none and many passes."""

    def grows(mb, x):
        def body(i, y):
            return mb.add(x=i, y=F(1)), mb.concat(values=(y, x), axis=0)

        return mb.while_loop(_cond=lambda i, y: mb.less(x=i, y=F(3)), _body=body, loop_vars=(F(0), mb.mul(x=x, y=F(2))))

    def nested(mb, x):
        def inner(total):
            def body(j, y):
                return mb.add(x=j, y=F(1)), mb.add(x=y, y=x)

            _, found = mb.while_loop(_cond=lambda j, y: mb.less(x=j, y=F(2)), _body=body, loop_vars=(F(0), total))
            return found

        def body(i, total):
            return mb.add(x=i, y=F(1)), mb.mul(x=inner(total), y=F(0.5))

        return mb.while_loop(
            _cond=lambda i, t: mb.less(x=i, y=F(3)), _body=body, loop_vars=(F(0), mb.mul(x=x, y=F(1.5)))
        )[1]

    def halved_until_small(mb, x):
        def body(y):
            big = mb.greater(x=mb.reduce_max(x=y), y=F(4))
            return mb.cond(pred=big, _true_fn=lambda: mb.mul(x=y, y=F(0.25)), _false_fn=lambda: mb.mul(x=y, y=F(0.5)))

        return mb.while_loop(_cond=lambda y: mb.greater(x=mb.reduce_max(x=y), y=F(1)), _body=body, loop_vars=(x,))

    def branch_of_branches(mb, x):
        def inner():
            small = mb.less(x=mb.reduce_max(x=x), y=F(100))
            return mb.cond(
                pred=small,
                _true_fn=lambda: (mb.add(x=x, y=F(1)), mb.reduce_sum(x=x)),
                _false_fn=lambda: (mb.identity(x=x), mb.reduce_max(x=x)),
            )

        positive = mb.greater(x=mb.reduce_max(x=x), y=F(0))
        return mb.cond(pred=positive, _true_fn=inner, _false_fn=lambda: (mb.mul(x=x, y=F(-1)), mb.reduce_min(x=x)))

    def loop_in_branch(mb, x):
        def loop():
            return mb.while_loop(
                _cond=lambda i, y: mb.less(x=i, y=F(2)),
                _body=lambda i, y: (mb.add(x=i, y=F(1)), mb.add(x=y, y=y)),
                loop_vars=(F(0), x),
            )[1]

        return mb.cond(pred=mb.greater(x=mb.reduce_max(x=x), y=F(0)), _true_fn=loop, _false_fn=lambda: mb.identity(x=x))

    def swapped(mb, x):
        """Each pass reads the values of the pass before, and no newer ones."""

        def body(i, a, b):
            return mb.add(x=i, y=F(1)), mb.mul(x=b, y=F(1)), mb.mul(x=a, y=F(1))

        return mb.while_loop(
            _cond=lambda i, a, b: mb.less(x=i, y=F(3)),
            _body=body,
            loop_vars=(F(0), mb.add(x=x, y=F(1)), mb.mul(x=x, y=F(3))),
        )[1:]

    def halve(x):
        while x.max() > 1:
            x = x * F(0.25 if x.max() > 4 else 0.5)
        return x

    def nest(x):
        total = x * F(1.5)
        for _ in range(3):
            total = (total + 2 * x) / 2
        return total

    x = np.array([[1, -2, 9], [0.5, 3, 1]], F)
    loops = [
        case(grows, (x,), lambda v: (F(3), np.concatenate([2 * v, v, v, v]))),
        case(nested, (x,), nest),
        case(halved_until_small, (x,), halve),
        case(halved_until_small, (x / 16,), lambda v: v),
        case(swapped, (x,), lambda v: (3 * v, v + 1)),
        case(loop_in_branch, (x,), lambda v: 4 * v),
        case(loop_in_branch, (-np.abs(x),), lambda v: v),
    ]  # fmt: skip
    branches = [
        case(branch_of_branches, (x,), lambda v: (v + 1, v.sum())),
        case(branch_of_branches, (x * 100,), lambda v: (v, v.max())),
        case(branch_of_branches, (-np.abs(x),), lambda v: (-v, v.min())),
    ]
    return {"while_loop": loops, "cond": [*branches, *loops[2:4], *loops[5:]]}


def scatter_cases(case):
    """Every mode, several axes, computed indices inside of the tensor whether they are validated or not."""
    modes = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "max": np.maximum,
        "min": np.minimum,
    }
    data, updates = random.uniform(1, 2, (3, 4)).astype(F), random.uniform(1, 2, (2, 4)).astype(F)
    found = {"scatter": [], "scatter_along_axis": [], "scatter_nd": []}

    def rows(d, i, u, apply):
        out = d.copy()
        for row, index in enumerate(i):
            out[index] = apply(out[index], u[row])
        return out

    def along(d, i, u, apply):
        out = d.copy()
        for row, column in np.ndindex(i.shape):
            out[i[row, column], column] = apply(out[i[row, column], column], u[row, column])
        return out

    def points(d, i, u, apply):
        out = d.copy()
        for at, value in zip(i, u, strict=True):
            out[tuple(at)] = apply(out[tuple(at)], value)
        return out

    variants = {
        "scatter": (rows, np.array([2, 0], INT), updates),
        "scatter_along_axis": (along, np.array([[2, 0, 1, 1], [0, 0, 2, 1]], INT), updates),
        "scatter_nd": (points, np.array([[1, 2], [0, 3]], INT), updates[0, :2]),
    }
    for name, (formula, indices, values) in variants.items():
        for mode, apply in (modes | {"update": lambda a, b: b}).items():
            found[name].append(
                case(
                    lambda mb, d, i, u, n=name, m=mode: getattr(mb, n)(data=d, indices=i, updates=u, mode=m),
                    (data, indices, values),
                    lambda d, i, u, f=formula, a=apply: f(d, i, u, a),
                )
            )
        for validate in (False, True):
            found[name].append(
                case(
                    lambda mb, d, i, u, n=name, v=validate: getattr(mb, n)(
                        data=d, indices=i, updates=u, validate_indices=v
                    ),
                    (data, indices, values),
                    lambda d, i, u, f=formula: f(d, i, u, np.add),
                    "iOS17",
                )
            )
        if name != "scatter_nd":
            twice = np.array([1, 1], INT) if name == "scatter" else np.array([[1, 1, 2, 0], [1, 0, 2, 0]], INT)
            found[name].append(  # an index that occurs twice adds twice
                case(
                    lambda mb, d, u, n=name, i=twice: getattr(mb, n)(data=d, indices=i, updates=u, axis=-2),
                    (data, values),
                    lambda d, u, f=formula, i=twice: f(d, i, u, np.add),
                )
            )
    return found


def cases(case):
    """All of them, by operation."""
    found = {}
    for group in (constexpr_cases, sparse_cases, list_cases, control_cases, scatter_cases):
        for name, ones in group(case).items():
            found.setdefault(name, []).extend(ones)
    return found
