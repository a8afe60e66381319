"""Every public function and every command on hostile models: only milblob's own exceptions come out. And what holds open files."""

import copy
import inspect
import pickle
import random
import shutil
import threading

import pytest

import milblob
import milblob.onnx
import milblob.tvm
import public_calls
from file_damage import SOURCES, write_files
from milblob.cli import parser
from milblob.cli.commands import tvm
from paths import DATA, DEMO
from public_calls import CALLS, COMMANDS, LATE, MODEL, MODELS, NAMES, NO_MODEL, case, run
from thorough import sized


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
                "safe_open",
                "OutputSensitivity",
                "Weights",
            ):
                offered.add(f"{prefix}.{name}" if prefix else name)
    named = {name.split(" ")[0] for name in CALLS}
    assert offered == named | NO_MODEL.keys() and not named & NO_MODEL.keys()


def test_every_command_is_called():
    offered = {*parser.COMMANDS, *(f"tvm {name}" for name in tvm.COMMANDS)} - {"tvm"}
    assert offered == {name if name.startswith("tvm ") else name.split(" ")[0] for name in COMMANDS}


PARTS = sized(1, 4)


@pytest.mark.parametrize("part", range(PARTS))
def test_hostile_models(tmp_path, part):
    """As fuzz_public.py does it, with random bytes: each call in turn."""
    draw, found, called = random.Random(20261124 + part), [], set()
    for number in range(sized(300, 100_000) // PARTS):
        data = bytes([draw.randrange(256), number % len(NAMES)]) + draw.randbytes(draw.randrange(4, 80))
        name, error = case(data, tmp_path)
        called.add(name)
        if error is not None:
            found.append(f"{data.hex()}, {name}: {type(error).__name__}: {error}"[:400])
    assert found == []
    assert len(called) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        # tensors without elements
        ("match", "3d88204f18fe947910229a018872634c385a691987fe4d5e79e5b1a16cc3515e23ce0b98d3d97dd8736c"),
        # an attribute `name` that is an array
        ("milblob text around", "0c27a926866343e19681a2169ffe901eefbdb8ce2ba2726ac6b078b7e2506c26d08b4ab519"),
        # a weight file whose name is not UTF-8
        ("milblob diff", "8395fe5ae4bec6c02f27e9718ea776fc56b2436669028404812a9ee4bbc377ac0525253d7ef7ab4f73d884194fc48b"),
        # two names of thousands of characters, in one message
        ("milblob refit", "0743141b95bb50574471590cd801883fba46b2994c676679c4708ef6993bd1fb8aebeba0fa938b61"),
        # an unknown name, and one of thousands of characters that there is
        ("milblob show one", "f73b07dbd5f1d4737949b31d2427dbc5baf6ea155ff097db325db74e0ba596ea5a847f19468ddd2da1d38cf3160f78f1e25cc50d127f3a654ecd009fa19db29f99168f6049a21d"),
        # places for a cut where no value changes
        ("chunk by size", "55109aa793c6c5936eadc195ad6ad3d261713a19a54a175c6f574a8d9b3bf4295ba0595ea3849df90573be358c5fc74378b354b28ac6a64d55a71cbbdc946ed59be2ac86ee21"),
    ],
    ids=lambda text: text if " " in text or len(text) < 9 else "",
)  # fmt: skip
def test_hostile_models_that_once_gave_another_exception(tmp_path, name, data):
    """`make thorough` found them; `data` lacks the second byte, which is the number of the call."""
    data = bytes.fromhex(data)
    assert case(bytes([data[0], NAMES.index(name)]) + data[1:], tmp_path) == (name, None)


@pytest.mark.parametrize(
    "error",
    [
        IndexError("tuple index out of range"), ValueError("zip() argument 2 is longer than argument 1"), ZeroDivisionError("x"),
        RecursionError("x"), MemoryError(), UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed"),
        milblob.FormatError("labels: expected texts, got ValueError: shapes"), ValueError("a\x1b[2J: expected one, got two"),
        milblob.ProgramError("crop: expected arguments that fit each other, got x tensor<fp32, []>"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_an_exception_that_is_not_promised_is_noticed(tmp_path, monkeypatch, error):
    """Of a function, and of a command: it would print one line for most of them."""

    def fail(*arguments, **options):
        raise error

    monkeypatch.setitem(CALLS, "load", fail)
    monkeypatch.setattr(milblob, "load", fail)
    assert run("load", DEMO, tmp_path / "out") is error
    monkeypatch.setattr("milblob.analysis.hash.content_hash", fail)
    assert run("milblob hash", DEMO, tmp_path / "out") is error


def test_each_call_does_more_than_to_open_a_model(tmp_path, monkeypatch):
    """Each one succeeds with a sound model or file of some kind."""
    kinds = [LATE, MODELS[0], MODELS[1], DATA / "palette_grouped" / "model.mlpackage", *SOURCES]
    paths = [  # copies, for conversions write beside them
        write_files(kind, tmp_path / kind)
        if kind in SOURCES
        else shutil.copytree(kind, tmp_path / kind.parent.name / kind.name)
        for kind in kinds
    ]
    errors = []
    monkeypatch.setattr(
        public_calls, "is_promised", lambda error, own=public_calls.is_promised: errors.append(error) or own(error)
    )

    def is_refused(name, path):
        errors.clear()
        assert run(name, path, tmp_path / "out") is None, (name, path)
        return bool(errors)

    refused = {name for name in NAMES if all(is_refused(name, path) for path in paths)}
    # An operation and weights in made models; nothing links these models, and a model is not a patch.
    assert refused == {"milblob text around", "milblob refit with a base", "milblob join", "milblob apply"}


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
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
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
    """Half a character where a name should be, as no writer writes it: refused by every function and command, in our words."""
    place = shutil.copytree(DATA / "opset_ios16_fp16" / "model.mlpackage", tmp_path / "m.mlpackage")
    data = (place / MODEL).read_bytes()
    for old, new in ((b"main", b"\xed\xb0\x80n"), (b"weights/", b"\x00eights/"), (b"const", b"con\xc3\x28")):
        broken = data.replace(old, new)
        assert broken != data
        (place / MODEL).write_bytes(broken)
        for name in NAMES:
            error = run(name, place, tmp_path / "out")
            assert error is None, (name, old, error)
