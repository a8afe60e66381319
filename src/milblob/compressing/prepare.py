"""Compressing the weights of a model: which, with what recipe, and where the parts are until they are written.

Where a recipe knows the sizes of the parts in advance (`Recipe.plan`), they are computed when they are written. Else
they are computed before the layout of the result, and go to a file without a name beside it; so memory holds only a
few weights at a time.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from .. import _codec
from ..arguments import array_of
from ..closeness import hint
from ..errors import MilblobError, UnsupportedError
from ..lossy.palettize import weights_for
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.program_file import require_edits
from ..model.tensor import Tensor
from ..program import cast_edits, compress_edits
from ..program.view import Operation
from ..progress import Counter
from ..rewrite.compressed import CompressedWeight, StoredPart
from ..rewrite.decompress import Decompression, plan_decompression
from ..rewrite.planned import CompressionLoss, Computation, PartsPlan, Put, Streamed
from ..storage.disk import naming
from ..storage.scratch import Scratch
from ..storage.transfer import write_at
from ..values.dense import Held, Packed
from ..values.tensorvalue import pack_tensor
from ..wording import escape
from .candidates import ALONE_COUNT, Candidate, Option, computed, first_alike
from .pieces import NotCompressibleError, Part
from .recipe import HeldBlocks, Recipe
from .recompress import all_weights, not_continued


class RefusedError(MilblobError):
    """A weight turns out not to be compressible when it is written: the work begins again, with `is_careful`."""


class Outcome(NamedTuple):
    """A weight that is compressed, with which recipe, and what that loses.

    Attributes:
        lost: one entry, once everything is written, or in a dry run.
    """

    weight: CompressedWeight
    recipe: Recipe
    lost: list[CompressionLoss]

    @property
    def figures(self) -> CompressionLoss:
        """What is lost; to be asked for once that is known."""
        return self.lost[0]


class NamedRecipe(NamedTuple):
    """A recipe for weights of some names; None: they stay."""

    glob: str
    fits: Callable[[str], bool]
    recipe: Recipe | None


class Chooser(Protocol):
    """What chooses a recipe for each weight."""

    @property
    def passes(self) -> int:
        """How often `choose` goes through the candidates that differ, and tells the counter."""

    def recipes(self, opset: int) -> tuple[Recipe, ...]:
        """Return those to choose from."""

    def choose(
        self, model: Model, candidates: list[Candidate], firsts: list[int], counter: Counter
    ) -> list[tuple[Candidate, str]]:
        """Return each candidate with one option that is left, or with the reason for which it stays, else "".

        Args:
            firsts: for each candidate the number of the first that is alike.
            counter: told of each weight that is measured, and of each that stays.
        """


class Extras(NamedTuple):
    """What a compression is told besides recipes.

    Attributes:
        importance: name -> weights of its elements, or of its input channels.
        nan: "skip" or "keep": what happens to weights with NaN or infinity.
        requantize: whether weights that are compressed already may go through their dense values.
        blocks: name -> integers and scales that the values of a weight are.
    """

    importance: Mapping[str, Any] = {}  # never changed
    nan: str = "skip"
    requantize: bool = False
    blocks: Mapping[str, HeldBlocks] = {}  # never changed


KEPT = "the plan keeps it as it is"


class Compressing:
    """What is compressed in a model, computed by `prepare`.

    Args:
        recipe: for every weight that the following do not name; None for those only.
        is_selected: which weights are tried; None: all.
        op_types: type of an operation -> recipe for the weights that it reads, or None: they stay.
        per_name: the first that fits the name of a weight counts; else, for each operation that reads it, the first
            that is its name; both before `op_types`.
        least: only weights of more elements are compressed; those of a plan whatever their size.
        directory: where the parts are kept meanwhile; None to keep none (a dry run).
        counter: told of each weight that is computed.
        extras: importance and the like.
        chooser: chooses for every weight that `op_types` and `per_name` do not name; or a plan, for all by name.
        is_careful: whether everything is computed before the layout, so that no weight is refused later.

    Attributes:
        weights: by constant, or by the chain of what was compressed before.
        outcomes: of these weights, in order.
        decompressions: of the Programs with such chains: which of their operations go.
        skipped: (name, reason) of each weight that was asked for and stays.
        kept: names of those that stay because it was chosen so.
    """

    def __init__(
        self,
        recipe: Recipe | None,
        is_selected: Callable[[str], bool] | None,
        op_types: Mapping[str, Recipe | None],
        per_name: Iterable[NamedRecipe],
        least: int,
        directory: str | None,
        counter: Counter,
        extras: Extras,
        chooser: Chooser | None = None,
        plan: Mapping[str, Recipe | None] | None = None,
        is_careful: bool = False,
    ) -> None:
        self.weights: dict[Any, CompressedWeight] = {}
        self.outcomes: list[Outcome] = []
        self.decompressions: dict[OpenProgram, Decompression] = {}
        self._extras = extras
        self.skipped: list[tuple[str, str]] = []
        self.kept: list[str] = []
        self._recipe = recipe
        self._has_select = is_selected is not None
        self._is_selected = is_selected or (lambda name: True)
        self._op_types = op_types
        self._per_name = list(per_name)
        self._least = least if plan is None else 0  # a plan names the weights
        self._directory = directory
        self._counter = counter
        self._chooser = chooser
        self._plan = plan
        self._is_careful = is_careful or directory is None
        self._spool = _Spool()
        self._scratch = Scratch(tempfile.gettempdir() if directory is None else directory)
        # Types and names of the operations that read the weights that were asked for.
        self._readers: set[str] = set()
        self._reader_names: set[str] = set()

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
            ValueError: operations that read one weight ask for different recipes; names that fit no weight.
        """
        candidates = list(self._candidates(model))
        self._require_used(model, [*(one.tensor.name for one in candidates), *(name for name, _ in self.skipped)])
        firsts = first_alike(candidates)
        unique = [number for number, first in enumerate(firsts) if first == number]
        self._counter.total_nbytes = sum(candidates[number].tensor.nbytes for number in unique)
        if self._chooser is not None:
            self._counter.total_nbytes *= 1 + self._chooser.passes
            candidates = self._choose(model, self._chooser, candidates, firsts)
            firsts = first_alike(candidates)
            unique = [number for number, first in enumerate(firsts) if first == number]
        if self._plan is not None:
            self._require_planned(model, self._plan, [one.tensor.name for one in candidates])
        if self._directory is not None:
            self._spool.open(self._directory)
        made: dict[int, Any] = {}
        for number, result in zip(unique, computed(candidates, unique, lambda n: candidates[n].made()), strict=True):
            made[number] = self._taken(candidates[number], result)
        for candidate, first in zip(candidates, firsts, strict=True):
            result = made[first]
            if isinstance(result, NotCompressibleError):
                self.skipped.append((candidate.tensor.name, str(result)))
                if self._plan is not None:
                    raise _unplanned(candidate.tensor.name, str(result))
                continue
            *made_of, lost = result
            weight = self.weights[candidate.tensor.row] = CompressedWeight(candidate.tensor, first, *made_of)
            self.outcomes.append(Outcome(weight, candidate.options[0].recipe, lost))
        chains = {one.tensor.chain for one in self.of_compressed()}
        for program in model.parts if chains else ():
            self.decompressions[program] = plan_decompression(program, lambda group: group in chains)
        self._spool.map()

    def _taken(self, candidate: Candidate, result: Any) -> Any:
        """(operation, parts, links, list for the figures) of what a recipe computed or planned, or why none."""
        lost: list[CompressionLoss] = []
        counter, tensor = self._counter, candidate.tensor

        def done(figures: CompressionLoss) -> None:
            lost.append(figures)
            counter.add_tensor(tensor.name, tensor)

        # A plan whose values all go into the Program has nothing left to write: no step would tell its figures.
        if isinstance(result, PartsPlan) and (self._is_careful or not result.has_stored_parts):
            try:
                figures = result.write(lambda *_: None)
            except NotCompressibleError as reason:
                result = reason.alone()
            else:
                done(figures)
                if self._directory is None:  # from now on, only the sizes of the parts are asked for
                    result = result._replace(write=_written_never)
        if isinstance(result, NotCompressibleError):
            counter.add_tensor(tensor.name, tensor)
            return result
        if isinstance(result, PartsPlan):
            return result.op, self._streamed(candidate, result, done), {}, lost
        done(CompressionLoss(result.squared, result.power, result.largest, result.gap))
        return result.op, tuple(self._kept(part) for part in result.parts), result.links, lost

    def _streamed(
        self, candidate: Candidate, plan: PartsPlan, done: Callable[[CompressionLoss], None]
    ) -> tuple[StoredPart, ...]:
        """Parts that are computed when they are written."""

        name, compute = candidate.tensor.name, plan.write

        def write(put: Put) -> CompressionLoss:
            try:
                return compute(put)
            except NotCompressibleError as reason:
                raise RefusedError(f"{name}: {reason}") from None

        is_large = candidate.tensor.size >= ALONE_COUNT
        told = (lambda figures: None) if self._is_careful else done
        computation = Computation(plan._replace(write=write), is_large, told)
        return tuple(
            StoredPart(
                part.key, part.dtype, part.shape, None if part.array is None else pack_tensor(part.array, part.dtype),
                partial(Streamed, computation, part),
            )
            for part in plan.parts
        )  # fmt: skip

    def _require_used(self, model: Model, names: list[str]) -> None:
        """Refuse what fits no weight: a misspelled name would read as if nothing were to be done.

        Args:
            names: of the weights that were asked for.
        """
        if self._has_select and not names:
            raise ValueError(f"select: expected the name of a weight in {model.path}, got none that matches")
        for named in self._per_name:
            if named.glob not in self._reader_names and not any(map(named.fits, names)):
                words = f"expected names of weights that are selected in {model.path}, or of operations that read them"
                near = hint(named.glob.strip("*"), [*names, *self._reader_names])
                raise ValueError(escape(f"per_name: {words}, got {named.glob!r}{near}"))
        for op in self._op_types:
            if op not in self._readers:
                words = f"op_types: expected types of operations that read weights selected in {model.path}, got {op!r}"
                raise ValueError(f"{words}{hint(op, self._readers)}")

    def _require_planned(self, model: Model, plan: Mapping[str, Recipe | None], found: list[str]) -> None:
        """Refuse a plan that names what is not there, or cannot be compressed."""
        reasons, have = dict(self.skipped), set(found)
        known = have.union(reasons, self.kept)
        for name in plan:
            if name not in model.tensors and name not in known:
                raise KeyError(
                    f"plan: expected names of weights in {model.path}, got {name!r}{hint(name, model.tensors)}"
                )
        for name, recipe in plan.items():
            if recipe is not None and name not in have:
                raise _unplanned(name, reasons.get(name, "expected a weight with values, got none"))

    def _choose(
        self, model: Model, chooser: Chooser, candidates: list[Candidate], firsts: list[int]
    ) -> list[Candidate]:
        """Return the candidates that are compressed, each with one recipe."""
        chosen = chooser.choose(model, candidates, firsts, self._counter)
        self.kept += [candidate.tensor.name for candidate, reason in chosen if reason == KEPT]
        self.skipped += [(candidate.tensor.name, reason) for candidate, reason in chosen if reason]
        return [candidate for candidate, reason in chosen if not reason]

    def _candidates(self, model: Model) -> Iterator[Candidate]:
        weights = list(all_weights(model))
        names = {tensor.name for tensor in weights}
        for name in self._extras.importance:
            if name not in names:
                expected = f"importance: expected names of weights in {model.path}"
                raise ValueError(escape(f"{expected}, got {name!r}{hint(str(name), names)}"))
        for tensor in weights:
            constant, program = tensor.constant, cast(OpenProgram, tensor.program)
            if tensor.size is None or not self._is_selected(tensor.name):
                continue
            if constant is not None and constant.storage != _codec.BLOB and (not constant.shape or tensor.size < 10):
                continue  # no weight
            if self._plan is not None and self._plan.get(tensor.name) is None:
                self.kept += [tensor.name] if tensor.name in self._plan else []
                continue
            op = tensor.op_row
            is_output = op is not None and (constant is None or (op.type == "const" and constant.key == "val"))
            if (self._op_types or self._per_name) and is_output:
                for reader in (c.reader for c in tensor.consumers if isinstance(c.reader, Operation)):
                    self._readers.add(reader.type)
                    self._reader_names.update(_names_of(tensor, reader) if self._per_name else ())
            words: str | None
            if constant is None:
                words = compress_edits.weight_refusal(op, tensor.mil_dtype.mil_code, tensor.shape, self._least)
            else:
                words = compress_edits.refusal(constant, self._least)
            consumers = tensor.consumers if words is None else ()
            words = words or compress_edits.consumer_refusal(consumers)
            if words is not None:
                self.skipped.append((tensor.name, words))
                continue
            readers = [consumer.reader for consumer in consumers if isinstance(consumer.reader, Operation)]
            # As in coremltools: neighbours of a weight whose name is given in full are pruned whatever reads it.
            is_named = self._plan is not None or any(named.glob == tensor.name for named in self._per_name)
            uses = tuple((c.reader.type, c.parameter) for c in consumers if isinstance(c.reader, Operation))
            uses = () if is_named else uses
            opset = cast_edits.opset(program.scan, op)
            recipes, may_stay = self._recipes(tensor, readers, opset)
            if not recipes:
                self.skipped.append((tensor.name, "expected a recipe for it, got none"))
                continue
            for recipe in recipes:
                _require_opset(recipe, opset, model, tensor)
            objections = dict.fromkeys(recipes) if constant is not None else not_continued(tensor, recipes)
            if not self._extras.requantize and all(objections.values()):
                reason = str(objections[recipes[0]])
                if len(objections) > 1:
                    reason = (
                        f"expected a dense weight, or requantize, got one that no recipe goes on from ({tensor.op})"
                    )
                self.skipped.append((tensor.name, reason))
                continue
            require_edits(program)
            axes = compress_edits.channel_axes(len(tensor.shape), consumers)
            options = tuple(
                Option(one, axes or (1, 0), constant is None and objection is None)
                for one, objection in objections.items()
                if (objection is None or self._extras.requantize) and (axes is not None or not one.needs_axes)
            )
            if not options:
                words = "expected operations that agree on its channels, got some that read them along different axes"
                self.skipped.append((tensor.name, words))
                continue
            convolutions = [reader for reader in readers if reader.type in compress_edits.CONVOLUTIONS]
            groups = max([1, *(compress_edits.number(reader, "groups", 1) for reader in convolutions)])
            heavy = self._importance(tensor, options)
            blocks = self._extras.blocks.get(tensor.name)
            yield Candidate(
                tensor, options, may_stay, opset, uses, groups, heavy, self._extras.nan, blocks, self._scratch.empty,
                self._scratch.lasting,
            )  # fmt: skip

    def _importance(self, tensor: Tensor, options: Sequence[Option]) -> Any:
        """The importance of the elements of a weight, in its shape; None if there is none."""
        given = self._extras.importance.get(tensor.name)
        if given is None:
            return None
        if self._chooser is None and not any(one.recipe.weighs for one in options):
            words = "expected a recipe that weighs elements (Linear needs search=True, Palette 'kmeans')"
            raise ValueError(escape(f"importance of {tensor.name}: {words}, got {options[0].recipe}"))
        try:
            array = array_of(given)
        except TypeError as error:
            raise TypeError(escape(f"importance of {tensor.name}: {error}")) from None
        shape, inputs = tensor.shape, options[0].axes[0]
        channels = shape[inputs]
        if array.shape == (channels,):  # of the input channels, also where the last dimension has as many
            array = array.reshape([channels if axis == inputs else 1 for axis in range(len(shape))])
        elif array.shape != shape:
            words = f"expected its shape {shape}, or {channels}, one for each input channel"
            raise ValueError(escape(f"importance of {tensor.name}: {words}, got shape {array.shape}"))
        try:
            return weights_for(array, shape)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{error} (importance of {tensor.name})") from None

    def _recipes(self, tensor: Tensor, readers: Sequence[Operation], opset: int) -> tuple[tuple[Recipe, ...], bool]:
        """(recipes to choose from, none of them if it stays; whether it may stay as well)."""
        if self._plan is not None:
            recipe = self._plan[tensor.name]
            return _only(recipe)
        for named in self._per_name:
            if named.fits(tensor.name):
                return _only(named.recipe)
        others = _only(self._recipe) if self._chooser is None else (self._chooser.recipes(opset), True)
        found: dict[tuple[bool, str], tuple[tuple[Recipe, ...], bool]] = {}  # by (whether this is a type, name)
        for reader in readers:
            names = _names_of(tensor, reader) if self._per_name else ()
            by_name = next((one for one in self._per_name if one.glob in names), None)
            if by_name is not None:
                found[False, by_name.glob] = _only(by_name.recipe)
            elif reader.type in self._op_types:
                found[True, reader.type] = _only(self._op_types[reader.type])
            else:
                found[True, reader.type] = others
        if len(set(found.values())) > 1:
            option = "op_types" if self._op_types else "per_name"
            words = ", ".join(f"{'type ' if is_type else ''}{name}" for is_type, name in sorted(found))
            raise ValueError(escape(f"{option}: expected one recipe for {tensor.name}, got several, by {words}"))
        return next(iter(found.values()))

    def _kept(self, part: Part) -> StoredPart:
        """Keep a part: a small one as a value of the Program, another one in the spool."""
        if part.array is not None:
            return StoredPart(part.key, part.dtype, part.shape, pack_tensor(part.array, part.dtype), None)
        # Not the part itself, nor this object: until all is written, that would hold the bytes that the spool has.
        spool, offset, dtype, shape = self._spool, self._spool.add(part.data), part.dtype, part.shape
        return StoredPart(part.key, dtype, shape, None, lambda: Held(Packed(spool.buffer(), offset, dtype, shape)))


def _only(recipe: Recipe | None) -> tuple[tuple[Recipe, ...], bool]:
    """A recipe, or none, without the choice to leave the weight as it is: as `Compressing._recipes`."""
    return () if recipe is None else (recipe,), False


def _written_never(put: Put) -> CompressionLoss:
    raise RuntimeError("compress: expected no values to be written in a dry run, got a call for them")


def _unplanned(name: str, reason: str) -> ValueError:
    return ValueError(
        f"plan: expected recipes only for weights that can be compressed so, got one for {name}: {reason}"
    )


def _require_opset(recipe: Recipe, opset: int, model: Model, tensor: Tensor) -> None:
    """Raise UnsupportedError if an opset cannot hold what a recipe makes."""
    if opset < recipe.opset:
        remedy = f"convert with minimum_deployment_target=ct.target.iOS{recipe.opset}"
        words = f"{recipe}: expected a model for iOS {recipe.opset} or later, got one for iOS {opset} ({remedy})"
        raise UnsupportedError(words, file=model.path, where=tensor.where)


class _Spool:
    """A file without a name that takes the parts, and is mapped when they are all there."""

    def __init__(self) -> None:
        self._file: Any = None
        self._mapping: mmap.mmap | None = None
        self._end = 0

    def open(self, directory: str) -> None:
        self._directory = os.path.join(directory, "")
        with naming(self._directory):
            self._file = tempfile.TemporaryFile(dir=directory, prefix=".milblob-", buffering=0)  # noqa: SIM115  # see close

    def add(self, data: Any) -> int:
        """Append bytes; return their offset. Without a file, only count."""
        offset = self._end
        view = memoryview(data).cast("B")
        self._end += view.nbytes
        if self._file is not None:
            with naming(self._directory, self._file.fileno(), self._end):
                write_at(self._file.fileno(), [view], offset)
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


def _names_of(tensor: Tensor, reader: Operation) -> tuple[str, ...]:
    """Return the names of an operation that reads a weight: its first output and, if it differs, its own.

    As in the name of the weight, the model of a pipeline and the function stand in front.
    """
    lead, is_there, _ = tensor.name.rpartition(cast(Any, tensor.op_row).name)
    value = reader.attributes.get("name")
    own = reader.label if value is None or value.kind != "tensor" else value.array().reshape(-1)[0]
    return tuple(f"{lead if is_there else ''}{name}" for name in dict.fromkeys((reader.label, own)))


def spool_directory(dst: str) -> str:
    """Return the directory that the result goes to."""
    return os.path.dirname(os.path.abspath(dst)) or "."
