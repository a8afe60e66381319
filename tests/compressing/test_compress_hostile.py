"""Programs that say what cannot be: refused or compressed as far as they can be, never an error of Python or NumPy."""

import dataclasses
import math
import shutil

import pytest

import milblob
import milblob.refitting.write as write
import milblob.rewrite.repack as repack
from milblob.compressing.choosing import Point
from milblob.program import schema
from paths import DATA

pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
MODEL = "Data/com.apple.CoreML/model.mlmodel"
RECIPES = [
    milblob.Linear(), milblob.Linear("int4", granularity="per_block", block=2), milblob.Palette(2, vector=2),
    milblob.Palette(2, granularity="per_grouped_channel", group_size=2), milblob.Palette(4, scale=True), milblob.Prune(0.5),
]  # fmt: skip


def changed(source, folder, change):
    """A copy of a package of tests/data whose operations were changed: change(operation) for each."""
    package = shutil.copytree(DATA / source / "model.mlpackage", folder / "m.mlpackage")
    model = schema.parse("Model", (package / MODEL).read_bytes())
    for function in model.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for operation in block.operations:
                change(operation)
    (package / MODEL).write_bytes(model.SerializeToString())
    return package


@pytest.mark.parametrize("groups", [0, -1, -(2**31), 3, 2**31 - 1])
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_groups_of_a_convolution_that_cannot_be(tmp_path, recipe, groups):
    def change(operation):
        if operation.type == "const" and operation.outputs[0].name == "conv_groups_0":
            operation.attributes["val"].immediateValue.tensor.ints.values[:] = [groups]

    package = changed("palette_grouped", tmp_path, change)
    report = milblob.compress(
        package, tmp_path / "out.mlpackage", recipe, recompress=True, scope=milblob.Scope(min_size=8)
    )
    assert len(report.weights) + len(report.skipped) > 0


@pytest.mark.parametrize(
    "source", ["palette_grouped", "quant_int8_offset", "sparse_palette", "sparse_uint1", "palette_scaled"]
)
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_parts_without_dimensions(tmp_path, recipe, source):
    """Each part of a compressed weight as a scalar, and the weight too."""
    names = []
    with milblob.open(DATA / source / "model.mlpackage", stored=True) as model:
        names = [name for name, tensor in model.items() if tensor.part or tensor.chain is not None]
    assert names
    for number, name in enumerate(names):
        (tmp_path / str(number)).mkdir()

        def change(operation, name=name):
            for output in operation.outputs:
                if output.name == name.rpartition(".")[0] or output.name == name:
                    output.type.tensorType.ClearField("dimensions")
                    output.type.tensorType.rank = 0
            parts = dict(operation.attributes.items())
            parts |= {key: argument.arguments[0].value for key, argument in operation.inputs.items()}
            for key, value in parts.items():
                if name == f"{operation.outputs[0].name}.{key}":
                    value.type.tensorType.ClearField("dimensions")
                    value.type.tensorType.rank = 0

        package = changed(source, tmp_path / str(number), change)
        try:
            milblob.compress(
                package,
                tmp_path / str(number) / "out.mlpackage",
                recipe,
                recompress=True,
                scope=milblob.Scope(min_size=1),
            )
        except milblob.MilblobError as error:
            assert "expected" in str(error)


@pytest.mark.parametrize("errors", [[], [1.0], [1.0, 1.0], [math.inf], [math.nan], [1e-300, 1e300], [5e-324]], ids=str)
@pytest.mark.parametrize("nbytes", [0, 1, 1 << 50])
def test_pictures_of_points_that_are_alike(errors, nbytes):
    """One point, points of one size or one error, at 0 dB, or that have no place."""
    frontier = milblob.compress_frontier(DATA / "opset_ios18_fp16" / "model.mlpackage", scope=milblob.Scope(min_size=8))
    drawn = dataclasses.replace(frontier, points=[Point(nbytes, error) for error in errors], alone=[]).to_svg()
    assert "nan" not in drawn and "inf" not in drawn.replace("info", "")


@pytest.mark.parametrize("is_link", [False, True])
@pytest.mark.parametrize("name", ["model.mlmodel", "weights/weight.bin"])
@pytest.mark.parametrize(
    "options", [None, {}, {"inline": True}, {"decompress": True}, {"dedupe": True, "align": 4096}], ids=str
)
def test_a_file_that_is_exchanged_while_a_result_is_written(tmp_path, monkeypatch, options, name, is_link):
    """For another file, or a link to one outside: the result has what was opened, or there is none."""
    package = shutil.copytree(DATA / "palette_grouped" / "model.mlpackage", tmp_path / "m.mlpackage")
    other = shutil.copytree(DATA / "quant_int8_offset" / "model.mlpackage", tmp_path / "other.mlpackage")
    expected = milblob.content_hash(package, dense=True)
    file, outside = (one / "Data/com.apple.CoreML" / name for one in (package, other))
    met = []
    with milblob.open(package) as model:
        values = {"first_bias_0": model["first_bias_0"].read().copy()}

    def exchange(*arguments, make=repack.NewDirectory, **keywords):
        file.rename(tmp_path / "kept")
        file.symlink_to(outside) if is_link else shutil.copy(outside, file)
        met.append(file)
        return make(*arguments, **keywords)

    for module in (repack, write):
        monkeypatch.setattr(module, "NewDirectory", exchange)
    target = tmp_path / "out.mlpackage"
    try:
        if options is None:
            milblob.refit(package, {"first_bias_0": values["first_bias_0"] + 1}, destination=target)
        else:
            milblob.repack(package, target, **options)
    except milblob.MilblobError:
        assert not target.exists()
    else:
        if options is None:  # and back again
            milblob.refit(target, values)
        assert milblob.content_hash(target, dense=True) == expected
    assert met
