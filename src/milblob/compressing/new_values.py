"""New values for a model before it is compressed. Quantized blocks of a file may be taken over unchanged."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..arguments import Names
from ..errors import MilblobError
from ..formats.read import open_arrays
from ..refitting.refit import refit
from ..rewrite.destination import is_in_place
from ..storage.output import NewDirectory
from ..values.strided import Empty
from .weight import HeldBlocks

Array = np.ndarray[Any, Any]


@contextlib.contextmanager
def new_values(
    source: str, output: str, weights: Any, mapping: Mapping[str, Names] | None, dry_run: bool, max_nbytes: int | None
) -> Iterator[tuple[str, Mapping[str, HeldBlocks]]]:
    """Yield the path of a copy of a model with new values, as `refit` makes it, which is there inside the context.

    With it comes what is stored in blocks of integers with a scale, by name of weight.

    `source`, `output`: of the compression; the copy is made beside the output, for a dry run where temporary files go.
    `weights`, `mapping`, `max_nbytes`: as for `refit`; floats are cast.
    Raises: ValueError: the output is the model. As `refit`. What is raised of the copy in the context names the model.
    """
    if is_in_place([source], output):
        raise ValueError(f"output {output}: expected another place than the model with weights, got the model")
    with contextlib.ExitStack() as stack:
        given = weights
        if isinstance(weights, str | os.PathLike):
            given = stack.enter_context(open_arrays(weights, max_nbytes=max_nbytes))
        if dry_run:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="milblob-"))
        else:
            staged = NewDirectory(f"{os.path.abspath(output)}.refitted")  # it never takes this name
            stack.callback(staged.discard)
            folder = staged.name
        path = os.path.join(folder, os.path.basename(os.path.abspath(source)))
        report = refit(source, given, mapping=mapping, cast=True, destination=path)
        found = {}
        for change in report.changes:
            array = given[change.given]
            dtype = getattr(array, "block_dtype", None)
            if dtype is not None:
                found[change.name] = HeldBlocks(dtype, array.block_shape, _reader(array))
        try:
            yield path, found
        except MilblobError as error:
            error.what = error.what.replace(path, source)
            error.file = None if error.file is None else error.file.replace(path, source)
            raise
        except (ValueError, KeyError) as error:
            error.args = tuple(arg.replace(path, source) if isinstance(arg, str) else arg for arg in error.args)
            raise


def _reader(array: Any) -> Callable[[Empty], tuple[Array, Array]]:
    def read(empty: Empty) -> tuple[Array, Array]:
        blocks = array.blocks(empty)
        return blocks.data, blocks.scale

    return read
