"""The public names, as their source declares them: docs/api.md, and a list with one line for each name.

As a program it writes the page, or prints the list (`make api`):

    PYTHONPATH=tests/support .venv/bin/python tests/support/api_page.py
    PYTHONPATH=tests/support .venv/bin/python tests/support/api_page.py --list
"""

import inspect
import re
import sys
from importlib import import_module

import griffe

import milblob
from paths import ROOT

PAGE = ROOT / "docs" / "api.md"
MODULES = (
    "milblob",
    "milblob.onnx",
    "milblob.tvm",
    "milblob.aimodel",
    "milblob.executors",
    "milblob.torch",
    "milblob.jax",
    "milblob.mlx",
)
WIDTH = 100
HEAD = """# API reference

This page is written from the docstrings: `help(milblob.open)` prints the same text. Types are those that mypy sees. [concepts.md](concepts.md)
explains what many functions have in common: `select`, `progress`, `max_nbytes`, the lifetime of arrays, threads.

The examples run after `import milblob` and `import numpy as np`, in a folder with a copy of `examples/demo.mlpackage` and a few other
small files.
"""
TITLES = {"function": "Functions", "class": "Classes", "error": "Errors", "attribute": "Constants"}

_INTERNAL = "for milblob's own modules"  # in the docstring of a member that only other folders of milblob use


def kind_of(name, found):
    """Return in which group of the page a public name is."""
    value = getattr(milblob, name, None)
    if inspect.isclass(value) and issubclass(value, Exception):
        return "error"
    return "function" if found.is_function else "class" if found.is_class else "attribute"


def signature(found, name):
    """Return a definition as Python writes it: on one line if it fits, else one argument on each line."""
    words, has_star = [], False
    for parameter in found.parameters:
        if parameter.name in ("self", "cls") and found.parent.is_class:
            continue
        kind = parameter.kind.value
        if kind == "keyword-only" and not has_star:
            words.append("*")
            has_star = True
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        has_star = has_star or star == "*"
        text = star + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not star:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        words.append(text)
    returns = f" -> {found.returns}" if found.returns is not None and found.name != "__init__" else ""
    line = f"{name}({', '.join(words)}){returns}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){returns}"])


def plain(text):
    """Return a text of a docstring on one line for each paragraph."""
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", part.strip()) for part in re.split(r"\n\s*\n", text.strip()))


def names_of(row):
    """Return the names that a row of a section is about: griffe takes all but the first of "a, b" for an annotation."""
    name = getattr(row, "name", None) or str(row.annotation)
    return f"{name} {row.annotation}" if name.endswith(",") else name


def items(rows):
    """Yield the list of a section: a name, and what it is."""
    for row in rows:
        yield f"- `{names_of(row)}`: {' '.join(row.description.split())}"


def body(found):
    """Yield the paragraphs and lists of a docstring."""
    if found.docstring is None:
        return
    for section in found.docstring.parse(
        "google", returns_named_value=False, returns_multiple_items=False, warnings=False
    ):
        kind = section.kind.value
        if kind == "text":
            yield from (f"{fenced(part)}\n" for part in [section.value])
        elif kind == "examples":
            for what, text in section.value:
                yield f"```pycon\n{text}\n```\n" if what.value == "examples" else f"{plain(text)}\n"
        elif kind in ("returns", "yields"):
            yield f"**{kind.capitalize()}** " + " ".join(plain(row.description) for row in section.value) + "\n"
        elif kind == "admonition":
            yield f"**{section.title}** {plain(section.value.description)}\n"
        elif kind in ("parameters", "other parameters", "raises", "attributes", "warns"):
            title = {"parameters": "Arguments", "other parameters": "More arguments"}.get(kind, kind.capitalize())
            yield f"**{title}**\n"
            yield "\n".join(items(section.value)) + "\n"


def fenced(text):
    """Return the text of a docstring, with its indented blocks as code."""
    parts = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        lines = part.splitlines()
        if all(line.startswith("    ") for line in lines):
            parts.append("```python\n" + "\n".join(line[4:] for line in lines) + "\n```")
        else:
            parts.append(plain(part))
    return "\n\n".join(parts)


def members(found):
    """Yield the public methods and properties that a class has, also those of bases that are not public themselves."""
    for name, member in sorted(found.all_members.items()):
        if name.startswith("_") or not (member.is_function or (member.is_attribute and "property" in member.labels)):
            continue
        member = member.final_target if member.is_alias else member
        if member.docstring is None or _INTERNAL in " ".join(member.docstring.value.lower().split()):
            continue
        if member.parent is found or member.parent.name not in milblob.__all__:
            yield name, member


def section(name, found, level="##"):
    """Yield one public name of the page."""
    yield f"{level} {name}\n"
    if found.is_function:
        yield f"```python\n{signature(found, name)}\n```\n"
    for _, init in constructor(found) if found.is_class else ():
        yield f"```python\n{signature(init, name)}\n```\n"
    yield from body(found)
    if not found.is_class:
        return
    for member_name, member in members(found):
        if member.is_function:
            yield f"`{name}.{one_line(signature(member, member_name))}`\n"
        else:
            yield f"`{name}.{member_name}`" + (f": `{member.annotation}`" if member.annotation else "") + "\n"
        yield from body(member)


def type_of(found):
    """Return the type of an attribute: as annotated, or that of the argument of `__init__` that it holds; None without."""
    if found.annotation is None and found.parent.is_class and "__init__" in found.parent.members:
        parameters = found.parent.members["__init__"].parameters
        return parameters[str(found.value)].annotation if str(found.value) in parameters else None
    return found.annotation


def fields(found):
    """Yield the attributes of a class: those that its docstring lists, and the fields of a dataclass or a named tuple."""
    sections = found.docstring.parse("google", warnings=False)
    listed = ", ".join(names_of(row) for part in sections if part.kind.value == "attributes" for row in part.value)
    for name, member in found.all_members.items():
        is_field = member.is_attribute and "property" not in member.labels and not name.startswith("_")
        if is_field and (name in listed.split(", ") or (member.parent is found and member.annotation is not None)):
            yield name, member


def typed(name, found):
    """Yield each thing of a public name that has a type: what it is called, and its type or None."""
    if found.is_attribute:
        yield name, found.annotation if "property" in found.labels else type_of(found)
    if found.is_function:
        for parameter in found.parameters:
            if parameter.name not in ("self", "cls"):
                yield f"{name}({parameter.name})", parameter.annotation
        if found.name != "__init__":
            yield f"{name}()", found.returns
    if found.is_class:
        for member_name, member in [*constructor(found), *fields(found), *members(found)]:
            yield from typed(f"{name}.{member_name}", member)


def constructor(found):
    """Yield the `__init__` that a class declares itself."""
    if "__init__" in found.members and found.members["__init__"].is_function:
        yield "__init__", found.members["__init__"]


def lines(name, found):
    """Yield a public name on one line, then each of its members, with types."""
    if found.is_attribute:
        yield f"{name}: {found.annotation if 'property' in found.labels else type_of(found)}"
    elif found.is_function:
        yield one_line(signature(found, name))
    else:
        made = [signature(init, name).removesuffix(" -> None") for _, init in constructor(found)]
        yield "class " + one_line(made[0] if made else name)
        for member_name, member in [*fields(found), *members(found)]:
            yield from lines(f"{name}.{member_name}", member)


def one_line(text):
    """Return a definition that `signature` has spread, on one line."""
    return text.replace("(\n    ", "(").replace(",\n)", ")").replace("\n    ", " ")


def with_docstrings(found, value):
    """Return a class; to one of a stub, which has no docstrings, those of what the stub describes are added."""
    if found.docstring is None:
        found.docstring = griffe.Docstring(inspect.getdoc(value), parent=found)
        for name, member in found.members.items():
            if member.is_function or "property" in member.labels:
                member.docstring = griffe.Docstring(inspect.getdoc(inspect.getattr_static(value, name)), parent=member)
    return found


def public():
    """Yield every public name: its module, the name, and its definition as griffe has it."""
    package = griffe.load("milblob", search_paths=[ROOT / "src"], allow_inspection=False)
    for module in MODULES:
        place = package if module == "milblob" else package[module.removeprefix("milblob.")]
        for name in sorted(import_module(module).__all__, key=str.lower):
            found = place.members[name]
            found = found.final_target if found.is_alias else found
            yield module, name, with_docstrings(found, getattr(import_module(module), name))


def page():
    """Return the text of the page."""
    groups = {}
    for module, name, found in public():
        groups.setdefault((module, kind_of(name, found)), []).append((name, found))
    parts = [HEAD]
    for module in MODULES:
        for kind, title in TITLES.items():
            if (module, kind) in groups:
                parts.append(f"# {title}" + ("" if module == "milblob" else f" of {module}") + "\n")
                for name, found in groups[module, kind]:
                    parts += section(
                        name if module == "milblob" else f"{module.removeprefix('milblob.')}.{name}", found
                    )
    return "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        for module, name, found in public():
            print("\n".join(lines(f"{module}.{name}", found)))
    else:
        PAGE.write_text(page(), encoding="utf-8")
