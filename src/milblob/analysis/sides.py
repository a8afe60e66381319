"""The two sides of a comparison: the sources of the caller, opened, as tensors by name."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..arguments import array_of, as_path, require
from ..dtypes import dtype_of
from ..formats.opening import open_source
from ..formats.read import has_views, is_array_file
from ..formats.weights import with_notes
from ..mirrored import shown
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.stored import Arrays, StoredArray
from ..storage.table import model_opener


def is_arrays(source: Any) -> bool:
    """Whether what a caller gave is arrays, in a file or in memory, and no model."""
    if isinstance(source, str | os.PathLike):
        return is_array_file(as_path(source))
    if isinstance(source, Mapping):
        return not isinstance(source, Model)
    return model_opener(source) is not None


class Side(NamedTuple):
    """One side of a comparison."""

    # by name, those to compare. `pair` adds constants that are weights only on the other side.
    tensors: dict[str, LazyTensor]
    model: Model | None  # the model that has them; None for arrays
    words: str  # its name in messages
    arrays: Arrays[LazyTensor] | None = None  # the open file of arrays; None for others

    @classmethod
    def open(cls, source: Any, stored: bool, stack: contextlib.ExitStack, max_nbytes: int | None = None) -> "Side":
        """Open a caller's source; if it is opened here, it is closed with the stack."""
        if isinstance(source, Model):
            return cls(dict(source), source, source.path or "model in memory")
        if isinstance(source, Mapping):
            for name in source:
                require("names of arrays", name, str, "str")
            arrays = source if isinstance(source, Arrays) else None
            return cls({name: _array(name, value) for name, value in source.items()}, None, "arrays", arrays)
        path = as_path(source) if isinstance(source, str | os.PathLike) else None
        stored = stored and (path is None or not is_array_file(path) or has_views(path))
        opened = open_source(stack, source, stored=stored, max_nbytes=max_nbytes)
        if isinstance(opened, Model):
            return cls(dict(with_notes(opened, opened)), opened, opened.path or "model in memory")
        return cls({n: opened[n] for n in opened}, None, "bundle in memory" if path is None else shown(path), opened)

    @property
    def has_program(self) -> bool:
        """Whether it is a model, and not a weight file."""
        return self.model is not None and self.model.kind not in ("blob", "listing")

    @property
    def has_parts(self) -> bool:
        """Whether it may have compressed weights, whose stored parts can be compared."""
        return self.model is not None or not self.has_given_names

    @property
    def has_given_names(self) -> bool:
        """Whether its tensors have given names; names in a bundle of Core AI are made from the readers."""
        return getattr(self.arrays, "has_given_names", True)

    def beside(self, other: "Side") -> "Side":
        """Return what is compared with another side.

        Beside a Program, an ONNX model that was made of one leaves out the axes and sizes that the conversion made, as
        long as they are as it made them: they are no weights.
        """
        if self.arrays is None or not other.has_program:
            return self
        from ..formats.onnx import OnnxArrays

        arrays = self.arrays
        if not isinstance(arrays, OnnxArrays):
            return self
        return self._replace(tensors={n: tensor for n, tensor in self.tensors.items() if not arrays.is_as_made(n)})

    def find(self, name: str) -> str | None:
        """Return the only tensor that has this name, with or without its prefix."""
        if name in self.tensors:
            return name
        if self.model is None or name not in self.model:
            return None
        found = self.model[name].name
        return found if found in self.tensors else None


def _array(name: str, value: Any) -> LazyTensor:
    if isinstance(value, LazyTensor):
        return value
    array = array_of(value)
    return StoredArray(name, dtype_of(array, f"array {name!r}"), array.shape, lambda: array)
