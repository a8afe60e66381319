"""milblob.recover: complete a change in place that was interrupted."""

import os
from dataclasses import dataclass

from ..arguments import as_path
from ..errors import MilblobError
from ..model.recovery import changeable_files, settle
from ..results import Result
from ..storage import paths
from ..storage.journal import Recovered


@dataclass(frozen=True, repr=False)
class RecoverReport(Result):
    """What `recover` did.

    Attributes:
        path: as given.
        changes: the changes that were completed, in order; empty if none was pending.

    Examples:
        >>> report = milblob.recover("demo.mlpackage")
        >>> report.changes
        ()
    """

    path: str
    changes: tuple[Recovered, ...]


def recover(source: str | os.PathLike[str]) -> RecoverReport:
    """Complete a change of a model that a killed process began: `milblob.open(path, "r+")`, `refit`, `write_weights`.

    The whole change is applied from its journal: the model then has all new values. The next writer that changes the
    model in place does the same first. If no change is pending, nothing is done. If a process is still writing, this
    waits for it.

    Args:
        source: path of the model, weight file or unpacked archive; or of a file or folder of it. Weight files that the
            model names are looked at too.

    Returns:
        RecoverReport.

    Raises:
        FormatError: the journal is broken, does not belong to this model, may come from a user who may not write to it,
            or the files have changed since. Nothing has been changed.
        BlockingIOError: another process is still writing to the model after ten seconds.
        OSError: the path does not exist, or the files cannot be written here; the message names the remedy.

    Examples:
        >>> milblob.recover("demo.mlpackage").changes  # nothing was pending
        ()
    """
    name = as_path(source)
    changes = settle(name)
    if not changes:
        os.stat(name)
    try:
        named = sorted(changeable_files(name))
    except MilblobError:  # not a model as a whole, so it names no files
        named = []
    for file in named:
        if paths.is_there(file):
            changes += settle(file)
    return RecoverReport(name, tuple(changes))
