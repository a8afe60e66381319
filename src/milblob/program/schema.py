"""The protobuf view of a Core ML model: message classes made from a table, in a descriptor pool of our own.

`schema.Program` is the class of CoreML.Specification.MILSpec.Program, and so on for every name in `MESSAGES`. Nested
ones are reached by their dotted name: `message_class("Value.BlobFileValue")`. `schema.DataType` is the MIL enum.

The tables below state names, numbers and types, which are the interface; they are not a copy of Core ML's .proto files.
test_schema.py compares them with the descriptors of the installed coremltools field by field.

protobuf (4.25 or later) is imported when the first class is asked for, never by importing this module. The classes live
in a private DescriptorPool, because the default one refuses a second set of the same full names: with it, whichever of
milblob and coremltools is imported second would fail.
"""

import functools
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

__all__ = ["DATA_TYPES", "MAX_NBYTES", "MESSAGES", "MODEL_TYPES", "OPAQUE", "message_class", "parse"]

MAX_NBYTES: Final = 2**31 - 1
"""Largest message, in bytes, that any implementation of protobuf accepts."""

DATA_TYPES: Final[Mapping[str, int]] = {
    "UNUSED_TYPE": 0, "BOOL": 1, "STRING": 2,
    "FLOAT16": 10, "FLOAT32": 11, "FLOAT64": 12, "BFLOAT16": 13,
    "INT8": 21, "INT16": 22, "INT32": 23, "INT64": 24, "INT4": 25,
    "UINT8": 31, "UINT16": 32, "UINT32": 33, "UINT64": 34,
    "UINT4": 35, "UINT2": 36, "UINT1": 37, "UINT6": 38, "UINT3": 39,
    "FLOAT8E4M3FN": 40, "FLOAT8E5M2": 41,
}  # fmt: skip
"""MIL's enum DataType, name -> MIL code, as a descriptor needs it. The facts about each dtype are in dtype.h."""

_Fields = tuple[tuple[str, int, str, str], ...]


def _messages(text: str) -> dict[str, _Fields]:
    """Read a table of messages: name -> (name, number, type, label) of each field.

    A field is its name, number, type and label. Label: none for one value, "repeated", "map" (the key is a string), or
    the name of the oneof it belongs to. A type in lower case is a scalar; any other is a message or an enum of the same
    package, or of another one if it starts with a dot. A dotted message name is nested, and its parent stands above it.
    """
    found: dict[str, _Fields] = {}
    for line in text.strip().replace(",\n", ",").splitlines():
        name, _, fields = line.partition(":")
        rows = [(*field.split(), "")[:4] for field in fields.split(",") if field]
        found[name] = tuple((field, int(number), type_name, label) for field, number, type_name, label in rows)
    return found


_MIL: Final[Mapping[str, _Fields]] = _messages("""
Program: version 1 int64, functions 2 Function map, docString 3 string, attributes 4 Value map
Function: inputs 1 NamedValueType repeated, opset 2 string, block_specializations 3 Block map, attributes 4 Value map
Block: inputs 1 NamedValueType repeated, outputs 2 string repeated, operations 3 Operation repeated,
    attributes 4 Value map
Argument: arguments 1 Argument.Binding repeated
Argument.Binding: name 1 string binding, value 2 Value binding
Operation: type 1 string, inputs 2 Argument map, outputs 3 NamedValueType repeated, blocks 4 Block repeated,
    attributes 5 Value map
NamedValueType: name 1 string, type 2 ValueType
ValueType: tensorType 1 TensorType type, listType 2 ListType type, tupleType 3 TupleType type,
    dictionaryType 4 DictionaryType type, stateType 5 StateType type
TensorType: dataType 1 DataType, rank 2 int64, dimensions 3 Dimension repeated, attributes 4 Value map
TupleType: types 1 ValueType repeated
ListType: type 1 ValueType, length 2 Dimension
DictionaryType: keyType 1 ValueType, valueType 2 ValueType
StateType: wrappedType 1 ValueType
Dimension: constant 1 Dimension.ConstantDimension dimension, unknown 2 Dimension.UnknownDimension dimension
Dimension.ConstantDimension: size 1 uint64
Dimension.UnknownDimension: variadic 1 bool
Value: docString 1 string, type 2 ValueType, immediateValue 3 Value.ImmediateValue value,
    blobFileValue 5 Value.BlobFileValue value
Value.ImmediateValue: tensor 1 TensorValue value, tuple 2 TupleValue value, list 3 ListValue value,
    dictionary 4 DictionaryValue value
Value.BlobFileValue: fileName 1 string, offset 2 uint64
TensorValue: floats 1 TensorValue.RepeatedFloats value, ints 2 TensorValue.RepeatedInts value,
    bools 3 TensorValue.RepeatedBools value, strings 4 TensorValue.RepeatedStrings value,
    longInts 5 TensorValue.RepeatedLongInts value, doubles 6 TensorValue.RepeatedDoubles value,
    bytes 7 TensorValue.RepeatedBytes value
TensorValue.RepeatedFloats: values 1 float repeated
TensorValue.RepeatedDoubles: values 1 double repeated
TensorValue.RepeatedInts: values 1 int32 repeated
TensorValue.RepeatedLongInts: values 1 int64 repeated
TensorValue.RepeatedBools: values 1 bool repeated
TensorValue.RepeatedStrings: values 1 string repeated
TensorValue.RepeatedBytes: values 1 bytes
TupleValue: values 1 Value repeated
ListValue: values 1 Value repeated
DictionaryValue: values 1 DictionaryValue.KeyValuePair repeated
DictionaryValue.KeyValuePair: key 1 Value, value 2 Value
""")

# The types of a Model. All have name and number, so that `WhichOneof("Type")` names unsupported models too; the
# messages of types that milblob does not read have no fields here, and keep their content as unknown fields.
_MODEL_TYPES: Final = (
    (200, "pipelineClassifier", "PipelineClassifier"),
    (201, "pipelineRegressor", "PipelineRegressor"),
    (202, "pipeline", "Pipeline"),
    (300, "glmRegressor", "GLMRegressor"),
    (301, "supportVectorRegressor", "SupportVectorRegressor"),
    (302, "treeEnsembleRegressor", "TreeEnsembleRegressor"),
    (303, "neuralNetworkRegressor", "NeuralNetworkRegressor"),
    (304, "bayesianProbitRegressor", "BayesianProbitRegressor"),
    (400, "glmClassifier", "GLMClassifier"),
    (401, "supportVectorClassifier", "SupportVectorClassifier"),
    (402, "treeEnsembleClassifier", "TreeEnsembleClassifier"),
    (403, "neuralNetworkClassifier", "NeuralNetworkClassifier"),
    (404, "kNearestNeighborsClassifier", "KNearestNeighborsClassifier"),
    (500, "neuralNetwork", "NeuralNetwork"),
    (501, "itemSimilarityRecommender", "ItemSimilarityRecommender"),
    (502, "mlProgram", ".MILSpec.Program"),
    (555, "customModel", "CustomModel"),
    (556, "linkedModel", "LinkedModel"),
    (560, "classConfidenceThresholding", "ClassConfidenceThresholding"),
    (600, "oneHotEncoder", "OneHotEncoder"),
    (601, "imputer", "Imputer"),
    (602, "featureVectorizer", "FeatureVectorizer"),
    (603, "dictVectorizer", "DictVectorizer"),
    (604, "scaler", "Scaler"),
    (606, "categoricalMapping", "CategoricalMapping"),
    (607, "normalizer", "Normalizer"),
    (609, "arrayFeatureExtractor", "ArrayFeatureExtractor"),
    (610, "nonMaximumSuppression", "NonMaximumSuppression"),
    (900, "identity", "Identity"),
    (2000, "textClassifier", ".CoreMLModels.TextClassifier"),
    (2001, "wordTagger", ".CoreMLModels.WordTagger"),
    (2002, "visionFeaturePrint", ".CoreMLModels.VisionFeaturePrint"),
    (2003, "soundAnalysisPreprocessing", ".CoreMLModels.SoundAnalysisPreprocessing"),
    (2004, "gazetteer", ".CoreMLModels.Gazetteer"),
    (2005, "wordEmbedding", ".CoreMLModels.WordEmbedding"),
    (2006, "audioFeaturePrint", ".CoreMLModels.AudioFeaturePrint"),
    (3000, "serializedModel", "SerializedModel"),
)

MODEL_TYPES: Final[Mapping[int, str]] = {number: name for number, name, _ in _MODEL_TYPES}
"""Field number -> name of everything a Model can be (its oneof `Type`); 502 is mlProgram."""

_MODEL: Final[Mapping[str, _Fields]] = _messages("""
Model: specificationVersion 1 int32, description 2 ModelDescription, isUpdatable 10 bool
Pipeline: models 1 Model repeated, names 2 string repeated
PipelineClassifier: pipeline 1 Pipeline
PipelineRegressor: pipeline 1 Pipeline
SerializedModel: identifier 1 string, model 2 bytes
ModelDescription: functions 20 FunctionDescription repeated, defaultFunctionName 21 string, metadata 100 Metadata,
    input 1 FeatureDescription repeated, output 10 FeatureDescription repeated, state 13 FeatureDescription repeated,
    predictedFeatureName 11 string, predictedProbabilitiesName 12 string, trainingInput 50 FeatureDescription repeated
FunctionDescription: name 1 string, input 2 FeatureDescription repeated, output 3 FeatureDescription repeated,
    state 6 FeatureDescription repeated, predictedFeatureName 4 string, predictedProbabilitiesName 5 string
Metadata: shortDescription 1 string, versionString 2 string, author 3 string, license 4 string,
    userDefined 100 string map
FeatureDescription: name 1 string, shortDescription 2 string, type 3 FeatureType
FeatureType: int64Type 1 Int64FeatureType Type, doubleType 2 DoubleFeatureType Type,
    stringType 3 StringFeatureType Type, imageType 4 ImageFeatureType Type, multiArrayType 5 ArrayFeatureType Type,
    dictionaryType 6 DictionaryFeatureType Type, sequenceType 7 SequenceFeatureType Type,
    stateType 8 StateFeatureType Type, isOptional 1000 bool
Int64FeatureType:
DoubleFeatureType:
StringFeatureType:
SizeRange: lowerBound 1 uint64, upperBound 2 int64
ImageFeatureType: width 1 int64, height 2 int64,
    enumeratedSizes 21 ImageFeatureType.EnumeratedImageSizes SizeFlexibility,
    imageSizeRange 31 ImageFeatureType.ImageSizeRange SizeFlexibility, colorSpace 3 ImageFeatureType.ColorSpace
ImageFeatureType.ImageSize: width 1 uint64, height 2 uint64
ImageFeatureType.EnumeratedImageSizes: sizes 1 ImageFeatureType.ImageSize repeated
ImageFeatureType.ImageSizeRange: widthRange 1 SizeRange, heightRange 2 SizeRange
ArrayFeatureType: shape 1 int64 repeated, dataType 2 ArrayFeatureType.ArrayDataType,
    enumeratedShapes 21 ArrayFeatureType.EnumeratedShapes ShapeFlexibility,
    shapeRange 31 ArrayFeatureType.ShapeRange ShapeFlexibility, intDefaultValue 41 int32 defaultOptionalValue,
    floatDefaultValue 51 float defaultOptionalValue, doubleDefaultValue 61 double defaultOptionalValue
ArrayFeatureType.Shape: shape 1 int64 repeated
ArrayFeatureType.EnumeratedShapes: shapes 1 ArrayFeatureType.Shape repeated
ArrayFeatureType.ShapeRange: sizeRanges 1 SizeRange repeated
DictionaryFeatureType: int64KeyType 1 Int64FeatureType KeyType, stringKeyType 2 StringFeatureType KeyType
SequenceFeatureType: int64Type 1 Int64FeatureType Type, stringType 3 StringFeatureType Type, sizeRange 101 SizeRange
StateFeatureType: arrayType 1 ArrayFeatureType Type
""")

_ENUMS: Final[Mapping[str, Mapping[str, int]]] = {
    "DataType": DATA_TYPES,
    "ImageFeatureType.ColorSpace": {
        "INVALID_COLOR_SPACE": 0, "GRAYSCALE": 10, "RGB": 20, "BGR": 30, "GRAYSCALE_FLOAT16": 40,
    },
    "ArrayFeatureType.ArrayDataType": {
        "INVALID_ARRAY_DATA_TYPE": 0,
        "FLOAT16": 65552, "FLOAT32": 65568, "DOUBLE": 65600, "INT8": 131080, "INT32": 131104,
    },
}  # fmt: skip

OPAQUE: Final = frozenset({t.rpartition(".")[2] for _, _, t in _MODEL_TYPES} - set(_MIL) - set(_MODEL))
"""Messages without fields here: they keep the bytes of the file as unknown fields, and write them back unchanged."""

_ROOT: Final = "CoreML.Specification"
# Package below the root -> its messages, in the order the files depend on one another.
_PACKAGES: Final[Mapping[str, Mapping[str, _Fields]]] = {
    ".MILSpec": _MIL,
    ".CoreMLModels": {t.rpartition(".")[2]: () for _, _, t in _MODEL_TYPES if t.startswith(".CoreMLModels.")},
    "": {
        **{t: () for _, _, t in _MODEL_TYPES if t in OPAQUE},
        **_MODEL,
        "Model": (*_MODEL["Model"], *((name, number, t, "Type") for number, name, t in _MODEL_TYPES)),
    },
}

MESSAGES: Final[Mapping[str, str]] = {
    name: f"{_ROOT}{package}.{name}" for package, messages in _PACKAGES.items() for name in messages
}
"""Name here -> full name in Core ML, for every message there is a class of."""

_LOCK: Final = threading.Lock()


def message_class(name: str) -> Any:
    """Return the class of a message.

    `name`: a key of `MESSAGES`, such as "Program" or "Value.BlobFileValue".
    Returns: A subclass of google.protobuf.message.Message, the same object on every call; typed Any because its fields
    are made at run time. It is not coremltools' class of the same name: the two exchange bytes.
    Raises: KeyError: the message is not known. ImportError: protobuf is not installed.
    """
    if name not in MESSAGES:
        raise KeyError(f"message name: expected one of milblob.schema.MESSAGES, got {name!r}")
    return _built()[name]


def parse(name: str, data: Any, *, file: str | None = None) -> Any:
    """Parse the bytes of one message.

    `name`: a key of `MESSAGES`. `data`: any C-contiguous buffer, at most `MAX_NBYTES` bytes. Copied if it is not
    `bytes`; not kept. `file`: name of the file the bytes come from, for the error.
    Returns: A new message that owns its memory. Fields unknown to the tables are kept and written back by
    SerializeToString.
    Raises: FormatError: the bytes are not such a message, or nest deeper than protobuf goes. UnsupportedError: there
    are more than `MAX_NBYTES` bytes. KeyError: the message is not known. TypeError: `data` is not a buffer.
    """
    message = message_class(name)()
    with memoryview(data) as view:
        if view.nbytes > MAX_NBYTES:
            raise UnsupportedError(
                f"{name} message: expected at most {MAX_NBYTES} bytes (the limit of protobuf), got {view.nbytes}"
            )
        contents = data if isinstance(data, bytes) else view.tobytes()
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(contents)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The pure-Python implementation raises the last two, for text that is not UTF-8 and for deep nesting.
        raise FormatError(
            f"{name} message: expected protobuf wire format, got {len(contents)} bytes that do not parse ({error})",
            file=file,
        ) from error
    return message


def _built() -> Mapping[str, Any]:
    # With the lock, two threads that come first agree on one pool; classes of two pools would be incompatible.
    with _LOCK:
        return _build()


@functools.cache
def _build() -> Mapping[str, Any]:
    """Make the pool; return all message classes by name, and the enum wrapper as "DataType"."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in _files():
        pool.AddSerializedFile(file.SerializeToString())
    built: dict[str, Any] = {
        name: GetMessageClass(pool.FindMessageTypeByName(full_name)) for name, full_name in MESSAGES.items()
    }
    built["DataType"] = EnumTypeWrapper(pool.FindEnumTypeByName(f"{_ROOT}.MILSpec.DataType"))
    return built


def _files() -> "Iterator[FileDescriptorProto]":
    """Yield one file descriptor for each package."""
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

    dependencies: list[str] = []
    for package, messages in _PACKAGES.items():
        path = f"milblob{package or '.Model'}.proto"
        file = FileDescriptorProto(name=path, package=_ROOT + package, syntax="proto3", dependency=dependencies)
        protos: dict[str, DescriptorProto] = {}
        for name in messages:
            parent, _, leaf = name.rpartition(".")
            protos[name] = (protos[parent].nested_type if parent else file.message_type).add(name=leaf)
        for name, values in _ENUMS.items():
            parent, _, leaf = name.rpartition(".")
            if parent in protos or (not parent and package == ".MILSpec"):
                enum = (protos[parent] if parent else file).enum_type.add(name=leaf)
                for value, number in values.items():
                    enum.value.add(name=value, number=number)
        for name, fields in messages.items():
            for field in fields:
                _add_field(protos[name], package, name, *field)
        dependencies.append(path)
        yield file


def _add_field(
    message: "DescriptorProto", package: str, message_name: str, name: str, number: int, type_name: str, label: str
) -> None:
    """Add one row of a table to the descriptor of its message."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto

    repeated = label in ("repeated", "map")
    field = message.field.add(name=name, number=number)
    field.label = Proto.LABEL_REPEATED if repeated else Proto.LABEL_OPTIONAL
    if label == "map":
        # By definition a map is a repeated nested message <CamelCase>Entry with a key, a value and this option.
        entry = message.nested_type.add(name="".join(w[0].upper() + w[1:] for w in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=Proto.TYPE_STRING, label=Proto.LABEL_OPTIONAL)
        _set_type(entry.field.add(name="value", number=2, label=Proto.LABEL_OPTIONAL), package, type_name)
        _set_type(field, package, f"{message_name}.{entry.name}")
        return
    _set_type(field, package, type_name)
    if label and not repeated:
        oneofs = [oneof.name for oneof in message.oneof_decl]
        if label not in oneofs:
            message.oneof_decl.add(name=label)
            oneofs.append(label)
        field.oneof_index = oneofs.index(label)


def _set_type(field: "FieldDescriptorProto", package: str, type_name: str) -> None:
    """Set the type of a field from a type as the tables write it."""
    if type_name.islower():
        field.type = field.Type.Value("TYPE_" + type_name.upper())
        return
    field.type = field.TYPE_ENUM if type_name in _ENUMS else field.TYPE_MESSAGE
    field.type_name = f".{_ROOT}{type_name}" if type_name.startswith(".") else f".{_ROOT}{package}.{type_name}"


def __getattr__(name: str) -> Any:
    """Return `schema.Program` and the like; the first access to one imports protobuf."""
    if name in MESSAGES or name == "DataType":
        return _built()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(name for name in MESSAGES if "." not in name), "DataType"])
