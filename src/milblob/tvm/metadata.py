"""metadata.json of a Model Library Format archive, versions 1 to 7, and the forms that were never more than a draft."""

import datetime
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..errors import FormatError, UnsupportedError
from ..jsontext import as_shape, parse_json
from .findings import Report

VERSIONS = range(1, 8)
FULL_MODEL, OPERATOR = "full-model", "operator"
_STYLE_SINCE, _EXECUTORS_SINCE, _LIST_SINCE, _MODULES_SINCE, _FUNCTIONS_SINCE = 4, 5, 6, 7, 2
_EXECUTORS = ("graph", "aot")
_DATE = "%Y-%m-%d %H:%M:%SZ"
_WHERE = "metadata.json"


class Target(NamedTuple):
    """The target that a module was compiled for.

    Attributes:
        text: TVM's description of it, such as "c -keys=cpu".
        device: DLPack's number of the device type, if the archive states it (up to version 5).
    """

    text: str
    device: int | None = None


class StorageId(NamedTuple):
    """One storage id, as the exporter reports it.

    Its size is wrong wherever storage is used again, in every version of TVM: see `ModuleGraph.storage` for what
    follows from the graph.
    """

    storage_id: int
    nbytes: int
    input_binding: str | None = None


class PortMemory(NamedTuple):
    """An input or an output: the bytes it takes, and TVM's name of its dtype."""

    nbytes: int
    dtype: str


class MainMemory(NamedTuple):
    """The memory for running the whole model on one device (DLPack's number), in bytes.

    Attributes:
        inputs, outputs: name -> PortMemory; None where the writer was older than TVM 0.11.
    """

    device: int
    workspace_nbytes: int
    constants_nbytes: int
    io_nbytes: int
    inputs: dict[str, PortMemory] | None = None
    outputs: dict[str, PortMemory] | None = None


class Workspace(NamedTuple):
    """Bytes of temporary memory on one device (DLPack's number)."""

    device: int
    nbytes: int


class FunctionMemory(NamedTuple):
    """The memory for one operator function."""

    name: str
    workspaces: tuple[Workspace, ...]


class OperatorBuffer(NamedTuple):
    """One argument of a function in an operator-style archive."""

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    input_binding: str | None


class Memory(NamedTuple):
    """The memory that an archive states.

    Attributes:
        storage_ids: as reported; None where the archive has no such list (AOT, operator style).
        main: one row per device; empty in version 1 and in operator style.
        functions: of the operator functions.
        operators: operator style only: function -> its arguments.
    """

    storage_ids: tuple[StorageId, ...] | None = None
    main: tuple[MainMemory, ...] = ()
    functions: tuple[FunctionMemory, ...] = ()
    operators: Mapping[str, tuple[OperatorBuffer, ...]] = MappingProxyType({})


class ModuleInfo(NamedTuple):
    """The entry of one module in metadata.json.

    Attributes:
        name: under which the archive lists it; up to version 6 its `model_name`.
        model_name: as it is given.
        exported: "export_datetime" as it is given, or "". It is local time, though it ends in Z.
        created: the same as a datetime without a zone; None where it does not parse.
        executors: "graph", "aot"; empty in operator style.
        style: "full-model" or "operator".
        dependencies: "external_dependencies" as they are.
    """

    name: str
    model_name: str
    exported: str
    created: datetime.datetime | None
    executors: tuple[str, ...]
    style: str
    targets: tuple[Target, ...]
    memory: Memory
    dependencies: tuple[dict[str, Any], ...]


class ArchiveInfo(NamedTuple):
    """The contents of metadata.json."""

    version: int
    modules: dict[str, ModuleInfo]


def parse_metadata(data: memoryview, report: Report, offset: int, file: str | None) -> ArchiveInfo | None:
    """Read metadata.json.

    Returns: ArchiveInfo; None if `report` gathers and there is nothing to be had.
    Raises: FormatError: no JSON object; a key of the wrong shape, or one without which nothing can be found. What is
    missing otherwise is empty. UnsupportedError: a version that never was.
    """
    return _Parser(report, offset, file).parse(data)


class _Parser:
    def __init__(self, report: Report, offset: int, file: str | None) -> None:
        self._report, self._offset, self._file = report, offset, file

    def _note(self, severity: Any, code: str, message: str) -> None:
        self._report.note(severity, code, message, _WHERE, self._offset, self._file)

    def _refuse(self, message: str, code: str = "metadata") -> None:
        self._report.refuse(code, message, _WHERE, self._offset, self._file)

    def parse(self, data: memoryview) -> ArchiveInfo | None:
        document = self._document(data)
        if not isinstance(document, dict):
            if document is not None:
                self._refuse(f"metadata.json: expected an object, got {type(document).__name__}")
            return None
        version = document.get("version")
        if type(version) is not int:
            self._refuse(f"version: expected a number of metadata.json, got {version!r:.100}", "version")
            version = _MODULES_SINCE if "modules" in document else _LIST_SINCE
        elif version not in VERSIONS:
            message = f"version: expected 1 to 7, got {version!s:.40}"
            self._report.refuse("version", message, _WHERE, self._offset, self._file, UnsupportedError)
            version = _MODULES_SINCE if "modules" in document else _LIST_SINCE
        modules = document.get("modules")
        if modules is None:
            if version >= _MODULES_SINCE and document.get("style") != OPERATOR:
                self._missing("modules")
            module = self._module(document, version, None)
            return ArchiveInfo(version, {module.name: module})
        if version < _MODULES_SINCE:
            self._note("note", "form", f"modules: expected none in version {version}, got some, as in version 7")
        if not isinstance(modules, dict) or not all(isinstance(module, dict) for module in modules.values()):
            self._refuse("modules: expected an object of objects, got something else")
            return ArchiveInfo(version, {})
        if not modules:
            self._note("error", "metadata", "modules: expected at least one, got none")
        return ArchiveInfo(version, {name: self._module(module, version, name) for name, module in modules.items()})

    def _document(self, data: memoryview) -> Any:
        try:
            return parse_json(data, "metadata.json", self._file, unique=True)
        except FormatError as error:
            error.offset = self._offset + (error.offset or 0)
            twice = "every key once" in error.what
            self._report.error("module-twice" if twice else "metadata", error, _WHERE)
            if not twice:
                return None
        return parse_json(data, "metadata.json", self._file)

    # ------------------------------------------------------------------------------------------------------ one module

    def _missing(self, key: str, name: str | None = None) -> None:
        of = f" of module {name!r:.100}" if name is not None else ""
        self._note("error", "metadata", f"key {key}{of}: expected it, got none")

    def _get(self, module: dict[str, Any], key: str, kind: type | tuple[type, ...], message: str, default: Any) -> Any:
        """Return a value; the default if it is not there or, where problems are gathered, no `kind`."""
        value = module.get(key, default)
        if value is default or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        self._refuse(f"{key}: expected {message}, got {value!r:.100}")
        return default

    def _module(self, module: dict[str, Any], version: int, name: str | None) -> ModuleInfo:
        model_name = self._get(module, "model_name", str, "a string", None)
        if model_name is None:
            self._missing("model_name", name)
            model_name = name if name is not None else "default"
        style = self._style(module, version, name)
        return ModuleInfo(
            model_name if name is None else name,
            model_name,
            *self._date(module, name),
            self._executors(module, version, name, style),
            style,
            self._targets(module, version, name),
            self._memory(module, version, name, style),
            self._dependencies(module),
        )

    def _style(self, module: dict[str, Any], version: int, name: str | None) -> str:
        style = self._get(module, "style", str, "a string", None)
        if style is None:
            if version >= _STYLE_SINCE:
                self._missing("style", name)
            return FULL_MODEL
        if style not in (FULL_MODEL, OPERATOR):
            self._refuse(f"style: expected {FULL_MODEL} or {OPERATOR}, got {style!r:.100}")
        return str(style)

    def _date(self, module: dict[str, Any], name: str | None) -> tuple[str, datetime.datetime | None]:
        text = self._get(module, "export_datetime", str, "a string", None)
        if text is None:
            self._missing("export_datetime", name)
            return "", None
        try:
            return text, datetime.datetime.strptime(text, _DATE)
        except ValueError:
            self._note("warning", "date", f"export_datetime: expected YYYY-MM-DD HH:MM:SSZ, got {text!r:.100}")
            return text, None

    def _executors(self, module: dict[str, Any], version: int, name: str | None, style: str) -> tuple[str, ...]:
        wanted, other = ("executors", "runtimes") if version >= _EXECUTORS_SINCE else ("runtimes", "executors")
        key = wanted if wanted in module or other not in module else other
        if key == other:
            self._note("note", "form", f"{wanted}: expected by that name in version {version}, got {other}")
        found = self._get(module, key, list, "a list", None)
        if found is None:
            self._missing(wanted, name)
            return ()
        if not all(isinstance(executor, str) for executor in found):
            self._refuse(f"{key}: expected a list of strings, got {found!r:.100}")
            return ()
        for executor in found:
            if executor not in _EXECUTORS:
                self._note("warning", "metadata", f"{key}: expected graph or aot, got {executor!r:.100}")
        if not found and style == FULL_MODEL:
            self._note("error", "metadata", f"{key}: expected graph or aot in a full model, got none")
        return tuple(found)

    def _targets(self, module: dict[str, Any], version: int, name: str | None) -> tuple[Target, ...]:
        found = self._get(module, "target", (list, dict), "a list or an object", None)
        if found is None:
            self._missing("target", name)
            return ()
        if isinstance(found, dict) != (version < _LIST_SINCE):
            words = ("a list", "an object") if isinstance(found, dict) else ("an object", "a list")
            self._note("note", "form", f"target: expected {words[0]} in version {version}, got {words[1]}")
        if isinstance(found, list):
            if all(isinstance(text, str) for text in found):
                return tuple(Target(text) for text in found)
        elif all(_is_number(key) and isinstance(text, str) for key, text in found.items()):
            return tuple(Target(text, int(key)) for key, text in found.items())
        self._refuse(f"target: expected descriptions, by the number of the device or not, got {found!r:.100}")
        return ()

    def _dependencies(self, module: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        found = self._get(module, "external_dependencies", list, "a list", [])
        if not all(isinstance(row, dict) for row in found):
            self._refuse(f"external_dependencies: expected a list of objects, got {found!r:.100}")
            return ()
        return tuple(found)

    # ---------------------------------------------------------------------------------------------------------- memory

    def _memory(self, module: dict[str, Any], version: int, name: str | None, style: str) -> Memory:
        found = self._get(module, "memory", (list, dict), "a list or an object", None)
        if found is None:
            self._missing("memory", name)
            return Memory()
        if isinstance(found, list):
            if version >= _FUNCTIONS_SINCE and style == FULL_MODEL:
                self._note(
                    "note", "form", f"memory: expected an object in version {version}, got a list, as in version 1"
                )
            return Memory(self._rows(found, "memory", self._storage_id) or None)
        if style == OPERATOR:
            return Memory(
                operators={key: self._rows(rows, f"memory of {key:.100}", self._operand) for key, rows in found.items()}
            )
        if version < _FUNCTIONS_SINCE:
            self._note("note", "form", "memory: expected a list in version 1, got an object, as in version 2")
        sids: tuple[StorageId, ...] | None = None
        if "sids" in found:
            sids = self._rows(found["sids"], "sids", self._storage_id)
        functions = self._get(found, "functions", dict, "an object", None)
        if functions is None:
            self._missing("memory.functions", name)
            return Memory(sids)
        for key in ("main", "operator_functions"):
            if key not in functions:
                self._missing(f"memory.functions.{key}", name)
        main = self._rows(functions.get("main", []), "memory.functions.main", self._main)
        return Memory(sids, main, self._functions(functions.get("operator_functions", [])))

    def _rows(self, rows: Any, what: str, parse: Callable[[dict[str, Any], str], Any]) -> tuple[Any, ...]:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self._refuse(f"{what}: expected a list of objects, got {rows!r:.100}")
            return ()
        return tuple(parse(row, what) for row in rows)

    def _count(self, row: dict[str, Any], key: str, what: str) -> int:
        value = row.get(key)
        if type(value) is int and 0 <= value < 1 << 63:
            return value
        self._refuse(f"{key} in {what}: expected a number from 0 on, got {value!r:.100}")
        return 0

    def _string(self, row: dict[str, Any], key: str, what: str, default: str | None) -> Any:
        value = row.get(key, default)
        if value is default or isinstance(value, str):
            return value
        self._refuse(f"{key} in {what}: expected a string, got {value!r:.100}")
        return default

    def _storage_id(self, row: dict[str, Any], what: str) -> StorageId:
        binding = self._string(row, "input_binding", what, None)
        return StorageId(self._count(row, "storage_id", what), self._count(row, "size_bytes", what), binding)

    def _main(self, row: dict[str, Any], what: str) -> MainMemory:
        return MainMemory(
            self._count(row, "device", what),
            self._count(row, "workspace_size_bytes", what),
            self._count(row, "constants_size_bytes", what),
            self._count(row, "io_size_bytes", what),
            self._ports(row, "inputs"),
            self._ports(row, "outputs"),
        )

    def _ports(self, row: dict[str, Any], key: str) -> dict[str, PortMemory] | None:
        found = self._get(row, key, dict, "an object", None)
        if found is None:
            return None
        if not all(isinstance(port, dict) for port in found.values()):
            self._refuse(f"{key} of main: expected an object of objects, got something else")
            return None
        return {
            name: PortMemory(self._count(port, "size", key), self._string(port, "dtype", key, ""))
            for name, port in found.items()
        }

    def _functions(self, found: Any) -> tuple[FunctionMemory, ...]:
        what = "operator_functions"
        if isinstance(found, dict):
            self._note("note", "form", f"{what}: expected a list, got an object, as in the published draft")
            rows = []
            for name, row in found.items():
                rows.append(
                    {"function_name": name, "workspace": row.get("workspace") if isinstance(row, dict) else row}
                )
            found = rows

        def parse(row: dict[str, Any], what: str) -> FunctionMemory:
            name = self._string(row, "function_name", what, None)
            if name is None:
                self._refuse(f"function_name in {what}: expected a string, got none")
            workspaces = self._rows(row.get("workspace"), f"workspace in {what}", self._workspace)
            return FunctionMemory(name or "", workspaces)

        return self._rows(found, what, parse)

    def _workspace(self, row: dict[str, Any], what: str) -> Workspace:
        return Workspace(self._count(row, "device", what), self._count(row, "workspace_size_bytes", what))

    def _operand(self, row: dict[str, Any], what: str) -> OperatorBuffer:
        shape = as_shape(row.get("shape"))
        if shape is None:
            self._refuse(f"shape in {what}: expected a list of sizes, got {row.get('shape')!r:.100}")
        binding = self._string(row, "input_binding", what, None)
        return OperatorBuffer(
            self._count(row, "size_bytes", what), shape or (), self._string(row, "dtype", what, ""), binding
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
