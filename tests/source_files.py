"""The syntax trees of the source files, for tests that read all of them. A process parses a text only once."""

import ast
import gc
from functools import cache


@cache
def parse(text: str) -> ast.Module:
    """The syntax tree of a file. The garbage collector pauses, because it would take longer than the parser."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()


@cache
def nodes(text: str) -> list[ast.AST]:
    """All nodes of a file, in the order of `ast.walk`, which takes longer than most tests that use the nodes."""
    found_nodes: list[ast.AST] = [parse(text)]
    for node in found_nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                found_nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                found_nodes.append(value)
    return found_nodes
