"""Values as small cards in a notebook: a title, what there is to know, a picture where someone draws one. All text is escaped."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

DRAWN_BY: dict[str, Callable[[Any], str]] = {}
"""Name of a class → who draws its values, as HTML. A value knows no room above its own, so `rheoscope/__init__.py` says it."""

BOX = "border:1px solid #8a93a6; border-radius:6px; padding:8px 12px; display:inline-block; max-width:44rem"
CELL = "text-align:left; padding:0 12px 0 0; border:0; background:none"


def card(of: object, title: str, facts: Mapping[str, object]) -> str:
    """A value as HTML.

    >>> "<b>a &lt; b</b>" in card(3, "a < b", {"layers": 6})
    True
    """
    rows = "".join(
        f'<tr style="background:none"><th style="{CELL}; opacity:.7">{escape(name)}</th><td style="{CELL}">{escape(str(fact))}</td></tr>'
        for name, fact in facts.items()
    )
    draw = DRAWN_BY.get(type(of).__name__)
    return f'<div style="{BOX}"><b>{escape(title)}</b><table>{rows}</table>{draw(of) if draw else ""}</div>'


def cut(text: str, letters: int = 48) -> str:
    """The beginning of a text in quotes, on one line, with nothing that moves the cursor.

    >>> cut("one\\ntwo"), cut("a" * 99, 4)
    ("'one\\\\ntwo'", "'aaaa'…")
    """
    return repr(text[:letters]) + "…" * (len(text) > letters)


def counted(number: float | int) -> str:
    """A number with a letter for its thousands.

    >>> counted(5721344), counted(999), counted(1_240_000_000)
    ('5.72 M', '999', '1.24 G')
    """
    for letter in ("", " k", " M"):
        if number < 1000:
            return f"{number:.3g}{letter}"
        number /= 1000
    return f"{number:.4g} G"
