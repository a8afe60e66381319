"""docs/compress.md names every option of coremltools' configurations and of the recipes, so none is missing."""

import inspect
import re
from dataclasses import fields

import pytest

import milblob
from paths import ROOT
from peers import WITHOUT

CONFIGS = {
    "Linear": ["OpLinearQuantizerConfig"],
    "Palette": ["OpPalettizerConfig"],
    "Prune": ["OpMagnitudePrunerConfig", "OpThresholdPrunerConfig"],
}


def rows(recipe):
    """(cell about milblob, cell about coremltools) of the table of a recipe."""
    text = (ROOT / "docs" / "compress.md").read_text()
    table = re.search(rf"^\| `milblob\.{recipe}` \|.*\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)
    assert table, f"docs/compress.md has no table of {recipe}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def test_every_level_of_coremltools_has_a_row():
    import attrs

    opt = pytest.importorskip("coremltools.optimize.coreml", reason=WITHOUT["coremltools"])
    named = {name for _, cell in rows("compress") for name in re.findall(r"`(\w+)", cell)}
    levels = {field.name for field in attrs.fields(opt.OptimizationConfig) if not field.name.startswith("_")}
    functions = (opt.linear_quantize_weights, opt.palettize_weights, opt.prune_weights)
    for function in functions:
        parameters = inspect.signature(function.__closure__[0].cell_contents).parameters  # of what it decorates
        assert set(parameters) == {"mlmodel", "config", "joint_compression"}
    assert len(levels) == 3
    assert levels | {"joint_compression"} <= named


@pytest.mark.parametrize("recipe", CONFIGS)
def test_every_option_of_coremltools_has_a_row(recipe):
    import attrs

    opt = pytest.importorskip("coremltools.optimize.coreml", reason=WITHOUT["coremltools"])
    named = {name for _, cell in rows(recipe) for name in re.findall(r"`(\w+)`", cell)}
    for config in CONFIGS[recipe]:
        options = {field.name for field in attrs.fields(getattr(opt, config))}
        assert len(options) >= 3
        assert options <= named


@pytest.mark.parametrize("recipe", CONFIGS)
def test_every_option_of_a_recipe_has_a_row_with_its_default(recipe):
    cells = [cell for cell, _ in rows(recipe)]
    kind = getattr(milblob, recipe)
    for field in fields(kind):
        row = next((cell for cell in cells if cell.startswith(f"`{field.name}=")), None)
        assert row, f"{recipe}.{field.name}"
        shown = re.match(r"`\w+=(.*?)`", row)[1]
        if recipe != "Prune" and field.name != "search":
            assert shown.replace('"', "'") == repr(field.default)
    assert {"guidance", "nan", "recompress", "scope"} <= set(inspect.signature(milblob.compress).parameters)
