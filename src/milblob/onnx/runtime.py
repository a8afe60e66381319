"""onnxruntime: an ONNX model in memory becomes a session that reads the weights where they are, and copies none.

onnxruntime maps external data itself, as long as the location does not leave a folder. So locations are made relative
to the root of the file system: a model's weight files may lie anywhere, also behind symbolic links. What stands in
memory (a weight that was decoded) is handed over beside the model, which thereby stays below protobuf's 2 GiB.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import MilblobError
from ..storage import paths
from ..storage.mapped import MappedFile

HELD_NBYTES = 1 << 10
"""Tensors in memory are handed over beside the model from this size on."""

_FOLDER = "session.model_external_initializers_file_folder_path"
_HELD = "milblob/held"  # never opened: onnxruntime has these before it looks for files
_NATIVE = frozenset(
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)


def import_runtime() -> Any:
    """Return the module onnxruntime.

    Raises:
        ImportError: it is not installed; the message says what brings it.
    """
    try:
        import onnxruntime  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnxruntime":
            raise
        words = "running models: expected onnxruntime, got no such package; pip install onnxruntime brings it"
        raise ImportError(words) from error
    return onnxruntime


def make_options(optimize: bool, threads: int | None) -> Any:
    """Return session options: without `optimize`, the graph is computed as it stands and no weight is copied."""
    runtime = import_runtime()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if not optimize:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def start(
    model: ir.Model, mappings: Sequence[MappedFile], options: Any, providers: Sequence[str], file: str | None
) -> Any:
    """Return an onnxruntime.InferenceSession of a model in memory.

    Args:
        model: from `convert` without a path; its large tensors in memory are let go of.
        mappings: the open files of the model that it was converted from.
        options: from `make_options`; changed here.
        providers: of onnxruntime, the preferred first.
        file: the model's path, for messages.

    Raises:
        MilblobError: onnxruntime cannot open it.
    """
    runtime = import_runtime()
    known = {paths.real(mapping.name): mapping for mapping in mappings if mapping.name is not None}
    held: dict[str, Any] = {}
    root = os.path.abspath(os.sep)
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            path, offset = paths.real(os.fspath(tensor.path)), tensor.offset or 0
            mapping = known.get(path)
            if (mapping is None or _is_same(mapping, path)) and os.path.splitdrive(path)[0] + os.sep == root:
                location = os.path.relpath(path, root).replace(os.sep, "/")
                value.const_value = _external(tensor, location, offset, root, name)
                continue
            tensor = _read(tensor, offset, mapping)
        if tensor is not None and tensor.nbytes >= HELD_NBYTES and str(tensor.dtype.numpy()) in _NATIVE:
            held[name] = runtime.OrtValue.ortvalue_from_numpy(np.require(tensor.numpy(), requirements="C"))
            value.const_value = _external(tensor, _HELD, 0, root, name)
    options.add_session_config_entry(_FOLDER, root)
    if held:
        options.add_external_initializers(list(held), list(held.values()))
    data = ir.serde.serialize_model(model).SerializeToString()
    return open_session(data, options, providers, file)


def open_session(source: Any, options: Any, providers: Sequence[str], file: str | None) -> Any:
    """Return an onnxruntime.InferenceSession of a path or of a serialized model.

    Raises:
        MilblobError: onnxruntime cannot open it.
    """
    runtime = import_runtime()
    try:
        return runtime.InferenceSession(source, options, providers=list(providers))
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        words = f"onnxruntime: expected a model that it can open, got {first_words(error)}"
        raise MilblobError(words, file=file, code="runtime") from error


def first_words(error: BaseException) -> str:
    """Return the message of onnxruntime in one line of bearable length, without its codes."""
    return f"{' '.join(str(error).rpartition(' : ')[2].split()) or type(error).__name__:.400}"


def _external(tensor: Any, location: str, offset: int, root: str, name: str) -> ir.ExternalTensor:
    shape = ir.Shape(tensor.shape)
    return ir.ExternalTensor(location, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=root)


def _read(tensor: ir.ExternalTensor, offset: int, mapping: MappedFile | None) -> Any:
    """Return a tensor in memory: from the file that was opened, if there is one, whatever its path leads to now."""
    if mapping is None:
        return ir.Tensor(tensor.numpy().copy(), tensor.dtype, name=tensor.name)
    packed = np.frombuffer(memoryview(mapping.check_size())[offset : offset + tensor.nbytes], np.uint8)
    proto = onnx.TensorProto(data_type=int(tensor.dtype), dims=tensor.shape.numpy(), raw_data=packed.tobytes())
    return ir.serde.deserialize_tensor(proto)


def _is_same(mapping: MappedFile, path: str) -> bool:
    """Whether a path still leads to the file that was opened."""
    status = paths.status(path)
    return status is not None and mapping.identity == (status.st_dev, status.st_ino)
