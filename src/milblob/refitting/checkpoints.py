"""Brings two checkpoints of one network to the same names, as trainers and wrappers change these."""

from collections.abc import Collection, Mapping
from typing import Any

_INNER = "_orig_mod."
"""What torch.compile puts before the names of a module, anywhere in them."""

_MAX_TRIED = 64


def renamed(base: Collection[str], new: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return new arrays under the names of the base, and what was done in words; as they are where nothing fits.

    Names may have one prefix more, or less, than those of the base ("module.", "model."), and "_orig_mod." inside.
    """
    if all(name in base for name in new):
        return dict(new), ""
    plain = {name.replace(_INNER, ""): name for name in base}
    ours = {name.replace(_INNER, ""): array for name, array in new.items()}
    if len(plain) != len(base) or len(ours) != len(new):
        return dict(new), ""
    words = [_INNER] if any(_INNER in name for name in [*base, *new]) else []
    prefixes = ["", *_prefixes(plain, ours), *(f"-{prefix}" for prefix in _prefixes(ours, plain))]
    for prefix in prefixes:
        names = {name: plain.get(_changed(name, prefix) or "") for name in ours}
        found = {name: ours[old] for old, name in names.items() if name is not None}
        if len(found) == len(new):
            words += [prefix.removeprefix("-")] if prefix else []
            return found, f"names that differ by {' and '.join(map(repr, words))} are the same"
    return dict(new), ""


def _prefixes(short: Collection[str], long: Collection[str]) -> list[str]:
    """Return what the longer names may have before the shorter ones; not all of these need a longer one."""
    some, other = min(short, default=""), min(long, default="")
    found = [name.removesuffix(some) for name in long if some and name.endswith(some) and name != some]
    parts = other.split(".")
    tails = (".".join(parts[count:]) for count in range(1, len(parts)))
    found += [other.removesuffix(tail) for tail in tails if tail in short]
    return list(dict.fromkeys(found))[:_MAX_TRIED]


def _changed(name: str, prefix: str) -> str | None:
    """Return a new name without a prefix, or with one more that is written "-prefix"; None if it lacks it."""
    if prefix.startswith("-"):
        return prefix[1:] + name
    return name.removeprefix(prefix) if name.startswith(prefix) else None
