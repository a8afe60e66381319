"""Findings about valid models whose storage wastes space or hinders readers."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, cast

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..mirrored import represents
from ..model.package import Source
from ..program.scan import Compressed, ProgramScan
from ..storage.journal_format import STAGED
from ..storage.pending import JOURNAL
from .check_report import Findings

MIN_DENSE_NBYTES = 4096
"""Least dense size of a compressed weight that is checked. By default coremltools compresses none below 2048 elements.
"""

MAX_INLINE_NBYTES = 64 * 1024
"""Of a value in the Program. Readers parse the Program as a whole, and protobuf ends at 2 GiB; files are mapped."""

_IN_WEIGHT_FILES = frozenset(dtype.mil_code for dtype in (DType.FLOAT16, DType.FLOAT32, DType.INT8, DType.UINT8))
"""What a weight file may hold in every opset: before iOS 18, coremltools leaves other dtypes in the Program."""

_IGNORED = (".DS_Store", "Manifest.json")
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


def check_sizes(found: Findings, source: Source, scan: ProgramScan, weights: Sequence[Compressed]) -> None:
    """Report compressed weights that take more bytes than dense ones would, and large values in the Program."""
    stored = [list(weight.stored()) for weight in weights]
    shares = Counter(part for parts in stored for part in parts)
    for weight, parts in zip(weights, stored, strict=True):
        shape = weight.op.shape
        if shape is None or None in shape:
            continue
        dense = BY_MIL_CODE[weight.op.mil_code].nbytes(prod(cast(tuple[int, ...], shape)))
        nbytes = sum(_nbytes(part) // shares[part] for part in parts)  # weights may have parts in common
        if dense >= MIN_DENSE_NBYTES and nbytes > dense:
            message = (
                f"{weight.op.type} weight {list(shape)}: expected fewer bytes than {dense}, which a dense one takes"
            )
            message += f", got {nbytes}"
            found.add("warning", "compressed-larger", message, file=source.mapping.name, where=scan.path(weight.op))
    for constant in scan.constants:
        is_inline = constant.storage == _codec.IMMEDIATE and constant.mil_code in _IN_WEIGHT_FILES
        if is_inline and (nbytes := _nbytes(constant)) > MAX_INLINE_NBYTES:
            message = (
                f"value in the Program: expected {MAX_INLINE_NBYTES} bytes at most, and larger ones in a weight file, "
                f"got {nbytes} bytes"
            )
            where = scan.path(constant.op, constant)
            found.add("warning", "inline-large", message, file=source.mapping.name, where=where)


def _nbytes(constant: Any) -> int:
    """Return the bytes that the values of a constant take."""
    dtype, shape = BY_MIL_CODE.get(constant.mil_code), constant.shape
    return 0 if dtype is None or shape is None or None in shape else int(dtype.nbytes(prod(shape)))


_AS_SAVED = {("model.mlmodel", 0o600), ("weights", 0o700)}
"""Permissions that coremltools sets in every package; a finding for every new package would be useless."""


def check_permissions(found: Findings, paths: Iterable[str]) -> None:
    """Report files and folders of a model that only their owner can read, but for those that coremltools leaves so."""
    for path in paths:
        if represents(path):  # a remote file, whose permissions are not known
            continue
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            continue  # the rest of the check reports that
        is_folder = stat.S_ISDIR(status.st_mode)
        mode = stat.S_IMODE(status.st_mode)
        if (os.path.basename(path), mode) in _AS_SAVED:
            continue
        if (is_folder or stat.S_ISREG(status.st_mode)) and not mode & _OTHERS_READ:
            what = "folder" if is_folder else "file"
            message = f"permissions of a {what}: expected others than its owner to be able to read it, got {mode:04o}"
            found.add("note", "owner-only", message, file=path)


def check_strays(found: Findings, root: str, files: Iterable[str], items: Iterable[str]) -> None:
    """Report files of a package that are no part of an item of its manifest."""
    known = [os.path.join(root, "Data", os.path.normpath(item)) for item in items]
    for path in files:
        name = os.path.basename(path)
        is_known = name in _IGNORED or name.endswith((JOURNAL, STAGED))  # of a pending change: another finding
        if not is_known and not any(path == item or path.startswith(item + os.sep) for item in known):
            message = "file: expected an item of the manifest that it belongs to, got none"
            found.add("note", "unreferenced", message, file=path)
