"""`safe_open`: a model read as the class of that name in safetensors reads its files."""

import os
from contextlib import ExitStack
from importlib import import_module
from types import EllipsisType, TracebackType
from typing import Any, Literal, Self

import numpy as np

from ..closeness import unknown
from ..dtypes import DType
from ..extras import require
from ..formats.opening import open_source
from ..formats.safetensors import CODES
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.places import RecordPlace
from ..model.tensor import Tensor
from ..model.writable import WritableArrays
from ..remote.cache import CacheLike
from .memory import Array

Item = int | slice | EllipsisType | list[int]
Index = Item | tuple[Item, ...]
_FRAMEWORKS = {
    "np": "", "numpy": "", "pt": "torch", "torch": "torch", "pytorch": "torch", "jax": "jax", "flax": "jax",
    "mlx": "mlx.core",
}  # fmt: skip
"""Name of a framework, as safetensors has them -> the module that it needs."""
_BACKENDS = ("mmap", "pread")
_CODE_OF = {dtype: code for code, dtype in CODES.items()}


class safe_open:  # noqa: N801  the name that it replaces
    """Open a model and read its weights as `safetensors.safe_open` does, so that code written for it reads models too.

    A context manager. After it ends, reading raises ValueError; tensors that were read remain valid.

    Args:
        filename: what `milblob.open` or `milblob.open_arrays` takes.
        framework: "np" (NumPy), "pt" (PyTorch), "jax" or "flax" (JAX), "mlx".
        device: where tensors of PyTorch and JAX are to be. Ignored by the others.
        backend: "mmap" maps files, "pread" reads a whole weight file into memory when it is first needed.
        constants, stored, max_nbytes, storage_options, cache: as for `milblob.open`.

    Raises:
        As `milblob.open`; ImportError: the framework is not installed. ValueError: another framework or backend.
        These are milblob's own exceptions, and KeyError for an unknown name; safetensors raises its SafetensorError.

    Examples:
        >>> with milblob.safe_open("demo.mlpackage", framework="np") as f:
        ...     print(len(f.keys()), f.get_tensor("head_bias").shape, f.get_slice("head_weight")[:, ::8].shape)
        69 (96,) (96, 6)
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        backend: Literal["mmap", "pread"] = "mmap",
        constants: bool = False,
        stored: bool = False,
        max_nbytes: int | None = None,
        storage_options: dict[str, Any] | None = None,
        cache: CacheLike = None,
    ) -> None:
        """See the class."""
        if not isinstance(framework, str) or framework not in _FRAMEWORKS:
            raise ValueError(f"framework: expected one of {', '.join(_FRAMEWORKS)}, got {framework!r:.100}")
        if backend not in _BACKENDS:
            raise ValueError(f"backend: expected one of {', '.join(_BACKENDS)}, got {backend!r:.100}")
        if _FRAMEWORKS[framework]:
            require(_FRAMEWORKS[framework])
        self._framework, self._device = framework, device
        self._stack = ExitStack()
        try:
            self._tensors: Any = open_source(
                self._stack, filename, constants=constants, stored=stored, mmap=backend == "mmap",
                max_nbytes=max_nbytes, storage_options=storage_options, cache=cache,
            )  # fmt: skip
        except BaseException:
            self._stack.close()
            raise
        self._filename = filename
        self._memory = WritableArrays()
        self._is_closed = False

    def _open(self) -> Any:
        if self._is_closed:
            raise ValueError(f"file: expected an open one, got {self._filename!s:.200}, which is closed")
        return self._tensors

    def _find(self, name: str) -> LazyTensor:
        tensors = self._open()
        if name in tensors:
            return tensors[name]  # type: ignore[no-any-return]
        where = str(self._filename)
        raise KeyError(tensors.unknown(name) if isinstance(tensors, Model) else unknown("tensor", name, tensors, where))

    def keys(self) -> list[str]:
        """Return the names of the tensors, in alphabetical order as safetensors does."""
        return sorted(self._open())

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors in the order in which weight files hold them.

        Those of a compressed weight count as where its first part is. Tensors outside of weight files are last, in the
        order of the model.

        Raises:
            As `Tensor.read`: this looks into the files.
        """
        tensors = self._open()
        places = {name: _offset(tensors[name]) for name in tensors}
        return sorted(places, key=lambda name: places[name])

    def get_tensor(self, name: str) -> Any:
        """Return one tensor, in the dtype that `milblob.torch.load` and the others give it.

        PyTorch's is a view of a private mapping of the weight file where that holds the values, as of
        `milblob.torch.load`; NumPy's is always a copy, which can be written.

        Raises:
            KeyError: there is none of this name. ValueError: after closing. As `Tensor.read`.
        """
        tensor = self._find(name)
        if self._framework in ("np", "numpy"):
            return np.array(tensor.read())
        if _FRAMEWORKS[self._framework] == "torch":
            return self._of_array(self._memory.array(tensor), tensor)
        return self._of_array(tensor.read(), tensor)

    def get_tensors(self) -> dict[str, Any]:
        """Return all tensors by name.

        Raises:
            As `get_tensor`.
        """
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> "TensorSlice":
        """Return what reads a part of a tensor: `f.get_slice(name)[:, ::8]`; it has `get_shape` and `get_dtype`.

        Raises:
            KeyError: there is none of this name. ValueError: after closing.
        """
        return TensorSlice(self, self._find(name))

    def read_slice(self, tensor: LazyTensor, key: Index) -> Any:
        """Return a part of a tensor in memory of its own; for `TensorSlice`."""
        self._open()
        values = np.array(tensor[key], dtype=tensor.dtype, order="C")
        return values if self._framework in ("np", "numpy") else self._of_array(values, tensor)

    def _of_array(self, array: Array, tensor: LazyTensor) -> Any:
        module = _FRAMEWORKS[self._framework]
        if module == "torch":
            return import_module(".pytorch", __package__).of_array(require(module), array, tensor, self._device)
        if module == "jax":
            return import_module(".jax", __package__).of_array(array, tensor, self._device)
        return import_module(".mlx", __package__).of_array(array, tensor)

    def metadata(self) -> dict[str, str] | None:
        """Return the texts that the author and the converter put into the model: the user-defined ones, and "author",
        "description", "license" and "version" where they are not empty. Of a .safetensors file, its own.

        Returns:
            None where there are none, as in safetensors.
        """
        tensors = self._open()
        if not isinstance(tensors, Model):
            return dict(getattr(tensors, "texts", {})) or None
        about = tensors.metadata
        own = {name: getattr(about, name) for name in ("author", "description", "license", "version")}
        return {**{name: text for name, text in own.items() if text}, **about.user_defined} or None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        self._memory = WritableArrays()
        self._stack.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._tensors)} tensors as {self._framework}"
        return f"<safe_open {str(self._filename)!r:.200}: {state}>"


class TensorSlice:
    """A tensor whose parts can be read one by one; see `safe_open.get_slice`."""

    __slots__ = ("_owner", "_tensor")

    def __init__(self, owner: safe_open, tensor: LazyTensor) -> None:
        """Describe it; `owner` reads."""
        self._owner = owner
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        """Return the sizes of the dimensions."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the dtype as safetensors writes it: "F32", "BF16", "F8_E4M3"; "I8" or "U8" below a byte."""
        dtype = self._tensor.mil_dtype
        if dtype is DType.STRING:
            return "STRING"
        return _CODE_OF.get(dtype) or ("U8" if dtype.name.startswith("U") else "I8")

    def __getitem__(self, key: Index) -> Any:
        """Return a part: of integers, slices and `...`, one for each dimension; slices as NumPy takes them. [] is none.

        Raises: TypeError: an index of another kind. IndexError: outside of the tensor. As `Tensor.read`.
        """
        found = []
        for one in key if isinstance(key, tuple) else (key,):
            is_empty = isinstance(one, list) and not one
            if not is_empty and not isinstance(one, int | np.integer | slice | EllipsisType):
                raise TypeError(f"index: expected integers, slices and ..., got {type(one).__name__}")
            found.append(slice(0, 0) if is_empty else int(one) if isinstance(one, int | np.integer) else one)
        return self._owner.read_slice(self._tensor, tuple(found))


def _offset(tensor: LazyTensor) -> tuple[int, str, int]:
    """Return where a tensor is: 0 and its weight file and offset, or 1 if it is outside of weight files."""
    if isinstance(tensor, Tensor):
        place = tensor.stored_place
        if isinstance(place, RecordPlace):
            return 0, place.file or "", place.offset
        return min((_offset(part) for part in tensor.parts.values()), default=(1, "", 0))
    return 1, "", 0
