"""Every fault of a server at the first request of a file, at a later one, and in a download of whole files.

Each ends with the right values or with one error that names the file; nothing partial is returned or left.
"""

import time

import numpy as np
import pytest

import milblob
from milblob.remote import http
from remote_server import files_below, serving
from repacking import FILE, simple_package
from thorough import some

WEIGHTS = f"m.mlpackage/{FILE}"


@pytest.fixture
def package(tmp_path):
    random = np.random.default_rng(3)
    return simple_package(tmp_path, [random.random(50_000).astype("<f4").tobytes() for _ in range(3)])


@pytest.fixture
def server(package, monkeypatch):
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.001)
    with serving(files_below(package, "m.mlpackage/")) as server:
        yield server


def usual(handler, path, begin, end):
    """Status, headers and body of the usual answer to a request for a range, or for all."""
    data = handler.server.owner.files[path]
    headers = handler.range_headers(path, begin, end, len(data))
    if "Range" in handler.headers:
        return 206, headers, data[begin:end]
    del headers["Content-Range"]
    return 200, headers, data[0 : len(data)]


def cut(share):
    def answer(handler, *span):
        status, headers, body = usual(handler, *span)
        count = {0: 0, 0.5: len(body) // 2, 1: len(body) - 1}[share]
        handler.cut(status, body[:count], headers, len(body))

    return answer


def cut_in_a_header(handler, *span):
    handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\nContent-Ran")
    handler.close_connection = True


def with_headers(**more):
    def answer(handler, *span):
        status, headers, body = usual(handler, *span)
        handler.answer(status, body, headers | {key.replace("_", "-"): text for key, text in more.items()})

    return answer


def status(number, headers=None):
    return lambda handler, *span: handler.answer(number, b"no", headers)


def short_body(handler, *span):
    number, headers, body = usual(handler, *span)
    handler.answer(number, body[:-7], headers)


def endless(handler, *span):
    number, headers, body = usual(handler, *span)
    handler.answer(number, body, headers, length=-1)
    while True:
        handler.wfile.write(b"more" * 1000)


def no_length(handler, *span):
    number, headers, body = usual(handler, *span)
    handler.answer(number, body, headers, length=-1)
    handler.close_connection = True


def compressed(handler, *span):
    import gzip

    number, headers, body = usual(handler, *span)
    handler.answer(number, gzip.compress(body), headers | {"Content-Encoding": "gzip"})


def other_version(handler, path, begin, end):
    handler.server.owner.etags[path] = f'"{handler.server.owner.counts[path]}"'
    number, headers, body = usual(handler, path, begin, end)
    handler.answer(number, body, headers)


def drop(handler, *span):
    handler.close_connection = True


RIGHT, WRONG, EITHER = "right", "wrong", "either"
FAULTS = {
    "cut at the first byte": (cut(0), 2, RIGHT), "cut in the middle": (cut(0.5), 2, RIGHT),
    "cut at the last byte": (cut(1), 2, RIGHT), "cut in a header": (cut_in_a_header, 2, RIGHT),
    "no answer": (drop, 2, RIGHT), "always cut": (cut(0), 1000, WRONG), "never an answer": (drop, 1000, WRONG),
    "500 three times": (status(500), 3, RIGHT), "500": (status(500), 1000, WRONG),
    "429": (status(429, {"Retry-After": "0"}), 2, RIGHT), "429 for ever": (status(429, {"Retry-After": "9999"}), 1000, WRONG),
    "401": (status(401), 1000, WRONG), "403": (status(403), 1000, WRONG), "404": (status(404), 1000, WRONG),
    "416": (status(416), 1000, WRONG), "204": (status(204), 1000, WRONG), "304": (status(304), 1000, WRONG),
    "wrong Content-Range": (with_headers(Content_Range="bytes 7-9/10"), 1000, EITHER),
    # In a download, a body that has the length that is stated is a file of that length.
    "short body": (short_body, 1000, EITHER), "endless body": (endless, 1000, EITHER), "no length": (no_length, 1000, EITHER),
    "gzip": (compressed, 1000, WRONG), "another version each time": (other_version, 1000, EITHER),
    "redirect to nowhere": (status(302, {"Location": "http://"}), 1000, WRONG),
    "redirect in a circle": (status(302, {"Location": f"/{WEIGHTS}"}), 1000, WRONG),
}  # fmt: skip
"""Name -> (answer, for how many requests, what comes of it)."""
CASES = some([(name, when) for name in FAULTS for when in ("first", "later", "download")], 15)


@pytest.mark.every
@pytest.mark.parametrize(("name", "when"), CASES)
def test_fault_ends_with_the_values_or_with_one_error(server, package, tmp_path, name, when):
    answer, count, result = FAULTS[name]
    first = 1 if when == "later" else 0

    def fault(handler, path, begin, end, number):
        if path != WEIGHTS or not first <= number < first + count:
            return False
        answer(handler, path, begin, end)
        return True

    server.fault = fault
    source, start = f"{server.url}/m.mlpackage", time.monotonic()
    try:
        if when == "download":
            source = milblob.download(source, tmp_path / "into").path
        found = milblob.load(source)
    except (OSError, milblob.FormatError, milblob.ResolveError) as error:
        assert result != RIGHT, error
        assert WEIGHTS in str(error) and str(error).count("\n") == 0
        assert name == "short body" or not (tmp_path / "into" / "m.mlpackage").exists()
    else:
        assert result != WRONG
        assert all(np.array_equal(found[name], array) for name, array in milblob.load(package).items())
    assert time.monotonic() - start < 10
