"""`Library.with_params`: the same archive with other values of parameters, and not a byte else that differs."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arguments import array_of, require, require_flags
from ..closeness import unknown
from ..errors import FormatError, MilblobError, UnsupportedError
from ..formats.params import Parameter, element_bytes, is_lazy
from ..formats.params_codes import PACKED
from ..model.manifest import read_json
from ..model.replaceable import IsPart, require_apart, require_name, require_replaceable
from ..rewrite.copying import new_file, set_mode
from ..rewrite.destination import is_in_place
from ..storage import journal, paths, pending
from ..storage.beneath import Location
from ..storage.locks import locked_directory
from ..storage.mapped import MappedFile
from ..storage.output import NewDirectory, NewFile
from ..storage.transfer import copy_range, write_at
from ..wording import escape, shortened
from .archive import METADATA
from .unzip import compress

if TYPE_CHECKING:
    from .modules import Module, OpenLibrary

_CHUNK_NBYTES = 1 << 20
_PARTS = re.compile(
    r"metadata\.json|relay\.txt|(codegen|executor-config|runtime-config|parameters|src|runtime|templates)/.*", re.S
)
_MAX_PROBLEMS = 20


class _Edit(NamedTuple):
    """New values of one parameter: the file of the archive that has it, its place, and their source."""

    member: str
    parameter: Parameter
    source: Any

    def data(self) -> Any:
        """Return the bytes to write at the parameter's offset: all of them, or the used half of packed elements.

        Raises: ValueError: the source does not have its declared dtype and shape. As reading it.
        """
        parameter = self.parameter
        array = self.source.read() if is_lazy(self.source) else self.source
        if array.dtype != parameter.dtype or array.shape != parameter.shape:
            message = f"{parameter.dtype} {list(parameter.shape)}, got {array.dtype} {list(array.shape)}"
            raise ValueError(escape(f"{parameter.name}: expected {message}"))
        data = element_bytes(array, parameter.dtype_text, parameter.dtype)
        if parameter.dtype_text not in PACKED:
            return data
        data = data[: (array.size + 1) // 2]
        if array.size % 2:  # the other half of the last byte is unused
            data[-1] |= parameter.stored()[data.size - 1] & 15
        return data


def write_edited(library: "OpenLibrary", arrays: Mapping[str, Any], path: str, force: bool) -> None:
    """Write an archive with other values of parameters.

    Args:
        library: the archive.
        arrays: name -> array of the same shape and dtype; of an archive with several modules, module -> such a mapping.
            Arrays, or objects with `dtype`, `shape` and `read`, which are read one at a time. Other parameters are not
            changed.
        path: where it is written, whole or not at all: a tar to a file, a gzipped one to a gzipped file, a directory to
            a directory. It may be the archive itself.
        force: replace a file at `path`, or a directory that holds an archive. Not needed for the archive itself.

    Only the bytes of these parameters differ: order, times, PAX records and padding of members are kept. A gzipped
    archive without a change is copied as it is, else compressed again with the same header. A directory that is
    changed in place is changed through a journal, which `milblob.recover` completes after an interruption; `library`
    and its arrays show the new values then. A tar is replaced: `library` goes on showing the old one.

    Raises:
        KeyError, TypeError, ValueError: a name that is not there, another dtype or shape; of several problems,
            one ValueError that lists them. Nothing is written.
        UnsupportedError: a module without parameters of its own: AOT, whose parameters are in code, and operator style.
        FileExistsError: something is at `path`. BlockingIOError: another writer has it. OSError: it cannot be written.
    """
    require_flags(force=force)
    require("arrays", arrays, Mapping, "a mapping of names to arrays")
    edits = _pair(library, arrays)
    source = library.path
    in_place = source is not None and is_in_place([source], path)
    if not in_place:
        require_name(path, library.kind)
    if library.kind == "directory":
        if in_place:
            _change_directory(library, edits)
        else:
            _copy_directory(library, edits, path, force)
        return
    mapping = library.archive.mapping
    mapping.check_size()
    with NewFile(path, force=force or in_place) as new:
        if library.kind == "tar.gz":
            _write_packed(library, edits, new.fd)
        else:
            copy_range(mapping, 0, mapping.nbytes, new.fd, 0)
            for edit in edits:
                write_at(new.fd, [edit.data()], edit.parameter.offset)


# -------------------------------------------------------------------------------------------------------------- pairing


def _pair(library: "OpenLibrary", arrays: Mapping[str, Any]) -> list[_Edit]:
    """Find the parameter of every array, and check all of them before the first error is raised."""
    problems: list[Exception] = []
    edits: list[_Edit] = []
    for name, given in _by_module(library, arrays).items():
        module = library.modules.get(name)
        if module is None:
            problems.append(KeyError(unknown("module", name, library.modules, library.path)))
            continue
        require_parameters(library, module)
        member = module.params_file or ""
        parameters = module.params
        for key, value in given.items():
            try:
                edits.append(_fit(parameters, member, key, value))
            except (KeyError, TypeError, ValueError, MilblobError) as error:
                problems.append(error)
    if problems:
        raise listed(problems, "arrays")
    return sorted(edits, key=lambda edit: (edit.member, edit.parameter.offset))


def listed(problems: list[Exception], what: str) -> Exception:
    """Return the one problem, or a ValueError that lists several."""
    if len(problems) == 1:
        return problems[0]
    words = [str(error.args[0]) if isinstance(error, KeyError) else str(error) for error in problems]
    found = "; ".join(shortened(words, _MAX_PROBLEMS))
    return ValueError(f"{what}: expected all to fit, got {len(problems)} problems: {found}")


def _by_module(library: "OpenLibrary", arrays: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    nested = [isinstance(value, Mapping) for value in arrays.values()]
    if all(nested) and (nested or len(library.modules) != 1):
        return dict(arrays)
    if any(nested):
        raise TypeError("arrays: expected arrays by name, or such mappings by module, got both")
    if len(library.modules) != 1:
        known = ", ".join(repr(name) for name in list(library.modules)[:8])
        raise TypeError(f"arrays: expected a mapping for each module ({known}), got arrays")
    return {next(iter(library.modules)): arrays}


def require_parameters(library: "OpenLibrary", module: "Module") -> None:
    """Refuse a module whose parameters are not in a file: AOT, where they are in code, and operator style.

    Raises: UnsupportedError: it is one.
    """
    if "graph" in module.executors and module.params_file is not None:
        return
    kind = (
        "none" if "graph" in module.executors else "an operator" if module.style != "full-model" else "an AOT executor"
    )
    if kind == "an AOT executor":
        kind += ", whose parameters are in its code (the model has to be compiled again)"
    message = f"module {module.name}: expected parameters in a file of the archive, got {kind}"
    raise UnsupportedError(message, file=library.path)


def _fit(parameters: Mapping[str, Parameter], member: str, key: Any, value: Any) -> _Edit:
    if key not in parameters:
        raise KeyError(unknown("parameter", key, parameters, member))
    parameter = parameters[key]
    source = value if is_lazy(value) else array_of(value)
    if np.dtype(source.dtype) != parameter.dtype:
        raise TypeError(escape(f"{key}: expected elements of {parameter.dtype_text}, got {source.dtype}"))
    if tuple(source.shape) != parameter.shape:
        raise ValueError(f"{key}: expected shape {parameter.shape}, got {tuple(source.shape)}")
    return _Edit(member, parameter, source)


# -------------------------------------------------------------------------------------------------------------- writing


def _write_packed(library: "OpenLibrary", edits: list[_Edit], fd: int) -> None:
    """Write a gzipped archive: a plain copy if nothing changes."""
    packed, mapping = library.archive.packed, library.archive.mapping
    if packed is not None and all(_is_same(edit, mapping) for edit in edits):
        copy_range(packed, 0, packed.nbytes, fd, 0)
        return
    compress(library.archive.header, _parts(mapping, edits), fd)


def _is_same(edit: _Edit, mapping: MappedFile) -> bool:
    data = memoryview(edit.data())
    at = edit.parameter.offset
    return bool(data == memoryview(mapping.live())[at : at + data.nbytes])


def _parts(mapping: MappedFile, edits: list[_Edit]) -> Iterator[memoryview]:
    """Yield the bytes of the archive with the new ones in their places, a little at a time."""
    whole, at = memoryview(mapping.check_size()), 0
    for edit in edits:
        yield from _chunks(whole[at : edit.parameter.offset])
        data = memoryview(edit.data())
        yield from _chunks(data)
        at = edit.parameter.offset + data.nbytes
    yield from _chunks(whole[at:])


def _chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, data.nbytes, _CHUNK_NBYTES):
        yield data[start : start + _CHUNK_NBYTES]


def _change_directory(library: "OpenLibrary", edits: list[_Edit]) -> None:
    """Change the files of a directory in place, all of them or none."""
    root = paths.real(library.path or "")
    with locked_directory(root):
        pending.require_none(root)  # of a writer that has died since the archive was opened
        patches = [journal.Patch(edit.member, edit.parameter.offset, edit.data()) for edit in edits]
        for member in journal.commit(root, "", patches):
            library.archive.forget(member)
    for module in library.modules.values():
        module.reload()


def _copy_directory(library: "OpenLibrary", edits: list[_Edit], path: str, force: bool) -> None:
    """Write a new directory in place of the old one."""
    source = paths.real(library.path or "")
    require_apart(library.path or "", path)
    require_replaceable(path, "an unpacked archive", force, like=[source], understand=_unpacked)
    changed = {edit.member for edit in edits}
    with NewDirectory(path, replace=paths.is_directory(path)) as new:
        folders = [("", os.stat(source))]
        for member in library.archive.members:
            origin = Location(source).entry(member.name, links=False)
            place = os.path.join(new.name, *member.name.split("/"))
            if member.kind == "directory":
                os.mkdir(place)
                folders.append((member.name, os.stat(origin.path)))
            elif member.kind == "file":
                _copy_file(
                    origin, place, [edit for edit in edits if edit.member == member.name], member.name in changed
                )
            else:
                message = f"member {member.name}: expected a file or a directory to copy, got a {member.kind}"
                raise FormatError(message, file=origin.path)
        for name, status in reversed(folders):
            place = os.path.join(new.name, *name.split("/")) if name else new.name
            if name:
                set_mode(place, status.st_mode)
            os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def _unpacked(root: Location) -> IsPart:
    """The top-level names that TVM writes to an archive: metadata.json, and the folders of the format."""
    place = root.beneath(METADATA)
    document = read_json(place, "metadata.json", code="")
    if not isinstance(document, dict) or "version" not in document:
        raise FormatError("metadata.json: expected an object with a version, got something else", file=place.path)
    return lambda name: _PARTS.fullmatch(name) is not None


def _copy_file(origin: Location, place: str, edits: list[_Edit], is_changed: bool) -> None:
    with closing(MappedFile(origin)) as mapping, new_file(place) as fd:
        status = os.fstat(mapping.fd)
        copy_range(mapping, 0, mapping.nbytes, fd, 0)
        for edit in edits:
            write_at(fd, [edit.data()], edit.parameter.offset)
    set_mode(place, stat.S_IMODE(status.st_mode))
    if not is_changed:
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
