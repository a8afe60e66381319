"""Where the repository is, and the models in it that tests read."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "examples" / "demo.mlpackage"
SAMPLES = pathlib.Path(os.environ.get("MILBLOB_SAMPLES") or ROOT.parent / "shared" / "samples")  # may be absent
