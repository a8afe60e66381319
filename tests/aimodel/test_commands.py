"""The command line on bundles."""

import json

import numpy as np
import pytest

import milblob
import mlir_bytes
from bundles import bundle, copy_of, is_hashed
from milblob import cli

LINEAR = bundle("linear_f32")


@pytest.fixture
def say(capsys):
    """A function that runs a command, and returns its status and what it printed."""

    def one(*arguments):
        status = cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return one


def test_ls(say):
    status, out, _ = say("ls", "--json", LINEAR, "-v")
    document = json.loads(out)
    assert status == 0 and document["kind"] == "aimodel" and len(document["tensors"]) == 4
    row = document["tensors"][0]
    assert (row["name"], row["dtype"], row["shape"], row["function"]) == (
        "main/broadcasting_batch_matmul_0.y",
        "float32",
        [32, 24],
        "main",
    )
    status, out, _ = say("ls", bundle("functions_f32"), "-f", "second", "-k", "*add*")
    assert "second/broadcasting_add_0.other" in out and "main/" not in out
    assert (
        "permutation" in say("ls", LINEAR, "--constants")[1]
        and ".lut" in say("ls", bundle("bare_f16_palette4"), "--stored")[1]
    )
    document = json.loads(say("ls", "--json", bundle("functions_f32"))[1])
    assert document["totals"]["nbytes_unique"] < document["totals"]["nbytes"]
    assert say("ls", LINEAR, "-f", "nothing")[0] == 2


def test_show(say):
    assert "b_cache  f32 [1, 16]" in say("show", bundle("states_f32"))[1]
    document = json.loads(say("show", LINEAR, "--json")[1])
    assert document["functions"]["main"]["inputs"][0]["name"] == "x" and document["metadata"]["assetVersion"] == "2.0"
    status, out, _ = say("show", bundle("bare_f16_palette4"), "#0")
    assert status == 0 and "compressed" in out and "part lut" in out and "used by" in out
    document = json.loads(say("show", bundle("linear_f32_debug"), "main/#1", "--json")[1])
    assert document["label"] == "Two$1/Linear$1:addmm" and document["ordinal"] == 1


@pytest.mark.parametrize("arguments", [["stats"], ["hash"], ["hash", "-q"], ["check"]])
def test_commands_that_read(arguments, say):
    status, out, _ = say(*arguments, LINEAR)
    assert status == 0 and out


def test_convert_diff_and_match(say, tmp_path):
    assert say("convert", LINEAR, "-o", tmp_path / "w.npz")[0] == 0
    assert say("convert", bundle("bare_f16_int4_symm_per_block"), "-o", tmp_path / "w.safetensors")[0] == 0
    assert say("diff", LINEAR, tmp_path / "w.npz")[0] == 0 and say("diff", LINEAR, bundle("linear_f16"))[0] == 1
    status, out, _ = say("match", bundle("linear_f32_again"), tmp_path / "w.npz")
    assert status == 0 and "4 matched" in out


def test_refit_and_repack(say, tmp_path):
    folder = copy_of("linear_f32", tmp_path)
    np.savez(tmp_path / "new.npz", **{"main/broadcasting_add_0.other": np.ones(32, "f4")})
    assert say("refit", folder, tmp_path / "new.npz")[0] == 0 and is_hashed(folder)
    assert say("repack", folder, "-o", tmp_path / "out.aimodel", "--dedupe")[0] == 0 and is_hashed(
        tmp_path / "out.aimodel"
    )
    assert say("diff", folder, tmp_path / "out.aimodel")[0] == 0


@pytest.mark.parametrize(
    "arguments", [["text", LINEAR], ["info"], ["to-onnx", LINEAR, "-o", "x.onnx"], ["run", LINEAR]]
)
def test_commands_for_core_ml_models_name_the_kind_of_a_bundle(arguments, say):
    status, out, err = say(*arguments)
    assert (status, "bundle of Apple's Core AI" in err) in {(2, True), (0, False)} and "Traceback" not in out + err
    if arguments != ["info"]:
        assert status == 2


def test_hash_of_every_constant_leaves_the_hash_of_the_bundle(say):
    few, many = (json.loads(say("hash", "--json", *more, LINEAR)[1]) for more in ((), ("-v",)))
    assert few["model"] == many["model"] and few["tensors"].items() < many["tensors"].items()


@pytest.mark.parametrize("target", ["x.npz", "x.safetensors", "folder/"])
def test_a_name_that_is_not_utf_8_is_refused_where_a_format_cannot_hold_it(target, say, tmp_path):
    source, texts = tmp_path / "x.mlirb", list(mlir_bytes.TEXTS)
    texts[5] = b"ma\xff"
    source.write_bytes(mlir_bytes.file(texts=texts))
    assert say("hash", source)[0] == 0
    status, _, printed = say("convert", source, "-o", f"{tmp_path}/{target}")
    assert status == 2 and "expected UTF-8" in printed and not (tmp_path / target).exists()
    assert say("convert", source, "-o", tmp_path / "x.params")[0] == 0
    (name,) = milblob.load(source)
    (digest,) = milblob.content_hash(source).tensors.values()
    assert milblob.content_hash(tmp_path / "x.params").tensors == {name: digest}
