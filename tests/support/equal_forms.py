"""Models with one matrix in many forms that decode to the same bits, built by coremltools' MIL builder."""

import warnings

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

SHAPE = (24, 32)
LEVELS = np.arange(-8, 8)


def _numpy(name):
    return types.nptype_from_builtin(types.string_to_builtin(name))


def codes(zeros, seed=0, shape=SHAPE):
    """Integers from -8 to 7, of which about a share is zero; each is there."""
    rng = np.random.default_rng(seed)
    found = np.where(rng.random(shape) < zeros, 0, rng.integers(-8, 8, shape))
    found.reshape(-1)[:16] = LEVELS
    return found


def dense(found, half=True):
    """The values of codes: exact in every form."""
    return (found / 16).astype(np.float16 if half else np.float32)


def ios18(found, half=True):
    """Form -> a function of a name that makes it, for codes of two dimensions."""
    number = np.float16 if half else np.float32
    values, bits = dense(found, half), _numpy("uint1")
    rows, columns = found.shape
    palette = (LEVELS / 16).astype(number)
    shuffle = np.random.default_rng(5).permutation(16)
    wide = np.concatenate([palette, np.arange(48) + 100]).astype(number)
    mask = found != 0

    def lut(entries, indices, nbits):
        table = np.asarray(entries, number).reshape(1, 1, -1, 1)
        return lambda name: mb.constexpr_lut_to_dense(
            indices=indices.astype(_numpy(f"uint{nbits}")), lut=table, name=name
        )

    def blocks(dtype, down, across, offset=None):
        scale = np.full((down, across), 1 / 16, number)
        more = {} if offset is None else {"offset": np.full((down, across), offset, _numpy(dtype))}
        data = (found + (offset or 0)).astype(_numpy(dtype))
        return lambda name: mb.constexpr_blockwise_shift_scale(data=data, scale=scale, name=name, **more)

    def grouped(name):
        table = np.stack([palette, palette[::-1]]).reshape(2, 1, 16, 1)
        indices = found + 8
        indices[rows // 2 :] = 15 - indices[rows // 2 :]
        return mb.constexpr_lut_to_dense(indices=indices.astype(_numpy("uint4")), lut=table, name=name)

    def sparse(name):
        return mb.constexpr_sparse_to_dense(nonzero_data=values[mask], mask=mask.astype(bits), name=name)

    def sparse_palette(name):
        kept, some = mb.constexpr_lut_to_sparse(
            indices_mask=mask.astype(bits), indices_nonzero_data=(found[mask] + 8).astype(_numpy("uint4")),
            lut=palette.reshape(1, 1, 16, 1), name=f"{name}_some",
        )  # fmt: skip
        return mb.constexpr_sparse_to_dense(nonzero_data=some, mask=kept, name=name)

    def sparse_integers(name):
        kept, some = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=mask.astype(bits), nonzero_data=found[mask].astype(np.int8), scale=np.full((1, 1), 1 / 16, number),
            name=f"{name}_some",
        )  # fmt: skip
        return mb.constexpr_sparse_to_dense(nonzero_data=some, mask=kept, name=name)

    def quantized_palette(name):
        table = mb.constexpr_blockwise_shift_scale(
            data=LEVELS.reshape(1, 1, 16, 1).astype(np.int8), scale=np.full((1, 1, 1, 1), 1 / 16, number),
            name=f"{name}_table",
        )  # fmt: skip
        return mb.constexpr_lut_to_dense(indices=(found + 8).astype(_numpy("uint4")), lut=table, name=name)

    return {
        "dense": lambda name: mb.const(val=values, name=name),
        "palette": lut(palette, found + 8, 4),
        "palette in another order": lut(palette[shuffle], np.argsort(shuffle)[found + 8], 4),
        "palette with unused entries": lut(wide, found + 8, 6),
        "palettes of two groups": grouped,
        "quantized palette": quantized_palette,
        "int4": blocks("int4", 1, 1),
        "int4 in rows": blocks("int4", rows, 1),
        "int8": blocks("int8", 1, 1),
        "int8 in blocks": blocks("int8", rows, columns // 8),
        "uint8 with an offset": blocks("uint8", 1, 1, 128),
        "sparse": sparse,
        "sparse palette": sparse_palette,
        "sparse integers": sparse_integers,
    }


def ios16(found, half=True):
    """Form -> a function of a name that makes it, of the operations of iOS 16."""
    number = np.float16 if half else np.float32
    values = dense(found, half)
    shape, mask = np.array(found.shape, np.uint32), found != 0

    def packed(nibbles):
        nibbles = nibbles.reshape(-1, 2).astype(np.uint8)
        return nibbles[:, 0] | nibbles[:, 1] << 4

    def lut(entries, indices):
        return lambda name: mb.constexpr_lut_to_dense(
            indices=packed(indices), lut=np.asarray(entries, number), shape=shape, name=name
        )

    def affine(name):
        return mb.constexpr_affine_dequantize(
            quantized_data=found.astype(np.int8),
            zero_point=np.int8(0),
            scale=number(1 / 16),
            axis=np.int32(0),
            name=name,
        )

    def sparse(name):
        return mb.constexpr_sparse_to_dense(
            nonzero_data=values[mask], mask=np.packbits(mask.reshape(-1), bitorder="little"), shape=shape, name=name
        )

    return {
        "dense": lambda name: mb.const(val=values, name=name),
        "palette": lut(LEVELS / 16, found + 8),
        "palette in another order": lut(LEVELS[::-1] / 16, 7 - found),
        "int8": affine,
        "sparse": sparse,
    }


def label(form, number=0):
    """The name of a weight of `save_forms`."""
    return f"w{number}_{form.replace(' ', '_')}"


def product(x, weight, number):
    """An operation that reads a weight, and nothing else that is stored."""
    return mb.matmul(x=x, y=weight, transpose_y=True)


def save_forms(path, matrices, target=ct.target.iOS18, half=True, reader=product):
    """Save a package in which an operation reads each form of each matrix; return its path.

    Args:
        matrices: of each, form -> a function that makes it, as of `ios18`.
        reader: a function of x, a weight and its number that makes the operation.
    """

    def body(x):
        outputs = [
            reader(x, make(label(form, number)), number)
            for number, forms in enumerate(matrices)
            for form, make in forms.items()
        ]
        return [mb.relu(x=one, name=f"out{place}") for place, one in enumerate(outputs)]

    return _save(path, body, target, half)


def save_chain(path, forms):
    """Save a package in which each form of one matrix is read after the one before; return its path."""

    def body(x):
        for form, make in forms.items():
            weight = make(label(form))
            x = mb.matmul(x=mb.relu(x=product(x, weight, 0)), y=weight)
        return x

    return _save(path, body, ct.target.iOS18, True)


def _save(path, body, target, half):
    kind = types.fp16 if half else types.fp32
    program = mb.program(input_specs=[mb.TensorSpec((1, SHAPE[1]), dtype=kind)], opset_version=target)(body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
        model = ct.convert(
            program, minimum_deployment_target=target, compute_precision=precision, skip_model_load=True,
            pass_pipeline=ct.PassPipeline.EMPTY,
        )  # fmt: skip
        model.save(str(path))
    return path
