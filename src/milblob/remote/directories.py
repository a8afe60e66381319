"""Which protocol a URL is read by."""

from typing import Any

from ..arguments import as_source
from .origin import RemoteDirectory, as_options
from .urls import split


def open_directory(url: str, options: Any) -> tuple[RemoteDirectory, str]:
    """Return the directory of a URL, which the caller closes, and the name in it. Makes no request yet.

    `url`: of http or https, or of any file system of fsspec. `options`: `storage_options` as the user gives them.
    Raises: ValueError: a URL that cannot be one; an option that its file system does not have. TypeError: no mapping.
    ImportError: fsspec, or what it needs for this URL, is not installed.
    """
    text, checked = as_source(url), as_options(options)
    if text.partition(":")[0].lower() in ("http", "https") and "::" not in text:
        from .http import HttpOrigin

        parts = split(text)
        return HttpOrigin(parts, checked), parts.name
    from .filesystem import open_origin

    return open_origin(text, checked)
