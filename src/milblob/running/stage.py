"""One Program, or one .onnx file, ready to run: arrays in, arrays out, by the names of the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from ..errors import FormatError, MilblobError, UnsupportedError
from ..formats.onnx_external import REFERENCE, ExternalFiles
from ..onnx.conversion import converted
from ..onnx.declared import message_of
from ..onnx.reference import fill, refer
from ..onnx.registry import Converter
from ..onnx.save import serialized
from ..onnx.weights import Weights
from ..storage.mapped import MappedFile
from ..wording import escape
from .ports import SessionInput, SessionOutput, input_of, output_of, read_json
from .rounding import round_each
from .runtime import HELD, HELD_NBYTES, Handover, first_words, is_optimized, start

if TYPE_CHECKING:
    from ..model.model import Model

_REPLACEABLE = ("float16", "float32")
_AROUND = frozenset(("AttributeProto", "FunctionProto", "GraphProto", "NodeProto", "SparseTensorProto"))
_ITEMSIZES = {
    int(kind): kind.itemsize for kind in ir.DataType if kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
}

Arrays = dict[str, "np.ndarray[Any, Any]"]


class Stage:
    """One model in onnxruntime.

    Args:
        runner: an onnxruntime.InferenceSession.
        model: what it runs; large weights may be elsewhere.
        file: the path, for messages.
        weights: names of initializers that `compute` may replace.
        held: what the runner needs as long as it lives.

    Attributes:
        model: as given.
        weights: name -> what it holds, of those that `compute` may replace.
        inputs, outputs: what the model takes and gives, states aside, in the order of its description.
        states: state -> what it holds.
        metadata: of the .onnx model, among it what ONNX has no place for.
    """

    def __init__(
        self, runner: Any, model: ir.Model, file: str | None, weights: frozenset[str] = frozenset(), held: Any = None
    ) -> None:
        self.model = model
        self._held = held
        self.file = file
        self.metadata: Mapping[str, str] = dict(model.metadata_props)
        self._runner = runner
        states = read_json(self.metadata, "milblob.states", file)
        self._written = {str(about["output"]): name for name, about in states.items()}
        feeds = {str(about["input"]): name for name, about in states.items()}
        given = [(argument, False) for argument in runner.get_inputs()]
        missing = set(feeds) - {argument.name for argument, _ in given}
        missing |= set(self._written) - {argument.name for argument in runner.get_outputs()}
        if missing:
            raise ValueError(
                escape(f"expected states whose inputs and outputs the graph has, got {', '.join(sorted(missing))}")
            )
        given += [(argument, True) for argument in runner.get_overridable_initializers()]
        order = {value.name: number for number, value in enumerate(model.graph.inputs)}
        given.sort(key=lambda pair: order.get(pair[0].name, len(order)))
        found = [input_of(argument, self.metadata, file, is_optional) for argument, is_optional in given]
        self.weights: dict[str, SessionInput] = {one.name: one for one in found if one.name in weights}
        found = [one for one in found if one.name not in weights]
        self.inputs: dict[str, SessionInput] = {one.name: one for one in found if one.name not in feeds}
        self.states: dict[str, SessionInput] = {feeds[one.name]: one for one in found if one.name in feeds}
        self._names = [argument.name for argument in runner.get_outputs()]
        self.outputs: dict[str, SessionOutput] = {
            argument.name: output_of(argument, self.metadata, file)
            for argument in runner.get_outputs()
            if argument.name not in self._written
        }

    def compute(self, feeds: Mapping[str, Any], states: dict[str, Any]) -> Arrays:
        """Run once.

        `feeds`: of `inputs` and `weights`, as `SessionInput.convert` gives them. `states`: of all `states`; replaced by
        their new values.
        Raises: MilblobError: onnxruntime cannot compute it. UnsupportedError: wrong labels in the model's metadata.
        """
        held = {one.name: states[name] for name, one in self.states.items()}
        try:
            found = dict(zip(self._names, self._runner.run(self._names, {**feeds, **held}), strict=True))
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            message = f"onnxruntime: expected inputs that it can compute with, got {first_words(error)}"
            raise MilblobError(message, file=self.file, code="runtime") from error
        for name, one in self.outputs.items():
            if one.is_zipped:
                unknown = [label for label in one.classes if label not in found[name][0]]
                if unknown:
                    message = f"milblob.classes in metadata_props: expected labels of {name}, got {unknown[0]!r:.100}"
                    raise UnsupportedError(message, file=self.file)
                found[name] = np.array([[found[name][0][label] for label in one.classes]], one.dtype)
        states.update({name: found.pop(output) for output, name in self._written.items()})
        return found


def stage_of_model(
    model: "Model",
    function: str | None,
    options: Any,
    providers: Sequence[str],
    converters: Mapping[str, Converter] | None,
    change: Callable[[ir.Model], frozenset[str]] | None = None,
    is_rounded: bool = False,
) -> Stage:
    """Return a function of an open model, ready to run; it reads the model's weight files where they are.

    Args:
        model, function, converters: as for `convert`.
        options, providers: as for `start`.
        change: changes the converted model before it is opened; returns the names of weights that may be replaced.
        is_rounded: as `round_each` of `Session`.

    Raises:
        As `convert` and `round_each`; MilblobError: onnxruntime cannot open it.
    """
    kept = "onnxruntime" if is_optimized(options) else "keep"  # optimization would decode weights later, and slower
    made, proto = converted(model, Weights(model, "reference", None, kept), function, converters=converters)
    if is_rounded:
        round_each(made)
    weights = frozenset() if change is None else change(made)
    if is_rounded or change is not None:
        proto = message_of(made)
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # optimization would quantize operands of MatMul
    runner, held = start(made, proto, options, providers, model.path)
    return Stage(runner, made, model.path, weights, held)


def make_replaceable(model: ir.Model) -> frozenset[str]:
    """Make optional inputs of all weights of floats that are referred to; return their names."""
    names = []
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor) or str(tensor.dtype.numpy()) not in _REPLACEABLE:
            continue
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
        model.graph.inputs.append(value)
        names.append(name)
    return frozenset(names)


def stage_of_file(path: str, options: Any, providers: Sequence[str]) -> Stage:
    """Return an .onnx file, ready to run.

    Raises: OSError: it cannot be opened. MilblobError: onnxruntime cannot open it; external data that cannot be read,
    or are not those that were converted. UnsupportedError: an input that is not a tensor.
    """
    with ExitStack() as stack:
        mapping = stack.enter_context(closing(MappedFile(path)))
        data = bytes(memoryview(mapping.check_size()))
        try:
            proto = onnx.load_model_from_string(data)
        except Exception as error:  # protobuf's own
            message = f"ONNX model: expected one that protobuf reads, got {first_words(error)}"
            raise FormatError(message, file=path) from error
        _require_text(proto, path)
        handover = stack.enter_context(Handover(options))
        if _hand_over(proto, stack.enter_context(closing(ExternalFiles(path))), handover, path):
            data = serialized(proto, path, "external data of nodes stand in it")
        runner = handover.start(data, providers, path)
    for output in proto.graph.output:  # onnx-ir knows no type of dictionaries
        if output.type.WhichOneof("value") == "sequence_type":
            output.ClearField("type")
    try:
        model = ir.serde.deserialize_model(proto)
    except ir.serde.SerdeError as error:
        message = f"ONNX model: expected one that onnx-ir reads, got {first_words(error.__cause__ or error)}"
        raise UnsupportedError(message, file=path) from error
    try:
        return Stage(runner, model, path, held=handover.values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a JSON document of another form
        message = (
            f"milblob.* in metadata_props: expected what milblob writes, got {type(error).__name__}: {error!s:.200}"
        )
        raise UnsupportedError(" ".join(message.split()), file=path) from error


def _require_text(proto: Any, path: str) -> None:
    """Refuse names of inputs and outputs, metadata and places of external data that are not UTF-8.

    protobuf gives their bytes. onnxruntime fails on them only when it is asked for the names.

    Raises: FormatError: some are.
    """
    texts = [value.name for value in (*proto.graph.input, *proto.graph.output)]
    texts += [text for entry in proto.metadata_props for text in (entry.key, entry.value)]
    for tensor in proto.graph.initializer:
        texts += [tensor.name, *(text for entry in tensor.external_data for text in (entry.key, entry.value))]
    found = next((text for text in texts if isinstance(text, bytes)), None)
    if found is not None:
        raise FormatError(f"ONNX model: expected names and metadata in UTF-8, got {found!r:.100}", file=path)


def _hand_over(proto: Any, files: ExternalFiles, handover: Handover, path: str) -> bool:
    """Make all external data of a model those of the files that are opened here; return whether there are any.

    Those of inner graphs, nodes and functions, which hardly anybody writes, come into the message: there onnxruntime
    takes no descriptor, and no values from memory.

    Raises: FormatError, ResolveError: as `ExternalFiles.find` and `External.checked`.
    """
    inner = [*proto.graph.node, *proto.graph.sparse_initializer, *proto.functions, *proto.training_info]
    places = [(tensor, True) for tensor in proto.graph.initializer]
    places += [(tensor, False) for part in inner for tensor in _tensors(part)]
    places = [(tensor, is_outer) for tensor, is_outer in places if tensor.data_location == onnx.TensorProto.EXTERNAL]
    for tensor, is_outer in places:
        itemsize = _ITEMSIZES.get(tensor.data_type)
        if itemsize is None or any(size < 0 for size in tensor.dims):
            message = (
                f"external data of {tensor.name!r:.100}: expected elements of fixed size, got type {tensor.data_type}"
            )
            raise FormatError(f"{message} {list(tensor.dims)!s:.100}", file=path)
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        note = next((entry.value for entry in tensor.metadata_props if entry.key == REFERENCE), "")
        found = files.find(tensor.name, entries, note, ceil(prod(tensor.dims) * itemsize))
        mapping, offset = found.checked(), found.offset
        location = handover.place(mapping) if is_outer else None
        if location is None:
            data = np.frombuffer(memoryview(mapping.live())[offset : offset + found.nbytes], np.uint8)
            if not is_outer or itemsize not in (1, 2, 4, 8) or found.nbytes < HELD_NBYTES:
                fill(tensor, data)
                continue
            handover.add(tensor.name, data.view(f"u{int(itemsize)}").reshape(tuple(tensor.dims)), tensor.data_type)
            location, offset = HELD, 0
        refer(tensor, location, offset, found.nbytes)
    return bool(places)


def _tensors(message: Any) -> Iterator[Any]:
    """Yield the tensors in a message, at any depth."""
    for field, value in message.ListFields():
        kind = None if field.message_type is None else field.message_type.name
        if kind == "TensorProto" or kind in _AROUND:
            for one in [value] if isinstance(value, Message) else value:
                if kind == "TensorProto":
                    yield one
                else:
                    yield from _tensors(one)
