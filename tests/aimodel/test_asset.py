"""Bundles of Core AI as Apple's own library sees them: constants, functions, dense values of compressed weights."""

import contextlib
import io

import numpy as np
import pytest

import milblob
import mlir_bytes
from bundles import FOLDER, NAMES, bundle, copy_of, digest, oracle
from milblob import FormatError, UnsupportedError
from milblob.aimodel import Asset

BARE = [name for name in NAMES if "runtime" in oracle()[name]]
CRASHING = ["bare_f16_fp4_mx"]
"""One byte for each value of four bits: Apple's own runtime crashes on it."""


def direct_constants(asset):
    """(function, dtype, shape, hash of the elements) of every constant directly in a function, in order."""
    program = asset.program
    names = {function.row: name for name, function in asset.functions.items()}
    for row in program.constants:
        parent = int(program.bytecode.ops["parent"][row])
        if parent in names:
            kind = program.kind(row)
            try:
                value = digest(asset.opened.constant(row), kind.text)
            except FormatError as error:
                value = error.code
            yield names[parent], kind.text, list(kind.shape), value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sample(6)
def test_constants_are_those_that_apple_s_library_prints(name):
    answer = oracle()[name]
    with Asset(bundle(name)) as asset:
        # A composite operation is a function of its own in the printed text, and no function of the bundle.
        expected = [
            (row["function"], row["dtype"], row["shape"], row["sha256"])
            for row in answer["constants"]
            if row["function"] in asset.functions
        ]
        found = list(direct_constants(asset))
        if name in CRASHING:
            assert [row[3] for row in found].count("constant-size") == 1
            expected = [
                row if row[1] != "f4E2M1FN" or row[2] != [32, 64] else (*row[:3], "constant-size") for row in expected
            ]
        assert found == expected and found
        for function in asset.functions.values():
            ports = answer["functions"][function.name]
            assert sorted(port.name for port in (*function.inputs, *function.states)) == sorted(ports["inputs"])
            assert {port.name for port in function.outputs} <= set(ports["outputs"])


def test_every_release_and_every_kind_of_network_was_recorded():
    assert {"linear_f32_b1", "linear_f32_b2", "linear_f32_debug", "linear_bf16", "conv_f16", "attention_f32"} <= set(
        NAMES
    )
    assert {"lstm_f32", "states_f32", "functions_f32", "odd_f32", "onnx_int8", "branches_f32"} <= set(NAMES)
    assert len(BARE) >= 45 and sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("name", BARE)
@pytest.mark.sample(6)
def test_dense_values_are_those_that_apple_s_runtime_computes_with(name):
    """The runtime multiplied the weight by the identity; zeros have no sign there."""
    with Asset(bundle(name)) as asset:
        (tensor,) = asset.values()
        if name in CRASHING:
            assert oracle()[name]["runtime"] is None
            with pytest.raises(FormatError, match="one byte for each value"):
                tensor.read()
            return
        values = tensor.read()
        assert values.dtype == (np.float32 if "f32" in name else np.float16) and values.shape == (32, 64)
        parts = {key: asset.opened.constant(part.row.op) for key, part in tensor.parts.items()}
        recorded = oracle()[name]["runtime"]
    if digest(values + values.dtype.type(0)) == recorded:
        return
    # With zero points of 8 bits the runtime multiplies first, which rounds twice; the documented formula rounds once.
    assert parts["offset1"].any() and parts["offset1"].dtype.itemsize * 8 == 8
    kind, scale = values.dtype, parts["scale"]
    blocks = [size // count for size, count in zip(values.shape, scale.shape, strict=True)]
    scale, offset = (np.kron(p, np.ones(blocks, p.dtype)).astype(kind) for p in (scale, parts["offset1"]))
    other = parts["data"].astype(kind) * scale - offset * scale
    assert digest(other + kind.type(0)) == recorded
    terms = np.abs(parts["data"].astype(kind) * scale) + np.abs(offset * scale)
    assert (np.abs(other - values) <= np.finfo(kind).eps * terms).all()


@pytest.mark.parametrize(
    "name, names",
    [
        ("linear_f32", ["broadcasting_batch_matmul_0.y", "broadcasting_add_0.other", "broadcasting_batch_matmul_1.y",
                        "broadcasting_add_1.other"]),
        ("conv_f32", ["conv2d_0.weight", "conv2d_1.weight"]),
        ("attention_f32", ["gather_nd_0.input", "layer_norm_0.gamma", "layer_norm_0.beta", "broadcasting_batch_matmul_0.y",
                           "broadcasting_batch_matmul_1.y", "broadcasting_batch_matmul_2.y"]),
        ("lstm_f32", ["broadcasting_batch_matmul_0.y", "broadcasting_batch_matmul_1.y", "broadcasting_add_0.other",
                      "broadcasting_add_1.other"]),
        ("onnx_int8", ["broadcasting_batch_matmul_0.y"]),
    ],
)  # fmt: skip
def test_a_weight_is_called_by_the_first_operation_that_reads_it(name, names):
    with milblob.open(bundle(name)) as asset:
        assert set(names) <= {key.removeprefix("main/") for key in asset}
        assert all(asset[key].name == f"main/{key}" for key in names)


def test_weights_in_the_branches_of_control_flow_are_weights():
    with Asset(bundle("branches_f32")) as asset:
        assert sum(tensor.shape == (24, 24) for tensor in asset.values()) == 2


def test_names_by_number_and_without_the_function():
    with milblob.open(bundle("functions_f32")) as asset:
        first, second = asset["main/#0"], asset["second/#0"]
        assert (first.name, first.ordinal, first.function) == ("main/broadcasting_batch_matmul_0.y", 0, "main")
        assert second.function == "second" and list(asset.functions) == ["main", "second"]
        for name in ("#0", "broadcasting_batch_matmul_0.y"):
            assert name not in asset
            with pytest.raises(KeyError, match="ambiguous"):
                asset[name]
        with pytest.raises(KeyError, match="did you mean"):
            asset["main/broadcasting_batch_matmul_0.x"]
    with milblob.open(bundle("linear_f32")) as asset:
        assert asset["#2"].name == "main/broadcasting_batch_matmul_1.y" and "nothing" not in asset


def test_values_are_views_of_the_mapped_file():
    weights = milblob.load(bundle("linear_f16"))
    for array in weights.values():
        assert not array.flags.writeable and not array.flags.owndata
    with milblob.open(bundle("linear_f16")) as asset:
        data = (FOLDER / "linear_f16.aimodel" / "main.mlirb").read_bytes()
        for name, tensor in asset.items():
            assert data[tensor.offset :][: tensor.nbytes] == weights[name].tobytes()
            np.testing.assert_array_equal(tensor[1:3], weights[name][1:3])
            out = np.empty_like(weights[name])
            assert tensor.read(out=out) is out and out.tobytes() == weights[name].tobytes()
    with pytest.raises(ValueError, match="closed"):
        tensor.read()


def test_parts_of_a_compressed_weight():
    with milblob.open(bundle("bare_f16_uint4_asym_per_block")) as asset:
        (tensor,) = asset.values()
        assert {key: (part.dtype_text, part.shape) for key, part in tensor.parts.items()} == {
            "data": ("ui4", (32, 64)), "scale": ("f16", (32, 2)), "offset1": ("ui4", (32, 2)), "offset2": ("f16", (32, 2)),
        }  # fmt: skip
        assert (tensor.compression.scheme, str(tensor.compression)) == ("blockwise_shift_scale", "uint4 /32")
        assert tensor.stored_nbytes == sum(tensor.stored_pieces().values()) < 32 * 64
    with milblob.open(bundle("bare_f16_uint4_asym_per_block"), stored=True) as asset:
        assert [name.rpartition(".")[2] for name in asset] == ["data", "scale", "offset1", "offset2"]
        codes = asset["main/broadcasting_batch_matmul_0.y.data"].read()
        assert codes.dtype.itemsize == 1 and codes.shape == (32, 64)
    words = {
        "palette4": "pal4",
        "sparse": "sparse 70%",
        "fp8_e4m3fn": "float8e4m3fn /ch",
        "palette4_vectors": "pal4 v2",
    }
    for name, expected in words.items():
        with milblob.open(bundle(f"bare_f16_{name}")) as asset:
            assert str(next(iter(asset.values())).compression).startswith(expected)


def test_constants_of_decompositions_are_listed_only_when_asked_for():
    with milblob.open(bundle("linear_f32"), constants=True) as asset:
        deep = [name for name, tensor in asset.items() if tensor.ordinal < 0]
        assert deep and all(name.rpartition("/")[2].startswith("#") for name in deep)
        assert asset["main/transpose_0.permutation"].read().tolist() == [1, 0]
    with milblob.open(bundle("linear_f32")) as asset:
        assert len(asset) == 4 and set(deep) <= set(asset.unlisted())


def test_labels_of_a_conversion_for_debugging():
    with milblob.open(bundle("linear_f32_debug")) as asset:
        assert [tensor.label for tensor in asset.values()] == [
            "Two$1/Linear$1:permute", "Two$1/Linear$1:addmm", "Two$1/Linear$2:permute_1", "Two$1/Linear$2:addmm_1",
        ]  # fmt: skip
    with milblob.open(bundle("linear_f32")) as asset:
        assert {tensor.label for tensor in asset.values()} == {""}


def test_states_inputs_and_outputs():
    with milblob.open(bundle("states_f32")) as asset:
        (function,) = asset.functions.values()
        assert [(port.name, port.type) for port in function.states] == [("b_cache", "f32 [1, 16]")]
        assert [port.name for port in (*function.inputs, *function.outputs)] == ["x", "mul"]
        assert asset.metadata["assetVersion"] == "2.0" and asset.kind == "aimodel"


def test_a_buffer_a_file_object_and_a_bare_file(tmp_path):
    data = mlir_bytes.file()
    (tmp_path / "x.mlirb").write_bytes(data)
    values = np.frombuffer(mlir_bytes.VALUES, "<f4").reshape(mlir_bytes.SHAPE)
    for source in (data, str(tmp_path / "x.mlirb"), tmp_path / "x.mlirb"):
        with milblob.open(source) as asset:
            np.testing.assert_array_equal(asset["main/output_0.0"].read(), values)
            assert asset.metadata == {}
    with Asset(io.BytesIO(data)) as asset, Asset(str(tmp_path / "x.mlirb"), mmap=False) as other:
        assert list(asset) == list(other)
    np.testing.assert_array_equal(milblob.load(data)["main/output_0.0"], values)


def test_what_milblob_does_not_read_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedError, match=r"mode 'r\+'"):
        milblob.open(bundle("linear_f32"), "r+")
    with pytest.raises(UnsupportedError, match="version of MLIR bytecode: expected 6, got 5"):
        milblob.open(mlir_bytes.file(version=5))
    for name in ("x.aimodelc", "x.aimodelx"):
        (tmp_path / name).mkdir()
        with pytest.raises(FormatError, match="a compiled bundle of Core AI, which milblob does not read"):
            milblob.open(tmp_path / name)
    with pytest.raises(FormatError, match=r"directory with Model\.aimodel in it \(open "):
        (tmp_path / "export" / "Model.aimodel").mkdir(parents=True)
        (tmp_path / "export" / "metadata.json").write_text("{}")
        milblob.open(tmp_path / "export")
    with pytest.raises(FormatError, match="a bundle of Apple's Core AI, which is not a Core ML model"):
        milblob.to_text(bundle("linear_f32"))


def test_another_version_of_the_dialect_is_listed_and_not_read():
    with milblob.open(mlir_bytes.file(dialect_version=3)) as asset:
        assert list(asset) == ["main/output_0.0"]
        with pytest.raises(UnsupportedError, match="version of the dialect aicode: expected 2, got 3"):
            asset["main/output_0.0"].read()


def with_attribute(data, number=0):
    """A file whose constant has another attribute, and a second constant that is sound."""
    second = mlir_bytes.op(mlir_bytes.CONSTANT, properties=2, results=(0,))
    ops = [
        mlir_bytes.op(mlir_bytes.CONSTANT, properties=1, results=(0,)),
        second,
        mlir_bytes.op(mlir_bytes.OUTPUT, operands=(1, 2)),
    ]
    inner = mlir_bytes.region(3, mlir_bytes.block(*ops, arguments=(0,)))
    attributes = [data, *mlir_bytes.ATTRIBUTES[1:], mlir_bytes.ATTRIBUTES[0]]
    return mlir_bytes.file(
        ir=mlir_bytes.graph_ops(inner=inner), attributes=attributes, properties=[*mlir_bytes.PROPERTIES, mlir_bytes.varint(len(mlir_bytes.ATTRIBUTES))]
    )  # fmt: skip


@pytest.mark.parametrize(
    "data, kind, words",
    [
        (mlir_bytes.varint(99), UnsupportedError, "an attribute with code 6 or 7, got 99"),
        (mlir_bytes.varint(7) + mlir_bytes.varint(4), FormatError, "the number of a blob among 0 resources"),
        (mlir_bytes.varint(6) + b"\0" + mlir_bytes.varint(9) + bytes(9), FormatError, "expected 40, got 9"),
        (mlir_bytes.varint(6) + b"\0" + mlir_bytes.varint(50) + bytes(40), FormatError, "bytes of a value"),
        (mlir_bytes.varint(6) + b"\1" + mlir_bytes.varint(3) + bytes(3), FormatError, "expected 4, got 3"),
    ],
)
def test_one_broken_constant_stops_no_other(data, kind, words):
    with milblob.open(with_attribute(data)) as asset:
        first, second = asset["#0"], asset["#1"]
        with pytest.raises(kind, match=words):
            first.read()
        assert second.read().tobytes() == mlir_bytes.VALUES
        with contextlib.suppress(milblob.MilblobError):
            assert first.compression is None


def test_an_element_type_that_is_not_known_stops_its_tensor_only():
    types = [mlir_bytes.TYPES[0], mlir_bytes.varint(99), mlir_bytes.TYPES[2]]
    with milblob.open(mlir_bytes.file(types=types)) as asset:
        assert asset["#0"].dtype_text == "code 99" and asset["#0"].shape == mlir_bytes.SHAPE
        with pytest.raises(UnsupportedError, match="expected one that is known, got code 99"):
            asset["#0"].read()


def test_a_key_that_is_not_a_name_is_a_key_that_is_not_there():
    with Asset(bundle("linear_f32")) as asset:
        assert asset.get(None) is None and 0 not in asset
        for key in (0, None, 1.5, ("main", 0)):
            with pytest.raises(KeyError, match="has no tensor"):
                asset[key]


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.int8), io.BytesIO])
def test_bytecode_in_memory_is_taken_by_all_that_read(make):
    path = bundle("linear_f32")
    data = (FOLDER / "linear_f32.aimodel" / "main.mlirb").read_bytes()
    expected = milblob.load(path)
    assert milblob.load(make(data)).keys() == expected.keys()
    assert milblob.content_hash(make(data)).model == milblob.content_hash(path).model
    assert milblob.diff(make(data), path).is_same and milblob.diff(path, make(data)).is_same
    assert not milblob.match(make(data), expected).unmatched_names


def test_a_file_object_keeps_its_position_and_one_that_is_text_is_refused(tmp_path):
    with open(FOLDER / "linear_f32.aimodel" / "main.mlirb", "rb") as file:
        file.seek(7)
        assert len(milblob.load(file)) == 4 and file.tell() == 7
    with pytest.raises(TypeError, match="source"):
        milblob.open(io.StringIO("ML"))


def test_bytecode_with_another_name_is_refused_with_the_name_that_it_needs(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(mlir_bytes.file())
    for read in (milblob.open, milblob.content_hash, milblob.BlobReader):
        with pytest.raises(UnsupportedError, match=r"ends in \.mlirb"):
            read(path)


@pytest.mark.filterwarnings("error")
def test_infinite_parts_give_no_warning(tmp_path):
    folder = copy_of("bare_f16_int8_asym_per_block", tmp_path)
    with milblob.open(folder, stored=True) as asset:
        (name,) = [name for name in asset if name.endswith(".scale")]
        scale = np.full(asset[name].shape, np.inf, asset[name].dtype)
    milblob.refit(folder, {name: scale})
    (values,) = milblob.load(folder).values()
    assert not np.isfinite(values).any()


def test_a_computed_weight_is_read_into_the_memory_of_its_own_bundle():
    """The weight is larger than the bundle, so it begins before, in or after it in memory that holds both."""
    data = (FOLDER / "bare_f16_int8_symm_per_channel.aimodel" / "main.mlirb").read_bytes()
    with Asset(data) as asset:
        name = next(name for name, tensor in asset.items() if tensor.is_computed)
        right = asset[name].read().copy()
    room = right.nbytes
    for at in range(0, room + len(data), 64):
        memory = np.zeros(2 * room + len(data), np.uint8)
        memory[room : room + len(data)] = np.frombuffer(data, np.uint8)
        out = memory[at : at + room].view(right.dtype).reshape(right.shape)
        assert Asset(memory[room : room + len(data)])[name].read(out=out) is out
        np.testing.assert_array_equal(out, right)
