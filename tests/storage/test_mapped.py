"""Mapped files and files that are read (mmap=False): the same values; what happens to each when the file shrinks."""

import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
import pytest

import milblob
from cases import MODEL_CASES, case_paths, load_case
from children import child_environment, run_child
from milblob._codec import Buffer
from milblob.formats.onnx_external import hash_of
from milblob.storage.mapped import PASSED_NBYTES, MappedFile
from paths import DATA

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="a mapped file cannot be truncated on Windows: one that is, is not tested"
)
PACKAGE = DATA / "opset_ios15_fp16/model.mlpackage"
WEIGHTS = PACKAGE / "Data/com.apple.CoreML/weights/weight.bin"


def everything(source, mmap):
    """Every tensor of a model by name: dtype, shape and bytes, or what is wrong with it."""
    found = {}
    with milblob.open(source, constants=True, mmap=mmap) as model:
        for name, tensor in model.items():
            try:
                values = tensor.read()
            except milblob.MilblobError as error:
                found[name] = str(error)
            else:
                same = repr(values.tolist()) if values.dtype == object else values.tobytes()
                found[name] = (values.dtype, values.shape, values.flags.writeable, same)
    return found


@pytest.mark.parametrize(("name", "path"), case_paths(MODEL_CASES))
@pytest.mark.sample(8)
def test_a_model_that_is_read_has_the_values_of_one_that_is_mapped(name, path):
    source = load_case(name).source(path)
    mapped = everything(source, True)
    assert any(isinstance(value, tuple) for value in mapped.values())
    assert everything(source, False) == mapped


def test_load_reads():
    mapped, read = milblob.load(PACKAGE), milblob.load(PACKAGE, mmap=False)
    assert list(read) == list(mapped) and all(np.array_equal(read[name], mapped[name]) for name in mapped)


def test_a_blob_file_that_is_read():
    path = DATA / "blob_all_dtypes/weight.bin"
    with milblob.BlobReader(path, mmap=False) as read, milblob.BlobReader(path) as mapped:
        assert np.array_equal(read.index, mapped.index)
        for record in mapped:
            assert read.record(record.offset) == record
            assert read.read(record).tobytes() == mapped.read(record).tobytes()
            packed = read.read_packed(record)
            assert packed.tobytes() == mapped.read_packed(record).tobytes() and not packed.flags.writeable
    assert packed.tobytes()  # after close


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc here: mappings that stay are not looked for")
def test_a_model_that_was_read_leaves_nothing_open_or_mapped():
    code = """
        import os, pathlib, milblob
        path, mmap = sys.argv[1], sys.argv[2] == "mapped"
        model = milblob.open(path, mmap=mmap)
        values = model["fc_weight"].read()
        maps = pathlib.Path("/proc/self/maps").read_text()
        links = [os.readlink(link) for link in pathlib.Path("/proc/self/fd").iterdir() if link.is_symlink()]
        print(maps.count(path), sum(path in link for link in links))
    """
    assert run_child(code, PACKAGE, "mapped").split() == ["2", "4"]  # the control: mmap keeps a descriptor of its own
    assert run_child(code, PACKAGE, "read").split() == ["0", "0"]


CUT = """
    import faulthandler, os, sys
    import milblob, numpy as np
    faulthandler.disable()
    package, victim, mmap = sys.argv[1], sys.argv[2], sys.argv[3] == "mapped"
    expected = milblob.load(package)["fc_weight"].tobytes()
    model = milblob.open(package, mmap=mmap)
    before = model["fc_weight"].read()
    os.truncate(victim, 0)
    print("cut", flush=True)
    assert before.tobytes() == expected
    assert model["fc_weight"].read().tobytes() == expected
    print("sound", flush=True)
"""


@posix
def test_a_file_that_is_cut_while_arrays_over_it_are_in_use(tmp_path):
    """Mapped: SIGBUS, which docs/security.md warns of. Read: the values that it had."""
    own = f"{os.environ.get('ASAN_OPTIONS', '')}:handle_sigbus=0"  # which AddressSanitizer would report instead
    for how in ("mapped", "read"):
        package = tmp_path / how / "m.mlpackage"
        shutil.copytree(PACKAGE, package)
        victim = package / "Data/com.apple.CoreML/weights/weight.bin"
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CUT), package, victim, how],
            capture_output=True, text=True, timeout=120, check=False, env={**child_environment(), "ASAN_OPTIONS": own},
        )  # fmt: skip
        if how == "read":
            assert (done.returncode, done.stdout.split()) == (0, ["cut", "sound"]), done.stderr
        else:
            assert (done.returncode, done.stdout.split()) == (-signal.SIGBUS, ["cut"]), done.stderr


def resident_nbytes(path):
    """What this process holds in memory of a file that it has mapped."""
    entries = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path("/proc/self/smaps").read_text())
    rows = (re.search(r"^Rss: +([0-9]+) kB", entry, re.MULTILINE) for entry in entries if f" {path}\n" in entry)
    return sum(int(row[1]) << 10 for row in rows)


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="other systems do not show what is resident: that hashed pages leave memory is not tested",
)
def test_a_file_that_is_hashed_takes_little_memory_and_arrays_over_it_keep_their_values(tmp_path):
    """Also of many small ranges, and of one that is read again afterwards."""
    values = np.zeros(3 * PASSED_NBYTES, np.uint8)
    values[::4099] = np.arange(len(values[::4099])) % 251
    path = tmp_path / "weight.bin"
    values.tofile(path)
    mapping = MappedFile(path)
    array = np.frombuffer(memoryview(mapping.live()), np.uint8)
    for step in (len(values), 1 << 16):
        assert int(array[::4096].max()) > 0
        assert resident_nbytes(path) == len(values)
        for at in range(0, len(values), step):
            hash_of(mapping, mapping.live(), at, step)
        assert resident_nbytes(path) < 2 * PASSED_NBYTES
        assert np.array_equal(array, values)
    expected = hash_of(mapping, mapping.live(), 64, len(values) - 64)
    mapping.close()
    assert hash_of(mapping, Buffer(array), 64, len(values) - 64) == expected
    assert np.array_equal(array, values)


def test_a_file_that_changes_after_it_was_read(tmp_path):
    path = tmp_path / "weight.bin"
    shutil.copy(WEIGHTS, path)
    with milblob.BlobReader(path, mmap=False) as blobs:
        before = [blobs.read(record).tobytes() for record in blobs]
        path.write_bytes(b"\xff" * 300)
        assert [blobs.read(record).tobytes() for record in blobs] == before
        assert [blobs.record(record.offset) for record in blobs] == list(blobs)


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "weight.bin"
    shutil.copy(WEIGHTS, path)
    nbytes = path.stat().st_size
    monkeypatch.setattr(MappedFile, "_file_nbytes", lambda self: nbytes + 1)
    with pytest.raises(milblob.FormatError, match=rf"size: expected {nbytes + 1} bytes as when it was opened, got {nbytes}") as caught:  # fmt: skip
        milblob.BlobReader(path, mmap=False)
    assert caught.value.file == str(path) and caught.value.offset == nbytes


def test_a_file_object_is_read_from_its_start_and_left_where_it_was():
    whole = WEIGHTS.read_bytes()
    with WEIGHTS.open("rb") as file, tempfile.NamedTemporaryFile() as temporary:
        temporary.write(whole)
        temporary.flush()
        file.seek(70)
        for source in (file, temporary, io.BytesIO(whole), whole):
            with milblob.BlobReader(source, mmap=False) as blobs:
                assert [blobs.read(record).tobytes() for record in blobs]
        assert file.tell() == 70 and file.read(3) == whole[70:73]
        os.fstat(file.fileno())  # still open


@pytest.mark.parametrize("content", [b"", b"\2\0", b"version https://git-lfs.github.com/spec/v1\nsize 7\n"])
def test_bad_files_are_refused_alike(content, tmp_path):
    path = tmp_path / "weight.bin"
    path.write_bytes(content)
    words = []
    for mmap in (True, False):
        for opened in (milblob.BlobReader, milblob.open, milblob.load):
            with pytest.raises(milblob.FormatError) as caught:
                opened(path, mmap=mmap)
            words.append(str(caught.value))
    assert words[:3] == words[3:]


@posix
def test_special_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo.bin")
    for source in (tmp_path / "fifo.bin", tmp_path):
        with pytest.raises(milblob.FormatError, match="expected a regular file, got a"):
            milblob.BlobReader(source, mmap=False)


def test_what_is_changed_in_place_is_mapped(tmp_path):
    path = tmp_path / "weight.bin"
    shutil.copy(WEIGHTS, path)
    with pytest.raises(ValueError, match="mmap: expected True with mode 'r\\+', got False"):
        milblob.open(path, "r+", mmap=False)
