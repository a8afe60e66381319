"""The errors that milblob raises about data, and their places in messages.

One line each, no capital, no full stop: ``<what>: expected <X>, got <Y> at byte <offset> in <file> - at <path>``.
Built-in exceptions keep their meaning: ``OSError`` passes through, ``TypeError`` and ``BufferError`` are for wrong
arguments, ``KeyError`` for a name that is not there, ``OverflowError`` for a value that does not fit its width.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .mirrored import PREFIX, shown
from .wording import abbreviated, bounded, located


class MilblobError(Exception):
    """The base of all errors that milblob raises about data.

    Attributes:
        offset: byte offset at which the problem was found, counted from the start of ``file`` (or of the buffer), or
            None where the problem is not at a single byte.
        where: path inside the Program, such as ``main.block['CoreML7'].op[12] 'conv_3'.weight``, or "".
        file: the file that holds the bytes, or None for a buffer.
        code: stable short name of the kind of problem, for programs: one of the codes of `milblob.check` (docs/cli.md)
            where the error has one, else that of the class.

    Examples:
        >>> try:
        ...     milblob.open(b"no model")
        ... except milblob.MilblobError as error:
        ...     print(type(error).__name__, error.code, error)
        FormatError not-a-model file: expected a Core ML model, MIL text or a weight file, got text: 'no model'
    """

    code: str = "error"

    def __init__(
        self, what: str, *, offset: int | None = None, where: str = "", file: str | None = None, code: str = ""
    ) -> None:
        if PREFIX in what or (file is not None and PREFIX in file):  # of files that represent remote ones
            what, file = shown(what), None if file is None else shown(file)
        what = bounded(what)
        super().__init__(what)
        if code:
            self.code = code
        self.what = what
        self.offset = offset
        self.where = where
        self.file = file

    def __str__(self) -> str:
        return located(self.what, self)

    def __reduce__(self) -> tuple[object, ...]:
        place: dict[str, Any] = {"offset": self.offset, "where": self.where, "file": self.file, "code": self.code}
        return partial(type(self), self.what, **place), ()


class FormatError(MilblobError, ValueError):
    """The bytes break the format.

    Examples:
        >>> try:
        ...     milblob.BlobReader(b"no weight file")
        ... except milblob.FormatError as error:
        ...     print(error)
        file: expected a weight file, got text: 'no weight file'
    """

    code = "format"


class PendingChangeError(MilblobError):
    """A change of the files was interrupted, so they may hold a part of it: `milblob.recover` completes it.

    Readers raise this and change nothing. Writers complete the change first, where they know the model.

    Examples:
        >>> try:
        ...     weights = milblob.load("demo.mlpackage")
        ... except milblob.PendingChangeError:  # a writer was killed
        ...     report = milblob.recover("demo.mlpackage")
        ...     weights = milblob.load("demo.mlpackage")
        >>> len(weights)
        69
    """

    code = "pending-change"

    @property
    def journal(self) -> str | None:
        """Path of the journal, which holds the whole change."""
        return self.file


class UnsupportedError(MilblobError, NotImplementedError):
    """The bytes may be sound, but are not supported: another model type, another version, a draft.

    Examples:
        >>> recipe = milblob.Prune(0.5) + milblob.Palette(4)
        >>> try:
        ...     milblob.compress("demo.mlpackage", "small.mlpackage", recipe)
        ... except milblob.UnsupportedError as error:
        ...     print(error.code)
        unsupported
    """

    code = "unsupported"


class LimitError(UnsupportedError):
    """More would be made of the files than `max_nbytes` allows: see `budget.Budget`. The caller can allow more.

    Examples:
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "palette4")
        >>> try:
        ...     milblob.load("small.mlpackage", max_nbytes=1000)
        ... except milblob.LimitError as error:
        ...     print(error.code)
        limit
    """

    code = "limit"


class ResolveError(MilblobError, LookupError):
    """A reference leads to a file that is missing or outside the model, or to a record of another dtype or size.

    Examples:
        >>> import os
        >>> os.remove("demo.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
        >>> try:
        ...     milblob.load("demo.mlpackage")
        ... except milblob.ResolveError as error:
        ...     print(error.code)
        missing-file
    """

    code = "unresolved"


class ProgramError(MilblobError, ValueError):
    """A request to write something that MIL cannot hold.

    Examples:
        >>> try:
        ...     milblob.merge_functions([("states.mlpackage", "no name")], "both.mlpackage")
        ... except milblob.ProgramError as error:
        ...     print(error)
        name of a function: expected letters, digits and _, got 'no name' in states.mlpackage
    """

    code = "program"


def program_path(
    function: str,
    specialization: str | None,
    nesting: Iterable[tuple[int, str, int]] = (),
    op: tuple[int, str] | None = None,
    key: str = "",
) -> str:
    """Format a path inside a Program, as in every error.

    Args:
        function: name of the function, "" for the Program itself.
        specialization: key of the function's block, or None outside it.
        nesting: (operation index, operation name, block number) from the outermost operation that holds a block.
        op: (index, name) of the operation, or None.
        key: parameter or attribute.

    Names longer than 120 characters, and the middle of more than 8 levels, are abbreviated.
    """
    parts = [abbreviated(function) or "program"]
    if specialization is not None:
        parts.append(f".block[{abbreviated(specialization)!r}]")
    levels = [f".op[{index}] {abbreviated(name)!r}.block[{number}]" for index, name, number in nesting]
    if len(levels) > 8:
        levels[4:-4] = [f"...{len(levels) - 8} more levels..."]
    parts += levels
    if op is not None:
        parts.append(f".op[{op[0]}] {abbreviated(op[1])!r}")
    if key:
        parts.append(f".{abbreviated(key)}")
    return "".join(parts)


def message_of(error: BaseException) -> str | None:
    """Return the message of an error that input may cause; None for one that is a bug, or no error at all."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, RecursionError):
        return "input: expected less nesting, got more than Python can follow"
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args else "unknown name"
    if isinstance(error, OSError):
        file = f": {shown(str(error.filename))}" if error.filename is not None else ""
        return f"{error.strerror}{file}" if error.strerror else str(error)
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):  # an extra that is missing
        return str(error)
    if isinstance(error, MilblobError | ValueError | TypeError | NotImplementedError | LookupError | OverflowError):
        return str(error)
    return None


class WorkerError(MilblobError, RuntimeError):
    """A piece of work whose workers were killed each time that it ran: what was to be written is not.

    Examples:
        >>> error = milblob.WorkerError("w.bin from byte 64: expected a worker to finish it, got one that was killed")
        >>> error.code, isinstance(error, RuntimeError)
        ('worker', True)
    """

    code = "worker"


class DestinationExistsError(FileExistsError):
    """There is already something at a destination, and `force` was not given."""

    def __init__(self, destination: str) -> None:
        super().__init__(f"{destination} already exists (use force=True to replace it)")
        self.destination = destination  # its path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.destination,)


class SelectionError(ValueError):
    """No tensor is selected, though a selection was given."""

    def __init__(self, globs: Iterable[str], where: str, hint: str = "") -> None:
        # globs: as given; () for a function; where: the owner of the names; hint: the end of the message: names that
        # may be meant, or ""
        self.globs, self.where, self.hint = tuple(globs), where, hint
        matching = f"matches {' or '.join(map(repr, self.globs)):.200}" if self.globs else "is selected"
        super().__init__(f"select: no tensor in {where} {matching}{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.globs, self.where, self.hint)


class Naming:
    """Adds the place to errors raised inside a `with` block. A class, because a generator costs far more.

    `name_error`: adds it to an error.
    """

    __slots__ = ("_name_error",)

    def __init__(self, name_error: Callable[[MilblobError], None]) -> None:
        self._name_error = name_error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MilblobError):
            self._name_error(error)
