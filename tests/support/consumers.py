"""Who reads a tensor, as plain text; and who reads a constant of a Program that no model holds."""

from milblob.program.view import Operation, ProgramView


def use(consumer):
    """(Type of the operation, or "return" for a block; its first output, or the name that is read; parameter)."""
    reader, parameter, name = consumer
    return (reader.type, reader.label, parameter) if isinstance(reader, Operation) else ("return", name, "")


def uses(tensor):
    """The same of every consumer of a tensor."""
    return [use(consumer) for consumer in tensor.consumers]


def consumers_of(scan, row):
    """The consumers of a constant of a scan."""
    if row.op is None or row.op.type != "const":
        return ()
    view = ProgramView(scan.buffer, scan.span)
    first, count = view.operation(view.graph.operation_at(row.op.message[0])).output_rows
    return view.consumers(first, min(count, 1))
