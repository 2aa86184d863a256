"""Text for people is built from templates: no code outside messages/ joins, cuts or rewrites sentences."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.source_files import nodes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "rheoscope"
FILES = [file for file in sorted(SOURCE.rglob("*.py")) if "messages" not in file.relative_to(SOURCE).parts]
TEMPLATE_ARGUMENTS = {"Message": 1, "plural": 2}
"""Function → how many of its first arguments are templates."""
SURGERY = frozenset({"replace", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix", "format"})
"""Methods of a string that cut or rewrite it."""


def called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_composed(node: ast.expr) -> bool:
    """Whether an expression puts text together: an f-string, a sum, or a formatted string."""
    if isinstance(node, ast.IfExp):
        return is_composed(node.body) or is_composed(node.orelse)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add | ast.Mod)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and called_name(node) in ("format", "join"))


def composed_templates(text: str) -> Iterator[int]:
    """Lines on which a template is put together instead of being a literal."""
    for node in nodes(text):
        if isinstance(node, ast.Call):
            templates = node.args[: TEMPLATE_ARGUMENTS.get(called_name(node), 0)]
            yield from (node.lineno for template in templates if is_composed(template))


def composed_errors(text: str) -> Iterator[int]:
    """Lines on which the text of an error for users is put together, or holds its own advice."""
    for node in nodes(text):
        if isinstance(node, ast.Call) and called_name(node) == "RheoscopeError" and node.args:
            problem = node.args[0]
            has_advice = isinstance(problem, ast.Constant) and "; type " in str(problem.value)
            if has_advice or (is_composed(problem) and not isinstance(problem, ast.Call)):
                yield node.lineno


def rewritten_errors(text: str) -> Iterator[int]:
    """Lines that cut or rewrite a rendered error: str(error).replace(…), error.message.partition(…), re.sub(…, str(error))."""
    for node in nodes(text):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in SURGERY and is_rendered(node.func.value):
            yield node.lineno
        if called_name(node) in ("sub", "subn") and any(is_rendered(argument) for argument in node.args):
            yield node.lineno


def is_rendered(node: ast.expr) -> bool:
    """Whether an expression is the text of an error or a message: str(error), error.message, message.template."""
    if isinstance(node, ast.Call) and called_name(node) in ("str", "on") and (node.args or called_name(node) == "on"):
        return called_name(node) == "on" or getattr(node.args[0], "id", "") in (
            "error",
            "exception",
            "problem",
            "message",
        )
    return isinstance(node, ast.Attribute) and node.attr in ("message", "template")


RULES = [composed_templates, composed_errors, rewritten_errors]


def test_no_file_builds_text_by_surgery() -> None:
    lines = [
        f"{rule.__name__}: {file.relative_to(ROOT)}:{line}"
        for file in FILES
        for text in (file.read_text(encoding="utf-8"),)
        for rule in RULES
        for line in rule(text)
    ]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (composed_templates, 'Message(f"{n} heads")'),
        (composed_templates, 'Message("a" + b)'),
        (composed_templates, 'plural("{n} head", "{n} " + name, n=2)'),
        (composed_templates, 'Message("a" if x else f"{b}")'),
        (composed_errors, 'RheoscopeError(f"got {value}")'),
        (composed_errors, 'RheoscopeError("too large; type draws=2")'),
        (rewritten_errors, 'str(error).replace("heads=", "--heads ")'),
        (rewritten_errors, 'error.message.partition("; type ")'),
        (rewritten_errors, 're.sub("a", "b", str(error))'),
        (rewritten_errors, 'error.on("shell").split(";")'),
    ],
)
def test_surgery_is_found(rule: Callable[[str], Iterator[int]], code: str) -> None:
    assert list(rule(code)) == [1]


@pytest.mark.parametrize(
    "code",
    [
        'Message("{n} heads", n=n)',
        'RheoscopeError(Message("got {value}", value=value), use(draws=2))',
        'name.replace("_", "-")',
    ],
)
def test_templates_and_names_are_allowed(code: str) -> None:
    assert not [line for rule in RULES for line in rule(code)]
