"""milblob reads Core ML weights: blob v2 files, ML Programs and tensor values, without copying and without Core ML.

    weights = milblob.load("Model.mlpackage")       # name -> ndarray, views of the mapped file
    with milblob.open("Model.mlpackage") as model:  # a mapping from names to lazy tensors
        ...

Everything public is listed in `__all__`; docs/api.md has the same list with one line each.
"""

from typing import TYPE_CHECKING, Any

from .blob import RECORD, BlobReader, BlobRecord
from .check import Finding, check
from .compression import Compression
from .dtypes import DType
from .errors import FormatError, MilblobError, ProgramError, ResolveError, UnsupportedError
from .formats import archive as _archive
from .model import Model, load
from .opening import open
from .program import Use
from .tensor import Tensor
from .tensorvalue import pack_tensor, unpack_tensor

if TYPE_CHECKING:
    from . import tvm as tvm
    from .about import Info, info
    from .compare import Diff, Figures, TensorDiff, diff
    from .contenthash import ContentHash, content_hash
    from .editing import EditableModel
    from .formats.weights import write_weights
    from .matches import Match, Matching, Tie
    from .matching import match
    from .measuring import Statistics, statistics
    from .merge import Merged, MergedFunction, merge_functions
    from .refitting import RefitReport, Refitted, refit
    from .repacking import Report, repack
    from .structure import Change
    from .writer import BlobWriter

__all__ = [
    "RECORD",
    "BlobReader",
    "BlobRecord",
    "BlobWriter",
    "Change",
    "Compression",
    "ContentHash",
    "DType",
    "Diff",
    "EditableModel",
    "Figures",
    "Finding",
    "FormatError",
    "Info",
    "Match",
    "Matching",
    "Merged",
    "MergedFunction",
    "MilblobError",
    "Model",
    "ProgramError",
    "RefitReport",
    "Refitted",
    "Report",
    "ResolveError",
    "Statistics",
    "Tensor",
    "TensorDiff",
    "Tie",
    "UnsupportedError",
    "Use",
    "check",
    "content_hash",
    "diff",
    "info",
    "load",
    "match",
    "merge_functions",
    "open",
    "pack_tensor",
    "refit",
    "repack",
    "statistics",
    "unpack_tensor",
    "write_weights",
]

# Whoever only reads does not wait for everything else to be imported.
_LATER = {
    "Info": "about",
    "info": "about",
    "Diff": "compare",
    "Figures": "compare",
    "TensorDiff": "compare",
    "diff": "compare",
    "ContentHash": "contenthash",
    "content_hash": "contenthash",
    "EditableModel": "editing",
    "write_weights": "formats.weights",
    "Statistics": "measuring",
    "statistics": "measuring",
    "Match": "matches",
    "Matching": "matches",
    "Tie": "matches",
    "match": "matching",
    "Merged": "merge",
    "MergedFunction": "merge",
    "merge_functions": "merge",
    "RefitReport": "refitting",
    "Refitted": "refitting",
    "refit": "refitting",
    "Change": "structure",
    "Report": "repacking",
    "repack": "repacking",
    "BlobWriter": "writer",
}


def _archives() -> Any:
    from importlib import import_module

    return import_module(f"{__name__}.tvm.offers")


_archive.register(_archives)  # formats lie below tvm, and import nothing of it


def __getattr__(name: str) -> Any:
    if name == "tvm":  # a package, for the other family of formats
        from importlib import import_module

        return import_module(f"{__name__}.tvm")
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
