"""The raw model: one function of an ML Program, with the description of its inputs and outputs."""

import math
import struct
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import require
from ..errors import FormatError, UnsupportedError
from ..model.metadata import Feature
from ..program import schema
from ..program.types import StateType, TensorType, ValueType
from ..program.view import Function, Operation
from ..rules.description_rules import description_breaches
from ..rules.program_rules import Signature
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile

if TYPE_CHECKING:
    from ..model.model import Model
    from ..model.open_program import OpenProgram

_COLOR_SPACES = {10: "GRAYSCALE", 20: "RGB", 30: "BGR", 40: "GRAYSCALE_FLOAT16"}


@dataclass(frozen=True, slots=True)
class Port:
    """The description of an input, an output or a state.

    Attributes:
        name: of the value in the Program.
        fixed: axis -> size, where the description fixes an axis that the Program leaves open.
        default_shape: the shape that predictions use if they give none.
        flexible: {"enumerated": shapes} or {"ranges": [lower, upper] for each axis, None for no upper bound}, or {}.
        image: {"colorSpace", "height", "width"} of an image, or {}.
        default: the value of all elements of an optional input that is left out; None for an input that is required.
    """

    name: str
    fixed: dict[int, int] = field(default_factory=dict)
    default_shape: tuple[int, ...] = ()
    flexible: dict[str, Any] = field(default_factory=dict)
    image: dict[str, Any] = field(default_factory=dict)
    default: float | int | None = None


class MilProgramContainer:
    """One function of a model, ready to be parsed.

    Args:
        model: an open model.
        name: of the function; None for the model's default function, or its only one.

    Attributes:
        function: of the Program.
        inputs, outputs, states: Ports in the order of the description.

    Raises:
        UnsupportedError: not an ML Program, or a pipeline without a prefix.
        KeyError: the function does not exist; the message lists those that do.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     raw = milblob.onnx.MilProgramContainer(model)
        >>> raw.input_names, raw.output_names
        (['tokens'], ['logits'])
    """

    def __init__(self, model: "Model", name: str | None = None) -> None:
        self.model = model
        require("function", name, str | None, "a name")
        if not model.parts:
            raise UnsupportedError(
                f"model: expected an ML Program, got a {model.kind}", file=model.path, code="model-type"
            )
        names, is_default = list(model.functions), name is None
        if name is None:
            default = model.metadata.default_function
            name = default or ("main" if "main" in names or len(names) != 1 else names[0])
        elif name not in names and name == "main" and len(names) == 1:
            name = names[0]
        if name not in names and len(model.parts) > 1:
            message = f"model: expected one ML Program, got a pipeline with the functions {', '.join(names[:8])}"
            raise UnsupportedError(f"{message}; name one of them", file=model.path, code="model-type")
        if is_default and name not in names:
            message = f"function: expected one of {', '.join(names[:8]) or 'none'} (function, --function)"
            raise KeyError(f"{message}, got none, and {model.path or 'the model'} has no default function")
        self.function: Function = model.functions[name]
        self.name = name
        self.inputs, self.outputs, self.states = self._ports()

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs, in the order of the description."""
        return [port.name for port in self.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in the order of the description."""
        return [port.name for port in self.outputs]

    def _ports(self) -> tuple[list[Port], list[Port], list[Port]]:
        found = self._described()
        inputs = dict(self.function.inputs)
        returned = list(dict.fromkeys(self.function.block.outputs))
        states = [name for name, type in inputs.items() if isinstance(type, StateType)]
        feeds = [name for name in inputs if name not in states]
        if found is None or self._program().is_text:
            given, made = self._compiled(found)
            return _ordered(given, feeds), _ordered(made, returned), [Port(n) for n in states]
        return (
            _ordered([_port(feature) for feature in found.input], feeds),
            _ordered([_port(feature) for feature in found.output], returned),
            _ordered([_port(feature) for feature in found.state], states),
        )

    def _program(self) -> "OpenProgram":
        """The Program of the function."""
        return next(program for program in self.model.parts if self.name.startswith(program.prefix))

    def _described(self) -> Any:
        """The description of the function, or None where the model has none that fits."""
        program = self._program()
        if program.is_text:
            return self._described_beside(program)
        data = self.model.package.describe()[1]
        if len(self.model.parts) > 1:  # the description is that of the pipeline
            offset, nbytes = program.source.description or (0, 0)
            data = memoryview(program.mapping.check_size())[offset : offset + nbytes]
        return self._own(schema.parse("ModelDescription", data), program)

    def _own(self, description: Any, program: "OpenProgram") -> Any:
        """The part of a description that is about the function."""
        if not description.functions:
            return description
        bare = self.name.removeprefix(program.prefix)
        return next((found for found in description.functions if found.name == bare), None)

    def _described_beside(self, program: "OpenProgram") -> Any:
        """The description in the coremldata.bin of a compiled model; None where it does not fit the Program."""
        data = None if program.directory is None else described(program.directory)
        if data is None:
            return None
        functions = {
            name.removeprefix(program.prefix): _signature(function)
            for name, function in self.model.functions.items()
            if name.startswith(program.prefix)
        }
        try:
            if any(description_breaches(data, 0, functions)):
                return None
        except FormatError:
            return None
        return self._own(schema.parse("ModelDescription", data), program)

    def _compiled(self, found: Any) -> tuple[list[Port], list[Port]]:
        """Return inputs and outputs of a compiled model: from the description beside it, else from metadata.json.

        metadata.json does not describe the models of a pipeline.
        """
        if found is not None:
            given, made = {one.name: _port(one) for one in found.input}, [_port(one) for one in found.output]
        elif len(self.model.parts) > 1:
            return [], []
        else:
            about = self.model.metadata
            inputs, outputs = about.functions.get(self.name, (about.inputs, about.outputs))
            given, made = {one.name: _compiled_port(one) for one in inputs}, [_compiled_port(one) for one in outputs]
        ranges = self._compiled_ranges()
        for name, type in self.function.inputs:
            port = given.get(name, Port(name))
            if port.flexible or not isinstance(type, TensorType):
                continue
            if name in ranges and len(ranges[name]) == len(type.shape):
                fixed = {axis: low for axis, (low, high) in enumerate(ranges[name]) if low == high and low is not None}
                given[name] = replace(port, fixed=port.fixed | fixed, flexible={"ranges": ranges[name]})
            elif not port.image:  # a shape without the lengths that it allows is a default, and fixes nothing
                given[name] = replace(port, fixed={})
        return list(given.values()), made

    def _compiled_ranges(self) -> dict[str, list[list[int | None]]]:
        """The ranges of flexible inputs, which Core ML's compiler writes into an attribute of the function."""
        value = self.function.attributes.get("FlexibleShapeInformation")
        if value is None or value.kind != "tuple":
            return {}
        found: dict[str, list[list[int | None]]] = {}
        for item in value.each_item():
            row = item.read()
            if not (isinstance(row, tuple) and len(row) == 2 and row[0] == "RangeDims" and isinstance(row[1], dict)):
                continue
            for name, bounds in row[1].items():
                pairs = [np.asarray(pair).reshape(-1) for pair in bounds]
                if all(len(pair) == 2 for pair in pairs):
                    found[str(name)] = [[int(low), int(high) if high >= 0 else None] for low, high in pairs]
        return found


def _signature(function: Function) -> Signature:
    """Return the inputs and outputs of a function."""
    block = function.block
    returned: list[tuple[str, ValueType | None]] = []
    for name in block.outputs:
        place = block.defining(name)
        variables = place.outputs if isinstance(place, Operation) else () if place is None else place.inputs
        returned.append((name, next((one.type for one in variables if one.name == name), None)))
    return Signature(function.opset, list(function.inputs), returned)


def _ordered(ports: list[Port], names: list[str]) -> list[Port]:
    """Those of the description that the Program has, in its order, then those that only the Program has."""
    known = {port.name: port for port in ports if port.name in names}
    return list(known.values()) + [Port(name) for name in names if name not in known]


def _port(feature: Any) -> Port:
    kind = feature.type.WhichOneof("Type")
    if kind == "imageType":
        return _image(feature.name, feature.type.imageType)
    if kind != "multiArrayType":
        return Port(feature.name)
    array = feature.type.multiArrayType
    shape = tuple(int(size) for size in array.shape)
    flexible: dict[str, Any] = {}
    fixed: dict[int, int] = {}
    how = array.WhichOneof("ShapeFlexibility")
    if how == "enumeratedShapes":
        shapes = [[int(size) for size in one.shape] for one in array.enumeratedShapes.shapes]
        flexible = {"enumerated": shapes}
        for axis, sizes in enumerate(zip(*shapes, strict=False)):
            if len(set(sizes)) == 1:
                fixed[axis] = sizes[0]
    elif how == "shapeRange":
        ranges = [
            [int(one.lowerBound), int(one.upperBound) if one.upperBound >= 0 else None]
            for one in array.shapeRange.sizeRanges
        ]
        flexible = {"ranges": ranges}
        fixed = {axis: low for axis, (low, high) in enumerate(ranges) if low == high and low is not None}
    elif shape:
        fixed = dict(enumerate(shape))
    default: float | int | None = None
    if feature.type.isOptional:
        chosen = array.WhichOneof("defaultOptionalValue")
        default = getattr(array, chosen) if chosen else 0
        if isinstance(default, float) and math.isinf(default):
            default = float(default)
    return Port(feature.name, fixed, shape, flexible, {}, default)


def _compiled_port(feature: Feature) -> Port:
    """Return the Port of an entry of metadata.json: flexible shapes are defaults there, and fix nothing."""
    if feature.type != "image":
        return Port(feature.name)
    width, height = feature.shape if feature.shape is not None and len(feature.shape) == 2 else (None, None)
    return Port(feature.name, image={"colorSpace": feature.dtype, "height": height or 0, "width": width or 0})


def _image(name: str, image: Any) -> Port:
    about: dict[str, Any] = {
        "colorSpace": _COLOR_SPACES.get(image.colorSpace, "unknown"),
        "height": int(image.height),
        "width": int(image.width),
    }
    how = image.WhichOneof("SizeFlexibility")
    flexible: dict[str, Any] = {}
    fixed: dict[int, int] = {}
    if how == "enumeratedSizes":
        flexible = {"enumerated": [[int(one.height), int(one.width)] for one in image.enumeratedSizes.sizes]}
    elif how == "imageSizeRange":
        height, width = image.imageSizeRange.heightRange, image.imageSizeRange.widthRange
        flexible = {
            "ranges": [
                [int(one.lowerBound), int(one.upperBound) if one.upperBound >= 0 else None] for one in (height, width)
            ]
        }
    else:
        fixed = {-2: int(image.height), -1: int(image.width)}
    return Port(name, fixed, (), flexible, about)


NAME = "coremldata.bin"
_ML_PROGRAM = 502
_TEXT = b"generic"
_HEAD = struct.Struct(f"<I24sQ{len(_TEXT)}sQ24sQ")
_MAX_NBYTES = 64 << 20


def described(directory: Location) -> bytes | None:
    """Return the serialized ModelDescription of a compiled ML Program; None if there is none, or another form.

    `directory`: that holds model.mil.
    Raises: As opening the file.
    """
    location = directory.beneath(NAME)
    if not paths.is_file(location.path):
        return None
    with closing(MappedFile(location)) as mapping, memoryview(mapping.live()) as data:
        if not _HEAD.size <= data.nbytes <= _MAX_NBYTES:
            return None
        kind, _, text_nbytes, text, _, zeros, nbytes = _HEAD.unpack_from(data)
        is_known = kind == _ML_PROGRAM and text_nbytes == len(_TEXT) and text == _TEXT and not any(zeros)
        is_whole = nbytes <= data.nbytes - _HEAD.size
        return bytes(data[_HEAD.size : _HEAD.size + nbytes]) if is_known and is_whole else None
