"""Names and sentences that were fixed stay fixed. This guards the language; it does not replace reading."""

import ast
import re
import symtable
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rheoscope.messages.extraction import page_templates, templates_of
from tests.source_files import nodes

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rheoscope"
FILES = sorted(SOURCE.rglob("*.py"))
TEST_FILES = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted(
    file for folder in ("benchmarks", "examples", ".ci", "docs/_hooks") for file in (ROOT / folder).glob("*.py")
)
MAX_WORDS = 25

BANNED_NAMES = frozenset(
    {
        "told",
        "untold",
        "said",
        "unsaid",
        "heard",
        "asked",
        "asking",
        "tell",
        "telling",
        "hear",
        "hearing",
        "saying",
        "beside",
        "apart",
        "whole",
        "found",
        "kept",
        "drawn",
        "made",
        "known",
        "given",
        "moved",
        "begun",
        "usual",
        "several",
        "typed",
        "torn",
        "dear",
        "likeness",
        "alike",
        "one",
        "at",
        "what",
        "which",
        "word",
        "each",
        "many",
        "thing",
        "things",
        "hand",
        "hands",
        "way",
        "ways",
    }
)
"""Names that nobody else would write. WRITING.md's rule: a result is a noun, an action is a verb."""

BANNED_MODULES = BANNED_NAMES | {
    "beside",
    "joined",
    "past",
    "prose",
    "looks",
    "facts",
    "utils",
    "helpers",
    "common",
    "core",
    "base",
}

BANNED_PHRASES = re.compile(
    r"\b(likeness|dear|told|untold|beside|besides|turned at random|by chance alone|at chance alone|text of noise|texts of noise|"
    r"cannot tell|in all hands|who asks|whoever|stands? beside|of its own accord|is asked|are asked|what is said)\b",
    re.IGNORECASE,
)
"""Phrases of messages that read like a literal translation."""


NAME_FIELDS = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.arg: "arg",
    ast.Name: "id",
}
"""Class of a node → its field with the name."""


def bound_names(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a file defines or assigns."""
    for node in nodes(text):
        field = NAME_FIELDS.get(type(node))  # faster than a chain of isinstance
        if field and isinstance(getattr(node, "ctx", ast.Store()), ast.Store):
            yield node.lineno, getattr(node, field)


def is_banned(name: str) -> bool:
    return name.strip("_").lower() in BANNED_NAMES


def has_banned_symbol(text: str) -> bool:
    """Whether a scope binds or reads a banned name. For files whose syntax trees no other test needs: symbol tables are faster."""
    tables = [symtable.symtable(text, "a file", "exec")]
    for table in tables:
        tables += table.get_children()
        names = table.get_identifiers()  # private names of a class begin with its name: _Class__name
        if any(is_banned(name) or is_banned(name.rpartition("__")[2]) for name in names):
            return True
    return False


def banned_names(files: list[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in files
        for line, name in bound_names(file.read_text(encoding="utf-8"))
        if is_banned(name)
    ]


@cache
def templates() -> list[tuple[str, str]]:
    """Place and template of every message, of the package and of the page."""
    page = ROOT / "frontend" / "src" / "messages" / "en.ts"
    return [
        *(
            (f"{file.relative_to(SOURCE)}:{line}", template)
            for file in FILES
            for line, template in templates_of(nodes(file.read_text(encoding="utf-8")))
        ),
        *(
            (f"{page.relative_to(ROOT)}:{line}", template)
            for line, template in page_templates(page.read_text(encoding="utf-8"))
        ),
    ]


def sentences(template: str) -> list[str]:
    """The sentences of a template. A parameter counts as one word, a formula between brackets as none.

    >>> sentences("One. Two {n} words.")
    ['One.', 'Two x words.']
    """
    flat = re.sub(r"\{[^{}]*\}", "x", re.sub(r"\([^()]*\)", "", template))
    return re.split(r"(?<=[.!?:])\s+(?=[A-Zκ“])|; (?=use |choose |type |add )", flat)


def test_no_file_of_the_package_binds_a_banned_name() -> None:
    assert not banned_names(FILES)


def test_no_test_binds_a_banned_name() -> None:
    assert not banned_names([file for file in TEST_FILES if has_banned_symbol(file.read_text(encoding="utf-8"))])


def test_no_script_binds_a_banned_name() -> None:
    assert len(SCRIPTS) > 10
    assert not banned_names(SCRIPTS)


def test_no_module_has_a_banned_name() -> None:
    assert not [str(file.relative_to(ROOT)) for file in FILES if file.stem in BANNED_MODULES]


def test_a_sentence_of_a_message_has_at_most_25_words() -> None:
    long = [
        f"{place}: {sentence}"
        for place, template in templates()
        for sentence in sentences(template)
        if len(sentence.split()) > MAX_WORDS
    ]
    assert not long, "\n".join(long)


def test_no_message_has_a_banned_phrase() -> None:
    banned = [f"{place}: {template}" for place, template in templates() if BANNED_PHRASES.search(template)]
    assert not banned, "\n".join(banned)


@pytest.mark.parametrize("name", ["told", "_told", "each"])
def test_a_banned_name_is_found(name: str, tmp_path: Path) -> None:
    names = [bound for _, bound in bound_names(f"def f():\n    {name} = 1")]
    assert names == ["f", name]
    assert is_banned(name)


BINDINGS = (
    "told = 1",
    "told: int",
    "def told(): pass",
    "async def told(): pass",
    "class Told: pass",
    "def f(x, /, told): pass",
    "def f(*, told=1): pass",
    "def f(*told): pass",
    "def f(**told): pass",
    "def f():\n    told: int",
    "def f():\n    if 0:\n        told = 1",
    "class A:\n    def f(self):\n        self.x = __told = 1",
    "f = lambda told: 1",
    "x = [1 for told in y]",
    "print(f'{[told for told in y]}')",
    "if (told := 1): pass",
    "for x, told in y: pass",
    "with x as told: pass",
)


@pytest.mark.parametrize("text", BINDINGS)
def test_every_kind_of_binding_is_found(text: str) -> None:
    assert any(is_banned(name) for _, name in bound_names(text))
    assert has_banned_symbol(text)
    assert not has_banned_symbol(re.sub("told", "report", text, flags=re.IGNORECASE))


@pytest.mark.parametrize("phrase", ["Scores follow likeness", "Every answer stands beside its null", "cannot tell"])
def test_a_banned_phrase_is_found(phrase: str) -> None:
    assert BANNED_PHRASES.search(phrase)
