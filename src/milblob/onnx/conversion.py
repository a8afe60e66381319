"""From a model to ONNX: parse, compile, convert every operator, check, write."""

import gc
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ..analysis.check_blob import check_blob
from ..analysis.check_report import Findings
from ..analysis.check_rules import described_breaches
from ..arguments import as_integer, as_mapping, as_path, require, require_flags, source_of
from ..closeness import hint
from ..errors import FormatError, MilblobError, ProgramError, UnsupportedError
from ..mirrored import is_remote, represents, shown
from ..model.open import open_model
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..rules.catalog import RULES
from ..rules.program_rules import Signature, breaches
from ..version import VERSION
from ..wording import escape, some
from . import compiling as passes
from . import registry
from .containers import MilProgramContainer
from .declared import MAPS, check_declared
from .emit import ModelComponentContainer
from .interface import make_inputs, make_outputs, metadata
from .packed import NIBBLES_SINCE, plan
from .parse import parse_mil
from .precision import PRECISIONS, widen
from .registry import Converter
from .save import write
from .topology import Operator, Topology
from .unpacking import RUNTIME_DOMAIN
from .weights import COMPRESSED, MODES, Weights

if TYPE_CHECKING:
    from ..model.model import Model

OPSETS = range(18, 24)
_IR_VERSIONS = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}  # the lowest: older runtimes refuse newer ones
_ML_OPSET = 3
_UNKNOWN_OPERATION = "MIL023"


class DecodedWarning(UserWarning):
    """Weights had to be decoded that a newer opset of ONNX keeps compressed."""


@takes_urls("source")
def convert(
    source: "str | os.PathLike[str] | Model",
    destination: str | os.PathLike[str] | None = None,
    *,
    function: str | None = None,
    weights: str = "reference",
    compressed: str = "keep",
    opset: int = 21,
    converters: Mapping[str, Converter] | None = None,
    zipmap: bool = False,
    precision: str = "keep",
    force: bool = False,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> ir.Model:
    """Convert one function of an ML Program to ONNX.

    Args:
        source: a path, an open model, or an MLModel of coremltools. A model that is opened here remains open as long as
            the result needs it.
        destination: path of the .onnx file, which appears whole or not at all. None: nothing is written.
        function: its name; default: the model's default function.
        weights: "reference": the .onnx file refers into the model's weight files, and must be in a folder above them;
            "copy": into a copy beside it, NAME.bin; "embed": they are in the .onnx file, which must be below 2 GiB.
        compressed: "keep": compressed weights are computed from their stored bytes where ONNX can express that, and the
            others are decoded; "dense": all are decoded; "onnxruntime": only weights of 4 bits in products and tables
            that are read by rows are kept, products by the operator MatMulNBits, which only onnxruntime has.
        opset: of ONNX, 18 to 23.
        converters: operation -> converter, for this call only; they come before all registered ones. The model has all
            of these operations, in whichever function.
        zipmap: the probabilities of a classifier are a list of one dictionary, label -> probability, instead of a
            tensor. Only with a destination: onnx-ir has no type for it.
        precision: "keep": that of the Program; "float32": all half-precision values are single, inputs and outputs too,
            for runtimes that compute no float16. Weights are kept as they are stored, and a Cast reads them.
        force: replace files that exist.
        max_nbytes: as for `open`; includes the memory that the conversion takes. An open model has its own.

    Returns:
        The model; its large weights are ExternalTensors, read when they are asked for.

    Raises:
        UnsupportedError: operations without a converter, all of them listed; or something else that ONNX lacks.
        LimitError: more would be made than `max_nbytes` allows.
        ProgramError: the Program or the description breaks a rule of MIL, or a type that is declared does not fit.
        ValueError: another mode or opset; a path that does not end in .onnx, from which the weights cannot be referred
            to, or of a file of a model; zipmap without a destination; a converter of an operation that the model lacks.
        KeyError: no such function. FileExistsError: something is at `destination`. As opening the model.

    Examples:
        >>> onnx_model = milblob.onnx.convert("demo.mlpackage", "demo.onnx")
        >>> [value.name for value in onnx_model.graph.outputs]
        ['logits']
    """
    require_flags(force=force, zipmap=zipmap)
    given = (
        ("weights", weights, MODES),
        ("compressed", compressed, COMPRESSED),
        ("precision", precision, PRECISIONS),
    )
    for name, value, allowed in given:
        require(name, value, str, f"one of {', '.join(allowed)}")
        if value not in allowed:
            raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {value!r:.100}")
    _require_opset(opset)
    converters = as_mapping("converters", converters, "converters by type of operation")
    target = None if destination is None else as_path(destination)
    # Without a destination, an open model may be remote: it provides the files as long as it is open.
    path = source if target is None or isinstance(source, str) else getattr(source, "path", None)
    if weights == "reference" and isinstance(path, str) and (represents(path) or is_remote(path)):
        message = f'weights: expected "copy" or "embed" of a remote model, got "reference" to {shown(path)}'
        raise ValueError(f"{message} (--weights copy)")
    if target is None and weights == "copy":
        raise ValueError('weights: expected "reference" or "embed" without a destination, got "copy"')
    if target is None and zipmap:
        raise ValueError("zipmap: expected a destination, for onnx-ir has no type for dictionaries, got none")
    with opened(source, max_nbytes) as model:
        held = Weights(model, weights, target, compressed)
        made, proto = converted(model, held, function, opset, converters, zipmap, precision)
        if target is not None:
            write(made, proto, held, target, force)
    return made


@contextmanager
def _resting_collector() -> Iterator[None]:
    """Let Python's collector of cycles rest: it walks all that a large Program became again and again, for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_resting_collector()  # until all that is used by the conversion alone is gone
def converted(
    model: "Model",
    weights: Weights,
    function: str | None,
    opset: int = 21,
    converters: Mapping[str, Converter] | None = None,
    zipmap: bool = False,
    precision: str = "keep",
) -> tuple[ir.Model, Any]:
    """Return the conversion of an open model, and its message (`message_of`). Raises: as `convert`."""
    converters = as_mapping("converters", converters, "converters by type of operation")
    _require_occurring(converters, model)
    require_sound(model)
    raw = MilProgramContainer(model, function)
    topology = parse_mil(raw.function)
    passes.compile(topology, converters, opset)
    require_sound_weights(topology)
    weights.require_reachable(topology)
    made = convert_topology(topology, raw, weights, opset, converters, zipmap, precision)
    proto = check_declared(made, topology, precision)
    late = [
        one.raw_name
        for one in weights.why_dense
        if one.weight is not None and not isinstance(plan(one.weight, OPSETS[-1]), str)
    ]
    if late and weights.compressed == "keep":
        count = f"{len(late)} weight{'s' * (len(late) > 1)}"
        message = (
            f"{count} had to be decoded, which opset {NIBBLES_SINCE} keeps compressed, the first of them {late[0]}"
        )
        warnings.warn(message, DecodedWarning, stacklevel=4)
    return made, proto


def _require_opset(opset: Any) -> None:
    """Refuse another opset of ONNX. Raises: ValueError: an unknown one. TypeError: no integer."""
    if as_integer("opset", opset) not in OPSETS:
        raise ValueError(f"opset: expected {OPSETS[0]} to {OPSETS[-1]}, got {opset}")


def _require_occurring(converters: Mapping[str, Converter], source: "Model") -> None:
    """Refuse converters of operations that no Program of the model has: the name is probably misspelled.

    Raises: ValueError: a converter has no operation.
    """
    if not converters:
        return
    types = {operation.type for view in source.views for operation in view.operations()} - {"const"}  # has none
    for type in converters:
        if type not in types:
            message = f"converters: expected types of operations in {source.path}, got {type!r:.100}"
            raise ValueError(escape(message + hint(type, sorted(types))))


def require_sound(source: "Model") -> None:
    """Refuse a model whose Program or description breaks a rule of MIL, as `milblob check` reports it.

    Operations that the opset does not have are left to `compile`: it names all of them, and a converter of the user's
    may know them.

    Raises: ProgramError: with the rule as its `code`.
    """
    for part, view in zip(source.parts, source.views, strict=True):
        signatures: dict[str, Signature] = {}
        for breach in chain(breaches(view, signatures), described_breaches(part.source, signatures)):
            if RULES[breach.rule].severity == "error" and breach.rule != _UNKNOWN_OPERATION:
                raise ProgramError(f"{breach.rule} {breach.message}", where=breach.where, code=breach.rule)


def require_sound_weights(topology: Topology) -> None:
    """Refuse weight files whose records contradict each other, as `milblob check` reports them.

    Raises: FormatError: with the finding's code. As reading the records that the Program refers to.
    """
    for value in topology.stored.values():
        reader, _ = value.view.place(value).record()
        found = Findings()
        reader.mapping.expect_random(True)
        reader.mapping.live()  # the conversion reads the weights too: a remote file is fetched at once
        check_blob(found, reader.mapping)
        reader.mapping.expect_random(False)
        for one in found.items:
            if one.severity == "error":
                raise FormatError(one.message, file=one.file, offset=one.offset, where=one.where, code=one.code)


def convert_topology(
    topology: Topology,
    raw: MilProgramContainer,
    weights: Weights,
    opset: int = 21,
    converters: Mapping[str, Converter] | None = None,
    zipmap: bool = False,
    precision: str = "keep",
) -> ir.Model:
    """Return the ONNX model of a compiled Topology.

    Args:
        topology: from `parse_mil`, after `compile`.
        raw: the raw model that it was parsed from.
        weights: where the constants are.
        opset, converters, zipmap, precision: as `convert`.

    Raises:
        As `convert`.

    Examples:
        >>> model = milblob.open("demo.mlpackage")
        >>> topology = milblob.onnx.parse_mil(model.functions["main"])
        >>> milblob.onnx.compile(topology)
        >>> raw, weights = milblob.onnx.MilProgramContainer(model), milblob.onnx.Weights(model, "embed", None)
        >>> onnx_model = milblob.onnx.convert_topology(topology, raw, weights)
        >>> [value.name for value in onnx_model.graph.outputs]
        ['logits']
    """
    weights.attach(topology)
    container = ModelComponentContainer(topology, opset, weights)
    container.zipmap = zipmap
    container.gathered = dict.fromkeys(passes.gathered(topology))
    container.convert_all = lambda operators: convert_operators(operators, container, converters)
    inputs = make_inputs(raw, topology, container)
    convert_operators(topology.scope.operators, container, converters)
    outputs = make_outputs(raw, topology, container)
    container.finish()
    others = ({"ai.onnx.ml": _ML_OPSET} if container.maps else {}) | ({RUNTIME_DOMAIN: 1} if container.products else {})
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=container.graph_nodes,
        initializers=list(container.initializers.values()),
        opset_imports={"": opset} | others,
        name=raw.name or "main",
    )
    if precision == "float32":
        widen(graph, topology.unique_name)
    made = ir.Model(
        graph,
        ir_version=_IR_VERSIONS[opset],
        producer_name="milblob",
        producer_version=VERSION,
        metadata_props=metadata(raw, topology, container, weights.made),
    )
    made.meta[MAPS] = container.maps
    return made


def convert_operators(
    operators: Sequence[Operator], container: ModelComponentContainer, converters: Mapping[str, Converter] | None = None
) -> None:
    """Run the converters of operators, in Program order.

    Raises: MilblobError: any error of a converter, with the place of the operation.
    """
    chosen: dict[str, Converter | None] = dict(converters or {})
    for operator in operators:
        container.purpose = f"{operator.type} {operator.name}"
        if operator.type not in chosen:
            chosen[operator.type] = registry.find(operator.type, container.opset)
        found = chosen[operator.type]
        if found is None:
            raise UnsupportedError(f"{operator.type}: expected a converter, got none", where=operator.path)
        try:
            found(operator.scope, operator, container)
        except MilblobError as error:
            error.where = error.where or operator.path
            raise
        except (MemoryError, OSError, KeyboardInterrupt):
            raise
        except Exception as error:
            message = f"converter of {operator.type}: expected a result, got {type(error).__name__}: {error!s:.300}"
            if registry.is_builtin(found):
                message = f"{operator.type}: expected arguments that fit each other, got {_arguments(operator)}"
            raise ProgramError(message, where=operator.path) from error


def _arguments(operator: Operator) -> str:
    return some(f"{key} {variable.type}" for key, bound in operator.inputs.items() for variable in bound)


@contextmanager
def opened(source: "str | os.PathLike[str] | Model", max_nbytes: int | None = None) -> "Iterator[Model]":
    """Yield an open model: the one that is given, or the one at a path, which its readers keep mapped afterwards."""
    from ..model.model import Model

    if isinstance(source, Model):
        if max_nbytes is not None:
            raise ValueError(f"max_nbytes: expected none of an open model, which has its own, got {max_nbytes!r:.100}")
        yield source
        return
    source = source_of(source)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f"model: expected a path or an open model, got {type(source).__name__}")
    with open_model(source, max_nbytes=max_nbytes) as model:
        yield model


def coverage(
    source: "str | os.PathLike[str] | Model",
    *,
    function: str | None = None,
    opset: int = 21,
    converters: Mapping[str, Converter] | None = None,
) -> dict[str, int]:
    """Return the operations of a function that have no converter, with their counts; empty if all can be converted.

    Args:
        source, function, opset, converters: as `convert`.

    Raises:
        As `convert` of these; as opening the model.

    Examples:
        >>> milblob.onnx.coverage("demo.mlpackage")  # all can be converted
        {}
    """
    _require_opset(opset)
    converters = as_mapping("converters", converters, "converters by type of operation")
    with opened(source) as model:
        _require_occurring(converters, model)
        topology = parse_mil(MilProgramContainer(model, function).function)
        passes.prune(topology)
        return passes.coverage(topology, converters, opset)


def decoded(
    source: "str | os.PathLike[str] | Model", *, function: str | None = None, opset: int = 21
) -> dict[str, str]:
    """Return the compressed weights of a function that `convert` would decode, each with the reason.

    Args:
        source, function, opset: as `convert`.

    Raises:
        As `convert` of these; as opening the model.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "palette4")
        >>> milblob.onnx.decoded("small.mlpackage")  # none is
        {}
    """
    _require_opset(opset)
    with opened(source) as model:
        topology = parse_mil(MilProgramContainer(model, function).function)
        passes.prune(topology)
        Weights(model, "reference", None).attach(topology)
        found = {}
        for operator in topology.topological_operator_iterator():
            if operator.type in passes.READERS:
                for variable in (one for bound in operator.inputs.values() for one in bound if one.weight is not None):
                    found[variable.raw_name] = f"gates of {operator.type}"
            elif operator.type.startswith("constexpr_"):
                for variable in operator.outputs:
                    why = "a part of another weight" if variable.weight is None else plan(variable.weight, opset)
                    if isinstance(why, str):
                        found[variable.raw_name] = f"{operator.type}: {why}"
        return found
