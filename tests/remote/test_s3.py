"""Models in a bucket, through s3fs: against the server of moto, which speaks the protocol of S3."""

import numpy as np
import pytest

import milblob
from milblob.remote.filesystem import FileSystemFile
from peers import WITHOUT
from remote_server import files_below
from repacking import FILE, simple_package

pytest.importorskip("s3fs", reason=WITHOUT["s3fs"])
moto = pytest.importorskip("moto.server", reason=WITHOUT["moto"])
SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def endpoint():
    server = moto.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint, tmp_path):
    """A bucket with a package of three weights of 200 kB."""
    import boto3

    random = np.random.default_rng(3)
    package = simple_package(tmp_path, [random.random(50_000).astype("<f4").tobytes() for _ in range(3)])
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key=SECRET
    )
    name = f"b-{abs(hash(tmp_path))}"
    client.create_bucket(Bucket=name)

    class Bucket:
        url = f"s3://{name}/models/m.mlpackage"
        local = package
        options = {
            "key": "key", "secret": SECRET, "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"},
        }  # fmt: skip

        def put(self, path, data):
            client.put_object(Bucket=name, Key=path, Body=data)

    made = Bucket()
    for path, data in files_below(package, "models/m.mlpackage/").items():
        made.put(path, data)
    return made


@pytest.fixture
def reads(monkeypatch):
    """(name, offset, nbytes) of the ranges that were fetched."""
    found, read = [], FileSystemFile.read

    def spy(self, offset, nbytes):
        found.append((self.name, offset, nbytes))
        return read(self, offset, nbytes)

    monkeypatch.setattr(FileSystemFile, "read", spy)
    return found


def test_values_are_those_of_the_local_package(bucket, reads):
    expected = milblob.load(bucket.local)
    found = milblob.load(bucket.url, storage_options=bucket.options)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())
    assert milblob.content_hash(bucket.url, storage_options=bucket.options) == milblob.content_hash(bucket.local)


def test_listing_reads_no_weight_and_a_tensor_its_own_bytes(bucket, reads):
    with milblob.open(bucket.url, storage_options=bucket.options) as model:
        assert len(model) == 3
        assert not any(FILE in name for name, *_ in reads)
        assert np.array_equal(model["w1"].read(), milblob.load(bucket.local)["w1"])
    assert sum(nbytes for name, _, nbytes in reads if FILE in name) < 250_000


def test_object_that_is_replaced_is_refused(bucket):
    with milblob.open(bucket.url, storage_options=bucket.options) as model:
        model["w0"].read()
        data = bytearray((bucket.local / FILE).read_bytes())
        data[-1] ^= 1
        bucket.put(f"models/m.mlpackage/{FILE}", bytes(data))
        with pytest.raises(milblob.FormatError, match="it changed"):
            model["w2"].read()


def test_missing_objects_and_buckets_are_errors(bucket):
    for url in (bucket.url.replace("m.mlpackage", "none.mlpackage"), "s3://no-such-bucket/m.mlpackage"):
        with pytest.raises(OSError, match=r"\.mlpackage") as caught:
            milblob.open(url, storage_options=bucket.options)
        assert SECRET not in str(caught.value)


def test_cache_is_keyed_by_the_etag(bucket, reads, tmp_path):
    for is_first in (True, False):
        reads.clear()
        found = milblob.load(bucket.url, storage_options=bucket.options, cache=tmp_path / "cache")
        assert all(np.array_equal(found[name], array) for name, array in milblob.load(bucket.local).items())
        assert bool(reads) is is_first
    assert not any(SECRET.encode() in path.read_bytes() for path in (tmp_path / "cache").iterdir())


def test_download_fetches_every_object(bucket, tmp_path):
    found = milblob.download(bucket.url, tmp_path / "into", storage_options=bucket.options)
    assert files_below(tmp_path / "into" / "m.mlpackage") == files_below(bucket.local)
    assert found.hash == milblob.content_hash(bucket.local).model
