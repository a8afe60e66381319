"""Statistics and content hash of 1 GiB of float16, against one pass that adds up all words."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cwalk import CWalk

import milblob
from conftest import scaled

NBYTES = scaled(1 << 30, 1 << 20) // 4096 * 4096
SHARE = 1 / 32
"""Part of the elements that NumPy's float16 and other slow rows are run on."""

JOB = f"statistics of {NBYTES >> 20} MiB of float16"
HASH_JOB = f"hash {NBYTES >> 20} MiB"
PASS = "C: one summing pass, one thread"


def write_blob(path: Path) -> None:
    """One record of normally distributed weights."""
    random = np.random.default_rng(6)
    with milblob.BlobWriter(path) as blobs:
        block = (random.standard_normal(1 << 22, np.float32) * np.float32(0.02)).astype(np.float16)
        blobs.write(np.resize(block, NBYTES // 2))


@pytest.fixture(scope="module")
def weights(made: Callable[..., Path]) -> Any:
    """(path, the values as a view of the mapped file, all pages touched)."""
    path = made("one.bin", write_blob)
    values = milblob.load(path)["#0"]
    assert values.nbytes == NBYTES
    values.view(np.uint8)[::4096].sum()
    return path, values


@pytest.mark.parametrize("job", [JOB, HASH_JOB])
def bench_summing_pass(row: Any, weights: Any, cwalk: CWalk, job: str) -> None:
    _, values = weights
    expected = int(values.view(np.uint64).sum())

    def check(got: int) -> None:
        assert got == expected

    for_both = {"check": check, "role": "limit", "nbytes": NBYTES}
    row(job, PASS, lambda: cwalk.sum(values), **for_both)


def bench_numpy_sum_of_words(row: Any, weights: Any, cwalk: CWalk) -> None:
    _, values = weights
    words = values.view(np.uint64)
    row(
        JOB,
        "numpy: sum of the 64-bit words",
        words.sum,
        check=lambda got: _same(int(got), cwalk.sum(values)),
        role="aside",
        nbytes=NBYTES,
    )


def _same(got: Any, expected: Any) -> None:
    assert got == expected


def bench_milblob_statistics(row: Any, weights: Any) -> None:
    _, values = weights
    part = values[: values.size // 64].astype(np.float64)

    def check(got: Any) -> None:
        some = milblob.statistics(values[: values.size // 64])
        assert (some.min, some.max, some.zeros) == (part.min(), part.max(), int((part == 0).sum()))
        assert abs(some.mean - part.mean()) < 1e-15 and abs(some.std - part.std()) < 1e-12
        assert some.distinct == len(np.unique(part)) and got.count == values.size

    row(
        JOB,
        "milblob.statistics, mapped before",
        lambda: milblob.statistics(values),
        check=check,
        role="milblob",
        targets={PASS: 3},
        nbytes=NBYTES,
    )


def bench_numpy_statistics(row: Any, weights: Any) -> None:
    """The same figures, as one writes them; float64, so that nothing overflows."""
    _, values = weights
    values = values[: int(values.size * SHARE)]

    def run() -> tuple[Any, ...]:
        wide = values.astype(np.float64)
        magnitude = np.abs(wide)
        finite = np.isfinite(wide)
        return (
            wide.min(), wide.max(), wide.mean(), wide.std(), magnitude.max(), magnitude[magnitude > 0].min(), (wide == 0).sum(),
            np.isnan(wide).sum(), np.isposinf(wide).sum(), np.isneginf(wide).sum(), ((magnitude > 0) & (magnitude < 2**-14)).sum(),
            (finite & (magnitude >= 65520)).sum(), (np.signbit(wide) & (wide == 0)).sum(), len(np.unique(values.view(np.uint16))),
        )  # fmt: skip

    expected = milblob.statistics(values)
    row(
        JOB,
        "numpy: the same figures",
        run,
        check=lambda got: _same(got[0], expected.min),
        share=SHARE,
        nbytes=NBYTES,
    )


def bench_milblob_hash(row: Any, weights: Any) -> None:
    path, _ = weights
    expected = milblob.content_hash(path)
    with milblob.open(path) as model:
        tensor = model["#0"]
        np.asarray(tensor).view(np.uint8)[::4096].sum()  # mapped, as for the other rows

        from milblob.hashing import hash_bytes

        values = tensor.read()
        whole = hash_bytes(values)
        row(
            HASH_JOB,
            "milblob: BLAKE3, mapped before",
            lambda: hash_bytes(values),
            check=lambda got: _same(got, whole),
            role="milblob",
            targets={PASS: 4.5},
            nbytes=NBYTES,
        )
    assert milblob.content_hash(path) == expected


def bench_milblob_content_hash(row: Any, weights: Any) -> None:
    """Open to close: the file is mapped again each time."""
    path, _ = weights
    expected = milblob.content_hash(path)
    row(
        HASH_JOB,
        "milblob.content_hash, open to close",
        lambda: milblob.content_hash(path),
        check=lambda got: _same(got, expected),
        role="milblob",
        nbytes=NBYTES,
    )


def bench_milblob_statistics_of_a_file(row: Any, weights: Any) -> None:
    """Open to close."""
    path, values = weights

    def run() -> milblob.Statistics:
        with milblob.open(path) as model:
            return milblob.statistics(model["#0"])

    expected = milblob.statistics(values)
    row(
        JOB,
        "milblob.statistics, open to close",
        run,
        check=lambda got: _same(got, expected),
        role="milblob",
        nbytes=NBYTES,
    )


@pytest.mark.parametrize("name", ["sha256", "blake2b"])
def bench_hashlib(row: Any, weights: Any, name: str) -> None:
    _, values = weights
    data = values[: int(values.size * SHARE)].view(np.uint8)

    def run() -> str:
        return hashlib.new(name, data).hexdigest()

    row(
        HASH_JOB,
        f"hashlib: {name}, one thread",
        run,
        check=lambda got: _same(len(got) > 60, True),
        share=SHARE,
        nbytes=NBYTES,
    )


@pytest.mark.parametrize("name", ["float32", "int8", "bfloat16"])
def bench_other_dtypes(row: Any, weights: Any, name: str) -> None:
    """The same bytes as other dtypes; those of float32 are a wild mixture, all of them different."""
    _, values = weights
    other = values.view(milblob.DType[name.upper()].numpy)
    row(
        JOB,
        f"milblob.statistics, as {name}",
        lambda: milblob.statistics(other),
        check=lambda got: _same(got.count, other.size),
        role="milblob",
        nbytes=NBYTES,
    )
