"""A stub of the Hugging Face Hub's API on loopback: one repository, of which files are listed and read by ranges."""

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "someone/models"


class Hub:
    """Serves `files` (path in the repository -> bytes), to requests with `token` if that is not None.

    Attributes:
        ranges: (path, begin, end) of what was read. requests: "GET /path" of all requests.
    """

    def __init__(self, files, token=None):
        self.files, self.token = dict(files), token
        self.ranges, self.requests = [], []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.http.daemon_threads = True
        self.http.owner = self
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def rows(self, folder, recursive):
        """What the Hub lists below a folder."""
        start = f"{folder}/" if folder else ""
        inside = {path: data for path, data in self.files.items() if path.startswith(start)}
        folders = set()
        for path in inside:
            parts = path[len(start) :].split("/")[:-1]
            folders |= {
                start + "/".join(parts[: n + 1]) for n in range(len(parts) if recursive else min(1, len(parts)))
            }
        found = [{"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(folders)]
        return found + [self.row(path) for path in inside if recursive or "/" not in path[len(start) :]]

    def row(self, path):
        data = self.files[path]
        return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20
    disable_nagle_algorithm = True  # or a body waits 40 ms for the client to acknowledge the headers

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, split = self.server.owner, urlsplit(self.path)
        hub.requests.append(f"{self.command} {split.path}")
        path, asked = unquote(split.path), parse_qs(split.query)
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})
        elif found := re.match(rf"/api/models/{REPOSITORY}/tree/main/?(.*)$", path):
            rows = hub.rows(found[1].strip("/"), asked.get("recursive", [""])[0].lower() == "true")
            self.answer(200, rows) if rows else self.answer(404, {}, {"X-Error-Code": "EntryNotFound"})
        elif re.match(rf"/api/models/{REPOSITORY}(/revision/main)?$", path):
            self.answer(200, {"id": REPOSITORY, "sha": "1" * 40, "siblings": [], "private": False, "tags": []})
        elif (found := re.match(rf"/{REPOSITORY}/resolve/main/(.*)$", path)) and found[1] in hub.files:
            self.content(hub.files[found[1]], found[1])
        else:
            code = "EntryNotFound" if f"/{REPOSITORY}/" in path else "RepoNotFound"
            self.answer(404, {"error": "none"}, {"X-Error-Code": code})

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        hub = self.server.owner
        hub.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        asked = json.loads(body) if body.startswith("{") else parse_qs(body)
        self.answer(200, [hub.row(path) for path in asked["paths"] if path in hub.files])

    def content(self, data, path):
        size, hub = len(data), self.server.owner
        found = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        begin, end = (int(found[1]), min(size, int(found[2]) + 1)) if found else (0, size)
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": "1" * 40}
        if found:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        if self.command == "GET":
            hub.ranges.append((path, begin, end))
        self.send(206 if found else 200, data[begin:end], headers)

    def answer(self, status, value, headers=None):
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, status, body, headers):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
