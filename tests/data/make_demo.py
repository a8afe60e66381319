"""The model that `make demo` shows: examples/demo.mlpackage, a transformer encoder of four small layers."""

import os

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

import packages

WIDTH, HEADS, TOKENS, LABELS = 48, 4, 16, 96


def make_demo(folder):
    """Writes demo.mlpackage: fp16 weights, an fp32 output layer, a description."""
    rng = np.random.default_rng(2026)

    def weight(name, *shape, kind=np.float16):
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        return mb.const(val=(rng.standard_normal(shape) * scale).astype(kind), name=name)

    def linear(x, name, width, depth):
        return mb.linear(
            x=x, weight=weight(f"{name}_weight", width, depth), bias=weight(f"{name}_bias", width), name=name
        )

    def norm(x, name):
        gamma = mb.const(val=(1 + 0.02 * rng.standard_normal(WIDTH)).astype(np.float16), name=f"{name}_weight")
        return mb.layer_norm(
            x=x, axes=[-1], gamma=gamma, beta=weight(f"{name}_bias", WIDTH), epsilon=np.float16(1e-5), name=name
        )

    def attention(x, name):
        heads = {}
        for part in ("query", "key", "value"):
            split = mb.reshape(x=linear(x, f"{name}_{part}", WIDTH, WIDTH), shape=[1, TOKENS, HEADS, WIDTH // HEADS])
            heads[part] = mb.transpose(x=split, perm=[0, 2, 1, 3])
        scores = mb.matmul(x=heads["query"], y=heads["key"], transpose_y=True)
        scores = mb.mul(x=scores, y=np.float16((WIDTH // HEADS) ** -0.5))
        mixed = mb.matmul(x=mb.softmax(x=scores, axis=-1), y=heads["value"])
        mixed = mb.reshape(x=mb.transpose(x=mixed, perm=[0, 2, 1, 3]), shape=[1, TOKENS, WIDTH])
        return linear(mixed, f"{name}_out", WIDTH, WIDTH)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, TOKENS), dtype=types.int32)], opset_version=ct.target.iOS17)
    def program(tokens):
        x = mb.gather(x=weight("embedding_weight", LABELS, WIDTH), indices=tokens, axis=0, name="embedding")
        for i in range(4):
            layer = f"layers_{i}"
            x = mb.add(x=x, y=attention(norm(x, f"{layer}_norm1"), f"{layer}_attention"))
            hidden = mb.gelu(
                x=linear(norm(x, f"{layer}_norm2"), f"{layer}_mlp_up", 2 * WIDTH, WIDTH), mode="TANH_APPROXIMATION"
            )
            x = mb.add(x=x, y=linear(hidden, f"{layer}_mlp_down", WIDTH, 2 * WIDTH))
        x = mb.cast(x=norm(x, "final_norm"), dtype="fp32")
        head = weight("head_weight", LABELS, WIDTH, kind=np.float32)
        return mb.linear(x=x, weight=head, bias=weight("head_bias", LABELS, kind=np.float32), name="logits")

    model = packages.convert(program, ct.target.iOS17, half=True)
    model.author, model.version, model.license = "the milblob authors", "1.0", "CC0"
    model.short_description = "Four transformer layers with random weights, to show what milblob shows."
    model.input_description["tokens"] = "16 token numbers below 96"
    model.output_description["logits"] = "a score for each label, at each token"
    os.makedirs(folder, exist_ok=True)
    packages.save(model, folder, "demo.mlpackage")
