"""milblob.repack: rewrite a model, or weight files, in bulk. Plan, then execute."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _codec
from .arrange import Arrangement, Change, Options
from .casting import NAN_POLICIES, OVERFLOW_POLICIES
from .dtypes import DType, as_dtype
from .errors import UnsupportedError
from .files import NewDirectory, whole_file
from .mapping import Mapping as FileMapping
from .model import Model
from .plan import Item, Task, make_tasks, run_task
from .relocate import relocate
from .splice import splice
from .transfer import copy_range, write_at
from .writer import ALIGNMENTS

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Progress = Callable[[str, int], None]
"""Called with the name and the stored bytes of each tensor once it is written."""

_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
WEIGHT_COUNT = 10
"""The ecosystem's threshold: constants of this many elements are kept in the weight file."""


class Report(NamedTuple):
    """What a repacking changes, or changed.

    Attributes:
        source, output: paths.
        changes: one row per tensor, in Program order, then records that nothing refers to.
        files: weight files of the result that are written anew: (name, records, bytes).
        nbytes, nbytes_after: of all weights as stored: every record, and every immediate that is listed.
        done: False for a dry run.
    """

    source: str
    output: str
    changes: list[Change]
    files: list[tuple[str, int, int]]
    nbytes: int
    nbytes_after: int
    done: bool

    @property
    def changed(self) -> list[Change]:
        """The rows of tensors that are not just kept or moved."""
        return [change for change in self.changes if change.actions]

    def counts(self) -> dict[str, int]:
        """How many tensors each action concerns."""
        result: dict[str, int] = {}
        for change in self.changes:
            for action in change.actions:
                result[action] = result.get(action, 0) + 1
        return result

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        rows = []
        for c in self.changes:
            row: dict[str, Any] = {"name": c.name, "actions": c.actions}
            for key in ("dtype", "nbytes", "file", "offset"):
                before, after = getattr(c, key), getattr(c, f"{key}_after")
                row[key] = str(before) if isinstance(before, DType) else before
                row[f"{key}_after"] = str(after) if isinstance(after, DType) else after
            if "cast" in c.actions and self.done:
                row |= {"overflow": c.overflow, "nan": c.nan, "underflow": c.underflow}
            rows.append(row)
        return {
            "source": self.source, "output": self.output, "done": self.done, "nbytes": self.nbytes,
            "nbytes_after": self.nbytes_after, "actions": self.counts(),
            "files": [{"file": name, "records": count, "nbytes": nbytes} for name, count, nbytes in self.files],
            "tensors": rows,
        }  # fmt: skip


def repack(
    src: Any,
    dst: str | os.PathLike[str],
    *,
    cast: Any = None,
    dedupe: bool = False,
    gc: bool = False,
    externalize: int | bool | None = None,
    inline: int | bool | None = None,
    split: str | int | None = None,
    merge: bool = False,
    align: int = 64,
    canonical: bool = False,
    decompress: bool = False,
    select: str | Sequence[str] | None = None,
    functions: str | Sequence[str] | None = None,
    overflow: str = "error",
    nan: str = "keep",
    force: bool = False,
    dry_run: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
) -> Report:
    """Rewrite a model with its weights stored in another way.

    With nothing asked for, the result is a copy, byte for byte. What is asked for is done to all tensors, or to those
    that `select` names; everything else stays: unknown fields of the Program, the order of its maps, other files of the
    package. Everything is planned and checked before a byte is written. The result appears whole or not at all; memory
    does not grow with the model.

    Args:
        src: a .mlpackage; a .mlmodelc (no cast, externalize, inline, functions); a .mlmodel without a weight file; a
            blob file, or several, to be merged into one.
        dst: where the result goes. May be `src` itself, which is then replaced.
        cast: dtype -> dtype, among float32, float16 and bfloat16; or one dtype, for all of them. Round to nearest even.
            float32 as float16 becomes a `constexpr_cast`, so that the type does not change for who reads it.
        dedupe: keep one of several equal records. Equal means the same bytes; nothing is decided by a hash.
        gc: drop records that nothing refers to. (What loses its last reference here is always dropped.)
        externalize: move immediates of so many elements or more to the weight file; True for 10.
        inline: move records of fewer elements into the Program; True for 10.
        split: "function": the records that only one function uses go to a weight file of their own; or a size in bytes
            that weight files shall not pass (a larger record has a file to itself).
        merge: one weight file for all.
        align: data begins at multiples of 64, 4096 or 16384 bytes.
        canonical: records in the order in which the Program refers to them, reserved bytes zero: the same model gives
            the same bytes, wherever it was written.
        decompress: not in this version.
        select: glob, or several: names of tensors that are cast, externalized or inlined.
        functions: name, or several: the functions that the result has.
        overflow: what a cast does with a number that is too large: "error", "inf", "clamp" (largest finite number).
        nan: "keep", or "error": a cast that meets a NaN refuses.
        force: replace `dst` if it exists: a model by a model, a file by a file; nothing else is ever replaced.
        dry_run: plan only.
        executor: any concurrent.futures.Executor that runs the copying and casting; default: a few threads.
        progress: called from this thread as tensors are done.

    Returns:
        Report.

    Raises:
        ProgramError: after a cast an operation would not type-check; the consumer is named.
        OverflowError, ValueError: values that `overflow` or `nan` does not allow; the tensor is named.
        UnsupportedError: not possible with this kind of model.
        KeyError: no such function. FileExistsError: `dst` exists. OSError: files that cannot be read or written.
        FormatError, ResolveError: a broken source.
    """
    if decompress:
        raise UnsupportedError("decompress: expected a version of milblob that decodes weights, got this one")
    if isinstance(src, str | os.PathLike):
        src = [src]
    sources = [os.fsdecode(os.fspath(path)) for path in src]
    options = Options(
        _casts(cast), bool(dedupe), bool(gc), _threshold("externalize", externalize), _threshold("inline", inline),
        split, bool(merge), align, bool(canonical), _names(select) or (), _names(functions), overflow, nan,
    )  # fmt: skip
    _require_options(options)
    if not sources:
        raise ValueError("src: expected a path or several, got none")
    return _Repacking(sources, os.fsdecode(os.fspath(dst)), options, force, executor, progress).run(dry_run)


def _casts(asked: Any) -> dict[DType, DType]:
    if asked is None:
        return {}
    if isinstance(asked, Mapping):
        pairs = [(as_dtype(key), as_dtype(value)) for key, value in asked.items()]
    else:
        pairs = [(dtype, as_dtype(asked)) for dtype in _FLOATS]
    for pair in pairs:
        for dtype in pair:
            if dtype not in _FLOATS:
                raise TypeError(f"cast: expected float32, float16 or bfloat16, got {dtype}")
    return {a: b for a, b in pairs if a is not b}


def _threshold(name: str, value: int | bool | None) -> int | None:
    if value is None or value is False:
        return None
    if value is True:
        return WEIGHT_COUNT
    if value < 0:
        raise ValueError(f"{name}: expected a number of elements, got {value}")
    return int(value)


def _names(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(value)


def _require_options(options: Options) -> None:
    def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
        if value not in choices:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")

    one_of("align", options.align, ALIGNMENTS)
    one_of("overflow", options.overflow, OVERFLOW_POLICIES)
    one_of("nan", options.nan, NAN_POLICIES)
    if isinstance(options.split, str):
        one_of("split", options.split, ("function",))
    elif options.split is not None and options.split < 192:
        raise ValueError(f"split: expected 'function' or a size of 192 bytes or more, got {options.split}")
    if options.merge and options.split is not None:
        raise ValueError("merge: expected it without split, got both")


class _Repacking:
    """One call of `repack`."""

    def __init__(
        self,
        sources: list[str],
        dst: str,
        options: Options,
        force: bool,
        executor: "Executor | None",
        progress: Progress | None,
    ) -> None:
        self._sources = sources
        self._dst = dst
        self._options = options
        self._force = force
        self._executor = executor
        self._progress = progress

    def run(self, dry_run: bool) -> Report:
        with contextlib.ExitStack() as stack:
            models = [stack.enter_context(Model(path, stored=True)) for path in self._sources]
            model = models[0]
            for other in models[1:]:
                if {model.kind, other.kind} != {"blob"}:
                    words = (
                        "repack of several: expected weight files, got a model (milblob merge-functions joins packages)"
                    )
                    raise UnsupportedError(words, file=model.path)
            self._require_destination(model)
            arrangement = Arrangement(models, self._options)
            if not dry_run:
                if model.kind in ("mlpackage", "mlmodelc"):
                    self._write_directory(model, arrangement)
                else:
                    self._write_file(model, arrangement)
            files = [(name, len(items), nbytes) for name, (items, nbytes) in arrangement.files.items()]
            return self._report(arrangement.changes, files, not dry_run)

    def _report(self, changes: list[Change], files: list[tuple[str, int, int]], done: bool) -> Report:
        counted: set[tuple[str | None, int | None]] = set()
        before = 0
        for change in changes:  # a record that two tensors share counts once
            if change.file is None or (change.file, change.offset) not in counted:
                before += change.nbytes
                counted.add((change.file, change.offset))
        after = sum(change.nbytes_after for change in changes)
        return Report(", ".join(self._sources), self._dst, changes, files, before, after, done)

    # ----------------------------------------------------------------------------------------------------- destination

    def _is_source(self) -> bool:
        return any(os.path.exists(self._dst) and os.path.samefile(path, self._dst) for path in self._sources)

    def _require_destination(self, model: Model) -> None:
        """Refuse a destination that may not be replaced, or that lies in the source."""
        dst = self._dst
        is_directory = model.kind in ("mlpackage", "mlmodelc")
        real_source, real_dst = os.path.realpath(self._sources[0]), os.path.realpath(dst)
        if is_directory and real_dst.startswith(real_source + os.sep):
            raise ValueError(f"output {dst}: expected a place outside the model, got one in {self._sources[0]}")
        if not os.path.lexists(dst) or self._is_source():
            return
        if os.path.isdir(dst) and real_source.startswith(real_dst.rstrip(os.sep) + os.sep):
            raise ValueError(f"output {dst}: expected a place outside the model, got one that holds {self._sources[0]}")
        if not self._force:
            raise FileExistsError(f"{dst}: expected no such file or directory, got one (--force replaces it)")
        markers = ("Manifest.json", "model.mil", "model0")
        is_model = os.path.isdir(dst) and any(os.path.lexists(os.path.join(dst, name)) for name in markers)
        if is_directory != os.path.isdir(dst) or (is_directory and not is_model):
            wanted = "a package or compiled model" if is_directory else "a file"
            raise FileExistsError(f"{dst}: expected {wanted} to replace, got something else")

    # --------------------------------------------------------------------------------------------------------- writing

    def _write_directory(self, model: Model, arrangement: Arrangement) -> None:
        source = os.path.abspath(self._sources[0])
        texts = {
            os.path.relpath(str(part.mapping.name), self._sources[0]): part.prefix
            for part, _ in model._programs
            if part.is_text
        }
        edited = os.path.relpath(str(model._programs[0][0].mapping.name), self._sources[0])
        moves: dict[str, dict[Any, Any]] = {}
        for prefix, before, after in arrangement.moves():
            moves.setdefault(prefix, {})[before] = after
        with NewDirectory(self._dst, replace=os.path.isdir(self._dst)) as directory:
            for name, is_directory in _walk(source):
                origin, target = os.path.join(source, name), os.path.join(directory.name, name)
                if is_directory:
                    os.mkdir(target)
                elif name.replace(os.sep, "/") in arrangement.gone:
                    continue
                elif name in texts and moves.get(texts[name]):
                    with open(origin, "rb") as file:  # noqa: PTH123
                        text = relocate(file.read(), moves[texts[name]], origin)
                    with _new(target) as fd:
                        write_at(fd, [text], 0)
                elif name == edited and arrangement.edits:
                    self._write_program(model, arrangement, target)
                else:
                    _copy_file(origin, target)
            self._write_weights(arrangement, directory.name)

    def _write_program(self, model: Model, arrangement: Arrangement, target: str) -> None:
        mapping = model._programs[0][0].mapping
        with _new(target) as fd:
            splice(mapping, (0, mapping.nbytes), arrangement.edits).write_to(fd)

    def _write_file(self, model: Model, arrangement: Arrangement) -> None:
        """A bare weight file, or a model file without one."""
        with whole_file(self._dst, force=self._force or self._is_source()) as name:
            if model.kind == "blob" and arrangement.files:
                ((items, nbytes),) = arrangement.files.values()
                self._fill([(name, items, nbytes)], arrangement.changes)
            elif arrangement.edits:
                self._write_program(model, arrangement, name)
            else:
                _copy_file(self._sources[0], name)

    def _write_weights(self, arrangement: Arrangement, root: str) -> None:
        files = []
        for name, (items, nbytes) in arrangement.files.items():
            path = os.path.join(root, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.append((path, items, nbytes))
        self._fill(files, arrangement.changes)

    def _fill(self, files: list[tuple[str, list[Item], int]], changes: list[Change]) -> None:
        """Write weight files: headers here, records by the workers."""
        tasks: list[Task] = []
        numbered: list[Item] = []
        for path, items, nbytes in files:
            with _new(path) as fd:
                os.ftruncate(fd, nbytes)
                write_at(fd, [_codec.blob_header(len(items))], 0)
            tasks += make_tasks(path, items, len(numbered), self._options.overflow, self._options.nan)
            numbered += items
        by_item = {id(change.item.first or change.item): change for change in reversed(changes) if change.item}
        for task, counts in zip(tasks, _run(self._executor, tasks), strict=False):
            for number, count in counts:
                change = by_item[id(numbered[number])]
                change.overflow, change.nan, change.underflow = count
            if self._progress is not None:
                for step in task.steps:
                    self._progress(step.name, step.nbytes)


def _run(executor: "Executor | None", tasks: list[Any]) -> Iterator[Any]:
    """Run tasks; yield their results in order. After an error no task runs on."""
    if executor is None and len(tasks) < 2:
        yield from map(run_task, tasks)
        return
    from concurrent.futures import ThreadPoolExecutor, wait

    own = ThreadPoolExecutor(min(len(tasks), os.cpu_count() or 1, 8)) if executor is None else None
    futures: list[Future[Any]] = [(executor or own).submit(run_task, task) for task in tasks]  # type: ignore[union-attr]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)  # what runs still writes
        if own is not None:
            own.shutdown()


def _walk(root: str, inside: str = "") -> Iterator[tuple[str, bool]]:
    """Yield (path relative to root, is a directory) of everything below, directories before what is in them."""
    with os.scandir(os.path.join(root, inside)) as entries:
        rows = sorted(entries, key=lambda entry: entry.name)
    for entry in rows:
        name = os.path.join(inside, entry.name) if inside else entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        yield name, is_directory
        if is_directory:
            yield from _walk(root, name)


@contextlib.contextmanager
def _new(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def _copy_file(origin: str, target: str) -> None:
    """Copy a file with its permissions; a symbolic link as the link it is."""
    if os.path.islink(origin):
        os.symlink(os.readlink(origin), target)
        return
    mapping = FileMapping(origin)
    try:
        with _new(target) as fd:
            copy_range(mapping, 0, mapping.nbytes, fd, 0)
            if hasattr(os, "fchmod"):
                os.fchmod(fd, stat.S_IMODE(os.fstat(mapping.fd).st_mode))
    finally:
        mapping.close()
