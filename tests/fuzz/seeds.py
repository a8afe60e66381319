"""The first inputs of every harness, cut from tests/data.

python tests/fuzz/seeds.py FOLDER         FOLDER/<harness>/<number>, small files first
"""

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
DATA = TESTS / "data"
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

import reference  # noqa: E402

CUTS = (0, 1, 7, 64, 129, 1000)
KINDS = {"model": 0, "weights": 1, "text": 2, "manifest": 3, "metadata": 4, "value": 5, "safetensors": 6, "npz": 7, "npy": 8, "listing": 9, "journal": 10}  # fmt: skip
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


def python_inputs():
    """Whole files with a byte in front that says what they are."""
    from milblob.formats.weights import write_weights  # noqa: F401  # shows early that the package is not built

    found = [(KINDS["model"], data) for data in files("**/*.mlmodel", 6_000)]
    found += [(KINDS["weights"], data) for data in files("**/weight.bin", 6_000)]
    found += [(KINDS["text"], data) for data in files("**/model.mil", 6_000)]
    found += [(KINDS["manifest"], data) for data in files("**/Manifest.json", 6_000)]
    found += [(KINDS["metadata"], data) for data in files("**/metadata.json", 6_000)]
    found += [(KINDS["value"], bytes([code]) + value) for value in values() for code in (0, 3, 9)]
    return found


def write(folder, harness, inputs):
    """Write inputs as numbered files."""
    (folder / harness).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs):
        (folder / harness / f"{number:04}").write_bytes(data)


def main(folder):
    """Write the seeds of every harness."""
    write(folder, "blob", files("**/weight.bin", 20_000))
    for harness in ("program", "splice"):
        write(folder, harness, programs(12_000))
    write(folder, "tensor", values())
    write(folder, "text", [b"\xff" + data for data in files("**/model.mil", 12_000)])
    write(folder, "store", [data for data in payloads() if len(data) < 300] + files("blob_*/weight.bin", 1_000))
    for harness in ("varint", "sub_byte", "decode", "cast", "statistics", "compare"):
        write(folder, harness, payloads())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
