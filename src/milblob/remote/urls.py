"""URLs of http: their parts."""

from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..mirrored import shown_url


class Split(NamedTuple):
    """A URL of http in parts."""

    scheme: str  # in lower case; the host as in the URL, with its port
    host: str
    directory: str  # path of the URL's directory, as it is encoded in the URL; ends with "/"
    name: str  # last name of the path, decoded
    query: str  # without "?"; "" if there is none
    user: str  # "user:password", decoded, or ""

    def at(self, relative: str) -> str:
        """Return the URL, without user, of a file below the directory; its path is plain text with "/"."""
        path = self.directory + "/".join(quote(part, safe="") for part in relative.split("/"))
        return urlunsplit((self.scheme, self.host, path, self.query, ""))

    def shown_at(self, relative: str) -> str:
        """As `at`, as messages show it."""
        return shown_url(self.at(relative))


def split(url: str) -> Split:
    """Split a URL of http or https.

    Raises: ValueError: it has no host, or a port that is not a number, or names nothing.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"URL: expected https://host/path, got {shown_url(url)!r:.200}") from None
    if not parts.hostname or any(c <= " " or c == "\x7f" for c in parts.netloc + parts.query):
        raise ValueError(f"URL: expected https://host/path, got {shown_url(url)!r:.200}")
    user = "" if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    directory, _, name = parts.path.rstrip("/").rpartition("/")
    name = unquote(name)
    if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"URL: expected one whose path ends with a name, got {shown_url(url)!r:.200}")
    whole = host if port is None else f"{host}:{port}"
    encoded = quote(directory, safe="/%:@!$&'()*+,;=~")
    return Split(
        parts.scheme.lower(), whole, f"{encoded}/", name, quote(parts.query, safe="=&%/?:@!$'()*+,;~-._"), user
    )


def encoded_target(url: str) -> str:
    """Return the path and query of a URL, as a request names them."""
    parts = urlsplit(url)
    return (quote(parts.path, safe="/%:@!$&'()*+,;=~-._") or "/") + (f"?{parts.query}" if parts.query else "")
