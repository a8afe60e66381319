"""One Program of an open model: its bytes, its constants, its functions and operations."""

from collections.abc import Callable, Iterable
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import _codec
from ..errors import FormatError, MilblobError, UnsupportedError
from ..program.scan import Compressed, ProgramScan, in_pieces
from .package import Package, Source

if TYPE_CHECKING:
    from ..program.splice import Edit, Spliced
    from ..program.view import Block, Consumer, Operation
    from .model_view import ModelView


class OpenProgram:
    """One Program of an open model. Two are equal only if they are the same object.

    `constants`: scan also for small immediates, bools and strings, not just for weights. `decoder`: makes what decodes
    compressed weights for `view`, see `program_places.decoder`; None: nothing does.
    Raises: As `ProgramScan`.
    """

    def __init__(
        self,
        package: Package,
        source: Source,
        constants: bool = False,
        decoder: Callable[[Package, Source], Any] | None = None,
    ) -> None:
        buffer, *span = source.program
        self._no_view: MilblobError | None = None  # why `view` cannot be made
        self.package = package  # the files of the model
        self._decoder = decoder
        # what the package knows of the Program, without its bytes, which `scan` holds
        self.source = source._replace(program=(_codec.Buffer(b""), 0, 0))
        # prefix, directory, mapping, is_text: of `source`
        self.prefix, self.directory = source.prefix, source.directory
        self.mapping, self.is_text = source.mapping, source.is_text
        self.mapping.expect_random(True)
        # the constants, with names, and which of them form compressed weights
        self.scan = ProgramScan(buffer, (span[0], span[1]), source.prefix, constants, source.is_text)
        self.mapping.expect_random(False)

    @property
    def has_file_offsets(self) -> bool:
        """Whether offsets in the Program are offsets in its file: it was not parsed from text, and not rewritten."""
        return self.scan.buffer is self.mapping.buffer

    def require(self) -> None:
        """Raise ValueError if the model is closed, FormatError if its file has shrunk."""
        self.package.require_open()
        self.mapping.check_size()

    def require_edits(self) -> None:
        """Refuse a Program that cannot be edited in its file.

        Raises: UnsupportedError: protobuf had to put it together first.
        """
        # One that was read from text is always in one piece. Another is not in `rewritten`, and not where the Model
        # around the Program was in pieces.
        if not self.is_text and self.scan.buffer is not self.mapping.live():
            message = "Program: expected one that lies in the file in one piece, got one that was put together first"
            raise UnsupportedError(message, file=self.mapping.live().name)

    def edited(self, edits: Iterable["Edit"]) -> "Spliced":
        """Return what its whole file becomes: a model file, or MIL text. Raises: As `splice` and `splice_text`."""
        if not self.is_text:
            from ..program.splice import splice

            return splice(self.mapping, (0, self.mapping.nbytes), edits)
        from ..program.text_edits import splice_text

        return splice_text(self.mapping.check_size(), self.scan, edits)

    def release(self) -> None:
        """Release the bytes; names and paths are kept."""
        self.scan.release()
        if "view" in vars(self):
            self.view.release()

    @cached_property
    def view(self) -> "ModelView":
        """Its functions, blocks and operations; made on first use, and always the same object.

        Raises: ValueError: the model is closed. FormatError: malformed where no constant is. UnsupportedError: messages
        in pieces that protobuf cannot merge.
        """
        from .model_view import ModelView  # loading weights needs no view

        if self._no_view is not None:  # each of many tensors asks, and to find out takes as long as the Program is
            self.require()
            raise copy(self._no_view)
        decode = None if self._decoder is None else self._decoder(self.package, self.source)
        try:
            return ModelView(self.package, self.source, self.scan.buffer, self.scan.span, self.scan.rewritten, decode)
        except MilblobError as error:
            self._no_view = copy(error)
            raise

    # ------------------------------------------------------------------------------------- rows of the scan in the view

    def require_same_rows(self) -> None:
        """Refuse a Program whose view was made of other bytes than its scan: rows of functions and blocks may differ.

        Raises: UnsupportedError: pieces in messages that the scan skipped. FormatError: the file changed after the
        scan. As `view`.
        """
        if self.view.is_merged:
            raise in_pieces(self.scan.buffer)
        table, counts = self.scan.table, self.view.graph.counts
        if counts[:2] != (len(table.functions), len(table.blocks)):
            self.require()
            message = f"functions and blocks: expected {len(table.functions)} and {len(table.blocks)} as scanned before"
            raise FormatError(f"{message}, got {counts[0]} and {counts[1]}", file=self.mapping.name)

    def operation(self, op: _codec.Op) -> "Operation":
        """Return the operation that a row of the scan is of.

        Raises: FormatError: there is none: the file changed after the scan. As `view`.
        """
        view = self.view
        row = -1 if view.is_merged else view.graph.operation_at(op.message[0])
        if row >= 0:
            return view.operation(row)
        try:
            return self._block(op.block).operations[op.index]
        except (KeyError, IndexError):
            self.require()
            message = f"operation {op.name!r:.200}: expected it where it was when the Program was scanned, got another"
            raise FormatError(message, offset=op.message[0], file=self.mapping.name) from None

    def _block(self, row: int) -> "Block":
        """The block of a row of the scan, found by names and numbers: the view may be of other bytes."""
        name, function, parent, number, index = self.scan.table.blocks[row]
        if parent < 0:
            return self.view.functions[self.prefix + self.scan.table.functions[function][0]].blocks[name]
        return self._block(parent).operations[index].blocks[number]

    def consumers(self, row: Any) -> tuple["Consumer", ...]:
        """Return who reads a constant or a compressed weight: operations, and blocks that return it.

        `row`: a `_codec.Constant` or a Compressed. One of an attribute that belongs to no operation has no readers.
        Raises: As `require_same_rows`.
        """
        from ..program.view import Consumer

        op = row.op
        if op is None:
            return ()
        operation = self.operation(op)
        if not isinstance(row, Compressed) and not (row.key == "val" and op.type == "const"):
            return (Consumer(operation, row.key, ""),)
        self.require_same_rows()
        first, count = operation.output_rows
        output = row.output if isinstance(row, Compressed) else 0
        return self.view.consumers(first + output, 1) if output < count else ()
