"""milblob reads Core ML weights: blob v2 files, ML Programs and tensor values, without copying and without Core ML.

    weights = milblob.load("Model.mlpackage")       # name -> ndarray, views of the mapped file
    with milblob.open("Model.mlpackage") as model:  # a mapping from names to lazy tensors
        ...

Everything public is listed in `__all__`; docs/api.md has the same list with one line each.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .blobs.reader import RECORD, BlobReader, BlobRecord
from .dtypes import DType
from .errors import (
    FormatError,
    LimitError,
    MilblobError,
    PendingChangeError,
    ProgramError,
    ResolveError,
    UnsupportedError,
)
from .model.model import Model
from .model.open import load, open
from .model.tensor import Tensor
from .program.compression import Compression
from .values.tensorvalue import pack_tensor, unpack_tensor

if TYPE_CHECKING:
    __version__: str
    from . import aimodel as aimodel
    from . import onnx as onnx
    from . import tvm as tvm
    from .about import Info, info
    from .analysis.changes import Change
    from .analysis.check import Finding, check
    from .analysis.diff import Diff, diff
    from .analysis.hash import ContentHash, content_hash
    from .analysis.limits import Failure
    from .analysis.statistics import Statistics, statistics
    from .analysis.tensor_diff import Figures, TensorDiff
    from .blobs.writer import BlobWriter
    from .compressing.compress import CompressReport, WeightReport, compress
    from .compressing.compress_plan import CompressPlan, PlannedWeight
    from .compressing.frontier import Frontier, compress_frontier
    from .compressing.linear_recipe import Linear
    from .compressing.palette_recipe import Palette
    from .compressing.prune_recipe import Prune
    from .compressing.recipe import Joint
    from .formats.weights import write_weights
    from .matching.match import match
    from .matching.match_report import Match, Matching, Tie
    from .model.editable import EditableModel
    from .model.text import to_text
    from .program.types import DictionaryType, ListType, StateType, TensorType, TupleType
    from .program.value import BlobReference, Value
    from .program.view import Binding, Block, Consumer, Function, Operation, Variable
    from .refitting.recover import RecoverReport, recover
    from .refitting.refit import RefitReport, Refitted, refit
    from .rewrite.download import Download, download
    from .rewrite.merge_functions import MergedFunction, MergeReport, merge_functions
    from .rewrite.repack import repack
    from .rewrite.repack_report import RepackReport
    from .running.output_errors import OutputErrors
    from .running.ports import SessionInput, SessionOutput
    from .running.session import Session, SessionState
    from .running.verify import OutputError, VerifyReport, verify
    from .storage.journal import Recovered

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
    "Download",
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
    "OutputErrors",
    "Palette",
    "PendingChangeError",
    "PlannedWeight",
    "ProgramError",
    "Prune",
    "RecoverReport",
    "Recovered",
    "RefitReport",
    "Refitted",
    "RepackReport",
    "ResolveError",
    "Session",
    "SessionInput",
    "SessionOutput",
    "SessionState",
    "StateType",
    "Statistics",
    "Tensor",
    "TensorDiff",
    "TensorType",
    "Tie",
    "TupleType",
    "UnsupportedError",
    "Value",
    "Variable",
    "VerifyReport",
    "WeightReport",
    "check",
    "compress",
    "compress_frontier",
    "content_hash",
    "diff",
    "download",
    "info",
    "load",
    "match",
    "merge_functions",
    "open",
    "pack_tensor",
    "recover",
    "refit",
    "repack",
    "statistics",
    "to_text",
    "unpack_tensor",
    "verify",
    "write_weights",
]  # fmt: skip

# Whoever only reads does not wait for everything else to be imported.
_LATER = {
    name: module
    for module, names in {
        "about": ("Info", "info"),
        "analysis.changes": ("Change",),
        "analysis.check": ("Finding", "check"),
        "analysis.diff": ("Diff", "diff"),
        "analysis.tensor_diff": ("Figures", "TensorDiff"),
        "analysis.hash": ("ContentHash", "content_hash"),
        "analysis.limits": ("Failure",),
        "analysis.statistics": ("Statistics", "statistics"),
        "blobs.writer": ("BlobWriter",),
        "compressing.compress": ("CompressReport", "WeightReport", "compress"),
        "compressing.compress_plan": ("CompressPlan", "PlannedWeight"),
        "compressing.frontier": ("Frontier", "compress_frontier"),
        "compressing.linear_recipe": ("Linear",),
        "compressing.palette_recipe": ("Palette",),
        "compressing.prune_recipe": ("Prune",),
        "compressing.recipe": ("Joint",),
        "formats.weights": ("write_weights",),
        "matching.match": ("match",),
        "matching.match_report": ("Match", "Matching", "Tie"),
        "model.editable": ("EditableModel",),
        "model.text": ("to_text",),
        "program.types": ("DictionaryType", "ListType", "StateType", "TensorType", "TupleType"),
        "program.value": ("BlobReference", "Value"),
        "program.view": ("Binding", "Block", "Consumer", "Function", "Operation", "Variable"),
        "refitting.recover": ("RecoverReport", "recover"),
        "refitting.refit": ("RefitReport", "Refitted", "refit"),
        "rewrite.download": ("Download", "download"),
        "rewrite.merge_functions": ("MergeReport", "MergedFunction", "merge_functions"),
        "rewrite.repack": ("repack",),
        "rewrite.repack_report": ("RepackReport",),
        "storage.journal": ("Recovered",),
        "running.output_errors": ("OutputErrors",),
        "running.ports": ("SessionInput", "SessionOutput"),
        "running.session": ("Session", "SessionState"),
        "running.verify": ("OutputError", "VerifyReport", "verify"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .about import version

        return version()
    if name in ("aimodel", "onnx", "tvm"):  # packages, for other families of formats
        return import_module(f"{__name__}.{name}")
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:  # of an optional package
        from .extras import explained

        raise explained(error) from error
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "aimodel", "onnx", "tvm"])
