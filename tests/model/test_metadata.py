"""milblob.model.metadata: what a model says about itself, from each of its three sources, and from hostile ones."""

import copy
import dataclasses
import random
import re

import pytest

from milblob.errors import FormatError
from milblob.model.metadata import Feature, Metadata, read_build_info
from milblob.program import schema
from peers import WITHOUT
from thorough import share, sized

GRAMMAR = re.compile(r"[a-zA-Z][^\n]*: expected [^\n]+, got [^\n]*[^.\n]")


def description():
    """Return a ModelDescription with one feature of every type and every way to state a shape."""
    d = schema.ModelDescription()
    d.metadata.author = "A. Uthor"
    d.metadata.license = "MIT"
    d.metadata.shortDescription = "does things"
    d.metadata.versionString = "1.2"
    d.metadata.userDefined["com.github.apple.coremltools.version"] = "9.0"
    d.metadata.userDefined["com.github.apple.coremltools.source"] = "torch==2.9.1"

    array = d.input.add(name="fixed", shortDescription="one frame").type.multiArrayType
    array.shape.extend([1, 10])
    array.dataType = 65552
    d.input[-1].type.isOptional = True
    array = d.input.add(name="ranged").type.multiArrayType
    array.shape.extend([1, 128, 17])
    array.dataType = 65568
    for lowest, highest in ((1, 1), (128, 128), (1, -1)):
        array.shapeRange.sizeRanges.add(lowerBound=lowest, upperBound=highest)
    array = d.input.add(name="enumerated").type.multiArrayType
    array.dataType = 131104
    array.enumeratedShapes.shapes.add().shape.extend([1, 8])
    array.enumeratedShapes.shapes.add().shape.extend([1, 16])
    array = d.input.add(name="ranks").type.multiArrayType
    array.shape.extend([1, 8])
    array.enumeratedShapes.shapes.add().shape.extend([1, 8])
    array.enumeratedShapes.shapes.add().shape.extend([8])
    image = d.input.add(name="photo").type.imageType
    image.width, image.height, image.colorSpace = 640, 480, 20
    image = d.input.add(name="photos").type.imageType
    image.colorSpace = 40
    image.imageSizeRange.widthRange.lowerBound = 32
    image.imageSizeRange.widthRange.upperBound = -1
    image.imageSizeRange.heightRange.lowerBound = 224
    image.imageSizeRange.heightRange.upperBound = 224
    image = d.input.add(name="sizes").type.imageType
    image.colorSpace = 10
    image.enumeratedSizes.sizes.add(width=32, height=32)
    image.enumeratedSizes.sizes.add(width=64, height=32)
    d.input.add(name="word").type.stringType.SetInParent()
    d.input.add(name="count").type.int64Type.SetInParent()
    d.input.add(name="mean").type.doubleType.SetInParent()
    d.input.add(name="words").type.sequenceType.stringType.SetInParent()
    d.input[-1].type.sequenceType.sizeRange.upperBound = -1
    d.input.add(name="four").type.sequenceType.int64Type.SetInParent()
    d.input[-1].type.sequenceType.sizeRange.lowerBound = 4
    d.input[-1].type.sequenceType.sizeRange.upperBound = 4
    d.input.add(name="future")
    d.output.add(name="probabilities").type.dictionaryType.stringKeyType.SetInParent()
    d.output.add(name="ranked").type.dictionaryType.int64KeyType.SetInParent()
    d.output.add(name="open").type.multiArrayType.dataType = 65600
    d.output.add(name="odd").type.multiArrayType.dataType = 7
    state = d.state.add(name="kv").type.stateType.arrayType
    state.shape.extend([1, 32, 256])
    state.dataType = 65552
    return d


LINES = {
    "fixed": "multiArray float16 [1, 10] optional",
    "ranged": "multiArray float32 [1, 128, ?]",
    "enumerated": "multiArray int32 [1, ?]",
    "ranks": "multiArray unknown",
    "photo": "image RGB 640x480",
    "photos": "image GRAYSCALE_FLOAT16 ?x224",
    "sizes": "image GRAYSCALE ?x32",
    "word": "string",
    "count": "int64",
    "mean": "double",
    "words": "sequence string [?]",
    "four": "sequence int64 [4]",
    "future": "unknown",
    "probabilities": "dictionary string",
    "ranked": "dictionary int64",
    "open": "multiArray float64",
    "odd": "multiArray unknown",
    "kv": "state float16 [1, 32, 256]",
}


def lines(metadata):
    return {feature.name: str(feature) for feature in (*metadata.inputs, *metadata.outputs, *metadata.states)}


def two_functions():
    """Return a ModelDescription of two functions, in the order prefill, decode; decode is the default."""
    d = schema.ModelDescription(defaultFunctionName="decode")
    for name, count in (("prefill", 128), ("decode", 1)):
        function = d.functions.add(name=name)
        function.input.add(name="tokens").type.multiArrayType.shape.extend([1, count])
        function.output.add(name="logits").type.multiArrayType.shape.extend([1, count, 99])
        function.state.add(name="kv").type.stateType.arrayType.shape.extend([8, 4])
    return d


# -- Metadata.from_model ---------------------------------------------------------------------------------------------


def test_every_feature_type_has_its_line():
    metadata = Metadata.from_model(description().SerializeToString(), 8, opset="CoreML7")
    assert lines(metadata) == LINES
    assert [feature.name for feature in metadata.states] == ["kv"]


def test_texts_of_a_model_file():
    metadata = Metadata.from_model(description().SerializeToString(), 8, opset="CoreML7")
    assert metadata.author == "A. Uthor"
    assert metadata.license == "MIT"
    assert metadata.description == "does things"
    assert metadata.version == "1.2"
    assert metadata.user_defined["com.github.apple.coremltools.source"] == "torch==2.9.1"
    assert (metadata.spec_version, metadata.opset, metadata.opsets) == (8, "CoreML7", {})
    assert metadata.producer == "coremltools 9.0"
    assert (metadata.functions, metadata.default_function) == ({}, "")
    assert metadata.inputs[0] == Feature("fixed", "multiArray", (1, 10), "float16", True, "one frame")


def test_messages_and_buffers_are_both_taken():
    expected = Metadata.from_model(description().SerializeToString(), 8)
    assert Metadata.from_model(description(), 8) == expected
    assert Metadata.from_model(memoryview(description().SerializeToString()), 8) == expected


def test_functions_and_the_default_one():
    metadata = Metadata.from_model(
        two_functions().SerializeToString(), 9, opset={"prefill": "CoreML8", "decode": "CoreML8"}
    )
    assert list(metadata.functions) == ["prefill", "decode"]
    inputs, outputs = metadata.functions["prefill"]
    assert (str(inputs[0]), str(outputs[0])) == ("multiArray unknown [1, 128]", "multiArray unknown [1, 128, 99]")
    assert metadata.default_function == "decode"
    assert (metadata.inputs, metadata.outputs) == metadata.functions["decode"]
    assert metadata.states == metadata.function_states["decode"]
    assert (metadata.opset, metadata.opsets) == ("CoreML8", {"prefill": "CoreML8", "decode": "CoreML8"})


def test_functions_without_a_default_leave_the_top_empty():
    d = two_functions()
    d.defaultFunctionName = ""
    metadata = Metadata.from_model(d, 9, opset={"a": "CoreML8", "b": "CoreML7", "c": ""})
    assert (metadata.inputs, metadata.default_function, metadata.opset) == ((), "", "CoreML7, CoreML8")
    assert len(metadata.functions) == 2


def test_functions_that_contradict_each_other_are_refused():
    d = two_functions()
    d.functions[1].name = "prefill"
    with pytest.raises(FormatError, match="functions: expected 2 distinct names, got 1"):
        Metadata.from_model(d, 9)
    d = two_functions()
    d.defaultFunctionName = "train" * 50
    with pytest.raises(FormatError, match="defaultFunctionName: expected the name of a function, got 'train") as caught:
        Metadata.from_model(d, 9)
    assert len(str(caught.value)) < 150


def test_negative_and_absent_sizes_are_open():
    d = schema.ModelDescription()
    d.input.add(name="minus").type.multiArrayType.shape.extend([-1, 3])
    d.input.add(name="image").type.imageType.width = 3
    d.input.add(name="empty").type.multiArrayType.shapeRange.SetInParent()
    d.input.add(name="none").type.multiArrayType.enumeratedShapes.SetInParent()
    shapes = [feature.shape for feature in Metadata.from_model(d, 7).inputs]
    assert shapes == [(None, 3), None, None, None]


def test_description_bytes_that_are_damaged():
    data = description().SerializeToString()
    with pytest.raises(FormatError, match="^ModelDescription message: expected"):
        Metadata.from_model(data[:-1], 8)
    generator = random.Random(20)
    for _ in range(2000):
        case = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            case[generator.randrange(len(case))] = generator.randrange(256)
        try:
            str(Metadata.from_model(case, 8))
        except FormatError as error:
            assert GRAMMAR.fullmatch(str(error))


# -- producer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user_defined", "build_info", "expected"),
    [
        ({"version": "9.0", "source": "torch==2"}, {"coremltools-version": "8.1"}, "coremltools 9.0"),
        ({}, {"coremltools-version": "8.1", "coremlc-version": "3402.4.1"}, "coremltools 8.1"),
        ({"source": "torch==2"}, {"coremlc-version": "3402.4.1"}, "torch==2"),
        ({}, {"coremlc-version": "3402.4.1", "coremlc-component-MIL": "3402.3.2"}, "coremlc 3402.4.1"),
        ({}, {}, ""),
        ({}, None, ""),
    ],
)
def test_producer_is_the_converter_else_the_source_else_the_compiler(user_defined, build_info, expected):
    d = schema.ModelDescription()
    for key, value in user_defined.items():
        d.metadata.userDefined[f"com.github.apple.coremltools.{key}"] = value
    assert Metadata.from_model(d, 7, build_info=build_info).producer == expected


def test_keys_of_the_user_are_sorted():
    """Protobuf keeps a map in an order that differs between processes."""
    d = schema.ModelDescription()
    for number in (*range(20, 30), *range(20)):
        d.metadata.userDefined[f"key {number:02}"] = ""
    assert list(Metadata.from_model(d, 7).user_defined) == [f"key {number:02}" for number in range(30)]


def test_build_info_of_a_program():
    value = schema.Value()
    for key, text in (("coremltools-version", "9.0"), ("coremltools-component-torch", "2.9.1")):
        pair = value.immediateValue.dictionary.values.add()
        pair.key.immediateValue.tensor.strings.values.append(key)
        pair.value.immediateValue.tensor.strings.values.append(text)
    info = read_build_info(value)
    assert info == {"coremltools-version": "9.0", "coremltools-component-torch": "2.9.1"}
    pair.value.immediateValue.tensor.strings.values.append("2")
    with pytest.raises(FormatError, match="^buildInfo: expected one string on either side of an entry, got 2$"):
        read_build_info(value)
    with pytest.raises(FormatError, match="^buildInfo: expected a dictionary, got no immediate value$"):
        read_build_info(schema.Value())
    value.immediateValue.tensor.ints.values.append(1)
    with pytest.raises(FormatError, match="^buildInfo: expected a dictionary, got tensor$"):
        read_build_info(value)


# -- Metadata.from_metadata_json -------------------------------------------------------------------------------------


def json_array(name, shape, **more):
    flags = {"isOptional": "0", "hasShapeFlexibility": "0", "shortDescription": "", "formattedType": "MultiArray (...)"}
    return {"name": name, "type": "MultiArray", "dataType": "Float16", "shape": shape, **flags, **more}


def metadata_json():
    """Return what Core ML's compiler writes, after the real files and, for images and sequences, its source."""
    kv = {"name": "kv", "type": "State", "dataType": "Float16", "shape": "[1, 32, 256]", "isOptional": "0"}
    image = {"name": "photo", "type": "Image", "width": "640", "height": "480", "colorspace": "RGB", "isColor": "1"}
    sizes = {"enumeratedSizes": "[[32, 32], [64, 32]]", "width": "32", "height": "32", "colorspace": "Grayscale"}
    words = {"name": "words", "type": "Sequence", "valueType": "String", "sizeRange": "[0, -1]"}
    inputs = [
        json_array("fixed", "[1, 10]", isOptional="1", shortDescription="one frame"),
        json_array("ranged", "[1, 128, 17]", dataType="Float32", shapeRange="[[1, 1], [128, 128], [1, -1]]"),
        json_array("enumerated", "[1, 8]", dataType="Int32", enumeratedShapes="[[1, 8], [1, 16]]"),
        json_array("ranks", "[1, 8]", dataType="Invalid", enumeratedShapes="[[1, 8], [8]]"),
        image,
        {**image, "name": "photos", "colorspace": "Grayscale16Half", "sizeRange": "[[32, -1], [224, 224]]"},
        {**image, "name": "sizes", **sizes},
        {"name": "word", "type": "String"},
        {"name": "count", "type": "Int64"},
        {"name": "mean", "type": "Double"},
        words,
        {**words, "name": "four", "valueType": "Int64", "sizeRange": "[4, 4]"},
        {"name": "future", "type": "Hologram"},
    ]
    outputs = [
        {"name": "probabilities", "type": "Dictionary", "keyType": "String"},
        {"name": "ranked", "type": "Dictionary", "keyType": "Int64"},
        json_array("open", "[]", dataType="Double"),
        json_array("odd", "[]", dataType="Float7"),
    ]
    return [{
        "metadataOutputVersion": "3.0", "specificationVersion": 8, "author": "A. Uthor", "license": "MIT",
        "version": "1.2", "shortDescription": "does things", "modelType": {"name": "MLModelType_mlProgram"},
        "userDefinedMetadata": {"com.github.apple.coremltools.version": "9.0"},
        "inputSchema": inputs, "outputSchema": outputs, "stateSchema": [kv],
    }]  # fmt: skip


def with_functions():
    contents = metadata_json()
    function = {"inputSchema": [json_array("x", "[4]")], "outputSchema": [json_array("y", "[4]")]}
    contents[0]["functions"] = [{"name": "first", **function, "stateSchema": []}, {"name": "second", **function}]
    contents[0]["defaultFunctionName"] = "second"
    return contents


def test_compiled_model_and_model_file_have_the_same_metadata():
    metadata = Metadata.from_metadata_json(metadata_json(), opset={"main": "ios17"})
    assert lines(metadata) == LINES
    expected = Metadata.from_model(description(), 8, opset={"main": "ios17"})
    users = {"com.github.apple.coremltools.version": "9.0"}
    assert metadata == dataclasses.replace(expected, user_defined=users)


def test_compiled_model_with_functions():
    metadata = Metadata.from_metadata_json(with_functions())
    assert list(metadata.functions) == ["first", "second"] == list(metadata.function_states)
    assert (metadata.inputs, metadata.outputs) == metadata.functions["second"]
    assert (metadata.states, metadata.default_function) == ((), "second")


def test_missing_metadata_json_leaves_what_the_caller_knows():
    metadata = Metadata.from_metadata_json(None, opset="ios17", build_info={"coremlc-version": "3520.5.1"})
    assert metadata == Metadata(opset="ios17", producer="coremlc 3520.5.1")


def test_missing_keys_leave_fields_empty():
    assert Metadata.from_metadata_json([{}]) == Metadata()
    (feature,) = Metadata.from_metadata_json([{"inputSchema": [{"name": "x", "type": "MultiArray"}]}]).inputs
    assert feature == Feature("x", "multiArray", None, "unknown")
    (feature,) = Metadata.from_metadata_json([{"inputSchema": [{"name": "x", "type": "Image", "width": "3"}]}]).inputs
    assert feature == Feature("x", "image", None, "unknown")


FEATURE = {"name": "x", "type": "MultiArray"}


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({}, "metadata.json: expected a list of one object, got an object"),
        ([], "metadata.json: expected a list of one object, got a list of 0"),
        ([{}, {}], "metadata.json: expected a list of one object, got a list of 2"),
        ("[]", "metadata.json: expected a list of one object, got a string"),
        ([None], "metadata.json: expected an object, got null"),
        ([{"author": 5}], "metadata.json author: expected a string, got a number"),
        ([{"license": None}], "metadata.json license: expected a string, got null"),
        ([{"specificationVersion": "7"}],
         "metadata.json specificationVersion: expected a number from 0 to 2147483647, got a string"),
        ([{"specificationVersion": True}],
         "metadata.json specificationVersion: expected a number from 0 to 2147483647, got a boolean"),
        ([{"specificationVersion": -1}],
         "metadata.json specificationVersion: expected a number from 0 to 2147483647, got a number"),
        ([{"userDefinedMetadata": []}], "metadata.json userDefinedMetadata: expected an object, got a list of 0"),
        ([{"userDefinedMetadata": {"a": 1}}],
         "metadata.json userDefinedMetadata: expected an object of strings, got other values in it"),
        ([{"inputSchema": {}}], "metadata.json inputSchema: expected a list, got an object"),
        ([{"inputSchema": [3]}], "metadata.json inputSchema[0]: expected an object, got a number"),
        ([{"inputSchema": [FEATURE, {"type": "Int64"}]}],
         "metadata.json inputSchema[1] name: expected a string, got nothing"),
        ([{"outputSchema": [{"name": "x"}]}], "metadata.json outputSchema[0] type: expected a string, got nothing"),
        ([{"inputSchema": [{**FEATURE, "isOptional": "2"}]}],
         "metadata.json inputSchema[0] isOptional: expected \"0\" or \"1\", got '2'"),
        ([{"inputSchema": [{**FEATURE, "shape": [1]}]}],
         "metadata.json inputSchema[0] shape: expected a string, got a list of 1"),
        ([{"inputSchema": [{**FEATURE, "shape": "1, 2"}]}],
         "metadata.json inputSchema[0] shape: expected a list of integers, got '1, 2'"),
        ([{"inputSchema": [{**FEATURE, "shape": "[" + "9" * 5000 + "]"}]}],
         "metadata.json inputSchema[0] shape: expected a list of integers, got '[" + "9" * 36 + "...'"),
        ([{"inputSchema": [{**FEATURE, "shape": "[1,]"}]}],
         "metadata.json inputSchema[0] shape: expected a list of integers, got '[1,]'"),
        ([{"inputSchema": [{**FEATURE, "shapeRange": "[1, 2]"}]}],
         "metadata.json inputSchema[0] shapeRange: expected a list of lists of integers, got '[1, 2]'"),
        ([{"inputSchema": [{**FEATURE, "shapeRange": "[[1, 2, 3]]"}]}],
         "metadata.json inputSchema[0] shapeRange: expected pairs of integers, got '[[1, 2, 3]]'"),
        ([{"inputSchema": [{"name": "x", "type": "Image", "width": "a\nb"}]}],
         "metadata.json inputSchema[0] width: expected an integer, got 'a\\nb'"),
        ([{"functions": [{}]}], "metadata.json functions[0] name: expected a string, got nothing"),
        ([{"functions": [{"name": "f", "inputSchema": 3}]}],
         "metadata.json functions[0] inputSchema: expected a list, got a number"),
        ([{"functions": [{"name": "f"}, {"name": "f"}]}],
         "metadata.json functions: expected 2 distinct names, got 1"),
        ([{"functions": [{"name": "f"}], "defaultFunctionName": "g"}],
         "metadata.json defaultFunctionName: expected the name of a function, got 'g'"),
    ],
)  # fmt: skip
def test_errors_of_hostile_json_name_the_place(contents, words):
    with pytest.raises(FormatError) as caught:
        Metadata.from_metadata_json(contents)
    assert str(caught.value) == words
    assert GRAMMAR.fullmatch(words)


def deep_list(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def places(value):
    """Yield (container, key) of every value in a JSON tree."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def test_any_value_anywhere_is_metadata_or_a_format_error():
    """Each place with every fourth value, and its neighbours with the others; `make thorough`: all with all."""
    deep = deep_list(100_000)
    hostile = [
        None,
        True,
        -1,
        10**5000,
        1.5,
        float("nan"),
        "",
        "x" * 10_000,
        "[" * 10_000,
        "[[]]",
        [],
        [[]],
        {},
        {"a": {}},
    ]
    count = len(list(places(with_functions())))
    for index in range(count):
        for replacement in share((*hostile, deep), index, 4):
            contents = copy.deepcopy(with_functions())
            container, key = list(places(contents))[index]
            container[key] = replacement
            try:
                lines(Metadata.from_metadata_json(contents))
            except FormatError as error:
                assert GRAMMAR.fullmatch(str(error))
                assert len(str(error)) < 200
        contents = with_functions()
        container, key = list(places(contents))[index]
        del container[key]
        try:
            Metadata.from_metadata_json(contents)
        except FormatError as error:
            assert GRAMMAR.fullmatch(str(error))


def test_long_shapes_take_linear_time():
    pairs = "[" + ", ".join(["[1, 1]"] * sized(50_000, 200_000)) + "]"
    for text in (pairs, pairs[:-1], pairs.replace(", ", ",")):
        try:
            Metadata.from_metadata_json([{"inputSchema": [{**FEATURE, "shapeRange": text}]}])
        except FormatError as error:
            assert "shapeRange" in str(error)  # a quadratic pattern would not have come here within the hour


# -- Metadata.from_function ------------------------------------------------------------------------------------------


def tensor_type(value_type, dtype, *counts):
    tensor = value_type.tensorType
    tensor.dataType = schema.DATA_TYPES[dtype]
    tensor.rank = len(counts)
    for count in counts:
        dimension = tensor.dimensions.add()
        if count is None:
            dimension.unknown.variadic = False
        else:
            dimension.constant.size = count
    return tensor


def test_function_inputs_stand_in_for_a_description():
    function = schema.Function(opset="ios18")
    tensor_type(function.inputs.add(name="x").type, "FLOAT16", 1, 128, None)
    tensor_type(function.inputs.add(name="scalar").type, "INT32")
    tensor_type(function.inputs.add(name="kv").type.stateType.wrappedType, "FLOAT8E4M3FN", 1, 32)
    tensor_type(function.inputs.add(name="any").type, "BFLOAT16").rank = -1
    tensor_type(function.inputs.add(name="variadic").type, "BOOL", None).dimensions[0].unknown.variadic = True
    tensor_type(function.inputs.add(name="future").type, "BOOL", 1).dataType = 99
    names = function.inputs.add(name="names").type.listType
    tensor_type(names.type, "STRING")
    names.length.constant.size = 2
    tensor_type(function.inputs.add(name="table").type.dictionaryType.keyType, "STRING")
    metadata = Metadata.from_function(function.inputs, opset={"main": function.opset})
    assert lines(metadata) == {
        "x": "multiArray float16 [1, 128, ?]",
        "scalar": "multiArray int32 []",
        "kv": "state float8e4m3fn [1, 32]",
        "any": "multiArray bfloat16",
        "variadic": "multiArray bool",
        "future": "multiArray unknown [1]",
        "names": "sequence string [2]",
        "table": "dictionary string",
    }
    assert [feature.name for feature in metadata.states] == ["kv"]
    assert metadata.opset == "ios18"
    with_info = Metadata.from_function([], opset="ios18", build_info={"coremltools-version": "9.0"})
    assert (with_info.producer, with_info.opset) == ("coremltools 9.0", "ios18")


def test_function_inputs_that_no_model_has():
    named = schema.NamedValueType(name="x")
    with pytest.raises(FormatError, match="^type of 'x': expected a tensor, state, list or dictionary, got nothing$"):
        Metadata.from_function([named])
    named.type.tupleType.SetInParent()
    with pytest.raises(FormatError, match="^type of 'x': expected a tensor, state, list or dictionary, got tupleType$"):
        Metadata.from_function([named])
    named.type.listType.type.listType.SetInParent()
    with pytest.raises(FormatError, match="^type of 'x': expected a tensor inside, got listType$"):
        Metadata.from_function([named])
    named.type.stateType.SetInParent()
    with pytest.raises(FormatError, match="^type of 'x': expected a tensor inside, got nothing$"):
        Metadata.from_function([named])
    tensor_type(named.type, "INT8", 1).rank = 2**62
    with pytest.raises(FormatError, match=f"^type of 'x': expected {2**62} dimensions for its rank, got 1$"):
        Metadata.from_function([named])


# -- the classes -----------------------------------------------------------------------------------------------------


def test_metadata_and_features_are_frozen():
    for instance in (Metadata(), Feature("x", "string")):
        assert not hasattr(instance, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            instance.description = "other"
    assert Metadata().user_defined is not Metadata().user_defined


# -- against coremltools ---------------------------------------------------------------------------------------------


def test_model_that_coremltools_converts(tmp_path):
    coremltools = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil.mil import Builder

    @Builder.program(input_specs=[Builder.TensorSpec(shape=(2, 3))], opset_version=coremltools.target.iOS17)
    def double(x):
        return Builder.add(x=x, y=x, name="twice")

    model = coremltools.convert(
        double, minimum_deployment_target=coremltools.target.iOS17, skip_model_load=True, convert_to="mlprogram"
    )
    model.author = "milblob"
    model.input_description["x"] = "two rows"
    spec = model.get_spec()
    program = spec.mlProgram
    build_info = read_build_info(program.attributes["buildInfo"])
    opsets = {name: function.opset for name, function in program.functions.items()}
    data = spec.description.SerializeToString()
    metadata = Metadata.from_model(data, spec.specificationVersion, opset=opsets, build_info=build_info)
    assert metadata == Metadata.from_model(spec.description, spec.specificationVersion, opset=opsets)
    assert metadata.producer == f"coremltools {coremltools.__version__}"
    assert build_info["coremltools-version"] == coremltools.__version__
    assert (metadata.opset, metadata.spec_version, metadata.author) == ("CoreML7", 8, "milblob")
    assert [str(feature) for feature in metadata.inputs] == ["multiArray float32 [2, 3]"]
    assert metadata.inputs[0].description == "two rows"
    assert [feature.name for feature in metadata.outputs] == ["twice"]

    main = program.functions["main"]
    again = Metadata.from_function(main.inputs, opset=main.opset, build_info=build_info)
    assert [str(feature) for feature in again.inputs] == ["multiArray float32 [2, 3]"]
    assert again.producer == metadata.producer
