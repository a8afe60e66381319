"""The metadata of a model: author and licence, producer, and its inputs, outputs and states.

Three sources, one result: the ModelDescription of a model file (`Metadata.from_model`), the metadata.json of a compiled
model (`Metadata.from_metadata_json`), and, for a compiled model without that file, the inputs of its function
(`Metadata.from_function`). Nothing here is needed to read a weight.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..errors import FormatError
from ..program import schema

__all__ = ["Feature", "FeatureKind", "Metadata", "read_build_info"]

FeatureKind = Literal["multiArray", "image", "string", "int64", "double", "dictionary", "sequence", "state", "unknown"]
Shape = tuple[int | None, ...]

_VERSION_KEY: Final = "com.github.apple.coremltools.version"
_SOURCE_KEY: Final = "com.github.apple.coremltools.source"

_MIL_DTYPES: Final = {code: name.lower() for name, code in schema.DATA_TYPES.items() if code}
# ArrayFeatureType.ArrayDataType (0x10000 is "float", 0x20000 "int", the rest is the width in bits) and ColorSpace.
_ARRAY_DTYPES: Final = {65552: "float16", 65568: "float32", 65600: "float64", 131080: "int8", 131104: "int32"}
_COLOR_SPACES: Final = {10: "GRAYSCALE", 20: "RGB", 30: "BGR", 40: "GRAYSCALE_FLOAT16"}
# The names in metadata.json for the same, and for the kinds of features. Real files confirm the multi-arrays; the other
# names come from DataType.cpp in coremltools' model library, except "Int8", "State" and "Grayscale16Half", which are
# newer and not confirmed by a file. A name that is not listed reads as "unknown".
_JSON_DTYPES: Final = {
    "Float16": "float16", "Float32": "float32", "Double": "float64", "Int8": "int8", "Int32": "int32",
    "Int64": "int64", "String": "string",
}  # fmt: skip
_JSON_COLOR_SPACES: Final = {
    "RGB": "RGB", "BGR": "BGR", "Grayscale": "GRAYSCALE", "Grayscale16Half": "GRAYSCALE_FLOAT16",
}  # fmt: skip
_JSON_TYPES: Final[Mapping[str, FeatureKind]] = {
    "MultiArray": "multiArray", "Image": "image", "String": "string", "Int64": "int64", "Double": "double",
    "Dictionary": "dictionary", "Sequence": "sequence", "State": "state",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Feature:
    """One input, output or state. `str(feature)` is its type in one line, such as "multiArray float16 [1, 128, ?]".

    Attributes:
        name: as the model calls it.
        type: which kind; "unknown" if the model states none, or one newer than this table.
        shape: elements per axis, None for an axis that may vary; (width, height) of an image, (count,) of a sequence.
            None where no shape is stated, so even the rank is open: Core ML writes none for outputs whose shape
            follows from a flexible input, and none for scalars.
        dtype: element dtype of an array, a state or a sequence ("float16"), colour space of an image ("RGB"), key dtype
            of a dictionary; "" for the scalar types; "unknown" where it is not stated or newer than this table.
        optional: True if a prediction may leave it out.
        description: one sentence by the author, often empty.
    """

    name: str
    type: FeatureKind
    shape: Shape | None = None
    dtype: str = ""
    optional: bool = False
    description: str = ""

    def __str__(self) -> str:
        words: list[str] = [self.type]
        if self.dtype:
            words.append(self.dtype)
        if self.shape is not None:
            axes = ["?" if count is None else str(count) for count in self.shape]
            words.append("x".join(axes) if self.type == "image" else f"[{', '.join(axes)}]")
        if self.optional:
            words.append("optional")
        return " ".join(words)


Features = tuple[Feature, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a model. A missing text is "", a missing number 0, a missing collection empty.

    Attributes:
        author, description, license, version: free text by the author.
        user_defined: further keys and values, including the converter's.
        spec_version: Core ML's specification version, 6 or more for ML programs.
        opset: the operation set of the functions, such as "CoreML7" or "ios17"; "CoreML7, CoreML8" if they differ.
        opsets: function -> operation set.
        producer: what wrote the model, such as "coremltools 9.0".
        inputs, outputs, states: of the only or the default function.
        default_function: its name where the model has several functions, else "".
        functions: function -> (inputs, outputs), for models that have several.
        function_states: function -> states, with the keys of `functions`.
    """

    author: str = ""
    description: str = ""
    license: str = ""
    version: str = ""
    user_defined: dict[str, str] = field(default_factory=dict)
    spec_version: int = 0
    opset: str = ""
    opsets: dict[str, str] = field(default_factory=dict)
    producer: str = ""
    inputs: Features = ()
    outputs: Features = ()
    states: Features = ()
    default_function: str = ""
    functions: dict[str, tuple[Features, Features]] = field(default_factory=dict)
    function_states: dict[str, Features] = field(default_factory=dict)

    @classmethod
    def from_model(
        cls,
        description: Any,
        spec_version: int,
        *,
        opset: str | Mapping[str, str] = "",
        build_info: Mapping[str, str] | None = None,
    ) -> "Metadata":
        """Read the description of a model file.

        Args:
            description: serialized ModelDescription (field 2 of Model), any buffer; or parsed, ours or coremltools'.
            spec_version: Model.specificationVersion.
            opset: that of the only function, or function -> opset.
            build_info: the Program's buildInfo (see `read_build_info`); names the producer if user_defined does not.

        Raises:
            FormatError: not a ModelDescription, two functions of one name, or a default function that does not exist.
            UnsupportedError: longer than protobuf allows.
        """
        if not hasattr(description, "WhichOneof"):
            description = schema.parse("ModelDescription", description)
        about = description.metadata
        user_defined = dict(sorted(about.userDefined.items()))  # protobuf gives them in any order
        signatures = [
            (f.name, _features(f.input), _features(f.output), _features(f.state)) for f in description.functions
        ]
        top = _features(description.input), _features(description.output), _features(description.state)
        return cls(
            author=about.author,
            description=about.shortDescription,
            license=about.license,
            version=about.versionString,
            user_defined=user_defined,
            spec_version=spec_version,
            producer=_producer(user_defined, build_info),
            **_opset_fields(opset),
            **_function_fields("ModelDescription", signatures, description.defaultFunctionName, top),
        )

    @classmethod
    def from_metadata_json(
        cls, contents: Any, *, opset: str | Mapping[str, str] = "", build_info: Mapping[str, str] | None = None
    ) -> "Metadata":
        """Read the metadata.json of a compiled model.

        Args:
            contents: the value that json.load returned, a list of one object. None if the file is missing.
            opset: that of the only function, or function -> opset; metadata.json does not hold it.
            build_info: the Program's buildInfo (see `read_build_info`); names the producer if user_defined does not.

        Returns:
            The metadata. Keys that are missing leave their fields empty, but a feature has a name and a type.

        Raises:
            FormatError: a JSON type that Core ML's compiler would not write there, a feature without name or type, two
                functions of one name, or a default function that does not exist.
        """
        if contents is None:
            return cls(producer=_producer({}, build_info), **_opset_fields(opset))
        if not isinstance(contents, list) or len(contents) != 1:
            raise FormatError(f"metadata.json: expected a list of one object, got {_kind(contents)}")
        top = _Object("metadata.json", contents[0])
        user_defined = top.object("userDefinedMetadata").strings()
        signatures = [(f.string("name", required=True), *f.signature()) for f in top.objects("functions")]
        return cls(
            author=top.string("author"),
            description=top.string("shortDescription"),
            license=top.string("license"),
            version=top.string("version"),
            user_defined=user_defined,
            spec_version=top.count("specificationVersion"),
            producer=_producer(user_defined, build_info),
            **_opset_fields(opset),
            **_function_fields(top.path, signatures, top.string("defaultFunctionName"), top.signature()),
        )

    @classmethod
    def from_function(
        cls, inputs: Iterable[Any], *, opset: str | Mapping[str, str] = "", build_info: Mapping[str, str] | None = None
    ) -> "Metadata":
        """Make metadata from the inputs of a MIL function, for a model without a better source.

        Args:
            inputs: NamedValueType messages (Function.inputs), ours or coremltools'. States among them become `states`.
                In a Program an image is a tensor, and there are neither descriptions nor bounds of flexible axes.
            opset: that of the function, or function -> opset.
            build_info: the Program's buildInfo (see `read_build_info`).

        Raises:
            FormatError: a type that no model input has (a tuple, a list of lists), or a rank that is not the number of
                dimensions.
        """
        features = [_from_named_type(named) for named in inputs]
        return cls(
            producer=_producer({}, build_info),
            inputs=tuple(f for f in features if f.type != "state"),
            states=tuple(f for f in features if f.type == "state"),
            **_opset_fields(opset),
        )


def read_build_info(value: Any) -> dict[str, str]:
    """Read the `buildInfo` attribute of a Program, where converter and compiler leave their versions.

    `value`: Value message, ours or coremltools', of a dictionary from string to string.
    Raises: FormatError: the value is something else.
    """

    def text(side: Any) -> str:
        values = side.immediateValue.tensor.strings.values
        if len(values) != 1:
            raise FormatError(f"buildInfo: expected one string on either side of an entry, got {len(values)}")
        return str(values[0])

    kind = value.immediateValue.WhichOneof("value")
    if kind != "dictionary":
        raise FormatError(f"buildInfo: expected a dictionary, got {kind or 'no immediate value'}")
    return {text(pair.key): text(pair.value) for pair in value.immediateValue.dictionary.values}


def _producer(user_defined: Mapping[str, str], build_info: Mapping[str, str] | None) -> str:
    """Return the producer of a model: the converter, else the framework the model came from, else the compiler."""
    info = build_info or {}
    if version := user_defined.get(_VERSION_KEY) or info.get("coremltools-version"):
        return f"coremltools {version}"
    if source := user_defined.get(_SOURCE_KEY):
        return source
    version = info.get("coremlc-version")
    return f"coremlc {version}" if version else ""


def _opset_fields(opset: str | Mapping[str, str]) -> dict[str, Any]:
    if isinstance(opset, str):
        return {"opset": opset}
    return {"opset": ", ".join(sorted({name for name in opset.values() if name})), "opsets": dict(opset)}


def _function_fields(
    what: str,
    signatures: Sequence[tuple[str, Features, Features, Features]],
    default: str,
    top: tuple[Features, Features, Features],
) -> dict[str, Any]:
    """Return the fields of Metadata that concern functions.

    A model file with functions has no features at the top level; metadata.json repeats those of the default function.
    """
    functions = {name: (inputs, outputs) for name, inputs, outputs, _ in signatures}
    function_states = {name: states for name, _, _, states in signatures}
    if len(functions) != len(signatures):
        raise FormatError(f"{what} functions: expected {len(signatures)} distinct names, got {len(functions)}")
    if functions and default:
        if default not in functions:
            raise FormatError(f"{what} defaultFunctionName: expected the name of a function, got {_shown(default)}")
        top = (*functions[default], function_states[default])
    return {
        "inputs": top[0],
        "outputs": top[1],
        "states": top[2],
        "default_function": default if functions else "",
        "functions": functions,
        "function_states": function_states,
    }


# -- from protobuf ----------------------------------------------------------------------------------------------------


def _features(descriptions: Iterable[Any]) -> Features:
    return tuple(_from_description(description) for description in descriptions)


def _from_description(description: Any) -> Feature:
    """Return the feature of a FeatureDescription message."""
    kind = description.type.WhichOneof("Type")
    value: Any = getattr(description.type, kind) if kind else None
    shape: Shape | None = None
    dtype = ""
    if kind == "multiArrayType":
        shape, dtype = _array_shape(value), _ARRAY_DTYPES.get(value.dataType, "unknown")
    elif kind == "stateType":
        shape, dtype = _array_shape(value.arrayType), _ARRAY_DTYPES.get(value.arrayType.dataType, "unknown")
    elif kind == "imageType":
        shape, dtype = _image_shape(value), _COLOR_SPACES.get(value.colorSpace, "unknown")
    elif kind == "dictionaryType":
        dtype = _key_dtype(value.WhichOneof("KeyType"))
    elif kind == "sequenceType":
        shape, dtype = (_range_count(value.sizeRange),), _key_dtype(value.WhichOneof("Type"))
    return Feature(
        name=description.name,
        type=kind.removesuffix("Type") if kind else "unknown",
        shape=shape,
        dtype=dtype,
        optional=description.type.isOptional,
        description=description.shortDescription,
    )


def _key_dtype(kind: str | None) -> str:
    return "int64" if kind in ("int64KeyType", "int64Type") else "string" if kind else "unknown"


def _range_count(size: Any) -> int | None:
    """Return the only count that a SizeRange allows, None if it allows several. A negative upper bound means none."""
    return int(size.upperBound) if size.lowerBound == size.upperBound else None


def _array_shape(array: Any) -> Shape | None:
    """Return the shape of an ArrayFeatureType. The allowed shapes take precedence over its default shape."""
    kind = array.WhichOneof("ShapeFlexibility")
    if kind == "shapeRange" and array.shapeRange.sizeRanges:
        return tuple(_range_count(size) for size in array.shapeRange.sizeRanges)
    if kind == "enumeratedShapes" and array.enumeratedShapes.shapes:
        return _common_shape([shape.shape for shape in array.enumeratedShapes.shapes])
    return _common_shape([array.shape])


def _image_shape(image: Any) -> Shape | None:
    """Return (width, height) of an ImageFeatureType."""
    kind = image.WhichOneof("SizeFlexibility")
    if kind == "imageSizeRange":
        return _range_count(image.imageSizeRange.widthRange), _range_count(image.imageSizeRange.heightRange)
    if kind == "enumeratedSizes" and image.enumeratedSizes.sizes:
        return _common_shape([(size.width, size.height) for size in image.enumeratedSizes.sizes])
    return _common_shape([(image.width, image.height)]) if image.width and image.height else None


def _common_shape(shapes: Sequence[Sequence[int]]) -> Shape | None:
    """Return the shape with None at each axis where shapes differ (or hold -1); None if their ranks differ or are 0."""
    if len({len(shape) for shape in shapes}) != 1 or not len(shapes[0]):
        return None
    return tuple(
        counts[0] if len(set(counts)) == 1 and counts[0] >= 0 else None for counts in zip(*shapes, strict=True)
    )


def _from_named_type(named: Any) -> Feature:
    """Return the feature of a NamedValueType message."""
    what = f"type of {_shown(named.name)}"
    kind = named.type.WhichOneof("type")
    if kind == "tensorType":
        return Feature(named.name, "multiArray", *_tensor(named.type.tensorType, what))
    if kind == "stateType":
        return Feature(named.name, "state", *_tensor(_tensor_type(named.type.stateType.wrappedType, what), what))
    if kind == "dictionaryType":
        _, dtype = _tensor(_tensor_type(named.type.dictionaryType.keyType, what), what)
        return Feature(named.name, "dictionary", None, dtype)
    if kind == "listType":
        _, dtype = _tensor(_tensor_type(named.type.listType.type, what), what)
        return Feature(named.name, "sequence", (_dimension_count(named.type.listType.length),), dtype)
    raise FormatError(f"{what}: expected a tensor, state, list or dictionary, got {kind or 'nothing'}")


def _tensor_type(value_type: Any, what: str) -> Any:
    kind = value_type.WhichOneof("type")
    if kind != "tensorType":
        raise FormatError(f"{what}: expected a tensor inside, got {kind or 'nothing'}")
    return value_type.tensorType


def _tensor(tensor: Any, what: str) -> tuple[Shape | None, str]:
    """Return shape and dtype of a TensorType. Rank -1, or a variadic dimension, leaves the rank open."""
    dtype = _MIL_DTYPES.get(tensor.dataType, "unknown")
    if tensor.rank == -1 or any(dimension.unknown.variadic for dimension in tensor.dimensions):
        return None, dtype
    if tensor.rank != len(tensor.dimensions):
        raise FormatError(f"{what}: expected {tensor.rank} dimensions for its rank, got {len(tensor.dimensions)}")
    return tuple(_dimension_count(dimension) for dimension in tensor.dimensions), dtype


def _dimension_count(dimension: Any) -> int | None:
    return int(dimension.constant.size) if dimension.WhichOneof("dimension") == "constant" else None


# -- from metadata.json -----------------------------------------------------------------------------------------------
# Core ML's compiler writes shapes and flags as strings: "[1, 128, 17]", "[[1, 1], [1, -1]]", "0".

# Nineteen digits hold every int64. The bound also keeps int() from refusing longer ones with an error of its own.
_INT: Final = r"-?[0-9]{1,19}"
_INTS: Final = rf"\[(?:{_INT}(?:, ?{_INT})*)?\]"
_INTS_PATTERN: Final = re.compile(_INTS)
_NESTED_PATTERN: Final = re.compile(rf"\[(?:{_INTS}(?:, ?{_INTS})*)?\]")


class _Object:
    """A JSON object and the path to it; every access checks the JSON type. Missing keys give the empty value."""

    __slots__ = ("_members", "path")

    def __init__(self, path: str, members: Any) -> None:
        if not isinstance(members, dict):
            raise FormatError(f"{path}: expected an object, got {_kind(members)}")
        self.path = path
        self._members = members

    def string(self, key: str, *, required: bool = False) -> str:
        if key not in self._members and not required:
            return ""
        value = self._members.get(key)
        if not isinstance(value, str):
            raise FormatError(f"{self.path} {key}: expected a string, got {self._kind_of(key)}")
        return value

    def count(self, key: str) -> int:
        value = self._members.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise FormatError(f"{self.path} {key}: expected a number from 0 to 2147483647, got {self._kind_of(key)}")
        return value

    def flag(self, key: str) -> bool:
        value = self.string(key)
        if value not in ("", "0", "1"):
            raise FormatError(f'{self.path} {key}: expected "0" or "1", got {_shown(value)}')
        return value == "1"

    def object(self, key: str) -> "_Object":
        return _Object(f"{self.path} {key}", self._members.get(key, {}))

    def objects(self, key: str) -> "list[_Object]":
        value = self._members.get(key, [])
        if not isinstance(value, list):
            raise FormatError(f"{self.path} {key}: expected a list, got {_kind(value)}")
        return [_Object(f"{self.path} {key}[{index}]", members) for index, members in enumerate(value)]

    def strings(self) -> dict[str, str]:
        if not all(isinstance(text, str) for entry in self._members.items() for text in entry):
            raise FormatError(f"{self.path}: expected an object of strings, got other values in it")
        return dict(self._members)

    def ints(self, key: str) -> list[int]:
        return _ints(self._matched(key, _INTS_PATTERN, "a list of integers"))

    def nested_ints(self, key: str) -> list[list[int]]:
        text = self._matched(key, _NESTED_PATTERN, "a list of lists of integers")
        return [_ints(match) for match in _INTS_PATTERN.findall(text[1:-1])]

    def shape(self, ranges: str, enumerated: str, default: list[int]) -> Shape | None:
        """Return the shape of an array or image. The allowed shapes take precedence over its default."""
        if pairs := self.nested_ints(ranges):
            if any(len(pair) != 2 for pair in pairs):
                raise FormatError(
                    f"{self.path} {ranges}: expected pairs of integers, got {_shown(self.string(ranges))}"
                )
            return tuple(low if 0 <= low == high else None for low, high in pairs)
        return _common_shape(self.nested_ints(enumerated) or [default])

    def signature(self) -> tuple[Features, Features, Features]:
        """Return inputs, outputs and states of a model or a function."""

        def features(key: str) -> Features:
            return tuple(_from_json(member) for member in self.objects(key))

        return features("inputSchema"), features("outputSchema"), features("stateSchema")

    def _kind_of(self, key: str) -> str:
        return _kind(self._members[key]) if key in self._members else "nothing"

    def _matched(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self.string(key) or "[]"
        if not pattern.fullmatch(value):
            raise FormatError(f"{self.path} {key}: expected {expected}, got {_shown(value)}")
        return value


def _from_json(member: _Object) -> Feature:
    """Return the feature of one object of inputSchema, outputSchema or stateSchema."""
    kind = _JSON_TYPES.get(member.string("type", required=True), "unknown")
    shape: Shape | None = None
    dtype = ""
    if kind in ("multiArray", "state"):
        dtype = _JSON_DTYPES.get(member.string("dataType"), "unknown")
        shape = member.shape("shapeRange", "enumeratedShapes", member.ints("shape"))
    elif kind == "image":
        dtype = _JSON_COLOR_SPACES.get(member.string("colorspace"), "unknown")
        shape = member.shape("sizeRange", "enumeratedSizes", _json_size(member))
    elif kind == "dictionary":
        dtype = _JSON_DTYPES.get(member.string("keyType"), "unknown")
    elif kind == "sequence":
        dtype = _JSON_DTYPES.get(member.string("valueType"), "unknown")
        bounds = member.ints("sizeRange")
        shape = (bounds[0] if len(bounds) == 2 and 0 <= bounds[0] == bounds[1] else None,)
    return Feature(
        name=member.string("name", required=True),
        type=kind,
        shape=shape,
        dtype=dtype,
        optional=member.flag("isOptional"),
        description=member.string("shortDescription"),
    )


def _json_size(member: _Object) -> list[int]:
    """Return [width, height], each a string of digits in metadata.json; [] if there are none."""
    texts = {key: text for key in ("width", "height") if (text := member.string(key))}
    for key, text in texts.items():
        if not re.fullmatch(_INT, text):
            raise FormatError(f"{member.path} {key}: expected an integer, got {_shown(text)}")
    return [int(text) for text in texts.values()] if len(texts) == 2 else []


def _ints(text: str) -> list[int]:
    """Return the integers of a list that has matched _INTS."""
    return [int(item) for item in text[1:-1].split(",")] if len(text) > 2 else []


def _kind(value: Any) -> str:
    """Return the JSON name of the type of a value. Never its contents, which may have any size and depth."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)


def _shown(text: str) -> str:
    """Quote a foreign string for an error message: on one line, at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
