"""The scan of a Program: the names of its constants, and which of them form a compressed weight."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from .. import _codec
from ..errors import FormatError, UnsupportedError, program_path
from .plain import rewrite

MAX_NAMES_NCHARS = 1 << 26
"""Limit for all names together. Names repeat text of the file (an operation's name in each of its constants), so a few
megabytes could otherwise need terabytes; ten thousand constants take less than a hundredth of this."""

MAX_CHAIN, MAX_PARTS = _codec.MAX_CHAIN, _codec.MAX_PARTS
"""Constexpr operations that compute one weight, and parts of all of them: see program/chains.h."""

_MAX_REPEATED = 64  # characters that are made of each byte of a Program, where names are put together

_NO_ROW = (-1, -1)  # of a row that only reads a name


class _Named(NamedTuple):
    """The components of a name."""

    name: str | None  # with prefix and function; None of a row that only reads a name
    own: str  # without them
    function: int  # rows of the scan, or -1
    block: int


class MissingPartError(FormatError, KeyError):
    """A constexpr operation lacks a part that it must have."""


class Parts(dict[str, Any]):
    """The parts of one constexpr operation. Asking for a missing part raises MissingPartError."""

    def __init__(self, op: _codec.Op, parts: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__(parts)
        self._op = op

    def __missing__(self, key: str) -> Any:
        raise MissingPartError(f"{key} of {self._op.type}: expected a tensor, got none")


class Compressed:
    """A chain of constexpr operations that ends in one tensor: a dense weight, or a part of another chain.

    Those of a Program are made again each time they are asked for: two are equal if they are the same output of one
    scan.

    Attributes:
        op: the `_codec.Op` at that end.
        parts: parameter -> the `_codec.Constant` stored for it, or the Compressed that computes it. The outputs of one
            operation have the same.
        output: which of the operation's outputs it is, counted from 0.
        number: of the output, in the Program's `chains`; -1 if it is not one of a Program's.
    """

    __slots__ = ("_chains", "_make", "_parts", "number", "op", "output")

    def __init__(
        self,
        op: _codec.Op,
        parts: dict[str, Any] | None,
        output: int = 0,
        number: int = -1,
        chains: _codec.Chains | None = None,
        make: Callable[[int], dict[str, Any]] | None = None,
    ) -> None:
        """Give parts, or a function that makes them at the first access."""
        self.op = op
        self._parts = parts
        self.output = output
        self.number = number
        self._chains = chains
        self._make = make

    @property
    def parts(self) -> dict[str, Any]:
        """See the class."""
        found = self._parts
        if found is None:  # two threads may both make them; they are equal
            found = self._parts = cast("Callable[[int], dict[str, Any]]", self._make)(self.number)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Compressed):
            return NotImplemented
        return self is other or (
            self._chains is not None and self._chains is other._chains and self.number == other.number
        )

    def __hash__(self) -> int:
        return hash(self.number) if self._chains is not None else id(self)

    def stored(self) -> Iterator[Any]:
        """Yield every stored part, those of inner operations included, each once."""
        seen: set[Any] = set()
        pending: list[Any] = list(self.parts.values())
        for part in pending:  # grows on the way
            if part in seen:
                continue
            seen.add(part)
            if isinstance(part, Compressed):
                pending += part.parts.values()
            else:
                yield part


class ProgramScan:
    """The scan of one serialized Program: its constants and their names. It needs only the bytes.

    `prefix`: put before every name: "" or, in a pipeline, "model0/". `constants`: also small immediates, bools and
    strings, not just weights. `is_text`: parsed from MIL text, in which a repeated name is refused.
    """

    def __init__(
        self,
        buffer: _codec.Buffer,
        span: tuple[int, int],
        prefix: str = "",
        constants: bool = False,
        is_text: bool = False,
    ) -> None:
        self.prefix = prefix
        # the inputs of constexpr operations, as rows; None if there are none, or before `link`
        self.chains: _codec.Chains | None = None
        self._all_names: _codec.Names | None = None
        # the bytes that the scan's offsets refer to: the arguments, or plain bytes rewritten by protobuf
        self.buffer = buffer
        self.span = span
        self.rewritten = False  # whether protobuf had to rewrite split messages or repeated map keys first
        flags = _codec.SCAN_ALL if constants else 0
        scan = _codec.scan_program(buffer, *span, flags)
        if scan is None and is_text:  # protobuf would keep only the last of two; the text has both
            raise FormatError("MIL text: expected every function and argument once, got a name twice", file=buffer.name)
        if scan is None:
            self.buffer, self.span = rewrite(buffer, span)
            self.rewritten = True
            scan = _codec.scan_program(self.buffer, *self.span, flags | _codec.SCAN_PLAIN)
        if scan is None:
            message = "Program: expected messages in one piece after protobuf merged them, got pieces"
            raise FormatError(message, file=buffer.name)
        self.table: _codec.Scan = scan  # `_codec.Scan`
        self.flags = flags | (_codec.SCAN_PLAIN if self.rewritten else 0)

    def release(self) -> None:
        """Release the bytes; names and paths are kept."""
        self.buffer, self.span = _codec.Buffer(b""), (0, 0)
        self.table.release()

    @property
    def constants(self) -> list[_codec.Constant]:
        """The constants, in Program order, without those below the threshold that are parts of weights."""
        return self.table.constants

    # ------------------------------------------------------------------------------------------------------- names

    def names(self, small: Sequence[_codec.Constant] = ()) -> _codec.Names:
        """Return unique, stable names: of the scan's constants, of `small`, and of the outputs of constexpr operations.

        All of them share one namespace. Rows that only read a name have an empty name. Whether a name occurs twice is
        decided over all constants, listed or not, so that a tensor has the same name in every listing. Names in one
        block differ (SSA): other blocks matter only where a function has nested blocks or specializations.

        `small`: constants that are not in `scan`, from another scan of the Program. Without any, those that are parts
        of weights come in their place, once `link` has found them.
        """
        if small:
            return self._names_with(small)
        if self._all_names is None:
            scan = self.table
            names = scan.names(self.prefix, MAX_NAMES_NCHARS)
            if self._is_nested():
                if not self._every_names()[1].is_unique:
                    names = self._names_with([scan.constant(row) for row in range(len(scan), scan.total)])
            elif not names.is_unique:
                parts = [scan.constant(row) for row in range(len(scan), scan.total)]
                names = (
                    self._names_with(parts) if parts else _codec.names_of(self._make_unique(self._named(scan, names)))
                )
            if scan.has_constexpr:
                scan.require_texts()
            self._all_names = names
        self._settle()
        return self._all_names

    def _settle(self) -> None:
        """Release the rows that the scan filled, once names are made and parts are known."""
        if self._all_names is not None and (not self.table.has_constexpr or self._linked is not None):
            self.table.settle(self.chains)

    def _is_nested(self) -> bool:
        return len(self.table.blocks) > len(self.table.functions) and not self.flags & _codec.SCAN_ALL

    def _every_names(self) -> tuple[_codec.Scan, _codec.Names]:
        every = self.scan_again(_codec.SCAN_ALL)
        every.require_texts()
        return every, every.names(self.prefix, MAX_NAMES_NCHARS)

    def _names_with(self, small: Sequence[_codec.Constant]) -> _codec.Names:
        """Return the names of the scan's constants and of `small`, as `names`; with another scan, of all constants."""
        scan = self.table
        every, every_names = self._every_names()
        named = self._named(every, every_names)
        count = len(every)
        constants = [*scan.constants, *small]
        row_of = {constant: row for row, constant in enumerate(every.constants)}
        if self._is_nested():
            names = self._make_unique(named)
            return _codec.names_of([*(names[row_of[c]] for c in constants), *names[count:]])
        rows = [*(named[row_of[c]] for c in constants), *named[count:]]
        return _codec.names_of(self._make_unique(rows))

    def name_of(self, row: Any) -> str:
        """Return the name of a Constant of the scan, or of a Compressed."""
        names = self.names()
        if isinstance(row, Compressed):
            return names[self.table.total + row.number]
        return names[self.table.row_of(row)]

    def _named(self, scan: _codec.Scan, names: _codec.Names) -> list[_Named]:
        """Return the components of each name: those of constants, then those of the outputs of constexpr operations."""
        heads = [self.prefix] * (len(scan.functions) + 1)  # the last one, [-1], is of constants outside of functions
        if len(scan.functions) > 1:
            heads[:-1] = [f"{self.prefix}{name}/" for name, _, _ in scan.functions]
        rows = [(c.function, c.block) if c.storage != _codec.NAME else _NO_ROW for c in scan.constants]
        if scan.has_constexpr:
            rows += [(scan.blocks[op.block][1], op.block) for op in scan.ops if op.type.startswith("constexpr_")]
        return [
            _Named(None, "", *row) if row is _NO_ROW else _Named(name, name[len(heads[row[0]]) :], *row)
            for name, row in zip(names, rows, strict=True)
        ]

    def _make_unique(self, rows: list[_Named]) -> list[str | None]:
        names = [row.name for row in rows]
        counts = Counter(names)
        if len(counts) == len(names):
            return names
        scopes: dict[tuple[int, int], str] = {}
        nchars = 0
        for i, (own, name, function, block) in enumerate(rows):
            if own is not None and counts[own] > 1:
                if (function, block) not in scopes:
                    scopes[function, block] = self.scope(function, block)
                scoped = self.prefix + scopes[function, block] + name
                names[i] = scoped
                nchars += len(scoped)
                self._require_nchars(nchars)
        # Not SSA, or a path that happens to equal another name: number them, in Program order.
        taken = Counter(names)
        seen: set[str] = set()
        following: dict[str, int] = {}
        for i, base in enumerate(names):
            if base is None:
                continue
            name = base
            if name in seen:
                number = following.get(base, 2)
                while (name := f"{base}#{number}") in seen or taken[name]:
                    number += 1
                following[base] = number + 1
            names[i] = name
            seen.add(name)
        return names

    def _require_nchars(self, nchars: int) -> None:
        if nchars > MAX_NAMES_NCHARS:
            message = f"names of all constants: expected at most {MAX_NAMES_NCHARS} bytes, got {nchars} or more"
            raise FormatError(message, file=self.buffer.name)

    def require_texts(self, nchars: int) -> None:
        """Refuse texts made of names, which they repeat, if they have many more characters than the Program bytes."""
        most = max(MAX_NAMES_NCHARS, _MAX_REPEATED * self.span[1])
        if nchars > most:
            message = f"names with the blocks around them: expected at most {most} characters, got {nchars} or more"
            raise FormatError(message, file=self.buffer.name)

    @cached_property
    def _block_counts(self) -> Counter[int]:
        """By function, how many blocks it has."""
        return Counter(function for _, function, parent, _, _ in self.table.blocks if parent < 0)

    def scope(self, function: int, block: int) -> str:
        """The path of a block: ``main/cond_0[1]/``; ``main[CoreML7]/`` where a function has several blocks."""
        steps = []
        blocks = self.table.blocks
        while block >= 0 and blocks[block][2] >= 0:
            steps.append(f"{blocks[block][0]}[{blocks[block][3]}]/")
            block = blocks[block][2]
        if function < 0:
            return ""
        name = self.table.functions[function][0]
        top = f"{name}[{blocks[block][0]}]/" if self._block_counts[function] > 1 and block >= 0 else f"{name}/"
        return top + "".join(steps[::-1])

    def path(self, op: Any, constant: Any = None) -> str:
        """Return the path of an operation, or of a constant (then `op` may be None), for messages."""
        blocks = self.table.blocks
        block = constant.block if constant is not None else op.block
        number = constant.function if constant is not None else blocks[block][1]
        function = self.table.functions[number][0] if number >= 0 else ""
        nesting = []
        while block >= 0 and blocks[block][2] >= 0:
            nesting.append((blocks[block][4], blocks[block][0], blocks[block][3]))
            block = blocks[block][2]
        where = (op.index, op.name) if op is not None else None
        spec = blocks[block][0] if block >= 0 else None
        return self.prefix + program_path(
            function, spec, nesting[::-1], where, constant.key if constant is not None else ""
        )

    # -------------------------------------------------------------------------------------------------- compression

    def link(self) -> None:
        """Find which constants and operations each constexpr operation reads, and which of them compute weights.

        Raises: FormatError: operations that read each other in a circle. UnsupportedError: weights of more than
        MAX_CHAIN operations, or of more than MAX_PARTS parts. As `scan_again`.
        """
        scan = self.table
        if not scan.has_constexpr or self._linked is not None:
            return
        scan.require_texts()
        chains = self.chains = _codec.Chains(scan)
        while status := chains.advance():
            if status == _codec.CHAINS_SMALL:
                small = self.scan_again(_codec.SCAN_ALL)
                small.require_texts()
                chains.add_small(small)
            elif status == _codec.CHAINS_USES:
                chains.add_uses(self._graph())
            elif status == _codec.CHAINS_CIRCLE:
                message = "constexpr operation: expected parts that are computed before it, got itself among them"
                raise FormatError(message, file=self.buffer.name, where=self.path(chains.stopped))
            else:
                most = f"{MAX_PARTS} parts of a weight"
                expected = f"at most {most}" if status == _codec.CHAINS_PARTS else f"a chain of at most {MAX_CHAIN}"
                message = f"constexpr operations: expected {expected}, got more"
                raise UnsupportedError(message, file=self.buffer.name, where=self.path(chains.stopped))

    @property
    def groups(self) -> list[Compressed]:
        """Every output of a constexpr operation, with its parts; none before `link`."""
        return [self.compressed(number) for number in range(len(self._linked))] if self._linked is not None else []

    @property
    def ends(self) -> list[Compressed]:
        """Those of `groups` that are weights."""
        return [self.compressed(number) for number in self._linked.ends] if self._linked is not None else []

    @property
    def _linked(self) -> _codec.Chains | None:
        return self.chains if self.chains is not None and self.chains.is_done else None

    def compressed(self, number: int) -> Compressed:
        """Return an output of a constexpr operation by its number; its parts are made when they are asked for."""
        chains = cast(_codec.Chains, self.chains)
        output, _ = chains.output(number)
        return Compressed(chains.op(number), None, output, number, chains, self._parts)

    def _parts(
        self, number: int, made: dict[int, Compressed] | None = None, parts: dict[int, dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Make the parts of an output, and those of all operations that these lead to, each once.

        `made`: outputs by number. parts: by number of an operation's first output; both as far as they are made.
        """
        chains = cast(_codec.Chains, self.chains)
        # Not functions that refer to each other: such a cycle would keep the file mapped.
        made, parts = ({}, {}) if made is None or parts is None else (made, parts)
        first = chains.output(number)[1]
        if first not in parts:
            found = parts[first] = Parts(chains.op(number))
            for key, constant, inner in chains.parts(number):
                if inner >= 0 and inner not in made:
                    op, output = chains.op(inner), chains.output(inner)[0]
                    made[inner] = Compressed(op, self._parts(inner, made, parts), output, inner, chains)
                found[key] = constant if inner < 0 else made[inner]
        return parts[first]

    def is_part(self, constant: _codec.Constant) -> bool:
        """Whether a constant is a part of a compressed weight."""
        return self._linked is not None and self._linked.is_part(self.table.row_of(constant))

    def is_shared(self, constant: _codec.Constant) -> bool:
        """Whether a constant is a part, and also a weight because other operations read it."""
        return self._linked is not None and self._linked.is_shared(self.table.row_of(constant))

    def scan_again(self, flags: int) -> _codec.Scan:
        """Scan for something else; the rows of functions and blocks are numbered as in `table`."""
        scan = _codec.scan_program(self.buffer, *self.span, self.flags | flags | _codec.SCAN_PLAIN)
        if scan is None:
            raise in_pieces(self.buffer)
        return scan

    def _graph(self) -> _codec.Graph:
        """Make the graph of the same bytes; the rows of blocks are numbered as in `table`."""
        graph = _codec.graph_program(self.buffer, *self.span, _codec.SCAN_PLAIN)
        if graph is None:
            raise in_pieces(self.buffer)
        return graph


def in_pieces(buffer: _codec.Buffer) -> UnsupportedError:
    """Return the error about pieces in messages that a scan skipped."""
    return UnsupportedError("Program: expected every message in one piece, got pieces", file=buffer.name)
