"""Library.validate and check_archive: one failing archive for every finding, and none for what TVM wrote."""

import io
import json
import struct
import tarfile

import ml_dtypes
import numpy as np
import pytest

import tvm_archives as made
from milblob import Finding, FormatError, PendingChangeError, recover, tvm
from milblob.tvm.findings import CODES
from paths import DATA

ORACLE = json.loads((DATA / "tvm" / "oracle.json").read_text(encoding="utf-8"))
STRANGE = {row["what"]: row for row in ORACLE["read"]}

MODULE = "executor-config/graph/default.graph"
PARAMS = "parameters/default.params"


def only(document):
    return document["modules"]["default"]


def with_params(data):
    return made.tar_of(made.files_of() | {PARAMS: data})


def without(name, **options):
    files = made.files_of(**options)
    del files[name]
    return made.tar_of(files)


def extra(name, kind=tarfile.REGTYPE, data=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.type = kind
    if kind in (tarfile.REGTYPE, tarfile.AREGTYPE):
        info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return made.tar_of(made.files_of(), extra=[(info, data)])


def metadata(change, **options):
    return made.tar_of(made.changed(made.files_of(**options), change))


def twice_a_module():
    files = made.files_of()
    text = files["metadata.json"].decode()
    module = json.dumps(json.loads(text)["modules"]["default"])
    return made.tar_of(
        files | {"metadata.json": f'{{"version": 7, "modules": {{"default": {module}, "default": {module}}}}}'.encode()}
    )


def graph_and_parameters(dtype="float32", shape=(1, 2), name="p0"):
    return made.params_of({name: np.zeros(shape, dtype)})


STORAGE = made.graph_of([("a", "uint8", (1, 2)), ("b", "float32", (1, 2)), ("p0", "float32", (1, 2))], [("f", "float32", (1, 9), 3), ("g", "float32", (1, 99), 3)])  # fmt: skip


def main(document):
    return only(document)["memory"]["functions"]["main"][0]


def depending(url):
    row = {"short_name": "crt", "url": url, "url_type": "mlf_path"}
    return metadata(lambda d: only(d).update(external_dependencies=[row]))


def without_an_argument():
    graph = made.graph_with(lambda graph: graph["arg_nodes"].remove(2))
    return made.tar_of(made.files_of() | {MODULE: graph})


# (code, severity, archive, where, words): one failing archive each.
FINDINGS = [
    ("not-an-archive", "error", b"hello" * 200, "", "expected a tar"),
    ("not-an-archive", "error", b"BZh91AY" + bytes(600), "", "got bzip2"),
    ("tar", "error", made.tar_of(made.files_of())[:5000], "", "expected"),
    ("tar-end", "warning", made.tar_of(made.files_of()) + b"more" + bytes(508), "", "expected nothing but zeros"),
    ("gzip", "error", made.gzip_of(made.tar_of(made.files_of()))[:-9], "", "expected more, got the end"),
    ("member-name", "error", extra("../evil"), "", "expected one inside of the archive, got '../evil'"),
    ("member-name", "note", extra("src/more.txt"), "", "expected one that begins with ./"),
    ("member-kind", "error", extra("./runtime/l", tarfile.SYMTYPE, linkname="/etc/passwd"), "runtime/l", "got a link"),
    ("member-kind", "error", extra("./runtime/d", tarfile.CHRTYPE), "runtime/d", "got a device"),
    ("member-twice", "error", extra("./src/default.relay"), "src/default.relay", "expected once, got again"),
    ("missing-member", "error", without("src/default.relay"), "", "expected src/default.relay, got none"),
    ("missing-member", "error", without("metadata.json"), "metadata.json", "expected it, got none"),
    ("missing-member", "error", without(MODULE), "", f"expected {MODULE}, got none"),
    ("missing-member", "error", without(PARAMS), "", f"expected {PARAMS}, got none"),
    ("extra-member", "warning", extra("./notes.txt"), "notes.txt", "expected none by that name"),
    ("extra-member", "warning", made.tar_of(made.files_of() | {"runtime/x.h": b""}), "runtime/x.h", "expected none by that name"),
    ("extra-member", "warning", made.tar_of(made.files_of(executor="aot") | {MODULE: json.dumps(made.simple_graph("default")).encode()}), MODULE, "expected none for aot"),
    ("module-name", "error", made.tar_of(made.files_of() | {"parameters/other.params": made.params_of({})}), "parameters/other.params", "expected the name of a module ('default')"),
    ("module-name", "warning", metadata(lambda d: only(d).update(model_name="other")), "metadata.json", "model_name: expected 'default', got 'other'"),
    ("version", "error", metadata(lambda d: d.update(version=8)), "metadata.json", "expected 1 to 7, got 8"),
    ("metadata", "error", metadata(lambda d: only(d).pop("executors")), "metadata.json", "key executors of module 'default': expected it, got none"),
    ("metadata", "error", metadata(lambda d: only(d).update(memory=5)), "metadata.json", "expected a list or an object, got 5"),
    ("metadata", "warning", metadata(lambda d: only(d).update(executors=["graph", "vm"])), "metadata.json", "expected graph or aot, got 'vm'"),
    ("metadata", "error", metadata(lambda d: only(d).update(executors=[])), "metadata.json", "expected graph or aot in a full model"),
    ("metadata", "error", metadata(lambda d: d.update(modules={})), "metadata.json", "expected at least one, got none"),
    ("form", "note", metadata(lambda d: only(d).update(runtimes=only(d).pop("executors"))), "metadata.json", "executors: expected by that name in version 7, got runtimes"),
    ("form", "note", metadata(lambda d: only(d).update(memory=[])), "metadata.json", "expected an object in version 7, got a list"),
    ("date", "warning", metadata(lambda d: only(d).update(export_datetime="yesterday")), "metadata.json", "got 'yesterday'"),
    ("module-twice", "error", twice_a_module(), "metadata.json", "expected every key once, got 'default' twice"),
    ("graph", "error", made.tar_of(made.files_of() | {MODULE: made.graph_with(lambda g: g["attrs"]["shape"][1].pop())}), MODULE, "expected 4 entries, got 3"),
    ("graph-param", "error", with_params(made.params_of({"p0": made.C, "q": made.C})), PARAMS, "parameter 'q': expected an argument of the graph"),
    ("param-shape", "error", with_params(graph_and_parameters(shape=(2, 1))), PARAMS, "expected [1, 2], got [2, 1]"),
    ("param-dtype", "error", with_params(graph_and_parameters("int32")), PARAMS, "expected float32, got int32"),
    ("missing-param", "error", with_params(made.params_of({})), PARAMS, "argument 'p0' of the graph: expected a parameter, got none"),
    ("missing-param", "warning", made.tar_of(made.files_of(5) | {PARAMS: made.params_of({})}), PARAMS, "argument 'p0' of the graph"),
    ("constants", "warning", metadata(lambda d: only(d)["memory"]["functions"]["main"][0].update(constants_size_bytes=9)), "metadata.json", "expected 8 as its parameters have, got 9"),
    ("graph-argument", "error", without_an_argument(), MODULE, "node 'p0': expected an argument, got none"),
    ("graph-input", "error", metadata(lambda d: main(d)["inputs"].update(z={"dtype": "int8", "size": 2})), "metadata.json", "input 'z': expected an argument of the graph"),
    ("graph-input", "warning", metadata(lambda d: main(d)["inputs"]["a"].update(size=3)), "metadata.json", "expected 2 as in the graph, got 3"),
    ("io-size", "warning", metadata(lambda d: main(d).update(io_size_bytes=99)), "metadata.json", "expected 18 as in the graph, got 99"),
    ("dependency", "error", depending("../../etc"), "metadata.json", "expected a place in the archive, got one outside"),
    ("dependency", "error", depending("/etc"), "metadata.json", "expected a place in the archive, got one outside"),
    ("dependency", "error", depending("./runtime"), "metadata.json", "expected it in the archive, got none"),
    ("dependency", "error", depending(7), "metadata.json", "expected a string, got 7"),
    ("storage-twice", "warning", metadata(lambda d: only(d)["memory"]["sids"].append({"storage_id": 0, "size_bytes": 9})), "metadata.json", "expected one size, got 2 and 9"),
    ("storage", "note", made.tar_of(made.files_of() | {MODULE: json.dumps(STORAGE).encode()}), "metadata.json", "3: 396 for 8"),
    ("params", "error", with_params(made.params_of({"p0": made.C})[:-1]), PARAMS, "expected 8 more bytes, got 7, of tensor 'p0'"),
    ("params", "error", with_params(b"no"), PARAMS, "header of .params file"),
    ("params-trailing", "warning", with_params(made.params_of({"p0": made.C}) + b"xx"), PARAMS, "got 2 bytes more"),
    ("params-twice", "error", with_params(bytes.fromhex(STRANGE["duplicate names"]["hex"])), PARAMS, "expected 'a' once, got it 2 times"),
    ("params-reserved", "warning", with_params(bytes.fromhex(STRANGE["reserved of the file"]["hex"])), PARAMS, "expected 0, got 7"),
    ("params-reserved", "warning", with_params(bytes.fromhex(STRANGE["device id"]["hex"])), PARAMS, "expected 0, got 0 and 3"),
    ("params-name", "warning", with_params(made.one_file(name=b"\xff")), PARAMS, "expected UTF-8"),
    ("params-dtype", "warning", with_params(made.one_file(200, 32)), PARAMS, "code 200 with 32 bits"),
    ("params-dtype", "note", with_params(made.one_file(0, 4, shape=(2,), data=b"\x12\0")), PARAMS, "two to a byte"),
    ("params-limit", "note", with_params(made.params_of({"p" * 80: made.C})), PARAMS, "expected less than 80 bytes"),
    ("params-limit", "note", with_params(made.one_file(shape=(1,) * 7, data=bytes(4))), PARAMS, "at most 6"),
    ("params-limit", "note", with_params(made.one_file(shape=(3, 0), data=b"")), PARAMS, "TVM 0.27 does not load it"),
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("row", FINDINGS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_every_finding(tmp_path, row):
    code, severity, data, where, words = row
    path = tmp_path / "m.tar"
    path.write_bytes(data)
    for source in (path, data):
        found = [f for f in tvm.check_archive(source) if (f.code, f.severity, f.where) == (code, severity, where)]
        assert any(words in finding.message for finding in found), tvm.check_archive(source)
        for finding in found:
            assert isinstance(finding, Finding) and finding.file == (str(path) if source is path else None)
            assert finding.offset is None or 0 <= finding.offset <= max(len(data), 1 << 17)
            assert str(finding).isprintable()


def test_every_code_has_a_failing_archive():
    assert {row[0] for row in FINDINGS} | {"pending-change"} == set(CODES)  # which only a directory has: see below


def test_a_pending_change_is_one_finding(tmp_path):
    """Whether its journal is sound is a question for `recover`."""
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    (path / ".milblob-journal").write_bytes(b"no")
    for found in (tvm.check_archive(path), tvm.check_params(next((path / "parameters").iterdir()))):
        (finding,) = found
        assert (finding.severity, finding.code) == ("error", "pending-change")
        assert finding.file == str(path / ".milblob-journal") and "milblob recover" in finding.message
    with pytest.raises(PendingChangeError, match="milblob recover"):
        tvm.open(path)
    with pytest.raises(FormatError, match="journal: expected a header"):
        recover(path)


def test_offsets_are_those_of_the_bytes():
    """What is wrong stands where the finding says."""
    data = with_params(made.params_of({"p0": made.C, "q": made.C}))
    (finding,) = [f for f in tvm.check_archive(data) if f.code == "graph-param"]
    assert data[finding.offset : finding.offset + 8] == struct.pack("<Q", 0xDD5E40F096B4A13F)
    data = extra("../evil")
    (finding,) = [f for f in tvm.check_archive(data) if f.code == "member-name"]
    assert data[finding.offset :].startswith(b"../evil\0")
    data = with_params(made.params_of({"p0": made.C}) + b"xx")
    (finding,) = [f for f in tvm.check_archive(data) if f.code == "params-trailing"]
    assert data[finding.offset : finding.offset + 4] == b"xx\0\0"
    data = metadata(lambda d: only(d).update(export_datetime="yesterday"))
    (finding,) = [f for f in tvm.check_archive(data) if f.code == "date"]
    assert data[finding.offset :].startswith(b'{"modules"')


def test_a_directory_names_the_file(tmp_path):
    files = made.files_of() | {PARAMS: made.params_of({"p0": made.C}) + b"xx"}
    path = made.make(tmp_path / "m", files, "directory")
    (finding,) = tvm.open(path).validate()
    assert (finding.file, finding.where, finding.offset) == (str(path / PARAMS), PARAMS, 106)
    (path / "src" / "more").symlink_to("/etc/passwd")
    assert {f.code for f in tvm.check_archive(path)} == {"params-trailing", "member-kind"}


def test_broken_parts_do_not_hide_others():
    files = made.changed(made.files_of(), lambda d: only(d).update(memory=5, export_datetime="no"))
    files |= {MODULE: b"{", PARAMS: b"no", "stray.txt": b""}
    codes = {finding.code for finding in tvm.check_archive(made.tar_of(files))}
    assert codes == {"metadata", "date", "graph", "params", "extra-member"}


def test_an_unknown_style_does_not_hide_others():
    def change(document):
        only(document).update(style="foo", export_datetime="no")
        main(document).update(io_size_bytes=99)

    files = made.changed(made.files_of(), change) | {PARAMS: made.params_of({"p0": made.C, "q": made.C})}
    codes = {finding.code for finding in tvm.check_archive(made.tar_of(files))}
    assert {"metadata", "date", "graph-param", "io-size"} <= codes


def test_parameters_of_an_archive_without_metadata_are_checked():
    files = made.files_of() | {"metadata.json": b"{", PARAMS: b"no"}
    assert {"metadata", "params"} <= {finding.code for finding in tvm.check_archive(made.tar_of(files))}


def test_files_of_another_version_are_in_another_place():
    files = made.files_of(7) | {"relay.txt": b""}
    (finding,) = tvm.check_archive(made.tar_of(files))
    assert (finding.severity, finding.code, finding.where) == ("note", "form", "relay.txt")


def test_check_params(tmp_path):
    path = tmp_path / "a.params"
    tvm.write_params({"p": np.zeros(3, ml_dtypes.bfloat16)}, path)
    assert list(tvm.check_params(path)) == []
    path.write_bytes(path.read_bytes() + b"\0")
    (finding,) = tvm.check_params(path)
    assert (finding.severity, finding.code, finding.file, finding.offset) == (
        "warning",
        "params-trailing",
        str(path),
        95,
    )
    for what in (
        "trailing",
        "duplicate names",
        "reserved of the file",
        "reserved of a tensor",
        "device id",
        "cut in the last tensor",
    ):
        assert tvm.check_params(bytes.fromhex(STRANGE[what]["hex"])).findings, what  # TVM takes all of these
    assert list(tvm.check_params(bytes.fromhex(STRANGE["good"]["hex"]))) == []
    for what, row in STRANGE.items():
        if "error" in row:
            assert any(f.severity != "note" for f in tvm.check_params(bytes.fromhex(row["hex"]))), what


def test_many_findings_are_counted():
    found = tvm.check_archive(made.tar_of(made.files_of() | {f"x{n}": b"" for n in range(1500)}))
    assert len(found) == 1001 and "got 500 more" in found[-1].message


def test_every_mutation_ends_in_a_list():
    """Whatever is done to an archive, check reports and does not raise, and open raises what it may."""
    from milblob import MilblobError

    random = np.random.default_rng(15)
    good = made.tar_of({name: data for name, data in made.files_of().items() if not name.startswith("codegen")})
    for number in range(300):
        data = bytearray(good)
        for _ in range(random.integers(1, 5)):
            at = random.integers(0, len(good))
            data[at] = random.choice([0, 32, 48, 55, 120, 255, random.integers(0, 256)])
        if number % 5 == 0:
            data = data[: random.integers(0, len(good))]
        found = tvm.check_archive(bytes(data))
        assert all(isinstance(finding, Finding) for finding in found)
        try:
            with tvm.open(bytes(data)) as library:
                for module in library.modules.values():
                    for tensor in module.params.values():
                        tensor.read()
                    module.graph  # noqa: B018
        except MilblobError as error:
            assert "\n" not in str(error)


def test_members_after_a_global_header():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "git"}) as tar:
        for name, data in made.files_of().items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    assert list(tvm.check_archive(stream.getvalue())) == []
