"""milblob ls: which operation reads each weight, and how many constants are not listed."""

import shutil

import pytest

import milblob
from paths import DATA, DEMO

MODELS = ("palette_4bit", "opset_ios18_fp16", "functions", "pipeline", "immediates", "quant_uint8")


def column(out):
    """The last column of the table by name."""
    lines = out.splitlines()
    begin = lines[0].index("read by")
    return {line.split()[0]: line[begin:] for line in lines[1:] if line}


def expected(path):
    """Of coremltools: what reads the output of each const operation, in order."""
    import coremltools as ct

    found = {}
    for function in ct.utils.load_spec(str(path)).mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                for key, argument in op.inputs.items():
                    for binding in argument.arguments:
                        found.setdefault(binding.name, []).append(f"{op.type} {op.outputs[0].name!r} {key}")
    return found


def test_ls_names_the_operation_that_reads_each_weight(cli):
    readers = expected(DEMO)
    shown = column(cli("ls", DEMO, "-q")[1])
    assert list(shown) == list(milblob.open(DEMO))
    for name, words in shown.items():
        more = len(readers[name]) - 1
        assert words == readers[name][0] + (f" +{more}" if more else "")
    assert "layer_norm gamma" in cli("ls", DEMO, "-p", "-q")[1]


def test_ls_works_without_operations(cli, tmp_path):
    """Weight files and files of arrays have none."""
    assert cli("convert", DEMO, "-o", tmp_path / "w.bin", "-q")[0] == 0
    assert cli("convert", DEMO, "-o", tmp_path / "w.npz", "-q")[0] == 0
    for name in ("w.bin", "w.npz"):
        out = cli("ls", tmp_path / name)[1]
        assert "read by" not in out and "not listed" not in out


@pytest.mark.parametrize("name", MODELS)
def test_ls_counts_the_constants_that_are_not_listed(cli, name):
    path = next((DATA / name).glob("model.ml*"))
    with milblob.open(path) as model, milblob.open(path, constants=True) as every:
        left = len(every) - len(model)
    last = cli("ls", path)[1].splitlines()[-1]
    if left:
        assert last.startswith(f"{left} constant{'s' * (left > 1)} not listed") and last.endswith(
            "(--constants lists them)."
        )
    else:
        assert "not listed" not in last
    for options in (["--constants"], ["-k", "*"], ["-q"]):
        assert "not listed" not in cli("ls", path, *options)[1]


def test_ls_counts_them_without_the_weight_files(cli, tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    shutil.rmtree(package / "Data/com.apple.CoreML/weights")
    assert cli("ls", package)[1] == cli("ls", DEMO)[1]
