"""The calls that read: each takes a URL or a zip archive where it takes a path."""

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar, cast

from ..mirrored import is_remote, is_url
from ..progress import start_progress
from .cache import CacheLike

_F = TypeVar("_F", bound=Callable[..., Any])


def takes_urls(*names: str) -> Callable[[_F], _F]:
    """Let a function take URLs and zip archives for its first arguments; `storage_options=`, `cache=`: for the URLs.

    The function itself gets local paths, which represent them until it returns, and neither of these options, although
    its signature has them for its callers. Without a URL they are refused.

    `names`: of these arguments, in their order, the first ones of the function.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(
            *args: Any, storage_options: dict[str, Any] | None = None, cache: CacheLike = None, **more: Any
        ) -> Any:
            sources = [*args[: len(names)], *(more[name] for name in names[len(args) :] if name in more)]
            given = [one for source in sources for one in (source if isinstance(source, list | tuple) else [source])]
            if not storage_options and cache is None and not any(map(is_remote, given)):
                return function(*args, **more)
            from .mirror import local

            if "progress" in more:
                start_progress(more["progress"])
            with ExitStack() as stack:
                # Both are for the URLs: a local path beside one needs none.
                is_any = any(map(_is_url, given))

                def opened(source: Any) -> Any:
                    if isinstance(source, list | tuple):
                        return [opened(one) for one in source]
                    both = (storage_options, cache) if _is_url(source) or not is_any else (None, None)
                    return stack.enter_context(local(source, both[0], more.get("max_nbytes"), both[1]))

                first = [opened(source) for source in args[: len(names)]]
                rest = {name: opened(value) if name in names else value for name, value in more.items()}
                return function(*first, *args[len(names) :], **rest)

        return cast(_F, call)

    return decorate


def _is_url(source: Any) -> bool:
    return is_remote(source) and is_url(os.fspath(source))
