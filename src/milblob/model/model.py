"""A model as a mapping from names to tensors, and milblob.load."""

import os
from collections.abc import Container, ItemsView, Iterator, Sequence, ValuesView
from collections.abc import Mapping as MappingABC
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from .. import _codec
from ..arguments import require_flags
from ..blobs.reader import BlobReader
from ..dtypes import BY_BLOB_CODE
from ..errors import MilblobError, UnsupportedError
from ..program.scan import Program
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import Opened
from ..values.tensorvalue import MAX_RANK
from .manifest import read_json
from .package import Package, Source
from .recovery import open_package
from .tensor import Tensor, make_tensor
from .tensors import ProgramTensors, Tensors

if TYPE_CHECKING:
    from ..program.view import Operation, ProgramView
    from ..selection import Select
    from .functions import Functions
    from .metadata import Metadata
    from .rows import Rows

_MAX_TAILS = 32  # prefixes that may be left out of a name; a limit for hostile names with a million slashes


class Model(Opened, MappingABC[str, Tensor]):
    """An open model: a mapping from names to `Tensor`. Made by `milblob.open`.

    Attributes:
        path: as given; None for a buffer.
        kind: "mlpackage", "mlmodelc", "mlmodel", "mil", "listing" (of a weight file) or "blob".
        functions: names of all functions, prefixed in a pipeline; indexed by a name, the `Function`.

    A name without its function or model prefix is accepted if only one tensor has it. Several threads may read. Closing
    ends reading; arrays that were read stay valid.
    """

    def __init__(
        self,
        source: Any,
        *,
        constants: bool = False,
        stored: bool = False,
        mmap: bool = True,
        max_nbytes: int | None = None,
    ) -> None:
        require_flags(constants=constants, stored=stored, mmap=mmap)
        self._constants = constants
        self._stored_view = stored
        if isinstance(source, Package):  # open already, for milblob's own modules
            self.package = source
        else:
            self.package = open_package(source, is_mapped=mmap, max_nbytes=max_nbytes)
        self.path = self.package.path
        self.kind = self.package.kind
        self.tensors: MappingABC[str, Tensor]
        self.tensors = tensors = Tensors()
        self._short: dict[str, list[str]] | None = None
        self._metadata: Metadata | None = None
        self._messages: dict[str, Any] | None = None
        self.scans: list[tuple[Source, Program]] = []
        try:
            for part in self.package.sources:
                buffer, offset, nbytes = part.program
                part.mapping.expect_random(True)
                program = Program(buffer, (offset, nbytes), part.prefix, constants, part.is_text)
                part.mapping.expect_random(False)
                held = part._replace(program=(_codec.Buffer(b""), 0, 0))  # from now on only the Program holds its bytes
                self.scans.append((held, program))
                tensors.add(ProgramTensors(self.package, held, program, stored))
            if self.package.blobs is not None:
                self.tensors = _Records(self.package, self.package.blobs)
        except BaseException:
            self.close()
            raise

    # ---------------------------------------------------------------------------------------------------------- mapping

    def __getitem__(self, name: str) -> Tensor:
        found = self.lookup(name)
        if found is None:
            raise KeyError(self.unknown(name))
        return found

    def lookup(self, name: str) -> Tensor | None:
        """Return the tensor of a name, or None; for milblob's own modules.

        Raises:
            KeyError: several could be meant.
        """
        found = self.tensors.get(name)
        if found is not None:
            return found
        candidates = self._by_short_name().get(name, [])
        if len(candidates) > 1:
            raise KeyError(f"tensor: expected one of {', '.join(candidates[:8])}, got the ambiguous {name!r}")
        return self.tensors[candidates[0]] if candidates else None

    def unknown(self, name: object) -> str:
        """Return the message about a name that no tensor has: which are like it; for milblob's own modules."""
        where = self.path or "the model"
        if isinstance(self.tensors, _Records):
            end = f"#0 to #{len(self) - 1}" if len(self) else "none, in a file without records"
            return f"tensor: expected {end} in {where}, got {name!r:.200}"
        from ..closeness import hint

        end = hint(name, self.tensors) if isinstance(name, str) else ""
        return f"tensor: expected a name in {where}, got {name!r:.200}{end}"

    def get(self, name: Any, default: Any = None) -> Any:  # the inherited one would make the message each time
        """Return the tensor of a name, or `default`."""
        if name not in self:
            return default
        return self[name]

    def _by_short_name(self) -> dict[str, list[str]]:
        """Map every tail of a prefixed name: "model0/main/w" can also be looked up as "main/w" and "w"."""
        if self._short is None:
            short: dict[str, list[str]] = {}
            for name in self.tensors if not isinstance(self.tensors, Tensors) or self.tensors.has_short_names else ():
                tail = name
                for _ in range(min(name.count("/"), _MAX_TAILS)):
                    tail = tail.partition("/")[2]
                    short.setdefault(tail, []).append(name)
            self._short = short
        return self._short

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __contains__(self, name: object) -> bool:
        if name in self.tensors:
            return True
        return isinstance(name, str) and len(self._by_short_name().get(name, ())) == 1

    def values(self) -> ValuesView[Tensor]:
        """Return a view of the tensors, each made when it is asked for."""
        return _Values(self)

    def sparse_outputs(self) -> Iterator[Tensor]:
        """Yield the masks and values that operations on sparse weights compute; for milblob's own modules.

        They are parts of weights, so that the model does not list them.
        """
        return self.tensors.sparse() if isinstance(self.tensors, Tensors) else iter(())

    def items(self) -> ItemsView[str, Tensor]:
        """Return a view of the names with their tensors, each made when it is asked for."""
        return _Items(self)

    def made(self) -> Iterator[Tensor]:
        """Yield every tensor, in order; for milblob's own modules."""
        return self.tensors.made() if isinstance(self.tensors, Tensors) else iter(self.tensors.values())

    def unlisted(self) -> dict[str, Tensor]:
        """Every constant left out of this listing (small ones, bools, strings); searched for at each call."""
        found: dict[str, Tensor] = {}
        if not self.scans:
            return found
        known = {tensor.constant.value for tensor in self.values() if tensor.constant is not None}
        for source, program in self.scans:
            self.package.require_open()
            source.mapping.check_size()
            here = known | {part.value for group in program.groups for part in group.stored()}
            every = program.scan_again(_codec.SCAN_ALL)
            program.add_defined(every.ops)
            rows = [c for c in every.constants if c.storage != _codec.NAME and c.value not in here]
            names = program.names(rows)
            for number, row in enumerate(rows, len(program.scan)):
                name = names[number]
                found[name] = make_tensor(self.package, source, program, name, row)
        return found

    def rows(self, names: Container[str] | None = None) -> "Rows":
        """Return the tensors of these names as rows of a listing; None: all; for milblob's own modules."""
        from .rows import Rows

        tables = self.tensors.tables if isinstance(self.tensors, Tensors) else [cast(_Records, self.tensors)]
        return Rows(tables, names)

    # ------------------------------------------------------------------------------------------------- the model itself

    @property
    def functions(self) -> "Functions":
        """Names of all functions, in Program order; "model0/main" in a pipeline. Indexed by a name, the `Function`."""
        from .functions import Functions

        return Functions(
            self, (part.prefix + name for part, program in self.scans for name, _, _ in program.scan.functions)
        )

    @property
    def views(self) -> tuple["ProgramView", ...]:
        """Every Program as a view, in the order of the models of a pipeline; made on first use, and always the same.

        Raises:
            ValueError: the model is closed. FormatError: the Program is malformed where no constant is.
        """
        from .functions import view_of

        self.package.require_open()
        return tuple(view_of(self.package, source, program) for source, program in self.scans)

    def find(self, select: "Select" = None, *, type: "Select" = None) -> list["Operation"]:
        """Return the operations of all functions whose name and type are selected, in Program order.

        Args:
            select: of names, as a glob, several or a predicate. type: of types, such as "conv" or "constexpr_*".

        Raises:
            As `views`.
        """
        return [operation for view in self.views for operation in view.find(select, type=type)]

    @property
    def program(self) -> Any:
        """The Program as a protobuf message, parsed on first use; always the same object.

        You may change it; the file and this model's tensors do not follow.

        Raises:
            UnsupportedError: a bare weight file, a pipeline (see `programs`), or more than protobuf's 2 GiB.
        """
        if len(self.scans) != 1:
            what = f"a pipeline of {len(self.scans)}; see Model.programs" if self.scans else "a weight file"
            raise UnsupportedError(f"program: expected a model with one Program, got {what}", file=self.path)
        return next(iter(self.programs.values()))

    @property
    def programs(self) -> dict[str, Any]:
        """Every Program as a protobuf message, by prefix: "" for the only one, "model0/" in a pipeline.

        Parsed on first use; always the same objects.
        """
        if self._messages is None:
            from ..program import schema

            self.package.require_open()
            messages = {}
            for source, program in self.scans:
                offset, nbytes = program.span
                source.mapping.check_size()
                data = memoryview(program.buffer)[offset : offset + nbytes]
                messages[source.prefix] = schema.parse("Program", data, file=source.mapping.name)
            self._messages = messages
        return self._messages

    @property
    def metadata(self) -> "Metadata":
        """Author, description, inputs and outputs with types, specification version, opset, producer.

        Of a pipeline: its own inputs and outputs. Of a weight file: empty.
        """
        if self._metadata is None:
            self.package.require_open()
            self._metadata = self._read_metadata()
        return self._metadata

    def _read_metadata(self) -> "Metadata":
        from .metadata import Metadata, read_build_info

        opsets = {
            source.prefix + name: opset for source, program in self.scans for name, opset, _ in program.scan.functions
        }
        if not self.scans:
            return Metadata()
        source, _ = self.scans[0]
        opset: Any = opsets if len(opsets) > 1 else next(iter(opsets.values()), "")
        build_info = read_build_info(build) if (build := self._build_info()) is not None else None
        if not source.is_text:
            spec_version, description = self.package.describe()
            return Metadata.from_model(description, spec_version, opset=opset, build_info=build_info)
        document = None
        if (
            self.kind == "mlmodelc"
            and self.path is not None
            and paths.is_there(os.path.join(self.path, "metadata.json"))
        ):
            document = read_json(Location(self.path).beneath("metadata.json"))
        if document is not None or len(opsets) != 1:
            return Metadata.from_metadata_json(document, opset=opset, build_info=build_info)
        function = next(iter(self.program.functions.values()))
        return Metadata.from_function(function.inputs, opset=opset, build_info=build_info)

    def _build_info(self) -> Any:
        """The first Program's buildInfo attribute as a Value message, without parsing the Program."""
        from ..program import schema

        source, program = self.scans[0]
        source.mapping.check_size()
        for number, wire, _, offset, nbytes in _codec.wire_fields(program.buffer, *program.span):
            if number == 4 and wire == 2:
                pair = dict.fromkeys((1, 2), (offset, 0))
                pair.update(
                    {n: (o, size) for n, w, _, o, size in _codec.wire_fields(program.buffer, offset, nbytes) if w == 2}
                )
                view = memoryview(program.buffer)
                if bytes(view[pair[1][0] : sum(pair[1])]) == b"buildInfo":
                    return schema.parse("Value", view[pair[2][0] : sum(pair[2])], file=program.buffer.name)
        return None

    def close(self) -> None:
        """Close every file. Arrays that were read stay valid; a mapping is released with the last of them."""
        for _, program in self.scans:
            program.release()
        self.package.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.package.closed else f"{len(self)} tensors"
        return f"<Model {self.path or 'buffer'} ({self.kind}): {state}>"


class _Values(ValuesView[Tensor]):
    """Goes through the tensors without a look at their names."""

    _mapping: Model

    def __iter__(self) -> Iterator[Tensor]:
        return self._mapping.made()


class _Items(ItemsView[str, Tensor]):
    """Goes through the tensors, which know their names."""

    _mapping: Model

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((tensor.name, tensor) for tensor in self._mapping.made())


class _Records(MappingABC[str, Tensor]):
    """The records of a bare blob file as tensors `#0`, `#1`, ...; created on demand, since there may be very many."""

    def __init__(self, package: Package, blobs: BlobReader) -> None:
        self.package = package
        self._index = blobs.index

    def __getitem__(self, name: str) -> Tensor:
        digits = name[1:] if isinstance(name, str) and name[:1] == "#" else ""
        # Accept only the canonical spelling: no "#007", no "#+7", no digits of other scripts.
        if not (
            digits.isascii() and digits.isdigit() and str(int(digits[:20])) == digits and int(digits) < len(self._index)
        ):
            raise KeyError(name)
        row = self._index[int(digits)]
        dtype = BY_BLOB_CODE[int(row["blob_code"])]
        return Tensor(self.package, name, dtype, (int(row["count"]),), offset=int(row["offset"]))

    @property
    def numbers(self) -> Sequence[int]:
        """See `rows.Table`."""
        return range(len(self._index))

    def columns(self, numbers: Sequence[int]) -> tuple[list[str], list[Any], list[int | None]]:
        """See `rows.Table`."""
        found = self._index[np.asarray(numbers, np.intp)]
        kinds = zip(found["blob_code"].tolist(), found["count"].tolist(), strict=True)
        return [f"#{number}" for number in numbers], list(kinds), found["offset"].tolist()

    def tensor(self, number: int) -> Tensor:
        """See `rows.Table`."""
        return self[f"#{number}"]

    def parts_of(self, number: int) -> None:
        """See `rows.Table`."""

    def __iter__(self) -> Iterator[str]:
        return (f"#{number}" for number in range(len(self._index)))

    def __len__(self) -> int:
        return len(self._index)


def read_all(model: Model) -> dict[str, np.ndarray[Any, Any]]:
    """Read every tensor of an open model. Records are looked up file by file, in one C call each."""
    result: dict[str, Any] = dict.fromkeys(model)  # keeps Program order while files are read one after another
    by_file: dict[int, tuple[BlobReader, list[Tensor]]] = {}
    readers: dict[tuple[int, str], BlobReader] = {}
    for name, tensor in model.items():
        constant = tensor.constant
        if constant is None or constant.storage != _codec.BLOB or tensor.source is None:
            result[name] = tensor.read()
            continue
        key = (id(tensor.source), constant.text)
        reader = readers.get(key)
        if reader is None:
            try:
                reader = readers[key] = model.package.reader(tensor.source, constant.text)
            except MilblobError as error:
                error.where = error.where or tensor.where
                raise
        by_file.setdefault(id(reader), (reader, []))[1].append(tensor)
    for reader, tensors in by_file.values():
        _read_blobs(reader, tensors, result)
    return result


def _read_blobs(reader: BlobReader, tensors: list[Tensor], result: dict[str, Any]) -> None:
    view = memoryview(reader.mapping.check_size())
    records, good, error = reader.records_at([cast(int, t.offset) for t in tensors])
    if error is not None:
        error.where = tensors[good].where
        raise error
    starts, counts, codes = (records[name].tolist() for name in ("data_offset", "count", "blob_code"))
    for tensor, start, count, code in zip(tensors, starts, counts, codes, strict=True):
        dtype = tensor.mil_dtype
        # The common case costs one comparison: the record matches what the Program declares. NumPy accepts any shape
        # with as many elements as a file can hold, unless it is empty or has too many dimensions.
        if (
            code == dtype.blob_code
            and 0 < count == tensor.constant.count
            and dtype.nbits >= 8
            and tensor.ndim <= MAX_RANK
        ):
            result[tensor.name] = np.ndarray(tensor.declared_shape, dtype.numpy, view, start)  # type: ignore[arg-type]
        else:
            result[tensor.name] = tensor.read()
