"""Programs in which one number after the other becomes enormous, or all of them: sizes of declared types, integers of constants."""

import itertools
import sys
import time
from functools import partial

SIZES = (1 << 24, (1 << 31) - 1, 1 << 60, (1 << 64) - 1)
INTEGERS = ((1 << 24) + 1, (1 << 31) - 1, -(1 << 31))


def _sizes(declared):
    kind = declared.WhichOneof("type")
    if kind == "tensorType":
        for one in declared.tensorType.dimensions:
            if one.WhichOneof("dimension") == "constant":
                yield SIZES, lambda size, one=one: setattr(one.constant, "size", size)
    elif kind == "stateType":
        yield from _sizes(declared.stateType.wrappedType)
    elif kind == "listType":
        yield from _sizes(declared.listType.type)


def _of_value(value):
    yield from _sizes(value.type)
    if value.WhichOneof("value") == "immediateValue" and value.immediateValue.WhichOneof("value") == "tensor":
        for found in (value.immediateValue.tensor.ints.values, value.immediateValue.tensor.longInts.values):
            for place in range(min(len(found), 6)):
                yield INTEGERS, lambda number, found=found, place=place: found.__setitem__(place, number)


def _of_block(block):
    for op in block.operations:
        for value in op.attributes.values():
            yield from _of_value(value)
        for given in op.inputs.values():
            for one in given.arguments:
                if one.WhichOneof("binding") == "value":
                    yield from _of_value(one.value)
        for output in op.outputs:
            yield from _sizes(output.type)
        for inner in op.blocks:
            yield from _of_block(inner)


def numbers(message):
    """Yield (what it may become, how to set it) of every size and integer of a Model message."""
    for function in message.mlProgram.functions.values():
        for given in function.inputs:
            yield from _sizes(given.type)
        for block in function.block_specializations.values():
            yield from _of_block(block)


def mutated(data):
    """Yield (name, function that returns the bytes) of a serialized Model with each of its numbers, and all of its sizes, made enormous."""
    from milblob.program import schema

    def one(number, turn):
        message = schema.parse("Model", data)
        values, change = next(itertools.islice(numbers(message), number, None))
        change(values[turn])
        return message.SerializeToString()

    def all_sizes(size):
        message = schema.parse("Model", data)
        for values, change in numbers(message):
            if values is SIZES:
                change(size)
        return message.SerializeToString()

    for number, (values, _) in enumerate(numbers(schema.parse("Model", data))):
        for turn, value in enumerate(values):
            yield f"number {number} as {value}", partial(one, number, turn)
    for size in SIZES:
        yield f"all sizes as {size}", partial(all_sizes, size)


def convert_all(folder, step, seconds=10):
    """Convert every package of a folder with each of its numbers made enormous; print what does not end well, and the peak.

    With a `step`, one in `step` of these Programs is converted.

    The rules of the specification, which refuse most of these Programs before a converter sees them, are left out.
    """
    import milblob
    import milblob.onnx
    from children import peak_rss_nbytes
    from milblob.onnx import conversion

    conversion.require_sound = lambda source: None
    tried, turns = 0, itertools.count()
    for package in sorted(folder.glob("*.mlpackage")):
        print(package.name, file=sys.stderr, flush=True)  # of a crash, the last one is at fault
        file = next(package.rglob("*.mlmodel"))
        for name, changed in mutated(file.read_bytes()):
            if next(turns) % step:
                continue
            file.write_bytes(changed())
            start, problem = time.process_time(), ""
            try:
                milblob.onnx.convert(package, weights="embed")
            except milblob.MilblobError as error:
                if len(str(error)) > 2000 or "MemoryError" in str(error):
                    problem = str(error)[:200]
            except Exception as error:
                problem = f"{type(error).__name__}: {error!s:.200}"
            if time.process_time() - start > seconds:
                problem += f" after {time.process_time() - start:.0f} s"
            if problem:
                print(package.stem, name, " ".join(problem.split()))
            tried += 1
    print(tried, peak_rss_nbytes() >> 20)
