"""Compressing the weights of a model: which, with what recipe, and where the parts are until they are written.

Everything is computed before the layout of the result is known: what is stored for a weight can depend on its values.
The parts go to a file without a name beside the result, so memory holds only a few weights at a time.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..blobs.equal import Stretch, first_equal
from ..dtypes import DType
from ..errors import UnsupportedError
from ..model.model import Model
from ..model.package import Source
from ..model.tensor import Tensor, make_tensor
from ..program import cast_rules, compress_rules
from ..program.scan import Program
from ..program.wire_edits import require_plain
from ..progress import Counter
from ..threads import ordered
from ..values.dense import Held, Packed
from ..values.tensorvalue import pack_tensor
from .recipes import CompressedParts, NotCompressibleError, Part, Recipe, Weight

_ALONE_COUNT = 1 << 21  # a weight of so many elements is shared out among the threads; smaller ones go one to each


class SpooledPart(NamedTuple):
    """A part of a compressed weight.

    Attributes:
        value: its serialized TensorValue if it is stored in the Program.
        number: of the part in the spool, else None.
    """

    key: str
    dtype: Any
    shape: tuple[int, ...]
    value: bytes | None
    number: int | None
    open: Callable[[], Held] | None


class CompressedWeight(NamedTuple):
    """A weight of the model that is compressed.

    Attributes:
        number: equal for weights that share their parts.
        made: its operation and figures; its parts are in `parts`.
    """

    tensor: Tensor
    recipe: Recipe
    number: int
    made: CompressedParts
    parts: tuple[SpooledPart, ...]

    @property
    def nbytes_after(self) -> int:
        """Bytes of all parts as stored."""
        return sum(part.dtype.nbytes(int(np.prod(part.shape))) for part in self.parts)


class _Candidate(NamedTuple):
    tensor: Tensor
    recipe: Recipe
    axes: compress_rules.Axes
    opset: int
    consumers: tuple[tuple[str, str], ...]
    groups: int

    def weight(self) -> Weight:
        return Weight(self.tensor.read(), self.axes, self.opset, self.consumers, None, self.groups)


class Compressing:
    """What is compressed in a model, computed by `prepare`.

    Args:
        recipe: for every weight that the following do not name; None for those only.
        is_selected: which weights are tried.
        op_types: type of an operation -> recipe for the weights that it reads, or None: they stay.
        per_name: (predicate, recipe or None), the first that fits a name; before `op_types`.
        least: only weights of more elements are compressed.
        directory: where the parts are kept meanwhile; None to keep none (a dry run).
        counter: told of each weight that is computed.

    Attributes:
        weights: by id of the constant.
        skipped: (name, reason) of each weight that was asked for and stays.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        is_selected: Callable[[str], bool],
        op_types: Mapping[str, Recipe | None],
        per_name: Iterable[tuple[Callable[[str], bool], Recipe | None]],
        least: int,
        directory: str | None,
        counter: Counter,
    ) -> None:
        self.weights: dict[int, CompressedWeight] = {}
        self.skipped: list[tuple[str, str]] = []
        self._recipe = recipe
        self._is_selected = is_selected
        self._op_types = op_types
        self._per_name = list(per_name)
        self._least = least
        self._directory = directory
        self._counter = counter
        self._spool = _Spool()

    def close(self) -> None:
        """Let go of the parts."""
        self._spool.close()

    def prepare(self, model: Model) -> None:
        """Choose the weights and compute their parts.

        Raises:
            UnsupportedError: an opset that cannot hold what a recipe makes; the one that can is named.
            ValueError: operations that read one weight ask for different recipes.
        """
        candidates = list(self._candidates(model))
        firsts = self._firsts(candidates)
        if self._directory is not None:
            self._spool.open(self._directory)
        made: dict[int, Any] = {}
        unique = [number for number, first in enumerate(firsts) if first == number]
        self._counter.total_nbytes = sum(candidates[number].tensor.nbytes for number in unique)
        for number, result in self._computed(candidates, unique):
            made[number] = result if isinstance(result, NotCompressibleError) else (result, self._spooled(result))
            self._counter.add_tensor(candidates[number].tensor.name, candidates[number].tensor)
        for candidate, first in zip(candidates, firsts, strict=True):
            result = made[first]
            if isinstance(result, NotCompressibleError):
                self.skipped.append((candidate.tensor.name, str(result)))
                continue
            parts = result[0]._replace(parts=())
            weight = CompressedWeight(candidate.tensor, candidate.recipe, first, parts, result[1])
            self.weights[id(candidate.tensor.constant)] = weight
        self._spool.map()

    def _candidates(self, model: Model) -> Iterator[_Candidate]:
        numbers = _Numbers(model)
        for tensor in model.tensors.values():
            constant, program = tensor.constant, cast(Program, tensor.program)
            if constant is None or tensor.size is None or not self._is_selected(tensor.name):
                continue
            if constant.storage != _codec.BLOB and (not constant.shape or tensor.size < 10):
                continue  # no weight
            words = compress_rules.refusal(program, constant, self._least)
            if words is not None:
                self.skipped.append((tensor.name, words))
                continue
            uses = tuple((op.type, key) for op, key in compress_rules.consumers(program, constant))
            recipe = self._chosen(tensor, uses)
            if recipe is None:
                self.skipped.append((tensor.name, "expected a recipe for it, got none: it stays as it is"))
                continue
            opset = cast_rules.opset(program, constant)
            if opset < recipe.opset:
                remedy = f"convert with minimum_deployment_target=ct.target.iOS{recipe.opset}"
                words = (
                    f"{recipe}: expected a model for iOS {recipe.opset} or later, got one for iOS {opset} ({remedy})"
                )
                raise UnsupportedError(words, file=model.path, where=tensor.where)
            require_plain(program, cast(Source, tensor.source).mapping.live())
            axes = compress_rules.channel_axes(program, constant, partial(numbers.flag, program))
            if axes is None and not recipe.needs_axes:
                axes = 1, 0
            if axes is None:
                words = "expected operations that agree on its channels, got some that read them along different axes"
                self.skipped.append((tensor.name, words))
                continue
            convolutions = [
                op for op, _ in compress_rules.consumers(program, constant) if op.type in compress_rules.CONVOLUTIONS
            ]
            groups = max((numbers.of(program, op, "groups", 1) for op in convolutions), default=1)
            yield _Candidate(tensor, recipe, axes, opset, uses, groups)

    def _chosen(self, tensor: Tensor, uses: tuple[tuple[str, str], ...]) -> Recipe | None:
        for is_named, recipe in self._per_name:
            if is_named(tensor.name):
                return recipe
        recipes = {self._op_types.get(op, self._recipe) for op, _ in uses}
        if len(recipes) > 1:
            words = ", ".join(sorted({op for op, _ in uses}))
            raise ValueError(f"op_types: expected one recipe for {tensor.name}, got several, by {words}")
        return recipes.pop()

    def _firsts(self, candidates: list[_Candidate]) -> list[int]:
        """The index of the first candidate with equal bytes that is compressed alike."""
        stretches = []
        for number, one in enumerate(candidates):
            packed = one.tensor.place.packed() if one.tensor.is_blob else None
            kind = (
                one.recipe, one.axes, one.opset, one.tensor.shape, one.tensor.mil_dtype.mil_code, one.consumers,
                one.groups,
            )  # fmt: skip
            if packed is None:  # an immediate: rare, and then alone
                stretches.append(Stretch(_codec.Buffer(b""), 0, 0, number))
            else:
                stretches.append(Stretch(packed.buffer, packed.offset, packed.dtype.nbytes(packed.size), kind))
        return first_equal(stretches)

    def _computed(self, candidates: list[_Candidate], numbers: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield (number, parts or the reason that there are none), in order; several small weights at a time."""

        def compute(number: int) -> Any:
            try:
                return candidates[number].recipe.apply(candidates[number].weight())
            except NotCompressibleError as reason:
                return reason

        small: list[int] = []
        for number in numbers:
            if candidates[number].tensor.size < _ALONE_COUNT:
                small.append(number)
                continue
            yield from zip(small, ordered(compute, small), strict=True)
            small = []
            yield number, compute(number)
        yield from zip(small, ordered(compute, small), strict=True)

    def _spooled(self, made: CompressedParts) -> tuple[SpooledPart, ...]:
        """Keep the parts: small ones as values of the Program, the others in the spool."""
        return tuple(self._kept(part) for part in made.parts)

    def _kept(self, part: Part) -> SpooledPart:
        if part.array is not None:
            value = pack_tensor(part.array, part.dtype)
            return SpooledPart(part.key, part.dtype, part.shape, value, None, None)
        offset = self._spool.add(part.data)

        def held() -> Held:
            return Held(Packed(self._spool.buffer(), offset, part.dtype, part.shape))

        return SpooledPart(part.key, part.dtype, part.shape, None, offset, held)


class _Spool:
    """A file without a name that takes the parts, and is mapped when they are all there."""

    def __init__(self) -> None:
        self._file: Any = None
        self._mapping: mmap.mmap | None = None
        self._end = 0

    def open(self, directory: str) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, prefix=".milblob-", buffering=0)  # noqa: SIM115  # see close

    def add(self, data: Any) -> int:
        """Append bytes; return their offset. Without a file, only count."""
        offset = self._end
        view = memoryview(data).cast("B")
        self._end += view.nbytes
        while self._file is not None and view.nbytes:
            view = view[self._file.write(view) :]
        return offset

    def map(self) -> None:
        if self._file is not None and self._end:
            self._mapping = mmap.mmap(self._file.fileno(), self._end, access=mmap.ACCESS_READ)

    def buffer(self) -> _codec.Buffer:
        return _codec.Buffer(self._mapping if self._mapping is not None else b"")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._mapping = None


class _Numbers:
    """Parameters of operations that are one bool or int32: written in place, or const operations that are read.

    Args:
        model: opened with all constants.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._known: dict[int, dict[Any, Any]] = {}
        self._sources = {id(program): source for source, program in model.scans}

    def flag(self, program: Program, op: Any, key: str) -> bool:
        """Return the value of a bool parameter; False if the operation does not have it."""
        return bool(self.of(program, op, key, 0))

    def of(self, program: Program, op: Any, key: str, otherwise: int) -> int:
        """Return the value of a parameter; `otherwise` if the operation does not have it."""
        rows = self._known.get(id(program))
        if rows is None:
            rows = self._known[id(program)] = self._all(program)
        row = rows.get((op.message, key))
        if isinstance(row, str):
            block = op.block
            while block >= 0 and (block, row) not in rows:
                block = program.scan.blocks[block][2]
            row = rows.get((block, row))
        if row is None:
            return otherwise
        tensor = make_tensor(self._model.package, self._sources[id(program)], program, key, row)
        return int(tensor.read().reshape(-1)[0])

    def _all(self, program: Program) -> dict[Any, Any]:
        """Every such constant, by (message of its operation, parameter), or (block, name); and the names read."""
        rows: dict[Any, Any] = {}
        codes = DType.BOOL.mil_code, DType.INT32.mil_code
        for c in program.scan.constants:
            if c.op is not None and c.mil_code in codes and c.storage == _codec.IMMEDIATE and not c.shape:
                rows[(c.block, c.op.name) if c.op.type == "const" and c.key == "val" else (c.op.message, c.key)] = c
        for readers in program.readers().values():
            for c in readers:
                if c.op is not None and (c.key.startswith("transpose_") or c.key == "groups"):
                    rows.setdefault((c.op.message, c.key), c.text)
        return rows


def spool_directory(dst: str) -> str:
    """Return the directory that the result goes to."""
    return os.path.dirname(os.path.abspath(dst)) or "."
