"""Models on a real HTTP server on loopback: right values or one clear error, whatever the server does."""

import errno
import os
import threading
import time

import numpy as np
import pytest

import milblob
from milblob import mirrored
from milblob.remote import http, mirror
from remote_server import files_below, serving
from repacking import FILE, simple_package

MODEL = "Data/com.apple.CoreML/model.mlmodel"


@pytest.fixture
def package(tmp_path):
    """Three weights of 200 kB: more than what the first request of a file brings."""
    random = np.random.default_rng(3)
    return simple_package(tmp_path, [random.random(50_000).astype("<f4").tobytes() for _ in range(3)])


@pytest.fixture
def server(package, monkeypatch):
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.001)
    with serving(files_below(package, "m.mlpackage/")) as server:
        server.model = f"{server.url}/m.mlpackage"
        server.weights = f"m.mlpackage/{FILE}"
        yield server


def expect_same(server, package):
    found, expected = milblob.load(server.model), milblob.load(package)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def test_values_are_those_of_the_local_package(server, package):
    expect_same(server, package)
    with milblob.open(server.model) as model:
        assert model.path == server.model and model.kind == "mlpackage"
        assert model["w1"].file == f"{server.model}/{FILE}"
        assert np.array_equal(model["w1"][10:20], milblob.load(package)["w1"][10:20])


def test_no_byte_is_fetched_twice(server, package):
    with milblob.open(server.model) as model:
        for _ in range(3):
            for name in ("w2", "w0", "w1"):
                model[name].read()
    seen = set()
    for request in server.log:
        for block in range(request.begin, request.begin + request.nbytes):
            assert (request.path, block) not in seen
            seen.add((request.path, block))
    assert server.moved(FILE) <= len(server.files[server.weights])


def test_threads_share_what_is_fetched(server, package):
    expected = milblob.load(package)
    server.delay = 0.01
    with milblob.open(server.model) as model:
        failures = []

        def read(name):
            failures.extend(name for _ in range(3) if not np.array_equal(model[name].read(), expected[name]))

        threads = [threading.Thread(target=read, args=(f"w{i % 3}",)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
    assert server.moved(FILE) <= len(server.files[server.weights])


def test_tensor_is_read_after_the_model_was_dropped(server, package):
    tensor = milblob.open(server.model)["w1"]
    assert np.array_equal(tensor.read(), milblob.load(package)["w1"])


def test_closed_model_reads_nothing_more(server):
    model = milblob.open(server.model)
    array = model["w0"].read()
    kept = array.copy()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model["w1"].read()
    assert np.array_equal(array, kept)


# --------------------------------------------------------------------------------------------------------------- faults


def of_weights(server, answer, *, numbers=range(1, 1000)):
    """Answer requests for the weight file in another way: those with these numbers, of which 0 is the first."""

    def fault(handler, path, begin, end, number):
        if path != server.weights or number not in numbers:
            return False
        return answer(handler, path, begin, end) is not False

    server.fault = fault


def headers_of(handler, path, begin, end):
    return handler.range_headers(path, begin, end, len(handler.server.owner.files[path]))


def data_of(handler, path, begin, end):
    return handler.server.owner.files[path][begin:end]


def fails(server, kind=OSError):
    """What loading raises: it names the URL, and shows nothing of a partial value."""
    start = time.monotonic()
    with pytest.raises(kind) as caught:
        milblob.load(server.model)
    assert time.monotonic() - start < 20
    text = str(caught.value)
    assert server.weights in text, text
    return text


@pytest.mark.parametrize("cut", ["first byte", "middle", "last byte"])
def test_cut_connection_is_asked_again_for_the_rest(server, package, cut):
    def answer(handler, path, begin, end):
        data = data_of(handler, path, begin, end)
        nbytes = {"first byte": 0, "middle": len(data) // 2, "last byte": len(data) - 1}[cut]
        handler.cut(206, data[:nbytes], headers_of(handler, path, begin, end), len(data))

    of_weights(server, answer, numbers=(1, 2))
    expect_same(server, package)


def test_cut_in_a_header_is_asked_again(server, package):
    def answer(handler, path, begin, end):
        handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\nContent-Ran")
        handler.close_connection = True

    of_weights(server, answer, numbers=(0, 1, 2))
    expect_same(server, package)


def test_connection_that_is_always_cut_is_one_error(server):
    def answer(handler, path, begin, end):
        handler.cut(206, b"", headers_of(handler, path, begin, end), end - begin)

    of_weights(server, answer)
    text = fails(server)
    assert "GET bytes" in text and "after 5 attempts" in text


def test_server_without_ranges_names_the_download(server):
    server.has_ranges = False
    with pytest.raises(OSError, match=r"without ranges; --download DIR") as caught:
        big = server.files[server.weights] * 4
        server.files[server.weights] = big
        milblob.load(server.model)
    assert server.weights in str(caught.value)


def test_small_files_of_a_server_without_ranges_are_read(server, package):
    server.has_ranges = False
    expect_same(server, package)


@pytest.mark.parametrize("content_range", [
    "bytes 0-{last}/{size}", "bytes {begin}-{more}/{size}", "bytes {begin}-{last}/*", "", "items 0-1/2",
    "bytes {begin}-{last}/" + "9" * 30,
])  # fmt: skip
def test_wrong_content_range_is_refused(server, content_range):
    def answer(handler, path, begin, end):
        size = len(handler.server.owner.files[path])
        text = content_range.format(begin=begin, last=end - 1, more=end, size=size)
        headers = {**headers_of(handler, path, begin, end), "Content-Range": text}
        handler.answer(206, data_of(handler, path, begin, end), headers)

    of_weights(server, answer)
    assert "Content-Range" in fails(server)


def test_short_body_with_its_own_length_is_refused(server):
    def answer(handler, path, begin, end):
        handler.answer(206, data_of(handler, path, begin, end)[:-7], headers_of(handler, path, begin, end))

    of_weights(server, answer)
    assert "Content-Length" in fails(server)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, PermissionError),
        (401, PermissionError),
        (404, FileNotFoundError),
        (410, FileNotFoundError),
        (400, OSError),
        (416, OSError),
    ],
)
def test_refusal_is_not_asked_again(server, status, kind):
    of_weights(server, lambda handler, *_: handler.answer(status, b"no"))
    assert str(status) in fails(server, kind)
    assert server.counts[server.weights] == 2


def test_missing_weight_file_is_the_error_of_a_missing_file(server):
    del server.files[server.weights]
    with milblob.open(server.model) as model, pytest.raises(milblob.ResolveError, match="no such file") as caught:
        model["w0"].read()
    assert server.model in str(caught.value) and "milblob-" not in str(caught.value)


def test_missing_package_is_an_error(server):
    with pytest.raises(milblob.FormatError, match=r"Manifest.json") as caught:
        milblob.open(f"{server.url}/none.mlpackage")
    assert f"{server.url}/none.mlpackage" in str(caught.value)
    with pytest.raises(FileNotFoundError, match="none"):
        milblob.open(f"{server.url}/none")


def test_three_failures_of_the_server_are_waited_for(server, package):
    of_weights(server, lambda handler, *_: handler.answer(500, b"oops"), numbers=(0, 1, 2))
    expect_same(server, package)


def test_failing_server_is_one_error(server):
    of_weights(server, lambda handler, *_: handler.answer(503, b"oops"))
    assert "503" in fails(server)
    assert server.counts[server.weights] == 1 + http.ATTEMPTS


def test_retry_after_is_honoured(server, package):
    of_weights(server, lambda handler, *_: handler.answer(429, b"", {"Retry-After": "1"}), numbers=(1,))
    start = time.monotonic()
    expect_same(server, package)
    assert time.monotonic() - start >= 1
    of_weights(server, lambda handler, *_: handler.answer(429, b"", {"Retry-After": "9999"}))
    server.counts.clear()
    assert "429" in fails(server)


def test_redirect_to_another_host_is_followed_without_credentials(server, package):
    with serving(server.files) as other:

        def answer(handler, path, begin, end):
            handler.answer(302, b"", {"Location": f"{other.url.replace('127.0.0.1', 'localhost')}/{path}?signed=1"})

        of_weights(server, answer, numbers=range(1000))
        model = server.model.replace("http://", "http://user:word@")
        found = milblob.load(model, storage_options={"headers": {"X-Own": "1"}})
        assert np.array_equal(found["w2"], milblob.load(package)["w2"])
        assert all("Authorization" in request.headers and "X-Own" in request.headers for request in server.log)
        assert not any("Authorization" in request.headers or "X-Own" in request.headers for request in other.log)
        assert server.counts[server.weights] == 1, "the target of a redirect is asked for the rest"


@pytest.mark.parametrize(
    "location", ["ftp://host/x", "file:///etc/passwd", "", "http://", None, "http://[::1", "http://h:99999/x"]
)
def test_redirect_that_leads_nowhere_is_refused(server, location):
    of_weights(server, lambda handler, *_: handler.answer(302, b"", {"Location": location}))
    assert "redirect" in fails(server)


def test_redirects_in_a_circle_are_refused(server):
    of_weights(server, lambda handler, path, *_: handler.answer(307, b"", {"Location": f"/{path}"}))
    assert "redirects" in fails(server)


def test_version_that_changes_between_two_ranges_is_refused(server):
    def answer(handler, path, begin, end):
        handler.server.owner.etags[path] = '"other"'
        return False

    of_weights(server, answer)
    text = fails(server, milblob.FormatError)
    assert "changed" in text and '"other"' in text


def test_size_and_time_distinguish_versions_without_an_etag(server, package):
    server.etags[server.weights] = None
    expect_same(server, package)

    def answer(handler, path, begin, end):
        headers = {**headers_of(handler, path, begin, end), "Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"}
        handler.answer(206, data_of(handler, path, begin, end), headers)

    server.counts.clear()
    of_weights(server, answer)
    assert "time of change" in fails(server, milblob.FormatError)

    def longer(handler, path, begin, end):
        size = len(handler.server.owner.files[path])
        handler.answer(206, data_of(handler, path, begin, end), handler.range_headers(path, begin, end, size + 64))

    server.counts.clear()
    of_weights(server, longer)
    assert "size" in fails(server, milblob.FormatError)


def test_body_that_never_ends_is_left(server, package):
    def answer(handler, path, begin, end):
        handler.answer(206, data_of(handler, path, begin, end), headers_of(handler, path, begin, end), length=-1)
        while True:
            handler.wfile.write(b"more" * 1000)

    of_weights(server, answer)
    expect_same(server, package)


def test_drip_ends_at_the_deadline(server, monkeypatch):
    monkeypatch.setattr(http, "MIN_RATE", 1 << 40)
    monkeypatch.setattr(http, "ATTEMPTS", 2)

    def answer(handler, path, begin, end):
        handler.send_response(206)
        handler.flush_headers()
        while True:
            handler.wfile.write(b"X: 1\r\n")
            time.sleep(0.02)

    of_weights(server, answer)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match="within the time of one request"):
        milblob.load(server.model, storage_options={"timeout": 0.4})
    assert time.monotonic() - start < 5


def test_compressed_body_is_refused(server):
    def answer(handler, path, begin, end):
        handler.gzipped(data_of(handler, path, begin, end), headers_of(handler, path, begin, end))

    of_weights(server, answer)
    assert "gzip" in fails(server)


def test_server_that_sends_less_than_asked_is_asked_for_the_rest(server, package):
    def answer(handler, path, begin, end):
        end = min(end, begin + 40_000)
        handler.answer(206, data_of(handler, path, begin, end), headers_of(handler, path, begin, end))

    of_weights(server, answer)
    expect_same(server, package)


def test_empty_file_is_an_empty_file(server):
    server.files[server.weights] = b""
    with pytest.raises(milblob.FormatError, match=r"weight\.bin"):
        milblob.load(server.model)


def test_unreachable_server_is_one_error(monkeypatch):
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.001)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1/m\.mlpackage/Manifest\.json"):
        milblob.open("http://127.0.0.1:1/m.mlpackage")


# --------------------------------------------------------------------------------------------------- what may be shown


def test_credentials_are_never_shown(server):
    secret = "s3cr3t"
    url = server.model.replace("http://", f"http://user:{secret}@") + f"?token={secret}"
    seen = []
    with milblob.open(url, storage_options={"headers": {"X-Key": secret}}) as model:
        seen += [repr(model), model.path, model["w0"].file, repr(model["w0"])]
        of_weights(server, lambda handler, *_: handler.answer(403, secret.encode()), numbers=range(1000))
        with pytest.raises(PermissionError) as caught:
            model["w0"].read()
        seen += [str(caught.value), repr(caught.value)]
    for bad in (f"http://user:{secret}@host:port/m?{secret}", f"http://user:{secret}@/m", f"http://h/?{secret}"):
        with pytest.raises(ValueError) as refused:
            milblob.open(bad)
        seen.append(str(refused.value))
    assert not any(secret in text or "user:" in text for text in seen), seen


def test_credentials_reach_the_server(server):
    url = server.model.replace("http://", "http://us%40er:wo%3Ard@")
    milblob.load(url)
    assert {request.headers["Authorization"] for request in server.log} == {"Basic dXNAZXI6d286cmQ="}


@pytest.mark.parametrize(
    "options", [{"unknown": 1}, {"headers": 3}, {"timeout": 0}, {"timeout": "x"}, {"headers": {"a": 1}}]
)
def test_options_that_http_does_not_have_are_refused(server, options):
    with pytest.raises(ValueError, match="storage option"):
        milblob.open(server.model, storage_options=options)


def test_what_the_manifest_names_cannot_lead_out_of_the_package(server):
    for path in ("../../../secret", "/secret", "a/../../../secret", "..\\..\\secret", "%2e%2e/%2e%2e/secret"):
        manifest = f'{{"itemInfoEntries": {{"1": {{"path": {path!r}}}}}, "rootModelIdentifier": "1"}}'.replace("'", '"')
        server.files["m.mlpackage/Manifest.json"] = manifest.encode()
        server.files["secret"] = server.files["m.mlpackage/secret"] = server.files[f"m.mlpackage/{MODEL}"]
        with pytest.raises((milblob.ResolveError, milblob.FormatError)):
            milblob.open(server.model)
    assert {request.path for request in server.log if request.path.endswith("secret")} <= {
        "m.mlpackage/Data/%2e%2e/%2e%2e/secret"
    }


def test_writing_to_a_remote_model_is_refused(server):
    with pytest.raises(ValueError, match="expected a local model"):
        milblob.open(server.model, "r+")
    assert server.log == []


def test_errno_of_a_failure_is_kept(monkeypatch):
    monkeypatch.setattr(http, "ATTEMPTS", 1)
    with pytest.raises(OSError) as caught:
        milblob.open("http://127.0.0.1:1/m.mlpackage")
    assert caught.value.errno == errno.ECONNREFUSED


@pytest.mark.parametrize("place", ["/other/é x/{}?q=é y", "/other/%C3%A9%20x/{}?q=%C3%A9%20y"])
def test_redirect_with_characters_that_no_url_has_is_followed(server, package, place):
    targets = []

    def fault(handler, path, begin, end, number):
        if path.startswith("other/"):
            targets.append(handler.path)
            handler.server.owner.files.setdefault(path, server.files[path.partition(" x/")[2]])
            return False
        handler.send_response(302)
        handler._headers_buffer.append(f"Location: {place.format(path)}\r\nContent-Length: 0\r\n".encode())
        handler.end_headers()
        return True

    server.files |= {f"other/é x/{name}": data for name, data in server.files.items()}
    server.fault = fault
    assert len(milblob.load(server.model)) == len(milblob.load(package))
    assert set(targets) == {f"/other/%C3%A9%20x/{name}?q=%C3%A9%20y" for name in files_below(package, "m.mlpackage/")}


@pytest.mark.parametrize("url", ["http://a..b/m.mlpackage", f"http://{'a' * 70}.com/m.mlpackage"])
def test_host_that_cannot_be_one_is_an_error(url):
    with pytest.raises(OSError, match="a name that no host can have"):
        milblob.open(url)


def test_redirect_to_a_host_that_cannot_be_one_is_an_error(server):
    of_weights(server, lambda handler, *_: handler.answer(302, b"", {"Location": "http://a..b/x"}))
    assert "a name that no host can have" in fails(server)


@pytest.mark.parametrize("header", ["Mon, 01 Jan 99999999999999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 -0000"])
def test_retry_after_with_an_impossible_date_is_ignored(server, package, header):
    def fault(handler, path, begin, end, number):
        if number == 0:
            handler.send_response(503)
            handler.send_header("Retry-After", header)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        return number == 0

    server.fault = fault
    assert len(milblob.load(server.model)) == len(milblob.load(package))


@pytest.mark.parametrize("text", ["Bearer SECRET\n", "Bearer SECRET\r\nX: y", "Bearer SECRET€", "Bearer SECRET\0"])
@pytest.mark.parametrize("call", [milblob.open, lambda url, **more: milblob.download(url, "into", **more)])
def test_header_that_no_request_can_have_is_refused_without_its_text(server, text, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="headers: Authorization: expected one line") as caught:
        call(server.model, storage_options={"headers": {"Authorization": text}})
    assert "SECRET" not in str(caught.value) and not server.log


@pytest.mark.parametrize("name", ["Range", "range", "Accept-Encoding", "If-Range", "Host", "Content-Length"])
def test_headers_that_milblob_sets_itself_are_refused(server, name):
    with pytest.raises(ValueError, match=f"expected none that milblob sets itself, got {name}"):
        milblob.load(server.model, storage_options={"headers": {name: "bytes=0-9"}})
    assert not server.log


def test_header_of_the_user_replaces_the_default_one(server):
    url = server.model.replace("http://", "http://user:word@")
    milblob.load(url, storage_options={"headers": {"user-agent": "mine", "authorization": "Bearer x"}})
    for request in server.log:
        sent = [(key.lower(), value) for key, value in request.headers.items()]
        assert ("user-agent", "mine") in sent and ("authorization", "Bearer x") in sent
        assert len({key for key, _ in sent}) == len(sent), "each header once"


@pytest.mark.parametrize("options", [5, [1], "x", {1: 2}])
@pytest.mark.parametrize(
    "call", [milblob.open, milblob.statistics, lambda url, **more: milblob.download(url, "into", **more)]
)
def test_options_that_are_no_mapping_are_refused(server, options, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="storage_options: expected a mapping"):
        call(server.model, storage_options=options)


def test_file_is_never_found_before_its_bytes(server, package, monkeypatch):
    """Another thread may open a file as soon as it has its name."""
    seen = []
    rename = os.rename

    def spy(source, target):
        status = os.stat(source)
        seen.append((status.st_dev, status.st_ino) in mirrored.FILES)
        assert not os.path.exists(target)
        rename(source, target)

    monkeypatch.setattr(mirror.os, "rename", spy)
    with milblob.open(server.model) as model:
        assert len(list(model)) and all(seen) and len(seen) >= 2


def test_messages_and_reports_never_show_the_private_directory(server, tmp_path):
    with milblob.open(server.model) as model:
        tensor = next(iter(model.values()))
    calls = [
        tensor.read,
        lambda: model["x"],
        lambda: milblob.convert(server.model, tmp_path / "a.npz", select="none"),
        lambda: milblob.convert(server.model, tmp_path / "a.npz", function="none"),
        lambda: milblob.convert(server.model, tmp_path / "a.npz", tvm="0.14"),
        lambda: milblob.convert([server.model, server.model], tmp_path / "a.npz"),
        lambda: milblob.convert(f"{server.url}/none.npz", tmp_path / "a.npz", function="none"),
    ]
    for call in calls:
        with pytest.raises((ValueError, KeyError, OSError)) as caught:
            call()
        assert mirrored.PREFIX not in str(caught.value)
        assert "m.mlpackage" in str(caught.value) or "none" in str(caught.value)
    assert milblob.convert(server.model, tmp_path / "a.npz").source == server.model
