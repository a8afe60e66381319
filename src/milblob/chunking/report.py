"""The reports of `milblob.chunk` and `milblob.join`."""

from dataclasses import dataclass

from ..results import Result


@dataclass(frozen=True, repr=False)
class Cut(Result):
    """A place where a function is cut.

    Attributes:
        function: its name.
        after: the operation before the cut.
        values: name -> type of each value that the parts after the cut take from those before it.
        nbytes: of these values; an open dimension counts as 1.
        repeated: how many operations are computed again after the cut, because their values cannot be passed on.

    Examples:
        >>> [cut] = milblob.chunk("demo.mlpackage", "chunks", parts=2).cuts
        >>> cut.function, cut.after, cut.values, cut.nbytes
        ('main', 'add_4', {'add_4': 'tensor<fp16, [1, 16, 48]>'}, 1536)
    """

    function: str
    after: str
    values: dict[str, str]
    nbytes: int
    repeated: int


@dataclass(frozen=True, repr=False)
class Chunk(Result):
    """One package of a model that was cut.

    Attributes:
        path: of the package.
        nbytes: of its weights and operations, as stored.
        blob_count: number of records in its weight file.
        operations: how many operations it has, constants among them.
        inputs, outputs, states: function -> their names.

    Examples:
        >>> report = milblob.chunk("demo.mlpackage", "chunks", parts=2)
        >>> first, second = report.chunks
        >>> first.path, first.operations, first.inputs, second.outputs
        ('chunks/demo_chunk1.mlpackage', 165, {'main': ['tokens']}, {'main': ['logits']})
    """

    path: str
    nbytes: int
    blob_count: int
    operations: int
    inputs: dict[str, list[str]]
    outputs: dict[str, list[str]]
    states: dict[str, list[str]]


@dataclass(frozen=True, repr=False)
class RepeatedWeight(Result):
    """A weight that several chunks read, so each of them stores it.

    Attributes:
        name: of the weight.
        nbytes: as stored, once.
        chunks: numbers of the chunks, from 1.

    Examples:
        >>> report = milblob.chunk("functions.mlpackage", "chunks", parts=2)
        >>> report.repeated
        [RepeatedWeight(name='base_bias_0', nbytes=128, chunks=[1, 2])]
    """

    name: str
    nbytes: int
    chunks: list[int]


@dataclass(frozen=True, repr=False)
class ChunkReport(Result):
    """The result of `chunk`.

    Attributes:
        source: the model.
        destination: the folder of the packages.
        chunks: in the order in which they run.
        cuts: between them, of each function.
        repeated: weights that several chunks store.
        pipeline: path of the package that has all of them; None if there is none.
        notes: of a chunk that is much larger than the others, why it could not be cut.
        is_written: False for a dry run.

    Examples:
        >>> report = milblob.chunk("demo.mlpackage", "chunks", parts=2, dry_run=True)
        >>> len(report.chunks), len(report.cuts), report.is_written
        (2, 1, False)
    """

    source: str
    destination: str
    chunks: list[Chunk]
    cuts: list[Cut]
    repeated: list[RepeatedWeight]
    pipeline: str | None
    notes: list[str]
    is_written: bool


@dataclass(frozen=True, repr=False)
class JoinReport(Result):
    """The result of `join`.

    Attributes:
        sources: the models, in order.
        destination: the new package.
        functions: its functions.
        linked: function -> outputs of earlier models that later ones take; they are values inside the new model.
        inputs, outputs, states: function -> their names.
        renamed: how many values have a new name, because an earlier model uses the old one.
        shared_nbytes: bytes of records that several models have, and that are stored once.
        blob_count: number of records in the new weight file.
        nbytes: bytes of their data.

    Examples:
        >>> chunks = [chunk.path for chunk in milblob.chunk("demo.mlpackage", "chunks", parts=2).chunks]
        >>> report = milblob.join(chunks, "joined.mlpackage")
        >>> report.inputs, report.outputs, report.nbytes
        ({'main': ['tokens']}, {'main': ['logits']}, 179904)
    """

    sources: list[str]
    destination: str
    functions: list[str]
    linked: dict[str, list[str]]
    inputs: dict[str, list[str]]
    outputs: dict[str, list[str]]
    states: dict[str, list[str]]
    renamed: int
    shared_nbytes: int
    blob_count: int
    nbytes: int
