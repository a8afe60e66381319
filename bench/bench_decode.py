"""Dense values of one compressed weight: 48 million parameters to 96 MB of float16.

milblob's row opens the package and reads the weight. coremltools' is `decompress_weights` of a model that is loaded already,
which is the way that it offers to have dense weights; beside it the `decompress()` of the operation alone, on parts in
memory. NumPy's is what one writes by hand, also on parts in memory. The limit is a memset of a fresh array of the result's
size; of the row that reads into an array that is there, a memcpy that moves as many bytes as the parts and the result have.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import milblob
from conftest import Made, scaled
from milblob import _codec

ROWS, COLUMNS, BLOCK = scaled(5856, 8), 8192, 32
SHAPE = (ROWS, COLUMNS)
LIMIT, COPY = "memset of a fresh array", "memcpy"
INTO = ", into an array that is there"
Parts = dict[str, Any]


class Scheme(NamedTuple):
    """A way to compress.

    Attributes:
        operation: without "constexpr_".
        make: parts as coremltools has them in memory.
        numpy: what one writes by hand.
    """

    operation: str
    make: Callable[[np.random.Generator], Parts]
    numpy: Callable[[Parts], np.ndarray[Any, Any]]


def scales(random: np.random.Generator) -> np.ndarray[Any, Any]:
    """One float16 for each block."""
    return random.uniform(0.01, 0.02, (ROWS, COLUMNS // BLOCK)).astype(np.float16)


def quantized(nbits: int) -> Callable[[np.random.Generator], Parts]:
    """Parts of blockwise quantization to int4 or int8."""

    def make(random: np.random.Generator) -> Parts:
        from coremltools.converters.mil.mil import types

        high = 1 << (nbits - 1)
        dtype = types.nptype_from_builtin(types.string_to_builtin(f"int{nbits}"))
        return {"data": random.integers(-high, high, SHAPE, np.int8).astype(dtype), "scale": scales(random)}

    return make


def palettized(nbits: int) -> Callable[[np.random.Generator], Parts]:
    """Parts of one palette for the whole weight."""

    def make(random: np.random.Generator) -> Parts:
        from coremltools.converters.mil.mil import types

        dtype = types.nptype_from_builtin(types.string_to_builtin(f"uint{nbits}"))
        lut = random.standard_normal((1, 1, 1 << nbits, 1)).astype(np.float16)
        return {"indices": random.integers(0, 1 << nbits, SHAPE, np.uint8).astype(dtype), "lut": lut}

    return make


def pruned(random: np.random.Generator) -> Parts:
    """Parts of a weight half of which is zero."""
    from coremltools.converters.mil.mil import types

    mask = random.random(SHAPE, np.float32) < 0.5
    nonzero = random.standard_normal(int(mask.sum()), np.float32).astype(np.float16)
    return {"nonzero_data": nonzero, "mask": mask.astype(types.nptype_from_builtin(types.uint1))}


def numpy_blockwise(parts: Parts) -> np.ndarray[Any, Any]:
    """Blocks as a third dimension."""
    blocks = parts["data"].reshape(ROWS, -1, BLOCK).astype(np.float16)
    return (blocks * parts["scale"][..., None]).reshape(SHAPE)


def numpy_palette(parts: Parts) -> np.ndarray[Any, Any]:
    """Fancy indexing."""
    return np.asarray(parts["lut"].reshape(-1)[parts["indices"]])


def numpy_sparse(parts: Parts) -> np.ndarray[Any, Any]:
    """A boolean mask."""
    dense = np.zeros(SHAPE, np.float16)
    dense[parts["mask"].view(np.bool_)] = parts["nonzero_data"]
    return dense


SCHEMES = {
    "int8, blocks of 32": Scheme("blockwise_shift_scale", quantized(8), numpy_blockwise),
    "int4, blocks of 32": Scheme("blockwise_shift_scale", quantized(4), numpy_blockwise),
    "4-bit palette": Scheme("lut_to_dense", palettized(4), numpy_palette),
    "6-bit palette": Scheme("lut_to_dense", palettized(6), numpy_palette),
    "50% sparse": Scheme("sparse_to_dense", pruned, numpy_sparse),
}


def operation_of(scheme: Scheme) -> Any:
    """coremltools' class of the operation."""
    from coremltools.converters.mil.mil.ops.defs.iOS18 import compression

    return getattr(compression, f"constexpr_{scheme.operation}")


def decompress(scheme: Scheme, parts: Parts) -> np.ndarray[Any, Any]:
    """As coremltools decompresses."""
    own = {"offset": None} if scheme.operation == "blockwise_shift_scale" else {}
    own |= {"vector_axis": None} if scheme.operation == "lut_to_dense" else {}
    return np.asarray(operation_of(scheme).decompress(**parts, **own))


def write(path: Path, scheme: Scheme, parts: Parts) -> None:
    """Write a package with the one weight `w`, by coremltools."""
    import coremltools as ct
    from coremltools.converters.mil import Builder

    @Builder.program(input_specs=[Builder.TensorSpec(shape=(1, COLUMNS))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        weight = getattr(Builder, f"constexpr_{scheme.operation}")(**parts, name="w")
        return Builder.linear(x=Builder.cast(x=x, dtype="fp16"), weight=weight, name="out")

    options = {"minimum_deployment_target": ct.target.iOS18, "pass_pipeline": ct.PassPipeline.EMPTY}
    model = ct.convert(program, convert_to="mlprogram", skip_model_load=True, **options)
    target = path.with_suffix(".mlpackage")
    model.save(str(target))
    target.rename(path)


SHARES = {"6-bit palette": 8}
"""Of what coremltools needs 6.5 GB for, it decompresses so small a part."""


class Case(NamedTuple):
    """One scheme with its data.

    Attributes:
        parts, path: in memory, and as a package.
        expected: dense values.
        few_parts, few_path: the same of the first `1 / share` of the rows, for coremltools; all if that is 1.
    """

    job: str
    scheme: Scheme
    parts: Parts
    path: Path
    expected: np.ndarray[Any, Any]
    share: int
    few_parts: Parts
    few_path: Path

    def check(self, result: np.ndarray[Any, Any], share: int = 1) -> None:
        """Compare bit for bit: all ways, coremltools' own among them, give what the formula in NumPy gives."""
        expected = self.expected[: ROWS // share]
        assert result.dtype == np.float16 and result.shape == expected.shape
        assert np.array_equal(result.view(np.uint16), expected.view(np.uint16))

    def few_options(self) -> dict[str, Any]:
        """Options of the rows of coremltools."""
        if self.share == 1:
            return {}
        return {"share": 1 / self.share, "note": f"run on 1/{self.share} of the elements, shown times {self.share}"}


@pytest.fixture(scope="module", params=list(SCHEMES))
def case(request: Any, made: Made) -> Case:
    """Parts in memory, and the package of them."""
    scheme, share = SCHEMES[request.param], SHARES.get(request.param, 1)
    parts = scheme.make(np.random.default_rng(6))
    few = parts | {key: value[: ROWS // share] for key, value in parts.items() if share > 1 and key != "lut"}

    def package(name: str, parts: Parts) -> Path:
        file_name = f"decode-{''.join(c if c.isalnum() else '-' for c in request.param)}{name}.mlpackage"
        return made(file_name, lambda path: write(path, scheme, parts))

    path = package("", parts)
    job = f"decode {ROWS * COLUMNS / 1e6:.0f}M parameters, {request.param}"
    return Case(job, scheme, parts, path, scheme.numpy(parts), share, few, package("-few", few) if share > 1 else path)


def read(path: Path) -> np.ndarray[Any, Any]:
    """Open to close."""
    with milblob.open(path) as model:
        return model["w"].read()


def memset() -> np.ndarray[Any, Any]:
    """What filling a result costs that nobody has to compute."""
    out = np.empty(SHAPE, np.float16)
    out.view(np.uint8).fill(0)
    return out


def bench_milblob(row: Any, case: Case) -> None:
    targets = {"coremltools": 1 / 80, LIMIT: 2.0}
    nbytes = case.expected.nbytes
    row(case.job, "milblob", lambda: read(case.path), check=case.check, role="milblob", targets=targets, nbytes=nbytes)


def bench_one_thread(row: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILBLOB_THREADS", "1")
    row(case.job, "milblob, one thread", lambda: read(case.path), check=case.check, role="milblob")


def bench_into(row: Any, case: Case) -> None:
    out = np.zeros(SHAPE, np.float16)
    targets = {COPY: 1.3} if "palette" in case.job else {}
    with milblob.open(case.path) as model:
        weight = model["w"]
        run = lambda: weight.read(out=out)  # noqa: E731
        name = "milblob: read(out=), open before"
        row(case.job + INTO, name, run, check=case.check, role="milblob", targets=targets)


TIERS, USED = _codec.tiers()


@pytest.mark.parametrize("tier", [tier for tier in ("avx2", "avx512") if tier in TIERS and tier != USED])
def bench_into_with_tier(row: Any, case: Case, tier: str) -> None:
    """The same with the kernels of older CPUs."""
    out = np.zeros(SHAPE, np.float16)
    with milblob.open(case.path) as model:
        weight = model["w"]
        _codec.set_tier(tier)
        try:
            name = f"milblob: read(out=), kernels of tier {tier}"
            row(case.job + INTO, name, lambda: weight.read(out=out), check=case.check, role="aside")
        finally:
            _codec.set_tier(USED)


def bench_memcpy(row: Any, case: Case) -> None:
    with milblob.open(case.path) as model:
        nbytes = case.expected.nbytes + sum(part.nbytes for part in model["w"].parts.values())
    source, out = np.ones(nbytes // 2, np.uint8), np.zeros(nbytes // 2, np.uint8)

    def run() -> np.ndarray[Any, Any]:
        np.copyto(out, source)
        return out

    def check(result: np.ndarray[Any, Any]) -> None:
        assert result.all()

    note = "reads and writes as many bytes as parts and result have"
    row(case.job + INTO, COPY, run, check=check, role="limit", note=note)


def bench_memset(row: Any, case: Case) -> None:
    def check(result: np.ndarray[Any, Any]) -> None:
        assert result.nbytes == case.expected.nbytes and not result.any()

    row(case.job, LIMIT, memset, check=check, role="limit", nbytes=case.expected.nbytes)


def bench_coremltools(row: Any, case: Case) -> None:
    import coremltools as ct
    from coremltools.optimize.coreml import decompress_weights

    compressed = ct.models.MLModel(str(case.few_path), skip_model_load=True)

    def check(result: Any) -> None:
        (linear,) = result._mil_program.functions["main"].find_ops(op_type="linear")
        case.check(linear.weight.val, case.share)

    row(case.job, "coremltools", lambda: decompress_weights(compressed), check=check, **case.few_options())


def bench_decompress(row: Any, case: Case) -> None:
    def check(result: np.ndarray[Any, Any]) -> None:
        case.check(result, case.share)

    run = lambda: decompress(case.scheme, case.few_parts)  # noqa: E731
    row(case.job, "coremltools, decompress() alone", run, check=check, **case.few_options())


def bench_numpy(row: Any, case: Case) -> None:
    row(case.job, "NumPy", lambda: case.scheme.numpy(case.parts), check=case.check)
