"""A model as a mapping from names to tensors, and milblob.load."""

import os
from collections import Counter
from collections.abc import Container, ItemsView, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Mapping as MappingABC
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Never

from .. import _codec
from ..arguments import require_flags
from ..closeness import unknown
from ..errors import MilblobError, UnsupportedError
from ..mirrored import shown
from ..shown import MAX_FIRST, Shown, short
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import Opened
from ..wording import some
from .manifest import read_json
from .open_program import OpenProgram
from .package import Package
from .program_places import decoder
from .tensor import Tensor
from .tensors import ProgramTensors, RecordTensors, Tensors

if TYPE_CHECKING:
    from ..program.view import Function, Operation
    from ..selection import Select
    from .metadata import Metadata
    from .model_view import ModelView
    from .rows import Rows

_MAX_TAILS = 32  # prefixes that may be left out of a name; a limit for hostile names with a million slashes


class Functions(Mapping[str, "Function"]):
    """The functions of a model, in Program order: a mapping from their names. Each is made on access."""

    def __init__(self, programs: Sequence[OpenProgram], where: str = "the model") -> None:
        self._programs, self._where = programs, where
        self._names = {
            program.prefix + name: program for program in programs for name, _, _ in program.scan.table.functions
        }

    def __getitem__(self, name: str) -> "Function":
        """Return the function of a name.

        Raises: KeyError: no function has that name. ValueError: the model is closed. As opening the model.
        """
        program = self._names.get(name)
        if program is None:
            raise KeyError(unknown("function", name, self, self._where))
        return program.view.functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<Functions: {some(self)}>"


class Model(Shown, Opened, MappingABC[str, Tensor]):
    """An open model: a mapping from names to `Tensor`. Made by `milblob.open`.

    Attributes:
        path: as given; None for a buffer.
        kind: "mlpackage", "mlmodelc", "mlmodel", "mil", "listing" (of a weight file) or "blob".
        functions: names of all functions, prefixed in a pipeline; indexed by a name, the `Function`.

    A name without its function or model prefix is accepted if only one tensor has it. Several threads may read. Closing
    ends reading; arrays that were read remain valid.

    Examples:
        >>> model = milblob.open("demo.mlpackage")
        >>> model
        <Model demo.mlpackage (mlpackage): 69 tensors>
        >>> model["head_weight"], model.metadata.opset
        (<Tensor 'head_weight': float32 [96, 48]>, 'CoreML7')
        >>> model.close()
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
            self.package = Package(source, is_mapped=mmap, max_nbytes=max_nbytes)
        self.path: str | None = self.package.path and shown(self.package.path)
        self.kind: str = self.package.kind
        self.tensors = Tensors()
        self._short: dict[str, list[str]] | None = None
        self._metadata: Metadata | None = None
        self._messages: dict[str, Any] | None = None
        self.parts: list[OpenProgram] = []
        try:
            for source in self.package.sources:
                self.parts.append(program := OpenProgram(self.package, source, constants, decoder))
                self.tensors.add(ProgramTensors(program, stored))
            if self.package.blobs is not None:
                self.tensors.add(RecordTensors(self.package, self.package.blobs))
        except BaseException:
            self.close()
            raise

    @property
    def view(self) -> tuple[bool, bool]:
        """Which tensors it lists: `constants` and `stored`, as for `open`."""
        return self._constants, self._stored_view

    # ---------------------------------------------------------------------------------------------------------- mapping

    def __getitem__(self, name: str) -> Tensor:
        found = self.lookup(name)
        if found is None:
            raise KeyError(self.unknown(name))
        return found

    def __setitem__(self, name: Never, values: Any) -> None:
        """Refuse: only an EditableModel takes values. Raises: TypeError."""
        message = 'was opened to read; milblob.open(path, "r+") opens a model whose weights can be assigned'
        raise TypeError(f"{self.path or 'the model'} {message}")

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
            from ..closeness import ambiguous

            raise KeyError(ambiguous(name, candidates))
        return self.tensors[candidates[0]] if candidates else None

    def unknown(self, name: object) -> str:
        """Return the message about an unknown tensor name, with similar names; for milblob's own modules."""
        where = self.path or "the model"
        if self.package.blobs is not None:
            end = f"it has #0 to #{len(self) - 1}" if len(self) else "it has none"
            return f"{where} has no tensor {name!r:.200} ({end})"
        from ..closeness import unknown

        return unknown("tensor", name, self.tensors, where)

    def get(self, name: Any, default: Any = None) -> Any:  # the inherited one would make the message each time
        """Return the tensor of a name, or `default`."""
        if name not in self:
            return default
        return self[name]

    def _by_short_name(self) -> dict[str, list[str]]:
        """Map every tail of a prefixed name: "model0/main/w" can also be looked up as "main/w" and "w"."""
        if self._short is None:
            short: dict[str, list[str]] = {}
            for name in self.tensors if self.tensors.has_short_names else ():
                for tail in tails_of(name):
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
        """Return a view of the tensors; each is made on access."""
        return _Values(self)

    def items(self) -> ItemsView[str, Tensor]:
        """Return a view of the names with their tensors; each is made on access."""
        return _Items(self)

    def unlisted(self) -> dict[str, Tensor]:
        """Every constant left out of this listing (small ones, bools, strings); searched for at each call."""
        return self.tensors.unlisted()

    def rows(self, names: Container[str] | None = None) -> "Rows":
        """Return the tensors of these names as rows of a listing; None: all; for milblob's own modules."""
        from .rows import Rows

        return Rows(self.tensors.tables, names)

    # ------------------------------------------------------------------------------------------------- the model itself

    @property
    def functions(self) -> Functions:
        """A mapping from names, "model0/main" in a pipeline, to the `Function`s, in Program order."""
        return Functions(self.parts, self.path or "the model")

    @property
    def views(self) -> tuple["ModelView", ...]:
        """Every Program as a view, in the order of the models of a pipeline; made on first use, and always the same.

        Raises:
            ValueError: the model is closed. FormatError: the Program is malformed where no constant is.
        """
        self.package.require_open()
        return tuple(part.view for part in self.parts)

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
        if len(self.parts) != 1:
            what = f"a pipeline of {len(self.parts)}; see Model.programs" if self.parts else "a weight file"
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
            for part in self.parts:
                offset, nbytes = part.scan.span
                part.mapping.check_size()
                data = memoryview(part.scan.buffer)[offset : offset + nbytes]
                messages[part.prefix] = schema.parse("Program", data, file=part.mapping.name)
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

        opsets = {part.prefix + name: opset for part in self.parts for name, opset, _ in part.scan.table.functions}
        if not self.parts:
            return Metadata()
        opset: Any = opsets if len(opsets) > 1 else next(iter(opsets.values()), "")
        build_info = read_build_info(build) if (build := self._build_info()) is not None else None
        if not self.parts[0].is_text:
            spec_version, description = self.package.describe()
            return Metadata.from_model(description, spec_version, opset=opset, build_info=build_info)
        document = None
        if (
            self.kind == "mlmodelc"
            and (path := self.package.path) is not None
            and paths.is_there(os.path.join(path, "metadata.json"))
        ):
            document = read_json(Location(path).beneath("metadata.json"))
        if document is not None or len(opsets) != 1:
            return Metadata.from_metadata_json(document, opset=opset, build_info=build_info)
        function = next(iter(self.program.functions.values()))
        return Metadata.from_function(function.inputs, opset=opset, build_info=build_info)

    def _build_info(self) -> Any:
        """The first Program's buildInfo attribute as a Value message, without parsing the Program."""
        from ..program import schema

        scan = self.parts[0].scan
        self.parts[0].mapping.check_size()
        for number, wire, _, offset, nbytes in _codec.wire_fields(scan.buffer, *scan.span):
            if number == 4 and wire == 2:
                pair = dict.fromkeys((1, 2), (offset, 0))
                pair.update(
                    {n: (o, size) for n, w, _, o, size in _codec.wire_fields(scan.buffer, offset, nbytes) if w == 2}
                )
                view = memoryview(scan.buffer)
                if bytes(view[pair[1][0] : sum(pair[1])]) == b"buildInfo":
                    return schema.parse("Value", view[pair[2][0] : sum(pair[2])], file=scan.buffer.name)
        return None

    def close(self) -> None:
        """Close every file. Arrays that were read remain valid; a mapping is released with the last of them."""
        self.package.closed = True  # before the bytes go: other threads read that the model is closed, and nothing else
        for part in self.parts:
            part.release()
        self.package.close()
        self.release()

    def __repr__(self) -> str:
        state = "closed" if self.package.closed else f"{len(self)} tensors"
        return f"<Model {self.path or 'buffer'} ({self.kind}): {state}>"

    def _texts(self) -> list[tuple[str, str]]:
        texts = [("path", short(self.path or "buffer")), ("kind", self.kind)]
        if self.package.closed:
            return [*texts, ("state", "closed")]
        try:
            listed = self.rows().listed
        except (MilblobError, OSError) as error:
            return [*texts, ("error", short(str(error)))]
        dtypes = Counter(row.dtype for row in listed)
        largest = nlargest(MAX_FIRST, listed, key=lambda row: row.nbytes or 0)
        return [
            *texts,
            ("tensors", f"{len(listed):,}"),
            ("stored bytes", f"{sum(row.nbytes or 0 for row in listed):,}"),
            ("dtypes", ", ".join(f"{count:,} {dtype}" for dtype, count in dtypes.most_common())),
            *[(f"largest {at}", f"{short(row.name)}: {row.summary}") for at, row in enumerate(largest, 1)],
        ]


def tails_of(name: str) -> Iterator[str]:
    """Yield what is left of a name without its first parts: "main/w" and "w" of "model0/main/w"."""
    for _ in range(min(name.count("/"), _MAX_TAILS)):
        name = name.partition("/")[2]
        yield name


class _Values(ValuesView[Tensor]):
    """Goes through the tensors without a look at their names."""

    _mapping: Model

    def __iter__(self) -> Iterator[Tensor]:
        return self._mapping.tensors.made()


class _Items(ItemsView[str, Tensor]):
    """Iterates over the tensors, which hold their names."""

    _mapping: Model

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((tensor.name, tensor) for tensor in self._mapping.tensors.made())
