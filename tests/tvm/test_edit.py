"""Library.with_params: other values, and nothing else that differs; whole or not at all."""

import gzip
import io
import os
import shutil
import sys
import tarfile

import ml_dtypes
import numpy as np
import pytest

import tvm_archives as made
from faults import temporaries
from journal_bytes import journal_bytes
from milblob import FormatError, PendingChangeError, UnsupportedError, recover, tvm
from milblob.storage.pending import JOURNAL
from milblob.tvm import edit  # noqa: F401  # before processes fork: importing it takes longer than what they do
from thorough import sized, some

KINDS = ("tar", "tar.gz", "directory")
PARAMS = "parameters/default.params"
NEW = np.array([[-1.5, 7]], np.float32)


def content(path):
    """Everything about an archive: name -> (bytes, mode, time) of a directory; else the (decompressed) bytes."""
    if path.is_dir():
        rows = {}
        for p in sorted(path.rglob("*")):
            status = p.lstat()
            rows[str(p.relative_to(path))] = (
                p.read_bytes() if p.is_file() else None,
                status.st_mode,
                status.st_mtime_ns,
            )
        return rows
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def read(path, module="default", name="p0"):
    with tvm.open(path) as library:
        return library.modules[module].params[name].read().copy()


@pytest.fixture(params=KINDS)
def model(request, tmp_path):
    path = made.make(tmp_path / "model", made.files_of(), request.param)
    if request.param == "directory":
        for p in [*path.rglob("*"), path]:
            os.utime(p, ns=(10**18, 10**18 + 7))
        (path / PARAMS).chmod(0o640)
    return path


def test_unchanged_parameters_give_the_same_archive(model, tmp_path):
    before = content(model)
    raw = model.read_bytes() if model.is_file() else None
    with tvm.open(model) as library:
        library.with_params({"p0": library.modules["default"].params["p0"]}, tmp_path / "out")
        library.with_params({}, tmp_path / "none")
    for name in ("out", "none"):
        after = content(tmp_path / name)
        if raw is not None:
            assert (tmp_path / name).read_bytes() == raw
        else:
            assert {k: v[:2] for k, v in after.items()} == {k: v[:2] for k, v in before.items()}
            assert all(after[k][2] == before[k][2] for k in before if k != PARAMS or name == "none")
    assert content(model) == before


def test_nothing_but_the_values_differs(model, tmp_path):
    before = content(model)
    with tvm.open(model) as library:
        tensor = library.modules["default"].params["p0"]
        library.with_params({"p0": NEW}, tmp_path / "out")
        assert tensor.read().tolist() == [[2, 4]]
    after = content(tmp_path / "out")
    if isinstance(before, bytes):
        at = tensor.offset
        assert after == before[:at] + NEW.tobytes() + before[at + 8 :]
    else:
        assert after.pop(PARAMS)[:2] == (made.params_of({"p0": NEW}), before.pop(PARAMS)[1])
        assert after == before
    assert (read(tmp_path / "out") == NEW).all() and (read(model) == made.C).all()
    with tvm.open(tmp_path / "out") as library:
        assert list(library.validate()) == [] and library.kind == tvm.open(model).kind
    assert temporaries(tmp_path) == []


def test_onto_itself(model):
    before = content(model)
    held = tvm.open(model)
    array = held.modules["default"].params["p0"].read()
    held.with_params({"p0": NEW}, model)
    assert (read(model) == NEW).all()
    assert array.tolist() == (NEW.tolist() if model.is_dir() else [[2, 4]])
    again = tvm.open(model)
    again.with_params({"p0": made.C}, model)
    after = content(model)
    if isinstance(before, bytes):
        assert after == before
    else:
        assert {k: v[:2] for k, v in after.items()} == {k: v[:2] for k, v in before.items()}


def test_a_directory_with_another_link_to_its_parameters(tmp_path):
    """The other name stands for something else: it keeps the old values."""
    path = made.make(tmp_path / "model", made.files_of(), "directory")
    os.link(path / PARAMS, tmp_path / "mine")
    with tvm.open(path) as library:
        library.modules["default"].params["p0"].read()
        library.with_params({"p0": NEW}, path)
        assert (library.modules["default"].params["p0"].read() == NEW).all()
    assert (tmp_path / "mine").read_bytes() == made.params_of({"p0": made.C})


def test_the_gzip_header_is_kept(tmp_path):
    path = made.make(tmp_path / "m.tar.gz", made.files_of(), "tar.gz")
    with tvm.open(path) as library:
        library.with_params({"p0": NEW}, tmp_path / "out.tar.gz")
    old, new = path.read_bytes(), (tmp_path / "out.tar.gz").read_bytes()
    assert new[:20] == old[:20] and b"model.tar\0" in new[:20] and new != old
    with tarfile.open(tmp_path / "out.tar.gz") as out, tarfile.open(path) as before:
        assert out.getnames() == before.getnames()


@pytest.mark.parametrize("flags", range(32))
@pytest.mark.sample(8)
def test_gzip_headers_of_every_kind(tmp_path, flags):
    """Extra field, name, comment, checksum of the header: all of it stays."""
    import struct
    import zlib

    data = made.tar_of(made.files_of())
    header = b"\x1f\x8b\x08" + bytes([flags & ~32]) + struct.pack("<I", 77) + b"\4\x03"
    header += struct.pack("<H", 5) + b"extra" if flags & 4 else b""
    header += b"name\0" if flags & 8 else b""
    header += b"comment\0" if flags & 16 else b""
    header += struct.pack("<H", zlib.crc32(header) & 0xFFFF) if flags & 2 else b""
    stream = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = header + stream.compress(data) + stream.flush() + struct.pack("<II", zlib.crc32(data), len(data))
    with tvm.open(packed) as library:
        library.with_params({"p0": NEW}, tmp_path / "out")
    out = (tmp_path / "out").read_bytes()
    assert out[: len(header)] == header and len(gzip.decompress(out)) == len(data)
    assert (read(tmp_path / "out") == NEW).all()


@pytest.mark.parametrize("level", [1, 6, 9])
def test_gzip_is_compressed_as_it_was(tmp_path, level):
    """At the level that its header tells, so that the same gzip gives the same bytes."""
    noise = np.random.default_rng(3).integers(0, 4, 100_000, dtype=np.uint8).tobytes()
    files = made.files_of() | {"codegen/host/src/default_lib0.c": noise}
    packed, expected = (
        made.gzip_of(made.tar_of({**files, PARAMS: made.params_of({"p0": values})}), level=level)
        for values in (made.C, NEW)
    )
    with tvm.open(packed) as library:
        library.with_params({"p0": NEW}, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == expected


def test_gzip_of_several_members_and_zeros(tmp_path):
    data = made.tar_of(made.files_of())
    packed = made.gzip_of(data[:5000]) + made.gzip_of(data[5000:]) + bytes(100)
    with tvm.open(packed) as library:
        library.with_params({}, tmp_path / "same")
        library.with_params({"p0": NEW}, tmp_path / "other")
    assert (tmp_path / "same").read_bytes() == packed
    assert (read(tmp_path / "other") == NEW).all()


def test_several_modules(tmp_path):
    for kind in KINDS:
        path = made.make(tmp_path / f"m.{kind}", made.files_of(modules=("mod1", "mod2")), kind)
        with tvm.open(path) as library:
            library.with_params({"mod2": {"p0": NEW}}, tmp_path / f"one.{kind}")
            library.with_params({"mod1": {"p0": NEW}, "mod2": {"p0": NEW * 2}}, path)
            with pytest.raises(TypeError, match=r"expected a mapping for each module \('mod1', 'mod2'\), got arrays"):
                library.with_params({"p0": NEW}, tmp_path / "x")
            with pytest.raises(TypeError, match="or such mappings by module, got both"):
                library.with_params({"mod1": {"p0": NEW}, "p0": NEW}, tmp_path / "x")
        assert (read(tmp_path / f"one.{kind}", "mod1") == made.C).all() and (
            read(tmp_path / f"one.{kind}", "mod2") == NEW
        ).all()
        assert (read(path, "mod1") == NEW).all() and (read(path, "mod2") == NEW * 2).all()


def test_one_module_by_its_name(tmp_path):
    with tvm.open(made.tar_of(made.files_of())) as library:
        library.with_params({"default": {"p0": NEW}}, tmp_path / "out")
    assert (read(tmp_path / "out") == NEW).all()


def test_parts_of_many_parameters(tmp_path):
    arrays = {f"p{n}": np.full((n % 4, 3), n, "f4") for n in range(40)} | {
        "b": np.array([True, False]),
        "h": np.float16(3),
    }
    files = made.files_of() | {PARAMS: made.params_of({k: np.asarray(v) for k, v in arrays.items()})}
    given = {
        "p7": np.ones((3, 3), "f4"),
        "p39": np.zeros((3, 3), ">f4").astype("<f4"),
        "b": np.array([False, True]),
        "h": np.float16(-1),
    }
    given["p10"] = np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3))
    for kind in KINDS:
        path = made.make(tmp_path / f"m.{kind}", files, kind)
        with tvm.open(path) as library:
            library.with_params(given, tmp_path / f"out.{kind}")
        with tvm.open(tmp_path / f"out.{kind}") as library:
            for name, tensor in library.modules["default"].params.items():
                assert (tensor.read() == given.get(name, arrays[name])).all()


def test_values_that_lie_in_the_file_that_changes(tmp_path):
    """Two parameters are swapped, through views of what is being changed."""
    for kind in KINDS:
        files = made.files_of() | {PARAMS: made.params_of({"p0": made.C, "q": NEW})}
        path = made.make(tmp_path / f"m.{kind}", files, kind)
        with tvm.open(path) as library:
            params = library.modules["default"].params
            library.with_params({"p0": params["q"].read(), "q": params["p0"].read()}, path)
        assert (read(path) == NEW).all() and (read(path, name="q") == made.C).all()


def test_int4_changes_only_its_half_of_a_byte(tmp_path):
    data = made.one_file(0, 4, shape=(5,), data=bytes([0x12, 0x34, 0x56, 0x78, 0x9A]), name=b"p0")
    with tvm.open(made.tar_of(made.files_of() | {PARAMS: data})) as library:
        old = library.modules["default"].params["p0"].read()
        library.with_params({"p0": old}, tmp_path / "same")
        library.with_params({"p0": old[::-1].copy()}, tmp_path / "other")
        assert (tmp_path / "same").read_bytes() == made.tar_of(made.files_of() | {PARAMS: data})
    with tvm.open(tmp_path / "other") as library:
        stored = library.modules["default"].params["p0"].stored().tobytes()
        assert stored == bytes([0x54, 0x32, 0x16, 0x78, 0x9A])
        assert (library.modules["default"].params["p0"].read() == old[::-1]).all() and old.dtype == ml_dtypes.int4


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"p1": NEW}, KeyError, rf"{PARAMS} has no parameter 'p1' \(it has p0\)"),
        ({"p0": NEW.astype("f8")}, TypeError, "p0: expected elements of float32, got float64"),
        ({"p0": NEW.astype(">f4")}, TypeError, "p0: expected elements of float32, got >f4"),
        ({"p0": NEW[0]}, ValueError, r"p0: expected shape \(1, 2\), got \(2,\)"),
        ({"p0": NEW[0], "p1": NEW, "p0 ": 5}, ValueError, "expected all to fit, got 3 problems: p0: expected shape .*; .* has no parameter 'p1'.*; .* has no parameter 'p0 '"),
        ({"other": {"p0": NEW}}, KeyError, r"has no module 'other' \(it has default\)"),
        (5, TypeError, "arrays: expected a mapping"),
    ],
)  # fmt: skip
def test_what_does_not_fit(model, tmp_path, given, error, words):
    before = content(model)
    with tvm.open(model) as library, pytest.raises(error, match=words):
        library.with_params(given, tmp_path / "out")
    assert not (tmp_path / "out").exists() and content(model) == before


def test_aot_and_operators_are_refused_by_name(tmp_path):
    with (
        tvm.open(made.tar_of(made.files_of(executor="aot"))) as library,
        pytest.raises(
            UnsupportedError, match="module default: expected parameters in a file of the archive, got an AOT executor"
        ),
    ):
        library.with_params({"p0": NEW}, tmp_path / "out")
    library = tvm.open(made.tar_of(made.operator_files()))
    with pytest.raises(UnsupportedError, match="module add: expected parameters .*, got an operator"):
        library.with_params({"p0": NEW}, tmp_path / "out")
    library = tvm.open(made.tar_of({k: v for k, v in made.files_of().items() if k != PARAMS}))
    with pytest.raises(UnsupportedError, match="module default: expected parameters .*, got none"):
        library.with_params({"p0": NEW}, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_is_not_what_was_declared(model, tmp_path):
    class Liar:
        dtype, shape = np.dtype("f4"), (1, 2)

        def read(self):
            return np.zeros((1, 3), "f4")

    before = content(model)
    with tvm.open(model) as library:
        for target in (tmp_path / "out", model):
            with pytest.raises(ValueError, match=r"p0: expected float32 \[1, 2\], got float32 \[1, 3\]"):
                library.with_params({"p0": Liar()}, target)
    assert not (tmp_path / "out").exists() and content(model) == before and temporaries(tmp_path) == []


def test_what_is_there_is_replaced_with_force_only(model, tmp_path):
    target = tmp_path / "out"
    shutil.copytree(model, target) if model.is_dir() else shutil.copy(model, target)
    before = content(target)
    with tvm.open(model) as library:
        with pytest.raises(FileExistsError):
            library.with_params({"p0": NEW}, target)
        assert content(target) == before
        library.with_params({"p0": NEW}, target, force=True)
        assert (read(target) == NEW).all()
        with pytest.raises(TypeError, match="force: expected True or False"):
            library.with_params({"p0": NEW}, target, force=1)
        with pytest.raises(FileNotFoundError):
            library.with_params({"p0": NEW}, tmp_path / "no" / "out")


def test_directories_that_are_not_archives_are_kept(tmp_path):
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_bytes(b"")
    with tvm.open(path) as library:
        with pytest.raises(FileExistsError, match="expected an unpacked archive to replace, got something else"):
            library.with_params({"p0": NEW}, tmp_path / "mine", force=True)
        for place in (path / "parameters" / "x", tmp_path):
            with pytest.raises(ValueError, match="got one inside or around it"):
                library.with_params({"p0": NEW}, place, force=True)
    other = made.make(tmp_path / "other", made.files_of(), "directory")
    (other / "parameters" / "mine.txt").write_bytes(b"")
    (other / "notes.txt").write_bytes(b"")
    with tvm.open(path) as library, pytest.raises(FileExistsError, match="the file notes.txt that is not part of one"):
        library.with_params({"p0": NEW}, other, force=True)
    with tvm.open(made.make(tmp_path / "m.tar", made.files_of())) as library, pytest.raises(FileExistsError):
        library.with_params({"p0": NEW}, path, force=True)
    assert (read(path) == made.C).all()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows: refusing them is not tested")
def test_links_in_a_directory_are_not_followed(tmp_path):
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    secret = tmp_path / "secret"
    secret.write_bytes(made.params_of({"p0": made.C}))
    (path / PARAMS).unlink()
    (path / PARAMS).symlink_to(secret)
    with tvm.open(path) as library:
        with pytest.raises(FormatError, match="expected a plain file, got a link"):
            library.modules["default"].params  # noqa: B018
        with pytest.raises(FormatError, match="expected a plain file, got a link"):
            library.with_params({"p0": NEW}, path)
    shutil.rmtree(path / "parameters")
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(secret, tmp_path / "elsewhere" / "default.params")
    (path / "parameters").symlink_to(tmp_path / "elsewhere")
    with tvm.open(path) as library, pytest.raises(UnsupportedError):
        library.with_params({"p0": NEW}, path)
    assert secret.read_bytes() == made.params_of({"p0": made.C})
    (path / "parameters").unlink()
    (path / "parameters").mkdir()
    (path / PARAMS).write_bytes(secret.read_bytes())
    (path / "link").symlink_to(secret)
    with tvm.open(path) as library, pytest.raises(FormatError, match="got a link"):
        library.with_params({"p0": NEW}, tmp_path / "out")


def test_a_journal_from_elsewhere_changes_nothing_else(tmp_path):
    """A journal that comes with a directory names another file, or one behind a link: nothing is touched."""
    path = made.make(tmp_path / "m", made.files_of(), "directory")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    shutil.rmtree(path / "parameters")
    (path / "parameters").symlink_to(tmp_path)
    for name in ("metadata.json", "../victim", "parameters/victim"):
        size = os.path.getsize(os.path.join(path, name))
        (path / JOURNAL).write_bytes(journal_bytes((1, name, size, 0, b"XX")))
        with pytest.raises(PendingChangeError):
            tvm.open(path)
        with pytest.raises(FormatError, match="journal: expected changes of the model file"):
            recover(path)
        (path / JOURNAL).unlink()
    assert victim.read_bytes() == b"precious"


# ------------------------------------------------------------------------------------------------- whole or not at all


FAILURES = [("fail", "EIO"), ("fail on", "ENOSPC"), ("short", "EIO"), ("short then fail", "ENOSPC"), ("kill before", "EIO"), ("kill middle", "EIO"), ("kill after", "EIO")]  # fmt: skip


def change(path, target):
    with tvm.open(path) as library:
        values = {name: {"p0": NEW} for name in library.modules}
        library.with_params(values, target, force=True)


def state(path):
    """Values of both modules, once an interrupted change is completed."""
    if (path / JOURNAL).exists():
        with pytest.raises(PendingChangeError):
            tvm.open(path)
    recover(path)
    return [read(path, name).tolist() for name in ("mod1", "mod2")]


@pytest.mark.parametrize("mode", some(map(pytest.param, FAILURES), 3), ids=lambda mode: mode[0].replace(" ", "-"))
@pytest.mark.parametrize("place", some(["itself", "elsewhere"], 1))
@pytest.mark.parametrize("kind", KINDS)
def test_every_failing_call_leaves_the_old_values_or_the_new(faults, tmp_path, kind, place, mode):
    old, new = [made.C.tolist()] * 2, [NEW.tolist()] * 2
    files = made.files_of(modules=("mod1", "mod2"))
    template = made.make(tmp_path / "template", files, kind)
    run = tmp_path / "run"
    run.mkdir()
    path = run / "model"
    target = path if place == "itself" else run / "out"

    def fresh():
        for name in run.iterdir():
            shutil.rmtree(name) if name.is_dir() else name.unlink()
        shutil.copytree(template, path) if kind == "directory" else shutil.copy(template, path)

    fresh()
    seen = set()
    for outcome in faults.at_every_call(change, [str(path), str(target)], root=run, mode=mode[0], code=mode[1]):
        found = state(target) if target.exists() else None
        assert found in ((old, new) if place == "itself" else (None, new)), outcome
        if place != "itself":
            assert state(path) == old
        assert outcome.exit != "ok" or found == new
        with tvm.open(path) as library:
            assert list(library.validate()) == []
        assert not (path / JOURNAL).exists()
        seen.add(str(found))
        fresh()
    assert seen


def test_kill_9_again_and_again(faults, tmp_path):
    files = made.files_of(modules=("mod1", "mod2"))
    path = made.make(tmp_path / "model", files, "directory")
    seen = set()
    for _ in faults.kill_often(
        swap_for_ever,
        lambda: [str(path)],
        root=tmp_path,
        seed=9,
        count=sized(12, 30),
        is_enough=lambda: len(seen) >= 2,
    ):
        found = state(path)
        assert found[0] == found[1]
        seen.add(str(found))


def swap_for_ever(path):
    for number in range(1 << 30):
        recover(path)
        with tvm.open(path) as library:
            library.with_params({name: {"p0": NEW * (number % 2)} for name in library.modules}, path)


def test_two_writers_at_once(tmp_path):
    """The second is told so, and nothing of the first is lost."""
    from milblob.storage.locks import lock

    path = made.make(tmp_path / "m", made.files_of(), "directory")
    fd = os.open(path, os.O_RDONLY)
    try:
        lock(fd, str(path))
        with tvm.open(path) as library, pytest.raises(BlockingIOError):
            library.with_params({"p0": NEW}, path)
    finally:
        os.close(fd)
    assert (read(path) == made.C).all()


def test_a_stream_is_replaced_by_no_memory(tmp_path):
    """Nothing of the size of the archive is allocated: 64 MiB of parameters, changed in a tar and in a gzipped one."""
    import tracemalloc

    files = made.files_of() | {PARAMS: made.params_of({"p0": np.zeros((16 << 20) // 4, "f4"), "q": made.C})}
    for kind in ("tar", "tar.gz"):
        path = made.make(tmp_path / f"m.{kind}", files, kind)
        with tvm.open(path) as library:
            tracemalloc.start()
            library.with_params({"q": NEW}, tmp_path / f"out.{kind}")
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert most < 4 << 20
        assert (read(tmp_path / f"out.{kind}", name="q") == NEW).all()


def test_io_objects(tmp_path):
    with tvm.open(io.BytesIO(made.gzip_of(made.tar_of(made.files_of())))) as library:
        library.with_params({"p0": NEW}, tmp_path / "out")
    assert (read(tmp_path / "out") == NEW).all()
