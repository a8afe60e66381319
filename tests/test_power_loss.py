"""Every state in which a disk may be after a power failure, of everything that writes: opened, it is the old or the new one.

tests/powerloss.py has the model. MILBLOB_THOROUGH=1 looks at more combinations where there are too many for all of them.
"""

import shutil
import stat
import sys

import pytest

from powerloss import Disk
from test_faults import Case, snapshot
from thorough import sized
from writers import WRITERS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and a library to preload")

SAFE = [name for name, writer in WRITERS.items() if writer.is_durable]


def states_of(faults, case, action, arguments):
    """What the disk may hold after the action, which is run once."""
    case.make()
    disk = Disk(case.folder, seed=case.name, limit=sized(150, 3000))
    disk.replay(faults.record(action, [*arguments, case.name, str(case.folder)], root=case.folder))
    assert any(state.is_end for state in disk.states)
    return disk


@pytest.mark.parametrize("name", SAFE)
def test_every_state(faults, tmp_path, name):
    case = Case(name, tmp_path / "run")
    disk = states_of(faults, case, "writers:act", [])
    after = {path: stat.S_IMODE(mode) for path, (mode, _) in snapshot(case.folder).items() if not stat.S_ISLNK(mode)}
    for number, state in enumerate(disk.states):
        shutil.rmtree(case.folder)
        state.write(case.folder)
        words = (name, number, state.moment, sorted(state.tree))
        if state.is_end:
            assert state.modes() == after, words
        case.require_whole(words, state.is_end)
    print(f"{name}: {disk.moments} moments, {disk.combinations} combinations, {len(disk.states)} states, {case.seen}")


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("sync", "new weight file"), ("sync", "append"), ("sync", "edit package"), ("sync", "edit blobs of package"),
        ("sync", "complete an edit"), ("sync", "refit to file"), ("sync", "extract npz"), ("sync_directory", "weight file anew"),
        ("sync_directory", "edit package"), ("sync_directory", "repack to package"), ("sync_tree", "repack package"),
        ("sync_tree", "merge functions"), ("sync_tree", "extract npy"),
    ],
)  # fmt: skip
def test_a_missing_sync_is_seen(faults, tmp_path, what, name):
    """The model is not blind: without one of the syncs some state is neither the old nor the new one."""
    case = Case(name, tmp_path / "run")
    for state in states_of(faults, case, "writers:act_without", [what]).states:
        shutil.rmtree(case.folder)
        state.write(case.folder)
        try:
            case.require_whole("", state.is_end)
        except AssertionError:
            return
    raise AssertionError(f"{name} without {what}: expected a state that is neither old nor new, got none")
