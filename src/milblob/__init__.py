"""milblob reads Core ML weights: blob v2 files, ML Programs and tensor values, without copying and without Core ML.

    weights = milblob.load("Model.mlpackage")       # name -> ndarray, views of the mapped file
    with milblob.open("Model.mlpackage") as model:  # a mapping from names to lazy tensors
        ...

Everything public is listed in `__all__`; docs/api.md has the same list with one line each.
"""

from .blob import RECORD, BlobReader, BlobRecord
from .check import Finding, check
from .dtypes import DType
from .editing import EditableModel
from .errors import FormatError, MilblobError, ProgramError, ResolveError, UnsupportedError
from .formats.weights import write_weights
from .merge import Merged, MergedFunction, merge_functions
from .model import Model, load
from .opening import open
from .program import Use
from .refit import RefitReport, Refitted, refit
from .repack import Report, repack
from .tensor import Tensor
from .tensorvalue import pack_tensor, unpack_tensor
from .writer import BlobWriter

__all__ = [
    "RECORD",
    "BlobReader",
    "BlobRecord",
    "BlobWriter",
    "DType",
    "EditableModel",
    "Finding",
    "FormatError",
    "Merged",
    "MergedFunction",
    "MilblobError",
    "Model",
    "ProgramError",
    "RefitReport",
    "Refitted",
    "Report",
    "ResolveError",
    "Tensor",
    "UnsupportedError",
    "Use",
    "check",
    "load",
    "merge_functions",
    "open",
    "pack_tensor",
    "refit",
    "repack",
    "unpack_tensor",
    "write_weights",
]
