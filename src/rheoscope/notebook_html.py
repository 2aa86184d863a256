"""Notebook cards: a title, a table of facts and a thumbnail, with all text escaped."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from rheoscope.messages.catalogue import render

THUMBNAIL_RENDERERS: dict[str, Callable[[Any], str]] = {}
"""Class name → function that draws a value as HTML. `rheoscope/__init__.py` fills it, since a value cannot import higher rooms."""

BOX_STYLE = "border:1px solid #8a93a6; border-radius:6px; padding:8px 12px; display:inline-block; max-width:44rem"
CELL_STYLE = "text-align:left; padding:0 12px 0 0; border:0; background:none"


def card(value: object, title: str, facts: Mapping[str, object]) -> str:
    """A value as an HTML card.

    >>> "<b>a &lt; b</b>" in card(3, "a < b", {"layers": 6})
    True
    """
    rows = "".join(
        f'<tr style="background:none"><th style="{CELL_STYLE}; opacity:.7">{escape(render(name))}</th><td '
        f'style="{CELL_STYLE}">{escape(render(fact) if isinstance(fact, str) else str(fact))}</td></tr>'
        for name, fact in facts.items()
    )
    draw = THUMBNAIL_RENDERERS.get(type(value).__name__)
    return f'<div style="{BOX_STYLE}"><b>{escape(render(title))}</b><table>{rows}</table>{draw(value) if draw else ""}</div>'


def quote_start(text: str, max_chars: int = 48) -> str:
    """The start of a text in quotes, on one line, without control characters.

    >>> quote_start("one\\ntwo"), quote_start("a" * 99, 4)
    ("'one\\\\ntwo'", "'aaaa'…")
    """
    return repr(text[:max_chars]) + "…" * (len(text) > max_chars)


def format_count(number: float | int) -> str:
    """A number with a suffix for thousands.

    >>> format_count(5721344), format_count(999), format_count(1_240_000_000)
    ('5.72 M', '999', '1.24 G')
    """
    for suffix in ("", " k", " M"):
        if number < 1000:
            return f"{number:.3g}{suffix}"
        number /= 1000
    return f"{number:.4g} G"
