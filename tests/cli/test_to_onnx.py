"""`milblob to-onnx`."""

import json
import shutil

import numpy as np
import pytest

import milblob
from onnx_models import run, save
from paths import DATA, DEMO


@pytest.fixture
def demo(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "demo.mlpackage")


def test_a_model_is_converted_and_the_result_is_printed(cli, demo, tmp_path):
    status, out, err = cli("to-onnx", demo, "-o", tmp_path / "m.onnx")
    assert (status, out) == (0, "")
    assert "nodes, opset 21" in err
    _, out, _ = cli(
        "to-onnx", demo, "-o", tmp_path / "n.onnx", "--json", "--opset", 18, "--weights", "embed", "--function", "main"
    )
    found = json.loads(out)
    assert found["inputs"] == ["tokens"] and found["outputs"] == ["logits"] and found["opset"] == 18
    assert found["nbytes"] == (tmp_path / "n.onnx").stat().st_size
    assert run(tmp_path / "n.onnx", {"tokens": np.zeros((1, 16), np.int32)})["logits"].shape == (1, 16, 96)


def test_files_beside_the_result_are_named(cli, demo, tmp_path):
    """Copies of weights; references and embedded weights make no file."""
    for name, is_copied, options in (("a", False, ()), ("b", True, ("copy",)), ("c", False, ("embed",))):
        _, _, err = cli("to-onnx", demo, "-o", tmp_path / f"{name}.onnx", *(("--weights", *options) if options else ()))
        assert (f"to {tmp_path / name}.onnx and {tmp_path / name}.bin (18" in err) == is_copied
        assert (tmp_path / f"{name}.bin").exists() == is_copied


def test_errors_are_one_line_and_status_2(cli, demo, tmp_path):
    (tmp_path / "other").mkdir()
    for arguments in (["-o", tmp_path / "other" / "m.onnx"], ["-o", tmp_path / "m.onnx", "--opset", 17], []):
        status, out, err = cli("to-onnx", demo, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)


def test_coverage(cli, demo, tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    assert cli("to-onnx", demo, "--coverage")[:2] == (0, "")
    path = save(
        tmp_path / "m.mlpackage",
        lambda x: mb.quantize(input=x, scale=np.float32(0.5), output_dtype="int8"),
        {"x": np.zeros((2, 3), np.float32)}, opset="iOS17",
    )  # fmt: skip
    assert cli("to-onnx", path, "--coverage", "--opset", 19)[:2] == (0, "")
    status, out, _ = cli("to-onnx", path, "--coverage", "--opset", 18)
    assert (status, out.split()) == (1, ["1", "quantize"])
    assert json.loads(cli("to-onnx", path, "--coverage", "--opset", 18, "--json")[1])["unsupported"] == {"quantize": 1}


def test_coverage_takes_no_output(cli, demo, tmp_path):
    status, _, err = cli("to-onnx", demo, "-o", tmp_path / "m.onnx", "--coverage")
    assert status == 2 and "-o: expected none with --coverage" in err
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    "options", [["--weights", "copy"], ["--weights", "reference"], ["--compressed", "keep"], ["--zipmap"], ["--force"]]
)
def test_coverage_takes_no_options_of_writing(cli, demo, options):
    status, out, err = cli("to-onnx", demo, "--coverage", *options)
    assert (status, out) == (2, "") and f"{options[0]}: expected none with --coverage, which writes nothing" in err


def test_an_output_keeps_its_name(cli, demo, tmp_path):
    for name in ("m.txt", "m.bin", "m", "m.onnx.bak"):
        status, out, err = cli("to-onnx", demo, "-o", tmp_path / name)
        assert (status, out) == (2, "") and "expected a name that ends in .onnx" in err
        with pytest.raises(ValueError, match="ends in .onnx"):
            milblob.onnx.convert(demo, tmp_path / name)
        assert not (tmp_path / name).exists()
    assert cli("to-onnx", demo, "-o", tmp_path / "M.ONNX", "-q") == (0, "", "")
    np.save(tmp_path / "x.npy", np.zeros((1, 16), np.int32))
    assert cli("run", tmp_path / "M.ONNX", "-i", f"tokens={tmp_path / 'x.npy'}", "-q") == (0, "", "")


def test_zipmap_without_a_classifier_is_mentioned(cli, demo, tmp_path):
    status, _, err = cli("to-onnx", demo, "-o", tmp_path / "m.onnx", "--zipmap")
    assert status == 0 and "--zipmap has no effect: the model is not a classifier" in err
    assert cli("to-onnx", demo, "-o", tmp_path / "m.onnx", "--zipmap", "--force", "-q") == (0, "", "")


def test_errors_name_options_of_the_command(cli, demo, tmp_path):
    (tmp_path / "other").mkdir()
    assert "(--weights copy)" in cli("to-onnx", demo, "-o", tmp_path / "other" / "m.onnx")[2]
    assert cli("to-onnx", demo, "-o", tmp_path / "m.onnx")[0] == 0
    assert "already exists (use --force to replace it)" in cli("to-onnx", demo, "-o", tmp_path / "m.onnx")[2]


def test_values_to_decode_count_against_the_budget(cli, demo, tmp_path):
    half = milblob.repack(demo, tmp_path / "half.mlpackage", cast={"float32": "float16"}).output
    status, _, err = cli("to-onnx", half, "-o", tmp_path / "m.onnx", "--max-nbytes", 10)
    assert status == 2 and "--max-nbytes" in err
    assert not (tmp_path / "m.onnx").exists()


def test_weights_that_a_newer_opset_keeps_compressed_are_a_message(cli, tmp_path):
    package = tmp_path / "m.mlpackage"
    milblob.compress(
        DATA / "opset_ios18_fp16/model.mlpackage", package, milblob.Linear("int4"), scope=milblob.Scope(min_size=10)
    )
    status, _, err = cli("to-onnx", package, "-o", tmp_path / "m.onnx", "--opset", 19)
    assert status == 0 and "milblob: 1 weight had to be decoded, which opset 21 keeps compressed" in err
    assert "Warning" not in err and all(line.startswith("milblob: ") for line in err.splitlines())
    assert cli("to-onnx", package, "-o", tmp_path / "m.onnx", "--opset", 19, "--force", "-q") == (0, "", "")
