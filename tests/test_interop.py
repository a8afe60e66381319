"""milblob beside coremltools in one process, reading the same files: equal values, in either order of import."""

import random
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import milblob
from cases import BLOB_CASES, MODEL_CASES, load_case
from children import child_environment
from coremltools_view import WORDS, load_pymil, loaded_values
from dtype_values import NUMPY, assert_same, natural
from paths import DATA
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter

from thorough import some

PACKAGES = [
    (name, path)
    for name in MODEL_CASES
    for path in load_case(name).expected["paths"]
    if path.endswith((".mlpackage", ".mlmodel"))
    and load_case(name).expected.get("pymil") == "loads"
    and name != "weight_files"  # coremltools resolves by basename and reads the wrong file there
]


@pytest.mark.parametrize(("name", "path"), PACKAGES)
@pytest.mark.sample(5)
def test_values_equal_a_pymil_load(name, path):
    path = load_case(name).source(path)
    theirs = loaded_values(load_pymil(path))
    opsets = load_case(name).expected["functions"]
    checked = 0
    with milblob.open(path, constants=True, stored=True) as model:
        for tensor in model.values():
            parameter = tensor.where.rpartition(".")[2]
            is_part = tensor.op.startswith("constexpr_") and parameter != "name"
            if not is_part and (tensor.op, parameter) != ("const", "val"):
                continue
            if not tensor.where.startswith(f"{tensor.function}.block[{opsets[tensor.function]!r}]"):
                continue  # coremltools loads one specialization
            output = tensor.name.rpartition("/")[2].removesuffix(f".{parameter}" if is_part else "")
            values, candidates = tensor.read(), theirs[tensor.function, output, parameter]
            assert candidates, tensor
            checked += 1
            if tensor.mil_dtype.name == "STRING":
                assert values.item() in [str(text) for text in candidates]
                continue
            if tensor.mil_dtype.name == "INT4":
                values = values.astype(np.int8)
            elif tensor.mil_dtype.is_sub_byte:
                values = values.view(np.uint8)
            arrays = [np.asarray(candidate) for candidate in candidates]
            same = [(a.shape, a.astype(values.dtype).tobytes()) == (values.shape, values.tobytes()) for a in arrays]
            assert any(same), (tensor, values, arrays)
    assert checked


# -------------------------------------------------------------------------------------------------------------- imports


def run(code):
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


USE = """
path = {path!r}
with milblob.open(path) as model:
    ours = model.program
data = open(path + "/Data/com.apple.CoreML/model.mlmodel", "rb").read()
theirs = coremltools.proto.Model_pb2.Model.FromString(data).mlProgram
assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
first = theirs.functions["main"].block_specializations["CoreML6"].operations[0]
tensor = first.attributes["name"].immediateValue.tensor
assert milblob.unpack_tensor(tensor, "string", ()).item() == tensor.strings.values[0]
assert type(ours).DESCRIPTOR.full_name == type(theirs).DESCRIPTOR.full_name
assert type(ours) is not type(theirs)
assert milblob.program.schema.parse("Program", theirs.SerializeToString()) == ours
print("good", len(milblob.load(path, stored=True)))
"""


@pytest.mark.parametrize(
    "imports",
    some(
        [
            "import milblob.program.schema, coremltools",
            "import coremltools, milblob.program.schema",
            "import milblob.program.schema as s; s.Program; import milblob, coremltools",
        ],
        1,
    ),
)
def test_both_in_one_process(imports):
    path = str(DATA / "opset_ios16_fp16" / "model.mlpackage")
    count = len(milblob.load(path, stored=True))
    assert run(imports + USE.format(path=path)) == f"good {count}"


# ---------------------------------------------------------------------------------------------------------------- blobs


def theirs_as_natural(values, dtype):
    if dtype == "INT4":
        return natural(values.view(np.uint8) & 15, dtype)
    return natural(values.view(np.uint16) if dtype == "FLOAT16" else values, dtype)


@pytest.mark.parametrize("name", [name for name in BLOB_CASES if name not in ("blob_none", "blob_handmade")])
def test_their_reader_and_ours(name):
    case = load_case(name)
    reader = _BlobStorageReader(str(case.path()))
    checked = 0
    with milblob.BlobReader(case.path()) as blobs:
        for record in blobs:
            if record.count == 0:
                continue  # theirs refuses empty records
            word, _ = WORDS[record.dtype.name]
            theirs = np.asarray(getattr(reader, f"read_{word}_data")(record.offset))
            assert_same(blobs.read(record), theirs_as_natural(theirs, record.dtype.name), record.dtype.name)
            checked += 1
    assert checked


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sample(5)
def test_files_of_their_writer(tmp_path, seed):
    """Random records of random dtypes and sizes, appended in one to three sessions."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    path = tmp_path / "weight.bin"
    written = []
    for session in range(draw.randint(1, 3)):
        writer = _BlobStorageWriter(str(path), session == 0)
        for _ in range(draw.randint(0, 12)):
            dtype = draw.choice(list(WORDS))
            word, kind = WORDS[dtype]
            count = draw.choice([0, 1, 2, 3, 7, 8, 9, 63, 64, 65, draw.randint(0, 3000)])
            nbits = milblob.DType[dtype].nbits
            bits = np.frombuffer(rng.bytes(count * max(nbits, 8) // 8), np.uint8)
            if nbits < 8:
                bits = bits & (1 << nbits) - 1
            array = bits.view(ml_dtypes.int4).astype(np.int8) if dtype == "INT4" else bits.view(kind)
            offset = getattr(writer, f"write_{word}_data")(array)
            written.append((offset, dtype, bits.view(NUMPY[dtype])))
        del writer
    with milblob.BlobReader(path) as blobs:
        assert [record.offset for record in blobs] == [offset for offset, _, _ in written]
        assert [record.dtype.name for record in blobs] == [dtype for _, dtype, _ in written]
        for offset, dtype, array in written:
            assert blobs.record(offset).count == array.size
            assert_same(blobs.read(offset), array, dtype)
    arrays = milblob.load(path)
    for number, (_, dtype, array) in enumerate(written):
        assert_same(arrays[f"#{number}"], array, dtype)
