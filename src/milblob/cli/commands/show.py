"""milblob show: describe one tensor, or the model itself."""

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...errors import MilblobError
from .. import options
from ..selection import find
from ..several import add_many, run_each
from ..terminal import output, tables
from ..terminal.tables import LAST, Column
from ..terminal.values import show_values

if TYPE_CHECKING:
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
    from ...formats.read import array_kind
    from ...model import open as opening

    kind = array_kind(path)
    if kind is not None:
        from . import show_arrays

        return show_arrays.show(path, arguments, kind)
    if arguments.name is None:
        if arguments.function is not None:
            raise ValueError(f"-f: expected NAME too, a tensor of the function, got only {arguments.function}")
        with opening.open_model(path) as model:
            document = _describe_model(model)
        if arguments.json:
            return 0, document
        _print_model(document, arguments)
        return 0, None
    model, tensor = find(path, arguments.name, arguments.function, arguments.max_nbytes)
    with model:
        return _show_tensor(tensor, arguments)


# ------------------------------------------------------------------------------------------------------------ a tensor


def _show_tensor(tensor: "Tensor", arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    place = _place(tensor)
    if arguments.quiet and not arguments.json:
        tables.print_pairs(_place_rows(tensor, place))
        return 0, None
    compressed = tensor.compression.to_dict() if tensor.compression else None
    parts = {"parts": {key: part.name for key, part in tensor.parts.items()}, "compressed": compressed}
    rows = _place_rows(tensor, place)
    return show_values(tensor, arguments, {**place, **parts}, rows, lambda: _print_parts(tensor))


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


def _place_rows(tensor: "Tensor", place: dict[str, Any]) -> list[tuple[str, str]]:
    from ..terminal import consumers

    rows = [("name", place["name"]), ("type", f"{place['dtype']} {output.shape_text(place['shape'])}")]
    if place["nbytes"] is not None:
        rounded = f" ({output.size(place['nbytes'])})" if place["nbytes"] >= 1024 else ""
        rows.append(("stored", output.plural(place["nbytes"], "byte") + rounded))
    if place["file"] is not None:
        rows.append(("file", place["file"]))
    if place["offset"] is not None:
        data = f", data at byte {place['data_offset']}" if place["data_offset"] is not None else ""
        what = "record at byte" if tensor.is_blob else "value at byte"
        rows.append(("offset", f"{what} {place['offset']}{data}"))
    if place["op"]:
        rows.append(("operation", place["op"] + (f" in function {place['function']}" if place["function"] else "")))
    if tensor.compression:
        rows.append(("compressed", _compression_words(tensor.compression)))
    if place["where"]:
        rows.append(("path", place["where"]))
    rows += [("used by", consumers.in_words(consumer)) for consumer in tensor.consumers]
    return rows


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
        "inputs": [_feature(feature) for feature in about.inputs],
        "outputs": [_feature(feature) for feature in about.outputs],
        "states": [_feature(feature) for feature in about.states],
        "function_features": {
            name: {
                "inputs": [_feature(feature) for feature in inputs],
                "outputs": [_feature(feature) for feature in outputs],
                "states": [_feature(feature) for feature in about.function_states.get(name, ())],
            }
            for name, (inputs, outputs) in about.functions.items()
        },
        "user_defined": about.user_defined,
        "tensors": len(model),
    }


def _feature_rows(features: dict[str, Any], of: str) -> list[tuple[str, str]]:
    rows = []
    for key, head in (("inputs", "input"), ("outputs", "output"), ("states", "state")):
        for feature in features[key]:
            message = f": {feature['description']}" if feature["description"] else ""
            rows.append((f"{head} {of}".rstrip(), f"{feature['name']}  {feature['type']}{message}"))
    return rows


def _feature(feature: Any) -> dict[str, str]:
    return {"name": feature.name, "type": str(feature), "description": feature.description}


def _print_model(document: dict[str, Any], arguments: Namespace) -> None:
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
    tables.print_pairs(rows)
