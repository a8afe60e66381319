"""Optional packages: which extra of milblob installs each, and the error when one is missing."""

from importlib import import_module
from typing import Any

_EXTRAS = {
    "backports": ("backports.zstd", "delta"),
    "distributed": ("distributed", "dask"),
    "fsspec": ("fsspec", "remote"),
    "gguf": ("gguf", "gguf"),
    "jax": ("jax", "jax"),
    "matplotlib": ("matplotlib", "plot"),
    "mlx": ("mlx", "mlx"),
    "mpld3": ("mpld3", "report"),
    "onnx": ("onnx", "onnx"),
    "onnx_ir": ("onnx-ir", "onnx"),
    "onnxmltools": ("onnxmltools", ""),
    "onnxruntime": ("onnxruntime", "onnx-run"),
    "PIL": ("pillow", "onnx-run"),
    "ray": ("ray", "ray"),
    "safetensors": ("safetensors", "safetensors"),
    "shtab": ("shtab", "completion"),
    "torch": ("torch", "torch"),
}
"""Import name of a package -> its name on PyPI, and the extra that installs it; "" if no extra does."""


def require(module: str) -> Any:
    """Import an optional package or one of its modules, and return it.

    Raises: ImportError: the package is not installed; the message has the command that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise explained(error) from error


def explained(error: ModuleNotFoundError) -> ImportError:
    """Return the error to raise instead of `error`: one that names the extra, if an optional package is missing."""
    package = (error.name or "").partition(".")[0]
    return missing(package) if package in _EXTRAS else error


def missing(package: str) -> ImportError:
    """Return the error for an optional package that is not installed; it names the extra."""
    name, extra = _EXTRAS[package]
    more = f" (milblob's extra {extra} installs all that is needed)" if extra else ""
    return ImportError(f"{name} is not installed; run: pip install {name}{more}")
