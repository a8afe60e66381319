"""Hostile .onnx files, and hostile names of files: one clear error of milblob, from functions and from commands."""

import itertools
import os
import re
import shutil
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import milblob
import milblob.onnx
from milblob.cli import main
from paths import DEMO
from public_calls import run
from thorough import share, sized, some

CALLS = [
    "load", "open", "check", "content_hash", "statistics", "diff", "match", "match with a model", "refit a model", "Session",
    "Session that runs", "verify", "milblob ls", "milblob check", "milblob diff as JSON", "milblob match",
    "milblob convert", "milblob run", "milblob verify", "milblob refit with the model", "milblob to-onnx coverage",
]  # fmt: skip


def made():
    """A model of two products whose weight and bias stand in it, and whose offset is in a file of its own."""
    apart = TensorProto(name="apart", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "16")):
        apart.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("input_x", "output_y"))
    nodes = [
        helper.make_node("MatMul", ["input_x", "weight"], ["product"], name="named", doc_string="documented"),
        helper.make_node("Add", ["product", "apart"], ["output_y"]),
    ]
    graph = helper.make_graph(
        nodes, "graph", [x], [y], [numpy_helper.from_array(np.eye(4, dtype="f4"), "weight"), apart]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="producer", ir_version=9
    )
    model.metadata_props.add(key="milblob.weights", value='{"weight": "main/w"}')
    model.metadata_props.add(key="custom", value="noted")
    return model


def require_clear(folder, data, about):
    """Call everything with a file of these bytes."""
    path = folder / "in" / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    np.zeros(4, "f4").tofile(path.parent / "w.bin")
    for name in CALLS:
        error = run(name, path, folder / "out")
        assert error is None, (about, name, type(error), error)


@pytest.mark.parametrize("bad", some([b"\xff\xfe", b"\xed\xa0\x80", b"\0\0", b"\x1b["], 1), ids=repr)
def test_texts_that_are_none(tmp_path, bad, capfd):
    """Each text in a file: names, places of external data, metadata. Nobody but milblob prints anything."""
    data = made().SerializeToString()
    require_clear(tmp_path, data, "sound")
    texts = sorted(set(re.findall(rb"[A-Za-z][A-Za-z0-9_.]{3,}", data)))
    assert len(texts) > 18
    for text in texts:
        require_clear(tmp_path, data.replace(text, bad + text[len(bad) :]), text)
    printed = capfd.readouterr()
    assert printed.out == "" and "EP Error" not in printed.err


@pytest.mark.parametrize(
    "sizes", [[1] * 64 + [4], [0, 4], [-1, 4], [2**62, 4], [2**63 - 1, 4], [2**33, 2**33]], ids=str
)
def test_sizes_that_nothing_has(tmp_path, sizes):
    """More dimensions than NumPy has, none, negative ones, products that wrap: of each tensor and input."""
    for place in ("weight", "apart", "input", "output", "between"):
        model = made()
        if place in ("weight", "apart"):
            model.graph.initializer[place == "apart"].dims[:] = sizes
        else:
            info = helper.make_tensor_value_info(
                {"input": "input_x", "output": "output_y"}.get(place, "product"), 1, sizes
            )
            if place == "between":
                model.graph.value_info.append(info)
            else:
                getattr(model.graph, place)[0].CopyFrom(info)
        require_clear(tmp_path, model.SerializeToString(), place)


@pytest.mark.parametrize("key, value", [
    ("offset", "-1"), ("offset", "9" * 5000), ("offset", "x"), ("length", "-4"), ("length", "9" * 5000), ("length", ""),
    ("location", "../w.bin"), ("location", "/etc/hostname"), ("location", ""), ("location", "w.bin\0"), ("location", "x" * 5000),
    ("location", "."), ("location", "w.bin/"), ("checksum", "zz"),
])  # fmt: skip
@pytest.mark.sample(7)
def test_places_of_external_data(tmp_path, key, value):
    model = made()
    entries = model.graph.initializer[1].external_data
    for entry in entries:
        if entry.key == key:
            entry.value = value
    if key == "checksum":
        entries.add(key=key, value=value)
    require_clear(tmp_path, model.SerializeToString(), (key, value[:20]))


NAMES = [os.fsdecode(b"m\xff\xfe"), os.fsdecode(b"caf\xe9"), "a\nb", "\u202egnp", "x" * 150, "a b'\"<&>"]


@pytest.mark.sample(2)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has file names of any bytes: such names are not tested")
@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_names_of_files_that_are_none(tmp_path, name, capfd):
    """Of the folder, of the model and of the result: ONNX stores a path to the weights in UTF-8; XML, JSON and lines have others."""
    folder = tmp_path / name
    folder.mkdir()
    models = [shutil.copytree(DEMO, folder / f"{stem}.mlpackage") for stem in ("m", name)]
    targets = [folder / "out.onnx", folder / f"{name}.onnx"]
    cases = itertools.product(models, targets, ("reference", "copy", "embed"))
    for model, target, how in share(cases, NAMES.index(name), 4):
        is_bad = how == "reference" and any("\udc80" <= c <= "\udcff" for c in model.name)
        if is_bad:
            with pytest.raises(ValueError, match="expected a path to the weights in UTF-8") as caught:
                milblob.onnx.convert(model, target, weights=how, force=True)
            assert str(caught.value).isprintable()
        else:
            milblob.onnx.convert(model, target, weights=how, force=True)
            with milblob.Session(target) as session, milblob.Session(model) as own:
                feeds = {"tokens": np.zeros((1, 16), np.int32)}
                for key, value in own.predict(feeds).items():
                    np.testing.assert_array_equal(session.predict(feeds)[key], value)
        assert main(["to-onnx", str(model), "-o", str(target), "--weights", how, "--force", "-q"]) == (
            2 if is_bad else 0
        )
    for model in models[sized(1, 0) :]:
        picture, plan = folder / "f.svg", folder / "p.json"
        assert main(["compress", str(model), "--frontier", str(picture), "--force", "-q"]) == 0
        assert "size against error" in "".join(ElementTree.fromstring(picture.read_bytes()).itertext())
        argv = [
            "compress",
            str(model),
            "-o",
            str(folder / "c.mlpackage"),
            "--bits",
            "5",
            "--save-plan",
            str(plan),
            "--json",
            "--force",
        ]
        assert main(argv) == 0
        for command in (
            ["check", str(model), "--sarif"],
            ["hash", str(model), "--json"],
            ["ls", str(model), "--json"],
            ["show", str(model)],
        ):
            assert main(command) == 0, command
        printed = capfd.readouterr()
        assert all(line.isprintable() for line in (printed.out + printed.err).splitlines())
