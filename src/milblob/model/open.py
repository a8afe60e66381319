"""milblob.open: a model to read, or to give new values."""

from typing import TYPE_CHECKING, Any, Literal, overload

from ..arguments import require_flags
from .model import Model

if TYPE_CHECKING:
    from .editable import EditableModel


@overload
def open(
    source: Any, mode: Literal["r"] = "r", *, constants: bool = False, stored: bool = False, mmap: bool = True
) -> Model: ...


@overload
def open(
    source: Any, mode: Literal["r+"], *, constants: bool = False, stored: bool = False, mmap: Literal[True] = True
) -> "EditableModel": ...


@overload
def open(source: Any, mode: str, *, constants: bool = False, stored: bool = False, mmap: bool = True) -> Model: ...


def open(source: Any, mode: str = "r", *, constants: bool = False, stored: bool = False, mmap: bool = True) -> Model:
    """Open a model, or a bare weight file, without reading its values.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel, model.mil, blob file, or listing of one (`write_weights`);
            or a buffer or file object that holds one of the latter four. What it is follows from the contents.
        mode: "r" to read. "r+" also to assign: `model["w"] = array` (see EditableModel); then `source` is a path, and
            no other writer may have the model.
        constants: list every tensor constant, not only the weights (every blob-file value, and numeric immediates of
            ten or more elements).
        stored: list the stored parts of compressed weights ("w.indices", "w.lut", ...) instead of the dense weights.
        mmap: map files. False reads each of them whole into memory of this process when it is first needed (a weight
            file, when one of its tensors is), and arrays share that memory: for files that another process may make
            shorter, where touching a mapped page that is gone kills this one (SIGBUS). Only to read.

    Returns:
        Model, a mapping from names to `Tensor`; a context manager. With "r+", an EditableModel.

    Raises:
        OSError: a file cannot be opened.
        FormatError: broken bytes; UnsupportedError: not an ML Program (the type is named); ResolveError: the manifest
            leads nowhere. A missing weight file is no error before a tensor in it is read.
        ValueError: another mode; "r+" with mmap=False, or of a file inside a package. BlockingIOError: "r+", and
            another writer has it.
    """
    if mode == "r+":
        require_flags(mmap=mmap)
        if not mmap:
            raise ValueError("mmap: expected True with mode 'r+', got False")
        from .editable import EditableModel

        return EditableModel(source, constants=constants, stored=stored)
    if mode != "r":
        raise ValueError(f"mode: expected 'r' or 'r+', got {mode!r}")
    return Model(source, constants=constants, stored=stored, mmap=mmap)
