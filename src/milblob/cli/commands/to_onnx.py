"""milblob to-onnx: convert a model to ONNX."""

import os
import warnings
from argparse import ArgumentParser, Namespace
from itertools import islice
from typing import TYPE_CHECKING, Any

from .. import options
from ..inputs import add_function
from ..several import add_models, found_in, run_each
from ..sources import check_options, local_source
from ..terminal import output
from ..terminal.failures import EXIT_FINDINGS

if TYPE_CHECKING:
    import onnx_ir as ir

EXAMPLES = ("to-onnx Model.mlpackage -o model.onnx", "to-onnx Model.mlpackage --coverage")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_models(parser, ".mlpackage, .mlmodelc or .mlmodel with an ML Program; several with --coverage")
    options.add_output(parser, "-o", "--output", help="the new .onnx file")
    add_function(parser)
    modes = (
        "reference: OUT refers into the model's weight files; copy: into a copy beside OUT; embed: weights are in OUT"
    )
    parser.add_argument("--weights", choices=("reference", "copy", "embed"), help=f"{modes}; default: reference")
    kinds = "keep: weights are kept compressed where ONNX can decode the stored bytes; dense: all are decoded; "
    kinds += "onnxruntime: decoded, but for weights of 4 bits in products, as only onnxruntime computes them"
    parser.add_argument("--compressed", choices=("keep", "dense", "onnxruntime"), help=f"{kinds}; default: keep")
    parser.add_argument("--opset", metavar="N", type=int, default=21, help="opset of ONNX, 18 to 23; default: 21")
    description = "give the probabilities of a classifier as a dictionary, label -> probability"
    parser.add_argument("--zipmap", action="store_true", help=description)
    description = (
        "keep: that of the model; float32: inputs, outputs and all that is computed become float32; default: keep"
    )
    parser.add_argument("--precision", choices=("keep", "float32"), help=description)
    description = "write nothing, list the operations without a converter; exit status 1 if there are any"
    parser.add_argument("--coverage", action="store_true", help=description)
    options.add_force(parser, "replace files that exist")
    options.add_reporting(
        parser,
        quiet="no message",
        verbose="name the weights that were decoded",
        json="print the result as one JSON object",
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    if arguments.coverage:
        _require_unused(arguments)
        return run_each(arguments, run_one)
    if arguments.output is None:
        raise ValueError("expected -o OUT, the name of an .onnx file, or --coverage, got neither")
    found = list(islice(found_in(arguments, arguments.models), 2))
    if len(found) != 1:
        got = "several" if found else "none"
        raise ValueError(f"expected one model, got {got} (`milblob batch to-onnx` converts each of several)")
    first = found[0]
    arguments.json = arguments.json or arguments.json_lines
    check_options(arguments, [first.path])
    with local_source(first.path, arguments) as path:
        model = _convert(path, arguments)
    if arguments.json:
        (output.print_json_line if arguments.json_lines else output.print_json)(_document(model, arguments))
        return 0
    _print(model, arguments)
    return 0


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    """Convert one model, and print nothing; or list the operations without a converter. See `several.run_each`."""
    return _coverage(path, arguments) if arguments.coverage else (0, _document(_convert(path, arguments), arguments))


def _document(model: "ir.Model", arguments: Namespace) -> dict[str, Any]:
    graph = model.graph
    return {
        "path": arguments.output,
        "nbytes": os.path.getsize(arguments.output),
        "opset": arguments.opset,
        "weights": arguments.weights or "reference",
        "compressed": arguments.compressed or "keep",
        "precision": arguments.precision or "keep",
        "inputs": [value.name for value in graph.inputs],
        "outputs": [value.name for value in graph.outputs],
        "nodes": len(graph),
        "metadata": dict(model.metadata_props),
    }


def _print(model: "ir.Model", arguments: Namespace) -> None:
    import json

    copied = json.loads(model.metadata_props.get("milblob.copied", "[]"))
    if arguments.verbose:
        for row in copied:
            output.say(f"{row['name']}: decoded, {row['why']}")
    elif copied and not arguments.quiet:
        count, total = output.plural(len(copied), "weight"), output.size(sum(row["nbytes"] for row in copied))
        output.say(f"{count} decoded, {total} (-v names them)")
    if not arguments.quiet:
        if arguments.zipmap and "milblob.classifier" not in model.metadata_props:
            output.say("--zipmap has no effect: the model is not a classifier")
        nodes, nbytes = output.plural(len(model.graph), "node"), os.path.getsize(arguments.output)
        beside = _files_beside(model, arguments.output) if copied or arguments.weights == "copy" else []
        more = "".join(f" and {name} ({output.size(size)})" for name, size in beside)
        output.say(f"{nodes}, opset {arguments.opset}, {output.size(nbytes)}, to {arguments.output}{more}")


def _files_beside(model: "ir.Model", path: str) -> list[tuple[str, int]]:
    """Return the files that were written beside the .onnx file, and their sizes: copies of weights, decoded weights."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    names = {str(getattr(tensor, "location", "")) for tensor in tensors}
    stem = os.path.splitext(os.path.basename(path))[0]
    found = [os.path.join(os.path.dirname(path), name) for name in sorted(names) if _is_beside(name, stem)]
    return [(name, os.path.getsize(name)) for name in found]


def _is_beside(name: str, stem: str) -> bool:
    return name.startswith(f"{stem}.") and name.endswith(".bin")


def _convert(path: str, arguments: Namespace) -> "ir.Model":
    """Convert and write; warnings become messages, which -q hides. Raises: as `milblob.onnx.convert`."""
    from ... import onnx
    from ...model import open as opening

    with (
        opening.open_model(path, max_nbytes=arguments.max_nbytes) as source,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", UserWarning)
        model = onnx.convert(
            source,
            arguments.output,
            function=arguments.function,
            weights=arguments.weights or "reference",
            compressed=arguments.compressed or "keep",
            opset=arguments.opset,
            zipmap=arguments.zipmap,
            precision=arguments.precision or "keep",
            force=arguments.force,
        )
    for warning in caught if not arguments.quiet else ():
        output.say(str(warning.message))
    return model


def _require_unused(arguments: Namespace) -> None:
    """Refuse options that --coverage has no use for."""
    if arguments.output is not None:
        raise ValueError(f"-o: expected none with --coverage, which writes nothing, got {arguments.output}")
    for option in ("weights", "compressed", "zipmap", "precision", "force"):
        if getattr(arguments, option):
            raise ValueError(f"--{option}: expected none with --coverage, which writes nothing, got one")


def _coverage(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    from ... import onnx
    from ...model import open as opening

    with opening.open_model(path, max_nbytes=arguments.max_nbytes) as source:
        lacking = onnx.coverage(source, function=arguments.function, opset=arguments.opset)
        decoded = onnx.decoded(source, function=arguments.function, opset=arguments.opset)
    status = EXIT_FINDINGS if lacking else 0
    if arguments.json:
        return status, {"path": path, "unsupported": lacking, "decoded": decoded}
    if lacking:
        for type, count in lacking.items():
            print(f"{count:>6}  {output.escape(type)}")
    elif not arguments.quiet:
        output.say("every operation has a converter")
    if decoded and not arguments.quiet:
        weights, verb = output.plural(len(decoded), "weight"), "is" if len(decoded) == 1 else "are"
        output.say(
            f"{weights} cannot be kept compressed and {verb} decoded"
            + ("" if arguments.verbose else " (-v names them)")
        )
        for name, why in decoded.items() if arguments.verbose else ():
            output.say(f"{name}: {why}")
    return status, None
