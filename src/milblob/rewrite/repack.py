"""milblob.repack: rewrite a model, or weight files, in bulk. Plan first, then execute."""

import contextlib
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..analysis.reopening import Reopened
from ..arguments import as_integer, as_path, parse_nbytes, require, require_flags, require_nan, source_of
from ..blobs.writer import ALIGNMENTS
from ..dtypes import DType, as_dtype
from ..errors import FormatError, ResolveError, UnsupportedError
from ..model.manifest import listed_files, read_json, with_folders
from ..model.model import Model
from ..model.package import Package
from ..model.recovery import complete
from ..program.splice import Spliced
from ..progress import Progress, ProgressCounter, start_progress
from ..selection import Select, selector
from ..storage import disk, paths, pending
from ..storage.beneath import Location
from ..storage.locks import lock
from ..storage.mapped import MappedFile
from ..storage.output import NewDirectory, NewNamedFile, Whole, together
from ..storage.pending import wait
from ..storage.source_file import SourceFile
from ..storage.table import format_of
from ..storage.transfer import write_at
from ..values.cast import OVERFLOW_POLICIES, CastCounts
from ..workers import workers_of
from .arrange import Arrangement, arrange
from .canonical import canonical_model
from .changes import WEIGHT_COUNT, Options, TensorChange, as_sharing
from .copying import OpenFiles, copy_entry, new_file, set_mode, walk, write_spliced
from .destination import is_in_place, require_destination
from .execute import write_weight_files
from .parts import CompressedWeight, Done
from .references import Edits
from .repack_report import RepackReport, RewrittenFile
from .tasks import DENSE, Item

if TYPE_CHECKING:
    from concurrent.futures import Executor

_DESCRIPTION = "metadata.json"
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def repack(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    cast: Any = None,
    dedupe: bool | str = False,
    min_sqnr: float | None = None,
    base: Any = None,
    gc: bool = False,
    externalize: int | bool | None = None,
    inline: int | bool | None = None,
    split: str | int | None = None,
    merge: bool = False,
    align: int = 64,
    canonical: bool = False,
    decompress: bool = False,
    select: Select = None,
    functions: str | Sequence[str] | None = None,
    overflow: str = "error",
    nan: str = "keep",
    force: bool = False,
    dry_run: bool = False,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> RepackReport:
    """Rewrite a model with its weights stored in another way.

    Without options the result is a copy, byte for byte. Options apply to all tensors, or to those that `select` names;
    everything else is kept: unknown fields of the Program, the order of its maps, other files of the package,
    permissions, links. Everything is planned before a byte is written; the counts of a cast are known after it. The
    output is atomic. Memory grows with the number of tensors, not with their size, but for
    values cast or inlined inside the Program, and for the text of a compiled model, which is changed in memory.

    Args:
        source: a .mlpackage; a .mlmodelc (without `functions`); a .mlmodel or .mil file without a weight file; a blob
            file, or several, to be merged into one. Of a bundle of Core AI (.aimodel), `dedupe`, `gc` and `cast` are
            done to its resources (docs/aimodel.md).
        destination: where the result goes. May be `source` itself, which is then replaced.
        cast: dtype -> dtype, among float32, float16 and bfloat16; or one dtype, for all of them. Round to nearest even.
            float32 as float16 becomes a `constexpr_cast`: consumers see the same type and compute in float32 as before.
            Without `select`, vectors that would become one, and values inside other operations, are not cast.
        dedupe: keep one of several equal records. Equal means dtype, count and bytes; nothing is decided by a hash.
            "values": also weights of the same values in different forms, such as a palette in another order or a dense
            copy, get the smallest form that their readers accept. "near": also those that are nearly equal.
        min_sqnr: with "near", the least signal-to-noise ratio of values that are replaced, in dB; default: 60.
        base: with "near", the weights that the model was made from, as for `match`: the values nearest to them replace
            the others; default: those that take the fewest bytes.
        gc: drop records that nothing refers to. (Records whose last reference is removed here are always dropped.)
        externalize: move immediates of at least this many elements to the weight file; True for 10. For systems before
            iOS 18 only the dtypes that coremltools puts there.
        inline: move records of fewer elements into the Program; True for 10.
        split: "function": the records that only one function uses go to a weight file of their own; or a size in bytes
            that weight files shall not pass (a larger record has a file to itself; where none does, nothing moves).
        merge: one weight file for all.
        align: data begins at multiples of 64, 4096 or 16384 bytes.
        canonical: one form of every file, so that two conversions of one network give the same bytes: records in the
            order of the Program, reserved bytes zero; the model file with its maps and fields in order (made in
            memory, at most 2 GiB) and without coremltools' date of conversion; identifiers of the manifest that follow
            from the contents. MIL text is unchanged.
        decompress: make compressed weights (all, or those that `select` names) dense: the operation that yields one
            becomes a `const` of the same name, output and type, its values those that `Tensor.read` gives. What was
            only a part of it goes. Not together with `cast`: repack twice.
        select: glob, several, or a function of a name: the tensors that are cast, externalized, inlined or
            decompressed, and the weights that may share beyond equal records. A stored part is selected by the name of
            its weight too.
        functions: name, or several: the functions that the result has.
        overflow: what a cast does with a number that is too large: "error", "inf", "clamp" (largest finite number).
        nan: what a cast does with a tensor that has NaN: "keep": casts it, NaN remains NaN; "skip": leaves the tensor
            as it is, which takes one more pass over its values; "error": refuses.
        force: replace `destination` if it exists: a model by a model, a file by a file; nothing else is ever replaced.
        dry_run: plan only.
        executor: any concurrent.futures.Executor (see `milblob.executors`), whose workers copy, cast and decode records
            in pieces; default: threads, for casts. Values that are in the Program itself are made in this process.
        progress: called as tensors and files are written (see `Progress`).
        max_nbytes: as for `open`.

    Returns:
        RepackReport.

    Raises:
        ProgramError: after a cast an operation would not type-check; the consumer is named.
        OverflowError, ValueError: values that `overflow` or `nan` does not allow; the tensor is named.
        UnsupportedError: not possible with this kind of model.
        KeyError: no such function. FileExistsError: `destination` exists. BlockingIOError: `destination` is
            `source`, and another process writes to it. OSError: files that cannot be read or written.
        FormatError, ResolveError: a broken source, or one that changed while it was read.
        WorkerError: workers that were killed. After any exception `destination` is unchanged.

    Examples:
        >>> report = milblob.repack("demo.mlpackage", "half.mlpackage", cast="float16", dedupe=True)
        >>> report.nbytes, report.nbytes_after
        (179904, 170688)
    """
    sources = _paths(source)
    require_flags(gc=gc, merge=merge, canonical=canonical, decompress=decompress, force=force, dry_run=dry_run)
    share = as_sharing(dedupe, min_sqnr, base)
    start_progress(progress)
    executor = workers_of(executor)
    is_selected = None if select is None else selector(select)
    options = Options(
        _casts(cast), bool(dedupe), bool(gc), _threshold("externalize", externalize), _threshold("inline", inline),
        _split(split), bool(merge), align, bool(canonical), is_selected, _names("functions", functions),
        overflow, nan, bool(decompress), share=share,
    )  # fmt: skip
    _require_options(options)
    row = format_of(sources[0])
    if row is not None and row.repack and len(sources) == 1:
        if executor is not None:
            raise ValueError(f"executor: expected a model or weight files, got {row.kind}, which one process rewrites")
        done = row.function("repack")(
            sources[0],
            as_path(destination),
            options,
            force=force,
            dry_run=dry_run,
            progress=progress,
            max_nbytes=max_nbytes,
        )
        return typing.cast(RepackReport, done)
    target = as_path(destination)
    counter = ProgressCounter(progress)
    with Repacking(sources, target, options, force, executor, counter, max_nbytes, dry_run).opened() as work:
        return work.write()


def _paths(source: Any) -> list[str]:
    source = source_of(source)
    several = [*map(source_of, source)] if isinstance(source, list | tuple) else []
    paths = [source] if isinstance(source, str | os.PathLike) else several
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"source: expected paths, got {type(path).__name__}")
    if not isinstance(source, str | os.PathLike | list | tuple):
        message = "a path, or a list of several, of what is to be rewritten (a buffer can be written to a file first)"
        raise TypeError(f"source: expected {message}, got {type(source).__name__}")
    if not paths:
        raise ValueError("source: expected a path or several, got none")
    return [as_path(path).rstrip("/\\" if os.name == "nt" else "/") or "/" for path in paths]


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
    count = as_integer(name, value, "a number of elements, True or False")
    if count < 0:
        raise ValueError(f"{name}: expected a number of elements, got {count}")
    return count


def _split(value: str | int | None) -> str | int | None:
    if value is None or (isinstance(value, str) and value == "function"):
        return value
    if isinstance(value, str):
        try:
            return parse_nbytes(value)
        except ValueError:
            raise ValueError(f"split: expected 'function' or a size, such as '500M' or '1G', got {value!r}") from None
    return as_integer("split", value, "'function' or a size")


def _names(what: str, value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    require(what, value, Iterable, "a name or several")
    names = (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        require(what, name, str, "names")
    return names


def _require_options(options: Options) -> None:
    def one_of(name: str, value: Any, choices: Iterable[Any]) -> None:
        if not isinstance(value, str | int) or value not in choices:
            raise ValueError(f"{name}: expected one of {', '.join(map(str, choices))}, got {value!r}")

    one_of("align", as_integer("align", options.align), ALIGNMENTS)
    one_of("overflow", options.overflow, OVERFLOW_POLICIES)
    require_nan(options.nan)
    if isinstance(options.split, int) and options.split < 192:
        raise ValueError(f"split: expected 'function' or a size of 192 bytes or more, got {options.split}")
    if options.externalize is not None and options.inline is not None and options.externalize < options.inline:
        message = f"expected at most the {options.externalize} elements from which on values are externalized"
        raise ValueError(f"inline: {message}, got {options.inline}")
    if options.decompress and options.cast:
        raise ValueError("decompress: expected it without cast, got both; the result can be cast")
    if options.share is not None:
        others = {"cast": bool(options.cast), "decompress": options.decompress}
        others |= {"externalize": options.externalize is not None, "inline": options.inline is not None}
        for name in (name for name, is_asked in others.items() if is_asked):
            raise ValueError(f"{name}: expected it without dedupe of values, got both; the result can be repacked")
    if options.merge and options.split is not None:
        raise ValueError("merge: expected it without split, got both")


@dataclass(eq=False)
class Repacking:
    """One call of `repack`, or of another function that rewrites a model in the same way."""

    sources: list[str]
    destination: str
    options: Options
    force: bool
    executor: "Executor | None"
    counter: ProgressCounter
    max_nbytes: int | None  # as for `open`
    dry_run: bool
    models: list[Model] = field(default_factory=list)  # open; several only if they are weight files
    outputs: list[Whole] = field(default_factory=list)  # that take their names together at the end, in this order
    in_place: bool = False  # whether the result replaces the model
    has_lock: bool = False  # whether the lock of the model is held for that
    _held: list[MappedFile] = field(default_factory=list)
    _origins: dict[SourceFile, MappedFile] = field(default_factory=dict)

    @contextlib.contextmanager
    def opened(self) -> "Iterator[Repacking]":
        """Open what is to be rewritten; commit at the end.

        The result takes its name when the block ends, together with `outputs`. If the block raises, or the source was
        written to, nothing does. Raises: As `repack`.
        """
        options = self.options
        with contextlib.ExitStack() as stack:
            before = [os.stat(path) for path in self.sources]
            constants = options.decompress or options.compress or options.share is not None
            constants = constants or (options.externalize is not None and options.externalize < WEIGHT_COUNT)
            self.in_place = is_in_place(self.sources, self.destination)
            on_pending = complete if self.in_place and not self.dry_run else wait
            for path in self.sources:
                package = Package(path, on_pending=on_pending, max_nbytes=self.max_nbytes)
                self.models.append(stack.enter_context(Model(package, stored=True, constants=constants)))
            kind = self.models[0].kind
            for other in self.models[1:]:
                if {kind, other.kind} != {"blob"}:
                    message = "repack of several: expected weight files, got a model (merge-functions joins packages)"
                    raise UnsupportedError(message, file=self.models[0].path)
            require_destination(self.sources, kind, self.destination, self.force)
            self.has_lock = self.in_place and not self.dry_run and _lock(self.models, self.destination, stack)
            self.outputs = stack.enter_context(together())
            yield self
            if not self.dry_run:
                self._leave_source(before)

    def write(self, compressed: Iterable[CompressedWeight] = (), computed: Done = lambda parts: None) -> RepackReport:
        """Plan, and unless it is a dry run, write everything that then only needs its name.

        `compressed`: weights that are compressed. `computed`: called with those parts that are computed while they are
        written, when they are.
        Raises: As `repack`.
        """
        model = self.models[0]
        required = listed_files(self.sources[0]) if model.kind == "mlpackage" else []
        arrangement = arrange(self.models, self.options, required, compressed, self.max_nbytes, self.counter)
        records = arrangement.records
        for opened in self.models:
            self._held += opened.package.mappings
        for mapped in self._held:
            records.origin(mapped)
        self._origins = records.origins
        if not self.dry_run:
            write = self._write_directory if model.package.is_directory else self._write_file
            write(model, arrangement, computed)
        files = [RewrittenFile(name, len(items), nbytes) for name, (items, nbytes) in records.files.items()]
        report = self._report(arrangement.changes, files, not self.dry_run)
        report = replace(report, shared=arrangement.shared)
        return replace(report, stale=_stale(model, report)) if model.kind == "mlmodelc" else report

    def _report(self, changes: list[TensorChange], files: list[RewrittenFile], done: bool) -> RepackReport:
        counted: dict[str, set[int | None]] = {}
        before = 0
        for change in changes:  # a record that two tensors share counts once
            known = counted.setdefault(change.file, set()) if change.file is not None else None
            if known is None or change.offset not in known:
                before += change.nbytes
                if known is not None:
                    known.add(change.offset)
        after = sum(change.nbytes_after for change in changes)
        return RepackReport(", ".join(self.sources), self.destination, changes, files, before, after, done)

    def _leave_source(self, before: list[os.stat_result]) -> None:
        """Close the source; raise if it was written to, since the result might mix old and new."""
        for path, status in zip(self.sources, before, strict=True):
            if not os.path.samestat(os.stat(path), status):
                raise FormatError("model: expected no change while it is read, got another in its place", file=path)
        for origin, mapped in self._origins.items():
            origin.require_same(mapped.fd)
        for model in self.models:  # all is written; and Windows cannot replace open files
            model.close()

    # --------------------------------------------------------------------------------------------------------- writing

    def _write_directory(self, model: Model, arrangement: Arrangement, computed: Done) -> None:
        records = arrangement.records
        # Again: weights may take long to compute, and another process may have created the destination.
        require_destination(self.sources, model.kind, self.destination, self.force)
        root, gone = records.root, {name for name in records.gone if name not in records.files}
        changed = self._changed_files(model, arrangement)
        entries = list(walk(root))
        new = {*records.gone, *changed}
        whole = [name for name, is_directory in entries if not is_directory and _plain(name) not in new]
        self.counter.total_nbytes += sum(os.lstat(os.path.join(root, name)).st_size for name in whole)
        self.counter.total_nbytes += sum(item.target_nbytes for items, _ in records.files.values() for item in items)
        directory = NewDirectory(self.destination, replace=paths.is_directory(self.destination), locked=self.has_lock)
        self.outputs.append(directory)
        files = OpenFiles(self._held)
        for name, is_directory in entries:
            origin, target = os.path.join(root, name), os.path.join(directory.name, name)
            if is_directory:
                os.mkdir(target)
            elif _plain(name) in changed:
                held, new_bytes = files.find(origin), changed[_plain(name)]
                with new_file(target) as fd:
                    if isinstance(new_bytes, list):
                        write_at(fd, new_bytes, 0)
                    elif held is None:
                        raise FormatError("file: expected the one that was opened, got another", file=origin)
                    else:
                        write_spliced(new_bytes, held, fd, self._written(_plain(name)))
                set_mode(target, (os.stat(origin) if held is None else os.fstat(held.fd)).st_mode)
            elif (
                files.find(origin) is None
                and paths.is_link(origin)
                and _plain(os.path.relpath(os.path.realpath(origin), root)) in gone
            ):
                continue  # another name of a removed file
            elif _plain(name) not in records.gone:
                written = self._written(_plain(name))
                copy_entry(root, name, target, written, files.find(origin))
        files.require_all()
        self._write_weights(model, arrangement, directory.name, computed)
        for name, is_directory in reversed(entries):
            if is_directory:  # keep it writable for its owner, so that this model can be replaced again
                set_mode(os.path.join(directory.name, name), os.stat(os.path.join(root, name)).st_mode, least=0o700)
        set_mode(directory.name, os.stat(root).st_mode, least=0o700)
        changed.clear()  # it holds bytes of the source

    def _changed_files(self, model: Model, arrangement: Arrangement) -> dict[str, Any]:
        """Map each changed file that is not a weight file to its new contents: bytes in a list, or a Spliced."""
        records = arrangement.records
        changed: dict[str, Any] = {}
        for part in model.parts:
            name = _plain(os.path.relpath(os.path.realpath(str(part.mapping.name)), records.root))
            if name in changed:  # a pipeline has one model file
                continue
            if not part.is_text and self.options.canonical:
                changed[name] = [_canonical(model, arrangement.edits)]
            elif part.is_text and part in arrangement.edits:  # of a compiled pipeline each model has its file
                changed[name] = part.edited(arrangement.edits[part])
                self.counter.total_nbytes += changed[name].nbytes
            elif not part.is_text and arrangement.edits:
                changed[name] = _edited(model, arrangement.edits)
                self.counter.total_nbytes += changed[name].nbytes
        if model.kind == "mlpackage":
            have = {name.rpartition("/")[0] for name in records.weight_files}
            new_places = sorted({name.rpartition("/")[0] for name in records.files} - have)
            contents = b"".join(changed[name][0] for name in sorted(changed)) if self.options.canonical else None
            data = with_folders(self.sources[0], new_places, contents)
            if data is not None:
                changed["Manifest.json"] = [data]
        return changed

    def _write_file(self, model: Model, arrangement: Arrangement, computed: Done) -> None:
        """Write a bare weight file, or a model file without one."""
        new = NewNamedFile(self.destination, force=self.force or self.in_place, locked=self.has_lock)
        self.outputs.append(new)
        if model.kind == "blob" and arrangement.records.files:
            ((items, nbytes),) = arrangement.records.files.values()
            self.counter.total_nbytes = sum(item.target_nbytes for item in items)
            self._fill([(new.name, items, nbytes)], arrangement.changes, computed)
        elif self.options.canonical and model.kind == "mlmodel":
            with new_file(new.name) as fd:
                write_at(fd, [_canonical(model, arrangement.edits)], 0)
        elif arrangement.edits:
            mapped = model.parts[0].mapping
            spliced = _edited(model, arrangement.edits)
            self.counter.total_nbytes = spliced.nbytes
            with new_file(new.name) as fd:
                write_spliced(spliced, mapped, fd, self._written(os.path.basename(str(mapped.name))))
        else:
            real = os.path.realpath(self.sources[0])
            self.counter.total_nbytes = os.stat(real).st_size
            written = self._written(os.path.basename(real))
            held = OpenFiles(self._held).find(real)
            copy_entry(os.path.dirname(real), os.path.basename(real), new.name, written, held)

    def _write_weights(self, model: Model, arrangement: Arrangement, directory: str, computed: Done) -> None:
        records = arrangement.records
        files = []
        for name, (items, nbytes) in records.files.items():
            path = os.path.join(directory, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.append((path, items, nbytes))
        self._fill(files, arrangement.changes, computed)
        for (path, items, _), name in zip(files, records.files, strict=True):
            like = records.weight_files.get(name)
            if like is None:  # as private as the source was
                like = next((f for i in items for f in records.weight_files.values() if f.base == i.base), None)
            mapped = like.reader.mapping if like is not None else model.parts[0].mapping
            set_mode(path, os.fstat(mapped.fd).st_mode)

    def _fill(self, files: list[tuple[str, list[Item], int]], changes: list[TensorChange], computed: Done) -> None:
        first = {id(change.item.first): change for change in reversed(changes) if change.item is not None}

        def cast_done(item: Item, counts: CastCounts) -> None:
            change = first[id(item)]
            before = CastCounts(change.overflow, change.nan, change.underflow)
            change.overflow, change.nan, change.underflow = before.plus(counts)

        has_dense = any(item.how == DENSE for _, items, _ in files for item in items)
        source = Reopened.of(self.models[0]).weights if has_dense and self.executor is not None else None
        write_weight_files(
            files, self.counter, overflow=self.options.overflow, nan=self.options.cast_nan, executor=self.executor,
            source=source, cast_done=cast_done, computed=computed,
        )  # fmt: skip

    def _written(self, name: str) -> Callable[[int], None]:
        return partial(self.counter.add, name)


def _lock(models: list[Model], destination: str, stack: contextlib.ExitStack) -> bool:
    """Keep other writers out of a model that is to be replaced, so that none of their changes is lost.

    Returns: False if the system, or the file system, has no such locks.
    """
    real, has_lock = os.path.realpath(destination), False
    if os.name != "nt":  # Windows cannot replace an open file, and has no directory locks
        fd = stack.enter_context(disk.opened(real))
        try:
            lock(fd, real)
            has_lock = True
        except (BlockingIOError, FileNotFoundError):
            raise
        except OSError:
            pass  # the file system has no locks
    for model in models:  # opened before locking, because completing a change takes the lock
        for mapped in model.package.mappings:
            if not os.path.samestat(os.fstat(mapped.fd), os.stat(str(mapped.name))):
                raise FormatError("file: expected the one that was opened, got another", file=mapped.name)
            pending.require_none(str(mapped.name))
        pending.require_none(str(model.path))
    return has_lock


def _stale(model: Model, report: RepackReport) -> tuple[str, ...]:
    """Return the entries of a compiled model's description that no longer match its dtypes and operations."""
    if not any({"cast", "compress", "decompress", "share"} & set(change.actions) for change in report.changes):
        return ()
    try:
        document = read_json(Location(str(model.path)).beneath(_DESCRIPTION))
    except (OSError, FormatError, ResolveError):
        return ()  # no description, or an empty one
    described = document[0] if isinstance(document, list) and document and isinstance(document[0], dict) else {}
    keys = ("storagePrecision", "mlProgramOperationTypeHistogram")
    return tuple(f"{_DESCRIPTION}: {key}" for key in keys if key in described)


def _edited(model: Model, edits: Edits) -> Spliced:
    """Return what a model file with edited Programs becomes: one or, in a pipeline, several."""
    every = [edit for part in model.parts for edit in edits.get(part, ())]
    return model.parts[0].edited(every)


def _canonical(model: Model, edits: Edits) -> bytes:
    """Return the canonical form of an edited model file."""
    return canonical_model(_edited(model, edits).tobytes(), model.parts[0].mapping.name)


def _plain(name: str) -> str:
    return name.replace(os.sep, "/")
