"""The rules of the MIL specification, each with its demand; docs/rules.md has their sources.

`program_rules.breaches` compares a Program with them, `description_rules.py` the model's description.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ..wording import abbreviated

Severity = Literal["error", "warning", "note"]


class Rule(NamedTuple):
    """One demand of the specification."""

    # "error" if the specification or a loader refuses a breach, "warning" where tools differ, "note" for a valid model,
    # as information
    severity: Severity
    demand: str  # the condition that must hold
    remedy: str  # advice


RULES = {
    "MIL001": Rule("error", "names match [A-Za-z_][A-Za-z0-9_@]*", "rename it"),
    "MIL002": Rule("error", "a name is bound once in its block", "rename one of the two"),
    "MIL003": Rule(
        "error", "a name that is read is defined in its block or around it", "define it, or read another one"
    ),
    "MIL004": Rule("error", "a name is defined before it is read", "move the operation that defines it up"),
    "MIL005": Rule("error", "an output of a block is a name that the block sees", "return another name"),
    "MIL006": Rule("error", "a function's opset has a block specialization", "set the opset to one of the keys"),
    "MIL007": Rule("error", "all block specializations of a function return the same", "make their outputs match"),
    "MIL008": Rule("error", "inputs and outputs have a type", "state the type"),
    "MIL009": Rule("error", "a tensor type has a known data type", "use one that the opset has"),
    "MIL010": Rule("error", "the rank is the number of dimensions, or -1 where that varies", "correct the rank"),
    "MIL011": Rule("error", "lists, tuples, dictionaries and states state the types inside", "state them"),
    "MIL012": Rule("error", "an input is bound to one name or value at least", "bind it, or leave the input out"),
    "MIL013": Rule("error", "a value has a type, and stands in the Program or in a weight file", "add what is missing"),
    "MIL014": Rule("error", "the shape of a value is known", "state every dimension and length"),
    "MIL015": Rule("error", "a value is a tensor, list, tuple or dictionary as its type is", "correct type or value"),
    "MIL016": Rule(
        "error",
        "a tensor has as many elements as its shape, in a field that holds its data type",
        "correct the shape, or the elements",
    ),
    "MIL017": Rule("error", "a list has the length and the elements of its type", "correct the type, or the elements"),
    "MIL018": Rule("error", "a tuple has one member of each of its types", "correct the type, or the members"),
    "MIL019": Rule(
        "error", "a dictionary has keys and values of its types, and no key twice", "correct the type, or the pairs"
    ),
    "MIL020": Rule("error", "keys of dictionaries are strings or integers", "use another type"),
    "MIL021": Rule(
        "error", "a value in a weight file is a tensor of a data type that such files hold", "move it into the Program"
    ),
    "MIL022": Rule("error", "a const has one output, of the type of its value", "correct the output"),
    "MIL023": Rule("error", "an operation is one that the opset has", "use another operation"),
    "MIL024": Rule("error", "an operation is not newer than the opset", "use a newer opset"),
    "MIL025": Rule("error", "an argument is one that the operation has", "leave it out"),
    "MIL026": Rule("error", "an argument is not newer than the opset", "use a newer opset, or leave it out"),
    "MIL027": Rule("error", "no argument is missing that the operation needs", "add it"),
    "MIL028": Rule(
        "error",
        "an argument is a tensor, a list or a state, and one or several, as the operation takes it",
        "bind another value",
    ),
    "MIL029": Rule("error", "an argument has a data type that the operation takes", "cast it"),
    "MIL030": Rule(
        "error", "an argument has a data type that the operation takes in the opset", "use a newer opset, or cast it"
    ),
    "MIL031": Rule("error", "arguments that must be of one data type are", "cast one of them"),
    "MIL032": Rule("error", "an argument that must be known before the model runs is constant", "make it a const"),
    "MIL033": Rule("error", "cond and while_loop have two blocks, other operations none", "add or remove blocks"),
    "MIL034": Rule("error", "blocks take and return what their cond or while_loop does", "correct the block"),
    "MIL035": Rule("error", "states are inputs of functions", "read the state, and pass on its value"),
    "MIL036": Rule("error", "the Program's version is 1", "set it to 1"),
    "MIL037": Rule("error", "a Program has a function", "add one"),
    "MIL038": Rule(
        "error", "the name of an operation is a string, and buildInfo a dictionary of strings", "correct the attribute"
    ),
    "MIL039": Rule("note", "the opset is one whose operations milblob knows", "look for a newer milblob"),
    "MIL040": Rule(
        "error",
        "an image is a Float32 tensor of rank 4, with N = 1 and C = 1 or 3",
        "correct the input, or its description",
    ),
    "MIL041": Rule(
        "error", "the description names the inputs, outputs and states of the function", "describe them all"
    ),
    "MIL042": Rule("error", "the description has the types of the function", "correct the description"),
    "MIL043": Rule("error", "the description has the shapes of the function", "correct the description"),
    "MIL044": Rule(
        "error", "a shape and a default value of the description are among those it allows", "correct the description"
    ),
    "MIL045": Rule("error", "the predicted feature and probabilities are outputs", "name outputs"),
    "MIL046": Rule("error", "the description names the functions of the Program", "describe them all"),
    "MIL047": Rule("error", "the opset is not newer than the specification version", "raise the version"),
    "MIL048": Rule("error", "a data type is not newer than the opset", "use a newer opset, or another type"),
    "MIL049": Rule("error", "the parts of a compressed weight fit each other and the result", "correct the part"),
    "MIL050": Rule("error", "an output has the type that its inputs make", "correct the output or the inputs"),
}
"""Every rule by its code. Codes are never given to another rule."""


class Breach(NamedTuple):
    """Where a Program breaks a rule."""

    rule: str  # its code
    message: str  # the expected and the actual state
    where: str  # path in the Program
    offset: int | None = None  # of the byte at fault in the Program's buffer, if a single one is


def quoted(name: str) -> str:
    """A name for a message; those from files may have any length."""
    return repr(abbreviated(name))


def listed(names: Iterable[str]) -> str:
    """Names for a message, in order, of a length that fits one."""
    return abbreviated(", ".join(sorted(names)) or "none")
