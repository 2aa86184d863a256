"""Which strings of a source file are templates for people: what Babel extracts into the catalogues."""

import ast
import re
from collections.abc import Iterable, Iterator

CALLS: dict[str, tuple[tuple[int, str], ...]] = {
    "Message": ((0, ""),),
    "plural": ((0, ""), (1, "")),
    "Field": ((1, "definition"), (2, "unit")),
    "Analysis": ((1, "question"),),
}
"""Function → the arguments that are templates, by position and by keyword."""
Entry = tuple[int, str]
"""Line and template."""


def python_templates(source: str) -> Iterator[Entry]:
    """The templates of a Python file: literal arguments of `Message`, `plural`, `Field` and `Analysis`.

    >>> list(python_templates('Message("{n} heads", n=3)'))
    [(1, '{n} heads')]
    """
    return templates_of(ast.walk(ast.parse(source)))


def templates_of(nodes: Iterable[ast.AST]) -> Iterator[Entry]:
    """The templates among the nodes of a syntax tree."""
    for node in nodes:
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for position, keyword in CALLS.get(name, ()):
                yield from _literal(node, position, keyword)


def _literal(call: ast.Call, position: int, keyword: str) -> Iterator[Entry]:
    by_keyword = [argument.value for argument in call.keywords if keyword and argument.arg == keyword]
    for value in [*call.args[position : position + 1], *by_keyword]:
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and re.search("[A-Za-z]", value.value):
            yield value.lineno, value.value


PAGE_TEXT = re.compile(r"^\s+\w+: (['\"`])(.*)\1,?$")


def page_templates(source: str) -> Iterator[Entry]:
    """The texts of the page's own table, `key: 'text',` on a line each.

    >>> list(page_templates("export const en = {\\n  open: 'Open',\\n}"))
    [(2, 'Open')]
    """
    for number, line in enumerate(source.splitlines(), 1):
        if match := PAGE_TEXT.match(line):
            yield number, match[2].replace("\\'", "'").replace('\\"', '"')
