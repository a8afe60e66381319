"""Compressed weights: every constexpr operation, made by coremltools.optimize or by the MIL builder.

No case uses k-means (it needs scikit-learn): palettes are uniform, or given by hand.
"""

import inspect
import os

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

import make_programs
import packages
import record


def base_model(target, half=False):
    """Two linear layers, 32 x 48 and 16 x 32, and a convolution of 8 x 16 x 3."""
    rng = np.random.default_rng(61)
    kind = np.float16 if half else np.float32

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 4, 48))], opset_version=target)
    def program(x):
        x = mb.cast(x=x, dtype="fp16") if half else x
        for name, shape in (("first", (32, 48)), ("second", (16, 32))):
            weight = mb.const(val=rng.standard_normal(shape).astype(kind), name=f"{name}_weight")
            x = mb.linear(x=x, weight=weight, bias=np.zeros(shape[0], kind), name=name)
        kernel = mb.const(val=rng.standard_normal((8, 4, 3)).astype(kind), name="conv_weight")
        x = mb.conv(x=x, weight=kernel, pad_type="valid", name="conv")
        return mb.cast(x=x, dtype="fp32", name="out")

    return packages.convert(program, target, half=half)


def resolve(var):
    """The value of a PyMIL variable, constexpr operations decompressed by coremltools' own code, recursively."""
    op = var.op
    if not op.op_type.startswith("constexpr_"):
        return var.val
    inputs = {name: resolve(value) for name, value in op.inputs.items() if value is not None}
    if op.op_type == "constexpr_cast":
        return inputs["source_val"].astype(np.float32)
    wanted = inspect.signature(op.decompress).parameters
    result = op.decompress(**{name: inputs.get(name) for name in wanted})
    return result[op.outputs.index(var)] if len(op.outputs) > 1 else result


def dense_values(path):
    """Decompresses each weight that no other constexpr consumes; returns rows for expected.json, and arrays."""
    spec = record.read_spec(path)
    weights = os.path.join(os.path.dirname(record.find_spec(path)), "weights")
    program = record.milproto.load(spec, specification_version=spec.specificationVersion, file_weights_dir=weights)
    rows, arrays = [], {}
    for name, function in program.functions.items():
        for op in function.operations:
            consumers = [child for out in op.outputs for child in out.child_ops]
            inner = any(child.op_type.startswith("constexpr_") for child in consumers)
            if not op.op_type.startswith("constexpr_") or inner:
                continue
            var = op.outputs[0]
            array = resolve(var).astype(types.nptype_from_builtin(var.dtype)).reshape(var.shape)
            dtype = {"float16": "FLOAT16", "float32": "FLOAT32", "int8": "INT8", "uint8": "UINT8"}[array.dtype.name]
            key = f"d{len(arrays)}"
            arrays[key] = array
            rows.append(
                {
                    "function": name,
                    "op": op.op_type,
                    "output": var.name,
                    "dtype": dtype,
                    "shape": list(array.shape),
                    "npz": key,
                }
            )
    return rows, arrays


def finish(model, folder, note, compiled=None):
    """Saves a compressed model and records stored parts and dense values."""
    path = packages.save(model, folder)
    make_programs.record_package(path, folder, note, compiled, dense=dense_values(path))


def compressed_case(target, note, *steps, half=False, compiled=None):
    """Returns the maker of a case: steps of (function, op config) applied in turn, later ones jointly."""

    def make(folder):
        model = base_model(target, half)
        for i, (function, config) in enumerate(steps):
            options = {"joint_compression": True} if i else {}
            model = function(model, cto.OptimizationConfig(global_config=config), **options)
        finish(model, folder, note, compiled)

    return make


def quantize(mode, dtype, granularity="per_channel", **options):
    """A linear quantization step."""
    config = cto.OpLinearQuantizerConfig(mode=mode, dtype=dtype, granularity=granularity, weight_threshold=0, **options)
    return cto.linear_quantize_weights, config


def palettize(nbits, granularity="per_tensor", **options):
    """A palettization step, uniform palette."""
    config = cto.OpPalettizerConfig(mode="uniform", nbits=nbits, granularity=granularity, weight_threshold=0, **options)
    return cto.palettize_weights, config


def prune(sparsity=0.6):
    """A pruning step."""
    return cto.prune_weights, cto.OpMagnitudePrunerConfig(target_sparsity=sparsity, weight_threshold=0)


def make_by_hand(folder):
    """iOS16 operations with odd parts: cast, a 1-bit and an 8-bit palette, an odd-sized mask, per-axis zero points."""
    rng = np.random.default_rng(62)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 13))], opset_version=ct.target.iOS16)
    def program(x):
        cast = mb.constexpr_cast(
            source_val=rng.standard_normal(13).astype(np.float16), output_dtype="fp32", name="cast_weight"
        )
        lut1 = mb.constexpr_lut_to_dense(
            indices=rng.integers(0, 256, 2).astype(np.uint8) & np.array([255, 31], np.uint8),
            lut=np.array([-1.5, 2.5], np.float32),
            shape=np.array([1, 13], np.uint32),
            name="palette_1bit",
        )
        lut8 = mb.constexpr_lut_to_dense(
            indices=rng.integers(0, 256, 13).astype(np.uint8),
            lut=rng.standard_normal(256).astype(np.float32),
            shape=np.array([1, 13], np.uint32),
            name="palette_8bit",
        )
        mask = np.array([0b10100101, 0b00010011], np.uint8)
        sparse = mb.constexpr_sparse_to_dense(
            nonzero_data=rng.standard_normal(7).astype(np.float32),
            mask=mask,
            shape=np.array([1, 13], np.uint32),
            name="sparse_odd",
        )
        affine = mb.constexpr_affine_dequantize(
            quantized_data=rng.integers(-128, 128, (2, 13)).astype(np.int8),
            axis=1,
            scale=np.linspace(0.1, 1.3, 13).astype(np.float32),
            zero_point=np.arange(-6, 7).astype(np.int8),
            name="affine_axis1",
        )
        for i, part in enumerate((cast, lut1, lut8, sparse)):
            x = mb.add(x=x, y=part, name=f"sum{i}")
        return mb.add(x=affine, y=x, name="out")

    note = "cast, palettes of 1 and 8 bits, a mask of 13 elements, zero points along axis 1; by the MIL builder"
    finish(packages.convert(program, ct.target.iOS16), folder, note, "1.0")


def make_vectors(folder):
    """iOS18 operations that coremltools.optimize makes with k-means only: vector palettes, grouped; 3-bit palette."""
    rng = np.random.default_rng(63)

    def indices(nbits, *shape):
        return rng.integers(0, 1 << nbits, shape).astype(
            types.nptype_from_builtin(types.string_to_builtin(f"uint{nbits}"))
        )

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 24))], opset_version=ct.target.iOS18)
    def program(x):
        parts = {
            "vector_axis0": (indices(2, 3, 24), (1, 1, 4, 2), 0),
            "vector_axis1": (indices(4, 6, 6), (1, 1, 16, 4), 1),
            "grouped_vector": (indices(3, 6, 12), (3, 1, 8, 2), 1),
            "grouped_scalar": (indices(3, 4, 24), (2, 4, 8, 1), None),
            "one_bit": (indices(1, 5, 24), (1, 1, 2, 1), None),
        }
        total = x
        for name, (index, shape, axis) in parts.items():
            lut = rng.standard_normal(shape).astype(np.float32)
            options = {} if axis is None else {"vector_axis": np.int32(axis)}
            weight = mb.constexpr_lut_to_dense(indices=index, lut=lut, name=name, **options)
            total = mb.add(x=total, y=mb.reduce_sum(x=weight, axes=[0], keep_dims=True), name=f"with_{name}")
        mask = (np.arange(2 * 24) % 3 == 0).reshape(2, 24)
        bits = mask.astype(types.nptype_from_builtin(types.uint1))
        mask_out, data_out = mb.constexpr_lut_to_sparse(
            indices_mask=bits,
            indices_nonzero_data=indices(2, int(mask.sum())),
            lut=rng.standard_normal((1, 1, 4, 1)).astype(np.float32),
            name="sparse_palette",
        )
        weight = mb.constexpr_sparse_to_dense(nonzero_data=data_out, mask=mask_out, name="sparse_palette_dense")
        return mb.add(x=total, y=mb.reduce_sum(x=weight, axes=[0], keep_dims=True), name="out")

    note = "vector palettes along axis 0 and 1, grouped palettes, 1-bit indices, lut_to_sparse; by the MIL builder"
    finish(packages.convert(program, ct.target.iOS18), folder, note, "1.3")


OLD, NEW = ct.target.iOS16, ct.target.iOS18
CASES = {
    "quant_int8": compressed_case(
        OLD, "int8 per channel, symmetric", quantize("linear_symmetric", "int8"), compiled="1.0"
    ),
    "quant_uint8": compressed_case(
        OLD, "uint8 per tensor, zero point", quantize("linear", "uint8", "per_tensor"), half=True
    ),
    "quant_int4_block": compressed_case(
        NEW,
        "int4, blocks of 16",
        quantize("linear_symmetric", "int4", "per_block", block_size=16),
        half=True,
        compiled="1.3",
    ),
    "quant_uint4_block": compressed_case(
        NEW, "uint4 with offset, blocks of 8", quantize("linear", "uint4", "per_block", block_size=8)
    ),
    "quant_int8_offset": compressed_case(NEW, "int8 with offset, fp16 scale", quantize("linear", "int8"), half=True),
    "palette_4bit": compressed_case(OLD, "4-bit palette", palettize(4), compiled="1.0"),
    "palette_6bit": compressed_case(OLD, "6-bit palette, fp16", palettize(6), half=True),
    "palette_2bit": compressed_case(OLD, "2-bit palette", palettize(2)),
    "palette_grouped": compressed_case(
        NEW, "3-bit palette per group of 8 channels", palettize(3, "per_grouped_channel", group_size=8)
    ),
    "palette_scaled": compressed_case(
        NEW,
        "4-bit palette per group of 4, with per-channel scale",
        palettize(4, "per_grouped_channel", group_size=4, enable_per_channel_scale=True),
        half=True,
        compiled="1.3",
    ),
    "palette_quantized": compressed_case(
        NEW, "6-bit palette whose entries are int8", palettize(6), quantize("linear_symmetric", "int8", "per_tensor")
    ),
    "sparse": compressed_case(OLD, "60 % zeros, bit mask in uint8", prune(), compiled="1.0"),
    "sparse_uint1": compressed_case(NEW, "60 % zeros, bit mask in uint1", prune(), half=True),
    "sparse_palette": compressed_case(NEW, "pruned, then 4-bit palette", prune(), palettize(4), compiled="1.3"),
    "sparse_quantized": compressed_case(NEW, "pruned, then int8", prune(), quantize("linear_symmetric", "int8")),
    "constexpr_ios16": make_by_hand,
    "constexpr_ios18": make_vectors,
}
