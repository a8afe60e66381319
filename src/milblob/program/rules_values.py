"""Rules of the specification about values: what stands in a Program fits the type that is stated beside it."""

from collections.abc import Iterator

from ..dtypes import DType
from ..errors import MilblobError
from .rules import Breach, shortened
from .rules_types import fits, is_known, type_breaches
from .types import DictionaryType, ListType, TensorType, TupleType, ValueType
from .value import Value

_KINDS = {TensorType: "tensor", ListType: "list", TupleType: "tuple", DictionaryType: "dictionary"}


def value_breaches(value: Value, expected: ValueType | None = None, rule: str = "MIL015") -> Iterator[Breach]:
    """Yield what a value breaks, and those inside it.

    Args:
        value: of a view.
        expected: the type that what holds the value states for it; None if nothing does.
        rule: broken by a value of another type than that.

    Raises:
        FormatError: bytes that are malformed.
    """
    declared = value.type
    if declared is None:
        declared = expected
    elif not fits(declared, expected):
        words = f"type: expected {shortened(str(expected))}, got {shortened(str(declared))}"
        yield Breach(rule, words, value.path)
    if declared is None:
        yield Breach("MIL013", "type of the value: expected one, got none", value.path)
        return
    for broken, words in type_breaches(declared):
        yield Breach(broken, f"type of the value: {words}", value.path)
    if not is_known(declared):
        words = f"type of the value: expected a known shape, got {shortened(str(declared))}"
        yield Breach("MIL014", words, value.path)
        return
    if not value.kind:
        yield Breach("MIL013", "value: expected an immediate or a reference to a weight file, got neither", value.path)
    elif value.kind == "blob":
        yield from _reference(value, declared)
    elif value.kind != _KINDS.get(type(declared)):
        words = f"value: expected one of {shortened(str(declared))}, got a {value.kind}"
        yield Breach("MIL015", words, value.path)
    elif isinstance(declared, TensorType):
        yield from _tensor(value, declared)
    else:
        yield from _members(value, declared)


def _reference(value: Value, declared: ValueType) -> Iterator[Breach]:
    reference = value.blob
    if not isinstance(declared, TensorType) or (isinstance(declared.dtype, DType) and not declared.dtype.blob_code):
        words = f"type: expected a tensor of a data type that weight files hold, got {shortened(str(declared))}"
        yield Breach("MIL021", words, value.path)
    if reference is None or not reference.file_name:
        yield Breach("MIL021", "weight file: expected its name, got none", value.path)


def _tensor(value: Value, declared: TensorType) -> Iterator[Breach]:
    if isinstance(declared.dtype, int):
        return  # reported with the type: what would hold it is not known
    try:
        value.unpack(declared)
    except MilblobError as error:
        yield Breach("MIL016", error.what, value.path, error.offset)
    except (ValueError, OverflowError) as error:
        words = f"shape {shortened(str(declared.shape))}: expected one that an array can have, got {error}"
        yield Breach("MIL016", words, value.path)


def _members(value: Value, declared: ValueType) -> Iterator[Breach]:
    if isinstance(declared, DictionaryType):
        yield from _pairs(value, declared)
        return
    items = value.items
    if isinstance(declared, TupleType):
        rule, count = "MIL018", len(declared.members)
        types = declared.members + (None,) * (len(items) - count)
    elif isinstance(declared, ListType):
        rule, count = "MIL017", declared.length if declared.length is not None else len(items)
        types = (declared.element,) * len(items)
    else:
        return
    if len(items) != count:
        words = f"{value.kind}: expected {count} elements for {shortened(str(declared))}, got {len(items)}"
        yield Breach(rule, words, value.path)
    for item, expected in zip(items, types, strict=False):
        yield from value_breaches(item, expected, rule)


def _pairs(value: Value, declared: DictionaryType) -> Iterator[Breach]:
    seen = set()
    for key, one in value.pairs:
        yield from value_breaches(key, declared.key, "MIL019")
        yield from value_breaches(one, declared.value, "MIL019")
        try:
            read = key.read()
            is_new = read not in seen
            seen.add(read)
        except (MilblobError, TypeError, ValueError, OverflowError):
            continue  # no key that compares: the type or the value is reported
        if not is_new:
            words = f"key of a dictionary: expected one that is not there yet, got {shortened(repr(read))}"
            yield Breach("MIL019", words, key.path)
