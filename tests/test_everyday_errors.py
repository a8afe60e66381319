"""Everyday errors say what is wrong and what to do, in Python and on the command line."""

import pickle
import shutil

import pytest

import milblob
from milblob.arguments import in_unit_of, parse_nbytes
from milblob.closeness import ambiguous, unknown
from milblob.errors import DestinationExistsError, SelectionError
from milblob.wording import some
from paths import DATA, DEMO

FUNCTIONS = DATA / "functions/model.mlpackage"


def test_a_destination_that_exists_is_named(cli, tmp_path):
    """In Python with the argument, on the command line with the option."""
    for name in ("out.npz", "out.safetensors", "out.bin"):
        (tmp_path / name).write_bytes(b"")
        assert cli("convert", DEMO, "-o", tmp_path / name) == (
            2, "", f"milblob: {tmp_path / name} already exists (use --force to replace it)\n",
        )  # fmt: skip
    shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    words = r"m\.mlpackage already exists \(use force=True to replace it\)$"
    for call in (milblob.repack, lambda a, b: milblob.compress(a, b, milblob.Linear())):
        with pytest.raises(FileExistsError, match=words):
            call(DEMO, tmp_path / "m.mlpackage")


def test_the_error_survives_a_process():
    found = pickle.loads(pickle.dumps(DestinationExistsError("out.npz")))
    assert type(found) is DestinationExistsError
    assert (found.destination, str(found)) == ("out.npz", "out.npz already exists (use force=True to replace it)")


def test_a_selection_of_nothing_has_one_error(tmp_path):
    """In functions with the argument's name, on the command line (tests/cli/test_options.py) with the option's."""
    calls = [
        milblob.statistics,
        lambda a, **how: milblob.diff(a, a, **how),
        lambda a, **how: milblob.match(a, a, **how),
    ]
    calls += [lambda a, **how: milblob.convert(a, tmp_path / "w.npz", **how)]
    for call in calls:
        with pytest.raises(SelectionError, match="^select: no tensor in .* matches 'haed' or 'x.'") as caught:
            call(DEMO, select=iter(["haed", "x*"]) if call is calls[3] else ["haed", "x*"])
        assert caught.value.globs == ("haed", "x*")
        found = pickle.loads(pickle.dumps(caught.value))
        assert (type(found), str(found), found.hint) == (SelectionError, str(caught.value), caught.value.hint)
        with pytest.raises(SelectionError, match="^select: no tensor in .* is selected"):
            call(DEMO, select=lambda name: False)
    assert list(tmp_path.iterdir()) == []


def test_an_ambiguous_name_lists_what_may_be_meant():
    assert ambiguous("w", ["a/w", "b/w"]) == "'w' is ambiguous: a/w or b/w"
    assert ambiguous("w", ["a/w", "b/w", "c/w"]) == "'w' is ambiguous: a/w, b/w or c/w"
    assert ambiguous("w", [f"{i}/w" for i in range(12)]).endswith("6/w, 7/w or 4 others")


def test_an_unknown_name_brings_close_ones_or_the_few_there_are(cli):
    assert (
        unknown("function", "man", ["main", "x"], "m.mlpackage")
        == "m.mlpackage has no function 'man'; did you mean main?"
    )
    assert unknown("array", "q", ["abc", "def"]) == "no array 'q' (there is abc, def)"
    assert len(unknown("array", "q", ["x" * 5000] * 8)) < 1200 and len(ambiguous("w", ["x" * 5000 + "/w"] * 9)) < 1200
    assert len(some(["x" * 5000] * 9)) < 1200
    assert unknown("array", "q", map(str, range(9)), "w.npz") == "w.npz has no array 'q'"
    assert (
        cli("ls", FUNCTIONS, "-f", "alhpa")[2] == f"milblob: {FUNCTIONS} has no function 'alhpa'; did you mean alpha?\n"
    )


@pytest.mark.parametrize(
    ("given", "nbytes", "words"),
    [
        ("64K", 65536, "64K"),
        ("1K", 25960, "25.36K"),
        ("1M", 25960, "0.03M"),
        ("999", 25960, "25960 bytes"),
        (5, 7, "7 bytes"),
    ],
)
def test_sizes_are_in_the_unit_that_was_given(given, nbytes, words):
    """Rounded up: what is asked for is enough."""
    limit = parse_nbytes(given) if isinstance(given, str) else given
    assert in_unit_of(limit, nbytes) == words
    assert parse_nbytes(words.removesuffix(" bytes")) >= nbytes


def test_sizes_on_the_command_line(cli, tmp_path):
    err = cli("compress", DEMO, "-o", tmp_path / "x.mlpackage", "--size", "1K")[2]
    assert "expected 25.36K or more" in err and err.endswith("got 1K\n")
    assert cli("compress", DEMO, "-o", tmp_path / "x.mlpackage", "--size", "25.36K", "-n", "-q")[0] == 0
    assert "expected at most 10K made of 218.87K stored" in cli("stats", DEMO, "--max-nbytes", "10K")[2]
