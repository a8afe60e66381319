"""Rules of the specification about values: a value in a Program fits the type that is stated with it."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import cast

from ..dtypes import DType
from ..errors import MilblobError
from ..program.types import DictionaryType, ListType, TensorType, TupleType, ValueType
from ..program.value import Value
from ..wording import abbreviated
from .catalog import Breach
from .type_rules import KnownType, brief, fits

_KINDS = {TensorType: "tensor", ListType: "list", TupleType: "tuple", DictionaryType: "dictionary"}


_Types = dict[int, KnownType]
"""The types inside one value, by identity: each is looked at once, and kept, so that no other gets its identity."""


def _known(types: _Types, declared: ValueType | None) -> KnownType | None:
    """Return the facts about a type; None for none."""
    if declared is None:
        return None
    if id(declared) not in types:
        types[id(declared)] = KnownType.of(declared)
    return types[id(declared)]


def value_breaches(value: Value) -> Iterator[Breach]:
    """Yield the breaches of a value and the values inside it. Raises: FormatError: bytes that are malformed."""
    return _breaches(value, None, "MIL015", {})


def _breaches(value: Value, expected: KnownType | None, rule: str, types: _Types) -> Iterator[Breach]:
    """As `value_breaches`; `expected`: the type that the value around it states; any other type breaks `rule`."""
    stated = value.type
    known = expected
    if stated is not None:
        known = _known(types, stated) if expected is None or stated != expected.type else expected
        if expected is not None and not fits(stated, expected.type):
            yield Breach(rule, f"type: expected {brief(expected.type)}, got {brief(stated)}", value.path)
    if known is None:
        yield Breach("MIL013", "type of the value: expected one, got none", value.path)
        return
    if known is not expected:
        for broken, message in known.breaches:
            yield Breach(broken, f"type of the value: {message}", value.path)
    declared = cast(ValueType, known.type)
    if not known.is_known:
        yield Breach("MIL014", f"type of the value: expected a known shape, got {brief(declared)}", value.path)
    elif not value.kind:
        yield Breach("MIL013", "value: expected an immediate or a reference to a weight file, got neither", value.path)
    elif value.kind == "blob":
        yield from _reference(value, declared)
    elif value.kind != _KINDS.get(type(declared)):
        yield Breach("MIL015", f"value: expected one of {brief(declared)}, got a {value.kind}", value.path)
    elif isinstance(declared, TensorType):
        yield from _tensor(value, declared)
    elif isinstance(declared, DictionaryType):
        yield from _pairs(value, declared, types)
    elif isinstance(declared, TupleType):
        expected_types = chain((_known(types, one) for one in declared.members), repeat(None))
        yield from _items(value, declared, len(declared.members), expected_types, "MIL018", types)
    elif isinstance(declared, ListType):
        element = repeat(_known(types, declared.element))
        yield from _items(value, declared, declared.length or 0, element, "MIL017", types)


def _reference(value: Value, declared: ValueType) -> Iterator[Breach]:
    reference = value.blob
    if not isinstance(declared, TensorType) or (isinstance(declared.dtype, DType) and not declared.dtype.blob_code):
        message = f"type: expected a tensor of a data type that weight files hold, got {brief(declared)}"
        yield Breach("MIL021", message, value.path)
    if reference is None or not reference.file_name:
        yield Breach("MIL021", "weight file: expected its name, got none", value.path)


def _tensor(value: Value, declared: TensorType) -> Iterator[Breach]:
    if isinstance(declared.dtype, int):
        return  # reported with the type: the field that would hold it is not known
    try:
        value.unpack(declared)
    except MilblobError as error:
        yield Breach("MIL016", error.what, value.path, error.offset)
    except (ValueError, OverflowError) as error:
        message = f"shape {abbreviated(str(declared.shape))}: expected one that an array can have, got {error}"
        yield Breach("MIL016", message, value.path)


def _items(
    value: Value, declared: ValueType, due: int, expected: Iterator[KnownType | None], rule: str, types: _Types
) -> Iterator[Breach]:
    """Yield the breaches of the members of a list or tuple, one after the other."""
    count = 0
    for item, one in zip(value.each_item(), expected, strict=False):
        yield from _breaches(item, one, rule, types)
        count += 1
    if count != due:
        yield Breach(rule, f"{value.kind}: expected {due} elements for {brief(declared)}, got {count}", value.path)


def _pairs(value: Value, declared: DictionaryType, types: _Types) -> Iterator[Breach]:
    seen = set()
    due = _known(types, declared.key), _known(types, declared.value)
    for pair in value.each_pair():
        for one, expected in zip(pair, due, strict=True):
            yield from _breaches(one, expected, "MIL019", types)
        try:
            read = pair[0].read()
            is_new = read not in seen
            seen.add(read)
        except (MilblobError, TypeError, ValueError, OverflowError):
            continue  # no key that compares: the type or the value is reported
        if not is_new:
            message = f"key of a dictionary: expected one that is not there yet, got {abbreviated(repr(read))}"
            yield Breach("MIL019", message, pair[0].path)
