"""A picture as one SVG file, light or dark: for a README, a talk, a page that is not ours."""

import re
from collections.abc import Mapping
from html import escape

from rheoscope.picture.picture import Picture
from rheoscope.report.draw.inline import COLUMN, GAP, Frame, svg
from rheoscope.report.style import DRAWN, LIGHT

TIP = re.compile(r"<title>.*?</title>", re.S)
"""Words under the pointer, which an image does not show."""


def sheet(picture: Picture, colours: Mapping[str, str] = LIGHT) -> str:
    """All panels of a picture as one SVG file, which needs no page around it.

    >>> from rheoscope.picture.picture import Panel
    >>> sheet(Picture("", "", (Panel("a", "", ()), Panel("b", "", ())))).count("<g ")
    2
    """
    said, top = [], 0
    for row in picture.rows():
        left = 0
        for panel in row:
            frame = Frame(panel)
            said.append(f'<text class="title" x="{left + 2}" y="{top + 16}">{escape(panel.title)}</text>')
            inside = TIP.sub("", svg(panel)).split(">", 1)[1].removesuffix("</svg>")
            said.append(f'<g transform="translate({left} {top + 20})">{inside}</g>')
            left += frame.width + GAP
        top += max(Frame(panel).height for panel in row) + 24
    width = 3 * COLUMN + 2 * GAP
    named = "".join(f"--{name}: {colour}; " for name, colour in colours.items())
    style = f"svg {{ {named}}} {DRAWN} svg text.title {{ fill: var(--ink); font-weight: 600; font-size: 13px; }}"
    label = escape(picture.title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" role="img" aria-label="{label}">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="{colours["paper"]}"/>{"".join(said)}</svg>\n'
    )
