"""Parser of ``stanc --debug-mir``: the program after type checking, as one S-expression.

In it every ``~`` statement is an increment of ``target``, truncations are written out, and a declaration with a value
is a declaration and an assignment. It does not contain the positions of the statements in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TOKEN = re.compile(r'[()]|"(?:[^"\\]|\\.)*"|[^\s()]+')


class Node(list):
    """A MIR expression or statement, ``[kind, *arguments]``, with the type of an expression."""

    type: Any = None


def read_expression(text: str) -> list[Any]:
    """Return an S-expression as nested lists; ``((pattern P) (meta M))`` becomes the :class:`Node` P."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = stack.pop()
            stack[-1].append(_as_node(done))
        else:
            stack[-1].append(token)
    return stack[0][0]


def _as_node(tree: list[Any]) -> list[Any]:
    """Return ``((pattern P) (meta M))`` as a node, anything else unchanged."""
    if len(tree) != 2 or not all(isinstance(part, list) and len(part) == 2 for part in tree):
        return tree
    (key, pattern), (key2, meta) = tree
    if key != "pattern" or key2 != "meta":
        return tree
    node = Node(pattern if isinstance(pattern, list) else [pattern])
    if isinstance(meta, list) and meta and meta[0][0] == "type_":
        node.type = meta[0][1]
    return node


def walk(tree: Any) -> Iterator[Node]:
    """Return every node below, the tree itself first."""
    if isinstance(tree, Node):
        yield tree
    if isinstance(tree, list):
        for part in tree:
            yield from walk(part)


def variables(tree: Any) -> frozenset[str]:
    """Return the variables that an expression names."""
    return frozenset(node[1] for node in walk(tree) if node[0] == "Var")


def summands(expression: Node) -> list[Node]:
    """Return ``a + b - c`` as ``[a, b, c]``; anything else unchanged."""
    if expression[0] == "FunApp" and expression[1][1] in ("Plus__", "Minus__"):
        left, right = expression[2]
        return [*summands(left), right]
    if expression[0] == "Promotion":
        return summands(expression[1])
    return [expression]


def dimensions(sized_type: Any) -> list[Node]:
    """Return the sizes in a declared type, outermost first; a tuple's sizes in their order."""
    if isinstance(sized_type, Node):
        return [sized_type]
    if not isinstance(sized_type, list) or not sized_type:
        return []
    if sized_type[0] == "SArray":
        return [sized_type[2], *dimensions(sized_type[1])]
    return [size for part in sized_type for size in dimensions(part)]


def constraints(prepare_data: list[Any]) -> Iterator[tuple[str, str, Any]]:
    """Return the declared constraints of the data: variable, kind (``"Lower"``, ``"Simplex"``, ...), bound or None."""
    for node in walk(prepare_data):
        if node[0] != "NRFunApp" or node[1][0] != "CompilerInternal" or node[1][1][0] != "FnCheck":
            continue
        (_, kind), (_, name), _ = node[1][1][1:]
        yield name, kind if isinstance(kind, str) else kind[0], None if isinstance(kind, str) else kind[1]


def read_sections(mir: str) -> dict[str, Any]:
    """Return the sections of the program by name: ``input_vars``, ``prepare_data``, ``log_prob``, ..."""
    return {part[0]: part[1] for part in read_expression(mir) if len(part) == 2}
