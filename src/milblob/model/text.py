"""A model's Program as MIL text, and the neighbourhood of one of its operations."""

import io
from contextlib import ExitStack
from typing import Any, BinaryIO, overload

from ..arguments import as_integer, require, source_of
from ..closeness import unknown
from ..errors import UnsupportedError
from ..program.view import Operation
from ..program.wire_edits import field
from ..program.write_text import WEIGHTS, Write, version_of, write_operations, write_program
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from .model import Model
from .open_program import OpenProgram

_SPEC_VERSION = 9  # of the Model around a message Program; no text depends on it


@overload
def to_text(
    source: Any,
    destination: None = None,
    *,
    function: str | None = None,
    operation: str | None = None,
    around: int | None = None,
    weights: str | None = None,
    version: str | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> str: ...
@overload
def to_text(
    source: Any,
    destination: BinaryIO,
    *,
    function: str | None = None,
    operation: str | None = None,
    around: int | None = None,
    weights: str | None = None,
    version: str | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> None: ...
@takes_urls("source")
def to_text(
    source: Any,
    destination: BinaryIO | None = None,
    *,
    function: str | None = None,
    operation: str | None = None,
    around: int | None = None,
    weights: str | None = None,
    version: str | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> str | None:
    """Write a Program as MIL text, as Apple's compiler does.

    Args:
        source: a Model, a source that `open` takes, or a Program or Model as a protobuf message.
        destination: file that is open for writing bytes; the text is UTF-8. None returns the text instead.
        function: the only function that is written, as in `Model.functions`. A pipeline has a Program for each model,
            and needs one.
        operation: write no Program but the operations around this one, by the name of an output.
        around: how many steps from that operation, along inputs and outputs; 1 where it is None.
        weights: "all" writes immediates whole, "head" eight elements of ten or more, "none" none of these. Only "all"
            can be read again. Default: "all", "head" for the surroundings of an operation.
        version: of the language: "1.0" spells scalars ``tensor<fp16, []>``, "1.3" ``fp16``. Default: that of the source
            if it is text, else the latest.
        max_nbytes, storage_options, cache: as for `open`.

    Returns:
        The text; None with `destination`. A model that is text is returned unchanged unless a part is requested.

    Raises:
        UnsupportedError: something that text cannot hold (docs/mil-text.md), a pipeline without `function`, a weight
            file. KeyError: no such function or operation. ValueError: another version, another word for weights, or
            `around` without `operation`. As `open`.

    Examples:
        >>> text = milblob.to_text("demo.mlpackage", operation="logits", around=0)
        >>> "linear(" in text
        True
    """
    for name, value in (("function", function), ("operation", operation), ("weights", weights), ("version", version)):
        require(name, value, str | None, "text")
    if destination is not None and not hasattr(destination, "write"):
        raise TypeError(f"destination: expected a binary file, got {type(destination).__name__}")
    around = None if around is None else as_integer("around", around)
    if weights is None:
        weights = "all" if operation is None else "head"
    if weights not in WEIGHTS:
        raise ValueError(f"weights: expected one of {', '.join(WEIGHTS)}, got {weights!r}")
    if around is not None and operation is None:
        raise ValueError(f"around: expected the operation too, around which others are written, got {around} alone")
    memory = io.BytesIO()
    write = memory.write if destination is None else destination.write
    with ExitStack() as stack:
        if isinstance(source, Model):
            model = source
        else:
            model = stack.enter_context(Model(_serialized(source_of(source)), max_nbytes=max_nbytes))
        write_text(
            model,
            write,
            function=function,
            operation=operation,
            around=1 if around is None else around,
            weights=weights,
            version=version,
        )
    return memory.getvalue().decode() if destination is None else None


def write_text(
    model: Model,
    write: Write,
    *,
    function: str | None = None,
    operation: str | None = None,
    around: int = 1,
    weights: str = "all",
    version: str | None = None,
) -> None:
    """Write an open model as `to_text` does, by a function that is called with UTF-8 bytes."""
    if operation is None:
        _write_model(model, write, function, weights, version)
        return
    found = neighbourhood(model, operation, around, function)
    write_operations(found[0].view, found, write, weights=weights)


def _serialized(source: Any) -> Any:
    """The bytes of a model file for a message Program or Model; other sources as they are."""
    name = getattr(getattr(source, "DESCRIPTOR", None), "full_name", "")
    if name not in ("CoreML.Specification.MILSpec.Program", "CoreML.Specification.Model"):
        return source
    data = source.SerializeToString(deterministic=True)
    return data if name.endswith(".Model") else field(1, _SPEC_VERSION) + field(502, data)


def _write_model(model: Model, write: Write, function: str | None, weights: str, version: str | None) -> None:
    part = _chosen(model, function)
    text = part.mapping.check_size() if part.is_text else None
    own = version_of(bytes(memoryview(text)[:200])) if text is not None else None
    if text is not None and function is None and weights == "all" and version in (None, own):
        view = memoryview(text)
        for start in range(0, len(view), 1 << 20):
            write(bytes(view[start : start + (1 << 20)]))
        return
    ends = text is None or bytes(memoryview(text)[-1:]) == b"\n"
    names = None if function is None else [function.removeprefix(part.prefix)]
    write_program(
        part.scan.buffer,
        part.scan.span,
        write,
        functions=names,
        version=version or own,
        weights=weights,
        newline=ends,
        is_plain=part.scan.rewritten,
    )


def _chosen(model: Model, function: str | None) -> OpenProgram:
    """The Program that a function belongs to, or the only one."""
    model.package.require_open()
    if function is not None:
        for part in model.parts:
            if any(part.prefix + name == function for name, _, _ in part.scan.table.functions):
                return part
        raise KeyError(unknown("function", function, model.functions, model.path or "the model"))
    if len(model.parts) != 1:
        what = f"a pipeline of {len(model.parts)}; choose one by a function" if model.parts else "a weight file"
        raise UnsupportedError(f"MIL text: expected a model with one Program, got {what}", file=model.path)
    return model.parts[0]


def neighbourhood(model: Model, name: str, around: int = 1, function: str | None = None) -> list[Operation]:
    """Return an operation and those at most `around` steps away along inputs and outputs, in Program order.

    Leaves out an operation inside a block of another returned operation: the text of that one includes it.

    `name`: of an output of the operation, or its own where that is another one (its attribute `name`). `function`:
    where it is looked for; None for all.
    Raises: KeyError: no operation has that name, or several have. ValueError: a negative number of steps.
    """
    if around < 0:
        raise ValueError(f"around: expected 0 or more steps, got {around}")
    start = _named(model, name, function)
    found = {start.row: start}
    edge = [start]
    for _ in range(around):
        reached = [other for op in edge for other in _neighbours(op) if other.row not in found]
        edge = list({op.row: op for op in reached}.values())
        if not edge:
            break
        found |= {op.row: op for op in edge}
    return [op for _, op in sorted(found.items()) if not _is_inside(op, found)]


def _named(model: Model, name: str, function: str | None) -> Operation:
    functions = model.functions if function is None else (function,)
    candidates = [op for one in functions for op in model.functions[one].walk() if name in op.output_names]
    if not candidates:
        candidates = [op for one in functions for op in model.functions[one].walk() if _own_name(op) == name]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise KeyError(f"{name!r} is ambiguous: {len(candidates)} operations have this name; choose a function")
    outputs = (output for one in functions for op in model.functions[one].walk() for output in op.output_names)
    raise KeyError(unknown("operation with the output", name, outputs, model.path or "the model"))


def _own_name(operation: Operation) -> str | None:
    """The attribute `name`, which may differ from the names of the outputs, if it is text."""
    value = operation.attributes.get("name")
    name = None if value is None or value.kind != "tensor" else value.read()
    return name if isinstance(name, str) else None


def _neighbours(operation: Operation) -> list[Operation]:
    found = [b.definition for bindings in operation.inputs.values() for b in bindings]
    readers = [consumer.reader for consumer in operation.consumers]
    return [other for other in (*found, *readers) if isinstance(other, Operation)]


def _is_inside(operation: Operation, others: dict[int, Operation]) -> bool:
    outer = operation.block.operation
    while outer is not None:
        if outer.row in others:
            return True
        outer = outer.block.operation
    return False
