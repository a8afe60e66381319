"""A patch that makes a new model of 1 GiB from an old one, of which one layer of 64 changed, and the new model from it.

The limit is one read of both files. `zstd --patch-from` takes the whole old file as its dictionary and needs a window of
its size: memory of several times the file. bsdiff sorts all suffixes of the old file, so it gets a smaller one.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milblob
from conftest import Made, needs, scaled

LARGE = 64, scaled(2896, 64)
SMALL = 2, scaled(1448, 32)  # for bsdiff
LIMIT = "read both files"
ZSTD = "zstd -3 --patch-from --long=31"
BSDIFF = "bsdiff4"


def jobs(size: tuple[int, int]) -> tuple[str, str]:
    """Return the names of the jobs of a pair of some layers of some width."""
    megabytes = size[0] * size[1] ** 2 * 2 / 2**20
    return f"patch of one of {size[0]} layers, {megabytes:.3g} MiB", f"apply a patch to {megabytes:.3g} MiB"


def write_pair(folder: Path, layers: int, width: int) -> None:
    """An old and a new weight file: a float16 matrix for each layer, one of them trained on a little."""
    folder.mkdir()
    random = np.random.default_rng(0)
    base = (random.standard_normal(width * width) * 0.02).astype(np.float16)
    for name in ("old", "new"):
        with milblob.BlobWriter(folder / f"{name}.bin", sync=False) as file:
            for layer in range(layers):
                values = np.roll(base, layer * 997)
                values[: min(64, values.size)] = layer
                if name == "new" and layer == layers // 2:
                    noise = random.standard_normal(values.size, np.float32) * np.float32(0.0003)
                    values = (values.astype(np.float32) + noise).astype(np.float16)
                file.write(values)
    milblob.delta(folder / "old.bin", folder / "new.bin", folder / "known.milpatch")


@pytest.fixture(scope="module")
def pair(made: Made) -> Path:
    return made("delta", lambda path: write_pair(path, *LARGE))


@pytest.fixture(scope="module")
def small(made: Made) -> Path:
    return made("delta-small", lambda path: write_pair(path, *SMALL))


@pytest.fixture
def output(tmp_path: Path) -> Any:
    """(path of what is written, a function that removes it before each round)."""
    path = tmp_path / "made.bin"
    yield path, lambda: path.unlink(missing_ok=True)
    shutil.rmtree(tmp_path)


def equals(path: Path, folder: Path) -> Callable[[Any], None]:
    def check(_: Any) -> None:
        assert subprocess.run(["cmp", path, folder / "new.bin"]).returncode == 0

    return check


def makes(patch: Path, folder: Path, apply: Callable[[Path], Any]) -> Callable[[Any], None]:
    """Check that a patch makes the new file."""

    def check(_: Any) -> None:
        result = patch.with_name("checked.bin")
        apply(result)
        equals(result, folder)(None)
        result.unlink()

    return check


def size_of(patch: Path) -> Callable[[], dict[str, Any]]:
    """Return what gives the size of a patch, for the table."""
    return lambda: {"patch": f"{os.path.getsize(patch) / 2**20:.2f} MiB"}


def read_both(folder: Path) -> None:
    space = bytearray(4 << 20)
    for name in ("old.bin", "new.bin"):
        with open(folder / name, "rb", buffering=0) as file:
            while file.readinto(space):
                pass


def zstd_patch(folder: Path, patch: Path) -> None:
    command = [
        "zstd",
        "-q",
        "-f",
        "-3",
        "--long=31",
        f"--patch-from={folder / 'old.bin'}",
        folder / "new.bin",
        "-o",
        patch,
    ]
    subprocess.run(command, check=True)


def zstd_apply(folder: Path, patch: Path, result: Path) -> None:
    command = ["zstd", "-q", "-f", "-d", "--long=31", f"--patch-from={folder / 'old.bin'}", patch, "-o", result]
    subprocess.run(command, check=True)


def bench_limit(row: Any, pair: Path) -> None:
    row(jobs(LARGE)[0], LIMIT, lambda: read_both(pair), role="limit", check=lambda _: None, rounds=5)


def bench_delta(row: Any, pair: Path, output: Any) -> None:
    patch, remove = output
    run = lambda: milblob.delta(pair / "old.bin", pair / "new.bin", patch)  # noqa: E731
    check = makes(patch, pair, lambda result: milblob.apply(pair / "old.bin", patch, result))
    row(
        jobs(LARGE)[0],
        "milblob: delta",
        run,
        check=check,
        role="milblob",
        targets={LIMIT: 2},
        setup=remove,
        rounds=5,
        facts=size_of(patch),
    )


def bench_zstd(row: Any, pair: Path, output: Any) -> None:
    patch, remove = output
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    check = makes(patch, pair, lambda result: zstd_apply(pair, patch, result))
    run = lambda: zstd_patch(pair, patch)  # noqa: E731
    row(jobs(LARGE)[0], ZSTD, run, check=check, setup=remove, rounds=2, memory=False, facts=size_of(patch))


def bench_apply(row: Any, pair: Path, output: Any) -> None:
    result, remove = output
    run = lambda: milblob.apply(pair / "old.bin", pair / "known.milpatch", result)  # noqa: E731
    row(jobs(LARGE)[1], "milblob: apply", run, check=equals(result, pair), role="milblob", setup=remove, rounds=5)


def bench_apply_limit(row: Any, pair: Path, output: Any) -> None:
    result, remove = output
    run = lambda: shutil.copyfile(pair / "new.bin", result)  # noqa: E731
    row(
        jobs(LARGE)[1],
        "copy the new file",
        run,
        check=equals(result, pair),
        role="limit",
        setup=remove,
        rounds=5,
        note="does not sync",
    )


def bench_small_delta(row: Any, small: Path, output: Any) -> None:
    patch, remove = output
    run = lambda: milblob.delta(small / "old.bin", small / "new.bin", patch)  # noqa: E731
    check = makes(patch, small, lambda result: milblob.apply(small / "old.bin", patch, result))
    row(
        jobs(SMALL)[0],
        "milblob: delta",
        run,
        check=check,
        role="milblob",
        targets={BSDIFF: 1 / 20},
        setup=remove,
        rounds=5,
        facts=size_of(patch),
    )


def bench_bsdiff(row: Any, small: Path, output: Any) -> None:
    needs("bsdiff4")
    import bsdiff4

    patch, remove = output
    run = lambda: bsdiff4.file_diff(str(small / "old.bin"), str(small / "new.bin"), str(patch))  # noqa: E731
    check = makes(patch, small, lambda result: bsdiff4.file_patch(str(small / "old.bin"), str(result), str(patch)))
    row(jobs(SMALL)[0], BSDIFF, run, check=check, setup=remove, rounds=1, facts=size_of(patch))
