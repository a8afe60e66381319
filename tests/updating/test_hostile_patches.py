"""Patches that are damaged, cut off, or made to do harm: one clear error, and nothing written."""

import os
import shutil
import struct

import numpy as np
import pytest

import milblob
import reference_patch as reference
from children import run_fork
from paths import DEMO
from reference_patch import CHANGE, COPY, PREFIX, RAW, zstd
from repacking import tree
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def sound(tmp_path):
    """(old model, patch): a weight file, and a patch with steps of every kind for it and another file."""
    old, new = tmp_path / "old.mlpackage", tmp_path / "new.mlpackage"
    shutil.copytree(DEMO, old)
    weights = milblob.load(old)
    names = sorted(weights, key=lambda name: -weights[name].nbytes)[:2]
    milblob.refit(old, {name: weights[name] * weights[name].dtype.type(1.5) for name in names}, destination=new)
    (new / "Manifest.json").write_text((new / "Manifest.json").read_text() + "\n")
    (new / "notes.txt").write_text("notes")
    milblob.delta(old, new, tmp_path / "p.milpatch")
    shutil.rmtree(new)
    return old, tmp_path / "p.milpatch"


def refused(old, patch, words="", errors=milblob.MilblobError):
    """Apply to a new place and in place: both raise, and leave everything as it is."""
    before = tree(old.parent)
    for target in (old.parent / "made.mlpackage", None):
        with pytest.raises(errors, match=words) as caught:
            milblob.apply(old, patch, target)
        assert tree(old.parent) == before
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000
    return caught.value


def test_patch_of_this_test_has_every_kind_of_step(sound):
    kinds = {step[0] for file in reference.unpacked(sound[1].read_bytes()).new for step in file.steps}
    assert kinds == {COPY, RAW, CHANGE, PREFIX}


def test_every_changed_byte_is_found(sound):
    old, patch = sound
    data = patch.read_bytes()
    places = [*range(72), *np.random.default_rng(0).integers(72, len(data), sized(20, 500)).tolist()]
    for place in places[:: sized(4, 1)]:
        patch.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        refused(old, patch, "patch: expected", milblob.FormatError)


def test_every_truncation_is_found(sound):
    old, patch = sound
    data = patch.read_bytes()
    for size in [0, 1, 7, 8, 71, 72, 73, *range(100, len(data), len(data) // sized(6, 200))]:
        patch.write_bytes(data[:size])
        refused(old, patch, "patch: expected|magic", milblob.FormatError)
    patch.write_bytes(data + b"\0")
    refused(old, patch, f"expected {len(data)} bytes, got {len(data) + 1}")


def test_files_that_are_no_patches(sound, tmp_path):
    old, patch = sound
    for data in (b"not a patch", bytes(100), (old / "Manifest.json").read_bytes()):
        patch.write_bytes(data)
        refused(old, patch, "expected the magic b'milpatch'", milblob.FormatError)
    refused(old, old, "expected|directory", (milblob.FormatError, OSError))
    with pytest.raises(FileNotFoundError):
        milblob.apply(old, tmp_path / "none")


def test_version_of_a_later_milblob_is_named(sound):
    old, patch = sound
    patch.write_bytes(reference.packed(reference.unpacked(patch.read_bytes()), version=2))
    refused(old, patch, "expected version 1 of the format, got 2 at byte 8")


PATHS = [
    "../out.txt", "/milblob-out.txt", "a/../../out.txt", "C:/out.txt", "a\\..\\..\\out", "", ".", "a//b", "a/", "a\0b", "a\nb",
    "notes.TXT", "notes.txt/inside",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_lead_out_or_meet(sound, path):
    old, patch = sound
    contents = reference.unpacked(patch.read_bytes())
    digest = reference.file_digest(b"", [])
    new = [*contents.new, reference.File(path.encode(), 0, digest, [], [])]
    patch.write_bytes(reference.packed(contents._replace(new=new)))
    refused(old, patch, "patch: expected (paths of files inside|a path for each)", milblob.FormatError)


def test_paths_that_are_no_text(sound):
    old, patch = sound
    contents = reference.unpacked(patch.read_bytes())
    new = [contents.new[0]._replace(path=b"\xff\xfe"), *contents.new[1:]]
    patch.write_bytes(reference.packed(contents._replace(new=new)))
    refused(old, patch, "expected a path in UTF-8")


HUGE = 1 << 62
STEPS = {
    "a kind that does not exist": lambda step: (9, *step[1:]),
    "a width of three": lambda step: (step[0], 3, *step[2:]),
    "a width that does not divide": lambda step: (step[0], 8, *step[2:4], step[4] | 1, *step[5:]),
    "a file that does not exist": lambda step: (*step[:2], 77, *step[3:]),
    "an offset outside": lambda step: (*step[:3], HUGE, *step[4:]),
    "a size outside": lambda step: (*step[:4], HUGE, *step[5:]),
    "offset and size that overflow": lambda step: (*step[:3], (1 << 64) - 8, 16, *step[5:]),
    "no bytes": lambda step: (*step[:4], 0, *step[5:]),
    "a frame outside": lambda step: (*step[:6], step[6] + 1),
    "a huge prefix": lambda step: (*step[:5], 1 << 31, step[6]) if step[0] == PREFIX else (9, *step[1:]),
}


REFERRING = ("a file that does not exist", "an offset outside", "offset and size that overflow")
"""Frames of their own have neither a file nor an offset."""


@pytest.mark.parametrize(
    ("how", "kind"),
    some([(how, kind) for how in STEPS for kind in range(4) if kind != RAW or how not in REFERRING], 10),
)
def test_steps_that_do_not_fit(sound, how, kind):
    old, patch = sound
    contents = reference.unpacked(patch.read_bytes())
    number, at = next(
        (n, i) for n, file in enumerate(contents.new) for i, step in enumerate(file.steps) if step[0] == kind
    )
    file = contents.new[number]
    rows = [STEPS[how](step) if i == at else step for i, step in enumerate(file.steps)]
    new = [file._replace(steps=rows) if n == number else one for n, one in enumerate(contents.new)]
    patch.write_bytes(reference.packed(contents._replace(new=new)))
    refused(old, patch, "patch: expected (steps|frames)", milblob.FormatError)


def test_new_model_that_has_another_digest(sound):
    """The patch is sound but for one digest: nothing is written, in place or elsewhere."""
    old, patch = sound
    contents = reference.unpacked(patch.read_bytes())
    for number, file in enumerate(contents.new):
        wrong = file._replace(digest=bytes(32))
        patch.write_bytes(
            reference.packed(contents._replace(new=[*contents.new[:number], wrong, *contents.new[number + 1 :]]))
        )
        refused(
            old, patch, f"{file.path.decode()} to get the digest that the patch names, got another", milblob.FormatError
        )


def test_new_weights_that_have_another_digest_in_place(tmp_path):
    """As above, where only a weight file would change, through the journal."""
    with milblob.BlobWriter(tmp_path / "a.bin") as a, milblob.BlobWriter(tmp_path / "b.bin") as b:
        for seed in range(4):
            values = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
            a.write(values)
            b.write(values * np.float32(2) if seed == 2 else values)
    milblob.delta(tmp_path / "a.bin", tmp_path / "b.bin", tmp_path / "p")
    contents = reference.unpacked((tmp_path / "p").read_bytes())
    file = contents.new[0]._replace(digest=bytes(32))
    (tmp_path / "p").write_bytes(reference.packed(contents._replace(new=[file])))
    before = tree(tmp_path)
    with pytest.raises(milblob.FormatError, match="got another"):
        milblob.apply(tmp_path / "a.bin", tmp_path / "p")
    assert tree(tmp_path) == before


def test_frames_of_another_size_than_declared(sound):
    old, patch = sound
    contents = reference.unpacked(patch.read_bytes())
    number = next(n for n, file in enumerate(contents.new) if file.path == b"notes.txt")
    for data in (b"note", b"notess", bytes(1 << 28)):
        frame = zstd.compress(data)
        before = sum(step[6] for file in contents.new[:number] for step in file.steps)
        file = contents.new[number]
        stored = file.steps[0][6]
        frames = contents.frames[:before] + frame + contents.frames[before + stored :]
        changed = file._replace(steps=[(*file.steps[0][:6], len(frame))])
        new = [*contents.new[:number], changed, *contents.new[number + 1 :]]
        patch.write_bytes(reference.packed(contents._replace(new=new, frames=frames)))
        refused(old, patch, "expected a frame of 5 bytes|frames? up to|steps inside", milblob.FormatError)


def test_models_that_would_be_too_large(sound):
    """A few bytes of steps that copy the same gigabytes again and again."""
    old, patch = sound
    contents = reference.unpacked(patch.read_bytes())
    size = contents.old[1].nbytes
    count = (2 << 30) // size
    file = reference.File(b"big", count * size, bytes(32), [count * size], [(COPY, 0, 1, 0, size, 0, 0)] * count)
    patch.write_bytes(reference.packed(contents._replace(new=[*contents.new, file])))
    refused(old, patch, "max_nbytes", milblob.LimitError)


BOMB = """
    import milblob
    from children import peak_rss_nbytes

    before = peak_rss_nbytes()
    try:
        milblob.apply(sys.argv[1], sys.argv[2], sys.argv[3])
    except milblob.FormatError as error:
        print((peak_rss_nbytes() - before) >> 20, error)
"""


@pytest.mark.parametrize("declared", some([1000, 90 << 20, 1 << 40], named=[90 << 20]))
def test_an_index_that_is_a_bomb(sound, declared):
    """300 MiB of zeros in a few kB: neither the declared size nor the real one is made."""
    old, patch = sound
    compressor = zstd.ZstdCompressor()
    index = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(300)) + compressor.flush()
    patch.write_bytes(reference.with_index(0, b"", index, declared))
    megabytes, _, message = run_fork(BOMB, str(old), str(patch), str(old.parent / "made.mlpackage")).partition(" ")
    assert "patch: expected" in message
    assert int(megabytes) < 250
    assert not (old.parent / "made.mlpackage").exists()


def test_counts_without_room(sound):
    old, patch = sound
    for counts in ((1 << 31, 1), (0, 0xFFFFFFFF), (5, 0)):
        index = bytes(64) + struct.pack("<II", *counts) + bytes(300)
        patch.write_bytes(reference.with_index(0, b"", zstd.compress(index), len(index)))
        refused(old, patch, "patch: expected", milblob.FormatError)


@pytest.mark.thorough
def test_random_damage_of_an_index_whose_digest_is_right(sound):
    """The mutations reach the checks after the digest: bytes of the index, of the frames, cut and repeated stretches."""
    old, patch = sound
    data = patch.read_bytes()
    at, _ = struct.unpack_from("<QQ", data, 24)
    index, frames = zstd.decompress(data[at:]), data[72:at]
    random = np.random.default_rng(7)
    before, outcomes = tree(old), {}
    for _ in range(sized(100, 4000)):
        changed, packed = bytearray(index), bytearray(frames)
        for _ in range(random.integers(1, 4)):
            target = packed if packed and random.random() < 0.2 else changed
            place, how = int(random.integers(len(target))), random.random()
            if how < 0.6:
                target[place] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256))]))
            elif how < 0.8:
                del target[place : place + int(random.integers(1, 40))]
            else:
                target[place:place] = target[place : place + int(random.integers(1, 40))]
        declared = len(changed) if random.random() < 0.9 else int(random.integers(1 << 40))
        patch.write_bytes(reference.with_index(0, bytes(packed), zstd.compress(bytes(changed)), declared))
        target = old.parent / "made.mlpackage"
        try:
            milblob.apply(old, patch, target)
            outcomes["made"] = outcomes.get("made", 0) + 1
            shutil.rmtree(target)  # a content hash was changed, which only messages show
        except milblob.MilblobError as error:
            outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
        assert not target.exists() and sorted(os.listdir(old.parent)) == ["old.mlpackage", "p.milpatch"]
    assert tree(old) == before
    assert outcomes["FormatError"] > 50
