"""The link from a report to the studio contains exactly the text."""

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
from tests.report.cases import opened_by_name, small
from tests.texts import any_text

NASTY = [
    "<script>alert(1)</script>",
    "\"onmouseover='alert(1)' x=",
    "a & b #&model=/etc",
    "\x00\u202e\n 中文 🙂",
    "javascript:alert(1)",
]


def about(text: str) -> Results:
    trace = replace(small().trace("The keys are"), text=text)
    return opened_by_name(Results(small().view, small().token_strings, trace))


def parse_link(page: Page) -> tuple[str, dict[str, list[str]]]:
    """The command, and the parameters in the fragment of the address."""
    (command,), (href,) = (
        re.findall(r"<code>(.*?)</code>", page.to_html(), re.S),
        re.findall(r'href="([^"]*)"', page.to_html()),
    )
    place = urlsplit(html.unescape(href))
    assert (place.scheme, place.netloc, place.path, place.query) == ("http", f"127.0.0.1:{DEFAULT_PORT}", "/", "")
    return html.unescape(command), parse_qs(place.fragment, keep_blank_values=True, strict_parsing=True)


@pytest.mark.parametrize("text", NASTY)
def test_the_link_encodes_any_text(text: str) -> None:
    of = [about(text), about(f"other {text}")]
    for page in (add_studio_link(Page("T"), of[0]), add_studio_link(Page("T"), *of)):
        assert page.to_html().count("<script") == 1
        assert not re.search(r"<[^>]* on\w+=", page.to_html())
    assert parse_link(add_studio_link(Page("T"), of[0]))[1] == {"text": [text]}
    assert parse_link(add_studio_link(Page("T"), *of))[1] == {"text": [text], "compareWith": [f"text:other {text}"]}


@given(any_text(max_size=60))
def test_an_address_is_safe_in_html(text: str) -> None:
    link = studio_address(text, text)
    assert re.fullmatch(rf"http://127\.0\.0\.1:{DEFAULT_PORT}/(#[\w+%.&=~*-]+)?", link, re.ASCII)


def test_a_long_text_is_not_part_of_the_address() -> None:
    assert studio_address("a" * MAX_ADDRESS_CHARS) == f"http://127.0.0.1:{DEFAULT_PORT}/"


@pytest.mark.parametrize("name", ["gpt2", "a b/c", "'; rm -rf ~ '", "<b>"])
def test_the_model_is_one_argument_of_the_command(name: str) -> None:
    assert shlex.split(studio_command(name)) == ["rheoscope", "studio", "--model", name]


def test_models_without_a_name_and_weights_alone_have_no_studio_link() -> None:
    assert add_studio_link(Page("T"), replace(about("a"), trace=None)).sections == ()
    in_memory = replace(about("a"), view=small().view)
    assert add_studio_link(Page("T"), in_memory).sections == ()
