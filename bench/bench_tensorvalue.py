"""TensorValue <-> NumPy: 10 million elements, against protobuf and coremltools' own helper."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import milblob
from conftest import scaled

COUNT = scaled(10_000_000, 1000)
SHARE = 1 / 20
"""Part of the elements that coremltools' packing is run on: in full it takes 16 to 27 seconds."""


class Kind(NamedTuple):
    """Values of one dtype and how TensorValue holds them."""

    dtype: str
    field: str
    make: Callable[[np.random.Generator, int], np.ndarray[Any, Any]]


def log_uniform(random: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """int32 of every magnitude alike, either sign: 1 to 5 bytes, or 10, each as a varint."""
    return (np.exp2(random.uniform(0, 31, count)) * random.choice([-1, 1], count)).astype(np.int32)


KINDS = {
    "floats": Kind("float32", "floats", lambda r, n: r.standard_normal(n, np.float32)),
    "int32, full range": Kind("int32", "ints", lambda r, n: r.integers(-(1 << 31), 1 << 31, n, np.int32)),
    "int32, log-uniform": Kind("int32", "ints", log_uniform),
    "int32, 0 to 127": Kind("int32", "ints", lambda r, n: r.integers(0, 128, n, np.int32)),
    "int32, 0 to 50,000": Kind("int32", "ints", lambda r, n: r.integers(0, 50_000, n, np.int32)),
    "int64, full range": Kind("int64", "longInts", lambda r, n: r.integers(-(1 << 63), (1 << 63) - 1, n, np.int64)),
    "bools": Kind("bool", "bools", lambda r, n: r.integers(0, 2, n, np.uint8).view(np.bool_)),
    "float16 in bytes": Kind("float16", "bytes", lambda r, n: r.standard_normal(n, np.float32).astype(np.float16)),
}


UNPACK_TARGETS = {"int32, full range": 1 / 10, "int32, log-uniform": 1 / 10, "int32, 0 to 127": 1 / 15, "bools": 1 / 15}
LIMIT = "memset of a fresh array of the result's size"


def memset(nbytes: int) -> np.ndarray[Any, Any]:
    """What a fresh result costs that nobody has to compute."""
    out = np.empty(nbytes, np.uint8)
    out.fill(0)
    return out


def job_of(verb: str, kind: str) -> str:
    """Name of the job."""
    return f"{verb} {COUNT / 1e6:g}M {kind}"


@pytest.fixture(scope="module", params=list(KINDS))
def case(request: Any) -> tuple[str, Kind, np.ndarray[Any, Any], bytes]:
    """Name, kind, values and the TensorValue that protobuf makes of them."""
    kind = KINDS[request.param]
    array = kind.make(np.random.default_rng(4), COUNT)
    return request.param, kind, array, pack_protobuf(array, kind.field)


def pack_protobuf(array: np.ndarray[Any, Any], field: str) -> bytes:
    """What one writes without milblob."""
    from coremltools import proto

    value = proto.MIL_pb2.TensorValue()
    if field == "bytes":
        value.bytes.values = array.tobytes()
    else:
        getattr(value, field).values.extend(array.tolist())
    return bytes(value.SerializeToString())


def unpack_protobuf(data: bytes, field: str, dtype: str) -> np.ndarray[Any, Any]:
    """What one writes without milblob."""
    from coremltools import proto

    value = proto.MIL_pb2.TensorValue.FromString(data)
    if field == "bytes":
        return np.frombuffer(value.bytes.values, dtype)
    return np.array(getattr(value, field).values, dtype)


def bench_unpack(row: Any, case: Any) -> None:
    name, kind, array, data = case
    shape = (COUNT,)

    def check(result: np.ndarray[Any, Any]) -> None:
        assert result.dtype == array.dtype and np.array_equal(result, array)

    options: dict[str, Any] = {"targets": {"protobuf": UNPACK_TARGETS.get(name, 1 / 4)}}
    if kind.field in ("floats", "bytes"):
        options = {"limit_ms": 0.1, "note": "a view"}
    job = job_of("unpack", name)
    row(job, "milblob", lambda: milblob.unpack_tensor(data, kind.dtype, shape), check=check, role="milblob", **options)


def bench_unpack_out(row: Any, case: Any) -> None:
    """Into memory that is there already."""
    name, kind, array, data = case
    out = np.ones(COUNT, array.dtype)

    def run() -> np.ndarray[Any, Any]:
        return milblob.unpack_tensor(data, kind.dtype, (COUNT,), out=out)

    def check(result: np.ndarray[Any, Any]) -> None:
        assert result is out and np.array_equal(result, array)

    row(job_of("unpack", name), "milblob: out=", run, check=check, role="milblob")


def bench_unpack_memset(row: Any, case: Any) -> None:
    name, kind, array, _ = case
    if kind.field in ("floats", "bytes"):
        return  # a view needs nothing
    row(
        job_of("unpack", name),
        LIMIT,
        lambda: memset(array.nbytes),
        check=lambda got: is_zero(got, array.nbytes),
        role="limit",
    )


def bench_pack_memset(row: Any, case: Any) -> None:
    name, _, _, data = case
    row(job_of("pack", name), LIMIT, lambda: memset(len(data)), check=lambda got: is_zero(got, len(data)), role="limit")


def is_zero(array: np.ndarray[Any, Any], nbytes: int) -> None:
    assert array.nbytes == nbytes and not array.any()


def bench_unpack_protobuf(row: Any, case: Any) -> None:
    name, kind, array, data = case

    def check(result: np.ndarray[Any, Any]) -> None:
        assert np.array_equal(result, array)

    row(job_of("unpack", name), "protobuf", lambda: unpack_protobuf(data, kind.field, kind.dtype), check=check)


def bench_pack(row: Any, case: Any) -> None:
    name, kind, array, data = case

    def check(result: bytes) -> None:
        assert result == data

    options: dict[str, Any] = {"role": "milblob", "targets": {"protobuf": 1 / 50, "coremltools": 1 / 500}}
    if kind.field == "bytes":
        options["targets"] = {}
        options["note"] = "a copy for everyone"
    row(job_of("pack", name), "milblob", lambda: milblob.pack_tensor(array), check=check, **options)


def bench_pack_protobuf(row: Any, case: Any) -> None:
    name, kind, array, data = case

    def check(result: bytes) -> None:
        assert result == data

    row(job_of("pack", name), "protobuf", lambda: pack_protobuf(array, kind.field), check=check)


def bench_pack_coremltools(row: Any, case: Any) -> None:
    from coremltools.converters.mil.backend.mil.helper import create_tensor_value

    name, kind, array, _ = case
    part = array[: max(1, int(COUNT * SHARE))]
    expected = pack_protobuf(part, kind.field)

    def check(result: bytes) -> None:
        assert result == expected

    def run() -> bytes:
        return bytes(create_tensor_value(part).immediateValue.tensor.SerializeToString())

    options = {"share": len(part) / COUNT, "note": f"run on {len(part):,} elements, shown times {COUNT / len(part):g}"}
    row(job_of("pack", name), "coremltools", run, check=check, **options)
