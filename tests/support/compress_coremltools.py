"""What coremltools.optimize.coreml makes of a package, and what milblob reads from one, for comparison."""

import warnings

import numpy as np

import milblob

_ENDINGS = ("_quantized", "_palettized", "_sparsified", "_pcs", "_nonzero_data_0", "_lut_0", "_data_0")


def theirs(path, steps, to, kept=None):
    """Compress with coremltools and save; return the exception if it refuses.

    Args:
        steps: (kind, options) of each, in order: "linear", "palettize", "prune"; from the second on with joint_compression.
        kept: a dict for what one model becomes after each of its steps, so that what several recipes begin with is made once.
    """
    import coremltools as ct
    import coremltools.optimize.coreml as opt

    function = {"linear": opt.linear_quantize_weights, "palettize": opt.palettize_weights, "prune": opt.prune_weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = ct.models.MLModel(str(path), skip_model_load=True)
        try:
            for number, (kind, options) in enumerate(steps):
                done = repr(steps[: number + 1])
                if kept is not None and done in kept:
                    loaded = kept[done]
                    continue
                config = {"linear": opt.OpLinearQuantizerConfig, "palettize": opt.OpPalettizerConfig}.get(kind)
                if kind == "prune":
                    config = opt.OpThresholdPrunerConfig if "threshold" in options else opt.OpMagnitudePrunerConfig
                chosen = opt.OptimizationConfig(global_config=config(**options))
                loaded = function[kind](loaded, chosen, joint_compression=number > 0)
                if kept is not None:
                    kept[done] = loaded
        except (ValueError, NotImplementedError, IndexError, AttributeError) as error:
            return error
        loaded.save(str(to))
    return None


def described(path):
    """Name (without what coremltools appends) -> operation, dtype, shape, parts of all operations; and dense values."""
    found = {}
    with milblob.open(path) as opened:
        for name, tensor in opened.items():
            short = name
            while short.endswith(_ENDINGS):
                for ending in _ENDINGS:
                    short = short.removesuffix(ending)
            found[short] = (
                (tensor.op, str(tensor.mil_dtype), tensor.shape, _parts(tensor)),
                tensor.read().astype(np.float64),
            )
    return found


def _parts(tensor):
    return {
        key: (part.op, part.chain.output, str(part.mil_dtype), part.shape, _parts(part)) if part.parts
        else (str(part.mil_dtype), part.shape, part.is_blob)
        for key, part in tensor.parts.items()
    }  # fmt: skip


def decompressed(path, to):
    """Save what coremltools' decompress_weights makes of a package."""
    import coremltools as ct
    import coremltools.optimize.coreml as opt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt.decompress_weights(ct.models.MLModel(str(path), skip_model_load=True)).save(str(to))
