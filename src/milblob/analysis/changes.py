"""A difference between two models beyond their weights, in words."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..results import Result


@dataclass(frozen=True, repr=False)
class Change(Result):
    """One difference, or several of one kind.

    Attributes:
        kind: "removed" (only in A), "added" (only in B), "changed", or "renamed".
        message: its description.
        parts: of several: the description of each.

    Examples:
        >>> found = milblob.diff("demo.mlpackage", "states.mlpackage")
        >>> found.structure[1].kind, found.structure[1].message
        ('removed', "input 'tokens': only in A")
    """

    kind: str
    message: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


def only(subjects: Iterable[str], kind: str = "removed") -> list[Change]:
    """Return a Change for each of what only A has ("removed"), or only B ("added")."""
    where = "A" if kind == "removed" else "B"
    return [Change(kind, f"{subject}: only in {where}") for subject in subjects]


def compare_named(what: str, old: dict[str, str], new: dict[str, str]) -> list[Change]:
    """Compare descriptions by name: entries that one side lacks, and entries that differ."""
    changes = only(f"{what} {name!r}" for name in old if name not in new)
    changes += [
        Change("changed", f"{what} {name!r}: {text or 'nothing'} in A, {new[name] or 'nothing'} in B")
        for name, text in old.items()
        if name in new and new[name] != text
    ]
    return changes + only((f"{what} {name!r}" for name in new if name not in old), "added")
