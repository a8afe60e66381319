"""Models that coremltools builds now: over operator sets, many operations, interfaces and ways to compress. Needs coremltools."""

import tempfile

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

TARGETS = {"iOS15": ct.target.iOS15, "iOS16": ct.target.iOS16, "iOS17": ct.target.iOS17, "iOS18": ct.target.iOS18}
MOST = ("iOS15", "iOS16", "iOS18")  # iOS18 has nearly all arguments that iOS17 brought
RANDOM = np.random.default_rng(0)
BODIES = {}  # name -> (shape of the input, what is made of it, first target)


def body(shape=(1, 4, 8, 8), first="iOS15"):
    """Add a maker of a function's body."""

    def add(make):
        BODIES[make.__name__] = shape, make, first
        return make

    return add


def weights(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


@body()
def convolution(x):
    x = mb.conv(x=x, weight=weights(8, 4, 3, 3), bias=weights(8), strides=[2, 2], pad_type="same")
    return mb.conv_transpose(x=x, weight=weights(8, 4, 2, 2), strides=[2, 2], pad_type="valid")


@body()
def pooling(x):
    x = mb.max_pool(x=x, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid")
    x = mb.avg_pool(x=x, kernel_sizes=[2, 2], strides=[1, 1], pad_type="same", exclude_padding_from_average=True)
    return mb.l2_pool(x=x, kernel_sizes=[2, 2], strides=[1, 1], pad_type="valid")


@body()
def normalization(x):
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    x = mb.batch_norm(x=x, mean=zeros, variance=ones, gamma=ones, beta=zeros, epsilon=1e-4)
    x = mb.instance_norm(x=x, gamma=ones, beta=zeros)
    x = mb.layer_norm(x=x, axes=[-1], gamma=np.ones(8, np.float32), epsilon=1e-5)
    return mb.local_response_norm(x=mb.l2_norm(x=x), size=3)


@body((2, 16))
def linear(x):
    x = mb.linear(x=x, weight=weights(32, 16), bias=weights(32))
    return mb.matmul(x=x, y=weights(32, 8), transpose_y=False)


@body((2, 16))
def activations(x):
    for one in (mb.relu, mb.relu6, mb.sigmoid, mb.tanh, mb.silu, mb.softplus, mb.softsign, mb.erf):
        x = one(x=x)
    x = mb.leaky_relu(x=mb.elu(x=x, alpha=1.0), alpha=0.1)
    x = mb.clamped_relu(x=mb.thresholded_relu(x=x, alpha=0.0), alpha=0.1, beta=6.0)
    x = mb.linear_activation(x=mb.sigmoid_hard(x=x, alpha=0.2, beta=0.5), alpha=2.0, beta=1.0)
    return mb.gelu(x=mb.scaled_tanh(x=x, alpha=1.0, beta=1.0), mode="TANH_APPROXIMATION")


@body()
def channel_activations(x):
    x = mb.prelu(x=x, alpha=weights(4))
    return mb.softplus_parametric(x=x, alpha=np.ones(4, np.float32), beta=np.ones(4, np.float32))


@body((2, 16))
def elementwise(x):
    for one in (mb.abs, mb.exp, mb.sqrt, mb.square, mb.ceil, mb.floor, mb.round, mb.sign, mb.cos, mb.sin, mb.atan):
        x = one(x=x)
    x = mb.inverse(x=mb.rsqrt(x=mb.log(x=x, epsilon=1e-3), epsilon=1e-3), epsilon=1e-3)
    x = mb.clip(x=mb.threshold(x=x, alpha=0.5), alpha=0.0, beta=1.0)
    return mb.exp2(x=mb.cosh(x=mb.tan(x=x)))


@body((2, 16))
def arithmetic(x):
    y = mb.add(x=x, y=1.0)
    for one in (mb.sub, mb.mul, mb.real_div, mb.floor_div, mb.mod, mb.maximum, mb.minimum, mb.pow):
        y = one(x=y, y=x)
    return y


@body((2, 16))
def comparisons(x):
    y = mb.greater(x=x, y=0.5)
    y = mb.logical_and(x=y, y=mb.less_equal(x=x, y=2.0))
    y = mb.logical_or(x=y, y=mb.logical_xor(x=mb.equal(x=x, y=0.0), y=mb.not_equal(x=x, y=1.0)))
    return mb.select(cond=mb.logical_not(x=y), a=x, b=mb.cast(x=mb.less(x=x, y=0.0), dtype="fp32"))


@body((2, 16))
def reductions(x):
    found = [
        one(x=x, axes=[-1], keep_dims=True)
        for one in (mb.reduce_sum, mb.reduce_mean, mb.reduce_max, mb.reduce_min, mb.reduce_prod, mb.reduce_l1_norm,
                    mb.reduce_l2_norm, mb.reduce_log_sum_exp, mb.reduce_sum_square)
    ]  # fmt: skip
    return mb.concat(values=found, axis=1)


@body((2, 16))
def indices(x):
    return mb.cast(x=mb.add(x=mb.reduce_argmax(x=x, axis=1), y=mb.reduce_argmin(x=x, axis=1)), dtype="fp32")


@body((2, 16))
def sorting(x):
    values, places = mb.topk(x=x, k=3, axis=-1)
    return mb.add(x=values, y=mb.cast(x=mb.gather_along_axis(x=places, indices=places, axis=1), dtype="fp32"))


@body((2, 16))
def softmax_and_cumulation(x):
    return mb.cumsum(x=mb.softmax(x=x, axis=-1), axis=0, exclusive=False, reverse=True)


@body()
def shapes(x):
    x = mb.transpose(x=mb.reshape(x=x, shape=[1, 4, 64]), perm=[0, 2, 1])
    x = mb.squeeze(x=mb.expand_dims(x=x, axes=[1, 2]), axes=[1])
    x = mb.reverse(x=mb.flatten2d(x=x, axis=2), axes=[0])
    return mb.tile(x=x, reps=[2, 1])


@body()
def slices(x):
    x = mb.slice_by_index(
        x=x, begin=[0, 0, 1, 0], end=[1, 4, 8, 8], stride=[1, 2, 1, 1], end_mask=[True, False, False, True]
    )
    x = mb.slice_by_size(x=x, begin=[0, 0, 0, 0], size=[1, 2, 4, -1])
    return mb.pad(x=x, pad=[0, 0, 0, 0, 1, 1, 2, 2], mode="constant", constant_val=0.5)


@body()
def joining(x):
    a, b = mb.split(x=x, num_splits=2, axis=1)
    c = mb.split(x=x, split_sizes=[1, 3], axis=1)[1]
    return mb.concat(values=[mb.concat(values=[a, b], axis=1), c, x], axis=1)


@body((2, 16))
def stacking(x):
    return mb.stack(values=[x, mb.relu(x=x)], axis=0)


@body()
def blocks_of_space(x):
    x = mb.depth_to_space(x=mb.space_to_depth(x=x, block_size=2), block_size=2)
    x = mb.batch_to_space(
        x=mb.space_to_batch(x=x, block_shape=[2, 2], paddings=[[0, 0], [0, 0]]),
        block_shape=[2, 2],
        crops=[[0, 0], [0, 0]],
    )
    return mb.pixel_shuffle(x=x, upscale_factor=2)


@body()
def resizing(x):
    x = mb.upsample_nearest_neighbor(x=x, scale_factor_height=2, scale_factor_width=2)
    x = mb.upsample_bilinear(x=x, scale_factor_height=1.5, scale_factor_width=1.5, align_corners=False)
    x = mb.resize_bilinear(x=x, target_size_height=10, target_size_width=10, sampling_mode="DEFAULT")
    return mb.crop(
        x=mb.resize_nearest_neighbor(x=x, target_size_height=6, target_size_width=6),
        crop_height=[1, 1],
        crop_width=[1, 1],
    )


@body((4, 8))
def gathering(x):
    x = mb.gather(x=x, indices=np.array([0, 2, 1], np.int32), axis=0)
    return mb.gather_nd(x=x, indices=np.array([[0, 1], [2, 3]], np.int32))


@body((4, 8))
def scattering(x):
    x = mb.scatter(data=x, indices=np.array([0, 1], np.int32), updates=weights(2, 8), axis=0, mode="add")
    x = mb.scatter_nd(data=x, indices=np.array([[0, 1]], np.int32), updates=weights(1), mode="update")
    return mb.scatter_along_axis(data=x, indices=np.zeros((1, 8), np.int32), updates=weights(1, 8), axis=0, mode="add")


@body((3, 2, 8))
def recurrence(x):
    zeros = np.zeros((2, 4), np.float32)
    y, h, _ = mb.lstm(
        x=x,
        initial_h=zeros,
        initial_c=zeros,
        weight_ih=weights(16, 8),
        weight_hh=weights(16, 4),
        bias=weights(16),
        output_sequence=True,
    )
    g, _ = mb.gru(
        x=y, initial_h=h, weight_ih=weights(12, 4), weight_hh=weights(12, 4), bias=weights(12), output_sequence=True
    )
    return mb.rnn(
        x=g, initial_h=h, weight_ih=weights(4, 4), weight_hh=weights(4, 4), bias=weights(4), output_sequence=False
    )[0]


@body((1, 4, 8))
def multiplying_by_words(x):
    return mb.einsum(values=(x, weights(8, 4, 3)), equation="abc,cbd->abd")


@body((4, 8))
def filling(x):
    x = mb.add(x=x, y=mb.fill(shape=[4, 8], value=0.5))
    return mb.add(x=x, y=mb.cast(x=mb.one_hot(indices=np.zeros(4, np.int32), one_hot_vector_size=8), dtype="fp32"))


@body((1, 4, 8, 8), "iOS17")
def normalization_by_half_precision(x):
    """Parameters of another type than the input, and an epsilon of another than the parameters."""
    return mb.batch_norm(x=x, mean=np.zeros(4, np.float16), variance=np.ones(4, np.float16))


@body((4, 8), "iOS16")
def filling_an_unknown_shape(x):
    """A result of any number of dimensions, for which coremltools lists one."""
    found = mb.non_zero(x=mb.slice_by_index(x=x, begin=[0, 0], end=[1, 8], squeeze_mask=[True, False]))
    return mb.fill(shape=mb.reshape(x=found, shape=[-1]), value=1.0)


@body((4, 8), "iOS16")
def filling_alike(x):
    return mb.add(x=x, y=mb.fill_like(ref_tensor=x, value=1.0))


@body((4, 8))
def randomness(x):
    x = mb.add(x=x, y=mb.random_normal(shape=[4, 8], mean=0.0, stddev=1.0, seed=3))
    x = mb.add(x=x, y=mb.random_uniform(shape=[4, 8], low=0.0, high=1.0, seed=3))
    return mb.mul(x=x, y=mb.random_bernoulli(shape=[4, 8], prob=0.5, seed=3))


@body((4, 8))
def conditional(x):
    pred = mb.greater(x=mb.squeeze(x=mb.slice_by_size(x=x, begin=[0, 0], size=[1, 1]), axes=[0, 1]), y=0.0)
    return mb.cond(pred=pred, _true_fn=lambda: mb.relu(x=x), _false_fn=lambda: mb.add(x=x, y=1.0))


@body((4, 8))
def loop(x):
    count = mb.const(val=np.int32(0))
    found = mb.while_loop(
        _cond=lambda i, _: mb.less(x=i, y=3),
        _body=lambda i, one: (mb.add(x=i, y=1), mb.mul(x=one, y=2.0)),
        loop_vars=(count, x),
    )
    return found[1]


@body((4, 8))
def loop_of_conditionals(x):
    def step(one):
        pred = mb.less(x=mb.reduce_sum(x=one), y=5.0)
        return mb.cond(pred=pred, _true_fn=lambda: mb.add(x=one, y=0.5), _false_fn=lambda: mb.add(x=one, y=1.0))

    return mb.while_loop(_cond=lambda one: mb.less(x=mb.reduce_sum(x=one), y=100.0), _body=step, loop_vars=(x,))


@body((4, 8))
def lists(x):
    kept = mb.make_list(init_length=4, dynamic_length=False, elem_shape=(8,), dtype="fp32")
    kept = mb.list_scatter(ls=kept, indices=np.arange(4, dtype=np.int32), value=x)
    kept = mb.list_write(ls=kept, index=1, value=mb.list_read(ls=kept, index=0))
    return mb.list_gather(ls=kept, indices=np.array([1, 0], np.int32))


def _least(score):
    """The threshold of non_maximum_suppression, which iOS17 has no more."""
    from coremltools.converters.mil.mil.block import curr_opset_version

    return {"score_threshold": score} if curr_opset_version() < ct.target.iOS17 else {}


@body((4, 8))
def suppression(x):
    boxes = mb.expand_dims(x=mb.slice_by_size(x=x, begin=[0, 0], size=[4, 4]), axes=[0])
    scores = mb.expand_dims(x=mb.slice_by_size(x=x, begin=[0, 4], size=[4, 2]), axes=[0])
    return mb.non_maximum_suppression(boxes=boxes, scores=scores, iou_threshold=0.5, max_boxes=2, **_least(0.1))[0]


@body((4, 8))
def shape_arithmetic(x):
    rows = mb.gather(x=mb.shape(x=x), indices=0, axis=0)
    return mb.reshape(
        x=x, shape=mb.concat(values=[mb.expand_dims(x=rows, axes=[0]), np.array([2, 4], np.int32)], axis=0)
    )


@body((4, 8))
def bands(x):
    x = mb.band_part(x=x, lower=1, upper=-1)
    return mb.sliding_windows(x=x, axis=1, size=4, stride=2)


@body((4, 8))
def finding(x):
    return mb.cast(
        x=mb.non_zero(x=mb.cast(x=mb.range_1d(start=0, end=4, step=1), dtype="fp32")), dtype="fp32"
    ) and mb.argsort(x=x, axis=1)


@body((4, 8), "iOS16")
def small_integers(x):
    return mb.gather(x=x, indices=np.array([0, 1], np.int32), axis=0, batch_dims=0)


@body((4, 8), "iOS17")
def quantization(x):
    q = mb.quantize(input=x, scale=np.float32(0.1), zero_point=np.int8(3), output_dtype="int8")
    return mb.dequantize(input=q, scale=np.float32(0.1), zero_point=np.int8(3))


@body((1, 2, 4, 8), "iOS18")
def attention(x):
    return mb.scaled_dot_product_attention(query=x, key=x, value=x)


def program(name, target):
    """A MIL Program with one of the bodies."""
    shape, make, _ = BODIES[name]

    @mb.program(input_specs=[mb.TensorSpec(shape=shape)], opset_version=TARGETS[target])
    def main(x):
        return make(x)

    return main


def convert(prog, target, **options):
    """A MLModel of a MIL Program."""
    return ct.convert(
        prog, minimum_deployment_target=TARGETS[target], convert_to="mlprogram", skip_model_load=True, **options
    )


# -------------------------------------------------------------------------------------------------------- interfaces


def _image(layout, channels, target, flexible=None):
    @mb.program(input_specs=[mb.TensorSpec(shape=(1, channels, 8, 8))], opset_version=TARGETS[target])
    def main(x):
        return mb.relu(x=x)

    return convert(
        main, target, inputs=[ct.ImageType(name="x", shape=flexible or (1, channels, 8, 8), color_layout=layout)]
    )


def _flexible(shape, target, **options):
    symbols = [None if isinstance(n, int) else n for n in shape]
    from coremltools.converters.mil.mil import get_new_symbol

    sizes = [get_new_symbol() if size is not None else n for n, size in zip(shape, symbols, strict=True)]

    @mb.program(input_specs=[mb.TensorSpec(shape=sizes)], opset_version=TARGETS[target])
    def main(x):
        return mb.mul(x=mb.relu(x=x), y=2.0)

    return convert(
        main,
        target,
        inputs=[ct.TensorType(name="x", shape=options.get("given", shape), default_value=options.get("default"))],
    )


def _types(target, dtype):
    @mb.program(input_specs=[mb.TensorSpec(shape=(2, 3), dtype=getattr(types, dtype))], opset_version=TARGETS[target])
    def main(x):
        return mb.mul(x=x, y=x)

    return convert(main, target)


def _classifier(target, labels):
    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 4))], opset_version=TARGETS[target])
    def main(x):
        return mb.softmax(x=mb.linear(x=x, weight=weights(3, 4)), axis=-1)

    return convert(main, target, classifier_config=ct.ClassifierConfig(labels))


def _state():
    @mb.program(
        input_specs=[mb.TensorSpec(shape=(2, 3), dtype=types.fp16), mb.StateTensorSpec(shape=(2, 3), dtype=types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def main(x, kept):
        read = mb.read_state(input=kept)
        return mb.coreml_update_state(state=kept, value=mb.add(x=read, y=x))

    return convert(main, "iOS18")


def _functions():
    paths = []
    for number in range(2):

        @mb.program(input_specs=[mb.TensorSpec(shape=(2, 16))], opset_version=ct.target.iOS18)
        def main(x):
            return mb.linear(x=x, weight=np.full((8, 16), number + 0.5, np.float32))  # noqa: B023 - called right here

        paths.append(tempfile.mkdtemp() + f"/f{number}.mlpackage")
        convert(main, "iOS18").save(paths[-1])
    description = ct.utils.MultiFunctionDescriptor()
    for number, path in enumerate(paths):
        description.add_function(path, "main", f"f{number}")
    description.default_function_name = "f1"
    result = tempfile.mkdtemp() + "/both.mlpackage"
    ct.utils.save_multifunction(description, result)
    return ct.models.MLModel(result, skip_model_load=True)


def interfaces():
    """Yield (name, maker) of models with every kind of input, output and state."""
    for target in MOST:
        yield f"RGB {target}", lambda t=target: _image(ct.colorlayout.RGB, 3, t)
        yield f"gray {target}", lambda t=target: _image(ct.colorlayout.GRAYSCALE, 1, t)
        yield f"float32 {target}", lambda t=target: _types(t, "fp32")
        yield f"int32 {target}", lambda t=target: _types(t, "int32")
        yield f"words {target}", lambda t=target: _classifier(t, ["a", "b", "c"])
        yield f"numbers {target}", lambda t=target: _classifier(t, [10, 20, 30])
        some = ct.RangeDim(1, 10, default=3)
        yield f"range {target}", lambda t=target, some=some: _flexible((some, 4), t)
        several = ct.EnumeratedShapes(shapes=[[2, 4], [3, 4]], default=[2, 4])
        yield (
            f"enumerated {target}",
            lambda t=target, some=some, several=several: _flexible((some, 4), t, given=several),
        )
        yield f"default {target}", lambda t=target: _flexible((2, 4), t, default=np.ones((2, 4), np.float32))
    for target in MOST[1:]:
        yield f"gray16 {target}", lambda t=target: _image(ct.colorlayout.GRAYSCALE_FLOAT16, 1, t)
        yield f"float16 {target}", lambda t=target: _types(t, "fp16")
    yield "state", _state
    yield "functions", _functions


# -------------------------------------------------------------------------------------------------------- compressed


def compressed():
    """Yield (name, maker) of a convolution compressed in every way that coremltools has."""
    import coremltools.optimize as cto

    op = cto.coreml
    configs = {
        "int8": (op.linear_quantize_weights, op.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=10), "iOS16"),
        "uint8": (op.linear_quantize_weights, op.OpLinearQuantizerConfig(mode="linear", dtype="uint8", weight_threshold=10), "iOS16"),
        "int4 blocks": (op.linear_quantize_weights, op.OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=4, weight_threshold=10), "iOS18"),
        "pal4": (op.palettize_weights, op.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=10), "iOS16"),
        "pal6": (op.palettize_weights, op.OpPalettizerConfig(mode="uniform", nbits=6, weight_threshold=10), "iOS16"),
        "pal2 groups": (op.palettize_weights, op.OpPalettizerConfig(mode="uniform", nbits=2, granularity="per_grouped_channel", group_size=4, weight_threshold=10), "iOS18"),
        "sparse": (op.prune_weights, op.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=10), "iOS16"),
        "threshold": (op.prune_weights, op.OpThresholdPrunerConfig(threshold=1.0, weight_threshold=10), "iOS16"),
    }  # fmt: skip
    for target in list(TARGETS)[1:]:
        for name, (run, config, first) in configs.items():
            if target >= first:
                for body_name in ("convolution", "linear") if target == "iOS18" else ("convolution",):
                    yield (
                        f"{name} {body_name} {target}",
                        lambda t=target, r=run, c=config, b=body_name: r(
                            convert(program(b, t), t), op.OptimizationConfig(global_config=c)
                        ),
                    )


def makers():
    """Return {name: maker of an MLModel} of all."""
    found = {
        f"{name} {target}": lambda n=name, t=target: convert(program(n, t), t)
        for name, (_, _, first) in BODIES.items()
        for target in MOST
        if target >= first
    }
    return {**found, **dict(interfaces()), **dict(compressed())}
