"""Archives that want to be followed somewhere else, or to be large: refused or reported, in bounds."""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import time
import zlib

import pytest

import tvm_archives as made
from children import run_fork
from milblob import FormatError, MilblobError, UnsupportedError, tvm
from thorough import sized

PARAMS = "parameters/default.params"


def header(name, size=0, kind=b"0", magic=b"ustar\x0000", size_field=None, prefix=b""):
    """One block of a tar."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:107] = b"0000644"
    block[124:136] = size_field if size_field is not None else b"%011o\0" % size
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = magic
    block[345 : 345 + len(prefix)] = prefix
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name, data=b"", **options):
    return header(name, len(data), **options) + data + bytes(-len(data) % 512)


def pax(*records, kind=b"x"):
    data = b""
    for key, value in records:
        body = b" " + key + b"=" + value + b"\n"
        length = len(body) + 1
        while len(str(length)) + len(body) != length:
            length += 1
        data += str(length).encode() + body
    return member(b"./PaxHeaders/x", data, kind=kind)


FILES = b"".join(member(f"./{name}".encode(), data) for name, data in made.files_of().items())
END = bytes(1024)


def opened(data):
    with tvm.open(data) as library:
        return {file.name: bytes(library.read_file(file.name)) for file in library.files}


def test_the_blocks_of_these_tests_make_a_good_archive():
    assert opened(FILES + END) == made.files_of()
    assert list(tvm.check_archive(FILES + END)) == []
    with tarfile.open(fileobj=io.BytesIO(FILES + END)) as tar:
        assert tar.getnames() == [f"./{name}" for name in made.files_of()]


# ---------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        b"../evil",
        b"./../../evil",
        b"/etc/passwd",
        b"./a/../../b",
        b"C:/evil",
        b"..",
        b"a\\..\\b",
        b"./a/..",
        b"//server/share",
    ],
)
def test_names_that_lead_out(tmp_path, name):
    data = FILES + member(name, b"evil") + END
    with tvm.open(data) as library:
        assert {file.name for file in library.files} == set(made.files_of())
        for asked in (name.decode(), name.decode().removeprefix("./")):
            with pytest.raises(FormatError, match="expected a file"):
                library.read_file(asked)
    assert [(f.severity, f.code) for f in tvm.check_archive(data)] == [("error", "member-name")]
    path = tmp_path / "in" / "m.tar"
    path.parent.mkdir()
    path.write_bytes(data)
    tvm.open(path).with_params({}, tmp_path / "in" / "out.tar")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "m.tar", "out.tar"]


def test_a_name_through_a_pax_header():
    data = FILES + pax((b"path", b"../evil")) + member(b"./fine", b"x") + END
    assert [f.code for f in tvm.check_archive(data)] == ["member-name"]
    assert "fine" not in opened(data)
    smuggled = pax((b"path", b"./metadata.json")) + member(b"./fine", b"{}") + FILES + END
    with pytest.raises(FormatError, match=r"member metadata\.json: expected once, got it twice"):
        tvm.open(smuggled)


def test_names_that_are_the_same():
    """However a second one is spelled."""
    for name in (b"./metadata.json", b"metadata.json", b"././metadata.json", b".//metadata.json", b"./metadata.json"):
        with pytest.raises(FormatError, match="expected once, got it twice"):
            tvm.open(FILES + member(name, b"{}") + END)
    twice = FILES + member(f"./{PARAMS}".encode(), made.params_of({})) + END
    with tvm.open(twice) as library, pytest.raises(FormatError, match="expected once, got it twice"):
        library.modules["default"].params  # noqa: B018


# ---------------------------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6", b"Z", b"V"])
@pytest.mark.parametrize("name", ["metadata.json", PARAMS, "executor-config/graph/default.graph"])
def test_links_and_devices_are_not_read(kind, name):
    files = {other: data for other, data in made.files_of().items() if other != name}
    data = b"".join(member(f"./{other}".encode(), body) for other, body in files.items())
    data += member(f"./{name}".encode(), kind=kind) + END
    with pytest.raises(FormatError, match="expected a plain file, got a"):
        library = tvm.open(data)
        library.modules["default"].graph  # noqa: B018
        library.modules["default"].params  # noqa: B018
    assert "member-kind" in {finding.code for finding in tvm.check_archive(data)}


def test_sparse_members_are_refused():
    gnu = FILES + member(b"./sparse", b"", kind=b"S") + END
    with pytest.raises(FormatError, match="expected a plain file, got a sparse one"):
        tvm.open(gnu)
    modern = (
        pax((b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9999999"))
        + member(f"./{PARAMS}".encode(), b"x")
        + END
    )
    files = b"".join(member(f"./{n}".encode(), d) for n, d in made.files_of().items() if n != PARAMS)
    with tvm.open(files + modern) as library, pytest.raises(FormatError, match="got a sparse"):
        library.modules["default"].params  # noqa: B018
    assert "member-kind" in {finding.code for finding in tvm.check_archive(files + modern)}


# ------------------------------------------------------------------------------------------------------- headers that lie


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (member(b"./a", b"x" * 600)[:900], "member './a': expected 600 bytes, got 388"),
        (header(b"./a", 1 << 32), "expected 4294967296 bytes, got 0"),
        (header(b"./a", size_field=b"\x80" + b"\xff" * 11), "bytes, got 0"),
        (header(b"./a", size_field=b"\xff" * 12), "expected an octal number"),
        (header(b"./a", size_field=b"-0000000010\0"), "expected an octal number"),
        (header(b"./a", size_field=b"99999999999\0"), "tar header: "),
        (b"\1" + header(b"./a")[1:], "checksum of tar header: expected"),
        (pax((b"size", b"5")) + member(b"./a", b"xy"), "size of member: expected 5 as in its PAX header, got 2"),
        (pax((b"size", b"-5")) + member(b"./a"), "size in PAX header: expected a number"),
        (pax((b"size", b"9" * 30)) + member(b"./a"), "size in PAX header: expected a number"),
        (pax((b"size", "٣".encode())) + member(b"./a"), "size in PAX header: expected a number"),
        (pax((b"size", b"1000")) + member(b"./a"), "expected 1000 bytes, got 0"),
        (pax((b"path", b"a"), (b"path", b"b")) + member(b"./a"), "expected path once, got it twice"),
        (pax((b"path", b"./a"), kind=b"g") + member(b"./a"), "global PAX header: expected nothing about one member, got path"),
        (pax((b"size", b"3"), kind=b"g") + member(b"./a", b"abc"), "global PAX header: expected nothing about one member, got size"),
        (member(b"./p", b"99 path=a\n", kind=b"x") + member(b"./a"), "record of PAX header"),
        (member(b"./p", b"0 path=a\n", kind=b"x") + member(b"./a"), "record of PAX header"),
        (member(b"./p", b"-1 path=a\n", kind=b"x") + member(b"./a"), "record of PAX header"),
        (member(b"./p", b"10 path=aa", kind=b"x") + member(b"./a"), "record of PAX header"),
        (member(b"./p", b"9 pathaa\n", kind=b"x") + member(b"./a"), "record of PAX header"),
        (member(b"./p", b"junk", kind=b"x") + member(b"./a"), "record of PAX header"),
        (member(b"./p", b"\xff\xfe", kind=b"x") + member(b"./a"), "record of PAX header"),
        (header(b"./p", 1 << 30, kind=b"x"), "extended tar header: expected at most 1048576 bytes"),
        (header(b"./p", 1 << 30, kind=b"L"), "extended tar header: expected at most 1048576 bytes"),
        (header(b"./p", 4000, kind=b"L"), "extended tar header: expected 4000 bytes, got 0"),
        (pax((b"path", b"x")) + END, "expected a member after it, got the end"),
        (b"x" * 100, "tar header: expected 512 bytes, got 100"),
    ],
)  # fmt: skip
def test_headers_that_lie(data, words):
    with pytest.raises(FormatError) as caught:
        tvm.open(FILES + data)
    assert words in str(caught.value) and caught.value.offset >= len(FILES)
    found = tvm.check_archive(FILES + data)
    assert any(finding.severity == "error" and words in finding.message for finding in found)
    if "x" * 100 not in words:
        assert "missing-member" not in {finding.code for finding in found}  # those before it were found


def test_old_checksums_and_old_tars():
    """Of signed bytes; without the magic of ustar; with a name in two parts."""
    name = "./runtime/é".encode()
    block = bytearray(header(name))
    total = sum((b - 256 if b > 127 else b) for b in block[:148] + block[156:]) + 256
    block[148:156] = b"%06o\0 " % total
    old = b"".join(member(f"./{n}".encode(), d, magic=bytes(8)) for n, d in made.files_of().items())
    long = header(b"x.h", prefix=b"./runtime/" + b"d" * 100)
    with tvm.open(old + bytes(block) + long + END) as library:
        assert {file.name for file in library.files} == {*made.files_of(), "runtime/é", "runtime/" + "d" * 100 + "/x.h"}


def test_every_truncation_ends_in_our_errors():
    data = made.tar_of(made.files_of())
    for cut in range(0, len(data), sized(389, 97)):
        try:
            with tvm.open(data[:cut]) as library:
                library.modules["default"].params  # noqa: B018
        except MilblobError:
            pass
        assert all(finding.code for finding in tvm.check_archive(data[:cut]))


# ---------------------------------------------------------------------------------------------------------------- sizes


def bomb(nbytes):
    """A gzip file of zeros. One MiB is compressed, and its bytes are repeated: nothing in them refers to what is before."""
    block, checksum, length = bytes(1 << 20), zlib.crc32(FILES), nbytes >> 20
    for _ in range(length):
        checksum = zlib.crc32(block, checksum)
    pieces = []
    for data in (FILES, block):
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        pieces.append(stream.compress(data) + stream.flush(zlib.Z_FULL_FLUSH))
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush() + struct.pack("<II", checksum, len(FILES) + (length << 20))
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + pieces[0] + pieces[1] * length + end


def test_gzip_bombs(tmp_path):
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(bomb(257 << 20))
    assert path.stat().st_size < 400_000
    code = """
        from children import peak_rss_nbytes
        from milblob import tvm, FormatError
        before = peak_rss_nbytes()
        try:
            tvm.open(sys.argv[1])
        except FormatError as error:
            print(error)
        print([f.code for f in tvm.check_archive(sys.argv[1])])
        print(peak_rss_nbytes() - before)
    """
    words, codes, grown = run_fork(code, path).splitlines()
    assert "gzip: expected at most 268435456 bytes decompressed, got more (max_nbytes allows them)" in words
    assert codes == "['gzip']"
    if sys.platform == "linux":
        assert int(grown) < 50 << 20
    with tvm.open(path, max_nbytes=400 << 20) as library:
        assert list(library.modules) == ["default"]
        assert {finding.code for finding in library.validate()} <= {"tar-end"}
    with pytest.raises(FormatError, match="expected at most 1000 bytes"):
        tvm.open(path, max_nbytes=1000)
    with pytest.raises(TypeError, match="max_nbytes: expected a number of bytes"):
        tvm.open(path, max_nbytes="1")


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d[:-1],
        lambda d: d[:100],
        lambda d: d[:-8] + b"\0\0\0\0" + d[-4:],
        lambda d: d + b"more",
        lambda d: d[:60] + bytes([d[60] ^ 255]) + d[61:],
        lambda d: d[:3] + b"\xff" + d[4:],
        lambda d: d + b"\x1f\x8b",
    ],
)
def test_broken_gzip(edit):
    data = edit(made.gzip_of(made.tar_of(made.files_of())))
    with pytest.raises(FormatError, match="gzip: expected"):
        tvm.open(data)
    assert [finding.code for finding in tvm.check_archive(data)] == ["gzip"]


def test_a_gzip_inside_a_gzip():
    with pytest.raises(UnsupportedError, match="expected a tar"):
        tvm.open(gzip.compress(gzip.compress(made.tar_of(made.files_of()))))


def test_a_million_members(tmp_path):
    """Refused after 131,072, in seconds, and check says so. `make thorough` has a million, `make test` 132,000."""
    path = tmp_path / "m.tar.gz"
    stream = zlib.compressobj(1, zlib.DEFLATED, 31)
    block = header(b"./x") * 1000
    with open(path, "wb") as file:
        file.write(stream.compress(FILES))
        for _ in range(sized(132, 1000)):
            file.write(stream.compress(block))
        file.write(stream.flush())
    start = time.monotonic()
    with pytest.raises(FormatError, match="members: expected at most 131072, got more"):
        tvm.open(path, max_nbytes=1 << 30)
    assert time.monotonic() - start < 120
    found = tvm.check_archive(path, max_nbytes=1 << 30)
    assert {"tar", "member-twice"} <= {finding.code for finding in found} and len(found) < 2100


def test_json_of_great_depth():
    for name in ("metadata.json", "executor-config/graph/default.graph"):
        files = made.files_of() | {name: b"[" * 100_000 + b"]" * 100_000}
        with pytest.raises(FormatError, match="nesting too deep|maximum recursion|expected"):
            tvm.open(made.tar_of(files)).modules["default"].graph  # noqa: B018
        assert any(f.where == name and f.severity == "error" for f in tvm.check_archive(made.tar_of(files)))


def test_json_that_is_too_large():
    files = made.files_of() | {"metadata.json": b'{"version": 7' + b" " * (17 << 20)}
    with pytest.raises(FormatError, match="metadata.json: expected at most 16777216 bytes"):
        tvm.open(made.tar_of(files))


def test_numbers_that_wrap():
    big = 1 << 62
    files = made.files_of() | {
        "executor-config/graph/default.graph": made.graph_with(
            lambda g: g["attrs"]["shape"][1].__setitem__(2, [big, 4])
        )
    }
    with pytest.raises(FormatError, match=r"expected less than 2\^63 bytes"):
        tvm.open(made.tar_of(files)).modules["default"].graph  # noqa: B018
    document = json.loads(made.files_of()["metadata.json"])
    rows = document["modules"]["default"]["memory"]["functions"]["main"]
    rows[0]["constants_size_bytes"] = (1 << 63) - 1
    rows.append(rows[0])
    data = made.tar_of(made.files_of() | {"metadata.json": json.dumps(document).encode()})
    (finding,) = (finding for finding in tvm.check_archive(data) if finding.code == "constants")
    assert str(2 * ((1 << 63) - 1)) in finding.message


def test_names_with_lines_and_escapes():
    """Nothing in a name starts a new line in a message or talks to the terminal."""
    data = FILES + member(b"./\x1b[31mred\nline", b"x") + END
    for finding in tvm.check_archive(data):
        assert "\x1b" not in finding.message and "\n" not in finding.message
    document = json.loads(made.files_of()["metadata.json"])
    document["modules"] = {"a\n\x1b": document["modules"]["default"] | {"export_datetime": "\x1b\n"}}
    for finding in tvm.check_archive(made.tar_of({"metadata.json": json.dumps(document).encode()})):
        assert "\x1b" not in finding.message and "\n" not in finding.message


# ---------------------------------------------------------------------------------------------------------- directories


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX file types: refusing special files is not tested on Windows")
def test_directories_with_links_pipes_and_loops(tmp_path):
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    (path / "loop").symlink_to(path)
    (path / "up").symlink_to("..")
    os.mkfifo(path / "pipe")
    with tvm.open(path) as library:
        assert {file.name for file in library.files} == set(made.files_of())
        with pytest.raises(FormatError, match="got a pipe"):
            library.read_file("pipe")
        for name in ("../secret", "loop/metadata.json", "/etc/passwd"):
            with pytest.raises(FormatError, match="expected a file"):
                library.read_file(name)
    assert {f.where for f in tvm.check_archive(path) if f.code == "member-kind"} == {"loop", "up", "pipe"}
    (path / "metadata.json").unlink()
    (path / "metadata.json").symlink_to("/etc/passwd")
    with pytest.raises(FormatError, match="got a link"):
        tvm.open(path)


@pytest.mark.skipif(
    sys.platform == "win32", reason="long paths: Windows refuses them itself, so our message is not tested"
)
def test_a_directory_of_great_depth(tmp_path):
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    here = os.open(path, os.O_RDONLY)
    depth = sized(1100, 1500)  # more than Python's limit of recursion
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        there = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = there
    os.close(here)
    try:
        assert list(tvm.open(path).modules) == ["default"]
        assert list(tvm.open(path).validate()) == []
    finally:
        subprocess.run(["rm", "-rf", path / "d"], check=True)  # pytest cannot remove it


@pytest.mark.skipif(
    sys.platform == "win32" or not hasattr(os, "geteuid"),
    reason="no POSIX permissions here: unreadable files are not tested",
)
def test_files_that_may_not_be_read_are_findings(tmp_path, monkeypatch):
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    from milblob.tvm import archive

    def refuse(place):
        raise PermissionError(13, "Permission denied", place.path)

    monkeypatch.setattr(archive, "map_settled", refuse)
    found = tvm.check_archive(path)
    assert [(f.code, f.where) for f in found if f.severity == "error"] == [
        ("metadata", "metadata.json"),
        ("params", PARAMS),
    ]
    assert "expected to read it, got Permission denied" in found[0].message
