"""The modules of bench/, which have no package, for the tests of the benchmarks."""

import contextlib
import sys

from paths import ROOT

BENCH = ROOT / "bench"
NAMES = "machine", "makers", "results", "table", "plot", "report", "against", "run"


@contextlib.contextmanager
def bench_modules():
    """Import them by name; modules of the same names are in their place again afterwards."""
    before = {name: sys.modules.pop(name, None) for name in NAMES}
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: __import__(name) for name in NAMES}
    finally:
        sys.path.remove(str(BENCH))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
