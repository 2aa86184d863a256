"""Text for people as HTML: rendered in the current language and escaped."""

from html import escape

from rheoscope.messages.catalogue import render
from rheoscope.messages.message import Message


def html_text(text: str) -> str:
    """A text in the current language, escaped for HTML.

    >>> html_text("a < b")
    'a &lt; b'
    """
    return escape(render(text))


def label_text(text: str) -> str:
    """A label of a plot in the current language. A plain string stays as it is, since it may be a token of the text.

    >>> label_text("no")
    'no'
    """
    return render(text) if isinstance(text, Message) else text


def html_label(text: str) -> str:
    """A label of a plot, escaped for HTML."""
    return escape(label_text(text))
