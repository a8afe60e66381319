"""The syntax trees of Python files, for tests of the code itself."""

import ast
import functools
import gc


@functools.cache
def parsed(path):
    """Return the syntax tree of a file, which is kept; parsing all of them takes seconds.

    The collector is kept away from its nodes, as from what a module imports (conftest.py): it would look at all nodes that
    are there again and again, which takes longer than parsing.
    """
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def nodes(path):
    """Return all nodes of a file's syntax tree, as ast.walk does; to walk through all files takes a second."""
    return list(ast.walk(parsed(path)))


def unparse(node):
    """Return the text of an expression, as ast.unparse does, which takes ten times as long for names with dots."""
    names, inner = [], node
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    return ".".join([inner.id, *reversed(names)]) if isinstance(inner, ast.Name) else ast.unparse(node)
