"""Where the values of constants come from: a weight file by reference, a copy of it, or the .onnx file itself."""

import os
import re
from contextlib import closing, nullcontext
from itertools import chain, count
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ..blobs.reader import BlobRecord
from ..dtypes import DType
from ..errors import ResolveError, UnsupportedError
from ..model.places import RecordPlace
from ..program.types import TensorType
from ..storage import paths
from ..storage.mapped import MappedFile
from .reference import WeightReference
from .topology import Topology, Variable
from .types import onnx_dtype

if TYPE_CHECKING:
    from ..model.model import Model
    from ..model.tensor import Tensor
    from ..program.view import Operation

MODES = ("reference", "copy", "embed")
COMPRESSED = ("keep", "dense", "onnxruntime")
INLINE_NBYTES = 1 << 10
"""Constants below this size are in the .onnx file itself, and equal ones only once."""
WEIGHT_COUNT = 10
"""A constant in the Program with this many elements or more is a weight with a name, as in `milblob.open`."""
BESIDE_NBYTES = 1 << 20
"""New values of this size or more go to a file beside the .onnx file."""
_HALVES = re.compile("[\ud800-\udfff]")  # which Python makes of the bytes of a path that are not UTF-8
EMBED_NBYTES = 2 << 30  # the most that protobuf can hold in one message
_COPIES = 4  # of new values, at the same time: the values, their message, its bytes, and those that are being made

_WIDENED = (DType.UINT1, DType.UINT3, DType.UINT6)  # no ONNX type: one element to a byte
_ALIGNMENT = 4096


class Weights:
    """The constants of one conversion.

    Args:
        model: it is read from.
        mode: "reference", "copy" or "embed".
        path: of the .onnx file; None if none is written.
        compressed: one of COMPRESSED: which weights remain compressed.

    Attributes:
        files: weight files that are referred to, in the order of their first use, with their offsets in the copy.
        made: {name, why, nbytes} of weights that are in no weight file as they are, and were made in memory.
        pending: (tensor, weight) of large weights that are decoded when they are written.
        why_dense: why compressed weights are decoded, by the plan.
        beside: name of the file of weights beside the .onnx file, if there is one.
        replaced: weight files that the existing .onnx file at `path` may refer to.

    Examples:
        >>> model = milblob.open("demo.mlpackage")
        >>> weights = milblob.onnx.Weights(model, "embed", None)
        >>> topology = milblob.onnx.parse_mil(model.functions["main"])
        >>> tensor, is_small = weights.tensor(topology.scope.find("head_bias"))
        >>> tensor.dtype, tensor.shape, is_small
        (FLOAT, Shape([96]), True)
    """

    def __init__(self, model: "Model", mode: str, path: str | None, compressed: str = "keep") -> None:
        self.mode = mode
        self.path = path
        self.compressed = compressed
        self.files: dict[MappedFile, int] = {}
        self.made: list[dict[str, Any]] = []
        self.pending: list[tuple[ir.ExternalTensor, Tensor]] = []
        self.why_dense: dict[Variable, str] = {}
        self.beside, self.replaced = names_beside(path or "")
        self._model = model
        self._compressed: dict[tuple[Operation, int], Any] | None = None  # a pipeline has several Programs
        self._locations: dict[MappedFile, tuple[str, str]] = {}
        self._names: dict[tuple[str, str], str] | None = None
        self._total = 0
        self._spent = 0

    @property
    def sources(self) -> list[str]:
        """Paths of the model and of its files that are open."""
        package = self._model.package
        names = [package.path, *(mapping.name for mapping in package.mappings)]
        return [name for name in names if name is not None]

    def tensor(self, variable: Variable) -> tuple[Any, bool]:
        """Return the tensor of a constant, and whether it is small, so that equal ones are kept once.

        Raises:
            UnsupportedError: no tensor, or an element type that ONNX lacks. ValueError: the path rules of references.
            As reading the constant.
        """
        if variable.weight is not None:
            return self._decoded(variable, variable.weight), False
        value, declared = variable.constant, variable.type
        if value is None or not isinstance(declared, TensorType):
            raise UnsupportedError(f"{variable.name}: expected a tensor, got {declared}")
        dtype = onnx_dtype(declared.dtype)
        if value.kind == "blob" and self.mode != "embed" and declared.dtype not in _WIDENED:
            reader, record = value.view.place(value).record()
            if record.nbytes >= INLINE_NBYTES and reader.mapping.fd >= 0:
                shape = tuple(size or 0 for size in declared.shape)
                return self._reference(reader.mapping, record, dtype, shape), False
        array = variable.read()
        if not isinstance(array, np.ndarray):
            raise UnsupportedError(f"{variable.name}: expected a tensor, got a {value.kind}")
        if dtype == ir.DataType.STRING:
            return ir.StringTensor([str(v).encode() for v in array.reshape(-1)], shape=ir.Shape(array.shape)), True
        return self.held(array, dtype), array.nbytes < INLINE_NBYTES

    def home(self, variable: Variable, function: str) -> str | None:
        """Return the name that the model has for a constant of a function that is a weight; None for others."""
        if variable.weight is not None:
            return variable.weight.name
        value = variable.constant
        if value is None or (value.kind != "blob" and _count(variable) < WEIGHT_COUNT):
            return None
        if self._names is None:
            weights = (tensor for tensor in self._model.values() if tensor.chain is None)
            self._names = {(tensor.function, tensor.place.where): tensor.name for tensor in weights}
        return self._names.get((function, value.path))

    def _decoded(self, variable: Variable, weight: "Tensor") -> Any:
        why = self.why_dense.get(variable)
        dtype, shape = onnx_dtype(weight.mil_dtype), weight.shape
        nbytes = dtype.numpy().itemsize * prod(shape)
        self.note(variable.raw_name, f"{weight.op}: {why}" if why else weight.op, nbytes)
        if self.mode == "embed" or self.path is None or nbytes < BESIDE_NBYTES or weight.mil_dtype.is_sub_byte:
            return self.held(np.asarray(weight.read()), dtype)
        weight.place.dense()  # raises its error before anything is written
        base, name = os.path.dirname(os.path.abspath(self.path)), self.beside
        tensor = ir.ExternalTensor(name, 0, nbytes, dtype, shape=ir.Shape(shape), name="", base_dir=base)
        self.pending.append((tensor, weight))
        return tensor

    def note(self, name: str, why: str, nbytes: int) -> None:
        """Note that a tensor is a copy: the values of a weight in another form."""
        self.made.append({"name": name, "why": why, "nbytes": nbytes})

    def stored(self, part: "Tensor", dtype: ir.DataType, shape: tuple[int, ...]) -> Any:
        """Return the stored bytes of a part of a compressed weight as a tensor.

        Args:
            part: of a model.
            dtype, shape: the view of the bytes.

        Raises:
            ValueError: the path rules of references. As reading the part.
        """
        place = part.place
        if isinstance(place, RecordPlace) and self.mode != "embed":
            reader, record = place.record()
            if record.nbytes >= INLINE_NBYTES and reader.mapping.fd >= 0:
                return self._reference(reader.mapping, record, dtype, shape)
        array = np.asarray(part.read_packed() if dtype == ir.DataType.UINT8 else part.read())
        return self.held(array.reshape(shape), dtype)

    def spend(self, nbytes: int) -> None:
        """Count memory that the conversion is about to take, against the budget of the model.

        This conversion has a count of its own: another one of the same open model may take as much.

        Raises:
            LimitError: more than is left.
        """
        self._spent += nbytes
        self._model.package.budget.require(self._spent)

    def spend_values(self, count: int, itemsize: int) -> None:
        """Count values that are about to be made, and that go into a message; as `spend`."""
        self.spend(_COPIES * count * itemsize)

    def is_small(self, nbytes: int) -> bool:
        """Whether an initializer stands in the .onnx file, and equal ones once."""
        return nbytes < INLINE_NBYTES

    def held(self, array: "np.ndarray[Any, Any]", dtype: ir.DataType) -> Any:
        """Return a tensor in memory.

        Raises:
            LimitError: as `spend`. UnsupportedError: with weights="embed", more than protobuf can hold.
        """
        self.spend_values(array.size, dtype.numpy().itemsize)
        if array.dtype != dtype.numpy():
            array = array.astype(dtype.numpy())
        self._total += array.nbytes
        if self.mode == "embed" and self._total >= EMBED_NBYTES:
            hint = 'weights="copy" (--weights copy) has no limit'
            message = f'weights="embed": expected less than {EMBED_NBYTES} bytes, got more; {hint}'
            raise UnsupportedError(message, file=self._model.path)
        return ir.Tensor(array, dtype)

    def require_reachable(self, topology: Topology) -> None:
        """Refuse weight files that the .onnx file cannot refer to, before anything is made.

        Raises:
            ValueError, ResolveError: see `location_of`.
        """
        for value in topology.stored.values() if self.mode == "reference" else ():
            reader, _ = value.view.place(value).record()
            if reader.mapping.fd >= 0:
                self._location(reader.mapping)

    def attach(self, topology: Topology) -> None:
        """Attach the weight of the model to every Variable that a constexpr operation computes."""
        for scope in topology.scopes:
            for variable in scope.variables.values():
                operator = variable.producer
                if operator is not None and operator.type.startswith("constexpr_"):
                    variable.weight = self._weight(operator.operation, operator.outputs.index(variable))

    def _weight(self, operation: "Operation", output: int) -> "Tensor | None":
        if self._compressed is None:
            self._compressed = {}
            for tensor in chain(self._model.values(), self._model.tensors.sparse()):
                if tensor.chain is not None and (computing := tensor.operation) is not None:
                    self._compressed[computing, tensor.chain.output] = tensor
        return self._compressed.get((operation, output))

    def _reference(
        self, mapping: MappedFile, record: BlobRecord, dtype: ir.DataType, shape: tuple[int, ...]
    ) -> WeightReference:
        base, location = self._location(mapping)
        offset = record.data_offset + self.files[mapping]
        return WeightReference(mapping, record.data_offset, record.nbytes, dtype, shape, location, offset, base)

    def _location(self, file: MappedFile) -> tuple[str, str]:
        found = self._locations.get(file)
        if found is None:
            if self.mode == "copy":
                found = os.path.dirname(os.path.abspath(self.path or "")), self.beside
                self.files[file] = sum(-(-other.nbytes // _ALIGNMENT) * _ALIGNMENT for other in self.files)
            else:
                self.files[file] = 0
                found = location_of(file.name or "", self.path, self._model.path)
            self._locations[file] = found
        return found


def _count(variable: Variable) -> int:
    """Elements as declared; 0 where that is open."""
    return prod(variable.shape) if variable.shape is not None and None not in variable.shape else 0  # type: ignore[arg-type]


def names_beside(path: str) -> tuple[str, list[str]]:
    """Return a name for the file of weights beside an .onnx file, and those that it cannot have.

    It cannot be one that the .onnx file which is replaced may refer to: between the two renames that file would read
    weights that are not its own. So NAME.bin and NAME.onnx.bin take turns.
    """
    base = _HALVES.sub("\ufffd", os.path.basename(path))  # ONNX stores UTF-8
    turns = f"{os.path.splitext(base)[0]}.bin", f"{base}.bin"
    with closing(MappedFile(path)) if paths.is_file(path) else nullcontext() as old:
        data = b"" if old is None else memoryview(old.live())

        def is_free(name: str) -> bool:
            return re.search(re.escape(name.encode()), data) is None

        others = (f"{base}.{number}.bin" for number in count(2))
        return next(filter(is_free, chain(turns, others))), [name for name in turns if not is_free(name)]


def location_of(file: str, path: str | None, model: str | None) -> tuple[str, str]:
    """Return (folder, location) for a reference to a weight file: the location is relative, with slashes.

    Args:
        file: the weight file.
        path: of the .onnx file; None if none is written, and the references are relative to the model's folder.
        model: path of the model.

    Raises:
        ValueError: the .onnx file is not above the weight file, or the way to it is not UTF-8.
        ResolveError: the way to it has a symbolic link, or it has several names: runtimes refuse these.
    """
    hint = 'weights="copy" (--weights copy) writes a copy beside the .onnx file'
    if path is None:
        inside = model is not None and paths.is_directory(model)
        folder = os.path.abspath(model or "") if inside else os.path.dirname(os.path.abspath(file))
        return folder, os.path.relpath(os.path.abspath(file), folder).replace(os.sep, "/")
    folder = paths.real(os.path.dirname(os.path.abspath(path)))
    given = os.path.abspath(model if model and paths.is_directory(model) else file)
    # Links above the model are the same for both; the model itself, and its files, must not be links.
    base = os.path.join(paths.real(os.path.dirname(given)), os.path.basename(given))
    written = os.path.relpath(os.path.join(base, os.path.relpath(os.path.abspath(file), given)), folder)
    relative = os.path.normpath(written).replace(os.sep, "/")
    if os.path.isabs(relative) or relative.split("/")[0] == "..":
        message = "a folder above the weights, for ONNX refers only downwards"
        raise ValueError(f"output {path}: expected {message}, got one from which {file} cannot be reached; {hint}")
    if _HALVES.search(relative):
        message = "a path to the weights in UTF-8, in which ONNX stores it"
        raise ValueError(f"output {path!r}: expected {message}, got {relative!r}; {hint}")
    step = folder
    for part in relative.split("/"):
        step = os.path.join(step, part)
        if paths.is_link(step):
            message = f"weight file: expected no symbolic link on the way, which runtimes refuse, got {part}; {hint}"
            raise ResolveError(message, file=file)
    status = paths.status(step)
    if status is not None and status.st_nlink > 1:
        message = f"weight file: expected one name, for ONNX refuses files with several, got {status.st_nlink}; {hint}"
        raise ResolveError(message, file=file)
    return folder, relative
