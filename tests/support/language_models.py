"""Transformer blocks with caches, built by coremltools' MIL builder: what language models look like, small."""

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

DIM = 32


def transformer(
    path, layers=4, length=6, states=False, half=False, target=ct.target.iOS18, seed=1, shared_state=False, dim=DIM
):
    """Save a network of `layers` blocks as a package; return its path.

    A bool mask and a float scalar live through all of it. With `states`, each block reads and writes a cache of its own
    ("cache0", ...), or all the same one.

    Args:
        length: of the sequence.
        half: compute in float16, also inputs and outputs where `target` has that.
    """
    rng = np.random.default_rng(seed)
    is_half_port = half and target >= ct.target.iOS16
    number = np.float16 if is_half_port else np.float32
    kind = types.fp16 if is_half_port else types.fp32

    def weight(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(number)

    caches = [f"cache{i}" for i in range(1 if shared_state else layers)] if states else []
    specs = [mb.TensorSpec((1, length, dim), dtype=kind), mb.TensorSpec((1, 1, 1), dtype=types.int32)]
    specs += [mb.StateTensorSpec((1, 1, dim), dtype=types.fp16) for _ in caches]

    def network(x, position, *held):
        angle = mb.mul(x=mb.cast(x=position, dtype="fp16" if is_half_port else "fp32"), y=number(0.1), name="angle")
        mask = mb.greater(x=x, y=number(0), name="mask")
        for i in range(layers):
            h = mb.layer_norm(x=x, axes=[-1], gamma=weight(dim), name=f"layer{i}_norm")
            q = mb.linear(x=h, weight=weight(dim, dim), name=f"layer{i}_q")
            k = mb.linear(x=h, weight=weight(dim, dim), name=f"layer{i}_k")
            if held:
                cache = held[0 if shared_state else i]
                old = mb.read_state(input=cache, name=f"layer{i}_old")
                k = mb.add(x=k, y=old if is_half_port else mb.cast(x=old, dtype="fp32"), name=f"layer{i}_kept")
                mean = mb.reduce_mean(x=k, axes=[1], keep_dims=True)
                mb.coreml_update_state(state=cache, value=mean if is_half_port else mb.cast(x=mean, dtype="fp16"))
            scores = mb.matmul(x=q, y=k, transpose_y=True, name=f"layer{i}_scores")
            attention = mb.softmax(x=mb.add(x=scores, y=angle), name=f"layer{i}_attention")
            v = mb.matmul(x=attention, y=h, name=f"layer{i}_v")
            up = mb.relu(x=mb.linear(x=v, weight=weight(2 * dim, dim), name=f"layer{i}_up"))
            down = mb.linear(x=up, weight=weight(dim, 2 * dim), name=f"layer{i}_down")
            x = mb.add(x=x, y=mb.select(cond=mask, a=down, b=v), name=f"layer{i}_out")
        return mb.linear(x=x, weight=weight(2 * dim, dim), name="logits")

    names = ", ".join(("x", "position", *caches))
    body = eval(f"lambda {names}: network({names})", {"network": network})  # coremltools reads the names of parameters
    program = mb.program(input_specs=specs, opset_version=target)(body)
    precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    model = ct.convert(program, minimum_deployment_target=target, compute_precision=precision, skip_model_load=True)
    model.save(str(path))
    return path
