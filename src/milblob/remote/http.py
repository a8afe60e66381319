"""Files on HTTP servers, read by range requests.

fsspec has a file system of http too. It gives no headers of the responses, so that nothing could compare the version
that each range is of: two versions of a file could mix. So milblob asks by itself, with the standard library.

Spec: RFC 9110, sections 8.8 (validators), 14 (range requests), 15 (status codes).
"""

import base64
import email.utils
import errno
import http.client
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from ..mirrored import shown_url
from ..storage.disk import naming
from ..storage.transfer import write_at
from .connections import REFUSED, Answer, Connections
from .origin import DOWNLOAD, Version
from .urls import Split, split

MAX_REQUESTS = 16
"""That run at once, of one origin."""

ATTEMPTS = 5
HEAD_NBYTES = 1 << 16
"""Size of the first request, whose answer also has the size of the file."""

TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 10**6  # longer than any request; the platform takes no number that is much larger
MIN_RATE = 1 << 16  # bytes per second, for which a request has time beyond TIMEOUT_S
_MAX_WAIT_S = 120.0  # that Retry-After may ask for
_FIRST_WAIT_S, _LAST_WAIT_S = 0.5, 8.0
_MAX_REDIRECTS = 10
_MAX_WHOLE_NBYTES = 1 << 20  # of a file that a server without ranges sends whole
_REDIRECTS = (301, 302, 303, 307, 308)
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})\Z")
_NO_RANGE = re.compile(r"bytes \*/(\d{1,18})\Z")
_CHUNK_NBYTES = 1 << 20
_PRINTED = "".join(map(chr, range(0x21, 0x7F)))  # of ASCII
_OPTIONS = ("headers", "timeout")
_OWN = frozenset([
    "range", "accept-encoding", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since",
    "host", "connection", "content-length", "transfer-encoding", "te", "expect", "upgrade",
])  # fmt: skip
"""Headers that milblob or its HTTP library sets: another value would break the request, or change its answer."""

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class _CutError(Exception):
    """A body that ended early: the rest is asked for again."""


class HttpOrigin:
    """A directory on a server; its files are asked for by name.

    `url`: of a file or directory in it, as `urls.split` returns it. `options`: "headers": a mapping of further headers;
    "timeout": seconds without which a request fails.
    Raises: ValueError: another option, or another value.
    """

    def __init__(self, url: Split, options: dict[str, Any]) -> None:
        unknown = [key for key in options if key not in _OPTIONS]
        if unknown:
            raise ValueError(f"storage option of http: expected one of {', '.join(_OPTIONS)}, got {unknown[0]!r:.100}")
        given, timeout = options.get("headers", {}), options.get("timeout", TIMEOUT_S)
        if not isinstance(given, dict) or not all(isinstance(t, str) for pair in given.items() for t in pair):
            raise ValueError("storage option headers: expected an object of names and texts, got something else")
        for header, text in given.items():
            _require_header(header, text)
        names = {header.lower() for header in given}
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT_S:
            raise ValueError(
                f"storage option timeout: expected seconds, at most {MAX_TIMEOUT_S:,}, got {timeout!s:.100}"
            )
        self.url = url
        self.timeout = float(timeout)
        self.name = shown_url(url.at("")).rstrip("/")
        self.secret = dict(given)
        self.address = json.dumps([url.query, url.user, sorted(given.items())])
        if url.user and "authorization" not in names:
            self.secret["Authorization"] = f"Basic {base64.b64encode(url.user.encode()).decode()}"
        self.common = {"Accept-Encoding": "identity"} | ({} if "user-agent" in names else {"User-Agent": "milblob"})
        self.connections = Connections()
        self.slots = threading.Semaphore(MAX_REQUESTS)

    can_list = False

    def file(self, relative: str) -> "HttpFile | None":
        """See RemoteDirectory: one request, for the first bytes."""
        try:
            return self.named(relative).open()
        except FileNotFoundError:
            return None

    def named(self, relative: str) -> "HttpFile":
        """Return a file that was not asked for yet."""
        return HttpFile(self, self.url.at(relative), self.url.shown_at(relative))

    def files(self, relative: str) -> "dict[str, HttpFile]":
        """See RemoteDirectory: HTTP lists nothing."""
        return {}

    def close(self) -> None:
        self.connections.close()


class HttpFile:
    """A file on a server; see RemoteFile.

    Raises: FileNotFoundError: 404 or 410. PermissionError: 401 or 403. OSError: as `read`.
    """

    def __init__(self, origin: HttpOrigin, url: str, name: str) -> None:
        self._origin, self._url, self.name = origin, url, name
        self._target = url  # where the last redirect led
        self.address = name, origin.address
        self.version = Version(-1)
        self.head = b""

    def open(self) -> "HttpFile":
        """Request the first bytes, whose answer has the size of the file; return the file itself."""
        self.head = bytes(self.read(0, HEAD_NBYTES))
        return self

    def current(self) -> Version:
        """See RemoteFile: that of the first answer."""
        return self.version

    def read(self, offset: int, nbytes: int) -> bytearray:
        """Read a range, after a failure from where it ended; the first one of a file may be longer than the file.

        Raises: OSError: the message names the range and the status, or what else failed. FormatError: another version.
        """
        data = bytearray()

        def once() -> bool:
            before = len(data)
            is_whole, wanted = self._request(offset, nbytes, data)
            if len(data) < wanted and not (is_whole and len(data) > before):
                raise _CutError(f"{len(data)} bytes and the end of the connection")
            return len(data) >= wanted  # else a server that sends less than it is asked for

        self._retry(offset, nbytes, once)
        return data

    def _retry(self, offset: int, nbytes: int, once: Callable[[], bool]) -> None:
        """Make requests until one returns that it was the last; repeat them after temporary failures."""
        attempt = 1
        error: BaseException | None
        while True:
            wait = 0.0
            try:
                with self._origin.slots:
                    if once():
                        return
                continue
            except _StatusError as status:
                got, error, wait = str(status), None, status.wait
            except (_CutError, http.client.HTTPException) as cut:
                got, error = _words(cut), cut
            except OSError as failure:
                if failure.filename is not None:  # an answer
                    raise
                got, error = _words(failure), failure
            if attempt == ATTEMPTS or wait > _MAX_WAIT_S or isinstance(error, REFUSED):
                raise self._failed(offset, nbytes, got, attempt, error)
            time.sleep(wait or _backoff(attempt))
            attempt += 1

    def _request(self, offset: int, nbytes: int, data: bytearray) -> tuple[bool, int]:
        """Make one request for what is missing, and add it to `data`.

        Returns: Whether the body had its declared length, and how many bytes `data` is to have.
        """
        asked = offset + len(data)
        answer = self._ask(asked, offset + nbytes)
        try:
            span = self._checked(answer, asked, offset + nbytes)
            if span is None:  # an empty file
                return True, 0
            begin, end = span
            if begin < asked:  # a small file, whole
                data.clear()
            wanted = max(min(nbytes, self.version.nbytes - offset), end - offset)
            while begin < end:
                try:
                    some = answer.body.read(min(end - begin, _CHUNK_NBYTES))
                except http.client.IncompleteRead as error:
                    some = error.partial[: end - begin]
                    data += some
                    break
                if not some:
                    break
                data += some
                begin += len(some)
            return begin == end, wanted
        finally:
            answer.finish()

    def save(self, fd: int, begin: int, version: Version | None, progress: Callable[[int, int], None]) -> Version:
        """See RemoteFile; also from a server without ranges."""
        self.version, done = version or Version(-1), begin

        def once() -> bool:
            nonlocal done
            answer = self._ask(done, None)
            try:
                first, end = self._checked_whole(answer, done)
                done = first
                answer.extend(self._origin.timeout + (end - first) / MIN_RATE)
                while done < end:
                    some = answer.body.read(min(end - done, _CHUNK_NBYTES))
                    if not some:
                        raise _CutError(f"{done} bytes and the end of the connection")
                    with naming(self.name, fd, end):
                        write_at(fd, [some], done)
                    done += len(some)
                    progress(done, end)
            finally:
                answer.finish()
            return True

        self._retry(begin, 0, once)
        os.ftruncate(fd, self.version.nbytes)
        return self.version

    def _checked_whole(self, answer: Answer, begin: int) -> tuple[int, int]:
        """Check the head of a response to a request for all from `begin`; return the range that its body holds."""
        headers = answer.headers
        self._refuse_status(answer, begin, 0)
        if begin and answer.status in (206, 416):
            text = headers.get("Content-Range", "").strip()
            found, none = _RANGE.match(text), _NO_RANGE.match(text)
            if answer.status == 206 and found and (int(found[1]), int(found[2]) + 1) == (begin, int(found[3])):
                self._require_version(int(found[3]), headers)
                return begin, int(found[3])
            if answer.status == 416 and none and int(none[1]) == begin:  # nothing more
                self._require_version(begin, headers)
                return begin, begin
        length = headers.get("Content-Length", "").strip()
        if answer.status in (200, 206) and not length and "Transfer-Encoding" not in headers:
            raise _CutError(f"{answer.status} without a Content-Length, as of a connection that was cut")
        if answer.status != 200 or not re.fullmatch(r"\d{1,18}", length):
            raise self._failed(begin, 0, f"{answer.status} {answer.reason} with Content-Length {length!r:.40}", 1)
        self._require_version(int(length), headers)
        return 0, int(length)

    def _ask(self, begin: int, end: int | None) -> Answer:
        """Send the request, and follow redirects; those that a server gave before are tried first.

        `begin`, `end`: the range; None: all from `begin`.
        """
        url, is_short_cut = self._target, self._target != self._url
        for _ in range(_MAX_REDIRECTS + 1):
            headers = dict(self._origin.common)
            if begin or end is not None:
                headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"
            if _place(url) == _place(self._url):  # credentials are for the server that the user named
                headers |= self._origin.secret
            nbytes = 0 if end is None else end - begin
            seconds = self._origin.timeout + nbytes / MIN_RATE
            answer = self._origin.connections.ask(url, headers, seconds)
            if answer.status in _REDIRECTS:
                location = answer.headers.get("Location")
                answer.finish()
                url = self._redirected(url, location, begin, nbytes)
                continue
            if is_short_cut and answer.status in (400, 401, 403, 404, 410):  # a signed URL that has expired
                answer.finish()
                url, is_short_cut = self._url, False
                continue
            self._target = url
            return answer
        raise self._failed(begin, nbytes, f"more than {_MAX_REDIRECTS} redirects", 1)

    def _redirected(self, url: str, location: str | None, begin: int, nbytes: int) -> str:
        try:
            # Some servers send bytes that no URL has, such as spaces; http.client decodes them as Latin-1.
            encoded = quote((location or "").encode("latin-1"), safe=_PRINTED)
            parts = urlsplit(urljoin(url, encoded))
            split(urlunsplit((parts.scheme, parts.netloc, "/name", "", "")))
        except ValueError:
            parts, location = urlsplit(url), None
        is_worse = urlsplit(url).scheme == "https" and parts.scheme != "https"
        if location is None or parts.scheme not in ("http", "https") or is_worse:
            message = (
                "a redirect to no URL of https" if is_worse or location is None else "a redirect to another scheme"
            )
            raise self._failed(begin, nbytes, message, 1)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))

    def _checked(self, answer: Answer, begin: int, end: int) -> tuple[int, int] | None:
        """Check the head of a response; return the range that its body has to hold, None for an empty file."""
        status, headers = answer.status, answer.headers
        nbytes = end - begin
        self._refuse_status(answer, begin, nbytes)
        if status == 416 and (found := _NO_RANGE.match(headers.get("Content-Range", ""))):
            self._require_version(int(found[1]), headers)
            if int(found[1]) == 0 and begin == 0:
                return None
        if status not in (200, 206):
            raise self._failed(begin, nbytes, f"{status} {answer.reason}", 1)
        length = headers.get("Content-Length")
        known = int(length) if length is not None and re.fullmatch(r"\d{1,18}", length.strip()) else None
        if status == 200:
            if self.version.nbytes >= 0 and known is not None:
                self._require_version(known, headers)
            if known is None or known > _MAX_WHOLE_NBYTES:
                raise self._failed(begin, nbytes, f"200 and the whole file: a server without ranges; {DOWNLOAD}", 1)
            self._require_version(known, headers)
            return 0, known
        text = headers.get("Content-Range")
        if text is None:  # http.client takes the end of the connection for the end of the headers
            raise _CutError("206 without a Content-Range, as of a connection that was cut")
        found = _RANGE.match(text.strip())
        if found is None:
            raise self._failed(begin, nbytes, f"206 with Content-Range {text!r:.100}", 1)
        first, last, total = map(int, found.groups())
        self._require_version(total, headers)
        if first != begin or not first <= last < min(end, total) or known not in (None, last + 1 - first):
            of = "" if known is None else f" and Content-Length {known}"
            raise self._failed(begin, nbytes, f"206 with Content-Range {text!r:.100}{of}", 1)
        return begin, last + 1

    def _refuse_status(self, answer: Answer, begin: int, nbytes: int) -> None:
        """Raise the error for a status or a Content-Encoding that is wrong for any request."""
        status, got = answer.status, f"{answer.status} {answer.reason}"
        if status in (404, 410):
            raise FileNotFoundError(errno.ENOENT, f"{_asked(begin, nbytes)}, got {got}", self.name)
        if status in (401, 403):
            raise PermissionError(errno.EACCES, f"{_asked(begin, nbytes)}, got {got}", self.name)
        if status in _AGAIN:
            raise _StatusError(got, _wait_of(answer.headers.get("Retry-After")))
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if status in (200, 206) and encoding not in ("", "identity"):
            raise self._failed(begin, nbytes, f"a body with Content-Encoding {encoding!r:.40}", 1)

    def _require_version(self, nbytes: int, headers: Any) -> None:
        found = Version(nbytes, headers.get("ETag", ""), headers.get("Last-Modified", ""))
        if self.version.nbytes < 0:
            self.version = found
        elif self.version.etag:  # it decides alone: servers of one file may disagree on the time
            self.version._replace(changed="").require_same(found._replace(changed=""), self.name)
        else:
            self.version.require_same(found, self.name)

    def _failed(self, begin: int, nbytes: int, got: str, attempts: int, error: BaseException | None = None) -> OSError:
        times = f" after {attempts} attempts" if attempts > 1 else ""
        message = f"{_asked(begin, nbytes)}, got {got}{times}"
        kind = TimeoutError if isinstance(error, TimeoutError) else OSError
        number = errno.ETIMEDOUT if kind is TimeoutError else getattr(error, "errno", None) or errno.EIO
        return kind(number if isinstance(error, OSError) and number > 0 else errno.EIO, message, self.name)


class _StatusError(Exception):
    """A status after which another attempt may succeed."""

    def __init__(self, message: str, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


def _asked(begin: int, nbytes: int) -> str:
    if not nbytes:
        return f"GET from byte {begin}: expected the file"
    return f"GET bytes {begin} to {begin + nbytes - 1}: expected 206 Partial Content"


def _words(error: BaseException) -> str:
    """Describe a failure of a connection, without what a URL in its message may hold."""
    if isinstance(error, TimeoutError):
        return "nothing more within the time of one request"
    if isinstance(error, http.client.HTTPException):
        return f"no HTTP response that is whole ({type(error).__name__})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _backoff(attempt: int) -> float:
    """Return seconds to wait after a failed attempt: exponential, with jitter, so that clients do not march in step."""
    longest = min(_FIRST_WAIT_S * float(2 ** (attempt - 1)), _LAST_WAIT_S)
    return longest * random.uniform(0.5, 1.0)


def _wait_of(header: str | None) -> float:
    """Return the seconds that Retry-After asks for: a number, or a date."""
    if header is None:
        return 0.0
    if re.fullmatch(r"\d{1,9}", header.strip()):
        return float(header)
    try:
        left: float = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, left)


def _require_header(name: str, text: str) -> None:
    """Refuse a header that no request can have; its text, which may be a credential, is not shown."""
    if _HEADER.fullmatch(name) is None:
        raise ValueError(f"storage option headers: expected names such as Authorization, got {name!r:.100}")
    if name.lower() in _OWN:
        raise ValueError(f"storage option headers: expected none that milblob sets itself, got {name}")
    if _VALUE.fullmatch(text) is None:
        wrong = next(one for one in text if _VALUE.fullmatch(one) is None)
        message = "expected one line of Latin-1 characters"
        raise ValueError(f"storage option headers: {name:.100}: {message}, got one with {wrong!r}")
