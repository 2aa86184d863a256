"""One self-contained HTML file of headings, figures and tables, without external fonts, images or addresses.

The page is complete without its script. The script shows tooltips immediately, also on touch screens,
and opens everything before it is printed.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rheoscope.files import signature, write_report
from rheoscope.messages.catalogue import current_language
from rheoscope.picture.blocks import Cell
from rheoscope.picture.picture import Picture
from rheoscope.report.block_html import facts_html, table_html
from rheoscope.report.draw.inline import picture_html
from rheoscope.report.html_text import html_text
from rheoscope.report.style import DRAWING_CSS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CSS = """
:root { color-scheme: light dark; --ink: #1d2433; --muted: #5d6678; --line: #dde2ec; --paper: #ffffff; --soft: #f5f7fb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf4; --muted: #9aa5ba; --line: #2c3447; --paper: #12161f; --soft: #1a202c; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 76rem; padding: 2.5rem 1.5rem 4rem; font: 16px/1.55 system-ui, sans-serif;
  background: var(--paper); color: var(--ink); overflow-wrap: anywhere; }
h1 { font-size: clamp(1.4rem, 4vw, 1.9rem); line-height: 1.25; letter-spacing: -.02em; margin: 0 0 .5rem; text-wrap: balance; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; margin: 3rem 0 .6rem; }
h3 { font-size: .92rem; margin: 0 0 .25rem; }
p.lead, p.caption { color: var(--muted); margin: 0 0 1.5rem; max-width: 72ch; }
p.caption { font-size: .92rem; margin: 0 0 1.2rem; }
section > ul { max-width: 76ch; padding-left: 1.2rem; }
figure img { width: 100%; background: #fff; border-radius: .5rem; border: 1px solid var(--line); }
figcaption { color: var(--muted); font-size: .9rem; margin-top: .5rem; max-width: 75ch; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: normal; }
th { text-align: left; color: var(--muted); font-weight: 600; white-space: nowrap; }
td:first-child { font-weight: 600; white-space: nowrap; }
table.numbers :is(th, td) { text-align: right; white-space: nowrap; padding-block: .25rem; }
table.numbers :is(th, td).word { text-align: left; } table.numbers td.word:last-child { padding-left: 1.2rem; white-space: normal; }
span[title], span[data-tip] { text-decoration: underline dotted var(--muted); text-underline-offset: .2em; cursor: help; }
small { color: var(--muted); }
.tokens { display: flex; flex-wrap: wrap; gap: .25rem; padding: 0; margin: 0; list-style: none; font: .85rem/1.4 ui-monospace, monospace; }
.tokens li { background: var(--soft); border: 1px solid var(--line); border-radius: .3rem; padding: 0 .35rem; }
.tokens li.massive { border-color: #d9622b; box-shadow: inset 0 -2px #d9622b; }
@media (max-width: 42rem) { body { padding: 1.5rem 1rem 3rem; } }
#tip { position: fixed; z-index: 9; pointer-events: none; max-width: min(22rem, 90vw); padding: .4rem .6rem; border-radius: .4rem;
  background: var(--ink); color: var(--paper); font-size: .8rem; line-height: 1.4; white-space: pre-line; }
details summary { cursor: pointer; color: var(--muted); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .85rem; color: var(--muted); }
dt { font-weight: 600; } dd { margin: 0; }
dl.story { grid-template-columns: 8.5rem 1fr; gap: .5rem 1rem; font-size: 1rem; color: var(--ink); max-width: 90ch; }
dl.story code { font-size: .8rem; background: var(--soft); padding: 0 .3rem; border-radius: .25rem; color: var(--muted); }
@media (max-width: 42rem) { dl.story { grid-template-columns: 1fr; gap: 0; } dl.story dd { margin-bottom: .6rem; } }
.panels.story { grid-template-columns: repeat(6, minmax(0, 1fr)); margin-top: 2rem; gap: 2rem 2.2rem; }
.panels.story > figure { grid-column: span 2; } .panels.story > figure:nth-child(-n + 2) { grid-column: span 3; }
@media (max-width: 60rem) { .panels.story > figure, .panels.story > figure:nth-child(-n + 2) { grid-column: 1 / -1; } }
.panels.story h3 { font-size: 1rem; } .panels.story figcaption { margin-top: -.8rem; }
.panels.story > figure:nth-child(-n + 2) { max-width: 31rem; }
dl.commands { grid-template-columns: 1fr; gap: .1rem; font-size: .9rem; max-width: 90ch; }
dl.commands dd { margin-bottom: .6rem; }
dl.commands code { display: block; padding: .4rem .6rem; background: var(--soft); border-radius: .3rem; color: var(--ink);
  max-height: 6.5rem; overflow-y: auto; }
details.fold { border-top: 1px solid var(--line); } details.fold > summary { padding: .7rem 0; color: var(--ink); }
details.fold > summary h2 { display: inline; margin: 0; font-size: 1.05rem; } details.fold[open] > summary { padding-bottom: 1rem; }
details.fold[open] { padding-bottom: 2rem; }
.rows { margin-top: .8rem; border-bottom: 1px solid var(--line); } .rows > details { border-top: 1px solid var(--line); }
.row { display: grid; grid-template-columns: minmax(0, 1fr) 20rem 10.5rem 11rem; gap: 0 1rem; align-items: center;
  padding: .35rem .3rem; list-style: none; color: var(--ink); font-size: .92rem; }
.row::-webkit-details-marker { display: none; } .row > span { position: relative; padding-left: 1.1rem; }
summary.row > span::before { content: "▸"; position: absolute; left: 0; color: var(--muted); }
details[open] > summary.row > span::before { content: "▾"; } summary.row:hover, details[open] > summary.row { background: var(--soft); }
.row small { font-variant-numeric: tabular-nums; text-align: right; } .row b { font-weight: 600; white-space: nowrap; }
.row svg { overflow: visible; }
.scale-row { padding-block: 0; } .row svg .path { stroke-width: 2.6; stroke-opacity: .9; }
.row svg .line.null { stroke-width: 1; stroke-dasharray: 3 2.2; }
.detail { display: grid; grid-template-columns: minmax(0, 1fr) 24rem; gap: 1rem 2rem; align-items: start;
  padding: .8rem .3rem 1.4rem 1.4rem; }
.detail dl { margin: 0; grid-template-columns: 8.5rem 1fr; gap: .3rem 1rem; font-size: .88rem; } .detail dd { color: var(--ink); }
@media (max-width: 60rem) { .row { grid-template-columns: minmax(0, 1fr) auto; } .row > :is(span, svg) { grid-column: 1 / -1; }
  .detail { grid-template-columns: minmax(0, 1fr); padding-left: .3rem; } }
@media (max-width: 42rem) { .detail dl { grid-template-columns: 1fr; gap: 0; } .detail dd { margin-bottom: .4rem; } }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media print { :root { --ink: #000; --muted: #444; --line: #ccc; --paper: #fff; --soft: #f5f5f5; } #tip { display: none; }
  body { padding: 0; font-size: 11px; } figure, tr { break-inside: avoid; } .scroll { overflow: visible; } svg { min-width: 0 !important; }
  .panels { grid-template-columns: repeat(3, minmax(0, 1fr)); } h3 span[data-tip]::after { content: ". " attr(data-tip); font-weight: 400; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
SCRIPT = """
const tip = document.createElement("div"); tip.id = "tip"; tip.hidden = true; document.body.append(tip);
for (const item of document.querySelectorAll("[title]")) {
  item.dataset.tip = item.title; item.removeAttribute("title"); item.tabIndex = 0;
  item.setAttribute("aria-description", item.dataset.tip); }
for (const title of document.querySelectorAll("svg title")) { title.parentNode.dataset.tip = title.textContent; title.remove(); }
const show = (event) => {
  const element = event.target.closest?.("[data-tip]");
  tip.hidden = !element;
  if (!element) return;
  tip.textContent = element.dataset.tip;
  const box = element.getBoundingClientRect(), x = event.clientX ?? box.left, y = event.clientY ?? box.bottom;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 4)) + "px";
  tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18) + "px"; };
for (const name of ["pointermove", "pointerdown", "focusin"]) document.addEventListener(name, show);
document.addEventListener("scroll", () => tip.hidden = true, true);
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
document.addEventListener("keydown", (event) => { if (event.key == "Escape") tip.hidden = true; });
"""


@dataclass(frozen=True)
class Page:
    """A page is a value: `page.with_picture(...)` and `page.with_table(...)` return a longer page.

    >>> "a &lt; b" in Page("T").with_table("Numbers", ["x"], [["a < b"]]).to_html()
    True
    """

    title: str
    lead: str = ""
    sections: tuple[str, ...] = field(default=())

    def with_section(self, heading: str, html: str) -> "Page":
        return self._with_html(f"<section><h2>{html_text(heading)}</h2>{html}</section>")

    def with_fold(self, heading: str, html: str) -> "Page":
        """A section that shows its heading, and the rest when it is opened."""
        summary = f"<summary><h2>{html_text(heading)}</h2></summary>"
        return self._with_html(f'<section><details class="fold">{summary}{html}</details></section>')

    def _with_html(self, html: str) -> "Page":
        return Page(self.title, self.lead, (*self.sections, html))

    def with_png(self, heading: str, image_bytes: bytes, caption: str) -> "Page":
        """An embedded PNG, such as `figure_png(figure)` returns."""
        data = base64.b64encode(image_bytes).decode()
        image = f'<img alt="{html_text(caption)}" src="data:image/png;base64,{data}">'
        return self.with_section(heading, f"<figure>{image}<figcaption>{html_text(caption)}</figcaption></figure>")

    def with_picture(self, picture: Picture) -> "Page":
        """A picture as inline SVG, with its caption."""
        return self.with_section(picture.title, picture_html(picture))

    def with_facts(self, heading: str, facts: Mapping[str, str]) -> "Page":
        """Names and values in two columns."""
        return self.with_section(heading, facts_html(facts))

    def with_table(
        self,
        heading: str,
        header: Sequence[str | Cell],
        rows: Sequence[Sequence[str | Cell]],
        text_columns: frozenset[int] | None = None,
        note: str = "",
    ) -> "Page":
        """A table. Columns outside `text_columns` are right-aligned; by default all columns hold text."""
        return self.with_section(heading, table_html(header, rows, text_columns, note))

    def to_html(self) -> str:
        return (
            f'<!doctype html><html lang="{current_language()}"><meta name="generator" content="{escape(signature(), quote=True)}">'
            f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html_text(self.title)}</title><style>{DRAWING_CSS}{CSS}</style><body><h1>{html_text(self.title)}</h1>"
            f'<p class="lead">{html_text(self.lead)}</p>{"".join(self.sections)}'
            f'<footer>{escape(signature())}</footer><script type="module">{SCRIPT}</script></body></html>\n'
        )

    def save(self, path: Path) -> str:
        return save_bytes(self.to_html().encode(), path)


def figure_png(figure: "Figure", dpi: int = 130) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": signature()})
    return buffer.getvalue()


def save_bytes(data: bytes, path: Path) -> str:
    return write_report(path, lambda temporary: temporary.write_bytes(data))
