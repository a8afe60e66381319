"""The description of a Model Library Format archive: as JSON, and as rows of tables."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import output
from .tables import LAST, Column

if TYPE_CHECKING:
    from ...tvm import Library, Module

_MODULE, SIZE = Column("module", is_name=True), Column("size", True)
_DEVICES = {
    1: "CPU", 2: "CUDA", 3: "CUDA host", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 11: "ROCm host",
    12: "ExtDev", 13: "CUDA managed", 14: "oneAPI", 15: "WebGPU", 16: "Hexagon",
}  # fmt: skip


def device_text(device: int | None) -> str:
    """Return the name of a DLPack device type, such as "CPU"."""
    return "" if device is None else _DEVICES.get(device, f"device {device}")


def library_document(library: "Library") -> dict[str, Any]:
    """Return what an archive is, and its modules."""
    return {
        "kind": library.kind,
        "version": library.version,
        "style": library.style,
        "created": None if library.created is None else library.created.isoformat(sep=" "),
        "modules": [_module_document(module) for module in library.modules.values()],
    }


def library_rows(library: "Library") -> list[tuple[str, str]]:
    """Return rows of names and words."""
    rows = [("format", f"Model Library Format version {library.version}, {library.style}, {library.kind}")]
    rows.append(("created", "?" if library.created is None else f"{library.created} (local time)"))
    for module in library.modules.values():
        words = [", ".join(module.executors) or "no executor", *(target.text for target in module.targets)]
        rows.append(("module", f"{module.name}: {'; '.join(words)}"))
    return rows


def _module_document(module: "Module") -> dict[str, Any]:
    graph, memory = module.graph, module.memory
    storage = [
        {"storage_id": sid, "reported_nbytes": reported, "graph_nbytes": real}
        for sid, (reported, real) in module.storage.items()
    ]
    return {
        "name": module.name,
        "model_name": module.model_name,
        "exported": module.info.exported,
        "style": module.style,
        "executors": list(module.executors),
        "targets": [{"text": target.text, "device": target.device} for target in module.targets],
        "dependencies": list(module.dependencies),
        "parameters": len(module.params),
        "parameters_nbytes": sum(parameter.stored_nbytes for parameter in module.params.values()),
        "nodes": None if graph is None else len(graph.nodes),
        "memory": {
            "main": [
                {**row._asdict(), "inputs": _ports(row.inputs), "outputs": _ports(row.outputs)} for row in memory.main
            ],
            "functions": [
                {"name": row.name, "workspaces": [workspace._asdict() for workspace in row.workspaces]}
                for row in memory.functions
            ],
            "operators": {name: [buffer._asdict() for buffer in buffers] for name, buffers in memory.operators.items()},
            "storage": storage,
        },
    }


def _ports(ports: Any) -> dict[str, Any] | None:
    return None if ports is None else {name: port._asdict() for name, port in ports.items()}


def tables_of(library: "Library", *, is_verbose: bool) -> Iterator[tuple[Sequence[Column], list[list[str]]]]:
    """Yield the columns and the rows of each table: memory, inputs and outputs, parameters.

    With `is_verbose` also operator functions, and storage ids with their bytes as reported and as the graph needs them.
    """
    size = output.size
    modules = library.modules.values()
    main = [(module.name, row) for module in modules for row in module.memory.main]
    columns = [Column("workspace", True), Column("constants", True, drop=1), Column("io", True, drop=2)]
    yield (
        [_MODULE, Column("memory on"), *columns],
        [
            [name, device_text(row.device), *map(size, (row.workspace_nbytes, row.constants_nbytes, row.io_nbytes))]
            for name, row in main
        ],
    )
    yield (
        [_MODULE, Column(""), Column("name", is_name=True), Column("dtype", drop=LAST + 1), SIZE],
        [
            [name, kind, port, memory.dtype, size(memory.nbytes)]
            for name, row in main
            for kind, ports in (("input", row.inputs), ("output", row.outputs))
            for port, memory in (ports or {}).items()
        ],
    )
    if is_verbose:
        functions = []
        for module in modules:
            for function in module.memory.functions:
                words = [f"{size(row.nbytes)} {device_text(row.device)}".rstrip() for row in function.workspaces]
                functions.append([module.name, function.name, ", ".join(words)])
            for name, buffers in module.memory.operators.items():
                functions.append([module.name, name, ", ".join(size(buffer.nbytes) for buffer in buffers)])
        yield [_MODULE, Column("function", is_name=True), Column("memory", is_name=True)], functions
        yield (
            [_MODULE, Column("storage id", True), Column("reported", True), Column("by the graph", True)],
            [
                [module.name, str(sid), *("-" if nbytes is None else str(nbytes) for nbytes in both)]
                for module in modules
                for sid, both in module.storage.items()
            ],
        )
    yield (
        [_MODULE, Column("parameters", True), SIZE],
        [
            [module.name, str(len(module.params)), size(sum(one.stored_nbytes for one in module.params.values()))]
            for module in modules
        ],
    )
