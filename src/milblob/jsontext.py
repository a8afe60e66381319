"""Parsing of untrusted JSON: bounded, and every failure is a FormatError."""

from collections.abc import Iterable
from typing import Any

from .errors import FormatError

MAX_NBYTES = 16 << 20  # a list of `{}` of this size already makes 400 MB of objects
_MAX_SIZE = (1 << 63) - 1
_MAX_RANK = 64  # of NumPy; the product of many more sizes takes minutes, and cannot be printed


def parse_json(
    data: bytes | memoryview | str, what: str, file: str | None, *, unique: bool = False, code: str = ""
) -> Any:
    """Parse a JSON document.

    `what`: its name in messages. `unique`: refuse an object with a repeated key; otherwise the last value is taken, as
    usual.
    Raises: FormatError: too large, not JSON, nested too deep, a repeated key.
    """
    import json

    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            key = first_again(key for key, _ in pairs)
            raise FormatError(f"{what}: expected every key once, got {key!r} twice", file=file, code=code)
        return result

    if len(data) > MAX_NBYTES:
        raise FormatError(f"{what}: expected at most {MAX_NBYTES} bytes, got {len(data)}", file=file, code=code)
    try:
        text = bytes(data) if isinstance(data, memoryview) else data
        return json.loads(text, object_pairs_hook=unrepeated if unique else None)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "nesting too deep"
        raise FormatError(
            f"{what}: expected a document, got {message}", offset=getattr(error, "pos", None), file=file, code=code
        ) from None


def first_again(names: Iterable[str]) -> str:
    """Return the first name that was there before. StopIteration: no name comes twice."""
    seen: set[str] = set()
    return next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]


def as_shape(value: Any) -> tuple[int, ...] | None:
    """Return a shape from a document as a tuple; None if it is not a shape."""
    if (
        not isinstance(value, list)
        or len(value) > _MAX_RANK
        or not all(type(size) is int and 0 <= size <= _MAX_SIZE for size in value)
    ):
        return None
    return tuple(value)
