"""The options that give a model its inputs: -i NAME=FILE, and the arrays and images that they name."""

import os
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..wording import some
from . import options

if TYPE_CHECKING:
    import numpy as np

    from ..onnx import Session, SessionInput

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def add_inputs(parser: options.Parser, description: str) -> None:
    """Add -i; `description` describes what is done without it."""
    ways = "NAME=x.npy, NAME=x.png, NAME=x.npz:KEY, or x.npz, whose arrays have the names of inputs"
    what = f"{ways}; may be repeated; {description}"
    parser.add_argument("-i", "--input", metavar="INPUT", dest="inputs", action="append", default=[], help=what)


def add_function(parser: options.Parser) -> None:
    """Add --function."""
    parser.add_argument("--function", metavar="NAME", help="a function of the model; default: its default function")


def _is_onnx(path: str) -> bool:
    return path.lower().endswith(".onnx")


def require_function_used(arguments: Namespace, *models: str) -> None:
    """Refuse --function where every model is an .onnx file, which is one function. Raises: ValueError."""
    if arguments.function is not None and all(map(_is_onnx, models)):
        raise ValueError(f"--function: expected none, for an .onnx file is one function, got {arguments.function}")


def open_session(path: str | list[str], arguments: Namespace, **more: Any) -> "Session":
    """Return a model at a path, or several that run one after another, ready to run.

    Raises: As `milblob.Session`, and opening the model.
    """
    from .. import Session
    from ..model import open as opening

    if not isinstance(path, str):
        if len(path) > 1:
            with ExitStack() as stack:
                opened = (opening.open_model(one, max_nbytes=arguments.max_nbytes) for one in path)
                models = [stack.enter_context(model) for model in opened]
                return Session(models, function=arguments.function, max_nbytes=arguments.max_nbytes, **more)
        (path,) = path
    if _is_onnx(path):
        return Session(path, max_nbytes=arguments.max_nbytes, **more)
    with opening.open_model(path, max_nbytes=arguments.max_nbytes) as model:
        return Session(model, function=arguments.function, **more)


def read_inputs(arguments: Namespace, ports: "Mapping[str, SessionInput]") -> dict[str, Any]:
    """Return the inputs of -i: name -> array, or an image in the colours that the model takes.

    `ports`: inputs of the model, by name.
    Raises: ValueError: an input that is given twice; a file of several arrays without a key. As opening the files.
    """
    found: dict[str, Any] = {}
    for text in arguments.inputs:
        name, equals, file = text.partition("=")
        given = {name: _read_one(file, ports.get(name), arguments)} if equals else _read_all(text, arguments)
        for key, value in given.items():
            if key in found:
                raise ValueError(f"-i {text}: expected each input once, got {key} again")
            found[key] = value
    return found


def read_arrays(path: str, arguments: Namespace) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return all arrays of a file."""
    from ..formats.read import open_arrays

    with open_arrays(path, max_nbytes=arguments.max_nbytes) as arrays:
        return {name: array.read() for name, array in arrays.items()}


def _read_all(file: str, arguments: Namespace) -> dict[str, Any]:
    suffix = os.path.splitext(file)[1].lower()
    if suffix in _IMAGES or suffix == ".npy":
        raise ValueError(f"-i {file}: expected NAME={file} with the name of an input, got no name")
    return read_arrays(file, arguments)


def _read_one(file: str, port: "SessionInput | None", arguments: Namespace) -> Any:
    from ..formats.read import open_arrays
    from ..storage.table import SUFFIXES

    if file.lower().endswith(_IMAGES):
        return _read_image(file, port)
    path, colon, key = file.rpartition(":")
    if colon and not file.lower().endswith(SUFFIXES) and os.path.splitext(path)[1].lower() in SUFFIXES:
        with open_arrays(path, max_nbytes=arguments.max_nbytes) as arrays:
            if key not in arrays:
                raise ValueError(f"-i: expected one of {some(arrays) or 'none'} in {path}, got {key!r}")
            return arrays[key].read()
    with open_arrays(file, max_nbytes=arguments.max_nbytes) as arrays:
        if len(arrays) != 1:
            held = some(arrays) or "none"
            raise ValueError(f"-i: expected {file}:KEY, for the file has several arrays ({held}), got no key")
        return next(iter(arrays.values())).read()


def _read_image(file: str, port: "SessionInput | None") -> Any:
    """Open a picture, upright, in the colours that an input takes; its size is not changed."""
    from ..extras import require

    require("PIL")
    from PIL import Image, ImageOps

    from ..running.ports import MODES

    with Image.open(file) as image:
        upright = ImageOps.exif_transpose(image)
        mode = MODES.get(port.color_space) if port is not None else None
        return upright.copy() if mode is None or upright.mode == mode else upright.convert(mode)
