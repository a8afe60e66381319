"""Every problem of a Model Library Format archive, or of a `.params` file, in one pass."""

import posixpath
from collections import Counter
from contextlib import closing
from math import prod
from typing import Any

from ..analysis.check_report import CheckReport
from ..arguments import as_path
from ..errors import MilblobError, PendingChangeError
from ..formats.params import ParamsScan, scan
from ..formats.params_codes import ARCHIVED, CURRENT, PACKED, Codes, codes_of, dtype_text, numpy_dtype
from ..storage.mapped import MappedFile
from ..storage.pending import map_settled
from .archive import METADATA, Archive
from .findings import Report
from .graph import ModuleGraph, parse_graph
from .layout import expected, graph_names, parameters_name, role_of
from .metadata import OPERATOR, ArchiveInfo, ModuleInfo, parse_metadata

_MAX_NAME_NBYTES, _MAX_NDIM = 80, 6  # TVM_CRT_MAX_STRLEN_PARAM_NAME, TVM_CRT_MAX_NDIM
_OLD_NAMES = {
    "e4m3_float8": "float8_e4m3fn",
    "float8_e4m3": "float8_e4m3fn",
    "e5m2_float8": "float8_e5m2",
    "uint1": "bool",
}


def check_params(source: Any, *, tvm: str | None = None, max_nbytes: int | None = None) -> CheckReport:
    """Check a `.params` file, also for faults that TVM accepts but should not.

    Args:
        source: path, buffer or file object.
        tvm: see `read_params`.
        max_nbytes: accepted for all checks alike; no values are made of the file.

    Raises:
        OSError: it cannot be opened.

    Examples:
        >>> milblob.tvm.check_params("demo.params").is_sound
        True
    """
    codes = codes_of(tvm, CURRENT)
    try:
        mapping = map_settled(source)
    except PendingChangeError as error:
        report = Report(error.file, is_gathering=True)
        report.error("params", error)
        return report.close(error.file)
    report = Report(mapping.name, is_gathering=True)
    with closing(mapping):
        _Params(report, codes, "").check(mapping, 0, mapping.nbytes, mapping.name)
    return report.close(mapping.name)


def check_archive(source: Any, codes: Codes = ARCHIVED, *, max_nbytes: int | None = None) -> CheckReport:
    """Check an archive, and report every problem in one pass; a fault does not end the check.

    Args:
        source: as `milblob.tvm.open` takes it.
        codes: the meaning of numbers for dtypes.
        max_nbytes: see `milblob.tvm.open`.

    Raises:
        OSError: it cannot be opened. Faults of its contents are reported, not raised.

    Examples:
        >>> milblob.tvm.check_archive("demo.tar").is_sound
        True
    """
    import os

    path = as_path(source) if isinstance(source, str | os.PathLike) else None
    report = Report(path, is_gathering=True)
    try:
        archive = Archive(source, report, max_nbytes)
    except MilblobError as error:
        code = "gzip" if error.what.startswith("gzip") else "not-an-archive"
        report.error(code, error)
        return report.close(path)
    with closing(archive):
        _Checker(archive, report, codes).check()
    return report.close(path)


class _Checker:
    def __init__(self, archive: Archive, report: Report, codes: Codes) -> None:
        self._archive, self._report, self._codes = archive, report, codes

    def check(self) -> None:
        archive, report = self._archive, self._report
        if METADATA not in archive.files:
            report.refuse("missing-member", "metadata.json: expected it, got none", METADATA)
            self._check_stray(None)
            return
        try:
            _, offset, _ = archive.place(METADATA)
            info = parse_metadata(archive.read(METADATA), report, offset, archive.file_of(METADATA))
        except (MilblobError, OSError) as error:
            report.error("metadata", error, METADATA)
            info = None
        if info is None:
            self._check_stray(None)
            return
        self._check_files(info)
        for module in info.modules.values():
            if module.model_name != module.name:
                message = f"model_name: expected {module.name!r:.100}, got {module.model_name!r:.100}"
                self._note("warning", "module-name", message, METADATA)
            self._check_module(module, info)
        self._check_stray(info)

    def _note(self, severity: Any, code: str, message: str, member: str) -> None:
        """Report something about a member, with the byte at which it begins."""
        found = self._archive.files.get(member)
        offset = found.offset if found is not None and found.kind == "file" else None
        self._report.note(severity, code, message, member, offset, self._archive.file_of(member))

    def _check_files(self, info: ArchiveInfo) -> None:
        names = [name for name, member in self._archive.files.items() if member.kind == "file"]
        missing, strange, foreign = expected(info, names)
        for message in missing:
            self._report.note("error", "missing-member", f"archive: expected {message}, got none")
        for name in strange:
            role, severity = role_of(name), "warning"
            if role in ("model_source", "executor_config", "source", "object", "parameters"):
                message = f"member {name:.200}: expected another place in version {info.version}, got this"
                self._note("note", "form", message, name)
            else:
                self._note(severity, "extra-member", f"member {name:.200}: expected none by that name, got one", name)
        for name in foreign:
            known = ", ".join(f"{module!r:.60}" for module in list(info.modules)[:4])
            message = f"member {name:.200}: expected the name of a module ({known}), got another"
            self._note("error", "module-name", message, name)

    def _check_stray(self, info: ArchiveInfo | None) -> None:
        """Check .params files that no module claims."""
        claimed = {parameters_name(module) for module in info.modules.values()} if info is not None else set()
        for name in self._archive.files:
            if role_of(name) == "parameters" and name.endswith(".params") and name not in claimed:
                self._check_params(name)

    def _check_params(self, name: str) -> ParamsScan | None:
        try:
            mapping, offset, nbytes = self._archive.place(name)
            checker = _Params(self._report, self._codes, name)
            return checker.check(mapping, offset, nbytes, self._archive.file_of(name))
        except (MilblobError, OSError) as error:
            self._report.error("params", error, name)
            return None

    def _check_module(self, module: ModuleInfo, info: ArchiveInfo) -> None:
        self._check_dependencies(module)
        if module.style == OPERATOR:
            return
        name = parameters_name(module)
        found = self._check_params(name) if name in self._archive.files else None
        graph = self._graph(module, info)
        if found is None or found.error is not None:
            return
        parameters = dict(zip(found.names, found.rows, strict=True))
        if graph is not None:
            self._check_against(module, graph, parameters, name)
            self._check_io(module, graph, parameters)
        if "graph" in module.executors:
            self._check_constants(module, parameters)

    def _graph(self, module: ModuleInfo, info: ArchiveInfo) -> ModuleGraph | None:
        names = graph_names(module, info.version)
        name = next(
            (name for name in names[: 1 if len(info.modules) > 1 else None] if name in self._archive.files), None
        )
        if name is None:
            return None
        if "graph" not in module.executors:
            message = f"graph: expected none for {'/'.join(module.executors) or 'no executor'}, got one"
            self._note("warning", "extra-member", message, name)
        try:
            graph = parse_graph(self._archive.read(name), self._archive.file_of(name))
        except (MilblobError, OSError) as error:
            if isinstance(error, MilblobError):
                error.offset = self._archive.files[name].offset + (error.offset or 0)
            self._report.error("graph", error, name)
            return None
        self._check_storage(module, graph)
        self._check_arguments(module, graph, name)
        return graph

    def _check_arguments(self, module: ModuleInfo, graph: ModuleGraph, member: str) -> None:
        """Check that the nodes without code are the arguments, and that the inputs in the metadata are among them."""
        arguments = set(graph.arg_nodes)
        for index, node in enumerate(graph.nodes):
            if (node.op == "null") != (index in arguments):
                wanted, got = (
                    ("an argument", "none") if node.op == "null" else ("no argument", f"one with {node.op!r:.60}")
                )
                self._note("error", "graph-argument", f"node {node.name!r:.100}: expected {wanted}, got {got}", member)
        known = graph.arguments
        for row in module.memory.main:
            for name, port in (row.inputs or {}).items():
                value = known.get(name)
                if value is None:
                    message = f"input {name!r:.100}: expected an argument of the graph, got none by that name"
                    self._note("error", "graph-input", message, METADATA)
                elif port.nbytes != value.nbytes:
                    message = f"size of input {name!r:.100}: expected {value.nbytes} as in the graph, got {port.nbytes}"
                    self._note("warning", "graph-input", message, METADATA)

    def _check_io(self, module: ModuleInfo, graph: ModuleGraph, parameters: dict[str, Any]) -> None:
        """Check that the bytes of inputs and outputs are those of the graph."""
        inputs = sum(value.nbytes for name, value in graph.arguments.items() if name not in parameters)
        heads = {graph.node_row_ptr[node] + output for node, output in graph.heads}
        total = inputs + sum(graph.values[index].nbytes for index in heads)
        stated = sum(row.io_nbytes for row in module.memory.main)
        if module.memory.main and stated != total:
            message = f"io_size_bytes of module {module.name:.100}: expected {total} as in the graph, got {stated}"
            self._note("warning", "io-size", message, METADATA)

    def _check_dependencies(self, module: ModuleInfo) -> None:
        """Check that the dependencies of a module exist, inside the archive."""
        for row in module.dependencies:
            url = row.get("url")
            if not isinstance(url, str):
                message = f"url of an external dependency: expected a string, got {url!r:.100}"
                self._note("error", "dependency", message, METADATA)
            elif row.get("url_type") == "mlf_path":
                place = posixpath.normpath(url.replace("\\", "/"))
                prefix = "" if place == "." else f"{place}/"
                if place.startswith(("/", "../")) or place == "..":
                    message = f"external dependency {url!r:.100}: expected a place in the archive, got one outside"
                    self._note("error", "dependency", message, METADATA)
                elif not any(name == place or name.startswith(prefix) for name in self._archive.files):
                    message = f"external dependency {url!r:.100}: expected it in the archive, got none"
                    self._note("error", "dependency", message, METADATA)

    def _check_storage(self, module: ModuleInfo, graph: ModuleGraph) -> None:
        if module.memory.storage_ids is None:
            return
        reported: dict[int, int] = {}
        for row in module.memory.storage_ids:
            if reported.setdefault(row.storage_id, row.nbytes) != row.nbytes:
                message = f"storage id {row.storage_id} of module {module.name:.100}: expected one size, got"
                self._note(
                    "warning", "storage-twice", f"{message} {reported[row.storage_id]} and {row.nbytes}", METADATA
                )
        real = graph.storage
        wrong = [sid for sid in sorted({*reported, *real}) if reported.get(sid) != real.get(sid)]
        if wrong:
            rows = ", ".join(f"{sid}: {real.get(sid)} for {reported.get(sid)}" for sid in wrong[:8])
            message = f"storage of module {module.name:.100}: expected the sizes of the graph, got others ({rows})"
            message += ": an old bug of TVM's exporter"
            self._note("note", "storage", message, METADATA)

    def _check_against(self, module: ModuleInfo, graph: ModuleGraph, parameters: dict[str, Any], member: str) -> None:
        arguments = graph.arguments
        for name, row in parameters.items():
            value = arguments.get(name)
            offset, file = row[0], self._archive.file_of(member)
            if value is None:
                message = f"parameter {name!r:.100}: expected an argument of the graph, got none by that name"
                self._report.note("error", "graph-param", message, member, offset, file)
                continue
            if row[6] is not None and row[6] != value.shape:
                message = f"shape of parameter {name!r:.100}: expected {list(value.shape)}, got {list(row[6])}"
                self._report.note("error", "param-shape", message, member, offset, file)
            text = dtype_text(self._codes, row[3], row[4], row[5])
            if text != _OLD_NAMES.get(value.dtype, value.dtype):
                message = f"dtype of parameter {name!r:.100}: expected {value.dtype:.60}, got {text}"
                self._report.note("error", "param-dtype", message, member, offset, file)
        self._check_missing(module, arguments, parameters, member)

    def _check_missing(
        self, module: ModuleInfo, arguments: dict[str, Any], parameters: dict[str, Any], member: str
    ) -> None:
        listed = [row.inputs for row in module.memory.main if row.inputs is not None]
        inputs = {name for found in listed for name in found}
        for name in arguments:
            if name in parameters or name in inputs:
                continue
            # Before TVM 0.11 nothing marks the inputs. Parameters are called p0, p1, ... after simplification.
            if listed or (name[:1] == "p" and name[1:].isdigit()):
                message = f"argument {name!r:.100} of the graph: expected a parameter, got none"
                self._note("error" if listed else "warning", "missing-param", message, member)

    def _check_constants(self, module: ModuleInfo, parameters: dict[str, Any]) -> None:
        total = sum(row[2] for row in parameters.values())
        stated = sum(row.constants_nbytes for row in module.memory.main)
        if module.memory.main and stated != total:
            message = f"constants_size_bytes of module {module.name:.100}: expected {total} as its parameters have"
            self._note("warning", "constants", f"{message}, got {stated}", METADATA)


class _Params:
    """A check of one .params file."""

    def __init__(self, report: Report, codes: Codes, member: str) -> None:
        self._report, self._codes, self._member = report, codes, member

    def check(self, mapping: MappedFile, offset: int, nbytes: int, file: str | None) -> ParamsScan:
        found = scan(mapping, offset, nbytes)
        self._file = file
        if found.reserved:
            self._note(
                "warning", "params-reserved", f"reserved field of .params: expected 0, got {found.reserved}", offset + 8
            )
        if found.error is not None:
            error, position = found.error, len(found.rows)
            name = f"{found.names[position]!r:.100}" if position < len(found.names) else ""
            message = f"{error.what}{f', of tensor {name}' if name else ''}"
            self._note("error", "params", message, error.offset or 0)
        elif found.end < offset + nbytes:
            message = f"end of .params: expected it after the last tensor, got {offset + nbytes - found.end} bytes more"
            self._note("warning", "params-trailing", message, found.end)
        for name, count in Counter(found.names).items():
            if count > 1:
                message = f"name of tensor: expected {name!r:.100} once, got it {count} times"
                self._note("error", "params-twice", message, offset + 24)
        for name, row in zip(found.names, found.rows, strict=False):
            self._check_row(name, row)
        return found

    def _check_row(self, name: str, row: Any) -> None:
        at, _, _, code, bits, lanes, shape, reserved, device = row
        if reserved or device:
            message = f"reserved field and device id of {name!r:.100}: expected 0, got {reserved} and {device}"
            self._note("warning", "params-reserved", message, at + 8)
        try:
            raw = name.encode()
        except UnicodeEncodeError:
            raw = name.encode("utf-8", "surrogateescape")
            self._note("warning", "params-name", f"name of tensor: expected UTF-8, got {raw[:60]!r}", at)
        text = dtype_text(self._codes, code, bits, lanes)
        if numpy_dtype(text) is None:
            message = f"dtype of {name!r:.100}: expected one that TVM reads back, got {text}"
            self._note("warning", "params-dtype", message, at + 28)
        elif text in PACKED:
            message = f"dtype of {name!r:.100}: expected whole bytes, got {text}, two to a byte in their first half"
            self._note("note", "params-dtype", message, at + 28)
        if shape is not None and prod(shape) == 0 and shape and shape[0] != 0:
            message = (
                f"shape of {name!r:.100}: expected its first size to be 0 as it has no elements, got {list(shape)}"
            )
            self._note("note", "params-limit", f"{message}: TVM 0.27 does not load it", at + 32)
        if len(raw) >= _MAX_NAME_NBYTES:
            message = f"name of tensor: expected less than {_MAX_NAME_NBYTES} bytes for the C runtime, got {len(raw)}"
            self._note("note", "params-limit", message, at)
        if shape is None or len(shape) > _MAX_NDIM:
            message = f"dimensions of {name!r:.100}: expected at most {_MAX_NDIM} for the C runtime, got more"
            self._note("note", "params-limit", message, at + 24)

    def _note(self, severity: Any, code: str, message: str, offset: int) -> None:
        self._report.note(severity, code, message, self._member, offset, self._file)
