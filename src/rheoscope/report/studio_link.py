"""From a page to the studio: the command that opens the model there, and the address at which it shows the same text."""

import shlex
from html import escape
from urllib.parse import urlencode

from rheoscope.picture.token_labels import printable
from rheoscope.report.page import Page
from rheoscope.space.results import Results

DEFAULT_PORT = 8642
"""Where the studio listens, unless another port is typed or this one is taken."""
MAX_ADDRESS_CHARS = 8000
"""Letters of an address, beyond which a text is typed on the page instead."""


def add_studio_link(page: Page, results: Results, second_results: Results | None = None) -> Page:
    """The page, which says how to go on in the studio; one about weights alone, or about a model at initial weights, does not."""
    model = str(results.view.facts.get("model", ""))
    if results.trace is None or not model or "untrained (seed" in model:
        return page
    command_html = f"<p>Type <code>{escape(studio_command(model))}</code>, then open "
    url = studio_address(
        results.trace.text, "" if second_results is None or second_results.trace is None else second_results.trace.text
    )
    link = f'<a href="{escape(url, quote=True)}" rel="noreferrer">this text in the studio</a>'
    return page.with_section(
        "Open this in the studio", f"{command_html}{link}: the cloud moves, and heads can be changed.</p>"
    )


def studio_command(model: str) -> str:
    """What is typed to open a model in the studio.

    >>> studio_command("the default model"), studio_command("my models/gpt2")
    ('rheoscope studio', "rheoscope studio --model 'my models/gpt2'")
    """
    return "rheoscope studio" + ("" if model == "the default model" else f" --model {shlex.quote(printable(model))}")


def studio_address(text: str, second_text: str = "") -> str:
    """Where the studio shows a text, and another beside it: everything of them stands behind #, percent by percent.

    >>> studio_address("The <keys>", "a & b")
    'http://127.0.0.1:8642/#text=The+%3Ckeys%3E&beside=text%3Aa+%26+b'
    """
    parameters = {"text": text} | ({"beside": f"text:{second_text}"} if second_text else {})
    fragment = urlencode({name: value for name, value in parameters.items() if value}, errors="replace")
    return f"http://127.0.0.1:{DEFAULT_PORT}/" + (
        f"#{fragment}" if fragment and len(fragment) <= MAX_ADDRESS_CHARS else ""
    )
