"""`make onnxmltools`: the tests of milblob.onnxmltools in the environment of one version of ONNXMLTools.

python tests/onnxmltools/live.py
"""

import pathlib
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
warnings.simplefilter("ignore")

import onnx  # noqa: E402
import onnxmltools  # noqa: E402

from onnxmltools_models import MODELS, PUBLIC, require_own, require_public  # noqa: E402

print(f"onnxmltools {onnxmltools.__version__}, onnx {onnx.__version__}")
for name in MODELS:
    with tempfile.TemporaryDirectory() as folder:
        if name in PUBLIC:
            require_public(name, pathlib.Path(folder))
            print(f"{name}: equal, by its own Topology and by onnxmltools.convert_coreml")
        else:
            require_own(name, pathlib.Path(folder))
            print(f"{name}: equal")
