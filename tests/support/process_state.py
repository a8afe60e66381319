"""What a process keeps from test to test, made as it was: each fixture and each test begins in the same way.

These are the random generators that test modules and helpers share, and the numbers that coremltools puts behind names:
it counts them for all Programs of a process, until one is converted. Else the values and names in a test would depend
on which tests the same worker ran before it, and that on how fast the other workers are.
"""

import random
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]

_KEPT: list = []  # functions, one for each generator, that bring it back to its state after all imports


def keep_state():
    """Find the generators of all modules below `tests` that are imported, and keep the states that they have now."""
    _KEPT.clear()
    seen = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is None or TESTS not in Path(file).parents:
            continue
        for value in vars(module).values():
            if isinstance(value, np.random.Generator | random.Random) and id(value) not in seen:
                seen.add(id(value))
                _KEPT.append(_restart(value))


def _restart(generator):
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    bits, state = generator.bit_generator, generator.bit_generator.state
    return lambda: setattr(bits, "state", state)


def restore_state():
    """Bring back all generators, and let coremltools count from zero."""
    for restart in _KEPT:
        restart()
    builder = sys.modules.get("coremltools.converters.mil.mil.builder")
    if builder is not None:
        builder.Builder.name_count.clear()
