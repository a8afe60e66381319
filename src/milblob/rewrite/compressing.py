"""Compressing the weights of a model: which, with what recipe, and where the parts are until they are written.

Everything is computed before the layout of the result is known: what is stored for a weight can depend on its values.
The parts go to a file without a name beside the result, so memory holds only a few weights at a time.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
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
from ..values.palettize import weights_for
from ..values.tensorvalue import pack_tensor
from .decompress import Decompression
from .pieces import LINKED_OPSET
from .recipes import CompressedParts, NotCompressibleError, Part, Recipe, Weight
from .recompress import identity, pieces_of, steps_of

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
    importance: Any
    nan: str
    is_continued: bool

    def weight(self) -> Weight:
        pieces = pieces_of(self.tensor) if self.is_continued else None
        array = pieces.array if pieces is not None else self.tensor.read()
        return Weight(
            array, self.axes, self.opset, self.consumers, self.importance, self.groups, pieces, self.nan
        )  # fmt: skip

    @property
    def kind(self) -> Hashable:
        """What two weights with equal bytes must have in common to be compressed alike."""
        heavy = None if self.importance is None else self.importance.tobytes()
        return (
            self.recipe, self.axes, self.opset, self.tensor.shape, self.tensor.mil_dtype.mil_code, self.consumers,
            self.groups, heavy, self.is_continued, None if self.tensor.chain is None else identity(self.tensor),
        )  # fmt: skip


class Extras(NamedTuple):
    """What a compression is told besides recipes.

    Attributes:
        importance: name -> weights of its elements, or of its input channels.
        nan: "skip" or "keep": what happens to weights with NaN or infinity.
        requantize: whether weights that are compressed already may go through their dense values.
    """

    importance: Mapping[str, Any]
    nan: str
    requantize: bool


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
        extras: importance and the like.

    Attributes:
        weights: by id of the constant, or of the chain of what was compressed before.
        decompressions: of the Programs with such chains: which of their operations go.
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
        extras: Extras,
    ) -> None:
        self.weights: dict[int, CompressedWeight] = {}
        self.decompressions: dict[int, Decompression] = {}
        self._extras = extras
        self.skipped: list[tuple[str, str]] = []
        self._recipe = recipe
        self._is_selected = is_selected
        self._op_types = op_types
        self._per_name = list(per_name)
        self._least = least
        self._directory = directory
        self._counter = counter
        self._spool = _Spool()

    def of_compressed(self) -> list[CompressedWeight]:
        """The weights that were compressed before, in another way."""
        return [weight for weight in self.weights.values() if weight.tensor.chain is not None]

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
            row = candidate.tensor.constant if candidate.tensor.chain is None else candidate.tensor.chain
            self.weights[id(row)] = weight
        chains = {id(one.tensor.chain) for one in self.of_compressed()}
        for _, program in model.scans if chains else ():
            self.decompressions[id(program)] = Decompression(program, lambda group: id(group) in chains)
        self._spool.map()

    def _candidates(self, model: Model) -> Iterator[_Candidate]:
        numbers = _Numbers(model)
        unknown = sorted(set(self._extras.importance) - {tensor.name for tensor in _all_weights(model)})
        if unknown:
            raise ValueError(f"importance: expected names of weights, got {unknown[0]!r}")
        for tensor in _all_weights(model):
            constant, program = tensor.constant, cast(Program, tensor.program)
            if tensor.size is None or not self._is_selected(tensor.name):
                continue
            if constant is not None and constant.storage != _codec.BLOB and (not constant.shape or tensor.size < 10):
                continue  # no weight
            op = tensor.op_row
            if constant is None:
                words = compress_rules.weight_refusal(program, op, tensor.mil_dtype.mil_code, tensor.shape, self._least)
            else:
                words = compress_rules.refusal(program, constant, self._least)
            if words is not None:
                self.skipped.append((tensor.name, words))
                continue
            readers = compress_rules.consumers(program, op)
            uses = tuple((reader.type, key) for reader, key in readers)
            recipe = self._chosen(tensor, uses)
            if recipe is None:
                self.skipped.append((tensor.name, "expected a recipe for it, got none: it stays as it is"))
                continue
            opset = cast_rules.opset(program, op)
            if opset < recipe.opset:
                remedy = f"convert with minimum_deployment_target=ct.target.iOS{recipe.opset}"
                words = (
                    f"{recipe}: expected a model for iOS {recipe.opset} or later, got one for iOS {opset} ({remedy})"
                )
                raise UnsupportedError(words, file=model.path, where=tensor.where)
            words = None if constant is not None else not_continued(tensor, recipe)
            if words is not None and not self._extras.requantize:
                self.skipped.append((tensor.name, f"{words} (requantize compresses its dense values)"))
                continue
            require_plain(program, cast(Source, tensor.source).mapping.live())
            axes = compress_rules.channel_axes(program, op, len(tensor.shape), partial(numbers.flag, program))
            if axes is None and not recipe.needs_axes:
                axes = 1, 0
            if axes is None:
                words = "expected operations that agree on its channels, got some that read them along different axes"
                self.skipped.append((tensor.name, words))
                continue
            convolutions = [reader for reader, _ in readers if reader.type in compress_rules.CONVOLUTIONS]
            groups = max((numbers.of(program, reader, "groups", 1) for reader in convolutions), default=1)
            heavy = self._importance(tensor, recipe, axes)
            is_continued = constant is None and words is None
            yield _Candidate(tensor, recipe, axes, opset, uses, groups, heavy, self._extras.nan, is_continued)

    def _importance(self, tensor: Tensor, recipe: Recipe, axes: compress_rules.Axes) -> Any:
        """The importance of the elements of a weight, in its shape; None if there is none."""
        given = self._extras.importance.get(tensor.name)
        if given is None:
            return None
        if not recipe.weighs:
            words = "expected a recipe that weighs elements (Linear needs search=True, Palette 'kmeans')"
            raise ValueError(f"importance of {tensor.name}: {words}, got {recipe}")
        array, shape = np.asarray(given), tensor.shape
        channels = shape[axes[0]]
        if array.shape == (channels,):  # of the input channels, also where the last dimension has as many
            array = array.reshape([channels if axis == axes[0] else 1 for axis in range(len(shape))])
        elif array.shape != shape:
            words = f"expected its shape {shape}, or {channels}, one for each input channel"
            raise ValueError(f"importance of {tensor.name}: {words}, got shape {array.shape}")
        try:
            return weights_for(array, shape)
        except ValueError as error:
            raise ValueError(f"{error} (importance of {tensor.name})") from None

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
            if packed is None:  # an immediate: rare, and then alone; or compressed already
                kind = number if one.tensor.chain is None else one.kind
                stretches.append(Stretch(_codec.Buffer(b""), 0, 0, kind))
            else:
                stretches.append(Stretch(packed.buffer, packed.offset, packed.dtype.nbytes(packed.size), one.kind))
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


def not_continued(tensor: Tensor, recipe: Recipe) -> str | None:
    """Return why a recipe cannot go on from what a weight is compressed to; None if it can."""
    is_late = cast_rules.opset(cast(Program, tensor.program), tensor.op_row) >= LINKED_OPSET
    steps = steps_of(tensor) if is_late else None
    words = None if steps is None else recipe.objection(steps)
    if steps is not None and words is None:
        return None
    reason = "" if words is None else f": {words}"
    return f"expected a dense weight for {recipe}, got one that is compressed ({tensor.op}){reason}"


def _all_weights(model: Model) -> Iterator[Tensor]:
    """Yield the constants that are no parts of compressed weights, and the compressed weights, in Program order."""
    for source, program in model.scans:
        ends = Decompression(program, lambda group: True).weights if program.groups else []
        parts = {id(part) for group in program.groups for part in group.stored()} - program.shared
        found = [
            tensor
            for tensor in model.tensors.values()
            if tensor.program is program and id(tensor.constant) not in parts
        ]
        found += [make_tensor(model.package, source, program, program.part_names[id(end)], end) for end in ends]
        yield from sorted(found, key=lambda tensor: tensor.op_row.message[0] if tensor.op_row is not None else -1)


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
