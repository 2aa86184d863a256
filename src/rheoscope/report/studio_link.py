"""From a page to the studio: the command that opens the model there, and the address at which it shows the same text."""

import shlex
from html import escape
from urllib.parse import urlencode

from rheoscope.picture.token_labels import printable
from rheoscope.report.page import Page
from rheoscope.space.results import Answers

PORT = 8642
"""Where the studio listens, unless another port is typed or this one is taken."""
LONGEST = 8000
"""Letters of an address, beyond which a text is typed on the page instead."""


def with_studio(page: Page, answers: Answers, other: Answers | None = None) -> Page:
    """The page, which says how to go on in the studio; one about weights alone, or about a model at initial weights, does not."""
    model = str(answers.view.facts.get("model", ""))
    if answers.trace is None or not model or "untrained (seed" in model:
        return page
    typed = f"<p>Type <code>{escape(command(model))}</code>, then open "
    found = address(answers.trace.text, "" if other is None or other.trace is None else other.trace.text)
    link = f'<a href="{escape(found, quote=True)}" rel="noreferrer">this text in the studio</a>'
    return page.section("Open this in the studio", f"{typed}{link}: the cloud moves, and heads can be changed.</p>")


def command(model: str) -> str:
    """What is typed to open a model in the studio.

    >>> command("the default model"), command("my models/gpt2")
    ('rheoscope studio', "rheoscope studio --model 'my models/gpt2'")
    """
    return "rheoscope studio" + ("" if model == "the default model" else f" --model {shlex.quote(printable(model))}")


def address(text: str, beside: str = "") -> str:
    """Where the studio shows a text, and another beside it: everything of them stands behind #, percent by percent.

    >>> address("The <keys>", "a & b")
    'http://127.0.0.1:8642/#text=The+%3Ckeys%3E&beside=text%3Aa+%26+b'
    """
    told = {"text": text} | ({"beside": f"text:{beside}"} if beside else {})
    found = urlencode({name: said for name, said in told.items() if said}, errors="replace")
    return f"http://127.0.0.1:{PORT}/" + (f"#{found}" if found and len(found) <= LONGEST else "")
