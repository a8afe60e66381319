"""Compiled models and packages that say the same, and whether they still do."""

import pathlib
import shutil

import milblob
from cases import model_directory
from hostile_bytes import field
from milblob import _codec
from milblob.program.plain import parse_text

SPEC_VERSIONS = {"CoreML5": 6, "CoreML6": 7, "CoreML7": 8, "CoreML8": 9, "CoreML9": 10}
FEATURES = "coremldata.bin"


def compiled_of(package, folder, name="m.mlmodelc"):
    """A compiled model with the text of a package's Program, and its weights. Returns its path."""
    target = pathlib.Path(folder, name)
    target.mkdir(parents=True)
    with milblob.open(package) as model, open(target / "model.mil", "wb") as file:
        milblob.to_text(model, file)
    weights = model_directory(pathlib.Path(package)) / "weights"
    if weights.is_dir():
        shutil.copytree(weights, target / "weights")
    (target / FEATURES).write_bytes(b"described")
    return target


def package_of(compiled, folder, name="m.mlpackage"):
    """A package with the Program that a compiled model's text says, and its weights. Returns its path."""
    compiled, target = pathlib.Path(compiled), pathlib.Path(folder, name)
    inside = target / "Data" / "com.apple.CoreML"
    inside.mkdir(parents=True)
    program = parse_text(_codec.Buffer((compiled / "model.mil").read_bytes()))
    with milblob.open(compiled) as model:
        version = SPEC_VERSIONS[next(iter(model.functions.values())).opset]
    (inside / "model.mlmodel").write_bytes(field(1, version) + field(502, program))
    if (compiled / "weights").is_dir():
        shutil.copytree(compiled / "weights", inside / "weights")
    entry = '{"itemInfoEntries": {"A": {"path": "com.apple.CoreML/model.mlmodel"}}, "rootModelIdentifier": "A"}'
    (target / "Manifest.json").write_text(entry)
    return target


def differences(a, b):
    """What two models do not share: values by name, dense ones, Programs as messages."""
    found = []
    for options in ({"constants": True, "stored": True}, {}):
        one, other = contents(a, **options), contents(b, **options)
        found += [("value", name) for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    with milblob.open(a) as first, milblob.open(b) as second:
        found += [("Program", name) for name in first.programs if first.programs[name] != second.programs[name]]
    return found


def contents(path, **options):
    """Every value of a model: name -> (dtype, shape, bytes or strings)."""
    with milblob.open(path, **options) as model:
        return {
            name: (str(t.mil_dtype), t.shape, t.read().tolist() if t.dtype == object else t.read().tobytes())
            for name, t in model.items()
        }


def records_of(path):
    """The bytes of all weight files of a model."""
    return sorted(p.read_bytes() for p in pathlib.Path(path).rglob("weights/*.bin"))
