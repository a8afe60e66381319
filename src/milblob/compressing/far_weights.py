"""Who compresses the weights of a model: this process, or workers, whose parts are in files beside the result at first.

From there they are copied to their places.
"""

import contextlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from ..analysis.reopening import Reopened, nbytes_of
from ..lossy.unfit import UnfitError
from ..model.model import Model
from ..model.tensor import Tensor
from ..rewrite.copying import new_file
from ..rewrite.parts import StoredBytes, WeightParts
from ..storage.scratch import Scratch
from ..storage.source_file import SourceFile
from ..storage.transfer import write_at
from ..threads import sized
from .candidates import Candidate
from .weight import Weight, placed

if TYPE_CHECKING:
    from ..executors import Workers

Array = np.ndarray[Any, Any]
_R = TypeVar("_R")

Work = Callable[[Candidate, Any, "Room"], Any]
"""A function of a module: takes a candidate, what it needs besides, and room for parts; its result can be pickled."""


class FarWeights(NamedTuple):
    """Workers, and the model whose weights they compress."""

    workers: "Workers | None"  # None: this process does everything
    source: Reopened | None  # None without workers
    folder: str | None  # where the parts of weights go, on a file system that all workers share; None for a dry run
    numbers: Iterator[int]  # of the files in it

    @classmethod
    def of(cls, workers: "Workers | None", model: Model, folder: str | None = None) -> "FarWeights":
        """Return the workers for a model, whose parts go to `folder`."""
        return cls(workers, None if workers is None else Reopened.of(model).weights, folder, count())

    def each(
        self,
        work: Work,
        candidates: Sequence[Candidate],
        numbers: Sequence[int],
        more: Callable[[int], Any],
        here: Callable[[int], _R],
    ) -> Iterator[_R]:
        """Yield work(candidate, more(number), room) for some candidates, in order.

        `here`: does the same in this process, in threads: without workers, and for what cannot be pickled, such as a
        recipe with a function.
        Raises: As `work` and `Workers.run`.
        """
        workers, source = self.workers, self.source
        if workers is None or source is None:
            yield from sized(here, numbers, lambda number: candidates[number].tensor.size)
            return
        rows: dict[int, tuple[_Packed, Any]] = {}
        for number in numbers:
            row = _packed(candidates[number]), more(number)
            with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # as pickle refuses a function
                pickle.dumps(row)
                rows[number] = row

        def pieces() -> Iterator[_Piece]:
            for group in workers.groups(rows, lambda number: nbytes_of(candidates[number].tensor)):
                path = None if self.folder is None else os.path.join(self.folder, f"{next(self.numbers)}.parts")
                yield source, path, work, tuple(rows[number] for number in group)

        def name_of(piece: _Piece) -> str:
            *_, own = piece
            return f"weights from {own[0][0][0]} of {source.path}"

        with contextlib.closing(workers.run(_run, pieces(), name_of)) as found:
            results = (result for results in found for result in results)
            for number in numbers:
                yield next(results) if number in rows else here(number)


def parts_of(candidate: Candidate, more: None, room: "Room") -> WeightParts | UnfitError:
    """Return the stored parts of a candidate, as `Candidate.parts`; the bytes of large ones are in `room`."""
    if room.fd < 0:
        return candidate.parts(None)
    try:
        return placed(candidate.options[0].recipe.parts(candidate.weight()), room.take, room.put)
    except UnfitError as reason:
        return UnfitError(str(reason))


class Room:
    """Room for parts at the end of a file. `fd`: of the file; -1 for none."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._end = 0

    def take(self, nbytes: int) -> int:
        """Return the offset of a free range."""
        begin, self._end = self._end, self._end + nbytes
        return begin

    def put(self, place: int, offset: int, data: Any) -> None:
        """Write bytes of a range. Raises: OSError."""
        write_at(self.fd, [memoryview(data).cast("B")], place + offset)


_Packed = tuple[str, Any, bool, tuple[Any, ...]]
"""A Candidate without what a worker opens itself: name of the tensor, `options`, `may_stay`, and fields of `about`."""


_Piece = tuple[Reopened, str | None, Work, tuple[tuple[_Packed, Any], ...]]
"""A source; the file for the parts, which a worker makes, None for none; and candidates, each with what it needs."""


def _packed(candidate: Candidate) -> _Packed:
    about = candidate.about
    heavy = about.importance
    if heavy is not None:  # of the input channels: one for each, not one for each element
        steps = zip(heavy.shape, heavy.strides, strict=True)
        heavy = heavy[tuple(slice(None) if step or size < 2 else slice(1) for size, step in steps)]
    fields = about._replace(importance=heavy, empty=cast(Any, None), persistent=cast(Any, None))
    return candidate.tensor.name, candidate.options, candidate.may_stay, tuple(fields)


def _run(piece: _Piece) -> list[Any]:
    """Return the result of each candidate. Runs in any thread or process."""
    source, path, work, rows = piece
    folder = tempfile.gettempdir() if path is None else os.path.dirname(path)
    scratch = Scratch(folder)
    with contextlib.ExitStack() as stack:
        tensors = source.named(stack)
        fd = -1
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a worker that was killed
            fd = stack.enter_context(new_file(path))
        room, found = Room(fd), []
        for (name, options, may_stay, fields), more in rows:
            tensor = cast(Tensor, tensors[name])
            about = Weight(*fields)
            heavy = None if about.importance is None else np.broadcast_to(about.importance, tensor.shape)
            about = about._replace(importance=heavy, empty=scratch.empty, persistent=scratch.empty)
            found.append(work(Candidate(tensor, options, may_stay, about), more, room))
        if path is None:
            return found
        file = SourceFile.at(path)  # after the last byte
        for made in found:
            if isinstance(made, WeightParts):
                rows_of = (replace(p, data=StoredBytes(file, p.data)) if p.data is not None else p for p in made.parts)
                made.parts = tuple(rows_of)
        return found
