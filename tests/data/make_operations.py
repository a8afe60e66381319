"""Make src/milblob/rules/operations.txt: the operations of each operator set and their arguments, by coremltools' registry.

python tests/data/make_operations.py             # writes the file
"""

import pathlib
import sys

import coremltools
from coremltools.converters.mil._deployment_compatibility import AvailableTarget
from coremltools.converters.mil.mil import input_type, types
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

PATH = pathlib.Path(__file__).parents[2] / "src" / "milblob" / "rules" / "operations.txt"
TARGETS = [target for target in SSAOpRegistry.SUPPORTED_OPSET_VERSIONS if target >= AvailableTarget.iOS15]
HEAD = """\
# The operations of each operator set, from the registry of coremltools {version}, by tests/data/make_operations.py.
# A line: name, the first operator set in which it has these arguments, arguments.
# An argument: name:kind, ? if it may be left out, ! if it is known before the model runs. Kinds: data types of a tensor;
# X=data types, where all arguments with the same X have the same one; list, state; tuple for any number of bindings; any.
opsets {opsets}
"""
# What coremltools' exporter writes beside the registry: backend/mil/load.py, translate_coreml_update_state_op.
EXPORTED = {"write_state": ("read_state", "input:state data:any")}
LITERAL = ("_const_symbolic",)  # inside the converter only


def kind_of(argument, domains, seen):
    """The kind of one argument; None for one that only the converter has."""
    if isinstance(argument, input_type.TensorInputType):
        name = argument.type_domain_id
        if name in seen:
            return name
        dtypes = ",".join(types.builtin_to_string(dtype) for dtype in domains.get(name, argument.type_domain))
        if name is None:
            return dtypes
        seen.add(name)
        return f"{name}={dtypes}"
    kinds = {
        input_type.TupleInputType: "tuple",
        input_type.ListInputType: "list",
        input_type.StateInputType: "state",
        input_type.ListOrTensorOrDictInputType: "any",
        input_type.InternalInputType: "any",
    }
    return kinds[type(argument)]


def arguments_of(operation):
    """The arguments of an operation as one line; those with an underscore are functions of Python."""
    domains, seen, words = getattr(operation, "type_domains", {}), set(), []
    for key, argument in operation.input_spec.input_types.items():
        if not key.startswith("_"):
            marks = ("!" if argument.const else "") + ("?" if argument.optional else "")
            words.append(f"{key}:{kind_of(argument, domains, seen)}{marks}")
    return " ".join(words)


def table():
    """The contents of the file."""
    lines = [HEAD.format(version=coremltools.__version__, opsets=" ".join(coremltools._OPSET[t] for t in TARGETS))]
    for name, versions in sorted(SSAOpRegistry.core_ops.items()):
        if name in LITERAL:
            continue
        last = None
        for target in TARGETS:
            if target in versions and (arguments := arguments_of(versions[target])) != last:
                last = arguments
                lines.append(f"{name} {coremltools._OPSET[target]} {arguments}".rstrip() + "\n")
    for name, (beside, arguments) in EXPORTED.items():
        first = next(t for t in TARGETS if t in SSAOpRegistry.core_ops[beside])
        lines.append(f"{name} {coremltools._OPSET[first]} {arguments}\n")
    return "".join(lines)


if __name__ == "__main__":
    PATH.write_text(table(), "utf-8")
    sys.stdout.write(f"{PATH}\n")
