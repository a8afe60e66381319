"""What --help prints: it imports no command, ends with examples that run, and fits 80 columns."""

import pathlib
import shutil

import pytest

from children import run_child
from example_files import NAMES, arguments_of, make_files
from milblob.cli import parser, sources
from milblob.cli.commands import compress, text, tvm
from milblob.compressing import options
from milblob.program import write_text
from milblob.remote import cache
from milblob.storage.table import WRITTEN
from paths import DEMO

pytestmark = pytest.mark.usefixtures("unsynced")


def examples_of(cli, name):
    status, out, err = cli(*name.split(), "--help")
    assert (status, err) == (0, "")
    return [line.removeprefix("  milblob ") for line in out.partition("\nexamples:\n")[2].splitlines()]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with the files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    make_files(folder)
    return folder


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", NAMES)
def test_examples_run(cli, files, name, tmp_path, monkeypatch):
    found = examples_of(cli, name)
    assert len(set(found)) == 2, name
    for number, example in enumerate(found):
        monkeypatch.chdir(shutil.copytree(files, tmp_path / str(number)))
        assert f"{example} ".startswith(f"{name} ")
        status, out, err = cli(*arguments_of(example))
        assert (example, status) == (example, 1 if name == "diff" else 0), err
        assert out or err or example.endswith(" -q")


@pytest.mark.parametrize("name", ["", "tvm", *NAMES])
def test_help_fits_80_columns(cli, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = cli(*name.split(), "--help")[1]
    assert [line for line in out.splitlines() if len(line) > 80] == []
    if name in ("", "tvm"):  # one line each
        rows = [line for line in out.partition("  COMMAND\n")[2].splitlines() if not line.startswith("      ")]
        assert len(rows) == len(parser.COMMANDS if not name else tvm.COMMANDS)


def test_every_module_of_a_command_is_in_the_list():
    package = pathlib.Path(tvm.__file__).parent
    modules = {path.stem for path in package.glob("*.py") if "\ndef add_arguments(" in path.read_text("utf-8")}
    assert modules == {"tvm", *(name.replace("-", "_").replace(" ", "_") for name in NAMES)}


def test_a_command_imports_no_other():
    """The list of commands imports none of them; a command imports neither the others nor what only they need."""
    code = """
        from milblob.cli import main
        main(sys.argv[1:])
        print("|", *sorted(name for name in sys.modules if name.startswith("milblob.")))
    """

    def imported(*argv):
        return set(run_child(code, *argv).rpartition("|")[2].split())

    modules = {f"milblob.cli.commands.{name.replace('-', '_')}" for name in parser.COMMANDS}
    assert not imported("--help") & modules
    listing = imported("ls", DEMO)
    assert listing & modules == {"milblob.cli.commands.ls"}
    others = {"milblob.rewrite", "milblob.analysis", "milblob.blobs.writer", "milblob.remote", "milblob.batching"}
    assert not (others | {"milblob.formats.params", "milblob.formats.safetensors"}) & listing


def test_version_and_help_import_no_numpy():
    """Nor what else takes time: they answer at once."""
    code = """
        from milblob.cli import main
        main(sys.argv[1:])
        print("|", *sys.modules)
    """
    for argv in (["--version"], ["--help"], []):
        imported = set(run_child(code, *argv).rpartition("|")[2].split())
        assert "milblob.cli.parser" in imported
        assert not imported & {"numpy", "milblob._codec", "importlib.metadata", "json", "dataclasses"}


def test_the_help_of_a_command_imports_no_numpy():
    code = """
        from milblob.cli.parser import _parser, _subcommands
        for name in sys.argv[1:]:
            parser = _parser()
            for word in name.split():
                [parser] = [action.choices[word] for action in _subcommands(parser)]
                parser.load()
        print(*sys.modules)
    """
    assert not set(run_child(code, *NAMES).split()) & {"numpy", "milblob._codec"}


def test_values_in_help_are_those_of_the_library():
    """They are written again where importing them would take long."""
    assert sources._CACHE_NBYTES == cache.DEFAULT_NBYTES
    assert compress._MIN_SIZE == options.MIN_SIZE
    assert tuple(write_text.WEIGHTS) == text._WEIGHTS
    assert all(suffix[1:] in parser.COMMANDS["convert"] for suffix in WRITTEN)


@pytest.mark.parametrize("argv", [[], ["tvm"]])
def test_without_a_command_the_help_is_printed(cli, argv):
    assert cli(*argv) == cli(*argv, "--help") and cli(*argv)[0] == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--"], "--"),
        (["--completion", "csh"], "csh"),
        (["lss"], "expected a command, got 'lss'; did you mean ls or "),
        (["repak", "x"], "expected a command, got 'repak'; did you mean repack"),
        (["xyzzy"], "expected a command, got 'xyzzy', one of ls, show, text, stats, "),
        (["tvm", "parms"], "expected a command, got 'parms'; did you mean params?; see milblob tvm --help"),
        (["ls"], "MODEL"),
        (["ls", "x", "-y"], "-y"),
        (["tvm", "ls", "x", "-y"], "-y"),
    ],
)
def test_wrong_usage_names_the_help(cli, argv, words):
    status, out, err = cli(*argv)
    assert (status, out) == (2, "")
    assert words in err
    assert "--help" in err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("list m", "ls"),
        ("extract m", "convert"),
        ("onnx m", "to-onnx"),
        ("quantize m", "compress"),
        ("completion bash", "--completion"),
        ("compres m", "compress"),
        ("compress m int8", "--int8"),
        ("compress m int8 -o out", "--int8"),
        ("compress m --palette4", "--palette 4"),
        ("compress m out.mlpackage", "-o out.mlpackage"),
        ("ls m --selekt x", "--select"),
        ("tvm ls m --jsn", "--json"),
    ],
)
def test_unknown_words_name_what_may_be_meant(cli, words, meant):
    status, out, err = cli(*words.split())
    assert (status, out) == (2, "")
    assert f"; did you mean {meant}?; see milblob" in err


@pytest.mark.parametrize("words", ["info x", "ls m --something", "compress m -o out other"])
def test_unknown_words_like_no_other_get_no_advice(cli, words):
    status, _, err = cli(*words.split())
    assert status == 2 and "did you mean" not in err
    assert err.endswith(f"; see milblob {words.split()[0]} --help\n")


def test_other_words_for_commands_lead_to_commands():
    """None is itself a command, and all that they name exist."""
    assert not set(parser._OTHER_WORDS) & set(parser.COMMANDS)
    named = {meant.split()[0] for every in parser._OTHER_WORDS.values() for meant in every}
    assert named <= {*parser.COMMANDS, "--completion", "--version", "--help"}
