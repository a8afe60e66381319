"""Runs `tests/onnx/conformance.py` for a test."""

import json
import pathlib
import subprocess
import sys
import tempfile

from children import child_environment

SCRIPT = pathlib.Path(__file__).parents[1] / "onnx" / "conformance.py"


def run(share, timeout=600):
    """The rows of a share of the cases, run in one process."""
    with tempfile.TemporaryDirectory() as place:
        results = pathlib.Path(place) / "rows.json"
        command = [sys.executable, str(SCRIPT), "--jobs", "1", "--share", str(share), "--json", str(results)]
        done = subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return [row for row in json.loads(results.read_text("utf-8")) if row["result"] != "left out"]
