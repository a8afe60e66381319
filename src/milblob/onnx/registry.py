"""Which converter and which shape calculator an operation has; users add theirs, or replace ours."""

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..arguments import require

if TYPE_CHECKING:
    from .emit import ModelComponentContainer
    from .topology import Operator, Scope

Converter = Callable[["Scope", "Operator", "ModelComponentContainer"], Any]
ShapeCalculator = Callable[["Operator"], Any]
_F = TypeVar("_F", bound=Callable[..., Any])

GROUPS = (
    "elementwise", "activation", "linear", "conv", "normalize", "reduce", "shape", "sequence", "slice", "gather",
    "resize", "sampling", "space", "constexpr", "recurrent", "control", "lists", "random", "detection", "classifier",
)  # fmt: skip
"""The modules of `ops`, one for each group of operations."""


class ConverterEntry(NamedTuple):
    """A converter with the first ONNX opset it is for; a description of its output, and its limits."""

    convert: Converter
    since_opset: int
    mapping: str
    limits: str = ""


_converters: dict[str, list[ConverterEntry]] = {}
_users: dict[str, list[ConverterEntry]] = {}
_calculators: dict[str, ShapeCalculator] = {}


def builtin(
    *types: str, onnx: str, since_opset: int = 18, limits: str = "", convert: bool = False
) -> Callable[[_F], _F]:
    """Register one of milblob's own converters: called with the operator and the container, it returns the output.

    One with several outputs, or with types of its own for them, binds them itself and returns None.

    Args:
        types: the operations.
        onnx: the ONNX operators that they become, for docs/onnx-operations.md.
        since_opset: the first ONNX opset that it is for. Of several, the newest that fits is used.
        limits: its requirements and omissions, for docs/onnx-operations.md; "" for none.
        convert: as for `ModelComponentContainer.bind`.
    """

    def register(make: _F) -> _F:
        def bound(_: "Scope", operator: "Operator", container: "ModelComponentContainer") -> None:
            made = make(operator, container)
            if made is not None:
                container.bind(operator.output, made, convert=convert)

        for type in types:
            _converters.setdefault(type, []).append(ConverterEntry(bound, since_opset, onnx, limits))
        return make

    return register


def register_converter(type: str, *, since_opset: int = 18) -> Callable[[_F], _F]:
    """Register a converter of your own for an operation; a decorator.

    Args:
        type: of the operation, such as "conv". Yours comes before milblob's own.
        since_opset: the first ONNX opset that it is for. Of several, the newest that fits is used.

    The converter is called with (scope, operator, container): it adds nodes to the container, and sets the output of
    the operation with `container.bind(operator.output, value)`.

    Examples:
        >>> @milblob.onnx.register_converter("relu")
        ... def convert_relu(scope, operator, container):
        ...     value = container.node("Relu", operator.input("x"))
        ...     container.bind(operator.output, value)
        >>> milblob.onnx.unregister("relu")
    """
    require("type", type, str, "the name of an operation")
    require("since_opset", since_opset, int, "a number")

    def register(convert: _F) -> _F:
        entries = _users.setdefault(type, [])
        entries[:] = [entry for entry in entries if entry.since_opset != since_opset]
        entries.append(ConverterEntry(convert, since_opset, "your own"))
        return convert

    return register


def register_shape_calculator(type: str) -> Callable[[_F], _F]:
    """Register a shape calculator for an operation; a decorator.

    It is called with the Operator before any conversion, and may replace the types of its outputs. Without one, the
    types are those that the Program declares.

    Examples:
        >>> @milblob.onnx.register_shape_calculator("relu")
        ... def calculate_relu(operator):
        ...     operator.output.type = operator.input("x").type
        >>> milblob.onnx.unregister("relu")
    """
    require("type", type, str, "the name of an operation")

    def register(calculate: _F) -> _F:
        _calculators[type] = calculate
        return calculate

    return register


def unregister(type: str) -> None:
    """Remove your own converters and your shape calculator of an operation; milblob's own are kept.

    Raises:
        KeyError: there are none.

    Examples:
        >>> try:
        ...     milblob.onnx.unregister("relu")
        ... except KeyError as error:
        ...     print(error)
        "type: expected an operation that you registered (none), got 'relu'"
    """
    require("type", type, str, "the name of an operation")
    yours = sorted(_users.keys() | _calculators.keys())
    if type not in yours:
        raise KeyError(
            f"type: expected an operation that you registered ({', '.join(yours) or 'none'}), got {type!r:.100}"
        )
    _users.pop(type, None)
    _calculators.pop(type, None)


def calculator(type: str) -> ShapeCalculator | None:
    """Return the shape calculator of an operation, or None."""
    return _calculators.get(type)


def find(type: str, opset: int) -> Converter | None:
    """Return the converter of an operation for an ONNX opset: the user's before ours, the newest that fits; or None."""
    load()
    for table in (_users, _converters):
        fitting = [entry for entry in table.get(type, ()) if entry.since_opset <= opset]
        if fitting:
            return max(fitting, key=lambda entry: entry.since_opset).convert
    return None


def is_builtin(converter: Converter) -> bool:
    """Whether a converter is one of milblob's own."""
    return any(entry.convert is converter for entries in _converters.values() for entry in entries)


def supported() -> frozenset[str]:
    """Return the types of operations that can be converted, yours among them.

    Examples:
        >>> "conv" in milblob.onnx.supported()
        True
    """
    load()
    return frozenset(_converters) | frozenset(_users) | {"const"}


@cache
def load() -> None:
    """Import every module of `ops`, which register themselves; once, for looking them up takes time."""
    for group in GROUPS:
        import_module(f"{__package__}.ops.{group}")


def missing(types: Iterable[str], converters: "dict[str, Converter] | None", opset: int) -> list[str]:
    """Return those types that have no converter."""
    return [type for type in types if not (converters and type in converters) and find(type, opset) is None]
