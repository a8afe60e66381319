"""The scan of a Program: the names of its constants, and which of them form a compressed weight."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .. import _codec
from ..errors import FormatError, UnsupportedError, program_path
from .plain import rewrite

if TYPE_CHECKING:
    from .view import ProgramView

MAX_NAMES_NCHARS = 1 << 26
"""Limit for all names together. Names repeat text of the file (an operation's name in each of its constants), so a few
megabytes could otherwise need terabytes; ten thousand constants take less than a hundredth of this."""

MAX_CHAIN = 32
"""Constexpr operations that compute one weight. coremltools makes chains of three."""

MAX_PARTS = 128
"""Parts of all the operations that compute one weight. Those that are known have at most four each."""

_MAX_REPEATED = 64  # characters that are made of each byte of a Program, where names are put together

_NO_ROW = (-1, -1)  # of a row that only reads a name


class Use(NamedTuple):
    """One use of a constant.

    Attributes:
        op: type of the operation that reads it, or "return" for an output of a block.
        name: the operation's first output; of a block's output: the constant itself.
        parameter: the operation's input, "" for an output of a block.
    """

    op: str
    name: str
    parameter: str


class _Named(NamedTuple):
    """What a name is made of.

    Attributes:
        name: with prefix and function; None of a row that only reads a name.
        own: without them.
        function, block: rows of the scan, or -1.
    """

    name: str | None
    own: str
    function: int
    block: int


class Compressed:
    """A chain of constexpr operations that ends in one tensor: a dense weight, or a part of another chain.

    Attributes:
        op: the `_codec.Op` at that end.
        parts: parameter -> the `_codec.Constant` stored for it, or the Compressed that computes it. The outputs of one
            operation share them.
        output: which of the operation's outputs it is, counted from 0.
    """

    __slots__ = ("op", "output", "parts")

    def __init__(self, op: _codec.Op, parts: dict[str, Any], output: int = 0) -> None:
        self.op = op
        self.parts = parts
        self.output = output

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


class Program:
    """The scan of one serialized Program: its constants and their names.

    Args:
        buffer: held bytes.
        span: (offset, nbytes) of the Program in them.
        prefix: put before every name: "" or, in a pipeline, "model0/".
        constants: also small immediates, bools and strings, not just weights.
        is_text: parsed from MIL text, in which a repeated name is refused.

    Attributes:
        scan: `_codec.Scan`.
        buffer, span: what the scan's offsets refer to: the arguments, or plain bytes rewritten by protobuf.
        groups: every constexpr operation with its parts, once `compressed` was called.
        part_names: names of parts and of constexpr operations, by Constant or Compressed.
        shared: constants that are parts, and also weights because other operations read them.
        rewritten: whether protobuf had to rewrite split messages or repeated map keys first.
        view: functions, blocks and operations, once somebody asked for them; made by `model.functions.view_of`.
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
        self.groups: list[Compressed] = []
        self.part_names: dict[Any, str] = {}
        self.shared: set[_codec.Constant] = set()
        self._uses: dict[tuple[int, str], list[Use]] | None = None
        self._readers: dict[tuple[int, str], list[_codec.Constant]] | None = None
        self._defined: set[tuple[int, str]] = set()  # (block, name), beside those of `scan`
        self.buffer = buffer
        self.span = span
        self.rewritten = False
        self.view: ProgramView | None = None
        flags = _codec.SCAN_ALL if constants else 0
        scan = _codec.scan_program(buffer, *span, flags)
        if scan is None and is_text:  # protobuf would keep only the last of two; the text has both
            raise FormatError("MIL text: expected every function and argument once, got a name twice", file=buffer.name)
        if scan is None:
            self.buffer, self.span = rewrite(buffer, span)
            self.rewritten = True
            scan = _codec.scan_program(self.buffer, *self.span, flags | _codec.SCAN_PLAIN)
        if scan is None:
            words = "Program: expected messages in one piece after protobuf merged them, got pieces"
            raise FormatError(words, file=buffer.name)
        self.scan: _codec.Scan = scan
        self.flags = flags | (_codec.SCAN_PLAIN if self.rewritten else 0)

    def release(self) -> None:
        """Release the bytes; names and paths stay."""
        self.buffer, self.span = _codec.Buffer(b""), (0, 0)
        self.scan.release()
        if self.view is not None:
            self.view.release()

    # ------------------------------------------------------------------------------------------------------- names

    def names(self, small: Sequence[_codec.Constant] = ()) -> tuple[_codec.Names, dict[int, str]]:
        """Return unique, stable names: of scan.constants, then of `small`, and of constexpr operations, by id.

        All of them share one namespace. Rows that only read a name have an empty name. Whether a name occurs twice is
        decided over all constants, listed or not, so that a tensor has the same name in every listing. Names in one
        block differ (SSA): other blocks matter only where a function has nested blocks or specializations.

        Args:
            small: constants that are not in `scan`, from another scan of the Program.
        """
        scan = self.scan
        names = scan.names(self.prefix, MAX_NAMES_NCHARS)
        is_nested = len(scan.blocks) > len(scan.functions) and not self.flags & _codec.SCAN_ALL
        if is_nested or small:
            names = self._names_with(small, is_nested)
        elif not names.is_unique:
            rows = self._named(scan, names)
            names = _codec.names_of(self._make_unique(rows))
        count = len(scan) + len(small)
        ops = [op for op in scan.ops if op.type.startswith("constexpr_")] if scan.has_constexpr else []
        scan.settle()
        return names, {id(op): names[count + i] for i, op in enumerate(ops)}

    def _names_with(self, small: Sequence[_codec.Constant], is_nested: bool) -> _codec.Names:
        """Return the names of the scan's constants and of `small`, as `names`; with another scan, of all constants."""
        scan = self.scan
        every = self.scan_again(_codec.SCAN_ALL)
        named = self._named(every, every.names(self.prefix, MAX_NAMES_NCHARS))
        count = len(every)
        constants = [*scan.constants, *small]
        row_of = {constant: row for row, constant in enumerate(every.constants)}
        if is_nested:
            names = self._make_unique(named)
            return _codec.names_of([*(names[row_of[c]] for c in constants), *names[count:]])
        rows = [*(named[row_of[c]] for c in constants), *named[count:]]
        return _codec.names_of(self._make_unique(rows))

    def _named(self, scan: _codec.Scan, names: _codec.Names) -> list[_Named]:
        """Return what each name is made of: those of constants, then those of the outputs of constexpr operations."""
        heads = [self.prefix] * (len(scan.functions) + 1)  # the last one, [-1], is of what belongs to no function
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
        tops = Counter(row[1] for row in self.scan.blocks if row[2] < 0)
        nchars = 0
        for i, (own, name, function, block) in enumerate(rows):
            if own is not None and counts[own] > 1:
                if (function, block) not in scopes:
                    scopes[function, block] = self.scope(function, block, tops[function] > 1)
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
            words = f"names of all constants: expected at most {MAX_NAMES_NCHARS} bytes, got {nchars} or more"
            raise FormatError(words, file=self.buffer.name)

    def require_texts(self, nchars: int) -> None:
        """Refuse texts made of names, which they repeat, if they have many more characters than the Program bytes."""
        most = max(MAX_NAMES_NCHARS, _MAX_REPEATED * self.span[1])
        if nchars > most:
            words = f"names with the blocks around them: expected at most {most} characters, got {nchars} or more"
            raise FormatError(words, file=self.buffer.name)

    def scope(self, function: int, block: int, several: bool) -> str:
        """The block path of DESIGN: ``main/cond_0[1]/``; ``main[CoreML7]/`` where a function has several blocks."""
        steps = []
        blocks = self.scan.blocks
        while block >= 0 and blocks[block][2] >= 0:
            steps.append(f"{blocks[block][0]}[{blocks[block][3]}]/")
            block = blocks[block][2]
        if function < 0:
            return ""
        name = self.scan.functions[function][0]
        top = f"{name}[{blocks[block][0]}]/" if several and block >= 0 else f"{name}/"
        return top + "".join(steps[::-1])

    def path(self, op: Any, constant: Any = None) -> str:
        """Return the path of an operation, or of a constant (then `op` may be None), for messages."""
        blocks = self.scan.blocks
        block = constant.block if constant is not None else op.block
        number = constant.function if constant is not None else blocks[block][1]
        function = self.scan.functions[number][0] if number >= 0 else ""
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

    def compressed(self) -> tuple[list[Compressed], dict[_codec.Constant, None]]:
        """Group the parts of constexpr operations.

        Returns:
            The dense weights, in Program order, and all constants that are parts of one, as keys (a const operation
            that a constexpr operation reads is a part too, and may be too small to be in scan.constants).
        """
        if not self.scan.has_constexpr:
            return [], {}
        ops = [op for op in self.scan.ops if op.type.startswith("constexpr_")]
        by_message: dict[tuple[int, int], dict[str, Any]] = {}
        seen = Counter[tuple[int, int]]()
        groups = {}
        for op in ops:
            groups[id(op)] = Compressed(op, by_message.setdefault(op.message, {}), seen[op.message])
            seen[op.message] += 1
        self.groups = list(groups.values())
        outputs: dict[tuple[int, str], Any] = {(group.op.block, group.op.name): group for group in self.groups}
        parts: dict[_codec.Constant, None] = {}
        readers = []
        for c in self.scan.constants:
            if c.op is not None and id(c.op) in groups:
                if c.storage == _codec.NAME:
                    readers.append(c)
                elif c.key != "name" and c.mil_code != 2:
                    groups[id(c.op)].parts[_part(c)] = c
                    parts[c] = None
            elif c.op is not None and c.op.type == "const" and c.key == "val":
                outputs.setdefault((c.block, c.op.name), c)
        inner: set[tuple[int, int]] = set()  # messages of operations that another one reads
        small = False
        outside: dict[tuple[int, str], bool] = {}
        for c in readers:
            source = self._visible(outputs, c.block, c.text)
            if source is None and not small:
                small = True
                for key, value in self._small_constants().items():
                    outputs.setdefault(key, value)
                source = self._visible(outputs, c.block, c.text)
            if source is None:
                continue  # the name of something that is not a constant, so not a part
            groups[id(c.op)].parts[_part(c)] = source
            if isinstance(source, Compressed):
                inner.add(source.op.message)
            elif source not in parts:  # else looked at already: the parts of many operations may be one
                parts[source] = None
                if self._is_read_outside(source.block, source.op.name, outside):
                    self.shared.add(source)
        self._require_chains()
        # A chain that only other constexprs read is a part, and so is one with several outputs (a mask and values).
        ends = [
            g
            for g in groups.values()
            if g.op.output_count == 1
            and (g.op.message not in inner or self._is_read_outside(g.op.block, g.op.name, outside))
        ]
        return ends, parts

    def _is_read_outside(self, block: int, name: str, known: dict[tuple[int, str], bool]) -> bool:
        """Whether anything but a constexpr operation reads a name; `known` remembers the answers."""
        found = known.get((block, name))
        if found is None:
            uses = self.uses().get((block, name), ())
            found = known[block, name] = any(not use.op.startswith("constexpr_") for use in uses)
        return found

    def _require_chains(self) -> None:
        """Refuse constexpr operations that read each other in a circle, and weights of too many of them.

        Whoever walks through what computes a weight, and does so again for each weight, has bounded work then: also
        where operations share what they read, so that there are more ways to it than anyone could follow.

        Raises:
            FormatError: a circle. UnsupportedError: more operations or parts than MAX_CHAIN or MAX_PARTS.
        """
        numbers: dict[tuple[int, int], int] = {}
        ops = [numbers.setdefault(group.op.message, len(numbers)) for group in self.groups]
        groups = dict(zip(ops, self.groups, strict=True))  # outputs share their parts
        parts = [0] * len(groups)
        inner: dict[int, set[int]] = {}
        readers: dict[int, list[int]] = {}
        for number, group in groups.items():
            read = {numbers[part.op.message] for part in group.parts.values() if isinstance(part, Compressed)}
            parts[number] = len(group.parts)
            if parts[number] > MAX_PARTS:
                self._refuse(group, f"at most {MAX_PARTS} parts of a weight")
            if read:
                inner[number] = read
                for other in read:
                    readers.setdefault(other, []).append(number)
        waiting = {number: len(read) for number, read in inner.items()}
        ready = [number for number in readers if number not in inner]
        chains: dict[int, tuple[int, ...]] = {}  # of what is read: its operations, itself among them
        for number in ready:  # grows: an operation comes once all that it reads have come
            chain = {number}.union(*(chains[other] for other in inner.get(number, ())))
            if len(chain) > MAX_CHAIN:
                self._refuse(groups[number], f"a chain of at most {MAX_CHAIN}")
            if sum(parts[other] for other in chain) > MAX_PARTS:
                self._refuse(groups[number], f"at most {MAX_PARTS} parts of a weight")
            waiting.pop(number, None)
            if number in readers:
                chains[number] = tuple(chain)
            for reader in readers.get(number, ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.append(reader)
        if waiting:
            words = "constexpr operation: expected parts that are computed before it, got itself among them"
            raise FormatError(words, file=self.buffer.name, where=self.path(groups[_on_circle(inner, waiting)].op))

    def _refuse(self, group: Compressed, expected: str) -> NoReturn:
        words = f"constexpr operations: expected {expected}, got more"
        raise UnsupportedError(words, file=self.buffer.name, where=self.path(group.op))

    def _small_constants(self) -> dict[tuple[int, str], Any]:
        """Every const operation, those below the threshold for weights included: (block, name) -> Constant."""
        scan = self.scan_again(_codec.SCAN_ALL)
        return {
            (c.block, c.op.name): c
            for c in scan.constants
            if c.key == "val" and c.op is not None and c.op.type == "const"
        }

    def scan_again(self, flags: int) -> _codec.Scan:
        """Scan for something else; the rows of functions and blocks are numbered as in `scan`."""
        scan = _codec.scan_program(self.buffer, *self.span, self.flags | flags | _codec.SCAN_PLAIN)
        if scan is None:  # pieces in messages that the first scan skipped
            raise UnsupportedError("Program: expected every message in one piece, got pieces", file=self.buffer.name)
        return scan

    def _visible(self, outputs: dict[tuple[int, str], Any], block: int, name: str) -> Any:
        while block >= 0:
            found = outputs.get((block, name))
            if found is not None:
                return found
            block = self.scan.blocks[block][2]
        return None

    # -------------------------------------------------------------------------------------------------------- uses

    def uses(self) -> dict[tuple[int, str], list[Use]]:
        """Return the uses of each definition: (its block, its name) -> uses. Names are resolved by scope.

        Only names that an operation of this scan, or of `add_defined`, defines are kept; a nested block sees the blocks
        around it. Found on the first call.
        """
        found = self._uses  # another thread may reset it
        if found is None:
            found = self._uses = {
                (block, name): [
                    Use("return", name, "") if (op := reading_op(row)) is None else Use(op.type, op.name, row.key)
                    for row in rows
                ]
                for (block, name), rows in self._find_readers().items()
            }
        return found

    def readers(self) -> dict[tuple[int, str], list[_codec.Constant]]:
        """Return the rows of `uses`: a Constant with storage NAME for every place where a name is read."""
        found = self._readers
        if found is None:
            found = self._readers = self._find_readers()
        return found

    def add_defined(self, ops: Sequence[_codec.Op]) -> None:
        """Make `uses` and `readers` cover these operations too, which come from another scan of the Program."""
        self._defined |= {(op.block, op.name) for op in ops}
        self._uses = self._readers = None

    def _find_readers(self) -> dict[tuple[int, str], list[_codec.Constant]]:
        scan = self.scan_again(_codec.SCAN_USES)
        defined = self._defined | {(op.block, op.name) for op in self.scan.ops}
        found: dict[tuple[int, str], list[_codec.Constant]] = {}
        for c in scan.constants:
            block = c.block
            while block >= 0 and (block, c.text) not in defined:
                block = scan.blocks[block][2]
            if block >= 0:
                found.setdefault((block, c.text), []).append(c)
        return found


def reading_op(row: _codec.Constant) -> _codec.Op | None:
    """Return the operation that a row of `Program.readers` belongs to; None for an output of a block."""
    return None if row.owner == _codec.RETURN else row.op


def _on_circle(inner: dict[int, set[int]], waiting: dict[int, int]) -> int:
    """Return one of the operations that wait for themselves, of all that wait: back from any, until one comes again."""
    at, seen = next(iter(waiting)), set[int]()
    while at not in seen:
        seen.add(at)
        at = next(other for other in inner[at] if other in waiting)
    return at


def _part(c: Any) -> str:
    index, count = c.binding
    return c.key if count == 1 else f"{c.key}[{index}]"
