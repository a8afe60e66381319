"""milblob reads Core ML weights: blob v2 files, ML Programs and tensor values, without copying and without Core ML.

    weights = milblob.load("Model.mlpackage")       # name -> ndarray, views of the mapped file
    with milblob.open("Model.mlpackage") as model:  # a mapping from names to lazy tensors
        ...

Everything public is listed in `__all__`; docs/api.md has the same list with one line each.
"""

from typing import TYPE_CHECKING, Any

from .blobs.reader import RECORD, BlobReader, BlobRecord
from .dtypes import DType
from .errors import FormatError, LimitError, MilblobError, ProgramError, ResolveError, UnsupportedError
from .formats import archive as _archive
from .model.model import Model, load
from .model.open import open
from .model.tensor import Tensor
from .program.compression import Compression
from .program.scan import Use
from .values.tensorvalue import pack_tensor, unpack_tensor

if TYPE_CHECKING:
    __version__: str
    from . import onnx as onnx
    from . import tvm as tvm
    from .about import Info, info
    from .analysis.changes import Change
    from .analysis.check import Finding, check
    from .analysis.diff import Diff, Figures, TensorDiff, diff
    from .analysis.hash import ContentHash, content_hash
    from .analysis.limits import Failure
    from .analysis.statistics import Statistics, statistics
    from .blobs.writer import BlobWriter
    from .compressing.compress import CompressReport, WeightReport, compress
    from .compressing.compress_plan import CompressPlan, PlannedWeight
    from .compressing.frontier import Frontier, compress_frontier
    from .compressing.recipes import Joint, Linear, Palette, Prune
    from .formats.weights import write_weights
    from .matching.match import match
    from .matching.matches import Match, Matching, Tie
    from .model.editable import EditableModel
    from .model.text import to_text
    from .onnx.verifying import OutputError, VerifyReport, verify
    from .program.types import DictionaryType, ListType, StateType, TensorType, TupleType
    from .program.value import BlobReference, Value
    from .program.view import Binding, Block, Consumer, Function, Operation, Variable
    from .refitting.refit import RefitReport, Refitted, refit
    from .rewrite.merge_functions import MergedFunction, MergeReport, merge_functions
    from .rewrite.repack import RepackReport, repack

__all__ = [
    "RECORD",
    "Binding",
    "BlobReader",
    "BlobRecord",
    "BlobReference",
    "BlobWriter",
    "Block",
    "Change",
    "CompressPlan",
    "CompressReport",
    "Compression",
    "Consumer",
    "ContentHash",
    "DType",
    "DictionaryType",
    "Diff",
    "EditableModel",
    "Failure",
    "Figures",
    "Finding",
    "FormatError",
    "Frontier",
    "Function",
    "Info",
    "Joint",
    "LimitError",
    "Linear",
    "ListType",
    "Match",
    "Matching",
    "MergeReport",
    "MergedFunction",
    "MilblobError",
    "Model",
    "Operation",
    "OutputError",
    "Palette",
    "PlannedWeight",
    "ProgramError",
    "Prune",
    "RefitReport",
    "Refitted",
    "RepackReport",
    "ResolveError",
    "StateType",
    "Statistics",
    "Tensor",
    "TensorDiff",
    "TensorType",
    "Tie",
    "TupleType",
    "UnsupportedError",
    "Use",
    "Value",
    "Variable",
    "VerifyReport",
    "WeightReport",
    "check",
    "compress",
    "compress_frontier",
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
    "to_text",
    "unpack_tensor",
    "verify",
    "write_weights",
]

# Whoever only reads does not wait for everything else to be imported.
_LATER = {
    "Finding": "analysis.check",
    "check": "analysis.check",
    "Info": "about",
    "info": "about",
    "Diff": "analysis.diff",
    "Figures": "analysis.diff",
    "TensorDiff": "analysis.diff",
    "Failure": "analysis.limits",
    "diff": "analysis.diff",
    "ContentHash": "analysis.hash",
    "content_hash": "analysis.hash",
    "EditableModel": "model.editable",
    "write_weights": "formats.weights",
    "Statistics": "analysis.statistics",
    "statistics": "analysis.statistics",
    "Match": "matching.matches",
    "Matching": "matching.matches",
    "Tie": "matching.matches",
    "match": "matching.match",
    "MergeReport": "rewrite.merge_functions",
    "MergedFunction": "rewrite.merge_functions",
    "merge_functions": "rewrite.merge_functions",
    "RefitReport": "refitting.refit",
    "Refitted": "refitting.refit",
    "refit": "refitting.refit",
    "Change": "analysis.changes",
    "CompressPlan": "compressing.compress_plan",
    "CompressReport": "compressing.compress",
    "Frontier": "compressing.frontier",
    "PlannedWeight": "compressing.compress_plan",
    "compress_frontier": "compressing.frontier",
    "WeightReport": "compressing.compress",
    "compress": "compressing.compress",
    "Joint": "compressing.recipes",
    "Linear": "compressing.recipes",
    "Palette": "compressing.recipes",
    "Prune": "compressing.recipes",
    "RepackReport": "rewrite.repack",
    "repack": "rewrite.repack",
    "OutputError": "onnx",
    "VerifyReport": "onnx",
    "verify": "onnx",
    "BlobWriter": "blobs.writer",
    "DictionaryType": "program.types",
    "ListType": "program.types",
    "StateType": "program.types",
    "TensorType": "program.types",
    "TupleType": "program.types",
    "to_text": "model.text",
    "BlobReference": "program.value",
    "Value": "program.value",
    "Binding": "program.view",
    "Block": "program.view",
    "Consumer": "program.view",
    "Function": "program.view",
    "Operation": "program.view",
    "Variable": "program.view",
}


def _archives() -> Any:
    from importlib import import_module

    return import_module(f"{__name__}.tvm.offers")


_archive.register(_archives)  # formats lie below tvm, and import nothing of it


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .about import version

        return version()
    if name in ("onnx", "tvm"):  # packages, for other families of formats
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "onnx", "tvm"])
