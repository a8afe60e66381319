"""Edits after which a weight is computed from the stored records of another one, in the same way.

The operation that yields the weight keeps its name and its output. It becomes a `const`, or the last one of a copy of
the other weight's chain of constexpr operations, which reads the same records.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from .. import _codec
from ..dtypes import DType
from ..model.open_program import OpenProgram
from ..model.tensor import Tensor
from ..program.compress_edits import Link, Links, Same, constexpr_edit
from ..program.constexpr import part_names
from ..program.scan import Compressed
from ..program.splice import Edit
from ..program.types import TensorType
from ..program.wire_edits import reference_edit
from ..results import Result
from ..values.tensorvalue import pack_tensor
from .alike import Shared
from .changes import TensorChange
from .decompress import Decompression, dense_edit, plan_decompression
from .tasks import Item

PlaceOf = Callable[[Tensor], tuple[str, int]]
"""Returns the record of a stored part in the result: (file name, metadata offset) as a Program spells it."""


@dataclass(frozen=True, repr=False)
class SharedWeight(Result):
    """A weight that takes the stored form of another one, because their values are equal or nearly so.

    Attributes:
        name: of the weight.
        reference: name of the other one.
        op: type of the operation that yields both: "const" if they are dense.
        nbytes: stored for the weight before; other weights may need a part of them.
        sqnr: in dB, of the reference's values against those of the weight; infinite if they are equal.
        max_abs: the largest difference of two elements.

    Examples:
        >>> report = milblob.repack("demo.mlpackage", "shared.mlpackage", dedupe="values")
        >>> report.shared
        ()
    """

    name: str
    reference: str
    op: str
    nbytes: int
    sqnr: float
    max_abs: float

    @classmethod
    def of(cls, shared: Shared) -> "SharedWeight":
        """Describe one."""
        weight, reference, figures = shared
        sqnr, most = (float("inf"), 0.0) if figures is None else (cast(float, figures.sqnr), figures.max_abs or 0.0)
        return cls(weight.name, reference.name, reference.op, weight.nbytes, sqnr, most)


def plan_sharing(shared: Iterable[Shared]) -> dict[OpenProgram, Decompression]:
    """Find the operations that nothing reads once compressed weights share, of each Program that has some."""
    chains: dict[OpenProgram, set[Compressed]] = defaultdict(set)
    for row in shared:
        if row.weight.chain is not None:
            chains[cast(OpenProgram, row.weight.program)].add(row.weight.chain)
    return {program: plan_decompression(program, found.__contains__) for program, found in chains.items()}


def shared_changes(shared: Iterable[Shared], items: Mapping[Any, Item | None]) -> list[TensorChange]:
    """Return the rows of compressed weights that share; note the functions that use the records of others.

    `items`: of the result, by (Program, constant).
    """
    changes = []
    for weight, reference, _ in shared:
        for row in [reference.constant] if reference.chain is None else reference.chain.stored():
            item = items.get((reference.program, row))
            if item is not None:
                item.add_user(weight.function)
        if weight.chain is not None:
            change = TensorChange(weight.name, weight.mil_dtype, 0, None, None)
            change.actions.append("share")
            changes.append(change)
    return changes


def sharing_edits(shared: Iterable[Shared], place_of: PlaceOf) -> Mapping[OpenProgram, list[Edit | None]]:
    """Return the edits of each Program after which weights share; those of `plan_sharing` are made elsewhere."""
    edits: dict[OpenProgram, list[Edit | None]] = defaultdict(list)
    for row in shared:
        program = cast(OpenProgram, row.weight.program)
        program.require_edits()
        edits[program].append(_edit(program, row.weight, row.reference, place_of))
    return edits


def _edit(program: OpenProgram, weight: Tensor, reference: Tensor, place_of: PlaceOf) -> Edit | None:
    scan, op = program.scan, weight.op_row
    if reference.chain is None:
        place = place_of(reference)
        if weight.chain is None:
            return reference_edit(scan.buffer, weight.constant, *place)
        return dense_edit(scan, weight.chain, weight.mil_dtype, weight.shape, place)
    stored: list[tuple[str, Any, Any, Any]] = []
    links: dict[str, Link | Same] = {}
    _copy_parts(reference, reference.chain, "", place_of, stored, links, {})
    gone = ("val",) if op.type == "const" else part_names(op.type)
    return constexpr_edit(scan, op, gone, reference.op, stored, cast(Links, links))


def _copy_parts(
    reference: Tensor,
    chain: Compressed,
    prefix: str,
    place_of: PlaceOf,
    stored: list[tuple[str, Any, Any, Any]],
    links: dict[str, Link | Same],
    known: dict[Any, str],
) -> None:
    """Describe the parts of a chain as `constexpr_edit` takes them.

    `prefix`: of their keys. `stored`, `links`: what is found is added. `known`: key of each operation that was
    described.
    """
    program = cast(OpenProgram, reference.program)
    if chain.op.type == "constexpr_cast":  # its other parameter, a text, is not among its parts
        stored.append((f"{prefix}output_dtype", DType.STRING, (), pack_tensor("fp32")))
    for name, row in chain.parts.items():
        key = prefix + name
        if not isinstance(row, Compressed):
            part = reference.part(row)
            stored.append((key, part.mil_dtype, part.shape, _value(program, part, place_of)))
        elif row.op.message in known:
            links[key] = Same(known[row.op.message], row.output)
        else:
            known[row.op.message] = key
            types = [cast(TensorType, output.type) for output in program.operation(row.op).outputs]
            outputs = tuple((one.dtype, cast("tuple[int, ...]", one.shape)) for one in types)
            links[key] = Link(row.op.type, outputs, row.output)
            _copy_parts(reference, row, f"{key}.", place_of, stored, links, known)


def _value(program: OpenProgram, part: Tensor, place_of: PlaceOf) -> Any:
    if part.constant.storage == _codec.BLOB:
        return place_of(part)
    offset, nbytes = part.constant.payload
    return memoryview(program.scan.buffer)[offset : offset + nbytes].tobytes()
