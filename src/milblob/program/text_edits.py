"""Changing MIL text: statements that edits of its Program change are rewritten, every other character is kept."""

import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .. import _codec
from ..errors import FormatError
from .plain import parse_text
from .scan import ProgramScan
from .splice import Edit, Piece, Spliced, pieces_of, splice
from .view import Block, Operation, ProgramView
from .wire_edits import fields_of
from .write_text import version_of, write_operations, write_program

_PREFIX_NBYTES = 11  # the most that stands before a message: a tag of one byte and its length
_OPERATION_BLOCKS, _BLOCK_OPERATIONS = 4, 3
_BLANK = b" \t\r\n"

Span = tuple[int, int]


def splice_text(text: _codec.Buffer, program: ProgramScan, edits: Iterable[Edit]) -> Spliced:
    """Change the Program that a text describes, and return the changed text.

    Statements whose operation changes are rewritten as `write_program` writes them. New ones come after the one before
    them, with the same white space. If something around the operations changes, the whole text is rewritten. The result
    is parsed again and compared with the edited Program.

    `program`: the scan of the Program that `parse_text` makes of it. `edits`: of `program.buffer`, as for `splice`.
    Raises: UnsupportedError: a changed operation that text cannot hold. FormatError: the text is not that of the
    Program. As `splice`.
    """
    ordered = sorted(edits, key=lambda edit: (edit.offset, edit.nbytes))
    spliced = splice(program.buffer, program.span, ordered)
    statements: list[tuple[int, int]] = []
    data = parse_text(text, statements)
    old = ProgramView(program.buffer, program.span)
    if len(statements) != old.graph.counts[2] or data != bytes(
        memoryview(program.buffer)[slice(*_range(program.span))]
    ):
        raise FormatError("MIL text: expected the one that its Program was read from, got another", file=text.name)
    changed = _codec.Buffer(spliced.tobytes(), text.name)
    new = ProgramView(changed, (0, changed.nbytes))
    writing = _Writing(text, old, new, _Kept(spliced.pieces), statements)
    if not _is_inside_operations(old, ordered) or not writing.functions():
        return _written_anew(text, changed)
    changes = sorted(writing.changes, key=lambda change: change[:2])
    pieces = pieces_of((0, text.nbytes), ((start, end - start, memoryview(new)) for start, end, new in changes))
    nbytes = text.nbytes + sum(len(new) - (end - start) for start, end, new in changes)
    result = Spliced(text, nbytes, pieces)
    writing.require_same(_codec.Buffer(result.tobytes(), text.name))
    return result


def _range(span: Span) -> Span:
    return span[0], sum(span)


def _written_anew(text: _codec.Buffer, changed: _codec.Buffer) -> Spliced:
    """The whole Program as text, in the version of the old text and with its end; read and written again, it is one."""
    version, newline = _full(version_of(bytes(memoryview(text)[:200]))), bytes(memoryview(text)[-1:]) == b"\n"

    def written(program: _codec.Buffer) -> bytes:
        out = io.BytesIO()
        write_program(program, (0, program.nbytes), out.write, version=version, newline=newline)
        return out.getvalue()

    result = written(changed)
    data = parse_text(_codec.Buffer(result, text.name))
    if written(_codec.Buffer(data, text.name)) != result:
        raise _another(text.name)
    return Spliced(text, len(result), [memoryview(result)])


def _another(name: str | None) -> FormatError:
    return FormatError("MIL text with changes: expected the edited Program, got another one", file=name)


def _full(version: str | None) -> str | None:
    """A version with the number after the point, which a text may leave out."""
    return version if version is None or "." in version else f"{version}.0"


def _is_inside_operations(view: ProgramView, edits: Sequence[Edit]) -> bool:
    """Whether all edits change, remove or add operations of functions, and nothing around these."""
    blocks = [block for function in view.functions.values() for block in function.blocks.values()]
    spans = sorted(_range(op.message) for block in blocks for op in block.operations)
    starts = [start for start, _ in spans]
    for edit in edits:
        end, at = edit.offset + edit.nbytes, bisect_right(starts, edit.offset) - 1
        if at >= 0 and end <= spans[at][1]:
            continue
        if at + 1 == len(spans) or end != spans[at + 1][1] or edit.offset + _PREFIX_NBYTES < spans[at + 1][0]:
            return False
    return True


class _Kept:
    """Which bytes of a spliced message are old ones, and where they were."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._starts: list[int] = []
        self._rows: list[tuple[int, int]] = []  # end, offset of the new bytes from the old ones
        at = 0
        for piece in pieces:
            nbytes = piece[1] if isinstance(piece, tuple) else piece.nbytes
            if isinstance(piece, tuple):
                self._starts.append(at)
                self._rows.append((at + nbytes, piece[0] - at))
            at += nbytes

    def before(self, span: Span) -> int | None:
        """Return the old position of an unchanged message; None if it changes."""
        at = bisect_right(self._starts, span[0]) - 1
        if at < 0 or sum(span) > self._rows[at][0]:
            return None
        return span[0] + self._rows[at][1]


class _Writing:
    """The changes to the statements of a text."""

    def __init__(
        self, text: _codec.Buffer, old: ProgramView, new: ProgramView, kept: _Kept, statements: list[Span]
    ) -> None:
        # of the text
        self.changes: list[tuple[int, int, bytes]] = []  # begin and end in the old text, and what replaces it
        self._text = memoryview(text)
        self._old = old
        self._new = new
        self._kept = kept
        self._statements = statements
        self._version = _full(version_of(bytes(self._text[:200])))
        self._same: list[tuple[int, int]] = []  # rows of a kept statement, new and old
        self._anew: list[int] = []  # rows of rewritten statements

    def functions(self) -> bool:
        """Find the changes; False if some of them cannot be made to statements."""
        pairs = zip(self._old.functions.items(), self._new.functions.items(), strict=True)
        return all(self._block(old.block, new.block) for (_, old), (_, new) in pairs)

    def require_same(self, text: _codec.Buffer) -> None:
        """Refuse a text that does not parse to the edited Program. Raises: FormatError."""
        data = parse_text(text)
        view = ProgramView(_codec.Buffer(data, text.name), (0, len(data)))
        good = view.graph.counts == self._new.graph.counts
        good = good and all(_message(view.operation(a)) == _message(self._old.operation(b)) for a, b in self._same)
        if not good or self._written(view, self._anew) != self._written(self._new, self._anew):
            raise _another(text.name)

    def _block(self, old: Block, new: Block) -> bool:
        before, after = list(old.operations), list(new.operations)
        for removed, added, left in _gaps(before, self._partners(before, after)):
            if len(removed) == len(added):
                if not all(map(self._statement, removed, added)):
                    return False
            elif not self._exchanged(removed, added, left, before):
                return False
        return True

    def _partners(self, before: list[Operation], after: list[Operation]) -> list[tuple[Operation, int | None]]:
        """Return every new operation with the index of its old one: by its place, else by its outputs' names."""
        places = {op.message[0]: i for i, op in enumerate(before)}
        names = {op.output_names: i for i, op in enumerate(before) if op.output_names}
        last = -1
        result: list[tuple[Operation, int | None]] = []
        for op in after:
            place = self._kept.before(op.message)
            found = names.get(op.output_names) if place is None else places.get(place)
            if found is not None and found > last:
                last = found
                result.append((op, found))
            else:
                result.append((op, None))
        return result

    def _statement(self, old: Operation, new: Operation) -> bool:
        """Keep an operation, or rewrite it in its place; return whether that was possible."""
        if _message(new) == _message(old):
            self._same.append((new.row, old.row))
            return True
        if old.blocks and _head(old) == _head(new):
            return all(map(self._block, old.blocks, new.blocks))
        start, nbytes = self._statements[old.row]
        self.changes.append((start, start + nbytes, self._anew_text(new)))
        return True

    def _exchanged(self, removed: list[Operation], added: list[Operation], left: int, before: list[Operation]) -> bool:
        """Put operations in place of others; `left` is the index of the old one before them, or -1.

        Returns: False if no statement exists to put new ones beside.
        """
        if not before:
            return False
        blank = self._blank_before(before[max(left, 0)])
        at = blank[0] if left < 0 else sum(self._statements[before[left].row])
        space = bytes(self._text[slice(*blank)])
        new = b"".join(space + self._anew_text(op) for op in added)
        if new:
            self.changes.append((at, at, new))
        for op in removed:
            start, _ = self._blank_before(op)
            self.changes.append((start, sum(self._statements[op.row]), b""))
        return True

    def _blank_before(self, op: Operation) -> Span:
        """Where the white space before a statement begins and ends."""
        end = start = self._statements[op.row][0]
        nbytes = 256
        while start > 0:  # a piece that is all blank is followed by a longer one
            piece = bytes(self._text[max(end - nbytes, 0) : end])
            start = end - len(piece) + len(piece.rstrip(_BLANK))
            if start > end - len(piece):
                break
            nbytes *= 2
        return start, end

    def _anew_text(self, op: Operation) -> bytes:
        self._anew.append(op.row)
        return self._written(self._new, [op.row]).rstrip(b"\n")

    def _written(self, view: ProgramView, rows: list[int]) -> bytes:
        out = io.BytesIO()
        write_operations(view, [view.operation(row) for row in rows], out.write, weights="all", version=self._version)
        return out.getvalue()


def _gaps(
    before: list[Operation], partners: list[tuple[Operation, int | None]]
) -> Iterable[tuple[list[Operation], list[Operation], int]]:
    """Yield kept operations, each with its partner, and between them the removed and the added ones.

    Yields: (old operations, new operations, index of the old one before them).
    """
    last, added = -1, []
    for op, found in partners:
        if found is None:
            added.append(op)
            continue
        if added or found > last + 1:
            yield before[last + 1 : found], added, last
        yield [before[found]], [op], last
        last, added = found, []
    if added or last + 1 < len(before):
        yield before[last + 1 :], added, last


def _message(op: Operation) -> bytes:
    return bytes(memoryview(op.view.held()[0])[slice(*_range(op.message))])


def _head(op: Operation) -> list[bytes]:
    """An operation and its blocks without the operations in these."""
    buffer, _ = op.view.held()
    view = memoryview(buffer)
    found = []
    for entry in fields_of(buffer, op.message):
        if entry.number != _OPERATION_BLOCKS:
            found.append(bytes(view[entry.start : entry.end]))
            continue
        inside = (f for f in fields_of(buffer, entry.span) if f.number != _BLOCK_OPERATIONS)
        found.append(b"".join(bytes(view[f.start : f.end]) for f in inside))
    return found
