"""`select` of every function that has it: a glob, several, or a predicate, with one meaning and one grammar of errors."""

import json

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from editable_packages import code, files_of
from hostile_bytes import blob_value, const, model, program, write_package
from milblob.cli import main
from milblob.selection import selector
from paths import DEMO

SHAPES = {"floats": (30, 10), "bytes": (7, 20), "ints": (11, 40)}
KINDS = {
    "name": ("floats", {"floats"}),
    "star": ("*s", {"floats", "bytes", "ints"}),
    "question mark": ("?ytes", {"bytes"}),
    "set of characters": ("[fi]*", {"floats", "ints"}),
    "upper case": ("FLOATS", set()),
    "empty text": ("", set()),
    "list": (["floats", "b*"], {"floats", "bytes"}),
    "tuple": (("ints",), {"ints"}),
    "keys": ({"ints": 1}.keys(), {"ints"}),
    "lambda": (lambda name: name.startswith("f"), {"floats"}),
    "method": ({"bytes", "ints"}.__contains__, {"bytes", "ints"}),
    "truth of an integer": (lambda name: int(name == "ints"), {"ints"}),
    "none": (None, {"floats", "bytes", "ints"}),
}
WRONG = {
    "int": (3, TypeError, "select: expected a glob, several globs or a function, got int"),
    "bytes": (b"floats", TypeError, "select: expected a glob, several globs or a function, got bytes"),
    "int inside": (
        ["floats", 3], TypeError, "select: expected a glob, several globs or a function, got int among the globs",
    ),
    "None inside": (
        [None], TypeError, "select: expected a glob, several globs or a function, got NoneType among the globs",
    ),
    "empty list": ([], ValueError, "select: expected a glob or several, got none; None selects everything"),
    "empty tuple": ((), ValueError, "select: expected a glob or several, got none; None selects everything"),
}  # fmt: skip


@pytest.fixture
def package(tmp_path):
    """Three matrices of float32 in a weight file, all different."""
    random = np.random.default_rng(5)
    arrays = [random.standard_normal(shape).astype("<f4") for shape in SHAPES.values()]
    data, offsets = blob_file(*(("FLOAT32", array) for array in arrays))
    path = "@model_path/weights/weight.bin"
    body = [
        const(blob_value(code("FLOAT32"), list(shape), path, offset), name)
        for (name, shape), offset in zip(SHAPES.items(), offsets, strict=True)
    ]
    return write_package(tmp_path, model(program(*body)), {"weight.bin": data})


def by_diff(package, select):
    return {row.name for row in milblob.diff(package, milblob.load(package), select=select).rows}


def by_statistics(package, select):
    return set(milblob.statistics(package, select=select))


def by_match(package, select):
    return {match.name for match in milblob.match(package, milblob.load(package), select=select).matches}


def by_refit(package, select):
    return {row.name for row in milblob.refit(package, milblob.load(package), select=select, dry_run=True).changes}


def by_repack(package, select):
    target = package.parent / "out.mlpackage"
    report = milblob.repack(package, target, select=select, cast="float16", dry_run=True)
    return {change.name for change in report.changes if change.actions == ["cast"]}


FUNCTIONS = [by_diff, by_match, by_statistics, by_refit, by_repack]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_function_takes_each_kind(package, function, kind):
    select, expected = KINDS[kind]
    assert expected == set(filter(selector(select), SHAPES))
    if expected:
        assert function(package, select) == expected


NOTHING = {"a glob": "float", "several": ["FLOATS", ""], "a function": lambda name: False}


@pytest.mark.parametrize("kind", NOTHING)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_selection_of_nothing_is_refused(package, function, kind):
    """A misspelled name never reads as "the same", or as a copy in which everything was done."""
    before = files_of(package.parent)
    words = "weights: expected at least one, got none|select: no tensor in .* (matches|is selected)"
    with pytest.raises(ValueError, match=words):
        function(package, NOTHING[kind])
    assert files_of(package.parent) == before


def test_a_selection_of_nothing_in_a_weight_file(tmp_path):
    data, _ = blob_file(("FLOAT32", np.ones(12, "<f4")))
    (tmp_path / "w.bin").write_bytes(data)
    with pytest.raises(ValueError, match="no tensor in .* is selected"):
        milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", select="#1", cast="float16")
    with pytest.raises(ValueError, match="no tensor in .* matches '#1'"):
        milblob.diff(tmp_path / "w.bin", tmp_path / "w.bin", select="#1")
    assert [path.name for path in tmp_path.iterdir()] == ["w.bin"]


def test_a_selection_of_what_cannot_move_to_a_weight_file(tmp_path):
    """It matches the name of a text, with which nothing can be done: the result would be a copy."""
    with milblob.open(DEMO, constants=True) as opened:
        name = next(name for name, tensor in opened.items() if tensor.mil_dtype is milblob.DType.STRING)
    with pytest.raises(ValueError, match="no tensor in .* is selected"):
        milblob.repack(DEMO, tmp_path / "out.mlpackage", select=name, externalize=0)
    assert not (tmp_path / "out.mlpackage").exists()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_iterator_serves_all_names(package, function):
    assert function(package, iter(["ints", "f*"])) == {"ints", "floats"}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_refusals(package, function, kind):
    select, error, words = WRONG[kind]
    before = files_of(package.parent)
    with pytest.raises(error) as caught:
        function(package, select)
    assert type(caught.value) is error and str(caught.value) == words
    assert files_of(package.parent) == before


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_error_of_the_predicate_comes_out(package, function):
    class OwnError(Exception):
        pass

    def select(name):
        raise OwnError(name)

    before = files_of(package.parent)
    with pytest.raises(OwnError):
        function(package, select)
    assert files_of(package.parent) == before


def test_a_name_matches_itself():
    """Also where it is no glob that matches itself."""
    assert selector("a[0]")("a[0]") and selector("a[0]")("a0") and not selector("a[0]")("a[1]")
    assert selector(["x", "a/*"])("a/b/c") and not selector("a")("a/b") and not selector("[!a]")("a")


def test_the_command_line_means_the_same(package, tmp_path, capsys):
    weights = tmp_path / "w.npz"
    np.savez(weights, **milblob.load(package))
    keep = ["-k", "f*", "-k", "ints"]
    commands = {
        "diff": (package, weights), "match": (package, weights), "refit": (package, weights, "--dry-run"),
        "ls": (package,), "stats": (package,), "convert": (weights, "-o", tmp_path / "out.bin"),
        "repack": (package, "-o", tmp_path / "out.mlpackage", "--cast", "float16", "--dry-run"),
    }  # fmt: skip
    for command, arguments in commands.items():
        assert main([command, *map(str, arguments), *keep, "--json"]) in (0, 1)
        text = capsys.readouterr().out
        if command == "refit":
            assert json.loads(text)["unused"] == ["bytes"]
        # Without the arrays that no weight was looked for.
        text = text.partition('"unmatched_given"')[0].partition('"unused"')[0]
        chosen = {name for name in SHAPES if f'"{name}"' in text}
        if command == "repack":  # lists all, and what is done with each
            assert {row["name"] for row in json.loads(text)["tensors"] if row["actions"]} == {"floats", "ints"}
        else:
            assert chosen == {"floats", "ints"}, (command, text)


def test_an_unknown_name_brings_close_ones():
    """In the message of the KeyError of a model; nobody who only asks `get` or `in` waits for the search."""
    with milblob.open(DEMO) as model:
        with pytest.raises(KeyError, match="has no tensor 'head_wieght'; did you mean head_weight or"):
            model["head_wieght"]
        with pytest.raises(
            KeyError, match="has no tensor 'QUERY_weight'; did you mean layers_0_attention_query_weight or "
        ):
            model["QUERY_weight"]
        with pytest.raises(KeyError, match="has no tensor 3'$"):
            model[3]
        names = model.tensors
        try:
            model.tensors = Costly(names)
            assert model.get("head_wieght") is None
        finally:
            model.tensors = names


class Costly(dict):
    def __iter__(self):
        raise AssertionError("somebody looks through all names")
