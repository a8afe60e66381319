"""The files of an archive, by version, style and executor; their roles, and their modules."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from .archive import METADATA
from .metadata import OPERATOR, ArchiveInfo, ModuleInfo

_NAMED_SINCE, _STYLE_SINCE, _EXECUTORS_SINCE, _MODULES_SINCE = 3, 4, 5, 7

ROLES = {
    "metadata": r"metadata\.json",
    "source": r"codegen/host/src/.+\.(?:c|cc|cpp)",
    "object": r"codegen/host/lib/.+\.o",
    "header": r"codegen/host/include/.+\.h",
    "executor_config": r"(?:executor|runtime)-config/[^/]+/[^/]+",
    "parameters": r"parameters/[^/]+",
    "model_source": r"(?:src/[^/]+|relay\.txt)",
    "runtime": r"runtime/.+",
    "templates": r"templates/.+",
}
"""Role of a file -> pattern of its name. A name without a match is "other"."""

_ROLE = {role: re.compile(pattern, re.DOTALL) for role, pattern in ROLES.items()}
_OWNED = ("source", "object", "header", "executor_config", "parameters", "model_source")
_BASE = re.compile(r"(?:tvmgen_)?(.+?)(?:_lib\d+)?\.(?:c|cc|cpp|o|h|graph|params|relay)", re.DOTALL)
_NAMELESS = re.compile(r"lib\d+\.(?:c|cc|cpp|o)|graph\.json|relay\.txt|tir-\d+\.txt")


class File(NamedTuple):
    """One file of an archive.

    Attributes:
        name: in the archive, without "./".
        role: a key of ROLES, or "other".
        module: name of the module that it belongs to; None if to none, or to all.
        nbytes: its size.
        offset: of its bytes in the (decompressed) tar; 0 in a directory.
    """

    name: str
    role: str
    module: str | None
    nbytes: int
    offset: int


def role_of(name: str) -> str:
    """Return the role of a file."""
    return next((role for role, pattern in _ROLE.items() if pattern.fullmatch(name)), "other")


def module_of(name: str, role: str, modules: Iterable[str]) -> str | None:
    """Return the module that a file belongs to by its name, None if there is none of that name."""
    if role not in _OWNED:
        return None
    base = name.rsplit("/", 1)[-1]
    names = list(modules)
    if _NAMELESS.fullmatch(base):
        return names[0] if len(names) == 1 else None
    match = _BASE.fullmatch(base)
    return match[1] if match is not None and match[1] in names else None


def parameters_name(module: ModuleInfo) -> str:
    """Return the name of the file with a module's parameters."""
    return f"parameters/{module.name}.params"


def graph_names(module: ModuleInfo, version: int) -> tuple[str, ...]:
    """Return the names that the graph of a module may have: its version's first, then those of the others."""
    old = ("executor-config/graph/graph.json", "runtime-config/graph/graph.json")
    new = (f"executor-config/graph/{module.name}.graph",)
    if version >= _MODULES_SINCE:
        return new + old
    return (old + new) if version >= _EXECUTORS_SINCE else (*old[::-1], *new)


def expected(info: ArchiveInfo, names: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Compare the files of an archive with those that its version, styles and executors require.

    Returns: (descriptions of missing files; names of unexpected files; files whose name belongs to no module).
    """
    have = set(names)
    missing: list[str] = []
    allowed: list[str] = [ROLES["metadata"]]
    for module in info.modules.values():
        needed, patterns = _of_operator() if module.style == OPERATOR else _of_model(module, info.version)
        allowed += patterns
        for pattern, words in needed:
            if not any(re.fullmatch(pattern, name, re.DOTALL) for name in have):
                missing.append(words)
    every = re.compile("|".join(f"(?:{pattern})" for pattern in dict.fromkeys(allowed)), re.DOTALL)
    strange, foreign = [], []
    for name in sorted(have):
        if every.fullmatch(name):
            continue
        role = role_of(name)
        if (
            role in _OWNED
            and module_of(name, role, info.modules) is None
            and not _NAMELESS.fullmatch(name.rsplit("/", 1)[-1])
        ):
            foreign.append(name)
        else:
            strange.append(name)
    if METADATA not in have:
        missing.append(METADATA)
    return missing, strange, foreign


def _of_operator() -> tuple[list[tuple[str, str]], list[str]]:
    code = r"codegen/host/(?:src/lib\d+\.(?:c|cc|cpp)|lib/lib\d+\.o)"
    source = r"src/tir-\d+\.txt"
    return [(code, "codegen/host/src or lib: lib<n>"), (source, "src/tir-<device type>.txt")], [code, source]


def _of_model(module: ModuleInfo, version: int) -> tuple[list[tuple[str, str]], list[str]]:
    name = re.escape(module.name)
    prefix = f"{name}_" if version >= _NAMED_SINCE else ""
    code = rf"codegen/host/(?:src/{prefix}lib\d+\.(?:c|cc|cpp)|lib/{prefix}lib\d+\.o)"
    relay = "relay.txt" if version < _STYLE_SINCE else "src/relay.txt"
    if version >= _MODULES_SINCE:
        relay = f"src/{module.name}.relay"
    parameters = parameters_name(module)
    needed = [
        (code, f"codegen/host/src or lib: {module.name + '_' if prefix else ''}lib<n>"),
        (re.escape(relay), relay),
        (re.escape(parameters), parameters),
    ]
    allowed = [pattern for pattern, _ in needed]
    if "graph" in module.executors:
        graph = graph_names(module, version)[0]
        needed.append((re.escape(graph), graph))
        allowed.append(re.escape(graph))
    if version >= _EXECUTORS_SINCE:
        allowed.append(rf"codegen/host/include/tvmgen_{name}\.h")
    if "aot" in module.executors:
        allowed += [ROLES["runtime"], ROLES["templates"]]
    return needed, allowed
