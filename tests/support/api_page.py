"""docs/api.md, written from the signatures and the docstrings of the public names.

As a program it writes the page:

    PYTHONPATH=tests/support .venv/bin/python tests/support/api_page.py
"""

import inspect
import re

import griffe

import milblob
from paths import ROOT

PAGE = ROOT / "docs" / "api.md"
MODULES = ("milblob", "milblob.onnx", "milblob.tvm", "milblob.aimodel")
WIDTH = 100
HEAD = """# API reference

This page is written from the docstrings: `help(milblob.open)` says the same. Types are those that mypy sees. [concepts.md](concepts.md)
explains what many functions have in common: `select`, `progress`, `max_nbytes`, the lifetime of arrays, threads.
"""
TITLES = {"function": "Functions", "class": "Classes", "error": "Errors", "attribute": "Constants"}


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


def items(rows):
    """Yield the list of a section: a name, and what it is."""
    for row in rows:
        name = getattr(row, "name", None) or str(row.annotation)
        yield f"- `{name}`: {' '.join(row.description.split())}"


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
                yield f"```python\n{text}\n```\n" if what.value == "examples" else f"{plain(text)}\n"
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
        if member.docstring is not None and (member.parent is found or member.parent.name not in milblob.__all__):
            yield name, member


def section(name, found, level="##"):
    """Yield one public name of the page."""
    yield f"{level} {name}\n"
    if found.is_function:
        yield f"```python\n{signature(found, name)}\n```\n"
    elif found.is_class and "__init__" in found.members and found.members["__init__"].is_function:
        yield f"```python\n{signature(found.members['__init__'], name)}\n```\n"
    yield from body(found)
    if not found.is_class:
        return
    for member_name, member in members(found):
        if member.is_function:
            yield f"`{name}.{signature(member, member_name)}`\n".replace("\n    ", " ").replace(",\n)", ")")
        else:
            yield f"`{name}.{member_name}`" + (f": `{member.annotation}`" if member.annotation else "") + "\n"
        yield from body(member)


def page():
    """Return the text of the page."""
    package = griffe.load("milblob", search_paths=[ROOT / "src"], allow_inspection=False)
    parts = [HEAD]
    for module in MODULES:
        place = package if module == "milblob" else package[module.removeprefix("milblob.")]
        names = milblob.__all__ if module == "milblob" else [str(name).strip("'\"") for name in place.exports or ()]
        groups = {}
        for name in sorted(names, key=str.lower):
            found = place.members[name]
            found = found.final_target if found.is_alias else found
            groups.setdefault(kind_of(name, found), []).append((name, found))
        for kind, title in TITLES.items():
            if kind in groups:
                parts.append(f"# {title}" + ("" if module == "milblob" else f" of {module}") + "\n")
                for name, found in groups[kind]:
                    parts += section(
                        name if module == "milblob" else f"{module.removeprefix('milblob.')}.{name}", found
                    )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
