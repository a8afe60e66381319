"""Every command and function that reads gives the same of a URL as of the local files, and shows no private path."""

import contextlib
import ftplib
import functools
import inspect
import io
import random
import re
import socket
from shutil import make_archive

import fsspec
import numpy as np
import pytest

import milblob
import milblob.onnx
from cases import MODEL_CASES, load_case
from milblob.cli import main
from milblob.remote import http
from paths import DEMO, ROOT
from remote_server import files_below, serving
from repacking import FILE, simple_package, small_package
from thorough import sized

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return small_package(tmp_path_factory.mktemp("package"))


def in_memory(files):
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name, data in files.items():
        system.pipe(f"/{name}", data)


@pytest.fixture(scope="module", params=["http", "memory"])
def place(request, package):
    """The URL of the folder that the package is in."""
    files = files_below(package.parent)
    if request.param == "memory":
        in_memory(files)
        yield "memory:/"
    else:
        with serving(files) as server:
            yield server.url


def run(*arguments):
    """Exit status, stdout and stderr of a command."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = main([str(argument) for argument in arguments])
    return status, out.getvalue(), error.getvalue()


READING = [
    ("ls",), ("ls", "-v"), ("ls", "--json"), ("ls", "--stored"), ("show",), ("show", "--json"), ("show", "one/a"),
    ("show", "two/c", "--json"), ("stats",), ("stats", "--json"), ("hash",), ("hash", "-q"), ("hash", "--json"),
    ("hash", "-k", "one*"), ("text", "-f", "one"), ("text", "-f", "two", "--weights", "head"),
]  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_command_prints_the_same(command, place, package):
    url = f"{place}/{package.name}"
    found, expected = (run(command[0], source, *command[1:]) for source in (url, package))
    assert [text.replace(url, "@") for text in found[1:]] == [text.replace(str(package), "@") for text in expected[1:]]
    assert found[0] == expected[0] == 0


@pytest.mark.parametrize("more", [(), ("--values",), ("--json",)])
def test_check_finds_the_same_but_for_files_that_nothing_names(more, place, package):
    url = f"{place}/{package.name}"
    found, expected = (run("check", source, *more) for source in (url, package))
    lines = [
        [
            line.replace(str(package), "@").replace(url, "@")
            for line in text.splitlines()
            if "milblob-" in line or "warning[" in line or "error[" in line
        ]
        for text in (found[1], expected[1])
    ]
    assert lines[0] == lines[1] and found[0] == expected[0]
    assert "milblob-" not in found[1] + found[2]


def findings(source, **options):
    return sorted((f.severity, f.code, f.offset, f.where or "") for f in milblob.check(source, **options))


def damages(data):
    """What may be wrong with a weight file, several kinds of each."""
    chance = random.Random(7)
    starts = [at for at in range(64, len(data), 64) if data[at : at + 4] == b"\xef\xbe\xad\xde"]
    for _ in range(sized(3, 60)):
        damaged = bytearray(data)
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.choice([0, *starts]) + chance.randrange(-64, 64)
            damaged[max(0, at)] = chance.choice((0, 1, 255, damaged[max(0, at)] ^ 1))
        yield bytes(damaged[: chance.choice((len(data), len(data), len(data) - 70, len(data) // 2))])
    yield data + bytes(100)
    yield data + b"\1"
    yield data[:64]
    yield b"PK\3\4" + data
    yield b""


def test_check_of_damaged_weights_finds_the_same(tmp_path):
    contents = [bytes([number]) * (70_000 * number + 7) for number in range(1, 5)]
    package = simple_package(tmp_path, contents, code=21, blob_code=4, itemsize=1, garbage=100)
    name = f"m.mlpackage/{FILE}"
    with serving(files_below(package, "m.mlpackage/")) as server:
        data = server.files[name]
        for number, damaged in enumerate(damages(data)):
            server.files[name], server.etags[name] = damaged, f'"{number}"'
            (package / FILE).write_bytes(damaged)
            for values in (False, True):
                found = findings(f"{server.url}/m.mlpackage", values=values)
                expected = findings(package, values=values)
                assert found == [one for one in expected if one[1] != "owner-only"], number
            url = f"{server.url}/{name}"
            if damaged:
                assert findings(url) == [one for one in findings(package / FILE) if one[1] != "owner-only"], number


def test_check_of_a_server_that_fails_is_an_error_and_no_finding(tmp_path):
    package = simple_package(tmp_path, [bytes(400_000), bytes(400_000)])
    name = f"m.mlpackage/{FILE}"
    with serving(files_below(package, "m.mlpackage/")) as server:

        def fault(handler, path, begin, end, number):
            if path != name or end - begin <= http.HEAD_NBYTES:
                return False
            handler.answer(403, b"")
            return True

        server.fault = fault
        assert not milblob.check(f"{server.url}/m.mlpackage").errors
        with pytest.raises(PermissionError):
            milblob.check(f"{server.url}/m.mlpackage", values=True)


def test_two_sources(place, package):
    url = f"{place}/{package.name}"
    for command in ("diff", "match"):
        expected = run(command, package, package)
        for a, b in ((url, package), (package, url), (url, url)):
            found = run(command, a, b)
            assert found[0] == expected[0]
            assert found[1].replace(url, "@").replace(str(package), "@") == expected[1].replace(str(package), "@")


@pytest.mark.parametrize("target", ["out.npz", "out.safetensors", "out/", "weights.bin"])
def test_extract_and_convert_write_the_same(target, place, package, tmp_path):
    url = f"{place}/{package.name}"
    for number, source in enumerate((url, package)):
        into = tmp_path / str(number) / target
        into.parent.mkdir()
        output = f"{into}/" if target.endswith("/") else str(into)
        status = run("convert", source, "-o", output)
        assert status[0] == 0, status
    assert files_below(tmp_path / "0") == files_below(tmp_path / "1")


def test_several_models_are_reported_each(place, package):
    url = f"{place}/{package.name}"
    status, out, error = run("ls", url, f"{place}/none.mlpackage", package)
    assert status == 2 and f"{place}/none.mlpackage" in error and error.count("\n") == 1
    assert out.count("total") == 2 and "milblob-" not in out + error


def test_functions_take_urls(place, package):
    url = f"{place}/{package.name}"
    assert milblob.content_hash(url) == milblob.content_hash(package)
    assert milblob.diff(url, package).is_same and milblob.diff(package, url).is_same
    assert milblob.to_text(url, function="one") == milblob.to_text(package, function="one")
    assert milblob.statistics(url).total == milblob.statistics(package).total
    assert {f.code for f in milblob.check(url)} <= {f.code for f in milblob.check(package)}
    found = milblob.match(url, package)
    assert found.model == url and list(found.matches) == list(milblob.match(package, package).matches)


def test_conversion_to_onnx_copies_or_embeds(tmp_path):
    package = ROOT / "tests" / "data" / "opset_ios17_fp32" / "model.mlpackage"
    with serving(files_below(package.parent)) as server:
        url = f"{server.url}/{package.name}"
        with pytest.raises(ValueError, match='expected "copy" or "embed"'):
            milblob.onnx.convert(url, tmp_path / "a.onnx")
        milblob.onnx.convert(url, tmp_path / "a.onnx", weights="embed")
        milblob.onnx.convert(package, tmp_path / "b.onnx", weights="embed")
        assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_files_of_arrays_and_weight_files(tmp_path):
    arrays = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(5, np.int8)}
    milblob.save(arrays, tmp_path / "w.bin")
    for name in ("x.npz", "x.safetensors"):
        assert run("convert", "-q", tmp_path / "w.bin", "-o", tmp_path / name)[::2] == (0, "")
    with serving(files_below(tmp_path)) as server:
        for name in ("x.npz", "x.safetensors", "w.json", "w.bin"):
            found, expected = (run("hash", "-q", f"{folder}/{name}") for folder in (server.url, tmp_path))
            assert found[0] == expected[0] == 0, (found, expected)
            assert found[1].split()[0] == expected[1].split()[0]


def test_unknown_scheme_and_missing_extra_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="scheme that fsspec knows, got 'nope'"):
        milblob.open("nope://host/m.mlpackage")
    with pytest.raises(ImportError, match="needs another package"):
        milblob.open("gs://bucket/m.mlpackage")
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(ImportError, match=r"fsspec is not installed.*extra remote"):
        milblob.open("memory://m.mlpackage")


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "Name or service not known"), ftplib.error_perm("530 s3cr3t")])
def test_a_file_system_that_cannot_be_opened_is_named(failure, monkeypatch):
    def fail(url, **options):
        raise failure

    monkeypatch.setattr(fsspec, "url_to_fs", fail)
    status, _, error = run("ls", "ftp://me:s3cr3t@host/m.mlpackage")
    assert status == 2 and "ftp://host/m.mlpackage" in error and "file system that can be opened, got " in error
    assert "s3cr3t" not in error and error.count("\n") == 1


def test_version_that_changes_in_a_file_system_is_refused(tmp_path):
    package = simple_package(tmp_path, [bytes(400_000), bytes(400_000)])
    system = fsspec.filesystem("memory")
    for name, data in files_below(package, "changing.mlpackage/").items():
        system.pipe(f"/{name}", data)
    name = f"/changing.mlpackage/{FILE}"
    with milblob.open("memory://changing.mlpackage") as model:
        model["w0"].read()
        system.pipe(name, system.cat(name))
        with pytest.raises(milblob.FormatError, match="it changed"):
            model["w1"].read()


def test_options_need_a_url(package):
    with pytest.raises(ValueError, match="expected a URL"):
        milblob.open(package, storage_options={"anon": True})
    status, _, error = run("ls", package, "--storage-option", "anon=true")
    assert status == 2 and "expected a URL" in error
    status, _, error = run("ls", "https://host/m.mlpackage", "--storage-option", "=s3cr3t")
    assert status == 2 and "s3cr3t" not in error


def calls_with(parameter):
    """The public functions and classes that have a parameter, by name; to call each with one source."""
    for module in (milblob, milblob.onnx):
        for name in module.__all__:
            with contextlib.suppress(ValueError, TypeError):
                given = inspect.signature(getattr(module, name)).parameters
                if parameter in given and name != "download":  # which takes nothing but URLs
                    others = {"b": DEMO, "weights": DEMO, "framework": "np"}
                    more = {key: value for key, value in others.items() if key in given}
                    yield f"{module.__name__}.{name}", functools.partial(getattr(module, name), **more)


@pytest.mark.parametrize("options", [{"storage_options": {"anon": True}}, {"cache": "dir"}, {"cache": ""}])
def test_every_call_refuses_what_is_for_urls_without_one(package, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    archive = make_archive(str(tmp_path / "model"), "zip", package.parent, package.name)
    ((option, _),) = options.items()
    calls = dict(calls_with(option))
    assert {"milblob.open", "milblob.load", "milblob.safe_open", "milblob.diff"} <= set(calls)
    for name, call in calls.items():
        for source in (package, str(package), archive):
            with pytest.raises(
                ValueError, match=r": expected a URL, which (it is|they are) for, got the path "
            ) as caught:
                call(source, **options)
            assert str(caught.value).startswith(option.replace("_", " ")), name
    assert not (tmp_path / "dir").exists()


def test_what_is_for_urls_is_not_for_the_paths_beside_one(package, tmp_path):
    system = fsspec.filesystem("memory")
    for name, data in files_below(package, "beside.mlpackage/").items():
        system.pipe(f"/{name}", data)
    archive = make_archive(str(tmp_path / "model"), "zip", package.parent, package.name)
    url = "memory://beside.mlpackage"
    for local in (package, archive):
        for sources in ((url, local), (local, url)):
            found = milblob.diff(*sources, storage_options={"skip_instance_cache": True}, cache=tmp_path / "dir")
            assert found.is_same
            status, _, error = run("diff", *sources, "--cache", tmp_path / "dir")
            assert (status, error) == (0, "")


@pytest.mark.parametrize("option", [("--cache", "dir"), ("--download", "dir"), ("--storage-option", "anon=true")])
def test_options_for_urls_are_not_passed_over(package, tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text(f"{package}\n")
    archive = make_archive(str(tmp_path / "model"), "zip", package.parent, package.name)
    for words in (["ls", package], ["hash", "-r", package.parent], ["diff", package, package], ["ls", archive]):
        status, out, error = run(*words, *option)
        assert (status, out) == (2, "") and error.startswith(f"milblob: {option[0]}: expected a URL")
    status, out, error = run("hash", "-q", "--files-from", "list", *option)
    assert status == 2 and out and error == f"milblob: {option[0]}: expected a URL, which it is for, got none in list\n"
    assert not (tmp_path / "dir").exists()


def outcome(source, options):
    """What loading gives: the bits of each array, or the error, without its file."""
    try:
        found = milblob.load(source, **options)
    except milblob.MilblobError as error:
        return type(error), error.what, error.offset, error.where
    return {
        key: (array.dtype, array.shape, array.tolist() if array.dtype == object else array.tobytes())
        for key, array in found.items()
    }


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MODEL_CASES)
def test_every_kind_of_model_loads_as_the_local_one(name):
    """The local values are compared with coremltools elsewhere."""
    path = load_case(name).path()
    with serving(files_below(path.parent)) as server:
        url = f"{server.url}/{path.name}"
        for options in ({}, {"constants": True}, {"stored": True}):
            found, expected = (outcome(source, options) for source in (url, path))
            assert found == expected
        with milblob.open(url) as model, milblob.open(path) as local:
            assert model.metadata == local.metadata


def test_report_is_the_same_but_for_files_that_nothing_names(place, package, tmp_path):
    url = f"{place}/{package.name}"
    pages = []
    for number, source in enumerate((url, package)):
        path = tmp_path / f"{number}.html"
        status, _, err = run("report", source, "-o", path)
        assert status == 0, err
        pages.append(path.read_text("utf-8").replace(url, "@").replace(str(package), "@"))
    first, second = (re.sub(r'\["note","unreferenced","file: [^]]*\],', "", page) for page in pages)
    assert first == second


@pytest.mark.parametrize(
    "command",
    [
        ("compress", "URL", "--int8", "-o", "out.mlpackage"),
        ("repack", "URL", "-o", "out.mlpackage"),
        ("refit", "URL", "new.npz"),
        ("refit", "a.mlpackage", "URL"),
        ("run", "URL"),
        ("verify", "a.mlpackage", "URL"),
        ("chunk", "URL", "-o", "parts", "--parts", "2"),
        ("join", "URL", "a.mlpackage", "-o", "out.mlpackage"),
        ("merge-functions", "URL", "a.mlpackage", "-o", "out.mlpackage"),
        ("recover", "URL"),
        ("tvm", "ls", "URL"),
    ],
)
def test_commands_for_local_files_refuse_a_url(cli, command):
    url = "https://example.org/m.mlpackage"
    status, out, err = cli(*(url if word == "URL" else word for word in command))
    assert (status, out) == (2, "")
    assert f"expected a local path, got the URL {url} (`milblob ls URL --download DIR`" in err


@pytest.mark.parametrize("command", [
    ("match", "M", "M", "-o", "U.json"), ("verify", "M", "M", "--worst", "U.npz"), ("run", "M", "-o", "U.npz"),
    ("convert", "M", "-o", "U.npz"), ("to-onnx", "M", "-o", "U.onnx"), ("repack", "M", "-o", "U.mlpackage"),
    ("compress", "M", "--int8", "-n", "-o", "a.mlpackage", "--save-plan", "U.json"),
])  # fmt: skip
def test_url_as_an_output_is_refused(cli, package, command):
    names = [str(package) if word == "M" else word.replace("U.", "https://u:s3cr3t@h.org/U.") for word in command]
    status, out, err = cli(*names)
    assert (status, out) == (2, "") and "expected a local path, got the URL https://h.org/U." in err


@pytest.mark.parametrize("command", ["ls", "hash", "check", "stats", "recover"])
def test_path_with_a_nul_is_refused_by_name(cli, command):
    status, out, err = cli(command, "a\0b")
    assert (status, out) == (2, "") and "path: expected one without a NUL, got 'a\\x00b'" in err


def test_weights_by_reference_to_a_remote_model_are_refused(place, package, tmp_path, cli):
    url, path = f"{place}/{package.name}", tmp_path / "m.onnx"
    expected = f'weights: expected "copy" or "embed" of a remote model, got "reference" to {url}'
    status, _, err = cli("to-onnx", url, "-o", path)
    assert status == 2 and expected in err
    with milblob.open(url) as model, pytest.raises(ValueError) as caught:
        milblob.onnx.convert(model, path)
    assert str(caught.value).startswith(expected) and not path.exists()
