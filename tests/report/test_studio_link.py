"""The way from a report to the studio: the link says the whole text and nothing besides, whatever the text is."""

import html
import re
import shlex
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given

from rheoscope.report.page import Page
from rheoscope.report.studio_link import (
    DEFAULT_PORT,
    MAX_ADDRESS_CHARS,
    add_studio_link,
    studio_address,
    studio_command,
)
from rheoscope.space.results import Results
from tests.report.cases import small
from tests.texts import any_text

NASTY = [
    "<script>alert(1)</script>",
    "\"onmouseover='alert(1)' x=",
    "a & b #&model=/etc",
    "\x00\u202e\n 中文 🙂",
    "javascript:alert(1)",
]


def about(text: str) -> Results:
    return Results(small().view, small().token_strings, replace(small().trace("The keys are"), text=text))


def read(page: Page) -> tuple[str, dict[str, list[str]]]:
    """What is typed, and what the address says behind #."""
    (typed,), (href,) = (
        re.findall(r"<code>(.*?)</code>", page.to_html(), re.S),
        re.findall(r'href="([^"]*)"', page.to_html()),
    )
    place = urlsplit(html.unescape(href))
    assert (place.scheme, place.netloc, place.path, place.query) == ("http", f"127.0.0.1:{DEFAULT_PORT}", "/", "")
    return html.unescape(typed), parse_qs(place.fragment, keep_blank_values=True, strict_parsing=True)


@pytest.mark.parametrize("text", NASTY)
def test_a_text_of_any_kind_is_what_the_link_says(text: str) -> None:
    of = [about(text), about(f"other {text}")]
    for page in (add_studio_link(Page("T"), of[0]), add_studio_link(Page("T"), *of)):
        assert page.to_html().count("<script") == 1
        assert not re.search(r"<[^>]* on\w+=", page.to_html())
    assert read(add_studio_link(Page("T"), of[0]))[1] == {"text": [text]}
    assert read(add_studio_link(Page("T"), *of))[1] == {"text": [text], "beside": [f"text:other {text}"]}


@given(any_text(max_size=60))
def test_an_address_has_only_letters_that_any_page_may_hold(text: str) -> None:
    found = studio_address(text, text)
    assert re.fullmatch(rf"http://127\.0\.0\.1:{DEFAULT_PORT}/(#[\w+%.&=~*-]+)?", found, re.ASCII)


def test_a_text_too_long_for_an_address_is_typed() -> None:
    assert studio_address("a" * MAX_ADDRESS_CHARS) == f"http://127.0.0.1:{DEFAULT_PORT}/"


@pytest.mark.parametrize("name", ["gpt2", "a b/c", "'; rm -rf ~ '", "<b>"])
def test_a_model_is_one_word_of_the_command(name: str) -> None:
    assert shlex.split(studio_command(name)) == ["rheoscope", "studio", "--model", name]


def test_what_the_studio_cannot_open_has_no_link() -> None:
    assert add_studio_link(Page("T"), replace(about("a"), trace=None)).sections == ()
