"""milblob show: describe one tensor, or the model or the file of arrays itself."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from ...errors import MilblobError
from .. import options
from ..selection import find, find_array
from ..several import add_many, run_each
from ..terminal import output, tables
from ..terminal.tables import LAST, Column
from ..terminal.values import show_values

if TYPE_CHECKING:
    from ...model.lazy import LazyTensor
    from ...model.metadata import Feature
    from ...model.model import Model
    from ...model.tensor import Tensor
    from ...program.compression import Compression

_PARTS = [
    Column("part"),
    Column("name", is_name=True),
    Column("dtype", drop=LAST + 3),
    Column("shape", drop=LAST + 2),
    Column("size", True, drop=LAST + 1),
]
_FEATURES = ("inputs", "outputs", "states")

EXAMPLES = ("show Model.mlpackage", "show Model.mlpackage head_weight")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=options.ANY)
    parser.add_argument("name", metavar="NAME", nargs="?", help="a tensor; default: the model itself")
    parser.add_argument("-f", "--function", metavar="NAME", help="the function that the tensor belongs to")
    add_many(parser)
    options.add_reporting(
        parser,
        quiet="read no values; omit user-defined metadata",
        verbose="show more values; the inputs and outputs of every function",
    )


def run(arguments: Namespace) -> int:
    """Run the command. With --files-from, a single argument is the name of a tensor."""
    if arguments.files_from is not None and arguments.name is None:
        arguments.model, arguments.name = None, arguments.model
    arguments.models = [] if arguments.model is None else [arguments.model]
    return run_each(arguments, _show)


def _show(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    from ...formats.read import array_kind, has_views
    from ...model import open as opening

    name, function, kind = arguments.name, arguments.function, array_kind(path)
    if kind is not None:
        if function is not None and not has_views(path):
            raise ValueError(f"{path}: expected a model, which -f is about")
        with ExitStack() as stack:
            if name is None:
                return _show_file(stack, path, arguments, kind)
            name = name if function is None else f"{function}/{name}"
            return _show_array(find_array(stack, path, name, arguments.max_nbytes), path, arguments)
    if name is None:
        if function is not None:
            raise ValueError(f"-f: expected NAME too, a tensor of the function, got only {function}")
        with opening.open_model(path) as model:
            document = _describe_model(model)
        return _show_whole(arguments, document, _model_rows(document, arguments))
    model, tensor = find(path, name, function, arguments.max_nbytes)
    with model:
        place = _place(tensor)
        parts = {"parts": {key: part.name for key, part in tensor.parts.items()}, "compressed": _compressed(tensor)}
        rows = _tensor_rows(tensor, place)
        return _show_tensor(tensor, arguments, place | parts, rows, lambda: _print_parts(tensor))


def _show_whole(
    arguments: Namespace, document: dict[str, Any], rows: list[tuple[str, str]]
) -> tuple[int, dict[str, Any] | None]:
    if arguments.json:
        return 0, document
    tables.print_pairs(rows)
    return 0, None


# ----------------------------------------------------------------------------------------------- a tensor, or an array


def _show_tensor(
    tensor: "LazyTensor",
    arguments: Namespace,
    document: dict[str, Any],
    rows: list[tuple[str, str]],
    parts: Callable[[], None] = lambda: None,
) -> tuple[int, dict[str, Any] | None]:
    """Show a tensor: with -q only where it is."""
    if arguments.quiet and not arguments.json:
        tables.print_pairs(rows)
        return 0, None
    return show_values(tensor, arguments, document, rows, parts)


def _place_rows(place: dict[str, Any], what: str) -> list[tuple[str, str]]:
    """Return the rows that all tensors have; `what` begins at the offset."""
    rows = [("name", place["name"]), ("type", f"{place['dtype']} {output.shape_text(place['shape'])}")]
    if place["nbytes"] is not None:
        rounded = f" ({output.size(place['nbytes'])})" if place["nbytes"] >= 1024 else ""
        rows.append(("stored", output.plural(place["nbytes"], "byte") + rounded))
    if place["file"] is not None:
        rows.append(("file", place["file"]))
    if place["offset"] is not None:
        data = f", data at byte {place['data_offset']}" if place.get("data_offset") is not None else ""
        rows.append(("offset", f"{what} at byte {place['offset']}{data}"))
    return rows


def _compressed(tensor: Any) -> dict[str, Any] | None:
    return tensor.compression.to_dict() if tensor.compression else None


def _place(tensor: "Tensor") -> dict[str, Any]:
    """Where a tensor lives and who uses it."""
    from ...model.rows import scheme_of
    from ..terminal import consumers

    shape = tensor.declared_shape
    if None in shape:
        with suppress(MilblobError):
            shape = tensor.shape
    return {
        "name": tensor.name,
        "dtype": str(tensor.mil_dtype),
        "shape": list(shape),
        "nbytes": None if None in shape else tensor.nbytes,
        "function": tensor.function,
        "op": tensor.op,
        "consumers": [consumers.to_dict(consumer) for consumer in tensor.consumers],
        "where": tensor.where if tensor.program is not None else "",
        "file": tensor.file,
        "offset": tensor.offset,
        "data_offset": _data_offset(tensor),
        "compression": scheme_of(tensor),
    }


def _data_offset(tensor: "Tensor") -> int | None:
    """Offset of the first value of a blob-file value; None if the file cannot be read."""
    if not tensor.is_blob or tensor.offset is None:
        return None
    try:
        return tensor.data_offset
    except (MilblobError, OSError):
        return None


def _tensor_rows(tensor: "Tensor", place: dict[str, Any]) -> list[tuple[str, str]]:
    from ..terminal import consumers

    rows = _place_rows(place, "record" if tensor.is_blob else "value")
    if place["op"]:
        rows.append(("operation", place["op"] + (f" in function {place['function']}" if place["function"] else "")))
    if tensor.compression:
        rows.append(("compressed", _compression_words(tensor.compression)))
    if place["where"]:
        rows.append(("path", place["where"]))
    return rows + [("used by", consumers.in_words(consumer)) for consumer in tensor.consumers]


def _compression_words(compression: "Compression") -> str:
    """How a weight is compressed, in one line."""
    words = [output.chain_words(compression)]
    if compression.bits_per_weight is not None:
        words.append(f"{compression.bits_per_weight:.3g} bits per weight")
    if compression.nbits is not None:
        words.append(f"elements of {compression.nbits} bits")
    if compression.block_shape is not None:
        words.append(f"a scale for {output.shape_text(compression.block_shape)}")
    if compression.group_shape is not None:
        words.append(f"a palette for {output.shape_text(compression.group_shape)}")
    if (compression.vector_size or 1) > 1:
        words.append(f"vectors of {compression.vector_size}")
    if compression.sparsity is not None:
        words.append(f"{compression.sparsity:.1%} zeros not stored")
    return ", ".join(words)


def _print_parts(tensor: "Tensor") -> None:
    if not tensor.parts:
        return
    print()
    cells = []
    for key, part in tensor.parts.items():
        stored = output.size(None if None in part.declared_shape else part.nbytes)
        cells.append([key, part.name, str(part.mil_dtype), output.shape_text(part.declared_shape), stored])
    tables.print_table(_PARTS, cells)


def _show_array(array: "LazyTensor", path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    from ...formats.params import Parameter
    from ..terminal.listed import array_row

    row = array_row(array.name, array, path)
    document = {key: getattr(row, key) for key in ("name", "dtype", "shape", "nbytes", "file", "offset")}
    rows = _place_rows(document, "data")
    if hasattr(array, "consumers"):
        document |= _asset_tensor(array)
        rows += _asset_tensor_rows(array)
    if isinstance(array, Parameter):
        document["tvm_dtype"] = array.dtype_text
    return _show_tensor(array, arguments, document, rows)


def _asset_tensor(tensor: Any) -> dict[str, Any]:
    """Return what JSON has of a tensor in a bundle of Core AI, besides its place."""
    return {
        "function": tensor.function, "op": tensor.op, "ordinal": tensor.ordinal, "label": tensor.label,
        "consumers": [{"op": use.type, "name": use.label, "parameter": use.parameter} for use in tensor.consumers],
        "parts": {key: part.name for key, part in tensor.parts.items()}, "compressed": _compressed(tensor),
    }  # fmt: skip


def _asset_tensor_rows(tensor: Any) -> list[tuple[str, str]]:
    number = f", number {tensor.ordinal} of {tensor.function}" if tensor.ordinal >= 0 else ""
    rows = [("operation", f"{tensor.op}{number}")]
    if tensor.label:
        rows.append(("made by", tensor.label))
    if tensor.compression:
        rows.append(("compressed", str(tensor.compression)))
    rows += [(f"part {key}", f"{part.dtype_text} {list(part.shape)}") for key, part in tensor.parts.items()]
    return rows + [("used by", f"{use.label}, as {use.parameter}") for use in tensor.consumers]


# ---------------------------------------------------------------------------------------------------- a file of arrays


def _show_file(stack: ExitStack, path: str, arguments: Namespace, kind: str) -> tuple[int, dict[str, Any] | None]:
    from ...formats.read import open_arrays
    from ..terminal.listed import array_row

    arrays = stack.enter_context(open_arrays(path, max_nbytes=arguments.max_nbytes))
    listed = [array_row(name, arrays[name], path) for name in arrays]
    nbytes = sum(row.nbytes or 0 for row in listed)
    document: dict[str, Any] = {"path": path, "kind": kind, "tensors": len(listed), "nbytes": nbytes}
    rows = [("file", f"{path} ({kind})"), ("tensors", str(len(listed))), ("size", output.size(nbytes))]
    if kind == "archive":
        from ...tvm.library import open as open_library
        from ..terminal.tvm_archive import library_document, library_rows

        library = stack.enter_context(open_library(path, max_nbytes=arguments.max_nbytes))
        document["library"] = library_document(library)
        rows[1:1] = library_rows(library)
    if kind == "aimodel":
        document |= _asset(arrays)
        rows += _asset_rows(document)
    return _show_whole(arguments, document, rows)


def _asset(asset: Any) -> dict[str, Any]:
    """Return what JSON has of a bundle of Core AI."""
    functions = {
        name: {key: [port._asdict() for port in getattr(function, key)] for key in _FEATURES}
        for name, function in asset.functions.items()
    }
    code = asset.program.bytecode
    sections = len(code.sections)
    return {"metadata": asset.metadata, "functions": functions, "container": code.producer, "sections": sections}


def _asset_rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    metadata, functions = document["metadata"], document["functions"]
    keys = ("author", "license", "description", "producer", "creationDate", "assetVersion")
    rows = [(key, str(metadata[key])) for key in keys if metadata.get(key)]
    user = metadata.get("creatorDefinedMetadata")
    rows += [("user-defined", f"{key} = {value}") for key, value in user.items()] if isinstance(user, dict) else []
    rows.append(("functions", ", ".join(functions) or "none"))
    for name, features in functions.items():
        rows += _feature_rows(features, f"of {name}" if len(functions) > 1 else "")
    return rows


# ----------------------------------------------------------------------------------------------------------- the model


def _describe_model(model: "Model") -> dict[str, Any]:
    about = model.metadata
    return {
        "path": model.path,
        "kind": model.kind,
        "author": about.author,
        "description": about.description,
        "license": about.license,
        "version": about.version,
        "spec_version": about.spec_version,
        "opset": about.opset,
        "producer": about.producer,
        "functions": list(model.functions),
        "default_function": about.default_function,
        **_features(about.inputs, about.outputs, about.states),
        "function_features": {
            name: _features(inputs, outputs, about.function_states.get(name, ()))
            for name, (inputs, outputs) in about.functions.items()
        },
        "user_defined": about.user_defined,
        "tensors": len(model),
    }


def _features(*features: "Sequence[Feature]") -> dict[str, list[dict[str, str]]]:
    return {
        key: [{"name": one.name, "type": str(one), "description": one.description} for one in found]
        for key, found in zip(_FEATURES, features, strict=True)
    }


def _feature_rows(features: dict[str, Any], of: str) -> list[tuple[str, str]]:
    rows = []
    for key in _FEATURES:
        for one in features[key]:
            message = f": {one['description']}" if one.get("description") else ""
            rows.append((f"{key[:-1]} {of}".rstrip(), f"{one['name']}  {one['type']}{message}"))
    return rows


def _model_rows(document: dict[str, Any], arguments: Namespace) -> list[tuple[str, str]]:
    rows = [("model", f"{document['path']} ({document['kind']})")]
    keys = ("description", "author", "license", "version", "producer", "opset", "spec_version")
    rows += [(key.replace("_", " "), str(document[key])) for key in keys if document[key]]
    if document["functions"]:
        default = f" (default {document['default_function']})" if document["default_function"] else ""
        rows.append(("functions", ", ".join(document["functions"]) + default))
    rows.append(("tensors", str(document["tensors"])))
    if arguments.verbose and document["function_features"]:
        for name, features in document["function_features"].items():
            rows += _feature_rows(features, f"of {name}")
    else:
        rows += _feature_rows(document, "")
    if not arguments.quiet:
        rows += [("user-defined", f"{key} = {value}") for key, value in sorted(document["user_defined"].items())]
    return rows
