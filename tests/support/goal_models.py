"""A convolutional network, an encoder, and a language model whose head is its embedding: where goals choose recipes."""

import numpy as np

from onnx_models import save

VOCABULARY, WIDTH, COUNT = 512, 96, 24


def _mb():
    from coremltools.converters.mil.mil import Builder

    return Builder


def _linear(rng, x, outputs, inputs):
    return _mb().linear(x=x, weight=(rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32))


def _norm(rng, x):
    """Channels differ in size, as they do in trained models."""
    gamma = np.exp(rng.standard_normal(WIDTH) / 2).astype(np.float32)
    return _mb().layer_norm(x=x, axes=[-1], gamma=gamma, beta=np.zeros(WIDTH, np.float32), epsilon=1e-5)


def _attention(rng, x, count, mask=None):
    mb, heads = _mb(), 4

    def split(value):
        shape = [1, count, heads, WIDTH // heads]
        return mb.transpose(x=mb.reshape(x=value, shape=shape), perm=[0, 2, 1, 3])

    query, key, value = (split(_linear(rng, x, WIDTH, WIDTH)) for _ in range(3))
    score = mb.mul(x=mb.matmul(x=query, y=key, transpose_y=True), y=np.float32(1 / np.sqrt(WIDTH // heads)))
    score = score if mask is None else mb.add(x=score, y=mask)
    mixed = mb.transpose(x=mb.matmul(x=mb.softmax(x=score, axis=-1), y=value), perm=[0, 2, 1, 3])
    return _linear(rng, mb.reshape(x=mixed, shape=[1, count, WIDTH]), WIDTH, WIDTH)


def _feed_forward(rng, x):
    return _linear(rng, _mb().gelu(x=_linear(rng, x, 4 * WIDTH, WIDTH)), WIDTH, 4 * WIDTH)


def save_gpt(path, layers=4):
    """The embedding and the head are one constant that two operations read."""
    rng, mb = np.random.default_rng(0), _mb()
    table = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    places = (rng.standard_normal((COUNT, WIDTH)) / 10).astype(np.float32)
    mask = np.triu(np.full((COUNT, COUNT), -1e9, np.float32), 1)

    def build(tokens):
        tied = mb.const(val=table, name="tied")
        x = mb.add(x=mb.gather(x=tied, indices=tokens, axis=0), y=places)
        for _ in range(layers):
            x = mb.add(x=x, y=_attention(rng, _norm(rng, x), COUNT, mask))
            x = mb.add(x=x, y=_feed_forward(rng, _norm(rng, x)))
        return mb.linear(x=_norm(rng, x), weight=tied, name="logits")

    return save(path, build, {"tokens": np.zeros((1, COUNT), np.int32)}, opset="iOS18")


def save_encoder(path, layers=4):
    """Normalized after each sum; the mean of the places is classified."""
    rng, mb = np.random.default_rng(0), _mb()

    def build(x):
        x = _linear(rng, x, WIDTH, 48)
        for _ in range(layers):
            x = _norm(rng, mb.add(x=x, y=_attention(rng, x, COUNT)))
            x = _norm(rng, mb.add(x=x, y=_feed_forward(rng, x)))
        return mb.relu(x=_linear(rng, mb.reduce_mean(x=x, axes=[1]), 100, WIDTH), name="y")

    return save(path, build, {"x": np.zeros((1, COUNT, 48), np.float32)}, opset="iOS18")


def save_cnn(path):
    """Residual; half of its bytes are one weight."""
    rng, mb = np.random.default_rng(0), _mb()

    def conv(x, outputs, inputs, size=3, stride=1):
        weight = rng.standard_normal((outputs, inputs, size, size)) * np.sqrt(2 / (inputs * size * size))
        weight = (weight * np.exp(rng.standard_normal((outputs, 1, 1, 1)) / 2)).astype(np.float32)
        return mb.conv(x=x, weight=weight, strides=[stride, stride], pad_type="same")

    def build(x):
        x, inputs = mb.relu(x=conv(x, 32, 8)), 32
        for outputs in (32, 64, 128):
            stride = 1 if outputs == inputs else 2
            y = conv(mb.relu(x=conv(x, outputs, inputs, 3, stride)), outputs, outputs)
            x = x if outputs == inputs else conv(x, outputs, inputs, 1, stride)
            x, inputs = mb.relu(x=mb.add(x=x, y=y)), outputs
        return mb.relu(x=_linear(rng, mb.reduce_mean(x=x, axes=[2, 3]), 200, 128), name="y")

    return save(path, build, {"x": np.zeros((1, 8, 24, 24), np.float32)}, opset="iOS18")


SAVE = {"gpt": save_gpt, "encoder": save_encoder, "cnn": save_cnn}


def make_inputs(kind, runs, seed):
    """Inputs for several runs: tokens that are frequent and rare, channels that differ in size."""
    rng = np.random.default_rng(seed)
    if kind == "gpt":
        return {"tokens": (rng.zipf(1.3, (runs, 1, COUNT)) % VOCABULARY).astype(np.int32)}
    shape, sizes = ((1, COUNT, 48), (48,)) if kind == "encoder" else ((1, 8, 24, 24), (8, 1, 1))
    return {"x": (rng.standard_normal((runs, *shape)) * np.exp(rng.standard_normal(sizes) / 2)).astype(np.float32)}
