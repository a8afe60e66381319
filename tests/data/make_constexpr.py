"""Every constexpr operation with every combination of dtypes and layouts that coremltools' MIL builder accepts, and every
scheme of coremltools.optimize that runs here: many small weights in one package per opset."""

import itertools
import json
import os

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types

import make_compressed
import packages

NBITS = (1, 2, 3, 4, 6, 8)
FLOATS = ("fp16", "fp32")


def numpy_dtype(name):
    """coremltools' NumPy dtype of a MIL dtype by name; sub-byte ones carry metadata that the builder looks at."""
    return types.nptype_from_builtin(types.string_to_builtin(name))


def numbers(rng, dtype, shape):
    """Random elements of a MIL dtype: integers over their whole range, floats around 0."""
    if dtype.startswith("fp"):
        return rng.standard_normal(shape).astype(numpy_dtype(dtype))
    nbits = int(dtype.lstrip("uint"))
    low = 0 if dtype.startswith("u") else -(1 << nbits - 1)
    return rng.integers(low, low + (1 << nbits), shape).astype(numpy_dtype(dtype))


def package_of(target, makers):
    """Converts a program that has each weight of {name: function of the name}. Nothing reads them, to keep it small."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(1,))], opset_version=target)
    def program(x):
        for name, make in makers.items():
            make(name)
        return mb.identity(x=x, name="out")

    return packages.convert(program, target)


def pack_bits(values, nbits):
    """Packs elements into uint8, least significant bit first."""
    bits = values.reshape(-1, 1).astype(np.uint8) >> np.arange(nbits, dtype=np.uint8) & 1
    return np.packbits(bits.reshape(-1), bitorder="little")


# ---------------------------------------------------------------------------------------------------------------- iOS16


def makers_ios16():
    """{name: maker} of the first generation."""
    rng = np.random.default_rng(71)
    makers = {}
    layouts = itertools.cycle(
        [((5, 7), 0, "", ""), ((5, 7), 0, "v", "v"), ((4, 3, 5), 1, "v", ""), ((4, 3, 5), -1, "", "v"), ((13,), 0, "v", "v"),
         ((2, 3, 2, 4), 2, "v", "v"), ((3, 11), -1, "v", "v")]
    )  # fmt: skip

    def affine(data, scale, zero, layout):
        shape, axis, scale_rank, zero_rank = layout

        def make(name):
            size = shape[axis]
            return mb.constexpr_affine_dequantize(
                quantized_data=numbers(rng, data, shape),
                zero_point=numbers(rng, zero, (size,) if zero_rank else ()),
                scale=numbers(rng, scale, (size,) if scale_rank else ()),
                axis=np.int32(axis),
                name=name,
            )

        return make

    for data, scale, zero in itertools.product(("int8", "uint8"), FLOATS, ("int8", "uint8", "fp32")):
        if zero in (data, "fp32"):
            for _ in range(4):
                layout = next(layouts)
                ranks = (layout[2] or "s") + (layout[3] or "s")
                name = f"affine_{data}_{scale}_{zero}_{len(layout[0])}d_axis{layout[1] % len(layout[0])}_{ranks}"
                makers[name] = affine(data, scale, zero, layout)

    shapes = itertools.cycle([(13,), (3, 7), (2, 5, 3), (1, 4, 2, 3), (64,), (5, 40)])

    def lut(nbits, dtype, shape):
        return lambda name: mb.constexpr_lut_to_dense(
            indices=pack_bits(rng.integers(0, 1 << nbits, int(np.prod(shape))), nbits),
            lut=numbers(rng, dtype, (1 << nbits,)),
            shape=np.array(shape, np.uint32),
            name=name,
        )

    for nbits, dtype in itertools.product((1, 2, 4, 6, 8), ("int8", "uint8", "fp16", "fp32")):
        makers[f"lut_{nbits}bit_{dtype}"] = lut(nbits, dtype, next(shapes))

    def sparse(dtype, shape, share):
        def make(name):
            mask = rng.random(shape) < share
            mask.reshape(-1)[-1] = True
            return mb.constexpr_sparse_to_dense(
                nonzero_data=numbers(rng, dtype, int(mask.sum())),
                mask=pack_bits(mask, 1),
                shape=np.array(shape, np.uint32),
                name=name,
            )

        return make

    for dtype, (number, share) in itertools.product(("int8", "uint8", "fp16", "fp32"), enumerate((0.1, 0.5, 1.0))):
        makers[f"sparse_{dtype}_{number}"] = sparse(dtype, next(shapes), share)
    for rank, shape in enumerate([(13,), (3, 7), (2, 2, 2)]):
        makers[f"cast_{rank}"] = lambda name, shape=shape: mb.constexpr_cast(
            source_val=numbers(rng, "fp16", shape), output_dtype="fp32", name=name
        )
    return makers


# ---------------------------------------------------------------------------------------------------------------- iOS18

# Shape of the data, and how many scales or palettes there are along each axis.
BLOCKS = [
    ((6, 8), (1, 1)), ((6, 8), (6, 1)), ((6, 8), (1, 8)), ((6, 8), (6, 2)), ((6, 8), (3, 8)), ((6, 8), (2, 4)), ((6, 8), (6, 8)),
    ((4, 6, 2, 3), (4, 1, 1, 1)), ((4, 6, 2, 3), (4, 3, 1, 1)), ((4, 6, 2, 3), (1, 6, 1, 3)), ((21,), (3,)), ((3, 5, 7), (3, 1, 7)),
    ((2, 96), (2, 3)),
]  # fmt: skip


def makers_blockwise(rng):
    """constexpr_blockwise_shift_scale, constexpr_sparse_blockwise_shift_scale."""
    makers = {}
    blocks = itertools.cycle(BLOCKS)

    def parts(data, scale, offset, counts):
        given = {"scale": numbers(rng, scale, counts)}
        if offset != "none":
            given["offset"] = numbers(rng, offset, counts)
        return given

    def blockwise(data, scale, offset, block):
        return lambda name: mb.constexpr_blockwise_shift_scale(
            data=numbers(rng, data, block[0]), **parts(data, scale, offset, block[1]), name=name
        )

    def sparse_blockwise(data, scale, offset, block):
        def make(name):
            mask = rng.random(block[0]) < 0.4
            mask.reshape(-1)[:2] = True
            mask_out, values = mb.constexpr_sparse_blockwise_shift_scale(
                data_mask=mask.astype(numpy_dtype("uint1")),
                nonzero_data=numbers(rng, data, int(mask.sum())),
                **parts(data, scale, offset, block[1]),
                name=f"{name}_values",
            )
            return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=mask_out, name=name)

        return make

    for data, scale in itertools.product(("int4", "uint4", "int8", "uint8", "fp16", "fp32"), FLOATS):
        for offset in ("none", *FLOATS, *(() if data.startswith("fp") else (data,))):
            makers[f"block_{data}_{scale}_{offset}"] = blockwise(data, scale, offset, next(blocks))
        makers[f"sparse_block_{data}_{scale}"] = sparse_blockwise(
            data, scale, "none" if data.startswith("fp") else data, next(blocks)
        )
    for number, block in enumerate(BLOCKS):
        makers[f"block_layout_{number}"] = blockwise("int4", "fp16", "int4", block)
    makers["sparse_block_offset_fp16"] = sparse_blockwise("int8", "fp16", "fp16", BLOCKS[5])
    makers["sparse_block_offset_fp32"] = sparse_blockwise("uint4", "fp16", "fp32", BLOCKS[8])
    return makers


def makers_palettes(rng):
    """constexpr_lut_to_dense, constexpr_lut_to_sparse."""
    makers = {}
    blocks = itertools.cycle(BLOCKS)

    def dense(nbits, dtype, shape, counts, vector, axis):
        options = {} if axis is None else {"vector_axis": np.int32(axis)}
        return lambda name: mb.constexpr_lut_to_dense(
            indices=numbers(rng, f"uint{nbits}", shape),
            lut=numbers(rng, dtype, (*counts, 1 << nbits, vector)),
            name=name,
            **options,
        )

    def sparse(nbits, dtype, shape, counts, vector, axis):
        def make(name):
            mask = rng.random(shape) < 0.6
            mask.reshape(-1)[:2] = True
            options = {} if axis is None else {"vector_axis": np.int32(axis)}
            mask_out, values = mb.constexpr_lut_to_sparse(
                indices_mask=mask.astype(numpy_dtype("uint1")),
                indices_nonzero_data=numbers(rng, f"uint{nbits}", int(mask.sum())),
                lut=numbers(rng, dtype, (*counts, 1 << nbits, vector)),
                name=f"{name}_values",
                **options,
            )
            return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=mask_out, name=name)

        return make

    for nbits, dtype in itertools.product(NBITS, ("int8", "uint8", "fp16", "fp32")):
        shape, counts = next(blocks)
        if nbits == 8:
            counts = (1,) * len(shape)
        makers[f"palette_{nbits}bit_{dtype}"] = dense(nbits, dtype, shape, counts, 1, None)
    dtypes, widths = itertools.cycle(("fp16", "fp32", "int8")), itertools.cycle((2, 4, 1, 3))
    for (shape, counts), vector in itertools.product([((6, 4), (1, 1)), ((4, 3, 5), (2, 1, 5)), ((9,), (3,))], (2, 3)):
        for axis in range(-len(shape), len(shape)):
            dtype, nbits = next(dtypes), next(widths)
            where = f"{axis}" if axis >= 0 else f"minus{-axis}"
            name = f"{len(shape)}d_of{vector}_axis{where}"
            makers[f"vectors_{name}"] = dense(nbits, dtype, shape, counts, vector, axis)
            if axis >= 0:
                makers[f"sparse_vectors_{name}"] = sparse(nbits, dtype, shape, counts, vector, axis)
    makers["vectors_of1"] = dense(2, "fp16", (4, 6), (2, 1), 1, 1)
    for nbits, dtype in zip(NBITS, itertools.cycle(("fp32", "int8", "fp16", "uint8")), strict=False):
        shape, counts = BLOCKS[nbits]
        makers[f"sparse_palette_{nbits}bit"] = sparse(
            nbits, dtype, shape, counts if nbits < 6 else (1,) * len(shape), 1, None
        )
    return makers


def makers_chains(rng):
    """Operations that read each other, and sparse elements that need a second operation to be of use."""
    bits = numpy_dtype("uint1")

    def sparse(dtype, shape, name):
        mask = rng.random(shape) < 0.5
        mask.reshape(-1)[0] = True
        return mb.constexpr_sparse_to_dense(
            nonzero_data=numbers(rng, dtype, int(mask.sum())), mask=mask.astype(bits), name=name
        )

    def scaled(data, name, counts=(1, 1), scale="fp16"):
        return mb.constexpr_blockwise_shift_scale(data=data, scale=numbers(rng, scale, counts), name=name)

    def quantized_palette(name):
        lut = scaled(numbers(rng, "int8", (2, 1, 16, 1)), f"{name}_lut", (2, 1, 1, 1))
        return mb.constexpr_lut_to_dense(indices=numbers(rng, "uint4", (6, 8)), lut=lut, name=name)

    def palette_of_bytes(name):
        data = mb.constexpr_lut_to_dense(
            indices=numbers(rng, "uint3", (6, 8)), lut=numbers(rng, "int8", (1, 1, 8, 1)), name=f"{name}_data"
        )
        return scaled(data, name, (6, 2))

    def sparse_quantized_palette(name):
        mask = rng.random((6, 8)) < 0.5
        lut = scaled(numbers(rng, "uint8", (1, 1, 4, 1)), f"{name}_lut", (1, 1, 1, 1), "fp32")
        mask_out, values = mb.constexpr_lut_to_sparse(
            indices_mask=mask.astype(bits), indices_nonzero_data=numbers(rng, "uint2", int(mask.sum())), lut=lut,
            name=f"{name}_values",
        )  # fmt: skip
        return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=mask_out, name=name)

    def three_sparse(name):
        mask = rng.random((6, 8)) < 0.5
        mask_out, values = mb.constexpr_lut_to_sparse(
            indices_mask=mask.astype(bits),
            indices_nonzero_data=numbers(rng, "uint4", int(mask.sum())),
            lut=numbers(rng, "int8", (2, 1, 16, 1)),
            name=f"{name}_looked_up",
        )
        mask_out, values = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=mask_out, nonzero_data=values, scale=numbers(rng, "fp16", (6, 1)), name=f"{name}_scaled"
        )
        return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=mask_out, name=name)

    def other_mask(name):
        """The values of one mask, spread by another with as many bits."""
        mask = np.arange(48).reshape(6, 8) % 3 == 0
        _, values = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=mask.astype(bits), nonzero_data=numbers(rng, "int8", 16), scale=numbers(rng, "fp32", (6, 1)),
            name=f"{name}_values",
        )  # fmt: skip
        return mb.constexpr_sparse_to_dense(nonzero_data=values, mask=mask[::-1, ::-1].astype(bits), name=name)

    return {
        "chain_quantized_palette": quantized_palette,
        "chain_palette_of_bytes": palette_of_bytes,
        "chain_sparse_quantized_palette": sparse_quantized_palette,
        "chain_three_sparse": three_sparse,
        "chain_other_mask": other_mask,
        "chain_scaled_twice": lambda name: scaled(
            scaled(numbers(rng, "int4", (6, 8)), f"{name}_data", (6, 1)), name, (1, 4)
        ),
        "chain_scaled_scale": lambda name: mb.constexpr_blockwise_shift_scale(
            data=numbers(rng, "uint4", (6, 8)), scale=scaled(numbers(rng, "uint8", (6, 4)), f"{name}_scale"), name=name
        ),
        "cast_of_dense": lambda name: mb.constexpr_cast(
            source_val=numbers(rng, "fp16", (6, 8)), output_dtype="fp32", name=name
        ),
        **{
            f"sparse_{dtype}": lambda name, dtype=dtype: sparse(dtype, (5, 7), name)
            for dtype in ("int8", "uint8", "fp16", "fp32")
        },
        **{
            f"chain_sparse_{dtype}": lambda name, dtype=dtype: scaled(
                sparse(dtype, (6, 8), f"{name}_data"), name, (2, 4)
            )
            for dtype in ("int4", "uint4", "int8", "fp32")
        },
    }


# ------------------------------------------------------------------------------------------------------------- optimize


def optimized(target, schemes):
    """One linear layer for each scheme, {name: [config, ...]}, the steps of each applied in turn."""
    rng = np.random.default_rng(73)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 24))], opset_version=target)
    def program(x):
        for name in schemes:
            weight = rng.standard_normal((24, 24)).astype(np.float32)
            x = mb.linear(
                x=x, weight=mb.const(val=weight, name=f"{name}_weight"), bias=np.zeros(24, np.float32), name=name
            )
        return mb.identity(x=x, name="out")

    model = packages.convert(program, target)
    functions = {
        cto.OpLinearQuantizerConfig: cto.linear_quantize_weights,
        cto.OpPalettizerConfig: cto.palettize_weights,
        cto.OpMagnitudePrunerConfig: cto.prune_weights,
        cto.OpThresholdPrunerConfig: cto.prune_weights,
    }
    for step in range(max(map(len, schemes.values()))):
        for kind in functions:
            chosen = {
                name: configs[step]
                for name, configs in schemes.items()
                if len(configs) > step and isinstance(configs[step], kind)
            }
            if chosen:
                config = cto.OptimizationConfig(global_config=None, op_name_configs=chosen)
                options = {"joint_compression": True} if step else {}
                model = functions[kind](model, config, **options)
    return model


def schemes_of(target):
    """{name: configs} for everything that coremltools.optimize offers without k-means."""

    def quantizer(mode, dtype, granularity, **options):
        return cto.OpLinearQuantizerConfig(
            mode=mode, dtype=dtype, granularity=granularity, weight_threshold=0, **options
        )

    def palettizer(mode, granularity="per_tensor", **options):
        return cto.OpPalettizerConfig(mode=mode, granularity=granularity, weight_threshold=0, **options)

    is_new = target >= ct.target.iOS18
    dtypes = ("int4", "uint4", "int8", "uint8") if is_new else ("int8", "uint8")
    prune = cto.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=0)
    schemes = {}
    for mode, dtype in itertools.product(("linear", "linear_symmetric"), dtypes):
        for granularity in ("per_tensor", "per_channel", "per_block")[: 3 if is_new else 2]:
            options = {"block_size": 8} if granularity == "per_block" else {}
            schemes[f"{mode}_{dtype}_{granularity}"] = [quantizer(mode, dtype, granularity, **options)]
    for nbits in (1, 2, 3, 4, 6, 8) if is_new else (1, 2, 4, 6, 8):
        schemes[f"uniform_{nbits}"] = [palettizer("uniform", nbits=nbits)]
    schemes["sparse_magnitude"] = [prune]
    schemes["sparse_threshold"] = [
        cto.OpThresholdPrunerConfig(threshold=0.7, minimum_sparsity_percentile=0.1, weight_threshold=0)
    ]
    schemes["sparse_block"] = [cto.OpMagnitudePrunerConfig(target_sparsity=0.5, block_size=2, weight_threshold=0)]
    schemes["sparse_n_m"] = [cto.OpMagnitudePrunerConfig(n_m_ratio=(2, 4), weight_threshold=0)]
    if is_new:
        for nbits in (1, 2, 3, 4):
            schemes[f"grouped_{nbits}"] = [palettizer("uniform", "per_grouped_channel", nbits=nbits, group_size=8)]
            schemes[f"grouped_scaled_{nbits}"] = [
                palettizer("uniform", "per_grouped_channel", nbits=nbits, group_size=12, enable_per_channel_scale=True)
            ]
        schemes["grouped_axis1"] = [palettizer("uniform", "per_grouped_channel", nbits=4, group_size=6, channel_axis=1)]
        for dtype in dtypes:
            schemes[f"sparse_then_{dtype}"] = [prune, quantizer("linear_symmetric", dtype, "per_channel")]
            schemes[f"sparse_then_{dtype}_blocks"] = [prune, quantizer("linear", dtype, "per_block", block_size=8)]
        for nbits in (1, 2, 4, 6):
            schemes[f"sparse_then_uniform_{nbits}"] = [prune, palettizer("uniform", nbits=nbits)]
        for dtype in ("int8", "uint8"):
            schemes[f"uniform_then_{dtype}"] = [
                palettizer("uniform", nbits=4),
                quantizer("linear", dtype, "per_tensor"),
            ]
            schemes[f"grouped_then_{dtype}"] = [
                palettizer("uniform", "per_grouped_channel", nbits=4, group_size=8), quantizer("linear_symmetric", dtype, "per_tensor"),
            ]  # fmt: skip
    return schemes


# ---------------------------------------------------------------------------------------------------------------- cases


def finish(model, folder, note):
    """Saves a model and what coremltools decompresses its weights to: rows in dense.json, bytes in dense.bin."""
    rows, arrays = make_compressed.dense_values(packages.save(model, folder))
    with open(os.path.join(folder, "dense.bin"), "wb") as file:
        for row in rows:
            row["offset"] = file.tell()
            file.write(arrays[row.pop("npz")].tobytes())
    with open(os.path.join(folder, "dense.json"), "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(row) for row in rows)
        file.write(f'{{"note": {json.dumps(note)}, "dense": [\n{lines}\n]}}\n')


def built(target, makers, note):
    """Returns the maker of a case from {name: maker of a weight}."""
    return lambda folder: finish(package_of(target, makers()), folder, note)


def chosen(target, note):
    """Returns the maker of a case from what coremltools.optimize offers for a target."""
    return lambda folder: finish(optimized(target, schemes_of(target)), folder, note)


OLD, NEW = ct.target.iOS16, ct.target.iOS18
CASES = {
    "matrix_ios16": built(OLD, makers_ios16, "every dtype and layout of iOS16's operations; by the MIL builder"),
    "matrix_blockwise": built(
        NEW, lambda: makers_blockwise(np.random.default_rng(74)), "every dtype and layout of scales; by the MIL builder"
    ),
    "matrix_palettes": built(
        NEW, lambda: makers_palettes(np.random.default_rng(75)), "palettes, vectors on every axis; by the MIL builder"
    ),
    "matrix_chains": built(
        NEW, lambda: makers_chains(np.random.default_rng(76)), "operations that read each other; by the MIL builder"
    ),
    "optimize_ios16": chosen(OLD, "every scheme of coremltools.optimize for iOS16, but those that need k-means"),
    "optimize_ios18": chosen(NEW, "every scheme of coremltools.optimize for iOS18, but those that need k-means"),
}
