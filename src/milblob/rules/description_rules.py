"""Rules of the specification about a model's description: it agrees with each function of the Program."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..dtypes import DType
from ..program import schema
from ..program.types import DictionaryType, ListType, StateType, TensorType, ValueType
from ..wording import abbreviated
from .catalog import Breach, listed, quoted
from .program_rules import Signature
from .type_rules import brief

# ArrayFeatureType.ArrayDataType, and the first specification version that has it.
_ARRAY_DTYPES = {
    65552: (DType.FLOAT16, 7),
    65568: (DType.FLOAT32, 1),
    65600: (DType.FLOAT64, 1),
    131080: (DType.INT8, 10),
    131104: (DType.INT32, 1),
}
_DEFAULTS = {
    "intDefaultValue": (DType.INT32, DType.INT8),
    "floatDefaultValue": (DType.FLOAT32, DType.FLOAT16),
    "doubleDefaultValue": (DType.FLOAT64,),
}
_COLORS = {10: 1, 20: 3, 30: 3, 40: 1}  # ColorSpace -> channels
_GRAYSCALE_FLOAT16 = 40
_SCALARS = {
    "stringType": (DType.STRING,),
    "int64Type": (DType.INT64, DType.INT32),
    "doubleType": (DType.FLOAT64, DType.FLOAT32, DType.FLOAT16),
}
_FIRST_ML_PROGRAM, _FIRST_OPSET = 6, 5  # CoreML5 came with specification version 6, CoreML6 with 7
_WITH_FUNCTIONS = _WITH_STATES = 9
Range = tuple[int, int | None]  # the least and the most; None for no limit


def description_breaches(
    data: bytes | None, spec_version: int, signatures: Mapping[str, Signature], prefix: str = ""
) -> Iterator[Breach]:
    """Yield where a description, or the specification version, does not fit the Program.

    Args:
        data: serialized ModelDescription; None for a model without one.
        spec_version: Model.specificationVersion; 0 if it is not known.
        signatures: function -> its signature in the Program.
        prefix: of paths: "" or, in a pipeline, "model0/".

    Raises:
        FormatError: not a ModelDescription.
    """
    for name, signature in signatures.items():
        needed = _needed(signature.opset)
        if spec_version and needed > spec_version:
            message = f"specification version: expected {needed} or more for the opset {quoted(signature.opset)}"
            yield Breach("MIL047", f"{message}, got {spec_version}", prefix + name)
    if data is None:
        return
    description = schema.parse("ModelDescription", data)
    check = _Description(spec_version, prefix)
    if description.functions:
        yield from check.version(_WITH_FUNCTIONS, "functions in the description", "")
        named = [function.name for function in description.functions]
        yield from check.same_names("MIL046", "functions of the description", signatures, named, "")
        for function in description.functions:
            if function.name in signatures:
                yield from check.function(function, signatures[function.name], function.name)
        if description.defaultFunctionName not in named:
            message = (
                f"default function: expected one of {listed(named)}, got {quoted(description.defaultFunctionName)}"
            )
            yield Breach("MIL046", message, prefix + "description")
    elif "main" in signatures and len(signatures) == 1:
        yield from check.function(description, signatures["main"], "main")
    else:
        message = "functions of a description that names none: expected main alone"
        yield Breach("MIL046", f"{message}, got {listed(signatures)}", prefix + "description")
    outputs = {feature.name for feature in description.output} | {
        f.name for one in description.functions for f in one.output
    }
    for field in ("predictedFeatureName", "predictedProbabilitiesName"):
        name = getattr(description, field)
        if name and name not in outputs:
            message = f"{field}: expected one of the outputs {listed(outputs)}, got {quoted(name)}"
            yield Breach("MIL045", message, prefix + "description")


def _needed(opset: str) -> int:
    """The first specification version that has an opset; 0 if it is not known."""
    number = opset.removeprefix("CoreML")
    if number == opset or not number.isascii() or not number.isdecimal() or len(number) > 3:
        return 0
    return int(number) - _FIRST_OPSET + _FIRST_ML_PROGRAM


class _Description:
    """The features of one description."""

    def __init__(self, spec_version: int, prefix: str) -> None:
        self._spec_version = spec_version
        self._prefix = prefix

    def version(self, needed: int, what: str, where: str) -> Iterator[Breach]:
        """Yield a breach if something needs a newer specification version."""
        if self._spec_version and needed > self._spec_version:
            message = f"specification version: expected {needed} or more for {what}, got {self._spec_version}"
            yield Breach("MIL047", message, f"{self._prefix}description{where}")

    def same_names(
        self, rule: str, what: str, expected: Iterable[str], got: Iterable[str], where: str
    ) -> Iterator[Breach]:
        """Yield a breach if two collections of names differ."""
        due, have = sorted(expected), sorted(got)
        if due != have:
            message = f"{what}: expected {listed(due)}, got {listed(have)}"
            yield Breach(rule, message, f"{self._prefix}description{where}")

    def function(self, description: Any, signature: Signature, name: str) -> Iterator[Breach]:
        """Yield the breaches of the features of a function."""
        states: dict[str, ValueType | None] = {
            key: declared for key, declared in signature.inputs if isinstance(declared, StateType)
        }
        inputs = {key: declared for key, declared in signature.inputs if key not in states}
        groups: list[tuple[str, Any, dict[str, ValueType | None]]]
        groups = [("input", description.input, inputs), ("state", description.state, states)]
        if signature.outputs is not None:
            groups.insert(1, ("output", description.output, dict(signature.outputs)))
        for what, features, variables in groups:
            message = f"{what}s of the function {abbreviated(name)}"
            # A function may return one variable as two outputs, and its description then lists it twice.
            whole = [key for key, _ in signature.outputs or ()] if what == "output" else list(variables)
            named = [feature.name for feature in features]
            if sorted(named) != sorted(whole):
                yield from self.same_names("MIL041", message, variables, named, "")
            for feature in features:
                if variables.get(feature.name) is not None:
                    where = f".{what} {quoted(feature.name)}"
                    for rule, broken in self._feature(feature.type, variables[feature.name], what):
                        yield Breach(rule, broken, f"{self._prefix}description{where}")
                    yield from self._versions(feature.type, where)

    def _versions(self, feature: Any, where: str) -> Iterator[Breach]:
        kind = feature.WhichOneof("Type")
        array = {"multiArrayType": feature.multiArrayType, "stateType": feature.stateType.arrayType}.get(kind)
        if array is not None and array.dataType in _ARRAY_DTYPES:
            dtype, needed = _ARRAY_DTYPES[array.dataType]
            needed = max(needed, _WITH_STATES) if kind == "stateType" else needed
            yield from self.version(needed, f"a {kind.removesuffix('Type')} of {dtype}", where)
        if kind == "imageType" and feature.imageType.colorSpace == _GRAYSCALE_FLOAT16:
            yield from self.version(7, "an image of GRAYSCALE_FLOAT16", where)

    def _feature(self, feature: Any, declared: ValueType | None, what: str) -> Iterator[tuple[str, str]]:
        kind = feature.WhichOneof("Type")
        got = brief(declared)
        if kind == "stateType" and isinstance(declared, StateType):
            yield from _array(feature.stateType.arrayType, declared.wrapped, "state", what)
        elif kind == "multiArrayType" and isinstance(declared, TensorType):
            yield from _array(feature.multiArrayType, declared, "multiArray", what)
        elif kind == "imageType":
            yield from _image(feature.imageType, declared, what)
        elif kind in _SCALARS and isinstance(declared, TensorType):
            if declared.dtype not in _SCALARS[kind] or declared.shape not in ((), (1,)):
                yield "MIL042", f"type: expected {got} of the Program, got {kind}"
        elif kind == "dictionaryType" and isinstance(declared, DictionaryType):
            key = declared.key.dtype if isinstance(declared.key, TensorType) else None
            stated = DType.STRING if feature.dictionaryType.WhichOneof("KeyType") == "stringKeyType" else DType.INT64
            if key is not None and key is not stated:
                yield "MIL042", f"keys of the dictionary: expected those of {got}, got {stated}"
        elif not (kind == "sequenceType" and isinstance(declared, ListType)):
            yield "MIL042", f"type: expected {got} of the Program, got {kind or 'none'}"


def _array(array: Any, declared: ValueType | None, kind: str, what: str) -> Iterator[tuple[str, str]]:
    """Yield the breaches of an ArrayFeatureType against the tensor that it describes."""
    if not isinstance(declared, TensorType):
        yield "MIL042", f"type: expected {brief(declared)} of the Program, got {kind}"
        return
    dtype = _ARRAY_DTYPES.get(array.dataType, (None, 0))[0]
    if dtype is not declared.dtype:
        message = f"data type: expected {brief(declared)} of the Program"
        yield "MIL042", f"{message}, got {dtype or f'number {array.dataType}'}"
    default = array.WhichOneof("defaultOptionalValue")
    if default is not None and dtype not in _DEFAULTS[default]:
        yield "MIL044", f"default value: expected one of {dtype or 'a known data type'}, got {default}"
    shape = tuple(array.shape)
    flexibility = array.WhichOneof("ShapeFlexibility")
    if flexibility == "enumeratedShapes":
        shapes = [tuple(one.shape) for one in array.enumeratedShapes.shapes]
        if shape and shapes and shape not in shapes:
            yield "MIL044", f"shape: expected one of the enumerated ones, got {list(shape)}"
        for one in shapes:
            yield from _shape([(size, size) for size in one], declared, "enumerated shape")
    elif flexibility == "shapeRange":
        ranges = [_range(one) for one in array.shapeRange.sizeRanges]
        if shape and (len(shape) != len(ranges) or not all(map(_within, shape, ranges))):
            yield "MIL044", f"shape: expected one in the ranges {_ranges(ranges)}, got {list(shape)}"
        for least, most in ranges:
            if most is not None and least > most:
                yield "MIL044", f"range of a dimension: expected one that is not empty, got {_ranges([(least, most)])}"
        yield from _shape(ranges, declared, "shape range")
    elif shape or what != "output":
        yield from _shape([(size, size) for size in shape], declared, "shape")


def _shape(sizes: list[Range], declared: TensorType, what: str) -> Iterator[tuple[str, str]]:
    """Compare the shapes that a description allows with a tensor type."""
    if declared.rank < 0 or declared.variadic:
        return
    due: tuple[int | None, ...] = declared.shape
    if not due and sizes == [(1, 1)]:
        return  # a scalar is described as an array of one
    fit = len(sizes) == len(due) and all(n is None or size == (n, n) for size, n in zip(sizes, due, strict=True))
    if not fit:
        yield "MIL043", f"{what}: expected that of {brief(declared)}, got {_ranges(sizes)}"


def _range(message: Any) -> Range:
    return int(message.lowerBound), None if message.upperBound < 0 else int(message.upperBound)


def _within(size: int, bounds: Range) -> bool:
    return bounds[0] <= size and (bounds[1] is None or size <= bounds[1])


def _ranges(ranges: list[Range]) -> str:
    words = (str(least) if least == most else f"{least}..{'' if most is None else most}" for least, most in ranges)
    return abbreviated(f"[{', '.join(words)}]")


def _image(image: Any, declared: ValueType | None, what: str) -> Iterator[tuple[str, str]]:
    """Yield the breaches of an ImageFeatureType against the tensor that it describes."""
    got = brief(declared)
    channels = _COLORS.get(image.colorSpace)
    if channels is None:
        yield "MIL042", f"colour space: expected one that is known, got number {image.colorSpace}"
    if not isinstance(declared, TensorType) or len(declared.shape) != 4:
        yield "MIL040", f"image: expected a tensor of rank 4, got {got}"
        return
    half = image.colorSpace == _GRAYSCALE_FLOAT16 or what == "output"
    if declared.dtype is not DType.FLOAT32 and not (half and declared.dtype is DType.FLOAT16):
        yield "MIL040", f"image: expected a tensor of Float32, got {got}"
    if declared.shape[0] not in (1, None):
        yield "MIL040", f"image: expected N = 1, got {got}"
    if channels is not None and declared.shape[1] not in (channels, None):
        yield "MIL040", f"image: expected C = {channels} for its colours, got {got}"
    width, height = (image.width, image.width), (image.height, image.height)
    flexibility = image.WhichOneof("SizeFlexibility")
    due = TensorType(declared.dtype, declared.shape[2:], 2)
    if flexibility == "enumeratedSizes":
        for size in image.enumeratedSizes.sizes:
            yield from _shape([(size.height, size.height), (size.width, size.width)], due, "enumerated size")
    elif flexibility == "imageSizeRange":
        ranges = [_range(image.imageSizeRange.heightRange), _range(image.imageSizeRange.widthRange)]
        if not all(map(_within, (image.height, image.width), ranges)):
            message = f"size: expected one in the ranges {_ranges(ranges)}"
            yield "MIL044", f"{message}, got {[image.height, image.width]}"
        yield from _shape(ranges, due, "size range")
    else:
        yield from _shape([height, width], due, "size")
