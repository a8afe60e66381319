"""Sources of commands that are URLs or zip archives: --storage-option, and the local paths that represent them."""

import contextlib
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from ..arguments import as_path, as_source
from ..mirrored import is_remote, is_url
from . import options
from .terminal import output
from .terminal.progress import shown

_CACHE_NBYTES = 10 << 30  # remote.cache.DEFAULT_NBYTES, without importing it
_SOURCES = ("model", "models", "sources", "a", "b", "weights")
"""The arguments that are files to read, of all commands."""


def add_sources(parser: options.Parser, *names: str) -> None:
    """Add --storage-option to a command; `names` are the arguments that are sources."""
    add_storage_options(parser)
    parser.set_defaults(remote_sources=names)


def add_storage_options(parser: options.Parser, *, is_each: bool = False) -> None:
    """Add --storage-option, --download and --cache.

    `is_each`: the command opens its sources one after another, with `local_source`.
    """
    description = "for the file system of a URL, such as anon=true; VALUE is JSON or text; may be repeated"
    parser.add_argument(
        "--storage-option",
        metavar="KEY=VALUE",
        dest="storage_options",
        type=_option,
        action="append",
        default=[],
        help=description,
    )
    description = (
        "fetch the whole files of each URL to DIR first, or what is missing of them, and print the content hash"
    )
    options.add_output(parser, "--download", metavar="DIR", help=description)
    description = "keep what is fetched of URLs in DIR, for later calls"
    parser.add_argument("--cache", metavar="DIR", help=description)
    description = f"what --cache may take on disk, such as 2G; default {_CACHE_NBYTES >> 30}G; the oldest goes first"
    parser.add_argument("--cache-size", metavar="SIZE", type=options.size, help=description)
    parser.set_defaults(is_each=is_each)


def _option(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE. Errors do not show the value, which may be a secret."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ArgumentTypeError("expected KEY=VALUE, got no key or no value")
    import json

    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


@contextlib.contextmanager
def local_sources(arguments: Namespace) -> Iterator[None]:
    """Replace the URLs and zip archives among a command's sources by local paths, until the block ends.

    Raises: ValueError: options without a URL; a URL where the command takes local files only. As
    `remote.mirror.open_mirror`.
    """
    if getattr(arguments, "is_each", False):
        yield
        return
    names = getattr(arguments, "remote_sources", ())
    _require_local({name: value for name, value in vars(arguments).items() if name in _SOURCES and name not in names})
    given = {name: getattr(arguments, name) for name in names}
    every = [text for value in given.values() for text in (value if isinstance(value, list) else [value])]
    check_options(arguments, every)
    with contextlib.ExitStack() as stack:

        def opened(text: Any) -> Any:
            return stack.enter_context(local_source(text, arguments)) if is_remote(text) else text

        for name, value in given.items():
            setattr(arguments, name, list(map(opened, value)) if isinstance(value, list) else opened(value))
        yield


def check_options(arguments: Namespace, sources: list[Any]) -> None:
    """Raise ValueError if a source is neither a path nor a URL, or options are given without what they are for."""
    for text in sources:
        if isinstance(text, str):
            as_source(text)
    if getattr(arguments, "cache_size", None) is not None and arguments.cache is None:
        raise ValueError("--cache-size: expected --cache DIR, whose size it is, got none")
    require_url(arguments, [text for text in sources if isinstance(text, str)])


def require_url(arguments: Namespace, sources: Sequence[str]) -> None:
    """Raise ValueError if an option for URLs is given, and none of the sources is one."""
    given = (name for name in ("storage_options", "download", "cache") if getattr(arguments, name, None))
    option = next(given, None)
    if option is not None and not any(map(is_url, sources)):
        shown = "--storage-option" if option == "storage_options" else f"--{option}"
        raise ValueError(f"{shown}: expected a URL, which it is for, got {sources[0] if sources else 'none'}")


@contextlib.contextmanager
def local_source(text: str, arguments: Namespace) -> Iterator[str]:
    """Yield the local path that represents a URL or zip archive, until the block ends; of any other path, itself.

    Raises: As `remote.mirror.open_mirror`, and `download`.
    """
    if not is_remote(text) or not hasattr(arguments, "storage_options"):
        yield text
        return
    stored = dict(arguments.storage_options)
    if arguments.download is not None and is_url(text):
        yield _downloaded(text, stored, arguments)
        return
    from ..remote.cache import Cache
    from ..remote.mirror import local

    size = _CACHE_NBYTES if arguments.cache_size is None else arguments.cache_size
    cache = None if arguments.cache is None else Cache(arguments.cache, size)
    options, cache = (stored, cache) if is_url(text) else (None, None)  # an archive beside a URL needs none of both
    with local(text, options, arguments.max_nbytes, cache) as path:
        yield path


def _require_local(given: dict[str, Any]) -> None:
    for value in given.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                as_path(text)


def _downloaded(url: str, stored: dict[str, Any], arguments: Namespace) -> str:
    from ..rewrite.download import download

    with shown(arguments) as progress:
        found = download(url, arguments.download, progress=progress, storage_options=stored)
    if not arguments.quiet:
        what = f"{output.plural(found.files, 'file')}, {output.size(found.nbytes)}, to {found.path}"
        output.say(f"{found.source}: {what}, content hash {found.hash or 'none'}")
    return found.path
