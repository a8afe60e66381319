"""Every state in which a disk may be after a power failure, of everything that writes: opened, it is the old or the new one.

tests/powerloss.py has the model. MILBLOB_THOROUGH=1 looks at more combinations where there are too many for all of them.
"""

import shutil
import stat
import sys

import pytest

import milblob
import writers
from powerloss import Disk
from test_faults import Case, snapshot
from thorough import sized
from writers import WRITERS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and a library to preload")

SAFE = [name for name, writer in WRITERS.items() if writer.is_durable]


@pytest.mark.parametrize("name", SAFE)
def test_every_state(faults, tmp_path, name):
    case = Case(name, tmp_path / "run")
    case.make()
    disk = Disk(case.folder, seed=name, limit=sized(150, 3000))
    log = faults.record("writers:act", [name, str(case.folder)], root=case.folder)
    disk.replay(log)
    after = {path: stat.S_IMODE(mode) for path, (mode, _) in snapshot(case.folder).items() if not stat.S_ISLNK(mode)}
    assert any(state.is_end for state in disk.states)
    for number, state in enumerate(disk.states):
        shutil.rmtree(case.folder)
        state.write(case.folder)
        words = (name, number, state.moment, sorted(state.tree))
        if state.is_end:
            assert state.modes() == after, words
        case.require_whole(words, state.is_end)
    print(name, "moments", disk.moments, "states", len(disk.states), case.seen)
