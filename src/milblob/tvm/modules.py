"""The contents of an open archive in the Model Library Format: modules, their graphs, memory and parameters."""

import datetime
import os
from typing import Any

from ..analysis.check_report import CheckReport
from ..arguments import as_path
from ..budget import Budget
from ..errors import FormatError
from ..formats.params import Parameters, parameters_in
from ..formats.params_codes import ARCHIVED, Codes, codes_of
from ..storage.mapped import Closable, closed_on_error
from .archive import METADATA, Archive
from .findings import Report
from .graph import ModuleGraph, parse_graph
from .layout import File, graph_names, module_of, parameters_name, role_of
from .metadata import FULL_MODEL, Memory, ModuleInfo, Target, parse_metadata


class Module:
    """One module of an archive.

    Attributes:
        info: its entry in metadata.json; the properties below are the same.

    Examples:
        >>> library = milblob.tvm.open("demo.tar")
        >>> module = library.modules["default"]
        >>> module.name, module.executors, module.style, list(module.params)
        ('default', ('graph',), 'full-model', ['p0'])
    """

    def __init__(self, library: "OpenLibrary", info: ModuleInfo) -> None:
        self.info = info
        self._library = library
        self._graph: ModuleGraph | None = None
        self._params: Parameters | None = None

    @property
    def name(self) -> str:
        """Under which the archive lists it."""
        return self.info.name

    @property
    def model_name(self) -> str:
        """As it is given; in every archive that TVM wrote the same as `name`."""
        return self.info.model_name

    @property
    def created(self) -> datetime.datetime | None:
        """When it was exported, in local time; None where that does not parse (`info.exported` has the text)."""
        return self.info.created

    @property
    def style(self) -> str:
        """Either "full-model" or "operator"."""
        return self.info.style

    @property
    def executors(self) -> tuple[str, ...]:
        """Names such as "graph" and "aot"; none in operator style."""
        return self.info.executors

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets that it was compiled for."""
        return self.info.targets

    @property
    def memory(self) -> Memory:
        """The memory for running it, as the exporter reports it."""
        return self.info.memory

    @property
    def dependencies(self) -> tuple[dict[str, Any], ...]:
        """The contents of "external_dependencies"."""
        return self.info.dependencies

    @property
    def graph(self) -> ModuleGraph | None:
        """The graph, read when first asked for; None where the archive has none (AOT, operator style).

        Raises:
            FormatError: it contradicts itself.
        """
        if self._graph is None:
            name = self.graph_file
            if name is not None:
                try:
                    self._graph = parse_graph(self._library.archive.read(name), self._library.archive.file_of(name))
                except FormatError as error:
                    error.where = error.where or name
                    raise
        return self._graph

    @property
    def graph_file(self) -> str | None:
        """Name of the file with the graph, None if there is none."""
        if "aot" in self.executors and "graph" not in self.executors:
            return None
        files = self._library.archive.files
        names = graph_names(self.info, self._library.version)
        if len(self._library.modules) > 1:  # a name without the module's could be anybody's
            names = names[:1]
        return next((name for name in names if name in files), None)

    @property
    def params_file(self) -> str | None:
        """Name of the file with the parameters; None if there is none, as in operator style."""
        name, files = parameters_name(self.info), self._library.archive.files
        if name in files:
            return name
        if len(self._library.modules) == 1:  # a file of another name can only be this module's
            found = [other for other in files if role_of(other) == "parameters" and other.endswith(".params")]
            return found[0] if len(found) == 1 else None
        return None

    @property
    def params(self) -> Parameters:
        """The parameters: name -> `Parameter`, not yet read. Empty where there are none, or where code has them (AOT).

        Raises:
            FormatError: the file is broken.
        """
        if self._params is None:
            name = self.params_file
            if name is None:
                return Parameters({}, lambda name, row: row)
            try:
                mapping, offset, nbytes = self._library.archive.place(name)
                budget = self._library.budget
                budget.add_file(mapping.name, mapping.nbytes, mapping.identity)
                self._params = parameters_in(mapping, offset, nbytes, self._library.codes, budget=budget)
            except FormatError as error:
                error.where = error.where if error.where.startswith(name) else f"{name}: {error.where}".rstrip(": ")
                raise
        return self._params

    def reload(self) -> None:
        """Forget the parameters: their file may be another one now."""
        self._params = None

    @property
    def files(self) -> tuple[File, ...]:
        """The files that belong to it."""
        return tuple(file for file in self._library.files if file.module == self.name)

    @property
    def storage(self) -> dict[int, tuple[int | None, int | None]]:
        """Storage id -> (bytes as reported, bytes as they follow from the graph); None where one of them lacks it."""
        reported = {row.storage_id: row.nbytes for row in self.memory.storage_ids or ()}
        graph = self.graph
        real = graph.storage if graph is not None else {}
        return {sid: (reported.get(sid), real.get(sid)) for sid in sorted({*reported, *real})}

    def __repr__(self) -> str:
        return f"<Module {self.name!r}: {self.style}, {'/'.join(self.executors) or 'no executor'}>"


class OpenLibrary(Closable):
    """An open Model Library Format archive. A context manager.

    Closing ends reading; arrays that were read remain valid.

    Attributes:
        path: as given; None for a buffer.
        version: 1 to 7.
        modules: name -> Module.
        codes: the meaning of its numbers for dtypes.
        archive: its files.
        budget: of the values of parameters.
    """

    def __init__(self, source: Any, *, tvm: str | None = None, max_nbytes: int | None = None) -> None:
        """See `open`."""
        self.path = as_path(source) if isinstance(source, str | os.PathLike) else None
        self.codes: Codes = codes_of(tvm, ARCHIVED)
        self.budget = Budget(max_nbytes, self.path)
        self._max_nbytes = max_nbytes
        report = Report(self.path)
        self.archive = Archive(source, report, max_nbytes)
        with closed_on_error(self.archive):
            _, offset, _ = self.archive.place(METADATA)
            info = parse_metadata(self.archive.read(METADATA), report, offset, self.archive.file_of(METADATA))
        if info is None:  # a report that raises does not come here
            raise FormatError("metadata.json: expected an object, got none", file=self.path)
        self.version = info.version
        self.info = info
        self.modules: dict[str, Module] = {name: Module(self, module) for name, module in info.modules.items()}

    @property
    def kind(self) -> str:
        """Either "tar", "tar.gz" or "directory"."""
        return self.archive.kind

    @property
    def style(self) -> str:
        """Either "full-model" or "operator"."""
        return next((module.style for module in self.modules.values()), FULL_MODEL)

    @property
    def created(self) -> datetime.datetime | None:
        """When it was exported, in local time: of the first module."""
        return next((module.created for module in self.modules.values()), None)

    @property
    def files(self) -> tuple[File, ...]:
        """Every plain file of the archive, with its role."""
        rows = []
        for name, member in self.archive.files.items():
            if member.kind == "file":
                role = role_of(name)
                rows.append(File(name, role, module_of(name, role, self.modules), member.nbytes, member.offset))
        return tuple(rows)

    def read_file(self, name: str) -> memoryview:
        """Return the bytes of a file of the archive, by its name without "./": a read-only view.

        Raises:
            FormatError: it is missing, occurs twice, or is a link.
        """
        return self.archive.read(name.removeprefix("./"))

    def validate(self) -> CheckReport:
        """Check the archive and everything in it that milblob knows, and report every problem in one pass.

        Returns:
            CheckReport: a sequence of Finding, whose `where` names the member, `offset` the byte in `file` (of a
            .tar.gz: in the tar that it holds). docs/tvm.md lists the codes. If it is sound, it is as TVM wrote it.
        """
        from .check import check_archive

        if self.path is None:
            return check_archive(memoryview(self.archive.mapping.live()), self.codes)
        return check_archive(self.path, self.codes, max_nbytes=self._max_nbytes)

    def close(self) -> None:
        """Release all files."""
        self.archive.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} version {self.version}, {self.kind}: {', '.join(self.modules)}>"
