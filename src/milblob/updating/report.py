"""The reports of `milblob.delta` and `milblob.apply`."""

from dataclasses import dataclass

from ..results import Result


@dataclass(frozen=True, repr=False)
class FileDelta(Result):
    """How a patch makes one file of the new model.

    Attributes:
        path: relative to the model, with "/"; "" of a model that is a file.
        nbytes: of the new file.
        copied_nbytes: how many of them are copied from the old model.
        stored_nbytes: how many bytes of the patch make the others.

    Examples:
        >>> values = {"head_bias": np.ones(96, np.float32)}
        >>> refitted = milblob.refit("demo.mlpackage", values, destination="new.mlpackage")
        >>> report = milblob.delta("demo.mlpackage", "new.mlpackage", "update.milpatch")
        >>> [(file.path, file.nbytes - file.copied_nbytes) for file in report.files if file.stored_nbytes]
        [('Data/com.apple.CoreML/weights/weight.bin', 384)]
    """

    path: str
    nbytes: int
    copied_nbytes: int
    stored_nbytes: int


@dataclass(frozen=True, repr=False)
class DeltaReport(Result):
    """A patch that was made.

    Attributes:
        old, new: the models. path: of the patch.
        old_hash, new_hash: their content hashes, as `milblob hash` prints them.
        nbytes: of the patch. new_nbytes: of all files of the new model.
        files: of the new model, in the order of their paths.
        removed: files of the old model that the new one has not.

    Examples:
        >>> values = {"head_bias": np.ones(96, np.float32)}
        >>> refitted = milblob.refit("demo.mlpackage", values, destination="new.mlpackage")
        >>> report = milblob.delta("demo.mlpackage", "new.mlpackage", "update.milpatch")
        >>> report.nbytes < report.new_nbytes / 100
        True
    """

    old: str
    new: str
    path: str
    old_hash: str
    new_hash: str
    nbytes: int
    new_nbytes: int
    files: list[FileDelta]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class ApplyReport(Result):
    """A patch that was applied.

    Attributes:
        source: the old model. patch: path of the patch. destination: of the new model.
        new_hash: content hash of the new model, as the patch names it. The bytes of each new file were compared with
            the digest that the patch has of it; this hash was not: `content_hash` of `destination` computes it.
        nbytes: of all files of the new model.
        changed: files that are new or have other bytes than in the old model. removed: those that are gone.
        through_journal: whether files were changed in place, through a journal; else all are new files.
        done: False of a dry run.

    Examples:
        >>> values = {"head_bias": np.ones(96, np.float32)}
        >>> refitted = milblob.refit("demo.mlpackage", values, destination="new.mlpackage")
        >>> patch = milblob.delta("demo.mlpackage", "new.mlpackage", "update.milpatch")
        >>> report = milblob.apply("demo.mlpackage", "update.milpatch", "updated.mlpackage")
        >>> report.changed, report.new_hash == patch.new_hash
        (('Data/com.apple.CoreML/weights/weight.bin',), True)
    """

    source: str
    patch: str
    destination: str
    new_hash: str
    nbytes: int
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    through_journal: bool
    done: bool
