"""Which weights of a model can be compressed, and with which recipes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from .. import _codec
from ..arguments import array_of
from ..closeness import hint, unknown
from ..errors import UnsupportedError
from ..lossy.palettize import weights_for
from ..lossy.unfit import UnfitError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor
from ..program import cast_edits, compress_edits
from ..program.view import Operation
from ..progress import ProgressCounter
from ..storage.scratch import Scratch
from ..values.strided import is_finite
from ..wording import escape
from .candidates import KEPT, Candidate, Option, first_alike
from .far_weights import FarWeights
from .recipe import Recipe
from .recompress import all_weights, not_continued
from .weight import HeldBlocks, Weight


class NamedRecipe(NamedTuple):
    """A recipe for the weights whose names match; None to leave them as they are."""

    glob: str
    fits: Callable[[str], bool]
    recipe: Recipe | None


class Skipped(NamedTuple):
    """A requested weight that is left as it is, and the reason."""

    name: str
    reason: str


class Request(NamedTuple):
    """Which weights are to be compressed, and how."""

    # for every weight that no other field covers; None to compress only the weights that these cover
    recipe: Recipe | None
    is_selected: Callable[[str], bool] | None  # which weights are tried; None for all
    # type of an operation -> recipe for the weights that it reads, or None to leave them as they are
    op_types: Mapping[str, Recipe | None]
    # the first entry that matches the name of a weight; if none does, the first entry that matches the name of an
    # operation that reads it. Takes precedence over `op_types`.
    per_name: Sequence[NamedRecipe]
    min_size: int  # only weights of more elements are compressed; does not apply to a plan
    # name -> recipe, or None to leave the weight as it is; replaces all of the above
    plan: Mapping[str, Recipe | None] | None = None
    # name -> weights of its elements, or of its input channels
    importance: Mapping[str, Any] = {}  # never changed
    nan: str = "skip"  # "skip", "keep" or "error": what happens to weights with NaN or infinity
    recompress: bool = False  # whether weights that are compressed already may go through their dense values
    # name -> integers and scales that the values of a weight are
    blocks: Mapping[str, HeldBlocks] = {}  # never changed


class CandidateSearch:
    """Finds the weights of a model that a request is about.

    `scratch`: allocates all arrays as long as a weight. `ladder`: given the opset of a weight, returns the recipes to
    choose from where the request names none; such weights may also be left as they are. None: nothing is chosen.
    """

    def __init__(
        self, request: Request, scratch: Scratch, ladder: Callable[[int], tuple[Recipe, ...]] | None = None
    ) -> None:
        self.skipped: list[Skipped] = []  # each requested weight that is left as it is
        self.kept: list[str] = []  # names of the weights that the choice leaves as they are
        self._request = request
        self._scratch = scratch
        self._ladder = ladder
        # Types and names of the operations that read the requested weights.
        self._readers: set[str] = set()
        self._reader_names: set[str] = set()

    def find(self, model: Model, counter: ProgressCounter, far: FarWeights) -> tuple[list[Candidate], list[int]]:
        """Return the weights that can be compressed, in Program order; record the other requested ones as skipped.

        `counter`: notes each weight, and gets the bytes of the distinct ones as its total. `far`: look for NaN and
        infinity.
        Returns: The candidates; for each the number of the first that is alike.
        Raises: UnsupportedError: an opset that cannot hold what a recipe makes; the one that can is named. ValueError:
        operations that read one weight ask for different recipes; names that fit no weight; with `nan="error"`, NaN or
        infinity.
        """
        found = list(self._candidates(model, counter))
        self._require_used(model, [*(one.tensor.name for one in found), *(name for name, _ in self.skipped)])
        firsts = first_alike(found, counter)
        if self._request.nan == "error":
            _require_finite(found, sorted(set(firsts)), far)
        counter.total_nbytes = sum(found[number].tensor.nbytes for number in set(firsts))
        return found, firsts

    def take(self, chosen: Sequence[tuple[Candidate, str]]) -> list[Candidate]:
        """Return the candidates without a reason to skip them; record the others as skipped."""
        self.kept += [candidate.tensor.name for candidate, reason in chosen if reason == KEPT]
        self.skipped += [Skipped(candidate.tensor.name, reason) for candidate, reason in chosen if reason]
        return [candidate for candidate, reason in chosen if not reason]

    def refuse(self, name: str, reason: UnfitError) -> None:
        """Record a candidate as skipped. Raises: ValueError: a plan has a recipe for it."""
        self.skipped.append(Skipped(name, str(reason)))
        if self._request.plan is not None:
            raise unplanned(name, str(reason))

    def _require_used(self, model: Model, names: list[str]) -> None:
        """Refuse what fits no weight: a misspelled name would read as if nothing were to be done.

        `names`: of the weights that were asked for.
        """
        if self._request.is_selected is not None and not names:
            raise ValueError(f"select: no weight in {model.path} matches")
        for named in self._request.per_name:
            if named.glob not in self._reader_names and not any(map(named.fits, names)):
                message = (
                    f"expected names of weights that are selected in {model.path}, or of operations that read them"
                )
                near = hint(named.glob.strip("*"), [*names, *sorted(self._reader_names)])
                raise ValueError(escape(f"per_name: {message}, got {named.glob!r}{near}"))
        for op in self._request.op_types:
            if op not in self._readers:
                message = (
                    f"op_types: expected types of operations that read weights selected in {model.path}, got {op!r}"
                )
                raise ValueError(f"{message}{hint(op, sorted(self._readers))}")

    def require_planned(self, model: Model, found: Collection[str]) -> None:
        """Refuse a plan that names what is not there, or cannot be compressed.

        `found`: names of the weights that can be compressed.
        """
        plan, reasons = self._request.plan or {}, dict(self.skipped)
        known = {*found, *reasons, *self.kept}
        for name in plan:
            if name not in model.tensors and name not in known:
                raise KeyError(f"plan: {unknown('weight', name, model.tensors, model.path or 'the model')}")
        for name, recipe in plan.items():
            if recipe is not None and name not in found:
                raise unplanned(name, reasons.get(name, "expected a weight with values, got none"))

    def _candidates(self, model: Model, counter: ProgressCounter) -> Iterator[Candidate]:
        weights, is_selected, plan = list(all_weights(model)), self._request.is_selected, self._request.plan
        least = self._request.min_size if plan is None else 0  # a plan names the weights
        names = {tensor.name for tensor in weights}
        for name in self._request.importance:
            if name not in names:
                expected = f"importance: expected names of weights in {model.path}"
                raise ValueError(escape(f"{expected}, got {name!r}{hint(str(name), names)}"))
        for tensor in counter.noting(weights):
            constant, program = tensor.constant, cast(OpenProgram, tensor.program)
            if tensor.size is None or (is_selected is not None and not is_selected(tensor.name)):
                continue
            if constant is not None and constant.storage != _codec.BLOB and (not constant.shape or tensor.size < 10):
                continue  # no weight
            if self._request.plan is not None and self._request.plan.get(tensor.name) is None:
                self.kept += [tensor.name] if tensor.name in self._request.plan else []
                continue
            op = tensor.op_row
            is_output = op is not None and (constant is None or (op.type == "const" and constant.key == "val"))
            if (self._request.op_types or self._request.per_name) and is_output:
                for reader in (c.reader for c in tensor.consumers if isinstance(c.reader, Operation)):
                    self._readers.add(reader.type)
                    self._reader_names.update(_names_of(tensor, reader) if self._request.per_name else ())
            refusal: str | None
            if constant is None:
                refusal = compress_edits.weight_refusal(op, tensor.mil_dtype.mil_code, tensor.shape, least)
            else:
                refusal = compress_edits.refusal(constant, least)
            consumers = tensor.consumers if refusal is None else ()
            refusal = refusal or compress_edits.consumer_refusal(consumers)
            if refusal is not None:
                self.skipped.append(Skipped(tensor.name, refusal))
                continue
            readers = [consumer.reader for consumer in consumers if isinstance(consumer.reader, Operation)]
            # As in coremltools: neighbours of a weight whose name is given in full are pruned, no matter what reads it.
            is_named = self._request.plan is not None or any(
                named.glob == tensor.name for named in self._request.per_name
            )
            uses = tuple((c.reader.type, c.parameter) for c in consumers if isinstance(c.reader, Operation))
            uses = () if is_named else uses
            opset = cast_edits.opset(program.scan, op)
            recipes, may_stay = self._recipes(tensor, readers, opset)
            if not recipes:
                self.skipped.append(Skipped(tensor.name, "expected a recipe for it, got none"))
                continue
            for recipe in recipes:
                _require_opset(recipe, opset, model, tensor)
            objections = dict.fromkeys(recipes) if constant is not None else not_continued(tensor, recipes)
            if not self._request.recompress and all(objections.values()):
                reason = str(objections[recipes[0]])
                if len(objections) > 1:
                    message = "expected a dense weight, or recompress"
                    reason = f"{message}, got one that no recipe continues from ({tensor.op})"
                self.skipped.append(Skipped(tensor.name, reason))
                continue
            program.require_edits()
            axes = compress_edits.channel_axes(len(tensor.shape), consumers)
            options = tuple(
                Option(one, axes or (1, 0), constant is None and objection is None)
                for one, objection in objections.items()
                if (objection is None or self._request.recompress) and (axes is not None or not one.needs_axes)
            )
            if not options:
                refusal = "expected operations that agree on its channels, got some that read them along different axes"
                self.skipped.append(Skipped(tensor.name, refusal))
                continue
            convolutions = [reader for reader in readers if reader.type in compress_edits.CONVOLUTIONS]
            groups = max([1, *(compress_edits.number(reader, "groups", 1) for reader in convolutions)])
            heavy = self._importance(tensor, options)
            about = Weight(
                cast(Any, None), (1, 0), opset, uses, heavy, groups, None, self._request.nan,
                self._request.blocks.get(tensor.name),
                self._scratch.empty, self._scratch.persistent,
            )  # fmt: skip
            yield Candidate(tensor, options, may_stay, about)

    def _importance(self, tensor: Tensor, options: Sequence[Option]) -> Any:
        """The importance of the elements of a weight, in its shape; None if there is none."""
        given = self._request.importance.get(tensor.name)
        if given is None:
            return None
        if self._ladder is None and not any(one.recipe.weighs for one in options):
            message = "expected a recipe that weighs elements (Linear needs search=True, Palette 'kmeans')"
            raise ValueError(escape(f"importance of {tensor.name}: {message}, got {options[0].recipe}"))
        try:
            array = array_of(given)
        except TypeError as error:
            raise TypeError(escape(f"importance of {tensor.name}: {error}")) from None
        shape, inputs = tensor.shape, options[0].axes[0]
        channels = shape[inputs]
        if array.shape == (channels,):  # of the input channels, also where the last dimension has as many
            array = array.reshape([channels if axis == inputs else 1 for axis in range(len(shape))])
        elif array.shape != shape:
            message = f"expected its shape {shape}, or {channels}, one for each input channel"
            raise ValueError(escape(f"importance of {tensor.name}: {message}, got shape {array.shape}"))
        try:
            return weights_for(array, shape)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{error} (importance of {tensor.name})") from None

    def _recipes(self, tensor: Tensor, readers: Sequence[Operation], opset: int) -> tuple[tuple[Recipe, ...], bool]:
        """Return the recipes to choose from (empty to leave the weight as it is), and whether it may be left so."""
        if self._request.plan is not None:
            recipe = self._request.plan[tensor.name]
            return _only(recipe)
        for named in self._request.per_name:
            if named.fits(tensor.name):
                return _only(named.recipe)
        others = _only(self._request.recipe) if self._ladder is None else (self._ladder(opset), True)
        found: dict[tuple[bool, str], tuple[tuple[Recipe, ...], bool]] = {}  # by (whether this is a type, name)
        for reader in readers:
            names = _names_of(tensor, reader) if self._request.per_name else ()
            by_name = next((one for one in self._request.per_name if one.glob in names), None)
            if by_name is not None:
                found[False, by_name.glob] = _only(by_name.recipe)
            elif reader.type in self._request.op_types:
                found[True, reader.type] = _only(self._request.op_types[reader.type])
            else:
                found[True, reader.type] = others
        if len(set(found.values())) > 1:
            option = "op_types" if self._request.op_types else "per_name"
            words = ", ".join(f"{'type ' if is_type else ''}{name}" for is_type, name in sorted(found))
            raise ValueError(escape(f"{option}: expected one recipe for {tensor.name}, got several, by {words}"))
        return next(iter(found.values()))


def _require_finite(candidates: Sequence[Candidate], unique: Sequence[int], far: FarWeights) -> None:
    every = far.each(_is_finite, candidates, unique, lambda number: None, lambda number: _is_finite(candidates[number]))
    for number, is_good in zip(unique, every, strict=True):
        if not is_good:
            message = "expected finite elements (nan='skip' leaves the weight as it is), got NaN or infinity"
            raise ValueError(escape(f"{candidates[number].tensor.name}: {message}"))


def _is_finite(candidate: Candidate, *_: Any) -> bool:
    return is_finite(candidate.weight().array)


def _only(recipe: Recipe | None) -> tuple[tuple[Recipe, ...], bool]:
    """A recipe, or none, without the choice to leave the weight as it is: as `CandidateSearch._recipes`."""
    return () if recipe is None else (recipe,), False


def unplanned(name: str, reason: str) -> ValueError:
    """Return the error of a plan with a recipe for a weight that cannot be compressed."""
    return ValueError(
        f"plan: expected recipes only for weights that can be compressed so, got one for {name}: {reason}"
    )


def _require_opset(recipe: Recipe, opset: int, model: Model, tensor: Tensor) -> None:
    """Raise UnsupportedError if an opset cannot hold what a recipe makes."""
    if opset < recipe.opset:
        remedy = f"convert with minimum_deployment_target=ct.target.iOS{recipe.opset}"
        message = f"{recipe}: expected a model for iOS {recipe.opset} or later, got one for iOS {opset} ({remedy})"
        raise UnsupportedError(message, file=model.path, where=tensor.where)


def _names_of(tensor: Tensor, reader: Operation) -> tuple[str, ...]:
    """Return the names of an operation that reads a weight: its first output and, if it differs, its own.

    As in the name of the weight, the model of a pipeline and the function stand in front.
    """
    lead, is_there, _ = tensor.name.rpartition(cast(Any, tensor.op_row).name)
    value = reader.attributes.get("name")
    own = reader.label if value is None or value.kind != "tensor" else value.array().reshape(-1)[0]
    return tuple(f"{lead if is_there else ''}{name}" for name in dict.fromkeys((reader.label, own)))
