"""Every state in which a disk may be after a power failure, of everything that writes: opened, it is the old or the new one.

tests/support/powerloss.py has the model. MILBLOB_THOROUGH=1 looks at more combinations where there are too many for all of them.
"""

import random
import shutil
import stat
import sys

import pytest

from outcomes import Case, snapshot
from powerloss import Disk
from thorough import sized, some
from writers import MECHANISMS, WRITERS, act, act_without

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="needs fork and a library to preload: a loss of power is not tested here"
)

SAFE = [name for name, writer in WRITERS.items() if writer.is_durable]


def states_of(faults, case, action, arguments):
    """What the disk may hold after the action, which is run once."""
    case.make()
    disk = Disk(case.folder, seed=case.name, limit=sized(150, 3000), has_drafts=sized(False, True))
    disk.replay(faults.record(action, [*arguments, case.name, str(case.folder)], root=case.folder))
    assert any(state.is_end for state in disk.states)
    return disk


@pytest.mark.parametrize("name", some(SAFE, named=MECHANISMS))
def test_every_state(faults, tmp_path, name):
    case = Case(name, tmp_path / "run")
    disk = states_of(faults, case, act, [])
    after = {path: stat.S_IMODE(mode) for path, (mode, _) in snapshot(case.folder).items() if not stat.S_ISLNK(mode)}
    for number, state in enumerate(disk.states):
        shutil.rmtree(case.folder)
        state.write(case.folder)
        words = (name, number, state.moment, sorted(state.tree))
        if state.is_end:
            assert state.modes() == after, words
        case.require_whole(words, state.is_end, not state.is_end)
    print(f"{name}: {disk.moments} moments, {disk.combinations} combinations, {len(disk.states)} states, {case.seen}")


@pytest.mark.parametrize(
    ("what", "name"),
    some([
        ("sync", "new weight file"), ("sync", "append"), ("sync", "edit package"), ("sync", "edit blobs of package"),
        ("sync", "complete an edit"), ("sync", "refit to file"), ("sync", "extract npz"), ("sync_directory", "replaced weight file"),
        ("sync_directory", "edit package"), ("sync_directory", "repack to package"), ("sync_tree", "repack package"),
        ("sync_tree", "merge functions"), ("sync_tree", "extract npy"),
    ], named=[("sync", "append"), ("sync", "edit package"), ("sync_directory", "replaced weight file"), ("sync_tree", "extract npy")]),
)  # fmt: skip
def test_a_missing_sync_is_seen(faults, tmp_path, what, name):
    """The model is not blind: without one of the syncs some state is neither the old nor the new one."""
    case = Case(name, tmp_path / "run")
    for state in states_of(faults, case, act_without, [what]).states:
        shutil.rmtree(case.folder)
        state.write(case.folder)
        try:
            case.require_whole("", state.is_end)
        except AssertionError:
            return
    raise AssertionError(f"{name} without {what}: expected a state that is neither old nor new, got none")


@pytest.mark.parametrize(
    "name", some(["append after a tail", "edit package", "edit weight file", "complete an edit", "repack package"], 2)
)
def test_power_fails_twice(faults, tmp_path, name):
    """It fails again while what the first failure left is completed, or done once more."""
    case = Case(name, tmp_path / "run")
    states = states_of(faults, case, act, []).states
    chance, looked_at = random.Random(name), 0
    pending = {state for state in states if any("milblob-journal" in path for path in state.tree)}
    for first in sorted(chance.sample(states, len(states)), key=lambda state: state not in pending):
        if looked_at == sized(3, 60):
            break
        shutil.rmtree(case.folder)
        first.write(case.folder)
        if first not in pending and case.see() != case.old:
            continue  # done already
        disk = Disk(case.folder, seed=name, limit=sized(40, 300), has_drafts=sized(False, True))
        disk.replay(faults.record(act, [name, str(case.folder)], root=case.folder))
        for state in disk.states:
            shutil.rmtree(case.folder)
            state.write(case.folder)
            case.require_whole((name, first.moment, state.moment, sorted(state.tree)), state.is_end, not state.is_end)
        looked_at += 1
    assert looked_at
    print(f"{name}, twice: {looked_at} first states, {case.seen}")
