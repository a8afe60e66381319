"""References of an ONNX model, and the bytes that they were written for."""

import json
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import milblob
import milblob.onnx
from matrix import every
from milblob.cli import main
from milblob.formats.onnx_external import REFERENCE
from milblob.formats.read import open_arrays
from paths import ROOT
from reference_hash import blake3

DEMO = ROOT / "examples" / "demo.mlpackage"
WORDS = "expected the bytes that were converted"
COMMANDS = [
    "run {onnx} -i {inputs}", "verify {model} {onnx}", "refit {model} {onnx}", "refit {model} {onnx} -o {out}.mlpackage",
    "match {model} {onnx}", "diff {model} {onnx}", "convert {onnx} -o {out}", "convert {onnx} -o {out}.npz",
    "convert {onnx} -o {out}.bin --skip-unsupported", "stats {onnx}", "hash {onnx}", "show {onnx} embedding_weight",
]  # fmt: skip


def converted(folder, source=DEMO, **options):
    model = shutil.copytree(source, folder / "m.mlpackage")
    milblob.onnx.convert(model, folder / "m.onnx", **options)
    return model, folder / "m.onnx"


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_rewritten_weights_are_refused_by_every_command(tmp_path, capsys):
    """A repacked package, and an .onnx file beside other weights: every command refuses the stale reference."""
    np.savez(tmp_path / "inputs.npz", tokens=np.arange(16, dtype=np.int32)[None])
    laid, pair = tmp_path / "laid", tmp_path / "pair"
    for folder in (laid, pair):
        folder.mkdir()
    model, _ = converted(laid)
    milblob.repack(model, model, align=4096, force=True)
    model, onnx_path = converted(pair, weights="copy")
    milblob.refit(model, {name: array * 2 for name, array in milblob.load(model).items()})
    kept = onnx_path.read_bytes()
    milblob.onnx.convert(model, onnx_path, weights="copy", force=True)
    next(pair.glob("m.*.bin")).rename(pair / "m.bin")
    onnx_path.write_bytes(kept)  # as if the new one had not been written after its weights
    before = files_of(tmp_path)

    def check(folder, command):
        names = {"model": folder / "m.mlpackage", "onnx": folder / "m.onnx", "inputs": tmp_path / "inputs.npz"}
        status = main([part.format(out=tmp_path / "out", **names) for part in command.split()])
        assert (status, WORDS in (err := capsys.readouterr().err)) == (2, True), (status, err)
        assert "convert the model again" in err
        assert files_of(tmp_path) == before

    every(check, [laid, pair], COMMANDS)


def test_references_hold_the_hash_of_their_target(tmp_path, monkeypatch):
    """Each one: of weight files, of copies, of what was decoded. They are the bytes that are there."""
    for module in (milblob.onnx.save, milblob.onnx.weights):
        monkeypatch.setattr(module, "BESIDE_NBYTES", 1 << 10)
    milblob.compress(DEMO, tmp_path / "six.mlpackage", milblob.Palette(6))

    def check(source, weights):
        folder = tmp_path / f"{source.stem} {weights}"
        folder.mkdir()
        _, path = converted(folder, source, weights=weights)
        found = [
            tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer if tensor.external_data
        ]
        assert found
        for tensor in found:
            place = {entry.key: entry.value for entry in tensor.external_data}
            note = {entry.key: json.loads(entry.value) for entry in tensor.metadata_props}[REFERENCE]
            assert (note["offset"], note["nbytes"]) == (int(place["offset"]), int(place["length"]))
            data = (folder / place["location"]).read_bytes()[note["offset"] :][: note["nbytes"]]
            assert note["hash"] == blake3(data)[:32]
        onnx.checker.check_model(path, full_check=True)
        with open_arrays(path) as arrays:
            for array in arrays.values():
                array.read()

    every(check, [DEMO, tmp_path / "six.mlpackage"], ["reference", "copy"])
    assert (tmp_path / "six reference" / "m.bin").exists()


def test_a_note_is_about_the_place_that_it_names(tmp_path):
    """Who writes the values elsewhere, and keeps the metadata, has written other values; broken notes are refused."""
    _, path = converted(tmp_path, weights="copy")
    whole = onnx.load(path)
    for tensor in whole.graph.initializer:
        if tensor.metadata_props:
            tensor.raw_data = bytes(len(tensor.raw_data))
    (tmp_path / "t").mkdir()
    onnx.save(whole, tmp_path / "t" / "t.onnx", save_as_external_data=True, location="t.bin", size_threshold=64)
    with open_arrays(tmp_path / "t" / "t.onnx") as arrays:
        assert arrays["embedding_weight"].external is not None and not arrays["embedding_weight"].read().any()
    model = onnx.load(path, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "embedding_weight")

    def check(note):
        del tensor.metadata_props[:]
        tensor.metadata_props.add(key=REFERENCE, value=note)
        onnx.save(model, tmp_path / "n.onnx")
        with open_arrays(tmp_path / "n.onnx") as arrays:
            with pytest.raises(milblob.FormatError, match=REFERENCE):
                arrays["embedding_weight"].read()
            arrays["head_bias"].read()
        with pytest.raises(milblob.FormatError, match=REFERENCE):
            milblob.Session(tmp_path / "n.onnx")

    every(check, ["x", "[]", "{}", '{"hash": 5}', '{"offset": 1, "nbytes": 2, "hash": "00"}', "[" * 100_000])


def test_a_converted_model_reads_what_was_open(tmp_path):
    """What `convert` returns has the values of the file that it opened, even if the name leads elsewhere afterwards."""
    path = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    expected = {name: np.array(array) for name, array in milblob.load(path).items()}
    model = milblob.onnx.convert(path)
    weights = path / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    other = bytes(weights.stat().st_size)
    weights.unlink()
    weights.write_bytes(other)
    found = {
        v.name: v.const_value for v in model.graph.initializers.values() if isinstance(v.const_value, ir.ExternalTensor)
    }
    assert len(found) > 20
    for name, tensor in found.items():
        assert tensor.numpy().tobytes() == np.asarray(tensor).tobytes() == tensor.tobytes() == expected[name].tobytes()
        with (tmp_path / "one").open("wb") as file:
            tensor.tofile(file)
        assert (tmp_path / "one").read_bytes() == expected[name].tobytes()
