"""The first inputs of the harnesses, cut from tests/data.

python tests/fuzz/seeds.py FOLDER         FOLDER/<harness>/<number>, small files first
"""

import io
import json
import pathlib
import sys
import tempfile
import zipfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
DATA = TESTS / "data"
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent / "src")]

import hostile_chains  # noqa: E402
import mlir_bytes  # noqa: E402
import reference  # noqa: E402
from journal_bytes import journal_bytes  # noqa: E402

CUTS = (0, 1, 7, 64, 129, 1000)
KINDS = {"model": 0, "weights": 1, "text": 2, "manifest": 3, "metadata": 4, "value": 5, "safetensors": 6, "npz": 7, "npy": 8, "listing": 9, "journal": 10, "gguf": 11, "onnx": 12}  # fmt: skip
"""What the first byte of an input of fuzz_python.py says that the rest is."""


def files(pattern, most):
    """Contents of the files of tests/data that match, none twice, small ones first."""
    found = {path.read_bytes() for path in DATA.glob(pattern) if path.stat().st_size <= most}
    return sorted(found, key=lambda data: (len(data), data))


def programs(most):
    """Program messages, cut out of model files."""
    found = set(files("wire/*/program.pb", most))
    for data in files("**/*.mlmodel", 1 << 20):
        try:
            rows = reference.read_fields(data)
        except ValueError:
            continue
        found.update(body for number, wire, body in rows if (number, wire) == (502, 2) and len(body) <= most)
    return sorted(found, key=lambda data: (len(data), data))


def values():
    """TensorValues in every field and encoding."""
    chunks = reference.write_field(3, reference.write_field(1, b"\1" * 200) + b"\x08\x01" * 50)
    return [
        reference.pack_tensor_value("floats", [1.0] * 9), reference.pack_tensor_value("doubles", [1.0] * 5),
        reference.pack_tensor_value("ints", [1, -1, 300, 1 << 30] * 40), reference.pack_tensor_value("bools", [True, False] * 100),
        reference.pack_tensor_value("longInts", [-(1 << 63), 7] * 60), reference.pack_tensor_value("strings", ["", "a", "bc"]),
        reference.pack_tensor_value("bytes", bytes(range(200))), chunks,
    ]  # fmt: skip


def payloads():
    """Runs of bytes for kernels: a byte that chooses, then all alike, counting up, varints, floats of real weights."""
    runs = [bytes(n) for n in CUTS] + [b"\xff" * n for n in CUTS] + [bytes(range(256)) * 4, b"\x7f\x80\x01" * 60]
    runs += [
        b"".join(map(reference.write_varint, row))
        for row in ([1 << k for k in range(64)], [(1 << 64) - 9] * 20, list(range(70)) * 3)
    ]
    runs += [data[-2000:] for data in files("blob_*/weight.bin", 20_000)]
    return [bytes([choice]) + run for run in runs for choice in (0, 0x53, 0xFC)]


OPERATIONS = 39
"""How many operations tests/c/changing.h has."""


def changes():
    """For every operation of changing.h: what its source is first, and what it becomes."""
    pattern = bytes(number * number * 7 % 251 for number in range(600))
    small = bytes(number % 5 if number % 8 == 0 else 0 for number in range(600))
    varints = b"".join(map(reference.write_varint, [1, 127, 128, 300, 1 << 20, (1 << 64) - 9] * 60))
    contents = [small, pattern, b"\1" * 600, b"\x80" * 600, b"\xff" * 600, varints[:600], bytes(600)]
    pairs = [(a, b) for a in contents[:3] for b in contents] + [
        (varints[:600], b"\1" * 600),
        (b"\1" * 600, varints[:600]),
    ]
    found = [bytes([choice]) + a + b for choice in range(OPERATIONS) for a, b in pairs]
    found.append(bytes([19]) + b"\1" * 600 + b"\2" * 500 + b"\1" * 100)  # bools, and then not
    # What was passed over becomes one chunk, one string, one message around the edit more.
    for choice, number in ((26, 3), (26, 4)):
        chunk, other = reference.write_field(1, b"\1" * 10), reference.write_field(1, b"\1" * 40)
        found.append(
            bytes([choice])
            + reference.write_field(number, chunk + b"\x12" + other[1:])
            + reference.write_field(number, chunk + other)
        )
    found.append(bytes([33]) + b"\x0a\xac\x80\x00\x12\x2a" + bytes(42) + b"\x0a\x2e\x0a\x2c\x12\x2a" + bytes(42))
    of_fields = [(26, value) for value in values()] + [(33, data) for data in programs(1_500)[:40]]
    of_fields += [(33, data) for data in files("blob_*/weight.bin", 1_000)]
    of_fields += [(34, data[:1_500]) for data in files("**/model.mil", 12_000)]
    for choice, data in of_fields:
        found += [
            bytes([choice]) + data + changed
            for changed in (data[::-1], data[: len(data) // 2] * 2 + data[-1:], b"\x8a" * len(data))
        ]
    return found


def _gguf():
    """A GGUF file with metadata of several kinds and tensors of every type that is read quantized."""
    import numpy

    from gguf_files import QUANTIZED, write

    rows = numpy.linspace(-1, 1, 64, dtype=numpy.float32).reshape(2, 32)
    with tempfile.TemporaryDirectory() as folder:
        path = write(pathlib.Path(folder, "a.gguf"), {"plain": rows} | {kind: (rows, kind) for kind in QUANTIZED})
        return path.read_bytes()


def _onnx():
    """An ONNX model with raw and typed elements, sparse ones, external data, a graph in a node, and milblob's metadata."""
    import numpy
    from onnx import TensorProto, helper, numpy_helper

    rows = numpy.linspace(-1, 1, 6, dtype=numpy.float32)
    held = [
        numpy_helper.from_array(rows.astype(dtype), dtype) for dtype in ("float32", "float16", "int8", "bool", "int64")
    ]
    held += [
        helper.make_tensor(name, kind, [3], [1, 2, 3])
        for name, kind in (("i", TensorProto.INT32), ("f", TensorProto.FLOAT))
    ]
    held += [
        helper.make_tensor("four", TensorProto.INT4, [3], [1, -2, 3]),
        helper.make_tensor("s", TensorProto.STRING, [1], [b"a"]),
    ]
    apart = TensorProto(name="apart", dims=[4], data_type=TensorProto.UINT8, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "64"), ("length", "4")):
        apart.external_data.add(key=key, value=value)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(rows[:2], "sparse"), numpy_helper.from_array(numpy.array([1, 5]), "places"), [2, 3]
    )
    inner = helper.make_graph([], "inner", [], [], initializer=held[:1])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inner),
        helper.make_node("Constant", [], ["k"], value=held[0]),
    ]
    graph = helper.make_graph(nodes, "g", [], [], initializer=[*held, apart], sparse_initializer=[sparse])
    model = helper.make_model(graph)
    for key, value in (("milblob.weights", '{"f": "main/f"}'), ("milblob.made", '{"i": {"why": "x", "hash": "00"}}')):
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def python_inputs():
    """Whole files, with a byte in front that says what they are and what is done with them (fuzz_python.py)."""
    import numpy
    import safetensors.numpy

    import milblob
    from milblob.storage import journal_format

    rows = [("model", "**/*.mlmodel"), ("weights", "**/weight.bin"), ("text", "**/model.mil")]
    rows += [("manifest", "**/Manifest.json"), ("metadata", "**/metadata.json")]
    found = [(kind, data) for kind, pattern in rows for data in files(pattern, 6_000)]
    found += [("value", bytes([choice]) + value) for value in values() for choice in range(0, 256, 7)]
    arrays = {
        "a": numpy.arange(6, dtype="<f4").reshape(2, 3),
        "b/c": numpy.ones(3, "<f2"),
        "d": numpy.zeros((0, 4), "i1"),
    }
    found.append(("safetensors", safetensors.numpy.save(arrays)))
    found.append(("gguf", _gguf()))
    found.append(("onnx", _onnx()))
    for compress in (numpy.savez, numpy.savez_compressed):
        stream = io.BytesIO()
        compress(stream, **arrays)
        found.append(("npz", stream.getvalue()))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):  # what unpacks them is our own
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as archive:
            for name, array in (*arrays.items(), ("__milblob__", numpy.array('{"a": {"dtype": "float32"}}'))):
                with archive.open(f"{name}.npy", "w") as member:
                    numpy.lib.format.write_array(member, array)
        found.append(("npz", stream.getvalue()))
    for array in arrays.values():
        stream = io.BytesIO()
        numpy.save(stream, array)
        found.append(("npy", stream.getvalue()))
    with tempfile.TemporaryDirectory() as folder:
        milblob.write_weights(arrays, f"{folder}/w.bin", listing=f"{folder}/a.json")
        found.append(("listing", pathlib.Path(folder, "a.json").read_bytes()))
    for name in ("weights/weight.bin", "model.mlmodel"):
        size = (DATA / "constexpr_ios18/model.mlpackage/Data/com.apple.CoreML" / name).stat().st_size
        patch = journal_format.Entry(journal_format.PATCH, f"Data/com.apple.CoreML/{name}", size, size - 8, bytes(8))
        new = patch._replace(
            kind=journal_format.REPLACEMENT,
            data=bytes(32) + journal_format.staged_name(name.rpartition("/")[2]).encode(),
        )
        for entries in ([patch], [patch, new]):
            found.append(("journal", journal_bytes(*entries)))
    chains = [hostile_chains.source(name) for name in ("line of 10", "doubled 10", "lattice of 7 by 4", "circle of 3")]
    found += [("model", data) for data in chains]
    models = [data for kind, data in found if kind in ("model", "text", "weights")]
    inputs = [bytes([KINDS[kind]]) + data for kind, data in found]
    # Every action on some of them; the quotient of the first byte by the number of kinds is the action.
    inputs += [
        bytes([KINDS["model"] + len(KINDS) * action]) + data
        for action in range(1, 8)
        for data in (*models[:20:4], *chains)
    ]
    return sorted(inputs, key=lambda data: (len(data), data))


def public_inputs():
    """Each call of public_calls.py on a few models with some damage."""
    import random

    from public_calls import CALLS, COMMANDS, MODELS

    draw = random.Random(20261124)
    calls = range(len(CALLS) + len(COMMANDS))
    return [
        bytes([draw.randrange(len(MODELS)), call]) + draw.randbytes(nbytes) for nbytes in (8, 24, 60) for call in calls
    ]


def params():
    """.params files as TVM wrote them, whole and strange."""
    rows = json.loads((DATA / "tvm" / "oracle.json").read_text(encoding="utf-8"))
    found = {bytes.fromhex(row["hex"]) for key in ("written", "read", "odd") for row in rows[key]}
    return sorted(found, key=lambda data: (len(data), data))


def bytecode():
    """MLIR bytecode: by hand, and small bundles of Core AI."""
    found = [
        mlir_bytes.file(),
        mlir_bytes.file(version=5),
        mlir_bytes.file(parts={8: None}),
        mlir_bytes.file(dialect_version=3),
    ]
    return found + [
        path.read_bytes() for path in sorted(DATA.glob("aimodel/bare_*/main.mlirb")) if path.stat().st_size < 4_500
    ]


def write(folder, harness, inputs):
    """Write inputs as numbered files."""
    (folder / harness).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / harness / f"{number:04}").write_bytes(data)


def main(folder, harnesses):
    """Write the seeds of some harnesses; none named: of all."""
    made = {
        "blob": lambda: files("**/weight.bin", 20_000),
        "program": lambda: programs(12_000),
        "splice": lambda: programs(12_000),
        "tensor": values,
        "text": lambda: [b"\xff" + data for data in files("**/model.mil", 12_000)],
        "store": lambda: [data for data in payloads() if len(data) < 300] + files("blob_*/weight.bin", 1_000),
        "between": changes,
        "params": params,
        "mlir": bytecode,
        "python": python_inputs,
        "public": public_inputs,
    }
    for harness in harnesses or [*made, "varint", "sub_byte", "decode", "cast", "statistics", "compare", "compress"]:
        write(folder, harness, made.get(harness, payloads)())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
