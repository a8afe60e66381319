"""milblob.check: report every problem of a model in one pass."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from .. import _codec
from ..arguments import as_path, require_flags, source_of
from ..blobs.reader import in_data
from ..dtypes import BY_BLOB_CODE, BY_MIL_CODE
from ..errors import FormatError, MilblobError, PendingChangeError, ResolveError
from ..mirrored import is_unlisted
from ..model.listing import Stamp
from ..model.manifest import read_json
from ..model.model import Model
from ..model.package import REFUSALS, Package, Source, resolve
from ..program.scan import Compressed, ProgramScan
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..rules.catalog import RULES
from ..selection import Select
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import LFS_PREFIX, MappedFile
from ..storage.pending import map_settled
from ..storage.table import Format, format_of
from ..workers import workers_of
from .check_blob import CODES, BlobFile, check_blob, record_problems, record_row
from .check_report import CheckReport, Findings
from .check_rules import ALL_CODES, check_rules, chosen
from .check_storage import check_permissions, check_sizes, check_strays

if TYPE_CHECKING:
    from concurrent.futures import Executor

_SMALL_NBYTES = 1024
_WEIGHT_SUFFIXES = (".bin", ".blob", ".weights")


@takes_urls("source")
def check(
    source: Any,
    *,
    values: bool = False,
    rules: Select = None,
    ignore: Select = None,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> CheckReport:
    """Check a model, or a bare weight file, and report every problem in one pass.

    A broken part is reported and the rest is still checked: a bad manifest hides no bad record, and one bad record
    hides no other. Bytes 24..63 of records with byte-sized dtypes are ignored, since real files hold noise there.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel, model.mil, blob file or listing of one; or a buffer or file
            object that holds one of the latter four (references to weight files cannot be followed from there).
        values: check values too, which reads all weights: NaNs, infinities, indices outside their palette, masks whose
            number of ones differs from that of the nonzero values, bits set after the last element.
        rules: report only findings with these codes, such as "MIL0*"; docs/rules.md has the rules of the
            specification, MIL001 and following, docs/cli.md the other codes.
        ignore: report no findings with these codes.
        executor: that checks the values of a local model: any concurrent.futures.Executor, whose workers open the path
            themselves (see `milblob.executors`).
        progress: called as the values of each tensor have been checked (see `Progress`).
        max_nbytes: as for `open`; the check of values reports those beyond it as not examined.
        storage_options, cache: as for `open`, of a URL.

    A `.params` file and an archive of TVM, given by path, are checked by milblob.tvm (docs/tvm.md has the codes), a
    bundle of Core AI by milblob.aimodel (docs/aimodel.md).

    Returns:
        CheckReport: a sequence of Finding; `is_sound` is True for a valid model.

    Raises:
        OSError: the path itself does not exist or cannot be opened. Problems inside are reported, not raised.
        ValueError: `rules` or `ignore` name a code that no finding has, or leave none to report; `executor` without
            `values`, or with a source that workers cannot open. WorkerError: workers that were killed.

    Examples:
        >>> report = milblob.check("demo.mlpackage", values=True)
        >>> report.is_sound
        True
    """
    require_flags(values=values)
    start_progress(progress)
    if executor is not None and not values:
        raise ValueError("executor: expected it with values, which are all that workers check, got it without")
    executor, source = workers_of(executor), source_of(source)
    name = as_path(source) if isinstance(source, str | os.PathLike) else None
    row, is_folder = None, False
    try:
        if name is not None:
            row, is_folder = format_of(name), stat.S_ISDIR((paths.status(name) or os.stat(name)).st_mode)
    except MilblobError as error:  # of a zip archive
        checker = _Checker(values, chosen(rules, ignore), max_nbytes, progress, executor)
        checker.report(error)
        return checker.found.close(name)
    if name is not None and row is not None and row.check:
        return _check_other(name, row, values, rules, ignore, max_nbytes)
    checker = _Checker(values, chosen(rules, ignore), max_nbytes, progress, executor)
    if name is None:
        checker.check_file(source, None)
    elif is_folder:
        checker.check_directory(name)
    else:
        check_permissions(checker.found, [name])
        checker.check_file(name, name)
    return checker.found.close(name)


def _check_other(
    name: str, row: Format, values: bool, rules: Select, ignore: Select, max_nbytes: int | None
) -> CheckReport:
    """Check a file of a format that has a check of its own."""
    if values:
        raise ValueError(f"{name}: expected a model, whose values can be looked at, got {row.kind}")
    is_wanted = chosen(rules, ignore, [*row.function("codes"), *ALL_CODES])
    report: CheckReport = row.function("check")(name, max_nbytes=max_nbytes)
    return replace(report, findings=tuple(found for found in report if is_wanted(found.code)))


class _Reference:
    """One blob-file value of a Program: the record that it names and the dtype and shape that it declares."""

    __slots__ = ("constant", "dtype", "offset", "scan", "shape")

    def __init__(self, scan: ProgramScan, constant: Any) -> None:
        self.scan = scan
        self.constant = constant
        self.offset: int = constant.blob_offset
        self.dtype = BY_MIL_CODE.get(constant.mil_code)
        self.shape: tuple[int | None, ...] | None = constant.shape

    @property
    def where(self) -> str:
        return self.scan.path(self.constant.op, self.constant)

    @property
    def declared(self) -> str:
        """Dtype and shape on one line."""
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape or ())
        return f"{self.dtype} [{sizes}]"

    @property
    def count(self) -> int | None:
        """Number of elements; None if a dimension is open."""
        return None if self.shape is None or None in self.shape else prod(self.shape)  # type: ignore[arg-type]


class _Checker:
    def __init__(
        self,
        values: bool,
        is_wanted: Callable[[str], bool],
        max_nbytes: int | None,
        progress: Progress | None,
        executor: "Executor | None",
    ) -> None:
        self.found = Findings(is_wanted)
        self._values = values
        self._with_rules = any(map(is_wanted, RULES))
        self._max_nbytes = max_nbytes
        self._progress, self._counter = progress, ProgressCounter(progress)
        self._executor = executor
        self._reported: set[str] = set()  # LFS pointers and journals: reported once, not examined again
        self._references: dict[str, list[_Reference]] = {}  # by path
        self._places: dict[str, Location] = {}
        self._stamps: dict[str, Stamp] = {}  # as listings state them
        self._resolved: dict[tuple[Location | None, str], str] = {}  # fileName in a Program -> path
        self._unresolved: set[tuple[Location | None, str]] = set()
        self._checked: set[str] = set()  # real paths
        self._is_sound = True

    # ------------------------------------------------------------------------------------------------------- one source

    def check_directory(self, root: str) -> None:
        """Check a .mlpackage or a .mlmodelc."""
        files = list(self._walk_files(Location(root)))
        names = [place.path for place in files]
        check_permissions(self.found, [*dict.fromkeys(map(os.path.dirname, names)), *names])
        if paths.is_there(os.path.join(root, "Manifest.json")):
            self._check_manifest(root, names)
        self._check_source(root, root)
        for place in files:
            if place.path.endswith(_WEIGHT_SUFFIXES) and os.path.basename(place.path) != "coremldata.bin":
                self._check_weights(place, False)

    def check_file(self, source: Any, path: str | None) -> None:
        """Check a model file, MIL text or blob file; or a buffer."""
        kind = self._check_source(source, path)
        if kind != "blob" and path is not None and not self._is_sound:
            weights = Location(path).parent().beneath("weights")
            if paths.is_directory(weights.path):
                for beside in self._walk_files(weights):
                    if beside.path.endswith(_WEIGHT_SUFFIXES):
                        self._check_weights(beside, False)

    def _check_source(self, source: Any, path: str | None) -> str:
        """Check the Programs and the weight files that they name; return the kind of source.

        The model is opened once: its description and its values are read from the same open files.
        """
        try:
            package = Package(source, report=self.report, max_nbytes=self._max_nbytes)
        except REFUSALS as error:
            self.report(error)
            return ""
        try:
            if package.kind == "blob":
                check_blob(self.found, package.mappings[0])
            for prefix, kind in package.others:
                message = f"model {prefix.rstrip('/')}: expected an ML Program, got a {kind}, which is not looked into"
                self.found.add("note", "other-model", message, file=path)
            for part in package.sources:
                # What a listing of a weight file was made into breaks some rules.
                self._check_program(part, self._with_rules and package.kind != "listing")
            if package.kind != "blob" and self._is_sound:
                self._check_metadata(package)
            for path_of_weights in list(self._references):
                self._check_weights(self._places[path_of_weights], True)
            if self._values:
                from .check_values import check_values  # checks of the structure read no values

                check_values(self.found, package, self._progress, self._executor)
            return package.kind
        finally:
            package.close()

    def report(self, error: Exception, prefix: str = "") -> None:
        """Record an exception as a finding."""
        self._is_sound = False
        if not isinstance(error, MilblobError):
            name = getattr(error, "filename", None)
            message = f"file: expected one that can be read, got {getattr(error, 'strerror', None) or error}"
            self.found.add("error", "unreadable", message, file=name if isinstance(name, str) else None)
            return
        if error.file is not None and os.path.realpath(error.file) in self._reported:
            return
        if isinstance(error, PendingChangeError):  # files with a pending change are not checked
            self._reported.add(os.path.realpath(str(error.journal)))
        where = error.where or prefix.rstrip("/")
        code = error.code if error.code in CODES else "program"
        self.found.add("error", code, error.what, file=error.file, offset=error.offset, where=where)

    # ------------------------------------------------------------------------------------------------------- the files

    def _walk_files(self, root: Location) -> Iterator[Location]:
        """Yield every regular file under `root`, links not followed; report LFS pointers on the way."""
        for directory, folders, names in os.walk(root.path):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(directory, name)
                try:
                    status = os.lstat(path)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    place = root.entry(os.path.relpath(path, root.path))
                    if status.st_size < _SMALL_NBYTES and self._is_pointer(place):
                        continue
                except REFUSALS as error:
                    self.report(error)
                    continue
                yield place

    def _is_pointer(self, place: Location) -> bool:
        """Report a file if it is an LFS pointer."""
        fd = place.open()
        try:
            if os.read(fd, len(LFS_PREFIX)) != LFS_PREFIX:
                return False
        finally:
            os.close(fd)
        try:
            MappedFile(place).close()
        except MilblobError as error:
            self.report(error)
        self._reported.add(os.path.realpath(place.path))
        return True

    def _check_manifest(self, root: str, files: list[str]) -> None:
        """Report what is wrong with a manifest. The Package itself reports that its root item cannot be opened."""
        path = os.path.join(root, "Manifest.json")
        try:
            manifest = read_json(Location(root).beneath("Manifest.json"))
        except REFUSALS:
            return  # the Package reports that
        if not isinstance(manifest, dict):
            return
        entries = manifest.get("itemInfoEntries")
        for key in ("fileFormatVersion", "itemInfoEntries", "rootModelIdentifier"):
            if key not in manifest:
                severity: Any = "warning" if key == "fileFormatVersion" else "error"
                self.found.add(severity, "manifest", f"manifest: expected a key {key}, got none", file=path)
        if not isinstance(entries, dict):
            return
        identifier = manifest.get("rootModelIdentifier")
        for key, item in entries.items():
            if not isinstance(item, dict) or not isinstance(item.get("path"), str):
                message = f"manifest item {key!r}: expected an object with a path, got {type(item).__name__}" + (
                    " without one" if isinstance(item, dict) else ""
                )
                self.found.add("error", "manifest", message, file=path)
                continue
            missing = [name for name in ("author", "name") if name not in item]
            if missing:
                message = f"manifest item {key!r}: expected keys author and name, got no {' and no '.join(missing)}"
                self.found.add("note", "manifest", message, file=path)
            if key != identifier:
                self._check_item(root, key, item["path"], path)
        items = [item.get("path") for item in entries.values() if isinstance(item, dict)]
        others = [file for file in files if not file.endswith(_WEIGHT_SUFFIXES)]  # a Program may refer to those
        check_strays(self.found, root, others, [item for item in items if isinstance(item, str)])

    def _check_item(self, root: str, key: str, relative: str, manifest: str) -> None:
        if is_unlisted(root):  # a server that does not list its folders
            return
        try:
            if paths.status(Location(root).beneath("Data/" + relative).real()) is None:
                message = f"manifest item {key!r}: expected a file or folder at {relative!r}, got none"
                self.found.add("error", "missing-file", message, file=manifest)
        except ResolveError as error:
            self.found.add("error", "escaping-file", f"manifest item {key!r}: {error.what}", file=manifest)
        except REFUSALS as error:
            self.report(error)

    def _check_metadata(self, package: Package) -> None:
        """Report a description that cannot be read; the weights still can."""
        try:
            _ = Model(package).metadata
        except MilblobError as error:
            self.found.add("warning", "metadata", error.what, file=error.file, offset=error.offset, where=error.where)
        except (OSError, ValueError) as error:
            self.report(error)

    # ----------------------------------------------------------------------------------------------------- the Programs

    def _check_program(self, source: Source, with_rules: bool) -> None:
        try:
            scan = ProgramScan(source.program[0], source.program[1:], source.prefix, constants=True)
            scan.names()
        except REFUSALS as error:
            self.report(error, source.prefix)
            return
        file = source.mapping.name
        ends: list[Compressed] = []
        try:
            scan.link()
            ends = scan.ends
        except MilblobError as error:
            self._is_sound = False
            self.found.add("error", "program", error.what, file=file, where=error.where)
        for group in ends:
            if group.op.shape is None:
                message = f"output of {group.op.type}: expected a tensor type, got none"
                self.found.add("error", "program", message, file=file, where=f"{source.prefix}{group.op.name}")
        check_sizes(self.found, source, scan, ends)
        if with_rules:
            try:
                check_rules(self.found, source, scan, self._counter)
            except REFUSALS as error:
                if error is self._counter.error:
                    raise
                self.report(error, source.prefix)
        for constant in scan.constants:
            if constant.storage == _codec.BLOB:
                self._add_reference(source, _Reference(scan, constant))

    def _add_reference(self, source: Source, reference: _Reference) -> None:
        name = reference.constant.text
        key = (source.directory, name)
        if key in self._unresolved:
            return
        if key in self._resolved:
            self._references[self._resolved[key]].append(reference)
            return
        try:
            place = resolve(source.directory, name)
            place.real()
            if not place.is_there():
                message = f"weight file {name}: expected at {place.path}, got no such file"
                self.found.add("error", "missing-file", message, file=source.mapping.name, where=reference.where)
                self._unresolved.add(key)
                return
        except ResolveError as error:
            self._unresolved.add(key)
            if source.directory is None:
                self.found.add("note", "missing-file", error.what, where=reference.where)
            else:
                self.found.add("error", "escaping-file", error.what, file=source.mapping.name, where=reference.where)
            return
        except REFUSALS as error:
            self._unresolved.add(key)
            self.report(error)
            return
        self._resolved[key] = place.path
        self._references.setdefault(place.path, []).append(reference)
        self._places[place.path] = place
        if source.stamp is not None:
            self._stamps[place.path] = source.stamp

    # ------------------------------------------------------------------------------------------------- the weight files

    def _check_weights(self, place: Location, is_referenced: bool) -> None:
        """Check a weight file once, and the references to it."""
        path, real = place.path, os.path.realpath(place.path)
        if real in self._checked or real in self._reported:
            return
        self._checked.add(real)
        references = [r for other, rows in self._references.items() if os.path.realpath(other) == real for r in rows]
        try:
            mapping = map_settled(place)
        except REFUSALS as error:
            self.report(error)
            if isinstance(error, MilblobError):
                self._reported.add(real)
            return
        with closing(mapping):
            mapping.expect_random(True)
            self._check_stamp(path, mapping)
            blobs = check_blob(self.found, mapping, [r.offset for r in references])
            if blobs is not None:
                self._check_references(mapping.need(()), blobs, references)
                self._check_unreferenced(path, blobs, references, is_referenced)

    def _check_stamp(self, path: str, mapping: MappedFile) -> None:
        """Report a weight file that differs from the one that its listing was written with."""
        if path in self._stamps:
            try:
                self._stamps[path].require(mapping)
            except FormatError as error:
                self.found.add("error", "reference", error.what, file=path, offset=error.offset)

    def _check_references(self, buffer: _codec.Buffer, blobs: BlobFile, references: list[_Reference]) -> None:
        first: dict[int, _Reference] = {}
        for reference in references:
            earlier = first.setdefault(reference.offset, reference)
            if earlier is not reference and (earlier.dtype, earlier.count) != (reference.dtype, reference.count):
                message = (
                    f"two values at one record: expected {earlier.declared} as {earlier.where} declares, "
                    f"got {reference.declared}"
                )
                self.found.add(
                    "error", "conflict", message, file=buffer.name, offset=reference.offset, where=reference.where
                )
            self._check_reference(buffer, blobs, reference)

    def _check_reference(self, buffer: _codec.Buffer, blobs: BlobFile, reference: _Reference) -> None:
        def add(code: str, message: str) -> None:
            self.found.add("error", code, message, file=buffer.name, offset=reference.offset, where=reference.where)

        row = record_row(buffer, reference.offset)
        if row is None:
            if reference.offset in blobs.places:
                message = "record that the Program refers to: expected a sound one, got a broken one"
            else:
                reasons = record_problems(memoryview(buffer), reference.offset)
                why = reasons[0][2] if reasons else "no record"
                message = f"record that the Program refers to: expected one, got none here ({why})"
                message += in_data(blobs.records, reference.offset)
            add("reference", message)
            return
        count, dtype = row[3], BY_BLOB_CODE[row[5]]
        if reference.dtype is not None and dtype is not reference.dtype:
            add("dtype-mismatch", f"record dtype: expected {reference.dtype} as the Program declares, got {dtype}")
        if reference.shape is None:
            return
        if reference.count is None:
            add("shape", f"shape of a blob-file value: expected every dimension known, got {reference.declared}")
        elif count != reference.count:
            message = f"elements of the record: expected {reference.count} for {reference.declared}, got {count}"
            add("size-mismatch", message)

    def _check_unreferenced(
        self, path: str, blobs: BlobFile, references: list[_Reference], is_referenced: bool
    ) -> None:
        if not is_referenced:
            if self._is_sound:
                message = "weight file: expected a Program that refers to it, got none"
                self.found.add("note", "unreferenced", message, file=path)
            return
        used = {r.offset for r in references}
        for offset, nbytes in zip(blobs.records["offset"].tolist(), blobs.records["nbytes"].tolist(), strict=True):
            if offset not in used:
                message = f"record of {nbytes} bytes: expected a value that refers to it, got none"
                self.found.add("note", "unreferenced", message, file=path, offset=offset)
