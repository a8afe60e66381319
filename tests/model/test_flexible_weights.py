"""Compressed weights whose operation does not tell all dimensions: the parts tell the shape."""

import shutil

import numpy as np
import pytest

import milblob
from milblob.program import schema
from paths import DATA


@pytest.mark.parametrize("name", ["constexpr_ios16", "constexpr_ios18"])
def test_compressed_weights_of_unknown_shape(name, tmp_path):
    path = shutil.copytree(DATA / name / "model.mlpackage", tmp_path / "m.mlpackage")
    wanted = milblob.load(path)
    file = path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model = schema.message_class("Model")()
    model.ParseFromString(file.read_bytes())
    count = 0
    for function in model.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                if op.type.startswith("constexpr_"):
                    op.outputs[0].type.tensorType.dimensions[0].unknown.variadic = False
                    count += 1
    assert count
    file.write_bytes(model.SerializeToString())
    found = milblob.load(path)
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        np.testing.assert_array_equal(found[key], values)
