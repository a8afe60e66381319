"""Converts a network of the zoo with the weights of a base and with those of a tuned checkpoint, into a folder.

The folder has base.mlpackage and tuned.mlpackage, base.safetensors and tuned.safetensors, and io.npz: the inputs, and torch's
outputs of both. made.json says with which opset and precision; or what coremltools said where it did not convert.
"""

import copy
import json
import logging
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from architectures import NETWORKS, SEED, random_weights

OPSETS = ("iOS15", "iOS16", "iOS17", "iOS18")
PRECISIONS = ("FLOAT16", "FLOAT32")
VARIANTS = [(opset, precision) for opset in OPSETS for precision in PRECISIONS]


def variant_of(name):
    """Return the opset and precision of a network where it is converted once: each takes its turn."""
    return VARIANTS[list(NETWORKS).index(name) % len(VARIANTS)]


def second_of(name):
    """Return another opset, and the other precision, in the same way."""
    return VARIANTS[(VARIANTS.index(variant_of(name)) + 5) % len(VARIANTS)]


def made(name, folder):
    """Convert a network, unless that was done; return what made.json says. NAME@OPSET.PRECISION is a variant of it."""
    name, _, variant = name.partition("@")
    opset, precision = variant.split(".") if variant else variant_of(name)
    place = Path(folder) / f"{name}{'@' if variant else ''}{variant}".replace("/", "__")
    note = place / "made.json"
    if note.exists():
        return place, json.loads(note.read_text())
    place.mkdir(parents=True, exist_ok=True)
    found = {"name": name, "opset": opset, "precision": precision, "error": None}
    try:
        _make(name, place, opset, precision)
    except Exception as error:  # coremltools and the libraries of networks raise anything
        found["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[
            :300
        ]
    note.write_text(json.dumps(found))
    return place, found


def _make(name, place, opset, precision):
    import coremltools as ct
    from safetensors.torch import save_file

    torch.manual_seed(SEED)
    network, inputs = NETWORKS[name]()
    network.eval()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    outputs = {}
    for seed, kind in enumerate(("base", "tuned"), SEED):
        tuned = copy.deepcopy(network)
        random_weights(tuned, seed)
        state = {key: value.detach().clone().contiguous() for key, value in tuned.state_dict().items()}
        save_file(state, place / f"{kind}.safetensors")
        with torch.no_grad():
            outputs[kind] = tuned(*inputs).numpy()
            traced = torch.jit.trace(tuned, inputs, check_trace=False)
        types = [
            ct.TensorType(f"x{at}", shape=value.shape, dtype=np.float32 if value.is_floating_point() else np.int32)
            for at, value in enumerate(inputs)
        ]
        model = ct.convert(
            traced, inputs=types, outputs=[ct.TensorType("y", dtype=np.float32)], convert_to="mlprogram", skip_model_load=True,
            minimum_deployment_target=getattr(ct.target, opset), compute_precision=getattr(ct.precision, precision),
        )  # fmt: skip
        model.save(str(place / f"{kind}.mlpackage"))
    arrays = {f"x{at}": value.numpy() for at, value in enumerate(inputs)}
    np.savez(place / "io.npz", **arrays, base=outputs["base"], tuned=outputs["tuned"])


def quiet():
    """Stop the libraries from saying what they do."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # which coremltools does not know


if __name__ == "__main__":
    import sys
    import time

    quiet()
    for one in sys.argv[2:]:
        begin = time.monotonic()
        _, note = made(one, sys.argv[1])
        print(f"{one} {time.monotonic() - begin:.0f} s {note['error'] or 'converted'}", flush=True)
