"""What milblob is asked about one network of the zoo; each job returns a dict of what it measured.

A job that raises is a failure; its words are kept. What counts as right is in LIMITS.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import milblob

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from compress_coremltools import theirs
from consumers import uses

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

_REFITTED = ("int8", "palette")
"""Kinds of compression of the models that are refitted."""

_MAX_GAP = {"int8": 0.1, "palette": 0.2}
"""dB that a requantized weight may lose against a compressed conversion; what was computed wrongly loses many."""

_MAX_RATIO = 3.0
"""Times the error of a compressed conversion that an output may have: both errors are those of rounding, and few numbers."""


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
    with np.load(place / "io.npz") as arrays:  # how much the outputs say about the weights
        found["moved"] = float(np.abs(arrays["tuned"] - arrays["base"]).max() / max(np.ptp(arrays["tuned"]), 1e-30))
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
    opset = int(note["opset"].removeprefix("iOS"))
    with milblob.open(place / "base.mlpackage") as model, tempfile.TemporaryDirectory() as folder:
        for kind, (recipe, steps) in _RECIPES.items():
            if opset < recipe.opset:
                continue
            ours, reference = Path(folder) / f"ours_{kind}.mlpackage", Path(folder) / f"theirs_{kind}.mlpackage"
            refused = theirs(place / "base.mlpackage", steps, reference)
            milblob.compress(place / "base.mlpackage", ours, recipe)
            if refused is not None:
                found[kind] = f"theirs refused: {type(refused).__name__}: {refused}"[:200]
                continue
            dense = {_reader_of(tensor): np.asarray(tensor.read()) for tensor in model.values()}
            mine, his = (_squared_errors(path, dense) for path in (ours, reference))
            both = mine.keys() & his.keys()
            worse = {name: mine[name] / his[name] for name in both if mine[name] > his[name] * (1 + 1e-6)}
            found[kind] = {
                "weights": len(mine), "only ours": sorted(mine.keys() - his.keys()), "only theirs": sorted(his.keys() - mine.keys()),
                "worse": {name: worse[name] for name in sorted(worse, key=worse.get, reverse=True)[:5]}, "count of worse": len(worse),
                "error": sum(mine[name] for name in both) / max(sum(his[name] for name in both), 1e-300),
            }  # fmt: skip
            found["good"] = found["good"] and bool(mine) and mine.keys() == his.keys() and not worse
    return found


def refit_compressed(place, note):
    """The compressed model of the base, refitted with new codes, is as good as the compressed model of the tuned network."""
    found = {"good": True}
    opset = int(note["opset"].removeprefix("iOS"))
    for kind in _REFITTED:
        recipe = _RECIPES[kind][0]
        if opset < recipe.opset:
            continue
        with tempfile.TemporaryDirectory() as folder:
            model, reference = Path(folder) / "m.mlpackage", Path(folder) / "tuned.mlpackage"
            milblob.compress(place / "base.mlpackage", model, recipe)
            milblob.compress(place / "tuned.mlpackage", reference, recipe)
            try:
                milblob.refit(model, place / "tuned.safetensors", base=place / "base.safetensors", requantize="fit")
            except (ValueError, milblob.MilblobError) as error:
                found[kind] = {"words": f"{type(error).__name__}: {error}".splitlines()[0][:1500]}
                found["good"] = False
                continue
            row = found[kind] = _requantized(model, reference, place / "tuned.mlpackage")
            ours, theirs = (_outputs(path, place, "tuned", note)["error"] for path in (model, reference))
            row |= {"output": ours, "output of a conversion": theirs}
            row["right"] = ours <= _MAX_RATIO * theirs + LIMITS[note["precision"]]
            is_near = not row["least gap"] < -_MAX_GAP[kind] and not row["other constants"]
            found["good"] = found["good"] and row["right"] and is_near
    return found


def _requantized(model, reference, dense):
    """Compare two models with compressed weights, by the dense weights that both stand for.

    Returns:
        How many weights are compressed and have equal bits in both; the least SQNR of each, in dB, and the least gap
        between both; how many of the other constants differ.
    """
    with milblob.open(model, constants=True) as a, milblob.open(reference, constants=True) as b:
        ours, theirs = _by_reader(a), _by_reader(b)
        row = {
            "weights": 0,
            "equal": 0,
            "elements": 0,
            "differ": 0,
            "other constants": sum(key not in ours for key in theirs),
        }
        with milblob.open(dense, constants=True) as c:
            wanted, gaps, least = _by_reader(c), [], [[], []]
            for key in ours.keys() & theirs.keys():
                if theirs[key].mil_dtype is milblob.DType.STRING:
                    continue
                x, y = (np.asarray(tensors[key].read()) for tensors in (ours, theirs))
                is_equal = x.tobytes() == y.tobytes()
                if theirs[key].chain is None:
                    row["other constants"] += not is_equal
                    continue
                row["weights"] += 1
                row["equal"] += is_equal
                row["elements"] += x.size
                row["differ"] += int(np.count_nonzero(x != y))
                both = [_sqnr(values, np.asarray(wanted[key].read())) for values in (x, y)]
                gaps.append(both[0] - both[1])
                for values, one in zip(least, both, strict=True):
                    values.append(one)
    worst = [round(min(values), 2) if values else None for values in least]
    return {**row, "least": worst[0], "least of a conversion": worst[1], "least gap": round(min(gaps, default=0.0), 2)}


def _sqnr(values, wanted):
    wide = wanted.astype(np.float64)
    noise = np.square(values.astype(np.float64) - wide).sum()
    return float(10 * np.log10(np.square(wide).sum() / noise)) if noise else 999.0


def _squared_errors(path, dense):
    """Return for each compressed weight, by its first reader, the sum of its squared errors."""
    with milblob.open(path) as model:
        weights = {_reader_of(tensor): tensor for tensor in model.values() if tensor.chain is not None}
        return {
            key: float(((np.asarray(tensor.read()).astype(np.float64) - dense[key]) ** 2).sum())
            for key, tensor in weights.items()
        }


def _reader_of(tensor):
    """Return the operation that reads a weight, the first of several by name: coremltools gives weights other names."""
    return min((f"{use.name}.{use.parameter}" for use in tensor.consumers), default=tensor.name)


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
    return {use: tensor for tensor in model.values() for use in uses(tensor)}


def _outputs(model, place, kind, note):
    with np.load(place / "io.npz") as arrays:
        inputs = {name: arrays[name] for name in arrays.files if name.startswith("x")}
        wanted = arrays[kind].astype(np.float64)
    with milblob.Session(model) as session:
        got = np.asarray(next(iter(session.predict(inputs).values()))).astype(np.float64)
    error = float(np.abs(got - wanted).max() / max(np.ptp(wanted), 1e-30))
    return {"error": error, "good": error <= LIMITS[note["precision"]]}


JOBS = {
    "check": check, "onnx": onnx, "refit": refit, "text": text, "repack": repack, "compress": compress,
    "refit_compressed": refit_compressed,
}  # fmt: skip
