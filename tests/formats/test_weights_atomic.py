"""A weight file and its listing: both old, both new, or one clear error; and never a listing over other weights."""

import errno
import json
import os
import pathlib
import shutil
import sys

import numpy as np
import pytest

import milblob
from faults import temporaries
from milblob import hashing
from milblob.cli import main
from milblob.hashing import hash_bytes
from milblob.storage.pending import JOURNAL
from milblob.storage.temporary import sweep
from thorough import some

OLD = {"a": np.full(300, 1, np.float32), "b": np.full(300, 2, np.float32)}
NEW = {"b": np.full(300, 3, np.float32), "a": np.full(300, 4, np.float32)}  # as many bytes, other names at each offset
KINDS = ("json", "mil")
FAILURES = [
    ("fail", "EIO"), ("fail", "EROFS"), ("fail on", "ENOSPC"), ("fail on", "EDQUOT"), ("short", "EIO"),
    ("short then fail", "ENOSPC"), ("kill before", "EIO"), ("kill middle", "EIO"), ("kill after", "EIO"),
]  # fmt: skip
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="faults are injected on Linux: failing calls are not tested here"
)


def write(folder, listing, which, force=True):
    """An action that runs in a process of its own."""
    arrays = OLD if which == "old" else NEW
    milblob.write_weights(
        arrays, pathlib.Path(folder, "sub", "w.bin"), listing=pathlib.Path(folder, listing), force=force
    )


def convert(folder, listing, which, force=True):
    target, names = pathlib.Path(folder, "sub", "w.bin"), pathlib.Path(folder, listing)
    options = ["--listing", names, "-q", *["--force"] * force]
    if main([str(o) for o in ["convert", pathlib.Path(folder).parent / f"{which}.npz", "-o", target, *options]]):
        raise OSError("as the command says")


WRITERS = {"write_weights": write, "convert": convert}


def state_of(folder, listing):
    """ "old", "new", None, or the error, of whoever opens the listing."""
    try:
        found = {name: float(array[0]) for name, array in milblob.load(folder / listing).items()}
    except FileNotFoundError:
        return None
    except (milblob.FormatError, milblob.ResolveError) as error:
        words = str(error)
        assert "weights of a listing: expected" in words or "no such file" in words, words
        return "error"
    for name, arrays in (("old", OLD), ("new", NEW)):
        if found == {key: float(array[0]) for key, array in arrays.items()}:
            return name
    raise AssertionError(f"a mixture: {found}")


def weights_of(folder):
    """The same of the weight file alone."""
    path = folder / "sub" / "w.bin"
    if not path.exists():
        return None
    values = [float(array[0]) for array in milblob.load(path).values()]
    return {(1.0, 2.0): "old", (3.0, 4.0): "new"}[tuple(values)]


def prepare(tmp_path):
    folder = tmp_path / "run"
    for name, arrays in (("old", OLD), ("new", NEW)):
        np.savez(tmp_path / f"{name}.npz", **arrays)

    def reset(listing, start):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "sub").mkdir(parents=True)
        if start == "pair":
            write(folder, listing, "old")
        elif start == "weights":
            milblob.write_weights(OLD, folder / "sub" / "w.bin")
        elif start == "other listing":
            milblob.write_weights(OLD, folder / "sub" / "w.bin")
            (folder / listing).write_text('{"of": "somebody"}')
        return folder

    return reset


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_file_is_hashed_once(tmp_path, monkeypatch, kind):
    """The journal, which says what the new files are, takes the hash that the listing has."""
    arrays = {name: np.arange(30_000, dtype=np.float32) for name in "ab"}
    path, listing = tmp_path / "w.bin", tmp_path / f"w.{kind}"
    counts = []
    blake3 = hashing.blake3

    def counted(spans):
        spans = list(spans)
        counts.append(sum(nbytes for _, _, nbytes in spans))
        return blake3(spans)

    for start in ("nothing", "pair"):
        with monkeypatch.context() as context:
            context.setattr(hashing, "blake3", counted)
            milblob.write_weights(arrays, path, listing=listing, force=start == "pair")
        size = path.stat().st_size
        assert size - 64 <= sum(counts) < size + listing.stat().st_size + 512, start
        counts.clear()
    assert np.array_equal(milblob.load(listing)["b"], arrays["b"])


# ------------------------------------------------------------------------------------------------ every system call


CASES = [("write_weights", "w.json", *failure) for failure in FAILURES]
CASES += [(name, "w.json", mode, "ENOSPC") for name in ("write_weights", "convert") for mode in ("fail", "kill after")]
CASES += [("write_weights", "w.mil", mode, "ENOSPC") for mode in ("fail", "kill after")]


@linux
@pytest.mark.parametrize(("writer", "listing", "mode", "code"), some(CASES, 3))
def test_a_pair_is_replaced_whole(faults, tmp_path, writer, listing, mode, code):
    """The old pair or the new one, always; a change with a journal is refused by readers until it is completed."""
    reset = prepare(tmp_path)
    folder = reset(listing, "pair")
    action, seen = WRITERS[writer], set()
    for outcome in faults.at_every_call(action, [str(folder), listing, "new"], root=folder, mode=mode, code=code):
        if (folder / JOURNAL).exists():
            with pytest.raises(milblob.PendingChangeError):
                milblob.load(folder / listing)
            assert len(milblob.recover(folder / listing).changes) == 1
        state = state_of(folder, listing)
        assert state in ("old", "new"), outcome
        assert weights_of(folder) == state, outcome
        if outcome.exit == "ok":
            assert state == "new", outcome
        assert list(milblob.check(folder / listing, values=True)) == [], outcome
        for place in (folder, folder / "sub"):
            sweep(str(place))
        assert temporaries(folder) == [] or outcome.exit == "killed", outcome
        seen.add((outcome.exit, state))
        reset(listing, "pair")
    assert len(seen) > 1 or mode == "short", seen


@linux
@pytest.mark.parametrize("start", ["nothing", "weights", "other listing"])
@pytest.mark.parametrize(
    ("mode", "code"),
    [
        *[("fail", "EIO"), ("short then fail", "ENOSPC"), ("kill before", "EIO"), ("kill after", "EIO")],
        pytest.param("fail on", "ENOSPC", marks=pytest.mark.thorough),
    ],
)
def test_a_pair_with_one_new_file(faults, tmp_path, start, mode, code):
    """Old or new; after a kill, one clear error. A failure leaves what was there."""
    reset = prepare(tmp_path)
    folder = reset("w.json", start)
    before = {None, *(["old"] if start != "nothing" else [])}
    exits = set()
    for outcome in faults.at_every_call(write, [str(folder), "w.json", "new"], root=folder, mode=mode, code=code):
        text = (folder / "w.json").read_text() if (folder / "w.json").exists() else None
        if start == "other listing" and text == '{"of": "somebody"}':
            assert weights_of(folder) in ("old", "new"), outcome
        else:
            state = state_of(folder, "w.json")
            assert state in (None, "new", "error"), outcome
            assert weights_of(folder) in (before | {"new"}), outcome
            if outcome.exit != "killed":
                assert state != "error", outcome
            if outcome.exit == "ok":
                assert (state, weights_of(folder)) == ("new", "new"), outcome
            elif outcome.exit == "error" and state is None:
                assert weights_of(folder) in before, outcome
        exits.add(outcome.exit)
        reset("w.json", start)
    assert exits - {"ok"}


# ------------------------------------------------------------------------------------------------------ other weights


@pytest.fixture(params=KINDS)
def pair(request, tmp_path):
    """(listing, weight file) of OLD, and a folder for others."""
    milblob.write_weights(OLD, tmp_path / "w.bin", listing=tmp_path / f"w.{request.param}")
    return tmp_path / f"w.{request.param}", tmp_path / "w.bin"


def replaced_by_another_pair(listing, weights):
    milblob.write_weights(NEW, weights.parent / "v.bin", listing=weights.parent / f"v{listing.suffix}")
    os.replace(weights.parent / "v.bin", weights)


def replaced_by_equal_shapes(listing, weights):
    other = {name: array + 7 for name, array in OLD.items()}
    milblob.write_weights(other, weights.parent / "v.bin", listing=weights.parent / f"v{listing.suffix}")
    os.replace(weights.parent / "v.bin", weights)


def written_without_a_listing(listing, weights):
    milblob.write_weights(OLD, weights, force=True)


def written_record_by_record(listing, weights):
    with milblob.BlobWriter(weights) as blobs:
        for array in NEW.values():
            blobs.write(array)


def rearranged(listing, weights):
    milblob.repack(weights, weights, align=4096)


def appended_to(listing, weights):
    with milblob.BlobWriter(weights, mode="a") as blobs:
        blobs.write(np.zeros(3, np.float32))


def cut_after(listing, weights):
    with weights.open("ab") as file:
        file.write(bytes(64))


OTHERS = [
    replaced_by_another_pair, replaced_by_equal_shapes, written_without_a_listing, written_record_by_record, rearranged,
    appended_to, cut_after,
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("other", OTHERS, ids=lambda value: value.__name__)
def test_other_weights_are_refused(pair, other):
    listing, weights = pair
    assert state_of(listing.parent, listing.name) == "old"
    other(listing, weights)
    words = f"weights of a listing: expected .* bytes with hash [0-9a-f]* in the header, got .* at byte 8 in .*{weights.name}"
    with pytest.raises(milblob.FormatError, match=words):
        milblob.load(listing)
    with milblob.open(listing) as model:  # what they are called is known
        assert list(model) == list(OLD)
        with pytest.raises(milblob.FormatError, match=words):
            model["a"].read()
        with pytest.raises(milblob.FormatError, match=words):
            _ = model["a"].data_offset
    found = [f for f in milblob.check(listing) if f.severity == "error"]
    assert [f.code for f in found if "weights of a listing" in f.message] == ["reference"]
    milblob.load(weights)


def test_a_listing_remains_valid_for_values_changed_in_place(pair):
    listing, weights = pair
    with milblob.open(listing, "r+") as model:
        model["a"] = np.full(300, 9, np.float32)
    with milblob.open(weights, "r+") as model:
        model["#1"] = np.full(300, 8, np.float32)
    assert {name: float(array[0]) for name, array in milblob.load(listing).items()} == {"a": 9, "b": 8}
    assert list(milblob.check(listing)) == []


def test_a_listing_holds_hash_and_size_of_its_weights(pair):
    listing, weights = pair
    data = weights.read_bytes()
    digest = hash_bytes(data[64:])
    assert data[8:40].hex() == digest and data[40:64] == bytes(24)
    text = listing.read_text()
    assert digest in text and str(len(data)) in text
    with milblob.BlobWriter(weights.parent / "plain.bin") as blobs:
        for array in OLD.values():
            blobs.write(array)
    plain = (weights.parent / "plain.bin").read_bytes()
    assert data[:8] + bytes(32) + data[40:] == plain


def test_listings_of_before_are_still_read(tmp_path):
    milblob.write_weights(OLD, tmp_path / "w.bin", listing=tmp_path / "w.json")
    document = json.loads((tmp_path / "w.json").read_text())
    del document["nbytes"], document["hash"]
    (tmp_path / "w.json").write_text(json.dumps(document))
    assert state_of(tmp_path, "w.json") == "old"
    milblob.write_weights(OLD, tmp_path / "w.bin", force=True)
    assert state_of(tmp_path, "w.json") == "old"


@pytest.mark.parametrize("change", [
    {"nbytes": None}, {"hash": None}, {"nbytes": "7"}, {"nbytes": True}, {"hash": 7}, {"hash": ""}, {"hash": "g" * 64},
    {"hash": "0" * 63}, {"hash": "A" * 64},
])  # fmt: skip
def test_hostile_stamps(change, tmp_path):
    milblob.write_weights(OLD, tmp_path / "w.bin", listing=tmp_path / "w.json")
    document = json.loads((tmp_path / "w.json").read_text())
    document = {key: value for key, value in {**document, **change}.items() if value is not None}
    (tmp_path / "w.json").write_text(json.dumps(document))
    with pytest.raises(milblob.FormatError, match="listing: expected nbytes and hash of the weight file, got"):
        milblob.open(tmp_path / "w.json")


@pytest.mark.parametrize("digits", [0, 63, 64])
def test_a_hash_of_zeros_is_ignored(digits, tmp_path):
    """Weights of another writer have zeros there: a listing cannot make them match by saying so; their size counts."""
    with milblob.BlobWriter(tmp_path / "w.bin") as blobs:
        blobs.write(OLD["a"])
    document = {
        "format": "milblob",
        "file": "w.bin",
        "nbytes": (tmp_path / "w.bin").stat().st_size,
        "hash": "0" * digits,
    }
    row = {"name": "a", "dtype": "float32", "shape": [300], "offset": 64}
    (tmp_path / "w.json").write_text(json.dumps({**document, "tensors": [row]}))
    with pytest.raises(milblob.FormatError):
        milblob.load(tmp_path / "w.json")


def test_a_failure_of_a_tensor_leaves_the_pair(pair):
    listing, weights = pair
    before = {path: path.read_bytes() for path in pair}

    class Refuses:
        def __array__(self, dtype=None, copy=None):
            raise OSError(errno.EIO, "as asked")

    with pytest.raises(OverflowError):
        milblob.write_weights({"a": np.int8([9])}, weights, listing=listing, dtypes={"a": "int4"}, force=True)
    with pytest.raises(OSError):
        milblob.write_weights({"a": Refuses()}, weights, listing=listing, force=True)
    assert {path: path.read_bytes() for path in pair} == before
    assert sorted(os.listdir(weights.parent)) == sorted(path.name for path in pair)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows: writing through one is not tested")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_listing_that_is_a_link_elsewhere_is_refused(tmp_path, writer, kind):
    """A journal beside its target could not name the weights; a kill between two renames would lose the old pair."""
    for which, arrays in (("old", OLD), ("new", NEW)):
        np.savez(tmp_path / f"{which}.npz", **arrays)
    folder, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for path in (folder / "sub", elsewhere):
        path.mkdir(parents=True)
    listing = folder / f"w.{kind}"
    write(folder, listing.name, "old", force=False)
    listing.rename(elsewhere / listing.name)
    listing.symlink_to(f"../elsewhere/{listing.name}")
    before = {path: path.read_bytes() for path in (listing, folder / "sub" / "w.bin")}
    assert state_of(folder, listing.name) == "old"
    with pytest.raises((ValueError, OSError), match="got a link to|as the command says"):
        WRITERS[writer](folder, listing.name, "new")
    assert {path: path.read_bytes() for path in before} == before and listing.is_symlink()
