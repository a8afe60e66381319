"""Tensor caches of newer TVM and MLC: `tensor-cache.json`, formerly `ndarray-cache.json`, and its shards."""

import hashlib
import os
from math import prod
from typing import Any

from .._codec import Buffer
from ..arguments import as_path
from ..budget import Budget
from ..errors import FormatError, UnsupportedError
from ..jsontext import as_shape
from ..model.manifest import read_json
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile
from ..storage.table import CACHES
from .params import Parameter, Parameters, Views
from .params_codes import numpy_dtype

_SHARD, _BF16 = "raw-shard", "f32-to-bf16"
_FORMATS = ("raw", _BF16)


class _Shard(MappedFile):
    """A shard, compared with the MD5 that the cache has of it before the first of its tensors is read."""

    __slots__ = ("_digits",)

    def __init__(self, source: Location, digits: str | None) -> None:
        self._digits = digits
        super().__init__(source)

    def check_size(self) -> Buffer:
        """Return the buffer if the shard still has all of its bytes, and they are those of the cache.

        Raises: FormatError: they are not.
        """
        buffer = super().check_size()
        if self._digits is not None:
            found = hashlib.md5(memoryview(buffer), usedforsecurity=False).hexdigest()
            if found != self._digits.lower():
                message = f"MD5 of shard: expected {self._digits!r:.60} as the cache has it, got {found}"
                raise FormatError(f"{message} (write the cache and its shards together)", file=self.name)
            self._digits = None
        return buffer


def read_cache(source: str | os.PathLike[str]) -> Views:
    """Read the tensors of a tensor cache; `read_params` calls this.

    Examples:
        >>> views = milblob.tvm.read_cache("cache")
        >>> name = next(iter(views))
        >>> name, views[name].shape
        ('short', (4, 3))
    """
    return Views(open_cache(as_path(source)))


def open_cache(path: str, max_nbytes: int | None = None) -> Parameters:
    """Open a tensor cache: a mapping from names to tensors that are read when asked to.

    `path`: of the JSON file, or of the directory that holds it. `max_nbytes`: as for `milblob.open`.
    Raises: OSError: the file, or a shard, cannot be opened. FormatError: it is broken, or names a shard outside its
    directory. ResolveError: it names a shard as no file can be. UnsupportedError: shards or encodings of another kind.
    """
    budget = Budget(max_nbytes, path)
    path = _json_path(path)
    cache = read_json(Location(path), "tensor cache", unique=True, code="")
    shards = cache.get("records") if isinstance(cache, dict) else None
    if not isinstance(shards, list):
        raise FormatError("tensor cache: expected an object with a list of records, got another document", file=path)
    mappings: list[MappedFile] = []

    def close() -> None:
        for mapping in mappings:
            mapping.close()

    tensors: dict[str, Parameter] = {}
    try:
        for shard in shards:
            mapping = _open_shard(shard, path)
            mappings.append(mapping)
            budget.add_file(mapping.name, mapping.nbytes, mapping.identity)
            for record in _list(shard, "records", path):
                parameter = _parameter(record, mapping, path, budget)
                if parameter.name in tensors:
                    message = f"names of tensors: expected each once, got {parameter.name!r:.100} twice"
                    raise FormatError(message, file=path)
                tensors[parameter.name] = parameter
    except BaseException:
        close()
        raise
    return Parameters(tensors, lambda _, parameter: parameter, close)


def _json_path(path: str) -> str:
    if not paths.is_directory(path):
        return path
    for name in CACHES:
        if paths.is_there(os.path.join(path, name)):
            return os.path.join(path, name)
    raise FormatError(f"tensor cache: expected {' or '.join(CACHES)}, got a directory with neither", file=path)


def _open_shard(shard: Any, path: str) -> MappedFile:
    name, kind = _field(shard, "dataPath", str, path), _field(shard, "format", str, path)
    nbytes = _field(shard, "nbytes", int, path)
    if kind != _SHARD:
        raise UnsupportedError(f"format of shard {name!r:.100}: expected {_SHARD}, got {kind!r:.100}", file=path)
    if os.path.basename(name) != name or name in ("", ".", "..") or "\\" in name or "\0" in name:
        raise FormatError(f"shard: expected a file beside the cache, got {name!r:.200}", file=path)
    digits = _field(shard, "md5sum", str, path) if "md5sum" in shard else None
    mapping = _Shard(Location(os.path.dirname(path) or ".").beneath(name, links=False), digits)
    if mapping.nbytes != nbytes:
        message = f"size of shard {name}: expected {nbytes} bytes, got {mapping.nbytes}"
        mapping.close()
        raise FormatError(message, file=path)
    return mapping


def _parameter(record: Any, mapping: MappedFile, path: str, budget: Budget) -> Parameter:
    name, text = _field(record, "name", str, path), _field(record, "dtype", str, path)
    form, offset = _field(record, "format", str, path), _field(record, "byteOffset", int, path)
    nbytes, shape = _field(record, "nbytes", int, path), as_shape(record.get("shape"))
    if shape is None:
        raise FormatError(f"shape of {name!r:.100}: expected a list of sizes, got something else", file=path)
    if form not in _FORMATS:
        message = f"format of {name!r:.100}: expected {' or '.join(_FORMATS)}, got {form!r:.100}"
        raise UnsupportedError(message, file=path)
    is_short = form == _BF16 and text == "float32"
    dtype = numpy_dtype(text)
    if dtype is not None:
        expected = prod(shape) * (2 if is_short else dtype.itemsize)
        if nbytes != expected:
            message = f"bytes of {name!r:.100}: expected {expected} for {text} {list(shape)}, got {nbytes}"
            raise FormatError(message, file=path)
    if offset < 0 or nbytes < 0 or nbytes > mapping.nbytes - offset:
        message = f"place of {name!r:.100}: expected one inside the {mapping.nbytes} bytes of its shard, got {offset}"
        raise FormatError(message, file=path)
    form = "bf16" if is_short else "values"
    return Parameter(name, text, shape if len(shape) <= 64 else None, mapping, (offset, nbytes), form, budget)


def _field(record: Any, key: str, kind: type, path: str) -> Any:
    value = record.get(key) if isinstance(record, dict) else None
    if type(value) is not kind:
        message = f"{key} in tensor cache: expected {'a string' if kind is str else 'an integer'}, got {value!r:.100}"
        raise FormatError(message, file=path)
    return value


def _list(record: Any, key: str, path: str) -> list[Any]:
    value = record.get(key)
    if not isinstance(value, list):
        raise FormatError(f"{key} in tensor cache: expected a list, got {type(value).__name__}", file=path)
    return value
