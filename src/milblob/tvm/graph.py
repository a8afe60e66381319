"""The graph of TVM's GraphExecutor: its nodes, their inputs, and the storage that follows from them."""

import itertools
import re
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from ..errors import FormatError
from ..jsontext import as_shape, parse_json

_LISTS = {"dltype": "list_str", "shape": "list_shape", "storage_id": "list_int", "device_index": "list_int"}
_DTYPE = re.compile(r"(?:e\dm\d_)?([a-z]+)(\d{0,4})(?:_e\dm\d[a-z0-9]*?)?(?:x(\d{1,5}))?")
_NBITS = {"bool": 8, "handle": 64}
_MAX_COUNT, _MAX_RANK = (1 << 63) - 1, 64


class Node(NamedTuple):
    """One node.

    Attributes:
        op: "null" for an argument, "tvm_op" for a call.
        name: its name; arguments are called by it.
        inputs: (node, output of it, version) of everything it reads.
        attrs: as they are, such as {"func_name": ...}.
    """

    op: str
    name: str
    inputs: tuple[tuple[int, int, int], ...]
    attrs: dict[str, Any]


class NodeOutput(NamedTuple):
    """One output of a node: its name, dtype, shape, storage id, and the device index where it is given."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage_id: int
    device_index: int | None

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return prod(self.shape) * dtype_nbytes(self.dtype)


class ModuleGraph(NamedTuple):
    """The graph of one module.

    Attributes:
        nodes: in the order in which they run.
        arg_nodes: indices of arguments: inputs and parameters.
        heads: (node, output) of the results.
        node_row_ptr: index of each node's first output in `values`, and the number of all at the end.
        values: every output of every node.
    """

    nodes: tuple[Node, ...]
    arg_nodes: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    node_row_ptr: tuple[int, ...]
    values: tuple[NodeOutput, ...]

    @property
    def arguments(self) -> dict[str, NodeOutput]:
        """Name -> value of the arguments: inputs and parameters."""
        return {self.nodes[index].name: self.values[self.node_row_ptr[index]] for index in self.arg_nodes}

    @property
    def storage(self) -> dict[int, int]:
        """Storage id -> bytes that it must have: the largest value that is kept in it."""
        found: dict[int, int] = {}
        for value in self.values:
            found[value.storage_id] = max(found.get(value.storage_id, 0), value.nbytes)
        return found

    def consumers(self, name: str) -> list[Node]:
        """Return the nodes that read an argument or another node's output, by its name."""
        wanted = {index for index, node in enumerate(self.nodes) if node.name == name}
        return [node for node in self.nodes if any(index in wanted for index, _, _ in node.inputs)]

    def feeds(self) -> dict[str, list[str]]:
        """Return which operators read which argument: name -> their names, in order."""
        found: dict[str, list[str]] = {name: [] for name in self.arguments}
        arguments = {index: self.nodes[index].name for index in self.arg_nodes}
        for node in self.nodes:
            for index in dict.fromkeys(index for index, _, _ in node.inputs):
                if index in arguments:
                    found[arguments[index]].append(node.name)
        return found


def dtype_nbytes(text: str) -> int:
    """Return the bytes of one element, of TVM's name of a dtype. Raises: ValueError: it has none."""
    match = _DTYPE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    kind, bits, lanes = match.groups()
    nbits = int(bits or _NBITS.get(kind, 0))
    if nbits == 0:
        raise ValueError(text)
    return (nbits + 7) // 8 * int(lanes or 1)


def parse_graph(data: memoryview, file: str | None) -> ModuleGraph:
    """Read a graph. Raises: FormatError: no JSON; lists whose lengths do not fit; indices that lead nowhere."""
    return _Parser(parse_json(data, "graph", file, unique=True), file).parse()


class _Parser:
    def __init__(self, document: Any, file: str | None) -> None:
        self._document, self._file = document, file

    def _refuse(self, message: str) -> FormatError:
        return FormatError(message, file=self._file)

    def parse(self) -> ModuleGraph:
        document = self._document
        if not isinstance(document, dict):
            raise self._refuse(f"graph: expected an object, got {type(document).__name__}")
        nodes = tuple(self._node(row, index) for index, row in enumerate(self._list(document, "nodes", "graph")))
        pointers = tuple(self._integers(self._list(document, "node_row_ptr", "graph"), "node_row_ptr"))
        if len(pointers) != len(nodes) + 1:
            raise self._refuse(f"node_row_ptr: expected {len(nodes) + 1} entries, got {len(pointers)}")
        if any(b <= a for a, b in itertools.pairwise(pointers)) or (pointers and pointers[0] != 0):
            raise self._refuse("node_row_ptr: expected 0 and then larger numbers, got others")
        count = pointers[-1]
        columns = self._columns(document, count)  # each of as many entries, which bounds it
        names = [node.name for index, node in enumerate(nodes) for _ in range(pointers[index + 1] - pointers[index])]
        values = tuple(map(NodeOutput, names, *columns))
        for value in values:
            try:
                nbytes = value.nbytes
            except ValueError:
                raise self._refuse(
                    f"dltype of {value.name!r:.100}: expected a dtype, got {value.dtype!r:.100}"
                ) from None
            if nbytes > _MAX_COUNT:
                raise self._refuse(f"shape of {value.name!r:.100}: expected less than 2^63 bytes, got {nbytes}")
        arguments = tuple(self._integers(self._list(document, "arg_nodes", "graph"), "arg_nodes"))
        self._require_arguments(nodes, arguments)
        self._require_inputs(nodes, pointers)
        heads = tuple(self._entry(row, "heads", nodes, pointers)[:2] for row in self._list(document, "heads", "graph"))
        return ModuleGraph(nodes, arguments, heads, pointers, values)

    def _node(self, row: Any, index: int) -> Node:
        if not isinstance(row, dict):
            raise self._refuse(f"node {index}: expected an object, got {type(row).__name__}")
        op, name, attrs = row.get("op"), row.get("name"), row.get("attrs", {})
        if not isinstance(op, str) or not isinstance(name, str) or not isinstance(attrs, dict):
            raise self._refuse(f"node {index}: expected an op, a name and attrs, got something else")
        inputs = []
        for entry in self._list(row, "inputs", f"node {index}"):
            numbers = entry if isinstance(entry, list) and 2 <= len(entry) <= 3 else []
            if not numbers or not all(type(number) is int and 0 <= number <= _MAX_COUNT for number in numbers):
                raise self._refuse(f"inputs of node {index}: expected lists of three numbers, got {entry!r:.100}")
            inputs.append((numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0))
        return Node(op, name, tuple(inputs), attrs)

    def _columns(self, document: dict[str, Any], count: int) -> list[Any]:
        attrs = document.get("attrs")
        if not isinstance(attrs, dict):
            raise self._refuse("attrs of graph: expected an object, got something else")
        columns: list[Any] = []
        for key, kind in _LISTS.items():
            given = attrs.get(key)
            if given is None and key == "device_index":
                columns.append([None] * count)
                continue
            if not isinstance(given, list) or len(given) != 2 or given[0] != kind or not isinstance(given[1], list):
                raise self._refuse(f'attrs of graph: expected {key} as ["{kind}", [...]], got {given!r:.100}')
            if len(given[1]) != count:
                raise self._refuse(f"{key}: expected {count} entries, got {len(given[1])}")
            columns.append(list(self._column(key, given[1])))
        return columns

    def _column(self, key: str, rows: list[Any]) -> Iterator[Any]:
        if key in ("storage_id", "device_index"):
            yield from self._integers(rows, key)
            return
        for row in rows:
            value: Any = row if isinstance(row, str) else None
            if key == "shape":
                value = as_shape(row) if isinstance(row, list) and len(row) <= _MAX_RANK else None
            if value is None:
                raise self._refuse(f"{key}: expected {'sizes' if key == 'shape' else 'strings'}, got {row!r:.100}")
            yield value

    def _require_arguments(self, nodes: tuple[Node, ...], arguments: tuple[int, ...]) -> None:
        seen: set[int] = set()
        names: set[str] = set()
        for index in arguments:
            if index >= len(nodes) or index in seen:
                raise self._refuse(f"arg_nodes: expected indices of {len(nodes)} nodes, each once, got {index}")
            if nodes[index].op != "null":
                raise self._refuse(f"arg_nodes: expected null nodes, got {nodes[index].op!r:.100}")
            if nodes[index].name in names:
                raise self._refuse(f"names of arguments: expected each once, got {nodes[index].name!r:.100} twice")
            seen.add(index)
            names.add(nodes[index].name)

    def _require_inputs(self, nodes: tuple[Node, ...], pointers: tuple[int, ...]) -> None:
        for number, node in enumerate(nodes):
            for index, output, _ in node.inputs:
                if index >= number or output >= pointers[index + 1] - pointers[index]:
                    message = f"inputs of node {number}: expected outputs of nodes before it, got [{index}, {output}]"
                    raise self._refuse(message)

    def _entry(self, row: Any, what: str, nodes: tuple[Node, ...], pointers: tuple[int, ...]) -> tuple[int, int]:
        numbers = row if isinstance(row, list) and 2 <= len(row) <= 3 else []
        if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
            raise self._refuse(f"{what}: expected lists of three numbers, got {row!r:.100}")
        if numbers[0] >= len(nodes) or numbers[1] >= pointers[numbers[0] + 1] - pointers[numbers[0]]:
            raise self._refuse(f"{what}: expected outputs of nodes, got {row!r:.100}")
        return numbers[0], numbers[1]

    def _list(self, document: dict[str, Any], key: str, what: str) -> list[Any]:
        value = document.get(key)
        if not isinstance(value, list):
            raise self._refuse(f"{key} of {what}: expected a list, got {type(value).__name__}")
        return value

    def _integers(self, rows: list[Any], what: str) -> list[int]:
        for row in rows:
            if type(row) is not int or not 0 <= row <= _MAX_COUNT:
                raise self._refuse(f"{what}: expected numbers from 0 on, got {row!r:.100}")
        return rows
