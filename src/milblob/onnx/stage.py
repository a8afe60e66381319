"""One Program, or one .onnx file, ready to run: arrays in, arrays out, by the names of the model."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import MilblobError, UnsupportedError
from ..storage import paths
from .conversion import convert
from .ports import SessionInput, SessionOutput, input_of, output_of, read_json
from .registry import Converter
from .runtime import first_words, open_session, start

if TYPE_CHECKING:
    from ..model.model import Model

_REPLACEABLE = ("float16", "float32")

Arrays = dict[str, "np.ndarray[Any, Any]"]


class Stage:
    """One model in onnxruntime.

    Args:
        runner: an onnxruntime.InferenceSession.
        model: what it runs; large weights may be elsewhere.
        file: the path, for messages.
        weights: names of initializers that `compute` may replace.

    Attributes:
        model: as given.
        weights: name -> what it holds, of those that `compute` may replace.
        inputs, outputs: what the model takes and gives, states aside, in the order of its description.
        states: state -> what it holds.
        metadata: of the .onnx model, among it what ONNX has no place for.
    """

    def __init__(self, runner: Any, model: ir.Model, file: str | None, weights: frozenset[str] = frozenset()) -> None:
        self.model = model
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
                f"expected states whose inputs and outputs the graph has, got {', '.join(sorted(missing))}"
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

        Args:
            feeds: of `inputs` and `weights`, as `SessionInput.convert` gives them.
            states: of all `states`; replaced by their new values.

        Raises:
            MilblobError: onnxruntime cannot compute it. UnsupportedError: labels that the model's metadata say wrongly.
        """
        held = {one.name: states[name] for name, one in self.states.items()}
        try:
            found = dict(zip(self._names, self._runner.run(self._names, {**feeds, **held}), strict=True))
        except Exception as error:
            if isinstance(error, MemoryError):
                raise
            words = f"onnxruntime: expected inputs that it can compute with, got {first_words(error)}"
            raise MilblobError(words, file=self.file, code="runtime") from error
        for name, one in self.outputs.items():
            if one.is_zipped:
                unknown = [label for label in one.classes if label not in found[name][0]]
                if unknown:
                    words = f"milblob.classes in metadata_props: expected labels of {name}, got {unknown[0]!r:.100}"
                    raise UnsupportedError(words, file=self.file)
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
) -> Stage:
    """Return a function of an open model, ready to run; it reads the model's weight files where they are.

    Args:
        model, function, converters: as for `convert`.
        options, providers: as for `start`.
        change: changes the converted model before it is opened; returns the names of weights that may be replaced.

    Raises:
        As `convert`; MilblobError: onnxruntime cannot open it.
    """
    converted = convert(model, function=function, converters=converters)
    weights = frozenset() if change is None else change(converted)
    runner = start(converted, model.package.mappings, options, providers, model.path)
    return Stage(runner, converted, model.path, weights)


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

    Raises:
        FileNotFoundError: there is none. MilblobError: onnxruntime cannot open it. UnsupportedError: an input that is
        no tensor.
    """
    if not paths.is_file(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    runner = open_session(os.fspath(path), options, providers, path)
    proto = onnx.load(path, load_external_data=False)
    for output in proto.graph.output:  # onnx-ir knows no type of dictionaries
        if output.type.WhichOneof("value") == "sequence_type":
            output.ClearField("type")
    try:
        model = ir.serde.deserialize_model(proto)
    except ir.serde.SerdeError as error:
        words = f"ONNX model: expected one that onnx-ir reads, got {first_words(error.__cause__ or error)}"
        raise UnsupportedError(words, file=path) from error
    try:
        return Stage(runner, model, path)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a JSON document of another form
        words = f"milblob.* in metadata_props: expected what milblob writes, got {type(error).__name__}: {error!s:.200}"
        raise UnsupportedError(" ".join(words.split()), file=path) from error
