"""Models that the tests of compress make with coremltools."""

import warnings

import numpy as np


def save_model(path, opset, dtype, seed=0, disagree=True):
    """Write a package with weights that many kinds of operations read: convolutions, products, a table, an LSTM, shared ones.

    Args:
        opset: 16, 17 or 18.
        dtype: NumPy dtype of the weights.
        disagree: whether two operations read one weight along different axes; joint compression fails there in coremltools.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    rng = np.random.default_rng(seed)
    target = getattr(ct.target, f"iOS{opset}")
    half = np.dtype(dtype) == np.float16

    def weight(*shape):
        return (rng.standard_normal(shape) * 0.1).astype(dtype)

    floats = types.fp16 if half else types.fp32
    tied = weight(60, 40)

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, 16, 12, 12), dtype=floats),
            mb.TensorSpec((1, 4), dtype=types.int32),
        ],
        opset_version=target,
    )
    def program(x, tokens):
        y = mb.conv(x=x, weight=mb.const(val=weight(32, 16, 3, 3), name="w_conv"), pad_type="same")
        y = mb.conv_transpose(x=y, weight=mb.const(val=weight(32, 16, 3, 3), name="w_transposed"))
        y = mb.reduce_mean(x=y, axes=[2, 3], keep_dims=False)
        y = mb.linear(x=y, weight=mb.const(val=weight(256, 16), name="w_linear"), bias=weight(256))
        y = mb.matmul(x=y, y=mb.const(val=weight(256, 64), name="w_product"))
        y = mb.matmul(x=y, y=mb.const(val=weight(96, 64), name="w_turned"), transpose_y=True)
        shared = mb.const(val=weight(96, 96), name="w_disagree")
        z = mb.add(x=mb.linear(x=y, weight=shared), y=mb.matmul(x=y, y=shared, transpose_y=not disagree))
        left = mb.matmul(x=mb.const(val=weight(64, 96), name="w_left"), y=z, transpose_y=True)
        table = mb.const(val=weight(100, 32), name="w_table")
        words = mb.gather(x=table, indices=tokens, axis=0)
        sequence = mb.transpose(x=words, perm=[1, 0, 2])
        zero = np.zeros((1, 24), dtype)
        recurrent = [mb.relu(x=sequence)]
        if opset > 16 or not half:  # iOS16 has none in float16
            recurrent = mb.lstm(
                x=sequence, initial_h=zero, initial_c=zero, weight_ih=mb.const(val=weight(96, 32), name="w_ih"),
                weight_hh=mb.const(val=weight(96, 24), name="w_hh"), bias=weight(96),
            )  # fmt: skip
        one = mb.linear(x=mb.slice_by_size(x=z, begin=[0, 0], size=[1, 40]), weight=mb.const(val=tied, name="w_tied_1"))
        two = mb.linear(x=mb.slice_by_size(x=z, begin=[0, 1], size=[1, 40]), weight=mb.const(val=tied, name="w_tied_2"))
        return mb.relu(x=z, name="out"), mb.relu(x=left), mb.relu(x=recurrent[0]), mb.add(x=one, y=two)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
        converted = ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=target, compute_precision=precision,
            skip_model_load=True,
        )  # fmt: skip
        converted.save(str(path))
    return path
