"""Four networks of torch in onnxruntime: milblob.Session, a bare session of the same .onnx file, and torch's own export.

A Session opens a package, so its first call includes the conversion, which the others had before.
Torch exports no compressed weights: beside int8 and palettes stands its export in single precision. Beside the times of
the clock, the notes have the least processor time of one call, which other work on the machine disturbs less. The first
call is measured in memory too, in a process of its own that has all modules.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import needs, where_of

NETWORKS = ("cnn", "transformer", "lstm", "language")
CASES = [(name, precision) for name in NETWORKS for precision in ("float32", "float16", "int8", "palette4")]
TITLES = {
    "cnn": "a CNN with batch norms", "transformer": "a transformer", "lstm": "an LSTM",
    "language": "a step of a language model",
}  # fmt: skip
BARE, TORCH = "onnxruntime: the same .onnx", "onnxruntime: torch's export"
ROWS = ("milblob: Session, optimize=True", "milblob: Session", BARE, TORCH)
ONE = "milblob: Session, optimize=True, in one thread"
LIMITS = {"float32": 2e-4, "float16": 2e-2}
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int32)": np.int32}


@pytest.fixture(scope="module")
def files(made: Any) -> Callable[[str, str], tuple[Path, Path, Path]]:
    """Return the package of a network in some precision, its conversion, and torch's export."""
    for module in ("torch", "onnxruntime", "coremltools", "onnxscript"):
        needs(module)
    import milblob.onnx
    import networks

    def find(name: str, precision: str) -> tuple[Path, Path, Path]:
        package = made(f"{name}-{precision}.mlpackage", lambda path: networks.write_package(path, name, precision))
        plain = precision if precision == "float16" else "float32"
        export = made(f"{name}-{plain}-torch.onnx", lambda path: networks.write_export(path, name, plain))
        converted = package.with_suffix(".onnx")
        if not converted.exists():
            milblob.onnx.convert(package, converted)
        return package, converted, export

    return find


def feeds_of(name: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    if name.startswith("products-"):
        return {"x": random.standard_normal((int(name.removeprefix("products-")), 2048), np.float32)}
    if name == "language":
        return {"token": np.ones((1, 1), np.int32), "place": np.zeros((1, 64), np.int32)}
    shape = {"cnn": (1, 3, 96, 96), "transformer": (1, 64), "lstm": (1, 32, 64)}[name]
    tokens, values = random.integers(0, 1000, shape, np.int32), random.standard_normal(shape, np.float32)
    return {"x": tokens if len(shape) == 2 else values}


def opened(row: str, found: tuple[Path, Path, Path], name: str, threads: int | None) -> Callable[[], Any]:
    """Open a network as a row does; return what runs it once, and gives its first output.

    A bare session gets its caches back, as a session of milblob keeps them.
    """
    import onnxruntime

    from milblob import Session

    feeds = feeds_of(name)
    if row.startswith("milblob"):
        session = Session(found[0], optimize="optimize=True" in row, threads=threads)
        first = next(iter(session.outputs))
        return lambda: session.predict(feeds)[first]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    runner = onnxruntime.InferenceSession(str(found[2 if row == TORCH else 1]), options)
    given = {one.name: np.asarray(feeds.get(one.name, 0)).astype(_DTYPES[one.type]) for one in runner.get_inputs()}
    caches = [one for one in runner.get_inputs() if one.name not in feeds]
    given |= {one.name: np.zeros(one.shape, _DTYPES[one.type]) for one in caches}

    def run() -> Any:
        found, *new = runner.run(None, given)
        given.update(zip([one.name for one in caches], new, strict=True))
        return found

    return run


def checked(name: str, precision: str, found: tuple[Path, Path, Path], which: str) -> Callable[[Any], None]:
    """What a row computes is what torch's export does, or for compressed weights what the bare session does."""

    def check(array: Any) -> None:
        dense = "float16" if precision == "float16" else "float32"
        expected = opened(TORCH if precision == dense else BARE, found, name, 1)()
        if which != TORCH or precision == dense:
            error = float(np.abs(array.astype(np.float64) - expected).max() / np.ptp(expected))
            assert error < LIMITS[dense], error

    return check


@pytest.mark.parametrize("which", ROWS)
@pytest.mark.parametrize(("name", "precision"), CASES)
def bench_steady(row: Any, files: Any, name: str, precision: str, which: str) -> None:
    _steady(row, files(name, precision), name, precision, which, 1)


@pytest.mark.parametrize("which", [*ROWS, ONE])
@pytest.mark.parametrize("name", NETWORKS)
def bench_steady_threads(row: Any, files: Any, beside: bool, name: str, which: str) -> None:
    _steady(row, files(name, "float32"), name, "float32", which, None, where_of(beside))


@functools.cache  # for all turns; `where`, too: the number of threads depends on other work when a session is opened
def _kept(row: str, found: tuple[Path, Path, Path], name: str, threads: int | None, where: str) -> Callable[[], Any]:
    return opened(row, found, name, threads)


def _steady(
    row: Any,
    found: tuple[Path, Path, Path],
    name: str,
    precision: str,
    which: str,
    threads: int | None,
    where: str = "",
) -> None:
    run, best = _kept(which, found, name, 1 if which == ONE else threads, where), [float("inf")]

    def timed() -> Any:
        start = time.process_time()
        result = run()
        best[0] = min(best[0], time.process_time() - start)
        return result

    job = f"run {TITLES[name]}, {precision}, {'one thread' if threads == 1 else 'threads by default'}{where}"
    options: dict[str, Any] = {"role": "rival"}
    if which.startswith("milblob"):
        limits = {BARE: 1.05, TORCH: 1.05} if threads == 1 else {ONE: 1.03}
        options = {"role": "milblob", "targets": limits if which == ROWS[0] else {}}
    check = checked(name, precision, found, which)
    facts = lambda: {"note": f"processor {best[0] * 1e3:.3f} ms"}  # noqa: E731
    row(job, which, timed, check=check, memory=False, facts=facts, **options)


@pytest.mark.parametrize("which", ROWS)
@pytest.mark.parametrize(("name", "precision"), CASES)
def bench_first(row: Any, files: Any, name: str, precision: str, which: str) -> None:
    found = files(name, precision)
    job = f"open {TITLES[name]}, {precision}, and run it once"
    options: dict[str, Any] = {"role": "milblob" if which.startswith("milblob") else "rival"}
    row(job, which, lambda: opened(which, found, name, 1)(), check=checked(name, precision, found, which), **options)


_PRODUCTS = {"onnxruntime: decoded once": "dense", "onnxruntime: MatMulNBits with operands of 8 bits": "bytes"}


@pytest.mark.parametrize("which", [*ROWS[:2], *_PRODUCTS])
@pytest.mark.parametrize("tokens", [1, 64])
def bench_nibbles(row: Any, made: Any, tokens: int, which: str) -> None:
    for module in ("torch", "onnxruntime", "coremltools"):
        needs(module)
    import networks

    package = made("products.mlpackage", networks.write_products)
    kind = _PRODUCTS.get(which, "dense")
    write = functools.partial(networks.write_products_onnx, package=package, compressed=kind)
    run = _kept(which, (package, made(f"products-{kind}.onnx", write), package), f"products-{tokens}", 1, "")
    expected = _kept(ROWS[1], (package, package, package), f"products-{tokens}", 1, "")()
    error = float(np.abs(run() - expected).max() / np.ptp(expected))
    role = "milblob" if which.startswith("milblob") else "aside" if kind == "bytes" else "rival"

    def check(array: Any) -> None:
        assert array.shape == (tokens, 2048)
        assert error < (1e-2 if kind == "bytes" else 1e-5), error

    job = f"eight products with int4 weights of 2048 x 2048, {tokens} tokens"
    row(
        job, which, run, check=check, memory=False, role=role, facts=lambda: {"note": f"error {error:.0e} of the range"}
    )
