"""milblob to-onnx: convert a model to ONNX."""

import json
import os
import warnings
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ... import onnx
from ...model import open as opening
from .. import options
from ..inputs import add_function
from ..sources import add_sources
from ..terminal import output

if TYPE_CHECKING:
    import onnx_ir as ir

EXAMPLES = ("to-onnx Model.mlpackage -o model.onnx", "to-onnx Model.mlpackage --coverage")
_EXIT_FINDINGS = 1


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc or .mlmodel with an ML Program")
    options.add_output(parser, "-o", "--output", help="the new .onnx file")
    add_function(parser)
    modes = (
        "reference: OUT refers into the model's weight files; copy: into a copy beside OUT; embed: weights are in OUT"
    )
    parser.add_argument("--weights", choices=("reference", "copy", "embed"), help=f"{modes}; default: reference")
    kinds = "keep: weights are kept compressed where ONNX can decode the stored bytes; dense: all are decoded"
    parser.add_argument("--compressed", choices=("keep", "dense"), help=f"{kinds}; default: keep")
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
    add_sources(parser, "model")
    options.add_reporting(
        parser,
        quiet="no message",
        verbose="name the weights that were decoded",
        json="print the result as one JSON object",
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    if arguments.coverage:
        return _coverage(arguments)
    if arguments.output is None:
        raise ValueError("expected -o OUT, the name of an .onnx file, or --coverage, got neither")
    model = _convert(arguments)
    graph, nbytes = model.graph, os.path.getsize(arguments.output)
    if arguments.json:
        result = {
            "path": arguments.output,
            "nbytes": nbytes,
            "opset": arguments.opset,
            "weights": arguments.weights or "reference",
            "compressed": arguments.compressed or "keep",
            "precision": arguments.precision or "keep",
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "nodes": len(graph),
            "metadata": dict(model.metadata_props),
        }
        output.print_json(result)
        return 0
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
        nodes = output.plural(len(graph), "node")
        output.say(f"{nodes}, opset {arguments.opset}, {output.size(nbytes)}, to {arguments.output}")
    return 0


def _convert(arguments: Namespace) -> "ir.Model":
    """Convert and write; warnings become messages, which -q hides. Raises: as `milblob.onnx.convert`."""
    with (
        opening.open_model(arguments.model, max_nbytes=arguments.max_nbytes) as source,
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


def _coverage(arguments: Namespace) -> int:
    """List the operations without a converter."""
    if arguments.output is not None:
        raise ValueError(f"-o: expected none with --coverage, which writes nothing, got {arguments.output}")
    for option in ("weights", "compressed", "zipmap", "precision", "force"):
        if getattr(arguments, option):
            raise ValueError(f"--{option}: expected none with --coverage, which writes nothing, got one")
    with opening.open_model(arguments.model, max_nbytes=arguments.max_nbytes) as source:
        lacking = onnx.coverage(source, function=arguments.function, opset=arguments.opset)
        decoded = onnx.decoded(source, function=arguments.function, opset=arguments.opset)
    if arguments.json:
        output.print_json({"path": arguments.model, "unsupported": lacking, "decoded": decoded})
    elif lacking:
        for type, count in lacking.items():
            print(f"{count:>6}  {output.escape(type)}")
    elif not arguments.quiet:
        output.say("every operation has a converter")
    if decoded and not arguments.json and not arguments.quiet:
        weights, verb = output.plural(len(decoded), "weight"), "is" if len(decoded) == 1 else "are"
        output.say(
            f"{weights} cannot be kept compressed and {verb} decoded"
            + ("" if arguments.verbose else " (-v names them)")
        )
        for name, why in decoded.items() if arguments.verbose else ():
            output.say(f"{name}: {why}")
    return _EXIT_FINDINGS if lacking else 0
