"""`make onnx`: models of coremltools.optimize in every scheme, converted as they are and decompressed, bit for bit.

    python tests/onnx/compressed.py [pattern ...]

Needs coremltools, onnxruntime and scikit-learn (for vectors).
"""

import contextlib
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import onnx_compressed


def main(patterns):
    """Run the cases whose names contain one of the patterns; print one line for each."""
    failed = 0
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as null:
        bases = {}
        for case in onnx_compressed.CASES:
            words = onnx_compressed.name(case)
            if patterns and not any(pattern in words for pattern in patterns):
                continue
            with contextlib.redirect_stderr(null):
                if case[:2] not in bases:
                    bases[case[:2]] = pathlib.Path(name) / f"{case[0]}-{case[1]}.mlpackage"
                    onnx_compressed.save_base(bases[case[:2]], *case[:2])
                folder = pathlib.Path(name) / "case"
                folder.mkdir(exist_ok=True)
                different, kinds, copied = onnx_compressed.compare(case, bases[case[:2]], folder)
            failed += bool(different)
            nodes = ", ".join(f"{kinds[kind]} {kind}" for kind in ("DequantizeLinear", "GatherElements") if kinds[kind])
            why = "; ".join(f"{count} {reason}" for reason, count in copied.items())
            print(
                f"{words}: {'DIFFERENT ' + ', '.join(different) if different else 'equal'}; {nodes} [{why}]", flush=True
            )
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
