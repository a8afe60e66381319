"""Content hashes: BLAKE3 against its published vectors and a slow one; equal models hash equal, others do not."""

import os
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest

import milblob
import reference
import reference_hash
from cases import BLOB_CASES, case_paths, load_case
from constexpr_bytes import constexpr, value
from hostile_bytes import field, immediate, model, operation, program, tensor_type, write_package
from matrix import every
from milblob import DType, _codec, content_hash, hashing
from milblob.analysis import hash as contenthash
from milblob.hashing import hash_bytes
from milblob.model import elements
from milblob.values.tensorvalue import stored_bytes
from paths import DATA, DEMO
from thorough import IS_LARGE, some

pytestmark = pytest.mark.usefixtures("unsynced")

# From test_vectors.json of BLAKE3-team/BLAKE3 at 2f6f56f: byte i is i % 251.
VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262", 1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11", 1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444", 2048: "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
    2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030", 3072: "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2",
    3073: "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3", 4096: "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969",
    4097: "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995", 5120: "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833",
    5121: "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff", 6144: "3e2e5b74e048f3add6d21faab3f83aa44d3b2278afb83b80b3c35164ebeca205",
    6145: "f1323a8631446cc50536a9f705ee5cb619424d46887f3c376c695b70e0f0507f", 7168: "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a",
    7169: "a003fc7a51754a9b3c7fae0367ab3d782dccf28855a03d435f8cfe74605e7817", 8192: "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63",
    8193: "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b", 16384: "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4",
    31744: "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47", 102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- BLAKE3


def test_published_vectors(tier):
    def check(nbytes):
        assert hash_bytes(bytes(i % 251 for i in range(nbytes))) == VECTORS[nbytes]

    every(check, VECTORS)


@pytest.mark.parametrize("nbytes", [n for n in VECTORS if n < 6000])
def test_the_slow_one(nbytes):
    assert reference_hash.blake3(bytes(i % 251 for i in range(nbytes))) == VECTORS[nbytes]


def test_every_length_and_alignment(tier):
    data = np.random.default_rng(0).bytes(40_000)
    for nbytes in [*range(131), *range(1000, 1050), *range(8 * 1024 - 2, 8 * 1024 + 3), 17 * 1024 + 1, 33_000]:
        shift = nbytes % 9
        expected = _plain(data[shift : shift + nbytes])
        assert hash_bytes(np.frombuffer(data, np.uint8)[shift : shift + nbytes]) == expected
    assert _plain(data[:3000]) == reference_hash.blake3(data[:3000])


def _plain(data):
    before = _codec.tiers()[1]
    _codec.set_tier("plain")
    try:
        return hash_bytes(data)
    finally:
        _codec.set_tier(before)


def test_stretches_and_threads(monkeypatch):
    """However an input is cut into pieces and shared out, its hash is that of the whole."""
    data = np.random.default_rng(1).bytes((5 << 20) + 12_345)
    stretch = 1 << 20
    values = _codec.hash_stretches(_codec.Buffer(data), 0, len(data), 0)
    assert hash_bytes(data) == _codec.hash_join(values).hex() == _tree(data).hex()
    monkeypatch.setattr(hashing, "PIECE_NBYTES", stretch)
    monkeypatch.setenv("MILBLOB_THREADS", "3")
    assert hash_bytes(data) == _tree(data).hex()
    for cuts in (
        [1],
        [stretch],
        [stretch - 1, stretch + 1],
        [700, 2 * stretch, 2 * stretch, 3 * stretch + 5],
        [len(data) - 1],
    ):
        parts = np.split(np.frombuffer(data, np.uint8), cuts)
        row = [elements.Piece(_codec.Buffer(part), 0, part.size, DType.UINT8) for part in parts]
        assert contenthash.digest(row) == _tree(data), cuts
    whole = [elements.Piece(_codec.Buffer(data[:stretch]), 0, stretch, DType.UINT8)]
    assert contenthash.digest(whole) == _tree(data[:stretch])


def _tree(data):
    """The tree above stretches by the rule of the specification; chunks by the kernel, which the vectors test."""

    def node(start, count):
        if count == 1:
            some = data[start << 20 : (start + 1) << 20]
            return _codec.hash_stretches(_codec.Buffer(some), 0, len(some), start)
        left = 1 << (count - 1).bit_length() - 1
        return parent(node(start, left) + node(start + left, count - left), 0)

    def parent(children, root):
        return struct.pack(
            "<8I", *reference_hash.compress(reference_hash.START, children, 0, reference_hash.PARENT | root)
        )

    count = -(-len(data) >> 20) if len(data) % (1 << 20) == 0 else (len(data) >> 20) + 1
    if count == 1:
        return _codec.hash_stretches(_codec.Buffer(data), 0, len(data), 0, True)
    left = 1 << (count - 1).bit_length() - 1
    return parent(node(0, left) + node(left, count - left), reference_hash.ROOT)


def test_arguments_of_the_kernels():
    buffer = _codec.Buffer(bytes(10))
    with pytest.raises(ValueError, match="expected one that is the whole input"):
        _codec.hash_stretches(buffer, 0, 10, 1, True)
    with pytest.raises(milblob.FormatError, match="expected to lie inside"):
        _codec.hash_stretches(buffer, 1, 10, 0)
    for wrong in (b"", bytes(32), bytes(65)):
        with pytest.raises(ValueError, match="chaining values: expected"):
            _codec.hash_join(wrong)


# ------------------------------------------------------------------------------------------------------ against docs/hash.md


def reference_tensor(tensor):
    if tensor.parts:
        parts = {key: reference_tensor(part) for key, part in tensor.parts.items()}
        return reference_hash.compressed_hash(str(tensor.mil_dtype), tensor.shape, tensor.compression.scheme, parts)
    values = tensor.read()
    name = tensor.mil_dtype.name
    if name == "STRING":
        return reference_hash.strings_hash(tensor.shape, values.reshape(-1).tolist())
    if tensor.mil_dtype.is_sub_byte:
        bits = [v - (1 << 4) if name == "INT4" and v > 7 else v for v in values.view(np.uint8).reshape(-1).tolist()]
        data = reference.pack_elements(bits, name)
    else:
        data = values.tobytes()
    return reference_hash.tensor_hash(str(tensor.mil_dtype), tensor.shape, data)


@pytest.mark.parametrize(("case", "path"), some(case_paths(), 18))
@pytest.mark.sample(6)
def test_tensors_of_models(case, path):
    source = load_case(case).source(path)
    try:
        got = content_hash(source)
    except milblob.MilblobError:
        with milblob.open(source, constants=True) as model, pytest.raises(milblob.MilblobError):
            for tensor in model.values():
                reference_tensor(tensor)
        return
    with milblob.open(source, constants=True) as model:
        left = {name: t for name, t in model.items() if not contenthash.is_left_out(t)}
        assert set(left) == set(got.tensors)
        few = sorted(left, key=lambda name: left[name].nbytes)[:25]  # the slow one is slow
        assert {name: got.tensors[name] for name in few} == {name: reference_tensor(left[name]) for name in few}


@pytest.mark.parametrize("case", BLOB_CASES)
def test_weight_files(case):
    path = load_case(case).path()
    got = content_hash(path)
    assert got.model == reference_hash.model_hash(got.tensors)
    with milblob.open(path) as model:
        small = {name: tensor for name, tensor in model.items() if tensor.nbytes < 3000}
        assert {name: got.tensors[name] for name in small} == {name: reference_tensor(t) for name, t in small.items()}


def test_a_whole_model():
    """Every line that the demo's hash is made of, the reads among them from its protobuf message."""
    got = content_hash(DEMO)
    uses = []
    with milblob.open(DEMO) as model:
        for name, function in model.program.functions.items():
            for block in function.block_specializations.values():
                for op in block.operations:
                    assert not op.blocks
                    for key, argument in op.inputs.items():
                        for i, binding in enumerate(argument.arguments):
                            if binding.WhichOneof("binding") == "name":
                                uses.append((f"{name}/", op.type, op.outputs[0].name, f"{key}[{i}]", binding.name))
                uses += [(f"{name}/", "return", "", "0", output) for output in block.outputs]
    assert got.model == reference_hash.model_hash(got.tensors, uses)


def test_values_that_must_not_change():
    """Hashes are kept by users: these may not change with a version or a machine."""
    assert content_hash(DEMO).model == "d03a3a0929e569a5cb6e7bc08bfa0fa72b7cde8765a188169e1e364c09e38cd3"
    assert (
        content_hash(DATA / "blob_handmade" / "weight.bin").model
        == "e8f10ed7e9b6d77d580de1faa8875e7489f6cd443728ec9d74cbca2985413175"
    )


# --------------------------------------------------------------------------------------------------- what does not count

PAIRS = [
    path.name
    for path in sorted(DATA.iterdir())
    if len(list(path.glob("model*.ml*"))) > 1 and path.name != "neural_network"
]


@pytest.mark.parametrize("case", PAIRS)
@pytest.mark.sample(5)
def test_package_and_compiled_model(case):
    hashes = {path.name: content_hash(path) for path in sorted((DATA / case).glob("model*.ml*"))}
    assert len(hashes) > 1
    assert len({one.model for one in hashes.values()}) == 1, hashes
    assert len({tuple(sorted(one.tensors.items())) for one in hashes.values()}) == 1


REPACKS = [
    {"dedupe": True}, {"gc": True}, {"canonical": True}, {"align": 16384}, {"externalize": True}, {"inline": True}, {"inline": 10_000},
    {"split": "function"}, {"split": 20_000}, {"merge": True}, {"canonical": True, "dedupe": True, "align": 4096},
]  # fmt: skip


@pytest.mark.parametrize("options", some(REPACKS, 12), ids=str)
@pytest.mark.parametrize(
    "model", ["demo", "opset_ios16_fp16", "opset_ios18_fp32", "functions", "palette_4bit", "quant_int4_block"]
)
def test_repacked(model, options, tmp_path):
    source = DEMO if model == "demo" else DATA / model / "model.mlpackage"
    target = tmp_path / "out.mlpackage"
    milblob.repack(source, target, **options)
    assert content_hash(target) == content_hash(source)


def test_the_order_of_maps(tmp_path):
    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "functions" / "model.mlpackage", package)
    path = package / "Data/com.apple.CoreML/model.mlmodel"
    data = path.read_bytes()
    buffer = _codec.Buffer(data)
    ((at, nbytes),) = ((at, n) for number, _, _, at, n in _codec.wire_fields(buffer, 0, len(data)) if number == 502)
    fields = _codec.wire_fields(buffer, at, nbytes)
    spans = [(number, start, stop) for (number, *_), start, stop in zip(
        fields, [at, *(o + n for *_, o, n in fields)], [o + n for *_, o, n in fields], strict=False)]  # fmt: skip
    functions = [data[start:stop] for number, start, stop in spans if number == 2]
    others = [data[start:stop] for number, start, stop in spans if number != 2]
    assert len(functions) > 1
    shuffled = data[:at] + b"".join([*reversed(functions), *others]) + data[at + nbytes :]
    assert shuffled != data
    path.write_bytes(shuffled)
    assert content_hash(package).model == content_hash(DATA / "functions" / "model.mlpackage").model


def test_uninitialised_bytes(tmp_path):
    """What coremltools before 8.0 left in bytes 24 to 63 of records, and set bits after the last element."""
    package = tmp_path / "demo.mlpackage"
    shutil.copytree(DEMO, package)
    path = package / "Data/com.apple.CoreML/weights/weight.bin"
    data = bytearray(path.read_bytes())
    with milblob.BlobReader(path) as blobs:
        for record in blobs:
            data[record.offset + 24 : record.offset + 64] = os.urandom(40)
    path.write_bytes(data)
    assert content_hash(package) == content_hash(DEMO)


@pytest.mark.parametrize("dtype", ["INT4", "UINT1", "UINT2", "UINT3", "UINT4", "UINT6"])
def test_padding_bits(dtype, tmp_path):
    nbits = reference.DTYPES[dtype][2]
    for count in (1, 5, 11, 300):
        values = [i * 7 % (1 << nbits - 1) for i in range(count)]
        data, offsets = reference.write_blobs([(dtype, values)])
        if count * nbits % 8 == 0:
            continue
        noisy = bytearray(data)
        noisy[-1] |= 0xFF << (count * nbits % 8) & 0xFF
        assert content_hash(bytes(noisy)) == content_hash(data)
        packed = reference.pack_elements(values, dtype)
        assert content_hash(data).tensors["#0"] == reference_hash.tensor_hash(dtype.lower(), [count], packed)
        noisy[offsets[0] + 64] ^= 1
        assert content_hash(bytes(noisy)) != content_hash(data)


# ------------------------------------------------------------------------------------------------------- what does count


def test_values_names_and_operations_change_the_hash(tmp_path):
    seen = {content_hash(DEMO).model}
    weights = "Data/com.apple.CoreML/weights/weight.bin"

    def changed(change, path=weights):
        package = tmp_path / f"{len(seen)}.mlpackage"
        shutil.copytree(DEMO, package)
        (package / path).write_bytes(change((package / path).read_bytes()))
        digest = content_hash(package).model
        assert digest not in seen
        seen.add(digest)

    changed(lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    program = "Data/com.apple.CoreML/model.mlmodel"
    changed(lambda data: data.replace(b"head_bias", b"tail_bias"), program)  # a name
    changed(lambda data: data.replace(b"linear", b"matmul"), program)  # an operation
    assert len(seen) == 4
    assert content_hash(reference.write_blobs([("UINT8", [1, 2])])[0]) != content_hash(
        reference.write_blobs([("INT8", [1, 2])])[0]
    )


def test_shapes_and_strings_count():
    with milblob.open(DATA / "immediates" / "model.mlmodel", constants=True) as model:
        tensors = [t for t in model.values() if not contenthash.is_left_out(t)]
        digests = list(contenthash.tensor_hashes(tensors))
        seen = {}
        for tensor, digest in zip(tensors, digests, strict=True):
            values = tensor.read()
            content = (
                str(tensor.mil_dtype),
                tensor.shape,
                values.tobytes() if values.dtype != object else tuple(values.reshape(-1)),
            )
            assert seen.setdefault(digest, content) == content
    assert len(seen) > 10


# ------------------------------------------------------------------------------------------------------------ the rest


def test_sources():
    path = DATA / "immediates" / "model.mlmodel"
    expected = content_hash(path)
    assert content_hash(path.read_bytes()) == expected
    with path.open("rb") as file:
        assert content_hash(file) == expected
    for options in ({}, {"constants": True}, {"stored": True}):
        with milblob.open(path, **options) as model:
            assert content_hash(model) == expected
            assert len(model) >= 0  # still open
        with milblob.open(path.read_bytes(), **options) as model:
            assert content_hash(model) == expected
    blob = (DATA / "blob_handmade" / "weight.bin").read_bytes()
    with milblob.open(blob) as model:
        assert content_hash(model) == content_hash(blob)
    model.close()
    with pytest.raises(ValueError, match="closed"):
        content_hash(model)


def test_in_order_of_any_size(monkeypatch):
    """Tiny, middling and large tensors, in several threads, come in their order."""
    monkeypatch.setenv("MILBLOB_THREADS", "3")
    monkeypatch.setattr(elements, "PIECE_NBYTES", 9000)
    monkeypatch.setattr(elements, "_TINY_NBYTES", 100)
    with milblob.open(DEMO) as model:
        several = list(contenthash.tensor_hashes(model.values()))
        monkeypatch.setenv("MILBLOB_THREADS", "1")
        assert several == list(contenthash.tensor_hashes(model.values()))
        hashes = content_hash(DEMO).tensors
        assert several == [hashes[name] for name in model]


def test_a_missing_weight_file(tmp_path):
    shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    shutil.rmtree(tmp_path / "demo.mlpackage/Data/com.apple.CoreML/weights")
    with pytest.raises(milblob.ResolveError, match="no such file"):
        content_hash(tmp_path / "demo.mlpackage")


# --------------------------------------------------------------------------------------------------- compressed weights


@pytest.mark.parametrize(("case", "path"), some(case_paths(), 18))
def test_dense_hashes_are_those_of_the_decoded_values(case, path, monkeypatch):
    """And pieces of a few rows hash as the whole does."""
    with milblob.open(load_case(case).source(path)) as model:
        tensors = [tensor for tensor in model.values() if tensor.parts]
        stored = list(contenthash.tensor_hashes(tensors))
        for nbytes in (1 << 24, 64):
            monkeypatch.setattr(elements, "PIECE_NBYTES", nbytes)
            for tensor, other in zip(tensors, stored, strict=True):
                try:
                    values = tensor.read()
                except milblob.UnsupportedError:
                    with pytest.raises(milblob.UnsupportedError):
                        list(contenthash.tensor_hashes([tensor], dense=True))
                    continue
                dense = next(contenthash.tensor_hashes([tensor], dense=True))
                data = hash_bytes(stored_bytes(values, tensor.mil_dtype))
                head = f"milblob tensor 1\n{tensor.mil_dtype} {list(tensor.shape)}\n"
                assert dense == reference_hash.blake3(f"{head}{data}\n".encode()) != other
                got, expected = milblob.statistics(tensor), milblob.statistics(values, tensor.mil_dtype)
                if nbytes == 64:  # sums of other parts are rounded otherwise
                    assert (got.mean, got.std) == pytest.approx((expected.mean, expected.std), rel=1e-12)
                    rounded = {"mean": 0, "std": 0, "total": 0, "spread": 0}
                    got, expected = replace(got, **rounded), replace(expected, **rounded)
                assert got == expected


def check_dense_hash(source, folder):
    """A model and its decompressed copy hash alike, tensors and uses; the copy hashes so without `dense` too."""
    target = folder / "dense.mlpackage"
    milblob.repack(source, target, decompress=True, force=True)
    expected = content_hash(target)
    assert content_hash(source, dense=True) == content_hash(target, dense=True) == expected
    assert content_hash(source) != expected
    assert milblob.diff(source, target).is_same
    return expected


def test_dense_hashes_are_those_of_the_decompressed_model(tmp_path):
    """Of fixtures that have compressed weights: the hash of the model, not only of its weights.

    `make thorough` takes all, `make test` those that have an operation which the ones before have not.
    """
    kinds = set()
    for source in sorted({*DATA.glob("*/model.mlpackage")} - {DATA / "neural_network" / "model.mlpackage"}):
        with milblob.open(source) as opened:
            found = {op for tensor in opened.values() if tensor.compression for op in tensor.compression.operations}
        if found - kinds or (IS_LARGE and found):
            check_dense_hash(source, tmp_path)
            kinds |= found
    assert kinds == {
        "affine_dequantize", "blockwise_shift_scale", "cast", "lut_to_dense", "lut_to_sparse",
        "sparse_blockwise_shift_scale", "sparse_to_dense",
    }  # fmt: skip
    half = tmp_path / "half.mlpackage"
    milblob.repack(DEMO, half, cast={"float32": "float16"})
    check_dense_hash(half, tmp_path)


def text_of(name, text):
    """A const operation of a string."""
    return operation("const", name, [("val", value("STRING", np.array(text)))], output_type=tensor_type(2, []))


def reading(*names):
    """An operation that reads constants."""
    inputs = b"".join(field(2, field(1, f"x{i}") + field(2, field(1, field(1, name)))) for i, name in enumerate(names))
    return operation("custom_layer", "y", (), inputs, output_type=tensor_type(10, [2, 3]))


def test_dense_hashes_however_a_cast_is_spelled(tmp_path):
    """What a constexpr operation has beside the decoded value does not count: an attribute, an input, a const."""
    half, word = ("FLOAT16", np.arange(6, dtype=np.float16).reshape(2, 3)), ("STRING", np.array("fp32"))
    output = [("w", "FLOAT32", (2, 3))]
    spellings = {
        "attributes": [constexpr("cast", output, {"source_val": half, "output_dtype": word}, True)],
        "inputs": [constexpr("cast", output, {"source_val": half, "output_dtype": word})],
        "const": [text_of("t", "fp32"), constexpr("cast", output, {"source_val": half, "output_dtype": "t"})],
        "without": [constexpr("cast", output, {"source_val": half})],
    }
    hashes = set()
    for name, ops in spellings.items():
        source = write_package(tmp_path / name, model(program(*ops, reading("w"))))
        hashes.add(check_dense_hash(source, tmp_path).model)
    assert len(hashes) == 1
    ops = [*spellings["const"], reading("w", "t")]  # here the model has the text for itself too
    source = write_package(tmp_path / "shared", model(program(*ops)))
    assert set(check_dense_hash(source, tmp_path).tensors) == {"w", "t"}


def test_dense_hashes_of_a_chain_that_is_read_in_the_middle(tmp_path):
    bits = ("UINT1", np.array([[0, 1, 1], [1, 0, 1]], np.uint8))
    lut = ("INT8", np.array([3, -4], np.int8).reshape(1, 1, 2, 1))
    inner = constexpr("lut_to_dense", [("q", "INT8", (2, 3))], {"indices": bits, "lut": lut})
    scale = ("FLOAT16", np.full((1, 1), 2, np.float16))
    outer = constexpr("blockwise_shift_scale", [("w", "FLOAT16", (2, 3))], {"data": "q", "scale": scale})
    for names, expected in ((("w",), {"w"}), (("w", "q"), {"w", "q"})):
        source = write_package(tmp_path / "".join(names), model(program(inner, outer, reading(*names))))
        assert set(check_dense_hash(source, tmp_path).tensors) == expected
        assert set(milblob.load(source)) == expected


def test_a_chain_that_is_too_long(tmp_path):
    def scaled(name, data):
        part = field(2, field(1, "data") + field(2, field(1, data)))
        return operation(
            "constexpr_blockwise_shift_scale", name, [("scale", scale)], part, output_type=tensor_type(11, [12])
        )

    scale = immediate(11, [1], reference.pack_tensor_value("floats", [2.0]))
    value = immediate(11, [12], reference.pack_tensor_value("floats", [1.0] * 12))
    for length, is_fine in ((20, True), (40, False), (3000, False)):
        ops = [scaled("w0", field(2, value)), *(scaled(f"w{i}", field(1, f"w{i - 1}")) for i in range(1, length))]
        path = tmp_path / "m.mlmodel"
        path.write_bytes(model(program(*ops)))
        if is_fine:
            assert len(content_hash(path).tensors) == 1
        else:
            with pytest.raises(milblob.UnsupportedError, match="expected a chain of at most"):
                content_hash(path)
