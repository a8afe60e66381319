"""Tensors for workers: a source that is opened again by its path, and names of tensors in it."""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..dtypes import DType
from ..formats.selecting import ChosenTensors, open_tensors
from ..formats.weights import with_notes
from ..mirrored import represents
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.package import Package
from ..model.tensor import Tensor
from ..storage import paths
from ..storage.mapped import MappedFile
from ..storage.source_file import SourceFile
from ..workers import workers_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..executors import Workers

_R = TypeVar("_R")


class Reopened(NamedTuple):
    """A source as workers open it: data that can be pickled."""

    path: str  # of the source
    constants: bool  # as for `open`
    stored: bool
    max_nbytes: int | None
    is_restored: bool  # whether what the notes of a listing describe is restored
    is_broken: bool  # whether a model may be broken; what can be read of it is then opened
    files: tuple[SourceFile, ...]  # the files in it, unchanged

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        constants: bool = False,
        stored: bool = False,
        max_nbytes: int | None = None,
        is_restored: bool = False,
        is_broken: bool = False,
    ) -> "Reopened":
        """Describe a source that the caller has open.

        `source`: a path, or an open model, which has its own options. `constants`, `stored`, `max_nbytes`,
        `is_restored`, `is_broken`: see Attributes.
        Raises: ValueError: workers cannot open it.
        """
        path, mappings = source, list[MappedFile]()
        if isinstance(source, Model):
            path, mappings = source.package.path, source.package.mappings
            constants, stored = source.view
            max_nbytes = source.package.budget.given_nbytes
        if not isinstance(path, str | os.PathLike):
            raise ValueError("executor: expected a source with a path, which workers open, got one in memory")
        path = os.path.abspath(os.fspath(path))
        if represents(os.path.join(os.path.realpath(path), "")):
            raise ValueError("executor: expected a local source, which workers open, got a URL or a zip archive")
        names = [path]
        if paths.is_directory(path):
            names = sorted(os.path.join(folder, name) for folder, _, found in os.walk(path) for name in found)
        files = [SourceFile.at(name) for name in names if paths.is_file(name)]
        files += [SourceFile.of(mapping) for mapping in mappings]
        return cls(path, constants, stored, max_nbytes, is_restored, is_broken, tuple(files))

    def require_same(self) -> None:
        """Raise FormatError if a file was replaced or written to since the caller opened it."""
        for file in self.files:
            file.require_same(file.path)

    @property
    def weights(self) -> "Reopened":
        """The same source, opened with its weights: `named` finds all other tensors there too."""
        return self._replace(constants=False, stored=False)

    def open(self, stack: contextlib.ExitStack) -> ChosenTensors:
        """Open it, to be closed with the stack.

        Raises: FormatError: a file was replaced or written to. As opening it does.
        """
        self.require_same()
        if self.is_broken:
            package = Package(self.path, report=lambda *_: None, max_nbytes=self.max_nbytes)
            model = stack.enter_context(Model(package, constants=self.constants, stored=self.stored))
            return ChosenTensors(self.path, model.kind, model.tensors, model)
        opened = open_tensors(
            stack, self.path, constants=self.constants, stored=self.stored, max_nbytes=self.max_nbytes
        )
        if self.is_restored and opened.model is not None:
            return opened._replace(tensors=with_notes(opened.tensors, opened.model))
        return opened

    def named(self, stack: contextlib.ExitStack) -> dict[str, LazyTensor]:
        """Open it, and return its tensors by name, also the constants that it does not list. Raises: as `open`."""
        return _Named(self.open(stack))


class _Named(dict[str, LazyTensor]):
    """The tensors of a source by name; each is looked up when it is asked for."""

    def __init__(self, source: ChosenTensors) -> None:
        super().__init__()
        self._source = source

    def __missing__(self, name: str) -> LazyTensor:
        found = self._source.tensors.get(name)
        if found is None and self._source.model is not None:
            found = self._source.model.unlisted().get(name)
        if found is None:
            raise KeyError(name)
        self[name] = found
        return found


class FarTensors(NamedTuple):
    """Workers, and the source whose tensors they open."""

    workers: "Workers"
    source: Reopened

    @classmethod
    def of(cls, executor: "Executor | None", source: Any, **more: Any) -> "FarTensors | None":
        """Return what an `executor` argument asks for: None without one. Raises and `more`: as `Reopened.of`."""
        workers = workers_of(executor)
        return None if workers is None else cls(workers, Reopened.of(source, **more))

    def each(
        self,
        work: Callable[..., Iterable[_R]],
        tensors: Mapping[str, LazyTensor],
        account: Callable[[LazyTensor], None],
        **options: Any,
    ) -> Generator[_R, None, None]:
        """Yield a result for each tensor, in order, as `work` does here. A record is looked at once.

        Args:
            work: a function of a module: takes tensors and `options`, returns a result for each.
            tensors: by their names in the source.
            account: called with each tensor before a worker gets it: the budget of a worker is for one piece only.

        Raises:
            As `work`, for the first tensor in order. FormatError: a worker found another file. As `Workers.run`.
        """
        firsts: dict[Any, str] = {}
        unique = [name for name, tensor in tensors.items() if firsts.setdefault(_key(name, tensor), name) == name]

        def pieces() -> Iterator[_Piece]:
            for group in self.workers.groups(unique, lambda name: nbytes_of(tensors[name])):
                for name in group:
                    account(tensors[name])
                yield self.source, tuple(group), work, options

        found = up_to_error(self.workers.run(_run, pieces(), _describe))
        known: dict[str, _R] = {}
        for name, tensor in tensors.items():
            first = firsts[_key(name, tensor)]
            if first == name:
                known[name] = next(found)
            yield known[first]


def account(tensor: LazyTensor, is_dense: bool = True) -> None:
    """Count the values that reading a tensor makes; of a compressed weight, unless `is_dense`, those of its parts.

    Raises: LimitError: more than the budget of the source allows.
    """
    if not is_dense and isinstance(tensor, Tensor) and tensor.chain is not None:
        for part in tensor.parts.values():
            account(part, is_dense)
    elif tensor.mil_dtype is not DType.STRING:
        with tensor.place.naming():
            tensor.place.account()


_Piece = tuple[Reopened, tuple[str, ...], Callable[..., Iterable[Any]], Mapping[str, Any]]
"""Some tensors of a source by name, and what is done with them: `work` and its options, see `FarTensors.each`."""


def _run(piece: _Piece) -> tuple[list[Any], Exception | None]:
    """Return the results of a piece, up to an error. Runs in any thread or process."""
    source, names, work, options = piece
    with contextlib.ExitStack() as stack:
        tensors = source.open(stack).tensors
        return collected(work([tensors[name] for name in names], **options))


def collected(found: Iterable[_R]) -> tuple[list[_R], Exception | None]:
    """Return what an iterable yields up to an error, and the error, for `up_to_error`."""
    results: list[_R] = []
    try:
        results.extend(found)
    except Exception as error:
        return results, error
    return results, None


def up_to_error(pieces: Iterable[tuple[list[_R], Exception | None]]) -> Generator[_R, None, None]:
    """Yield the results of pieces in order, and raise the first error where it occurred."""
    for found, error in pieces:
        yield from found
        if error is not None:
            raise error


def nbytes_of(tensor: LazyTensor) -> int:
    """Return the bytes of the decoded values; 0 where that takes reading them, as for strings."""
    shape = tensor.declared_shape
    return 0 if None in shape else prod(size or 0 for size in shape) * (tensor.mil_dtype.nbits or 0) // 8


def _describe(piece: _Piece) -> str:
    source, names, *_ = piece
    more = "" if len(names) == 1 else f" to {names[-1]}"
    return f"tensors {names[0]}{more} of {source.path}"


def _key(name: str, tensor: LazyTensor) -> Any:
    """What identifies a result: equal for tensors that are one record."""
    if not isinstance(tensor, Tensor) or not tensor.is_blob:
        return name
    return tensor.place.key(), tensor.mil_dtype, tensor.declared_shape
