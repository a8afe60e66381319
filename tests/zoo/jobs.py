"""What milblob is asked about one network of the zoo; each job returns a dict of what it measured.

A job that raises is a failure; its words are kept. What counts as right is in LIMITS.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import milblob
import milblob.onnx

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from compress_coremltools import theirs

LIMITS = {"FLOAT32": 1e-4, "FLOAT16": 2e-2}
"""Largest difference of an output from torch's, as a share of the range of torch's."""

_RECIPES = {
    "int8": (milblob.Linear("int8"), [("linear", {"mode": "linear_symmetric", "dtype": "int8"})]),
    "int4": (
        milblob.Linear("int4", granularity="per_block", block=32),
        [("linear", {"mode": "linear_symmetric", "dtype": "int4", "granularity": "per_block", "block_size": 32})],
    ),
    "palette": (milblob.Palette(4), [("palettize", {"mode": "kmeans", "nbits": 4})]),
}
"""Kind of compression -> milblob's recipe, and coremltools' steps."""


def check(place, note):
    """No error and no warning about a model that coremltools has just made."""
    found = [f for f in milblob.check(place / "base.mlpackage") if f.severity != "note"]
    return {"findings": [f"{f.code} {f.message}"[:200] for f in found[:5]], "good": not found}


def onnx(place, note):
    """The model as ONNX computes what torch computes."""
    return _outputs(place / "base.mlpackage", place, "base", note)


def refit(place, note):
    """The model of the base, refitted with the tuned checkpoint, is the model of the tuned network."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "m.mlpackage"
        shutil.copytree(place / "base.mlpackage", model)
        report = milblob.refit(model, place / "tuned.safetensors", base=place / "base.safetensors")
        found = {"weights": len(report.changes), **_differences(model, place / "tuned.mlpackage")}
        found |= _outputs(model, place, "tuned", note)
    return found


def text(place, note):
    """MIL text of the model is read back as the same model."""
    with tempfile.TemporaryDirectory() as folder:
        data = place / "base.mlpackage" / "Data" / "com.apple.CoreML"
        if (data / "weights").exists():
            shutil.copytree(data / "weights", Path(folder) / "weights")
        with (Path(folder) / "model.mil").open("wb") as file:
            milblob.to_text(place / "base.mlpackage", file)
        hashes = [str(milblob.content_hash(path)) for path in (Path(folder) / "model.mil", place / "base.mlpackage")]
        return {"good": hashes[0] == hashes[1]}


def repack(place, note):
    """Repacked with other options and back, the model says and holds the same."""
    with tempfile.TemporaryDirectory() as folder:
        there, back = Path(folder) / "there.mlpackage", Path(folder) / "back.mlpackage"
        milblob.repack(place / "base.mlpackage", there, align=4096)
        milblob.repack(there, back, align=64)
        hashes = {str(milblob.content_hash(path)) for path in (place / "base.mlpackage", there, back)}
    return {"hashes": len(hashes), "good": len(hashes) == 1}


def compress(place, note):
    """The same weights are compressed as by coremltools.optimize, with an error that is at most theirs."""
    found = {"good": True}
    with milblob.open(place / "base.mlpackage") as model, tempfile.TemporaryDirectory() as folder:
        for kind, (recipe, steps) in _RECIPES.items():
            ours, reference = Path(folder) / f"ours_{kind}.mlpackage", Path(folder) / f"theirs_{kind}.mlpackage"
            refused = theirs(place / "base.mlpackage", steps, reference)
            try:
                milblob.compress(place / "base.mlpackage", ours, recipe)
            except milblob.MilblobError as error:
                found[kind] = f"refused: {error}"[:120]
                found["good"] = found["good"] and refused is not None
                continue
            if refused is not None:
                found[kind] = f"theirs refused: {refused}"[:120]
                continue
            dense = {name: np.asarray(tensor.read()) for name, tensor in model.items()}
            mine, his = (_squared_errors(path, dense) for path in (ours, reference))
            worse = [name for name in mine.keys() & his.keys() if mine[name] > his[name] * (1 + 1e-6)]
            found[kind] = {
                "weights": len(mine), "only ours": len(mine.keys() - his.keys()), "only theirs": len(his.keys() - mine.keys()),
                "worse": worse[:3], "error": sum(mine.values()) / max(sum(his.values()), 1e-300),
            }  # fmt: skip
            found["good"] = found["good"] and mine.keys() == his.keys() and not worse
    return found


def _squared_errors(path, dense):
    """Return for each compressed weight the sum of its squared errors."""
    found = {}
    with milblob.open(path) as model:
        for name, tensor in model.items():
            if tensor.chain is not None:
                short = name
                while short not in dense and short.rpartition("_")[0]:
                    short = short.rpartition("_")[0]
                found[short] = float(((np.asarray(tensor.read()).astype(np.float64) - dense[short]) ** 2).sum())
    return found


def _differences(a, b):
    """Count the elements of constants that differ, and the largest difference in units of the last place."""
    count, worst, total = 0, 0.0, 0
    with milblob.open(a, constants=True) as ours, milblob.open(b, constants=True) as theirs:
        ours_of, theirs_of = _by_reader(ours), _by_reader(theirs)
        missing = [key for key in theirs_of if key not in ours_of]
        for key in ours_of.keys() & theirs_of.keys():
            if "FLOAT" not in ours_of[key].mil_dtype.name:
                continue
            x, y = (np.asarray(t.read()).reshape(-1) for t in (ours_of[key], theirs_of[key]))
            if x.shape != y.shape:
                missing.append(key)
                continue
            total += x.size
            differ = x.tobytes() != y.tobytes() and int(np.count_nonzero(x != y))
            if differ:
                count += differ
                wide = np.abs(x.astype(np.float64) - y.astype(np.float64))
                with np.errstate(all="ignore"):
                    worst = max(
                        worst, float(np.nanmax(wide / np.spacing(np.maximum(np.abs(y), np.finfo(y.dtype).tiny))))
                    )
    return {"elements": total, "differ": count, "ulp": round(worst, 1), "other constants": len(missing)}


def _by_reader(model):
    return {(use.op, use.name, use.parameter): tensor for tensor in model.values() for use in tensor.consumers}


def _outputs(model, place, kind, note):
    with np.load(place / "io.npz") as arrays:
        inputs = {name: arrays[name] for name in arrays.files if name.startswith("x")}
        wanted = arrays[kind].astype(np.float64)
    with milblob.Session(model) as session:
        got = np.asarray(next(iter(session.predict(inputs).values()))).astype(np.float64)
    error = float(np.abs(got - wanted).max() / max(np.ptp(wanted), 1e-30))
    return {"error": error, "good": error <= LIMITS[note["precision"]]}


JOBS = {"check": check, "onnx": onnx, "refit": refit, "text": text, "repack": repack, "compress": compress}
