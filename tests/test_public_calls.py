"""Every public function on damaged models: only milblob's own exceptions come out. And what holds open files."""

import copy
import inspect
import pickle
import shutil
import threading

import pytest

import milblob
import milblob.onnx
import milblob.tvm
from paths import DATA, DEMO
from public_calls import CALLS, MODEL, NO_MODEL, cases, damaged, run
from thorough import sized

pytest.importorskip("coremltools")

MODELS = [DEMO, *(DATA / name / "model.mlpackage" for name in (
    "constexpr_ios18", "opset_ios16_fp16", "functions", "control_flow", "classifier_strings", "sparse_palette", "quant_int8",
    "flexible", "states",
))]  # fmt: skip


def test_every_public_function_is_called():
    """A function, or a class that opens a model, that is new has an entry or a reason."""
    offered = set()
    for module in (milblob, milblob.onnx, milblob.tvm):
        prefix = module.__name__.removeprefix("milblob").removeprefix(".")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) or name in (
                "Model",
                "EditableModel",
                "BlobReader",
                "BlobWriter",
                "Session",
                "OutputErrors",
                "Weights",
            ):
                offered.add(f"{prefix}.{name}" if prefix else name)
    named = {name.split(" ")[0] for name in CALLS}
    assert offered == named | NO_MODEL.keys() and not named & NO_MODEL.keys()


def test_damaged_models(tmp_path):
    found, refused = [], 0
    bytes_of = {model: (model / MODEL).read_bytes() for model in MODELS}
    for number, (model, name, rng) in enumerate(cases(sized(1200, 200_000), 20261123, MODELS)):
        place = tmp_path / "m.mlpackage"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(model, place)
        data = damaged(bytes_of[model], rng)
        refused += data == bytes_of[model]
        error = run(place, data, name, tmp_path / "out")
        if error is not None:
            found.append(f"case {number}, {name} of {model.parent.name}: {type(error).__name__}: {error}"[:300])
    assert found == []
    assert refused < 600  # most are damaged


def test_a_part_that_is_missing_is_an_error_of_the_program():
    with milblob.open(DATA / "constexpr_ios18" / "model.mlpackage") as model:
        tensor = next(tensor for tensor in model.values() if tensor.chain is not None)
        for error in (KeyError, milblob.FormatError):
            with pytest.raises(error, match="nope of constexpr_.*: expected a tensor, got none"):
                tensor.parts["nope"]


def test_what_is_open_is_not_copied():
    with milblob.open(DEMO) as model, milblob.Session(model) as session:
        reader = milblob.BlobReader(DEMO / "Data/com.apple.CoreML/weights/weight.bin")
        for held in (model, session, reader):
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="expected to stay where it was opened"):
                    call(held)
        for whole in (
            milblob.check(DEMO),
            milblob.content_hash(DEMO),
            milblob.diff(DEMO, DEMO),
            milblob.match(DEMO, DEMO),
        ):
            assert repr(pickle.loads(pickle.dumps(whole))) == repr(copy.deepcopy(whole)) == repr(whole)


def test_closing_while_others_walk():
    """The model is sound, so nobody reads that it is not: they read that it is closed."""
    met = []

    def walk(model):
        try:
            for _ in range(100):
                for function in model.functions.values():
                    for operation in function.block.operations:
                        repr((operation.type, list(operation.inputs), operation.outputs))
                for tensor in model.values():
                    tensor.read()
                    repr(tensor.consumers)
                model.find(type="const")
        except Exception as error:
            met.append(error)

    for number in range(60):
        model = milblob.open(DEMO)
        threads = [threading.Thread(target=walk, args=(model,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        threading.Event().wait(0.0005 * (number % 20))
        model.close()
        for thread in threads:
            thread.join()
    assert len(met) > 60 and all(type(error) is ValueError and "closed" in str(error) for error in met), met


def test_names_that_are_no_text(tmp_path):
    """Half a character where a name should be, as no writer writes it: refused by every function, in our words."""
    place = shutil.copytree(DATA / "opset_ios16_fp16" / "model.mlpackage", tmp_path / "m.mlpackage")
    data = (place / MODEL).read_bytes()
    for old, new in ((b"main", b"\xed\xb0\x80n"), (b"weights/", b"\x00eights/"), (b"const", b"con\xc3\x28")):
        broken = data.replace(old, new)
        assert broken != data
        for name in CALLS:
            error = run(place, broken, name, tmp_path / "out")
            assert error is None, (name, old, error)
