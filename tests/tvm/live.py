"""TVM itself, asked at once: `make tvm-oracle` runs this with the environment that has it ($MILBLOB_TVM_PYTHON)."""

import json
import os
import pathlib
import subprocess

import ml_dtypes
import numpy as np
import pytest

from milblob import FormatError, tvm
from thorough import sized

HERE = pathlib.Path(__file__).parents[1]
DTYPES = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16", "bool",
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


@pytest.fixture(scope="module")
def ask():
    """A function that sends a request to TVM and returns its answer."""
    child = subprocess.Popen(
        [os.environ["MILBLOB_TVM_PYTHON"], str(HERE / "data" / "make_tvm_oracle.py"), "serve"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip

    def one(**request):
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    yield one
    child.stdin.close()
    child.wait(60)


def some_arrays(random):
    """Tensors of any names, dtypes, shapes and bits."""
    found = {}
    for number in range(random.integers(0, 8)):
        name = "".join(map(chr, random.choice([*range(32, 127), 0xE9, 0x4E2D, 0x1F600], random.integers(0, 20)))) + str(
            number
        ) * (number > 0)
        dtype, shape = str(random.choice(DTYPES)), tuple(int(n) for n in random.integers(0, 5, random.integers(0, 5)))
        kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        bits = random.integers(
            0, 2 if dtype == "bool" else 256, int(np.prod(shape, dtype=int)) * kind.itemsize, dtype=np.uint8
        )
        found[name] = bits.view(kind).reshape(shape)
    return found


def test_random_dicts_both_ways(ask, tmp_path):
    random = np.random.default_rng(int(os.environ.get("MILBLOB_SEED", "13")))
    for number in range(sized(200, 3000)):
        arrays = some_arrays(random)
        path = tmp_path / f"{number}.params"
        tvm.write_params(arrays, path)
        rows = [[name, str(array.dtype), list(array.shape), array.tobytes().hex()] for name, array in arrays.items()]
        assert bytes.fromhex(ask(save=rows)["hex"]) == path.read_bytes()
        answer = ask(load=path.read_bytes().hex())
        if any(array.size == 0 and array.shape[0] != 0 for array in arrays.values()):
            assert "error" in answer  # TVM 0.27 writes shapes such as (3, 0), and does not read them
            continue
        read = answer["tensors"]
        assert [[t["name"], t["dtype"], t["shape"], t["hex"]] for t in read] == rows
        with tvm.read_params(path) as views:
            assert [[n, str(a.dtype), list(a.shape), a.tobytes().hex()] for n, a in views.items()] == rows
        path.unlink()


def test_tvm_reads_all_that_milblob_reads(ask, tmp_path):
    """Mutated files: what milblob takes, TVM takes with the same values, where it has values for it."""
    random = np.random.default_rng(14)
    tvm.write_params({"a": np.arange(3, dtype="f4"), "bc": np.ones((2, 2), "i1"), "d": np.float64(2)}, tmp_path / "a")
    good, taken = (tmp_path / "a").read_bytes(), 0
    for _ in range(sized(400, 5000)):
        data = bytearray(good)
        for _ in range(random.integers(1, 3)):
            data[random.integers(0, len(data))] = random.choice([0, 1, 2, 8, 255, random.integers(0, 256)])
        try:
            got = {name: array.tobytes().hex() for name, array in tvm.read_params(bytes(data)).items()}
        except (FormatError, NotImplementedError):
            continue
        answer = ask(load=bytes(data).hex())
        if answer.get("error") == "UnicodeDecodeError":
            continue
        if any(0 in tensor.shape[1:] for tensor in tvm.read_params(bytes(data)).tensors.values()):
            continue
        taken += 1
        told = {
            t["name"]: t["hex"] for t in answer["tensors"] if t["dtype"] != "uint1"
        }  # uint1: a bool here, see codes.py
        assert told == {name: value for name, value in got.items() if name in told}
    assert taken > 50
