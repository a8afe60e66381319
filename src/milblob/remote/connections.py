"""Connections to HTTP servers: kept open between requests, with one deadline for each request as a whole.

http.client has a time-out for each call of the system only: a server that sends one byte before each of them ends would
hold a request for ever. So the socket is wrapped, and every call gets what is left of the request's time.
"""

import contextlib
import http.client
import io
import socket
import ssl
import threading
import time
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .urls import encoded_target

_RESIDUE_NBYTES = 1 << 14  # of a body that nobody reads, so that its connection can be used again


class Answer(NamedTuple):
    """A response whose body was not read yet."""

    status: int  # such as 206. reason: its text.
    reason: str
    headers: Any  # of the response; names in any case
    body: http.client.HTTPResponse  # reads it. finish: called when no more is read.
    finish: Any
    extend: Any  # called with the seconds from now on until the last byte must be there


class _Timed:
    """A socket that has until `end` for everything, as http.client uses one."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.end = 0.0

    def prepare(self) -> None:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.sock.settimeout(left)

    def sendall(self, data: Any) -> None:
        self.prepare()
        self.sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self), 1 << 16)

    def close(self) -> None:
        self.sock.close()


class _Reading(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        self._timed = timed
        self._raw = timed.sock.makefile("rb", buffering=0)  # keeps the socket open until the response was read

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self._timed.prepare()
        return int(self._raw.readinto(into))

    def close(self) -> None:
        self._raw.close()
        super().close()


class Connections:
    """Connections to any servers, for any threads.

    Proxies are those of the environment, as `urllib.request` finds them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._context: ssl.SSLContext | None = None
        self._proxies = urllib.request.getproxies()

    def ask(self, url: str, headers: dict[str, str], seconds: float) -> Answer:
        """Send a GET request, and read the head of the response.

        `url`: of http or https, without user. `seconds`: until the last byte of the body must be there.
        Raises: OSError: no connection, or it broke. http.client.HTTPException: no HTTP. TimeoutError: it took too long.
        """
        end = time.monotonic() + seconds
        parts = urlsplit(url)
        key = parts.scheme, parts.netloc
        while True:
            with self._lock:
                idle = self._idle.get(key)
                connection = idle.pop() if idle else None
            is_kept = connection is not None
            connection = connection or self._new(parts.scheme, parts.netloc, seconds)
            try:
                return self._send(connection, key, url, headers, end)
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not is_kept:  # the server may close a connection that is kept at any time
                    raise
            except BaseException:
                connection.close()
                raise

    def _send(
        self,
        connection: http.client.HTTPConnection,
        key: tuple[str, str],
        url: str,
        headers: dict[str, str],
        end: float,
    ) -> Answer:
        if connection.sock is None:
            try:
                connection.connect()
            except UnicodeError:  # of the codec "idna": an empty or a long part
                raise socket.gaierror(socket.EAI_NONAME, "a name that no host can have") from None
            connection.sock = _Timed(connection.sock)
        timed: Any = connection.sock
        timed.end = end
        is_plain = key[0] == "http" and self._proxy(*key) is not None
        connection.request("GET", url if is_plain else encoded_target(url), headers=headers)
        response = connection.getresponse()

        def finish() -> None:
            if response.length is not None and response.length <= _RESIDUE_NBYTES:
                with contextlib.suppress(OSError, http.client.HTTPException):  # what is left of an error page
                    response.read()
            if response.isclosed() and not response.will_close:
                with self._lock:
                    self._idle.setdefault(key, []).append(connection)
            else:
                response.close()
                connection.close()

        def extend(seconds: float) -> None:
            timed.end = time.monotonic() + seconds

        return Answer(response.status, response.reason, response.headers, response, finish, extend)

    def _proxy(self, scheme: str, netloc: str) -> str | None:
        proxy = self._proxies.get(scheme)
        if proxy is None or urllib.request.proxy_bypass(urlsplit(f"//{netloc}").hostname or ""):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"

    def _new(self, scheme: str, netloc: str, seconds: float) -> http.client.HTTPConnection:
        address = urlsplit(f"//{netloc}")
        host, port = address.hostname or "", address.port
        proxy = self._proxy(scheme, netloc)
        through = None if proxy is None else urlsplit(proxy)
        if through is not None and through.hostname:
            target = through.hostname, through.port or 80
        else:
            target = host, port or (443 if scheme == "https" else 80)
        if scheme == "http":
            return http.client.HTTPConnection(*target, timeout=seconds)
        with self._lock:
            self._context = self._context or ssl.create_default_context()
        connection = http.client.HTTPSConnection(*target, timeout=seconds, context=self._context)
        if through is not None:
            connection.set_tunnel(host, port or 443)
        return connection

    def close(self) -> None:
        """Close the connections that are not in use. Others can still be opened."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.close()


REFUSED = (socket.gaierror, ConnectionRefusedError, ssl.SSLError)
"""Errors that another attempt does not mend soon."""
