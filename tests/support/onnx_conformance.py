"""coremltools' own tests, with onnxruntime in the place of Core ML; a plugin for pytest.

Their `predict` needs a Mac. Here it converts the model to ONNX, has onnx check the file, and runs it without any
optimisation; everything else is theirs: the programs, the expected values, the tolerances. Of the tests of operations
one case counts for each test function, opset and precision: the first, in an order that is shuffled once and for all,
that compares values. Of those of the torch frontend one case counts for each test function, until there are enough.

Some tests of single precision have programs with half-precision values, and a tolerance that is finer than these can be.
Such a case is void if it misses by no more than half precision's own step, and the next one is tried: that says nothing
about the conversion. If all are void, the last one counts as failed.

Environment: MILBLOB_CONFORMANCE is the file that gets one JSON object a line; MILBLOB_CONFORMANCE_SHARD=i/n leaves out
what others run; MILBLOB_CONFORMANCE_SHARE=f takes that share of what is left, chosen by name;
MILBLOB_CONFORMANCE_SEED shuffles in another order; MILBLOB_CONFORMANCE_COUNT is how many cases of the torch frontend
are enough, and says that the tests are those.
"""

import gc
import json
import os
import pathlib
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from coremltools_view import trust_coremltools

os.environ["INCLUDE_MIL_FP32_UNIT_TESTS"] = os.environ["RUN_BACKWARD_COMPATIBILITY"] = "1"
os.environ["PYMIL_TEST_TARGETS"] = "mlprogram"

SEED = os.environ.get("MILBLOB_CONFORMANCE_SEED", "")
COUNT = int(os.environ.get("MILBLOB_CONFORMANCE_COUNT", "0"))  # of cases of the torch frontend; 0: tests of operations
HALF_STEP = 2**-10  # of the range: the distance of half-precision numbers
LOOSE = 1e-2  # of the range: coremltools' own tolerance of half precision is 0.5, which hides wrong results
MAX_CASES = 12  # of one test function, opset and precision, until one compares values


class Predictions:
    """What happened in the test that runs now."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.count, self.problem, self.outputs, self.error, self.operations = 0, "", [], None, set()
        self.has_half, self.missed = False, 0.0


NOW = Predictions()
DONE = {}


def convert_and_run(model, data, state=None):
    """What `MLModel.predict` returns, computed by onnxruntime."""
    import onnx
    import onnxruntime

    import milblob
    import milblob.onnx

    if model.package_path is None:
        pytest.skip("a NeuralNetwork, no ML Program")
    NOW.count += 1
    package = pathlib.Path(model.package_path)
    path = package.parent / f"{package.stem}.onnx"
    try:
        if not path.exists():
            milblob.onnx.convert(package, path)
            onnx.checker.check_model(str(path), full_check=True)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except milblob.UnsupportedError as error:
        NOW.problem = f"unsupported: {str(error).partition(' - at ')[0]}"
        raise
    except Exception as error:
        NOW.problem = f"conversion: {type(error).__name__}: {error}"
        raise
    with milblob.open(package) as opened:
        operations = list(opened.find())
        NOW.operations |= {op.type for op in operations} - {"const"}
        NOW.has_half |= any("fp16" in str(type) for op in operations for _, type in op.outputs)
    feeds = {}
    for feed in session.get_inputs():
        NOW.has_half |= feed.type == "tensor(float16)"
        if state is not None and feed.name in state:
            feeds[feed.name] = state[feed.name]
            continue
        if feed.name in data:
            feeds[feed.name] = as_feed(data[feed.name], feed)
        elif state is not None:
            feeds[feed.name] = np.zeros(feed.shape, DTYPES[feed.type])
    try:
        found = session.run(None, feeds)
    except Exception as error:
        NOW.problem = f"run: {error}"
        raise RuntimeError(f"Unable to compute the prediction using ML Program. {error}") from error
    results = {output.name: value for output, value in zip(session.get_outputs(), found, strict=True)}
    if state is not None:
        for name in list(results):
            if name.endswith("_out") and name[:-4] in feeds:
                state[name[:-4]] = results.pop(name)
    if COUNT:  # Core ML returns numbers as tensors of one element
        results = {name: np.asarray(value).reshape(value.shape or (1,)) for name, value in results.items()}
    NOW.outputs.extend(results.values())
    return results


DTYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
    "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(int16)": np.int16, "tensor(uint16)": np.uint16,
    "tensor(double)": np.float64, "tensor(int64)": np.int64,
}  # fmt: skip


def as_feed(value, feed):
    """An input as the session wants it; images become [1, channels, height, width]."""
    if hasattr(value, "getbands"):
        array = np.asarray(value)
        value = (array[None] if array.ndim == 2 else array.transpose(2, 0, 1))[None]
    array = np.asarray(value).astype(DTYPES[feed.type])
    return array.reshape(()) if feed.shape == [] else array


def install():
    """Put all this in the place of Core ML."""
    import coremltools
    from coremltools.converters.mil import testing_utils
    from coremltools.models import utils

    if COUNT:
        from coremltools.converters.mil.frontend.torch.test import testing_utils as torch_utils

        torch_utils._IS_MACOS = True
    testing_utils._IS_MACOS = True
    utils._macos_version = lambda: (15, 2)
    original = np.testing.assert_allclose

    def judge(actual, desired, *rest, **options):
        is_ours = any(actual is value for value in NOW.outputs)
        try:
            original(actual, desired, *rest, **options)
        except AssertionError:  # which a test may expect: of indices that are not there, say
            NOW.missed = max(NOW.missed, relative(actual, desired) if is_ours else np.inf)
            raise
        if is_ours:
            NOW.error = max(NOW.error or 0.0, relative(actual, desired))

    np.testing.assert_allclose = judge
    model = coremltools.models.MLModel
    model.predict = convert_and_run
    model.make_state = lambda self: {}


def relative(found, expected):
    """The largest difference, as a share of the range of what was expected."""
    try:
        expected = np.asarray(expected, np.float64)
        found = np.asarray(found, np.float64).reshape(expected.shape)
    except (TypeError, ValueError):  # texts, or another number of elements, for which the test itself fails
        return 0.0
    finite = np.isfinite(expected)
    if not finite.any():
        return 0.0
    expected = expected[finite]
    scale = max(float(np.ptp(expected)), float(np.abs(expected).max()), 1e-6)
    return float(np.nan_to_num(np.abs(found[finite] - expected), nan=np.inf).max()) / scale


def key_of(item):
    """Which cases count as one: the test function, the opset and the precision; of the torch frontend the function."""
    call = getattr(item, "callspec", None)
    backend = call.params.get("backend") if call is not None else None
    opset = getattr(getattr(backend, "opset_version", None), "name", None)
    precision = getattr(backend, "precision", None)
    folder = pathlib.Path(str(item.fspath)).parent.name
    module = pathlib.Path(str(item.fspath)).stem
    test = item.cls.__name__ if item.cls is not None else ""
    if COUNT:
        opset, precision = "torch", ""
    return f"{folder}/{module}::{test}::{item.originalname}", opset, precision


def order(text):
    return zlib.crc32(f"{SEED}{text}".encode())


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """Keep the cases of tests that a class inherits: their iterators are empty after the first class."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if len(mark.args) > 1 and isinstance(mark.args[1], Iterator):
            object.__setattr__(mark, "args", (mark.args[0], list(mark.args[1]), *mark.args[2:]))
        elif isinstance(mark.kwargs.get("argvalues"), Iterator):
            mark.kwargs["argvalues"] = list(mark.kwargs["argvalues"])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    shard, count = map(int, os.environ.get("MILBLOB_CONFORMANCE_SHARD", "0/1").split("/"))
    share = float(os.environ.get("MILBLOB_CONFORMANCE_SHARE", "1"))
    chosen = []
    for item in items:
        if hasattr(item.module, "_IS_MACOS"):
            item.module._IS_MACOS = True
        name, opset, _ = key = key_of(item)
        if opset is None or order(name) % count != shard:
            continue
        if order(f"share {key}") / 2**32 >= share:
            continue
        chosen.append((order(item.nodeid), item))
    chosen.sort(key=lambda pair: pair[0])
    items[:] = [item for _, item in chosen]


def pytest_collection_finish():
    """Keep the collector away from thousands of tests: coremltools calls it after each conversion."""
    gc.freeze()
    if float(os.environ.get("MILBLOB_CONFORMANCE_SHARE", "1")) < 1:
        trust_coremltools()


TRIED = {}


def pytest_runtest_protocol(item, nextitem):
    key = key_of(item)
    if not DONE:
        DONE[None] = None
        file = pathlib.Path(os.environ["MILBLOB_CONFORMANCE"])
        for line in file.read_text("utf-8").splitlines() if file.exists() else ():  # of a process that crashed
            row = json.loads(line)
            key_done = row["test"], row["opset"], row["precision"]
            TRIED[key_done] = TRIED.get(key_done, 0) + 1
            if row["result"] not in ("void", "left out"):
                DONE[key_done] = row
    if key in DONE or TRIED.get(key, 0) == MAX_CASES or (COUNT and len(DONE) > COUNT):
        item.session._setupstate.teardown_exact(nextitem)  # of the one before, whose next one this was
        return True
    TRIED[key] = TRIED.get(key, 0) + 1
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    outcome = yield
    if outcome.excinfo:
        leave_out(item, outcome.excinfo[1])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    NOW.reset()
    test, opset, precision = key_of(item)
    running = {"test": test, "opset": opset, "precision": precision, "case": item.nodeid}
    pathlib.Path(os.environ["MILBLOB_CONFORMANCE"]).with_suffix(".now").write_text(json.dumps(running), "utf-8")
    np.random.seed(order(item.nodeid) % 2**31)
    outcome = yield
    key = key_of(item)
    error = outcome.excinfo[1] if outcome.excinfo else None
    if not NOW.count or isinstance(error, pytest.skip.Exception | pytest.xfail.Exception):
        leave_out(item, error)
        return
    row = {"test": key[0], "opset": key[1], "precision": key[2], "case": item.nodeid, "error": NOW.error}
    row["operations"] = sorted(NOW.operations)
    if error is None:
        row["result"] = "passed"
        is_random = any(type.startswith("random_") for type in NOW.operations)
        row["loose"] = (NOW.error or 0.0) > LOOSE and not is_random
    elif precision == "fp32" and NOW.has_half and not NOW.problem and 0.0 < NOW.missed <= HALF_STEP:
        row["result"] = "void"
        row["why"] = f"half-precision values, a finer tolerance: {NOW.missed:.2g} of the range"
    else:
        row["result"] = "unsupported" if NOW.problem.startswith("unsupported") else "failed"
        row["why"] = NOW.problem or f"{type(error).__name__}: {error}"
    write(row)


def leave_out(item, error):
    """Note why a case compared no values."""
    test, opset, precision = key_of(item)
    why = "no prediction" if error is None else f"{type(error).__name__}: {error}"
    write({"test": test, "opset": opset, "precision": precision, "case": item.nodeid, "result": "left out", "why": why})


def write(row):
    """Add a row; a case that says something about the conversion is the last of its kind."""
    if row["result"] not in ("void", "left out"):
        DONE[row["test"], row["opset"], row["precision"]] = row
    with open(os.environ["MILBLOB_CONFORMANCE"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def pytest_configure(config):
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    install()
