"""Models that the tests of compress make with coremltools."""

import json
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


def save_architecture(kind, path, opset, dtype, seed=0):
    """Write a package of a usual architecture.

    Args:
        kind: "transformer" (its table is tied to its head), "cnn" (groups, depthwise, ranks 3 to 5), "recurrent" or
            "embedding".
        opset, dtype: as for `save_model`.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    rng = np.random.default_rng(seed)
    half = np.dtype(dtype) == np.float16
    floats = types.fp16 if half else types.fp32

    def weight(name, *shape):
        return mb.const(val=(rng.standard_normal(shape) * 0.1).astype(dtype), name=name)

    def transformer(tokens):
        width, heads = 48, 4
        table = weight("table", 200, width)
        x = mb.gather(x=table, indices=tokens, axis=0)
        for layer in range(2):

            def split(name, layer=layer, x=x):
                y = mb.linear(x=x, weight=weight(f"{name}_{layer}", width, width))
                return mb.transpose(x=mb.reshape(x=y, shape=[1, -1, heads, width // heads]), perm=[0, 2, 1, 3])

            scores = mb.softmax(x=mb.matmul(x=split("query"), y=split("key"), transpose_y=True), axis=-1)
            y = mb.transpose(x=mb.matmul(x=scores, y=split("value")), perm=[0, 2, 1, 3])
            y = mb.matmul(x=mb.reshape(x=y, shape=[1, -1, width]), y=weight(f"out_{layer}", width, width))
            x = mb.layer_norm(x=mb.add(x=x, y=y), axes=[-1])
            y = mb.gelu(x=mb.linear(x=x, weight=weight(f"up_{layer}", 4 * width, width)), mode="EXACT")
            x = mb.add(x=x, y=mb.linear(x=y, weight=weight(f"down_{layer}", width, 4 * width)))
        return mb.matmul(x=x, y=table, transpose_y=True, name="logits")

    def cnn(x):
        y = mb.relu(x=mb.conv(x=x, weight=weight("stem", 64, 8, 3, 3), pad_type="same"))
        y = mb.conv(x=y, weight=weight("grouped", 64, 16, 3, 3), groups=4, pad_type="same")
        y = mb.conv(x=y, weight=weight("depthwise", 64, 1, 7, 7), groups=64, pad_type="same")
        y = mb.relu(x=mb.conv(x=y, weight=weight("pointwise", 64, 64, 1, 1)))
        up = mb.conv_transpose(x=y, weight=weight("upward", 64, 16, 3, 3), groups=2)
        line = mb.conv(x=mb.reduce_mean(x=y, axes=[3], keep_dims=False), weight=weight("line", 32, 64, 3))
        deep = mb.conv(x=mb.expand_dims(x=x, axes=[2]), weight=weight("volume", 16, 8, 1, 5, 5))
        return mb.relu(x=up), mb.relu(x=line), mb.relu(x=deep)

    def recurrent(x):
        zero = np.zeros((1, 32), dtype)
        y = mb.lstm(
            x=x, initial_h=zero, initial_c=zero, weight_ih=weight("lstm_ih", 128, 24), weight_hh=weight("lstm_hh", 128, 32),
            output_sequence=True,
        )[0]  # fmt: skip
        both = mb.lstm(
            x=y, initial_h=np.zeros((1, 64), dtype), initial_c=np.zeros((1, 64), dtype), direction="bidirectional",
            weight_ih=weight("forth_ih", 128, 32), weight_hh=weight("forth_hh", 128, 32),
            weight_ih_back=weight("back_ih", 128, 32), weight_hh_back=weight("back_hh", 128, 32),
        )[0]  # fmt: skip
        y = mb.gru(x=y, initial_h=zero, weight_ih=weight("gru_ih", 96, 32), weight_hh=weight("gru_hh", 96, 32))[0]
        return mb.relu(x=y), mb.relu(x=both)

    def embedding(tokens):
        words = mb.gather(x=weight("words", 300, 16), indices=tokens, axis=0)
        places = mb.gather(x=weight("places", 16, 300), indices=tokens, axis=1)
        mixed = mb.add(x=words, y=mb.transpose(x=places, perm=[1, 2, 0]))
        return mb.matmul(x=mixed, y=weight("stack", 1, 16, 300)), mb.add(x=words, y=weight("added", 60, 8, 16))

    builders = {"transformer": transformer, "cnn": cnn, "recurrent": recurrent, "embedding": embedding}
    shapes = {"transformer": (1, 6), "cnn": (1, 8, 12, 12), "recurrent": (5, 1, 24), "embedding": (1, 8)}
    own = types.int32 if kind in ("transformer", "embedding") else floats
    target = getattr(ct.target, f"iOS{opset}")
    build = mb.program(input_specs=[mb.TensorSpec(shapes[kind], dtype=own)], opset_version=target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
        converted = ct.convert(
            build(builders[kind]), convert_to="mlprogram", minimum_deployment_target=target, compute_precision=precision,
            skip_model_load=True,
        )  # fmt: skip
        converted.save(str(path))
    return path


def with_config(options, folder):
    """Options of the command, a dict among them as the path of a configuration file that holds it."""
    words = []
    for option in options:
        if isinstance(option, dict):
            path = folder.parent / f"{folder.name}.json"
            path.write_text(json.dumps(option))
            option = str(path)
        words.append(option)
    return words
