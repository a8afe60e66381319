"""The program of a bundle: its functions, its constants, and the operations that compute weights from constants."""

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from . import codes
from .bytecode import NONE, Bytecode, TensorKind
from .codes import family, operand_name, short_family

SMALL_COUNT = 10
"""An inline value of fewer elements is not a weight, as in an ML Program."""

_COMPUTING = frozenset(
    [
        "blockwise_shift_scale", "build_sparse_with_bitmask", "dequantize", "lut_to_dense",
        "sparse_with_bitmask_to_dense", "lut_to_sparse_with_bitmask", "sparse_with_bitmask_blockwise_shift_scale",
    ]
)  # fmt: skip
_MOVING = frozenset(["transpose", "reshape", "cast", "expand_dims", "shrink_dims"])
"""Operations that a weight passes through on its way to the one that gives it its name."""
_MAX_STEPS = 16
_MAX_PARTS = 64


class StoredConstant(NamedTuple):
    """Where the value of a constant is."""

    attribute: int  # number of the attribute
    # offset, nbytes: of its bytes in the file
    offset: int
    nbytes: int
    is_splat: bool  # whether one element is stored, which all have
    resource: int | None  # number of the resource; None of an inline value
    alignment: int  # of a resource; 1 of an inline value

    @property
    def key(self) -> tuple[str, int]:
        """What is equal for constants that share one value."""
        return ("attribute", self.attribute) if self.resource is None else ("resource", self.resource)


class PortOfAsset(NamedTuple):
    """An input, output or state of a function: its name and its type, such as "f32 [1, 64]"."""

    name: str
    type: str


class AssetFunction(NamedTuple):
    """A function: `row` is its operation.

    Examples:
        >>> with milblob.open("demo.aimodel") as asset:
        ...     main = asset.functions["main"]
        >>> main.name, main.inputs[0].name, main.inputs[0].type
        ('main', 'x', 'f16 [1, 3, 8, 8]')
    """

    name: str
    row: int
    inputs: tuple[PortOfAsset, ...]
    outputs: tuple[PortOfAsset, ...]
    states: tuple[PortOfAsset, ...]


class WeightRow(NamedTuple):
    """A tensor of the program."""

    name: str  # unique
    function: str  # name of its function
    op: int  # the constant, or the operation that computes it
    # its number, or that of its first part, among the constants directly in the function; -1 inside the decomposition
    # of an operation
    ordinal: int


class AssetProgram:
    """The operations of a bundle that concern its weights.

    Attributes:
        bytecode: the file.
        functions: by name, in the order of the file.
        computed: operation that computes a weight, or a part of one -> operand name -> operation that makes it.
    """

    def __init__(self, bytecode: Bytecode) -> None:
        """Find functions and constants. Raises: FormatError: a broken description."""
        self.bytecode = bytecode
        self._first_use = bytecode.values["first_use"].tolist()
        self._maker = bytecode.values["op"].tolist()
        self._is_argument = bytecode.values["is_argument"].tolist()
        self._first_results: list[int] = bytecode.ops["first_result"].tolist()
        self._result_counts: list[int] = bytecode.ops["result_count"].tolist()
        self._value_types: list[int] = bytecode.values["type"].tolist()
        self._parents = bytecode.ops["parent"].tolist()
        self._graphs = {int(row) for row in bytecode.ops_named(lambda name: family(name) == codes.GRAPH)}
        self._flow = {int(row) for row in bytecode.ops_named(lambda name: name.startswith(codes.CONTROL_FLOW))}
        self._composites: dict[str, tuple[str, list[str]]] = {}  # symbol -> name, such as "layer_norm", and inputs
        self.functions = {function.name: function for function in self._find_functions()}
        self.constants: list[int] = bytecode.ops_named(lambda name: family(name) == codes.CONSTANT).tolist()
        self._function_rows = {function.row: function.name for function in self.functions.values()}
        self._is_constant = frozenset(self.constants)
        self._parts: dict[int, bool] = {}
        self._labels: dict[int, dict[int, str]] = {}
        self._homes: dict[int, tuple[int, int]] = {}
        self.computed = self._find_computed()

    # ------------------------------------------------------------------------------------------------------- functions

    def _find_functions(self) -> Iterator[AssetFunction]:
        names: set[str] = set()
        for row in sorted(self._graphs):
            if any(parent in self._graphs for parent in self._around(row)):
                continue  # of a decomposition
            numbers = self.bytecode.property_numbers(row)
            if len(numbers) == 9 and numbers[1]:  # the graph that defines a composite operation: a decomposition
                self._add_composite(numbers)
                continue
            name = self.bytecode.text_of(numbers[5]) if len(numbers) == 9 else None
            if name is None:
                message = f"properties of {codes.GRAPH}: expected a name and a type, got {numbers[:16]}"
                raise UnsupportedError(message, **self._at(row))
            if name in names:
                raise FormatError(
                    f"functions: expected each name once, got {name!r:.100} twice", file=self.bytecode.mapping.name
                )
            names.add(name)
            inputs, outputs, states = self._ports(numbers)
            yield AssetFunction(name, row, inputs, outputs, states)

    def _add_composite(self, numbers: list[int]) -> None:
        symbol, declared = self.bytecode.text_of(numbers[5]), self.bytecode.attribute(numbers[1] >> 1)
        if symbol is not None and len(declared) > 1 and declared[0] == codes.NAMED:
            self._composites[symbol] = self.bytecode.string(declared[1]), self._port_names(numbers[0])

    def _callee(self, op: int) -> tuple[str, list[str]]:
        """Return the name and the inputs of the composite operation that an operation invokes; "" if it does not."""
        if self._composites and family(self.bytecode.op_name(op)) == codes.INVOKE:
            for number in self.bytecode.property_numbers(op):
                numbers = self.bytecode.attribute(number)
                if numbers[0] == codes.SYMBOL and len(numbers) > 1:
                    path = self.bytecode.attribute(numbers[1])
                    if path[0] == codes.SYMBOL_PATH and len(path) == 3:
                        return self._composites.get(self.bytecode.string(path[2]), ("", []))
        return "", []

    def operand(self, op: int, number: int) -> str:
        """Return what an operand of an operation is called."""
        _, names = self._callee(op)
        return (names[number] if number < len(names) else "") or operand_name(self.bytecode.op_name(op), number)

    def _around(self, row: int) -> Iterator[int]:
        """Yield the operations around one, from the inside outwards."""
        while (row := self._parents[row]) != NONE:
            yield row

    def _ports(self, numbers: list[int]) -> tuple[tuple[PortOfAsset, ...], ...]:
        code = self.bytecode
        type_of = code.attribute(numbers[3])
        rows = code.type_numbers(type_of[1]) if type_of[0] == codes.TYPE and len(type_of) == 2 else []
        if (
            len(rows) < 3
            or rows[0] != codes.FUNCTION_TYPE
            or rows[1] > len(rows) - 3
            or rows[2 + rows[1]] != len(rows) - 3 - rows[1]
        ):
            raise FormatError(
                f"type of a function: expected results and arguments, got {rows[:16]}", file=code.mapping.name
            )
        found: list[list[PortOfAsset]] = [[], [], []]
        for types, named, index in ((rows[3 + rows[1] :], numbers[0], 0), (rows[2 : 2 + rows[1]], numbers[8], 1)):
            names = self._port_names(named)
            for number, row in enumerate(types):
                what = code.type_numbers(row)
                name = names[number] if number < len(names) else ""
                inner = what[1] if what[0] == codes.HANDLE and len(what) > 1 else row
                kind = None if what[0] == codes.TOKEN else code.tensor_kind(inner)
                text = f"code {what[0]}" if kind is None else type_text(kind)
                if what[0] != codes.TOKEN:
                    found[2 if what[0] == codes.HANDLE else index].append(PortOfAsset(name or f"#{number}", text))
        return tuple(map(tuple, found))

    def _port_names(self, number: int) -> list[str]:
        """Return the names in a list of dictionaries, one for each argument or result; "" where there is none."""
        names = []
        for item in self._items(number):
            found = ""
            for entry in self._items(item):
                key, value = self._named(entry)
                if key == codes.NAME_KEY:
                    found = self.bytecode.text_of(value) or ""
            names.append(found)
        return names

    def _items(self, number: int) -> list[int]:
        numbers = self.bytecode.attribute(number)
        return numbers[2:] if numbers[0] == codes.ARRAY and len(numbers) > 1 and numbers[1] == len(numbers) - 2 else []

    def _named(self, number: int) -> tuple[str, int]:
        numbers = self.bytecode.attribute(number)
        is_named = numbers[0] == codes.NAMED and len(numbers) == 4
        return (self.bytecode.string(numbers[1]), numbers[3]) if is_named else ("", 0)

    # ------------------------------------------------------------------------------------------------ values and names

    @cached_property
    def _operands(self) -> tuple[list[int], list[int], list[int]]:
        rows = self.bytecode.operands
        return rows["value"].tolist(), rows["op"].tolist(), rows["next_use"].tolist()

    def _at(self, op: int) -> dict[str, Any]:
        """Return where an operation is, for an error about it."""
        return {"offset": int(self.bytecode.ops["offset"][op]), "file": self.bytecode.mapping.name}

    def result(self, op: int) -> int:
        """Return the value that an operation makes. Raises: FormatError: it makes none or several."""
        if self._result_counts[op] != 1:
            message = f"results of {self.bytecode.op_name(op)}: expected 1, got {self.bytecode.ops['result_count'][op]}"
            raise FormatError(message, **self._at(op))
        return self._first_results[op]

    def kind(self, op: int) -> TensorKind:
        """Return the type of the value that an operation makes. Raises: FormatError: it is not a tensor."""
        number = self._value_types[self.result(op)]
        kind = self.bytecode.tensor_kind(number)
        if kind is None:
            message = f"type of {self.bytecode.op_name(op)}: expected a tensor, got another type"
            raise FormatError(message, **self._at(op))
        return kind

    def uses(self, op: int) -> list[tuple[int, int]]:
        """Return who reads what an operation makes: (operation, number of the operand), in the order of the file."""
        _, ops, following = self._operands
        first = self.bytecode.ops["first_operand"]
        found, use = [], self._first_use[self.result(op)]
        while use != NONE:
            found.append((ops[use], use - int(first[ops[use]])))
            use = following[use]
        return found

    def makers(self, op: int) -> list[int]:
        """Return the operations that make an operation's operands; NONE for an argument."""
        first, count = int(self.bytecode.ops["first_operand"][op]), int(self.bytecode.ops["operand_count"][op])
        values = self._operands[0][first : first + count]
        return [NONE if self._is_argument[value] else self._maker[value] for value in values]

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        """Operation -> those directly inside it."""
        found: dict[int, list[int]] = {}
        for row, parent in enumerate(self._parents):
            found.setdefault(parent, []).append(row)
        return found

    def label(self, op: int) -> str:
        """Return what an operation is called: its kind and its number among those beside it, such as "conv2d_0"."""
        parent = self._parents[op]
        if parent not in self._labels:
            counts: dict[str, int] = {}
            labels = self._labels[parent] = {}
            for row in self._children.get(parent, ()):
                kind = self._callee(row)[0] or short_family(self.bytecode.op_name(row))
                labels[row] = f"{kind}_{counts.get(kind, 0)}"
                counts[kind] = counts.get(kind, 0) + 1
        own = self._labels[parent][op]
        return own if parent in self._graphs or parent == NONE else f"{self.label(parent)}/{own}"

    def reader_name(self, op: int, inside: frozenset[int] = frozenset()) -> str:
        """Return the name of a value: the first operation that reads it, past those that only move it, and the operand.

        `inside`: operations that do not count as readers.
        """
        found = ""
        for _ in range(_MAX_STEPS):
            uses = [use for use in self.uses(op) if use[0] not in inside]
            if not uses:
                break
            reader, number = uses[0]
            name = self.bytecode.op_name(reader)
            found = f"{self.label(reader)}.{self.operand(reader, number)}"
            if short_family(name) not in _MOVING or number != 0 or self.bytecode.ops["result_count"][reader] != 1:
                break
            op = reader
        return found

    def home(self, op: int) -> tuple[int, int]:
        """Return the function that an operation is in, and the operation whose decomposition it is part of, or NONE.

        (NONE, NONE) outside of functions. The branches of control flow are no decompositions.
        """
        parent = self._parents[op]
        if parent == NONE:
            return NONE, NONE
        if parent not in self._homes:
            if parent in self._function_rows:
                self._homes[parent] = parent, NONE
            else:
                graph, outer = self.home(parent)
                self._homes[parent] = graph, outer if outer != NONE or parent in self._flow else parent
        return self._homes[parent]

    # ------------------------------------------------------------------------------------------------ computed weights

    def _find_computed(self) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = {}
        rows = self.bytecode.ops_named(lambda name: short_family(name) in _COMPUTING or short_family(name) == "cast")
        for op in rows.tolist():
            name, makers = self.bytecode.op_name(op), self.makers(op)
            is_cast = short_family(name) == "cast"
            if self.bytecode.ops["result_count"][op] != 1 or not makers or self.home(op)[1] != NONE:
                continue
            if all(maker in found or (maker in self._is_constant and not is_cast) for maker in makers):
                found[op] = {operand_name(name, number): maker for number, maker in enumerate(makers)}
        return found

    @cached_property
    def _ends(self) -> dict[int, frozenset[int]]:
        """Operation that makes a weight -> all operations that compute it, itself among them, and its constants."""
        ends = {}
        for op in self.computed:
            uses = self.uses(op)
            if not uses or any(reader not in self.computed for reader, _ in uses):
                inside, pending = {op}, [op]
                while pending and len(inside) < _MAX_PARTS:
                    for maker in self.computed.get(pending.pop(), {}).values():
                        if maker not in inside:
                            inside.add(maker)
                            pending.append(maker)
                ends[op] = frozenset(inside)
        return ends

    def parts_of(self, op: int) -> dict[str, int]:
        """Return the constants that a weight is computed from, by operand; "data.lut" for one of an inner operation."""
        found: dict[str, int] = {}
        pending = [("", op)]
        for prefix, row in pending:  # grows on the way
            for key, maker in self.computed.get(row, {}).items():
                is_plain = short_family(self.bytecode.op_name(row)) in ("cast", "sparse_with_bitmask_to_dense")
                path = prefix if is_plain else f"{prefix}{key}"
                if maker in self.computed:
                    pending.append((path if is_plain or not path else f"{path}.", maker))
                else:
                    found[path.rstrip(".") or key] = maker
            if len(pending) > _MAX_PARTS:
                break
        return found

    # -------------------------------------------------------------------------------------------------------- listing

    def rows(self, constants: bool = False, stored: bool = False) -> list[WeightRow]:
        """Return the tensors of the program, in its order.

        `constants`: every constant, not only the weights: small inline ones, and those inside decompositions. `stored`:
        the parts of compressed weights instead of the weights.
        """
        ordinals, deep = self._number_constants()
        owner: dict[int, tuple[int, str]] = {}  # part -> the first weight that it is a part of, and its name there
        first: dict[int, int] = {}
        for end in self._ends:
            parts = self.parts_of(end)
            first[end] = min((ordinals[row][1] for row in parts.values() if row in ordinals), default=-1)
            for key, row in parts.items():
                if row not in owner and self._is_part(row):
                    owner[row] = end, key
        found: list[tuple[int, int, int, str]] = []  # function, ordinal, operation, name
        names = {end: self.reader_name(end, inside) or f"#{first[end]}" for end, inside in self._ends.items()}
        if not stored:
            found += [(self.home(end)[0], first[end], end, name) for end, name in names.items()]
        for row, (graph, ordinal) in ordinals.items():
            if row not in owner:
                if constants or self.is_weight(row):
                    found.append((graph, ordinal, row, self.reader_name(row)))
            elif stored:
                end, key = owner[row]
                found.append((graph, ordinal, row, f"{names[end]}.{key}"))
        found.sort(key=lambda row: row[:2])
        if constants:
            found += [(graph, -1, row, f"{self.label(outer)}/#{n}") for row, (graph, outer, n) in deep.items()]
        return self._named_rows(found)

    def _is_part(self, op: int) -> bool:
        """Whether only operations that compute weights read a constant."""
        if op not in self._parts:
            self._parts[op] = all(reader in self.computed for reader, _ in self.uses(op))
        return self._parts[op]

    def _named_rows(self, found: list[tuple[int, int, int, str]]) -> list[WeightRow]:
        rows: dict[str, WeightRow] = {}
        for graph, ordinal, op, name in found:
            function = self._function_rows[graph]
            full = f"{function}/{name or f'#{ordinal}'}"
            if full in rows:  # nothing reads it, and another weight has the same first part
                full = (
                    f"{function}/#{ordinal}" if f"{function}/#{ordinal}" not in rows else f"{function}/{self.label(op)}"
                )
            rows[full] = WeightRow(full, function, op, ordinal)
        return list(rows.values())

    def _number_constants(self) -> tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int, int]]]:
        """Return the constants directly in functions (function, ordinal), and others (function, operation, ordinal)."""
        ordinals: dict[int, tuple[int, int]] = {}
        deep: dict[int, tuple[int, int, int]] = {}
        counts: dict[int, int] = {}
        for row in self.constants:
            graph, outer = self.home(row)
            if graph == NONE:
                continue
            key = graph if outer == NONE else outer
            number = counts.get(key, 0)
            counts[key] = number + 1
            if outer == NONE:
                ordinals[row] = graph, number
            else:
                deep[row] = graph, outer, number
        return ordinals, deep

    def is_weight(self, op: int) -> bool:
        """Whether a constant is a weight: a resource, or an inline value of ten numbers or more.

        A value of unknown form is a weight, so that it is listed; a value that is not a tensor is not.
        """
        try:
            kind = self.kind(op)
        except (FormatError, UnsupportedError):
            return False
        try:
            if self.bytecode.code_of(self._value_attribute(op)) != codes.DENSE:
                return True
        except (FormatError, UnsupportedError):
            return True
        return None not in kind.shape and prod(kind.shape) >= SMALL_COUNT and kind.text != "i1"  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------------ stored constants

    def _value_attribute(self, op: int) -> int:
        numbers = self.bytecode.property_numbers(op)
        if len(numbers) != 1:
            message = f"properties of {codes.CONSTANT}: expected an attribute, got {numbers[:16]}"
            raise UnsupportedError(message, **self._at(op))
        return numbers[0]

    def stored(self, op: int) -> StoredConstant:
        """Return where the value of a constant is.

        Raises: UnsupportedError: an encoding that is not known; its code is named. FormatError: it is broken.
        """
        bytecode = self.bytecode
        attribute = self._value_attribute(op)
        code = bytecode.code_of(attribute)
        if code == codes.DENSE:
            is_splat, offset, nbytes = bytecode.dense_bytes(attribute)
            return StoredConstant(attribute, offset, nbytes, is_splat, None, 1)
        if code != codes.RESOURCE:
            expected = f"an attribute with code {codes.DENSE} or {codes.RESOURCE}"
            message = f"value of {codes.CONSTANT}: expected {expected}, got {code}"
            raise UnsupportedError(message, **self._at(op), code="attribute-code")
        number = bytecode.resource_of(attribute)
        row = bytecode.resources[number]
        return StoredConstant(
            attribute, int(row["data_offset"]), int(row["nbytes"]), False, number, int(row["alignment"])
        )

    def debug_label(self, op: int) -> str:
        """Return the modules and the node that made an operation, such as "Net$1/Linear$2:addmm_1"; "" if unknown."""
        try:
            numbers = self.bytecode.attribute(int(self.bytecode.ops["location"][op]))
        except UnsupportedError:  # in MLIR's own encoding, as the first release wrote it
            return ""
        if numbers[0] != codes.LOCATION or len(numbers) < 5:
            return ""
        fused = numbers[3]
        rest = numbers[4 + fused :]
        stack, node = "", ""
        for number in rest[1 : 1 + rest[0]] if rest else ():
            entry = self.bytecode.attribute(number)
            if entry[0] != codes.METADATA or len(entry) != 3:
                continue
            key, data = self.bytecode.string(entry[1]), self.bytecode.attribute(entry[2])
            if data[0] != codes.METADATA_DATA or len(data) != 2:
                continue
            items = self._items(data[1])
            if key == codes.CALL_STACK:
                stack = "/".join(reversed([self.bytecode.text_of(item) or "" for item in items]))
            elif key == codes.SOURCES and items:
                node = self._identifier(items[0])
        return f"{stack}:{node}".strip(":")

    def _identifier(self, number: int) -> str:
        numbers = self.bytecode.attribute(number)
        for entry in numbers[2:] if numbers[0] == codes.DICTIONARY else ():
            key, value = self._named(entry)
            if key == codes.IDENTIFIERS and (items := self._items(value)):
                return self.bytecode.text_of(items[0]) or ""
        return ""


def type_text(kind: TensorKind) -> str:
    """Return a type as people read it, such as "f32 [1, 64]"."""
    return f"{kind.text} [{', '.join('?' if size is None else str(size) for size in kind.shape)}]"


def is_packed(dtype: DType | None, nbits: int) -> bool:
    """Whether elements are stored several to a byte."""
    return nbits < 8 and dtype is not DType.BOOL
