"""Records whose data overlap: to write one would change another weight without a word, so that is refused."""

import shutil

import numpy as np
import pytest

import milblob
from paths import DEMO

pytestmark = pytest.mark.usefixtures("unsynced")

WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"


def overlapping(tmp_path):
    """Give a weight the data of another one in a record of its own; return the model, both names and a third."""
    path = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    with milblob.open(path) as model:
        groups = {}
        for name, tensor in model.items():
            if tensor.is_blob and tensor.chain is None:
                groups.setdefault((tensor.mil_dtype, tensor.shape), {})[tensor.offset] = name
        first, second, third, *_ = next(group for group in groups.values() if len(group) > 2).items()
    file = path / WEIGHTS
    data = bytearray(file.read_bytes())
    data[second[0] + 16 : second[0] + 24] = data[first[0] + 16 : first[0] + 24]
    file.write_bytes(data)
    return path, first[1], second[1], third[1]


def change(path, name, how):
    with milblob.open(path) as model:
        new = np.asarray(model[name].read()) + 1
    if how == "refit":
        milblob.refit(path, {name: new})
        return
    with milblob.open(path, mode="r+") as model:
        model[name] = new


@pytest.mark.parametrize("how", ["refit", "assign"])
@pytest.mark.parametrize("place", [0, 1])
def test_overlapping_data_is_not_written(how, place, tmp_path):
    path, *names, other = overlapping(tmp_path)
    before = (path / WEIGHTS).read_bytes()
    with pytest.raises(milblob.FormatError, match=f"{names[place]}: expected none of another record, got some of"):
        change(path, names[place], how)
    assert (path / WEIGHTS).read_bytes() == before
    change(path, other, how)
    assert (path / WEIGHTS).read_bytes() != before
