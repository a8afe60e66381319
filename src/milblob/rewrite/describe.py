"""The ModelDescription of a model that is made of others, and the record of a part of the whole model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _codec
from ..errors import ProgramError
from ..program.wire_edits import Field, Span, field, fields_of, text_of

RECORD_KEY = "milblob.chunk"
"""Key in the user-defined metadata of a part: its number, and the inputs and outputs of the whole model."""

# ModelDescription, for one function, and the same fields of a FunctionDescription.
OWN = {"input": 1, "output": 10, "state": 13, "label": 11, "probabilities": 12}
LISTED = {"input": 2, "output": 3, "state": 6, "label": 4, "probabilities": 5}
FUNCTIONS, DEFAULT, METADATA = 20, 21, 100
_USER_DEFINED = 100
ARRAY = 5


class Description:
    """The description of functions in a model file.

    `span`: of its ModelDescription. `functions`: names of the Program's functions. `file`: of the model, for messages.
    Raises: ProgramError: a function that has no description.
    """

    def __init__(
        self, buffer: _codec.Buffer, span: Span | None, functions: Sequence[str], file: str | None = None
    ) -> None:
        self.buffer = buffer
        self.fields = fields_of(buffer, span) if span is not None else []
        listed = [one for one in self.fields if one.number == FUNCTIONS and one.wire == 2]
        # whether functions have descriptions of their own; else the model has one function
        self.is_listed = bool(listed)
        self.default = text_of(buffer, span, DEFAULT) if span is not None else ""
        # name -> its fields, and what has which number among them
        self.functions: dict[str, tuple[list[Field], Mapping[str, int]]] = {
            text_of(buffer, one.span, 1): (fields_of(buffer, one.span), LISTED) for one in listed
        }
        if not listed and len(functions) == 1 and span is not None:
            self.functions[functions[0]] = self.fields, OWN
        missing = [name for name in functions if name not in self.functions]
        if missing or not functions:
            message = f"description: expected one of every function, got none of {', '.join(missing) or 'any'}"
            raise ProgramError(message, file=file or buffer.name)
        self.span: Span = span or (0, 0)  # of the ModelDescription

    def features(self, function: str, what: str) -> dict[str, bytes]:
        """Return the FeatureDescriptions of the inputs, outputs or states of a function, by name."""
        fields, numbers = self.functions[function]
        found = [one for one in fields if one.number == numbers[what] and one.wire == 2]
        return {text_of(self.buffer, one.span, 1): bytes(self._bytes(one)) for one in found}

    def text(self, function: str, what: str) -> str:
        """Return the name of the predicted label, or of the probabilities; "" without one."""
        fields, numbers = self.functions[function]
        found = [one for one in fields if one.number == numbers[what] and one.wire == 2]
        return str(self._bytes(found[-1]), "utf-8", "replace") if found else ""

    def images(self, function: str) -> frozenset[str]:
        """Return the outputs of a function that are described as something else than an array."""
        return frozenset(name for name, data in self.features(function, "output").items() if not is_array(data))

    @property
    def record(self) -> str:
        """The text that `RECORD_KEY` has in the user-defined metadata; "" without it."""
        found = ""
        for one in self.fields:
            if one.number == METADATA and one.wire == 2:
                for entry in fields_of(self.buffer, one.span):
                    if entry.number == _USER_DEFINED and text_of(self.buffer, entry.span, 1) == RECORD_KEY:
                        found = text_of(self.buffer, entry.span, 2)
        return found

    def body(self, function: str) -> bytes:
        """Return the FunctionDescription of a function, but for its name."""
        fields, numbers = self.functions[function]
        if numbers is LISTED:
            return b"".join(memoryview(self.buffer)[one.start : one.end] for one in fields if one.number != 1)
        listed = {number: LISTED[what] for what, number in OWN.items()}
        return b"".join(field(listed[one.number], self._bytes(one)) for one in fields if one.number in listed)

    def metadata(self, record: str) -> bytes:
        """Return the field of the metadata with another record; none for ""."""
        inner = b""
        for one in self.fields:
            if one.number == METADATA and one.wire == 2:
                for entry in fields_of(self.buffer, one.span):
                    if entry.number != _USER_DEFINED or text_of(self.buffer, entry.span, 1) != RECORD_KEY:
                        inner += memoryview(self.buffer)[entry.start : entry.end]
        if record:
            inner += field(_USER_DEFINED, field(1, RECORD_KEY) + field(2, record))
        return field(METADATA, inner) if inner else b""

    def others(self) -> bytes:
        """Return all fields but those of functions and the metadata, as they are."""
        known = {*OWN.values(), FUNCTIONS, DEFAULT, METADATA}
        return b"".join(
            bytes(memoryview(self.buffer)[one.start : one.end]) for one in self.fields if one.number not in known
        )

    def _bytes(self, one: Field) -> memoryview:
        return memoryview(self.buffer)[one.offset : one.end]


def is_array(feature: bytes) -> bool:
    """Whether a FeatureDescription is one of an array."""
    buffer = _codec.Buffer(feature)
    types = [one for one in fields_of(buffer, (0, len(feature))) if one.number == 3 and one.wire == 2]
    return bool(types) and any(one.number == ARRAY for one in fields_of(buffer, types[-1].span))


def function_fields(signature: Mapping[str, Any], numbers: Mapping[str, int]) -> bytes:
    """Encode what a function takes and returns.

    `signature`: "input", "output", "state": serialized FeatureDescriptions; "label", "probabilities": names or "".
    `numbers`: of the fields: OWN or LISTED.
    """
    found = [field(numbers[what], data) for what in ("input", "output", "state") for data in signature[what]]
    found += [field(numbers[what], signature[what]) for what in ("label", "probabilities") if signature[what]]
    return b"".join(found)


def encode(description: Description, signatures: Mapping[str, Mapping[str, Any]], record: str) -> bytes:
    """Encode a ModelDescription with new descriptions of functions; all other fields are those of a model.

    `signatures`: function -> as for `function_fields`. `record`: see `RECORD_KEY`; "" for none.
    """
    parts = []
    for name, signature in signatures.items():
        if description.is_listed:
            parts.append(field(FUNCTIONS, field(1, name) + function_fields(signature, LISTED)))
        else:
            parts.append(function_fields(signature, OWN))
    if description.default:
        parts.append(field(DEFAULT, description.default))
    return b"".join((*parts, description.metadata(record), description.others()))


def record_of(number: int, count: int, functions: Mapping[str, Mapping[str, Sequence[str]]], outer: str) -> str:
    """Return the record of a part.

    `number`: of the part, from 1. `count`: of parts. `functions`: function -> the names of the `inputs`, `outputs` and
    `states` of the whole. `outer`: the record of the whole, which is a part itself; "" if it is not.
    """
    rows = {name: {what: list(names) for what, names in row.items()} for name, row in functions.items()}
    return json.dumps({"parts": [number], "of": count, "functions": rows} | ({"outer": outer} if outer else {}))
