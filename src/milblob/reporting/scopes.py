"""The scopes of a model: a tree made from the names of its weights."""

import re
from collections.abc import Sequence
from typing import Any

_TOKEN = re.compile(r"[^._/]*[._/]?")
_MAX_DEPTH = 12
"""Levels of the tree. What a name has beyond them is the label of its leaf."""


def scope_tree(names: Sequence[str]) -> list[Any]:
    """Group names by their components, which end with ".", "_" or "/".

    A scope that has only one member is joined with it: `encoder_layers_0_fc` and `encoder_layers_1_fc` have the scope
    `encoder_layers_`, and the leaves `0_fc` and `1_fc`.

    `names`: of the weights, in order.
    Returns: A list of nodes [label, content]: the content of a leaf is the index of a name, that of a scope a list of
    nodes.
    """
    entries = [([token for token in _TOKEN.findall(name) if token], index) for index, name in enumerate(names)]
    return _grouped(entries, 1)


def _grouped(entries: list[tuple[list[str], int]], depth: int) -> list[Any]:
    groups: dict[str, list[tuple[list[str], int]]] = {}
    for tokens, index in entries:
        # A name that is a scope of others, such as "a_" beside "a_b", has no token left here.
        head = tokens[0] if tokens and depth < _MAX_DEPTH else "".join(tokens)
        groups.setdefault(head, []).append((tokens[1:] if depth < _MAX_DEPTH else [], index))
    nodes = []
    for head, members in groups.items():
        label = head
        while len(members) > 1 and len({tokens[0] if tokens else "" for tokens, _ in members}) == 1 and members[0][0]:
            label += members[0][0][0]
            members = [(tokens[1:], index) for tokens, index in members]
        if len(members) == 1:
            tokens, index = members[0]
            nodes.append([label + "".join(tokens), index])
        elif all(not tokens for tokens, _ in members):  # equal names, or as deep as the tree goes
            nodes += [[label, index] for _, index in members]
        else:
            nodes.append([label, _grouped(members, depth + 1)])
    return nodes
