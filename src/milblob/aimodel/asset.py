"""milblob.aimodel.open: a bundle of Apple's Core AI as a mapping from names to tensors."""

import os
from collections.abc import Mapping
from typing import Any

from ..arguments import as_path, require_flags
from ..budget import Budget
from ..closeness import ambiguous, unknown
from ..errors import FormatError
from ..jsontext import parse_json
from ..mirrored import shown
from ..model.stored import Arrays
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import Opened, closed_on_error
from ..storage.pending import map_settled
from .open_bytecode import OpenBytecode
from .program import AssetFunction, WeightRow
from .tensors import AssetTensor

BYTECODE, HASH, METADATA = "main.mlirb", "main.hash", "metadata.json"


class Asset(Opened, Arrays[AssetTensor]):
    """An open bundle: a mapping from names to `AssetTensor`. Made by `milblob.open`.

    Attributes:
        path: as given; None for a buffer.
        kind: "aimodel", of a bundle and of a bare .mlirb file.
        file: path of the bytecode.
        functions: name -> `AssetFunction`: inputs, outputs, states.
        metadata: the contents of metadata.json; {} for a bare file, or without that file.

    A name without its function is accepted if only one tensor has it; so is "#3", the tensor's number. Names are made
    of the operations that read a tensor, since a bundle keeps no names of weights: `milblob.match` finds them.

    Examples:
        >>> with milblob.open("demo.aimodel") as asset:
        ...     weights = {name: tensor.read() for name, tensor in asset.items()}
        >>> {name: array.shape for name, array in weights.items()}
        {'main/conv2d_1.weight': (4, 4, 3, 3), 'main/conv2d_0.weight': (8, 3, 3, 3)}
    """

    kind: str = "aimodel"
    has_given_names = False

    def __init__(
        self,
        source: Any,
        *,
        constants: bool = False,
        stored: bool = False,
        mmap: bool = True,
        max_nbytes: int | None = None,
    ) -> None:
        """Open a bundle; see `open`."""
        require_flags(constants=constants, stored=stored, mmap=mmap)
        self.path: str | None = as_path(source) if isinstance(source, str | os.PathLike) else None
        self._place, self.path = self.path or "", self.path and shown(self.path)  # the latter is what it is called
        self.given = {"constants": constants, "stored": stored, "max_nbytes": max_nbytes}
        self.is_directory = self.path is not None and paths.is_directory(self.path)
        self.mapping = map_settled(_main(self.path) if self.is_directory else source, is_mapped=mmap)
        self.file: str | None = self.mapping.name
        with closed_on_error(self.mapping):
            self.budget = Budget(max_nbytes, self.file)
            self.budget.add_file(self.file, self.mapping.nbytes, self.mapping.identity)
            self.mapping.expect_random(True)
            self.opened = OpenBytecode(self.mapping, self.budget)
            self.program = self.opened.program
            rows = self.program.rows(constants, stored)
            self.mapping.expect_random(False)
        self._by_tail: dict[str, list[str]] | None = None
        super().__init__({row.name: row for row in rows}, self._tensor, self.mapping.close)

    def _tensor(self, _: str, row: WeightRow) -> AssetTensor:
        return AssetTensor(self.opened, row)

    def __getitem__(self, name: str) -> AssetTensor:
        if name in self._rows:
            return AssetTensor(self.opened, self._rows[name])
        found = self._tails().get(name, []) if isinstance(name, str) else []
        if len(found) > 1:
            raise KeyError(ambiguous(name, found))
        if not found:
            raise KeyError(unknown("tensor", name, self._rows, self.path or "the bundle"))
        return AssetTensor(self.opened, self._rows[found[0]])

    def __contains__(self, name: object) -> bool:
        return name in self._rows or (isinstance(name, str) and len(self._tails().get(name, ())) == 1)

    def _tails(self) -> dict[str, list[str]]:
        """Other names: without the function, and by number, with and without it."""
        if self._by_tail is None:
            tails: dict[str, list[str]] = {}
            for name, row in self._rows.items():
                numbered = [f"#{row.ordinal}", f"{row.function}/#{row.ordinal}"] if row.ordinal >= 0 else []
                for tail in {name.removeprefix(f"{row.function}/"), *numbered} - {name}:
                    tails.setdefault(tail, []).append(name)
            self._by_tail = tails
        return self._by_tail

    @property
    def functions(self) -> Mapping[str, AssetFunction]:
        """See the class."""
        return self.program.functions

    @property
    def metadata(self) -> dict[str, Any]:
        """See the class.

        Raises:
            FormatError: metadata.json is not a JSON object. OSError: it cannot be read.
        """
        text = self.companion(METADATA)
        if text is None:
            return {}
        found = parse_json(text.decode("utf-8", "replace"), METADATA, self._beside(METADATA))
        if not isinstance(found, dict):
            raise FormatError(
                f"{METADATA}: expected an object, got {type(found).__name__}", file=self._beside(METADATA)
            )
        return found

    def _beside(self, name: str) -> str | None:
        return os.path.join(self._place, name) if self.is_directory else None

    def companion(self, name: str, most: int = 1 << 20) -> bytes | None:
        """Return the bytes of another file of the bundle, None if it has none; for milblob's own modules.

        Raises:
            FormatError: it is longer. OSError: it cannot be read.
        """
        if not self.is_directory or not paths.is_there(os.path.join(self._place, name)):
            return None
        other = map_settled(Location(self._place).beneath(name), is_mapped=False)
        try:
            if other.nbytes > most:
                raise FormatError(f"{name}: expected at most {most} bytes, got {other.nbytes}", file=other.name)
            return bytes(memoryview(other.live()))
        finally:
            other.close()

    def unlisted(self) -> dict[str, AssetTensor]:
        """Return the constants that this listing leaves out, by name."""
        rows = self.program.rows(True, bool(self.given["stored"]))
        return {row.name: AssetTensor(self.opened, row) for row in rows if row.name not in self._rows}

    def __repr__(self) -> str:
        return f"<Asset {self.path or 'buffer'}: {len(self)} tensors>"


def changeable_files(path: str) -> set[str]:
    """Return the real paths of the files of a bundle that its journal may change."""
    return {os.path.join(paths.real(path), name) for name in (BYTECODE, HASH)}


def _main(path: str | None) -> Location:
    location = Location(path or "")
    if not paths.is_there(os.path.join(path or "", BYTECODE)):
        raise FormatError(f"bundle: expected {BYTECODE} in it, got none", file=path, code="missing-file")
    return location.beneath(BYTECODE)


def open_asset(source: Any, **options: Any) -> Asset:
    """Open a bundle of Core AI, or a bare .mlirb file, without reading its values.

    Args:
        source: path of an .aimodel or an .mlirb file; or a buffer or file object that holds the latter.
        options: `constants`, `stored`, `mmap` and `max_nbytes`, as for `milblob.open`.

    Raises:
        OSError: it cannot be opened. FormatError: broken bytes. UnsupportedError: another version of the container.

    Examples:
        >>> with milblob.aimodel.open_asset("demo.aimodel") as asset:
        ...     print(list(asset))
        ['main/conv2d_1.weight', 'main/conv2d_0.weight']
    """
    return Asset(source, **options)
