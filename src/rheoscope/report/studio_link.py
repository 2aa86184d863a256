"""The link from a page to the studio: the command that starts it, and the address of the same text."""

import shlex
from html import escape
from urllib.parse import urlencode

from rheoscope.messages.message import Message
from rheoscope.picture.token_labels import printable
from rheoscope.report.html_text import html_text
from rheoscope.report.next_steps import is_in_memory
from rheoscope.report.page import Page
from rheoscope.space.results import Results

DEFAULT_PORT = 8642
"""The default port of the studio."""
MAX_ADDRESS_CHARS = 8000
"""The longest address. A longer text is not part of it."""


def add_studio_link(page: Page, results: Results, second_results: Results | None = None) -> Page:
    """The page with a link to the studio, if it has a text and the studio can open the model."""
    model = str(results.view.facts.get("model", ""))
    if results.trace is None or not model or "untrained (seed" in model or is_in_memory(results):
        return page
    url = studio_address(
        results.trace.text, "" if second_results is None or second_results.trace is None else second_results.trace.text
    )
    command_html = f"<code>{escape(studio_command(model))}</code>"
    link = f'<a href="{escape(url)}" rel="noreferrer">{html_text(Message("Open this text in the studio"))}</a>'
    start = html_text(Message("Start the studio with this command, then follow the link."))
    return page.with_section(Message("Open this in the studio"), f"<p>{start} {command_html} · {link}</p>")


def studio_command(model: str) -> str:
    """The command that opens a model in the studio.

    >>> studio_command("the default model"), studio_command("my models/gpt2")
    ('rheoscope studio', "rheoscope studio --model 'my models/gpt2'")
    """
    return "rheoscope studio" + ("" if model == "the default model" else f" --model {shlex.quote(printable(model))}")


def studio_address(text: str, second_text: str = "") -> str:
    """The address of a text in the studio, optionally with a second text. Both are in the fragment, percent-encoded.

    >>> studio_address("The <keys>", "a & b")
    'http://127.0.0.1:8642/#text=The+%3Ckeys%3E&compareWith=text%3Aa+%26+b'
    """
    parameters = {"text": text} | ({"compareWith": f"text:{second_text}"} if second_text else {})
    fragment = urlencode({name: value for name, value in parameters.items() if value}, errors="replace")
    return f"http://127.0.0.1:{DEFAULT_PORT}/" + (
        f"#{fragment}" if fragment and len(fragment) <= MAX_ADDRESS_CHARS else ""
    )
