"""The syntax trees of Python files, for tests of the code itself."""

import ast
import functools


@functools.cache
def parsed(path):
    """Return the syntax tree of a file; parsing all of them takes seconds."""
    return ast.parse(path.read_text(encoding="utf-8"))
