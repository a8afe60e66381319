"""`milblob.repack` of a bundle: equal resources stored once, unused ones dropped, float32 ones cast where sound."""

from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import DestinationExistsError, ProgramError, UnsupportedError
from ..model.recovery import settle
from ..progress import Progress, ProgressCounter
from ..rewrite.changes import Options, TensorChange
from ..rewrite.destination import is_in_place
from ..rewrite.repack_report import RepackReport, RewrittenFile
from ..storage import paths
from ..storage.journal_format import Later
from ..values.cast import CastCounts, cast_array, elements_named
from ..values.tensorvalue import stored_bytes
from ..wording import some
from .asset import Asset
from .codes import ELEMENTS, RESOURCE, TENSOR
from .emit import Emitter, Span, size_of, varint
from .saving import require_target, save
from .tensors import AssetTensor

_HOLDERS = ("execution.", "metal.", "udml.")
"""Operations that may refer to resources in ways that milblob does not know."""

_OTHERS = ("externalize", "inline", "split", "functions")
_MAX_NAMES = 4


def repack(
    path: str,
    target: str,
    options: Options,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> RepackReport:
    """Rewrite a bundle: `dedupe`, `gc` and `cast` of `milblob.repack`, with `select`, `overflow` and `nan`.

    Without any of them the result is a copy, byte for byte. A constant is cast only if every operation that reads it is
    a cast itself, so that no other type changes.

    Raises: ProgramError: an operation reads a constant as the type that it has; both are named. ValueError: an option
    that bundles have no use for. UnsupportedError: operations that may refer to resources in ways that are not known.
    OverflowError: a number that is too large. Otherwise as `saving.save`.
    """
    _require_options(options)
    if not dry_run and is_in_place([path], target):
        settle(path)
    with Asset(path, constants=True, stored=True, max_nbytes=max_nbytes) as asset:
        require_target(asset, target, force)
        if not dry_run and not is_in_place([path], target) and not force and paths.is_there(target):
            raise DestinationExistsError(target)
        work = _Repacking(asset, options)
        if options.cast:
            work.cast()
        if options.dedupe or options.gc:
            work.renumber()
        pieces = work.emitter.pieces()
        nbytes = sum(map(size_of, pieces))
        rows = work.changes()
        files = [RewrittenFile(target, len(work.emitter.resources), nbytes)]
        before, after = (sum(getattr(row, key) for row in rows) for key in ("nbytes", "nbytes_after"))
        report = RepackReport(path, target, rows, files, before, after, not dry_run)
        if not dry_run:
            counter = ProgressCounter(progress, asset.values())
            for name, tensor in asset.items():
                counter.add_tensor(name, tensor)
            save(asset, (pieces, None), target, force)
        return report


def _require_options(options: Options) -> None:
    wrong = [name for name in _OTHERS if getattr(options, name) is not None]
    if options.share is not None:
        raise ValueError("dedupe: expected True for a bundle of Core AI, whose weights have no other forms, got values")
    wrong += [name for name in ("merge", "canonical", "decompress") if getattr(options, name)]
    if wrong or options.align != 64:
        raise ValueError(
            f"{(wrong or ['align'])[0]}: expected none for a bundle of Core AI, which has one file of one layout"
        )
    if options.cast and DType.FLOAT32 not in options.cast:
        raise ValueError("cast: expected float32 to another float, for a bundle of Core AI, got others")


class _Repacking:
    """What becomes of the resources of a bundle."""

    def __init__(self, asset: Asset, options: Options) -> None:
        self._asset, self._options = asset, options
        self._program = asset.program
        self.emitter = Emitter(asset.program.bytecode)
        self._users: dict[int, list[AssetTensor]] = {}
        for tensor in asset.values():
            if tensor.op == "constant":
                resource = self._program.stored(tensor.row.op).resource
                if resource is not None:
                    self._users.setdefault(resource, []).append(tensor)
        self._actions: dict[int, list[str]] = {number: [] for number in self._users}
        self._after: dict[int, DType] = {}
        self._counts: dict[int, CastCounts] = {}

    # ------------------------------------------------------------------------------------------------------------ cast

    def cast(self) -> None:
        """Cast resources whose readers are casts themselves; refuse others that were asked for."""
        refused = []
        for number, users in self._users.items():
            dtypes = {tensor.mil_dtype if self._is_plain(tensor) else None for tensor in users}
            select = self._options.select
            if dtypes != {DType.FLOAT32} or (select is not None and not any(select(t.name) for t in users)):
                continue
            reader = next((use for tensor in users for use in tensor.consumers if use.type != "cast"), None)
            if self._options.is_skipped(users[0]):
                continue
            if reader is not None:
                refused.append(f"{users[0].name} (read by {reader.label})")
            else:
                self._cast(number, users, self._options.cast[DType.FLOAT32])
        if refused:
            message = (
                f"cast: expected constants that only casts read, got {len(refused)} others: {some(refused, _MAX_NAMES)}"
            )
            raise ProgramError(f"{message}; convert the model again in the other precision", file=self._asset.path)

    @staticmethod
    def _is_plain(tensor: AssetTensor) -> bool:
        element = tensor.opened.program.kind(tensor.row.op).element
        return element is not None and element.dtype is not None

    def _cast(self, number: int, users: list[AssetTensor], to: DType) -> None:
        def cast() -> tuple[Any, CastCounts]:
            return cast_array(users[0].read(), to, overflow=self._options.overflow, nan=self._options.cast_nan)

        def make() -> Any:
            return stored_bytes(np.ascontiguousarray(cast()[0]), to)

        data = Later(to.nbytes(users[0].size), make)
        with elements_named(f"tensor {users[0].name}"):  # what does not fit is refused before anything is written
            self._counts[number] = cast()[1]
        self.emitter.resources[number] = self.emitter.resources[number]._replace(data=data)
        for tensor in users:
            self.emitter.set_type(tensor.row.op, self._type_like(tensor, to))
        self._actions[number].append("cast")
        self._after[number] = to

    def _type_like(self, tensor: AssetTensor, to: DType) -> int:
        """Return the number of a tensor's type with another element type; it is added if the file lacks it."""
        code = self._program.bytecode
        numbers = code.type_numbers(int(code.values["type"][self._program.result(tensor.row.op)]))
        if numbers[0] != TENSOR:
            raise UnsupportedError(
                f"{tensor.name}: expected a dense tensor, got type code {numbers[0]}", file=self._asset.file
            )
        element = self._number_of([next(key for key, row in ELEMENTS.items() if row.dtype is to)])
        return self._number_of([*numbers[:-1], element])

    def _number_of(self, numbers: list[int]) -> int:
        code, data = self._program.bytecode, b"".join(map(varint, numbers))
        for number, row in enumerate(code.types.tolist()):
            if bytes(memoryview(code.mapping.live())[row[0] : row[0] + row[1]]) == data:
                return number
        return self.emitter.add("types", data)

    # --------------------------------------------------------------------------------------------- equal, and not used

    def renumber(self) -> None:
        """Drop resources that are equal to another, or that no attribute refers to; give the others new numbers.

        Raises: UnsupportedError: an operation that may refer to resources in another way.
        """
        code = self._program.bytecode
        strange = code.ops_named(lambda name: name.startswith(_HOLDERS))
        if len(strange):
            message = (
                f"operations: expected ones that refer to resources by constants, got {code.op_name(int(strange[0]))}"
            )
            raise UnsupportedError(message, file=self._asset.file)
        references = code.resource_references()
        first = self._firsts() if self._options.dedupe else {}
        used = {first.get(resource, resource) for resource in references.values()}
        kept = [
            number
            for number in range(len(self.emitter.resources))
            if number in used or (number not in first and not self._options.gc)
        ]
        places = {number: place for place, number in enumerate(kept)}
        for attribute, resource in references.items():
            place = places[first.get(resource, resource)]
            if place != resource:
                self.emitter.attributes[attribute] = varint(RESOURCE) + varint(place)
        self.emitter.resources = [self.emitter.resources[number] for number in kept]
        for number in first:
            self._actions.setdefault(number, []).append("deduplicate")

    def _firsts(self) -> dict[int, int]:
        """Return resource -> the first one with the same element type, shape and bytes; equality is that of bytes."""
        groups: dict[Any, list[int]] = {}
        found: dict[int, int] = {}
        for number, users in self._users.items():
            resource = self.emitter.resources[number]
            if not isinstance(resource.data, Span):
                continue
            kinds = frozenset(self._program.kind(tensor.row.op) for tensor in users)
            key = kinds, resource.alignment, resource.data.nbytes, hash(self._bytes(resource.data)[:4096].tobytes())
            for other in groups.setdefault(key, []):
                data = self.emitter.resources[other].data
                if isinstance(data, Span) and self._bytes(data) == self._bytes(resource.data):
                    found[number] = other
                    break
            else:
                groups[key].append(number)
        return found

    def _bytes(self, span: Span) -> memoryview:
        return memoryview(self._asset.mapping.check_size())[span.offset : span.offset + span.nbytes]

    def changes(self) -> list[TensorChange]:
        """Return a row for each tensor that is stored."""
        rows = []
        for name, tensor in self._asset.items():
            if tensor.op != "constant" or not self._is_plain(tensor):
                continue
            stored = self._program.stored(tensor.row.op)
            row = TensorChange(name, tensor.mil_dtype, stored.nbytes, self._asset.file, stored.offset)
            if stored.resource is not None:
                row.actions = list(self._actions[stored.resource])
                row.dtype_after = self._after.get(stored.resource, row.dtype)
                if "deduplicate" in row.actions:
                    row.nbytes_after = 0
                elif "cast" in row.actions:
                    row.nbytes_after = row.dtype_after.nbytes(tensor.size)
                    row.overflow, row.nan, row.underflow = self._counts[stored.resource]
            rows.append(row)
        return rows
