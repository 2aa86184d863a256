"""Wikitext as prose: each rule alone, then arbitrary markup."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.models.text_cleaning import LETTER, articles, is_dump, plain_prose
from tests.texts import any_text

RULES = {
    "template": ("Ada {{born|1815}} wrote.", "Ada wrote."),
    "nested template": ("Ada {{born|{{date|{1815}|x}}}} wrote.", "Ada wrote."),
    "template over lines": ("{{Infobox\n| name = Ada\n| born = {{y|1815}}\n}}\nAda wrote.", "Ada wrote."),
    "table": ("Before.\n{| class=x\n! head\n|-\n| a || b\n{|\n| inner\n|}\n|}\nAfter.", "Before.\nAfter."),
    "rows of a table that never ends": ("Before.\n{| class=x\n| a || b\n! c\nAfter.", "Before.\nAfter."),
    "reference": ("Ada<ref name=a>{{cite|x}} Book</ref> wrote<ref name=a />.", "Ada wrote."),
    "reference that never ends": ("Ada <ref>wrote. She<ref>x</ref> rested.", "Ada wrote. She rested."),
    "comment": ("Ada <!-- a\n<ref> note -->wrote.", "Ada wrote."),
    "html": ("<div class=x>Ada</div> wrote H<sub>2</sub>O<br/>and more.", "Ada wrote H2O and more."),
    "entities": ("Ada&nbsp;&mdash; the &quot;first&quot; &#945;", 'Ada — the "first" α'),
    "link": ("Ada met [[Babbage]] and [[Mary Somerville|Mary]]s.", "Ada met Babbage and Marys."),
    "link to a section": ("See [[Ada_Lovelace#Life|her life]].", "See her life."),
    "link to a sister project": ("The [[Wiktionary:engine]] ran.", "The engine ran."),
    "link within a link": ("[[Image:a.jpg|thumb|Ada with [[Babbage|him]] [sic]]]Ada wrote.", "Ada wrote."),
    "category": ("Ada wrote.\n[[Category:Mathematicians|Lovelace]]", "Ada wrote."),
    "language": ("Ada wrote.\n[[de:Ada Lovelace]]\n[[zh-min-nan:Ada]]", "Ada wrote."),
    "external": ("Ada [http://x.org/a?b=c her page], [http://x.org].", "Ada her page,."),
    "bare address": ("Ada at http://x.org/a wrote.", "Ada at wrote."),
    "heading": ("== Life ==\nAda wrote.", "Life\nAda wrote."),
    "heading with nothing under it": ("== Tables ==\n{|\n| a\n|}\n== Life ==\nAda wrote.", "Life\nAda wrote."),
    "section of links": ("Ada wrote.\n== External links ==\n* [http://x.org Page]\n== Life ==\nShort.", "Ada wrote.\nLife\nShort."),
    "quotes": ("'''Ada''' wrote ''Notes'' at '''''home'''''.", "Ada wrote Notes at home."),
    "lists": ("* Ada\n** wrote\n# and\n: rested", "Ada\nwrote\nand\nrested"),
    "mathematics": ("Ada knew <math>\\frac{{1}}{2}</math> well.", "Ada knew well."),
    "gallery": ("<gallery>\nImage:a.jpg|Ada\n</gallery>\nAda wrote.", "Ada wrote."),
    "code": ("Ada wrote <code>x = {{1}}</code> once.", "Ada wrote once."),
    "switch": ("__NOTOC__\nAda wrote.", "Ada wrote."),
    "brackets left empty": ("Ada ({{ipa|x}}) wrote ({{lang|y}}; a poem).", "Ada wrote (a poem)."),
    "no letter": ("Ada wrote.\n----\n1815 - 1852\n", "Ada wrote."),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_cleaning(rule: str) -> None:
    wikitext, expected = RULES[rule]
    assert plain_prose(wikitext) == expected


def page(text: str, title: str = "Ada") -> str:
    return f"  <page>\n<title>{title}</title>\n<text xml:space='preserve'>{text}</text>\n  </page>\n"


LONG = "Ada wrote the first program of all for a machine that was never built. " * 4


def test_a_dump_gives_one_document_per_article() -> None:
    dump = [
        "<mediawiki>\n",
        page("#REDIRECT [[Ada Lovelace]]"),
        page(LONG + "&lt;ref&gt;x&lt;/ref&gt;&amp;ndash; 1843"),
        page(LONG, title="Talk:Ada"),
        page(LONG, title="Wikipedia talk:Ada"),
        page("Too short."),
        page(LONG, title="Time: an essay"),
        page(LONG).removesuffix("  </page>\n"),
    ]
    lines = "".join(dump).splitlines(keepends=True)
    assert list(articles(lines)) == [f"{LONG}– 1843", LONG.strip()]


def test_a_dump_is_recognised_by_its_first_lines() -> None:
    assert is_dump("<mediawiki xmlns='x'>\n")
    assert is_dump('<?xml version="1.0"?>\n<mediawiki>\n')
    assert not is_dump("<?xml version='1.0'?>\n<html>")
    assert not is_dump("A page on <mediawiki> dumps")


words = st.text(alphabet="ab \n'*=|", max_size=8)


def wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Balanced markup around balanced text."""
    shapes = [
        "[[{}]]",
        "[[a|{}]]",
        "{{{{{}}}}}",
        "<ref>{}</ref>",
        "\n{{|\n|{}\n|}}\n",
        "<!--{}-->",
        "<b>{}</b>",
        "[http://x {}]",
    ]
    return st.builds(lambda shape, text: shape.format(text), st.sampled_from(shapes), inner)


balanced = st.recursive(
    words, lambda inner: wrapped(inner) | st.lists(inner, max_size=3).map("".join), max_leaves=12
)  # fmt: skip
marks = [
    "[[",
    "]]",
    "{{",
    "}}",
    "{|",
    "|}",
    "[",
    "]",
    "{",
    "}",
    "<ref>",
    "</ref>",
    "<ref",
    "<",
    "/",
    ">",
    "<!--",
    "-->",
    "|",
]
anything = st.lists(st.sampled_from([*marks, "\n", "a", " ", "&lt;", "&#91;", "http://", "''", "=="]), max_size=30)


@given(balanced)
def test_balanced_markup_is_removed_completely(text: str) -> None:
    prose = plain_prose(text)
    assert not any(mark in prose for mark in ("[[", "]]", "{{", "}}", "<ref", "</ref", "<!--"))


@given(anything.map("".join))
def test_unbalanced_markup_is_removed(text: str) -> None:
    prose = plain_prose(text)
    assert not any(mark in prose for mark in ("[[", "{{", "<ref"))


@given(any_text())
def test_the_prose_of_any_text_has_no_markup_and_a_letter_on_every_line(text: str) -> None:
    result = plain_prose(text)
    assert not any(mark in result for mark in ("[[", "{{", "<ref"))
    assert all(LETTER.search(line) for line in result.split("\n") if result)
    assert "  " not in result


@given(st.lists(st.text(alphabet="abcdefgh ,.", min_size=1), min_size=1))
def test_sentences_without_markup_stay(lines: list[str]) -> None:
    """Text without markup is returned except for white space, leading punctuation and lines without a letter."""
    expected = ["".join(line.split()) for line in lines]
    result = ["".join(line.split()) for line in plain_prose("\n".join(lines)).split("\n")]
    assert [line for line in result if line] == [line for line in expected if any(c.isalpha() for c in line)]


@pytest.mark.parametrize(
    "mark",
    [
        "[[",
        "{{",
        "<ref>",
        "<!--",
        "[[a|",
        "{|\n",
        "[http://x ",
        "(, ",
        "<",
        "</",
        "= ",
        "[[a|[x] ",
        "http://",
        "&",
        " ",
    ],
)
def test_time_is_linear_in_marks_that_never_close(mark: str) -> None:
    """A page of 200,000 characters of one unclosed mark. A quadratic rule would take minutes."""
    start = time.perf_counter()
    result = plain_prose(mark * (200_000 // len(mark)))
    assert time.perf_counter() - start < 5
    assert not any(opening in result for opening in ("[[", "{{", "<ref"))
