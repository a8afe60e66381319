"""The common base of tensors of models and arrays of other files: a name, a place, and values read on demand."""

import contextlib
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import MilblobError, UnsupportedError
from ..shown import Shown, short
from ..wording import escape, sizes
from .places import Place
from .private import view_of_own

_HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy exports read-only arrays by DLPack 1.0."""


class LazyTensor(Shown):
    """A tensor that is not read yet.

    `np.asarray(t)`, `t[...]` and `t.read()` give the values.

    Attributes:
        name: unique in its model or file.
        mil_dtype: DType of the values; `dtype` is the NumPy dtype.
    """

    __slots__ = ("_shape", "mil_dtype", "name")

    def __init__(self, name: str, mil_dtype: DType, shape: tuple[int | None, ...]) -> None:
        self.name = name
        self.mil_dtype = mil_dtype
        self._shape = shape

    @property
    def place(self) -> Place:
        """Where the values come from; for milblob's own modules."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the values."""
        return self.mil_dtype.numpy

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions; one that the type leaves open is found by counting the values."""
        if None in self._shape:
            self._shape = self.read().shape
        return self._shape  # type: ignore[return-value]

    @property
    def declared_shape(self) -> tuple[int | None, ...]:
        """Dimensions without reading values: None for an open one that has not been counted yet."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes stored: packed for sub-byte dtypes, all parts together for a compressed weight."""
        return self.place.nbytes()

    def read(self, *, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the values.

        Args:
            out: array of the same dtype and shape to fill instead. Computed values (compressed weights, packed ones,
                integer immediates) are written directly into it if it is C-contiguous. After an exception its contents
                are unspecified.

        Returns:
            ndarray: a zero-copy, read-only view of the mapped file if the stored bytes are the values, else a new
                array: the dense values of a compressed weight, bit for bit as in coremltools. With `out`, that array.

        Raises:
            ResolveError: the weight file is missing or outside the model, or its record has another dtype or size.
            FormatError: broken bytes; parts of a compressed weight that do not match; the file has shrunk since it was
                opened.
            ValueError: `out` does not fit, or the model is closed.
        """
        return self.place.read(out)

    def read_packed(self) -> np.ndarray[Any, Any]:
        """Return the elements as a weight file stores them: little-endian, those below 8 bits packed.

        Returns:
            uint8 array of shape (nbytes,): a read-only view of the mapped file wherever it holds these bytes, else a
            new array.

        Raises:
            As `read`; TypeError: strings, which weight files do not hold.
        """
        if self.mil_dtype is DType.STRING:
            raise TypeError(escape(f"dtype of {self.name}: expected one of fixed size, got string"))
        return self.place.read_packed()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self.read()
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError(
                    f"array of {values.dtype} as {np.dtype(dtype)}: expected a copy to be allowed, got copy=False"
                )
            return values.astype(dtype)
        return values.copy() if copy else values

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the values as DLPack does, for `torch.as_tensor` and the like, which would else read item by item.

        A consumer that asks for version 1.0 or later, whose tensors may be read-only, gets values that are stored as
        they are without a copy, marked as read-only: a private, copy-on-write mapping of the file. PyTorch ignores the
        mark; what it writes changes that tensor only. Values that are computed are in new memory. All others, and all
        for older consumers, are copied.

        Args:
            copy: True: always copy. False: raise if the values must be copied.

        Raises:
            BufferError: a dtype that NumPy does not export, such as bfloat16; a copy where copy=False. As `read`.
        """
        if self.dtype.isbuiltin == 2 or self.dtype.kind == "O":  # of ml_dtypes, or strings
            how = ""
            if self.mil_dtype in (DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2):
                bits = f"int{self.mil_dtype.nbits}"
                how = f"; use torch.from_numpy(t.read().view('{bits}')).view(torch.{self.dtype.name})"
            raise BufferError(f"{self.name}: expected a dtype that NumPy exports, got {self.mil_dtype}{how}")
        is_versioned = max_version is not None and max_version >= (1, 0) and _HAS_VERSIONS
        values = None
        if is_versioned and not copy:
            values = view_of_own(self.place)
        if values is None:
            if copy is False:
                raise BufferError(
                    f"{self.name}: expected a copy to be allowed, got copy=False; np.asarray gives a view"
                )
            values = np.array(self.read())
        if not is_versioned:
            return values.__dlpack__(stream=stream)
        return values.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)  # type: ignore[call-arg,unused-ignore]

    def _texts(self) -> list[tuple[str, str]]:
        texts = [("name", short(self.name)), ("dtype", str(self.mil_dtype)), ("shape", sizes(self._shape))]
        if None not in self._shape and self.mil_dtype is not DType.STRING:
            with contextlib.suppress(MilblobError):  # a part whose shape is open
                texts.append(("stored bytes", f"{self.nbytes:,}"))
        return texts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {short(self.name)}: {self.mil_dtype} {sizes(self._shape)}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def __getitem__(self, key: Any) -> Any:
        return self.place.read_key(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())  # read once, not once per item, as iteration by index would

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a tensor with no dimensions")
        return self.shape[0]


def dtype_text(tensor: LazyTensor) -> str:
    """Return the name of a dtype; of one that MIL lacks, its name in its own format."""
    try:
        return str(tensor.mil_dtype)
    except UnsupportedError:
        own = getattr(tensor, "dtype_text", None)
        if own is None:
            raise
        return str(own)
