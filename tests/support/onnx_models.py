"""Small models for the tests of milblob.onnx, made with coremltools, and what runs their conversions."""

import logging
import warnings

import numpy as np

logging.getLogger("coremltools").setLevel(logging.ERROR)


def save(path, build, feeds, *, opset="iOS17", precision="fp32", states=None, **options):
    """Write a package whose function is `build` of placeholders.

    Args:
        feeds: name -> array, or (shape, dtype) with None for an open size.
        states: name -> array; only from iOS 18 on.
    """
    import coremltools as ct
    from coremltools.converters.mil import mil
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, get_new_symbol, types

    target = getattr(ct.target, opset)
    placeholders = {}
    for name, given in feeds.items():
        shape, dtype = given if isinstance(given, tuple) else (given.shape, given.dtype)
        shape = tuple(get_new_symbol() if size is None else size for size in shape)
        placeholders[name] = mb.placeholder(shape=shape, dtype=types.numpy_type_to_builtin_type(np.dtype(dtype).type))
    for name, array in (states or {}).items():
        kind = types.numpy_type_to_builtin_type(array.dtype.type)
        placeholders[name] = mb.state_tensor_placeholder(shape=array.shape, dtype=kind)
    program = mil.Program()
    with Function(placeholders, opset_version=target) as function:
        made = build(**function.inputs)
        function.set_outputs(list(made) if isinstance(made, list | tuple) else [made])
        program.add_function("main", function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ct.convert(
            program,
            source="milinternal",
            convert_to="mlprogram",
            minimum_deployment_target=target,
            compute_precision=ct.precision.FLOAT32 if precision == "fp32" else ct.precision.FLOAT16,
            skip_model_load=True,
            **options,
        )
    model.save(str(path))
    return path


def session(path, optimised=False, prepacked=True):
    """Open an .onnx file in onnxruntime; the file must pass the full check of ONNX itself.

    Args:
        prepacked: whether the runtime may pack constant weights. Its kernels for packed ones round in another order.
    """
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(path), full_check=True)
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    if not prepacked:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path, feeds, optimised=False, prepacked=True):
    """Return what an .onnx file computes: output -> array. See `session`."""
    opened = session(path, optimised, prepacked)
    found = opened.run(None, feeds)
    return {output.name: value for output, value in zip(opened.get_outputs(), found, strict=True)}
