"""What a browser would find on a page."""

from html.parser import HTMLParser


class Parts(HTMLParser):
    """What a browser would find: elements with their attributes, and the text inside each kind."""

    EMPTY = ("meta", "img", "br", "link")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def count(self, tag: str, kind: str | None = None) -> int:
        return sum(
            name == tag and (kind is None or kind in (attrs.get("class") or "").split())
            for name, attrs in self.elements
        )
