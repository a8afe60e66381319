"""Models on the Hugging Face Hub, through huggingface_hub: against a stub of its API on loopback."""

import numpy as np
import pytest

import milblob
from hub_server import REPOSITORY, Hub
from peers import WITHOUT
from remote_server import files_below
from repacking import FILE, simple_package

pytest.importorskip("huggingface_hub", reason=WITHOUT["huggingface_hub"])
WEIGHTS = f"m.mlpackage/{FILE}"
COUNT, NBYTES = 8, 400_000


@pytest.fixture
def package(tmp_path):
    random = np.random.default_rng(3)
    return simple_package(tmp_path, [random.random(NBYTES // 4).astype("<f4").tobytes() for _ in range(COUNT)])


@pytest.fixture
def hub(package):
    hub = Hub(files_below(package, "m.mlpackage/") | {"README.md": b"a model"}, token="hf_s3cr3t")
    hub.model = f"hf://{REPOSITORY}/m.mlpackage"
    hub.options = {"endpoint": hub.url, "token": hub.token}
    yield hub
    hub.close()


def test_values_are_those_of_the_local_package(hub, package):
    expected = milblob.load(package)
    found = milblob.load(hub.model, storage_options=hub.options)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    pinned = hub.model.replace("/m.", "@main/m.")
    with milblob.open(pinned, storage_options=hub.options) as model:
        assert model.path == pinned and np.array_equal(model["w0"].read(), expected["w0"])


def test_listing_reads_no_weight_and_a_tensor_its_own_bytes(hub, package):
    with milblob.open(hub.model, storage_options=hub.options) as model:
        assert len(model) == COUNT
        assert not any(path == WEIGHTS for path, *_ in hub.ranges)
        assert np.array_equal(model["w3"].read(), milblob.load(package)["w3"])
        assert model["w3"].file == f"{hub.model}/{FILE}"
    assert sum(end - begin for path, begin, end in hub.ranges if path == WEIGHTS) < NBYTES + (128 << 10)


def test_file_that_is_replaced_is_refused(hub):
    with milblob.open(hub.model, storage_options=hub.options) as model:
        model["w0"].read()
        data = bytearray(hub.files[WEIGHTS])
        data[-1] ^= 1
        hub.files[WEIGHTS] = bytes(data)
        with pytest.raises(milblob.FormatError, match="it changed"):
            model["w7"].read()


def test_wrong_token_and_missing_repository_are_errors(hub):
    cases = [
        (hub.model, {**hub.options, "token": "hf_wr0ng"}),
        ("hf://someone/none/m.mlpackage", hub.options),
        (f"hf://{REPOSITORY}/none.mlpackage", hub.options),
    ]
    for url, options in cases:
        with pytest.raises(OSError, match=r"\.mlpackage") as caught:
            milblob.open(url, storage_options=options)
        assert options["token"] not in str(caught.value)


def test_cache_is_keyed_by_the_version(hub, package, tmp_path):
    for is_first in (True, False):
        hub.ranges.clear()
        found = milblob.load(hub.model, storage_options=hub.options, cache=tmp_path / "cache")
        assert all(np.array_equal(found[name], array) for name, array in milblob.load(package).items())
        assert bool(hub.ranges) is is_first
    assert not any(hub.token.encode() in path.read_bytes() for path in (tmp_path / "cache").iterdir())


def test_download_fetches_the_files_of_the_model(hub, package, tmp_path):
    found = milblob.download(hub.model, tmp_path / "into", storage_options=hub.options)
    assert files_below(tmp_path / "into") == files_below(package, "m.mlpackage/")
    assert found.hash == milblob.content_hash(package).model
