"""milblob.tvm.open: an archive in the Model Library Format, its modules, files and parameters."""

import os
from collections.abc import Mapping
from typing import Any

from ..arguments import as_path
from .edit import write_edited
from .modules import Module, OpenLibrary

__all__ = ["Library", "Module", "open"]


class Library(OpenLibrary):
    """A Model Library Format archive, opened by `milblob.tvm.open`: see `OpenLibrary`.

    Examples:
        >>> with milblob.tvm.open("demo.tar") as library:
        ...     library.with_params({"p0": np.float32([[5, 6]])}, "new.tar")
        >>> milblob.tvm.open("new.tar").modules["default"].params["p0"].read()
        array([[5., 6.]], dtype=float32)
    """

    def with_params(
        self, arrays: Mapping[str, Any], destination: str | os.PathLike[str], *, force: bool = False
    ) -> None:
        """Write this archive with other values of parameters; see `milblob.tvm.edit.write_edited`."""
        write_edited(self, arrays, as_path(destination), force)


def open(source: Any, *, tvm: str | None = None, max_nbytes: int | None = None) -> Library:
    """Open a Model Library Format archive of any version.

    Args:
        source: path of a .tar, of a .tar.gz, or of the directory that one was unpacked to; or a buffer or file object
            of the former two. A tar is mapped, and its parameters are views inside it. A gzipped one is decompressed
            into a temporary file first.
        tvm: version of TVM that wrote it, which determines its numbers for fp8 and bool. Default: their meaning in all
            versions that could write an archive.
        max_nbytes: the limit for decompressing a .tar.gz, default: 64 times its size, at least 256 MiB; and what may be
            made of the parameters, as for `milblob.open`.

    Raises:
        OSError: it cannot be opened.
        FormatError: a tar that cannot be followed, no metadata.json, or one of the wrong shape.
        UnsupportedError: no archive; a version that never was.
        The graph and the parameters are read at the first access, which raises the same errors.

    Examples:
        >>> with milblob.tvm.open("demo.tar") as library:
        ...     print(library.kind, library.version, list(library.modules))
        tar 7 ['default']
    """
    return Library(source, tvm=tvm, max_nbytes=max_nbytes)
