"""milblob run: compute a model's outputs, by onnxruntime."""

import os
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import options
from ..inputs import add_function, add_inputs, open_session, read_arrays, read_inputs, require_function_used
from ..terminal import output, tables

if TYPE_CHECKING:
    from ...onnx import Session
    from ...storage.output import NewFile

EXAMPLES = ("run Model.mlpackage -i tokens=tokens.npy", "run Model.mlpackage -i inputs.npz -o outputs.npz")
_COLUMNS = (
    tables.Column("output", is_name=True),
    tables.Column("dtype"),
    tables.Column("shape"),
    tables.Column("least", is_right=True),
    tables.Column("greatest", is_right=True),
    tables.Column("value"),
)
_MOST_CLASSES = 5


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc, .mlmodel with ML Programs, or .onnx")
    add_inputs(parser, "required for each input without a default")
    options.add_output(parser, "-o", "--output", help="an .npz file for the outputs")
    add_function(parser)
    description = "an .npz file with states to begin with; default: zeros"
    parser.add_argument("--state-in", metavar="FILE", help=description)
    options.add_output(parser, "--state-out", metavar="FILE", help="an .npz file for the states afterwards")
    parser.add_argument("--optimize", action="store_true", help="let onnxruntime change the graph and copy weights")
    options.add_force(parser, "replace files that exist")
    options.add_reporting(parser, quiet="print nothing", verbose="print the inputs too")


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ...storage import paths
    from ...storage.output import NewFile, together

    targets = [path for path in (arguments.output, arguments.state_out) if path is not None]
    for target in targets:
        require_npz(arguments.model, target)
    if len({paths.real(target) for target in targets}) < len(targets):
        raise ValueError(f"--state-out: expected another file than -o, got {arguments.state_out}")
    require_function_used(arguments, arguments.model)
    # The states last: with them come the outputs; without them, running again gives the same outputs.
    with together() as parts:
        files = [NewFile(target, force=arguments.force) for target in targets]
        parts += files
        session = open_session(arguments.model, arguments, optimize=arguments.optimize)
        for option, file in (("--state-in", arguments.state_in), ("--state-out", arguments.state_out)):
            if file is not None and not session.states:
                raise ValueError(f"{option}: expected a model with states, got {arguments.model}, which has none")
        if arguments.state_in is not None:
            session.states = session.make_state(read_arrays(arguments.state_in, arguments))
        inputs = session.convert_inputs(read_inputs(arguments, session.inputs))
        found = session.predict(inputs, raw=True)
        rows = [_described(name, array, session) for name, array in found.items()]
        if arguments.output is not None:
            save(files[0], found)
        if arguments.state_out is not None:
            save(files[-1], session.states)
    if arguments.json:
        about = {
            "path": arguments.model, "output": arguments.output, "outputs": rows,
            "inputs": [_described(name, array) for name, array in inputs.items()],
            "states": [_described(name, array) for name, array in session.states.items()],
        }  # fmt: skip
        output.print_json(about)
    elif not arguments.quiet:
        if arguments.verbose:
            for name, array in inputs.items():
                output.say(f"input {name}: {array.dtype} {output.shape_text(array.shape)}")
        tables.print_table(_COLUMNS, [_cells(row) for row in rows])
        for path in (arguments.output, arguments.state_out):
            if path is not None:
                output.say(f"to {path}")
    return 0


def require_npz(model: str, target: str) -> None:
    """Refuse an output that is not an .npz file or is inside the model. Raises: ValueError."""
    from ...rewrite.destination import require_outside

    require_outside(model, target)
    if os.path.splitext(target)[1].lower() != ".npz":
        raise ValueError(f"output {target}: expected an .npz file, got another suffix")


def save(new: "NewFile", arrays: Mapping[str, Any]) -> None:
    """Write arrays, texts among them, to an .npz file that `numpy.load` reads without pickles."""
    import numpy as np

    with open(new.fd, "wb", closefd=False) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for key, array in arrays.items():
            values = np.asarray(array)
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                texts = values.astype(str) if values.dtype == object else values
                np.lib.format.write_array(member, texts, allow_pickle=False)  # type: ignore[no-untyped-call,unused-ignore]


def _described(name: str, array: Any, session: "Session | None" = None) -> dict[str, Any]:
    """Return an array for JSON: dtype, shape, minimum and maximum; or a label with the likeliest classes."""
    import numpy as np

    values = np.asarray(array)
    about: dict[str, Any] = {
        "name": name, "dtype": "text" if values.dtype == object else str(values.dtype), "shape": list(values.shape)
    }  # fmt: skip
    port = None if session is None else session.outputs[name]
    if port is not None and (port.is_label or port.classes):
        found = port.convert(values)
        if port.classes:
            best = sorted(found, key=found.__getitem__, reverse=True)[:_MOST_CLASSES]
            found = {str(label): found[label] for label in best}
        return about | {"value": found}
    sound = values[np.isfinite(values)] if values.dtype.kind in "fiub" else values[:0]
    if sound.size:
        about |= {"least": sound.min().item(), "greatest": sound.max().item()}
    if values.dtype.kind == "f":
        about["not_finite"] = int(values.size - sound.size)
    return about


def _cells(row: dict[str, Any]) -> list[str]:
    ends = [f"{row[key]:.6g}" if key in row else "" for key in ("least", "greatest")]
    value = row.get("value", "")
    if isinstance(value, dict):
        value = ", ".join(f"{label} {share:.3f}" for label, share in value.items())
    if row.get("not_finite"):
        value = f"{row['not_finite']} not finite"
    return [row["name"], row["dtype"], output.shape_text(row["shape"]), *ends, str(value)]
