"""docs/cli.md and the manual page are what the parser says; tests/support/reference_pages.py writes them."""

import json
import re
import shutil
import subprocess
import tomllib
from importlib.util import find_spec

import numpy as np
import pytest

import milblob
import reference_pages
from children import tool_environment
from example_files import NAMES
from paths import DATA, DEMO, ROOT

PAGE = reference_pages.CLI.read_text("utf-8")
OF_NAMES = {
    "actions", "by_dtype", "by_scheme", "by_scope", "inputs", "outputs", "packages", "recipe", "states", "tensors",
    "user_defined", "values", "variables",
}  # fmt: skip
"""Keys of JSON whose objects have names as keys."""


def test_the_page_has_the_tables_of_the_parser():
    assert reference_pages.with_tables(PAGE) == PAGE, "make pages writes it"


def test_the_page_has_a_table_for_every_command():
    assert sorted(reference_pages.commands_with_tables(PAGE)) == sorted(NAMES)


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_a_command_has_what_its_help_has(cli, name, monkeypatch):
    """The help is printed by argparse itself."""
    monkeypatch.setenv("COLUMNS", "200")
    table = re.search(rf"<!-- options of {name} -->\n(.*?)<!-- end -->", PAGE, re.S)[1]
    shown = re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(re.findall(r"^\| (`-.*?) \| ", table, re.M)))
    printed = re.findall(r"^  (-.*?)(?:  |$)", cli(*name.split(), "--help")[1], re.M)
    expected = re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(printed))
    assert sorted(shown) == sorted(one for one in expected if one not in ("-h", "--help"))


def test_options_that_the_prose_names_exist():
    """Also in the other pages: an option that was renamed is not named any more."""
    known = {option for _, one in reference_pages.commands_of(reference_pages.whole()) for option in options_of(one)}
    known |= {"--version", "--completion", "--help"}
    section = re.sub(reference_pages._BLOCK, "", PAGE)
    named = {option for line in section.splitlines() if "milblob" in line or "`" in line for option in named_in(line)}
    assert named - known == set()


def test_the_page_names_each_key_of_json(cli, tmp_path, monkeypatch):
    """In the paragraphs about --json of the section of the command."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, "a.mlpackage")
    milblob.compress("a.mlpackage", "small.mlpackage", milblob.Linear("int8"))
    assert cli("convert", "a.mlpackage", "-o", "new.npz")[0] == 0
    milblob.save({name: np.float64(array) for name, array in milblob.load("a.mlpackage").items()}, "wide.npz")
    verify = ["--verify"] if find_spec("onnxruntime") else []
    commands = [
        ["repack", "a.mlpackage", "-o", "b.mlpackage", "--cast", "float32=float16", *verify],
        ["diff", "a.mlpackage", "b.mlpackage", "--min-sqnr", "80"], ["match", "b.mlpackage", "new.npz"],
        ["diff", "a.mlpackage", DATA / "states" / "model.mlpackage"], ["refit", "a.mlpackage", "new.npz", "-n"],
        ["refit", "a.mlpackage", "wide.npz", "--cast", "-n"],
        ["refit", "small.mlpackage", "new.npz", "--requantize", "keep", "-n"],
        ["delta", "a.mlpackage", "b.mlpackage", "-o", "p.milpatch"],
        ["apply", "a.mlpackage", "p.milpatch", "-o", "c.mlpackage"], ["chunk", "a.mlpackage", "-o", "d", "--parts", "2"],
        *([name, "a.mlpackage"] for name in ("ls", "show", "stats", "hash", "check", "text", "recover")), ["info"],
        ["report", "a.mlpackage", "-o", "r.html"], ["convert", "a.mlpackage", "-o", "w.npz"],
        ["compress", "a.mlpackage", "-o", "e.mlpackage", "--int8"], ["compress", "a.mlpackage", "--frontier", "f.svg"],
    ]  # fmt: skip
    for command in commands:
        section = re.search(rf"^## milblob {command[0]}\n(.*?)(?=^## )", PAGE + "## ", re.M | re.S)[1]
        section = re.sub(reference_pages._BLOCK, "", section)
        words = {word for part in section.split("\n\n") if "--json" in part for word in re.findall(r"\w+", part)}
        assert keys_of(json.loads(cli(*command, "--json")[1])) - words == set(), command


def keys_of(found):
    """The keys of objects in JSON, but not those that are names, nor those of another section."""
    if isinstance(found, list):
        return set().union(*map(keys_of, found))
    if not isinstance(found, dict):
        return set()
    below = (value for key, value in found.items() if key != "verify" and not (key in OF_NAMES and type(value) is dict))
    return set(found).union(*map(keys_of, below))


def options_of(parser):
    return [name for action in parser._actions for name in action.option_strings]


def named_in(line):
    """Long options in a line: in backquotes, or on a line that runs milblob."""
    texts = [line] if line.startswith("$ milblob") else re.findall(r"`([^`]*)`", line)
    return [found for text in texts for found in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)]


def test_the_manual_matches_the_parser():
    pytest.importorskip("argparse_manpage", reason="the page of man is not compared with the parser")
    assert reference_pages.MANUAL.read_text("utf-8") == reference_pages.manual(), "make pages writes it"


def test_the_manual_has_every_option_and_man_reads_it(tmp_path):
    text = reference_pages.MANUAL.read_text("utf-8").replace("\\-", "-")
    for name, parser in reference_pages.commands_of(reference_pages.whole()):
        for option in options_of(parser):
            assert option in ("-h", "--help") or option in text, (name, option)
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed: what man shows is not tested")
    run = ["groff", "-man", "-Tutf8", "-ww", "-z", str(reference_pages.MANUAL)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=tool_environment())
    assert done.stderr == ""


def test_the_wheel_installs_the_manual():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (files,) = project["tool"]["setuptools"]["data-files"].items()
    assert files == ("share/man/man1", ["docs/milblob.1"]) and (ROOT / files[1][0]).is_file()
