"""milblob reads Core ML weights: blob v2 files, ML Programs and tensor values, without copying and without Core ML.

    weights = milblob.load("Model.mlpackage")       # name -> ndarray, views of the mapped file
    with milblob.open("Model.mlpackage") as model:  # a mapping from names to lazy tensors
        ...

Everything public is listed in `__all__`; docs/api.md has the same list with one line each.
"""

from importlib import import_module

TYPE_CHECKING = False  # as that of typing, whose import takes as long as that of all of milblob that --version needs

if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from . import aimodel as aimodel
    from . import executors as executors
    from . import jax as jax
    from . import mlx as mlx
    from . import onnx as onnx
    from . import plot as plot
    from . import torch as torch
    from . import tvm as tvm
    from .about import Info, info
    from .analysis.changes import Change
    from .analysis.check import check
    from .analysis.check_report import CheckReport, Finding
    from .analysis.diff import Diff, diff
    from .analysis.hash import ContentHash, content_hash
    from .analysis.limits import Failure
    from .analysis.statistics import Statistics, StatisticsReport, statistics
    from .analysis.tensor_diff import Figures, TensorDiff
    from .batching.batch import batch
    from .batching.report import BatchFailure, BatchItem, BatchReport
    from .blobs.reader import RECORD, BlobReader, BlobRecord
    from .blobs.writer import BlobWriter
    from .chunking.chunk import chunk
    from .chunking.join import join
    from .chunking.report import Chunk, ChunkReport, Cut, JoinReport, RepeatedWeight
    from .compressing.compress import CompressReport, WeightReport, compress
    from .compressing.compress_plan import CompressPlan, PlannedWeight
    from .compressing.frontier import Frontier, compress_frontier
    from .compressing.linear_recipe import Linear
    from .compressing.options import Goal, Guidance, Scope
    from .compressing.palette_recipe import Palette
    from .compressing.prune_recipe import Prune
    from .compressing.recipe import Joint
    from .dtypes import DType
    from .errors import (
        FormatError,
        LimitError,
        MilblobError,
        PendingChangeError,
        ProgramError,
        ResolveError,
        UnsupportedError,
        WorkerError,
    )
    from .formats.read import open_arrays
    from .formats.weights import write_weights
    from .formats.write import save
    from .frameworks.safe_open import safe_open
    from .matching.match import match
    from .matching.match_report import Match, Matching, Tie
    from .model.editable import EditableModel
    from .model.model import Model
    from .model.open import load, open
    from .model.tensor import Tensor
    from .model.text import to_text
    from .program.compression import Compression
    from .program.types import DictionaryType, ListType, StateType, TensorType, TupleType, Variable
    from .program.value import BlobReference, Value
    from .program.view import Binding, Block, Consumer, Function, Operation
    from .refitting.recover import RecoverReport, recover
    from .refitting.refit import RefitReport, Refitted, refit
    from .remote.cache import Cache
    from .reporting.report import ReportFile, report
    from .results import Result
    from .rewrite.convert import ConvertedTensor, ConvertReport, convert
    from .rewrite.download import Download, download
    from .rewrite.merge_functions import MergedFunction, MergeReport, merge_functions
    from .rewrite.repack import repack
    from .rewrite.repack_report import RepackReport
    from .rewrite.share import SharedWeight
    from .running.output_sensitivity import OutputSensitivity
    from .running.ports import SessionInput, SessionOutput
    from .running.session import Session, SessionState
    from .running.verify import OutputDifference, VerifyReport, verify
    from .storage.journal import Recovered
    from .updating.apply import apply
    from .updating.delta import delta
    from .updating.report import ApplyReport, DeltaReport, FileDelta
    from .values.tensorvalue import pack_tensor, unpack_tensor

__all__ = [
    "RECORD",
    "ApplyReport",
    "BatchFailure",
    "BatchItem",
    "BatchReport",
    "Binding",
    "BlobReader",
    "BlobRecord",
    "BlobReference",
    "BlobWriter",
    "Block",
    "Cache",
    "Change",
    "CheckReport",
    "Chunk",
    "ChunkReport",
    "CompressPlan",
    "CompressReport",
    "Compression",
    "Consumer",
    "ContentHash",
    "ConvertReport",
    "ConvertedTensor",
    "Cut",
    "DType",
    "DeltaReport",
    "DictionaryType",
    "Diff",
    "Download",
    "EditableModel",
    "Failure",
    "Figures",
    "FileDelta",
    "Finding",
    "FormatError",
    "Frontier",
    "Function",
    "Goal",
    "Guidance",
    "Info",
    "JoinReport",
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
    "OutputDifference",
    "OutputSensitivity",
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
    "RepeatedWeight",
    "ReportFile",
    "ResolveError",
    "Result",
    "Scope",
    "Session",
    "SessionInput",
    "SessionOutput",
    "SessionState",
    "SharedWeight",
    "StateType",
    "Statistics",
    "StatisticsReport",
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
    "WorkerError",
    "apply",
    "batch",
    "check",
    "chunk",
    "compress",
    "compress_frontier",
    "content_hash",
    "convert",
    "delta",
    "diff",
    "download",
    "info",
    "join",
    "load",
    "match",
    "merge_functions",
    "open",
    "open_arrays",
    "pack_tensor",
    "recover",
    "refit",
    "repack",
    "report",
    "safe_open",
    "save",
    "statistics",
    "to_text",
    "unpack_tensor",
    "verify",
    "write_weights",
]  # fmt: skip

# Imported when first used: --help does not wait for NumPy, nor a program that only reads for the writers.
_LATER = {
    name: module
    for module, names in {
        "about": ("Info", "info"),
        "analysis.changes": ("Change",),
        "analysis.check": ("check",),
        "analysis.check_report": ("CheckReport", "Finding"),
        "analysis.diff": ("Diff", "diff"),
        "analysis.tensor_diff": ("Figures", "TensorDiff"),
        "analysis.hash": ("ContentHash", "content_hash"),
        "analysis.limits": ("Failure",),
        "analysis.statistics": ("Statistics", "StatisticsReport", "statistics"),
        "batching.batch": ("batch",),
        "batching.report": ("BatchFailure", "BatchItem", "BatchReport"),
        "blobs.reader": ("RECORD", "BlobReader", "BlobRecord"),
        "blobs.writer": ("BlobWriter",),
        "chunking.chunk": ("chunk",),
        "chunking.join": ("join",),
        "chunking.report": ("Chunk", "ChunkReport", "Cut", "JoinReport", "RepeatedWeight"),
        "compressing.compress": ("CompressReport", "WeightReport", "compress"),
        "compressing.compress_plan": ("CompressPlan", "PlannedWeight"),
        "compressing.frontier": ("Frontier", "compress_frontier"),
        "compressing.linear_recipe": ("Linear",),
        "compressing.options": ("Goal", "Guidance", "Scope"),
        "compressing.palette_recipe": ("Palette",),
        "compressing.prune_recipe": ("Prune",),
        "compressing.recipe": ("Joint",),
        "dtypes": ("DType",),
        "errors": (
            "FormatError",
            "LimitError",
            "MilblobError",
            "PendingChangeError",
            "ProgramError",
            "ResolveError",
            "UnsupportedError",
            "WorkerError",
        ),
        "formats.read": ("open_arrays",),
        "formats.weights": ("write_weights",),
        "formats.write": ("save",),
        "frameworks.safe_open": ("safe_open",),
        "matching.match": ("match",),
        "matching.match_report": ("Match", "Matching", "Tie"),
        "model.editable": ("EditableModel",),
        "model.model": ("Model",),
        "model.open": ("load", "open"),
        "model.tensor": ("Tensor",),
        "model.text": ("to_text",),
        "program.compression": ("Compression",),
        "program.types": ("DictionaryType", "ListType", "StateType", "TensorType", "TupleType", "Variable"),
        "program.value": ("BlobReference", "Value"),
        "program.view": ("Binding", "Block", "Consumer", "Function", "Operation"),
        "refitting.recover": ("RecoverReport", "recover"),
        "refitting.refit": ("RefitReport", "Refitted", "refit"),
        "remote.cache": ("Cache",),
        "reporting.report": ("ReportFile", "report"),
        "results": ("Result",),
        "rewrite.convert": ("ConvertReport", "ConvertedTensor", "convert"),
        "rewrite.download": ("Download", "download"),
        "rewrite.merge_functions": ("MergeReport", "MergedFunction", "merge_functions"),
        "rewrite.repack": ("repack",),
        "rewrite.repack_report": ("RepackReport",),
        "rewrite.share": ("SharedWeight",),
        "storage.journal": ("Recovered",),
        "running.output_sensitivity": ("OutputSensitivity",),
        "running.ports": ("SessionInput", "SessionOutput"),
        "running.session": ("Session", "SessionState"),
        "running.verify": ("OutputDifference", "VerifyReport", "verify"),
        "updating.apply": ("apply",),
        "updating.delta": ("delta",),
        "updating.report": ("ApplyReport", "DeltaReport", "FileDelta"),
        "values.tensorvalue": ("pack_tensor", "unpack_tensor"),
    }.items()
    for name in names
}

_MODULES = ("aimodel", "executors", "jax", "mlx", "onnx", "plot", "torch", "tvm")
"""Modules that are used by their name."""


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from .version import VERSION

        return VERSION
    if name in _MODULES:
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
    return sorted([*__all__, "__version__", *_MODULES])
