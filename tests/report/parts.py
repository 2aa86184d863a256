"""The elements and texts of an HTML page, for tests."""

import re
from functools import cached_property
from html import unescape

NAME = r"[a-zA-Z][\w:.-]*"
ATTRIBUTE = re.compile(rf'({NAME})(?:=(?:"([^"]*)"|([\w.-]+)))?')
TOKEN = re.compile(
    rf'([^<]*)(?:<(/?)({NAME})((?:\s+{NAME}(?:=(?:"[^"]*"|[\w.-]+))?)*)\s*(/?)>|<!doctype \w+>|<!--.*?-->|$)',
    re.DOTALL | re.I,
)
"""A text and the tag after it, as the pages of this package write them. Any other < is a mistake."""
EMPTY = ("meta", "img", "br", "link")
RAW = ("script", "style")
"""Elements whose text has no tags."""


class Parts:
    """The elements with their attributes, and the texts of each kind of element.

    Strict, and in a third of the time of `html.parser`, its slow twin in test_parts.py.
    """

    def __init__(self, html: str) -> None:
        self.tags: list[tuple[str, str]] = []
        """Names of elements, and their attributes as they are written."""
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        index = 0
        while index < len(html):
            token = TOKEN.match(html, index)
            assert token, f"no tag begins so: {html[html.index('<', index) :][:40]}"
            self._seen(*token.groups())
            index = token.end()
            if self.open and self.open[-1] in RAW:
                ends = html.index(f"</{self.open[-1]}", index)
                self.texts.setdefault(self.open[-1], []).append(html[index:ends])
                index = ends

    def _seen(self, text: str, closes: str | None, name: str | None, attributes: str, empty: str) -> None:
        if text and self.open:
            self.texts.setdefault(self.open[-1], []).append(unescape(text))
        if name is None:  # a comment, or the kind of the page
            return
        name = name.lower()
        if closes:
            assert self.open[-1:] == [name], f"</{name}> closes {self.open[-1:]}"
            self.open.pop()
            return
        self.tags.append((name, attributes))
        if not empty and name not in EMPTY:
            self.open.append(name)

    @cached_property
    def elements(self) -> list[tuple[str, dict[str, str | None]]]:
        return [(name, attributes_of(written)) for name, written in self.tags]

    def count(self, tag: str, kind: str | None = None) -> int:
        return sum(
            name == tag and (kind is None or kind in (attributes_of(written).get("class") or "").split())
            for name, written in self.tags
        )


def attributes_of(written: str) -> dict[str, str | None]:
    values = (
        (attribute[1], attribute[3] if attribute[2] is None else attribute[2])
        for attribute in ATTRIBUTE.finditer(written)
    )
    return {name.lower(): None if value is None else unescape(value) for name, value in values}
