"""milblob run and milblob verify: files in, files and tables out; nothing that is given is passed over."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import milblob
from milblob import Session
from onnx_models import save
from paths import DATA, DEMO

pytestmark = pytest.mark.usefixtures("unsynced")

TOKENS = np.arange(16, dtype=np.int64)[None] * 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with the demo model and files of inputs."""
    shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    np.save(tmp_path / "tokens.npy", TOKENS)
    np.savez(tmp_path / "one.npz", only=TOKENS)
    np.savez(tmp_path / "several.npz", tokens=TOKENS, extra=np.zeros(2))
    np.savez(tmp_path / "named.npz", tokens=TOKENS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "given", ["tokens=tokens.npy", "tokens=one.npz", "tokens=one.npz:only", "tokens=several.npz:tokens", "named.npz"]
)
def test_every_way_to_give_an_input(cli, folder, given):
    status, out, _ = cli("run", "m.mlpackage", "-i", given, "-o", "out.npz", "--json")
    expected = Session("m.mlpackage").predict({"tokens": TOKENS})["logits"]
    assert status == 0
    np.testing.assert_array_equal(np.load("out.npz")["logits"], expected)
    found = json.loads(out)
    assert found["output"] == "out.npz" and found["inputs"][0]["name"] == "tokens"
    (row,) = found["outputs"]
    assert (row["name"], row["dtype"], row["shape"], row["not_finite"]) == ("logits", "float32", [1, 16, 96], 0)
    assert (row["least"], row["greatest"]) == (expected.min(), expected.max())


def test_the_table_names_each_output(cli, folder):
    status, out, err = cli("run", "m.mlpackage", "-i", "tokens=tokens.npy", "-v")
    assert status == 0 and out.splitlines()[1].split()[:2] == ["logits", "float32"]
    assert "input tokens: int32 [1, 16]" in err
    assert cli("run", "m.mlpackage", "-i", "tokens=tokens.npy", "-q") == (0, "", "")


WRONG = {
    "no input": ([], "inputs: expected tokens (int32 [1, 16]); got no tokens"),
    "an array too many": (["-i", "several.npz"], "got the unknown 'extra'"),
    "a wrong name": (["-i", "token=tokens.npy"], "got the unknown 'token'; did you mean tokens?"),
    "twice": (["-i", "named.npz", "-i", "tokens=tokens.npy"], "expected each input once, got tokens again"),
    "no key": (["-i", "tokens=several.npz"], "expected several.npz:KEY, for the file has several arrays (tokens, extra)"),
    "a wrong key": (["-i", "tokens=several.npz:word"], "expected one of tokens, extra in several.npz, got 'word'"),
    "no name": (["-i", "tokens.npy"], "expected NAME=tokens.npy with the name of an input"),
    "no file": (["-i", "tokens=none.npy"], "No such file or directory: none.npy"),
    "another output": (["-i", "named.npz", "-o", "out.txt"], "expected an .npz file"),
    "into the model": (["-i", "named.npz", "-o", "m.mlpackage/out.npz"], "expected a place outside the model"),
    "a file that is there": (["-i", "named.npz", "-o", "one.npz"], "one.npz"),
    "states of a model without": (["-i", "named.npz", "--state-out", "s.npz"], "--state-out: expected a model with states"),
    "states given to one without": (["-i", "named.npz", "--state-in", "one.npz"], "--state-in: expected a model with states"),
    "another function": (["-i", "named.npz", "--function", "other"], "m.mlpackage has no function 'other' (it has main)"),
    "one file for two": (["-i", "named.npz", "-o", "s.npz", "--state-out", "s.npz"], "expected another file than -o"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_run_is_one_line(cli, folder, name):
    options, words = WRONG[name]
    before = sorted(folder.rglob("*"))
    status, out, err = cli("run", "m.mlpackage", *options)
    assert (status, out) == (2, "")
    assert words in err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "command", [["run", "m.onnx", "-i", "named.npz"], ["verify", "m.onnx", "m.onnx"]], ids=lambda command: command[0]
)
def test_an_onnx_file_has_no_functions_to_choose(cli, folder, command):
    assert cli("to-onnx", "m.mlpackage", "-o", "m.onnx")[0] == 0
    status, out, err = cli(*command, "--function", "main")
    assert (status, out) == (2, "")
    assert "--function: expected none, for an .onnx file is one function, got main" in err
    assert cli("verify", "m.mlpackage", "m.onnx", "--function", "main", "-q")[0] == 0


def test_states_go_from_file_to_file(cli, tmp_path):
    model, x = DATA / "states" / "model.mlpackage", np.linspace(0, 1, 16, dtype=np.float32)[None]
    np.save(tmp_path / "x.npy", x)
    session, previous = Session(model), []
    for step in range(3):
        expected = session.predict({"x": x})
        files = tmp_path / f"o{step}.npz", tmp_path / f"s{step}.npz"
        status, _, _ = cli(
            "run", model, "-i", f"x={tmp_path / 'x.npy'}", "-o", files[0], "--state-out", files[1], *previous
        )
        assert status == 0
        for name, value in expected.items():
            np.testing.assert_array_equal(np.load(files[0])[name], value)
        np.testing.assert_array_equal(np.load(files[1])["cache"], session.states["cache"])
        previous = ["--state-in", files[1]]
    status, _, err = cli("run", model, "-i", f"x={tmp_path / 'x.npy'}", "--state-in", tmp_path / "o0.npz")
    assert status == 2 and "the model has no state 'out' (it has cache)" in err


def test_outputs_that_are_there_are_refused_before_anything_is_written(cli, folder):
    model, before = DATA / "states" / "model.mlpackage", (folder / "one.npz").read_bytes()
    np.save("x.npy", np.zeros((1, 16), np.float32))
    status, _, err = cli("run", model, "-i", "x=x.npy", "-o", "new.npz", "--state-out", "one.npz")
    assert status == 2 and "one.npz already exists (use --force to replace it)" in err
    assert not (folder / "new.npz").exists()
    status, _, err = cli("verify", "m.mlpackage", "none.mlpackage", "--worst", "one.npz")
    assert status == 2 and "one.npz already exists" in err  # and no model was opened
    assert (folder / "one.npz").read_bytes() == before


def test_pictures_are_turned_into_the_colours_of_the_model(cli, tmp_path):
    """A palette, a picture with alpha, one that a camera turned; another size is refused."""
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    kind = ct.ImageType(name="photo", shape=(1, 3, 4, 6), color_layout=ct.colorlayout.RGB)
    shape = {"photo": np.zeros((1, 3, 4, 6), np.float32)}
    model = tmp_path / "m.mlpackage"
    save(model, lambda photo: mb.mul(x=photo, y=np.float32(1), name="same"), shape, inputs=[kind])
    pixels = np.random.default_rng(0).integers(0, 8, (4, 6, 3), np.uint8) * 32
    image = Image.fromarray(pixels)
    image.save(tmp_path / "plain.png")
    image.convert("RGBA").save(tmp_path / "alpha.png")
    image.quantize(256).save(tmp_path / "palette.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: a quarter turn makes it upright
    image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    for name in ("plain", "alpha", "palette", "turned"):
        out = tmp_path / f"{name}.npz"
        assert cli("run", model, "-i", f"photo={tmp_path / name}.png", "-o", out, "-q")[0] == 0
        np.testing.assert_array_equal(np.load(out)["same"], pixels.transpose(2, 0, 1)[None])
    image.resize((7, 4)).save(tmp_path / "large.png")
    status, _, err = cli("run", model, "-i", f"photo={tmp_path / 'large.png'}")
    assert status == 2 and "got an image 7 wide and 4 high; resize it first" in err


# -------------------------------------------------------------------------------------------------------------- verify


@pytest.fixture
def compressed(folder):
    milblob.compress("m.mlpackage", "small.mlpackage", milblob.Linear("int8"))
    return "small.mlpackage"


def test_equal_models_and_their_exit_status(cli, folder):
    status, out, err = cli("verify", "m.mlpackage", "m.mlpackage", "-v")
    assert status == 0 and "same: 4 runs, nothing differs" in out and "random inputs of seed 0" in err
    assert cli("verify", "m.mlpackage", "m.mlpackage", "-q") == (0, "", "")


def test_a_difference_is_shown_kept_and_run_again(cli, folder, compressed):
    status, out, _ = cli("verify", "m.mlpackage", compressed, "--worst", "worst.npz", "--json", "--seed", 3)
    found = json.loads(out)
    expected = milblob.verify("m.mlpackage", compressed, seed=3)
    assert status == 1 and found == expected.to_dict() and not found["is_same"]
    np.testing.assert_array_equal(np.load("worst.npz")["tokens"], expected.worst[0]["tokens"])
    status, out, _ = cli("verify", "m.mlpackage", compressed, "-i", "worst.npz", "--json")
    assert status == 1
    assert json.loads(out)["outputs"][0]["relative"] == found["outputs"][0]["relative"]
    status, out, _ = cli("verify", "m.mlpackage", compressed)
    assert status == 1 and "beyond" in out and "different: 4 runs, 1 of 1 output beyond the limit, most logits" in out
    status, out, _ = cli("verify", "m.mlpackage", compressed, "--max-error", 0.05, "--runs", 2)
    assert status == 0 and "same: 2 runs, all outputs within their limits" in out


def test_the_worst_run_of_a_model_with_states_comes_with_those_before_it(cli, tmp_path):
    model = DATA / "states" / "model.mlpackage"
    x = np.stack([np.full((1, 16), value, np.float16) for value in (1, 2, 3, 4)])
    np.savez(tmp_path / "x.npz", x=x)
    other = shutil.copytree(model, tmp_path / "o.mlpackage")
    with milblob.open(other, "r+") as opened:
        name = next(iter(opened))
        opened[name] = opened[name].read() * opened[name].dtype.type(1.25)
    argv = ["verify", model, other, "--max-error", 0, "--json"]
    status, out, _ = cli(*argv, "-i", tmp_path / "x.npz", "--worst", tmp_path / "w.npz")
    first = json.loads(out)
    assert status == 1 and first["runs"] == 4
    worst = max(first["outputs"], key=lambda one: one["relative"])
    kept = np.load(tmp_path / "w.npz")["x"]
    np.testing.assert_array_equal(kept.reshape(-1, 1, 16), x[: worst["run"] + 1])
    assert worst["run"] > 0
    second = json.loads(cli(*argv, "-i", tmp_path / "w.npz")[1])
    assert max(one["relative"] for one in second["outputs"]) == worst["relative"]


def test_what_cannot_be_verified_is_one_line(cli, folder):
    for options, words in (
        (["-i", "named.npz", "--runs", "3"], "--runs: expected none with -i"),
        (["-i", "named.npz", "--seed", "3"], "--seed: expected none with -i"),
        (["--worst", "x.txt"], "expected an .npz file"),
        (["--worst", "m.mlpackage/x.npz"], "expected a place outside the model"),
        (["--runs", "0"], "runs: expected 1 or more, got 0"),
        (["-i", "several.npz"], "got the unknown 'extra'"),
    ):
        status, out, err = cli("verify", "m.mlpackage", "m.mlpackage", *options)
        assert (status, out) == (2, "") and words in err
