"""Where the repository is, and the models in it that tests read."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "examples" / "demo.mlpackage"
