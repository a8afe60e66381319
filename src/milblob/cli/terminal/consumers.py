"""The readers of a tensor, as `ls` and `show` print them."""

from collections.abc import Sequence

from ...program.view import Consumer, Operation


def to_dict(consumer: Consumer) -> dict[str, str]:
    """Return the type and the name of the operation that reads a tensor, and the parameter; "return" for a block."""
    reader = consumer.reader
    op, name = (reader.type, reader.label) if isinstance(reader, Operation) else ("return", consumer.name)
    return {"op": op, "name": name, "parameter": consumer.parameter}


def in_words(consumer: Consumer) -> str:
    """Return the same as text: "conv 'conv_3', as weight"."""
    op, name, parameter = to_dict(consumer).values()
    return "returned by its block" if op == "return" else f"{op} {name!r}, as {parameter}"


def first_of(consumers: Sequence[Consumer], *, is_named: bool = True) -> str:
    """Return the first that reads a tensor, and how many others do: "conv 'conv_3' weight +1"; "" without any.

    `is_named`: whether the name of the operation is in it.
    """
    if not consumers:
        return ""
    op, name, parameter = to_dict(consumers[0]).values()
    message = "returned" if op == "return" else f"{op} {name!r} {parameter}" if is_named else f"{op} {parameter}"
    return message if len(consumers) == 1 else f"{message} +{len(consumers) - 1}"
