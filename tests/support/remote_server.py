"""A real HTTP server on loopback, with range requests, a delay for each, and faults that a test chooses."""

import contextlib
import gzip
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Request(NamedTuple):
    """A request as the server saw it; times are of time.monotonic, nbytes of the body that it sent."""

    path: str
    begin: int
    end: int
    nbytes: int
    started: float
    ended: float
    headers: dict
    status: int


class Holes:
    """A large file of which only some stretches are not zero: {offset: bytes}."""

    def __init__(self, nbytes, stretches):
        self.nbytes, self.stretches = nbytes, stretches

    def __len__(self):
        return self.nbytes

    def __getitem__(self, key):
        data = bytearray(key.stop - key.start)
        for offset, content in self.stretches.items():
            first, last = max(offset, key.start), min(offset + len(content), key.stop)
            if first < last:
                data[first - key.start : last - key.start] = content[first - offset : last - offset]
        return bytes(data)


class Server:
    """Serves `files` (path without the first "/" -> bytes).

    Attributes:
        etags: path -> ETag; None: none. By default that of the contents' number.
        fault: called with (handler, path, begin, end, number of the request for this path, from 0); answers and returns
            True, or returns False for the usual answer.
        has_ranges, delay: see the names.
    """

    def __init__(self, files, delay=0.0):
        self.files = dict(files)
        self.delay, self.has_ranges = delay, True
        self.etags, self.ended, self.counts, self.pending = {}, [], {}, 0
        self.fault = None
        self.lock = threading.Condition()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.http.daemon_threads = True
        self.http.owner = self
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def etag(self, path):
        return self.etags.get(path, f'"{hash(path) & 0xFFFF}"')

    @property
    def log(self):
        """Requests that were answered, in the order in which they ended.

        Waits for those that came in: one ends after its client may have all of the answer.
        """
        with self.lock:
            assert self.lock.wait_for(lambda: not self.pending, timeout=20)
            return self.ended

    def moved(self, path=""):
        """Bytes that were sent."""
        return sum(request.nbytes for request in self.log if path in request.path)

    def round_trips(self):
        """The most requests of which each began after the one before it had ended."""
        count, last = 0, 0.0
        for request in sorted(self.log, key=lambda request: request.ended):
            if request.started >= last:
                count, last = count + 1, request.ended
        return count

    def close(self):
        self.http.shutdown()
        self.http.server_close()


@contextlib.contextmanager
def serving(files, **options):
    server = Server(files, **options)
    try:
        yield server
    finally:
        server.close()


def files_below(folder, prefix=""):
    """The files below a directory, as `Server` takes them."""
    return {
        prefix + path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20
    disable_nagle_algorithm = True  # or a body waits 40 ms for the client to acknowledge the headers

    def log_message(self, *_):
        pass

    def do_GET(self):
        owner = self.server.owner
        self.started, self.sent, self.status = time.monotonic(), 0, 0
        path = unquote(urlsplit(self.path).path)[1:]
        found = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
        data = owner.files.get(path)
        size = 0 if data is None else len(data)
        begin = int(found[1]) if found else 0
        end = min(size, int(found[2]) + 1 if found and found[2] else size)
        with owner.lock:
            number = owner.counts.get(path, 0)
            owner.counts[path] = number + 1
            owner.pending += 1
        time.sleep(owner.delay)
        try:
            if owner.fault is None or not owner.fault(self, path, begin, end, number):
                self.usual(path, data, begin, end, bool(found))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        finally:
            with owner.lock:
                seen = Request(
                    path, begin, end, self.sent, self.started, time.monotonic(), dict(self.headers), self.status
                )
                owner.ended.append(seen)
                owner.pending -= 1
                owner.lock.notify_all()

    def usual(self, path, data, begin, end, is_range):
        owner = self.server.owner
        if data is None:
            self.answer(404, b"not here")
        elif not owner.has_ranges or not is_range:
            self.answer(200, data[0 : len(data)], {"ETag": owner.etag(path)})
        elif begin >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}", "ETag": owner.etag(path)})
        else:
            self.answer(206, data[begin:end], self.range_headers(path, begin, end, len(data)))

    def range_headers(self, path, begin, end, size):
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{size}", "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        etag = self.server.owner.etag(path)
        return headers if etag is None else {**headers, "ETag": etag}

    def answer(self, status, body, headers=None, length=None):
        self.status = status
        self.send_response(status)
        for key, value in (headers or {}).items():
            if value is not None:
                self.send_header(key, value)
        if length is None or length >= 0:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        self.sent += len(body)

    def cut(self, status, body, headers, length):
        """Announce `length` bytes, send fewer, close the connection."""
        self.answer(status, body, headers, length)
        self.wfile.flush()
        self.close_connection = True

    def gzipped(self, data, headers):
        self.answer(206, gzip.compress(data), {**headers, "Content-Encoding": "gzip"})
