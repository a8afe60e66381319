"""Small language models, made once."""

import pytest

from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

import coremltools as ct

import milblob
from language_models import transformer


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Name -> package: float32 and float16, with caches, for iOS 15, of two functions, with compressed weights."""
    folder = tmp_path_factory.mktemp("transformers")
    found = {
        "float32": transformer(folder / "float32.mlpackage"),
        "caches": transformer(folder / "caches.mlpackage", states=True),
        "half": transformer(folder / "half.mlpackage", half=True),
        "ios15": transformer(folder / "ios15.mlpackage", half=True, target=ct.target.iOS15),
        "one cache": transformer(folder / "one-cache.mlpackage", states=True, shared_state=True),
    }
    decode = transformer(folder / "decode.mlpackage", length=1, states=True)
    found["functions"] = folder / "functions.mlpackage"
    milblob.merge_functions([(found["caches"], "prefill"), (decode, "decode")], found["functions"])
    for name, recipe in (
        ("int4", milblob.Linear("int4", granularity="per_block", block=16)),
        ("palette", milblob.Palette(4)),
    ):
        found[name] = folder / f"{name}.mlpackage"
        milblob.compress(found["float32"], found[name], recipe, scope=milblob.Scope(min_size=64))
    return found
