"""milblob.repack is done whole or not at all: kill -9 at random, and every call of the system failing once."""

import os
import pathlib
import random
import shutil
import sys

import pytest

import milblob
from faults import temporaries
from milblob.storage.temporary import sweep
from repacking import blobs_of, small_package, tree, values
from thorough import sized, some

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="needs kill -9 and POSIX file locks: a killed repack is not tested here"
)

STATES = ({"align": 64}, {"align": 4096})
FAILURES = [
    ("fail", "EIO"), ("fail", "EROFS"), ("fail on", "ENOSPC"), ("fail on", "EDQUOT"), ("short", "EIO"),
    ("short then fail", "ENOSPC"), ("kill before", "EIO"), ("kill middle", "EIO"), ("kill after", "EIO"),
]  # fmt: skip


# ---------------------------------------------------------------------------------------- actions, run in processes


def once(source, target, options, force=True):
    milblob.repack(source, target, **options, canonical=True, force=force)


def in_place_for_ever(path):
    for number in range(1 << 30):
        once(path, path, STATES[number % 2])


def elsewhere_for_ever(source, target):
    for number in range(1 << 30):
        once(source, target, STATES[number % 2])


# -------------------------------------------------------------------------------------------------------------- kill -9


@pytest.fixture
def states(tmp_path):
    """(package, what it looks like in each state)."""
    (tmp_path / "made").mkdir()
    source = small_package(tmp_path / "made")
    found = []
    for number, options in enumerate(STATES):
        target = tmp_path / "made" / f"{number}.mlpackage"
        once(source, target, options)
        found.append(tree(target))
    assert found[0] != found[1]
    return source, found


def kill_often(faults, action, arguments, place, count, state):
    """Kill an action at random moments until it has been caught in each of the states 0 and 1."""
    chance, seen, kills = random.Random(action.__name__), set(), 0
    while kills < count or not {0, 1} <= seen:
        outcome = faults.run(action, arguments, root=place, kill_after_s=chance.uniform(0, 0.02 + kills / 2000))
        assert outcome.exit == "killed", outcome
        assert len(temporaries(place)) <= 1  # of this one: what those before have left is gone
        sweep(str(place))
        assert temporaries(place) == []
        seen.add(state())
        kills += 1
        assert kills < 2000, seen


def test_kill_9_in_place(faults, tmp_path, states):
    source, known = states
    path = tmp_path / "run" / "m.mlpackage"
    shutil.copytree(source, path)
    known.append(tree(path))
    held = values(path)

    def state():
        assert os.listdir(path.parent) == ["m.mlpackage"]
        return known.index(tree(path))

    kill_often(faults, in_place_for_ever, [str(path)], path.parent, sized(6, 40), state)
    assert values(path) == held


def test_kill_9_while_another_is_replaced(faults, tmp_path, states):
    source, known = states
    path = tmp_path / "run" / "out.mlpackage"
    path.parent.mkdir()
    before = tree(source)

    def state():
        assert os.listdir(path.parent) == ["out.mlpackage"] * path.exists()
        return known.index(tree(path)) if path.exists() else None

    kill_often(faults, elsewhere_for_ever, [str(source), str(path)], path.parent, sized(5, 30), state)
    assert tree(source) == before


def test_kill_9_weight_file_in_place(faults, tmp_path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "w.bin"
    path.write_bytes(blobs_of(*((3, bytes([n]) * 5000) for n in range(30)))[0])
    known = []
    for options in STATES:
        once(path, tmp_path / "w.bin", options)
        known.append((tmp_path / "w.bin").read_bytes())
    known.append(path.read_bytes())

    def state():
        assert os.listdir(path.parent) == ["w.bin"]
        return known.index(path.read_bytes())

    kill_often(faults, in_place_for_ever, [str(path)], path.parent, sized(5, 30), state)


# ------------------------------------------------------------------------------------------------- every failure point


# In place everything can go wrong that can at all; elsewhere the same calls are made, so two kinds are enough.
PLACES = [("itself", *failure) for failure in FAILURES]
PLACES += [(place, mode, "EIO") for place in ("new", "other") for mode in ("fail", "kill after")]
MECHANISMS = [("itself", "short then fail", "ENOSPC"), ("itself", "kill after", "EIO"), ("other", "fail", "EIO")]


@pytest.mark.parametrize(("place", "mode", "code"), some(PLACES, named=MECHANISMS))
def test_every_call(faults, tmp_path, states, mode, code, place):
    """The old state or the new one, whole; the source untouched; nothing else anywhere."""
    made, known = states
    folder = tmp_path / "run"
    folder.mkdir()
    source, target = folder / "m.mlpackage", folder / ("m.mlpackage" if place == "itself" else "out.mlpackage")

    def reset():
        for path in (source, target):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made, source)
        if place == "other":
            shutil.copytree(made, target)

    reset()
    before = tree(source)
    old = None if place == "new" else before
    action, arguments = once, [str(source), str(target), STATES[1], place != "new"]
    exits = set()
    for outcome in faults.at_every_call(action, arguments, root=folder, mode=mode, code=code):
        now = tree(target) if target.exists() else None
        assert now in (old, known[1]), outcome
        if place != "itself":
            assert tree(source) == before, outcome
        if outcome.exit == "ok":
            assert now == known[1], outcome
        elif outcome.exit == "killed":
            sweep(str(folder))
        else:
            assert now == old, outcome
        assert sorted(os.listdir(folder)) == sorted({source.name, *([target.name] if now is not None else [])}), outcome
        exits.add(outcome.exit)
        if now != old:
            reset()
    if mode.startswith("kill"):
        assert "killed" in exits
    elif mode != "short":
        assert "error" in exits


def test_every_call_with_what_else_there_is(faults, tmp_path):
    """Edits of the Program and new files."""
    made, folder = small_package(tmp_path), tmp_path / "run"
    folder.mkdir()
    source = pathlib.Path(shutil.copytree(made, folder / "m.mlpackage"))
    before, held = tree(source), values(source)
    options = {"dedupe": True, "split": "function", "gc": True, "inline": 6}
    arguments = [str(source), str(source), options]
    for outcome in faults.at_every_call(once, arguments, root=folder, mode="fail", code="EIO", turns=1):
        assert os.listdir(folder) == ["m.mlpackage"], outcome
        if outcome.exit == "error":
            assert tree(source) == before, outcome
        else:
            assert values(source) == held, outcome
            shutil.rmtree(source)
            shutil.copytree(made, source)
    assert values(source) == held and tree(source) != before
