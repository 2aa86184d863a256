"""One self-contained HTML file of headings, figures and tables: no script, no font, no address outside itself."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CSS = """
:root { color-scheme: light dark; --ink: #1d2433; --muted: #5d6678; --line: #dde2ec; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ecf4; --muted: #9aa5ba; --line: #2c3447; --paper: #12161f; } }
body { margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem 4rem; font: 16px/1.55 system-ui, sans-serif;
  background: var(--paper); color: var(--ink); }
h1 { font-size: 1.9rem; letter-spacing: -.02em; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .6rem; }
p.lead { color: var(--muted); margin: 0 0 1.5rem; max-width: 62ch; }
figure { margin: 0; }
figure img { width: 100%; background: #fff; border-radius: .5rem; border: 1px solid var(--line); }
figcaption { color: var(--muted); font-size: .9rem; margin-top: .5rem; max-width: 75ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { text-align: left; color: var(--muted); font-weight: 600; }
td:first-child { font-weight: 600; white-space: nowrap; }
[title] { text-decoration: underline dotted var(--muted); cursor: help; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
"""


@dataclass(frozen=True)
class Cell:
    """A table cell with a definition one hover away."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Page:
    """A page grows by values: `page.picture(...)` and `page.table(...)` return a longer page.

    >>> "a &lt; b" in Page("T").table("Numbers", ["x"], [["a < b"]]).html()
    True
    """

    title: str
    lead: str = ""
    parts: tuple[str, ...] = field(default=())

    def section(self, heading: str, html: str) -> "Page":
        return Page(self.title, self.lead, (*self.parts, f"<section><h2>{escape(heading)}</h2>{html}</section>"))

    def picture(self, heading: str, picture: bytes, caption: str) -> "Page":
        """A PNG (`png(figure)` makes one), embedded."""
        data = base64.b64encode(picture).decode()
        image = f'<img alt="{escape(caption, quote=True)}" src="data:image/png;base64,{data}">'
        return self.section(heading, f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")

    def table(self, heading: str, header: Sequence[str | Cell], rows: Sequence[Sequence[str | Cell]]) -> "Page":
        head = "".join(_cell("th", cell) for cell in header)
        body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
        return self.section(heading, f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>')

    def html(self) -> str:
        from rheoscope import __version__

        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{escape(self.title)}</title><style>{CSS}</style><body><h1>{escape(self.title)}</h1>"
            f'<p class="lead">{escape(self.lead)}</p>{"".join(self.parts)}'
            f"<footer>Rheoscope {escape(__version__)}</footer></body></html>\n"
        )

    def save(self, path: Path) -> str:
        return save(self.html().encode(), path)


def png(figure: "Figure", dpi: int = 130) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def save(data: bytes, path: Path) -> str:
    return written(path, lambda temporary: temporary.write_bytes(data))


def _cell(tag: str, cell: str | Cell) -> str:
    cell = cell if isinstance(cell, Cell) else Cell(cell)
    title = f' title="{escape(cell.title, quote=True)}"' if cell.title else ""
    return f"<{tag}><span{title}>{escape(cell.text)}</span></{tag}>"
