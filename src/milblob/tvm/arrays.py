"""The parameters of an archive as a file of arrays: what milblob's other commands and functions take."""

from ..errors import FormatError
from ..formats.params import Parameters
from ..storage.mapped import closed_on_error
from .library import Library, Module
from .library import open as open_library


def named_parameters(library: Library) -> dict[str, tuple[Module, str]]:
    """Return what the parameters of an archive are called in one list, with the module and the name there.

    They are called as their file has it; of an archive with several modules, "module/parameter".

    Raises:
        FormatError: parameters that are broken; two that would be called the same.
    """
    found: dict[str, tuple[Module, str]] = {}
    for module in library.modules.values():
        for name in module.params:
            full = f"{module.name}/{name}" if len(library.modules) > 1 else name
            if full in found:
                words = (
                    f"names of parameters: expected each once, got {full!r:.100} in {found[full][0].name!r:.100} too"
                )
                raise FormatError(words, file=library.path)
            found[full] = (module, name)
    return found


def open_arrays(path: str, max_nbytes: int | None = None) -> Parameters:
    """Open the parameters of an archive: a mapping from names, as `named_parameters` has them, to `Parameter`.

    Raises:
        As `milblob.tvm.open`, and as `named_parameters`.
    """
    library = open_library(path, max_nbytes=max_nbytes)
    with closed_on_error(library):
        rows = named_parameters(library)
    return Parameters(rows, lambda _, place: place[0].params[place[1]], library.close)
