"""Turns MIL builder programs into packages whose bytes do not change from run to run."""

import json
import os
import uuid

import coremltools as ct

import record

DATE = "com.github.apple.coremltools.conversion_date"


def settle(package):
    """Rewrites what changes from run to run: map and dictionary order, the conversion date, manifest identifiers."""
    path = record.find_spec(package)
    spec = record.read_spec(path)
    for _, model in [("", spec), *record.walk_models(spec)]:
        model.description.metadata.userDefined.pop(DATE, None)
        if model.WhichOneof("Type") == "mlProgram" and "buildInfo" in model.mlProgram.attributes:
            pairs = model.mlProgram.attributes["buildInfo"].immediateValue.dictionary.values
            pairs.sort(key=lambda pair: pair.key.immediateValue.tensor.strings.values[0])
    save_spec(spec, path)
    manifest_path = os.path.join(package, "Manifest.json")
    with open(manifest_path, encoding="utf-8") as file:
        manifest = json.load(file)
    entries, root = {}, manifest["rootModelIdentifier"]
    for key, item in sorted(manifest["itemInfoEntries"].items(), key=lambda pair: pair[1]["path"]):
        entries[str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])).upper()] = item
        if key == root:
            manifest["rootModelIdentifier"] = str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])).upper()
    manifest["itemInfoEntries"] = entries
    with open(manifest_path, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=4)
        file.write("\n")


def save_spec(spec, path):
    """Writes a Model message, maps sorted by key."""
    with open(path, "wb") as file:
        file.write(spec.SerializeToString(deterministic=True))


def convert(program, target, half=False, optimize=False, **options):
    """Runs ct.convert; no passes unless `optimize`, so that constants stay as the builder made them."""
    precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    if not optimize:
        options["pass_pipeline"] = ct.PassPipeline.EMPTY
    return ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=target, compute_precision=precision,
        skip_model_load=True, **options,
    )  # fmt: skip


def save(model, folder, name="model.mlpackage"):
    """Saves a model as a settled package; returns its path."""
    path = os.path.join(folder, name)
    model.save(path)
    settle(path)
    return path


def edit(package, change):
    """Applies change(spec) to a package's model file."""
    path = record.find_spec(package)
    spec = record.read_spec(path)
    change(spec)
    save_spec(spec, path)
