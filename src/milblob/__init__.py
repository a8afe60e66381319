"""milblob reads Core ML weights: blob v2 files, ML Programs and tensor values, without copying and without Core ML.

    weights = milblob.load("Model.mlpackage")       # name -> ndarray, views of the mapped file
    with milblob.open("Model.mlpackage") as model:  # a mapping from names to lazy tensors
        ...

Everything public is listed in `__all__`; docs/api.md has the same list with one line each.
"""

from .blob import RECORD, BlobReader, BlobRecord
from .check import Finding, check
from .contenthash import ContentHash, content_hash
from .dtypes import DType
from .errors import FormatError, MilblobError, ProgramError, ResolveError, UnsupportedError
from .model import Model, load, open
from .program import Use
from .repack import Report, repack
from .statistics import Statistics, statistics
from .tensor import Tensor
from .tensorvalue import pack_tensor, unpack_tensor
from .writer import BlobWriter

__all__ = [
    "RECORD",
    "BlobReader",
    "BlobRecord",
    "BlobWriter",
    "ContentHash",
    "DType",
    "Finding",
    "FormatError",
    "MilblobError",
    "Model",
    "ProgramError",
    "Report",
    "ResolveError",
    "Statistics",
    "Tensor",
    "UnsupportedError",
    "Use",
    "check",
    "content_hash",
    "load",
    "open",
    "pack_tensor",
    "repack",
    "statistics",
    "unpack_tensor",
]
