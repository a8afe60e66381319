"""onnxruntime: an ONNX model in memory becomes a session that reads the weights where they are, and copies none.

onnxruntime opens external data by name, long after milblob has checked the file. So it gets no name that another
process could give to another file: the descriptor of the open file has a path of its own (`MappedFile.held_name`),
below the root of the file system, which is the folder that references may not leave. Without such a path, and for
weights in memory (decoded ones), onnxruntime gets the values themselves, beside the model, which so is kept below
protobuf's 2 GiB.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import onnx_ir as ir

from ..errors import MilblobError
from ..extras import require
from ..onnx.declared import plain_words
from ..onnx.reference import WeightReference, external, fill, refer
from ..storage.mapped import MappedFile
from ..threads import chosen, unused

HELD_NBYTES = 1 << 10
"""Tensors in memory are handed over beside the model from this size on."""

_FOLDER = "session.model_external_initializers_file_folder_path"
_SPIN_US = "100"
CPU = ("CPUExecutionProvider",)
_ROOT = os.path.abspath(os.sep)
HELD = "milblob/held"
"""The location of what is handed over. It is never opened: onnxruntime has these values before it looks for files."""


def import_runtime() -> Any:
    """Return the module onnxruntime.

    Raises: ImportError: it is not installed; the message names the package to install.
    """
    return require("onnxruntime")


def make_options(optimize: bool, threads: int | None) -> Any:
    """Return session options: without `optimize`, the graph is computed as it stands and no weight is copied.

    Threads spin while they wait, or networks of many small operations take longer in two threads than in one; but less
    long than by onnxruntime's default, with which they take the processor from other work, and from each other.
    """
    runtime = import_runtime()
    options = runtime.SessionOptions()
    levels = runtime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if not optimize:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = threads or chosen() or unused()
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    options.log_severity_level = 4
    return options


def is_optimized(options: Any) -> bool:
    """Whether `make_options` made them with `optimize`."""
    return bool(options.graph_optimization_level != import_runtime().GraphOptimizationLevel.ORT_DISABLE_ALL)


class Handover:
    """What a session of onnxruntime is started with beside the model; a context manager around its start.

    `options`: from `make_options`; changed here.
    """

    def __init__(self, options: Any) -> None:
        self.values: dict[str, Any] = {}  # handed over in memory, which a session does not keep alive itself
        self._options = options
        self._stack = ExitStack()
        self._places: dict[MappedFile, str | None] = {}

    def place(self, mapping: MappedFile) -> str | None:
        """Return where onnxruntime finds an open file until it has started; None if it must get the bytes."""
        if mapping not in self._places:
            path = self._stack.enter_context(mapping.held_name())
            is_below = path is not None and path.startswith(_ROOT)
            self._places[mapping] = path[len(_ROOT) :].replace(os.sep, "/") if path and is_below else None
        return self._places[mapping]

    def add(self, name: str, array: "np.ndarray[Any, Any]", dtype: int) -> None:
        """Hand over the values of an initializer, one element or more to a byte."""
        stored = np.require(array, requirements="C").view(f"u{array.itemsize}")
        self.values[name] = import_runtime().OrtValue.ortvalue_from_numpy_with_onnx_type(stored, dtype)

    def start(self, data: bytes, providers: Sequence[str], file: str | None) -> Any:
        """Return an onnxruntime.InferenceSession of a serialized model.

        Raises: MilblobError: onnxruntime cannot open it.
        """
        self._options.add_session_config_entry(_FOLDER, _ROOT)
        if self.values:
            self._options.add_external_initializers(list(self.values), list(self.values.values()))
        is_copied = is_optimized(self._options)  # to a form of its own
        for name, value in self.values.items():  # the call above is for the graph; this one prevents a copy
            if not is_copied:
                self._options.add_initializer(name, value)
        try:
            made = import_runtime().InferenceSession(
                data, self._options, providers=list(providers), enable_fallback=int(tuple(providers) != CPU)
            )  # its fallback prints to stdout, and the CPU has no fallback
            if is_copied:
                self.values.clear()
            return made
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            message = f"onnxruntime: expected a model that it can open, got {first_words(error)}"
            raise MilblobError(message, file=file, code="runtime") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def start(
    model: ir.Model, proto: Any, options: Any, providers: Sequence[str], file: str | None
) -> tuple[Any, dict[str, Any]]:
    """Return an onnxruntime.InferenceSession of a model in memory, and what it needs as long as it lives.

    `model`: from `converted`; its large tensors in memory are let go of. `proto`: its message; completed here.
    `options`: from `make_options`; changed here. `providers`: of onnxruntime, the preferred first.
    Raises: MilblobError: onnxruntime cannot open it.
    """
    with Handover(options) as handover:
        for message in proto.graph.initializer:
            value = model.graph.initializers[message.name]
            tensor: Any = value.const_value
            if isinstance(tensor, WeightReference):
                location = handover.place(tensor.mapping)
                if location is not None:
                    value.const_value = external(tensor, location, tensor.start, _ROOT)
                    refer(message, location, tensor.start, tensor.nbytes)
                    continue
                tensor = value.const_value = tensor.held()
            if tensor.nbytes >= HELD_NBYTES and _is_native(tensor.dtype):
                handover.add(message.name, tensor.numpy(), int(tensor.dtype))
                value.const_value = external(tensor, HELD, 0, _ROOT)
                refer(message, HELD, 0, tensor.nbytes)
            elif message.external_data:
                fill(message, tensor)
        return handover.start(proto.SerializeToString(), providers, file), handover.values


def first_words(error: BaseException) -> str:
    """Return the message of onnxruntime in one line of bearable length, without its codes."""
    return f"{plain_words(str(error).rpartition(' : ')[2]) or type(error).__name__:.400}"


def _is_native(dtype: ir.DataType) -> bool:
    """Whether elements are bytes, so that an array has them as onnxruntime does."""
    return dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED) and dtype.bitwidth >= 8
